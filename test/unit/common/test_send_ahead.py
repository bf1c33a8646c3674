"""What the kernel holds for readers of large bodies: more for quick ones, bounded for all."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from keelstore.common import send_ahead, sockets
from keelstore.common.errors import PeerSilent, WaitTimeout
from keelstore.common.send_ahead import LEAST, MOST, SendAhead
from keelstore.common.sockets import Stream

SIZE = 24 << 20
Ends = tuple[socket.socket, Stream]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine makes no reader slow."""
    monkeypatch.setattr(send_ahead, "QUICK_S", 60.0)


@pytest.fixture
def ends() -> Iterator[Ends]:
    """A plain socket of the reader, and our stream of the connection, as a server has it."""
    with sockets.listen(("127.0.0.1", 0)) as server:
        server.setblocking(True)
        theirs = socket.create_connection(server.getsockname())
        ours = Stream(server.accept()[0], 5.0)
    with theirs:
        yield theirs, ours
    ours.close()
    assert send_ahead.granted() == 0


@pytest.fixture
def marks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What was set, in order, on any connection."""
    found: list[int] = []
    plain = SendAhead._set

    def note(self: SendAhead, mark: int) -> None:
        found.append(mark)
        plain(self, mark)

    monkeypatch.setattr(SendAhead, "_set", note)
    return found


def read(theirs: socket.socket, size: int, got: bytearray) -> None:
    while len(got) < size and (data := theirs.recv(1 << 20)):
        got.extend(data)


def send_large(stream: Stream, path: os.PathLike[str], size: int = SIZE) -> None:
    stream.begin_large()
    fd = os.open(path, os.O_RDONLY)
    try:
        stream.send_file(fd, 0, size)
        stream.end_large()
    finally:
        os.close(fd)


def test_a_quick_reader_has_more_waiting_until_the_body_ends(ends: Ends, marks: list[int], tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(send_ahead, "SLOW_S", 60.0)
    theirs, ours = ends
    ours.timeout = 60.0
    path = tmp_path / "body"
    path.write_bytes(os.urandom(1 << 20) * (SIZE >> 20))
    for _ in range(2):  # the next body begins as the first did
        marks.clear()
        got = bytearray()
        reader = threading.Thread(target=read, args=(theirs, SIZE, got))
        reader.start()
        send_large(ours, path)
        assert send_ahead.granted() == 0
        reader.join()
        assert got == path.read_bytes()
        assert marks[:2] == [2 * LEAST, 4 * LEAST] and max(marks) <= MOST and marks[-1] == LEAST
        assert marks[:-1] == sorted(marks[:-1])


def test_a_reader_that_is_not_quick_has_no_more(ends: Ends, marks: list[int], tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(send_ahead, "QUICK_S", 0.0)
    theirs, ours = ends
    ours.timeout = 60.0
    (tmp_path / "body").write_bytes(bytes(SIZE))
    got = bytearray()
    reader = threading.Thread(target=read, args=(theirs, SIZE, got))
    reader.start()
    send_large(ours, tmp_path / "body")
    reader.join()
    assert len(got) == SIZE and marks == []


def test_a_quick_reader_that_stops_is_given_up_in_time(ends: Ends, marks: list[int], tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(send_ahead, "SLOW_S", 0.05)
    theirs, ours = ends
    ours.timeout = 0.2
    size = 64 << 20
    with open(tmp_path / "body", "wb") as file:
        file.truncate(size)
    got = bytearray()
    reader = threading.Thread(target=read, args=(theirs, size // 4, got))
    reader.start()
    with pytest.raises(PeerSilent):
        send_large(ours, tmp_path / "body", size)
    reader.join()
    assert len(marks) > 1 and marks[-1] == LEAST
    assert 0 < send_ahead.granted() <= MOST - LEAST, "the kernel still holds it"
    ours.abort()
    assert send_ahead.granted() == 0


def test_a_unix_socket_has_no_mark() -> None:
    left, right = socket.socketpair()
    with right:
        stream = Stream(left, 5.0)
        stream.begin_large()
        stream.send(b"x")
        stream.end_large()
        assert right.recv(2) == b"x"
        stream.close()


# -- without waits: what the kernel would say is told


class Told(SendAhead):
    """``steps``: what each wait does; ``unsent``: what the kernel holds then."""

    __slots__ = ("marks", "steps", "unsent", "waits")

    def __init__(self, *steps: Callable[[Told], None]):
        super().__init__(None, self._next)  # type: ignore[arg-type]
        self.marks: list[int] = []
        self.waits: list[float | None] = []
        self.steps, self.unsent = list(steps), 0

    def _next(self, timeout: float | None) -> None:
        self.waits.append(timeout)
        self.steps.pop(0)(self)

    def _set(self, mark: int) -> None:
        self._mark = mark
        self.marks.append(mark)

    def _holds_little(self) -> bool:
        return self.unsent < self._mark // 2

    def _unsent(self) -> int:
        return self.unsent


def at_once(_ahead: Told) -> None:
    pass


def silent(left: int) -> Callable[[Told], None]:
    """The time is over, and so much is still held."""

    def step(ahead: Told) -> None:
        ahead.unsent = left
        raise PeerSilent("silent")

    return step


def taken(left: int) -> Callable[[Told], None]:
    def step(ahead: Told) -> None:
        ahead.unsent = left

    return step


def grown(*steps: Callable[[Told], None]) -> Told:
    """One that is held 8 times LEAST for, all of it unsent."""
    ahead = Told(at_once, at_once, at_once, *steps)
    for _ in range(3):
        ahead.wait(60.0)
    ahead.unsent = 8 * LEAST
    ahead.marks.clear()
    ahead.waits.clear()
    return ahead


def test_who_stops_is_waited_for_as_with_least_and_keeps_what_it_was_granted() -> None:
    step = LEAST // 2
    ahead = grown(silent(8 * LEAST), silent(8 * LEAST - step), silent(8 * LEAST - 2 * step), silent(8 * LEAST - 3 * step + 1))
    with pytest.raises(PeerSilent):  # less than half of LEAST within the last 60 s
        ahead.wait(60.0)
    assert ahead.waits == [send_ahead.SLOW_S, 60.0, 60.0, 60.0] and ahead.marks == [LEAST]
    assert send_ahead.granted() == 7 * LEAST
    ahead.drop()
    ahead.drop()
    assert send_ahead.granted() == 0


def test_who_goes_on_after_a_stop_begins_with_least() -> None:
    ahead = grown(silent(8 * LEAST), silent(3 * LEAST), taken(LEAST), taken(0), at_once)
    ahead.wait(60.0)
    assert send_ahead.granted() == 7 * LEAST, "not yet taken"
    assert ahead.marks == [LEAST]
    ahead.wait(60.0)
    assert ahead.marks == [LEAST, 2 * LEAST] and send_ahead.granted() == LEAST
    ahead.drop()


def test_the_end_waits_until_what_was_granted_is_taken() -> None:
    ahead = grown(taken(LEAST), taken(0))
    ahead.end(60.0)
    assert ahead.waits == [60.0, 60.0] and ahead.marks == [LEAST] and send_ahead.granted() == 0


def test_the_end_waits_for_nothing_that_was_never_granted() -> None:
    ahead = Told()
    ahead.unsent = LEAST
    ahead.end(60.0)
    assert ahead.waits == [] and ahead.marks == []


def test_limits_of_others_pass() -> None:
    def other(_ahead: Told) -> None:
        raise WaitTimeout("the request as a whole")

    for ahead in (grown(other), grown(silent(8 * LEAST), other)):
        with pytest.raises(WaitTimeout, match="as a whole"):
            ahead.wait(60.0)
        ahead.drop()


def test_all_readers_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send_ahead, "ALL", 20 * LEAST)
    readers = [Told(*[at_once] * 9) for _ in range(5)]
    for _ in range(8):
        for reader in readers:
            reader.wait(60.0)
            assert send_ahead.granted() <= 20 * LEAST
    assert all(reader.marks for reader in readers), "each has some"
    others = sum(reader.marks[-1] - LEAST for reader in readers[1:])
    readers[0].drop()
    assert send_ahead.granted() == others
    readers[1].wait(60.0)
    assert send_ahead.granted() > others, "what one has left is another's"
    for reader in readers:
        reader.drop()
