"""Whose code runs: every green thread belongs to a life of a node, which is the time between its start and its crash.

What a dead life still does comes to nothing: a step on a disk raises Crash, an answer is dropped by the network. A green thread
without a life is the harness's.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import greenlet

from keelstore.common.syncs import Syncing
from test.support.held_syncs import synced_here


class Crash(BaseException):
    """The power of a node went. A BaseException: what handles errors must not see it."""


class Life:
    __slots__ = ("is_dead", "node", "skew_s")

    def __init__(self, node: int, skew_s: float = 0.0):
        self.node, self.skew_s, self.is_dead = node, skew_s, False


def current() -> Life | None:
    return getattr(greenlet.getcurrent(), "life", None)


def skew_s() -> float:
    life = getattr(greenlet.getcurrent(), "life", None)
    return 0.0 if life is None else life.skew_s


def check() -> None:
    """Raises Crash in a green thread of a dead life."""
    life = getattr(greenlet.getcurrent(), "life", None)
    if life is not None and life.is_dead:
        raise Crash


def run_as(life: Life | None, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    thread: Any = greenlet.getcurrent()
    before = getattr(thread, "life", None)
    thread.life = life
    try:
        return function(*args, **kwargs)
    finally:
        thread.life = before


def leave() -> None:
    """From here on this green thread is the harness's."""
    greenlet.getcurrent().life = None  # type: ignore[attr-defined]


def _top(life: Life | None, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    greenlet.getcurrent().life = life  # type: ignore[attr-defined]
    try:
        return function(*args, **kwargs)
    except Crash:
        return None


def install() -> None:
    """Have green threads inherit the life of who starts them, and disk calls run where they are called."""
    from keelstore.common import concurrency

    spawn, apart, start = concurrency.spawn, concurrency._Apart.run, concurrency.Crew.start
    pool_spawn, pool_start = concurrency.Pool.spawn, concurrency.Pool.start

    concurrency.spawn = lambda function, *args, **kwargs: spawn(_top, current(), function, args, kwargs)
    concurrency.Pool.spawn = lambda self, function, *args, **kwargs: (  # type: ignore[method-assign]
        pool_spawn(self, _top, current(), function, args, kwargs))
    concurrency.Pool.start = lambda self, function, *args: (  # type: ignore[method-assign]
        pool_start(self, _top, current(), function, args, {}))

    def run(self: Any) -> None:
        greenlet.getcurrent().life = getattr(self.caller, "life", None)  # type: ignore[attr-defined]
        apart(self)

    def start_apart(self: Any, functions: Any) -> None:
        start(self, [functools.partial(_top, current(), function, (), {}) for function in functions])

    concurrency._Apart.run = run  # type: ignore[method-assign]
    concurrency.Crew.start = start_apart  # type: ignore[method-assign]

    sys.unraisablehook = _quiet(sys.unraisablehook)


class _Inline:
    """In place of native threads."""

    @staticmethod
    def run(_device: str, function: Callable[..., Any], *args: Any) -> Any:
        check()
        return function(*args)

    @staticmethod
    def begin(_device: str, function: Callable[..., Any], *args: Any) -> _Ended:
        check()
        try:
            return _Ended(function(*args))
        except Exception as error:
            return _Ended(None, error)


class _Ended:
    """In place of what runs on a native thread."""

    def __init__(self, result: Any, error: Exception | None = None):
        self._result, self._error = result, error

    def wait(self) -> Any:
        check()
        if self._error is not None:
            raise self._error
        return self._result


def begin() -> None:
    """In each process that runs a seed: a fork makes disk threads anew."""
    global _numbers
    from keelstore.common import disk_calls

    disk_calls._disk_threads = _Inline()  # type: ignore[assignment]
    disk_calls._syncs.is_possible = False
    _numbers = itertools.count()
    disk_calls.syncs_here = lambda device: True
    disk_calls.sync_sets = _sync_sets


_numbers: Iterator[int] = itertools.count()


def _sync_sets(sets: Sequence[Sequence[int]], _seconds: float) -> list[Syncing]:
    """In place of the kernel's: one after the other, but for some that are late."""
    found = []
    for fds in sets:
        if next(_numbers) % 5 == 4:
            late = Syncing(0, 0)
            late.refused = list(fds)
            found.append(late)
        else:
            found.append(synced_here(fds))
    return found


def _quiet(hook: Any) -> Any:
    """Destructors of a dead life meet Crash, too."""

    def handle(found: Any) -> None:
        if not isinstance(found.exc_value, Crash):
            hook(found)

    return handle
