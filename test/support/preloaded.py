"""Servers and daemons that start at once: forked from a process that has loaded all of their code.

They are processes of their own, in sessions of their own, as those of ``test.support.processes`` are; only the half second in
which an interpreter loads the code is spent once. ``python -m test.support.preloaded`` is that process: it reads a line
of JSON for each process to fork, and answers with its pid.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from test.support.processes import ROOT, Process, accepts
from test.support.waiting import until

SERVER, DAEMON, INTERNAL = "keelstore.node", "keelstore.node.run_daemon", "test.support.internal_proxy"
LOADED = ("keelstore.proxy.app", "keelstore.obj.server", "keelstore.container.server", "keelstore.account.server", "keelstore.obj.replicator",
          "keelstore.obj.updater", "keelstore.obj.expirer", "keelstore.container.replicator", "keelstore.container.reconciler",
          "keelstore.container.sync", "keelstore.container.updater", "keelstore.account.replicator")


class Forked(Process):
    """A process that was forked."""

    def __init__(self, pid: int, log: Path):
        super().__init__((), log)
        self._pid = pid
        try:
            self._handle = os.pidfd_open(pid)  # since its number may be another's soon after it has ended
        except ProcessLookupError:  # it has
            self._handle = -1
        else:
            weakref.finalize(self, os.close, self._handle)

    @property
    def pid(self) -> int:
        return self._pid

    def is_alive(self) -> bool:
        return not self.ends_within(0)

    def ends_within(self, seconds: float) -> bool:
        """Wait until it has ended, so long at most."""
        if self._handle < 0:
            return True
        poll = select.poll()
        poll.register(self._handle, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def wait_for(self, host: str, port: int) -> Forked:
        def ready() -> bool:
            if not self.is_alive():
                raise RuntimeError(f"it has ended: {self.output[-2000:]}")
            return accepts(host, port)

        until(ready, f"it listens on {host}:{port}", 120, every_s=0.01)
        return self

    def stop(self, number: int = signal.SIGTERM) -> None:
        if not self.is_alive():  # long ago, perhaps: whose its number is now, nobody knows
            return
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, number)
        self.ends_within(10)
        with suppress(ProcessLookupError):  # what is left of its session
            os.killpg(self.pid, signal.SIGKILL)
        self.ends_within(60)


class Preloaded:
    """The process to fork from."""

    module = "test.support.preloaded"

    def __init__(self, home: Path):
        self._home = home
        self._log = open(home / "preloaded.out", "ab")
        env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        self._process = subprocess.Popen([sys.executable, "-m", self.module, str(home)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         stderr=self._log, env=env, cwd=ROOT)

    def fork(self, module: str, arguments: Sequence[str], log: Path) -> Forked:
        """``python -m module arguments``, its output in ``log``."""
        return Forked(self._ask({"runs": [[module, list(arguments)]], "log": str(log)}), log)

    def run(self, runs: Sequence[tuple[str, Sequence[str]]], log: Path, timeout_s: float = 240) -> None:
        """Carry these out one after the other, each in a process of its own. Each must return 0."""
        status = log.with_suffix(".status")
        status.unlink(missing_ok=True)
        began = log.stat().st_size if log.exists() else 0
        forked = Forked(self._ask({"runs": [[module, list(arguments)] for module, arguments in runs], "log": str(log), "status": str(status)}), log)
        ended = False
        try:
            ended = forked.ends_within(timeout_s)
        finally:
            if not ended:
                forked.stop()
        assert ended, f"{runs} take longer than {timeout_s} s: {forked.output[-2000:]}"
        assert status.exists() and status.read_text() == "0", forked.output[began:][-3000:]

    def _ask(self, what: dict[str, Any]) -> int:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(what).encode() + b"\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, (self._home / "preloaded.out").read_text()[-2000:]
        return int(answer)

    def stop(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()
        self._log.close()


def _child(what: dict[str, Any], main_of: dict[str, Any]) -> None:
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    out = os.open(what["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    for number, descriptor in ((0, null), (1, out), (2, out)):
        os.dup2(descriptor, number)
    status = 0
    for module, arguments in what["runs"]:  # each in a process of its own, as it would be
        pid = os.fork() if len(what["runs"]) > 1 else 0
        if not pid:
            status = _outcome(main_of[module], module, arguments)
            if len(what["runs"]) > 1:
                os._exit(status)
        elif os.waitpid(pid, 0)[1]:
            status = 1
    if "status" in what:
        Path(what["status"]).write_text(str(status))
    os._exit(status)


def _outcome(main: Any, module: str, arguments: Sequence[str]) -> int:
    try:
        status = int(main(arguments) or 0)
    except SystemExit as error:
        status = int(error.code or 0)
    except BaseException as error:
        print(repr(error), flush=True)
        return 1
    if status:
        print(f"{module} {arguments}: {status}", flush=True)
    return status


def serve(prepare: Callable[[], None] = lambda: None) -> None:
    """Fork what is asked for on standard input, to its end. ``prepare`` is called once all code is loaded."""
    read, write = os.read, os.write  # as they were before eventlet took their names
    import importlib

    main_of = {name: importlib.import_module(f"{name}.__main__" if name == SERVER else name).main for name in (SERVER, DAEMON, INTERNAL)}
    for name in LOADED:
        importlib.import_module(name)
    prepare()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # they are reaped by themselves
    rest = b""
    while True:
        while b"\n" not in rest:
            data = read(0, 65536)
            if not data:
                return
            rest += data
        line, _, rest = rest.partition(b"\n")
        pid = os.fork()
        if not pid:
            _child(json.loads(line), main_of)
        write(1, b"%d\n" % pid)


if __name__ == "__main__":
    serve()
