"""All daemons of a node in one process, as cooperating tasks.

The supervisor forks it like a worker, restarts it when it ends, and stops it with a signal. It shares the code and, through
the roles' applications that were loaded before the fork, calls the node's own devices without a socket. Hints of the servers
arrive on a channel that was made before the fork (``common/events.py``).

A signal ends it at once: whatever a daemon does, it may be cut off at any point, and the next one goes on from what is on
disk. A daemon whose loop ends with an error is started again; so the others never suffer from it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Sequence
from typing import Any

from keelstore.common import concurrency, events, metrics, sockets
from keelstore.common.backend import serve_locally
from keelstore.common.daemon import die_with_parent
from keelstore.common.daemon_frame import Daemon
from keelstore.common.errors import KeelstoreError
from keelstore.common.wsgi import STORAGE_KINDS, Service, reached_as
from keelstore.node.daemons import Parts, Wanted
from keelstore.node.wishes import Door, Wish

_AGAIN_S = 10.0  # after a daemon could not be made, or its loop ended
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


class Background:
    """The daemons of a node. ``open`` before forking, then ``run`` in the process that is to have them."""

    def __init__(self, wanted: Sequence[Wanted], services: Sequence[Service], logger: logging.Logger, nice: int = 0,
                 socket_path: str | None = None):
        """``socket_path``: where operators ask something of the daemons."""
        self.socket_path = socket_path
        self.wanted, self.services, self.log, self.nice = list(wanted), list(services), logger, nice
        self.channel: events.Channel | None = None
        self.daemons: dict[str, Daemon] = {}

    def open(self) -> None:
        if self.channel is None:
            self.channel = events.Channel()

    def attach(self) -> None:
        """In a worker: its servers' hints come to us."""
        if self.channel is not None:
            self.channel.attach()

    def run(self, parent: int) -> None:
        """The life of the process: until it is told to end, or the supervisor does."""
        concurrency.renew_hub()
        for number in _SIGNALS:
            signal.signal(number, lambda *_: os._exit(0))
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        die_with_parent(parent)
        metrics.take_row(-1)
        if self.nice:
            with contextlib.suppress(OSError):
                os.nice(self.nice)
        for service in self.services:
            if service.kind in STORAGE_KINDS:
                for address in service.addresses:
                    for known_as in reached_as(address):
                        serve_locally(known_as, service.app)
        self.start()
        concurrency.Event().wait()

    def start(self) -> None:
        """Start every daemon as a task of this process."""
        self.attach()
        parts = Parts()
        for what in self.wanted:
            concurrency.spawn(self._keep_running, parts, what)
        if self.channel is not None:
            concurrency.spawn(self._read_hints, self.channel.receiver)
        if self.socket_path is not None:
            door = Door(self.socket_path, self._ask)
            try:
                concurrency.spawn(door.serve, door.open())
            except OSError as error:
                self.log.warning("%s cannot be opened, so the daemons cannot be asked for anything: %s", door.path, error)
        self.log.info("daemons: %s", ", ".join(what.name for what in self.wanted))

    def _ask(self, wish: Wish) -> list[str]:
        """Have the daemons that an operator names look now; those that do. Raises ValueError when none of them is here, or
        none can.
        """
        asked = [self.daemons[name] for name in wish.daemons if name in self.daemons]
        if not asked:
            raise ValueError(f"this node runs no {' or '.join(wish.daemons)}")
        told, refused = [], []
        for daemon in asked:
            try:
                daemon.ask(wish.only)
                told.append(daemon.name)
            except ValueError as error:
                refused.append(str(error))
        if not told:
            raise ValueError("; ".join(refused))
        for reason in refused:
            self.log.warning("not as was asked: %s", reason)
        return told

    def _keep_running(self, parts: Parts, what: Wanted) -> None:
        while True:
            try:
                daemon = self.daemons[what.name] = parts.make(what)
                daemon.run_forever()
            except KeelstoreError as error:
                self.log.error("%s cannot run, trying again in %.0f s: %s", what.name, _AGAIN_S, error)
            except Exception:
                self.log.exception("%s has ended, starting it again in %.0f s", what.name, _AGAIN_S)
            concurrency.sleep(_AGAIN_S)

    def _read_hints(self, receiver: Any) -> None:
        stream = sockets.Stream(receiver, None)
        while True:
            try:
                kind, fields = events.parse(stream.receive(65536))
            except ValueError:
                continue
            for daemon in self.daemons.values():
                if kind in daemon.hints:
                    try:
                        daemon.on_hint(kind, fields)
                    except Exception:
                        self.log.exception("%s: a hint of %s failed", daemon.name, kind)
