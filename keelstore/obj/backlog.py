"""The backlog of the object updater: which container updates wait on the devices of a node, by container. Pure.

An update is a file (``spec: on-disk 5``); what is held of it here is where it is and what it is about. Of several updates of
one object on one device only the newest counts: an update carries all that is known of its row.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from keelstore.common.timestamp import Timestamp
from keelstore.obj import layout

_NAME: Final = re.compile(r"([0-9a-f]{32})-(\d{10}\.\d{5}(?:_[0-9a-f]{1,16})?)")


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
    def name_hash(self) -> str:
        return self.name[:32]

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


_Key = tuple[str, int, str]  # device path, policy, hash: of which one update counts


class Backlog:
    """The updates that wait, at most ``size``."""

    def __init__(self, size: int = 50_000):
        self.size = size
        self._by_target: dict[Target, dict[_Key, Pending]] = {}
        self._by_key: dict[_Key, tuple[Pending, Target]] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def __contains__(self, pending: Pending) -> bool:
        found = self._by_key.get(_key(pending))
        return found is not None and found[0] == pending

    @property
    def is_full(self) -> bool:
        return len(self._by_key) >= self.size

    def is_outdated(self, pending: Pending) -> bool:
        """Whether a newer update of the same object waits on the same device."""
        found = self._by_key.get(_key(pending))
        return found is not None and found[0].timestamp > pending.timestamp

    def add(self, pending: Pending, target: Target) -> Pending | None:
        """Take an update in; gives the older one that it makes needless, or itself when a newer one waits."""
        key = _key(pending)
        have = self._by_key.get(key)
        if have is not None and have[0].timestamp > pending.timestamp:
            return pending
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
            key = _key(pending)
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
        found = self._by_key.get(_key(pending))
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


def _key(pending: Pending) -> _Key:
    return pending.device_path, pending.policy_index, pending.name[:32]
