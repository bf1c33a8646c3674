"""Relinker: gives objects their places for another part power, and takes the old ones away (``relink_plan`` decides).

What a crash leaves, between any two steps, the next run finds and finishes:

1. links are made. Each object is readable through its old place, and through the new one once its links are there;
2. the suffixes concerned are noted as changed: always, as a run that was killed may not have come to it;
3. the device is synced: one call for thousands of links, where a sync of each new directory would wait each time;
4. cleanup only: now that the new names are on disk, the old ones go;
5. hashes are computed, and the state is saved: at once by relink; by cleanup after the next sync, that of the next partition
   or the one at the end, so that nothing that the state calls done can come back.

A partition with an error stays to be done, and no old name goes whose link could not be made. Servers write meanwhile: they
link by themselves what they write (``writer``), and the newest wins wherever both did something. All functions block.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from keelstore.common import fs
from keelstore.common.daemon_frame import ALL, Selection
from keelstore.common.device_walk import hash_directories, partitions
from keelstore.common.devices import check_device, is_device_name
from keelstore.common.errors import DeviceUnavailable, StorageError
from keelstore.common.locks import lock_directory
from keelstore.common.policy import Policy
from keelstore.common.work import RateLimit
from keelstore.obj import hashes, layout
from keelstore.obj.options import ObjectRelinkerOptions
from keelstore.obj.relink_hashdir import Leaving, Log, Places
from keelstore.obj.relink_plan import CLEANUP, Powers, State, new_partition
from keelstore.obj.relink_report import PolicyProgress, Report
from keelstore.obj.relink_state import StateFile
from keelstore.obj.store import ObjectStore

BATCH: Final = 10_000  # hash directories whose old names go together, after one sync
_PARTITION_FILES: Final = (layout.HASHES_FILE, layout.INVALIDATIONS_FILE, ".lock", ".lock-replication")


class Change(NamedTuple):
    """A policy whose part power is being changed."""

    policy: Policy
    powers: Powers


class Relinker:
    """A step, for the devices that a process is given. ``only``: what the command line restricts it to."""

    def __init__(self, step: str, changes: Sequence[Change], options: ObjectRelinkerOptions, store: ObjectStore,
                 report: Report, log: Log, only: Selection = ALL, wait: Callable[[float], None] = time.sleep):
        self.step, self.options, self.store, self.report, self.log = step, options, store, report, log
        self.only, self.wait, self.pace = only, wait, RateLimit(options.files_per_second)
        self._changes = changes

    def run(self, devices: Iterable[str]) -> int:
        """Everything once; gives the number of errors."""
        unusable = 0
        for name in devices:
            try:
                path = self._check(name)
            except DeviceUnavailable:
                self.log.error("device %s is not mounted, or cannot be used", name)
                unusable += 1
                continue
            for change in self._changes:
                index = change.policy.index
                progress = self.report.begin(name, index, change.policy.name, self.step, change.powers)
                self.log.info("Processing files for policy %s under %s", change.policy.name, path)
                try:
                    PolicyOnDevice(self, name, path, change, progress).run()
                except (OSError, StorageError) as error:
                    progress.stats.errors += 1
                    self.log.error("device %s, policy %s: %s", name, change.policy.name, error)
                self.report.tell(name, index, is_last=True)
        return self.report.summary(unusable)

    def plan(self, devices: Iterable[str]) -> Iterator[str]:
        """What :meth:`run` would work on, a line for each device and policy. Changes nothing."""
        for name in devices:
            try:
                path = self._check(name)
                for change in self._changes:
                    datadir = layout.objects_dir(change.policy.index)
                    state = StateFile(path, datadir).load(change.powers)
                    state.adopt(partitions(path, datadir), self.step)
                    to_do = [str(partition) for partition in state.to_do() if self.only.has_partition(partition)]
                    yield f"{name}, policy {change.policy.name}: {self.step} {len(to_do)} partitions: {' '.join(to_do)}"
            except (DeviceUnavailable, OSError) as error:
                yield f"{name}: cannot be used ({error})"

    def _check(self, name: str) -> str:
        return check_device(self.options.devices, name, self.options.mount_check)


class PolicyOnDevice:
    """A step for one policy on one device."""

    def __init__(self, relinker: Relinker, device: str, path: str, change: Change, progress: PolicyProgress):
        self._own, self.path, self.powers, self.policy = relinker, path, change.powers, change.policy.index
        self._device, self._progress, self._stats = device, progress, progress.stats
        self._datadir = layout.objects_dir(self.policy)
        self._is_cleanup = relinker.step == CLEANUP
        self._file, self._state = StateFile(path, self._datadir), State(change.powers)
        self._finished: list[int] = []  # partitions in which all is done, maybe not on disk yet
        self._is_unsynced = False  # old names went since the last sync
        self._rules = relinker.store.rules(layout.fragment_count(change.policy))
        self._places = Places(path, relinker.step, self._rules, relinker.options.clobber_hardlink_collisions,
                              progress.stats, relinker.log, relinker.store.clock, self._quarantine)
        # until the old place of an object is gone, a tombstone in the new one counts, however old; then Places removes it
        self._hash_rules = replace(self._rules, reclaim_age_s=math.inf) if self._is_cleanup else self._rules

    def run(self) -> None:
        """Raises StorageError, OSError: the device as a whole cannot be worked on."""
        if not os.path.isdir(f"{self.path}/{self._datadir}"):
            return
        progress = self._progress
        with self._file.locked():
            state = self._state = self._file.take(self.powers)
            self._is_unsynced = self._is_cleanup  # a run that was killed may have removed names just before
            state.adopt(partitions(self.path, self._datadir), self._own.step)
            progress.total_parts, progress.parts_done = len(state.done), state.count_done
            self._own.report.tell(self._device, self.policy)
            for number in state.to_do():
                if self._own.only.has_partition(number):
                    before = self._stats.errors
                    self._try(number)
                    if self._stats.errors == before:
                        self._finished.append(number)
                    if not self._is_unsynced:
                        self._save_finished()
                    self._own.report.tell(self._device, self.policy)
            if self._is_unsynced:
                self._sync()
                self._own.report.tell(self._device, self.policy)

    def _sync(self) -> None:
        fs.sync_device(self.path)
        self._is_unsynced = False
        self._save_finished()

    def _save_finished(self) -> None:
        """The partitions that all was done in, on disk, too, are done."""
        if self._finished:
            self._state.done.update(dict.fromkeys(self._finished, True))
            self._file.save(self._state)
            self._progress.parts_done += len(self._finished)
            self._finished.clear()

    def _try(self, number: int) -> None:
        try:
            self.partition(number)
        except (OSError, StorageError) as error:
            self._stats.errors += 1
            self._own.log.error("%s: %s", self._partition_path(number), error)

    def _partition_path(self, number: int) -> str:
        return f"{self.path}/{self._datadir}/{number}"

    # -- a partition ---------------------------------------------------------------------------------------------------

    def partition(self, number: int) -> None:
        """Raises StorageError, OSError: then it is not done."""
        path = self._partition_path(number)
        leaving: list[Leaving] = []
        concerned: dict[int, set[str]] = {}  # new partitions, and the suffixes that may have got something
        suffixes: set[str] = set()  # of this partition
        for directory in hash_directories(path):
            name_hash = directory[-32:]
            target = new_partition(name_hash, self.powers.next_part_power)
            if target == number:
                continue
            self._keep_pace()
            linked = self._places.link(directory, layout.hash_path(self.path, self._datadir, target, name_hash))
            concerned.setdefault(target, set()).add(name_hash[-3:])
            suffixes.add(name_hash[-3:])
            if self._is_cleanup and linked is not None:
                leaving.append(linked)
                if len(leaving) >= BATCH:
                    self._settle(number, concerned, suffixes, leaving)
        if concerned:
            self._settle(number, concerned, suffixes, leaving)
        for target in concerned:
            if self._is_cleanup or target >= 1 << self.powers.part_power:
                self._hashes(target, concerned[target])
        if self._is_cleanup:
            if not self._hashes(number, suffixes):
                self._remove_partition(path)

    def _keep_pace(self) -> None:
        delay_s = self._own.pace.delay_s(time.monotonic())
        if delay_s:
            self._own.wait(delay_s)

    def _settle(self, number: int, concerned: dict[int, set[str]], suffixes: set[str], leaving: list[Leaving]) -> None:
        """Steps 2 to 4. What changed is noted before old names go, too: a run that is killed then finds nothing of them."""
        for target, changed in concerned.items():
            self._invalidate(target, changed)
        if leaving:
            self._invalidate(number, suffixes)
        self._sync()
        self._is_unsynced = bool(leaving)
        for one in leaving:
            self._places.remove(one)
        leaving.clear()

    def _invalidate(self, number: int, suffixes: Iterable[str]) -> None:
        for suffix in sorted(suffixes):
            hashes.invalidate(self._partition_path(number), suffix)

    def _hashes(self, number: int, suffixes: Iterable[str]) -> dict[str, hashes.SuffixHash]:
        _, found = hashes.get_hashes(self._partition_path(number), self._hash_rules, self._own.store.clock(),
                                     lambda directory: self._quarantine(directory, "cannot be listed"), suffixes)
        return found

    def _quarantine(self, directory: str, reason: str) -> None:
        self._own.store.quarantine_directory(directory, self.path, self._datadir, reason)

    def _remove_partition(self, path: str) -> None:
        """An empty one. Who waits for its lock finds that it is gone, and begins again."""
        try:
            with lock_directory(path, name="replication"), lock_directory(path):
                if set(os.listdir(path)) <= set(_PARTITION_FILES):
                    for name in _PARTITION_FILES:
                        fs.remove_file(f"{path}/{name}")
                    fs.remove_directory(path)
        except (OSError, StorageError):
            pass  # an empty partition hurts nobody, and a replicator removes it


def devices_in(root: str, wanted: Iterable[str], log: logging.Logger | Log) -> list[str]:
    """The names of the devices to work on: those wanted, else all directories below ``root``, sorted."""
    names = sorted(set(wanted))
    if names:
        return names
    try:
        return sorted(entry.name for entry in os.scandir(root) if is_device_name(entry.name) and entry.is_dir())
    except OSError as error:
        log.error("%s: the devices cannot be listed: %s", root, error.strerror)
        return []
