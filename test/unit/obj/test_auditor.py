"""The object auditor over real files: what is wrong goes aside, what is well stays, and a failing device is left alone."""

from __future__ import annotations

import json
import logging
import os
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common import concurrency
from keelstore.common.cluster import Cluster
from keelstore.common.daemon_frame import World
from keelstore.common.errors import ConfigError
from keelstore.common.limits import Limits
from keelstore.common.recon_cache import ReconCache
from keelstore.obj import metadata as records
from keelstore.obj.audit import Brake
from keelstore.obj.auditor import FULL, QUICK, ObjectAuditor
from keelstore.obj.options import ObjectAuditorOptions
from keelstore.obj.watchers import DeleteRequest, QuarantineRequest, make_watchers, policy_of
from test.support.objects import HASH_PATH, POLICIES, StoreBox, metadata_of, stamp
from test.support.waiting import until

LOG = logging.getLogger("test.auditor")


class AuditBox(StoreBox):
    def __init__(self, root: Path, watchers: Any = (), **options: Any):
        super().__init__(str(root / "devices"))
        (root / "recon").mkdir(exist_ok=True)
        self.recon = ReconCache(str(root / "recon"))
        values = {"devices": self.devices, "mount_check": False, "files_per_second": 0, "zero_byte_files_per_second": 1e9,
                  "bytes_per_second": 0, **options}  # fmt: skip
        world = World(LOG, self.clock, random.Random(1), self.recon)
        self.auditor = ObjectAuditor(ObjectAuditorOptions(**values), world, Cluster("", "", HASH_PATH, POLICIES, Limits()), watchers)

    def path(self, name: str, at: float = 1) -> Path:
        return Path(self.place(name).directory, f"{stamp(at).internal}.data")

    def stats(self, kind: str = FULL) -> dict[str, Any]:
        found: dict[str, Any] = self.recon.read("object")[f"object_auditor_stats_{kind}"]
        return found

    @property
    def quarantined(self) -> list[str]:
        path = f"{self.device_path}/quarantined/objects"
        return sorted(os.listdir(path)) if os.path.isdir(path) else []

    def hash_of(self, name: str) -> str:
        return self.place(name).name_hash


def test_what_is_well_passes(tmp_path: Path) -> None:
    box = AuditBox(tmp_path, object_size_stats=("10", "1000"))
    box.put("small", b"x" * 10, 1)
    box.put("large", b"x" * 200_000, 1)
    box.put("posted", b"x" * 500, 1)
    box.store.write_meta(box.place("posted"), stamp(2), {"X-Timestamp": stamp(2).internal, "name": "/a/c/posted"})
    box.store.delete(box.place("gone"), stamp(2))
    box.put("expired", b"y", 1, {"X-Delete-At": "1"})
    box.auditor.run_once()
    assert box.quarantined == []
    assert {key: box.stats()[key] for key in ("passes", "quarantined", "errors", "bytes_processed")} == {
        "passes": 4, "quarantined": 0, "errors": 0, "bytes_processed": 200_511}  # fmt: skip
    assert box.stats(QUICK)["passes"] == 4 and box.stats(QUICK)["bytes_processed"] == 0
    assert box.auditor.totals[FULL].sizes == {"10": 2, "1000": 1, "OVER": 1}


def damage_body(box: AuditBox) -> None:
    box.path("o").write_bytes(b"Body")


def damage_size(box: AuditBox) -> None:
    box.path("o").write_bytes(b"")


def damage_metadata(box: AuditBox) -> None:
    os.setxattr(box.path("o"), records.RECORD_XATTR, b"garbage")


def damage_name(box: AuditBox) -> None:
    other = box.place("other")
    record = records.encode({**metadata_of(other, stamp(1), b"body"), "name": other.name})
    os.setxattr(box.path("o"), records.RECORD_XATTR, record)
    os.setxattr(box.path("o"), records.CHECKSUM_XATTR, records.checksum(record))


def damage_directory(box: AuditBox) -> None:
    directory = Path(box.place("o").directory)
    box.path("o").unlink()
    directory.rmdir()
    directory.write_text("not a directory")


def damage_meta(box: AuditBox) -> None:
    box.store.write_meta(box.place("o"), stamp(2), {"X-Timestamp": stamp(2).internal, "name": "/a/c/o"})
    os.setxattr(Path(box.place("o").directory, f"{stamp(2).internal}.meta"), records.RECORD_XATTR, b"garbage")


DAMAGES = [damage_body, damage_size, damage_metadata, damage_name, damage_directory, damage_meta]


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_wrong_goes_aside(tmp_path: Path, damage: Any) -> None:
    box = AuditBox(tmp_path)
    box.put("o", b"body", 1)
    box.put("well", b"body", 1)
    damage(box)
    box.auditor.run_once()
    assert box.quarantined == [box.hash_of("o")]
    assert not os.path.exists(box.place("o").directory) and os.path.exists(box.path("well"))
    assert box.stats()["quarantined"] + box.stats(QUICK)["quarantined"] == 1
    invalid = Path(box.place("o").partition_path, "hashes.invalid").read_text()
    assert box.place("o").suffix in invalid


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_quick_scan_sees_all_but_the_body(tmp_path: Path, damage: Any) -> None:
    box = AuditBox(tmp_path)
    box.auditor.kinds = (QUICK,)
    box.put("o", b"body", 1)
    damage(box)
    box.auditor.run_once()
    assert box.quarantined == ([] if damage is damage_body else [box.hash_of("o")])


def test_the_attributes_file_is_audited_and_goes_along(tmp_path: Path) -> None:
    """Our extension (doc/formats/objects.md 3)."""
    box = AuditBox(tmp_path)
    many = {f"X-Object-Meta-{number:03d}": "v" * 200 for number in range(60)}
    place = box.put("o", b"body", 1, many)
    attrs = Path(place.directory, f".attrs-{stamp(1).internal}")
    if not attrs.exists():
        pytest.skip("this file system takes it all")
    box.auditor.run_once()
    assert box.quarantined == [] and attrs.exists()
    attrs.write_bytes(attrs.read_bytes()[:-10])
    box.auditor.run_once()
    assert box.quarantined == [box.hash_of("o")]
    assert len(os.listdir(f"{box.device_path}/quarantined/objects/{box.hash_of('o')}")) == 2


def test_housekeeping(tmp_path: Path) -> None:
    box = AuditBox(tmp_path, reclaim_age=100.0)
    place = box.put("o", b"body", 1)
    os.removexattr(box.path("o"), records.CHECKSUM_XATTR)
    old, new = Path(place.directory, ".x.data.AbCdEf"), Path(place.directory, ".y.data.AbCdEf")
    for path, age in ((old, 90_000), (new, 10)):
        path.touch()
        os.utime(path, (box.clock.now - age, box.clock.now - age))
    box.store.delete(box.place("gone"), stamp(0))
    Path(box.place("gone").partition_path, "hashes.invalid").unlink()
    box.clock.now += 101
    box.auditor.run_once()
    assert os.getxattr(box.path("o"), records.CHECKSUM_XATTR) == records.checksum(os.getxattr(box.path("o"), records.RECORD_XATTR))
    assert not old.exists() and new.exists()
    assert box.place("gone").suffix in Path(box.place("gone").partition_path, "hashes.invalid").read_text()


def test_a_fragment_that_nobody_committed_is_seen_when_its_time_is_up(tmp_path: Path) -> None:
    box = AuditBox(tmp_path, reclaim_age=100.0)
    place = box.place("o", policy=2)
    box.store.write(place, stamp(0), b"fragment", {"name": place.name, "ETag": "e"}, fragment=3, is_durable=False)
    invalid = Path(place.partition_path, "hashes.invalid")
    for age, is_noted in ((99, False), (101, True)):
        invalid.unlink(missing_ok=True)
        box.clock.now = float(stamp(0)) + age
        box.auditor.run_once()
        assert (invalid.exists() and place.suffix in invalid.read_text()) is is_noted


# -- the brake ---------------------------------------------------------------------------------------------------------


def test_a_device_that_fails_as_a_whole_is_left_alone(tmp_path: Path) -> None:
    box = AuditBox(tmp_path)
    box.auditor.kinds = (FULL,)
    for number in range(60):
        box.put(f"o{number}", b"body", 1)
        box.path(f"o{number}").write_bytes(b"Body")
    box.auditor.run_once()
    assert len(box.quarantined) == Brake.LEAST
    assert box.auditor.figures()["braked"] == {"sda1": "6 of the last 6 objects are wrong"}
    box.clock.now += 3600
    box.auditor.run_once()
    assert len(box.quarantined) == Brake.LEAST and box.auditor.figures()["braked"]
    for number in range(60):
        if box.path(f"o{number}").exists():
            box.path(f"o{number}").write_bytes(b"body")
    box.auditor.run_once()  # well again
    assert not box.auditor.figures()["braked"]
    box.auditor.run_once()
    assert box.stats()["passes"] == 60 - Brake.LEAST
    assert len(box.quarantined) == Brake.LEAST


def test_case_X20_a_restore_that_lost_the_attributes_does_not_put_the_device_aside(tmp_path: Path) -> None:
    """A backup tool brought the files back without their extended attributes: nearly all stay where they are, and it is told."""
    box = AuditBox(tmp_path)
    box.auditor.kinds = (FULL,)
    for number in range(40):
        box.put(f"o{number}", b"body", 1)
        for name in os.listxattr(box.path(f"o{number}")):
            os.removexattr(box.path(f"o{number}"), name)
    for _ in range(2):
        box.auditor.run_once()
        box.clock.now += 3600
    assert len(box.quarantined) == Brake.LEAST
    assert box.auditor.figures()["braked"]


def test_few_failures_among_many_do_not_brake(tmp_path: Path) -> None:
    box = AuditBox(tmp_path)
    for number in range(100):
        box.put(f"o{number}", b"body", 1)
    for number in range(5):
        box.path(f"o{number}").write_bytes(b"Body")
    box.auditor.run_once()
    assert len(box.quarantined) == 5 and not box.auditor.figures()["braked"]


@given(st.lists(st.booleans(), max_size=400), st.floats(0.001, 0.5))
def test_the_brake_bounds_what_is_put_aside(seen: list[bool], limit: float) -> None:
    brake = Brake(limit)
    allowed = sum(brake.note(is_wrong) for is_wrong in seen)
    assert allowed <= max(Brake.LEAST, limit * len(seen)) + 1
    assert allowed == sum(seen) or brake.is_on


def test_the_brake_forgets_what_was_long_ago() -> None:
    brake = Brake(0.01)
    for number in range(20_000):
        brake.note(number % 250 == 0)
    assert not brake.is_on and len(brake.wrong) <= 5
    for _ in range(11):
        brake.note(True)
    assert brake.is_on and not brake.note(True)


# -- pace and place ----------------------------------------------------------------------------------------------------


def test_a_scan_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    box = AuditBox(tmp_path)
    box.auditor.kinds = (FULL,)
    for number in range(4):
        place = box.place(f"o{number}", partition=str(number))
        box.store.write(place, stamp(1), b"body", metadata_of(place, stamp(1), b"body"))
    checkpoint = Path(box.device_path, "objects", "auditor_status_ALL.json")
    checkpoint.write_text(json.dumps({"partitions": ["2", "77"]}))
    box.auditor.run_once()
    assert box.stats()["passes"] == 1 and json.loads(checkpoint.read_text()) == {"partitions": []}
    box.auditor.run_once()
    assert box.stats()["passes"] == 4
    for nonsense in ("", "[]", "{", '{"partitions": 3}', "[" * 100_000):
        checkpoint.write_text(nonsense)
        box.auditor.run_once()
        assert box.stats()["passes"] == 4


def test_progress_is_written_down_on_the_way(tmp_path: Path) -> None:
    box = AuditBox(tmp_path)
    box.auditor.kinds = (FULL,)
    for number in range(4):
        place = box.place(f"o{number}", partition=str(number))
        box.store.write(place, stamp(1), b"body", metadata_of(place, stamp(1), b"body"))
    seen: list[list[str] | None] = []
    checkpoint = Path(box.device_path, "objects", "auditor_status_ALL.json")

    class Slow:
        def start(self, audit_type: str) -> None: ...

        def see_object(self, metadata: dict[str, str], path: str) -> None:
            box.clock.now += 61
            seen.append(json.loads(checkpoint.read_text())["partitions"] if checkpoint.exists() else None)

        def end(self) -> None: ...

    box.auditor._watchers = [Slow()]
    box.auditor.run_once()
    assert seen[0] is None and [len(left or ()) for left in seen[1:]] == [3, 2, 1]


def test_pace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    box = AuditBox(tmp_path, files_per_second=10, bytes_per_second=1000.0)
    box.auditor.kinds = (FULL,)
    for number in range(30):
        box.put(f"o{number}", b"x" * 500, 1)
    slept: list[float] = []

    def sleep(seconds: float = 0) -> None:
        slept.append(seconds)
        box.clock.now += seconds

    monkeypatch.setattr(concurrency, "sleep", sleep)
    box.auditor.run_once()
    assert 12 <= sum(slept) <= 16 and box.stats()["passes"] == 30  # 15,000 bytes, of which one second's worth at once


def test_it_runs_on_until_it_is_stopped(tmp_path: Path) -> None:
    box = AuditBox(tmp_path, interval=0.0)
    box.put("o", b"body", 1)
    task = concurrency.spawn(box.auditor.run_forever)
    until(lambda: box.auditor.passes >= 2 or concurrency.sleep(0.01), "it has passed twice", every_s=0)  # type: ignore[func-returns-value]
    task.kill()
    assert list(box.auditor.dry_run()) == ["check the objects of sda1", "read the objects of sda1"]


def test_a_device_that_is_not_there(tmp_path: Path) -> None:
    box = AuditBox(tmp_path, mount_check=True)
    box.put("o", b"body", 1)
    box.auditor.run_once()
    assert box.stats()["passes"] == 0


# -- watchers ----------------------------------------------------------------------------------------------------------


class Picky:
    def __init__(self, verdicts: dict[str, Exception]):
        self.verdicts, self.heard = verdicts, []  # type: ignore[var-annotated]

    def start(self, audit_type: str) -> None:
        self.heard.append(f"start {audit_type}")

    def see_object(self, object_metadata: dict[str, str], data_file_path: str) -> None:
        assert os.path.exists(data_file_path) and policy_of(data_file_path) == 0
        self.heard.append(object_metadata["name"])
        verdict = self.verdicts.get(object_metadata["name"])
        if verdict is not None:
            raise verdict

    def end(self) -> None:
        self.heard.append("end")


def test_watchers_see_what_is_well_and_are_obeyed(tmp_path: Path) -> None:
    class OfSwift(Exception):
        pass

    OfSwift.__name__ = "QuarantineRequest"
    watcher = Picky({"/a/c/bad": QuarantineRequest("ugly"), "/a/c/dark": DeleteRequest(), "/a/c/odd": RuntimeError(), "/a/c/old": OfSwift()})
    box = AuditBox(tmp_path, [watcher])
    box.auditor.kinds = (FULL,)
    for name in ("good", "bad", "dark", "odd", "old", "corrupt"):
        box.put(name, b"body", 1)
    box.path("corrupt").write_bytes(b"")
    box.auditor.run_once()
    assert watcher.heard[0] == "start ALL" and watcher.heard[-1] == "end"
    assert sorted(watcher.heard[1:-1]) == sorted(f"/a/c/{name}" for name in ("good", "bad", "dark", "odd", "old"))
    assert box.quarantined == sorted(map(box.hash_of, ("bad", "corrupt", "old")))
    assert box.path("good").exists() and box.path("odd").exists() and not box.path("dark").exists()


def test_watchers_by_name() -> None:
    made: list[Any] = []

    def dark(options: Any) -> Picky:
        made.append(options)
        return Picky({})

    found = make_watchers(("dark_data", "swift#dark_data"), lambda name: {"action": "delete", "grace_age": "5"}, dark, LOG)
    assert len(found) == 2 and made[0].action == "delete" and made[0].grace_age == 5
    with pytest.raises(ConfigError):
        make_watchers(("nothing#such",), lambda name: {}, dark, LOG)
    with pytest.raises(ConfigError):
        make_watchers(("dark_data",), lambda name: {"action": "burn"}, dark, LOG)


@pytest.mark.parametrize("path, policy", [("/srv/d/objects/1/abc/hash/1.data", 0), ("/srv/d/objects-12/1/abc/hash/1.data", 12),
                                          ("/srv/d/accounts/1/abc/hash/1.db", None), ("1.data", None)])  # fmt: skip
def test_the_policy_of_a_path(path: str, policy: int | None) -> None:
    assert policy_of(path) == policy
