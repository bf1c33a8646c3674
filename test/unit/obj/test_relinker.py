"""The relinker over real files: what it makes, what it leaves, and what a crash at any of its steps leaves."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keelstore.common import fs
from keelstore.common.daemon_frame import Selection
from keelstore.obj import hashes, layout
from keelstore.obj.relink_plan import CLEANUP, RELINK
from keelstore.obj.relink_state import StateFile
from test.support.faulty_os import FaultyOs
from test.support.objects import metadata_of, stamp
from test.support.relinking import CANCELLED, INCREASED, POWER, PREPARED, RelinkBox

NEXT = POWER + 1
OBJECTS = range(8)


@pytest.fixture(autouse=True)
def no_syncs(monkeypatch):
    """They are waited for elsewhere."""
    monkeypatch.setattr(fs, "_sync", lambda *_, **__: None)
    monkeypatch.setattr(fs, "sync_device", lambda path: None)


@pytest.fixture(params=[0, 2], ids=["copies", "fragments"])
def box(request, tmp_path):
    return RelinkBox(f"{tmp_path}/srv", request.param)


def fill(box):
    for number in OBJECTS:
        box.write(number, number, b"body %d" % number)
    box.post(1, 20, "posted")
    box.delete(2, 20)
    return {number: box.read(number, POWER) for number in OBJECTS}


def moving(box):
    """Objects whose place changes."""
    return [number for number in OBJECTS if box.at(number, POWER).directory != box.at(number, NEXT).directory]


def test_every_object_gets_a_second_name_and_then_loses_the_first(box):
    expected = fill(box)
    before = box.tree()
    assert box.run(RELINK, PREPARED) == 0
    for number in OBJECTS:
        assert box.read(number, POWER) == box.read(number, NEXT) == expected[number]
    assert {path: names for path, names in box.tree().items() if path in before} == before
    old_places = {"/".join(box.at(number, POWER).directory.rsplit("/", 3)[1:]) for number in moving(box)}
    files = sum(len(names) for path, names in before.items() if path in old_places)
    assert box.stats() == {"hash_dirs": len(moving(box)), "files": files, "linked": files, "removed": 0, "errors": 0}

    assert box.run(CLEANUP, INCREASED) == 0
    for number in OBJECTS:
        assert box.read(number, NEXT) == expected[number]
        if number in moving(box):
            assert not os.path.exists(box.at(number, POWER).directory)
    assert set(box.tree()) == {f"{place.partition}/{place.suffix}/{place.name_hash}"
                               for place in (box.at(number, NEXT) for number in OBJECTS)}
    assert box.partitions() == {int(box.at(number, NEXT).partition) for number in OBJECTS}, "empty partitions are gone"
    assert box.stats()["removed"] == files


def test_a_cancelled_increase_leaves_what_was_before(box):
    expected, before = fill(box), box.tree()
    box.run(RELINK, PREPARED)
    box.write(3, 30, b"between")
    assert box.run(CLEANUP, CANCELLED) == 0
    assert set(box.tree()) == set(before)
    assert {number: box.read(number, POWER) for number in OBJECTS} == {**expected, 3: (b"between", None)}
    assert max(box.partitions()) < 1 << POWER


def test_what_was_not_relinked_is_when_it_is_cleaned_up(box):
    expected = fill(box)
    assert box.run(CLEANUP, INCREASED) == 0
    assert {number: box.read(number, NEXT) for number in OBJECTS} == expected
    assert box.stats()["linked"] == box.stats()["removed"]


def test_what_servers_write_meanwhile_is_right_everywhere(box):
    fill(box)
    box.write(10, 30, b"new", following=NEXT)
    box.delete(0, 30, following=NEXT)
    box.run(RELINK, PREPARED)
    box.write(3, 40, b"over", following=NEXT)
    box.post(4, 40, "late", following=NEXT)
    box.delete(5, 40, following=NEXT)
    box.write(11, 40, b"newer", following=NEXT)
    expected = {number: box.read(number, POWER) for number in (*OBJECTS, 10, 11)}
    assert {number: box.read(number, NEXT) for number in (*OBJECTS, 10, 11)} == expected
    box.write(6, 50, b"increased", power=NEXT, following=NEXT)
    box.delete(7, 50, power=NEXT, following=NEXT)
    assert box.run(CLEANUP, INCREASED) == 0
    assert box.stats()["linked"] == 0, "what is obsolete is not"
    assert {number: box.read(number, NEXT) for number in (*OBJECTS, 10, 11)} == {**expected, 6: (b"increased", None), 7: None}
    assert all(int(path.partition("/")[0]) in (2 * POWER, *range(2 << POWER)) for path in box.tree())


def test_an_old_tombstone_wins_over_data_whose_link_was_made_in_time(tmp_path):
    box = RelinkBox(f"{tmp_path}/srv")
    number = moving(box)[0]
    box.write(number, 0)
    box.run(RELINK, PREPARED)
    box.delete(number, 5)  # its link could not be made, and it lay there for longer than tombstones are kept
    box.clock.now += 10 * 604800
    assert box.read(number, NEXT) is not None
    assert box.run(CLEANUP, INCREASED) == 0
    assert box.read(number, NEXT) is None
    assert box.tree() == {}, "nor is the tombstone left"


@pytest.mark.parametrize("is_killed", [False, True])
def test_an_old_tombstone_stays_until_the_data_is_gone(tmp_path, monkeypatch, is_killed):
    box = RelinkBox(f"{tmp_path}/srv")
    number = moving(box)[0]
    box.write(number, 0)
    box.run(RELINK, PREPARED)
    box.delete(number, 5, power=NEXT)  # after the increase
    box.clock.now += 10 * 604800

    def kill(path):
        raise KeyboardInterrupt

    if is_killed:
        with monkeypatch.context() as patch:
            patch.setattr(fs, "sync_device", kill)
            with pytest.raises(KeyboardInterrupt):
                box.run(CLEANUP, INCREASED)
    assert box.run(CLEANUP, INCREASED) == 0
    assert box.read(number, NEXT) is None and box.tree() == {}


def test_suffix_hashes_are_those_of_an_untouched_device(box, tmp_path):
    fill(box)
    for partition in box.partitions():
        box.store.hashes("sda1", box.device_path, box.policy, str(partition))
    box.run(RELINK, PREPARED)
    box.run(CLEANUP, INCREASED)
    found = {partition: hashes.read_hashes(f"{box.device_path}/{box.at(0, POWER).datadir}/{partition}") for partition in box.partitions()}
    for partition, known in found.items():
        path = f"{box.device_path}/{box.at(0, POWER).datadir}/{partition}"
        assert known["valid"]
        told = box.store.hashes("sda1", box.device_path, box.policy, str(partition))
        os.unlink(f"{path}/hashes.pkl")
        assert told == box.store.hashes("sda1", box.device_path, box.policy, str(partition))


def test_attributes_files_come_along(tmp_path):
    box = RelinkBox(f"{tmp_path}/srv")
    number = moving(box)[0]
    place = box.write(number, 0, b"x", extra={f"X-Object-Meta-{index}": "v" * 250 for index in range(40)})
    if not any(name.startswith(layout.ATTRS) for name in os.listdir(place.directory)):
        pytest.skip("this file system takes all metadata")
    box.run(RELINK, PREPARED)
    assert box.read(number, NEXT) == box.read(number, POWER)
    box.run(CLEANUP, INCREASED)
    assert box.read(number, NEXT) == (b"x", None)


@pytest.mark.parametrize("step,powers", [(RELINK, PREPARED), (CLEANUP, INCREASED)])
def test_a_commit_that_came_to_one_place_only(tmp_path, step, powers):
    box = RelinkBox(f"{tmp_path}/srv", 2)
    number = moving(box)[0]
    old, new = box.at(number, POWER), box.at(number, NEXT)
    box.store.write(old, stamp(0), b"x", metadata_of(old, stamp(0), b"x"), fragment=1, is_durable=False, next_part_power=NEXT)
    box.store.make_durable(old, stamp(0), 1)
    assert box.read(number, NEXT) is None
    assert box.run(step, powers) == 0
    assert os.listdir(new.directory) == [layout.data_name(stamp(0), 1, True)]
    assert box.read(number, NEXT) == (b"x", None)


# -- what is in the way ------------------------------------------------------------------------------------------------


def collide(box, number, kind=".data"):
    box.run(RELINK, PREPARED)
    if kind == layout.TOMBSTONE:
        box.delete(number, 5, power=POWER)
        box.delete(number, 5, power=NEXT)
    else:
        box.write(number, 5, b"old", power=POWER)
        box.write(number, 5, b"new", power=NEXT)
    state = Path(box.device_path, f"relink.{box.at(0, POWER).datadir}.json")
    if state.exists():
        state.unlink()


def test_another_file_in_the_new_place_is_an_error_and_both_stay(box):
    number = moving(box)[0]
    collide(box, number)
    for step, powers in ((RELINK, PREPARED), (CLEANUP, INCREASED)):
        assert box.run(step, powers) == 1
        assert (box.read(number, POWER), box.read(number, NEXT)) == ((b"old", None), (b"new", None))


def test_clobbering_puts_the_new_aside_before_the_increase(box):
    number = moving(box)[0]
    collide(box, number)
    assert box.run(RELINK, PREPARED, clobber_hardlink_collisions=True) == 0
    assert box.read(number, POWER) == box.read(number, NEXT) == (b"old", None)
    (aside,) = Path(box.device_path, "quarantined", box.at(0, POWER).datadir).iterdir()
    assert aside.name == box.at(number, POWER).name_hash


def test_clobbering_keeps_the_new_after_it(box):
    number = moving(box)[0]
    collide(box, number)
    assert box.run(CLEANUP, INCREASED, clobber_hardlink_collisions=True) == 0
    assert box.read(number, NEXT) == (b"new", None)
    assert not os.path.exists(box.at(number, POWER).directory)


def test_tombstones_are_all_the_same(box):
    number = moving(box)[0]
    collide(box, number, layout.TOMBSTONE)
    assert box.run(RELINK, PREPARED) == 0
    assert box.run(CLEANUP, INCREASED) == 0
    assert box.read(number, NEXT) is None


def test_a_file_that_vanishes_meanwhile_was_replaced(box, monkeypatch):
    """The server writes over it between the look and the link."""
    number = moving(box)[0]
    box.write(number, 0)
    link = fs.link_existing_unsynced

    def late(source, target, device_path):
        monkeypatch.undo()
        box.write(number, 5, b"newer", following=NEXT)
        return link(source, target, device_path)

    monkeypatch.setattr(fs, "link_existing_unsynced", late)
    assert box.run(RELINK, PREPARED) == 0
    assert box.read(number, POWER) == box.read(number, NEXT) == (b"newer", None)


# -- selections, state, errors -----------------------------------------------------------------------------------------


def state_file(box):
    return json.loads(Path(box.device_path, f"relink.{box.at(0, POWER).datadir}.json").read_text())


def test_single_partitions(box):
    fill(box)
    first = min(int(box.at(number, POWER).partition) for number in moving(box))
    assert box.run(RELINK, PREPARED, Selection(partitions=frozenset({first}))) == 0
    assert [number for number in moving(box) if box.read(number, NEXT)] == [
        number for number in moving(box) if int(box.at(number, POWER).partition) == first and box.read(number, POWER)]
    assert {int(name): is_done for name, is_done in state_file(box)["state"].items()}[first]
    assert not all(state_file(box)["state"].values())
    assert box.run(RELINK, PREPARED) == 0
    assert all(state_file(box)["state"].values()) and state_file(box)["part_power"] == POWER
    assert all(box.read(number, NEXT) == box.read(number, POWER) for number in OBJECTS)


def test_what_is_done_is_not_looked_at_again(box):
    fill(box)
    box.run(RELINK, PREPARED)
    assert box.run(RELINK, PREPARED) == 0
    assert box.stats()["hash_dirs"] == 0
    policy = box.recon.read("relinker")["devices"]["sda1"]["policies"][str(box.policy.index)]
    assert policy["parts_done"] == policy["total_parts"] > 0 and policy["step"] == RELINK
    assert (policy["part_power"], policy["next_part_power"]) == (POWER, NEXT)


def test_a_partition_with_an_error_is_done_again(box, monkeypatch):
    fill(box)
    number = moving(box)[0]
    link = os.link

    def failing(source, target, **options):
        if box.at(number, POWER).name_hash in source:
            raise OSError(28, "No space left on device")
        return link(source, target, **options)

    monkeypatch.setattr(os, "link", failing)
    assert box.run(RELINK, PREPARED) > 0
    assert not state_file(box)["state"].get(box.at(number, POWER).partition)
    assert box.run(CLEANUP, INCREASED) > 0
    assert box.read(number, POWER) is not None, "what could not be linked stays"
    monkeypatch.undo()
    assert box.run(CLEANUP, INCREASED) == 0
    assert box.read(number, NEXT) is not None


def test_a_device_is_one_relinkers_at_a_time(box):
    fill(box)
    with StateFile(box.device_path, box.at(0, POWER).datadir).locked():
        assert box.run(RELINK, PREPARED) == 1
    assert box.run(RELINK, PREPARED) == 0


def test_unusable_devices_are_errors_and_others_are_done(box):
    fill(box)
    assert box.relinker(RELINK, PREPARED).run(["sdx", "sda1"]) == 1
    assert box.read(moving(box)[0], NEXT) is not None


def test_a_device_without_objects_has_nothing_to_do(tmp_path):
    assert RelinkBox(f"{tmp_path}/srv").run(RELINK, PREPARED) == 0


def test_the_pace_is_kept(box):
    fill(box)
    box.run(RELINK, PREPARED, files_per_second=0.001)
    assert len(box.waits) == len(moving(box)) - 1 and box.waits[0] > 900


def test_a_plan_changes_nothing(box):
    fill(box)
    before = box.tree(), sorted(os.listdir(box.device_path))
    (line,) = box.relinker(RELINK, PREPARED).plan(["sda1"])
    assert line == f"sda1, policy {box.policy.name}: relink {len(box.partitions())} partitions: {' '.join(map(str, sorted(box.partitions(), reverse=True)))}"
    assert (box.tree(), sorted(os.listdir(box.device_path))) == before


def test_rubbish_is_left_alone_or_put_aside(box):
    fill(box)
    root = Path(box.device_path, box.at(0, POWER).datadir)
    (root / "auditor_status_ALL.json").write_text("{}")
    place = box.at(moving(box)[0], POWER)
    shutil.rmtree(place.directory)
    Path(place.directory).write_text("no directory")
    assert box.run(RELINK, PREPARED) == 0
    assert not os.path.exists(place.directory) and (root / "auditor_status_ALL.json").exists()


# -- durability --------------------------------------------------------------------------------------------------------


def test_nothing_old_goes_before_its_link_is_on_disk_and_nothing_is_done_before_that_is(box, monkeypatch):
    fill(box)
    unsynced: set[str] = set()
    removed: set[int] = set()  # partitions that old names went from, maybe not on disk
    order: list[str] = []

    def link(source, target, device_path):
        result = real_link(source, target, device_path)
        unsynced.add(os.path.basename(os.path.dirname(target)))
        return result

    def sync(path):
        unsynced.clear()
        removed.clear()
        order.append("sync")

    def remove(path):
        if "/objects" in path and os.path.basename(os.path.dirname(path)) in {box.at(n, POWER).name_hash for n in OBJECTS}:
            assert os.path.basename(os.path.dirname(path)) not in unsynced
            order.append("remove")
            removed.add(int(path.split("/")[-4]))
        return real_remove(path)

    def save(self, state):
        assert not removed & {number for number, is_done in state.done.items() if is_done}
        order.append("save")
        real_save(self, state)

    real_link, real_remove, real_save = fs.link_existing_unsynced, fs.remove_file, StateFile.save
    monkeypatch.setattr(fs, "link_existing_unsynced", link)
    monkeypatch.setattr(fs, "sync_device", sync)
    monkeypatch.setattr(fs, "remove_file", remove)
    monkeypatch.setattr(StateFile, "save", save)
    assert box.run(CLEANUP, INCREASED) == 0
    moved_from = {box.at(number, POWER).partition for number in moving(box)}
    assert order.count("remove") and not removed
    assert order.count("sync") == len(moved_from) + 1, "one for each partition that something left, and one at the end"
    assert all(state_file(box)["state"].values())


numbers = st.sampled_from(range(4))
writes = st.lists(st.tuples(st.sampled_from(("put", "post", "delete")), numbers), min_size=1, max_size=8)
counter = itertools.count()


def carry_out(box, changes, start, power, following, expected):
    for at, (verb, number) in enumerate(changes, start):
        if verb == "put":
            box.write(number, at, b"%d" % at, power, following)
            expected[number] = b"%d" % at, None
        elif verb == "delete":
            box.delete(number, at, power, following)
            expected[number] = None
        elif expected.get(number) is not None:
            box.post(number, at, str(at), power, following)
            expected[number] = expected[number][0], str(at)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from((0, 2)), writes, writes, writes, st.integers(1, 60), st.integers(1, 90), st.booleans())
def test_a_crash_at_any_step_loses_nothing(tmp_path_factory, policy, early, during, late, first, second, is_cancelled):
    """Between relink and cleanup every object is readable through the ring of before and the ring of after."""
    box = RelinkBox(str(tmp_path_factory.getbasetemp() / f"crash{next(counter)}" / "srv"), policy)
    expected: dict[int, tuple[bytes, str | None] | None] = {}
    carry_out(box, early, 0, POWER, None, expected)

    def reads(power):
        return {number: box.read(number, power) for number in expected}

    is_whole = box.run_faulty(RELINK, PREPARED, FaultyOs(crash_at=first, syncs=False))
    assert reads(POWER) == expected
    if not is_whole:
        carry_out(box, during, 100, POWER, NEXT, expected)
        assert reads(POWER) == expected
        assert box.run(RELINK, PREPARED) == 0
    assert reads(POWER) == reads(NEXT) == expected
    carry_out(box, during, 200, POWER, NEXT, expected)
    assert reads(POWER) == reads(NEXT) == expected

    power, powers = (POWER, CANCELLED) if is_cancelled else (NEXT, INCREASED)
    carry_out(box, late, 300, power, power, expected)
    is_whole = box.run_faulty(CLEANUP, powers, FaultyOs(crash_at=second, syncs=False))
    assert reads(power) == expected
    if not is_whole:
        assert box.run(CLEANUP, powers) == 0
    assert reads(power) == expected
    places = {box.at(number, power).directory for number in expected}
    assert all(f"{box.device_path}/{box.at(0, POWER).datadir}/{path}" in places for path in box.tree())
    for partition in box.partitions():
        told = box.store.hashes("sda1", box.device_path, box.policy, str(partition))
        os.unlink(f"{box.device_path}/{box.at(0, POWER).datadir}/{partition}/hashes.pkl")
        assert told == box.store.hashes("sda1", box.device_path, box.policy, str(partition)), "hashes tell what is there"


def test_a_full_device_loses_nothing(box):
    """Each step that takes room fails once."""
    expected = fill(box)
    for step in range(1, 200):
        faults = FaultyOs(fail_at=step, error=28, syncs=False, only=frozenset({"link", "mkdir", "write", "open"}))
        is_whole = box.run_faulty(RELINK, PREPARED, faults)
        assert is_whole and {number: box.read(number, POWER) for number in OBJECTS} == expected
        if len(faults.calls) < step:
            break
    assert box.run(RELINK, PREPARED) == 0
    assert {number: box.read(number, NEXT) for number in OBJECTS} == expected


