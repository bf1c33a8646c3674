"""The erasure coded policy through live clusters: one node, and four that speak HTTP to each other."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from test.functional.test_large_objects import PUT
from test.support.client import Account, unique
from test.support.store import Store

SEGMENT = 1 << 20
SIZES = [0, 1, 4096, 65536, 65537, SEGMENT - 1, SEGMENT, SEGMENT + 1, 5_000_000]


@pytest.fixture
def container(account: Account) -> Iterator[str]:
    name = unique("ec")
    account.put(name, headers={"X-Storage-Policy": "ec42"}).expect(201)
    yield name
    account.empty(name)


def octets(size: int) -> bytes:
    return (hashlib.sha512(str(size).encode()).digest() * (size // 64 + 1))[:size]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
def test_bodies_of_every_size(account: Account, container: str, size: int, chunked: bool) -> None:
    body = octets(size)
    if chunked:
        put = account.put(container, "o", body=iter([body[at : at + 50_000] for at in range(0, size, 50_000)]),
                          headers={"Transfer-Encoding": "chunked"}).expect(201)
    else:
        put = account.put(container, "o", body=body, headers={"Expect": "100-continue"}).expect(201)
    etag = hashlib.md5(body).hexdigest()
    got, head = account.get(container, "o").expect(200), account.head(container, "o").expect(200)
    assert got.body == body
    for answer in (got, head):
        assert (answer.headers["Content-Length"], answer.headers["Etag"]) == (str(size), etag)
    assert put.headers["Etag"] == etag
    (entry,) = account.listing(container)
    assert (entry["bytes"], entry["hash"]) == (size, etag)
    for first, last in ((0, 0), (1, size - 2), (SEGMENT - 1, SEGMENT), (size - 1, size + 99)):
        if 0 <= first <= min(last, size - 1):
            part = account.get(container, "o", headers={"Range": f"bytes={first}-{last}"}).expect(206)
            assert part.body == body[first : last + 1]
            assert part.headers["Content-Range"] == f"bytes {first}-{min(last, size - 1)}/{size}"
    account.get(container, "o", headers={"Range": f"bytes={size}-"}).expect(416)
    account.get(container, "o", headers={"If-None-Match": etag}).expect(304)
    account.get(container, "o", headers={"If-Match": "x"}).expect(412)


def test_several_ranges_across_segments(account: Account, container: str) -> None:
    body = octets(3 * SEGMENT)
    account.put(container, "o", body=body).expect(201)
    got = account.get(container, "o", headers={"Range": f"bytes=0-3,{SEGMENT - 2}-{SEGMENT + 1},-5"}).expect(206)
    boundary = got.headers["Content-Type"].partition("boundary=")[2].encode()
    parts = [part.partition(b"\r\n\r\n")[2][:-2] for part in got.body.split(b"--" + boundary)[1:-1]]
    assert parts == [body[:4], body[SEGMENT - 2 : SEGMENT + 2], body[-5:]]


def test_wrong_etag_and_conditions(account: Account, container: str) -> None:
    account.put(container, "o", body=b"x", headers={"ETag": "0" * 32}).expect(422)
    account.put(container, "o", body=octets(300_000), headers={"ETag": "0" * 32}).expect(422)
    account.get(container, "o").expect(404)
    account.put(container, "o", body=b"x", headers={"If-None-Match": "*"}).expect(201)
    account.put(container, "o", body=b"x", headers={"If-None-Match": "*"}).expect(412)


def test_metadata_and_deletion(account: Account, container: str) -> None:
    account.put(container, "o", body=b"x", headers={"X-Object-Meta-A": "1", "Content-Type": "a/b"}).expect(201)
    account.post(container, "o", headers={"X-Object-Meta-B": "2", "Content-Type": "c/d"}).expect(202)
    head = account.head(container, "o", headers={"X-Newest": "true"}).expect(200)
    assert (head.headers["X-Object-Meta-B"], head.headers["Content-Type"], "X-Object-Meta-A" in head.headers) == ("2", "c/d", False)
    got = account.get(container, "o", headers={"X-Newest": "true"}).expect(200)
    assert (got.headers["X-Object-Meta-B"], got.headers["Content-Type"]) == ("2", "c/d")
    (entry,) = account.listing(container)
    assert (entry["bytes"], entry["content_type"]) == (1, "c/d")
    account.delete(container, "o").expect(204)
    for method in ("GET", "HEAD", "POST", "DELETE"):
        account.request(method, container, "o").expect(404)
    assert account.listing(container) == []


def test_copies_between_policies(account: Account, container: str) -> None:
    other, body = unique("gold"), octets(SEGMENT + 7)
    account.put(other).expect(201)
    account.put(container, "o", body=body, headers={"X-Object-Meta-A": "1"}).expect(201)
    account.request("COPY", container, "o", headers={"Destination": f"{other}/o"}).expect(201)
    account.request("COPY", other, "o", headers={"Destination": f"{container}/back"}).expect(201)
    for place in ((other, "o"), (container, "back")):
        got = account.get(*place).expect(200)
        assert (got.body, got.headers["X-Object-Meta-A"]) == (body, "1")
    account.empty(other)


def test_large_objects_of_fragments(account: Account, container: str) -> None:
    segments = [octets(SEGMENT + 1), octets(10), octets(200_000)]
    whole = b"".join(segments)
    for number, data in enumerate(segments):
        account.put(container, f"s/{number}", body=data).expect(201)
    manifest = [{"path": f"/{container}/s/{number}"} for number in range(3)]
    account.put(container, "slo", query=PUT, body=json.dumps(manifest).encode()).expect(201)
    account.put(container, "dlo", body=b"", headers={"X-Object-Manifest": f"{container}/s/"}).expect(201)
    for name in ("slo", "dlo"):
        assert account.get(container, name).expect(200).body == whole
        assert account.head(container, name).expect(200).headers["Content-Length"] == str(len(whole))
        part = account.get(container, name, headers={"Range": f"bytes={SEGMENT - 5}-{SEGMENT + 15}"}).expect(206)
        assert part.body == whole[SEGMENT - 5 : SEGMENT + 16]


def fragments_of(store: Store, names: tuple[str, str, str]) -> list[Path]:
    from keelstore.common.cluster import load_cluster

    digest = load_cluster(str(store.etc())).hash_path.digest(*names).hex()
    found = store.data.glob(f"node*/devices/*/objects-2/*/{digest[-3:]}/{digest}/*.data")
    return sorted(found, key=lambda path: int(path.name.split("#")[1].split(".")[0]))


@pytest.mark.parametrize("lost", [(0, 1), (2, 5), (4, 5)])
def test_two_fragments_lost_or_rotten(running: Store | None, account: Account, container: str, lost: tuple[int, int]) -> None:
    if running is None:
        pytest.skip("needs the devices")
    body = os.urandom(2 * SEGMENT + 5)
    names = (account.path.rpartition("/")[2], container, "o")
    account.put(container, "o", body=body).expect(201)
    paths = fragments_of(running, names)
    assert len(paths) == 6
    paths[lost[0]].unlink()
    with open(paths[lost[1]], "r+b") as file:
        file.seek(1000)
        file.write(b"rot" * 50)
    assert account.get(container, "o", headers={"Range": f"bytes={SEGMENT}-"}).expect(206).body == body[SEGMENT:]
    assert account.get(container, "o").expect(200).body == body
    paths[next(index for index in range(6) if index not in lost)].unlink()
    account.get(container, "o").expect(503)
