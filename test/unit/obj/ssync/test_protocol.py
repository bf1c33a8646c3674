from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common.timestamp import Timestamp
from keelstore.obj.fileset import FileSet, resolve
from keelstore.obj.layout import DATA, META, StoredFile, data_name, meta_name, parse_name, tombstone_name
from keelstore.obj.ssync import protocol
from keelstore.obj.ssync.protocol import ALL, Offer, SsyncError, Want

HASH = "0123456789abcdef0123456789abcdef"
T = Timestamp(1500000000)


def at(seconds: float, offset: int = 0) -> Timestamp:
    return Timestamp(1500000000 + seconds, offset)


@pytest.mark.parametrize("offer, line", [  # checked against Swift 2.38 (test/interop/test_ssync_swift.py)
    (Offer(HASH, T, T, T), f"{HASH} 1500000000.00000"),
    (Offer(HASH, T, at(1), T), f"{HASH} 1500000000.00000 m:186a0"),
    (Offer(HASH, at(0, 5), at(1, 3), at(0.5, 2)), f"{HASH} 1500000000.00000_0000000000000005 m:186a0__3,t:c350__2"),
    (Offer(HASH, T, at(-1), at(1)), f"{HASH} 1500000000.00000 m:-186a0,t:186a0"),
    (Offer(HASH, T, T, T, False), f"{HASH} 1500000000.00000 durable:False"),
    (Offer(HASH, at(0, 1), T, at(0, 1)), f"{HASH} 1500000000.00000_0000000000000001 m:0"),
])  # fmt: skip
def test_offers_on_the_wire(offer: Offer, line: str) -> None:
    assert protocol.encode_offer(offer) == line.encode()
    assert protocol.decode_offer(line.encode()) == offer


def test_what_is_not_known_of_an_offer_is_left_alone() -> None:
    assert protocol.decode_offer(f"{HASH} {T.internal} x:1,m:186a0,junk".encode()) == Offer(HASH, T, at(1), T)
    assert protocol.decode_offer(f"{HASH[:-1]}%{ord(HASH[-1]):x} {T.internal}".encode()) == Offer(HASH, T, T, T)


@pytest.mark.parametrize("line", ["", HASH, f"{HASH} x", f"{HASH} {T.internal} m:zz", f"short {T.internal}", f"{HASH} {T.internal} m:-ffffffffffffff",
                                  f"../{HASH} {T.internal}", f"{HASH} {T.internal} m:1__zz", f"{HASH} \xff"])  # fmt: skip
def test_what_is_no_offer(line: str) -> None:
    with pytest.raises(SsyncError):
        protocol.decode_offer(line.encode("latin-1"))


@pytest.mark.parametrize("line, want", [("d", Want(True)), ("m", Want(False, True)), ("dm", ALL), ("", Want(True)), ("x", Want(True))])
def test_wants_on_the_wire(line: str, want: Want) -> None:
    assert protocol.decode_want(f"{HASH} {line}".strip().encode()) == (HASH, want)
    if line in ("d", "m", "dm"):
        assert protocol.encode_want(HASH, want) == f"{HASH} {line}".encode()


def test_heads_of_sub_requests() -> None:
    head = protocol.encode_head("PUT", "/a/c/o \u00e9\udcff", {"X-Object-Meta-B": "caf\xc3\xa9", "Content-Length": "1"})
    assert head == b"PUT /a/c/o%20%C3%A9%FF\r\nContent-Length: 1\r\nX-Object-Meta-B: caf\xc3\xa9\r\n\r\n"
    request, _, second, *_ = head.split(b"\r\n")
    assert protocol.decode_request(request) == ("PUT", "/a/c/o \u00e9\udcff")
    assert protocol.decode_header(second) == ("x-object-meta-b", "caf\xc3\xa9")
    for bad in ({"A": "x\r\nDELETE /a/c/o"}, {"A\nB": "x"}, {"A:B": "x"}):
        with pytest.raises(ValueError):
            protocol.encode_head("PUT", "/a/c/o", bad)


def test_error_lines() -> None:
    assert protocol.encode_error(503, "busy") == b":ERROR: 503 'busy'\n"
    assert protocol.encode_error(500, b"x") == b":ERROR: 500 b'x'\n"
    assert protocol.decode_error(b":ERROR: 503 'busy'\n").status == 503
    assert protocol.decode_error(b":ERROR: what\n").status == 0


def test_when_to_give_up() -> None:
    assert not protocol.too_many(99, 0, 100, 1.0)
    assert protocol.too_many(100, 0, 100, 1.0)
    assert not protocol.too_many(100, 100, 100, 1.0)
    assert protocol.too_many(101, 100, 100, 1.0)


# -- a whole exchange, in values ---------------------------------------------------------------------------------------

stamps = st.builds(at, st.integers(0, 6), st.sampled_from([0, 0, 1]))


@st.composite
def stored(draw: st.DrawFn) -> StoredFile:
    kind, stamp = draw(st.sampled_from("ddmmt")), draw(stamps)
    if kind == "d":  # one timestamp is one event: data at even seconds, tombstones at odd ones
        name = data_name(Timestamp.from_raw(stamp.raw // 200000 * 200000, stamp.offset))
    elif kind == "t":
        name = tombstone_name(Timestamp.from_raw(stamp.raw // 200000 * 200000 + 100000, stamp.offset))
    else:  # and what a POST at one time said of the content type is one thing
        stamp = Timestamp.from_raw(stamp.raw + 50000)
        name = meta_name(stamp, Timestamp.from_raw(stamp.raw) if stamp.raw % 200000 else None)
    found = parse_name(name)
    assert found is not None
    return found


directories = st.frozensets(stored(), max_size=5)


def kept(files: frozenset[StoredFile]) -> frozenset[StoredFile]:
    """After a cleanup; old metadata without data is not state: it has no effect, and goes with time."""
    found = resolve(files)
    return frozenset(file for file in (found.data, found.meta, found.ctype, found.tombstone) if file)


def sync(sender: frozenset[StoredFile], receiver: frozenset[StoredFile]) -> frozenset[StoredFile]:
    """What the receiver has after one session with the sender; the server's verbs as merges of files."""
    found = resolve(sender)
    offer = protocol.offer_of(HASH, found)
    if offer is None:
        return receiver
    offer = protocol.decode_offer(protocol.encode_offer(offer))
    want = protocol.wanted(offer, resolve(receiver))
    sent: set[StoredFile] = set()
    if want.data:
        sent |= {file for file in (found.data, found.tombstone) if file}
    if want.meta and found.meta:
        sent |= {file for file in (found.meta, found.ctype) if file}
    return kept(receiver | frozenset(sent))


@given(directories, directories)
def test_two_replicas_that_sync_hold_the_same(ours: frozenset[StoredFile], theirs: frozenset[StoredFile]) -> None:
    ours, theirs = kept(ours), kept(theirs)
    theirs = sync(ours, theirs)
    ours = sync(theirs, ours)
    assert ours == theirs


@given(directories, directories)
def test_the_order_of_the_two_does_not_matter(ours: frozenset[StoredFile], theirs: frozenset[StoredFile]) -> None:
    ours, theirs = kept(ours), kept(theirs)
    first = sync(sync(ours, theirs), ours)
    assert first == sync(ours, sync(theirs, ours))


@given(directories, directories, directories)
def test_three_replicas_agree_after_two_rounds(a: frozenset[StoredFile], b: frozenset[StoredFile], c: frozenset[StoredFile]) -> None:
    a, b, c = kept(a), kept(b), kept(c)
    for _ in range(2):
        b, c = sync(a, b), sync(a, c)
        c, a = sync(b, c), sync(b, a)
        a, b = sync(c, a), sync(c, b)
    assert a == b == c


@given(directories, directories)
def test_in_sync_asks_for_nothing(ours: frozenset[StoredFile], theirs: frozenset[StoredFile]) -> None:
    ours = kept(ours)
    theirs = sync(ours, kept(theirs))
    offer = protocol.offer_of(HASH, resolve(ours))
    if offer is not None:
        assert not protocol.wanted(offer, resolve(theirs))


@given(directories)
def test_a_receiver_never_goes_back(ours: frozenset[StoredFile]) -> None:
    ours = kept(ours)
    older = Offer(HASH, at(-9), at(-8), at(-8))
    held = resolve(ours)
    assert not ours or not protocol.wanted(older, held)
    assert isinstance(held, FileSet) and all(file.kind in (DATA, META, ".ts") for file in ours)
