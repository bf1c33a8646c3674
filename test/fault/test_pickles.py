"""Pickles that would do something when they are loaded: from a peer that answers REPLICATE, and in the files that daemons read
(issue 4, point 5; design section 5, rule 6). Daemons here are processes; the peer is a program of the test.
"""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from test.support.stage import Spot, Stage
from test.support.waiting import until


class Evil:
    """Whoever loads it makes a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


@contextmanager
def answering(port: int, body: bytes) -> Iterator[list[str]]:
    """A peer that answers everything with this; gives what it was asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked.append(f"{self.command} {self.path}")
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_REPLICATE = do_HEAD = do_GET = do_PUT = do_POST = do_DELETE = answer  # noqa: N815 - names of the library

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield asked
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("kind", ["object", "container"])
def test_security_S07_a_peer_that_answers_with_a_pickle(stage: Stage, tmp_path: Path, kind: str) -> None:
    own = stage.own()
    own.put("c").expect(201)
    own.put("c", "o", body=b"body").expect(201)
    stage.final_state("object", "container")
    spot = Spot(stage, own.name, "c", *(["o"] if kind == "object" else []))
    for path in (spot.folder(node) for node in spot.primaries[:1]):
        for file in path.parents[1].glob("hashes.*"):
            file.unlink()
    trap, evil = tmp_path / "loaded", spot.primaries[0]
    with stage.without(spot.sites[0], kinds=(kind,)), answering(evil.port, pickle.dumps(Evil(trap), 2)) as asked:
        for site in spot.sites[1:]:
            stage.run(f"{kind}-replicator", site)
        assert any(line.startswith("REPLICATE") for line in asked)
        assert not trap.exists()
        assert own.get("c", "o", headers={"X-Newest": "true"}).status == 200 or kind == "object"
    stage.final_state("object", "container")
    assert own.get("c", "o").expect(200).body == b"body"
    assert spot.statuses() == ([200] if kind == "object" else [204]) * 3
    assert not trap.exists()


def test_security_S07_pickles_in_the_files_of_a_device(stage: Stage, tmp_path: Path) -> None:
    """A pending update and remembered hashes: the one is put aside, the other made anew."""
    own = stage.own()
    own.put("c").expect(201)
    own.put("c", "o", body=b"body").expect(201)
    spot, trap = Spot(stage, own.name, "c", "o"), tmp_path / "loaded"
    device = stage.devices / spot.primaries[0].device
    waiting = device / "async_pending" / "abc" / f"{'0' * 29}abc-1600000000.00000"
    waiting.parent.mkdir(parents=True, exist_ok=True)
    waiting.write_bytes(pickle.dumps(Evil(trap), 2))
    hashes = device / "objects" / str(spot.part) / "hashes.pkl"
    hashes.write_bytes(pickle.dumps(Evil(trap), 2))
    stage.passes([("object-updater", 0)])
    for site in range(4):
        stage.run("object-replicator", site)
    assert not trap.exists()
    assert not waiting.exists()
    assert list(device.glob("quarantined/**/*abc-1600000000.00000"))
    until(lambda: pickle.loads(hashes.read_bytes())[spot.digest[-3:]], "the hashes are made anew")
    assert own.get("c", "o").expect(200).body == b"body"
