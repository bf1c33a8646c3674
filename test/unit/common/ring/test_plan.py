import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keelstore.common.ring import plan
from keelstore.common.ring.plan import PlannedDevice


def dev(number, region=1, zone=1, ip=None, weight=100.0):
    return PlannedDevice(number, region, zone, ip or f"10.{region}.{zone}.1", weight)


def test_weight_decides_and_no_device_gets_more_than_one():
    devices = [dev(0, weight=300.0), dev(1, weight=100.0), dev(2, weight=100.0)]
    shares = plan.weighted(devices, 2)
    assert [round(shares[d.tier], 3) for d in devices] == [1.0, 0.5, 0.5]


def test_dispersed_gives_each_zone_its_part_whatever_it_weighs():
    devices = [dev(0, zone=1, weight=1000.0), dev(1, zone=1, weight=1000.0), dev(2, zone=2), dev(3, zone=3)]
    even = plan.dispersed(devices, 3)
    assert [even[1, zone] for zone in (1, 2, 3)] == [1.0, 1.0, 1.0]


def test_dispersed_leaves_to_weight_what_can_be_left():
    devices = [dev(i, zone=zone, ip=f"10.0.{zone}.{i}", weight=w) for i, (zone, w) in
               enumerate([(1, 300.0), (1, 300.0), (2, 100.0), (2, 100.0)])]
    even = plan.dispersed(devices, 3)
    assert even[1, 1] == 2.0 and even[1, 2] == 1.0


def test_overload_goes_from_the_weighted_to_the_dispersed_plan():
    devices = [dev(0, zone=1, weight=150.0), dev(1, zone=1, weight=150.0), dev(2, zone=2, weight=100.0)]
    required = plan.required_overload(plan.weighted(devices, 2), plan.dispersed(devices, 2))
    assert required == pytest.approx(1.0)
    assert plan.target(devices, 2, 0.0)[1, 2] == pytest.approx(0.5)
    assert plan.target(devices, 2, 0.1)[1, 2] == pytest.approx(0.55)
    assert plan.target(devices, 2, 5.0)[1, 2] == pytest.approx(1.0)


def test_a_small_tier_is_filled_and_the_others_take_the_rest():
    devices = [dev(0, zone=1), *(dev(i, zone=2) for i in range(1, 6))]
    even = plan.dispersed(devices, 4)
    assert even[1, 1] == 1.0 and even[1, 2] == 3.0


def test_most_when_even_rounds_up_at_each_tier_and_is_one_for_a_device():
    devices = [dev(i, zone=zone) for i, zone in enumerate([1, 1, 2, 2])]
    most = plan.most_when_even((d.tier for d in devices), 3)
    assert most[(1,)] == 3 and most[1, 1] == 2 and most[devices[0].tier] == 1


@given(st.floats(0, 100), st.lists(st.tuples(st.floats(0.01, 1000), st.floats(0, 3), st.floats(0, 3)), min_size=1, max_size=9))
@settings(derandomize=True)
def test_share_out_keeps_bounds_and_sum(part, rows):
    weights, lows = [row[0] for row in rows], [row[1] for row in rows]
    highs = [row[1] + row[2] for row in rows]
    amount = sum(lows) + (sum(highs) - sum(lows)) * part / 100
    shares = plan.share_out(amount, weights, lows, highs)
    assert sum(shares) == pytest.approx(amount, abs=1e-6)
    assert all(low - 1e-6 <= share <= high + 1e-6 for low, share, high in zip(lows, shares, highs, strict=True))


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.floats(1, 1000)), min_size=4, max_size=30),
       st.floats(1, 4), st.sampled_from([0.0, 0.1, 1.0, 100.0]))
@settings(derandomize=True)
def test_a_plan_gives_out_all_replicas_and_sums_up(rows, replicas, overload):
    devices = [PlannedDevice(i, r, z, f"10.{r}.{z}.{s}", w) for i, (r, z, s, w) in enumerate(rows)]
    for shares in (plan.weighted(devices, replicas), plan.dispersed(devices, replicas),
                   plan.target(devices, replicas, overload)):
        assert shares[()] == pytest.approx(replicas)
        for parent, children in plan.children_of(d.tier for d in devices).items():
            assert shares[parent] == pytest.approx(sum(shares[child] for child in children), abs=1e-6)
        assert all(shares[d.tier] <= 1 + 1e-6 for d in devices)
    weighted = plan.weighted(devices, replicas)
    target = plan.target(devices, replicas, overload)
    assert all(target[d.tier] <= weighted[d.tier] * (1 + overload) + 1e-6 for d in devices)
