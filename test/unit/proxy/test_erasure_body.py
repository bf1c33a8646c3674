"""Objects decoded from streams of fragments: every range is a slice; what is damaged or mixed is an error, never wrong bytes."""

from __future__ import annotations

from hashlib import md5
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keelstore.common.codec import Codec, codec_for
from keelstore.common.errors import BackendError
from keelstore.common.headers import Headers
from keelstore.common.http import BODY_CHECKED, Response
from keelstore.proxy.erasure_body import FragmentBody, Fragments, Stream

CODECS = [("isa_l_rs_vand", 4, 2), ("isa_l_rs_cauchy", 3, 3), ("isa_l_rs_vand_inv", 4, 2), ("liberasurecode_rs_vand", 2, 2)]


class Node(int):
    @property
    def key(self) -> str:
        return str(int(self))


class Nodes:
    """An object's fragments, one on each node; nodes are numbers. ``looks``: they can check what they have."""

    path = "/a/c/o"

    def __init__(self, codec: Codec, segment_size: int, archives: dict[int, bytes], looks: bool = True):
        self.codec, self.segment_size, self.looks = codec, segment_size, looks
        self.archives, self.right = dict(archives), archives
        self.left: list[int] = []
        self.looked: set[int] = set()  # nodes that say, unasked, that they have checked

    def others(self, is_needed: bool = True) -> Any:
        return self.left.pop(0) if self.left else None

    def failed(self, node: Any, error: object) -> None:
        pass

    def open(self, node: Any, first: int, last: int, exclude: frozenset[int], is_checked: bool = False) -> Stream | None:
        archive = self.archives[node]
        checks = is_checked and self.looks
        if node in exclude or (checks and archive != self.right[node]):
            return None
        size = self.codec.fragment_size(self.segment_size)
        start, stop = first * size, min((last + 1) * size, len(archive))
        headers = Headers({"Content-Range": f"bytes {start}-{stop - 1}/{len(archive)}"})
        if checks or node in self.looked:
            headers[BODY_CHECKED] = "true"
        return Stream.of(node, Response(206, headers, body=archive[start:stop]), node)


def archives_of(codec: Codec, segment_size: int, body: bytes) -> dict[int, bytes]:
    parts = [codec.encode(body[at : at + segment_size]) for at in range(0, len(body), segment_size)]
    return {index: b"".join(part[index] for part in parts) for index in range(codec.ndata + codec.nparity)}


def read(nodes: Nodes, order: list[int], length: int, start: int, stop: int, etag: str = "", is_compared: bool = False) -> bytes:
    ndata = nodes.codec.ndata
    nodes.left = order[ndata:]
    last = (stop - 1) // nodes.segment_size
    streams = [nodes.open(node, start // nodes.segment_size, last, frozenset()) for node in order[:ndata]]
    fragments = Fragments(nodes.codec, nodes.segment_size, length, [stream for stream in streams if stream], nodes, is_compared)
    return b"".join(FragmentBody(fragments, start, stop, etag))


@st.composite
def objects(draw: Any) -> tuple[Nodes, bytes, list[int]]:
    codec = codec_for(*draw(st.sampled_from(CODECS)))
    segment_size = draw(st.integers(1, 64))
    body = draw(st.binary(min_size=1, max_size=5 * segment_size))
    nodes = Nodes(codec, segment_size, archives_of(codec, segment_size, body), draw(st.booleans()))
    return nodes, body, draw(st.permutations([Node(number) for number in range(codec.ndata + codec.nparity)]))


def spoil(draw: Any, nodes: Nodes) -> None:
    """Some octet of one archive."""
    node = draw(st.sampled_from(sorted(nodes.archives)))
    data = bytearray(nodes.archives[node])
    data[draw(st.integers(0, len(data) - 1))] ^= draw(st.integers(1, 255))
    nodes.archives[node] = bytes(data)


@settings(max_examples=150, deadline=None)
@given(st.data(), objects(), st.booleans())
def test_ranges_of_every_alignment_are_slices(data: Any, given_object: Any, is_compared: bool) -> None:
    nodes, body, order = given_object
    start = data.draw(st.integers(0, len(body) - 1))
    stop = data.draw(st.integers(start + 1, len(body)))
    lost = data.draw(st.integers(0, nodes.codec.nparity))
    assert read(nodes, order[: len(order) - lost], len(body), start, stop, is_compared=is_compared) == body[start:stop]


@settings(max_examples=150, deadline=None)
@given(st.data(), objects())
def test_a_range_with_as_many_damaged_fragments_as_there_is_parity_is_right_or_an_error(data: Any, given_object: Any) -> None:
    nodes, body, order = given_object
    for _ in range(data.draw(st.integers(1, nodes.codec.nparity))):
        spoil(data.draw, nodes)
    nodes.looked = {node for node in data.draw(st.sets(st.sampled_from(order))) if nodes.archives[node] == nodes.right[node]}
    start = data.draw(st.integers(0, len(body) - 1))
    stop = data.draw(st.integers(start + 1, len(body)))
    try:
        assert read(nodes, order, len(body), start, stop, is_compared=True) == body[start:stop]
    except BackendError:
        assert not nodes.looks  # else parity suffices


@settings(max_examples=100, deadline=None)
@given(st.data(), objects())
def test_a_whole_object_with_damaged_fragments_is_right_or_an_error(data: Any, given_object: Any) -> None:
    nodes, body, order = given_object
    for _ in range(data.draw(st.integers(1, 3))):
        spoil(data.draw, nodes)
    try:
        assert read(nodes, order, len(body), 0, len(body), md5(body).hexdigest()) == body
    except BackendError:
        pass


@settings(max_examples=100, deadline=None)
@given(st.data(), objects())
def test_fragments_of_two_objects_never_give_a_third(data: Any, given_object: Any) -> None:
    nodes, body, order = given_object
    other = data.draw(st.binary(min_size=len(body), max_size=len(body)))
    foreign = archives_of(nodes.codec, nodes.segment_size, other)
    for node in data.draw(st.sets(st.sampled_from(order), min_size=1, max_size=len(order) - 1)):
        nodes.archives[node] = foreign[node]
    try:
        assert read(nodes, order, len(body), 0, len(body), md5(body).hexdigest()) == body
    except BackendError:
        pass


def test_without_a_witness_there_is_none_to_ask() -> None:
    codec = codec_for("isa_l_rs_vand", 4, 2)
    body = bytes(range(256)) * 4
    nodes = Nodes(codec, 256, archives_of(codec, 256, body))
    for count in (4, 5, 6):
        assert read(nodes, [Node(number) for number in range(count)], len(body), 10, 1000, is_compared=True) == body[10:1000]
    with pytest.raises(BackendError):
        nodes.archives[0] = nodes.archives[0][:100]
        read(nodes, [Node(number) for number in range(4)], len(body), 10, 1000)
