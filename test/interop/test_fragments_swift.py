"""Erasure coded objects in a cluster of both makes: either proxy over either's object servers, on the same disks."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path

import pytest

from test.support.client import Account, unique
from test.support.peers import OURS, SWIFT, Peers
from test.support.preloaded import Preloaded

SITES = [(OURS, OURS), (SWIFT, SWIFT), (OURS, SWIFT)]
SEGMENT = 1 << 20
SIZES = [0, 1, 4096, 70000, SEGMENT, SEGMENT + 1, 3 * SEGMENT + 12345]


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory, swift_python: str, preloaded: Preloaded) -> Iterator[Peers]:
    peers = Peers(tmp_path_factory.mktemp("fragments"), swift_python, preloaded=preloaded, devices_per_site=4, has_fragments=True)
    try:
        peers.start_proxies(OURS, SWIFT)
        yield peers
    finally:
        peers.stop_all()


@pytest.fixture(scope="module", params=SITES, ids=lambda makes: "+".join(makes))
def storage(peers: Peers, request: pytest.FixtureRequest) -> Iterator[Peers]:
    with peers.storage(*request.param):
        yield peers
    for log in peers.home.glob("keelstore-*.log"):
        assert "Traceback" not in log.read_text(errors="replace")


@pytest.fixture(params=[(OURS, SWIFT), (SWIFT, OURS), (OURS, OURS)], ids=lambda makes: f"{makes[0]}-writes-{makes[1]}-reads")
def pair(storage: Peers, request: pytest.FixtureRequest) -> tuple[Account, Account]:
    writer, reader = request.param
    account = storage.proxy(writer).login()
    return account, account.at(storage.proxy(reader))


def files(peers: Peers, account: Account, container: str, name: str) -> list[Path]:
    """The fragments of an object, by index."""
    names = (account.path.rpartition("/")[2], container, name)
    part, primaries, handoffs = peers.places("object", *names, policy=2)
    found = []
    for node in (*primaries, *handoffs):
        found += peers.on_disk(node, part, *names, folder="objects-2").glob("*.data")
    return sorted(found, key=lambda path: int(path.name.split("#")[1].split(".")[0]))


def test_fragments(storage: Peers, pair: tuple[Account, Account]) -> None:
    writer, reader = pair
    container = unique("ec")
    writer.put(container, headers={"X-Storage-Policy": "ec42"}).expect(201)
    for size in SIZES:
        body, name = random.Random(size).randbytes(size), f"o{size}"
        put = writer.put(container, name, body=body, headers={"X-Object-Meta-A": "b", "Content-Type": "text/x"}).expect(201)
        assert put.headers["Etag"] == hashlib.md5(body).hexdigest()
        assert [path.name.split("#", 1)[1] for path in files(storage, writer, container, name)] == [f"{n}#d.data" for n in range(6)]
        got = reader.get(container, name).expect(200)
        assert got.body == body
        head = reader.head(container, name).expect(200)
        for answer in (got, head):
            assert (answer.headers["Etag"], answer.headers["X-Object-Meta-A"]) == (put.headers["Etag"], "b")
            assert (answer.headers["Content-Length"], answer.headers["Content-Type"]) == (str(size), "text/x")
        assert reader.get(container, name, headers={"If-None-Match": put.headers["Etag"]}).status == 304
        if size:
            for first, last in ((0, 0), (size // 2, size // 2 + 5), (SEGMENT - 3, SEGMENT + 3)):
                if first < size:
                    part = reader.get(container, name, headers={"Range": f"bytes={first}-{last}"}).expect(206)
                    assert part.body == body[first : last + 1]
            assert reader.get(container, name, headers={"Range": "bytes=-7"}).expect(206).body == body[-7:]
            many = reader.get(container, name, headers={"Range": f"bytes=0-0,{size - 1}-"}).expect(206)
            assert many.headers["Content-Type"].startswith("multipart/byteranges")
        chunked = writer.put(container, name, body=iter([body[at : at + 50000] for at in range(0, size, 50000)]),
                             headers={"Transfer-Encoding": "chunked"}).expect(201)
        assert chunked.headers["Etag"] == put.headers["Etag"]
        assert reader.get(container, name).expect(200).body == body
    rows = reader.listing(container)
    assert sorted(row["bytes"] for row in rows) == SIZES
    reader.post(container, "o4096", headers={"X-Object-Meta-Posted": "x"}).expect(202)
    assert writer.head(container, "o4096").headers["X-Object-Meta-Posted"] == "x"
    assert writer.put(container, "o1", body=b"x", headers={"ETag": "0" * 32}).status == 422
    for size in SIZES:
        reader.delete(container, f"o{size}").expect(204)
        writer.get(container, f"o{size}").expect(404)


def test_both_makes_write_the_same_fragments(storage: Peers) -> None:
    archives = {}
    body = random.Random(1).randbytes(SEGMENT + 4321)
    for make in (OURS, SWIFT):
        account, container = storage.proxy(make).login(), unique("same")
        account.put(container, headers={"X-Storage-Policy": "ec42"}).expect(201)
        account.put(container, "o", body=body).expect(201)
        archives[make] = [path.read_bytes() for path in files(storage, account, container, "o")]
    assert archives[OURS] == archives[SWIFT] and len(archives[OURS]) == 6


def test_lost_fragments_are_replaced(storage: Peers, pair: tuple[Account, Account]) -> None:
    writer, reader = pair
    container = unique("loss")
    writer.put(container, headers={"X-Storage-Policy": "ec42"}).expect(201)
    body = random.Random(2).randbytes(SEGMENT + 4321)
    writer.put(container, "o", body=body).expect(201)
    for path in files(storage, writer, container, "o")[:2]:
        path.unlink()
    assert reader.get(container, "o").expect(200).body == body
    assert reader.get(container, "o", headers={"Range": "bytes=1048570-1048580"}).expect(206).body == body[1048570:1048581]


def test_ranges_of_rotten_fragments_are_never_wrong(storage: Peers) -> None:
    """Our proxy over servers of either make: Swift's do not look before they send, so the answer may break off, but not lie."""
    account, container = storage.proxy(OURS).login(), unique("rot")
    account.put(container, headers={"X-Storage-Policy": "ec42"}).expect(201)
    body = random.Random(3).randbytes(5 * SEGMENT)  # archives of more than our servers check for a range
    account.put(container, "o", body=body).expect(201)
    for path in files(storage, account, container, "o")[1:3]:
        data = bytearray(path.read_bytes())
        data[200] ^= 1
        path.write_bytes(data)
    for _ in range(3):
        try:
            answer = account.get(container, "o", headers={"Range": "bytes=0-1048575"})
        except (OSError, HTTPException):
            continue
        assert answer.status >= 500 or (answer.status == 206 and answer.body == body[:SEGMENT])
