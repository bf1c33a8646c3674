"""The objects of a partition as they are on disk, for those who compare, send or remove them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import NamedTuple

from keelstore.common import fs
from keelstore.common.errors import StorageError
from keelstore.common.locks import lock_directory
from keelstore.obj import hashes
from keelstore.obj.fileset import FileSet, resolve
from keelstore.obj.hashdir import DAMAGED_DIRECTORY, Rules, clean, parse_names
from keelstore.obj.layout import DATA, DURABLE, META, attrs_name, is_hash, is_suffix, is_temporary
from keelstore.obj.ssync.protocol import Part, select

log = logging.getLogger("keelstore.obj")


class Listed(NamedTuple):
    """One hash directory."""

    name_hash: str
    found: FileSet


def suffixes_of(partition_path: str) -> list[str]:
    """The suffix directories of a partition; none when it is gone. Blocks."""
    try:
        return sorted(name for name in os.listdir(partition_path) if is_suffix(name))
    except (FileNotFoundError, NotADirectoryError):
        return []


def objects_of(
    partition_path: str, suffix: str, rules: Rules, now: float, quarantine: Callable[[str], object]
) -> list[Listed]:
    """What a suffix directory holds, in order of hashes; what is obsolete is removed on the way. Blocks.

    ``quarantine`` is told of directories that cannot be listed. Raises OSError for a disk that cannot be read.
    """
    path = f"{partition_path}/{suffix}"
    try:
        names = sorted(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = []
    for name in names:
        if not is_hash(name):
            continue
        try:
            found.append(Listed(name, clean(f"{path}/{name}", rules, now)))
        except FileNotFoundError:
            continue
        except NotADirectoryError:
            quarantine(f"{path}/{name}")
        except OSError as error:
            if error.errno not in DAMAGED_DIRECTORY:
                raise
            quarantine(f"{path}/{name}")
    return found


def remove_objects(partition_path: str, proven: Mapping[str, FileSet], rules: Rules) -> int:
    """Remove the objects that others were proven to hold, as far as they still are what was proven; how many. Blocks.

    Exactly the files that make the proven state go: one that came meanwhile, and the directory with it, stays. Raises
    OSError for a disk that does not take the change.
    """

    def remove(directory: str, was: FileSet) -> bool:
        names = os.listdir(directory)
        files = parse_names(names, directory, rules.fragments)
        if state_of(resolve(files, stores_fragments=rules.fragments > 0)) != state_of(was):
            return False
        leftover = [name for name in names if is_temporary(name)]
        for name in [*(file.name for file in sorted(files, key=lambda file: file.name.startswith("."))), *leftover]:
            fs.remove_file(f"{directory}/{name}")
        return True

    return _remove_each(partition_path, proven, remove)


def remove_fragments(partition_path: str, part: Part, proven: Mapping[str, FileSet], rules: Rules, now: float) -> int:
    """As :func:`remove_objects`, of what ``protocol.select`` chose of each directory for ``part``: one fragment (or the
    tombstone), and metadata only when no data is left that it could belong to. How many. Blocks.

    A fragment that is not durable and was written within the commit window stays: its commit may be on the way here.
    """

    def remove(directory: str, was: FileSet) -> bool:
        files = parse_names(os.listdir(directory), directory, rules.fragments)
        fragment = was.data.fragment if was.data else None
        chosen = select(resolve(files, stores_fragments=True), part, fragment)
        if chosen is None or state_of(chosen) != state_of(was) or _name(chosen) != _name(was):
            return False
        path = f"{directory}/{_name(was)}"
        if part is Part.WAITING and now - os.stat(path).st_mtime < rules.commit_window_s:
            return False
        fs.remove_file(path)
        if was.data is not None:
            fs.remove_file(f"{directory}/{attrs_name(was.data.timestamp, fragment)}")
            if not any(file.kind == DATA and file.name != was.data.name for file in files):
                for file in files:
                    if file.kind in (META, DURABLE):
                        fs.remove_file(f"{directory}/{file.name}")
        return True

    return _remove_each(partition_path, proven, remove)


def _remove_each(partition_path: str, proven: Mapping[str, FileSet], remove: Callable[[str, FileSet], bool]) -> int:
    """Have each hash directory emptied, noted before and under the writers' lock: what a kill or a failing disk leaves is
    looked at anew.
    """
    removed = 0
    suffixes = set()
    try:
        for name_hash, was in proven.items():
            suffix = name_hash[-3:]
            directory = f"{partition_path}/{suffix}/{name_hash}"
            try:
                with hashes.changing(partition_path, suffix):
                    if not remove(directory, was):
                        continue
                    fs.remove_directory(directory)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except StorageError as error:
                log.warning("%s: the others stay for now: %s", directory, error)
                break  # else each waits for a lock that somebody holds
            removed += 1
            suffixes.add(suffix)
    finally:
        for suffix in suffixes:
            try:
                fs.remove_directory(f"{partition_path}/{suffix}")
            except OSError as error:
                log.warning("%s/%s: %s", partition_path, suffix, error)
    return removed


def _name(found: FileSet) -> str:
    chosen = found.data or found.tombstone
    return chosen.name if chosen else ""


def state_of(found: FileSet) -> tuple[object, ...]:
    """What of a file set another device must hold, too."""
    return (found.data and found.data.timestamp, found.tombstone and found.tombstone.timestamp,
            found.meta and found.meta.timestamp, found.ctype and found.ctype.ctype_timestamp)  # fmt: skip


_OWN_FILES = frozenset({"hashes.pkl", "hashes.invalid", ".lock", ".lock-replication"})


def remove_partition(partition_path: str) -> bool:
    """Remove a partition that holds no objects; whether it is gone. Blocks. Call it with the replication lock held.

    A writer that comes meanwhile makes its directories anew, or finds that they stay.
    """
    try:
        with lock_directory(partition_path, 1.0):
            left = os.listdir(partition_path)
            for name in left:
                if is_suffix(name):
                    fs.remove_directory(f"{partition_path}/{name}")
            left = os.listdir(partition_path)
            if not _OWN_FILES.issuperset(left) and not all(name in _OWN_FILES or is_temporary(name) for name in left):
                return False
            for name in left:
                fs.remove_file(f"{partition_path}/{name}")
            return fs.remove_directory(partition_path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except StorageError:
        return False
