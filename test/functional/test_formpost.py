"""Upload forms against live clusters (middleware 10; cases C19, C20; security S01)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from test.support.client import Account
from test.support.signing import FORM_TYPE, form_body, form_fields


@pytest.fixture
def target(account: Account, container: str) -> str:
    account.post(container, headers={"X-Container-Meta-Temp-Url-Key": "fk"}).expect(204)
    return f"{account.path}/{container}/in/"


def post(account: Account, target: str, body: bytes):
    return account.endpoint.request("POST", target, {"Content-Type": FORM_TYPE}, body)


def test_case_C19_files_with_types_of_their_own(account: Account, container: str, target: str):
    files = [("a.txt", b"one", "text/plain"), ("ü b.html", b"two", "text/html")]
    got = post(account, target, form_body(form_fields(target, "fk"), files)).expect(201)
    assert got.body == b"201 Created"
    for name, content, kind in files:
        found = account.get(container, "in/" + name).expect(200)
        assert (found.body, found.headers["Content-Type"]) == (content, kind)


def test_curl_uploads_as_browsers_do(account: Account, container: str, target: str, tmp_path: Path):
    big = tmp_path / "big.bin"
    big.write_bytes(b"0123456789" * 200000)
    arguments = [part for name, value in form_fields(target, "fk", "http://127.0.0.1:1/done", max_size=1 << 22).items() for part in ("-F", f"{name}={value}")]
    done = subprocess.run(["curl", "-s", "-o", "/dev/null", "-w", "%{http_code} %{redirect_url}", *arguments, "-F", f"file=@{big};type=image/png", account.endpoint.url + target],
                          capture_output=True, text=True, check=True)
    assert done.stdout == "303 http://127.0.0.1:1/done?status=201&message="
    assert account.head(container, "in/big.bin").headers["Content-Length"] == "2000000"


def test_case_C20_refused_by_a_quota(account: Account, container: str, target: str):
    account.put(container, "full", body=b"1234").expect(201)  # a form does not tell the size of its files
    account.post(container, headers={"X-Container-Meta-Quota-Bytes": "3"}).expect(204)
    got = post(account, target, form_body(form_fields(target, "fk"), [("a", b"1234", "text/plain")]))
    assert (got.status, got.body) == (413, b"Upload exceeds quota.")


def test_refusals_store_nothing(account: Account, container: str, target: str):
    files = [("a", b"1234", "text/plain")]
    fields = form_fields(target, "fk")
    assert post(account, target, form_body({**fields, "signature": "0" * 64}, files)).status == 401
    assert post(account, target, form_body(form_fields(target, "fk", seconds=-5), files)).body == b"FormPost: Form Expired"
    assert post(account, target, form_body(form_fields(target, "fk", max_size=3), files)).status == 400
    assert post(account, target, form_body(fields, files)[:-30]).status == 400
    assert post(account, target, form_body({**fields, "X-Copy-From": "c/o"}, files)).status == 400
    assert account.listing(container) == []
