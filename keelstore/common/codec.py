"""Erasure codes: encode, decode, rebuild, check a fragment. The only importer of PyECLib.

A *segment* of up to ``segment_size`` bytes becomes ``ndata + nparity`` fragments; any ``ndata`` of them give it back
(the flat XOR codes ask for a few more in some cases). Each fragment begins with a header of liberasurecode (80 octets:
index, sizes, code, and a check of the header itself); all codes here are systematic: the data fragments' payloads, one
after the other, are the segment. The payload has no check of its own; see doc/design/erasure.md for who checks it.

All fragments and segments are ``bytes``. PyECLib holds the interpreter's lock while it works (measured: a call of any
size stops all other threads), so a native thread for it would gain nothing; a 1 MiB segment takes about 0.1 ms, where memory
is kept for it (``allocator.py``; else 2 ms).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from pyeclib.ec_iface import VALID_EC_TYPES, ECDriver, ECDriverError

from keelstore.common.errors import ConfigError, KeelstoreError

HEADER_SIZE = 80
_CHECKSUM_KIND_AT = 20  # in the header: whether and how the payload is checked
MAX_FRAGMENTS = 32  # of one segment; the library's own limit


class FragmentError(KeelstoreError):
    """Fragments that do not give a segment: too few, damaged, or of different segments."""


class FragmentFacts(NamedTuple):
    """What a sound fragment says of itself."""

    fragment: int
    payload_size: int
    segment_size: int


class Codec:
    """One erasure code; safe to share between threads. Made by :func:`codec_for`."""

    def __init__(self, scheme: str, ndata: int, nparity: int):
        """Raises ConfigError for what this machine's library cannot do."""
        self.scheme, self.ndata, self.nparity = scheme, ndata, nparity
        if scheme not in VALID_EC_TYPES:
            raise ConfigError(f"the erasure code {scheme!r} is not one of {', '.join(sorted(VALID_EC_TYPES))}")
        if ndata + nparity > MAX_FRAGMENTS:
            raise ConfigError(f"{ndata} + {nparity} fragments are more than {MAX_FRAGMENTS}")
        try:
            driver: Any = ECDriver(k=ndata, m=nparity, ec_type=scheme)
            self._driver = driver
            self.min_parity = int(driver.min_parity_fragments_needed())
            tried = driver.encode(b"x")[0]
            self._name_in_fragments = driver.get_metadata(tried, 1)["backend_id"]
            self._checksum_kind = tried[_CHECKSUM_KIND_AT]
        except ECDriverError as error:
            raise ConfigError(f"the erasure code {scheme} {ndata}+{nparity} cannot be run: {error}") from None

    @property
    def description(self) -> str:
        """As stored with each fragment: ``<scheme> <ndata>+<nparity>``."""
        return f"{self.scheme} {self.ndata}+{self.nparity}"

    @lru_cache(maxsize=4096)  # noqa: B019 - codecs live as long as the process
    def fragment_size(self, segment_size: int) -> int:
        """Octets of each fragment of a segment of so many; 0 for none."""
        if not segment_size:
            return 0
        return int(self._driver.get_segment_info(segment_size, segment_size)["fragment_size"])

    def archive_size(self, length: int, segment_size: int) -> int:
        """Octets that each device stores of an object of ``length``."""
        whole, rest = divmod(length, segment_size)
        return whole * self.fragment_size(segment_size) + self.fragment_size(rest)

    def encode(self, segment: bytes) -> list[bytes]:
        """The fragments of a segment that is not empty, by index."""
        try:
            found: list[bytes] = self._driver.encode(segment)
        except ECDriverError as error:
            raise FragmentError(f"cannot encode: {error}") from error
        return found

    def facts(self, fragment: bytes) -> FragmentFacts:
        """Raises FragmentError when the header is damaged, of another code, or the fragment is too short or long."""
        try:
            found: dict[str, Any] = self._driver.get_metadata(fragment, 1)
        except (ECDriverError, ValueError, TypeError) as error:
            raise FragmentError(f"bad fragment header: {error}") from None
        index, size = found["index"], found["size"]
        if found["backend_id"] != self._name_in_fragments or not 0 <= index < self.ndata + self.nparity:
            raise FragmentError(f"fragment {index} of code {found['backend_id']}")
        if len(fragment) != HEADER_SIZE + size:
            raise FragmentError(f"fragment of {len(fragment)} octets where its header says {HEADER_SIZE + size}")
        if found["chksum_mismatch"]:
            raise FragmentError(f"fragment {index} fails its own checksum")
        return FragmentFacts(index, size, found["orig_data_size"])

    def header_facts(self, header: bytes) -> FragmentFacts:
        """As :meth:`facts`, of the first HEADER_SIZE octets alone; that the payload is of that size is the caller's to see.
        The payload of a data fragment is the segment's part at ``fragment * payload_size``.
        """
        if len(header) != HEADER_SIZE or header[_CHECKSUM_KIND_AT] != self._checksum_kind:  # the library might read on
            raise FragmentError("a fragment header of another kind")
        try:
            found: dict[str, Any] = self._driver.get_metadata(header, 1)
        except (ECDriverError, ValueError, TypeError) as error:
            raise FragmentError(f"bad fragment header: {error}") from None
        if found["backend_id"] != self._name_in_fragments:
            raise FragmentError(f"fragment of code {found['backend_id']}")
        return FragmentFacts(found["index"], found["size"], found["orig_data_size"])

    def decode(self, fragments: Sequence[bytes]) -> bytes:
        """The segment of at least ``ndata`` distinct fragments of it, in any order. Raises FragmentError for too few,
        damaged headers, or fragments of segments of different sizes. A wrong payload is not seen.
        """
        parts = self.decode_parts(fragments)
        return parts[0] if len(parts) == 1 and isinstance(parts[0], bytes) else b"".join(parts)

    def decode_parts(self, fragments: Sequence[bytes]) -> list[bytes | memoryview]:
        """As :meth:`decode`, in pieces, which are views of the fragments where nothing had to be computed."""
        known: dict[int, bytes] = {}
        facts = []
        for fragment in fragments:
            found = self.facts(fragment)
            known[found.fragment] = fragment
            facts.append(found)
        return self._parts(known, *_sizes(facts))

    def _parts(self, known: Mapping[int, bytes], size: int, total: int) -> list[bytes | memoryview]:
        """The segment of ``total`` octets of fragments whose payload is of ``size``."""
        if len(known) < self.ndata:
            raise FragmentError(f"{len(known)} fragments where {self.ndata} are needed")
        data = [known[index] for index in range(self.ndata) if index in known]
        if len(data) == self.ndata:  # nothing to compute; a third of the library's time
            if total > size * self.ndata:
                raise FragmentError("a segment longer than its fragments")
            views = []
            left = total
            for part in data:
                views.append(memoryview(part)[HEADER_SIZE : HEADER_SIZE + left])
                left = max(0, left - size)
            return list(views)
        try:
            segment: bytes = self._driver.decode(list(known.values()))
        except (ECDriverError, ValueError) as error:
            raise FragmentError(f"cannot decode: {error}") from None
        if len(segment) != total:
            raise FragmentError(f"a segment of {len(segment)} octets where {total} were announced")
        return [segment]

    def agrees(self, fragments: Sequence[bytes], witness: bytes) -> bool:
        """Whether a further fragment is one of the very segment that ``ndata`` others give, payloads and all. Raises
        FragmentError when they cannot tell.
        """
        try:
            index = self.facts(witness).fragment
        except FragmentError:
            return False
        same = [fragment for fragment in fragments if self.facts(fragment).fragment == index]
        made = same[0] if same else self.rebuild(fragments, index)
        return memoryview(made)[HEADER_SIZE:] == memoryview(witness)[HEADER_SIZE:]

    def rebuild(self, fragments: Iterable[bytes], index: int) -> bytes:
        """The fragment of this index, out of at least ``ndata`` others of the same segment. Raises FragmentError."""
        fragments = list(fragments)
        _sizes(map(self.facts, fragments))
        return self._rebuilt(fragments, index)

    def rebuild_and_decode(self, fragments: Mapping[int, tuple[bytes, FragmentFacts]],
                           index: int) -> tuple[bytes, list[bytes | memoryview]]:
        """The fragment of this index, and the segment as of :meth:`decode_parts`, out of others by index, with what
        :meth:`facts` says of each. Raises FragmentError.
        """
        size, total = _sizes(facts for _, facts in fragments.values())
        known = {number: fragment for number, (fragment, _) in fragments.items()}
        made = self._rebuilt(list(known.values()), index)
        if index < self.ndata:
            known[index] = made  # with it the segment is, as a rule, a join
        return made, self._parts(known, size, total)

    def _rebuilt(self, fragments: list[bytes], index: int) -> bytes:
        try:
            found: bytes = self._driver.reconstruct(fragments, [index])[0]
        except (ECDriverError, ValueError) as error:
            raise FragmentError(f"cannot rebuild fragment {index}: {error}") from None
        if self.facts(found).fragment != index:
            raise FragmentError(f"rebuilding gave another fragment than {index}")
        return found


def _sizes(facts: Iterable[FragmentFacts]) -> tuple[int, int]:
    """Those of payload and segment that all have. Raises FragmentError."""
    sizes = {(size, total) for _, size, total in facts}
    if len(sizes) != 1:
        raise FragmentError("no fragments" if not sizes else "fragments of different segments")
    return sizes.pop()


@lru_cache(maxsize=64)
def codec_for(scheme: str, ndata: int, nparity: int) -> Codec:
    """The code, made once for each process. Raises ConfigError."""
    return Codec(scheme, ndata, nparity)


def schemes() -> tuple[str, ...]:
    """The codes that the installed library can run, some only for certain numbers of fragments."""
    return tuple(sorted(VALID_EC_TYPES))
