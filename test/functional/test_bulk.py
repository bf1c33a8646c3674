"""Archives and lists of names against live clusters (middleware 8; case X07; security R18)."""

from __future__ import annotations

import io
import tarfile
from typing import Any

from test.support.client import Account, unique

JSON = {"Accept": "application/json"}


def archive(names: list[str], mode: Any = "w") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = len(name.encode())
            tar.addfile(info, io.BytesIO(name.encode()))
    return buffer.getvalue()


def test_an_archive_in_and_out_again(account: Account):
    one, two = unique("bulk"), unique("bulk")
    names = [f"{one}/a ü%41", f"./{one}/d/../b", f"/{two}/c"]
    for form, mode in (("tar", "w"), ("tar.gz", "w:gz"), ("tar.bz2", "w:bz2")):
        found = account.put(query=f"extract-archive={form}", headers=JSON, body=archive(names, mode)).expect(200).json()
        assert (found["Response Status"], found["Number Files Created"]) == ("201 Created", 3), found
    assert [entry["name"] for entry in account.listing(one)] == ["a ü%41", "d/../b"]
    body = f"/{two}\n/{one}/a%20%C3%BC%2541\n{one}/d/../b\n/{two}/c\n/{one}\n/{one}/nope\n"
    found = account.post(query="bulk-delete", headers={**JSON, "Content-Type": "text/plain"}, body=body).expect(200).json()
    assert found == {"Response Status": "200 OK", "Response Body": "", "Number Deleted": 5, "Number Not Found": 1, "Errors": []}


def test_who_may_not_write_may_not_in_bulk(account: Account, plain: Account, container: str):
    stranger = plain.of(account)
    account.put(container, "o", body=b"x").expect(201)
    found = stranger.put(container, query="extract-archive=tar", headers=JSON, body=archive(["x"])).json()
    assert found["Response Status"] == "400 Bad Request" and all(status.startswith("403") for _, status in found["Errors"])
    assert stranger.post(query="bulk-delete", headers=JSON, body=f"/{container}/o").json()["Errors"] == [[f"/{container}/o", "403 Forbidden"]]
    nobody = account.anonymous()
    assert nobody.put(container, query="extract-archive=tar", headers=JSON, body=archive(["x"])).json()["Response Status"] == "401 Unauthorized"
    assert [entry["name"] for entry in account.listing(container)] == ["o"]


def test_case_X07_expect_100_continue(account: Account, container: str):
    account.put(container, "o", body=b"x").expect(201)
    with account.endpoint.connect() as connection:
        for accept in ("text/xml", "application/xml"):
            connection.raw.putrequest("POST", account.target(query="bulk-delete"))
            body = f"/{container}/o\n".encode()
            for name, value in (("X-Auth-Token", account.token), ("Expect", "100-continue"), ("Accept", accept), ("Content-Length", str(len(body)))):
                connection.raw.putheader(name, value)
            connection.raw.endheaders(body)
            answer = connection.answer()
            assert answer.status == 200 and answer.body.startswith(b"<delete>") and answer.body.endswith(b"</delete>\n")
