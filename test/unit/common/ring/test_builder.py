import numpy as np
import pytest

from keelstore.common.ring.builder import RingBuilder
from keelstore.common.ring.errors import BuilderError, DuplicateDevice, ValidationError
from test.unit.common.ring.support import HOUR, builder, cluster, device, rebalanced

NOW = 1000 * HOUR


@pytest.mark.parametrize(("args", "text"), [
    ((33, 3, 1), "part_power must be at most 32 (was 33)"), ((-1, 3, 1), "part_power must be at least 0 (was -1)"),
    ((8, 0.5, 1), "replicas must be at least 1 (was 0.500000)"), ((8, float("nan"), 1), "replicas must be at least 1"),
    ((8, 3, -1), "min_part_hours must be non-negative (was -1)")])
def test_limits_of_a_builder(args, text):
    with pytest.raises(BuilderError) as caught:
        RingBuilder(*args)
    assert text in str(caught.value)


def test_ids_are_the_first_free_ones():
    built = builder(cluster(1, 3, 1, 1))
    assert built.add_device(device(1, 4)) == 3
    built.remove(1)
    built.rebalance(NOW, 1)
    assert built.devices[1] is None
    assert built.add_device(device(1, 5)) == 1
    with pytest.raises(DuplicateDevice, match="Duplicate device id: 0"):
        built.add_device(device(1, 6, id=0))
    assert built.add_device(device(1, 6, id=9)) == 9 and len(built.devices) == 10


def test_what_counts_as_a_version():
    built = RingBuilder(6, 3, 1)
    counted = []

    def step(change):
        before = built.version
        change()
        counted.append(built.version - before)

    for dev in cluster(1, 4, 1, 1):
        step(lambda dev=dev: built.add_device(dev))
    step(lambda: built.set_weight(0, 7))
    step(lambda: built.set_region(0, 2))
    step(lambda: built.set_zone(0, 2))
    step(lambda: built.remove(0))
    step(lambda: built.rebalance(NOW, 1))
    step(built.measure_dispersion)
    step(built.prepare_increase_partition_power)
    step(built.increase_partition_power)
    step(built.finish_increase_partition_power)
    assert counted == [1] * 13
    counted.clear()
    step(lambda: built.set_replicas(2))
    step(lambda: built.set_overload(0.1))
    step(lambda: built.set_min_part_hours(3))
    step(lambda: built.set_info(1, {"meta": "x"}))
    step(built.pretend_min_part_hours_passed)
    assert counted == [0] * 5


def test_removal_happens_with_the_next_rebalance_and_trims_the_end():
    built = rebalanced(cluster(1, 4, 1, 1))
    built.remove(3)
    built.remove(3)
    assert built.removing == [3] and built.device(3).weight == 0
    with pytest.raises(BuilderError, match="Can not set weight of dev_id 3 because it is marked for removal"):
        built.set_weight(3, 1)
    assert built.rebalance(NOW + 60, 1).removed == 1
    assert len(built.devices) == 3 and built.removing == []


def test_set_replicas_is_a_change_only_when_it_changes_the_table():
    built = rebalanced(cluster())
    assert not built.devices_changed
    built.set_replicas(3.001)
    assert not built.devices_changed
    built.set_replicas(3.5)
    assert built.devices_changed


def test_info_of_another_device_is_refused():
    built = builder(cluster(1, 2, 1, 1))
    other = built.device(1)
    with pytest.raises(DuplicateDevice, match=r"Device 1 already uses 10.1.2.1:6200/d0."):
        built.set_info(0, {"ip": other.ip})
    assert built.device(0).ip == "10.1.1.1"


@pytest.mark.parametrize("call", [lambda b: b.set_weight(99, 1), lambda b: b.remove(-1), lambda b: b.set_zone(2, 1),
                                  lambda b: b.set_weight(0, -1), lambda b: b.set_weight(0, float("nan")),
                                  lambda b: b.set_overload(-1), lambda b: b.set_replicas(0), lambda b: b.set_min_part_hours(-2),
                                  lambda b: b.add_device(device(weight=-5.0))])
def test_senseless_changes_are_refused(call):
    with pytest.raises(BuilderError):
        call(builder(cluster(1, 2, 1, 1)))


def test_rebalance_needs_devices():
    with pytest.raises(BuilderError, match="There are no devices in this ring, or all devices have been deleted"):
        RingBuilder(6, 3, 1).rebalance(NOW)
    with pytest.raises(BuilderError, match=r"Replica count of 3.0 requires more than 2 devices"):
        builder([*cluster(1, 2, 1, 1), device(1, 9, weight=0.0)]).rebalance(NOW)


def test_hours_since_the_last_move_are_counted_whole():
    built = rebalanced(cluster(), hours=2)
    assert built.last_moves_epoch == NOW
    assert built.min_part_seconds_left(NOW + 60) == 2 * 3600 - 60
    assert not built.movable(NOW + HOUR - 1).any() and built.last_moves_epoch == NOW
    assert not built.movable(NOW + HOUR).any() and built.last_moves_epoch == NOW + HOUR
    assert built.movable(NOW + 2 * HOUR).all()
    built.age_moves(NOW + 9999 * HOUR)
    assert built.state().last_moves.max() == 255


def test_balance():
    built = rebalanced([device(1, zone, weight=weight) for zone, weight in ((1, 100.0), (2, 100.0), (3, 200.0))],
                       replicas=2.0)
    assert built.balance() == pytest.approx(0.0)
    built.set_weight(0, 0)
    assert built.device_balances()[0] == built.balance() == 999.99
    built.pretend_min_part_hours_passed()
    built.rebalance(NOW + HOUR, 1)
    assert built.device_balances()[0] == 0


def test_the_partition_power_is_increased_in_steps():
    built = rebalanced(cluster(), replicas=2.5, part_power=4)
    old, counts = built.table.copy(), [built.parts_of(dev.id) for dev in built]
    assert not built.increase_partition_power() and not built.cancel_increase_partition_power()
    assert not built.finish_increase_partition_power()
    assert built.prepare_increase_partition_power() and not built.prepare_increase_partition_power()
    assert built.next_part_power == 5 and built.part_power == 4
    assert built.increase_partition_power() and not built.increase_partition_power()
    assert (built.part_power, built.next_part_power, built.parts) == (5, 5, 32)
    assert (built.table[:, 0::2] == old).all() and (built.table[:, 1::2] == old).all()
    assert [built.parts_of(dev.id) for dev in built] == [2 * count for count in counts]
    assert built.last_row_length == 16 and len(built.state().last_moves) == 32
    built.validate()
    assert built.ring().part_power == 5 and built.ring().next_part_power == 5
    assert built.finish_increase_partition_power() and built.next_part_power is None


def test_an_announced_increase_can_be_taken_back():
    built = rebalanced(cluster(), part_power=4)
    built.prepare_increase_partition_power()
    assert built.cancel_increase_partition_power()
    assert (built.part_power, built.next_part_power) == (4, 4)
    assert not built.increase_partition_power() and not built.cancel_increase_partition_power()
    assert built.finish_increase_partition_power()


@pytest.mark.parametrize(("damage", "text"), [
    (lambda t: t.__setitem__((1, 5), -1), "Partition 5, replica 1 was not allocated to a device."),
    (lambda t: t.__setitem__((1, 5), t[0, 5]), "The partition 5 has been assigned to duplicate devices"),
    (lambda t: t.__setitem__((2, 3), 2), "Partition 3, replica 2 was not allocated to a device.")])
def test_validate_finds_what_is_wrong(damage, text):
    built = rebalanced(cluster(1, 4, 1, 1))
    built.remove(2)
    built.rebalance(NOW + 60, 1)
    built.validate()
    damage(built._table)
    with pytest.raises(ValidationError, match=text):
        built.validate()


def test_validate_before_a_rebalance():
    with pytest.raises(ValidationError, match="did you forget to rebalance"):
        builder(cluster()).validate()


def test_partitions_on_devices_most_first():
    built = rebalanced(cluster(1, 3, 1, 1), part_power=3)
    assert built.partitions_on({0}) == [(part, 1) for part in range(8)]
    assert built.partitions_on({0, 1, 2}) == [(part, 3) for part in range(8)]
    assert builder(cluster()).partitions_on({0}) == []


def test_graph_counts_partitions_by_replicas_in_each_tier():
    built = rebalanced(cluster(1, 1, 2, 2), part_power=4)
    assert built.graph[(1,)] == [0, 0, 0, 16]
    two, one = built.graph[1, 1, "10.1.1.1"][2], built.graph[1, 1, "10.1.1.1"][1]
    assert two + one == 16 and built.graph[1, 1, "10.1.1.2"] == [0, two, one, 0]
    for tier, row in built.graph.items():
        assert sum(row) == 16
        if len(tier) == 4:
            assert row[1] == built.parts_of(tier[3])


def test_dispersion_counts_what_is_too_much():
    built = rebalanced(cluster(1, 3, 1, 2), part_power=4)
    assert built.dispersion == 0
    zone_of = np.array([dev.zone for dev in built])
    part = 0
    rows = {zone_of[built._table[row, part]]: row for row in range(3)}
    first = built._table[rows[1], part]
    built._table[rows[2], part] = next(d.id for d in built if d.zone == 1 and d.id != first)
    assert built.measure_dispersion() == pytest.approx(100 / 48)


def test_parts_wanted_is_what_is_still_missing():
    built = rebalanced(cluster())
    built.add_device(device(1, 1, 9))
    built.rebalance(NOW + 60, 1)  # nothing may move yet
    assert built.parts_wanted[12] == pytest.approx(768 / 13, abs=1) and built.parts_of(12) == 0


def test_a_builder_out_of_a_ring():
    built = rebalanced(cluster(), replicas=2.5)
    again = RingBuilder.from_ring(built.ring(), 24)
    assert (again.table == built.table).all() and again.replicas == 2.5 and again.version == built.version
    assert list(again) == list(built) and again.min_part_hours == 24 and again.id is None
    again.validate()
