"""Streams and sockets of green threads."""

import gc
import os
import socket
import time

import pytest

from keelstore.common import concurrency, sockets
from keelstore.common.concurrency import Event, sleep, spawn, time_limit
from keelstore.common.errors import WaitTimeout
from keelstore.common.sockets import Stream
from test.support.waiting import slowness


def pair(timeout=5):
    left, right = socket.socketpair()
    return Stream(left, timeout), Stream(right, timeout)


def test_stream_sends_and_receives_all():
    left, right = pair()
    data = os.urandom(3 << 20)
    got = []

    def reader():
        while sum(map(len, got)) < len(data) * 3:
            got.append(right.receive(100000))

    task = spawn(reader)
    left.send(data)
    left.send_parts([data[:10], b"", memoryview(data)[10:]])
    left.send(bytearray(data))
    task.wait()
    assert b"".join(got) == data * 3
    left.shutdown_write()
    assert right.receive() == b""


def test_send_parts_of_nothing():
    left, right = pair()
    left.send_parts([b"", b"x", b""])
    assert right.receive() == b"x"


def test_what_came_while_the_hub_was_held_up_is_in_time():
    """It looks at its timers before it looks at descriptors."""
    (left, right), (full, other), (held, holds) = pair(timeout=0.01), pair(timeout=0.01), pair()
    reader, writer = os.pipe()
    with pytest.raises(BlockingIOError):
        while True:
            full.sock.send(bytes(65536))

    def hold_up():
        held.receive()
        time.sleep(0.1)  # not green
        right.send(b"data")
        os.write(writer, b"data")
        with pytest.raises(BlockingIOError):
            while True:
                other.sock.recv(1 << 20)

    tasks = [spawn(hold_up), spawn(left.receive), spawn(concurrency.wait_for, reader, False, 0.01), spawn(full.send, b"x")]
    sleep(0)
    holds.send(b"now")
    assert [task.wait() for task in tasks] == [None, b"data", None, None]
    for stream in (left, right, full, other, held, holds):
        stream.close()
    os.close(reader)
    os.close(writer)


def test_silent_peer_is_a_wait_timeout():
    left, right = pair(timeout=0.01)
    with pytest.raises(WaitTimeout, match="silent"):
        left.receive()
    with pytest.raises(WaitTimeout):
        left.receive(timeout=0)
    with pytest.raises(WaitTimeout):
        while True:
            left.send(b"x" * 65536)
    assert right.receive(10) == b"x" * 10


def test_stream_wakes_again_and_again():
    """Edge-triggered registration must not lose a wake-up."""
    left, right = pair()

    def echo():
        while data := right.receive(3):
            right.send(data)

    task = spawn(echo)
    for n in range(500):
        data = b"x" * (n % 7 + 1)
        left.send(data)
        got = b""
        while len(got) < len(data):
            got += left.receive(2)
        if n % 5 == 0:
            concurrency.sleep(0)
    left.close()
    task.wait()


def test_one_green_thread_reads_while_another_writes():
    left, right = pair()
    received = spawn(left.receive)
    data = b"y" * (1 << 20)
    sent = spawn(left.send, data)
    concurrency.sleep(0)
    with pytest.raises(RuntimeError):
        left.receive()
    right.send(b"x")
    assert received.wait() == b"x"
    size = 0
    while size < len(data):
        size += len(right.receive())
    sent.wait()


def test_closing_a_stream_wakes_who_waits_for_it():
    left, right = pair()
    task = spawn(left.receive)
    concurrency.sleep(0)
    left.close()
    left.close()
    with pytest.raises(OSError):
        task.wait()
    with pytest.raises(OSError):
        left.receive()
    assert right.receive() == b""


def test_descriptors_that_are_reused_do_not_mix_up_waits():
    for _ in range(50):
        left, right = pair()
        task = spawn(left.receive)
        concurrency.sleep(0)
        right.send(b"x")
        assert task.wait() == b"x"
        task = spawn(right.receive)
        concurrency.sleep(0)
        left.close()
        assert task.wait() == b""
        right.close()


def test_forgotten_stream_closes_and_its_descriptor_can_be_used_again():
    left, right = pair()
    for stream in (left, right):
        with pytest.raises(WaitTimeout):
            stream.receive(timeout=0.001)
    fds = {left.fd, right.fd}
    del left, right, stream
    gc.collect()
    pairs = [pair() for _ in range(50)]  # the kernel gives the lowest number first, and what others let go may be lower
    left = next(stream for found in pairs for stream in found if stream.fd in fds)
    with pytest.raises(WaitTimeout):
        left.receive(timeout=0.001)


def test_shutdown_read_leaves_what_has_arrived():
    left, right = pair()
    right.send(b"abc")
    left.shutdown_read()
    assert left.receive() == b"abc" and left.receive() == b""
    waiting = spawn(right.receive)
    concurrency.sleep(0)
    right.shutdown_read()
    assert waiting.wait() == b""


def test_ready_peer_does_not_hold_up_others():
    left, right = pair()
    turns, stop = [0], Event()

    def others():
        while not stop.is_set:
            turns[0] += 1
            concurrency.sleep(0)

    spawn(others)
    chunk = b"x" * 4096
    for _ in range(1000):  # 4 MB through a pair that is always ready
        left.send(chunk)
        right.receive()
    stop.set()
    assert turns[0] >= 4


def test_is_readable():
    left, right = pair()
    assert not left.is_readable()
    right.close()
    assert left.is_readable()


def test_connect_and_accept():
    sock = sockets.listen(("127.0.0.1", 0))
    accepted = []

    def take():
        for connection, _ in sockets.accept(sock):
            accepted.append(Stream(connection, 5))

    task = spawn(take)
    concurrency.sleep(0)
    stream = sockets.connect(sock.getsockname(), 1, 5)
    stream.send(b"x")
    while not accepted:
        concurrency.sleep(0)
    assert accepted[0].receive() == b"x"
    task.kill()
    sock.close()
    with pytest.raises(OSError):
        sockets.connect(("127.0.0.1", 1), 1)
    stream.close()


def test_abort_resets():
    sock = sockets.listen(("127.0.0.1", 0))
    stream = sockets.connect(sock.getsockname(), 1, 5)
    peer = Stream(sock.accept()[0], 5)
    peer.send(b"half")
    peer.abort()
    with pytest.raises(ConnectionResetError):
        while stream.receive():
            pass
    stream.close()
    sock.close()


def test_wait_is_over_in_time():
    start = time.monotonic()
    left, _right = pair()
    with pytest.raises(WaitTimeout):
        left.receive(timeout=0.05)
    assert 0.04 < time.monotonic() - start < 2 * slowness()


def test_forked_child_has_an_event_loop_of_its_own():
    left, right = pair()
    with pytest.raises(WaitTimeout):
        left.receive(timeout=0.001)
    sock = sockets.listen(("127.0.0.1", 0))
    pid = os.fork()
    if not pid:
        status = 1
        try:
            stream = Stream(next(sockets.accept(sock))[0], 5)
            while data := stream.receive():
                stream.send(data)
            status = 0
        finally:
            os._exit(status)
    stream = sockets.connect(sock.getsockname(), 1, 5)
    for n in range(300):
        stream.send(b"%d" % n)
        assert stream.receive() == b"%d" % n
    stream.close()
    assert os.waitpid(pid, 0)[1] == 0
    right.send(b"still ours")
    assert left.receive() == b"still ours"
    sock.close()


def test_time_limit_over_a_stream_is_not_taken_for_the_streams_own():
    left, _right = pair()
    with pytest.raises(WaitTimeout, match="no result within"), time_limit(0.01):
        left.receive()


# -- pacing


def control(sock: socket.socket) -> bytes:
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")


def test_what_only_this_machine_reaches_is_not_paced_and_all_else_is_as_the_system_says() -> None:
    with socket.socket() as plain:
        system = control(plain)
    for address in ("127.0.0.1", "127.0.0.3", "localhost", "0.0.0.0", ""):
        with sockets.listen((address, 0)) as server:
            server.setblocking(True)
            with socket.create_connection(server.getsockname()) as client, server.accept()[0] as ours:
                is_near = server.getsockname()[0].startswith("127.")
                assert control(ours) == (b"reno" if is_near and system == b"bbr" else system)
                assert control(client) == system


@pytest.mark.parametrize(("system", "chosen"), [(b"bbr", [b"reno"]), (b"bbr2", []), (b"cubic", [])])
def test_only_one_that_paces_is_replaced(system: bytes, chosen: list[bytes]) -> None:
    found: list[bytes] = []

    class Socket:
        def getsockopt(self, *_option: int) -> bytes:
            return system.ljust(16, b"\0")

        def setsockopt(self, _level: int, _option: int, value: bytes) -> None:
            found.append(value)
            raise PermissionError  # what it may not choose it goes without

    sockets.pace_nothing(Socket())  # type: ignore[arg-type]
    assert found == chosen
