"""Which peers of a daemon are down, and the moment when one is back.

A peer that does not answer is left alone: work for it waits, instead of running into one timeout after the other. It is
asked every ``PROBE_S`` whether it is back; then whoever waits for it is told at once, whatever back-off the waiting work
has reached.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

from keelstore.common import concurrency
from keelstore.common.errors import BackendError
from keelstore.common.headers import Headers
from keelstore.common.http import Response

Address = tuple[str, int]
PROBE_S: Final = 1.0
PROBE_TIMEOUT_S: Final = 2.0
MAX_PEERS: Final = 4096  # of which it is remembered that they are down


class Peers:
    """``backend`` has ``call``; ``on_return(address)`` is called, in a green thread, when a peer answers again."""

    def __init__(self, backend: Any, now: Callable[[], float], on_return: Callable[[Address], None] | None = None):
        self._backend, self._now, self.on_return = backend, now, on_return
        self._down: dict[Address, float] = {}  # since when

    def call(self, address: Address, method: str, path: str, headers: Headers, *, query: str = "", body: bytes = b"",
             timeout_s: float) -> Response:
        """As ``Backend.call``, with what it tells about the peer. Raises BackendError, at once for one that is down."""
        if address in self._down:
            raise BackendError("is down", address)
        try:
            response: Response = self._backend.call(address, method, path, headers, query, body, timeout_s=timeout_s)
        except BackendError:
            if len(self._down) < MAX_PEERS:
                self._down.setdefault(address, self._now())
            raise
        return response

    def is_down(self, address: Address) -> bool:
        return address in self._down

    @property
    def down(self) -> dict[Address, float]:
        """The peers that are down, since when."""
        return dict(self._down)

    def forget(self) -> None:
        """Try them all anew."""
        self._down.clear()

    def keep(self, addresses: Collection[Address]) -> None:
        """Only these are peers now: what waits for another need not wait longer."""
        for address in [address for address in self._down if address not in addresses]:
            del self._down[address]
            if self.on_return is not None:
                self.on_return(address)

    def probe(self) -> None:
        """Ask every peer that is down whether it is back."""
        tasks = [concurrency.spawn(self._probe_one, address) for address in list(self._down)]
        for task in tasks:
            task.wait()

    def _probe_one(self, address: Address) -> None:
        try:
            self._backend.call(address, "OPTIONS", "/", Headers(), timeout_s=PROBE_TIMEOUT_S).drain()
        except BackendError:
            return
        if self._down.pop(address, None) is not None and self.on_return is not None:
            self.on_return(address)

    def watch(self) -> None:
        """Probe as long as any is down; never returns."""
        while True:
            concurrency.sleep(PROBE_S)
            if self._down:
                self.probe()
