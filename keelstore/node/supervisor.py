"""The supervisor of a process group: binds, forks workers, replaces those that die, stops and reloads them.

The pipelines are loaded before the fork, so that all workers share the memory of code and rings. The supervisor itself
never enters the event loop: it waits for signals, in order, with ``sigtimedwait``.

- SIGTERM, SIGINT: all workers stop, finishing requests within ``drain_timeout``; a second one ends them at once.
- SIGHUP, SIGUSR1: reload. The configuration is tried in a process of its own; if it loads, the supervisor executes itself
  anew (same pid, same sockets), starts workers of the new code and configuration and, when they serve, lets the old ones
  finish what they have for up to ``stale_worker_timeout``. No connection is refused meanwhile.

``servers_per_port`` of the object server is not supported: all workers of a node serve all its devices, and disk calls run on
threads of their device, so one slow disk does not hold up the others.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from keelstore.common import daemon
from keelstore.common.httpserver import MAX_CLIENTS
from keelstore.common.logs import NOTICE
from keelstore.node import descriptors, listeners, worker
from keelstore.node.roles import Program

INHERITED = "KEELSTORE_SUPERVISOR"  # environment variable: what an executed-anew supervisor takes over
_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD}
_READY_S = 60.0  # for a new worker to serve
_TRY_S = 120.0  # for a new configuration to load
_YOUNG_S = 5.0  # a worker that dies younger than this is restarted with delay
_GARBAGE = (20_000, 10, 10)  # a request makes hundreds of objects and no cycles: at the usual 700 each pays for a collection
_DELAYS_S = (0.0, 0.5, 1, 2, 4, 8, 16, 30)


@dataclass
class _Slot:
    """A place for a worker."""

    number: int
    pid: int = 0
    started: float = 0.0
    failures: int = 0
    due: float | None = None  # when to start it again
    ready_fd: int = -1  # its end of the pipe on which it says that it serves


@dataclass
class _Old:
    """A worker from before a reload."""

    deadline: float
    told: bool = False


@dataclass
class Inherited:
    """What a supervisor hands to itself over an exec."""

    listeners: dict[tuple[str, int], int] = field(default_factory=dict)
    old: dict[int, float] = field(default_factory=dict)
    lock: int = -1

    @classmethod
    def take(cls) -> Inherited:
        """From the environment, which no longer has it afterwards."""
        text = os.environ.pop(INHERITED, "")
        if not text:
            return cls()
        value = json.loads(text)
        if value["pid"] != os.getpid():
            return cls()
        for fd in (*(fd for _, _, fd in value["listeners"]), value["lock"]):
            if fd >= 0:
                os.set_inheritable(fd, False)
        return cls({(ip, port): fd for ip, port, fd in value["listeners"]},
                   {int(pid): deadline for pid, deadline in value["old"].items()}, value["lock"])


class Supervisor:
    """``command`` is what starts this program again, for a reload; with ``--test-config`` added it tries it."""

    def __init__(self, program: Program, command: Sequence[str], inherited: Inherited | None = None):
        self.program, self.command = program, list(command)
        self.log = program.logger
        self._inherited = inherited or Inherited()
        self._bound: list[tuple[Any, tuple[str, int], socket.socket]] = []
        self._slots: list[_Slot] = []
        self._background: _Slot | None = _Slot(-1) if program.background is not None else None
        self._old = {pid: _Old(deadline) for pid, deadline in self._inherited.old.items()}
        self._lock: daemon.ProcessLock | None = None
        self._trial: subprocess.Popen[bytes] | None = None
        self._trial_output: IO[bytes] | None = None
        self._trial_deadline = 0.0
        self._stop_signals = 0
        self._serves = False

    # -- life ----------------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Serve until stopped; gives the exit status. Raises BindError, AlreadyRunning, ConfigError before it serves."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        self._take_lock()
        try:
            self._bind()
        except listeners.Stopped:
            return 0
        daemon.drop_privileges(self.program.process.user)
        limit = daemon.raise_limits(descriptors.wanted(self.program))
        self.program = descriptors.fit(self.program, limit)
        for service in self.program.services:
            if (service.connections.max_clients or 0) < MAX_CLIENTS:
                self.log.info("%s: at most %d connections of a worker", service.name, service.connections.max_clients)
        if self.program.background is not None:
            self.program.background.open()
        self._counts = listeners.Counts(max(1, self.program.workers), len(self._bound))
        gc.collect()
        gc.freeze()  # so that collections in the workers do not touch, and so copy, the pages that all share
        gc.set_threshold(*_GARBAGE)
        if self.program.workers == 0:
            return self._run_alone()
        self._slots = [_Slot(number) for number in range(self.program.workers)]
        for slot in self._slots:
            self._start(slot)
        if not self._wait_until_ready() and not self._old:
            self._stop_all(signal.SIGKILL)
            return 1
        if self._background is not None:
            self._start_background(self._background)
        while True:
            self._write_state()
            received = signal.sigtimedwait(_SIGNALS, self._time_to_wait())
            number = received.si_signo if received else 0
            if number in (signal.SIGTERM, signal.SIGINT):
                return self._stop()
            if number in (signal.SIGHUP, signal.SIGUSR1):
                self._try_configuration()
            self._reap()
            self._do_what_is_due()

    def _run_alone(self) -> int:
        self._announce()
        worker.serve(self.program, self._bound, self._counts, 0, -1, None)
        return 0

    def _take_lock(self) -> None:
        path = self.program.pid_file
        if path is None:
            return
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if self._inherited.lock >= 0:
            self._lock = daemon.ProcessLock(path, self._inherited.lock)
        else:
            self._lock = daemon.ProcessLock.take(path)

    def _bind(self) -> None:
        left = dict(self._inherited.listeners)
        for service in self.program.services:
            options = service.options
            for address in service.addresses:
                fd = left.pop(address, -1)
                if fd >= 0:
                    sock = listeners.adopt(fd)
                    sock.listen(options.backlog)
                    listeners.keep_alive(sock, options.keep_idle)
                else:
                    sock = listeners.bind(address, options.backlog, options.keep_idle, options.bind_timeout)
                self._bound.append((service, address, sock))
        for fd in left.values():
            os.close(fd)  # addresses that the new configuration no longer has

    def _announce(self) -> None:
        self._serves = True
        daemon.notify("READY=1")
        self.log.log(NOTICE, "serving %s with %d workers", ", ".join(
            f"{service.kind} on {address[0]}:{address[1]}" for service, address, _ in self._bound), len(self._slots))

    # -- workers -------------------------------------------------------------------------------------------------------

    def _start(self, slot: _Slot) -> None:
        reader, writer = os.pipe()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.close(reader)
                worker.serve(self.program, self._bound, self._counts, slot.number, writer, parent)
                status = 0
            except BaseException:  # the child must not run on in the parent's code
                self.log.exception("worker failed")
            finally:
                worker.leave(status)
        os.close(writer)
        slot.pid, slot.started, slot.due, slot.ready_fd = pid, time.monotonic(), None, reader

    def _start_background(self, slot: _Slot) -> None:
        """Fork the process of the node's daemons."""
        assert self.program.background is not None
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                for _, _, sock in self._bound:
                    sock.close()
                self.program.background.run(parent)
            except BaseException:
                self.log.exception("the daemons' process failed")
            finally:
                worker.leave(1)
        slot.pid, slot.started, slot.due = pid, time.monotonic(), None

    def _wait_until_ready(self) -> bool:
        """Until every slot serves. False: one of them ended, or did not serve in time."""
        deadline = time.monotonic() + _READY_S
        for slot in self._slots:
            if not _says_ready(slot.ready_fd, deadline):
                self.log.error("worker %d did not come up", slot.pid)
                return False
            os.close(slot.ready_fd)
            slot.ready_fd = -1
        self._announce()
        return True

    def _check_ready(self) -> None:
        """After a start that failed at first: announce, and let the old workers go, once all slots serve."""
        for slot in self._slots:
            if slot.ready_fd >= 0 and slot.pid and _says_ready(slot.ready_fd, 0):
                os.close(slot.ready_fd)
                slot.ready_fd = -1
        if not self._serves and all(slot.pid and slot.ready_fd < 0 for slot in self._slots):
            self._announce()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._on_exit(pid, status)

    def _on_exit(self, pid: int, status: int) -> None:
        code = os.waitstatus_to_exitcode(status)
        if self._trial is not None and pid == self._trial.pid:
            self._trial.returncode = code
            self._on_trial_end(code)
            return
        if self._old.pop(pid, None) is not None:
            self.log.info("old worker %d has finished", pid)
            return
        for slot in self._everybody():
            if slot.pid != pid:
                continue
            slot.pid = 0
            if slot.number >= 0:
                self._counts.reset(slot.number, alive=False)
            if slot.ready_fd >= 0:
                os.close(slot.ready_fd)
                slot.ready_fd = -1
            young = time.monotonic() - slot.started < _YOUNG_S
            slot.failures = slot.failures + 1 if young else 0
            delay = _DELAYS_S[min(slot.failures, len(_DELAYS_S) - 1)]
            slot.due = time.monotonic() + delay
            how = f"signal {-code}" if code < 0 else f"status {code}"
            what = "worker" if slot.number >= 0 else "the daemons' process"
            self.log.warning("%s %d ended (%s), starting another in %.1f s", what, pid, how, delay)

    def _everybody(self) -> list[_Slot]:
        return self._slots if self._background is None else [*self._slots, self._background]

    def _time_to_wait(self) -> float:
        moments = [slot.due for slot in self._everybody() if slot.due is not None]
        moments += [old.deadline for old in self._old.values()]
        if self._trial is not None:
            moments.append(self._trial_deadline)
        if any(slot.ready_fd >= 0 for slot in self._slots) or (self._serves and
                                                               any(not old.told for old in self._old.values())):
            moments.append(time.monotonic() + 0.1)
        return max(0.0, min(moments, default=time.monotonic() + 3600) - time.monotonic())

    def _do_what_is_due(self) -> None:
        now = time.monotonic()
        for slot in self._everybody():
            if slot.due is not None and slot.due <= now:
                if slot.number >= 0:
                    self._start(slot)
                else:
                    self._start_background(slot)
        self._check_ready()
        for pid, old in list(self._old.items()):
            if self._serves and not old.told:
                old.told = True
                self._signal(pid, signal.SIGHUP)
            if old.deadline <= now:
                self.log.warning("old worker %d has not finished in time, killing it", pid)
                old.deadline = now + 60
                self._signal(pid, signal.SIGKILL)
        if self._trial is not None and self._trial_deadline <= now:
            self._trial.kill()

    def _signal(self, pid: int, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # our child: its pid is not reused before we reap it
            os.kill(pid, number)

    # -- stop and reload -----------------------------------------------------------------------------------------------

    def _stop(self) -> int:
        daemon.notify("STOPPING=1")
        self.log.log(NOTICE, "stopping")
        for _, _, sock in self._bound:
            sock.close()
        if self._trial is not None:
            self._trial.kill()
        self._stop_all(signal.SIGTERM)
        if self._lock is not None:
            self._write_state()
        return 0

    def _stop_all(self, number: int) -> None:
        left = {slot.pid for slot in self._everybody() if slot.pid} | set(self._old)
        for slot in self._everybody():
            slot.pid = 0
        self._old.clear()
        deadline = time.monotonic() + self.program.drain_timeout_s + 2
        for pid in left:
            self._signal(pid, number)
        while left:
            received = signal.sigtimedwait(_SIGNALS, max(0.0, min(0.5, deadline - time.monotonic())))
            if (received and received.si_signo in (signal.SIGTERM, signal.SIGINT)) or time.monotonic() >= deadline:
                for pid in left:
                    self._signal(pid, signal.SIGKILL)
                deadline = time.monotonic() + 60
            for pid in list(left):
                try:
                    if os.waitpid(pid, os.WNOHANG)[0] == pid:
                        left.discard(pid)
                except ChildProcessError:
                    left.discard(pid)

    def _try_configuration(self) -> None:
        """Load code and configuration in another process, so that what cannot be loaded never replaces what serves."""
        if self._trial is not None:
            return
        self.log.log(NOTICE, "reload: trying the configuration")
        self._trial_output = tempfile.TemporaryFile()
        self._trial = subprocess.Popen([*self.command, "--test-config"], stdin=subprocess.DEVNULL,
                                       stdout=self._trial_output, stderr=subprocess.STDOUT)
        self._trial_deadline = time.monotonic() + _TRY_S

    def _on_trial_end(self, code: int) -> None:
        self._trial = None
        assert self._trial_output is not None
        self._trial_output.seek(0)
        lines = self._trial_output.read().decode("utf-8", "replace").strip().splitlines()
        self._trial_output.close()
        if code != 0:
            self.log.error("reload refused, the workers run on as they are: %s", lines[-1] if lines else f"status {code}")
            return
        self._execute()

    def _execute(self) -> None:
        deadline = time.monotonic() + self.program.stale_worker_timeout_s
        old = {slot.pid: deadline for slot in self._everybody() if slot.pid}
        old.update((pid, entry.deadline) for pid, entry in self._old.items())
        fds = [sock.fileno() for _, _, sock in self._bound]
        lock = self._lock.fd if self._lock else -1
        for fd in (*fds, *((lock,) if lock >= 0 else ())):
            os.set_inheritable(fd, True)
        os.environ[INHERITED] = json.dumps({
            "pid": os.getpid(), "lock": lock, "old": old,
            "listeners": [[*address, fd] for (_, address, _), fd in zip(self._bound, fds)]})
        daemon.notify("RELOADING=1")
        self.log.log(NOTICE, "reload: starting anew")
        try:
            os.execv(self.command[0], self.command)
        except OSError as error:
            os.environ.pop(INHERITED, None)
            self.log.error("reload failed, the workers run on as they are: %s", error)

    # -- state ---------------------------------------------------------------------------------------------------------

    def _write_state(self) -> None:
        """For ``status``: who we are and who works for us. Written when it changes."""
        if self._lock is None:
            return
        workers = [slot.pid for slot in self._slots if slot.pid]
        state = {
            "pid": os.getpid(), "started": daemon.start_time(os.getpid()), "name": self.program.name,
            "serves": self._serves, "wanted_workers": self.program.workers,
            "workers": [[pid, daemon.start_time(pid)] for pid in workers],
            "old_workers": [[pid, daemon.start_time(pid)] for pid in self._old],
            "background": [[pid, daemon.start_time(pid)] for pid in (self._background.pid,) if pid]
            if self._background is not None else [],
            "roles": [[service.kind, *address] for service, address, _ in self._bound],
        }
        if state != getattr(self, "_state", None):
            self._state = state
            with contextlib.suppress(OSError):  # the directory may be gone: serving matters more
                daemon.write_state(self._lock.path.removesuffix(".pid") + ".json", state)


def _says_ready(fd: int, deadline: float) -> bool:
    """Whether ``ready`` arrives on the pipe in time (deadline 0: is there already); False as well when it was closed."""
    from keelstore.common.concurrency import real_poll

    poll = real_poll()
    poll.register(fd)
    wait_ms = max(0, int((deadline - time.monotonic()) * 1000)) if deadline else 0
    return bool(poll.poll(wait_ms)) and os.read(fd, 5) == b"ready"
