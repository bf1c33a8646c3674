"""The reconstructor over an in-process cluster of four nodes: fragments come back, handoffs go home, nothing is mixed or lost."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from keelstore.common import concurrency, events
from keelstore.common.codec import HEADER_SIZE
from keelstore.common.daemon_frame import ALL, Selection
from keelstore.common.work import Risk
from keelstore.obj import attributes, rebuild
from keelstore.obj import metadata as records
from keelstore.obj.reconstructor import Look
from test.support.fragments import Fragmented, metadata
from test.support.waiting import until

SIZES = (0, 1, 100, 4096, 65536, 65537, 200_000)


def turn() -> bool:
    concurrency.sleep(0.01)
    return False


def body_of(size: int) -> bytes:
    return random.Random(size).randbytes(size)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Fragmented]:
    found = Fragmented(tmp_path)
    yield found
    found.cluster.close()


@pytest.fixture
def filled(cluster: Fragmented) -> Fragmented:
    """One object of each size, one of them with newer metadata, and one that is deleted."""
    for size in SIZES:
        assert cluster.put(f"o{size}", body_of(size), **{"X-Object-Meta-V": "caf\u00c3\u00a9"}) == 201
    assert cluster.cluster.ask("POST", "/v1/a/c/o100", {"X-Object-Meta-A": "b"}).status == 202
    assert cluster.put("gone") == 201
    assert cluster.cluster.ask("DELETE", "/v1/a/c/gone").status == 204
    return cluster


NAMES = [f"o{size}" for size in SIZES]


def test_a_wiped_device_gets_everything_back_as_it_was(filled: Fragmented) -> None:
    before = {name: filled.fragments(name) for name in [*NAMES, "gone"]}
    filled.wipe("d10")
    runs = filled.run()
    assert {name: filled.fragments(name) for name in [*NAMES, "gone"]} == before
    assert sum(run.rebuilder.objects for run in runs) == sum(any(item[0] == "d10" for item in before[name]) for name in NAMES)
    again = filled.run()
    assert [run.figures()["objects_sent"] for run in again] == [0] * 4
    for run in again:
        assert run.figures()["failures"] == run.figures()["partitions_below_full"] == 0


def test_no_more_than_parity_may_be_lost_and_then_nothing_is_done(filled: Fragmented, caplog: pytest.LogCaptureFixture) -> None:
    places = (1, 3, 4)
    name = "o4096"
    filled.drop(name, *places)
    before = filled.fragments(name)
    with caplog.at_level(logging.ERROR):
        runs = filled.run()
    assert filled.fragments(name) == before
    assert "Unable to get enough responses (3/4 from 3 ok responses)" in caplog.text
    assert filled.get(name)[0] == 503
    assert [run.figures()["unrecoverable"] for run in runs] == [0] * 4  # it might have been written a moment ago
    filled.clock.ahead_s = 100
    runs = filled.run()
    assert max(run.figures()["unrecoverable"] for run in runs) == 1
    for run in runs:
        run.rebuilder.forget_unbuildable(filled.clock() + 1)
        assert run.figures()["unrecoverable"] == 0


def test_a_fragment_without_its_commit_is_made_durable_in_place(filled: Fragmented) -> None:
    before = filled.fragments("o65537")
    filled.undo_durable("o65537", 0, 4)
    runs = filled.run()
    assert filled.fragments("o65537") == before
    assert sum(run.rebuilder.objects for run in runs) == 0


@pytest.mark.parametrize("is_rewritten", [False, True], ids=["later", "same time with an offset"])
def test_case_X13_fragments_of_different_times_are_never_mixed(filled: Fragmented, tmp_path: Path, is_rewritten: bool) -> None:
    """Three fragments of an old object and three of the new one, of the same size: with one of the others there would be enough.

    Nor when the new one is one that a daemon wrote anew, at the time of the old one with an offset.
    """
    name = "o200000"
    kept = {node.device: tmp_path / "kept" / node.device for node in filled.primaries(name)[3:]}
    for device, path in kept.items():
        shutil.copytree(filled.folder(device, name), path, symlinks=True)
        for file in path.iterdir():
            copy_metadata(filled.folder(device, name) / file.name, file)
    assert filled.put(name, body_of(200_000)[::-1]) == 201
    for device, path in kept.items():
        shutil.rmtree(filled.folder(device, name))
        path.rename(filled.folder(device, name))
        filled.forget_hashes(filled.folder(device, name))
    if is_rewritten:
        old = next(file.name.split("#")[0] for file in filled.folder(next(iter(kept)), name).iterdir())
        for node in filled.primaries(name)[:3]:
            for file in filled.folder(node.device, name).iterdir():
                redate(file, f"{old}_{1:016x}")
            filled.forget_hashes(filled.folder(node.device, name))
    before = filled.fragments(name)
    assert len({item[1].split("#")[0] for item in before}) == 2
    filled.run(times=2)
    assert filled.fragments(name) == before
    assert filled.get(name)[0] == 503


def redate(file: Path, time: str) -> None:
    """Give a fragment another timestamp, in its name and in its record."""
    record = records.encode({**records.decode(os.getxattr(file, records.RECORD_XATTR)), "X-Timestamp": time})
    os.setxattr(file, records.RECORD_XATTR, record)
    os.setxattr(file, records.CHECKSUM_XATTR, records.checksum(record))
    file.rename(file.with_name(f"{time}#{file.name.partition('#')[2]}"))


def copy_metadata(source: Path, target: Path) -> None:
    for key in os.listxattr(source):
        os.setxattr(target, key, os.getxattr(source, key))


@pytest.mark.parametrize("name, held", [("o65536", None), ("o200000", None), ("o200000", 0)],
                         ids=["one segment", "several, made whole", "several, sent as they are made"])
def test_damage_that_only_the_whole_shows_is_not_built_on(filled: Fragmented, name: str, held: int | None,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    """A fragment whose header is sound and whose payload is not: it is put aside, and others are taken."""
    if held is not None:
        monkeypatch.setattr(rebuild, "MAX_HELD", held)
        monkeypatch.setattr(rebuild, "BAD_FOR_S", 0.0)
    before = filled.fragments(name)
    node = filled.primaries(name)[1]
    path = next(filled.folder(node.device, name).glob("*.data"))
    data = bytearray(path.read_bytes())
    data[HEADER_SIZE + 5] ^= 1
    path.write_bytes(data)  # its MD5 is wrong: the server that is asked to check it puts it aside
    filled.drop(name, 0)
    filled.run(times=2)
    assert filled.fragments(name) == before
    assert next(iter(filled.cluster.device_path(node.device).glob("quarantined/objects-2/*")))


@pytest.mark.parametrize("hashed, read", [(65536, 65536), (131072, 65536), (65536, 196608)])
def test_an_object_is_hashed_and_read_in_several_goes(filled: Fragmented, hashed: int, read: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuild, "HASHED_AT_ONCE", hashed)
    monkeypatch.setattr(rebuild, "READ_AHEAD", read)
    before = filled.fragments("o200000")
    filled.drop("o200000", 0)
    filled.drop("o200000", 5)
    filled.run(times=2)
    assert filled.fragments("o200000") == before


def forge(path: Path, at: int = -5) -> None:
    """A fragment that is wrong, with metadata that call it right."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    found = {**metadata(path), "ETag": hashlib.md5(data).hexdigest()}
    fd = os.open(path, os.O_RDWR)
    try:
        attributes.write(fd, found)
    finally:
        os.close(fd)


@pytest.mark.parametrize("name, held", [("o65536", None), ("o200000", None), ("o200000", 0)],
                         ids=["one segment", "several, made whole", "several, sent as they are made"])
def test_a_rebuild_that_is_not_the_object_is_not_written(filled: Fragmented, name: str, held: int | None, caplog: pytest.LogCaptureFixture,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    if held is not None:
        monkeypatch.setattr(rebuild, "MAX_HELD", held)
    before = filled.fragments(name)
    for place in (1, 2):
        forge(next(filled.folder(filled.primaries(name)[place].device, name).glob("*.data")))
    filled.drop(name, 0)
    with caplog.at_level(logging.WARNING):
        filled.run()
    lost = filled.primaries(name)[0].device
    assert lost not in filled.files(name)
    assert len(before) == 6
    assert ("cannot be rebuilt" if held is None else "broke off") in caplog.text


def test_an_unmounted_device_is_stood_in_for_and_gets_its_own_back(filled: Fragmented) -> None:
    name = "o65537"
    before = filled.fragments(name)
    lost = filled.primaries(name)[2].device
    filled.lose_device(lost)
    filled.run(times=2)
    stored = filled.files(name)
    assert sorted(int(file.split("#")[1].split(".")[0]) for files in stored.values() for file in files) == list(range(6))
    standing_in = set(stored) - {node.device for node in filled.primaries(name)}
    assert len(standing_in) == 1
    filled.revive_device(lost)
    filled.run(times=2)
    assert filled.fragments(name) == before


def test_two_unmounted_devices_do_not_share_one_stand_in(filled: Fragmented) -> None:
    name = "o65537"
    before = filled.fragments(name)
    lost = [filled.primaries(name)[place].device for place in (0, 1)]
    for device in lost:
        filled.lose_device(device)
    filled.run(times=2)
    assert sorted(len(files) for files in filled.files(name).values()) == [1] * 6
    assert filled.get(name) == (200, body_of(65537))
    for device in lost:
        filled.revive_device(device)
    filled.run(times=2)
    assert filled.fragments(name) == before


def test_no_stand_ins_if_none_are_wanted(filled: Fragmented) -> None:
    name = "o65537"
    filled.lose_device(filled.primaries(name)[2].device)
    filled.run(rebuild_handoff_node_count=0)
    assert len(filled.files(name)) == 5


def test_handoffs_go_home_only_when_their_home_said_so(cluster: Fragmented) -> None:
    lost = [node.device for node in cluster.primaries("h")[:2]]
    for device in lost:
        cluster.lose_device(device)
    assert cluster.put("h", body_of(70_000)) == 201
    assert cluster.cluster.ask("POST", "/v1/a/c/h", {"X-Object-Meta-A": "b"}).status == 202
    handoffs = [node.device for node in cluster.handoffs("h")]
    assert set(cluster.files("h")) == {*handoffs, *(node.device for node in cluster.primaries("h")[2:])}
    cluster.run(*(int(device[1]) for device in handoffs))  # nobody is at home
    assert set(handoffs) < set(cluster.files("h"))
    for device in lost:
        cluster.revive_device(device)
    cluster.run(*(int(device[1]) for device in handoffs))
    stored = cluster.files("h")
    assert set(stored) == {node.device for node in cluster.primaries("h")}
    assert all(len(files) == 2 for files in stored.values())  # with what was posted
    for device in handoffs:
        assert not cluster.folder(device, "h").parent.parent.exists()
    assert cluster.get("h") == (200, body_of(70_000))


def test_a_tombstone_leaves_when_enough_know_it(cluster: Fragmented) -> None:
    assert cluster.put("t", b"x") == 201
    lost = [node.device for node in cluster.primaries("t")[:2]]
    for device in lost:
        cluster.lose_device(device)
    assert cluster.cluster.ask("DELETE", "/v1/a/c/t").status == 204
    handoffs = [node.device for node in cluster.handoffs("t")]
    assert set(handoffs) <= set(cluster.files("t"))
    cluster.run(int(handoffs[0][1]), devices=str(cluster.cluster.devices(int(handoffs[0][1]))))
    assert handoffs[0] not in cluster.files("t")
    for device in lost:
        cluster.revive_device(device)
    cluster.run(times=2)
    stored = cluster.files("t")
    assert set(stored) == {node.device for node in cluster.primaries("t")}
    assert all(file.endswith(".ts") for files in stored.values() for file in files)
    assert cluster.get("t")[0] == 404


def test_a_waiting_fragment_stays_within_its_commit_window(cluster: Fragmented) -> None:
    lost = cluster.primaries("w")[0]
    cluster.lose_device(lost.device)
    assert cluster.put("w", b"x" * 1000) == 201
    holder = next(iter(set(cluster.files("w")) - {node.device for node in cluster.primaries("w")}))
    folder = cluster.folder(holder, "w")
    for path in folder.glob("*#d.data"):
        path.rename(folder / path.name.replace("#d", ""))
    cluster.forget_hashes(folder)
    cluster.revive_device(lost.device)
    node = int(holder[1])
    run, = cluster.run(node)
    assert cluster.files("w")[lost.device][0].endswith("#0.data")  # brought, as it is
    assert holder in cluster.files("w") and run.handoffs
    cluster.clock.ahead_s = 100
    cluster.run(node)
    assert holder not in cluster.files("w")
    cluster.run()
    assert cluster.files("w")[lost.device][0].endswith("#0#d.data")  # its neighbours know that it is durable
    assert len(cluster.files("w")) == 6


def test_partial_sets_go_after_the_reclaim_age(cluster: Fragmented) -> None:
    assert cluster.put("p", b"x" * 1000) == 201
    cluster.drop("p", 3, 4, 5)
    cluster.undo_durable("p", 0, 1, 2)
    cluster.run()
    assert sorted(map(len, cluster.files("p").values())) == [1] * 3
    for device in cluster.files("p"):
        for path in cluster.folder(device, "p").iterdir():
            os.utime(path, (1, 1))
        cluster.forget_hashes(cluster.folder(device, "p"))
    cluster.clock.ahead_s = 700_000
    cluster.run()
    assert cluster.files("p") == {}


def test_the_remains_of_a_deleted_object_stay_unless_their_removal_is_wanted(cluster: Fragmented, caplog: pytest.LogCaptureFixture) -> None:
    """Row 119 and 120 of the fault scenarios."""
    assert cluster.put("s", b"x" * 1000) == 201
    cluster.drop("s", 1, 2, 3, 4, 5)
    number = int(cluster.primaries("s")[0].device[1])
    before = cluster.fragments("s")
    cluster.clock.ahead_s = 10
    with caplog.at_level(logging.WARNING):
        cluster.run(number, quarantine_age=0)
    assert "(1/4 from 1 ok responses)" in caplog.text and "(4 x 404 error responses)" in caplog.text
    assert cluster.fragments("s") == before
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        cluster.run(number, quarantine_age=0, quarantine_threshold=1)
    assert "(6 x 404 error responses)" in caplog.text and caplog.text.count("Quarantined object") == 1
    assert cluster.files("s") == {}
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        cluster.run(times=2, quarantine_age=0, quarantine_threshold=1)
    assert caplog.text == ""
    assert cluster.get("s")[0] == 404


def test_a_young_or_half_known_object_is_never_put_aside(cluster: Fragmented) -> None:
    assert cluster.put("s", b"x" * 1000) == 201
    cluster.drop("s", 1, 2, 3, 4)
    before = cluster.fragments("s")
    cluster.clock.ahead_s = 10
    cluster.run(quarantine_threshold=1, quarantine_age=0)  # two are left
    assert cluster.fragments("s") == before
    cluster.drop("s", 5)
    before = cluster.fragments("s")
    cluster.run(quarantine_threshold=1)  # not a week old
    assert cluster.fragments("s") == before
    cluster.lose_device(cluster.primaries("s")[3].device)
    cluster.run(quarantine_threshold=1, quarantine_age=0)  # one that might know more does not answer
    assert cluster.fragments("s") == before


def test_a_deletion_wins_over_fragments_that_were_away(cluster: Fragmented) -> None:
    assert cluster.put("d", b"x" * 1000) == 201
    away = cluster.primaries("d")[0].device
    cluster.lose_device(away)
    assert cluster.cluster.ask("DELETE", "/v1/a/c/d").status == 204
    cluster.revive_device(away)
    cluster.run(times=2)
    assert {file.rpartition(".")[2] for files in cluster.files("d").values() for file in files} == {"ts"}


def test_what_is_in_most_danger_goes_first(filled: Fragmented) -> None:
    filled.drop("o4096", 0)
    filled.drop("o65537", 1, 2)
    for number in range(4):
        daemon = filled.reconstructor(number)
        seen = []
        for job in daemon.plan(ALL):
            if isinstance(job, Look):
                daemon.carry_out(job)
            else:
                seen.append(job)
                daemon._repair(job)
        order = [job.risk for job in seen if not (job.missing and job.missing >= 2)]
        assert order == sorted(order)
        for job in seen:
            if job.missing:
                assert job.risk == Risk.DURABILITY - job.missing
    assert len(filled.files("o65537")) == len(filled.files("o4096")) == 6


def test_dry_run_tells_and_does_nothing(filled: Fragmented) -> None:
    name = "o4096"
    filled.drop(name, 0)
    before = filled.fragments(name)
    lines = [line for number in range(4) for line in filled.reconstructor(number).dry_run()]
    target = filled.primaries(name)[0]
    assert any(f"fragment #0 of 1 suffixes to {target.key}, 1 missing in all" in line for line in lines)
    assert filled.fragments(name) == before


def test_only_what_is_selected(filled: Fragmented) -> None:
    name = "o4096"
    filled.drop(name, 0)
    for number in range(4):
        filled.reconstructor(number).run_once(Selection(partitions=frozenset({filled.part(name) + 1})))
    assert len(filled.files(name)) == 5
    for number in range(4):
        filled.reconstructor(number).run_once(Selection(partitions=frozenset({filled.part(name)})))
    assert len(filled.files(name)) == 6


def test_handoffs_only(filled: Fragmented) -> None:
    filled.drop("o4096", 0)
    filled.run(handoffs_only=True)
    assert len(filled.files("o4096")) == 5


def test_recon(filled: Fragmented) -> None:
    filled.run(0)
    left = json.loads((filled.root / "recon0" / "object.recon").read_text())
    assert left["object_reconstruction_time"] >= 0 and left["object_reconstruction_last"] > 0


# -- events ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def channel() -> Iterator[events.Channel]:
    """What servers of this process tell the daemons goes in here."""
    channel = events.Channel()
    channel.attach()
    channel.receiver.setblocking(False)
    yield channel
    channel.close()


def gather(channel: events.Channel) -> list[tuple[str, tuple[str, ...]]]:
    found = []
    with suppress(BlockingIOError):
        while True:
            found.append(events.parse(channel.receiver.recv(65536)))
    return found


def test_a_rotten_fragment_that_a_reader_meets_comes_back_at_once(filled: Fragmented, channel: events.Channel) -> None:
    name = "o65537"
    before = filled.fragments(name)
    node = filled.primaries(name)[0]
    path = next(filled.folder(node.device, name).glob("*.data"))
    data = bytearray(path.read_bytes())
    data[HEADER_SIZE + 5] ^= 1
    path.write_bytes(data)
    daemons = [filled.reconstructor(number) for number in range(4)]
    tasks = [concurrency.spawn(daemon.workers.run) for daemon in daemons]
    try:
        until(lambda: filled.get(name) == (200, body_of(65537)) and node.device not in filled.files(name), "somebody meets it")

        def is_back() -> bool:
            for kind, fields in gather(channel):
                for number, daemon in enumerate(daemons):
                    is_own = not fields[0] or fields[0].startswith(str(filled.cluster.devices(number)))
                    if kind in daemon.hints and is_own:
                        daemon.on_hint(kind, fields)
            turn()
            return filled.fragments(name) == before

        until(is_back, "the fragment is rebuilt")
    finally:
        for task in tasks:
            task.kill()
