"""More asked of a store than it can do: who is well-behaved is served, excess is refused early, nothing is left behind.

One worker with 24 places for connections, and a client_timeout of 8 s; each test fills the places with another kind of crowd.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from test.support.client import Account, unique
from test.support.store import Store, running
from test.support.waiting import until

PLACES, TIMEOUT_S = 24, 8
CLIENTS, PAUSE_S = 20, 2.5
LARGE = 24 << 20  # more than a kernel holds for a reader


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with running(tmp_path_factory.mktemp("overload") / "data", workers=1, is_patient=True, edit=lambda store: store.edit(
            "proxy-server.conf", ("[DEFAULT]\n", f"[DEFAULT]\nmax_clients = {PLACES}\noverload_wait = 0\nclient_timeout = {TIMEOUT_S}\n"))) as store:
        yield store


@pytest.fixture(scope="module")
def account(store: Store) -> Account:
    return store.login()


@pytest.fixture
def container(account: Account) -> str:
    name = unique("overload")
    account.put(name).expect(201)
    account.put(name, "o", body=b"data").expect(201)
    return name


@pytest.fixture(autouse=True)
def nothing_is_left(store: Store, account: Account, container: str) -> Iterator[None]:
    """Afterwards the worker is the same, and holds no more open files than before; each test takes what it needs itself."""
    (worker,), said = store.worker_pids(), len(store.log())
    before = len(os.listdir(f"/proc/{worker}/fd"))
    yield
    until(lambda: account.get(container, "o").status == 200, "all is well again")
    until(lambda: len(os.listdir(f"/proc/{worker}/fd")) <= before + 5, "the crowd's files are closed")
    assert store.worker_pids() == [worker]
    assert "Traceback" not in store.log()[said:]


class Crowd(ExitStack):
    """Connections that are closed at the end."""

    def __init__(self, account: Account):
        super().__init__()
        self.account, self.socks = account, list[socket.socket]()

    def more(self, count: int, *lines: str, sends: bytes = b"") -> list[socket.socket]:
        """Connections that send a head with a token, or something else."""
        head = "\r\n".join((*lines, f"X-Auth-Token: {self.account.token}", "", "")).encode() if lines else b""
        found = []
        for _ in range(count):
            sock = socket.socket()
            self.callback(sock.close)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32768)
            sock.settimeout(60)
            sock.connect((self.account.endpoint.host, self.account.endpoint.port))
            sock.sendall(head + sends)
            found.append(sock)
        self.socks += found
        return found


@pytest.fixture
def crowd(account: Account) -> Iterator[Crowd]:
    with Crowd(account) as found:
        yield found


def refused(account: Account, container: str) -> bool:
    """Whether a newcomer is refused now, as it should be."""
    answer = account.get(container, "o")
    if answer.status == 503:
        assert answer.headers["Retry-After"] == "1" and answer.headers["Connection"] == "close" and answer.headers["X-Trans-Id"]
    return answer.status == 503


def text(sock: socket.socket) -> bytes:
    """All that is answered until the server closes."""
    parts = []
    try:
        while data := sock.recv(65536):
            parts.append(data)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def test_three_hundred_connections_without_a_request_keep_nobody_out(account: Account, container: str, crowd: Crowd) -> None:
    target = account.target(container, "o")
    for _ in range(50):
        crowd.more(2)  # silent
        crowd.more(2, sends=b"GET / HTTP/1.1\r\nX-A: ")  # a head that does not end
        for sock in crowd.more(2, f"HEAD {target} HTTP/1.1", "Host: x"):
            assert sock.recv(65536).startswith(b"HTTP/1.1 200")  # then at rest
        account.get(container, "o").expect(200)
    account.put(container, "p", body=b"x" * 100_000).expect(201)


def test_head_that_trickles_ends_in_time(crowd: Crowd) -> None:
    (sock,) = crowd.more(1, sends=b"GET / HTTP/1.1\r\n")
    sock.settimeout(0.1)
    got = b""
    for _ in range(TIMEOUT_S * 100):  # ten times as long as it may take
        try:
            sock.sendall(b"X")
            got = sock.recv(65536)
            break
        except TimeoutError:
            continue
        except (BrokenPipeError, ConnectionResetError):
            return
    assert got.startswith(b"HTTP/1.1 408 ")


def test_slow_writers_take_all_places_and_lose_them(account: Account, container: str, crowd: Crowd) -> None:
    """Beside them newcomers are refused at once; whoever sends a byte now and then is ended by client_timeout."""
    writers = crowd.more(PLACES, f"PUT {account.target(container, 'slow')} HTTP/1.1", "Host: x", "Content-Length: 100000")
    until(lambda: refused(account, container), "all places are taken", every_s=0.01)

    def trickle() -> bool:
        for sock in writers:
            try:
                sock.sendall(b"x")
            except OSError:
                pass
        return not refused(account, container)

    until(trickle, "their places are free", 120, every_s=0.2)
    assert any(text(sock).startswith(b"HTTP/1.1 408 ") for sock in writers)
    account.get(container, "slow").expect(404)


def test_slow_readers_take_all_places_and_hold_little(store: Store, account: Account, container: str, crowd: Crowd) -> None:
    account.put(container, "large", body=bytes(LARGE)).expect(201)
    account.get(container, "large").expect(200)
    (worker,) = store.worker_pids()
    threads = len(os.listdir(f"/proc/{worker}/task"))
    readers = crowd.more(PLACES, f"GET {account.target(container, 'large')} HTTP/1.1", "Host: x")
    for sock in readers:
        assert sock.recv(4096).startswith(b"HTTP/1.1 200 ")
    until(lambda: refused(account, container), "all places are taken", every_s=0.01)
    assert len(os.listdir(f"/proc/{worker}/task")) <= threads + 2  # none of them keeps a disk thread
    assert read_on(readers[-1], 2 << 20)  # who goes on reading gets what it asked for
    for sock in readers:
        sock.close()
    until(lambda: not refused(account, container), "there are places again")


def test_after_the_processes_were_stopped_nobody_is_refused(store: Store, account: Account, container: str) -> None:
    """It was not the disk that took so long. ``PAUSE_S`` is more than a disk call may take."""
    statuses, ended = list[int](), threading.Event()

    def client(number: int) -> None:
        with account.endpoint.connect() as connection:
            while not ended.is_set():
                statuses.append(account.put(container, f"o{number}", body=b"x" * 4096, connection=connection).status)

    def more(count: int) -> None:
        since = len(statuses)
        until(lambda: len(statuses) >= since + count, f"{count} more are answered")

    threads = [threading.Thread(target=client, args=(number,), daemon=True) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        more(5 * CLIENTS)
        with store.frozen(1):
            time.sleep(PAUSE_S)
        more(10 * CLIENTS)
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert Counter(statuses) == {201: len(statuses)}
    assert "is slow" not in store.log()


def read_on(sock: socket.socket, size: int) -> bool:
    """Whether so many bytes more come."""
    while size > 0 and (data := sock.recv(1 << 20)):
        size -= len(data)
    return size <= 0
