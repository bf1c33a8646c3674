"""Reading an object from its fragments (``spec: proxy 14``).

``fragments`` decides which answers can be decoded and what is missing; here nodes are asked until that suffices, and
``erasure_body`` makes the object of what they send.

A read is told "not found" only when a quorum of primaries knows, or a tombstone proves it; an object that is known to be
there but of which too few fragments are within reach is 503.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keelstore.common import byteranges
from keelstore.common.codec import codec_for
from keelstore.common.concurrency import Event, spawn
from keelstore.common.errors import BackendError, WaitTimeout
from keelstore.common.headers import CHECK_FIRST, Headers
from keelstore.common.http import BODY_CHECKED, Response
from keelstore.common.policy import ErasureCodingPolicy
from keelstore.common.quorum import quorum_size
from keelstore.common.ranged import ranged_response
from keelstore.common.relay import close
from keelstore.proxy.erasure_body import FragmentBody, Fragments, Stream
from keelstore.proxy.fanout import FAILURES, Answer, has_timestamp, note_failure, outcome, read_short
from keelstore.proxy.fragments import (
    EC_ETAG,
    EC_LENGTH,
    EC_PREFIX,
    Bucket,
    Choice,
    Facts,
    archive_range,
    facts_of,
    preferences,
)
from keelstore.proxy.options import PolicyOptions
from keelstore.proxy.reader import Reading
from keelstore.proxy.request import ProxyRequest, client_headers

if TYPE_CHECKING:
    from keelstore.proxy.app import ProxyApp

PREFERENCES = "X-Backend-Fragment-Preferences"
ETAG_IS_AT = "X-Backend-Etag-Is-At"


def prepare(headers: Headers) -> None:
    """Make conditions be judged by the object's ETag, not that of the fragment archive."""
    others = headers.get(ETAG_IS_AT)
    headers[ETAG_IS_AT] = f"{others},{EC_ETAG}" if others else EC_ETAG


def as_object(headers: Headers, is_head: bool = False) -> None:
    """Turn the headers of a fragment into those of the object."""
    etag, length = headers.get(EC_ETAG), headers.get(EC_LENGTH)
    if etag is not None:
        headers["Etag"] = etag
    if length is not None and is_head:
        headers["Content-Length"] = length
    for name in [name for name in headers if name.startswith(EC_PREFIX)]:
        del headers[name]


def get(app: ProxyApp, request: ProxyRequest, policy: ErasureCodingPolicy, reading: Reading, own: PolicyOptions,
        stagger_s: float) -> Response:
    """The answer to GET, from ``reading``'s nodes."""
    return _FragmentRead(app, request, policy, reading, own, stagger_s).run()


class Source:
    """A node and its answer."""

    __slots__ = ("node", "response")

    def __init__(self, node: Any, response: Response):
        self.node, self.response = node, response


class _FragmentRead:
    def __init__(self, app: ProxyApp, request: ProxyRequest, policy: ErasureCodingPolicy, reading: Reading,
                 own: PolicyOptions, stagger_s: float):
        self.app, self.request, self.policy, self.reading, self.own = app, request, policy, reading, own
        self.stagger_s = stagger_s
        self.codec = codec_for(policy.scheme, policy.ndata, policy.nparity)
        self.choice = Choice(policy)
        self.nodes = reading.nodes
        self.pairs = byteranges.parse_pairs(request.header("Range"))
        self._news: list[tuple[Any, Response | None]] = []
        self._waking = Event()
        self._is_over = False
        self._running = self._asked = 0
        self._has_lost = False  # a primary has nothing, and knows of no reason why
        self._missing = 0  # primaries that have nothing, or nothing durable
        self._answers: dict[int, Answer] = {}  # of bad answers, by id of their facts
        self._told_asked: set[tuple[str, int]] = set()

    def run(self) -> Response:
        try:
            self._gather()
        finally:
            self._is_over = True
            for _node, response in self._news:
                if response is not None:
                    response.close()
        bucket = self.choice.can_serve
        if self.reading.is_newest and bucket is not None and bucket is not self.choice.newest_durable():
            bucket = None  # the newest is there, but not enough of it
        for other in self.choice.buckets.values():
            if other is not bucket:
                _close(facts for group in other.answers.values() for facts in group)
        if bucket is None:
            return self._nothing()
        if self._has_lost:
            self.app.repair.ask(self.policy.index, self.reading.target.part, self.reading.target.path)
        return self._serve(bucket)

    # -- asking --------------------------------------------------------------------------------------------------------

    def _gather(self) -> None:
        policy, own = self.policy, self.own
        wanted, everyone = policy.ndata, self.nodes.primary_count
        if self.reading.is_newest:
            wanted = everyone
        elif own.concurrent_gets:
            wanted = min(policy.ndata + own.concurrent_ec_extra_requests, everyone)
        for _ in range(wanted):
            if not self._start():
                break
        while self._running or self._news:
            is_hedging = own.concurrent_gets
            if not self._news:
                try:
                    self._waking.wait(self.stagger_s if is_hedging else None)
                except WaitTimeout:
                    if not is_hedging:
                        raise  # the limit of somebody further out
                    if not self._start():
                        own = PolicyOptions()  # nobody is left to ask beside those
                    continue
            self._waking = Event()
            while self._news:
                node, response = self._news.pop(0)
                self._running -= 1
                if response is not None:
                    self._consider(node, response)
            if self.choice.can_serve is not None and not (self.reading.is_newest and self._running):
                return
            while self.choice.shortfall > self._running and self._start():
                pass

    def _start(self) -> bool:
        """Ask one node more; whether there was one."""
        node = None
        if self._asked > self.policy.ndata:
            node = self._told()
        if node is None:
            node = next(self.nodes, None) or self._told() or self._last_resort()
        if node is None:
            return False
        self._asked += 1
        headers = Headers(self.reading.target.headers)
        headers[PREFERENCES] = self.choice.preferences()
        if self.pairs:
            headers["Range"] = archive_range(*self.pairs[0], self.policy.segment_size,
                                             self.codec.fragment_size(self.policy.segment_size))
        else:
            headers.pop("Range", None)
        self._running += 1
        if self.app.backend.is_local(node.address) and not self.own.concurrent_gets:
            self._ask(node, headers)
        else:
            spawn(self._ask, node, headers)
        return True

    def _last_resort(self) -> Any:
        """One of the devices that are left alone for a while, where without them the answer could only be 503."""
        if self._running or (self.choice.best is None and self._missing >= quorum_size(self.nodes.primary_count)):
            return None
        return self.nodes.last_resort()

    def _told(self) -> Any:
        """A node that was asked already, but holds another fragment of what is wanted."""
        bucket = self.choice.best
        if bucket is None or not bucket.is_durable:
            return None
        for index, group in bucket.told.items():
            if index in bucket.answers:
                continue
            for facts in group:
                key = (facts.source.node.key, index)
                if key not in self._told_asked:
                    self._told_asked.add(key)
                    return facts.source.node
        return None

    def _ask(self, node: Any, headers: Headers) -> None:
        response = None
        try:
            response = self.reading.ask(node, headers)
        except Exception as error:
            self.app.log_failure(error)
        finally:  # whatever ended it: who waits must hear of it
            if not self._is_over:
                self._news.append((node, response))
                self._waking.set()
            elif response is not None:
                response.close()

    def _consider(self, node: Any, response: Response) -> None:
        status, headers = response.status, response.headers
        facts = facts_of(status, headers, Source(node, response))
        if self.choice.add(facts):
            if facts.durable is None and not node.is_handoff:
                self._missing += 1
            return
        if facts.is_good:
            response.close()
            self.app.logger.warning("GET %s: %s holds fragment %s of another object of the same time",
                                    self.reading.target.path, node.key, facts.fragment)
            return
        note_failure(self.app, node, "GET", self.reading.target.path, status, headers)
        if status == 404 and not node.is_handoff:
            self._missing += 1
            self._has_lost = self._has_lost or not has_timestamp(headers)
        if node.is_handoff and not has_timestamp(headers) and (status == 404 or status >= 500):
            response.close()
            return
        try:
            self._answers[id(facts)] = Answer(status, headers, read_short(response, self.app.options.node_timeout), node)
        except (*FAILURES, ValueError) as error:
            self.app.health.error(node, f"GET {self.reading.target.path}: {error}")

    # -- answering -----------------------------------------------------------------------------------------------------

    def _nothing(self) -> Response:
        """The answer when there is no object that can be decoded."""
        choice = self.choice
        suppressed = min(self.own.rebalance_missing_suppression_count, self.nodes.primary_count - 1)
        counted = [self._answers[id(facts)] for facts in choice.answers_that_count(suppressed)
                   if id(facts) in self._answers]
        durable = choice.newest_durable()
        waiting = [facts for bucket in choice.ranked() if not bucket.is_durable
                   for group in bucket.answers.values() for facts in group]
        answers = counted if durable else counted + [Answer(404, Headers()) for _ in waiting]
        answer = outcome(answers) if answers else Response(503)
        if answer.status in (304, 412, 416):
            as_object(answer.headers)
            return answer
        if durable is not None:
            self.app.logger.warning("GET %s: %d of %d fragments are within reach", self.reading.target.path,
                                    durable.have, self.policy.ndata)
            return Response(503)
        if answer.status == 404:
            if self._missing < quorum_size(self.nodes.primary_count) and not choice.newest_tombstone.normal.strip("0."):
                self.app.logger.warning("GET %s: too few primaries know that it is not there",
                                        self.reading.target.path)
                return Response(503)
            as_object(answer.headers)
        return answer

    def _serve(self, bucket: Bucket) -> Response:
        chosen = bucket.chosen()
        used = {id(facts) for facts in chosen}
        _close(facts for group in bucket.answers.values() for facts in group if id(facts) not in used)
        try:
            return self._answer(bucket, chosen)
        except BaseException:
            _close(chosen)
            raise

    def _answer(self, bucket: Bucket, chosen: list[Facts]) -> Response:
        newest = max(chosen, key=lambda facts: facts.time or bucket.timestamp)  # it has the newest metadata
        source: Response = newest.source.response
        length_text, segment_text = source.headers.get(EC_LENGTH, ""), source.headers.get(f"{EC_PREFIX}Segment-Size", "")
        if not length_text.isdigit():
            raise BackendError(f"GET {self.reading.target.path}: a fragment without the object's size")
        length = int(length_text)
        segment_size = int(segment_text) if segment_text.isdigit() and int(segment_text) else self.policy.segment_size
        nodes = [facts.source.node for facts in _all(bucket) if facts not in chosen]
        told = [facts.source.node for group in bucket.told.values() for facts in group]
        streams = [Stream.of(facts.source.node, facts.source.response, facts.fragment) for facts in chosen
                   if facts.fragment is not None]
        is_whole = self.pairs is None or any(facts.status == 200 for facts in chosen)
        is_checked = all(stream.is_checked for stream in streams)
        fragments = Fragments(self.codec, segment_size, length, streams,
                              _Opener(self.reading, bucket, [*nodes, *told], self.codec.fragment_size(segment_size)),
                              is_compared=not is_whole)
        answer = Response(200, client_headers(source.headers))
        headers = answer.headers
        for name in ("Content-Range", BODY_CHECKED):
            dict.pop(headers, name, None)
        as_object(headers)
        if source.status == 416:
            self._mend_type(headers, fragments, length)

        spans = byteranges.spans_of(self.pairs, length) if self.pairs and not is_whole else None
        is_alone = spans is None or len(spans) == 1

        def read_range(start: int, stop: int) -> FragmentBody:
            check = bucket.etag if not is_checked and not start and stop == length else ""
            return FragmentBody(fragments, start, stop, check, is_alone)

        if is_whole:
            if is_checked:
                headers[BODY_CHECKED] = "true"
            headers["Content-Length"] = str(length)
            if length:
                answer.app_iter = read_range(0, length)
                if length <= segment_size:
                    try:
                        answer.body = b"".join(answer.app_iter)
                    finally:
                        fragments.close()  # a file of this process is let go by nobody else
                    answer.app_iter = None
            else:
                answer.body = b""
                fragments.close()
            return answer
        answer = ranged_response(self.request, answer, length, read_range)
        if answer.app_iter is None:
            fragments.close()
        elif not is_alone:
            answer.app_iter = _Parts(answer.app_iter, fragments)
        return answer

    def _mend_type(self, headers: Headers, fragments: Fragments, length: int) -> None:
        """A node that cannot give the first range asked for does not say what type the object has; another range may
        need it.
        """
        if byteranges.spans_of(self.pairs or (), length):
            found = fragments.headers()
            for name in ("Content-Type", "Content-Encoding"):
                headers[name] = found.get(name)


class _Opener:
    """Opens fragment archives of one object anywhere; see ``erasure_body``."""

    def __init__(self, reading: Reading, bucket: Bucket, known: list[Any], fragment_size: int):
        self._reading, self._bucket, self._known, self._fragment_size = reading, bucket, known, fragment_size
        self.path = reading.target.path

    def others(self, is_needed: bool = True) -> Any:
        """A node not tried before that may have another fragment, or None. ``is_needed``: devices that are left alone for a
        while are asked before there is none.
        """
        if self._known:
            return self._known.pop(0)
        node = next(self._reading.nodes, None)
        return self._reading.nodes.last_resort() if node is None and is_needed else node

    def failed(self, node: Any, error: object) -> None:
        self._reading.app.health.error(node, f"GET {self.path}: {error}")

    def open(self, node: Any, first: int, last: int, exclude: frozenset[int], is_checked: bool = False) -> Stream | None:
        """The node's fragments of segments ``first`` to ``last``, of an index not in ``exclude``; None when it has none
        that fits. ``is_checked``: it is to read its archive first, and give nothing that is not as it was written.
        """
        headers = Headers(self._reading.target.headers)
        for name in ("If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since",
                     "X-Backend-Ignore-Range-If-Metadata-Present"):
            dict.pop(headers, name, None)
        size = self._fragment_size
        headers["Range"] = f"bytes={first * size}-{(last + 1) * size - 1}"
        headers[PREFERENCES] = preferences([(self._bucket.timestamp, exclude)])
        if is_checked:
            headers[CHECK_FIRST] = "true"
        response = self._reading.ask(node, headers)
        if response is None:
            return None
        facts = facts_of(response.status, response.headers)
        if (response.status in (200, 206) and facts.fragment is not None and facts.fragment not in exclude
                and facts.data_time == self._bucket.timestamp and facts.etag == self._bucket.etag):
            return Stream.of(node, response, facts.fragment)
        response.close()
        return None


class _Parts:
    """The body of an answer of several ranges; closes the fragments with it."""

    def __init__(self, parts: Any, fragments: Fragments):
        self._parts, self._fragments = parts, fragments

    def __iter__(self) -> Any:
        try:
            yield from self._parts
        finally:
            self.close()

    def close(self) -> None:
        close(self._parts)
        self._fragments.close()


def _all(bucket: Bucket) -> list[Facts]:
    return [facts for group in bucket.answers.values() for facts in group]


def _close(answers: Any) -> None:
    for facts in answers:
        facts.source.response.close()
