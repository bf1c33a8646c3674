"""One round of a conversation with many nodes: each is sent its next body, and heard.

As ``fanout.gather``; but a node of this process needs no green thread here, as it calls when it has something to say, and one
time limit is for all of those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from keelstore.common.concurrency import start_all
from keelstore.common.errors import BackendTimeout, WaitTimeout
from keelstore.proxy.fanout import FAILURES, Gathering

S = TypeVar("S")  # has ``upload``
T = TypeVar("T")


class Round(Generic[S, T]):
    """``send(slot)``; ``hear(slot, timeout_s)`` gives what the node says in that time, or None, which does not count; it does
    not wait when the node has spoken. What they raise of FAILURES, or ValueError, ``failed(slot, error)`` is told; anything
    else ``log``.
    """

    def __init__(self, timeout_s: float, send: Callable[[S], None], hear: Callable[[S, float], T | None],
                 failed: Callable[[S, BaseException], None], log: Callable[[BaseException], None]):
        self._timeout_s, self._send, self._hear, self._failed, self._log = timeout_s, send, hear, failed, log
        self._own: set[S] = set()  # of this process, that have not said anything

    def run(self, slots: Sequence[S], when: str | None, is_enough: Callable[[list[T]], bool], grace_s: float) -> list[T]:
        """What they said until ``is_enough``, and for ``grace_s`` more, in order of arrival. ``when``: the method by which an
        upload in this process calls, ``when_ready`` or ``when_done``; None where ``send`` may have to wait, so that each
        needs a green thread. What is still running then runs on unheard.
        """
        gathering = self._gathering = Gathering(len(slots), is_enough)
        others = []
        for slot in slots:
            call_when = when and getattr(slot.upload, when, None)  # type: ignore[attr-defined]
            if not call_when:
                others.append(partial(self._converse, slot))
                continue
            self._own.add(slot)
            if self._try(slot, self._send, slot):
                call_when(partial(self._heard, slot))
        if others:
            start_all(others)
        if self._own:
            try:
                gathering.until_enough(self._timeout_s)
            except WaitTimeout:
                for slot in list(self._own):
                    self._own.remove(slot)
                    self._failed(slot, BackendTimeout(f"PUT: no answer within {self._timeout_s} s",
                                                      node=slot.upload.address))  # type: ignore[attr-defined]
                    gathering.give(None)
        found = gathering.wait(grace_s)
        if self._own:  # some are late: they are to be heard of nevertheless
            late, self._own = self._own, set()
            start_all([partial(self._listen, slot) for slot in late])
        return found

    def _converse(self, slot: S) -> None:
        """All of it, on a green thread."""
        if self._try(slot, self._send, slot):
            self._listen(slot)

    def _listen(self, slot: S) -> None:
        self._try(slot, self._say, slot, self._timeout_s)

    def _heard(self, slot: S) -> None:
        if slot in self._own:
            self._own.remove(slot)
            self._try(slot, self._say, slot, 0)

    def _say(self, slot: S, timeout_s: float) -> None:
        self._gathering.give(self._hear(slot, timeout_s))

    def _try(self, slot: S, step: Callable[..., None], *args: Any) -> bool:
        """Whether it went well; else the node is done with. Raises nothing: it may be on a server's own green thread."""
        try:
            try:
                step(*args)
                return True
            except (*FAILURES, ValueError) as error:
                self._failed(slot, error)
        except Exception as error:
            self._log(error)
        self._own.discard(slot)
        self._gathering.give(None)
        return False
