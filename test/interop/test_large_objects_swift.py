"""Large objects and symlinks of both makes over the same disks: what one writes the other reads, lists and deletes (issue 3)."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from test.support.client import Account, unique
from test.support.peers import OURS, PROXY_CONF, SWIFT, Peers
from test.support.preloaded import Preloaded

FILTERS = """
[filter:slo]
use = egg:swift#slo
rate_limit_segments_per_sec = 0
[filter:dlo]
use = egg:swift#dlo
rate_limit_segments_per_sec = 0
[filter:symlink]
use = egg:swift#symlink
"""
PUT, GET, DELETE = "multipart-manifest=put", "multipart-manifest=get", "multipart-manifest=delete"
SEGMENTS = [b"a" * 100_000, b"b" * 70_000, b"c"]
WHOLE = b"".join(SEGMENTS)
# Of an answer, what must be the same from both.
TOLD = ("Content-Length", "Etag", "X-Static-Large-Object", "X-Manifest-Etag", "X-Object-Manifest", "X-Parts-Count",
        "Content-Range", "Content-Location", "X-Symlink-Target", "X-Symlink-Target-Etag", "X-Symlink-Target-Bytes",
        "X-Object-Meta-A")


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory, swift_python: str, preloaded: Preloaded) -> Iterator[Peers]:
    conf = PROXY_CONF.replace("copy proxy-logging proxy-server", "copy slo dlo symlink proxy-logging proxy-server") + FILTERS
    peers = Peers(tmp_path_factory.mktemp("large"), swift_python, preloaded=preloaded, proxy_conf=conf)
    try:
        peers.start_proxies(OURS, SWIFT)
        with peers.storage(OURS, SWIFT):
            yield peers
    finally:
        peers.stop_all()


@pytest.fixture(params=[(OURS, SWIFT), (SWIFT, OURS)], ids=lambda makes: f"{makes[0]}-writes-{makes[1]}-reads")
def pair(peers: Peers, request: pytest.FixtureRequest) -> tuple[Account, Account]:
    writer, reader = request.param
    account = peers.proxy(writer).login()
    return account, account.at(peers.proxy(reader))


@pytest.fixture
def container(pair: tuple[Account, Account]) -> str:
    writer, _ = pair
    name = unique("large")
    writer.put(name).expect(201)
    for number, data in enumerate(SEGMENTS):
        writer.put(name, f"s é/{number}", body=data, headers={"Content-Type": "x/y; z=1"}).expect(201)
    return name


def alike(pair: tuple[Account, Account], container: str, name: str, query: str = "", **headers: str) -> Any:
    """The answer to a GET, which both give alike, and HEAD too."""
    answers = [[account.request(method, container, name, query=query, headers=headers) for account in pair]
               for method in ("GET", "HEAD")]
    for one, other in answers:
        assert (one.status, one.body) == (other.status, other.body)
        assert {key: one.headers.get(key) for key in TOLD} == {key: other.headers.get(key) for key in TOLD}
    return answers[0][0]


def listed(account: Account, container: str) -> list[dict[str, Any]]:
    return [{**entry, "content_type": entry["content_type"].replace("; ", ";")} for entry in account.listing(container)]


def test_static_large_objects(pair: tuple[Account, Account], container: str) -> None:
    writer, reader = pair
    entries = [{"path": f"/{container}/s é/{number}"} for number in range(3)]
    writer.put(container, "slo", query=PUT, body=json.dumps(entries), headers={
        "Content-Type": "a/b; c=d", "X-Object-Meta-A": "1"}).expect(201)
    all_forms = [
        {"path": f"/{container}/slo", "range": "5-100004"}, {"data": base64.b64encode(b"inline").decode()},
        {"path": f"{container}/s é/0", "range": "-7"}, {"path": f"{container}/slo"}, {"path": f"{container}/s é/2"}]
    writer.put(container, "all", query=PUT, body=json.dumps(all_forms)).expect(201)
    assert alike(pair, container, "slo").body == WHOLE
    assert alike(pair, container, "all").body == WHOLE[5:100_005] + b"inline" + b"a" * 7 + WHOLE + b"c"
    for header in ("bytes=0-9", "bytes=99990-100020", "bytes=-3", "bytes=9999999-"):
        alike(pair, container, "all", Range=header)
    for query in (GET, "part-number=1", "part-number=2", "part-number=9"):
        alike(pair, container, "all", query)
    assert [account.get(container, "all", query=f"{GET}&format=raw").json() for account in pair][::-1] == [
        account.get(container, "all", query=f"{GET}&format=raw").json() for account in pair]
    assert listed(writer, container) == listed(reader, container)
    for condition in ("If-Match", "If-None-Match"):
        alike(pair, container, "slo", **{condition: writer.head(container, "slo").headers["Etag"]})
    reader.post(container, "slo", headers={"X-Object-Meta-A": "2"}).expect(202)
    assert alike(pair, container, "slo").headers["X-Object-Meta-A"] == "2"
    reader.request("COPY", container, "slo", query=GET, headers={"Destination": f"{container}/copy"}).expect(201)
    assert alike(pair, container, "copy").body == WHOLE
    report = reader.delete(container, "all", query=DELETE, headers={"Accept": "application/json"}).expect(200).json()
    assert report["Response Status"] == "200 OK" and report["Number Deleted"] == 5
    assert [entry["name"] for entry in listed(writer, container)] == ["copy"]


def test_a_static_large_object_in_one_of_the_other_make(peers: Peers, pair: tuple[Account, Account], container: str) -> None:
    writer, reader = pair
    segments = [{"path": f"/{container}/s é/{number}", "etag": md5(data), "size_bytes": len(data)} for number, data in enumerate(SEGMENTS)]
    inner = writer.put(container, "inner", query=PUT, body=json.dumps(segments)).expect(201).headers["Etag"]
    outer = [{"path": f"/{container}/inner", "etag": inner.strip('"'), "size_bytes": len(WHOLE)}, {"path": f"/{container}/s é/2"}]
    reader.put(container, "outer", query=PUT, body=json.dumps(outer)).expect(201)
    assert alike(pair, container, "outer").body == WHOLE + b"c"
    wrong = [{"path": f"/{container}/inner", "etag": md5(b""), "size_bytes": 1}, {"path": f"/{container}/none"}]
    refused = [account.put(container, "wrong", query=PUT, body=json.dumps(wrong), headers={"Accept": "application/json"}).expect(400).json()["Errors"]
               for account in pair]
    assert sorted(refused[0]) == sorted(refused[1])
    reader.put(container, "inner", query=PUT, body=json.dumps(segments[1:])).expect(201)  # over that of the other make
    assert writer.at(peers.proxy(OURS)).get(container, "outer").status == 409  # where Swift begins, and breaks the connection later
    assert alike(pair, container, "inner").body == WHOLE[len(SEGMENTS[0]):]
    for account, name in ((reader, "inner"), (writer, "outer")):
        account.delete(container, name).expect(204)  # the manifest alone
        assert [other.head(container, name).status for other in pair] == [404, 404]
    assert [entry["name"] for entry in listed(reader, container)] == ["s é/0", "s é/1", "s é/2"]


def test_dynamic_large_objects(pair: tuple[Account, Account], container: str) -> None:
    writer, reader = pair
    writer.put(container, "dlo", body=b"own", headers={"X-Object-Manifest": f"{container}/s%20%C3%A9/"}).expect(201)
    assert alike(pair, container, "dlo").body == WHOLE
    assert alike(pair, container, "dlo", GET).body == b"own"
    for header in ("bytes=0-9", "bytes=99990-100020", "bytes=-3", "bytes=0-1,5-6"):
        alike(pair, container, "dlo", Range=header)
    assert [account.get(container, "dlo", headers={"Range": "bytes=9999999-"}).status for account in pair] == [416, 416]
    assert listed(writer, container) == listed(reader, container)
    reader.post(container, "dlo", headers={"X-Object-Manifest": f"{container}/s%20%C3%A9/", "X-Object-Meta-A": "2"}).expect(202)
    assert alike(pair, container, "dlo").headers["X-Object-Meta-A"] == "2"
    reader.delete(container, "s é/1").expect(204)  # one segment less
    reader.put(container, "s é/3", body=b"more").expect(201)
    assert alike(pair, container, "dlo").body == SEGMENTS[0] + SEGMENTS[2] + b"more"
    reader.post(container, "dlo", headers={"X-Object-Meta-A": "3"}).expect(202)  # a manifest no more
    assert alike(pair, container, "dlo").body == b"own"
    reader.delete(container, "dlo").expect(204)
    assert [entry["name"] for entry in listed(writer, container)] == ["s é/0", "s é/2", "s é/3"]
    writer.get(container, "dlo").expect(404)


def test_symlinks(pair: tuple[Account, Account], container: str) -> None:
    writer, reader = pair
    target = f"{container}/s%20%C3%A9/0"
    writer.put(container, "dynamic", headers={"X-Symlink-Target": target, "X-Object-Meta-A": "1"}).expect(201)
    writer.put(container, "static", headers={"X-Symlink-Target": target, "X-Symlink-Target-Etag": md5(SEGMENTS[0])}).expect(201)
    writer.put(container, "slo", query=PUT, body=json.dumps([{"path": f"/{container}/s é/0"}])).expect(201)
    writer.put(container, "to slo", headers={"X-Symlink-Target": f"{container}/slo", "X-Symlink-Target-Etag": writer.head(
        container, "slo").headers["X-Manifest-Etag"]}).expect(201)
    for name in ("dynamic", "static", "to slo"):
        assert alike(pair, container, name).body == SEGMENTS[0]
        alike(pair, container, name, "symlink=get")
        alike(pair, container, name, Range="bytes=3-9")
        assert [account.post(container, name, headers={"X-Object-Meta-A": "3"}).status for account in pair] == [307, 307]
    assert listed(writer, container) == listed(reader, container)
    reader.put(container, "s é/0", body=b"changed").expect(201)
    assert alike(pair, container, "dynamic").body == b"changed"
    assert alike(pair, container, "static").status == 409
    assert [account.get(container, "to slo").status for account in pair] == [409, 409]
    other = unique("elsewhere")
    reader.put(other).expect(201)
    reader.put(other, "second", headers={"X-Symlink-Target": f"{container}/dynamic"}).expect(201)  # a link of ours to a link of theirs
    assert alike(pair, other, "second").body == b"changed"
    reader.request("COPY", container, "dynamic", query="symlink=get", headers={"Destination": f"{container}/copied"}).expect(201)
    assert alike(pair, container, "copied", "symlink=get").headers["X-Symlink-Target"] == target
    assert listed(writer, other) == listed(reader, other)
    for name in ("static", "to slo", "copied"):
        reader.delete(container, name).expect(204)  # the link, not what it leads to
        writer.get(container, name, query="symlink=get").expect(404)
    assert alike(pair, container, "s é/0").body == b"changed" and writer.head(container, "slo").status == 200
    reader.delete(container, "s é/0").expect(204)
    assert [account.get(other, "second").status for account in pair] == [404, 404]
    assert alike(pair, container, "dynamic", "symlink=get").headers["X-Symlink-Target"] == target
    for account, place, name in ((reader, container, "dynamic"), (writer, other, "second")):
        account.delete(place, name).expect(204)
    assert "dynamic" not in [entry["name"] for entry in listed(writer, container)] and listed(reader, other) == []
