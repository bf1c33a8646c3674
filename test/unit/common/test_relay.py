"""Bytes sent on by the kernel, over real sockets."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from keelstore.common import relay
from keelstore.common.errors import WaitTimeout
from keelstore.common.sockets import Stream

Pair = tuple[socket.socket, Stream]


def tcp_pair(timeout: float | None = 5.0) -> Pair:
    """A plain socket of the peer, and our stream of the connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    return theirs, Stream(ours, timeout)


@pytest.fixture
def ends() -> Iterator[tuple[Pair, Pair]]:
    pairs = tcp_pair(), tcp_pair()
    yield pairs
    for theirs, ours in pairs:
        theirs.close()
        ours.close()


def pipes_open() -> int:
    return sum(os.readlink(f"/proc/self/fd/{fd}").startswith("pipe:") for fd in os.listdir("/proc/self/fd")
               if os.path.lexists(f"/proc/self/fd/{fd}"))


@pytest.mark.parametrize("size", [1, 1000, 70_000, 3_000_000])
def test_all_of_it_comes_through_in_order(ends: tuple[Pair, Pair], size: int) -> None:
    (sender, source), (receiver, target) = ends
    data = os.urandom(size)
    got = bytearray()

    def read() -> None:
        while len(got) < size and (part := receiver.recv(65536)):
            got.extend(part)

    threads = [threading.Thread(target=read), threading.Thread(target=sender.sendall, args=(data,))]
    for thread in threads:
        thread.start()
    left = size
    while left:
        part = relay.arrived(source, left)
        assert 0 < len(part) <= left
        relay.send_on(part, target)
        left -= len(part)
    for thread in threads:
        thread.join(10)
    assert bytes(got) == data


def test_no_more_is_taken_than_was_asked_for(ends: tuple[Pair, Pair]) -> None:
    (sender, source), (receiver, target) = ends
    sender.sendall(b"first-second")
    part = relay.arrived(source, 6)
    relay.send_on(part, target)
    assert len(part) == 6 and receiver.recv(100) == b"first-"
    assert source.receive(100) == b"second"


def test_what_came_before_the_end_is_still_there(ends: tuple[Pair, Pair]) -> None:
    (sender, source), (receiver, target) = ends
    sender.sendall(b"last")
    sender.close()
    relay.send_on(relay.arrived(source, 100), target)
    assert receiver.recv(100) == b"last"
    with pytest.raises(EOFError):
        relay.arrived(source, 100)


def test_a_silent_sender_is_not_waited_for_without_end() -> None:
    sender, source = tcp_pair(timeout=0.05)
    with sender, pytest.raises(WaitTimeout):
        relay.arrived(source, 100)
    source.close()


def test_a_receiver_that_takes_nothing_costs_its_own_connection_only() -> None:
    (sender, source), (receiver, target) = tcp_pair(), tcp_pair(timeout=0.05)
    sender.setblocking(False)
    target.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    before = pipes_open()
    with sender, receiver, pytest.raises(WaitTimeout):
        while True:
            try:
                while sender.send(b"x" * 65536):
                    pass
            except BlockingIOError:
                pass
            relay.send_on(relay.arrived(source, 1 << 20), target)
    assert pipes_open() <= before  # one that holds what could not be sent is not used again
    source.close()
    target.close()
