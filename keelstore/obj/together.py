"""One small change of an object, a PUT or DELETE, that several devices of this process make together: each as if it were
asked by itself, but what their requests have in common is done once, and they wait together (``common/disk_steps.py``).

Only the usual request is taken, on devices where it is usual, too. Whatever is not is left alone, to be asked in full, so
that there is one place that does and answers it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from keelstore.common import concurrency, disk_calls, disk_steps, disk_turns
from keelstore.common.disk_steps import Change
from keelstore.common.disk_turns import Turn
from keelstore.common.errors import StorageError
from keelstore.common.headers import Headers, environ_key
from keelstore.common.http import Request, Response
from keelstore.common.limits import is_valid_text
from keelstore.common.localcall import Address, BytesBody, make_environ
from keelstore.obj.delete import Delete
from keelstore.obj.put import Put
from keelstore.obj.updates import Takers, Untold

if TYPE_CHECKING:
    from keelstore.obj.server import ObjectServer

UNUSUAL = frozenset({
    "If-None-Match", "Transfer-Encoding", "X-Backend-Next-Part-Power", "X-Backend-No-Commit", "X-Backend-Obj-Content-Length",
    "X-Backend-Obj-Metadata-Footer", "X-Backend-Obj-Multiphase-Commit", "X-Backend-Replication",
    "X-Backend-Replication-Headers", "X-Backend-Ssync-Frag-Index", "X-Delete-After", "X-Delete-At", "X-If-Delete-At",
})  # fmt: skip
_KINDS: dict[str, type[Put] | type[Delete]] = {"PUT": Put, "DELETE": Delete}
_OWN = tuple((name, environ_key(name)) for name in ("X-Container-Partition", "X-Container-Host", "X-Container-Device"))


class Late:
    """The answer of a device that takes its time, while the others have answered."""

    __slots__ = ("_done",)

    def __init__(self) -> None:
        self._done = concurrency.Event()

    def give(self, response: Response) -> None:
        self._done.set(response)

    def wait(self, seconds: float) -> Response:
        """Raises WaitTimeout; the device then goes on unheard."""
        response: Response = self._done.wait(seconds)
        return response


Wanted = tuple[Address, str, Headers]  # where the server is known to be, device, headers
Outcome = Response | Late | None


def change(server: ObjectServer, method: str, path: str, copies: Sequence[Wanted], body: bytes,
           digest: Callable[[], str] | None) -> list[Outcome]:
    """Make the change on devices that differ. ``path`` is what follows the device. The headers of ``copies`` differ only in
    the container servers that are to be told. ``digest`` gives the hex MD5 of the body.

    For each the answer; or :class:`Late`; or None: nothing has been done, it is to be asked in full.
    """
    outcomes: list[Outcome] = [None] * len(copies)
    common = _Common()
    first = _usual(server, method, path, copies[0], body, digest)
    if first is None:
        return outcomes
    taken: list[tuple[int, _Copy]] = []
    try:
        for index, wanted in enumerate(copies):
            work = _beside(first, path, wanted) if index else first
            copy = None if work is None else _copy(work, common)
            if copy is not None:
                taken.append((index, copy))
        disk_steps.together([copy.change for _, copy in taken if copy.change is not None])
        for index, copy in taken:
            outcomes[index] = copy.outcome()
    except BaseException:
        for index, copy in taken:
            if outcomes[index] is None:
                copy.stop()
        raise
    return outcomes


def _usual(server: ObjectServer, method: str, path: str, wanted: Wanted, body: bytes,
           digest: Callable[[], str] | None) -> Put | Delete | None:
    """The request to the first device, if it is the usual one."""
    address, device, headers = wanted
    if (not UNUSUAL.isdisjoint(headers) or server.stats or server.options.slow or server.logger.isEnabledFor(logging.DEBUG)
            or not is_valid_text(path, internal=True)):
        return None
    environ = make_environ(address, method, f"/{device}{path}", headers, "", BytesBody(body), digest)
    if method == "PUT":
        environ["CONTENT_LENGTH"] = str(len(body))
    found = _KINDS[method](server, Request(environ))
    try:
        found.read_head()
        return found if found.is_usual(body) else None
    except Exception:  # in full it is answered, and logged, as it must be
        return None


def _beside(first: Put | Delete, path: str, wanted: Wanted) -> Put | Delete | None:
    """The same request to another device; None where that cannot be used."""
    address, device, headers = wanted
    environ = dict(first.request.environ)
    request = Request(environ)
    request.path = f"/{device}{path}"
    environ["RAW_PATH_INFO"], environ["HTTP_HOST"] = environ["PATH_INFO"], f"{address[0]}:{address[1]}"
    for name, key in _OWN:
        value = dict.get(headers, name)
        if value is not None:
            environ[key] = value
        else:
            environ.pop(key, None)
    try:
        return first.beside(request, device)
    except StorageError:
        return None  # as above


class _Common:
    """What the copies have in common. ``takers``: of their row."""

    __slots__ = ("row", "started", "takers")

    def __init__(self) -> None:
        self.started = time.time()
        self.row: Headers | None = None
        self.takers: Takers = {}


def _copy(work: Put | Delete, common: _Common) -> _Copy | None:
    """What is to be done on one device; None where it is not the usual."""
    place, server = work.place, work.server
    if not disk_calls.syncs_here(place.device):
        return None
    try:
        turn = disk_turns.ask(place.device, place.device_path, server.most_waiting)
    except StorageError:
        return None
    try:
        if turn.begin_at_once():
            place.quarantines = False  # that would be waited for; in full it is done
            work.prepare()
            if work.old_delete_at is None:
                return _Copy(work, turn, common)
    except Exception:  # as above
        pass
    except BaseException:
        turn.end()
        raise
    turn.end()
    return None


class _Copy:
    """Of one device. ``change``: None where there is nothing to be changed."""

    __slots__ = ("_common", "_work", "change", "turn")

    def __init__(self, work: Put | Delete, turn: Turn, common: _Common):
        self._work, self.turn, self._common = work, turn, common
        steps = work.steps()
        self.change = None if steps is None else Change(work.place.device, steps)

    def stop(self) -> None:
        """Nobody waits for it any more. What is done is done, and the container is to hear of it."""
        self.turn.end()
        if self.change is None:
            return
        if not self.change.has_ended:
            self.change.give_up()
        elif self.change.error is None:
            concurrency.start_all([partial(self._finish, Late(), None)])

    def outcome(self) -> Response | Late:
        """Waits for nothing."""
        rest: Untold | None = None
        if self.change is None or self.change.has_ended:
            self.turn.end()
            try:
                rest = self._tell()
            except Exception as error:
                return self._answer(error)
            if rest is None:
                return self._answer(None)
        late = Late()
        concurrency.start_all([partial(self._finish, late, rest)])
        return late

    def _finish(self, late: Late, rest: Untold | None) -> None:
        """On a green thread of its own."""
        error: Exception | None = None
        try:
            if self.change is not None and not self.change.has_ended:
                try:
                    self.change.finish()
                finally:
                    self.turn.end()
            if rest is None:
                rest = self._tell()
            if rest is not None:
                self._work.server.updater.send(rest)
        except Exception as failure:
            error = failure
        late.give(self._answer(error))

    def _tell(self) -> Untold | None:
        """The container servers, of what has changed. Raises what the change did."""
        if self.change is None:
            return None
        error = self.change.error
        if error is not None:
            self.change = None  # no cycle through its traceback, and nothing to be told of
            raise error
        work, common = self._work, self._common
        if common.row is None:
            common.row = work.row()
        return work.server.updater.tell(work.request.method, work.request, work.place, work.names, common.row, common.takers)

    def _answer(self, error: Exception | None) -> Response:
        server, request = self._work.server, self._work.request
        try:
            if error is not None:
                raise error
            response = self._work.answer()
            if response.status < 409:
                server.tell_of_handoff(request)
        except Exception as failure:
            response = server.answer_to(failure, request)
        if server.meter is not None:
            server.meter.record(request.method, response.status, time.time() - self._common.started)
        return response
