"""Disk calls that may take long, and how green threads wait for them.

Rule for the disk: calls that can block for long (fsync, large reads, directory walks on cold disks, SQLite commits) go
through :func:`on_disk_thread`, which runs them on native threads of their device, so that one slow disk never stops a
worker. Writes whose long waits are syncs go through :func:`on_disk`, which leaves those waits to the kernel. Calls that the
page cache answers (open, stat, small reads) run inline: a thread costs more than they do.
"""

from __future__ import annotations

import _queue
import contextlib
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from keelstore.common.concurrency import current_green, get_hub, native_module, resume, sleep, time_limit
from keelstore.common.errors import DeviceBusy
from keelstore.common.last_closes import LastCloses
from keelstore.common.pace import LOOK_S, Pace
from keelstore.common.pauses import start_native
from keelstore.common.syncs import Syncing, Syncs

T = TypeVar("T")
_thread = native_module("_thread")
_time = native_module("time")

THREADS_PER_DEVICE = 4  # so that writers to one device share a journal commit

_native = _thread._local()  # set in disk threads, which must wait as native threads do


def pause(seconds: float) -> None:
    """Wait inside code that runs on either kind of thread: others run meanwhile, green ones where we are green."""
    if getattr(_native, "is_disk_thread", False):
        _time.sleep(seconds)
    else:
        sleep(seconds)


class _Job:
    __slots__ = ("args", "error", "function", "has_ended", "is_awaited", "result", "waiter")

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]):
        self.function, self.args = function, args
        self.waiter: Any = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.has_ended = self.is_awaited = False

    def outcome(self) -> Any:
        if self.error is not None:
            try:
                raise self.error
            finally:
                self.error = None  # break the cycle through the traceback
        return self.result


class Begun:
    """A call that runs on a disk thread; one green thread may wait for it."""

    __slots__ = ("_job",)

    def __init__(self, job: _Job):
        self._job = job

    def wait(self) -> Any:
        """What it gave; raises what it raised, once. Others run meanwhile."""
        job = self._job
        if not job.has_ended:
            job.waiter = current_green()
            job.is_awaited = True
            try:
                get_hub().switch()
            except BaseException:
                job.is_awaited = False
                raise
        return job.outcome()


class DiskThreads:
    """Native threads, up to ``per_device`` for each device, made when first needed.

    One eventfd tells the hub that answers wait; a hub belongs to one native thread, so an instance does too.
    """

    def __init__(self, per_device: int = THREADS_PER_DEVICE):
        self._per_device = per_device
        self._queues: dict[str, Any] = {}
        self._threads: dict[str, list[int]] = {}  # device: [running, idle]
        self._done: deque[_Job] = deque()
        self._fd = -1

    def run(self, device: str, function: Callable[..., T], *args: Any) -> T:
        """What ``function(*args)`` gives or raises; other green threads run meanwhile.

        When the waiting green thread is killed or its time limit ends, the function runs on to its end unheard.
        """
        if getattr(_native, "is_disk_thread", False):
            return function(*args)  # the caller is on a disk thread already
        if current_green() is get_hub().greenlet:
            return function(*args)
        result: T = self.begin(device, function, *args).wait()
        return result

    def begin(self, device: str, function: Callable[..., Any], *args: Any) -> Begun:
        """As :meth:`run`, without waiting. Not on a disk thread."""
        job = _Job(function, args)
        if self._fd < 0:
            hub = get_hub()
            self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            hub.add(hub.READ, self._fd, self._on_done, current_green().throw, lambda *_: None)
        queue = self._queues.get(device)
        if queue is None:
            queue = self._queues[device] = _queue.SimpleQueue()
            self._threads[device] = [0, 0]
        counts = self._threads[device]
        if counts[1] <= queue.qsize() and counts[0] < self._per_device:
            counts[0] += 1
            try:
                _thread.start_new_thread(self._work, (queue, counts))
            except RuntimeError:  # no more threads: those that there are will come to it
                counts[0] -= 1
                if not counts[0]:
                    raise
        queue.put(job)
        return Begun(job)

    def _work(self, queue: Any, counts: list[int]) -> None:
        _native.is_disk_thread = True
        while True:
            counts[1] += 1
            job = queue.get()
            counts[1] -= 1
            try:
                job.result = job.function(*job.args)
            except BaseException as error:  # handed to the waiter, whatever it is
                job.error = error
            job.args = ()  # what it worked on may go, even if nobody looks at the result for a while
            job.has_ended = True
            self._done.append(job)
            del job
            os.eventfd_write(self._fd, 1)

    def _on_done(self, _fd: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._fd)
        done = self._done
        while done:
            job = done.popleft()
            if job.is_awaited:
                job.is_awaited = False
                resume(job.waiter)


_disk_threads = DiskThreads()
_syncs = Syncs()
_pace = Pace(_time.monotonic, start_native)
_last_closes = LastCloses()


def _forget_disks() -> None:
    global _disk_threads, _syncs, _pace, _last_closes
    _disk_threads, _syncs, _pace, _last_closes = DiskThreads(), Syncs(), Pace(_time.monotonic, start_native), LastCloses()


os.register_at_fork(after_in_child=_forget_disks)


def pace() -> Pace:
    """What is known of how fast devices are, in this process."""
    return _pace


def on_disk_thread(device: str, function: Callable[..., T], *args: Any) -> T:
    """Run a blocking disk call on a native thread of ``device``; see :class:`DiskThreads`."""
    return _disk_threads.run(device, function, *args)


def begin_on_disk_thread(device: str, function: Callable[..., Any], *args: Any) -> Begun:
    """As :func:`on_disk_thread`, to be waited for later. Not on a disk thread, nor by the hub."""
    return _disk_threads.begin(device, function, *args)


def on_disk(device: str, function: Callable[..., T], *args: Any) -> T:
    """Run a disk call whose only long waits are syncs (:func:`sync`): on this green thread, others running during the
    syncs; or, while the device is slow or syncs cannot be asynchronous, on a native thread of the device.
    """
    if _syncs.is_possible and not getattr(_native, "is_disk_thread", False):
        now = _pace.clock()
        if not _pace.keeps_off(device, now):
            return _pace.run(device, now, function, *args)
        return _pace.run_apart(device, now, True, _disk_threads.run, device, function, *args)  # as slow as ever, or not
    return _disk_threads.run(device, function, *args)


def write_on_disk_thread(device: str, function: Callable[..., T], *args: Any) -> T:
    """As :func:`on_disk_thread`, for what tells how fast the device takes what is written."""
    return _pace.run_apart(device, _pace.clock(), False, _disk_threads.run, device, function, *args)


def off_slow_disk(device: str, function: Callable[..., T], *args: Any) -> T:
    """Run a short disk call that the page cache answers, as a rule: here; or, while the device is slow, on a native thread
    for such calls, since a directory that is being written to can hold up who only looks into it.
    """
    if is_off_limits(device):
        return _disk_threads.run(f"{device}: looks", function, *args)
    return function(*args)


def look(device: str, function: Callable[..., T], *args: Any) -> T:
    """As :func:`off_slow_disk`, for LOOK_S at most, or not at all where another takes longer. Raises DeviceBusy. What the
    call gives then is lost: it must not be a descriptor (:func:`open_to_read`).
    """
    if is_off_limits(device) and not getattr(_native, "is_disk_thread", False):
        return _look(device, function, args)
    return function(*args)


def _look(device: str, function: Callable[..., T], args: tuple[Any, ...]) -> T:
    volume, now, token = _pace.volume(device), _pace.clock(), object()
    if volume.is_stuck(now):
        raise DeviceBusy(device)

    def run() -> T:
        try:
            return function(*args)
        finally:
            del volume.looks[token]

    volume.looks[token] = now
    try:
        begun = _disk_threads.begin(f"{device}: looks", run)
    except RuntimeError:
        del volume.looks[token]
        raise DeviceBusy(device) from None
    with time_limit(LOOK_S, DeviceBusy(device)):
        found: T = begun.wait()
        return found


class _Opened:
    """A file that closes itself when nobody has taken it."""

    __slots__ = ("_fd",)

    def __init__(self, path: str):
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def take(self) -> int:
        fd, self._fd = self._fd, -1
        return fd

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            os.close(self._fd)


def open_to_read(device: str, path: str) -> int:
    """A descriptor. As :func:`look`; raises OSError, too."""
    if is_off_limits(device) and not getattr(_native, "is_disk_thread", False):
        return _look(device, _Opened, (path,)).take()
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def is_off_limits(device: str) -> bool:
    """Whether even short disk calls on the device are to stay off this thread: :func:`off_slow_disk`."""
    return _pace.may_be_slow(device) and _pace.keeps_off(device, _pace.clock())


def lets_go() -> bool:
    """Whether :func:`let_go` spares this thread the work."""
    return not getattr(_native, "is_disk_thread", False) and _syncs.is_open


def let_go(fd: int) -> None:
    """Close a file, soon, whose last close may take long (``last_closes.py``). Only where :func:`lets_go`."""
    _last_closes.let_go(fd)


def sync(fds: Sequence[int], data_only: bool = False) -> Sequence[int]:
    """fsync, or fdatasync with ``data_only``, of open files or directories, in any order, while other green threads run.
    Raises OSError, when all have ended.

    Gives those that cannot be synced here (not a green thread, or not this kernel): the caller must do it and block.
    """
    return fds if getattr(_native, "is_disk_thread", False) else _syncs.sync(fds, data_only)


def syncs_here(device: str) -> bool:
    """Whether changes of the device may be made here, green, with syncs by :func:`sync_sets`."""
    return (_syncs.is_possible and not getattr(_native, "is_disk_thread", False) and _syncs.opens()
            and not _pace.keeps_off(device, _pace.clock()))


def sync_sets(sets: Sequence[Sequence[int]], seconds: float) -> list[Syncing]:
    """See :meth:`Syncs.sync_sets`. Only where :func:`syncs_here` was true."""
    return _syncs.sync_sets(sets, seconds)


def forget_sync(syncing: Syncing) -> None:
    """Nobody will wait for it; its files may be closed."""
    _syncs.forget((syncing,))


def finish_sync(syncing: Syncing) -> None:
    """See :meth:`Syncs.finish`."""
    _syncs.finish(syncing)
