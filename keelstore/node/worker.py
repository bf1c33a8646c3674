"""One worker process: serves every role of its process group until it is told to stop, or its supervisor is gone.

SIGTERM, SIGINT: stop accepting, give requests ``drain_timeout_s``, end. SIGHUP, SIGUSR1: stop accepting, finish what runs,
however long (the supervisor bounds it), end. When the supervisor ends without a word the kernel sends SIGTERM.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Any

from keelstore.common import concurrency, metrics, sockets
from keelstore.common.backend import serve_locally
from keelstore.common.daemon import die_with_parent, set_priority
from keelstore.common.httpserver import Server
from keelstore.common.wsgi import STORAGE_KINDS, Service, reached_as
from keelstore.node.listeners import Counts, SharedListener
from keelstore.node.roles import Program

FAST, GRACEFUL = (signal.SIGTERM, signal.SIGINT), (signal.SIGHUP, signal.SIGUSR1)
_GRACE_S = 5  # after the drain, before the kernel ends a worker that does not end by itself
_ORPHAN_DRAIN_S = 1.0  # nobody restarts an orphan, and its ports are wanted

Bound = Sequence[tuple[Service, tuple[str, int], socket.socket]]


def serve(program: Program, bound: Bound, counts: Counts, number: int, ready_fd: int, parent: int | None) -> None:
    """Run a worker to its end. ``ready_fd`` is told when it serves; ``parent`` None: there is no supervisor."""
    concurrency.renew_hub()
    signals = _catch_signals()
    if parent is not None:
        die_with_parent(parent)
    problem = set_priority(program.process)
    if problem:
        program.logger.warning("priority not as configured: %s", problem)
    counts.reset(number)
    metrics.take_row(number)
    if program.background is not None:
        if parent is None:
            program.background.start()  # everything in this one process
        else:
            program.background.attach()
    servers = []
    for index, (service, address, sock) in enumerate(bound):
        listener: Any = sock if service.ssl_context else SharedListener(sock, counts, number, index)
        if service.kind in STORAGE_KINDS:
            for known_as in reached_as(address):
                serve_locally(known_as, service.app)
        meter = None if service.kind in STORAGE_KINDS else service.meter  # those count for themselves
        servers.append(Server(listener, service.app, service.connections, service.logger, service.ssl_context, meter,
                              service.kind in STORAGE_KINDS))
    for server in servers:
        concurrency.spawn(_serve, server, program)
    if ready_fd >= 0:
        os.write(ready_fd, b"ready")
        os.close(ready_fd)
    told = concurrency.Queue(None)  # fed by our own signals only
    concurrency.spawn(_read_signals, signals, told)
    _wait_and_drain(program, servers, [sock for _, _, sock in bound], told, parent)


def _serve(server: Server, program: Program) -> None:
    server.serve_forever()
    if not server.is_stopping:  # a worker that no longer accepts must end, to be replaced
        program.logger.error("accepting connections failed")
        os._exit(1)


def _catch_signals() -> socket.socket:
    """Signals as bytes on a socket, which a green thread can wait for."""
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    _kept.append(writer)
    for number in (*FAST, *GRACEFUL):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    return reader


_kept: list[Any] = []  # what must live as long as the process


def _read_signals(reader: socket.socket, told: concurrency.Queue) -> None:
    stream = sockets.Stream(reader, None)
    while True:
        for number in stream.receive(64):
            told.put(number)


def _stop_accepting(servers: Sequence[Server], sockets: Sequence[socket.socket]) -> None:
    for server in servers:
        server.stop_accepting()
    for sock in sockets:  # else connections would queue up at a socket that nobody accepts from
        sock.close()


def _wait_and_drain(program: Program, servers: Sequence[Server], sockets: Sequence[socket.socket],
                    told: concurrency.Queue, parent: int | None) -> None:
    draining = False
    while True:
        event = told.get()
        if event == 0:
            return
        if event in FAST:
            orphaned = parent is not None and os.getppid() != parent
            limit = _ORPHAN_DRAIN_S if orphaned else program.drain_timeout_s
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(int(limit) + _GRACE_S)  # even if a disk call never returns
            _stop_accepting(servers, sockets)
            tasks = [concurrency.spawn(server.drain, limit) for server in servers]
            for task in tasks:
                with contextlib.suppress(Exception):
                    task.wait()
            return
        if event in GRACEFUL and not draining:
            draining = True
            _stop_accepting(servers, sockets)
            concurrency.spawn(_drain_all, servers, program.stale_worker_timeout_s, told)


def _drain_all(servers: Sequence[Server], limit_s: float, told: concurrency.Queue) -> None:
    for task in [concurrency.spawn(server.drain, limit_s) for server in servers]:
        with contextlib.suppress(Exception):
            task.wait()
    told.put(0)


def leave(status: int) -> None:
    """End a forked child at once: what is registered to run at exit belongs to the parent."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)
