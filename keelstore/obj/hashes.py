"""Suffix hashes: what a partition holds, in a form that two nodes can compare (``spec: on-disk 4``).

``hashes.pkl`` in the partition directory is a pickle, protocol 2, of ``{suffix: hash}`` with ``valid`` and
``updated``; a hash is a hex MD5 (replicated), or a dict of fragment index (or None) to hex MD5. ``hashes.invalid`` is
its journal: a line for each suffix that changed since, appended under the partition's lock.

Who changes something appends the line and makes the change while it holds the lock (:func:`changing`), so that a reader
finds both or neither. With the line after the change, a kill between them, and with the line before it and no lock, a
reader between them, would leave a hash that no longer holds, and that nobody would ever look at again.

The line itself is not synced. But the first line of an empty journal is, and before it one that names the start of the
machine (``#boot ID``, which Swift passes over). After a power failure the journal of each partition that had changes is
still there, some of its lines may be gone, and it names another start than the present one: then everything in the
partition is computed. Taking lines away is safe, too: hashes.pkl is on disk before the journal is emptied.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from functools import lru_cache
from hashlib import md5
from typing import Any

from keelstore.common import fs, plainpickle
from keelstore.common.errors import DeviceFull, StorageError
from keelstore.common.locks import lock_directory
from keelstore.obj.fileset import FileSet
from keelstore.obj.hashdir import DAMAGED_DIRECTORY, Rules, clean
from keelstore.obj.layout import HASHES_FILE, INVALIDATIONS_FILE, SUFFIXES, is_hash, is_suffix

log = logging.getLogger("keelstore.obj")

SuffixHash = str | dict[int | None, str] | None
_BOOT = b"#boot "
_KEYS = SUFFIXES | {"valid", "updated"}
MAX_ATTEMPTS = 5  # to write hashes.pkl while others change it; after that the result is used, not kept


def encode(hashes: dict[str, Any]) -> bytes:
    return plainpickle.dumps(hashes, 2)


def decode(data: bytes | None) -> dict[str, Any]:
    """The hashes of a file's content; ``{"valid": False}`` for anything that is not in order."""
    if data is None:
        return {"valid": False}
    try:
        hashes = plainpickle.loads(data)
    except ValueError:
        return {"valid": False}
    if type(hashes) is not dict or not hashes.keys() <= _KEYS:
        return {"valid": False}
    hashes.setdefault("valid", True)
    hashes.setdefault("updated", -1)
    return hashes


class changing:  # noqa: N801 - reads as a statement: with changing(path, suffix):
    """Around a change of what a suffix holds; hold it no longer than that. Raises LockTimeout, FileNotFoundError when the
    partition is gone, OSError.

    Without room for the note all that is known goes: the next who asks computes everything.

    ``before`` and ``after``: the size of the journal before and with the note, -1 and 0 where that is not known.
    """
    __slots__ = ("_lock", "_partition_path", "_suffix", "after", "before")

    def __init__(self, partition_path: str, suffix: str, timeout_s: float = 10.0):
        self._partition_path, self._suffix = partition_path, suffix
        self.before, self.after = -1, 0
        self._lock = lock_directory(partition_path, timeout_s)

    def __enter__(self) -> None:
        fs.carry_out(self.entering())

    def entering(self) -> fs.Steps:
        """To enter it, for :func:`fs.linking`."""
        if not self._lock.take():
            yield ()
            self._lock.__enter__()
        path = self._partition_path
        try:
            try:
                line, head = _line(self._suffix), _head(fs.boot_id())
                self.before = before = yield from fs.appending(f"{path}/{INVALIDATIONS_FILE}", line, head)
                self.after = before + len(line) if before else len(head) + len(line)
            except DeviceFull:
                if fs.remove_file(f"{path}/{HASHES_FILE}"):
                    yield from fs.syncing_directories((path,))
        except BaseException:
            self._lock.__exit__()
            raise

    def __exit__(self, *args: object) -> None:
        self._lock.__exit__()


def _line(suffix: str) -> bytes:
    return suffix.encode("ascii") + b"\n"


@lru_cache(maxsize=4)
def _head(boot_id: str) -> bytes:
    """The first line of a journal."""
    return b"%s%s\n" % (_BOOT, boot_id.encode("ascii"))


def invalidate(partition_path: str, suffix: str, timeout_s: float = 10.0) -> None:
    """Have a suffix computed anew. Nothing to do when the partition is gone. Raises LockTimeout, OSError."""
    try:
        with changing(partition_path, suffix, timeout_s):
            pass
    except FileNotFoundError:
        pass


def read_hashes(partition_path: str) -> dict[str, Any]:
    """hashes.pkl as it is."""
    try:
        return decode(fs.read_file(f"{partition_path}/{HASHES_FILE}"))
    except (OSError, ValueError):
        return {"valid": False}


def write_hashes(partition_path: str, hashes: dict[str, Any], now: float, is_durable: bool = False) -> None:
    hashes.setdefault("valid", False)
    hashes["updated"] = now
    fs.replace_file(f"{partition_path}/{HASHES_FILE}", encode(hashes), is_durable=is_durable)


def consolidate(partition_path: str, now: float) -> dict[str, Any]:
    """Move the journal into hashes.pkl, and give that. Raises LockTimeout, FileNotFoundError, OSError."""
    journal = f"{partition_path}/{INVALIDATIONS_FILE}"
    with lock_directory(partition_path):
        hashes = read_hashes(partition_path)
        lines = fs.read_file(journal)
        if lines:
            boots = {line for line in lines.split(b"\n") if line.startswith(_BOOT)}
            changed = {line for line in lines.decode("latin-1").split("\n") if is_suffix(line)}
            if boots - {_BOOT + fs.boot_id().encode("ascii")}:
                hashes = {"valid": False}
            if changed or not hashes["valid"]:
                hashes.update(dict.fromkeys(changed))
                write_hashes(partition_path, hashes, now, is_durable=True)
            fs.truncate(journal)
        return hashes


def get_hashes(
    partition_path: str,
    rules: Rules,
    now: float,
    quarantine: Callable[[str], object],
    recalculate: Iterable[str] = (),
    do_listdir: bool = False,
) -> tuple[int, dict[str, SuffixHash]]:
    """How many suffixes were computed, and all hashes of a partition; empty when it does not exist.

    ``quarantine`` is told of hash directories that cannot be listed. Blocks: call it on a disk thread.
    """
    recalculate = tuple(recalculate)
    computed = 0
    try:
        for _ in range(MAX_ATTEMPTS):
            before = consolidate(partition_path, now)
            hashes = dict(before)
            if not hashes.get("valid"):
                hashes, do_listdir = {"valid": True}, True
            if do_listdir:
                for name in os.listdir(partition_path):
                    if is_suffix(name):
                        hashes.setdefault(name, None)
            hashes.update(dict.fromkeys(suffix for suffix in recalculate if is_suffix(suffix)))
            changed = False
            for suffix in [key for key, value in hashes.items() if not value and is_suffix(key)]:
                computed += 1
                try:
                    value = hash_suffix(f"{partition_path}/{suffix}", rules, now, quarantine)
                except (FileNotFoundError, NotADirectoryError):
                    value = None
                    del hashes[suffix]
                except (OSError, StorageError) as error:
                    log.error("cannot compute the hash of %s/%s: %s", partition_path, suffix, error)
                    continue
                else:
                    hashes[suffix] = value
                changed = True
            if not changed and before.get("valid"):
                break
            with lock_directory(partition_path):
                now_there = read_hashes(partition_path)
                if now_there == before:
                    write_hashes(partition_path, dict(hashes), now)
                    break
    except FileNotFoundError:
        return computed, {}
    hashes.pop("valid", None)
    hashes.pop("updated", None)
    return computed, hashes


def hash_suffix(path: str, rules: Rules, now: float, quarantine: Callable[[str], object]) -> SuffixHash:
    """The hash of one suffix directory, cleaning it on the way. Raises FileNotFoundError when it is gone or was empty,
    NotADirectoryError, OSError.
    """
    sums: dict[int | None, Any] = {}
    for name in sorted(os.listdir(path)):
        if not is_hash(name):
            continue
        directory = f"{path}/{name}"
        try:
            found = clean(directory, rules, now)
        except FileNotFoundError:
            continue
        except NotADirectoryError:
            quarantine(directory)
            continue
        except OSError as error:
            if error.errno in DAMAGED_DIRECTORY:
                quarantine(directory)
                continue
            raise
        for index, text in summary(found, rules.fragments > 0):
            known = sums.get(index)
            if known is None:
                known = sums[index] = md5(usedforsecurity=False)
            known.update(text.encode("ascii"))
    if not sums and fs.remove_directory(path):
        raise FileNotFoundError(path)
    if rules.fragments:
        return {index: known.hexdigest() for index, known in sums.items()}
    return sums[None].hexdigest() if sums else md5(usedforsecurity=False).hexdigest()


def summary(found: FileSet, stores_fragments: bool) -> list[tuple[int | None, str]]:
    """What each hash (None, or that of a fragment index) takes in from one hash directory, in order."""
    parts: list[tuple[int | None, str]] = []
    if found.meta:
        parts.append((None, f"{found.meta.timestamp.internal}.meta"))
    if found.tombstone:
        parts.append((None, f"{found.tombstone.timestamp.internal}.ts"))
    if stores_fragments:
        for stamp, members in found.fragments.items():
            parts.extend((file.fragment, stamp.internal) for file in members)
        if found.durable is not None:
            parts.append((None, f"{found.durable.internal}.durable"))
    elif found.data:
        parts.append((None, f"{found.data.timestamp.internal}.data"))
    if found.ctype and found.ctype.ctype_timestamp is not None:
        parts.append((None, f"{found.ctype.ctype_timestamp.internal}_ctype"))
    return parts
