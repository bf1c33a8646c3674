from __future__ import annotations

import errno
import os
import pickle
from hashlib import md5
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common import fs
from keelstore.common.errors import LockTimeout
from keelstore.common.locks import lock_directory
from keelstore.obj import hashes, layout
from keelstore.obj.fileset import resolve
from keelstore.obj.layout import StoredFile, parse_name
from test.support.faulty_os import Crash, FaultyOs
from test.support.objects import NOW, POLICIES, StoreBox, metadata_of, stamp

GOLD = POLICIES.by_index[0]


@pytest.fixture
def box(tmp_path):
    return StoreBox(str(tmp_path))


def known(box: StoreBox, **options: Any) -> dict[str, hashes.SuffixHash]:
    return box.store.hashes("sda1", box.device_path, GOLD, "7", **options)


def hex_of(*texts: str) -> str:
    return md5("".join(texts).encode()).hexdigest()


def journal(box: StoreBox) -> str:
    """What it says of suffixes; that it says first which start of the machine it is of is checked."""
    text = (fs.read_file(f"{box.device_path}/objects/7/hashes.invalid") or b"").decode()
    head = f"#boot {fs.boot_id()}\n"
    assert not text or text.startswith(head)
    return text.removeprefix(head)


def test_hash_names_what_counts(box):
    place = box.put()
    assert known(box) == {place.suffix: hex_of(f"{stamp(0).internal}.data")}
    typed = {"name": place.name, "X-Timestamp": stamp(1).internal, "Content-Type": "x/y",
             "Content-Type-Timestamp": stamp(1).internal}
    box.store.write_meta(place, stamp(1), typed)
    assert known(box)[place.suffix] == hex_of(
        f"{stamp(1).internal}.meta", f"{stamp(0).internal}.data", f"{stamp(1).internal}_ctype")
    box.store.delete(place, stamp(2))
    assert known(box)[place.suffix] == hex_of(f"{stamp(2).internal}.ts")


def test_attributes_file_does_not_count(box):
    """So that a copy on a file system with room for all attributes is equal to one without."""
    place = box.put(metadata={f"X-Object-Meta-{i}": "v" * 256 for i in range(40)})
    assert known(box)[place.suffix] == hex_of(f"{stamp(0).internal}.data")


def test_partition_that_does_not_exist(box):
    assert known(box) == {} and not os.path.exists(f"{box.device_path}/objects")


def test_changes_are_noted_and_computed_when_asked(box):
    place = box.put()
    assert journal(box) == f"{place.suffix}\n"
    first = known(box)
    assert journal(box) == ""
    stored = hashes.read_hashes(place.partition_path)
    assert stored["valid"] is True and stored["updated"] == NOW and stored[place.suffix] == first[place.suffix]
    box.put(at=1)
    assert known(box) != first


def test_file_is_a_plain_pickle_of_protocol_2(box):
    place = box.put()
    known(box)
    with open(f"{place.partition_path}/hashes.pkl", "rb") as file:
        data = file.read()
    assert data[:2] == b"\x80\x02" and set(pickle.loads(data)) == {place.suffix, "valid", "updated"}


def test_hash_that_is_known_is_not_computed(box, monkeypatch):
    box.put()
    first = known(box)
    monkeypatch.setattr(hashes, "hash_suffix", None)
    assert known(box) == first


def test_suffix_can_be_asked_anew(box):
    place = box.put()
    known(box)
    os.unlink(f"{place.directory}/{layout.data_name(stamp(0))}")
    assert place.suffix in known(box)
    assert known(box, recalculate=[place.suffix, "../x"]) == {}
    assert not os.path.exists(os.path.dirname(place.directory)), "what is empty goes"


def test_listing_finds_what_the_file_does_not_know(box):
    place = box.put()
    known(box)
    hashes.write_hashes(place.partition_path, {"valid": True}, NOW)
    assert known(box) == {}
    assert known(box, do_listdir=True) == {place.suffix: hex_of(f"{stamp(0).internal}.data")}


class Bomb:
    def __reduce__(self):
        return (os.mkdir, ("/tmp/keelstore-was-here",))


@pytest.mark.parametrize(
    "content",
    [
        b"", b"junk", pickle.dumps([], 2), pickle.dumps({"../x": "y"}, 2), pickle.dumps({"ABC": "y"}, 2), pickle.dumps({5: "y"}, 2),
        pickle.dumps({"abc": Bomb()}, 2), b"cos\nsystem\n(S'true'\ntR.",
    ],
)  # fmt: skip
def test_unusable_file_is_computed_anew(box, content):
    place = box.put()
    first = known(box)
    with open(f"{place.partition_path}/hashes.pkl", "wb") as file:
        file.write(content)
    assert known(box) == first
    assert not os.path.exists("/tmp/keelstore-was-here")


def test_old_file_without_marks_is_valid():
    assert hashes.decode(pickle.dumps({"abc": "x"}, 2)) == {"abc": "x", "valid": True, "updated": -1}
    assert hashes.decode(None) == {"valid": False}


@given(st.binary(max_size=60))
def test_any_content_is_read(data):
    assert "valid" in hashes.decode(data)


def test_journal_of_nonsense_is_dropped(box):
    place = box.put()
    first = known(box)
    fs.append(f"{place.partition_path}/hashes.invalid", b"../..\nzzz\n\xff\xff\n" + place.suffix.encode() + b"\n")
    assert known(box) == first and journal(box) == ""


def test_cleaning_happens_on_the_way(box):
    place = box.put()
    box.store.delete(place, stamp(1))
    known(box)
    box.clock.now = NOW + 700000
    assert known(box) == {place.suffix: hex_of(f"{stamp(1).internal}.ts")}, "nothing says that it changed"
    assert known(box, recalculate=[place.suffix]) == {}
    assert not os.path.exists(place.directory)


def test_hash_directory_that_is_a_file_is_quarantined(box):
    place = box.put()
    with open(f"{os.path.dirname(place.directory)}/{'0' * 29}{place.suffix}", "w") as file:
        file.write("?")
    assert known(box) == {place.suffix: hex_of(f"{stamp(0).internal}.data")}
    assert os.listdir(f"{box.device_path}/quarantined/objects") == [f"{'0' * 29}{place.suffix}"]


def test_suffix_that_cannot_be_read_stays_unknown(box, monkeypatch):
    place, other = box.put(), box.put("other")
    real = os.listdir

    def listdir(path):
        if path == os.path.dirname(place.directory):
            raise PermissionError(errno.EACCES, "no")
        return real(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", listdir)
        found = known(box)
    assert found[place.suffix] is None and found[other.suffix]
    assert known(box)[place.suffix]


def test_change_while_computing_is_not_lost(box, monkeypatch):
    place = box.put()
    real, done = hashes.hash_suffix, list[int]()

    def hash_suffix(*args):
        value = real(*args)
        if not done:
            done.append(1)
            box.put(body=b"new", at=1)  # after this suffix was read
        return value

    monkeypatch.setattr(hashes, "hash_suffix", hash_suffix)
    known(box)
    assert known(box)[place.suffix] == hex_of(f"{stamp(1).internal}.data")


def test_two_that_compute_at_once_give_up_in_the_end(box, monkeypatch):
    place = box.put()
    real, count = hashes.hash_suffix, list[int]()

    def hash_suffix(*args):
        count.append(1)
        hashes.write_hashes(place.partition_path, {"valid": True, "fff": f"{len(count):032x}"}, NOW + len(count))
        return real(*args)

    monkeypatch.setattr(hashes, "hash_suffix", hash_suffix)
    assert known(box, recalculate=[place.suffix])[place.suffix] == hex_of(f"{stamp(0).internal}.data")
    assert len(count) <= 3 * hashes.MAX_ATTEMPTS


def test_partition_that_another_holds(box):
    place = box.put()
    with lock_directory(place.partition_path), pytest.raises(LockTimeout):
        hashes.invalidate(place.partition_path, "abc", 0.01)


def test_a_power_failure_may_take_lines_away(box, monkeypatch):
    """All but the first of a journal: whoever comes first after another start of the machine computes all of its partition."""
    place, other = box.put(), box.put("other")
    known(box)
    box.put("other", at=1)
    noted = f"{place.partition_path}/hashes.invalid"
    size = os.stat(noted).st_size
    box.store.delete(place, stamp(1))
    os.truncate(noted, size)  # what had not reached the disk
    assert place.suffix not in journal(box) and other.suffix in journal(box)
    monkeypatch.setattr(fs, "boot_id", lambda: "another")
    assert known(box) == {place.suffix: hex_of(f"{stamp(1).internal}.ts"), other.suffix: hex_of(f"{stamp(1).internal}.data")}
    assert journal(box) == ""


def test_the_first_line_of_a_journal_is_safe_before_the_change(box, monkeypatch):
    place = box.put()
    known(box)
    trace = FaultyOs()
    trace.install(monkeypatch)
    box.put(at=1)
    monkeypatch.setattr(fs, "os", os)
    steps = [name for name, _ in trace.calls if name in ("write", "fsync", "link", "rename")]
    assert steps[:steps.index("link")][-2:] == ["write", "fsync"] and journal(box) == f"{place.suffix}\n"


def test_a_writer_that_is_killed_leaves_no_hash_that_does_not_hold(tmp_path, monkeypatch):
    """Wherever that is: the hash of the suffix is that of its files when it is asked for."""
    for step in range(1, 100):
        FaultyOs(syncs=False).install(monkeypatch)
        box = StoreBox(str(tmp_path / str(step)))
        place = box.put()
        known(box)
        faults = FaultyOs(crash_at=step, syncs=False)
        faults.install(monkeypatch)
        try:
            box.store.delete(place, stamp(1))
        except Crash:
            pass
        else:
            break
        finally:
            monkeypatch.setattr(fs, "os", os)
        name = ".ts" if os.path.exists(f"{place.directory}/{layout.tombstone_name(stamp(1))}") else ".data"
        assert known(box) == {place.suffix: hex_of(f"{stamp(name == '.ts').internal}{name}")}, faults.calls[-1]
    assert step > 6


def test_crash_while_consolidating_loses_no_change(tmp_path, monkeypatch):
    step = 0
    while True:
        step += 1
        FaultyOs(syncs=False).install(monkeypatch)
        box = StoreBox(str(tmp_path / str(step)))
        place = box.put()
        known(box)
        box.put(at=1)
        faults = FaultyOs(crash_at=step, syncs=False)
        faults.install(monkeypatch)
        try:
            known(box)
        except Crash:
            crashed = True
        else:
            crashed = False
        monkeypatch.setattr(fs, "os", os)
        assert known(box)[place.suffix] == hex_of(f"{stamp(1).internal}.data")
        if not crashed:
            break
    assert step > 8


# -- fragments


def fragments_of(*names: str) -> list[StoredFile]:
    return [file for name in names if (file := parse_name(name, 6))]


def test_fragments_have_a_hash_each():
    t0, t1 = stamp(0).internal, stamp(1).internal
    found = resolve(fragments_of(f"{t0}#0#d.data", f"{t0}#2.data", f"{t1}#1.data", f"{t1}.meta"), stores_fragments=True)
    assert sorted(hashes.summary(found, True), key=str) == sorted(
        [(None, f"{t1}.meta"), (1, t1), (0, t0), (2, t0), (None, f"{t0}.durable")], key=str)


def test_suffix_of_fragments(box):
    place = box.place(policy=2)
    for index in (0, 3):
        box.store.write(place, stamp(0), b"x", metadata_of(place, stamp(0), b"x"), fragment=index)
    found = box.store.hashes("sda1", box.device_path, POLICIES.by_index[2], "7")
    assert found == {place.suffix: {
        None: hex_of(f"{stamp(0).internal}.durable"), 0: hex_of(stamp(0).internal), 3: hex_of(stamp(0).internal),
    }}  # fmt: skip
