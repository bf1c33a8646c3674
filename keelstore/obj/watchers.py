"""Watchers of the object auditor: they see every object that it found well, and may have it quarantined or deleted.

A watcher is configured by a section ``[object-auditor:watcher:NAME]`` and named in ``watchers``. NAME is ``dark_data``
(here), or ``package#point``: an entry point of group ``swift.object_audit_watcher``, a class that is made with ``(conf,
logger)`` and has ``start(audit_type)``, ``see_object(object_metadata, data_file_path)`` and ``end()``. One that fails is
logged; the audit goes on.
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from keelstore.common.errors import BackendError, ConfigError, KeelstoreError
from keelstore.common.headers import Headers
from keelstore.common.http import encode_query
from keelstore.common.names import HashPath
from keelstore.common.options import not_negative, one_of, option, parse, positive
from keelstore.common.ring.ring import Ring, RingFile
from keelstore.common.timestamp import Timestamp
from keelstore.obj import layout

GROUP = "swift.object_audit_watcher"
MAX_DEPTH = 4  # shards below shards that are followed
MAX_ANSWER = 1 << 20


class QuarantineRequest(KeelstoreError):
    """Raised by a watcher: put this object aside."""


class DeleteRequest(KeelstoreError):
    """Raised by a watcher: remove this object's data file."""


class Watcher(Protocol):
    def start(self, audit_type: str) -> None: ...

    def see_object(self, object_metadata: dict[str, str], data_file_path: str) -> None: ...

    def end(self) -> None: ...


@dataclass(frozen=True)
class DarkDataOptions:
    """Options of ``[object-auditor:watcher:dark_data]``."""

    action: str = option("log", "What becomes of an object that no container knows: log, delete or quarantine.",
                         check=one_of("log", "delete", "quarantine"))
    grace_age: float = option(604800.0, "Seconds after which an object must be in its listing.", check=not_negative)
    node_timeout: float = option(10.0, "Seconds to wait for an answer of a container server.", check=positive)


class DarkData:
    """Finds objects that are in no listing: left over from a crash, or come back after their tombstones were reclaimed.

    An object is dark when it is older than ``grace_age`` and *every* primary of its container answered that it has no row
    of it; one that does not answer, or a shard that cannot be asked, makes it undecided.
    """

    def __init__(self, options: DarkDataOptions, backend: Any, ring: RingFile, hash_path: HashPath, logger: logging.Logger,
                 clock: Callable[[], float]):
        self.options, self._backend, self._ring, self._hash_path = options, backend, ring, hash_path
        self._log, self._clock = logger, clock
        self._is_quick = False
        self.ok = self.dark = self.unknown = 0

    def start(self, audit_type: str) -> None:
        self._is_quick = audit_type == "ZBF"
        if not self._is_quick:
            self.ok = self.dark = self.unknown = 0

    def end(self) -> None:
        if not self._is_quick:
            self._log.info("dark data: ok %d, dark %d, unknown %d", self.ok, self.dark, self.unknown)

    def see_object(self, object_metadata: dict[str, str], data_file_path: str) -> None:
        if self._is_quick:
            return
        age = self._clock() - float(Timestamp(object_metadata.get("X-Timestamp", "0")))
        if age < self.options.grace_age:
            return
        name = object_metadata.get("name", "")
        parts = name[1:].split("/", 2)
        policy = policy_of(data_file_path)
        if len(parts) < 3 or policy is None:
            return
        try:
            is_known = self._is_listed(parts[0], parts[1], parts[2], policy, 0)
        except (BackendError, ValueError) as error:
            self._log.debug("dark data: %s cannot be decided: %s", name, error)
            self.unknown += 1
            return
        if is_known:
            self.ok += 1
            return
        self.dark += 1
        self._log.info("dark data: %s (%s)", name, data_file_path)
        if self.options.action == "quarantine":
            raise QuarantineRequest("no container knows it")
        if self.options.action == "delete":
            raise DeleteRequest()

    def _is_listed(self, account: str, container: str, obj: str, policy: int, depth: int) -> bool:
        """Whether any primary has a row of the object. Raises BackendError or ValueError when one gives no clear answer."""
        if depth > MAX_DEPTH:
            raise ValueError("too many shards below shards")
        ring: Ring = self._ring.current()
        part = ring.get_part(self._hash_path, account, container)
        shards: set[tuple[str, str]] = set()
        for node in ring.primaries(part):
            found = self._ask(node, f"/{node.device}/{part}/{account}/{container}", obj, policy)
            if isinstance(found, bool):
                if found:
                    return True
            else:
                shards.update(found)
        return any(self._is_listed(*shard, obj, policy, depth + 1) for shard in sorted(shards))

    def _ask(self, node: Any, path: str, obj: str, policy: int) -> bool | list[tuple[str, str]]:
        """One container server: has it a row, or which shards have it?"""
        headers = Headers({"X-Backend-Record-Type": "auto", "X-Backend-Allow-Reserved-Names": "true",
                           "X-Backend-Storage-Policy-Index": str(policy)})
        query = encode_query({"format": "json", "prefix": obj, "limit": "1", "includes": obj, "states": "updating"})
        answer = self._backend.call(node.replication_address, "GET", path, headers, query,
                                    timeout_s=self.options.node_timeout)
        body = answer.read(MAX_ANSWER)
        if answer.status == 404:
            return False
        if not answer.is_success:
            raise ValueError(f"{node.key} answered {answer.status}")
        rows = json.loads(body) if body else []
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise ValueError(f"{node.key} gave no listing")
        if answer.headers.get("X-Backend-Record-Type") != "shard":
            return any(row.get("name") == obj for row in rows)
        found = []
        for row in rows:
            account, _, container = str(row.get("name", "")).partition("/")
            if not account or not container:
                raise ValueError(f"{node.key} gave no shard")
            found.append((account, container))
        return found


def policy_of(data_file_path: str) -> int | None:
    """The policy in whose directory a data file lies."""
    parts = data_file_path.rsplit("/", 5)
    if len(parts) < 6:
        return None
    datadir = parts[1]
    if datadir == layout.objects_dir(0):
        return 0
    base, _, index = datadir.rpartition("-")
    return int(index) if base == "objects" and index.isdecimal() else None


def make_watchers(names: tuple[str, ...], section_of: Callable[[str], Mapping[str, str]],
                  dark: Callable[[DarkDataOptions], Watcher], logger: logging.Logger) -> list[Watcher]:
    """The watchers of option ``watchers``; ``section_of(name)`` gives a watcher's options. Raises ConfigError."""
    found: list[Watcher] = []
    for name in names:
        conf = section_of(name)
        package, _, point = name.rpartition("#")
        if point == "dark_data" and package in ("", "swift", "keelstore"):
            found.append(dark(parse(DarkDataOptions, conf, section=f"object-auditor:watcher:{name}")))
            continue
        entries = [entry for entry in importlib.metadata.entry_points(group=GROUP)
                   if entry.name == point and (not package or (entry.dist and entry.dist.name == package))]
        if not entries:
            raise ConfigError(f"expected dark_data, or package#name of an entry point of group {GROUP}",
                              section="object-auditor", option="watchers", value=name)
        found.append(entries[0].load()(dict(conf), logger))
    return found
