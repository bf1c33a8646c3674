"""One hash directory on disk: look at it, and remove from it what is no longer needed."""

from __future__ import annotations

import errno
import logging
import os
from dataclasses import dataclass

from keelstore.common import fs
from keelstore.obj import layout
from keelstore.obj.fileset import FileSet, expendable, resolve
from keelstore.obj.layout import StoredFile, parse_name

log = logging.getLogger("keelstore.obj")

DAMAGED_DIRECTORY = frozenset({errno.ENODATA, getattr(errno, "EUCLEAN", 117)})


@dataclass(frozen=True)
class Rules:
    """How long things are kept, and the grammar of names. ``fragments``: as :func:`layout.parse_name` wants it."""

    fragments: int = 0
    reclaim_age_s: float = 604800.0
    commit_window_s: float = 60.0


def parse_names(names: list[str], directory: str, fragments: int = 0) -> list[StoredFile]:
    """The files among ``names``; others are reported, but for interrupted rsyncs."""
    found = []
    for name in names:
        file = parse_name(name, fragments)
        if file is not None:
            found.append(file)
        elif not layout.is_temporary(name):
            log.warning("unexpected file %s/%s", directory, name)
    return found


def clean(directory: str, rules: Rules, now: float) -> FileSet:
    """Remove what may go, also the directory if nothing is left, and give what remains.

    Nothing is synced: a file that a crash brings back is as expendable as before. Raises OSError as listdir does.
    """
    names = os.listdir(directory)
    files = parse_names(names, directory, rules.fragments)
    found = resolve(files, stores_fragments=rules.fragments > 0)
    if not found.obsolete and not found.reclaimable and not found.tombstone:
        if not names:
            fs.remove_directory(directory)
        return found

    def mtime(file: StoredFile) -> float:
        try:
            return os.stat(f"{directory}/{file.name}").st_mtime
        except FileNotFoundError:
            return 0.0

    gone = expendable(found, now, rules.reclaim_age_s, rules.commit_window_s, mtime)
    if not gone:
        return found
    for file in gone:
        remove = fs.discard_file if file.kind == layout.DATA else fs.remove_file
        remove(f"{directory}/{file.name}")
    if len(gone) == len(names):
        fs.remove_directory(directory)
    removed = set(gone)
    return found._replace(
        tombstone=None if found.tombstone in removed else found.tombstone,
        obsolete=(),
        reclaimable=tuple(file for file in found.reclaimable if file not in removed),
        fragments={
            stamp: kept
            for stamp, members in found.fragments.items()
            if (kept := tuple(file for file in members if file not in removed))
        } if found.fragments else found.fragments,
    )  # fmt: skip
