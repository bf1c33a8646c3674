"""What a long-running process does to itself: privileges, priority, its lock and pid files, and whom it tells."""

from __future__ import annotations

import _socket
import contextlib
import ctypes
import errno
import fcntl
import json
import os
import platform
import pwd
import signal
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from keelstore.common.errors import ConfigError, KeelstoreError
from keelstore.common.options import Check, one_of, option

_PR_SET_PDEATHSIG = 1
_FLOCK = "hhqqi4x"  # struct flock on 64-bit Linux: type, whence, start, length, pid
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30, "riscv64": 30}
UNLIMITED = 1 << 30  # open files, where there is no limit
_IO_CLASSES = {"IOPRIO_CLASS_RT": 1, "IOPRIO_CLASS_BE": 2, "IOPRIO_CLASS_IDLE": 3}


def _niceness(value: int) -> str | None:
    return None if -20 <= value <= 20 else "-20 to 20"


def between(least: int, most: int) -> Check:
    return lambda value: None if least <= value <= most else f"a number from {least} to {most}"


@dataclass(frozen=True)
class ProcessOptions:
    """What a process of ours is allowed and how urgent it is."""

    user: str = option("swift", "User to run as, when started by root.")
    nice_priority: int | None = option(None, "Scheduling priority, -20 (first) to 20.", check=_niceness)
    ionice_class: str | None = option(None, "Class of its disk access: IOPRIO_CLASS_RT, _BE or _IDLE.",
                                      check=one_of(*_IO_CLASSES))
    ionice_priority: int | None = option(None, "Priority in that class, 0 (first) to 7.", check=between(0, 7))


class AlreadyRunning(KeelstoreError):
    """Another process holds the lock; ``pid`` is its."""

    def __init__(self, path: str, pid: int):
        super().__init__(f"already running as process {pid}")
        self.path, self.pid = path, pid


# -- privileges and priority -------------------------------------------------------------------------------------------


def drop_privileges(user: str) -> None:
    """Become ``user`` when root; sets HOME, the directory to / and the mask to 022. Raises ConfigError."""
    if os.geteuid() == 0 and user != "root":
        try:
            entry = pwd.getpwnam(user)
        except KeyError:
            raise ConfigError(f"there is no user {user!r} on this machine", option="user", value=user) from None
        os.initgroups(user, entry.pw_gid)
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)
        os.environ["HOME"] = entry.pw_dir
    os.chdir("/")
    os.umask(0o022)


def set_priority(options: ProcessOptions) -> str | None:
    """As configured. What the system refuses is returned as text: worth a warning, no reason not to run."""
    try:
        if options.nice_priority is not None:
            os.setpriority(os.PRIO_PROCESS, 0, options.nice_priority)
        if options.ionice_class is not None:
            number = _IOPRIO_SET.get(platform.machine())
            if number is None:
                return "ionice_class is not supported on this kind of machine"
            value = _IO_CLASSES[options.ionice_class] << 13 | (options.ionice_priority or 0)
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.syscall(number, 1, 0, value) != 0:
                return f"ionice_class: {os.strerror(ctypes.get_errno())}"
    except OSError as error:
        return f"nice_priority: {error.strerror}"
    return None


def die_with_parent(parent: int, sig: int = signal.SIGTERM) -> None:
    """Have the kernel send us ``sig`` when process ``parent`` ends, however it ends; for forked children."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, sig, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), sig)


def raise_limits(wanted: int = 0) -> int:
    """As many open files as the hard limit allows, up to what a busy worker can use, or to ``wanted``; how many it is now."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(wanted, 65536)
    if hard != resource.RLIM_INFINITY:
        wanted = min(hard, wanted)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return wanted
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft


# -- who runs ----------------------------------------------------------------------------------------------------------


class ProcessLock:
    """Held while a supervisor runs. The kernel knows its holder, so neither a crash nor a reused pid can deceive.

    The lock belongs to the process: forked children do not have it, an exec keeps it when ``fd`` stays open.
    """

    def __init__(self, path: str, fd: int):
        self.path, self.fd = path, fd

    @classmethod
    def take(cls, path: str) -> ProcessLock:
        """Raises AlreadyRunning, OSError."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            raise AlreadyRunning(path, holder_of(path) or 0) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"%d\n" % os.getpid(), 0)
        return cls(path, fd)


def holder_of(path: str) -> int | None:
    """The pid of the process that holds the lock at ``path``, or None."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(fd, fcntl.F_GETLK, asked))
        return pid if kind != fcntl.F_UNLCK and pid > 0 else None
    finally:
        os.close(fd)


def start_time(pid: int) -> int | None:
    """When a process started, in the kernel's ticks since boot: with the pid it names one process. None: it is gone.

    One whose first thread has ended is not gone while others have not: it holds its files and locks until the last has.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, threads, started = fields[0], int(fields[17]), int(fields[19])
    return None if state == b"X" or (state == b"Z" and threads <= 1) else started


def signal_process(pid: int, started: int | None, sig: int) -> bool:
    """Send ``sig`` to the process that had ``pid`` and started at ``started`` (None: unknown). False: it is gone."""
    try:
        fd = os.pidfd_open(pid)
    except (ProcessLookupError, OSError):
        return False
    try:
        if started is not None and start_time(pid) != started:
            return False
        signal.pidfd_send_signal(fd, sig)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)


def wait_gone(processes: Mapping[int, int | None], timeout_s: float) -> list[int]:
    """Wait until all of ``{pid: start time}`` have ended; gives the pids that have not after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while True:
        left = [pid for pid, started in processes.items()
                if start_time(pid) is not None and started in (None, start_time(pid))]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.02)


def write_state(path: str, value: Any) -> None:
    """Replace a small JSON file in one step, for readers in other processes. Not made durable: it tells of this boot."""
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(value, file)
        file.write("\n")
    os.replace(temporary, path)


def read_state(path: str) -> dict[str, Any]:
    """What :func:`write_state` wrote; {} when there is nothing usable."""
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except (FileNotFoundError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def notify(message: str) -> None:
    """Tell the service manager (``NOTIFY_SOCKET``), and whoever reloads us, what state we are in. Never fails."""
    addresses = [f"\0swift-notifications\0{os.getpid()}"]
    told = os.environ.get("NOTIFY_SOCKET", "")
    if told:
        addresses.append("\0" + told[1:] if told.startswith("@") else told)
    for address in addresses:
        sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM | _socket.SOCK_NONBLOCK)  # never a green one
        with contextlib.suppress(OSError):
            sock.sendto(message.encode(), address)
        sock.close()
