import logging

from hypothesis import given
from hypothesis import strategies as st

from keelstore.common.errors import BackendError, BackendTimeout
from keelstore.common.ring.ring import Node
from keelstore.proxy.health import Health
from keelstore.proxy.placement import (
    NO_MATCH,
    Nodes,
    order_for_delete,
    order_for_read,
    order_for_write,
    priority_of,
    share_updates,
    updates_needed,
)


def node(number, region=1, zone=1, handoff=None):
    return Node(number, region, zone, f"10.0.{region}.{number}", 6200, f"10.0.{region}.{number}", 6200, f"sd{number}", 1.0, "",
                None if handoff is not None else number, handoff)


NEVER = lambda asked: 0.0  # noqa: E731


nodes_lists = st.integers(0, 12).flatmap(lambda count: st.lists(
    st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=count, max_size=count).map(
        lambda places: [node(i, r, z) for i, (r, z) in enumerate(places)]))


def test_priority_is_that_of_the_first_rule_that_matches():
    rules = ((1, 1, 100), (1, None, 200))
    assert priority_of(node(0, 1, 1), rules) == 100
    assert priority_of(node(0, 1, 2), rules) == 200
    assert priority_of(node(0, 2, 1), rules) == NO_MATCH


def test_reading_order():
    nodes = [node(0, 2), node(1, 1), node(2, 3)]
    keep = lambda found: None  # noqa: E731
    assert order_for_read(nodes, "affinity", ((1, None, 1), (2, None, 2)), NEVER, keep) == [nodes[1], nodes[0], nodes[2]]
    times = {0: 5.0, 1: -1.0, 2: 1.0}
    assert order_for_read(nodes, "timing", (), lambda n: times[n.id], keep) == [nodes[1], nodes[2], nodes[0]]
    assert order_for_read(nodes, "shuffle", (), NEVER, list.reverse) == nodes[::-1]


def test_what_comes_last_does_so_among_nodes_that_are_alike():
    nodes = [node(0, 2), node(1, 1), node(2, 1), node(3, 2)]
    even = lambda found: found.id % 2 == 0  # noqa: E731
    assert order_for_read(nodes, "shuffle", (), NEVER, list.reverse, even) == [nodes[3], nodes[1], nodes[2], nodes[0]]
    affinity = ((1, None, 1), (2, None, 2))
    assert order_for_read(nodes, "affinity", affinity, NEVER, list.reverse, even) == [nodes[1], nodes[2], nodes[3], nodes[0]]


@given(nodes_lists, st.integers(1, 6), st.integers(0, 12))
def test_write_affinity_asks_everyone_once_local_nodes_first(nodes, local_count, split):
    primaries, handoffs = nodes[:split], nodes[split:]
    first, rest = order_for_write(primaries, handoffs, ((1, None),), local_count)
    whole = [*first, *rest]
    assert sorted(n.id for n in whole) == sorted(n.id for n in nodes)
    local = [n for n in nodes if n.region == 1][:local_count]
    assert whole[:len(local)] == local
    assert len(first) == min(len(primaries), len(nodes))


@given(nodes_lists, st.integers(0, 12), st.none() | st.integers(0, 4))
def test_deletes_go_to_local_handoffs_too(nodes, split, count):
    primaries, handoffs = nodes[:split], nodes[split:]
    first, rest, asked = order_for_delete(primaries, handoffs, ((1, None),), count)
    assert first[:len(primaries)] == primaries
    assert asked == len(first)
    assert all(n.region == 1 for n in first[len(primaries):])
    assert sorted(n.id for n in [*first, *rest]) == sorted(n.id for n in nodes)


def test_nodes_stop_at_their_limit_and_skip_what_is_limited():
    bad = {1}
    nodes = Nodes([node(0), node(1), node(2)], lambda: [node(3, handoff=0), node(4, handoff=1)], 3, lambda n: n.id in bad)
    assert [n.id for n in nodes] == [0, 2, 3]


def test_what_was_skipped_is_a_last_resort_once():
    nodes = Nodes([node(0), node(1), node(2)], lambda: [node(3, handoff=0), node(4, handoff=1)], 3, lambda n: n.id in {1, 2, 3})
    assert [n.id for n in nodes] == [0, 4]
    assert [n.id for n in iter(nodes.last_resort, None)] == [1, 2]


def test_a_node_that_became_limited_does_not_count():
    bad = set()
    found = []
    for asked in Nodes([node(0), node(1)], lambda: [node(2, handoff=0), node(3, handoff=1)], 2, lambda n: n.id in bad):
        found.append(asked.id)
        if asked.id == 0:
            bad.add(0)
    assert found == [0, 1, 2]


@given(st.integers(1, 6), st.integers(1, 14), st.integers(1, 14))
def test_a_quorum_of_object_servers_tells_a_quorum_of_container_servers(replicas, objects, quorum):
    quorum = min(quorum, objects)
    needed = updates_needed(replicas, objects, quorum)
    shares = share_updates(list(range(replicas)), objects, needed)
    assert sum(map(len, shares)) == needed
    assert {n for share in shares for n in share} == set(range(replicas))
    backwards = share_updates(list(range(replicas)), objects, needed, backwards=True)
    assert backwards == shares[::-1]


def test_health_forgets_after_the_interval():
    now = [100.0]
    health = Health(2, 60, 300, lambda: now[0], logging.getLogger("keelstore.test"))
    for _ in range(3):
        assert not health.is_limited(node(0))
        health.error(node(0), "x")
    assert health.is_limited(node(0))
    now[0] += 61
    assert not health.is_limited(node(0))
    health.limit_now(node(1), "507")
    assert health.is_limited(node(1))
    assert health.limited() == [node(1).key]


def test_a_full_device_gets_nothing_as_large_for_a_while_and_is_not_limited():
    now = [100.0]
    health = Health(2, 60, 300, lambda: now[0], logging.getLogger("keelstore.test"))
    health.full(node(0), 500, "PUT")
    assert [health.is_full(node(0), size) for size in (0, 499, 500, 501)] == [False, False, True, True]
    health.full(node(0), 900, "PUT")  # what is known of smaller ones is not forgotten
    assert [health.passed_by(size)(node(0)) for size in (499, 500)] == [False, True]
    assert not health.is_limited(node(0))
    assert health.limited() == []
    assert not health.is_full(node(1), 500)
    now[0] += 16
    assert not health.is_full(node(0), 1 << 40)
    health.full(node(0), 900, "PUT")
    assert [health.is_full(node(0), size) for size in (500, 900)] == [False, True]


def test_timings_expire():
    now = [100.0]
    health = Health(2, 60, 300, lambda: now[0], logging.getLogger("keelstore.test"))
    assert health.timing_ms(node(0)) == -1
    health.record_timing(node(0), 0.0123456)
    assert health.timing_ms(node(0)) == 12.346
    now[0] += 301
    assert health.timing_ms(node(0)) == -1


def test_a_silent_node_is_suspect_until_it_answers():
    now = [100.0]
    health = Health(10, 60, 300, lambda: now[0], logging.getLogger("keelstore.test"))
    health.failed(node(0), "GET", BackendError("refused"))
    assert not health.is_suspect(node(0))
    health.failed(node(0), "GET", BackendTimeout("silent"))
    assert health.is_suspect(node(0))
    assert (health.patience_s(node(0), 10.0), health.patience_s(node(1), 10.0)) == (1.0, 10.0)
    health.answered(node(0))
    assert health.patience_s(node(0), 10.0) == 10.0
    health.failed(node(0), "GET", BackendTimeout("silent"))
    now[0] += 61
    assert not health.is_suspect(node(0))
    assert not health.has_suspects
