"""Object writes (client API 5): lengths, checksums, overwriting, deleting, expiry, server-side copy."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from test.support.client import Account, unique
from test.support.waiting import until


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


@pytest.mark.parametrize("size", [0, 1, 4096, 65535, 65536, 65537, 1 << 20, (1 << 20) + 1, 5_000_000])
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize("expect", [False, True], ids=["", "100-continue"])
def test_bodies_of_every_size(account: Account, container: str, size: int, chunked: bool, expect: bool) -> None:
    body = hashlib.sha256(str(size).encode()).digest() * (size // 32 + 1)
    body = body[:size]
    headers = {"Expect": "100-continue"} if expect else {}
    pieces: bytes | Iterator[bytes] = body
    if chunked:
        headers["Transfer-Encoding"] = "chunked"
        pieces = iter([body[at:at + 50_000] for at in range(0, size, 50_000)])
    put = account.put(container, "o", body=pieces, headers=headers).expect(201)
    assert put.headers["Etag"] == md5(body)
    assert put.headers["Content-Length"] == "0"
    answer = account.get(container, "o").expect(200)
    assert answer.body == body
    assert (answer.headers["Content-Length"], answer.headers["Etag"]) == (str(size), md5(body))
    entry = account.listing(container)[0]
    assert (entry["bytes"], entry["hash"]) == (size, md5(body))


@pytest.mark.parametrize("form", ["{}", '"{}"'])
def test_the_right_etag_is_accepted(account: Account, container: str, form: str) -> None:
    account.put(container, "o", body=b"data", headers={"ETag": form.format(md5(b"data"))}).expect(201)


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("body", [b"", b"data", b"x" * 300_000])
def test_a_wrong_etag_is_422_and_leaves_what_was(account: Account, container: str, chunked: bool, body: bytes) -> None:
    account.put(container, "o", body=b"before").expect(201)
    with account.endpoint.connect() as connection:
        headers = {"ETag": md5(b"other")} | ({"Transfer-Encoding": "chunked"} if chunked else {})
        account.put(container, "o", body=iter([body]) if chunked else body, headers=headers, connection=connection).expect(422)
        assert account.get(container, "o", connection=connection).expect(200).body == b"before"
    assert account.listing(container)[0]["hash"] == md5(b"before")


@pytest.mark.parametrize(("headers", "status"), [
    ({"Transfer-Encoding": "gzip"}, 400), ({"Transfer-Encoding": "gzip,chunked"}, 501), ({"Content-Length": "-1"}, 400),
    ({"Content-Length": "many"}, 400), ({"Content-Length": str(5 * 2**30 + 3)}, 413), ({"Content-Length": ""}, 400),
])
def test_lengths_that_are_refused(account: Account, container: str, headers: dict[str, str], status: int) -> None:
    with account.endpoint.connect() as connection:
        answer = account.put(container, "o", headers={"Expect": "100-continue", **headers}, connection=connection)
        assert answer.status in ({status} | ({400, 501} if "Transfer-Encoding" in headers else {400, 411, status}))
    account.head(container, "o").expect(404)
    account.put(container, "o", body=b"fine").expect(201)


def test_no_length_is_411(account: Account, container: str) -> None:
    with account.endpoint.connect() as connection:
        raw = connection.raw
        raw.putrequest("PUT", account.target(container, "o"))
        raw.putheader("X-Auth-Token", account.token)
        raw.endheaders()
        assert connection.answer().status == 411


def test_overwriting(account: Account, container: str) -> None:
    for turn in range(20):
        body = b"x" * (turn * 1000)
        account.put(container, "o", body=body, headers={f"X-Object-Meta-Turn-{turn}": "1"}).expect(201)
        answer = account.get(container, "o")
        assert answer.body == body
        assert [name for name in answer.headers if name.startswith("x-object-meta-")] == [f"x-object-meta-turn-{turn}"]
    assert [entry["bytes"] for entry in account.listing(container)] == [19_000]
    assert account.head(container).headers["X-Container-Bytes-Used"] == "19000"


def test_deleting(account: Account, container: str) -> None:
    account.put(container, "o", body=b"1").expect(201)
    account.delete(container).expect(409)
    account.delete(container, "o").expect(204)
    account.delete(container, "o").expect(404)
    for verb in ("GET", "HEAD", "POST"):
        account.request(verb, container, "o").expect(404)
    account.put(container, "o", body=b"2").expect(201)
    assert account.get(container, "o").body == b"2"
    account.delete(container, "o").expect(204)
    account.delete(container).expect(204)
    account.delete(container).expect(404)
    account.put(container, "o", body=b"3").expect(404)
    account.put(container).expect(201)
    assert account.listing(container) == []


def test_writes_into_no_container(account: Account) -> None:
    absent = unique("absent")
    for verb in ("PUT", "POST", "DELETE", "GET", "HEAD"):
        with account.endpoint.connect() as connection:
            account.request(verb, absent, "o", body=b"body" if verb in ("PUT", "POST") else None, connection=connection).expect(404)


# -- expiry --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("headers", [
    {"X-Delete-At": "soon"}, {"X-Delete-At": "1"}, {"X-Delete-At": ""}, {"X-Delete-After": "soon"}, {"X-Delete-After": "0"}, {"X-Delete-After": "-5"},
    {"X-Delete-At": "1.5"}, {"X-Delete-At": "0x10"},
])
@pytest.mark.parametrize("verb", ["PUT", "POST"])
def test_expiry_times_that_are_refused(account: Account, container: str, headers: dict[str, str], verb: str) -> None:
    account.put(container, "o", body=b"1").expect(201)
    answer = account.request(verb, container, "o", headers=headers, body=b"2" if verb == "PUT" else None)
    if headers == {"X-Delete-At": ""}:
        assert answer.status in (201, 202, 400)
        return
    answer.expect(400)
    assert account.get(container, "o").body == b"1"


def test_an_object_expires_on_time(account: Account, container: str) -> None:
    account.put(container, "after", body=b"1", headers={"X-Delete-After": "6", "X-Delete-At": "99999999999"}).expect(201)
    head = account.head(container, "after").expect(200).headers
    assert "X-Delete-After" not in head
    at = int(head["X-Delete-At"])
    assert time.time() - 1 <= at <= time.time() + 7
    account.put(container, "kept", body=b"1", headers={"X-Delete-At": str(at)}).expect(201)
    account.post(container, "kept").expect(202)  # a POST without it takes it away
    assert "X-Delete-At" not in account.head(container, "kept").headers
    account.put(container, "by-post", body=b"1").expect(201)
    account.post(container, "by-post", headers={"X-Delete-At": str(at)}).expect(202)
    until(lambda: account.get(container, "after").status == 404, "the object expires")
    assert time.time() >= at - 0.1
    until(lambda: account.head(container, "by-post").status == 404, "the object expires")
    account.post(container, "after", headers={"X-Object-Meta-A": "1"}).expect(404)
    account.get(container, "kept").expect(200)
    assert {"kept"} <= {entry["name"] for entry in account.listing(container)} <= {"after", "by-post", "kept"}  # the expirer may have been there
    account.delete(container, "after").expect(404)
    account.put(container, "by-post", body=b"2").expect(201)
    assert account.get(container, "by-post").body == b"2"
    account.delete(container, "by-post").expect(204)


def test_a_delete_time_is_ten_digits(account: Account, container: str) -> None:
    account.put(container, "o", headers={"X-Delete-At": "99999999999"}, body=b"").expect(201)
    assert account.head(container, "o").headers["X-Delete-At"] == "9999999999"


# -- copies --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def source(account: Account, container: str) -> str:
    headers = {"Content-Type": "text/source", "X-Object-Meta-Color": "blue", "X-Object-Meta-Size": "big", "Content-Disposition": "inline"}
    account.put(container, "sourcé %?", body=b"source data", headers=headers).expect(201)
    return "sourcé %?"


@pytest.mark.parametrize("slash", ["", "/"])
@pytest.mark.parametrize("verb", ["COPY", "PUT"])
def test_copy(account: Account, container: str, source: str, verb: str, slash: str) -> None:
    extra = {"X-Object-Meta-Size": "small", "X-Object-Meta-New": "1"}
    if verb == "COPY":
        answer = account.request("COPY", container, source, headers={"Destination": f"{slash}{container}/{quote('né w')}", **extra})
    else:
        answer = account.put(container, "né w", headers={"X-Copy-From": f"{slash}{container}/{quote(source)}", "Content-Length": "0", **extra})
    answer.expect(201)
    assert answer.headers["X-Copied-From"] == f"{container}/{quote(source)}"
    assert answer.headers["X-Copied-From-Account"] == account.name
    assert answer.headers["X-Copied-From-Last-Modified"] == account.head(container, source).headers["Last-Modified"]
    assert answer.headers["Etag"] == md5(b"source data")
    got = account.get(container, "né w").expect(200)
    assert got.body == b"source data"
    assert {name: got.headers.get(name) for name in ("Content-Type", "X-Object-Meta-Color", "X-Object-Meta-Size", "X-Object-Meta-New",
                                                     "Content-Disposition")} == {
        "Content-Type": "text/source", "X-Object-Meta-Color": "blue", "X-Object-Meta-Size": "small", "X-Object-Meta-New": "1",
        "Content-Disposition": "inline"}


def test_copy_onto_itself_changes_metadata(account: Account, container: str, source: str) -> None:
    headers = {"Destination": f"{container}/{quote(source)}", "X-Fresh-Metadata": "true", "Content-Type": "text/fresh", "X-Object-Meta-Only": "1"}
    account.request("COPY", container, source, headers=headers).expect(201)
    got = account.get(container, source)
    assert got.body == b"source data"
    assert got.headers["Content-Type"] == "text/fresh"
    assert [name for name in got.headers if name.startswith("x-object-meta-")] == ["x-object-meta-only"]


def test_copy_a_range_or_under_a_condition(account: Account, container: str, source: str) -> None:
    target = {"Destination": f"{container}/part"}
    account.request("COPY", container, source, headers={**target, "Range": "bytes=0-5"}).expect(201)
    assert account.get(container, "part").body == b"source"
    account.request("COPY", container, source, headers={**target, "If-None-Match": md5(b"source data")}).expect(304)
    account.request("COPY", container, source, headers={**target, "If-Match": "0" * 32}).expect(412)
    account.request("COPY", container, source, headers={**target, "If-Match": md5(b"source data")}).expect(201)
    assert account.get(container, "part").body == b"source data"


@pytest.mark.parametrize(("verb", "headers", "status"), [
    ("COPY", {}, 412), ("COPY", {"Destination": "nothing"}, 412), ("COPY", {"Destination": "/"}, 412), ("COPY", {"Destination": "c/"}, 412),
    ("COPY", {"Destination": "//o"}, 412), ("COPY", {"Destination": "CONTAINER/x", "Destination-Account": "a/b"}, 412),
    ("COPY", {"Destination": "absent-container/x"}, 404), ("COPY", {"Destination": "CONTAINER/%FF"}, 412),
    ("PUT", {"X-Copy-From": "nothing"}, 412), ("PUT", {"X-Copy-From": "/"}, 412), ("PUT", {"X-Copy-From": "CONTAINER/none"}, 404),
    ("PUT", {"X-Copy-From": "absent-container/x"}, 404), ("PUT", {"X-Copy-From": "CONTAINER/o", "X-Copy-From-Account": "a/b"}, 412),
])
def test_copies_that_are_refused(account: Account, container: str, source: str, verb: str, headers: dict[str, str], status: int) -> None:
    headers = {name: value.replace("CONTAINER", container) for name, value in headers.items()}
    names = (container, source) if verb == "COPY" else (container, "target")
    with account.endpoint.connect() as connection:
        account.request(verb, *names, headers=headers, connection=connection).expect(status)
    assert [entry["name"] for entry in account.listing(container)] == [source]


def test_copies_take_no_body(account: Account, container: str, source: str) -> None:
    with account.endpoint.connect() as connection:
        answer = account.request("COPY", container, source, headers={"Destination": f"{container}/x"}, body=b"body", connection=connection)
        if answer.status != 400:  # Swift ignores the body of a COPY
            answer.expect(201)
            assert account.get(container, "x").body == b"source data"
        account.head(container, source, connection=connection).expect(200)
    account.put(container, "y", headers={"X-Copy-From": f"{container}/{quote(source)}"}, body=b"body").expect(400)
    account.head(container, "y").expect(404)


def test_copy_between_containers_policies_and_accounts(account: Account, other: Account, container: str, source: str) -> None:
    silver = unique("silver")
    foreign = unique("foreign")
    account.put(silver, headers={"X-Storage-Policy": "silver"}).expect(201)
    other.put(foreign, headers={"X-Container-Write": "test:tester"}).expect(201)
    try:
        account.request("COPY", container, source, headers={"Destination": f"{silver}/x"}).expect(201)
        assert account.get(silver, "x").body == b"source data"
        account.request("COPY", silver, "x", headers={"Destination": f"{foreign}/y", "Destination-Account": other.name}).expect(201)
        assert other.get(foreign, "y").body == b"source data"
        answer = account.request("COPY", container, source, headers={"Destination": f"{foreign}/z", "Destination-Account": other.name,
                                                                     "X-Auth-Token": account.token})
        answer.expect(201)
        denied = other.of(account).request("COPY", container, source, headers={"Destination": f"{container}/stolen"})
        denied.expect(403)
        taken = other.put(foreign, "stolen", headers={"X-Copy-From": f"{container}/{quote(source)}", "X-Copy-From-Account": account.name})
        taken.expect(403)
        other.head(foreign, "stolen").expect(404)
        account.post(container, headers={"X-Container-Read": "test2:tester2"}).expect(204)
        got = other.put(foreign, "given", headers={"X-Copy-From": f"{container}/{quote(source)}", "X-Copy-From-Account": account.name})
        got.expect(201)
        assert other.get(foreign, "given").body == b"source data"
    finally:
        account.empty(silver)
        other.empty(foreign)
