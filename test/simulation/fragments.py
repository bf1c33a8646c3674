"""What goes wrong with fragments: some are lost, and of some nodes no one knows any more that the object is durable.

Only what the kernel has written back is touched, and never so much of an object that too few fragments are left to read it.
A file that goes takes the suffix hashes of its partition along, as a quarantine would make them anew.
"""

from __future__ import annotations

import os
import random
from typing import NamedTuple

from keelstore.obj import layout
from test.simulation import disks, worldtime
from test.simulation.cluster import SimCluster

OLD_S = disks.WRITTEN_BACK_S + 10.0


class Archive(NamedTuple):
    """A fragment archive: its path, its parsed name, its hash directory's name."""

    path: str
    file: layout.StoredFile
    digest: str


def archives(cluster: SimCluster, fragments: int) -> dict[tuple[str, str], list[Archive]]:
    """Those that are written back, of each hash and time stamp."""
    found: dict[tuple[str, str], list[Archive]] = {}
    old_ns = worldtime.stamp_ns() - int(OLD_S * 1e9)
    for node in cluster.nodes:
        for device in node.device_names:
            for directory, _, names in os.walk(f"{node.devices}/{device}/objects"):
                for name in names:
                    file = layout.parse_name(name, fragments)
                    path = f"{directory}/{name}"
                    if file is not None and file.kind == layout.DATA and os.stat(path).st_mtime_ns < old_ns:
                        digest = directory.rpartition("/")[2]
                        found.setdefault((digest, file.timestamp.internal), []).append(Archive(path, file, digest))
    return found


def spare(cluster: SimCluster, chance: random.Random, rotten: set[str], needed: int, fragments: int) -> list[list[str]]:
    """Of each object that has more whole fragments than are needed, paths of as many as can be spared."""
    found = []
    for _key, group in sorted(archives(cluster, fragments).items()):
        whole = sorted(one.path for one in group if one.path not in rotten)
        count = len({one.file.fragment for one in group if one.path in whole}) - needed
        if count > 0:
            found.append(chance.sample(whole, count))
    return found


def lose(cluster: SimCluster, chance: random.Random, rotten: set[str], needed: int, fragments: int) -> list[str]:
    """One or two fragments of an object go; the paths."""
    choices = spare(cluster, chance, rotten, needed, fragments)
    if not choices:
        return []
    gone = chance.choice(choices)[: chance.randint(1, 2)]
    for path in gone:
        disks.real.unlink(path)
        _forget_hashes(path)
    return gone


def forget_commits(cluster: SimCluster, chance: random.Random, fragments: int) -> list[str]:
    """Up to three nodes no longer know that an object is durable, others do; the paths."""
    choices = []
    for key, group in sorted(archives(cluster, fragments).items()):
        durable = sorted(one for one in group if one.file.is_durable)
        if len(durable) > 3:
            choices.append((key, durable))
    if not choices:
        return []
    _key, durable = chance.choice(choices)
    changed = chance.sample(durable, chance.randint(1, min(3, len(durable) - 2)))
    for one in changed:
        name = layout.data_name(one.file.timestamp, one.file.fragment, False)
        disks.real.rename(one.path, f"{os.path.dirname(one.path)}/{name}")
        _forget_hashes(one.path)
    return [one.path for one in changed]


def _forget_hashes(path: str) -> None:
    partition = path.rsplit("/", 3)[0]
    for name in (layout.HASHES_FILE, layout.INVALIDATIONS_FILE):
        try:
            disks.real.unlink(f"{partition}/{name}")
        except FileNotFoundError:
            pass
