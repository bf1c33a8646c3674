"""Temporary URLs against live clusters (middleware 9; clients.md H4-H15; security S01, S11)."""

from __future__ import annotations

import email.utils
import json

import pytest

from test.support.client import Account, unique
from test.support.signing import temp_url


@pytest.fixture
def shared(account: Account, container: str) -> str:
    """A container with the key ``ck`` that holds ``o``."""
    account.post(container, headers={"X-Container-Meta-Temp-Url-Key": "ck"}).expect(204)
    account.put(container, "o", body=b"data", headers={"X-Object-Meta-Secret": "s", "X-Object-Meta-Public-A": "p"}).expect(201)
    return container


def path(account: Account, *names: str) -> str:
    return "/".join([account.path, *names])


def ask(account: Account, target: str, method: str = "GET", headers: dict[str, str] | None = None, body: bytes | None = None):
    return account.endpoint.request(method, target, headers, body)


def test_get_put_post_delete(account: Account, shared: str):
    got = ask(account, temp_url(path(account, shared, "o"), "ck")).expect(200)
    assert got.body == b"data" and got.headers["Content-Disposition"].startswith('attachment; filename="o"')
    assert "X-Object-Meta-Secret" not in got.headers and got.headers["X-Object-Meta-Public-A"] == "p"
    name = path(account, shared, "new ü%")
    ask(account, temp_url(name, "ck", "PUT"), "PUT", {"Content-Type": "text/x"}, b"new").expect(201)
    ask(account, temp_url(name, "ck", "POST"), "POST", {"X-Object-Meta-A": "b"}).expect(202)
    assert account.head(shared, "new ü%").headers["X-Object-Meta-A"] == "b"
    ask(account, temp_url(name, "ck", "DELETE"), "DELETE").expect(204)
    account.head(shared, "new ü%").expect(404)
    assert ask(account, temp_url(path(account, shared, "o"), "ck"), headers={"Range": "bytes=1-2"}).expect(206).body == b"at"


def test_account_keys_are_read_back_at_once(account: Account, shared: str):
    """clients.md H4: a key is set, seen, and used at once."""
    key = unique("key")
    account.post(headers={"X-Account-Meta-Temp-Url-Key": key}).expect(204)
    assert account.head().headers["X-Account-Meta-Temp-Url-Key"] == key
    for digest in ("sha1", "sha256", "sha512"):
        ask(account, temp_url(path(account, shared, "o"), key, digest=digest)).expect(200)
    account.post(headers={"X-Account-Meta-Temp-Url-Key": key + "-2"}).expect(204)
    ask(account, temp_url(path(account, shared, "o"), key)).expect(401)


def test_heat_polls_with_head_on_a_get_url_until_2038(account: Account, shared: str):
    """clients.md H-c, H15."""
    target = temp_url(path(account, shared, "o"), "ck", expires=2147483647 - 60)
    head = ask(account, target, "HEAD").expect(200)
    assert email.utils.parsedate_to_datetime(head.headers["Last-Modified"]) and head.headers["Content-Length"] == "4"
    assert ask(account, target).expect(200).body == b"data"


def test_heat_signals_the_same_url_again_and_again(account: Account, shared: str):
    """clients.md H6: each PUT to a self-versioned container archives what was there; DELETE pops until 404."""
    account.post(shared, headers={"X-Versions-Location": shared}).expect(204)
    target = temp_url(path(account, shared, "signal"), "ck", "PUT", expires=2147483647 - 60)
    for number in range(3):
        ask(account, target, "PUT", {"Content-Type": "application/x-www-form-urlencoded"}, b'{"n": %d}' % number).expect(201)
    assert json.loads(account.get(shared, "signal").body) == {"n": 2}
    for number in (1, 0):
        account.delete(shared, "signal").expect(204)
        assert json.loads(account.get(shared, "signal").body) == {"n": number}
    account.delete(shared, "signal").expect(204)
    account.delete(shared, "signal").expect(404)


def test_case_C33_refusals_are_bare(account: Account, shared: str):
    name = path(account, shared, "o")
    for target in (temp_url(name, "wrong"), temp_url(name, "ck", expires=10), temp_url(name, "ck", "PUT"), temp_url(path(account, shared, "x"), "ck").replace("/x?", "/o?"),
                   temp_url(name, "ck", ip="192.0.2.0/24"), temp_url(name, "ck", prefix="x")):
        got = ask(account, target)
        assert (got.status, got.body) == (401, b"401 Unauthorized: Temp URL invalid\n")
    assert account.endpoint.request("GET", "/info").json()["tempurl"]["allowed_digests"] == ["sha1", "sha256", "sha512"]


def test_prefixes_and_addresses(account: Account, shared: str):
    account.put(shared, "dir/a", body=b"a").expect(201)
    ask(account, temp_url(path(account, shared, "dir/a"), "ck", prefix="dir/")).expect(200)
    ask(account, temp_url(path(account, shared, "o"), "ck", prefix="dir/")).expect(401)
    ask(account, temp_url(path(account, shared, "o"), "ck", ip="127.0.0.0/8")).expect(200)


@pytest.mark.parametrize("header", ["X-Copy-From", "X-Copy-From-Account", "X-Fresh-Metadata", "X-Object-Manifest", "X-Symlink-Target"])
def test_security_S01_S11_what_stands_for_another_object_is_refused(account: Account, shared: str, header: str):
    secret = unique("secret")
    account.put(secret).expect(201)
    account.put(secret, "s", body=b"secret").expect(201)
    target = temp_url(path(account, shared, "dst"), "ck", "PUT")
    ask(account, target, "PUT", {header: f"{secret}/s"}, b"").expect(400)
    ask(account, target, "COPY", {"Destination": f"{shared}/dst2"}).expect(400)
    ask(account, target + "&multipart-manifest=put", "PUT", body=b"[]").expect(400)
    assert [entry["name"] for entry in account.listing(shared)] == ["o"]
    account.empty(secret)


def test_security_S11_a_container_key_reaches_its_container_only(account: Account, shared: str):
    other = unique("other")
    account.put(other).expect(201)
    account.put(other, "seg/1", body=b"secret").expect(201)
    account.put(shared, "seg/1", body=b"open").expect(201)
    for place, status in ((shared, 200), (other, 401)):
        account.put(shared, "dlo", body=b"", headers={"X-Object-Manifest": f"{place}/seg/"}).expect(201)
        account.put(shared, "link", body=b"", headers={"X-Symlink-Target": f"{place}/seg/1"}).expect(201)
        account.put(shared, "slo", query="multipart-manifest=put", body=json.dumps([{"path": f"/{place}/seg/1"}])).expect(201)
        for name in ("dlo", "link", "slo"):
            got = ask(account, temp_url(path(account, shared, name), "ck"))
            assert b"secret" not in got.body and (got.status == 200) == (status == 200), (place, name, got.status)
    account.empty(other)


def test_a_page_of_a_private_container(account: Account, shared: str):
    account.post(shared, headers={"X-Container-Meta-Web-Listings": "true"}).expect(204)
    account.put(shared, "dir/a b.txt", body=b"x").expect(201)
    root = ask(account, temp_url(path(account, shared, ""), "ck", prefix="")).expect(200)
    assert root.headers["Content-Disposition"] == "inline" and b'href="./dir/?temp_url_prefix=' in root.body
    link = root.body.decode().partition('href="./dir/')[2].partition('"')[0].replace("&amp;", "&")
    page = account.endpoint.request("GET", f"{path(account, shared)}/dir/{link}").expect(200)
    assert b">a b.txt</a>" in page.body
    account.endpoint.request("GET", f"{path(account, shared)}/dir/").expect(401)
