"""The backlog of the object updater: which container updates wait on the devices of a node, by container. Pure.

An update is a file (``spec: on-disk 5``); what is held of it here is where it is and what it is about. Of several updates of
one object on one device only the newest is held: it mostly says all that the older ones do. The older ones go only where it
does; a POST may be newer than a PUT and be about data that is older (a clock that is off), and then the PUT's waits on the
disk until the POST's is told.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from keelstore.common.timestamp import Timestamp
from keelstore.obj import layout

_NAME: Final = re.compile(r"([0-9a-f]{32})-(\d{10}\.\d{5}(?:_[0-9a-f]{1,16})?)")


_Key = tuple[str, int, str]  # device path, policy, hash: of which one update counts


class Pending(NamedTuple):
    """One file: its device's directory, the policy of its directory, and its name (``<hash>-<timestamp>``)."""

    device_path: str
    policy_index: int
    name: str

    @property
    def path(self) -> str:
        return f"{self.device_path}/{layout.async_dir(self.policy_index)}/{self.name[29:32]}/{self.name}"

    @property
    def device(self) -> str:
        return self.device_path.rpartition("/")[2]

    @property
    def key(self) -> _Key:
        return self.device_path, self.policy_index, self.name[:32]

    @property
    def timestamp(self) -> Timestamp:
        return Timestamp(self.name[33:])


def parse_pending(device_path: str, policy_index: int, suffix: str, name: str) -> Pending | None:
    """None for what is no name of an update in the directory ``suffix``."""
    found = _NAME.fullmatch(name)
    if found is None or found[1][-3:] != suffix:
        return None
    return Pending(device_path, policy_index, name)


class Target(NamedTuple):
    """Where updates are to go: the container or shard that takes them, for the container that they are about."""

    path: str  # account/container
    account: str
    container: str


def target_of(update: dict[str, Any]) -> Target:
    """The target of a decoded update."""
    account, container = update["account"], update["container"]
    return Target(update.get("container_path") or f"{account}/{container}", account, container)


class Backlog:
    """The updates that wait, at most ``size``."""

    def __init__(self, size: int = 50_000):
        self.size = size
        self._by_target: dict[Target, dict[_Key, Pending]] = {}
        self._by_key: dict[_Key, tuple[Pending, Target]] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def __contains__(self, pending: Pending) -> bool:
        found = self._by_key.get(pending.key)
        return found is not None and found[0] == pending

    @property
    def is_full(self) -> bool:
        return len(self._by_key) >= self.size

    def newer_than(self, pending: Pending) -> Pending | None:
        """A newer update of the same object that waits on the same device."""
        found = self._by_key.get(pending.key)
        return found[0] if found is not None and found[0].timestamp > pending.timestamp else None

    def add(self, pending: Pending, target: Target) -> Pending | None:
        """Take an update in, unless a newer one waits; gives the older one whose place it takes."""
        key = pending.key
        have = self._by_key.get(key)
        if have is not None and have[0].timestamp > pending.timestamp:
            return None
        self._by_key[key] = (pending, target)
        if have is not None and have[1] != target:
            self._leave(key, have[1])
        self._by_target.setdefault(target, {})[key] = pending
        return have[0] if have is not None and have[0] != pending else None

    def move(self, pending: Pending, target: Target) -> None:
        """The update is to go elsewhere; nothing to do when it does not wait (any more)."""
        if pending in self:
            self.add(pending, target)

    def remove(self, pending: Pending) -> None:
        if pending in self:
            key = pending.key
            self._leave(key, self._by_key.pop(key)[1])

    def _leave(self, key: _Key, target: Target) -> None:
        waiting = self._by_target.get(target)
        if waiting is not None:
            waiting.pop(key, None)
            if not waiting:
                del self._by_target[target]

    def of(self, target: Target) -> list[Pending]:
        """The updates for a target, oldest first."""
        return sorted(self._by_target.get(target, {}).values(), key=lambda pending: pending.name[33:])

    def where(self, pending: Pending) -> Target | None:
        """The target of an update that waits."""
        found = self._by_key.get(pending.key)
        return found[1] if found is not None and found[0] == pending else None

    def targets(self) -> list[Target]:
        return list(self._by_target)

    def waiting_for(self, target: Target) -> int:
        return len(self._by_target.get(target, ()))

    def counts(self) -> dict[str, int]:
        """How many updates wait on each device."""
        found: dict[str, int] = {}
        for path, _, _ in self._by_key:
            device = path.rpartition("/")[2]
            found[device] = found.get(device, 0) + 1
        return found

    def oldest(self, count: int, device: str | None = None) -> Oldest:
        return oldest_of(((pending, target) for pending, target in self._by_key.values()
                          if device is None or pending.device == device), count)


class Oldest(NamedTuple):
    """The containers whose updates wait longest: how many wait in all, and the first ones with the time of their oldest."""

    containers: int
    entries: list[tuple[Timestamp, str, str]]  # oldest first


def oldest_of(waiting: Iterable[tuple[Pending, Target]], count: int) -> Oldest:
    found: dict[tuple[str, str], str] = {}
    for pending, target in waiting:
        key, stamp = (target.account, target.container), pending.name[33:]
        if key not in found or stamp < found[key]:
            found[key] = stamp
    first = sorted((stamp, *key) for key, stamp in found.items())[:count]
    return Oldest(len(found), [(Timestamp(stamp), account, container) for stamp, account, container in first])
