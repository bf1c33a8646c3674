"""A lost fragment made anew, out of those on other devices, and checked before it is given away.

The MD5 of the whole that was decoded must be the object's ETag; a code with ``ndata`` fragments at hand has one answer
only, so the right object proves every fragment that went into it, and the one that came out. An archive that is small
enough is made whole, and checked, before anything of it is sent; so several objects at a time can be read and hashed side by
side (``shared_digests.py``) while another is on its way. Where one is wrong, every server is made to check what it holds,
and the rotten is replaced. Of a larger archive a segment is in memory, and its last fragment is held back until the MD5 is
right; where it is not, the peer is told to forget what it got.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import md5
from typing import Final

from keelstore.common import concurrency, reads
from keelstore.common.codec import Codec, FragmentError, FragmentFacts, codec_for
from keelstore.common.digests import Feed, digests, take_together
from keelstore.common.disk_calls import Begun, begin_on_disk_thread
from keelstore.common.errors import BackendError
from keelstore.common.headers import CHECK_FIRST, READER_CHECKS, Headers
from keelstore.common.http import Response
from keelstore.common.peers import Peers
from keelstore.common.policy import ErasureCodingPolicy
from keelstore.common.relay import file_region
from keelstore.common.ring.ring import Node, Ring
from keelstore.obj.place import Place
from keelstore.obj.reader import StoredObject
from keelstore.obj.rebuild_choice import (
    EC_ETAG,
    EC_INDEX,
    EC_LENGTH,
    EC_SEGMENT,
    Answer,
    Gathering,
    answer_of,
    in_order,
    number,
    wish,
)
from keelstore.obj.shared_digests import SharedDigests
from keelstore.obj.ssync.protocol import SsyncError
from keelstore.obj.ssync.sender import MADE_AHEAD

HASHED_APART: Final = 65536  # bytes from which on their hashing is worth a native thread,
HASHED_AT_ONCE: Final = 2 << 20  # and of an object that go there together: each time costs several turns of threads
MADE_WHOLE: Final = MADE_AHEAD  # bytes of a new archive up to which it is made before it is sent,
MAX_HELD: Final = 96 << 20  # as long as all that wait to be sent have no more than this
READ_AHEAD: Final = 4 << 20  # bytes of an object, on devices here, that are read in one go
MAX_KNOWN_BAD: Final = 10_000
UNBUILDABLE_AFTER_S: Final = 60.0  # an object this young may still be on its way to its devices
BAD_FOR_S: Final = 10.0  # how long an object is left alone that turned out wrong in mid-stream


class Unbuildable(Exception):
    """Too few fragments that fit together."""


class Source:
    """The answer of one node, read piece by piece."""

    __slots__ = ("_ahead", "_at", "_fd", "_held", "_left", "_pieces", "_reading", "_response", "node", "ordered")

    def __init__(self, node: Node, response: Response):
        self.node, self._response = node, response
        body = response.body
        self._held = [body] if body else []
        self._pieces: Iterator[bytes] = iter(response.app_iter or ())
        found = file_region(response.app_iter)
        place: tuple[int, int, int] = found or (-1, 0, 0)
        self._fd, self._at, self._left = place  # of a server in this process: its file is read here
        self._reading: Begun | None = None
        self._ahead: deque[bytes] = deque()
        self.ordered = 0  # pieces, so far

    @property
    def etag(self) -> str:
        """Of the whole archive."""
        return (self._response.headers.get("Etag") or "").strip('"')

    def wants_orders(self) -> bool:
        """Whether :meth:`order` is to be called now, as nothing is on its way, and not more at hand than one piece: the next
        are read while that one is worked on.
        """
        return self._fd >= 0 and self._reading is None and len(self._ahead) <= 1

    def order(self, sizes: Sequence[int]) -> None:
        """Have the pieces read that are taken next, on a thread of their device."""
        count = sum(sizes)
        if sizes and count <= self._left:
            self._reading = begin_on_disk_thread(self.node.device, _read_pieces, self._fd, self._at, sizes)
            self._at += count
            self._left -= count
            self.ordered += len(sizes)

    def take(self, size: int) -> bytes:
        """The next ``size`` bytes. Raises BackendError."""
        if self._fd >= 0:
            return self._read_file(size)
        held, have = self._held, sum(map(len, self._held))
        while have < size:
            piece = next(self._pieces, b"")
            if not piece:
                raise BackendError(f"the fragment archive ends {size - have} bytes early", node=self.node.replication_address)
            held.append(piece)
            have += len(piece)
        data = held[0] if len(held) == 1 else b"".join(held)
        self._held = [data[size:]] if have > size else []
        return data[:size] if have > size else data

    def _read_file(self, size: int) -> bytes:
        """As ``take``: what was ordered."""
        if self._reading is not None and not self._ahead:
            try:
                self._ahead.extend(self._reading.wait())
            except OSError as error:
                self._reading = None
                raise BackendError(f"the fragment archive cannot be read: {error}",
                                   node=self.node.replication_address) from error
            self._reading = None
        data = self._ahead.popleft() if self._ahead else b""
        if len(data) != size:
            raise BackendError("the fragment archive ends early", node=self.node.replication_address)
        return data

    def close(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:  # its file must stay open
            with suppress(Exception):
                reading.wait()
        self._response.close()


def _read_pieces(fd: int, at: int, sizes: Sequence[int]) -> list[bytes]:
    """On a disk thread."""
    found = []
    for size in sizes:
        found.append(reads.read_at(fd, size, at))
        at += size
    return found


@dataclass(frozen=True)
class RebuildOptions:
    node_timeout_s: float = 10.0
    quarantine_threshold: int = 0
    quarantine_age_s: float = 604800.0
    max_nodes: Callable[[int], int] = lambda replicas: 2 * replicas  # to ask, of so many replicas
    made_whole: int = MADE_WHOLE


class Rebuilder:
    def __init__(self, peers: Peers, options: RebuildOptions, log: logging.Logger, clock: Callable[[], float],
                 quarantine: Callable[[Place, str], bool], user_agent: str = "object-reconstructor"):
        self._peers, self._options, self._log, self._clock, self._quarantine = peers, options, log, clock, quarantine
        self._agent = user_agent
        self.unbuildable: dict[tuple[str, str], float] = {}  # objects with too few fragments, and when that was last seen
        self._bad: dict[tuple[str, str], float] = {}  # objects whose rebuild broke off in mid-stream: not before this time
        self.objects = self.bytes = self.failures = 0
        self._digests = SharedDigests()
        self._held = 0  # bytes of archives that wait to be sent

    def build(self, opened: StoredObject, policy: ErasureCodingPolicy, ring: Ring, own: Node,
              fragment: int) -> Rebuilt | None:
        """``fragment`` of an object of which another one is open here; None, and a line in the log, when it cannot be."""
        key = (opened.place.name_hash, opened.data_timestamp.internal)
        if self._bad.get(key, 0.0) > self._clock():
            return None
        etag, mine = opened.data_metadata.get(EC_ETAG, ""), number(opened.data_metadata, EC_INDEX, -1)
        gathering = Gathering(policy.ndata, policy.fragments, opened.data_timestamp, etag, fragment)
        part = int(opened.place.partition)
        fetch = _Fetch(self, opened, policy, ring, own, part, gathering)
        fetch.is_suspicious = key in self._bad
        rebuilt = None
        try:
            fetch.primaries()
            age_s = self._clock() - float(opened.data_timestamp)
            options = self._options
            is_candidate = gathering.is_solitary(mine, age_s, options.quarantine_age_s, options.quarantine_threshold)
            if gathering.shortfall and not gathering.deleted:
                fetch.handoffs()
            if not gathering.shortfall:
                rebuilt = Rebuilt(self, key, opened, codec_for(policy.scheme, policy.ndata, policy.nparity), gathering, fetch,
                                  policy.segment_size)
                rebuilt.begin()
                self.unbuildable.pop(key, None)
                return rebuilt
            if self._give_up(opened, gathering, fetch, policy, fragment, is_candidate, mine, age_s):
                self._has_too_few(key, age_s)
            else:
                self.unbuildable.pop(key, None)
        except Unbuildable as error:
            self.failures += 1
            self._has_too_few(key, age_s)
            self._log.error("%s of %s cannot be rebuilt: %s", f"fragment #{fragment}", opened.place.name, error)
        except BaseException:
            fetch.close()
            raise
        fetch.close()
        return None

    def _give_up(self, opened: StoredObject, gathering: Gathering, fetch: _Fetch, policy: ErasureCodingPolicy, fragment: int,
                 is_candidate: bool, mine: int, age_s: float) -> bool:
        """Say why; whether the object is still to be had here, and so lacks fragments."""
        if gathering.deleted:
            self._log.info("%s is deleted elsewhere: fragment #%d is not rebuilt", opened.place.name, fragment)
            return False
        self.failures += 1
        self._log.error("Unable to get enough responses %s to reconstruct %s policy %d frag#%d of %s at %s",
                        gathering.describe(is_candidate), "durable" if opened.found.durable else "non-durable", policy.index,
                        fragment, opened.place.name, opened.data_timestamp.internal)
        options = self._options
        if (is_candidate and gathering.is_solitary(mine, age_s, options.quarantine_age_s, options.quarantine_threshold)
                and fetch.is_unknown_at_home()):
            if self._quarantine(opened.place, f"Solitary fragment #{mine}"):
                self._log.warning("Quarantined object %s: Solitary fragment #%d", opened.place.directory, mine)
                return False
        return True

    def _has_too_few(self, key: tuple[str, str], age_s: float) -> None:
        if age_s > UNBUILDABLE_AFTER_S and (key in self.unbuildable or len(self.unbuildable) < MAX_KNOWN_BAD):
            self.unbuildable[key] = self._clock()

    def forget_unbuildable(self, before_s: float) -> None:
        """A pass has looked at everything since: what it did not find wanting is rebuilt, or gone from here."""
        self.unbuildable = {key: seen_s for key, seen_s in self.unbuildable.items() if seen_s >= before_s}

    def broke_off(self, key: tuple[str, str]) -> None:
        """What was half sent was wrong: the next sessions leave it out, so that others go on; after that every server is to
        check what it sends of it.
        """
        self.failures += 1
        if len(self._bad) >= MAX_KNOWN_BAD:
            self._bad.clear()
        self._bad[key] = self._clock() + BAD_FOR_S


class _Fetch:
    """The GETs of one rebuild. At most so many bodies are open as decoding needs."""

    def __init__(self, rebuilder: Rebuilder, opened: StoredObject, policy: ErasureCodingPolicy, ring: Ring, own: Node,
                 part: int, gathering: Gathering):
        self._rebuilder, self._policy, self._part, self._gathering = rebuilder, policy, part, gathering
        self._name = opened.place.name
        options = rebuilder._options
        primaries = ring.primaries(part)
        self.is_suspicious = False  # have every server check what it sends, so that it finds what is rotten
        self._homes = [node for node in primaries if policy.backend_index(node.index or 0) == gathering.fragment]
        self._waiting = in_order(primaries, own, policy.ndata, policy.fragments, gathering.fragment)
        self._handoffs = [node for node, _ in zip(ring.handoffs(part), range(max(
            0, options.max_nodes(len(primaries)) - len(primaries))), strict=False)]
        self._more: list[tuple[Node, frozenset[int]]] = []  # nodes that hold a further fragment, and what not to send

    def primaries(self) -> None:
        self._ask_until_enough(self._waiting)

    def handoffs(self) -> None:
        self._ask_until_enough(self._handoffs)

    def have_checked(self, node: Node) -> None:
        """Have a server read a fragment that is wrong once more, and check it: it puts it aside."""
        answer = self._ask(node, frozenset({self._gathering.fragment}))
        if answer.source is not None:
            answer.source.close()

    def is_unknown_at_home(self) -> bool:
        """Whether those whose fragment is to be made, who were not asked so far, know nothing of the object either."""
        for node in self._homes:
            answer = self._ask(node, frozenset())
            if answer.source is not None:
                answer.source.close()
            if answer.status != 404 or answer.time is not None:
                return False
        return True

    def more(self) -> bool:
        """Ask on, for what turned out to be of no use; whether there is enough again."""
        self.primaries()
        if self._gathering.shortfall:
            self.handoffs()
        return not self._gathering.shortfall

    def _ask_until_enough(self, nodes: list[Node]) -> None:
        gathering = self._gathering
        while gathering.shortfall and (nodes or self._more):
            batch: list[tuple[Node, frozenset[int]]] = []
            while len(batch) < gathering.shortfall and nodes:
                batch.append((nodes.pop(0), frozenset({gathering.fragment})))
            while len(batch) < gathering.shortfall and self._more:
                batch.append(self._more.pop(0))
            tasks = [concurrency.spawn(self._ask, node, exclude) for node, exclude in batch[1:]]
            answers = [self._ask(*batch[0]), *(task.wait() for task in tasks)]
            for answer in answers:
                if gathering.shortfall and gathering.add(answer):
                    further = answer.told - gathering.good.keys() - {gathering.fragment}
                    if further:
                        have = frozenset(answer.told - further | gathering.good.keys() | {gathering.fragment})
                        self._more.append((answer.source.node, have))
                elif answer.source is not None:
                    answer.source.close()

    def _ask(self, node: Node, exclude: frozenset[int]) -> Answer:
        gathering, rebuilder = self._gathering, self._rebuilder
        headers = Headers({
            "X-Backend-Storage-Policy-Index": str(self._policy.index), "X-Backend-Replication": "True",
            "X-Backend-Fragment-Preferences": wish(gathering.timestamp, exclude), "User-Agent": rebuilder._agent,
            CHECK_FIRST if self.is_suspicious else READER_CHECKS: "True",
        })  # fmt: skip
        try:
            response = rebuilder._peers.call(node.replication_address, "GET", f"/{node.device}/{self._part}{self._name}",
                                             headers, timeout_s=rebuilder._options.node_timeout_s)
        except BackendError as error:
            rebuilder._log.info("%s: %s", node.key, error)
            return Answer(0, is_handoff=node.is_handoff)
        if response.status != 200:
            response.close()
        return answer_of(response.status, response.headers, gathering.timestamp,
                         Source(node, response) if response.status == 200 else None, node.is_handoff)

    def close(self) -> None:
        for answer in self._gathering.good.values():
            answer.source.close()
        self._gathering.good.clear()


class Rebuilt:
    """The new fragment archive. ``begin`` makes the first part of it; or all, and checks that."""

    def __init__(self, rebuilder: Rebuilder, key: tuple[str, str], opened: StoredObject, codec: Codec, gathering: Gathering,
                 fetch: _Fetch, segment_size: int):
        self._rebuilder, self._key, self._codec, self._gathering, self._fetch = rebuilder, key, codec, gathering, fetch
        self._name = opened.place.name
        self.size = opened.size
        self._length = number(opened.data_metadata, EC_LENGTH, -1)
        self._segment_size = number(opened.data_metadata, EC_SEGMENT) or segment_size
        self._digests = digests(2)  # of the object; of the new archive, if that is made whole
        self._left = max(self._length, 0)
        self._made: list[bytes] = []  # what waits to be sent
        self._is_whole, self._held = False, 0
        self._at_once = 1  # fragments of an archive that are read in one go
        self._feeds: list[tuple[Sequence[bytes | memoryview], bytes]] = []  # to be hashed: segments, what was made
        self._hashing: concurrency.Event | None = None
        self.headers: Mapping[str, str] = {EC_INDEX: str(gathering.fragment), "ETag": ""}

    def begin(self) -> None:
        """Raises Unbuildable."""
        if self._length < 0 or self._codec.archive_size(self._length, self._segment_size) != self.size:
            raise Unbuildable(f"{self.size} bytes are no archive of {self._length} bytes in segments of {self._segment_size}")
        rebuilder = self._rebuilder
        is_only = self._length <= self._segment_size
        self._is_whole = is_only or (self.size <= rebuilder._options.made_whole and rebuilder._held + self.size <= MAX_HELD)
        if self._is_whole:
            self._held = self.size
            rebuilder._held += self.size
            self._read_ahead()  # else not before it is sent
        rebuilder._digests.makers += 1
        try:
            while True:
                try:
                    self._made.append(self._segment(is_only))
                    while self._is_whole and self._left:
                        self._made.append(self._segment(is_only))
                    break
                except (BackendError, FragmentError) as error:
                    if not self._recover(error):
                        raise Unbuildable(str(error)) from None
        except BaseException:
            self._let_go()
            raise
        finally:
            rebuilder._digests.leave()
        if self._is_whole:
            self.headers = {**self.headers, "ETag": self._digests.hexdigest(1)}
            self._fetch.close()

    def _recover(self, error: Exception) -> bool:
        """Leave out who sent nothing usable, and ask others; whether there are enough of them."""
        good = self._gathering.good
        bad = [index for index, answer in good.items() if getattr(answer.source, "node", None) is not None
               and isinstance(error, _Damaged) and index in error.indexes]
        if isinstance(error, BackendError):
            bad = [index for index, answer in good.items() if answer.source.node.replication_address == error.node][:1]
        is_wrong = isinstance(error, _Wrong) and not self._fetch.is_suspicious
        if not bad and not is_wrong:
            return False
        self._fetch.is_suspicious = True
        for index in bad:
            node = good[index].source.node
            self._fetch.have_checked(node)
            self._rebuilder._log.warning("fragment #%d of %s on %s cannot be used: %s", index, self._name, node.key, error)
            good[index].source.close()
            self._gathering.drop(index)
        # Those at hand have been read from: they are asked again.
        for index in list(good):
            answer = good.pop(index)
            answer.source.close()
            self._fetch._waiting.insert(0, answer.source.node)
        self._digests, self._hashing, self._feeds, self._left, self._made = digests(2), None, [], self._length, []
        return self._fetch.more()

    def _segment(self, is_only: bool) -> bytes:
        """The new fragment of the next segment. Raises BackendError, FragmentError."""
        size = min(self._segment_size, self._left)
        if not size:
            if self._digests.hexdigest(0) != self._gathering.etag:
                raise FragmentError("the object is empty, and its ETag is not that of nothing")
            return b""
        codec, target = self._codec, self._gathering.fragment
        length = codec.fragment_size(size)
        sources = {index: answer.source for index, answer in self._gathering.good.items()}
        self._order(sources.values())
        pieces = {index: source.take(length) for index, source in sources.items()}
        self._order(sources.values())
        known = {index: (piece, facts) for index, piece in pieces.items()
                 if (facts := _facts(codec, piece, index)) is not None}
        if len(known) < len(pieces):
            raise _Damaged("its header is damaged", [index for index in pieces if index not in known])
        made, segment = codec.rebuild_and_decode(known, target)
        found = sum(map(len, segment))
        if found != size:
            raise FragmentError(f"a segment of {found} bytes where {size} were expected")
        self._left -= size
        is_last = not self._left
        self._feeds.append((segment, made))
        if is_last or len(self._feeds) * size >= HASHED_AT_ONCE:
            self._hash()
        if is_last:
            self._wait_for_hash()
        if is_last and self._digests.hexdigest(0) != self._gathering.etag:
            if not is_only:
                raise _Wrong("the MD5 of what was decoded is not the object's ETag")
            rotten = [index for index, piece in pieces.items()
                      if md5(piece, usedforsecurity=False).hexdigest() != self._gathering.good[index].source.etag]
            raise _Damaged("its MD5 is not what it was written with", rotten)
        return made

    def _read_ahead(self) -> None:
        self._at_once = max(1, READ_AHEAD // max(1, self._segment_size))

    def _order(self, sources: Iterable[Source]) -> None:
        """Have each read the fragments of the next segments, beside what is done with those at hand."""
        for source in sources:
            if source.wants_orders():
                left = self._length - source.ordered * self._segment_size
                sizes: list[int] = []
                while left > 0 and len(sizes) < self._at_once:
                    size = min(self._segment_size, left)
                    sizes.append(self._codec.fragment_size(size))
                    left -= size
                source.order(sizes)

    def _hash(self) -> None:
        """Of what was not hashed yet, once what was before it is."""
        self._wait_for_hash()
        waiting, self._feeds = self._feeds, []
        feeds: list[Feed] = [(self._digests, 0, [piece for segment, _ in waiting for piece in segment])]
        if self._is_whole:
            feeds.append((self._digests, 1, [made for _, made in waiting]))
        if sum(map(len, feeds[0][2])) < HASHED_APART:
            take_together(feeds)
        else:
            self._hashing = self._rebuilder._digests.take(feeds)
            concurrency.sleep()  # others have the same at hand: hashed now, it is beside what all of us do next

    def _wait_for_hash(self) -> None:
        event, self._hashing = self._hashing, None
        error = event.wait() if event is not None else None
        if error is not None:
            raise error

    def __iter__(self) -> Iterator[bytes]:
        """Raises SsyncError when the rest cannot be made, or was wrong: then the peer must not keep what it has."""
        while self._made:
            piece = self._made.pop(0)
            if piece:
                yield piece
        self._read_ahead()
        try:
            while self._left:
                yield self._segment(False)
        except (BackendError, FragmentError) as error:
            self._rebuilder.broke_off(self._key)
            raise SsyncError(f"the rebuild of {self._name} #{self._gathering.fragment} broke off: {error}") from None
        self._rebuilder.objects += 1
        self._rebuilder.bytes += self.size

    def close(self) -> None:
        self._let_go()
        self._fetch.close()

    def _let_go(self) -> None:
        self._rebuilder._held -= self._held
        self._held, self._made = 0, []


class _Wrong(FragmentError):
    """What was decoded is not the object."""


class _Damaged(FragmentError):
    def __init__(self, reason: str, indexes: list[int]):
        super().__init__(reason)
        self.indexes = indexes


def _facts(codec: Codec, piece: bytes, index: int) -> FragmentFacts | None:
    """Of a fragment that is sound, as far as it says itself, and the one that it should be."""
    try:
        facts = codec.facts(piece)
        return facts if facts.fragment == index else None
    except FragmentError:
        return None
