"""The two places of one object on one device: links from the old one to the new, and the old one's end."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from typing import Final, NamedTuple

from keelstore.common import fs
from keelstore.common.errors import StorageError
from keelstore.obj import layout
from keelstore.obj.hashdir import DAMAGED_DIRECTORY, Rules, clean
from keelstore.obj.relink_plan import CLEANUP, RELINK, HashDirPlan, plan_hash_dir
from keelstore.obj.relink_report import Stats

Log = logging.LoggerAdapter[logging.Logger]

_WELL: Final = 0
_IN_THE_WAY: Final = 1  # another file has the name
_FAILED: Final = 2


class Leaving(NamedTuple):
    """A hash directory whose links are made, and which may go when they are on disk."""

    old: str
    new: str
    plan: HashDirPlan


class Places:
    """What is done to hash directories of one device and policy. ``quarantine`` puts a directory aside, for a reason."""

    def __init__(self, device_path: str, step: str, rules: Rules, clobbers: bool, stats: Stats, log: Log,
                 clock: Callable[[], float], quarantine: Callable[[str, str], object]):
        self._device_path, self._step, self._rules, self._clobbers, self._clock = device_path, step, rules, clobbers, clock
        self._stats, self._log, self._quarantine = stats, log, quarantine

    def _error(self, text: str, *values: object) -> None:
        self._stats.errors += 1
        self._log.error(text, *values)

    # -- links ---------------------------------------------------------------------------------------------------------

    def link(self, old: str, new: str) -> Leaving | None:
        """Give the files of ``old`` names in ``new``, not synced. None: nothing of ``old`` may be removed."""
        try:
            names = os.listdir(old)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno == errno.ENOTDIR or error.errno in DAMAGED_DIRECTORY:
                self._quarantine(old, "cannot be listed")
            else:
                self._error("%s cannot be listed: %s", old, error)
            return None
        self._stats.hash_dirs += 1
        self._stats.files += len(names)
        plan, in_the_way = self._link_all(old, new, names)
        if in_the_way and self._clobbers and self._step == RELINK:
            self._quarantine(new, f"other files than in {old}: {', '.join(in_the_way)}")
            plan, in_the_way = self._link_all(old, new, names)
        if in_the_way and self._clobbers and self._step == CLEANUP:
            self._log.warning("%s of %s go, and the others in %s are kept", ", ".join(in_the_way), old, new)
        elif in_the_way:
            for name in in_the_way:
                self._error("%s/%s cannot be linked: another file has its name in %s", old, name, new)
            return None
        if plan is None:
            return None
        if self._step == RELINK:
            self.remove_twins(new, plan)
            if plan.is_untidy:
                self._clean(new)
                self._clean(old)
        return Leaving(old, new, plan)

    def _link_all(self, old: str, new: str, names: list[str]) -> tuple[HashDirPlan | None, list[str]]:
        """The plan, or None when something failed; and the names that others have."""
        try:
            there = os.listdir(new)
        except FileNotFoundError:
            there = []
        except OSError as error:
            self._error("%s cannot be listed: %s", new, error)
            return None, []
        plan = plan_hash_dir(names, there, self._rules.fragments, self._step)
        if plan.is_untidy and not there:  # else what is here may be what makes things there obsolete, and is linked first
            self._clean(old)
            names = [name for name in names if os.path.lexists(f"{old}/{name}")]
            plan = plan_hash_dir(names, there, self._rules.fragments, self._step)
        results = {name: self._link(f"{old}/{name}", f"{new}/{name}") for name in plan.links}
        in_the_way = [name for name, result in results.items() if result == _IN_THE_WAY]
        return None if _FAILED in results.values() else plan, in_the_way

    def _link(self, source: str, target: str) -> int:
        try:
            if fs.link_existing_unsynced(source, target, self._device_path):
                self._stats.linked += 1
                return _WELL
            own, there = os.stat(source), os.stat(target)
        except FileNotFoundError as error:
            if not os.path.lexists(source):
                return _WELL  # what is newer has made it obsolete meanwhile
            self._error("%s cannot be linked: %s", source, error)
            return _FAILED
        except (OSError, StorageError) as error:
            self._error("%s cannot be linked: %s", source, error)
            return _FAILED
        is_same = (own.st_dev, own.st_ino) == (there.st_dev, there.st_ino)
        return _WELL if is_same or target.endswith(layout.TOMBSTONE) else _IN_THE_WAY

    def _clean(self, directory: str) -> None:
        try:
            clean(directory, self._rules, self._clock())
        except FileNotFoundError:
            pass
        except OSError as error:
            self._error("%s cannot be cleaned: %s", directory, error)

    # -- the end of the old place --------------------------------------------------------------------------------------

    def remove(self, leaving: Leaving) -> None:
        """Its links must be on disk. What a proxy with a ring of before wrote just now stays, and is an error.

        The new place is cleaned last: a tombstone there, however old, counts as long as the old place has what it deleted.
        """
        try:
            for name in leaving.plan.removals:
                self._stats.removed += fs.remove_file(f"{leaving.old}/{name}")
            if fs.remove_directory(leaving.old):
                if leaving.plan.is_untidy:
                    self._clean(leaving.new)
            else:
                self._error("%s is not empty: it was just written to, as by a server with another ring", leaving.old)
        except OSError as error:
            self._error("%s cannot be removed: %s", leaving.old, error)
        self.remove_twins(leaving.new, leaving.plan)

    def remove_twins(self, new: str, plan: HashDirPlan) -> None:
        for name in plan.twins:
            try:
                fs.remove_file(f"{new}/{name}")
            except OSError as error:
                self._error("%s/%s cannot be removed: %s", new, name, error)
