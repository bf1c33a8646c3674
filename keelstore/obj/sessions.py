"""Sessions with peers that take objects: one at a time with each device, few with each server, fewer while it is busy."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from keelstore.common import concurrency
from keelstore.common.errors import BackendError
from keelstore.common.headers import Headers
from keelstore.common.peers import Peers
from keelstore.common.ring.ring import Node
from keelstore.common.work import Throttle
from keelstore.obj.ssync.sender import Outcome

AT_ONCE: Final = 2  # with one server; it has few places, and others come, too
MAX_PAUSE_S: Final = 5.0


class Sessions:
    def __init__(self, peers: Peers, throttle: Throttle, log: logging.Logger, now: Callable[[], float],
                 probe_timeout_s: float):
        self._peers, self._throttle, self._log, self._now = peers, throttle, log, now
        self._probe_timeout_s = probe_timeout_s
        self._talking: dict[object, concurrency.Semaphore] = {}
        self.objects_sent = self.bytes_sent = 0

    def run(self, node: Node, what: str, session: Callable[[], Outcome]) -> Outcome:
        """Have a session with a peer when it is its turn. ``what``: for the log, should it fail."""
        if self._peers.is_down(node.replication_address):
            return Outcome(node, reason="is down")
        place = self._talking.setdefault(node.key, concurrency.Semaphore())
        server = self._talking.setdefault(node.replication_address, concurrency.Semaphore(AT_ONCE))
        with place, server:
            outcome = session()
            if outcome.sent:
                self._pause(node, outcome)
        self.objects_sent += outcome.sent
        self.bytes_sent += outcome.sent_bytes
        if not outcome.is_success:
            level = logging.INFO if outcome.status == 503 else logging.WARNING
            self._log.log(level, "%s cannot be brought to %s: %s", what, node.key, outcome.reason)
            if not outcome.status:
                self._is_there(node)
        return outcome

    def _is_there(self, node: Node) -> None:
        """Ask a peer that broke off whether it is there at all, so that ``peers`` knows."""
        try:
            self._peers.call(node.replication_address, "OPTIONS", "/", Headers(), timeout_s=self._probe_timeout_s).drain()
        except BackendError:
            pass

    def _pause(self, node: Node, outcome: Outcome) -> None:
        """A peer whose writes take longer than they do in peace has clients to serve: leave it half of the time."""
        throttle = self._throttle
        throttle.note(node.key, outcome.took_s / outcome.sent, self._now())
        if throttle.allowed(node.key) < throttle.most:
            concurrency.sleep(min(outcome.took_s, MAX_PAUSE_S))
