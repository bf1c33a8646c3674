"""Pure: the files of one hash directory to the files that are the object (``spec: on-disk 3.2, 3.3``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from keelstore.common.timestamp import Timestamp
from keelstore.obj.layout import ATTRS, DATA, DURABLE, META, TOMBSTONE, StoredFile

_NO_FRAGMENTS: Mapping[Timestamp, tuple[StoredFile, ...]] = {}


class Preference(NamedTuple):
    """A reader's wish: a fragment of this time whose index is none of ``exclude``."""

    timestamp: Timestamp
    exclude: frozenset[int]


class FileSet(NamedTuple):
    """What a hash directory holds.

    ``data`` with ``meta`` (newest metadata file), ``ctype`` (the one that gives the content type, maybe ``meta``) and
    ``attrs``; or only ``tombstone``; or nothing. ``obsolete`` files may go at once, ``reclaimable`` ones when they
    are old. Erasure coding: ``fragments`` are the sets of fragments by time, newest first, ``durable`` the time of
    the durable one.
    """

    data: StoredFile | None = None
    meta: StoredFile | None = None
    ctype: StoredFile | None = None
    tombstone: StoredFile | None = None
    attrs: StoredFile | None = None
    obsolete: tuple[StoredFile, ...] = ()
    reclaimable: tuple[StoredFile, ...] = ()
    fragments: Mapping[Timestamp, tuple[StoredFile, ...]] = _NO_FRAGMENTS
    durable: Timestamp | None = None

    @property
    def timestamp(self) -> Timestamp | None:
        """Of the data or the tombstone: what a write must be newer than."""
        newest = self.data or self.tombstone
        return newest.timestamp if newest else None


def resolve(
    files: Iterable[StoredFile],
    *,
    stores_fragments: bool = False,
    fragment: int | None = None,
    preferences: Sequence[Preference] | None = None,
) -> FileSet:
    """Choose the files that are one object, out of one hash directory.

    The newest data file or tombstone wins; at equal timestamps the tombstone does. A metadata file counts only with
    older data; without data it is kept for a while: its data may still be on the way. ``files`` may come in any
    order; names that do not parse are the caller's to report.

    With fragments, only a durable set counts, unless ``preferences`` (possibly none) allow others; of the set chosen,
    the preferred index, or ``fragment``, or the highest. A fragment that is there as durable is not needed as one that
    is not: its commit finds that it was not needed, either.
    """
    files = list(files)
    if len(files) == 1 and not stores_fragments:  # nearly every directory
        only = files[0]
        if only.kind == DATA:
            return FileSet(data=only, durable=only.timestamp)
        if only.kind == TOMBSTONE:
            return FileSet(tombstone=only)
    obsolete: list[StoredFile] = []
    tombstone = _newest(files, TOMBSTONE)
    if tombstone:
        rest = []
        for file in files:
            if file.kind == ATTRS or (file.kind != TOMBSTONE and file.timestamp > tombstone.timestamp):
                rest.append(file)
            elif file is not tombstone:
                obsolete.append(file)
        files = rest
    metas = _current_metas([file for file in files if file.kind == META], obsolete)
    attrs = [file for file in files if file.kind == ATTRS]
    choose = _choose_fragment if stores_fragments else _choose_whole
    found = choose(files, metas, tombstone, obsolete, fragment, preferences)
    return _with_attrs(found, attrs) if attrs else found


def _newest(files: Iterable[StoredFile], kind: str) -> StoredFile | None:
    return max((file for file in files if file.kind == kind), key=_order, default=None)


def _order(file: StoredFile) -> tuple[Timestamp, str]:
    return file.timestamp, file.name


def _current_metas(metas: list[StoredFile], obsolete: list[StoredFile]) -> list[StoredFile]:
    """The newest metadata file, and after it an older one if that has the newer content type."""
    if len(metas) < 2:
        return metas
    metas.sort(key=_order, reverse=True)
    newest, *rest = metas
    typed = max((file for file in rest if file.ctype_timestamp is not None),
                key=lambda file: (file.ctype_timestamp, file.timestamp, file.name), default=None)
    kept = [newest]
    if typed is not None and typed.ctype_timestamp is not None and (
        newest.ctype_timestamp is None or typed.ctype_timestamp > newest.ctype_timestamp
    ):
        kept = [typed] if typed.timestamp == newest.timestamp else [newest, typed]
    obsolete.extend(file for file in metas if file not in kept)
    return kept


def _choose_whole(
    files: list[StoredFile],
    metas: list[StoredFile],
    tombstone: StoredFile | None,
    obsolete: list[StoredFile],
    fragment: int | None,
    preferences: Sequence[Preference] | None,
) -> FileSet:
    data = _newest(files, DATA)
    if data is None:
        return FileSet(tombstone=tombstone, obsolete=tuple(obsolete), reclaimable=tuple(metas))
    obsolete.extend(file for file in files if file.kind == DATA and file is not data)
    if tombstone:
        obsolete.append(tombstone)
    obsolete.extend(file for file in metas if file.timestamp <= data.timestamp)
    metas = [file for file in metas if file.timestamp > data.timestamp]
    return FileSet(data=data, meta=metas[0] if metas else None, ctype=_typed(metas, data.timestamp),
                   obsolete=tuple(obsolete), durable=data.timestamp)


def _typed(metas: list[StoredFile], after: Timestamp) -> StoredFile | None:
    """The file whose content type counts: the last one kept, if its content type is newer than the data."""
    if metas and metas[-1].ctype_timestamp is not None and metas[-1].ctype_timestamp > after:
        return metas[-1]
    return None


def _choose_fragment(
    files: list[StoredFile],
    metas: list[StoredFile],
    tombstone: StoredFile | None,
    obsolete: list[StoredFile],
    fragment: int | None,
    preferences: Sequence[Preference] | None,
) -> FileSet:
    markers = [file for file in files if file.kind == DURABLE]
    marked = {file.timestamp for file in markers}
    sets: dict[Timestamp, list[StoredFile]] = {}
    for file in sorted((file for file in files if file.kind == DATA), key=_order, reverse=True):
        sets.setdefault(file.timestamp, []).append(file)
    durable: Timestamp | None = None
    known: dict[Timestamp, tuple[StoredFile, ...]] = {}
    for stamp, members in sets.items():
        if durable is not None:
            obsolete.extend(members)
            continue
        settled = {file.fragment for file in members if file.is_durable} if len(members) > 1 else None
        if settled:  # one that was written once more, whose commit is not needed or may come too late
            obsolete.extend(file for file in members if not file.is_durable and file.fragment in settled)
            members = [file for file in members if file.is_durable or file.fragment not in settled]
        known[stamp] = tuple(sorted(members, key=lambda file: (file.fragment or 0, file.is_durable, file.name)))
        if stamp in marked or any(file.is_durable for file in members):
            durable = stamp
    reclaimable: list[StoredFile] = []
    if durable is not None:
        older = [file for file in (*metas, *markers, *((tombstone,) if tombstone else ())) if file.timestamp < durable]
        obsolete.extend(older)
        metas = [file for file in metas if file not in older]
        if tombstone in older:
            tombstone = None
    else:
        reclaimable.extend(metas)
        obsolete.extend(file for file in markers if file.timestamp not in known)
    chosen, index = _preferred(known, durable, preferences)
    data: StoredFile | None = None
    if chosen is not None:
        wanted = index if index is not None else fragment
        members = list(known[chosen])
        if wanted is not None:
            members = [file for file in members if file.fragment == wanted]
        data = members[-1] if members else None
    for stamp, group in known.items():
        if stamp not in (durable, chosen):
            reclaimable.extend(group)
    if data is not None and chosen != durable:
        metas = [file for file in metas if file.timestamp > data.timestamp]
    return FileSet(
        data=data,
        meta=metas[0] if data and metas else None,
        ctype=_typed(metas, data.timestamp) if data else None,
        tombstone=tombstone if data is None else None,
        obsolete=tuple(obsolete),
        reclaimable=tuple(reclaimable),
        fragments=known,
        durable=durable,
    )


def _preferred(
    sets: Mapping[Timestamp, tuple[StoredFile, ...]],
    durable: Timestamp | None,
    preferences: Sequence[Preference] | None,
) -> tuple[Timestamp | None, int | None]:
    """The set to read from, and the index if the wish decides it."""
    if preferences is None:
        return durable, None
    candidates = dict(sets)
    for wish in preferences:
        for file in reversed(candidates.get(wish.timestamp, ())):
            if file.fragment not in wish.exclude:
                return wish.timestamp, file.fragment
        candidates.pop(wish.timestamp, None)
    return max(candidates, default=None), None


def _with_attrs(found: FileSet, attrs: list[StoredFile]) -> FileSet:
    """Give each attributes file the fate of the data file that it belongs to.

    One without its data file was written by a PUT that did not get to its end, or one that is under way: it goes when
    something newer is here, else when it is old.
    """
    gone = {(file.timestamp, file.fragment) for file in found.obsolete if file.kind == DATA}
    aging = {(file.timestamp, file.fragment) for file in found.reclaimable if file.kind == DATA}
    kept = {(file.timestamp, file.fragment) for members in found.fragments.values() for file in members}
    if found.data:
        kept.add((found.data.timestamp, found.data.fragment))
    obsolete, reclaimable = list(found.obsolete), list(found.reclaimable)
    own = None
    for file in sorted(attrs, key=_order):
        key = (file.timestamp, file.fragment)
        if found.data and key == (found.data.timestamp, found.data.fragment):
            own = file
        elif key in aging:
            reclaimable.append(file)
        elif key in kept:
            continue
        elif (
            key in gone
            or (found.durable is not None and file.timestamp < found.durable)
            or (found.tombstone is not None and file.timestamp <= found.tombstone.timestamp)
        ):
            obsolete.append(file)
        else:
            reclaimable.append(file)
    return found._replace(attrs=own, obsolete=tuple(obsolete), reclaimable=tuple(reclaimable))


def expendable(
    found: FileSet,
    now: float,
    reclaim_age_s: float,
    commit_window_s: float,
    mtime: Callable[[StoredFile], float],
) -> tuple[StoredFile, ...]:
    """The files that may be removed now, data before the attributes that belong to it.

    ``mtime`` is asked only for old fragments that are not durable: one may have been written just now with an old
    timestamp, its commit still to come (LP 1936508).
    """

    def is_old(file: StoredFile) -> bool:
        return now - float(file.timestamp) > reclaim_age_s

    remove = list(found.obsolete)
    if found.tombstone and is_old(found.tombstone):
        remove.append(found.tombstone)
    for file in found.reclaimable:
        if is_old(file):
            settled = file.is_durable and file.kind != ATTRS
            if settled or commit_window_s <= 0 or now - mtime(file) > commit_window_s:
                remove.append(file)
    remove.sort(key=lambda file: file.kind == ATTRS)
    return tuple(remove)
