"""What every daemon is: a plan, its carrying out, one pass or passes without end, hints, progress, what it leaves for recon.

A daemon is a class with options parsed from its section and with collaborators handed in: a ``World`` (clock, chance, recon
files, statistics), rings, a ``Backend``. It runs in three places and knows nothing of which: alone
(``keelstore-object-updater CONF``, ``node/run_daemon.py``), with all daemons of a node in one process
(``node/background.py``), and step by step in a simulation, which calls ``run_once`` under a clock of its own.

Passes are green threads: what blocks on a disk goes through ``disk_calls.on_disk_thread``. An operator's ``workers`` options
are accepted and count as green threads, since disk calls run on threads of their device anyway.
"""

from __future__ import annotations

import logging
import os
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from keelstore.common import concurrency
from keelstore.common.errors import WaitTimeout
from keelstore.common.options import option, positive
from keelstore.common.recon_cache import ReconCache
from keelstore.common.stats import NO_STATS, NoStats
from keelstore.common.work import DeviceProgress, Progress, for_each

MAX_ASKED = 1000  # wishes of an operator that wait
SHOW_S = 5.0  # how often the progress of a pass that runs is written


@dataclass(frozen=True)
class DaemonOptions:
    """Options that all daemons have."""

    devices: str = option("/srv/node", "Directory that holds the device mount points.")
    mount_check: bool = option(True, "Leave a device alone that is not a mount point.")
    swift_dir: str = option("/etc/swift", "Directory of the cluster file and the rings.")
    recon_cache_path: str = option("/var/cache/swift", "Directory of the recon files.")
    conn_timeout: float = option(0.5, "Seconds to wait for a connection to another node.", check=positive)


@dataclass
class World:
    """What a daemon has of the world, handed in."""

    logger: logging.Logger
    clock: Callable[[], float] = time.time
    random: random.Random = field(default_factory=random.Random)
    recon: ReconCache | None = None
    stats: NoStats = NO_STATS

    def leave(self, name: str, values: dict[str, Any]) -> None:
        """Merge ``values`` into the recon file ``name``."""
        if self.recon is not None:
            self.recon.update(name, values)


@dataclass(frozen=True)
class Selection:
    """What a single pass is to look at; empty: all. From the command line."""

    devices: frozenset[str] = frozenset()
    partitions: frozenset[int] = frozenset()
    policies: frozenset[int] = frozenset()

    def has_device(self, name: str) -> bool:
        return not self.devices or name in self.devices

    def has_partition(self, number: int) -> bool:
        return not self.partitions or number in self.partitions

    def has_policy(self, index: int) -> bool:
        return not self.policies or index in self.policies

    @property
    def is_all(self) -> bool:
        return not (self.devices or self.partitions or self.policies)


ALL = Selection()


class Daemon:
    """Subclasses give ``plan`` and ``carry_out``, and ``after_pass`` for what they leave in recon."""

    name: ClassVar[str] = ""  # of its section, its log lines and its program: object-updater
    starts_at_once: ClassVar[bool] = False  # else the first pass begins at a random moment of the first interval
    hints: ClassVar[frozenset[str]] = frozenset()  # the kinds of ``events`` that it wants
    rest_share: ClassVar[float] = 0.0  # a pass of t seconds is followed by at least this times t of rest

    def __init__(self, world: World, interval_s: float, concurrency_limit: int = 1):
        self.world, self.interval_s, self.concurrency_limit = world, interval_s, concurrency_limit
        self.log = world.logger
        self.progress = Progress()
        self.by_device = DeviceProgress()
        self.passes = 0
        self._is_forever = False  # whether it runs on; hints and retries have somebody to come to only then
        self._wake = concurrency.Event()
        self._asked: deque[Selection] = deque()
        self._shown_at = 0.0

    # -- what a subclass says ------------------------------------------------------------------------------------------

    def plan(self, only: Selection) -> Iterable[Any]:
        """The jobs of one pass, best as an iterator: it is asked for the next when there is a hand free. Changes nothing
        but what is plainly rubbish.
        """
        raise NotImplementedError

    def carry_out(self, job: Any) -> Any:
        """Do one job of the plan. False: it failed; so does an error, which is logged."""
        raise NotImplementedError

    def describe(self, job: Any) -> str:
        """One line for ``--dry-run``."""
        return str(job)

    def before_pass(self, only: Selection) -> None:
        """Called first."""

    def after_pass(self, only: Selection, took_s: float) -> None:
        """Called when all is done."""

    def beside(self) -> Iterable[Callable[[], Any]]:
        """What runs on green threads of its own as long as ``run_forever`` does: workers of a queue, watches."""
        return ()

    def on_hint(self, kind: str, fields: tuple[str, ...]) -> None:
        """A server of this node says that something happened. Must not wait."""

    def figures(self) -> dict[str, Any]:
        """What ``status`` and metrics show beside the progress."""
        return {}

    # -- running -------------------------------------------------------------------------------------------------------

    def run_once(self, only: Selection = ALL) -> None:
        """One whole pass."""
        began = self.world.clock()
        self.progress.begin(began)
        self.by_device.begin(began)
        self.before_pass(only)
        try:
            for_each(self.plan(only), self.one, self.concurrency_limit)
        finally:
            ended = self.world.clock()
            self.progress.end(ended)
            self.passes += 1
        self.by_device.end(ended)
        self.after_pass(only, ended - began)
        self.show(force=True)

    def one(self, job: Any) -> None:
        """Carry out a job, with its count in the progress; never raises what a job raises."""
        try:
            is_well = self.carry_out(job) is not False
        except Exception:
            self.log.exception("%s failed", self.describe(job))
            is_well = False
        now = self.world.clock()
        self.progress.step(now, is_well)
        device = getattr(job, "device", None)  # a name, or a Device
        if device is not None:
            self.by_device.step(device if isinstance(device, str) else str(getattr(device, "name", device)), now)
        self.show()

    def run_forever(self) -> None:
        """Pass after pass, until its green thread or its process ends."""
        self._is_forever = True
        tasks = [concurrency.spawn(function) for function in self.beside()]
        try:
            self._pass_after_pass()
        finally:
            for task in tasks:
                task.kill()

    def _pass_after_pass(self) -> None:
        self.show(force=True)  # that it runs, before its first pass
        if not self.starts_at_once:
            self.rest(self.world.random.random() * self.interval_s)
        due, only = 0.0, ALL
        while True:
            began = time.monotonic()
            is_overdue = began >= due and not only.is_all  # for somebody asks all the time
            only = self._asked.popleft() if self._asked and not is_overdue else ALL
            try:
                self.run_once(only)
            except Exception:
                self.log.exception("a pass failed")
            now = time.monotonic()
            if only.is_all:
                due = now + max(self.interval_s - (now - began), (now - began) * self.rest_share)
            if not self._asked:
                self.rest(max(due - now, 0.01))

    def rest(self, seconds: float) -> None:
        """Wait, unless ``wake`` is called."""
        try:
            self._wake.wait(seconds)
            self._wake = concurrency.Event()
        except WaitTimeout:
            pass

    def wake(self) -> None:
        """Begin the next pass now."""
        self._wake.set()

    def ask(self, only: Selection) -> None:
        """An operator wants a pass over these now: it comes before the next whole one. Does not wait."""
        if only not in self._asked and len(self._asked) < MAX_ASKED:
            self._asked.append(only)
        self.wake()

    def dry_run(self, only: Selection = ALL) -> Iterator[str]:
        """The plan of a pass, a line for each job; nothing is carried out."""
        self.before_pass(only)
        for job in self.plan(only):
            yield self.describe(job)

    # -- what is seen --------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        return {**self.progress.as_dict(), "passes": self.passes, "interval_s": self.interval_s, "pid": os.getpid(),
                "per_device": self.by_device.as_dict(self.world.clock()),
                **self.figures()}

    def show(self, force: bool = False) -> None:
        """Write the state into the recon file ``daemons``, now and then."""
        now = self.world.clock()
        if force or not 0 <= now - self._shown_at < SHOW_S:
            self._shown_at = now
            self.leave({**self.status(), "at": now})

    def leave(self, state: dict[str, Any]) -> None:
        self.world.leave("daemons", {"daemons": {self.name: state}})
