"""Backend calls between nodes that come late, twice, or never, or whose answers do; and streams that break.

A node reaches itself without faults. What is lost is found out as in reality: after the caller's patience.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from keelstore.common import concurrency, localcall
from keelstore.common.backend import RowTaker
from keelstore.common.duplex import Duplex, local_duplex
from keelstore.common.errors import BackendError, BackendTimeout
from keelstore.common.headers import Headers
from keelstore.common.http import Response
from keelstore.common.localcall import LocalUpload
from keelstore.common.two_phase import Archive, Commit
from test.simulation import lives

Address = tuple[str, int]
PATIENCE_S = 10.0  # where a caller has no bound


class Weather:
    """Shares of messages that suffer, and links that are cut. The harness changes it, and clears it at the end."""

    def __init__(self, chance: random.Random):
        self.chance = chance
        self.lost = self.unanswered = self.doubled = self.slow = self.broken = 0.0
        self.uncommitted = 0.0  # of uploads in two phases, the second of which does not arrive
        self.latency_s = 0.001
        self.cut: set[tuple[int, int]] = set()  # (from, to): nothing passes
        self.trace: Callable[[str], None] | None = None

    def calm(self) -> None:
        self.lost = self.unanswered = self.doubled = self.slow = self.broken = self.uncommitted = 0.0
        self.cut.clear()

    def says(self, share: float) -> bool:
        return share > 0 and self.chance.random() < share


class Served:
    """A role of a node, in the life in which its app was made."""

    __slots__ = ("app", "life")

    def __init__(self, life: lives.Life, app: Any):
        self.life, self.app = life, app

    def __call__(self, environ: Any, start_response: Any) -> Any:
        if self.life.is_dead:
            raise ConnectionResetError
        return lives.run_as(self.life, self.app, environ, start_response)


class Network:
    def __init__(self, weather: Weather):
        self.weather = weather
        self.served: dict[Address, Served] = {}


the: Network | None = None  # of the seed that this process runs


class SimBackend:
    """As ``keelstore.common.backend.Backend``, from one node."""

    def __init__(self, network: Network, node: int):
        self._network, self._node = network, node

    # -- a message's way -----------------------------------------------------------------------------------------------

    def _reach(self, address: Address, what: str, patience_s: float) -> Served:
        """Who answers there. Raises BackendError, BackendTimeout."""
        lives.check()
        weather = self._network.weather
        found = self._network.served.get(address)
        if found is not None and found.life.node == self._node:
            return found
        target = found.life.node if found is not None else -1
        if (self._node, target) in weather.cut or weather.says(weather.lost):
            self._wait(patience_s)
            raise BackendTimeout(f"{what}: lost", node=address)
        if weather.says(weather.slow):
            self._wait(weather.chance.random() * 3.0)
        else:
            self._wait(weather.chance.random() * weather.latency_s)
        found = self._network.served.get(address)
        if found is None or found.life.is_dead:
            raise BackendError(f"{what}: connection refused", node=address)
        return found

    @staticmethod
    def _wait(seconds: float) -> None:
        concurrency.sleep(seconds)
        lives.check()

    def _heard(self, served: Served, address: Address, what: str, patience_s: float) -> None:
        """The way of the answer. Raises BackendError, BackendTimeout, Crash."""
        lives.check()
        if served.life.is_dead:
            raise BackendError(f"{what}: connection reset", node=address)
        weather = self._network.weather
        if served.life.node == self._node:
            return
        if (served.life.node, self._node) in weather.cut or weather.says(weather.unanswered):
            self._wait(patience_s)
            raise BackendTimeout(f"{what}: the answer is lost", node=address)
        if weather.says(weather.slow):
            self._wait(weather.chance.random() * 2.0)

    # -- as Backend ----------------------------------------------------------------------------------------------------

    def call(self, address: Address, method: str, path: str, headers: Headers, query: str = "", body: bytes = b"",
             timeout_s: float | None = 10.0, digest: Callable[[], str] | None = None) -> Response:
        patience_s = PATIENCE_S if timeout_s is None else timeout_s
        served = self._reach(address, f"{method} {path}", patience_s)
        is_far = served.life.node != self._node
        weather = self._network.weather
        if is_far and weather.says(weather.doubled):
            concurrency.spawn(self._again, served, address, method, path, headers, query, body)
        try:
            response = localcall.call(served, address, method, path, headers, query, body, timeout_s, None if is_far else digest)
        except lives.Crash:
            lives.check()
            raise BackendError(f"{method} {path}: connection reset", node=address) from None
        try:
            self._heard(served, address, f"{method} {path}", patience_s)
        except BaseException:
            response.close()
            raise
        if is_far and response.app_iter is not None and weather.says(weather.broken):
            response.app_iter = _Broken(response.app_iter, weather.chance)
        return response

    def row_taker(self, address: Address, method: str, path: str, headers: Headers) -> RowTaker | None:
        lives.check()
        taker: RowTaker | None = self._network.served[address].app.row_taker(method, path, headers) if self.is_local(address) else None
        return taker

    def together(self, address: Address) -> Any:
        lives.check()
        return self._network.served[address].app.together if self.is_local(address) else None

    def _again(self, served: Served, address: Address, method: str, path: str, headers: Headers, query: str,
               body: bytes) -> None:
        """The same message comes once more, some time later; nobody hears the answer."""
        headers = Headers(headers)
        self._wait(self._network.weather.chance.random() ** 3 * 20.0)
        if served.life.is_dead:
            return
        try:
            localcall.call(served, address, method, path, headers, query, body, PATIENCE_S, None).close()
        except BackendError:
            pass

    def upload(self, address: Address, path: str, headers: Headers, query: str = "", method: str = "PUT",
               length: int | None = None, timeout_s: float | None = 10.0,
               digest: Callable[[], str] | None = None) -> SimUpload:
        served = self._reach(address, f"{method} {path}", timeout_s or PATIENCE_S)
        inner = LocalUpload(served, address, method, path, headers, query, length, timeout_s,
                            digest if self.is_local(address) else None)
        return SimUpload(self, served, inner, f"{method} {path}")

    def duplex(self, address: Address, method: str, path: str, headers: Headers, timeout_s: float = 10.0) -> Duplex:
        served = self._reach(address, f"{method} {path}", timeout_s)
        inner = local_duplex(served, address, method, path, headers, timeout_s)
        try:
            self._heard(served, address, f"{method} {path}", timeout_s)
        except BaseException:
            inner.close()
            raise
        return inner if served.life.node == self._node else SimDuplex(self, served, inner)

    def is_local(self, address: Address) -> bool:
        found = self._network.served.get(address)
        return found is not None and found.life.node == self._node

    def close(self) -> None:
        pass


class _Broken:
    """A body that breaks off."""

    def __init__(self, parts: Any, chance: random.Random):
        self._parts, self._left = parts, chance.randint(0, 1)

    def __iter__(self) -> Iterator[bytes]:
        for part in self._parts:
            if not self._left:
                raise BackendError("connection reset within a body")
            self._left -= 1
            yield part

    def close(self) -> None:
        close = getattr(self._parts, "close", None)
        if close is not None:
            close()


class SimUpload:
    def __init__(self, backend: SimBackend, served: Served, inner: LocalUpload, what: str):
        self._backend, self._served, self._inner, self._what = backend, served, inner, what
        self.address = inner.address
        self._is_second = False

    @property
    def continue_headers(self) -> Headers:
        return self._inner.continue_headers

    def _heard(self, timeout_s: float | None) -> None:
        self._backend._heard(self._served, self.address, self._what, timeout_s or PATIENCE_S)

    def ready(self, timeout_s: float | None = None) -> Response | None:
        found = self._inner.ready(timeout_s)
        self._heard(timeout_s)
        return found

    def send(self, data: bytes) -> None:
        self._alive()
        self._inner.send(data)

    def send_whole(self, body: Archive | Commit) -> None:
        self._alive()
        if self._served.life.node == self._backend._node:
            self._inner.send_whole(body)
        else:
            self._inner.send(body.encoded())

    def end_body(self) -> None:
        self._alive()
        self._inner.end_body()
        self._is_second = True

    def _alive(self) -> None:
        lives.check()
        if self._served.life.is_dead:
            self._inner.abort()
            raise BackendError(f"{self._what}: connection reset", node=self.address)

    def finish(self, timeout_s: float | None = None) -> Response:
        weather = self._backend._network.weather
        self._alive()
        if self._served.life.node != self._backend._node and (
                (self._backend._node, self._served.life.node) in weather.cut or weather.says(weather.lost)
                or (self._is_second and weather.says(weather.uncommitted))):
            self._inner.abort()
            self._backend._wait(timeout_s or PATIENCE_S)
            raise BackendTimeout(f"{self._what}: lost", node=self.address)
        found = self._inner.finish(timeout_s)
        self._heard(timeout_s)
        return found

    def abort(self) -> None:
        self._inner.abort()


class SimDuplex(Duplex):
    """Breaks at any message."""

    def __init__(self, backend: SimBackend, served: Served, inner: Duplex):
        super().__init__(inner.address, inner._what)
        self._backend, self._served, self._inner = backend, served, inner
        self.status, self.headers = inner.status, inner.headers

    def _pass(self, wait_s: float) -> None:
        lives.check()
        weather = self._backend._network.weather
        if self._served.life.is_dead or weather.says(weather.broken):
            self._inner.close()
            raise BackendError(f"{self._what}: connection reset", node=self.address)
        ends = (self._backend._node, self._served.life.node)
        if ends in weather.cut or ends[::-1] in weather.cut or weather.says(weather.lost / 4):
            self._inner.close()
            self._backend._wait(wait_s)
            raise BackendTimeout(f"{self._what}: lost", node=self.address)

    def send(self, *pieces: bytes) -> None:
        self._pass(10.0)
        self._inner.send(*pieces)

    def end(self) -> None:
        self._inner.end()

    def has_spoken(self) -> bool:
        return self._inner.has_spoken()

    def close(self) -> None:
        self._inner.close()

    def readline(self, limit: int, timeout_s: float) -> bytes:
        self._pass(timeout_s)
        found = self._inner.readline(limit, timeout_s)
        self._pass(timeout_s)
        return found

    def read(self, limit: int, timeout_s: float) -> bytes:
        self._pass(timeout_s)
        return self._inner.read(limit, timeout_s)
