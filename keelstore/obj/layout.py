"""Grammar of object paths and file names (``spec: on-disk 1, 3.1``; ours: ``doc/formats/objects.md``).

An object lives in ``<device>/objects[-N]/<partition>/<suffix>/<hash>/``. Names of the files in that hash directory:

==========  ==========================================  ========================================================
kind        replicated                                  erasure coded
==========  ==========================================  ========================================================
data        ``<ts>.data``                               ``<ts>#<index>.data``, durable ``<ts>#<index>#d.data``
metadata    ``<ts>.meta``, or ``<short ts>±<hex delta>.meta`` with the time of the content type     (same)
tombstone   ``<ts>.ts``                                 same
durable                                                 ``<ts>.durable``: legacy, makes that time's fragments durable
attributes  ``.attrs-<ts>``                             ``.attrs-<ts>#<index>``
==========  ==========================================  ========================================================

``<ts>`` is the internal form of a timestamp. Attributes files are keelstore's: metadata of the data file of the same
time and index that did not fit into its extended attributes. Their names are none that Swift can parse, so it leaves
them alone (one that began with a timestamp it would remove as obsolete), and sort before that of the data, so that
rsync brings them first.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

from keelstore.common.policy import ErasureCodingPolicy, Policy, datadir
from keelstore.common.timestamp import Timestamp, decode_timestamps, encode_timestamps

DATA: Final = ".data"
META: Final = ".meta"
TOMBSTONE: Final = ".ts"
DURABLE: Final = ".durable"
ATTRS: Final = ".attrs-"

HASHES_FILE: Final = "hashes.pkl"
INVALIDATIONS_FILE: Final = "hashes.invalid"

SUFFIXES: Final = frozenset(f"{number:03x}" for number in range(4096))  # all names of suffix directories that there can be
_HASH = re.compile(r"[0-9a-f]{32}")
_TEMPORARY = re.compile(r"\..*\.[A-Za-z0-9_]{6}")


class StoredFile(NamedTuple):
    """One parsed file name. ``fragment`` is None but for fragments, ``is_durable`` false only for those without #d."""

    name: str
    kind: str
    timestamp: Timestamp
    ctype_timestamp: Timestamp | None = None
    fragment: int | None = None
    is_durable: bool = True


@lru_cache(maxsize=64)  # the copies of an object have it, and who changes one looks more than once
def parse_name(name: str, fragments: int = 0) -> StoredFile | None:
    """The file that ``name`` names, or None when it is not one of ours.

    ``fragments``: how many different ones the policy has, 0 for a replicated policy.
    """
    stem, dot, extension = name.rpartition(".")
    kind = dot + extension
    try:
        if kind == DATA:
            if not fragments:
                return StoredFile(name, DATA, Timestamp(stem))
            stamp, index, durable = _fragment_parts(stem, fragments)
            return StoredFile(name, DATA, stamp, None, index, durable)
        if kind == META:
            stamp, ctype, _ = decode_timestamps(stem, explicit=True)
            return StoredFile(name, META, stamp, ctype)
        if kind == TOMBSTONE:
            return StoredFile(name, TOMBSTONE, Timestamp(stem))
        if kind == DURABLE and fragments:
            return StoredFile(name, DURABLE, Timestamp(stem))
        if name.startswith(ATTRS):
            stem = name[len(ATTRS) :]
            if not fragments:
                return StoredFile(name, ATTRS, Timestamp(stem))
            stamp, index, _ = _fragment_parts(stem, fragments)
            return StoredFile(name, ATTRS, stamp, None, index)
    except ValueError:
        return None
    return None


def _fragment_parts(stem: str, fragments: int) -> tuple[Timestamp, int, bool]:
    parts = stem.split("#")
    if len(parts) < 2 or not (parts[1].isascii() and parts[1].isdigit()) or len(parts[1]) > 9:
        raise ValueError(f"no fragment index: {stem!r}")
    index = int(parts[1])
    if index >= fragments:
        raise ValueError(f"fragment index {index} is too large")
    return Timestamp(parts[0]), index, len(parts) > 2 and parts[2] == "d"


def data_name(timestamp: Timestamp, fragment: int | None = None, is_durable: bool = True) -> str:
    """Of a data file; of a fragment when ``fragment`` is given."""
    if fragment is None:
        return f"{timestamp.internal}.data"
    return f"{timestamp.internal}#{fragment}{'#d' if is_durable else ''}.data"


def meta_name(timestamp: Timestamp, ctype_timestamp: Timestamp | None = None) -> str:
    """Of a metadata file, with the time of its content type if it holds one."""
    if ctype_timestamp is None:
        return f"{timestamp.internal}.meta"
    return f"{encode_timestamps(timestamp, ctype_timestamp, explicit=True)}.meta"


def tombstone_name(timestamp: Timestamp) -> str:
    return f"{timestamp.internal}.ts"


def attrs_name(timestamp: Timestamp, fragment: int | None = None) -> str:
    """Of the attributes file that belongs to a data file."""
    if fragment is None:
        return f".attrs-{timestamp.internal}"
    return f".attrs-{timestamp.internal}#{fragment}"


def is_temporary(name: str) -> bool:
    """Whether an interrupted rsync (or we, in its manner) left this name."""
    return _TEMPORARY.fullmatch(name) is not None


def is_suffix(name: str) -> bool:
    return name in SUFFIXES


def is_hash(name: str) -> bool:
    return _HASH.fullmatch(name) is not None


def fragment_count(policy: Policy) -> int:
    """What :func:`parse_name` wants to know of a policy."""
    return policy.fragments if isinstance(policy, ErasureCodingPolicy) else 0


def objects_dir(policy_index: int) -> str:
    return datadir("objects", policy_index)


def async_dir(policy_index: int) -> str:
    return datadir("async_pending", policy_index)


def tmp_dir(policy_index: int) -> str:
    return datadir("tmp", policy_index)


def quarantine_dir(device_path: str, data_directory: str) -> str:
    """Where hash directories of ``objects[-N]`` go when something in them is wrong."""
    return f"{device_path}/quarantined/{data_directory}"


def hash_path(device_path: str, data_directory: str, partition: str | int, name_hash: str) -> str:
    """The hash directory of an object."""
    return f"{device_path}/{data_directory}/{partition}/{name_hash[-3:]}/{name_hash}"


def async_name(name_hash: str, timestamp: Timestamp) -> str:
    """Of a pending container update, below ``async_pending[-N]``."""
    return f"{name_hash[-3:]}/{name_hash}-{timestamp.internal}"
