import itertools

import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

from keelstore.common.codec import HEADER_SIZE, FragmentError, codec_for, schemes
from keelstore.common.errors import ConfigError

SHAPES = {
    "isa_l_rs_vand": (4, 2), "isa_l_rs_cauchy": (5, 3), "isa_l_rs_vand_inv": (4, 2), "liberasurecode_rs_vand": (3, 3),
    "flat_xor_hd_3": (10, 5), "flat_xor_hd_4": (10, 5),
}  # fmt: skip
MAXIMUM_DISTANCE = [name for name in SHAPES if not name.startswith("flat")]  # any ndata fragments will do
all_codes = pytest.mark.parametrize("name", SHAPES)


def of(name):
    return codec_for(name, *SHAPES[name])


def test_all_schemes_of_the_library_are_covered():
    assert set(schemes()) - set(SHAPES) <= {"isa_l_rs_lrc", "jerasure_rs_vand", "jerasure_rs_cauchy", "shss", "libphazr"}


@all_codes
@settings(max_examples=15, deadline=None)
@given(st.data())
def test_any_ndata_fragments_in_any_order_give_the_segment(name, data):
    codec = of(name)
    segment = data.draw(st.binary(min_size=1, max_size=600))
    fragments = codec.encode(segment)
    assert {len(fragment) for fragment in fragments} == {codec.fragment_size(len(segment))}
    count = codec.ndata if name in MAXIMUM_DISTANCE else codec.ndata + codec.nparity - 2
    chosen = data.draw(st.permutations(fragments))[:count]
    assert codec.decode(chosen) == segment


def codecs(draw):
    """A codec of any scheme and shape that the library can run."""
    name = draw(st.sampled_from(sorted(SHAPES)))
    if name.startswith("flat"):
        shapes = [(5, 5), (6, 6), (10, 5), (10, 6)] if name == "flat_xor_hd_3" else [(6, 6), (8, 6), (10, 5), (10, 6)]
        shape = draw(st.sampled_from(shapes))
    else:
        most = 4 if name == "isa_l_rs_vand" else 6  # of more parity some sets of ndata fragments do not do; policies refuse it
        shape = draw(st.tuples(st.integers(1, 12), st.integers(1, most)))
    try:
        return codec_for(name, *shape)
    except ConfigError:
        reject()


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_shape_of_every_scheme_gives_the_segment_or_an_error(data):
    codec = codecs(data.draw)
    segment = data.draw(st.binary(min_size=1, max_size=300))
    fragments = codec.encode(segment)
    count = codec.ndata if codec.scheme in MAXIMUM_DISTANCE else codec.ndata + codec.nparity - (2 if codec.scheme.endswith("3") else 3)
    chosen = data.draw(st.permutations(fragments))[: max(count, codec.ndata)]
    assert codec.decode(chosen) == segment
    assert all(codec.agrees(chosen, fragment) for fragment in fragments if fragment not in chosen)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_damaged_fragment_is_an_error_or_does_not_agree(data):
    """Of a code where any fragments will do, an octet changed anywhere is seen: in the header by itself, in the payload by one fragment more."""
    name = data.draw(st.sampled_from(MAXIMUM_DISTANCE))
    codec = of(name)
    segment = data.draw(st.binary(min_size=1, max_size=300))
    chosen = data.draw(st.permutations(codec.encode(segment)))[: codec.ndata + 1]
    bad = bytearray(chosen[data.draw(st.integers(0, codec.ndata))])
    at = data.draw(st.integers(0, len(bad) - 1))
    bad[at] ^= data.draw(st.integers(1, 255))
    damaged = [bytes(bad) if fragment[:4] == bad[:4] else fragment for fragment in chosen] if at > 3 else [bytes(bad), *chosen[1:]]
    try:
        found = codec.decode(damaged[:-1])
        agrees = codec.agrees(damaged[:-1], damaged[-1])
    except FragmentError:
        return
    assert found == segment or not agrees


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_fragments_of_two_segments_are_an_error_or_do_not_agree(data):
    codec = of(data.draw(st.sampled_from(MAXIMUM_DISTANCE)))
    size = data.draw(st.integers(1, 200))
    one, other = (data.draw(st.binary(min_size=size, max_size=size)) for _ in range(2))
    assume(one != other)
    *chosen, witness = data.draw(st.permutations(codec.encode(one)))[: codec.ndata + 1]
    index = codec.facts(chosen[0]).fragment
    mixed = [codec.encode(other)[index], *chosen[1:]]
    assert codec.decode(mixed) == one or not codec.agrees(mixed, witness)


@all_codes
def test_codes_are_systematic(name):
    codec, segment = of(name), bytes(range(256)) * 11
    joined = b"".join(fragment[HEADER_SIZE:] for fragment in codec.encode(segment)[: codec.ndata])
    assert joined[: len(segment)] == segment


@all_codes
def test_each_fragment_is_rebuilt(name):
    codec, segment = of(name), b"some segment" * 99
    fragments = codec.encode(segment)
    for index in range(len(fragments)):
        assert codec.rebuild(fragments[:index] + fragments[index + 1 :], index) == fragments[index]
        others = {number: (fragment, codec.facts(fragment)) for number, fragment in enumerate(fragments) if number != index}
        made, parts = codec.rebuild_and_decode(others, index)
        assert (made, b"".join(parts)) == (fragments[index], codec.decode(fragments))


@pytest.mark.parametrize("name", MAXIMUM_DISTANCE)
def test_every_loss_up_to_the_parity_is_survived(name):
    codec, segment = of(name), bytes(range(199)) * 7
    fragments = codec.encode(segment)
    for kept in itertools.combinations(fragments, codec.ndata):
        assert codec.decode(kept) == segment


@all_codes
def test_damaged_and_mixed_fragments_are_errors(name):
    codec = of(name)
    fragments, other = codec.encode(b"one segment" * 50), codec.encode(b"another")
    rest = fragments[1:]
    for bad in (b"", fragments[0][:50], fragments[0][:-1], fragments[0] + b"x", bytes(len(fragments[0])), other[0]):
        with pytest.raises(FragmentError):
            codec.decode([bad, *rest])
    for at in (0, 4, 12):  # index and sizes in the header
        bad = bytearray(fragments[0])
        bad[at] ^= 1
        with pytest.raises(FragmentError):
            codec.decode([bytes(bad), *rest])
    with pytest.raises(FragmentError):
        codec.decode([fragments[0]] * codec.ndata)
    with pytest.raises(FragmentError):
        codec.decode(fragments[: codec.ndata - 1])


def test_fragments_of_another_code_are_errors():
    with pytest.raises(FragmentError):
        codec_for("isa_l_rs_vand", 4, 2).decode(codec_for("isa_l_rs_cauchy", 4, 2).encode(b"x" * 100))


@pytest.mark.parametrize("shape", [("nonsense", 4, 2), ("isa_l_rs_vand", 40, 2), ("flat_xor_hd_3", 4, 2)])
def test_what_cannot_be_run_is_a_configuration_error(shape):
    with pytest.raises(ConfigError):
        codec_for(*shape)


def test_sizes():
    codec = codec_for("isa_l_rs_vand", 4, 2)
    assert codec.archive_size(0, 1 << 20) == 0
    assert codec.archive_size((1 << 20) + 1, 1 << 20) == codec.fragment_size(1 << 20) + codec.fragment_size(1)
    assert codec.fragment_size(1 << 20) == (1 << 18) + HEADER_SIZE
    assert codec.description == "isa_l_rs_vand 4+2"
