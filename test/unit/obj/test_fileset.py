from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common.timestamp import Timestamp
from keelstore.obj import layout
from keelstore.obj.fileset import FileSet, Preference, expendable, resolve
from keelstore.obj.layout import StoredFile, parse_name

BASE = 140000000000000


def stamp(number: int, offset: int = 0) -> Timestamp:
    return Timestamp.from_raw(BASE + number, offset)


def name_of(short: str, fragments: int) -> str:
    """``2.data`` to a real name; ``2+1.meta`` has its content type at 1; ``2#3d`` is a durable fragment."""
    stem, _, kind = short.rpartition(".")
    if kind == "attrs" and not fragments:
        return layout.attrs_name(stamp(int(stem)))
    if "#" in stem:
        number, _, index = stem.partition("#")
        if kind == "attrs":
            return layout.attrs_name(stamp(int(number)), int(index))
        return layout.data_name(stamp(int(number)), int(index.rstrip("d")), index.endswith("d"))
    number, _, ctype = stem.partition("+")
    if kind == "meta":
        return layout.meta_name(stamp(int(number)), stamp(int(ctype)) if ctype else None)
    return f"{stamp(int(number)).internal}.{kind}"


def parse(*shorts: str, fragments: int = 0) -> list[StoredFile]:
    found = [parse_name(name_of(short, fragments), fragments) for short in shorts]
    assert all(found)
    return [file for file in found if file]


def show(files: object) -> set[str]:
    """The inverse of :func:`name_of`."""
    assert isinstance(files, (tuple, list, set))
    shown = set()
    for file in files:
        number = str(file.timestamp.raw - BASE)
        if file.fragment is not None:
            number += f"#{file.fragment}{'d' if file.is_durable and file.kind == layout.DATA else ''}"
        if file.ctype_timestamp is not None:
            number += f"+{file.ctype_timestamp.raw - BASE}"
        shown.add(number + (".attrs" if file.kind == layout.ATTRS else file.kind))
    return shown


def one(file: StoredFile | None) -> str | None:
    return show([file]).pop() if file else None


CASES = [
    # files; data, meta, ctype, tombstone; obsolete; reclaimable
    ("", None, None, None, None, "", ""),
    ("1.data", "1.data", None, None, None, "", ""),
    ("1.ts", None, None, None, "1.ts", "", ""),
    ("1.meta", None, None, None, None, "", "1.meta"),
    ("1.data 2.data", "2.data", None, None, None, "1.data", ""),
    ("2.data 2.ts", None, None, None, "2.ts", "2.data", ""),
    ("2.data 1.ts", "2.data", None, None, None, "1.ts", ""),
    ("1.ts 2.ts", None, None, None, "2.ts", "1.ts", ""),
    ("1.data 2.meta", "1.data", "2.meta", None, None, "", ""),
    ("2.data 2.meta", "2.data", None, None, None, "2.meta", ""),
    ("2.data 1.meta", "2.data", None, None, None, "1.meta", ""),
    ("1.data 2.meta 3.meta", "1.data", "3.meta", None, None, "2.meta", ""),
    ("1.data 2+2.meta 3.meta", "1.data", "3.meta", "2+2.meta", None, "", ""),
    ("1.data 2+2.meta 3+1.meta", "1.data", "3+1.meta", "2+2.meta", None, "", ""),
    ("1.data 2+2.meta 3+3.meta", "1.data", "3+3.meta", "3+3.meta", None, "2+2.meta", ""),
    ("1.data 3.meta 3+2.meta", "1.data", "3+2.meta", "3+2.meta", None, "3.meta", ""),
    ("1.data 3+1.meta", "1.data", "3+1.meta", None, None, "", ""),
    ("1.data 2.meta 3.ts", None, None, None, "3.ts", "1.data 2.meta", ""),
    ("1.ts 2.meta", None, None, None, "1.ts", "", "2.meta"),
    ("1.data 1.attrs", "1.data", None, None, None, "", ""),
    ("1.data 1.attrs 2.data", "2.data", None, None, None, "1.data 1.attrs", ""),
    ("1.data 2.data 2.attrs", "2.data", None, None, None, "1.data", ""),
    ("1.attrs", None, None, None, None, "", "1.attrs"),
    ("1.attrs 2.data", "2.data", None, None, None, "1.attrs", ""),
    ("3.attrs 2.data", "2.data", None, None, None, "", "3.attrs"),
    ("1.data 1.attrs 2.ts", None, None, None, "2.ts", "1.data 1.attrs", ""),
]


@pytest.mark.parametrize(("files", "data", "meta", "ctype", "tombstone", "obsolete", "reclaimable"), CASES)
def test_which_files_are_the_object(files, data, meta, ctype, tombstone, obsolete, reclaimable):
    found = resolve(parse(*files.split()))
    assert (one(found.data), one(found.meta), one(found.ctype), one(found.tombstone)) == (data, meta, ctype, tombstone)
    assert show(found.obsolete) == set(obsolete.split())
    assert show(found.reclaimable) == set(reclaimable.split())


EC_CASES: list[tuple[object, ...]] = [
    # files; wish; data, meta; durable; obsolete; reclaimable
    ("1#0d.data 1#3d.data", None, "1#3d.data", None, 1, "", ""),
    ("1#0.data", None, None, None, None, "", "1#0.data"),
    ("1#0.data 1.durable", None, "1#0.data", None, 1, "", ""),
    ("1#0d.data 2#1.data", None, "1#0d.data", None, 1, "", "2#1.data"),
    ("1#0d.data 2#1.data", [], "2#1.data", None, 1, "", ""),
    ("1#0d.data 2#1d.data", None, "2#1d.data", None, 2, "1#0d.data", ""),
    ("1#0d.data 2#1.data", [(1, [])], "1#0d.data", None, 1, "", "2#1.data"),
    ("1#0d.data 1#2d.data 2#1.data", [(1, [2])], "1#0d.data", None, 1, "", "2#1.data"),
    ("1#0d.data 2#1.data", [(2, [1])], "1#0d.data", None, 1, "", "2#1.data"),
    ("1#0d.data 2.meta", None, "1#0d.data", "2.meta", 1, "", ""),
    ("1#0.data 2.meta", None, None, None, None, "", "1#0.data 2.meta"),
    ("1#0d.data 2.ts", None, None, None, None, "1#0d.data", ""),
    ("1.durable", None, None, None, None, "1.durable", ""),
    ("1#0d.data 1#0.attrs", None, "1#0d.data", None, 1, "", ""),
    ("1#0.data 1#0.attrs", None, None, None, None, "", "1#0.data 1#0.attrs"),
    ("1#0.data 1#0d.data", None, "1#0d.data", None, 1, "1#0.data", ""),
    ("1#0.data 1#0d.data 1#0.attrs", None, "1#0d.data", None, 1, "1#0.data", ""),
    ("1#0.data 1#3d.data", None, "1#3d.data", None, 1, "", ""),
    ("1#0.data 1#0d.data 2#0.data", None, "1#0d.data", None, 1, "1#0.data", "2#0.data"),
    ("1#0.data 1#0d.data 1.durable", [(1, [])], "1#0d.data", None, 1, "1#0.data", ""),
    ("1#0d.data 1#3d.data 1#0.attrs 1#3.attrs", None, "1#3d.data", None, 1, "", ""),
]


@pytest.mark.parametrize(("files", "wishes", "data", "meta", "durable", "obsolete", "reclaimable"), EC_CASES)
def test_which_fragment_is_read(files, wishes, data, meta, durable, obsolete, reclaimable):
    preferences = None if wishes is None else [Preference(stamp(t), frozenset(e)) for t, e in wishes]
    found = resolve(parse(*files.split(), fragments=6), stores_fragments=True, preferences=preferences)
    assert (one(found.data), one(found.meta)) == (data, meta)
    assert found.durable == (None if durable is None else stamp(durable))
    assert show(found.obsolete) == set(obsolete.split())
    assert show(found.reclaimable) == set(reclaimable.split())


def test_fragment_asked_for_must_be_there():
    files = parse("1#0d.data", "1#3d.data", fragments=6)
    assert one(resolve(files, stores_fragments=True, fragment=0).data) == "1#0d.data"
    assert resolve(files, stores_fragments=True, fragment=1).data is None


def test_attributes_come_with_their_data():
    assert one(resolve(parse("1.data", "1.attrs")).attrs) == "1.attrs"
    assert resolve(parse("2.data", "1.attrs")).attrs is None


# -- properties: merging forgets order

numbers = st.integers(0, 6)


@st.composite
def stored_files(draw: st.DrawFn, fragments: int = 0) -> frozenset[StoredFile]:
    """The files of one hash directory; what the field's writers could have left there."""
    shorts = set()
    for _ in range(draw(st.integers(0, 7))):
        kind = draw(st.sampled_from(["data", "data", "meta", "ts", "attrs"]))
        number = draw(numbers)
        if kind == "meta" and draw(st.booleans()):
            shorts.add(f"{number}+{draw(st.integers(0, number))}.meta")
        elif fragments and kind in ("data", "attrs"):
            index = draw(st.integers(0, fragments - 1))
            shorts.add(f"{number}#{index}{'d' if kind == 'data' and draw(st.booleans()) else ''}.{kind}")
        else:
            shorts.add(f"{number}.{kind}")
    return frozenset(parse(*shorts, fragments=fragments))


def kept(files: frozenset[StoredFile], fragments: int = 0) -> frozenset[StoredFile]:
    return files - frozenset(resolve(files, stores_fragments=fragments > 0).obsolete)


def chosen(found: FileSet) -> tuple[StoredFile | None, ...]:
    return found.data, found.meta, found.ctype, found.tombstone, found.attrs


@given(stored_files(), st.randoms())
def test_order_of_the_listing_does_not_matter(files, random):
    listing = list(files)
    random.shuffle(listing)
    found, again = resolve(listing), resolve(sorted(files))
    assert chosen(found) == chosen(again)
    assert set(found.obsolete) == set(again.obsolete) and set(found.reclaimable) == set(again.reclaimable)


@given(stored_files())
def test_cleaning_changes_nothing_that_is_seen(files):
    assert chosen(resolve(kept(files))) == chosen(resolve(files))
    assert resolve(kept(files)).obsolete == ()


@given(stored_files(), stored_files())
def test_replicas_that_swap_what_they_kept_agree(ours, theirs):
    together = resolve(ours | theirs)
    swapped = resolve(kept(ours) | kept(theirs))
    assert chosen(swapped)[:4] == chosen(together)[:4]
    assert kept(kept(ours) | kept(theirs)) <= kept(ours | theirs)


@given(stored_files(6), stored_files(6))
def test_replicas_of_fragments_that_swap_what_they_kept_agree(ours, theirs):
    swapped = resolve(kept(ours, 6) | kept(theirs, 6), stores_fragments=True)
    together = resolve(ours | theirs, stores_fragments=True)
    assert swapped.durable == together.durable and one(swapped.tombstone) == one(together.tombstone)


@given(stored_files(), stored_files())
def test_nothing_deleted_comes_back(ours, theirs):
    found = resolve(ours | theirs)
    tombstones = [file.timestamp for file in ours | theirs if file.kind == layout.TOMBSTONE]
    assert not found.data or all(found.data.timestamp > stamp for stamp in tombstones)


@given(stored_files(6) | stored_files())
def test_every_file_is_kept_or_named_once(files):
    found = resolve(files, stores_fragments=any(file.fragment is not None for file in files))
    gone = [*found.obsolete, *found.reclaimable]
    assert len(gone) == len(set(gone)) and set(gone) <= files
    assert not {file for file in chosen(found) if file} & set(gone)


# -- what may go


def expendable_names(files: str, now: float, fragments: int = 0, mtime: float = 0.0, window: float = 60.0) -> set[str]:
    found = resolve(parse(*files.split(), fragments=fragments), stores_fragments=fragments > 0)
    return show(expendable(found, now, 1000.0, window, lambda file: mtime))


NOW = BASE / 100000


def test_obsolete_files_go_at_once():
    assert expendable_names("1.data 2.data", NOW) == {"1.data"}


def test_tombstone_goes_when_it_is_old():
    assert expendable_names("1.ts", NOW + 999) == set()
    assert expendable_names("1.ts", NOW + 1001) == {"1.ts"}


def test_metadata_without_data_goes_when_it_is_old():
    assert expendable_names("1.meta", NOW + 999) == set()
    assert expendable_names("1.meta", NOW + 1001) == {"1.meta"}


def test_case_X15_a_fragment_written_just_now_with_an_old_time_stays_for_its_commit():
    now = NOW + 5000
    assert expendable_names("1#0.data", now, 6, mtime=now - 59) == set()
    assert expendable_names("1#0.data", now, 6, mtime=now - 61) == {"1#0.data"}
    assert expendable_names("1#0.data", now, 6, mtime=now - 59, window=0) == {"1#0.data"}


def test_attributes_whose_data_is_on_its_way_stay():
    now = NOW + 5000
    assert expendable_names("1.attrs", now, mtime=now - 59) == set()
    assert expendable_names("1.attrs", now, mtime=now - 61) == {"1.attrs"}


def test_data_is_removed_before_its_attributes():
    found = resolve(parse("1.attrs", "1.data", "2.data"))
    assert [file.kind for file in expendable(found, NOW, 1000, 60, lambda file: 0.0)] == [layout.DATA, layout.ATTRS]
