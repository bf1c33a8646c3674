"""One request to many nodes until a quorum has an outcome (``spec: proxy 5``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from keelstore.common.backend import Upload
from keelstore.common.concurrency import Event, start_all, time_limit
from keelstore.common.errors import BackendError, KeelstoreError, WaitTimeout
from keelstore.common.headers import BUSY, REASON, ROOM, Headers, is_true
from keelstore.common.http import Response
from keelstore.common.quorum import best_response, have_quorum
from keelstore.proxy.placement import Nodes
from keelstore.proxy.request import ProxyRequest, client_headers

if TYPE_CHECKING:
    from keelstore.proxy.app import ProxyApp

T = TypeVar("T")
POLICY = "X-Backend-Storage-Policy-Index"
STORED_LENGTH = "X-Backend-Obj-Content-Length"
MAX_ANSWER = 1 << 20  # bytes kept of an answer's body; beyond, the node is broken


@dataclass(slots=True)
class Answer:
    """What one node said in the end; the body has been read."""

    status: int
    headers: Headers
    body: bytes | None = b""  # None: what its status explains
    node: Any = None
    index: int = -1  # of the request that it answers


def has_timestamp(headers: Headers) -> bool:
    """Whether a 404 proves something: the node knows when what it lacks was deleted."""
    value = dict.get(headers, "X-Backend-Timestamp")
    return value is not None and value.strip("0._") != ""


def address_of(node: Any, use_replication: bool) -> tuple[str, int]:
    found: tuple[str, int] = node.replication_address if use_replication else node.address
    return found


def read_short(response: Response, seconds: float) -> bytes:
    """The body of an answer that is little, and there at once, if its node is sound. Raises FAILURES, or ValueError."""
    if response.app_iter is None:
        return response.body or b""
    with time_limit(seconds):
        return response.read(MAX_ANSWER)


class Gathering(Generic[T]):
    """What ``count`` jobs give, until ``is_enough``; None does not count."""

    __slots__ = ("_ended", "_enough", "_is_enough", "_left", "_results")

    def __init__(self, count: int, is_enough: Callable[[list[T]], bool]):
        self._left, self._is_enough = count, is_enough
        self._results: list[T] = []
        self._enough: Event | None = None  # made when somebody has to wait
        self._ended: Event | None = None

    def give(self, result: T | None) -> None:
        """One of the jobs has ended."""
        results = self._results
        if result is not None:
            results.append(result)
        self._left -= 1
        if not self._left:
            for event in (self._enough, self._ended):
                if event is not None:
                    event.set()
        elif self._enough is not None and not self._enough.is_set and self._is_enough(results):
            self._enough.set()

    def start(self, jobs: Sequence[Callable[[], T | None]], on_failure: Callable[[BaseException], None]) -> None:
        """Run jobs in green threads. One that raises gives nothing; ``on_failure`` is told."""

        def run(job: Callable[[], T | None]) -> None:
            result = None
            try:
                result = job()
            except Exception as error:
                on_failure(error)
            finally:  # whatever ended it: who waits must hear of it
                self.give(result)

        if jobs:
            start_all([partial(run, job) for job in jobs])

    def wait(self, grace_s: float) -> list[T]:
        """What they gave until it is enough, and for ``grace_s`` more, in order of arrival. What is still running then runs
        on unheard: each of its waits is bounded.
        """
        self.until_enough()
        if self._left and grace_s > 0:
            self._ended = Event()
            try:
                self._ended.wait(grace_s)
            except WaitTimeout:
                pass
        return list(self._results)

    def until_enough(self, seconds: float | None = None) -> None:
        """Wait for that, or for all. Raises WaitTimeout after ``seconds``."""
        if self._left and not self._is_enough(self._results):
            self._enough = Event()
            self._enough.wait(seconds)


def gather(
    jobs: Sequence[Callable[[], T | None]],
    is_enough: Callable[[list[T]], bool],
    grace_s: float,
    on_failure: Callable[[BaseException], None],
) -> list[T]:
    """Run jobs in green threads: :class:`Gathering`."""
    gathering = Gathering(len(jobs), is_enough)
    gathering.start(jobs, on_failure)
    return gathering.wait(grace_s)


def ask_in_turn(
    app: ProxyApp,
    nodes: Iterable[Any],
    method: str,
    part: int,
    path: str,
    headers: Headers,
    query: str = "",
    body: bytes = b"",
    digest: Callable[[], str] | None = None,
    use_replication: bool = False,
) -> Answer | None:
    """The first answer below 500 of the nodes, one after the other; None when no node gave one."""
    for node in nodes:
        try:
            response = app.backend.call(
                address_of(node, use_replication), method, f"/{node.device}/{part}{path}", headers, query=query,
                body=body, timeout_s=app.health.patience_s(node, app.options.node_timeout), digest=digest,
            )  # fmt: skip
            status = response.status
            data = read_short(response, app.options.node_timeout)
        except (BackendError, WaitTimeout, OSError, ValueError) as error:
            app.health.failed(node, f"{method} {path}", error)
            continue
        answer = answer_of(app, node, method, path, status, response.headers, data, len(body))
        if answer is not None and not (status == 404 and node.is_handoff and not has_timestamp(response.headers)):
            return answer
    return None


def answer_of(app: ProxyApp, node: Any, method: str, path: str, status: int, headers: Headers, body: bytes | None,
              size: int) -> Answer | None:
    """What a node has said, when it counts: not a failure, which is noted. ``size``: of the request's body."""
    app.health.answered(node)
    if status >= 500:
        note_failure(app, node, method, path, status, headers, size)
        return None
    return Answer(status, headers, body, node)


def upload_in_turn(
    app: ProxyApp,
    nodes: Nodes,
    part: int,
    path: str,
    headers: Headers,
    length: int | None,
    digest: Callable[[], str],
    offers: Sequence[str] = (),
    use_replication: bool = False,
) -> tuple[Any, Upload] | Answer | None:
    """The first of the nodes, one after the other, that takes the body of a PUT and ``offers`` what it needs (in its 100
    Continue), and the upload to it; or the answer, below 500, of one that wants no body. None when there is neither.

    Each wait of the upload is bounded as any node's, also where this one was not trusted to answer in that time.
    """
    size = announced(length, headers)
    for node in nodes:
        upload = None
        try:
            upload = app.backend.upload(
                address_of(node, use_replication), f"/{node.device}/{part}{path}", headers, method="PUT", length=length,
                timeout_s=app.options.node_timeout, digest=digest,
            )  # fmt: skip
            response = upload.ready(app.health.patience_s(node, app.options.node_timeout))
            app.health.answered(node)
            if response is None:
                lacks = [name for name in offers if not is_true(upload.continue_headers.get(name))]
                if not lacks:
                    return node, upload
                upload.abort()
                app.health.error(node, f"PUT {path}: does not offer {', '.join(lacks)}")
                continue
            body = read_short(response, app.options.node_timeout)
        except (*FAILURES, ValueError) as error:
            if upload is not None:
                upload.abort()
            app.health.failed(node, f"PUT {path}", error)
            continue
        upload.abort()
        if response.status < 500:
            return Answer(response.status, response.headers, body, node)
        note_failure(app, node, "PUT", path, response.status, response.headers, size)
    return None


def announced(length: int | None, headers: Headers) -> int:
    """How many bytes a node is told that it will have to store, 0 where that is not known."""
    if length is None:
        said = dict.get(headers, STORED_LENGTH)
        return int(said) if said else 0
    return length


def note_failure(app: ProxyApp, node: Any, method: str, path: str, status: int, headers: Headers, size: int = 0) -> None:
    """A node answered 5xx. 503 for having enough to do: pass it by for a moment. 507 for want of room for a PUT of ``size``
    bytes: pass it by with such; any other 507: leave it alone at once; else count it.
    """
    if status == 503 and dict.get(headers, REASON) == BUSY:
        app.health.busy(node)
    elif status == 507 and dict.get(headers, REASON) == ROOM:
        app.health.full(node, size if method == "PUT" else 0, f"{method} {path}")
    elif status == 507:
        app.health.limit_now(node, f"{method} {path}: 507 Insufficient Storage")
    elif status >= 500:
        app.health.error(node, f"{method} {path}: answered {status}")


def to_quorum(
    app: ProxyApp,
    request: ProxyRequest,
    nodes: Iterable[Any],
    method: str,
    part: int,
    path: str,
    headers: Sequence[Headers],
    query: str = "",
    body: bytes = b"",
    digest: Callable[[], str] | None = None,
) -> list[Answer]:
    """Send one request for each of ``headers``; the answers, as many as came in time, padded with 503.

    An object's that no node took is to be repaired from the others.
    """
    count = len(headers)
    asking = Asking(app, request, method, part, path, headers, query, body, digest)
    answers = gather([partial(asking.one, index, nodes) for index in range(count)], quorum_of(count),
                     app.options.post_quorum_timeout, app.log_failure)
    return pad(answers, count)


def quorum_of(count: int) -> Callable[[list[Answer]], bool]:
    """Whether so many answers of ``count`` make an outcome."""
    return lambda found: have_quorum([answer.status for answer in found], count)


@dataclass(slots=True)
class Asking:
    """What :func:`to_quorum` asks: requests that differ in their ``headers``."""

    app: ProxyApp
    request: ProxyRequest
    method: str
    part: int
    path: str
    headers: Sequence[Headers]
    query: str = ""
    body: bytes = b""
    digest: Callable[[], str] | None = None

    def one(self, index: int, nodes: Iterable[Any]) -> Answer | None:
        """The answer to the request of this index."""
        own, app = self.headers[index], self.app
        answer = ask_in_turn(app, nodes, self.method, self.part, self.path, own, self.query, self.body, self.digest,
                             self.request.uses_replication_network)
        if answer is not None:
            answer.index = index
        elif POLICY in own and self.path.count("/") > 2:
            app.repair.ask(int(own[POLICY]), self.part, self.path)
        return answer


def pad(answers: list[Answer], count: int) -> list[Answer]:
    while len(answers) < count:
        answers.append(Answer(503, Headers()))
    return answers


def are_all_good(answers: Sequence[Answer], count: int) -> bool:
    """Whether so many have done what was asked."""
    return len(answers) >= count and all(answer.status // 100 == 2 for answer in answers)


def outcome(answers: Sequence[Answer], quorum: int | None = None, overrides: Mapping[int, int] | None = None) -> Response:
    """The one answer that many make: that of the best class with a quorum, or 503."""
    best = best_response([answer.status for answer in answers], quorum, overrides)
    if best is None:
        return Response(503)
    status, index = best
    answer = answers[index]
    return Response(status, client_headers(answer.headers), answer.body if answer.status == status else None)


def early_answer(
    answers: Sequence[Answer], live: int, count: int, quorum: int, environ: Mapping[str, Any]
) -> Response | None:
    """The client's answer to a PUT when the first answers of its nodes already settle it; ``live`` nodes take the body."""
    statuses = [answer.status for answer in answers]
    if 412 in statuses and "HTTP_IF_NONE_MATCH" in environ:
        return Response(412)
    if 409 in statuses:
        return Response(202)
    return outcome(pad(list(answers), count), quorum) if live < quorum else None


FAILURES = (KeelstoreError, OSError)
