"""A read from the first node that has what is asked for, or from the one that has the newest (``spec: proxy 6``).

What is not found is only said to be so when a quorum of primaries knows, or a tombstone proves it; else the answer is 503.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from keelstore.common.concurrency import Event, spawn
from keelstore.common.errors import WaitTimeout
from keelstore.common.headers import Headers
from keelstore.common.http import Response
from keelstore.common.quorum import quorum_size
from keelstore.common.timestamp import ZERO, Timestamp
from keelstore.proxy.fanout import FAILURES, Answer, address_of, has_timestamp, note_failure, outcome, read_short
from keelstore.proxy.placement import Nodes
from keelstore.proxy.request import ProxyRequest, client_headers

if TYPE_CHECKING:
    from keelstore.proxy.app import ProxyApp

_TIMES = ("X-Backend-Data-Timestamp", "X-Backend-Timestamp", "X-Put-Timestamp", "X-Timestamp")


def source_timestamp(headers: Headers) -> Timestamp:
    """The time that tells which of two answers is newer."""
    for name in _TIMES:
        value = dict.get(headers, name)
        if value is not None:
            try:
                return Timestamp(value)
            except ValueError:
                return ZERO
    return ZERO


def _metadata_timestamp(headers: Headers) -> Timestamp:
    """When data or metadata of an object were written last, as its server has it."""
    value = dict.get(headers, "X-Backend-Timestamp")
    try:
        return ZERO if value is None else Timestamp(value)
    except ValueError:
        return ZERO


@dataclass(frozen=True, slots=True)
class Target:
    """What is read: ``kind`` is account, container or object; ``path`` text without device and partition."""

    kind: str
    part: int
    path: str
    headers: Headers
    query: str = ""
    method: str = "GET"


class Reading:
    """One read, in progress. ``suppressed``: how many primaries' unproven 404s do not count."""

    def __init__(self, app: ProxyApp, request: ProxyRequest, target: Target, nodes: Nodes, suppressed: int,
                 is_timed: bool = False):
        self.app, self.target, self.nodes = app, target, nodes
        self.is_newest = request.is_true_header("X-Newest")
        self.use_replication = request.uses_replication_network
        self.is_object = target.kind == "object"
        options = app.options
        self.timeout_s = options.read_timeout_s if self.is_object and not self.is_newest else options.node_timeout
        self.is_timed = is_timed
        self._suppressed = min(suppressed, nodes.primary_count - 1)
        self._missing = 0  # primaries that said 404 without proof
        self._floor: Timestamp | None = None  # of the newest tombstone seen
        self._answers: list[Answer] = []
        self.source: tuple[Any, Response] | None = None  # (node, answer) of the best so far
        self._source_time = ZERO

    # -- asking --------------------------------------------------------------------------------------------------------

    def ask(self, node: Any, headers: Headers | None = None) -> Response | None:
        """The node's answer, or None when it gave none."""
        app, target = self.app, self.target
        started = app.clock() if self.is_timed else 0.0
        try:
            response: Response = app.backend.call(
                address_of(node, self.use_replication), target.method, f"/{node.device}/{target.part}{target.path}",
                target.headers if headers is None else headers, query=target.query,
                timeout_s=app.health.patience_s(node, self.timeout_s),
            )  # fmt: skip
        except FAILURES as error:
            app.health.failed(node, f"{target.method} {target.path}", error)
            return None
        app.health.answered(node)
        if self.is_timed:
            app.health.record_timing(node, app.clock() - started)
        return response

    def consider(self, node: Any, response: Response) -> bool:
        """Take an answer into account; whether it is one to serve (it is ``self.source`` then, unless that is newer)."""
        status, headers = response.status, response.headers
        if 200 <= status < 400 or (status == 416 and self.is_object):
            put_time = dict.get(headers, "X-Put-Timestamp")
            if put_time is None or put_time.strip("0._"):
                return self._is_best(node, response)
            status = 404  # rows came before the container itself
            headers = Headers()
        proven = has_timestamp(headers)
        note_failure(self.app, node, self.target.method, self.target.path, status, headers)
        if not proven and node.is_handoff and (status == 404 or status >= 500):
            response.close()
            return False
        if status == 404:
            if not node.is_handoff:
                self._missing += 1
            if not proven:
                if self._suppressed > 0:
                    self._suppressed -= 1
                    response.close()
                    return False
            elif self.is_object:
                self._floor = max(self._floor or ZERO, source_timestamp(headers))
        try:
            body = read_short(response, self.app.options.node_timeout)
        except (*FAILURES, ValueError) as error:
            self.app.health.error(node, f"{self.target.method} {self.target.path}: {error}")
            return False
        self._answers.append(Answer(status, headers, body, node))
        return False

    def _is_best(self, node: Any, response: Response) -> bool:
        if not self.is_newest and self._floor is None:
            self.source = (node, response)
            return True
        when = source_timestamp(response.headers)
        if self._floor is not None and when < self._floor:
            response.close()
            return False
        if self.source is not None:
            # Of the same data the newest metadata: a device may have missed a POST.
            best = self._source_time, _metadata_timestamp(self.source[1].headers)
            if (when, _metadata_timestamp(response.headers)) <= best:
                response.close()
                return True
            self.source[1].close()
        self.source, self._source_time = (node, response), when
        return True

    # -- the whole -----------------------------------------------------------------------------------------------------

    def run(self, concurrency: int = 1, stagger_s: float = 0.0) -> Response:
        """The answer for the client. Its body still streams from the node; ``self.source`` tells which."""
        if concurrency > 1 and not self.is_newest:
            self._run_staggered(concurrency, stagger_s)
        else:
            for node in self.nodes:
                response = self.ask(node)
                if response is not None and self.consider(node, response) and not self.is_newest:
                    break
        self._drop_outdated()
        answer = self._answer()
        if answer.status == 503:
            while (self.source is None or self.is_newest) and (node := self.nodes.last_resort()) is not None:
                response = self.ask(node)
                if response is not None:
                    self.consider(node, response)
            self._drop_outdated()
            answer = self._answer()
        return answer

    def _drop_outdated(self) -> None:
        """The newest is asked for, and a tombstone is newer than what was found."""
        if self.source is not None and self._floor is not None and self.is_newest and self._source_time < self._floor:
            self.source[1].close()
            self.source = None

    def _answer(self) -> Response:
        if self.source is not None:
            response = self.source[1]
            found = Response(response.status, client_headers(response.headers, keep_length=True), response.body,
                             response.app_iter)
            policy = dict.get(response.headers, "X-Backend-Storage-Policy-Index")
            if policy is not None:
                known = self.app.cluster.policies.get(policy)
                if known is not None:
                    dict.__setitem__(found.headers, "X-Storage-Policy", known.name)
            return found
        answer = outcome(self._answers)
        if answer.status == 404 and self._missing < quorum_size(self.nodes.primary_count):
            if not self.is_object or self._floor is None:  # no tombstone proves it
                self.app.logger.warning("%s %s: too few primaries know that it is not there", self.target.method,
                                        self.target.path)
                return Response(503)
        return answer

    def _run_staggered(self, concurrency: int, stagger_s: float) -> None:
        """Ask one node more every ``stagger_s`` seconds, up to ``concurrency`` at once, until one serves."""
        news: list[tuple[Any, Response | None]] = []
        waking = [Event()]
        is_over = [False]

        def work(node: Any) -> None:
            response = None
            try:
                response = self.ask(node)
            except Exception as error:
                self.app.log_failure(error)
            finally:  # whatever ended it: who waits must hear of it
                if not is_over[0]:
                    news.append((node, response))
                    waking[0].set()
                elif response is not None:
                    response.close()

        running = 0
        nodes: Iterable[Any] = iter(self.nodes)
        exhausted = False
        while True:
            if not exhausted and running < concurrency:
                node = next(nodes, None)  # type: ignore[call-overload]
                if node is None:
                    exhausted = True
                else:
                    spawn(work, node)
                    running += 1
            if not running:
                return
            if not news:
                may_add = not exhausted and running < concurrency
                try:
                    waking[0].wait(stagger_s if may_add else None)
                except WaitTimeout:
                    if not may_add:
                        raise  # the limit of somebody further out
                    continue
            waking[0] = Event()
            while news:
                node, response = news.pop(0)
                running -= 1
                if response is not None and self.consider(node, response):
                    is_over[0] = True
                    for _node, other in news:
                        if other is not None:
                            other.close()
                    return
