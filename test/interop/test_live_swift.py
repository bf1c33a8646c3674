"""Live servers of both makes in one cluster: any proxy over any storage servers, over the same disks (issue 2, point 4).

The configuration files, rings, devices, memcached and users are the same for both. Each turn starts the storage servers of the
two sites as one make or the other; both proxies are up all the time, so each reads, changes and deletes what the other wrote.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from typing import Any

import pytest

from test.support.client import Account, Answer, unique
from test.support.peers import OURS, SWIFT, Peers
from test.support.preloaded import Preloaded

SITES = [(OURS, OURS), (SWIFT, SWIFT), (OURS, SWIFT)]
HOP = ("date", "connection")  # headers of the exchange, not of what was asked for
NAMES = ["plain", "né日本 \U0001f600", "per%20cent?", "a//b/../c", "new\nline", "x" * 1024]


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory, swift_python: str, preloaded: Preloaded) -> Iterator[Peers]:
    peers = Peers(tmp_path_factory.mktemp("live"), swift_python, preloaded=preloaded)
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
    """The account through the proxy that writes and through the one that reads; one token is good for both."""
    writer, reader = request.param
    account = storage.proxy(writer).login()
    return account, account.at(storage.proxy(reader))


def alike(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A listing without the blanks that Swift's container server takes out of content types."""
    return [{**entry, "content_type": entry["content_type"].replace("; ", ";")} for entry in entries]


def test_objects(pair: tuple[Account, Account]) -> None:
    writer, reader = pair
    container = unique("c")
    writer.put(container, headers={"X-Container-Meta-Color": "blåu", "X-Container-Read": "test2:tester2"}).expect(201)
    head = reader.head(container).expect(204)
    assert head.headers.text("X-Container-Meta-Color") == "blåu"
    assert (head.headers["X-Container-Read"], head.headers["X-Storage-Policy"]) == ("test2:tester2", "gold")
    for number, name in enumerate(NAMES):
        body = bytes(range(256)) * (number * 300)
        headers = {"X-Object-Meta-Value": "välue 日本", "Content-Type": "text/x; charset=utf-8", "Content-Disposition": "inline", "X-Delete-At": "9999999999"}
        put = writer.put(container, name, body=body, headers=headers).expect(201)
        got = reader.get(container, name).expect(200)
        assert got.body == body
        assert got.headers["Etag"] == put.headers["Etag"] == hashlib.md5(body).hexdigest()
        assert got.headers.text("X-Object-Meta-Value") == "välue 日本"
        assert (got.headers["Content-Type"], got.headers["Content-Disposition"]) == ("text/x; charset=utf-8", "inline")
        assert got.headers["X-Delete-At"] == "9999999999"
        assert got.headers["Last-Modified"] == put.headers["Last-Modified"]
        if body:
            part = reader.get(container, name, headers={"Range": "bytes=10-19"}).expect(206)
            assert part.body == body[10:20]
            many = reader.get(container, name, headers={"Range": "bytes=0-0,-1"}).expect(206)
            assert many.headers["Content-Type"].startswith("multipart/byteranges")
        assert reader.get(container, name, headers={"If-None-Match": got.headers["Etag"]}).status == 304
    entries = reader.listing(container)
    assert [entry["name"] for entry in entries] == sorted(NAMES, key=lambda name: name.encode())
    assert alike(entries) == alike(writer.listing(container))
    assert reader.get(container, query="delimiter=/&prefix=a").lines == ["a/"]
    for name in NAMES:
        reader.post(container, name, headers={"X-Object-Meta-Posted": "by the other", "Content-Type": "text/posted"}).expect(202)
        head = writer.head(container, name).expect(200)
        assert (head.headers["X-Object-Meta-Posted"], head.headers["Content-Type"]) == ("by the other", "text/posted")
        assert "X-Object-Meta-Value" not in head.headers and "X-Delete-At" not in head.headers
    assert {entry["content_type"] for entry in writer.listing(container)} == {"text/posted"}
    writer.request("COPY", container, "plain", headers={"Destination": f"{container}/copy"}).expect(201)
    assert reader.get(container, "copy").expect(200).headers["X-Object-Meta-Posted"] == "by the other"
    for name in [*NAMES, "copy"]:
        reader.delete(container, name).expect(204)
        writer.get(container, name).expect(404)
        writer.delete(container, name).expect(404)
    assert writer.listing(container) == []
    reader.delete(container).expect(204)
    writer.head(container).expect(404)


def test_bodies_and_the_other_policy(pair: tuple[Account, Account]) -> None:
    writer, reader = pair
    container = unique("silver")
    writer.put(container, headers={"X-Storage-Policy": "silver"}).expect(201)
    reader.put(container, headers={"X-Storage-Policy": "gold"}).expect(409)
    piece = hashlib.sha512(container.encode()).digest() * 1024
    writer.put(container, "chunked", body=iter([piece] * 40), headers={"Transfer-Encoding": "chunked"}).expect(201)
    writer.put(container, "empty", body=b"").expect(201)
    assert reader.get(container, "chunked").expect(200).body == piece * 40
    assert reader.get(container, "empty").expect(200).body == b""
    writer.put(container, "chunked", body=b"x", headers={"ETag": "0" * 32}).expect(422)
    writer.put(container, "chunked", body=b"x", headers={"If-None-Match": "*"}).expect(412)
    assert reader.head(container, "chunked").headers["Content-Length"] == str(len(piece) * 40)
    assert reader.head(container).headers["X-Storage-Policy"] == "silver"
    for name in ("chunked", "empty"):
        reader.delete(container, name).expect(204)
    writer.delete(container).expect(204)


def test_expiry_accounts_and_acls(pair: tuple[Account, Account]) -> None:
    writer, reader = pair
    admin = writer.endpoint.login("admin:admin", "admin")
    own = Account(writer.endpoint, f"/v1/AUTH_{unique('own')}", admin.token)
    theirs = own.at(reader.endpoint)
    own.put(headers={"X-Account-Meta-A": "ä"}).expect(201)
    assert theirs.head().expect(204).headers.text("X-Account-Meta-A") == "ä"
    theirs.post(headers={"X-Account-Meta-B": "2", "X-Remove-Account-Meta-A": "x", "X-Account-Access-Control": '{"read-only":["test2"]}'}).expect(204)
    shown = own.head().headers
    assert ("X-Account-Meta-A" in shown, shown["X-Account-Meta-B"]) == (False, "2")
    assert shown["X-Account-Access-Control"] == '{"read-only":["test2"]}'
    own.put("c").expect(201)
    theirs.put("d").expect(201)
    assert [entry["name"] for entry in theirs.listing()] == [entry["name"] for entry in own.listing()] == ["c", "d"]
    visitor = writer.endpoint.login("test2:tester2", "testing2")
    assert visitor.at(reader.endpoint).of(theirs).get("c").status == 204
    assert visitor.at(reader.endpoint).of(theirs).put("e").status == 403
    at = int(time.time()) + 3600
    own.put("c", "o", body=b"x", headers={"X-Delete-At": str(at)}).expect(201)
    assert theirs.head("c", "o").expect(200).headers["X-Delete-At"] == str(at)
    theirs.post("c", "o", headers={"X-Delete-At": "5"}).expect(400)
    own.delete("c", "o").expect(204)
    for name in ("c", "d"):
        theirs.delete(name).expect(204)
    assert own.head().headers["X-Account-Container-Count"] == "0"
    own.delete().expect(204)
    theirs.get().expect(410)


# -- one disk, asked through servers of both makes -----------------------------------------------------------------------


class Disk:
    """One device served by an object, a container and an account server of each make at once."""

    def __init__(self, peers: Peers):
        self.peers = peers

    def ask(self, make: str, kind: str, method: str, *names: str, headers: dict[str, Any] | None = None, body: Any = None, query: str = "") -> Answer:
        part, _, _ = self.peers.places(kind, *names[:{"account": 1, "container": 2, "object": 3}[kind]])
        node = next(node for node in self.peers.ring(kind).nodes if node.device == "d1")
        endpoint, path = self.peers.direct(node, part, *names)
        endpoint = type(endpoint)(endpoint.host, self.peers.ports[0 if make == OURS else 1][kind])
        headers = dict(headers or {})
        if method in ("PUT", "POST", "DELETE") and "X-Timestamp" not in headers:
            headers["X-Timestamp"] = f"{time.time():.5f}"
        return endpoint.request(method, path + query, headers, body)


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory, swift_python: str, preloaded: Preloaded) -> Iterator[Disk]:
    peers = Peers(tmp_path_factory.mktemp("disk"), swift_python, preloaded=preloaded)
    try:
        peers.start(0, make=OURS)
        peers.start(1, make=SWIFT)
        yield Disk(peers)
    finally:
        peers.stop_all()


both = pytest.mark.parametrize(("first", "second"), [(OURS, SWIFT), (SWIFT, OURS)])


@both
def test_an_object_on_one_disk(disk: Disk, first: str, second: str) -> None:
    names = ("AUTH_é", "cöntainer", unique("o日本 "))
    headers = {"Content-Type": "text/ü", "X-Object-Meta-Value": "ü日本", "X-Object-Sysmeta-Kept": "1", "X-Delete-At": "9999999999"}
    disk.ask(first, "object", "PUT", *names, headers=headers, body=b"body").expect(201)
    a, b = (disk.ask(make, "object", "GET", *names).expect(200) for make in (first, second))
    assert a.body == b.body == b"body"
    shown = [{k: v.strip('"') for k, v in answer.headers.items() if k not in HOP} for answer in (a, b)]
    assert shown[0] == shown[1]
    disk.ask(second, "object", "POST", *names, headers={"X-Object-Meta-New": "nöw", "Content-Type": "text/posted"}).expect(202)
    for make in (first, second):
        head = disk.ask(make, "object", "HEAD", *names).expect(200).headers
        assert (head.text("X-Object-Meta-New"), head["Content-Type"], head["X-Object-Sysmeta-Kept"]) == ("nöw", "text/posted", "1")
        assert "X-Object-Meta-Value" not in head
    stale = disk.ask(first, "object", "PUT", *names, headers={"Content-Type": "x/y", "X-Timestamp": "1000000000.00000"}, body=b"old")
    assert (stale.status, "X-Backend-Timestamp" in stale.headers) == (409, True)
    disk.ask(second, "object", "DELETE", *names).expect(204)
    gone = [disk.ask(make, "object", "GET", *names) for make in (first, second)]
    assert [answer.status for answer in gone] == [404, 404]
    assert gone[0].headers["X-Backend-Timestamp"] == gone[1].headers["X-Backend-Timestamp"]
    disk.ask(first, "object", "PUT", *names, headers={"Content-Type": "x/y"}, body=b"again").expect(201)
    assert disk.ask(second, "object", "GET", *names).expect(200).body == b"again"


@both
def test_large_metadata_that_fits_on_one_disk(disk: Disk, first: str, second: str) -> None:
    names = ("AUTH_a", "c", unique("large"))
    headers = {f"X-Object-Meta-{number:02}": "v" * 100 for number in range(14)}
    disk.ask(first, "object", "PUT", *names, headers={**headers, "Content-Type": "x/y"}, body=b"").expect(201)
    shown = disk.ask(second, "object", "HEAD", *names).expect(200).headers
    assert {name: shown[name] for name in headers} == headers
    disk.ask(second, "object", "POST", *names, headers={**headers, "X-Object-Meta-More": "m"}).expect(202)
    shown = disk.ask(first, "object", "HEAD", *names).expect(200).headers
    assert {name: shown[name] for name in headers} == headers


@both
def test_suffix_hashes_of_one_disk(disk: Disk, first: str, second: str) -> None:
    import pickle

    names = ("AUTH_a", "c", unique("hash"))
    disk.ask(first, "object", "PUT", *names, headers={"Content-Type": "x/y"}, body=b"1").expect(201)
    disk.ask(second, "object", "POST", *names, headers={"X-Object-Meta-A": "1"}).expect(202)
    part, _, _ = disk.peers.places("object", *names)
    hashes = []
    for make in (first, second):
        server = disk.peers.ports[0 if make == OURS else 1]["object"]
        answer = disk.peers.proxy(OURS).__class__("127.0.0.1", server).request("REPLICATE", f"/d1/{part}").expect(200)
        hashes.append(pickle.loads(answer.body))
    assert hashes[0] == hashes[1] != {}


@both
def test_a_container_on_one_disk(disk: Disk, first: str, second: str) -> None:
    names = ("AUTH_é", unique("cont日本"))
    disk.ask(first, "container", "PUT", *names, headers={"X-Container-Meta-A": "ä"}).expect(201)
    rows = []
    for number in range(40):  # the makes take turns, and rows of both wait in one pending file
        make = (first, second)[number % 2]
        row = {"X-Size": number, "X-Content-Type": "text/ü", "X-Etag": f"{number:032}", "X-Timestamp": f"{time.time():.5f}"}
        disk.ask(make, "container", "PUT", *names, f"obj-é-{number:02}", headers=row).expect(201)
        rows.append(f"obj-é-{number:02}")
    for number in range(0, 40, 4):
        make = (second, first)[number // 4 % 2]
        disk.ask(make, "container", "DELETE", *names, f"obj-é-{number:02}").expect(204)
        rows.remove(f"obj-é-{number:02}")
    listings = [disk.ask(make, "container", "GET", *names, query="?format=json").expect(200) for make in (second, first)]
    assert listings[0].json() == listings[1].json()
    assert [row["name"] for row in listings[0].json()] == rows
    for answer in listings:
        assert answer.headers["X-Container-Object-Count"] == "30"
        assert answer.headers.text("X-Container-Meta-A") == "ä"
    same = [{k: v for k, v in answer.headers.items() if k not in (*HOP, "content-length")} for answer in listings]
    assert same[0] == same[1]
    disk.ask(second, "container", "POST", *names, headers={"X-Container-Meta-A": "", "X-Container-Meta-B": "2"}).expect(204)
    head = disk.ask(first, "container", "HEAD", *names).expect(204).headers
    assert ("X-Container-Meta-A" in head, head["X-Container-Meta-B"]) == (False, "2")
    disk.ask(first, "container", "DELETE", *names).expect(409)
    for name in rows:
        disk.ask(first, "container", "DELETE", *names, name).expect(204)
    disk.ask(second, "container", "DELETE", *names).expect(204)
    assert [disk.ask(make, "container", "HEAD", *names).status for make in (first, second)] == [404, 404]
    disk.ask(first, "container", "PUT", *names).expect(201)
    assert disk.ask(second, "container", "GET", *names).status == 204


@both
def test_an_account_on_one_disk(disk: Disk, first: str, second: str) -> None:
    name = unique("AUTH_acc日本")
    disk.ask(first, "account", "PUT", name, headers={"X-Account-Meta-A": "ä"}).expect(201)
    for number in range(20):
        row = {"X-Put-Timestamp": f"{time.time():.5f}", "X-Delete-Timestamp": "0", "X-Object-Count": number, "X-Bytes-Used": number * 10,
               "X-Backend-Storage-Policy-Index": number % 2}
        disk.ask((first, second)[number % 2], "account", "PUT", name, f"cont-é-{number:02}", headers=row).expect(201)
    answers = [disk.ask(make, "account", "GET", name, query="?format=json").expect(200) for make in (second, first)]
    assert answers[0].json() == answers[1].json()
    assert [row["name"] for row in answers[0].json()] == [f"cont-é-{number:02}" for number in range(20)]
    same = [{k: v for k, v in answer.headers.items() if k not in (*HOP, "content-length")} for answer in answers]
    assert same[0] == same[1]
    assert same[0]["x-account-container-count"] == "20"
    assert same[0]["x-account-storage-policy-silver-container-count"] == "10"
    disk.ask(second, "account", "POST", name, headers={"X-Account-Meta-A": "", "X-Account-Meta-B": "2"}).expect(204)
    head = disk.ask(first, "account", "HEAD", name).expect(204).headers
    assert ("X-Account-Meta-A" in head, head["X-Account-Meta-B"]) == (False, "2")
    disk.ask(first, "account", "DELETE", name).expect(204)
    gone = disk.ask(second, "account", "HEAD", name)
    assert (gone.status, gone.headers["X-Account-Status"]) == (404, "Deleted")
