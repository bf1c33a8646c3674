"""Whole databases over the replication port: what is stored is what was sent, where it belongs, or nothing is."""

from __future__ import annotations

from hashlib import md5
from pathlib import Path
from typing import Any

import pytest

from keelstore.common import concurrency, db_transfer, sockets
from keelstore.common.backend import Backend, serve_locally, stop_serving_locally
from keelstore.common.errors import BackendError
from keelstore.common.httpserver import Server as HttpServer
from keelstore.common.room import Reserve
from test.support.db_servers import Server, container_server

HASH = "0a" * 16
PATH = f"/sda/0/{HASH}"
BODY = bytes(range(256)) * 9000  # more than two pieces


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return container_server(tmp_path)


@pytest.fixture(params=["in process", "http"])
def address(server: Server, request: pytest.FixtureRequest) -> Any:
    if request.param == "http":
        sock = sockets.listen(("127.0.0.1", 0))
        http = HttpServer(sock, server.app)
        task = concurrency.spawn(http.serve_forever)
        yield sock.getsockname()
        http.stop_accepting()
        task.kill()
    else:
        serve_locally(("127.9.9.9", 6201), server.app)
        yield ("127.9.9.9", 6201)
        stop_serving_locally(("127.9.9.9", 6201))


def test_a_file_arrives(server: Server, address: Any, tmp_path: Path) -> None:
    source = tmp_path / "source"
    for body in (BODY, b"", b"x"):
        source.write_bytes(body)
        assert db_transfer.send(Backend(), address, PATH, str(source), "sda", "some-id", "test", 5.0) == len(body)
        assert (server.device / "tmp" / "some-id").read_bytes() == body
    assert [path.name for path in (server.device / "tmp").iterdir()] == ["some-id"]


def test_a_peer_that_stored_another_file_is_found_out(server: Server, address: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    source.write_bytes(BODY)
    monkeypatch.setattr(db_transfer, "take", lambda request, *_: db_transfer.Response(201, {"Etag": md5(request.read_body(1 << 30)[1:]).hexdigest()}))
    with pytest.raises(BackendError, match="another file"):
        db_transfer.send(Backend(), address, PATH, str(source), "sda", "some-id", "test", 5.0)


def test_a_refusal_is_told(server: Server, address: Any, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(BODY)
    with pytest.raises(BackendError, match="400"):
        db_transfer.send(Backend(), address, PATH, str(source), "sda", "../x", "test", 5.0)
    with pytest.raises(BackendError, match="507"):
        db_transfer.send(Backend(), address, "/sdb/0/" + HASH, str(source), "sda", "x", "test", 5.0)


@pytest.mark.parametrize(("headers", "body", "status"), [
    ({db_transfer.ID: "x"}, b"abc", 201), ({}, b"abc", 400), ({db_transfer.ID: "a/b"}, b"abc", 400), ({db_transfer.ID: ".x"}, b"abc", 400),
    ({db_transfer.ID: "x" * 300}, b"abc", 400), ({db_transfer.ID: "x"}, b"", 411),
])
def test_requests(server: Server, headers: dict[str, str], body: bytes, status: int) -> None:
    answer = server("REPLICATE", f"/{HASH}", {"Content-Type": db_transfer.TYPE, **headers}, body=body)
    assert answer.status == status
    assert [path.name for path in (server.device / "tmp").glob("*")] == (["x"] if status == 201 else [])
    if status == 201:
        assert answer.headers["Etag"] == md5(body).hexdigest() and answer.headers[db_transfer.OFFER] == "yes"


def test_no_room(tmp_path: Path) -> None:

    server = container_server(tmp_path)
    server.app.reserve = Reserve.parse("100%")
    answer = server("REPLICATE", f"/{HASH}", {"Content-Type": db_transfer.TYPE, db_transfer.ID: "x"}, body=b"abc")
    assert answer.status == 507 and not (server.device / "tmp" / "x").exists()


def test_a_body_that_ends_early_leaves_nothing(server: Server) -> None:
    answer = server("REPLICATE", f"/{HASH}", {"Content-Type": db_transfer.TYPE, db_transfer.ID: "x", "Content-Length": "9"}, body=b"abc")
    assert answer.status == 499 and list((server.device / "tmp").iterdir()) == []


def test_what_arrived_is_taken_into_use_and_rubbish_is_not(server: Server) -> None:
    server("REPLICATE", f"/{HASH}", {"Content-Type": db_transfer.TYPE, db_transfer.ID: "x"}, body=b"no database" * 100)
    answer = server("REPLICATE", f"/{HASH}", body=b'["complete_rsync", "x"]')
    assert answer.status == 400 and not list(server.device.glob("containers/*/*/*/*.db"))
