import os
import pickle
from array import array

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keelstore.common.ring import builder_file
from keelstore.common.ring.builder import RingBuilder
from keelstore.common.ring.errors import BuilderFileMissing, RingFileError
from test.unit.common.ring.support import HOUR, cluster, device, rebalanced


def same(one, other):
    a, b = one.state(), other.state()
    for name in a.__dataclass_fields__:
        left, right = getattr(a, name), getattr(b, name)
        assert np.array_equal(left, right) if isinstance(left, np.ndarray) else left == right, name


def fields_of(built):
    return pickle.loads(builder_file.encode(built.state()))


@pytest.mark.parametrize("replicas", [1.0, 2.5, 3.0])
def test_a_saved_builder_reads_back(tmp_path, replicas):
    built = rebalanced(cluster(), replicas=replicas, overload=0.1)
    built.remove(3)
    built.set_overload(0.25)
    path = str(tmp_path / "object.builder")
    built.save(path)
    same(RingBuilder.load(path), built)
    assert os.listdir(tmp_path) == ["object.builder"]


def test_a_builder_without_devices_reads_back():
    built = RingBuilder(4, 3, 1)
    same(RingBuilder.from_state(builder_file.decode(builder_file.encode(built.state()))), built)


def test_the_fields_are_the_format():
    built = rebalanced(cluster(1, 3, 1, 1), part_power=4, replicas=2.5)
    built.remove(1)
    fields = fields_of(built)
    assert set(fields) == {
        "part_power", "next_part_power", "replicas", "min_part_hours", "parts", "devs", "devs_changed", "dev_id_bytes",
        "version", "overload", "dispersion", "_replica2part2dev", "_last_part_moves", "_last_part_moves_epoch",
        "_last_part_gather_start", "_dispersion_graph", "_remove_devs", "id"}
    assert [(row.typecode, len(row)) for row in fields["_replica2part2dev"]] == [("H", 16), ("H", 16), ("H", 8)]
    assert fields["_last_part_moves"] == array("B", [0] * 16)
    assert fields["_remove_devs"][0] is fields["devs"][1]
    assert fields["devs"][0]["parts"] == built.parts_of(0) and fields["devs"][0]["parts_wanted"] == 0
    assert fields["_dispersion_graph"][(1,)] == [0, 0, 8, 8]


def test_it_is_a_pickle_of_protocol_2():
    data = builder_file.encode(rebalanced(cluster()).state())
    assert data[:2] == b"\x80\x02"
    import pickletools
    assert {arg for op, arg, _ in pickletools.genops(data) if op.name in ("GLOBAL", "STACK_GLOBAL")} == {"array array"}


def test_many_devices_have_wide_ids(tmp_path):
    built = rebalanced([*cluster(), device(1, 9, 9, 9, id=70000)])
    assert built.id_bytes() == 4 and fields_of(built)["_replica2part2dev"][0].typecode == "I"
    path = str(tmp_path / "x.builder")
    built.save(path)
    again = RingBuilder.load(path)
    same(again, built)
    assert again.ring().dev_id_bytes == 4
    built.remove(70000)
    built.rebalance(2000 * HOUR, 1)
    assert built.id_bytes() == 2 and len(built.devices) == 12


@pytest.mark.parametrize("protocol", range(6))
def test_every_pickle_protocol_is_read(protocol):
    fields = fields_of(rebalanced(cluster()))
    state = builder_file.decode(pickle.dumps(fields, protocol=protocol))
    assert state.table is not None and [row.tolist() for row in state.table] == [row.tolist() for row in fields["_replica2part2dev"]]


def test_old_files_lack_fields():
    built = rebalanced(cluster())
    fields = fields_of(built)
    for name in ("overload", "_last_part_moves_epoch", "_dispersion_graph", "dispersion", "id", "next_part_power", "dev_id_bytes"):
        del fields[name]
    fields["_last_part_moves"] = None
    for dev in fields["devs"]:
        for name in ("region", "meta", "replication_ip", "replication_port"):
            del dev[name]
    state = builder_file.decode(pickle.dumps(fields))
    assert (state.overload, state.last_moves_epoch, state.id, state.dispersion) == (0.0, 0, None, None)
    dev = state.devices[0]
    assert dev is not None
    assert (dev.region, dev.meta, dev.replication_ip, dev.replication_port) == (1, "", dev.ip, dev.port)


def test_very_old_files_hold_an_object(monkeypatch):
    import sys
    import types
    fields = fields_of(rebalanced(cluster()))
    old = type("RingBuilder", (), {"__module__": "swift.common.ring.builder"})
    for name in ("swift", "swift.common", "swift.common.ring", "swift.common.ring.builder"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setattr(sys.modules["swift.common.ring.builder"], "RingBuilder", old, raising=False)
    instance = old()
    instance.__dict__.update(fields)
    for protocol in (0, 1, 2):
        assert builder_file.decode(pickle.dumps(instance, protocol=protocol)).part_power == 8


def test_last_moves_may_be_a_list():
    fields = fields_of(rebalanced(cluster(), part_power=2))
    fields["_last_part_moves"] = [1, 2, 3, 4]
    moves = builder_file.decode(pickle.dumps(fields)).last_moves
    assert moves is not None and moves.tolist() == [1, 2, 3, 4]


def test_the_id_comes_with_the_first_save_and_stays(tmp_path):
    built = rebalanced(cluster())
    with pytest.raises(RingFileError):
        built.save(str(tmp_path / "nowhere" / "x.builder"))
    assert not built.id
    path = str(tmp_path / "x.builder")
    built.save(path)
    first = built.id
    assert first is not None and len(first) == 32 and RingBuilder.load(path).id == first
    built.save(path)
    assert built.id == first


# -- what must not be trusted ------------------------------------------------------------------------------------------


class Bomb:
    def __init__(self, call, *args):
        self.call, self.args = call, args

    def __reduce__(self):
        return self.call, self.args


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("make", [
    lambda flag: Bomb(os.system, f"touch {flag}"), lambda flag: Bomb(open, flag, "w"), lambda flag: Bomb(eval, f"open({flag!r}, 'w')"),
    lambda flag: {"part_power": 1, "devs": [Bomb(os.mkdir, flag)]},
])
def test_a_pickle_that_calls_something_is_refused_and_nothing_runs(tmp_path, make, protocol):
    flag, path = str(tmp_path / "flag"), tmp_path / "x.builder"
    path.write_bytes(pickle.dumps(make(flag), protocol=protocol))
    assert not os.path.exists(flag) and pickle.loads(path.read_bytes()) is not None and os.path.exists(flag)  # it does work
    os.rmdir(flag) if os.path.isdir(flag) else os.unlink(flag)
    with pytest.raises(RingFileError, match="is not allowed"):
        RingBuilder.load(str(path))
    assert not os.path.exists(flag)


def test_missing_and_forbidden_files(tmp_path):
    with pytest.raises(BuilderFileMissing, match="Ring Builder file does not exist"):
        RingBuilder.load(str(tmp_path / "x.builder"))
    with pytest.raises(RingFileError, match="cannot be accessed"):
        RingBuilder.load(str(tmp_path))


@pytest.mark.parametrize("change", [
    lambda f: f.pop("part_power"), lambda f: f.pop("devs"), lambda f: f.update(devs=5), lambda f: f.update(part_power=40),
    lambda f: f.update(part_power=7), lambda f: f.update(replicas="x"), lambda f: f.update(replicas=float("nan")),
    lambda f: f["devs"].__setitem__(0, 5), lambda f: f["devs"].__setitem__(0, {}), lambda f: f["devs"][0].update(port="x"),
    lambda f: f["devs"][0].update(id=4), lambda f: f["devs"].pop(), lambda f: f.update(_remove_devs=[{"id": 99}]),
    lambda f: f.update(_remove_devs=3), lambda f: f.update(_replica2part2dev=["x"]), lambda f: f.update(_dispersion_graph=4),
    lambda f: f["_replica2part2dev"].__setitem__(0, array("H", [1])), lambda f: f.update(_last_part_moves=7),
    lambda f: f.update(_replica2part2dev=[[1.5]]), lambda f: f.update(version=[1]),
])
def test_a_builder_that_makes_no_sense_is_refused(change):
    fields = fields_of(rebalanced(cluster(1, 3, 1, 1)))
    change(fields)
    with pytest.raises(RingFileError, match="Ring Builder file is invalid"):
        builder_file.decode(pickle.dumps(fields))


@given(st.binary(max_size=200))
@settings(derandomize=True, max_examples=200)
def test_any_bytes_are_refused_clearly(data):
    with pytest.raises(RingFileError):
        builder_file.decode(data)


@given(st.integers(0, 5000), st.integers(0, 255))
@settings(derandomize=True, max_examples=150, deadline=None)
def test_a_changed_byte_is_read_or_refused_clearly(place, value):
    data = bytearray(GOOD)
    data[place % len(data)] = value
    try:
        builder_file.decode(bytes(data))
    except RingFileError:
        pass


GOOD = builder_file.encode(rebalanced(cluster(), part_power=4).state())
