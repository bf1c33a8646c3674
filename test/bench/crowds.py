"""Crowds of clients that a store does not deserve, each in a process of its own: what they do, and what they were answered."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import random
import socket
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Channel
from typing import Any

READ_SIZE, WRITE_SIZE = 8 << 20, 1 << 20  # what slow readers ask for, and slow writers announce
UPLOAD = 256 << 10


@dataclass
class Told:
    """What a crowd has met: answers by status (0: closed or reset without one), and the seconds that refusals took."""

    answers: Counter[int] = field(default_factory=Counter)
    refusal_s: list[float] = field(default_factory=list)
    before_body: int = 0  # of the refusals, those whose client had sent nothing of its body
    advised: int = 0  # refusals with Retry-After
    open: int = 0

    def text(self) -> str:
        answers = ", ".join(f"{count} x {status or 'closed'}" for status, count in sorted(self.answers.items())) or "none"
        if not self.refusal_s:
            return f"answers: {answers}; refused: none"
        times = sorted(self.refusal_s)
        return (f"answers: {answers}; refused: {len(times)} ({self.advised} with Retry-After, {self.before_body} before any of the body was sent), after "
                f"{statistics.median(times) * 1000:.0f} ms (median), {times[int(len(times) * 0.99)] * 1000:.0f} ms (p99)")


@dataclass(frozen=True)
class Where:
    host: str
    port: int
    token: str
    targets: tuple[str, ...]  # request targets
    clients: int


class Client:
    """One connection of the crowd."""

    def __init__(self, where: Where, told: Told, number: int):
        self.where, self.told, self.number = where, told, number
        self.target = where.targets[number % len(where.targets)]

    async def open(self) -> None:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32768)
        sock.setblocking(False)
        self.began = time.monotonic()
        await asyncio.get_running_loop().sock_connect(sock, (self.where.host, self.where.port))
        self.reader, self.writer = await asyncio.open_connection(sock=sock, limit=16384)
        self.told.open += 1

    def head(self, method: str, *headers: str) -> bytes:
        lines = (f"{method} {self.target} HTTP/1.1", "Host: x", f"X-Auth-Token: {self.where.token}", *headers)
        return "\r\n".join((*lines, "", "")).encode()

    async def answer(self, sent_body: bool) -> tuple[int, dict[str, str]]:
        """The next answer's status (0: none came) and headers; what it says is remembered, but for a 100."""
        try:
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        except (OSError, asyncio.IncompleteReadError):
            self.told.answers[0] += 1
            return 0, {}
        status = int(head[0].split()[1])
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
        if status != 100:
            self.told.answers[status] += 1
        if status == 503:
            self.told.refusal_s.append(time.monotonic() - self.began)
            self.told.advised += "retry-after" in headers
            self.told.before_body += not sent_body
        return status, headers

    async def close(self) -> None:
        self.told.open -= 1
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


async def connections(client: Client) -> None:
    """A third says nothing, a third asks once and rests, a third sends a head that never ends."""
    if client.number % 3 == 1:
        client.writer.write(client.head("HEAD"))
        await client.answer(True)
    while client.number % 3 == 2:
        client.writer.write(b"G")
        await client.writer.drain()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(client.answer(True), 3)
            return
    if await client.reader.read(1) == b"":
        client.told.answers[0] += 1


async def slow_readers(client: Client) -> None:
    client.writer.write(client.head("GET"))
    status, _ = await client.answer(True)
    while status == 200 and await client.reader.read(4096):
        await asyncio.sleep(1)


async def slow_writers(client: Client) -> None:
    client.writer.write(client.head("PUT", f"Content-Length: {WRITE_SIZE}"))
    answer = asyncio.ensure_future(client.answer(False))
    try:
        while not answer.done():
            client.writer.write(b"x")
            await client.writer.drain()
            await asyncio.wait((answer,), timeout=1)
    finally:
        answer.cancel()


async def uploads(client: Client) -> None:
    """One upload after the other, half of the clients with 100-continue; what is refused is tried again when that was advised."""
    body = random.Random(client.number).randbytes(UPLOAD)
    while True:
        expects = client.number % 2 == 0
        client.began = time.monotonic()
        client.writer.write(client.head("PUT", f"Content-Length: {len(body)}", *(["Expect: 100-continue"] if expects else [])))
        if expects:
            status, headers = await client.answer(False)
            if status == 100:
                client.writer.write(body)
                await client.writer.drain()
                status, headers = await client.answer(True)
        else:
            client.writer.write(body)
            answer = asyncio.ensure_future(client.answer(False))
            with contextlib.suppress(OSError):
                await client.writer.drain()
            status, headers = await answer
        await client.reader.read(int(headers.get("content-length", 0)))
        if status == 503:
            await asyncio.sleep(float(headers.get("retry-after", 1)))
        if not status or headers.get("connection") == "close" or status == 503:
            return


KINDS: dict[str, Callable[[Client], Awaitable[None]]] = {
    "connections": connections, "slow-readers": slow_readers, "slow-writers": slow_writers, "slow-disk": uploads}


async def _stay(kind: str, where: Where, told: Told, number: int) -> None:
    """One member: it comes again whenever it is sent away."""
    while True:
        client = Client(where, told, number)
        try:
            await client.open()
        except OSError:
            told.answers[0] += 1
            await asyncio.sleep(1)
            continue
        try:
            await KINDS[kind](client)
        except (OSError, asyncio.IncompleteReadError):
            told.answers[0] += 1
        finally:
            await client.close()
        await asyncio.sleep(0.2 if kind != "slow-disk" else 0)


def _crowd(kind: str, where: Where, channel: Channel) -> None:
    async def run() -> Told:
        told = Told()
        members = []
        for number in range(where.clients):
            members.append(asyncio.ensure_future(_stay(kind, where, told, number)))
            if number % 50 == 49:
                await asyncio.sleep(0.02)
        await asyncio.sleep(1)
        channel.send("there")
        while not channel.poll():
            await asyncio.sleep(0.05)
        ended = Told(told.answers, told.refusal_s, told.before_body, told.advised, told.open)
        for member in members:
            member.cancel()
        await asyncio.gather(*members, return_exceptions=True)
        return ended

    channel.send(asyncio.run(run()))


class Crowd:
    """A crowd that is there until it is told to go."""

    def __init__(self, kind: str, where: Where):
        self._channel, far = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("fork").Process(target=_crowd, args=(kind, where, far), daemon=True)
        self._process.start()
        assert self._channel.recv() == "there"

    def go(self) -> Any:
        """Let all of them leave at once; what they were told."""
        self._channel.send("go")
        told = self._channel.recv()
        self._process.join(30)
        return told
