"""Green threads and bounded waits. Sole importer of eventlet and greenlet.

Connections are ``sockets``', disk calls ``disk_calls``'. Everything that decides knows nothing of this module; what acts
calls it. The library's own timeout, which ``except Exception`` would miss, never leaves: a wait that runs out raises
:class:`~keelstore.common.errors.WaitTimeout` (or the error that the caller names).
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar

import greenlet

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it announces its retirement at import; doc/design/dependencies says what follows
    import eventlet
    import eventlet.hubs
    import eventlet.patcher
    import eventlet.queue
    import eventlet.semaphore
    from eventlet.hubs import trampoline

from keelstore.common.errors import WaitTimeout

T = TypeVar("T")
_select = eventlet.patcher.original("select")
get_hub = eventlet.hubs.get_hub
current_green = greenlet.getcurrent


def monkey_patch() -> None:
    """Make the standard library's sockets and sleeps green. Entry points only, before anything else is imported."""
    eventlet.hubs.use_hub("epolls")
    eventlet.monkey_patch(thread=False, os=False)
    sys.setswitchinterval(0.001)  # a disk thread that has its answer should not wait 5 ms for the interpreter


# -- green threads -----------------------------------------------------------------------------------------------------


class Task:
    """A running green thread: wait for what it gives, or stop it."""

    __slots__ = ("_green",)

    def __init__(self, green: Any):
        self._green = green

    def wait(self) -> Any:
        """What the function returned; raises what it raised."""
        return self._green.wait()

    def kill(self) -> None:
        """Stop it at its current wait. Does nothing when it has ended."""
        with contextlib.suppress(greenlet.GreenletExit):
            self._green.kill()

    @property
    def ended(self) -> bool:
        return bool(self._green.dead)


def spawn(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Task:
    """Start a green thread. An error that nobody waits for is lost: catch and log inside ``function``."""
    return Task(eventlet.spawn(function, *args, **kwargs))


def sleep(seconds: float = 0) -> None:
    """Let others run; at least ``seconds``."""
    eventlet.sleep(seconds)


class Pool:
    """At most ``size`` green threads at once; ``spawn`` waits for a place."""

    def __init__(self, size: int):
        self._pool = eventlet.GreenPool(size)

    def spawn(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Task:
        return Task(self._pool.spawn(function, *args, **kwargs))

    def start(self, function: Callable[..., Any], *args: Any) -> None:
        """As ``spawn``, for a function whose result nobody wants."""
        self._pool.spawn_n(function, *args)

    def free(self) -> int:
        return self._pool.free()

    def running(self) -> int:
        return self._pool.running()

    def wait_all(self) -> None:
        self._pool.waitall()


class Event:
    """Set once, with a value or an error; any number may wait."""

    __slots__ = ("_value", "_waiters", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        self._value: Any = None
        self._waiters: list[Any] | None = None  # green threads

    def set(self, value: Any = None) -> None:
        """The first call counts; later ones do nothing. Who waits goes on at the hub's next turn."""
        if self.is_set:
            return
        self.is_set, self._value = True, value
        if self._waiters:
            get_hub().schedule_call_global(0, _resume_all, self._waiters)

    def wait(self, seconds: float | None = None) -> Any:
        """The value. Raises WaitTimeout after ``seconds``."""
        if self.is_set:
            return self._value
        hub, current = get_hub(), greenlet.getcurrent()
        if current is hub.greenlet:
            raise RuntimeError("the hub itself cannot wait")
        waiters = self._waiters
        if waiters is None:
            waiters = self._waiters = []
        waiters.append(current)
        try:
            with time_limit(seconds):
                hub.switch()
        except BaseException:  # nobody is to wake us any more
            if current in waiters:
                waiters.remove(current)
            raise
        return self._value


def _resume_all(waiters: list[Any]) -> None:
    while waiters:
        resume(waiters.pop(0))


class Queue:
    """A bounded queue between green threads. ``size`` None: unbounded; the caller says why that is safe."""

    __slots__ = ("_queue",)

    def __init__(self, size: int | None):
        self._queue = eventlet.queue.LightQueue(size)

    def put(self, item: Any, seconds: float | None = None) -> None:
        """Raises WaitTimeout when it stays full for ``seconds``."""
        try:
            self._queue.put(item, timeout=seconds)
        except eventlet.queue.Full:
            raise WaitTimeout(f"queue stayed full for {seconds} s") from None

    def get(self, seconds: float | None = None) -> Any:
        """Raises WaitTimeout when it stays empty for ``seconds``."""
        try:
            return self._queue.get(timeout=seconds)
        except eventlet.queue.Empty:
            raise WaitTimeout(f"queue stayed empty for {seconds} s") from None

    def __len__(self) -> int:
        return int(self._queue.qsize())


class Semaphore:
    def __init__(self, count: int = 1):
        self._semaphore = eventlet.semaphore.Semaphore(count)

    def acquire(self, seconds: float | None = None) -> bool:
        return bool(self._semaphore.acquire(timeout=seconds))

    def release(self) -> None:
        self._semaphore.release()

    def __enter__(self) -> Semaphore:
        self._semaphore.acquire()
        return self

    def __exit__(self, *args: object) -> None:
        self._semaphore.release()


class time_limit:  # noqa: N801 - reads as a statement: with time_limit(3):
    """Bound what happens inside: after ``seconds`` raise ``error``, or WaitTimeout. None: no bound.

    Only waits of green threads can be bounded; a blocking call on this thread cannot be interrupted.
    """

    __slots__ = ("_entry", "_error", "_limits", "_seconds", "_timer")

    def __init__(self, seconds: float | None, error: BaseException | None = None):
        self._seconds, self._error = seconds, error
        self._timer: Any = None
        self._limits: Limits | None = None

    def __enter__(self) -> time_limit:
        seconds = self._seconds
        if seconds is None:
            return self
        limits = self._limits = _crew().limits(seconds)
        if limits is not None:
            self._entry = limits.begin(greenlet.getcurrent(), self._error)
        else:
            self._timer = eventlet.Timeout(seconds, self._error or WaitTimeout(_no_result(seconds)))
        return self

    @property
    def is_over(self) -> bool:
        """Asked inside: whether a WaitTimeout is this one's, and not that of a limit around it."""
        if self._limits is not None:
            return self._entry[1] is None
        return self._timer is not None and not self._timer.pending

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self._limits is not None:
            self._limits.end(self._entry)
        elif self._timer is not None:
            self._timer.cancel()


def _no_result(seconds: float) -> str:
    return f"no result within {seconds} s"


class _Apart:
    """A call on a green thread of its own. ``caller`` is who waits for it, None when nobody does (any more)."""

    __slots__ = ("args", "caller", "error", "function", "result")

    def __init__(self, caller: Any, function: Callable[..., Any], args: tuple[Any, ...]):
        self.caller, self.function, self.args = caller, function, args
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self.function(*self.args)
        except BaseException as error:
            self.error = error

    def run_once(self) -> None:
        """As a green thread's only work."""
        self.run()
        caller = self.caller
        if caller is not None:  # still waiting: end there. A wait in between has made the hub our parent
            greenlet.getcurrent().parent = caller


class Limits:
    """Time limits of one length: they fall due in the order they began in, and nearly all end before. One timer of the hub
    serves them all, where one for each costs more than a call in process does besides.

    When the hub comes late to it, after a pause of the process or whatever held it up, what was waited for may be there and
    not looked at, or was held up, too: then all have as much more, GRACE_S at most.
    """

    __slots__ = ("_due", "_ended", "_had_grace", "_hub", "_is_awaited", "_running", "seconds")

    def __init__(self, hub: Any, seconds: float):
        self._hub, self.seconds = hub, seconds
        self._running: deque[list[Any]] = deque()  # [when due, green thread or None when it has ended, error]
        self._ended = 0  # how many of those
        self._is_awaited = self._had_grace = False
        self._due = 0.0  # of the timer

    def begin(self, green: Any, error: BaseException | None = None) -> list[Any]:
        """``green`` gets ``error``, or a WaitTimeout, when the time is over, unless :meth:`end` comes first."""
        entry = [self._hub.clock() + self.seconds, green, error]
        self._running.append(entry)
        if not self._is_awaited:
            self._await(self.seconds)
        return entry

    def _await(self, seconds: float) -> None:
        self._is_awaited, self._due = True, self._hub.clock() + seconds
        self._hub.schedule_call_global(seconds, self._on_due)

    def end(self, entry: list[Any]) -> None:
        if entry[1] is None:
            return  # it was due
        entry[1] = entry[2] = None
        running = self._running
        if running and running[0] is entry:
            running.popleft()
            while running and running[0][1] is None:
                running.popleft()
                self._ended -= 1
        else:
            self._ended += 1
            if self._ended > MOST_ENDED and self._ended * 2 > len(running):  # one that lasts is before them
                self._running, self._ended = deque(known for known in running if known[1] is not None), 0

    def _on_due(self) -> None:
        late = self._hub.clock() - self._due
        self._had_grace = late > HELD_UP_S and not self._had_grace  # once: or a hub that is always late would end none
        if self._had_grace:
            self._await(min(late, GRACE_S))
            return
        try:
            if self._end_those_due():
                return
        except BaseException:
            self._is_awaited = False
            raise
        self._is_awaited = False

    def _end_those_due(self) -> bool:
        """Whether the timer was set for those that are left. Who gets an error may begin a limit of the same length at once,
        and must not set another."""
        while self._running:
            entry = self._running[0]
            due, green, error = entry
            if green is None:
                self._running.popleft()
                self._ended -= 1
                continue
            left = due - self._hub.clock()
            if left > 0:
                self._await(left)
                return True
            self._running.popleft()
            entry[1] = None
            with contextlib.suppress(Exception):  # as in resume
                green.throw(WaitTimeout(_no_result(self.seconds)) if error is None else error)
        return False


class Crew:
    """Green threads at rest, that take one call after the other; and the time limits of calls. One for each hub.

    A new green thread costs the interpreter a stack of frames, 16 KiB that the kernel maps, zeroes and unmaps: some 10 of the
    15 microseconds of a call in process. Those that are kept were started by the hub, whose stack is shallow: at each
    switch what lies between their place on the C stack and the caller's is copied, which costs a tenth of that. Where none
    is at rest a new one does the call, and ends with it; the hub makes one more to keep.
    """

    __slots__ = ("_at_rest", "_hub", "_kept", "_limits")

    def __init__(self, hub: Any):
        self._hub = hub
        self._at_rest: list[Any] = []
        self._kept = 0
        self._limits: dict[float, Limits] = {}

    def limits(self, seconds: float) -> Limits | None:
        """None for a length that is not one of a few."""
        found = self._limits.get(seconds)
        if found is None and len(self._limits) < KEPT_LIMITS and not seconds * 10 % 1:  # what options say; no rest of a time
            found = self._limits[seconds] = Limits(self._hub, seconds)
        return found

    def switch(self, apart: _Apart) -> None:
        """Begin the call at once, and come back when it has ended (or when its caller is woken otherwise)."""
        if self._at_rest:
            self._at_rest.pop().switch(apart)
            return
        self._keep_one_more()
        greenlet.greenlet(apart.run_once).switch()

    def start(self, functions: Sequence[Callable[[], Any]]) -> None:
        """Begin each on a green thread of its own, in order, at the hub's next turn. What they give or raise is lost."""
        self._hub.schedule_call_global(0, self._start_now, functions)

    def _start_now(self, functions: Sequence[Callable[[], Any]]) -> None:
        for function in functions:
            apart = _Apart(None, function, ())
            if self._at_rest:
                self._at_rest.pop().switch(apart)
            else:
                self._keep_one_more()
                greenlet.greenlet(apart.run_once).switch()

    def _keep_one_more(self) -> None:
        if self._kept < KEPT_GREEN:
            self._kept += 1
            self._hub.schedule_call_global(0, self._make)

    def _make(self) -> None:
        greenlet.greenlet(self._work).switch()

    def _work(self) -> None:
        current, at_rest, hub = greenlet.getcurrent(), self._at_rest, self._hub
        at_rest.append(current)
        apart = hub.switch()
        while True:
            apart.run()
            caller = apart.caller
            del apart  # with what it gave: nobody waits here for more
            at_rest.append(current)
            apart = hub.switch() if caller is None else caller.switch()


KEPT_GREEN = 128  # green threads at rest; a busy worker has so many calls under way
KEPT_LIMITS = 64  # lengths of time
HELD_UP_S = 0.25  # that the hub comes late to time limits which are due
GRACE_S = 1.0
MOST_ENDED = 1024  # time limits that are kept behind one that lasts


def _crew() -> Crew:
    """That of this native thread's hub."""
    hub = eventlet.hubs.get_hub()
    try:
        found: Crew = hub.keelstore_crew
    except AttributeError:
        found = hub.keelstore_crew = Crew(hub)
    return found


def start_all(functions: Sequence[Callable[[], Any]]) -> None:
    """Run each in a green thread of its own, from the hub's next turn on. What they give or raise is lost."""
    _crew().start(functions)


def run_apart(seconds: float | None, function: Callable[..., T], *args: Any) -> T:
    """What ``function(*args)`` gives or raises, run in a green thread of its own that starts at once.

    When ``seconds`` run out (WaitTimeout), or the waiting green thread is stopped, the function is not interrupted: it runs
    on to its end unheard, as a request does on another machine whose client has gone. Costs two switches, no turn of the hub.
    """
    current = greenlet.getcurrent()
    apart = _Apart(current, function, args)
    crew = _crew()
    timer = entry = limits = None
    try:
        if seconds is not None:
            limits = crew.limits(seconds)
            if limits is not None:
                entry = limits.begin(current)
            else:
                timer = eventlet.Timeout(seconds, WaitTimeout)
        crew.switch(apart)
    finally:
        apart.caller = None
        if limits is not None and entry is not None:
            limits.end(entry)
        elif timer is not None:
            timer.cancel()
    if apart.error is not None:
        try:
            raise apart.error
        finally:
            apart.error = None  # break the cycle through the traceback
    result: T = apart.result
    return result


def resume(waiter: Any) -> None:
    """Switch to a green thread out of a call by the hub. One that dies of an error tells it to who waits for it, but the
    error comes here, too, and the hub would never call again.
    """
    with contextlib.suppress(Exception):
        waiter.switch()


# -- descriptors -------------------------------------------------------------------------------------------------------

_IN, _OUT, _EDGE = 0x001, 0x004, 1 << 31  # EPOLLIN, EPOLLOUT, EPOLLET: the patched select module lacks them


class Waits:
    """The green threads, one reader and one writer at most, that wait for one descriptor.

    It is registered with the hub once, edge-triggered, instead of anew for each wait: that saves 6 of a wait's 15
    microseconds. Sound because a stream waits only after its call found nothing to do: a readiness reported while nobody
    waited is found by the next call.
    """

    __slots__ = ("_fd", "_hub", "_is_ended", "_knows_writes", "_reader", "_writer")

    def __init__(self, fd: int):
        self._fd, self._hub, self._is_ended = fd, eventlet.hubs.get_hub(), False
        self._reader: Any = None
        self._writer: Any = None
        self._knows_writes = False
        self._hub.add(self._hub.READ, fd, self._on_read, self._on_close, _nothing)
        self._hub.poll.modify(fd, _IN | _EDGE)

    def wait(self, timeout: float | None, write: bool) -> None:
        """Raises WaitTimeout after ``timeout`` seconds, OSError when the descriptor is closed meanwhile."""
        current, hub = greenlet.getcurrent(), self._hub
        if current is hub.greenlet:
            raise RuntimeError("the hub itself cannot wait")
        if write:
            if self._writer is not None:
                raise RuntimeError("two green threads write to one stream")
            if not self._knows_writes:
                self._knows_writes = True
                hub.add(hub.WRITE, self._fd, self._on_write, self._on_close, _nothing)
                hub.poll.modify(self._fd, _IN | _OUT | _EDGE)
            self._writer = current
        else:
            if self._reader is not None:
                raise RuntimeError("two green threads read from one stream")
            self._reader = current
        timer = None if timeout is None else hub.schedule_call_global(timeout, self._on_time, current, write)
        try:
            hub.switch()
        finally:
            if timer is not None:
                timer.cancel()
            if write:
                self._writer = None
            else:
                self._reader = None

    def _on_read(self, _fd: int) -> None:
        if self._reader is not None and not self._is_ended:
            self._reader.switch()

    def _on_write(self, _fd: int) -> None:
        if self._writer is not None and not self._is_ended:
            self._writer.switch()

    def _on_time(self, waiter: Any, write: bool) -> None:
        if not self._is_ended and is_ready(self._fd, write):  # the hub may only have had no time to look, as after a pause
            waiter.switch()
        else:
            waiter.throw(WaitTimeout)

    def _on_close(self, *_args: Any) -> None:
        for waiter in (self._reader, self._writer):
            if waiter is not None:
                waiter.throw(OSError(errno.EBADF, "the stream was closed"))

    def end(self) -> None:
        """Before the descriptor is closed. Who waits for it gets an OSError, at the hub's next turn."""
        self._is_ended = True  # the hub calls both listeners when it removes them, and not from its own green thread
        self._hub.remove_descriptor(self._fd)
        if self._reader is not None or self._writer is not None:
            self._hub.schedule_call_global(0, self._on_close)


def _nothing(*_args: Any) -> None:
    pass


def wait_for(fd: int, write: bool, seconds: float | None = None) -> None:
    """Until a descriptor that no :class:`Waits` knows can be read, or written to. Raises WaitTimeout after ``seconds``."""
    try:
        trampoline(fd, read=not write, write=write, timeout=seconds, timeout_exc=_Over)
    except _Over:
        if not is_ready(fd, write):  # as above
            raise


class _Over(WaitTimeout):
    """The time of this very wait. Handed over as a class: an instance would be in a cycle with the frames that have it."""


def is_ready(fd: int, write: bool = False) -> bool:
    """Whether a descriptor can be read, or written to, now."""
    poll = real_poll()
    poll.register(fd, _OUT if write else _IN)
    return bool(poll.poll(0))


# -- processes ---------------------------------------------------------------------------------------------------------


def renew_hub() -> None:
    """In a forked child, before anything waits: give up the parent's event loop, whose descriptor both would share.

    Each would take events that are meant for the other, and with edge-triggered streams for good. Done at each fork.
    """
    eventlet.hubs.use_hub("epolls")


os.register_at_fork(after_in_child=renew_hub)


def native_module(name: str) -> Any:
    """A module of the standard library as it is without :func:`monkey_patch`."""
    return eventlet.patcher.original(name)


def real_poll() -> Any:
    """A poll object of the unpatched kind. It blocks the whole thread: only for moments, or where nothing else runs."""
    return _select.poll()
