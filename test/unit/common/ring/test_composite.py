import json

import numpy as np
import pytest

from keelstore.common.ring import composite
from keelstore.common.ring.composite import Composite, compose
from keelstore.common.ring.errors import BuilderError, RingFileError
from keelstore.common.ring.ring import Ring
from test.unit.common.ring.support import HOUR, builder, device, rebalanced


def component(tmp_path, region, replicas=2.0, part_power=6, **more):
    built = rebalanced([device(region, zone, server) for zone in (1, 2, 3) for server in (1, 2)], part_power, replicas, **more)
    path = str(tmp_path / f"r{region}.builder")
    built.save(path)
    return built, path


@pytest.fixture
def two(tmp_path):
    (one, one_path), (other, other_path) = component(tmp_path, 1), component(tmp_path, 2, 1.0)
    return [one, other], [one_path, other_path]


def test_rows_follow_each_other_and_ids_are_shifted(two):
    builders, paths = two
    builders[0].remove(5)
    builders[0].remove(2)
    builders[0].rebalance(2000 * HOUR, 1)
    _, ring = compose(Composite(), builders, paths)
    assert len(ring.rows) == 3 and ring.version is None and ring.part_power == 6
    assert [None if dev is None else dev["id"] for dev in ring.devices] == [0, 1, None, 3, 4, *range(5, 11)]
    assert list(ring.rows[2]) == [i + 5 for i in builders[1].table[0]]
    assert Ring(ring).replica_count == 3


def test_what_is_remembered(two, tmp_path):
    builders, paths = two
    made, _ = compose(Composite(), builders, paths)
    path = str(tmp_path / "all.json")
    composite.save(made, path)
    assert composite.load(path) == made
    value = json.loads((tmp_path / "all.json").read_text())
    assert value["components"][1] == {"version": builders[1].version, "replicas": 1.0, "id": builders[1].id}
    assert value["component_builder_files"] == {builders[0].id: paths[0], builders[1].id: paths[1]}
    assert (value["version"], value["saved_path"], value["serialization_version"]) == (1, path, 1)


def test_composing_again_needs_the_same_builders(two, tmp_path):
    builders, paths = two
    made, _ = compose(Composite(), builders, paths)
    assert compose(made, builders, paths)[0].version == 2
    with pytest.raises(BuilderError, match="None of the component builders has been modified"):
        compose(made, builders, paths, require_modified=True)
    with pytest.raises(BuilderError, match="Invalid builder change at index 0: Attribute mismatch for id"):
        compose(made, builders[::-1], paths[::-1])
    assert compose(made, builders[::-1], paths[::-1], force=True)[0].version == 2
    third, third_path = component(tmp_path, 3)
    with pytest.raises(BuilderError, match="different number"):
        compose(made, [*builders, third], [*paths, third_path])
    builders[1].version -= 1
    with pytest.raises(BuilderError, match="Older builder version"):
        compose(made, builders, paths)
    builders[1].version += 2
    assert compose(made, builders, paths, require_modified=True)[0].version == 2


def test_components_must_fit(two, tmp_path):
    builders, paths = two
    with pytest.raises(BuilderError, match="Two or more component builders are required"):
        compose(Composite(), builders[:1], paths[:1])
    with pytest.raises(BuilderError, match="used at indexes 0, 1"):
        compose(Composite(), [builders[0], builders[0]], paths)
    for other, text in (
            (component(tmp_path, 3, part_power=5)[0], "part power 5, not 6"),
            (component(tmp_path, 3, replicas=1.5)[0], "not a whole number"),
            (component(tmp_path, 1)[0], "Region 1 found in builders at indexes 0, 1"),
            (rebalanced([device(4, z) for z in (1, 2, 3)], 6, 2.0), "has no id"),
            (builder([device(4, 1)], 6, 1.0), "needs rebalance to apply changes at index 1")):
        with pytest.raises(BuilderError, match=text):
            compose(Composite(), [builders[0], other], paths)
    same_place = component(tmp_path, 5)[0]
    for dev in list(same_place):
        same_place.set_info(dev.id, {"ip": dev.ip.replace("10.5", "10.1")})
    with pytest.raises(BuilderError, match="Duplicate ip/port/device combination"):
        compose(Composite(), [builders[0], same_place], paths)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"serialization_version": 2}',
                                  '{"serialization_version": 1, "components": [{}], "version": 1}', "\x80\x02}."])
def test_what_is_no_composite_file_is_refused(text):
    with pytest.raises(RingFileError, match="is no composite builder file"):
        composite.decode(text)


def test_of_a_partition_only_one_component_moves_a_replica(two):
    builders, _ = two
    old = [built.table.copy() for built in builders]
    for built in builders:
        built.add_device(device(next(iter(built)).region, 4, 1, 0, 300.0))
    composite.rebalance(builders, 3000 * HOUR, 1)
    changed = [(built.table != before).any(axis=0) for built, before in zip(builders, old, strict=True)]
    assert all(one.any() for one in changed) and not (changed[0] & changed[1]).any()
    again = [built.table.copy() for built in builders]
    composite.rebalance(builders, 3000 * HOUR + 60, 2)
    moved = [(built.table != before).any(axis=0) for built, before in zip(builders, again, strict=True)]
    assert not (np.logical_or(*moved) & np.logical_or(*changed)).any()
