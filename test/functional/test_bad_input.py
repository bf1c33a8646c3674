"""Bad input to a live cluster: the right status, a sane connection, a clear line in the log and never a traceback (issue 2, point 7).

What only raw octets can say is in ``test_raw_socket.py``; faults of disks and files are in ``test/fault``.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import io
import pickle
import socket
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keelstore.common.cluster import load_cluster
from keelstore.common.ring.ring import Node, RingFile
from test.functional.conftest import FOREIGN
from test.support.client import Account, Endpoint, unique
from test.support.s3 import TESTER, signed
from test.support.signing import FORM_TYPE, form_body, form_fields, temp_url
from test.support.store import Store
from test.support.waiting import until

pytestmark = pytest.mark.skipif(bool(FOREIGN), reason="looks at logs and disks of the store")


@pytest.fixture(scope="module", params=["cluster", "cluster4"])
def live(request: pytest.FixtureRequest) -> Store:
    store: Store = request.getfixturevalue(request.param)
    return store


@pytest.fixture
def mine(live: Store) -> Account:
    return live.login()


@pytest.fixture
def box(mine: Account) -> Iterator[str]:
    """A container with the object ``canary``."""
    name = unique("bad")
    mine.put(name).expect(201)
    mine.put(name, "canary", body=b"alive").expect(201)
    yield name
    mine.empty(name)


@pytest.fixture(autouse=True)
def sane(live: Store, mine: Account, box: str) -> Iterator[None]:
    """After each test: no traceback in any log, no worker died, the canary is alive on new connections."""
    nodes = range(1, live.nodes + 1)
    sizes, workers = [len(live.log(number)) for number in nodes], [live.worker_pids(number) for number in nodes]
    yield
    for _ in range(3):
        assert mine.get(box, "canary").expect(200).body == b"alive"
    assert [live.worker_pids(number) for number in nodes] == workers
    for number, size in zip(nodes, sizes):
        assert "Traceback" not in live.log(number)[size:]


def access_line(store: Store, trans_id: str) -> str:
    """The line of the proxy's access log for a transaction."""
    def found() -> str:
        lines = [line for line in store.log().splitlines() if trans_id in line and " proxy-access: " in line]
        return lines[-1] if lines else ""

    return until(found, f"the request is logged with {trans_id}")


# -- heads ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("target", "headers", "statuses"), [
    ("/v1/AUTH_test/" + "x" * 9000, {}, {414}),
    ("/v1/AUTH_test/c?" + "x=y&" * 3000, {}, {414}),
    ("/v1/AUTH_test", {"X-Long": "v" * 9000}, {400, 431}),
    ("/v1/AUTH_test", {"X-" + "n" * 9000: "v"}, {400, 431}),
    ("/v1/AUTH_test", {f"X-Header-{number}": "v" for number in range(250)}, {400, 431}),
    ("/v1/AUTH_test", {f"X-Header-{number}": "v" * 4000 for number in range(150)}, {400, 431}),
])
def test_heads_that_are_too_long(live: Store, target: str, headers: dict[str, str], statuses: set[int]) -> None:
    answer = live.endpoint.request("GET", target, headers)
    assert answer.status in statuses
    assert answer.headers["X-Trans-Id"].startswith("tx")


def test_a_head_without_end_is_cut_off(live: Store) -> None:
    """A header line of 10 MiB: the server does not read on for ever, nor keep what it reads."""
    with socket.create_connection((live.host, live.port), timeout=60) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nX-Endless: ")
        with contextlib.suppress(OSError):
            for _ in range(160):
                sock.sendall(b"x" * 65536)
        with contextlib.suppress(OSError):
            assert sock.recv(65536).split(b" ")[1] in (b"400", b"431")


@pytest.mark.parametrize("line", [b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9.9\r\n\r\n", b"GET / HTTP/2.0\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"GET / FTP/1.1\r\n\r\n",
                                  b"\x00" * 1000 + b"\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n"])
def test_first_lines_that_are_none(live: Store, line: bytes) -> None:
    with socket.create_connection((live.host, live.port), timeout=60) as sock:
        sock.sendall(line)
        sock.shutdown(socket.SHUT_WR)
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while data := sock.recv(65536):
                received += data
    if received:
        assert int(received.split(b" ")[1]) in (400, 404, 412, 505)


# -- bodies --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [10, 500_000])
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
def test_truncated_bodies_leave_nothing(live: Store, mine: Account, box: str, size: int, chunked: bool) -> None:
    mine.put(box, "o", body=b"before").expect(201)
    mark = unique("mark")
    connection = live.endpoint.connect()
    raw = connection.raw
    raw.putrequest("PUT", mine.target(box, "o"))
    for name, value in {"X-Auth-Token": mine.token, "X-Trans-Id-Extra": mark}.items():
        raw.putheader(name, value)
    raw.putheader(*(("Transfer-Encoding", "chunked") if chunked else ("Content-Length", "1000000")))
    raw.endheaders()
    raw.send((b"%x\r\n" % size if chunked else b"") + b"x" * size)
    connection.close()
    line = access_line(live, mark)
    assert " 499 " in line
    assert mine.get(box, "o").expect(200).body == b"before"
    assert [entry["bytes"] for entry in mine.listing(box)] == [5, 6]


@pytest.mark.parametrize("junk", [b"zz\r\nxx\r\n", b"-1\r\nx\r\n", b"5\r\nabc\r\n0\r\n\r\n", b"ffffffffffffffffff\r\nx", b"3\r\nabcdef\r\n0\r\n\r\n", b"\r\n\r\n", b"0x3\r\nabc\r\n0\r\n\r\n"])
def test_chunks_that_make_no_sense(live: Store, mine: Account, box: str, junk: bytes) -> None:
    with socket.create_connection((live.host, live.port), timeout=60) as sock:
        head = f"PUT {mine.target(box, 'o')} HTTP/1.1\r\nHost: x\r\nX-Auth-Token: {mine.token}\r\nTransfer-Encoding: chunked\r\n\r\n"
        sock.sendall(head.encode() + junk)
        sock.shutdown(socket.SHUT_WR)
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while data := sock.recv(65536):
                received += data
    if received:
        assert int(received.split(b" ")[1]) in (400, 499)
    mine.head(box, "o").expect(404)


def test_security_S54_an_early_error_leaves_the_connection_sane(live: Store, mine: Account, box: str) -> None:
    """An answer that comes before the body was read: the rest of the body is never taken for a request."""
    inner = f"DELETE {mine.target(box, 'canary')} HTTP/1.1\r\nHost: x\r\nX-Auth-Token: {mine.token}\r\nContent-Length: 0\r\n\r\n".encode()
    bad = [({"X-Auth-Token": "AUTH_tknone"}, 401), ({"X-Delete-At": "soon"}, 400), ({"If-None-Match": "abc"}, 400), ({"X-Object-Meta-" + "n" * 129: "v"}, 400)]
    for headers, status in bad:
        for expect in ({}, {"Expect": "100-continue"}):
            for body in (inner, inner * 2000):
                with live.endpoint.connect() as connection:
                    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                        connection.send("PUT", mine.target(box, "o"), {"X-Auth-Token": mine.token, **headers, **expect}, body)
                    try:
                        assert connection.answer().status == status
                        again = mine.get(box, "canary", connection=connection)
                        assert (again.status, again.body) == (200, b"alive")
                    except (ConnectionResetError, BrokenPipeError, http.client.RemoteDisconnected):
                        pass  # closed on doubt
    mine.head(box, "canary").expect(200)
    mine.head(box, "o").expect(404)


def test_expect_of_something_else_is_417(live: Store, mine: Account, box: str) -> None:
    assert mine.put(box, "o", body=b"x", headers={"Expect": "a-miracle"}).status in (417, 201)


@pytest.mark.parametrize("framing", [
    b"Content-Length: 5\r\nTransfer-Encoding: chunked", b"Content-Length: 0\r\nContent-Length: 5", b"Content-Length: +0", b"Transfer-Encoding: xchunked",
    b"Content-Length: 0\r\n Content-Length: 5", b"Content-Length : 0", b"Transfer-Encoding:\x0bchunked", b"Content-Length: 0\nX: y", b"Transfer_Encoding: chunked", b"\x00: x",
])
def test_security_S40_what_follows_a_doubtful_head_never_runs(live: Store, mine: Account, box: str, framing: bytes) -> None:
    """A request of the anonymous with two readings, and behind it one that would delete the canary with their rights."""
    mine.post(box, headers={"X-Container-Read": ".r:*"}).expect(204)
    canary = f"DELETE {mine.target(box, 'canary')} HTTP/1.1\r\nHost: x\r\nX-Auth-Token: {mine.token}\r\nContent-Length: 0\r\n\r\n".encode()
    head = f"PUT {mine.target(box, 'o')} HTTP/1.1\r\nHost: x\r\n".encode() + framing + b"\r\n\r\n"
    with socket.create_connection((live.host, live.port), timeout=60) as sock:
        sock.sendall(head + b"0\r\n\r\n" + b"x" * 5 + canary)
        sock.shutdown(socket.SHUT_WR)
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while data := sock.recv(65536):
                received += data
    assert received.split(b" ")[1] in (b"400", b"401", b"411", b"501")
    assert b" 204 " not in received and received.count(b"HTTP/1.1 ") == 1
    mine.head(box, "canary").expect(200)


# -- security rows -------------------------------------------------------------------------------------------------------

LONG = {
    "Accept": ['a;b="' + "\\" * 4000, "text/" + "*" * 4000, ",".join(["a/b;q=0.1"] * 700), "a/b;" + "q=1;" * 1500, "(" * 6000],
    "Range": ["bytes=" + "0-1," * 1500, "bytes=" + "-" * 6000, "bytes=" + "9" * 7000 + "-", "bytes=" + "1 - 2 , " * 700],
    "If-None-Match": ['"' * 6000, '"a",' * 1500, "W/" * 3000], "If-Match": ["," * 7000, '"' + "\\" * 6000],
    "If-Modified-Since": ["Mon, " * 1000, "0" * 6000], "X-Timestamp": ["1" * 6000, "1." + "_" * 6000], "Referer": ["http://" + "a." * 3000, "/" * 7000],
    "Content-Disposition": ['attachment; filename="' + "\\" * 6000], "X-Forwarded-For": ["1.2.3.4," * 900], "Origin": ["http://" + "a" * 7000],
    "X-Copy-From": ["%" * 6000, "/" * 6000], "Content-Type": ["a/b;" + 'c="' * 2000, "a/b" + ";" * 6000], "X-Trans-Id-Extra": ["%" * 7000],
    "Cookie": ["a=b;" * 1800],
}


@pytest.mark.parametrize("name", sorted(LONG))
def test_security_S04_no_header_takes_long_live(live: Store, mine: Account, box: str, name: str) -> None:
    short = min(_timed(live, mine, box, {name: "x"}) for _ in range(3))
    for value in LONG[name]:
        until(lambda value=value: _timed(live, mine, box, {name: value}) < short + 0.25, f"{name} of {len(value)} octets is quick")  # type: ignore[misc]


def _timed(store: Store, account: Account, container: str, headers: dict[str, str]) -> float:
    start = time.monotonic()
    with store.endpoint.connect() as connection:
        for names in ([], [container], [container, "canary"]):
            account.get(*names, headers=headers, connection=connection).expect(200, 204, 206, 304, 400, 406, 412, 416, 431)
        account.put(container, "long", headers={**headers, "Content-Length": 0}, connection=connection).expect(201, 400, 412, 431)
    return time.monotonic() - start


def tarred(files: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return made.getvalue()


class Trap:
    """A listener that nothing should ever connect to."""

    def __init__(self) -> None:
        self.sock = socket.create_server(("127.0.0.1", 0))
        self.port, self.seen = self.sock.getsockname()[1], 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self.sock.accept()[0].close()
                self.seen += 1


def test_security_S05_no_header_makes_a_server_connect_elsewhere(live: Store, mine: Account, box: str) -> None:
    trap = Trap()
    where = f"127.0.0.1:{trap.port}"
    headers = {
        "X-Account-Host": where, "X-Account-Device": "d1", "X-Account-Partition": "1", "X-Container-Host": where, "X-Container-Device": "d1",
        "X-Container-Partition": "1", "X-Container-Root-Db-State": "unsharded", "X-Delete-At-Host": where, "X-Delete-At-Device": "d1",
        "X-Delete-At-Partition": "1", "X-Delete-At-Container": "1", "X-Backend-Container-Path": "AUTH_evil/c", "X-Backend-Quoted-Container-Path": "AUTH_evil/c",
        "X-Backend-Storage-Policy-Index": "1", "X-Backend-Replication": "true", "X-Backend-Next-Part-Power": "11", "X-Backend-Container-Update-Override-Etag": "evil",
        "X-Object-Sysmeta-Container-Update-Override-Etag": "evil", "X-Backend-Obj-Metadata-Footer": "yes", "X-Backend-Obj-Multipart-Mime-Boundary": "b",
        "X-Backend-Use-Replication-Network": "true", "X-Timestamp": "1.00000",
    }
    variants: list[dict[str, Any]] = [headers, {name.lower(): value for name, value in headers.items()}, {name.replace("-", "_"): value for name, value in headers.items()}]
    for sent in variants:
        mine.put(box, "o", body=b"data", headers={**sent, "X-Delete-At": "9999999999"}).expect(201)
        mine.post(box, "o", headers={**sent, "X-Delete-At": "9999999998"}).expect(202)
        mine.request("COPY", box, "o", headers={**sent, "Destination": f"{box}/copy"}).expect(201)
        mine.put(unique("s05"), headers=sent).expect(201)
        mine.post(box, headers=sent).expect(204)
        mine.post(headers=sent).expect(204)
        assert [entry["hash"] for entry in mine.listing(box, query="prefix=o")] == [hashlib.md5(b"data").hexdigest()]
        mine.delete(box, "o", headers=sent).expect(204)
        mine.delete(box, "copy", headers=sent).expect(204)
        mine.put(box, query="extract-archive=tar", body=tarred({"o1": b"data", "o2": b"data"}), headers=sent).expect(200)
        mine.post(query="bulk-delete", body=f"{box}/o1\n{box}/o2\n", headers={**sent, "Content-Type": "text/plain"}).expect(200)
    mine.post(box, headers={"X-Container-Meta-Temp-Url-Key": "k"}).expect(204)
    target = f"{mine.path}/{box}/"
    for sent in variants:
        for method, body in (("PUT", b"data"), ("POST", None), ("DELETE", None)):
            mine.endpoint.request(method, temp_url(target + "o", "k", method), {**sent, "X-Delete-At": "9999999999"}, body).expect(201, 202, 204)
        for method, body in (("PUT", b"data"), ("GET", b""), ("DELETE", b"")):
            signed(mine.endpoint, TESTER, method, f"/{box}/o", body=body, unsigned=sent).expect(200, 204)
        part = "".join(f"{name}: {value}\r\n" for name, value in sent.items()).encode()
        form = form_body(form_fields(target, "k"), [("o", b"data", "text/plain")]).replace(b"Content-Type: text/plain\r\n", b"Content-Type: text/plain\r\n" + part)
        mine.endpoint.request("POST", target, {**sent, "Content-Type": FORM_TYPE}, form).expect(201, 400)
        mine.delete(box, "o").expect(204, 404)
    assert trap.seen == 0
    for path in live.data.glob("node*/devices/*/async_pending*/*/*"):
        assert where.encode() not in path.read_bytes() and b"AUTH_evil" not in path.read_bytes()
    trap.sock.close()


class Place:
    """Where something lives in a store, and how to ask its servers for it."""

    def __init__(self, store: Store, kind: str, *names: str):
        etc = str(store.etc())
        digest = load_cluster(etc).hash_path.digest(*names)
        ring = RingFile(f"{etc}/{kind}.ring.gz").current()
        self.store, self.kind, self.names, self.digest = store, kind, names, digest.hex()
        self.part = ring.partition(digest)
        self.nodes: tuple[Node, ...] = ring.primaries(self.part)

    def device(self, node: Node) -> Path:
        return self.store.devices(int(node.ip.rpartition(".")[2])) / node.device

    def folder(self, node: Node) -> Path:
        return self.device(node) / f"{self.kind}s" / str(self.part) / self.digest[-3:] / self.digest

    def ask(self, node: Node, method: str, headers: dict[str, Any] | None = None, body: bytes | None = None) -> Any:
        return Endpoint(*node.address).request(method, f"/{node.device}/{self.part}/{'/'.join(self.names)}", headers, body)


def test_security_S07_S22_pickles_on_disk_are_data_only(live: Store, mine: Account, box: str, tmp_path: Path) -> None:
    import xattr

    class Evil:
        def __reduce__(self) -> Any:
            return open, (str(tmp_path / "ran"), "w")

    evil = pickle.dumps(Evil(), 2)
    mine.put(box, "o", body=b"data").expect(201)
    place = Place(live, "object", mine.name, box, "o")
    first, second = place.nodes[:2]
    (place.folder(first).parent.parent / "hashes.pkl").write_bytes(evil)
    answer = Endpoint(*first.address).request("REPLICATE", f"/{first.device}/{place.part}").expect(200)
    assert place.digest[-3:] in pickle.loads(answer.body)
    file = next(place.folder(second).glob("*.data"))
    xattr.setxattr(str(file), "user.swift.metadata", evil)
    xattr.setxattr(str(file), "user.swift.metadata_checksum", hashlib.md5(evil).hexdigest().encode())
    assert place.ask(second, "GET").status == 404
    assert mine.get(box, "o").expect(200).body == b"data"
    container = Place(live, "container", mine.name, box)
    for node in container.nodes:
        pending = next(container.folder(node).glob("*.db")).with_suffix(".db.pending")
        with open(pending, "ab") as handle:
            import base64
            handle.write(b":" + base64.b64encode(evil))
        assert container.ask(node, "GET").status in (200, 204)
    assert {entry["name"] for entry in mine.listing(box)} == {"o", "canary"}
    assert not (tmp_path / "ran").exists()


def test_security_S16_old_timestamps_write_no_tombstones(live: Store, mine: Account, box: str) -> None:
    mine.put(box, "o", body=b"data").expect(201)
    place = Place(live, "object", mine.name, box, "o")
    for stamp in ("1.00000", "0", "9999999999.00000", "x"):
        mine.request("DELETE", box, "absent", headers={"X-Timestamp": stamp}).expect(404)
        mine.put(box, "o", body=b"data", headers={"X-Timestamp": stamp}).expect(201)
        assert abs(float(mine.head(box, "o").headers["X-Timestamp"]) - time.time()) < 60
    for node in place.nodes:
        answer = place.ask(node, "DELETE", {"X-Timestamp": "1000000000.00000"})
        assert (answer.status, "X-Backend-Timestamp" in answer.headers) == (409, True)
        assert [path.suffix for path in place.folder(node).iterdir() if not path.name.startswith(".")] == [".data"]
    assert mine.get(box, "o").expect(200).body == b"data"


@pytest.mark.parametrize("role", ["object", "container", "account"])
@pytest.mark.parametrize("device", ["..", ".", "%2e%2e", "%2E%2E%2F..", "%2Fetc", "x" * 300, "d1%00", "%2e%2e%2f%2e%2e%2fetc", "", "none"])
def test_security_S53_R16_no_path_leaves_the_devices(live: Store, mine: Account, role: str, device: str) -> None:
    names = {"object": "a/c/o", "container": "a/c", "account": "a"}[role]
    headers = {"X-Timestamp": f"{time.time():.5f}", "Content-Type": "x/y", "X-Backend-Storage-Policy-Index": "0"}
    before = set(live.data.glob("node1/*")) | set(live.data.glob("node1/devices/*"))
    for partition in ("1", "..", "%2e%2e", ".", "", "%2Fx", "1%2F..%2F.."):
        for method in ("PUT", "GET", "HEAD", "POST", "DELETE", "REPLICATE"):
            body = b"[]" if method in ("PUT", "POST", "REPLICATE") else None
            answer = live.server(role).request(method, f"/{device}/{partition}/{names}", headers, body)
            assert answer.status in (400, 404, 405, 412, 507), (method, partition, answer)
    for partition in ("..", "%2e%2e", ".", "%2e"):
        answer = live.server(role).request("PUT", f"/d1/{partition}/{names}", headers, b"")
        assert answer.status in (400, 404, 412), (partition, answer)
    assert set(live.data.glob("node1/*")) | set(live.data.glob("node1/devices/*")) == before
    assert not Path("/etc/1").exists()


@pytest.mark.parametrize(("method", "path"), [
    ("GET", "/"), ("GET", "/d1"), ("GET", "/d1/1"), ("PUT", "/d1/1/a/c/o"), ("BREW", "/d1/1/a/c/o"), ("GET", "/d1/1/%ff/c/o"), ("GET", "/d1/x/a/c/o"), ("REPLICATE", "/d1/1"),
    ("REPLICATE", "/d1/1/..-..-zzz"), ("REPLICATE", "/d1/99999999999999999999"), ("POST", "/d1/1/a/c/o"), ("DELETE", "/d1/1/a/c/o")])
@pytest.mark.parametrize("role", ["object", "container", "account"])
def test_backends_bear_bad_requests(live: Store, role: str, method: str, path: str) -> None:
    for headers in ({}, {"X-Timestamp": "never"}, {"X-Timestamp": "1.0", "X-Backend-Storage-Policy-Index": "77"}, {"X-Timestamp": "1.0", "X-Container-Host": "a,b", "X-Container-Device": "x",
                    "X-Container-Partition": "y", "Content-Type": "x"}):
        answer = live.server(role).request(method, path, headers, b"junk" if method in ("PUT", "POST", "REPLICATE") else None)
        assert 200 <= answer.status < 500 or answer.status in (503, 507), answer
        assert b"Traceback" not in answer.body


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"null", b"[1]", b'["sync"]', b'["merge_items", [{"name": 1}], "x"]', b'["complete_rsync", "../../x"]', b'["rsync_then_merge", "../x"]',
                                  b'["no_such_op"]', b'["__init__"]', b"\xff", b'["merge_syncs", 5]', b'["sync",1,2,3,4,5,6,7]', b"[" * 100_000])
@pytest.mark.parametrize("role", ["container", "account"])
def test_database_replication_bears_bad_requests(live: Store, mine: Account, box: str, role: str, body: bytes) -> None:
    place = Place(live, role, *((mine.name, box) if role == "container" else (mine.name,)))
    node = place.nodes[0]
    answer = Endpoint(*node.address).request("REPLICATE", f"/{node.device}/{place.part}/{place.digest}", {"Content-Type": "application/json"}, body)
    assert 400 <= answer.status < 500 or answer.status == 202, answer
    assert b"Traceback" not in answer.body
