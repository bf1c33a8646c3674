"""Many clients at once, whose every upload is remembered with what became of it."""

from __future__ import annotations

import hashlib
import http.client
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from test.support.client import Account, Endpoint
from test.support.waiting import until

MAX_SIZE = 2 << 20
PIECE = 64 << 10


def body_of(seed: int, number: int) -> bytes:
    """The body of upload ``number`` of a run: sizes from 1 octet to 2 MiB, small ones more often."""
    chance = random.Random(f"{seed}/{number}")
    size = int(MAX_SIZE ** chance.random())
    return chance.randbytes(size)


@dataclass
class Uploads:
    """``clients`` threads that each upload objects, one after the other on a connection of its own, until told to stop.

    An upload whose answer is 201 is acknowledged; any other end (refused, reset, silence) leaves it open what is stored.
    """

    account: Account
    container: str
    seed: int
    clients: int = 200
    each: int = 2
    endpoints: list[Endpoint] = field(default_factory=list)
    acknowledged: dict[str, str] = field(default_factory=dict)
    open: dict[str, str] = field(default_factory=dict)
    sent: int = 0
    _threads: list[threading.Thread] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> Uploads:
        self._threads = [threading.Thread(target=self._client, args=(number,), daemon=True) for number in range(self.clients)]
        for thread in self._threads:
            thread.start()
        return self

    def _client(self, number: int) -> None:
        account = self.account.at(self.endpoints[number % len(self.endpoints)]) if self.endpoints else self.account
        for turn in range(self.each):
            job = number * self.each + turn
            body = body_of(self.seed, job)
            name, digest = f"upload-{job:05}", hashlib.md5(body).hexdigest()
            pieces = (body[at:at + PIECE] for at in range(0, len(body), PIECE))
            headers = {"Content-Length": len(body)} if job % 2 else {"Transfer-Encoding": "chunked"}
            with self._lock:
                self.sent += 1
            try:
                status = account.put(self.container, name, body=pieces, headers=headers).status
            except (OSError, http.client.HTTPException):
                status = 0
            with self._lock:
                (self.acknowledged if status == 201 else self.open)[name] = digest

    def wait_for_acknowledged(self, count: int) -> None:
        until(lambda: len(self.acknowledged) >= count, f"{count} uploads are acknowledged", 120)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(180)
            assert not thread.is_alive(), "an upload hangs"

    def check(self, account: Account | None = None) -> str:
        """Every acknowledged object reads back whole; of the others none is torn. Gives a summary."""
        account = account or self.account
        stored = 0
        with account.endpoint.connect() as connection:
            for name, digest in self.acknowledged.items():
                answer = account.get(self.container, name, connection=connection)
                assert answer.status == 200, f"{name} was acknowledged and answers {answer.status} (seed {self.seed})"
                assert hashlib.md5(answer.body).hexdigest() == digest, f"{name} is not what was acknowledged (seed {self.seed})"
            for name, digest in self.open.items():
                answer = account.get(self.container, name, connection=connection)
                assert answer.status in (200, 404), f"{name} answers {answer.status} (seed {self.seed})"
                if answer.status == 200:
                    stored += 1
                    assert hashlib.md5(answer.body).hexdigest() == digest, f"{name} is torn (seed {self.seed})"
        return f"{len(self.acknowledged)} acknowledged, {len(self.open)} not, of which {stored} are stored"


def run_clients(count: int, work: Callable[[int], None]) -> list[BaseException]:
    """Call ``work(number)`` in ``count`` threads at once; gives what they raised."""
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    return errors
