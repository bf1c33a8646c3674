"""The promises of a rebalance, whatever the devices."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from keelstore.common.ring import plan
from keelstore.common.ring.plan import EPSILON
from test.unit.common.ring.support import HOUR, cluster, clusters, device, rebalanced, replica_counts

NOW = 1000 * HOUR


def planned(built):
    return [plan.PlannedDevice(d.id, d.region, d.zone, d.ip, d.weight) for d in built]


def most_per_tier(built):
    """By tier, the most replicas of one partition that it holds."""
    found: dict[tuple, int] = {}
    for part in range(built.parts):
        here: dict[tuple, int] = {}
        for device_id in built.table[:, part]:
            if device_id >= 0:
                tier = built.devices[device_id].tier
                for depth in range(1, 5):
                    here[tier[:depth]] = here.get(tier[:depth], 0) + 1
        for tier, count in here.items():
            found[tier] = max(found.get(tier, 0), count)
    return found


def assert_promises(built, overload=0.0):
    built.validate()  # distinct devices, no slot without one
    target = plan.target(planned(built), built.replicas, overload)
    for tier, most in most_per_tier(built).items():
        assert most <= math.ceil(target.get(tier, 0.0) - EPSILON), tier
    slots = built.parts * (len(built.table) - 1) + built.last_row_length
    scale = slots / built.replicas
    for dev in built:
        assert abs(built.parts_of(dev.id) - target.get(dev.tier, 0.0) * scale) <= 1.001


@given(clusters(), replica_counts, st.sampled_from([0.0, 0.1, 10.0]), st.integers(0, 3))
@settings(derandomize=True, max_examples=80, deadline=None)
def test_a_first_rebalance_keeps_every_promise(devices, replicas, overload, seed):
    built = rebalanced(devices, 6, replicas, seed, overload=overload)
    assert_promises(built, overload)


@given(clusters(), replica_counts)
@settings(derandomize=True, max_examples=30, deadline=None)
def test_nothing_moves_when_nothing_changed(devices, replicas):
    built = rebalanced(devices, 6, replicas)
    built.pretend_min_part_hours_passed()
    assert built.rebalance(NOW + HOUR, 9).changed == 0


@given(clusters(), clusters(), replica_counts, st.integers(0, 3), st.data())
@settings(derandomize=True, max_examples=60, deadline=None)
def test_of_each_partition_at_most_one_replica_moves(before, after, replicas, seed, data):
    """Whatever changes, with no device removed: one slot of a partition, and none of one that moved lately."""
    built = rebalanced(before, 6, replicas, seed)
    old = built.table.copy()
    moves = np.array(data.draw(st.lists(st.integers(0, 3), min_size=64, max_size=64)), dtype=np.uint8)
    built._last_moves[:] = moves
    built.set_min_part_hours(2)
    for dev in after:
        if not built.find_same_place(dev):
            built.add_device(dev)
    for dev in list(built):
        built.set_weight(dev.id, data.draw(st.sampled_from([dev.weight, dev.weight, 10.0, 250.0])))
    built.rebalance(NOW, seed)
    changed = (built.table != old).sum(axis=0)
    assert changed.max() <= 1
    assert (changed[moves < 2] == 0).all()
    assert (built._last_moves[changed > 0] == 0).all()
    built.validate()


@given(clusters(), replica_counts, st.data())
@settings(derandomize=True, max_examples=40, deadline=None)
def test_only_removed_devices_partitions_move_within_min_part_hours(devices, replicas, data):
    built = rebalanced(devices, 6, replicas)
    old = built.table.copy()
    able = [dev.id for dev in built if dev.weight > 0]
    gone = data.draw(st.lists(st.sampled_from(able), unique=True, max_size=max(0, len(able) - math.ceil(replicas))))
    for device_id in gone:
        built.remove(device_id)
    done = built.rebalance(NOW + 60, 3)
    assert done.removed == len(gone)
    moved = built.table != old
    assert np.isin(old[moved], gone).all()
    assert not np.isin(built.table, gone).any()
    built.validate()


@given(clusters(), st.integers(0, 3))
@settings(derandomize=True, max_examples=30, deadline=None)
def test_changes_are_carried_out_over_several_rebalances(devices, seed):
    """However far a change goes, repeated rebalances get to what a first one would have given."""
    built = rebalanced(devices, 6, 3.0, seed)
    for dev in cluster(2, 2, 1, 2, weight=150.0):
        if not built.find_same_place(dev):
            built.add_device(dev)
    for attempt in range(12):
        built.pretend_min_part_hours_passed()
        if not built.rebalance(NOW + attempt * HOUR, attempt).changed:
            break
    assert_promises(built)


def test_the_same_seed_gives_the_same_ring_and_another_gives_another():
    devices = cluster(2, 3, 2, 2)
    one, same, other = (rebalanced(devices, seed=seed) for seed in (5, 5, 6))
    assert (one.table == same.table).all() and (one.table != other.table).any()
    for built in (one, same):
        built.pretend_min_part_hours_passed()
        built.add_device(device(1, 1, 7))
        built.rebalance(NOW + HOUR, "x")
    assert (one.table == same.table).all()


def test_randomness_of_the_process_is_left_alone():
    np.random.seed(1)
    expected = np.random.random(3).tolist()
    np.random.seed(1)
    rebalanced(cluster())
    assert np.random.random(3).tolist() == expected


def test_adding_one_device_in_a_hundred_moves_little_more_than_its_share():
    built = rebalanced(cluster(1, 4, 5, 5), part_power=12)
    built.pretend_min_part_hours_passed()
    built.add_device(device(1, 1, 1, 9))
    done = built.rebalance(NOW + HOUR, 3)
    share = built.parts * 3 / 101
    assert share - 1 <= done.changed <= share * 1.1
    assert built.balance() < 1.5 and built.dispersion == 0


def test_replicas_spread_over_new_zones_one_at_a_time():
    built = rebalanced(cluster(1, 1, 3, 2), part_power=6)
    for zone in (2, 3):
        for server in (1, 2, 3):
            for disk in (0, 1):
                built.add_device(device(1, zone, server, disk))
    for attempt in range(3):
        built.pretend_min_part_hours_passed()
        built.rebalance(NOW + attempt * HOUR, attempt)
    assert built.dispersion == 0
    assert most_per_tier(built)[1, 1] == 1


def test_a_device_of_weight_0_is_drained():
    built = rebalanced(cluster())
    built.set_weight(4, 0)
    built.pretend_min_part_hours_passed()
    built.rebalance(NOW + HOUR, 1)
    assert built.parts_of(4) == 0 and built.devices[4] is not None


def test_overload_trades_balance_for_dispersion():
    devices = [*cluster(1, 2, 2, 2), device(1, 3, 1, 0, 50.0), device(1, 3, 1, 1, 50.0)]
    plain, loaded = rebalanced(devices), rebalanced(devices, overload=10.0)
    assert plain.balance() < 1.5 and plain.dispersion > 0
    assert loaded.dispersion == 0 and loaded.balance() > 50


def test_more_replicas_only_add():
    built = rebalanced(cluster(1, 4, 2, 2))
    old = built.table.copy()
    built.set_replicas(3.5)
    done = built.rebalance(NOW + 60, 1)
    assert (built.table[:3] == old).all() and built.last_row_length == 128
    assert done.changed == 128
    built.validate()


def test_fewer_replicas_only_drop():
    built = rebalanced(cluster(1, 4, 2, 2), replicas=3.0)
    old = built.table.copy()
    built.set_replicas(2.25)
    built.rebalance(NOW + 60, 1)
    assert (built.table[:2] == old[:2]).all() and built.last_row_length == 64
    built.validate()


def test_two_replicas_on_one_device_are_parted_whenever():
    built = rebalanced(cluster())
    built._table[1, 7] = built._table[0, 7]
    built.rebalance(NOW + 60, 1)
    built.validate()


def test_devices_share_partitions_with_many_others():
    """If one fails, many take part in making the copies anew."""
    built = rebalanced(cluster(1, 4, 5, 5), part_power=14)
    mine = built.table[:, (built.table == 0).any(axis=0)]
    assert len(np.unique(mine)) > 70  # of the 76 that are not in its zone


def test_ec_sized_rows():
    built = rebalanced(cluster(1, 7, 4, 2), part_power=8, replicas=14.0)
    assert built.dispersion == 0 and built.balance() < 2
    built.pretend_min_part_hours_passed()
    built.remove(3)
    built.rebalance(NOW + HOUR, 1)
    assert_promises(built)
