"""Web sites against live clusters (middleware 15; case X05; security S17, S21, R09)."""

from __future__ import annotations

import pytest

from test.support.client import Account


@pytest.fixture
def site(account: Account, container: str) -> str:
    for name, kind in (("index.html", "text/html"), ("d/index.html", "text/html"), ("d/e/<b>&.txt", "text/plain"), ("404err.html", "text/html"), ("x//y", "text/plain"), ("x/./z", "text/plain")):
        account.put(container, name, headers={"Content-Type": kind}, body=name.encode()).expect(201)
    account.post(container, headers={"X-Container-Read": ".r:*,.rlistings", "X-Container-Meta-Web-Index": "index.html", "X-Container-Meta-Web-Listings": "true",
                                     "X-Container-Meta-Web-Error": "err.html"}).expect(204)
    return container


def test_a_visit(account: Account, site: str):
    visitor = account.anonymous()

    def see(path: str, method: str = "GET"):
        return visitor.endpoint.request(method, visitor.target(site) + path)

    assert see("").status == 301 and see("").headers["Location"].endswith(f"/{site}/")
    assert see("/").body == b"index.html" and see("/d/").body == b"d/index.html" and see("/d").status == 301
    assert (see("/nope").status, see("/nope").body) == (404, b"404err.html") and see("/nope", "HEAD").status == 404
    page = see("/d/e/")
    assert b"&lt;b&gt;&amp;.txt</a>" in page.body and b"<b>" not in page.body and page.headers["X-Content-Type-Options"] == "nosniff"
    assert see("/d/e/", "HEAD").headers["Content-Length"] == str(len(page.body))
    assert b'href="./%2E/"' in see("/x/").body and b">y</a>" in see("/x//").body and b">z</a>" in see("/x/./").body
    assert account.get(site, query="format=json").json() and b"DOCTYPE" not in account.get(site).body
    assert account.get(site, "d/e/", headers={"X-Web-Mode": "true"}).body == page.body


def test_security_S21_a_private_container_shows_nothing(account: Account, site: str):
    account.post(site, headers={"X-Remove-Container-Read": "x"}).expect(204)
    visitor = account.anonymous()
    for path in ("", "/", "/d/", "/d/e/", "/nope", "/index.html"):
        answer = visitor.endpoint.request("GET", visitor.target(site) + path)
        assert answer.status == 401 and b"index" not in answer.body and b"err.html" not in answer.body
