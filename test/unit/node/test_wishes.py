"""What an operator asks of the daemons of a node, over a real socket."""

from __future__ import annotations

import logging
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from keelstore.common.daemon_frame import ALL, Selection
from keelstore.node.background import Background
from keelstore.node.wishes import NotAsked, Wish, decode, send
from test.support.processes import ROOT

SERVER = """
import sys
from keelstore.common import concurrency
concurrency.monkey_patch()
from keelstore.node.wishes import Door, Wish

def ask(wish):
    if "nobody" in wish.daemons:
        raise ValueError("this node runs no nobody")
    return [name for name in wish.daemons] + sorted(wish.only.devices)

door = Door(sys.argv[1], ask)
listening = door.open()
print("open", flush=True)
door.serve(listening)
"""


@contextmanager
def door(path: Path) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", SERVER, str(path)], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        yield
    finally:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def test_a_wish_is_read_as_it_was_written() -> None:
    wish = Wish(("object-replicator",), Selection(frozenset({"d1"}), frozenset({3, 4}), frozenset({0})))
    assert decode(wish.encode()) == wish
    assert decode(Wish(("a", "b")).encode()) == Wish(("a", "b"), ALL)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"null", b'{"daemons": [], "devices": [], "partitions": [], "policies": []}', b"[" * 100_000,
                                  b'{"daemons": ["x"], "devices": [1], "partitions": [], "policies": []}', b"\xff",
                                  b'{"daemons": ["x"], "devices": [], "partitions": ["1"], "policies": []}',
                                  b'{"daemons": ["x"], "devices": [], "partitions": [true], "policies": []}',
                                  b'{"daemons": 1, "devices": [], "partitions": [], "policies": []}'])
def test_what_is_no_wish_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode(data)


class Told:
    def __init__(self, name: str, refusal: str = ""):
        self.name, self.refusal = name, refusal
        self.asked: list[Selection] = []

    def ask(self, only: Selection) -> None:
        if self.refusal:
            raise ValueError(self.refusal)
        self.asked.append(only)


def test_one_daemon_that_refuses_keeps_no_other_from_what_is_asked() -> None:
    background = Background([], [], logging.getLogger("test"))
    daemons: dict[str, Any] = {"one": Told("one"), "two": Told("two", "two never does"), "three": Told("three")}
    background.daemons = daemons
    assert background._ask(Wish(("one", "two", "three"))) == ["one", "three"]
    assert daemons["three"].asked == [ALL]
    with pytest.raises(ValueError, match="two never does"):
        background._ask(Wish(("two", "four")))


@pytest.mark.parametrize("name", ["short", "d" * 100 + "/" + "e" * 100])
def test_a_daemon_is_asked(tmp_path: Path, name: str) -> None:
    path = tmp_path / name / "node.daemons"
    path.parent.mkdir(parents=True)
    path.write_text("left over")
    with door(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert send(str(path), Wish(("one",), Selection(devices=frozenset({"d1"})))) == ("one", "d1")
        with pytest.raises(NotAsked, match="runs no nobody"):
            send(str(path), Wish(("nobody",)))
        with socket.socket(socket.AF_UNIX) as silent:  # does not hold up the others
            silent.connect(_short(path))
            silent.sendall(b"nonsense")
            assert send(str(path), Wish(("two",))) == ("two",)
            silent.sendall(b"\n")
            assert b'"error"' in silent.recv(1000)
    with pytest.raises(NotAsked, match="do not run"):
        send(str(path), Wish(("one",)))


def _short(path: Path) -> str:
    return f"/proc/self/fd/{os.open(path.parent, os.O_PATH)}/{path.name}"


def test_a_node_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotAsked, match="do not run"):
        send(str(tmp_path / "node.daemons"), Wish(("one",)))
