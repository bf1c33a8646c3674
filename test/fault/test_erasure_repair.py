"""Fault scenarios of the repair of erasure coded objects (``spec: scenarios-fault`` 16, 17; the numbers are its rows), by reconstructors
that are processes of their own. Names and metadata are not ASCII (row 123).
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from keelstore.common.ring.ring import Node
from keelstore.common.timestamp import Timestamp
from test.support.client import Account
from test.support.fragment_stage import RECONSTRUCTOR, Fragments, FragmentStage, Stored
from test.support.waiting import until

V1, V2 = (random.Random(size).randbytes(size) for size in (70_000, (1 << 20) + 7))
META, POSTED = {"X-Object-Meta-U": "n\u00e9"}, {"X-Object-Meta-New": "\u65e5"}
# primaries that fail, primaries whose fragment is not durable, passes after which all is as before
BROKEN: list[tuple[Sequence[int], Sequence[int], int]] = [
    ((3,), (), 1), ((0, 5), (), 1), ((0, 4), (), 1),  # 111
    ((), (3,), 1), ((), (0, 5), 1), ((), (0, 4), 1),  # 112
    ((0, 2), (4,), 3), ((0, 4), (2,), 3),  # 113
    ((0, 1), (2,), 2), ((0, 2), (1,), 2),  # 114
    ((0, 2), (1, 3, 5), 3), ((0,), (1, 2, 4, 5), 3),  # 115
]  # fmt: skip


def log_of(stage: FragmentStage, node: Node) -> str:
    """What the reconstructor of its site has said."""
    return (stage.home / f"{RECONSTRUCTOR}-{stage.site_of(node)}.log").read_text(errors="replace")


def on(stored: Stored, node: Node) -> object:
    return stored.get(node.device)


# -- rebuild -----------------------------------------------------------------------------------------------------------


def test_scenarios_111_to_115_what_fails_or_waits_comes_back(
        fragment_stage: FragmentStage, fragment_account: Account, fragment_container: str) -> None:
    spots: list[Fragments] = []
    while len(spots) < len(BROKEN):
        spot = Fragments(fragment_stage, fragment_account, fragment_container)
        if spot.part not in {other.part for other in spots}:
            spots.append(spot)
    before = []
    for spot, (failed, waiting, _) in zip(spots, BROKEN, strict=True):
        spot.put(V1, **META)
        spot.post(**POSTED)
        before.append(spot.stored())
        spot.fail(*failed)
        spot.undo_durable(*(spot.primaries[place] for place in waiting))
        assert spot.get().expect(200).body == V1
    for cycle in (1, 2, 3):
        fragment_stage.reconstruct()
        for spot, was, (failed, waiting, cycles) in zip(spots, before, BROKEN, strict=True):
            assert cycle < cycles or spot.stored() == was, (failed, waiting, cycle)
    for spot in spots:
        answer = spot.get().expect(200)
        assert answer.body == V1 and answer.headers.text("X-Object-Meta-New") == "\u65e5"


def test_scenario_116_the_fragment_of_a_dead_device_goes_to_a_handoff(fragment_stage: FragmentStage, spot: Fragments) -> None:
    spot.put(V1, **META)
    before = spot.stored()
    with fragment_stage.lost(spot.primaries[1]):
        fragment_stage.reconstruct(fragment_stage.site_of(spot.primaries[0]))
        (handoff,) = spot.holders()
        assert on(spot.stored(), handoff) == on(before, spot.primaries[1])


def test_scenario_117_an_expired_object_is_rebuilt(fragment_stage: FragmentStage, spot: Fragments) -> None:
    spot.put(V1, **{"X-Delete-After": "3"})
    before = spot.stored()
    node = spot.primaries[3]
    until(lambda: spot.get().expect(404), "it has expired")
    spot.fail(3)
    assert "X-Backend-Timestamp" not in spot.ask(node).expect(404).headers
    fragment_stage.reconstruct()
    assert "X-Backend-Timestamp" in spot.ask(node).expect(404).headers
    spot.ask(node, headers={"X-Backend-Replication": "true"}).expect(200)
    assert spot.stored() == before


def test_scenario_118_a_device_missed_that_an_object_no_longer_expires(fragment_stage: FragmentStage, spot: Fragments) -> None:
    spot.put(V1, **{"X-Delete-After": "8"})
    with fragment_stage.lost(spot.primaries[2]):
        spot.post(**POSTED)
    until(lambda: spot.ask(spot.primaries[2], "HEAD").expect(404), "the device takes it for expired")
    assert spot.get().expect(200).body == V1
    fragment_stage.reconstruct()
    for node in spot.primaries:
        assert "X-Delete-At" not in spot.ask(node, "HEAD").expect(200).headers


def test_scenarios_119_and_120_the_remains_of_a_deleted_object(fragment_stage: FragmentStage, spot: Fragments) -> None:
    spot.put(V1)
    node = spot.primaries[0]
    with fragment_stage.lost(node):
        spot.account.delete(spot.container, spot.name).expect(204)
        until(lambda: len(found := spot.stored()) >= 5 and all(name.endswith(".ts") for names in found.values() for name in names),
              "those that the answer did not wait for have heard, too")

        def is_reclaimed() -> bool:
            fragment_stage.reclaim()
            return not spot.stored()

        until(is_reclaimed, "nothing is left of it elsewhere")
    spot.get().expect(503)
    spot.ask(node, "HEAD").expect(200)
    left, said = spot.stored(), len(log_of(fragment_stage, node))
    fragment_stage.reconstruct(quarantine_age=0)
    assert spot.stored() == left
    assert "Unable to get enough responses (1/4 from 1 ok responses)" in log_of(fragment_stage, node)[said:]
    assert "Quarantined" not in log_of(fragment_stage, node)[said:]
    fragment_stage.reconstruct(quarantine_age=0, quarantine_threshold=1)
    assert log_of(fragment_stage, node)[said:].count("Quarantined object") == 1
    assert {spot.ask(each, "HEAD").status for each in spot.nodes} == {404}
    for method in ("GET", "HEAD"):
        spot.account.request(method, spot.container, spot.name).expect(404)
    said = len(log_of(fragment_stage, node))
    fragment_stage.reconstruct(quarantine_age=0, quarantine_threshold=1)
    assert spot.name not in log_of(fragment_stage, node)[said:]


def test_scenario_121_a_newer_object_that_is_not_durable_is_left_out(fragment_stage: FragmentStage, spot: Fragments) -> None:
    spot.put_direct(V1, Timestamp(time.time() - 10))
    before = spot.stored()
    spot.put_direct(V2, Timestamp(time.time() - 5), is_durable=False)
    spot.fail(0)
    fragment_stage.reconstruct()
    found = spot.stored()[spot.primaries[0].device]
    assert {name: value for name, value in found.items() if "#d" in name} == on(before, spot.primaries[0])
    assert spot.get().expect(200).body == V1


def test_scenario_122_a_time_with_an_offset(fragment_stage: FragmentStage, spot: Fragments) -> None:
    moved = Timestamp(time.time() - 10, offset=3)
    spot.put_direct(V1, moved)
    before = spot.stored()
    spot.put_direct(V2, Timestamp(time.time() - 5), is_durable=False)
    spot.fail(0)
    fragment_stage.reconstruct()
    found = spot.stored()[spot.primaries[0].device]
    assert found[f"{moved.internal}#0#d.data"] == before[spot.primaries[0].device][f"{moved.internal}#0#d.data"]
    assert spot.get().expect(200).body == V1


# -- revert ------------------------------------------------------------------------------------------------------------


def test_scenarios_124_and_125_fragments_go_home_with_what_was_posted(fragment_stage: FragmentStage, spot: Fragments) -> None:
    with fragment_stage.lost(*spot.primaries[:2]):
        spot.put(V2, **META)
        spot.post(**POSTED)
        with fragment_stage.lost(spot.primaries[2]):
            assert spot.get().expect(200).body == V2
            assert spot.statuses() == [507, 507, 507, 200, 200, 200]
    holders = spot.holders()
    assert len(holders) == 2
    fragment_stage.reconstruct(*{fragment_stage.site_of(node) for node in holders})
    assert spot.is_home
    for node in spot.primaries:
        assert spot.ask(node, "HEAD").expect(200).headers.text("X-Object-Meta-New") == "\u65e5"
    for node in holders:
        spot.ask(node, "HEAD").expect(404)


def test_scenarios_126_and_127_tombstones_leave_handoffs(fragment_stage: FragmentStage, spot: Fragments) -> None:
    first, second = spot.handoffs
    spot.put(V1)
    with fragment_stage.lost(*spot.primaries[:2]):
        spot.account.delete(spot.container, spot.name).expect(204)
        assert spot.holders() == [first, second]
        stamp = sorted(spot.stored()[second.device])
        for _ in range(52):
            fragment_stage.reconstruct(fragment_stage.site_of(first))
            if first not in spot.holders():
                break
        assert spot.holders() == [second] and sorted(spot.stored()[second.device]) == stamp
    fragment_stage.reconstruct(fragment_stage.site_of(second), times=2)
    assert spot.holders() == []
    spot.get().expect(404)


def test_scenario_128_reverted_then_rebuilt_from(fragment_stage: FragmentStage, spot: Fragments) -> None:
    with fragment_stage.lost(spot.primaries[0]):
        spot.put(V2, **META)
    (handoff,) = spot.holders()
    before = spot.stored()
    fragment_stage.reconstruct(fragment_stage.site_of(handoff))
    assert on(spot.stored(), spot.primaries[0]) == on(before, handoff) and spot.is_home
    spot.fail(1)
    fragment_stage.reconstruct(fragment_stage.site_of(spot.primaries[0]))
    assert on(spot.stored(), spot.primaries[1]) == on(before, spot.primaries[1])


def test_scenarios_129_to_131_two_versions_on_a_handoff(fragment_stage: FragmentStage, spot: Fragments) -> None:
    """One difference to Swift: what is durable goes home first, so that the home can be read after one pass (129), not two."""
    home = spot.primaries[0]
    with fragment_stage.lost(home):
        spot.put(V1)
        spot.post(**{"Content-Type": "x/y"})
        handoff = next(node for node in spot.holders() if "0#d.data" in spot.names_on(node))
        kept, folder = fragment_stage.home / f"kept-{spot.name}", spot.folder(handoff)
        folder.rename(kept)
        spot.put(V2)
        holder = next(node for node in spot.holders() if "0#d.data" in spot.names_on(node))
        if holder != handoff:  # the proxy chose the other one: let this be it
            folder.parent.mkdir(parents=True, exist_ok=True)
            spot.folder(holder).rename(folder)
            spot.forget_hashes(holder)
        spot.undo_durable(handoff)
        for path in kept.iterdir():
            path.rename(folder / path.name)
        spot.forget_hashes(handoff)
    stamps = sorted({name.partition("#")[0] for name in spot.stored()[handoff.device] if name.endswith(".data")})
    assert len(stamps) == 2
    fragment_stage.reconstruct(fragment_stage.site_of(handoff), commit_window=0)
    assert f"{stamps[0]}#0#d.data" in spot.stored()[home.device] or f"{stamps[1]}#0#d.data" in spot.stored()[home.device]
    fragment_stage.reconstruct(fragment_stage.site_of(handoff), commit_window=0)
    assert handoff not in spot.holders()
    with fragment_stage.lost(*spot.primaries[2:]):
        fragment_stage.reconstruct(fragment_stage.site_of(spot.primaries[1]))
    assert sorted(spot.stored()[home.device]) == [f"{stamps[1]}#0#d.data"]
    fragment_stage.reconstruct()
    assert spot.is_home and spot.get().expect(200).body == V2
