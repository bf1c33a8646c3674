"""Locks, pids and state of long-running processes."""

from __future__ import annotations

import os
import platform
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from keelstore.common import daemon
from keelstore.common.errors import ConfigError
from test.support.waiting import until

HOLDER = "import sys, time; from keelstore.common import daemon; lock = daemon.ProcessLock.take(sys.argv[1]); print('ready', flush=True); time.sleep(600)"


def holder(path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def test_a_lock_names_its_holder_until_it_ends_however_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "x.pid"
    assert daemon.holder_of(str(path)) is None
    process = holder(path)
    try:
        assert daemon.holder_of(str(path)) == process.pid
        assert path.read_text() == f"{process.pid}\n"
        with pytest.raises(daemon.AlreadyRunning, match=f"process {process.pid}"):
            daemon.ProcessLock.take(str(path))
        assert daemon.holder_of(str(path)) == process.pid
    finally:
        process.kill()
        process.communicate()
    assert daemon.holder_of(str(path)) is None and path.exists()


def test_start_time_tells_processes_apart() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    started = daemon.start_time(process.pid)
    assert started is not None and started == daemon.start_time(process.pid)
    assert not daemon.signal_process(process.pid, started - 1, signal.SIGKILL)  # as if the pid had been another's
    assert process.poll() is None
    assert daemon.wait_gone({process.pid: started}, 0) == [process.pid]
    assert daemon.signal_process(process.pid, started, signal.SIGKILL)
    assert daemon.wait_gone({process.pid: started}, 10) == []  # it is a zombie of ours, which counts as gone
    process.wait()
    assert daemon.start_time(process.pid) is None
    assert not daemon.signal_process(process.pid, started, signal.SIGKILL)


def test_a_process_is_not_gone_while_threads_other_than_its_first_hold_its_lock(tmp_path: Path) -> None:
    code = ("import ctypes, sys, threading; from keelstore.common import daemon; lock = daemon.ProcessLock.take(sys.argv[1]);"
            "threading.Thread(target=lambda: (sys.stdin.read(), daemon.os._exit(0))).start(); print('ready', flush=True);"
            "ctypes.CDLL(None).syscall(int(sys.argv[2]), 0)")
    path, end_of_a_thread = tmp_path / "x.pid", {"x86_64": 60}.get(platform.machine(), 93)
    process = subprocess.Popen([sys.executable, "-c", code, path, str(end_of_a_thread)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None and process.stdout.readline() == b"ready\n"
    until(lambda: "\nState:\tZ" in Path(f"/proc/{process.pid}/status").read_text(), "its first thread has ended")
    started = daemon.start_time(process.pid)
    assert started is not None and daemon.holder_of(str(path)) == process.pid
    assert daemon.wait_gone({process.pid: started}, 0) == [process.pid]
    process.stdin.close()
    assert daemon.wait_gone({process.pid: started}, 10) == [] and daemon.holder_of(str(path)) is None
    process.wait()


def test_a_child_dies_with_its_parent() -> None:
    code = ("import os, time\nfrom keelstore.common import daemon\nparent = os.getpid()\npid = os.fork()\n"
            "if pid == 0:\n    daemon.die_with_parent(parent)\n    print(os.getpid(), flush=True)\n    time.sleep(600)\ntime.sleep(600)")
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.kill()
    process.wait()
    until(lambda: daemon.start_time(child) is None, "the child is gone")
    process.stdout.close()


def test_state_is_replaced_whole_and_nonsense_reads_as_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    assert daemon.read_state(str(path)) == {}
    daemon.write_state(str(path), {"pid": 1})
    assert daemon.read_state(str(path)) == {"pid": 1}
    assert os.listdir(tmp_path) == ["s.json"]
    for nonsense in ("{", "[1]", ""):
        path.write_text(nonsense)
        assert daemon.read_state(str(path)) == {}


def test_the_service_manager_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.settimeout(5)
        server.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        daemon.notify("READY=1")
        assert server.recv(100) == b"READY=1"
    daemon.notify("STOPPING=1")  # nobody listens: no error


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_an_unknown_user_is_told() -> None:
    with pytest.raises(ConfigError, match="there is no user 'no-such-user' on this machine"):
        daemon.drop_privileges("no-such-user")


def test_priority_that_is_refused_is_told() -> None:
    code = ("from keelstore.common.daemon import *; import os; print(set_priority(ProcessOptions(nice_priority=5, "
            "ionice_class='IOPRIO_CLASS_BE', ionice_priority=6)), os.getpriority(os.PRIO_PROCESS, 0))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "5" and done.stdout.startswith("None")
