"""Auditors of account and container databases: each is opened and checked, and put aside if torn (``spec: daemons 5``).

Opening alone finds what is no database of ours, and the broker puts it into quarantine; replication then brings a sound copy.
Beyond that the pages are checked as SQLite can, and the counts of each policy are compared with the rows, for as long as
``check_time`` allows: writers wait meanwhile. A count that is wrong is no reason to put a database aside: it is reported.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

from keelstore.common import concurrency
from keelstore.common.broker import Broker, DatabaseNotFound, is_locked
from keelstore.common.broker_steps import Connection
from keelstore.common.daemon_frame import Daemon, Selection, World
from keelstore.common.db_options import DatabaseAuditorOptions
from keelstore.common.device_walk import Device, databases, usable_devices
from keelstore.common.disk_calls import on_disk_thread
from keelstore.common.errors import DatabaseCorrupt, StorageError
from keelstore.common.names import database_file
from keelstore.common.work import RateLimit

LEAVE_EVERY_S: Final = 3600.0  # the field's figures are written as often
STEPS: Final = 20_000  # of SQLite between two looks at the clock

B = TypeVar("B", bound=Broker)


class Job(NamedTuple):
    device: Device
    path: str  # of the hash directory

    @property
    def database(self) -> str:
        return database_file(self.path)


class DatabaseAuditor(Daemon):
    """Subclasses say which databases, and what must agree in one."""

    service: ClassVar[str] = ""
    datadir: ClassVar[str] = ""
    rest_share: ClassVar[float] = 1.0

    def __init__(self, options: DatabaseAuditorOptions, world: World, per_second: float):
        super().__init__(world, options.interval)
        self.options = options
        self._rate = RateLimit(per_second)
        self.passed = self.failed = self.quarantined = 0
        self._since = world.clock()
        self._left_at = self._since
        self._hour = [0, 0]  # passes and failures since the figures were written

    # -- what a subclass says ------------------------------------------------------------------------------------------

    def make_broker(self, path: str, device_path: str) -> Broker:
        raise NotImplementedError

    def problem_in(self, connection: Connection, broker: Broker) -> str | None:
        """What of the stat row does not agree with what it sums up, quick to find; None when all is well."""
        return None

    def problem_of_rows(self, connection: Connection) -> str | None:
        """As above, by looking at every row."""
        raise NotImplementedError

    # -- a pass --------------------------------------------------------------------------------------------------------

    def plan(self, only: Selection) -> Iterator[Job]:
        for device in usable_devices(self.options.devices, self.options.mount_check, self.log, only):
            try:
                for path in databases(device, self.datadir, only):
                    yield Job(device, path)
            except OSError as error:
                self.log.error("%s: its %s cannot be listed: %s", device.path, self.datadir, error)

    def describe(self, job: Job) -> str:
        return f"check {job.path}"

    def carry_out(self, job: Job) -> bool:
        delay = self._rate.delay_s(self.world.clock())
        if delay:
            concurrency.sleep(delay)
        began = self.world.clock()
        is_well = self.check(job)
        if is_well is not None:
            self._hour[not is_well] += 1
            self.passed += is_well
            self.failed += not is_well
            self.world.stats.increment("passes" if is_well else "failures")
        self.world.stats.timing_since("timing", began)
        if not 0 <= self.world.clock() - self._left_at < LEAVE_EVERY_S:
            self._leave()
        return is_well is not False

    def check(self, job: Job) -> bool | None:
        """Whether a database is well; None when it is gone."""
        broker = self.make_broker(job.database, job.device.path)
        try:
            broker.merge_pending()
            problem = broker.read(lambda connection: self.problem_in(connection, broker))
            if problem is None and self.options.check_time:
                problem = on_disk_thread(job.device.name, self._check_all, broker)
        except DatabaseNotFound:
            return None
        except DatabaseCorrupt:  # the log says so
            self.quarantined += 1
            return False
        except (StorageError, OSError) as error:
            self.world.stats.increment("errors")
            self.log.error("%s: %s", job.path, error or type(error).__name__)
            return False
        finally:
            broker.close()
        if problem is None:
            return True
        self.log.error("Audit failed for %s: %s", broker.path, problem)
        return False

    def _check_all(self, broker: Broker) -> str | None:
        """Pages and rows, on a connection of its own. Raises DatabaseCorrupt."""
        ends = time.monotonic() + self.options.check_time
        try:
            with closing(broker.open_apart()) as connection:
                connection.set_progress_handler(lambda: time.monotonic() > ends, STEPS)
                found = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
                if found != "ok":
                    raise broker.quarantine(str(found))
                return self.problem_of_rows(connection)
        except sqlite3.OperationalError as error:
            if str(error) == "interrupted" or is_locked(error):
                return None  # no time left for it, or not now
            raise broker.corrupt_or(error) from error
        except sqlite3.Error as error:
            raise broker.corrupt_or(error) from error

    # -- what is seen --------------------------------------------------------------------------------------------------

    def _leave(self) -> None:
        self._left_at = self.world.clock()
        self.world.leave(self.service, {f"{self.service}_audits_since": self._since,
                                        f"{self.service}_audits_passed": self._hour[0],
                                        f"{self.service}_audits_failed": self._hour[1]})
        self._since, self._hour = self._left_at, [0, 0]

    def after_pass(self, only: Selection, took_s: float) -> None:
        self._leave()
        self.world.leave(self.service, {f"{self.service}_auditor_pass_completed": took_s})

    def figures(self) -> dict[str, Any]:
        return {"passed": self.passed, "failures": self.failed, "quarantined": self.quarantined}


def counts_problem(connection: Connection, table: str, columns: tuple[str, ...], sql: str) -> str | None:
    """Compare ``policy_stat`` with the sums over all rows of ``table``; ``columns``: of the counts, ``sql``: the sums."""
    counted = {row[0]: tuple(row[1:]) for row in connection.execute(
        f"SELECT storage_policy_index, {sql} FROM {table} GROUP BY storage_policy_index")}  # fmt: skip
    nothing = (0,) * len(columns)
    for index, *stored in connection.execute(f"SELECT storage_policy_index, {', '.join(columns)} FROM policy_stat"):
        actual = tuple(value or 0 for value in counted.pop(index, nothing))
        if tuple(value or 0 for value in stored) != actual:
            return f"policy {index} should have {_named(columns, actual)}, not {_named(columns, tuple(stored))}"
    for index, actual in counted.items():
        if any(actual):
            return f"policy {index} has {_named(columns, actual)}, and is not counted"
    return None


def _named(columns: tuple[str, ...], values: tuple[Any, ...]) -> str:
    return ", ".join(f"{column} {value}" for column, value in zip(columns, values, strict=True))
