"""The bytes of an object, decoded segment by segment from fragment archives that stream from as many nodes as it takes.

A stream that breaks, or gives a fragment whose header is damaged, is replaced by one from another node, from the segment
on at which it failed. When no node is left the body ends with an error, which breaks the client's connection.

A wrong payload in a fragment with a sound header cannot be seen in decoding. The object servers of this project check
small and middling fragments before they send them; what comes from others is checked as a whole: the last segment of a
whole object is held back until the MD5 of all is right. An object of one segment is then decoded of other
fragments, until one choice is right. What a range gives of archives that nobody checked is compared with all further
fragments within reach, *witnesses*, so that as many wrong ones are seen for certain as parity promises to survive; where
they do not agree, all nodes are asked again, to check what they have before they send it.

Where all data fragments lie in files of this process and nothing has to be hashed or compared, the segments are sent from the
files as they are (sendfile); only the fragments' headers are read and looked at.

Memory: one segment, its fragments, and what is under way on the connections.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import md5
from itertools import combinations, islice
from typing import Any, Protocol

from keelstore.common import reads
from keelstore.common.codec import HEADER_SIZE, Codec, FragmentError
from keelstore.common.disk_calls import on_disk_thread
from keelstore.common.errors import BackendError
from keelstore.common.headers import Headers
from keelstore.common.http import BODY_CHECKED, Response
from keelstore.common.relay import file_region
from keelstore.proxy.fanout import FAILURES

MAX_CHOICES = 512  # sets of fragments tried to find a right one
Region = tuple[int, int, int]  # of an open file: descriptor, offset, count
_CONTENT_RANGE = re.compile(r"\Abytes ([0-9]{1,20})-([0-9]{1,20})/")


class Opener(Protocol):
    path: str

    def others(self, is_needed: bool = True) -> Any: ...
    def failed(self, node: Any, error: object) -> None: ...
    def open(self, node: Any, first: int, last: int, exclude: frozenset[int], is_checked: bool = False) -> Stream | None: ...


class Stream:
    """One fragment archive as it comes: the bytes from ``position``, which is that of the next one, up to ``stop``."""

    __slots__ = ("_fd", "_held", "_iterator", "fragment", "headers", "node", "position", "response", "stop")

    def __init__(self, node: Any, response: Response, fragment: int, position: int, stop: int):
        self.node, self.response, self.fragment = node, response, fragment
        self.position, self.stop = position, stop
        self._held, self._fd = b"", -1
        found = file_region(response.app_iter)
        if found is not None:  # of a node in this process: its file is read here, a segment's worth at a time
            self._fd, offset, count = found
            self.position, self.stop = offset, offset + count
        self._iterator = iter(response.app_iter if response.app_iter is not None else (response.body or b"",))

    @classmethod
    def of(cls, node: Any, response: Response, fragment: int) -> Stream:
        found = _CONTENT_RANGE.match(response.headers.get("Content-Range", "")) if response.status == 206 else None
        if found:
            return cls(node, response, fragment, int(found[1]), int(found[2]) + 1)
        length = response.headers.get("Content-Length", "")
        return cls(node, response, fragment, 0, int(length) if response.status == 200 and length.isdigit() else 0)

    @property
    def is_checked(self) -> bool:
        """Whether the node knows that the archive is as it was written."""
        return self.response.headers.get(BODY_CHECKED) == "true"

    def read(self, size: int) -> bytes:
        """Exactly so many bytes. Raises BackendError, OSError."""
        if self._fd >= 0:
            return self._read_file(size)
        parts, left = [], size
        while left:
            data = self._held or next(self._iterator, b"")
            if not data:
                raise BackendError("a fragment archive ends early")
            self._held = b""
            if len(data) > left:
                data, self._held = data[:left], data[left:]
            parts.append(data)
            left -= len(data)
        self.position += size
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read_file(self, size: int) -> bytes:
        if size > self.stop - self.position:
            raise BackendError("a fragment archive ends early")
        data = reads.read_cached(self._fd, size, self.position)
        while data is None or len(data) < size:
            known = data or b""
            more = on_disk_thread(self.node.device, reads.read_at, self._fd, size - len(known), self.position + len(known))
            if not more:
                raise BackendError("a fragment archive ends early")
            data = known + more
        self.position += size
        return data

    @property
    def is_file(self) -> bool:
        return self._fd >= 0

    def header(self, size: int) -> bytes | None:
        """That of the next fragment, of ``size`` octets, when it is in a file here, and in the page cache from end to end so
        far as that can be told cheaply. Nothing is moved.
        """
        if self._fd < 0 or size > self.stop - self.position:
            return None
        if reads.read_cached(self._fd, 1, self.position + size - 1) is None:
            return None
        return reads.read_cached(self._fd, HEADER_SIZE, self.position)

    def payload(self, count: int) -> Region:
        """The first ``count`` octets behind the header of the next fragment, which is in a file."""
        return self._fd, self.position + HEADER_SIZE, count

    def skip(self, size: int) -> None:
        if self._fd >= 0:
            self.position += size
        else:
            while size:
                step = min(size, 65536)
                self.read(step)
                size -= step

    def close(self) -> None:
        self.response.close()


class Fragments:
    """An object's segments. ``streams`` are of distinct fragments, as many as decoding needs. ``is_compared``: segments
    of unchecked streams are compared with further fragments.
    """

    def __init__(self, codec: Codec, segment_size: int, length: int, streams: list[Stream], opener: Opener,
                 is_compared: bool = False):
        self._codec, self.segment_size, self.length, self._opener = codec, segment_size, length, opener
        self._streams: list[Stream] = streams
        self._fragment_size = codec.fragment_size(segment_size)
        self._last = 0
        self.last_fragments: list[bytes] = []
        self._is_compared = is_compared
        self._witnesses: list[Stream] = []
        self._looking: set[str] = set()  # nodes whose fragment was damaged
        self._asks_checked = False  # some fragment is wrong: nodes are to look before they send

    def headers(self) -> Headers:
        """Those of an answer that has the object's type."""
        self.start(0, 0)
        return self._streams[0].response.headers

    def start(self, first: int, last: int) -> None:
        """Be ready to read segments ``first`` to ``last``."""
        self._last = last
        needed = min((last + 1) * self._fragment_size, self._codec.archive_size(self.length, self.segment_size))
        for index, stream in enumerate(self._streams):
            ahead = first * self._fragment_size - stream.position
            if stream.stop < needed or not 0 <= ahead <= 2 * self._fragment_size:
                self._reopen(index, first)
            elif ahead:
                try:
                    stream.skip(ahead)
                except FAILURES as error:
                    self._replace(index, first, error)
        self._open_witnesses(first)

    def _in_use(self, but: int) -> frozenset[int]:
        return frozenset(stream.fragment for index, stream in enumerate(self._streams) if index != but)

    def _reopen(self, index: int, first: int, is_checked: bool = False) -> None:
        old = self._streams[index]
        old.close()
        found = self._opener.open(old.node, first, self._last, self._in_use(index), is_checked or self._asks_checked)
        if found is None:
            self._replace(index, first, None)  # it has said so, and works
        else:
            self._streams[index] = found
            self._align(index, first)

    def _align(self, index: int, first: int) -> None:
        ahead = first * self._fragment_size - self._streams[index].position
        if ahead < 0:
            raise BackendError(f"GET {self._opener.path}: another range than asked for")
        self._streams[index].skip(ahead)

    def _replace(self, index: int, first: int, error: object | None) -> None:
        """Another node's fragment for the one that fails, which is held against its node but for None. Raises BackendError
        when there is none.
        """
        old = self._streams[index]
        old.close()
        if error is not None:
            self._opener.failed(old.node, error)
        exclude = self._in_use(index)
        while (node := self._other()) is not None:
            found = self._opener.open(node, first, self._last, exclude, self._asks_checked)
            if found is not None:
                self._streams[index] = found
                self._align(index, first)
                return
        raise BackendError(f"GET {self._opener.path}: no other node has a fragment to go on with")

    def _other(self) -> Any:
        """A node to take a fragment from: at last that of a witness, whose fragment is worth more in this place."""
        node = self._opener.others()
        if node is None and self._witnesses:
            witness = self._witnesses.pop()
            witness.close()
            node = witness.node
        return node

    # -- witnesses -----------------------------------------------------------------------------------------------------

    def _open_witnesses(self, first: int) -> None:
        """Further fragments of the segments from ``first`` on, if they are wanted: all that are to be had easily."""
        nodes = [witness.node for witness in self._witnesses]
        self._close_witnesses()
        if not self._is_compared or (not self._asks_checked and all(stream.is_checked for stream in self._streams)):
            return
        tries = self._codec.nparity
        while tries > 0 or not self._witnesses:  # with none at all nothing would be noticed
            tries -= 1
            node = nodes.pop(0) if nodes else self._opener.others(is_needed=not self._witnesses)
            if node is None:
                break
            exclude = self._in_use(-1) | {witness.fragment for witness in self._witnesses}
            found = self._opener.open(node, first, self._last, exclude, self._asks_checked)
            if found is not None:
                self._witnesses.append(found)
                self._advance(found, first)

    def _advance(self, witness: Stream, first: int) -> None:
        try:
            witness.skip(first * self._fragment_size - witness.position)
        except FAILURES as error:
            self._drop(witness, error)

    def _drop(self, witness: Stream, error: object) -> None:
        self._opener.failed(witness.node, error)
        self._witnesses.remove(witness)
        witness.close()

    def _close_witnesses(self) -> None:
        for witness in self._witnesses:
            witness.close()
        self._witnesses = []

    def _agree(self) -> bool:
        """Whether the segment decoded last is that of all witnesses, too. One that fails is left out."""
        used = self.last_fragments
        for witness in list(self._witnesses):
            try:
                if not self._codec.agrees(used, witness.read(len(used[0]))):
                    return False
            except FAILURES as error:
                self._drop(witness, error)
        return True

    def _check_all(self, number: int) -> None:
        """A fragment of segment ``number`` is wrong: get all of them from nodes that look first."""
        if self._asks_checked:
            raise BackendError(f"GET {self._opener.path}: the fragments do not agree")
        self._asks_checked = True
        for index in range(len(self._streams)):
            self._reopen(index, number)
        self._open_witnesses(number)

    @property
    def are_files(self) -> bool:
        """Whether :meth:`regions` may have something to give."""
        return len(self._streams) == self._codec.ndata and all(
            stream.is_file and stream.fragment < self._codec.ndata for stream in self._streams)

    def regions(self, number: int) -> list[Region] | None:
        """The next segment as parts of open files; None where it must be asked for with :meth:`segment`."""
        if self._witnesses or not self.are_files:
            return None
        size = left = min(self.segment_size, self.length - number * self.segment_size)
        each = self._codec.fragment_size(size)
        found = []
        for fragment, stream in enumerate(sorted(self._streams, key=_fragment_of)):
            header = stream.header(each)
            if header is None:
                return None
            try:
                if self._codec.header_facts(header) != (fragment, each - HEADER_SIZE, size):
                    return None
            except FragmentError:
                return None
            if left:
                found.append(stream.payload(min(left, each - HEADER_SIZE)))
                left -= found[-1][2]
        if left:
            return None
        for stream in self._streams:
            stream.skip(each)
        return found

    def segment(self, number: int) -> bytes:
        """The next segment. Raises BackendError."""
        while True:
            segment = self._decoded(number)
            if not self._witnesses or self._agree():
                return segment
            self._check_all(number)

    def _decoded(self, number: int) -> bytes:
        size = min(self.segment_size, self.length - number * self.segment_size)
        each = self._codec.fragment_size(size)
        fragments: list[bytes | None] = [None] * len(self._streams)
        while True:
            for index in range(len(fragments)):
                while fragments[index] is None:
                    try:
                        fragments[index] = self._streams[index].read(each)
                    except FAILURES as error:
                        self._replace(index, number, error)
            whole = [fragment for fragment in fragments if fragment is not None]
            try:
                segment = self._codec.decode(whole)
                if len(segment) == size:
                    self.last_fragments = whole
                    return segment
                failure: FragmentError = FragmentError(f"a segment of {len(segment)} bytes where {size} belong")
            except FragmentError as error:
                failure = error
            damaged = [index for index, fragment in enumerate(whole) if not self._is_sound(index, fragment, size)]
            if not damaged:
                raise BackendError(f"GET {self._opener.path}: {failure}")
            for index in damaged:
                node = self._streams[index].node
                if node.key in self._looking:
                    self._replace(index, number, failure)
                else:  # let it see for itself, so that it puts the fragment aside
                    self._looking.add(node.key)
                    self._reopen(index, number, is_checked=True)
                fragments[index] = None

    def _is_sound(self, index: int, fragment: bytes, size: int) -> bool:
        try:
            facts = self._codec.facts(fragment)
        except FragmentError:
            return False
        return facts.fragment == self._streams[index].fragment and facts.segment_size == size

    def another(self, etag: str) -> bytes:
        """The only segment, once more, of fragments that give the right MD5. Raises BackendError when none do."""
        known = list(self.last_fragments)
        held = {stream.fragment for stream in self._streams}
        size = self._codec.fragment_size(self.length)
        while (node := self._opener.others()) is not None:
            try:
                stream = self._opener.open(node, 0, 0, frozenset(held))
                if stream is None:
                    continue
                try:
                    fragment = stream.read(size)
                finally:
                    stream.close()
                self._codec.facts(fragment)
            except FAILURES:
                continue
            held.add(stream.fragment)
            known.append(fragment)
        for chosen in islice(combinations(known, self._codec.ndata), MAX_CHOICES):
            try:
                segment = self._codec.decode(chosen)
            except FragmentError:
                continue
            if md5(segment, usedforsecurity=False).hexdigest() == etag:
                return segment
        raise BackendError(f"GET {self._opener.path}: no fragments give the object that was written")

    def close(self) -> None:
        for stream in self._streams:
            stream.close()
        self._close_witnesses()


class FragmentBody:
    """The object's bytes from ``start`` up to ``stop``. ``etag``: what the MD5 of them must be, or ''. ``closes``: the
    fragments are not needed for another range.
    """

    def __init__(self, fragments: Fragments, start: int, stop: int, etag: str = "", closes: bool = True):
        self._fragments, self._start, self._stop, self._etag = fragments, start, stop, etag
        self._closes = closes

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces(False)

    def file_pieces(self) -> Iterator[Any] | None:
        """See ``common/httpconnection``: as iterating, but what lies in files here does not pass through this process."""
        return self._pieces(True) if not self._etag and self._fragments.are_files else None

    def _pieces(self, in_files: bool) -> Iterator[Any]:
        """Bytes, with ``in_files`` also Regions."""
        fragments, size = self._fragments, self._fragments.segment_size
        first, last = self._start // size, (self._stop - 1) // size
        digest: Any = md5(usedforsecurity=False) if self._etag else None
        fragments.start(first, last)
        for number in range(first, last + 1):
            offset = number * size
            regions = fragments.regions(number) if in_files else None
            if regions is not None:
                yield from _cut(regions, self._start - offset, self._stop - offset)
                continue
            segment = fragments.segment(number)
            if digest is not None:
                digest.update(segment)
                if number == last and digest.hexdigest() != self._etag:
                    if last:
                        raise BackendError("the fragments do not give the object that was written")
                    segment = fragments.another(self._etag)
            if offset < self._start or offset + len(segment) > self._stop:
                segment = segment[max(self._start - offset, 0) : self._stop - offset]
            yield segment

    def close(self) -> None:
        if self._closes:
            self._fragments.close()


def _fragment_of(stream: Stream) -> int:
    return stream.fragment


def _cut(regions: list[Region], start: int, stop: int) -> Iterator[Region]:
    """What of the regions, one after the other, lies between two offsets."""
    at = 0
    for fd, offset, count in regions:
        first, last = max(start - at, 0), min(stop - at, count)
        if first < last:
            yield fd, offset + first, last - first
        at += count
