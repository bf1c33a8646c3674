"""The SQLite file of one account or container: open, lock, pending updates, create, quarantine.

A row update is one append to ``<file>.pending``, under the lock of the directory; whoever reads next, or finds more than
``pending.CAP`` bytes waiting, merges them into the database in one transaction and takes them out of the file
(``pending.Merge``). A crash in between merges them again, which changes nothing: merging forgets repetition, and order, but
for what accounts are told of containers.

Threads. Reads run where they are called, on the hub's thread: the page cache answers them, and one step of SQLite for each
row would otherwise pass the interpreter to and fro. Writes run on a disk thread of the device, one at a time (``_turn``).
``_lock`` (native; held by reads without a switch, by writes for their transaction) guards the connection, also against a
write whose caller has given up; SQLite's own locks and the lock of the directory guard the files between processes. The
green threads that share a broker run on one native thread.

Nobody in this process may open and close a database file by other means while its broker may be in use: closing any
descriptor of a file drops all POSIX locks that this process holds on it, SQLite's too.
"""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, TypeVar
from urllib.parse import quote

from keelstore.common import fs, pending
from keelstore.common.broker_schema import chexor
from keelstore.common.broker_steps import Connection, Steps, one_row
from keelstore.common.concurrency import Semaphore
from keelstore.common.disk_calls import off_slow_disk, on_disk_thread, pause
from keelstore.common.errors import (
    DatabaseCorrupt,
    DeviceFull,
    DeviceUnavailable,
    LockTimeout,
    ObjectNotFound,
    StorageError,
)
from keelstore.common.locks import lock_directory

BUSY_TIMEOUT_S = 25.0
STALE_READ_TIMEOUT_S = 2.0  # then a GET or HEAD does without what is pending; short of the proxy's patience for a node
CACHE_KIB = 512  # page cache of one connection
HEAP_LIMIT = 24 << 20  # bytes that SQLite may hold in this process before it gives back page cache
RECLAIM_ROWS = 1000  # tombstones looked at, and removed, in one transaction
REMOVED = "removed-"  # beginning of the names, in tmp, of directories that are being deleted
RACY_NS = 20_000_000  # a file changed that recently may change again without its times showing it

_CORRUPT = ("database disk image is malformed", "malformed database schema", " is not a database")
_UNREADABLE = frozenset({"SQLITE_IOERR_READ", "SQLITE_IOERR_SHORT_READ", "SQLITE_IOERR_CORRUPTFS", "SQLITE_IOERR_DATA"})
_LOCKED = ("database is locked", "database table is locked")

T = TypeVar("T")


class DatabaseNotFound(ObjectNotFound):
    """There is no database file for this account or container on this device."""


class AlreadyExists(StorageError):
    """Another request created the database first."""


class Broker(Steps):
    """One database file. Subclasses say what is in it: tables, rows of ``.pending``, how rows merge.

    Every public method may be called from a green thread; those of ``(connection, ...)`` are steps for ``read`` and
    ``write`` to run. Errors: DatabaseNotFound, DatabaseCorrupt (then already in quarantine), LockTimeout, DeviceFull,
    DeviceUnavailable.
    """

    keeps_order: ClassVar[bool] = False  # of equal rows the one that came last counts

    def __init__(self, path: str, device_path: str, logger: logging.Logger):
        self.path, self.device_path, self.logger = path, device_path, logger
        self.directory = os.path.dirname(path)
        self.device = os.path.basename(device_path)
        self.pending_timeout_s = 10.0
        self._connection: Connection | None = None
        self._identity: tuple[int, int] = (0, 0)
        self._remembered: dict[str, tuple[tuple[int, int, int], Any]] = {}
        self._lock = threading.Lock()
        self._turn = Semaphore()

    # -- what a subclass says ------------------------------------------------------------------------------------------

    def create_tables(self, connection: Connection) -> None:
        raise NotImplementedError

    def is_ours(self, connection: Connection) -> bool:
        raise NotImplementedError

    def is_current(self, connection: Connection) -> bool:
        raise NotImplementedError

    def migrate(self, connection: Connection) -> None:
        raise NotImplementedError

    def row_of(self, record: Sequence[Any]) -> Any:
        """The row that a record of ``.pending`` stands for, as ``merge_rows`` takes it. Raises ValueError, TypeError,
        IndexError.
        """
        raise NotImplementedError

    def merge_rows(self, connection: Connection, rows: Iterable[Any], source: str | None = None) -> None:
        raise NotImplementedError

    # -- files ---------------------------------------------------------------------------------------------------------

    def locate(self) -> str:
        """The path of the database file. Raises DatabaseNotFound."""
        if not os.path.exists(self.path):
            raise DatabaseNotFound(self.path)
        return self.path

    @property
    def exists(self) -> bool:
        try:
            self.locate()
        except DatabaseNotFound:
            return False
        return True

    @property
    def pending_path(self) -> str:
        return self.path + ".pending"

    def pending_size(self) -> int:
        return pending.size(self.pending_path)

    # -- reading and writing -------------------------------------------------------------------------------------------

    def read(self, function: Callable[[Connection], T], timeout_s: float = BUSY_TIMEOUT_S) -> T:
        """Run ``function(connection)`` here; it only reads, and does not switch."""
        deadline, wait = 0.0, 0.0005
        while True:
            if self._lock.acquire(False):
                try:
                    return function(self._open())
                except _OldSchema:
                    pass
                except sqlite3.Error as error:
                    if not is_locked(error):
                        raise self._translated(error) from error
                finally:
                    self._lock.release()
                if self._connection is not None and not self._is_migrated:
                    self.write(_nothing, takes_pending=False)
                    continue
            elif self._turn.acquire(timeout_s):  # a write of ours is under way
                self._turn.release()
            now = time.monotonic()
            if not deadline:
                deadline = now + timeout_s
            elif now > deadline:
                raise LockTimeout(f"{self.path}: busy for {timeout_s} s")
            else:
                pause(wait)
                wait = min(wait * 1.5, 0.02)

    def read_at_once(self, function: Callable[[Connection], T]) -> T | None:
        """As ``read``, where that waits for nothing; None where it would, or something is wrong."""
        if not self._lock.acquire(False):
            return None
        try:
            return function(self._open())
        except (_OldSchema, sqlite3.Error, StorageError):
            return None
        finally:
            self._lock.release()

    def read_fresh(self, function: Callable[[Connection], T], may_be_stale: bool = False) -> T:
        """As ``read``, with all pending updates in the database. ``may_be_stale``: rather that than an error."""
        self.merge_pending(may_be_stale)
        return self.read(function)

    def read_settled(self, name: str, function: Callable[[Connection], T], may_be_stale: bool = False) -> T:
        """As ``read_fresh``, but what ``function`` gave is remembered under ``name`` until the file changes.

        Only for what depends on nothing but this file.
        """
        self.merge_pending(may_be_stale)
        state = self.settled_state()
        known = self._remembered.get(name)
        if known is not None and known[0] == state:
            return known[1]
        result = self.read(function)
        if state is not None:
            self._remembered[name] = state, result
        return result

    def settled_state(self) -> tuple[int, int, int] | None:
        """What tells the file's present content from any other; None when it has changed so recently that it cannot."""
        path = self.locate()
        try:
            status = os.stat(path)
        except FileNotFoundError:
            raise DatabaseNotFound(path) from None
        return self._state_of(status)

    @staticmethod
    def _state_of(status: os.stat_result) -> tuple[int, int, int] | None:
        changed_at = status.st_mtime_ns
        return None if time.time_ns() - changed_at < RACY_NS else (status.st_ino, changed_at, status.st_size)

    def write(
        self, function: Callable[[Connection], T], *, takes_pending: bool = True, timeout_s: float | None = None
    ) -> T:
        """Run ``function(connection)`` in one transaction on a disk thread, pending updates merged before it."""
        self.locate()
        timeout_s = self.pending_timeout_s if timeout_s is None else timeout_s
        self._take_turn(timeout_s)
        try:
            return on_disk_thread(self.device, self._write_now, function, takes_pending, (), timeout_s)
        finally:
            self._turn.release()

    def _take_turn(self, timeout_s: float) -> None:
        if not self._turn.acquire(timeout_s):
            raise LockTimeout(f"{self.path}: busy for {timeout_s} s")

    def merge_pending(self, may_be_stale: bool = False) -> None:
        """Bring the pending updates into the database; one ``stat`` when there are none."""
        self.locate()
        if not self.pending_size():
            return
        timeout_s = min(self.pending_timeout_s, STALE_READ_TIMEOUT_S) if may_be_stale else self.pending_timeout_s
        try:
            self._take_turn(timeout_s)
            try:
                if self.pending_size():  # else another request has done it meanwhile
                    on_disk_thread(self.device, self._write_now, _nothing, True, (), timeout_s)
            finally:
                self._turn.release()
        except LockTimeout:
            if not may_be_stale:
                raise

    def put_record(self, record: Sequence[Any], timeout_s: float | None = None) -> None:
        """Add one row update: an append, or a merge of all that waits when that is more than the cap."""
        timeout_s = self.pending_timeout_s if timeout_s is None else timeout_s
        entry = pending.encode(tuple(record))
        if self._appends(entry, timeout_s):
            return
        self._take_turn(timeout_s)
        try:
            if not self._appends(entry, timeout_s):  # as another request has made room meanwhile
                on_disk_thread(self.device, self._write_now, _nothing, True, (record,), timeout_s)
        finally:
            self._turn.release()

    def _appends(self, entry: bytes, timeout_s: float) -> bool:
        self.locate()
        try:
            return off_slow_disk(self.device, self._append, self.pending_path, entry, timeout_s)
        except FileNotFoundError:
            raise DatabaseNotFound(self.path) from None

    def _append(self, path: str, entry: bytes, timeout_s: float) -> bool:
        with lock_directory(self.directory, timeout_s):
            return pending.append(path, entry)

    def _write_now(
        self, function: Callable[[Connection], T], takes_pending: bool, records: Sequence[Sequence[Any]],
        timeout_s: float,
    ) -> T:  # fmt: skip
        """The body of every write. Order of locks: connection, pending file, then directory or SQLite; with ``keeps_order``
        directory and SQLite.
        """
        if not self._lock.acquire(timeout=timeout_s):
            raise LockTimeout(f"{self.path}: connection busy for {timeout_s} s")
        try:
            return self._write_in_place(function, takes_pending, records, timeout_s)
        except _Replaced:  # by a whole file of a peer, while we waited for SQLite's lock on the old one
            self._forget()
            try:
                return self._write_in_place(function, takes_pending, records, timeout_s)
            except _Replaced:
                self._forget()
                raise LockTimeout(f"{self.path}: was replaced; ask again") from None
        finally:
            self._lock.release()

    def _write_in_place(
        self, function: Callable[[Connection], T], takes_pending: bool, records: Sequence[Sequence[Any]],
        timeout_s: float,
    ) -> T:  # fmt: skip
        try:
            connection = self._open(migrates=True)
            if not records and not (takes_pending and self.pending_size()):
                return self._transaction(connection, function, ())
            with pending.Merge(self.pending_path, self.directory, timeout_s, self.keeps_order) as merge:
                result = self._transaction(connection, function, [*merge.records(self._on_bad), *records])
                self._take_out(merge)
            return result
        except sqlite3.Error as error:
            raise self._translated(error) from error
        except FileNotFoundError:
            raise DatabaseNotFound(self.path) from None

    def _transaction(
        self, connection: Connection, function: Callable[[Connection], T], records: Iterable[Sequence[Any]]
    ) -> T:
        connection.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_S * 1000)}")
        try:
            connection.execute("BEGIN IMMEDIATE")
            try:
                self._check_in_place()
                rows = self._rows_of(records)
                if rows:
                    self.merge_rows(connection, rows)
                result = function(connection)
                connection.execute("COMMIT")
                return result
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        finally:
            connection.execute("PRAGMA busy_timeout = 0")

    def _check_in_place(self) -> None:
        """That the file we hold SQLite's lock of still has the name: whoever removes or replaces a file holds that lock, too,
        and what waited for it meanwhile must not write into a file that is no more. Raises FileNotFoundError, _Replaced.
        """
        status = os.stat(self.path)
        if self._identity != (status.st_dev, status.st_ino):
            raise _Replaced

    def _take_out(self, merge: pending.Merge) -> None:
        """What could not be taken out goes into the database once more; the write that took it along has been made."""
        try:
            merge.done()
        except FileNotFoundError:
            pass  # removed, with all that was in it
        except (StorageError, OSError) as error:
            self.logger.warning("%s: what is in the database stays here, too, for now: %s", self.pending_path, error)

    def _on_bad(self, error: Exception) -> None:
        self.logger.error("%s: an update cannot be read and is dropped: %s", self.pending_path, error)

    def _rows_of(self, records: Iterable[Any]) -> list[Any]:
        rows = []
        for record in records:
            try:
                rows.append(self.row_of(record))
            except (ValueError, TypeError, IndexError, KeyError) as error:
                self.logger.error("%s: an update is no row and is dropped: %s: %.200r", self.pending_path, error, record)
        return rows

    # -- the connection ------------------------------------------------------------------------------------------------

    _is_migrated = True

    def _open(self, migrates: bool = False) -> Connection:
        """The connection to the file that has the name now; the caller holds ``_lock``."""
        path = self.locate()
        try:
            status = os.stat(path)
        except FileNotFoundError:
            self._forget()
            raise DatabaseNotFound(path) from None
        identity = (status.st_dev, status.st_ino)
        connection = self._connection
        if connection is None or self._identity != identity:
            self._forget()
            # A write waits for another process to end its own; a read comes again, so as not to hold up its thread.
            connection = self._connect(path, BUSY_TIMEOUT_S if migrates else 0)
            self._connection, self._identity = connection, identity
            try:
                self._is_migrated = self.is_current(connection)
                if not self._is_migrated and not self.is_ours(connection):
                    raise sqlite3.DatabaseError("file is not a database of ours: its tables are missing")
                one_row(connection, f"SELECT id FROM {self.stat_table}")
                connection.execute("PRAGMA busy_timeout = 0")
            except sqlite3.Error:
                self._forget()
                raise
        if not self._is_migrated:
            if not migrates:
                raise _OldSchema
            self._transaction(connection, self._migrate_once, ())
            self._is_migrated = True
        return connection

    def _migrate_once(self, connection: Connection) -> None:
        if not self.is_current(connection):  # another process may have been first
            self.migrate(connection)
            self.logger.info("%s: tables brought up to date", self.path)

    def _connect(self, path: str, busy_timeout_s: float = 0) -> Connection:
        connection = sqlite3.connect(f"file:{quote(path)}?mode=rw", uri=True, timeout=busy_timeout_s, isolation_level=None,
                                     check_same_thread=False)  # fmt: skip
        try:
            prepare(connection)
            connection.execute("PRAGMA journal_mode = DELETE")
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def open_apart(self) -> Connection:
        """A connection of the caller's own, to read with; for what takes long. Raises sqlite3.Error, DatabaseNotFound."""
        return self._connect(self.locate())

    def corrupt_or(self, error: sqlite3.Error) -> Exception:
        """Our error for one of such a connection; what is corrupt is moved to quarantine first."""
        with self._lock:
            return self._translated(error)

    def _forget(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Let go of the connection if nobody uses it now."""
        if self._lock.acquire(False):
            try:
                self._forget()
            finally:
                self._lock.release()

    def _translated(self, error: sqlite3.Error) -> Exception:
        """Our error for SQLite's; what is corrupt is moved to quarantine first. The caller holds ``_lock``."""
        text = str(error).lower()
        if is_locked(error):
            return LockTimeout(f"{self.path}: {error}")
        try:
            status = os.stat(self.path)
            is_same = self._connection is None or self._identity == (status.st_dev, status.st_ino)
        except FileNotFoundError:
            self._forget()
            return DatabaseNotFound(self.path)
        except OSError:
            return DeviceUnavailable(self.device)
        if not is_same:  # replaced under an open connection: what SQLite says is about a file that is no more
            self._forget()
            return LockTimeout(f"{self.path}: was replaced; ask again")
        if "no such table" in text and not self._is_still_ours():
            return self.quarantine("its tables are gone")
        if any(sign in text for sign in _CORRUPT) or getattr(error, "sqlite_errorname", "") in _UNREADABLE:
            return self.quarantine(str(error))
        if "disk is full" in text:
            return DeviceFull(f"{self.path}: {error}")
        if "readonly" in text or "unable to open" in text or "disk i/o error" in text:  # the file may be sound
            self.logger.error("%s: %s; check the file system of device %s", self.path, error, self.device)
            return DeviceUnavailable(self.device)
        return error

    def _is_still_ours(self) -> bool:
        """Whether the open connection sees our tables; they vanish when the file is truncated under it."""
        try:
            return self._connection is None or self.is_ours(self._connection)
        except sqlite3.Error:
            return False

    def quarantine(self, reason: str) -> DatabaseCorrupt:
        """Move the hash directory away, so that replication brings a sound copy. Gives the error to raise."""
        self._forget()
        into = f"{self.device_path}/quarantined/{self.kind}s"
        try:
            target = fs.quarantine(self.directory, into)
        except (OSError, DeviceUnavailable) as error:
            self.logger.error("%s is corrupt (%s) and could not be moved to %s: %s", self.path, reason, into, error)
        else:
            self.logger.error("%s is corrupt (%s); its directory is now %s, and replication will bring a sound copy"
                              " from another node", self.path, reason, target)  # fmt: skip
        return DatabaseCorrupt(f"{self.path}: {reason}")

    # -- creation ------------------------------------------------------------------------------------------------------

    def create(self, fill: Callable[[Connection], None]) -> None:
        """Make the database file: tables, then what ``fill`` inserts. Raises AlreadyExists when there is one."""
        on_disk_thread(self.device, self._create_now, self.path, fill)

    def _create_now(self, path: str, fill: Callable[[Connection], None]) -> None:
        """Built under another name, synced, then renamed under the directory's lock: there is never half a database."""
        made = fs.make_directories(self.directory, self.device_path)
        temporary = f"{self.directory}/{uuid.uuid4().hex}.tmp"
        try:
            connection = sqlite3.connect(temporary, isolation_level=None)
            try:
                prepare(connection)
                connection.execute("PRAGMA synchronous = OFF")
                connection.execute("PRAGMA journal_mode = MEMORY")
                connection.execute("BEGIN")
                self.create_tables(connection)
                fill(connection)
                if connection.in_transaction:
                    connection.execute("COMMIT")
            finally:
                connection.close()
            fd = os.open(temporary, os.O_RDWR | os.O_CLOEXEC)
            try:
                fs.sync_file(fd)
            finally:
                os.close(fd)
            with lock_directory(self.directory, self.pending_timeout_s):
                if os.path.exists(path):
                    raise AlreadyExists(path)
                fs.rename_durably(temporary, path)
            fs.sync_above(self.directory, made)
        except sqlite3.Error as error:
            if "full" in str(error):
                raise DeviceFull(f"{path}: {error}") from None
            raise DeviceUnavailable(self.device) from error
        finally:
            fs.remove_file(temporary)

    def new_id(self) -> str:
        """An id that no other database file has or had."""
        return f"{uuid.uuid4()}-{self.device}"

    def is_deleted(self, may_be_stale: bool = False) -> bool:
        """Whether it counts as gone; True when there is no file."""
        try:
            return self.read_fresh(self.is_deleted_in, may_be_stale)
        except DatabaseNotFound:
            return True

    # -- removal -------------------------------------------------------------------------------------------------------

    def reclaim(self, age: str, sync_age: str) -> int:
        """Forget tombstone rows and removed metadata items older than ``age``, sync points older than ``sync_age``.

        Page by page: reads find what is old, and a short transaction removes it. Gives the number of rows.
        """
        self.merge_pending()
        marker, removed = "", 0
        while True:
            found = self.read(lambda connection: connection.execute(
                f"SELECT ROWID, name, {self.tombstone_time} FROM {self.table} WHERE deleted = 1 AND name >= ?"
                f" ORDER BY name LIMIT {RECLAIM_ROWS}", (marker,)).fetchall())  # noqa: B023 - it runs now
            old = [(row[0],) for row in found if row[2] < age]
            if old:  # a row that was replaced meanwhile has another ROWID
                self.write(lambda connection: connection.executemany(
                    f"DELETE FROM {self.table} WHERE ROWID = ?", old))  # noqa: B023
                removed += len(old)
            if len(found) < RECLAIM_ROWS or found[-1][1] == marker:
                break
            marker = found[-1][1]
        self.write(lambda connection: self.reclaim_rest(connection, age, sync_age))
        return removed

    def remove(self, may_go: Callable[[Connection], bool], timeout_s: float = 10.0) -> bool:
        """Remove the database with its directory if no update waits and ``may_go`` says so, under all its locks: whoever
        waits to write finds it gone, and tells its caller so. False: it stays.
        """
        self._take_turn(timeout_s)
        try:
            moved = on_disk_thread(self.device, self._remove_now, may_go, timeout_s)
        finally:
            self._turn.release()
        if not moved:
            return False
        on_disk_thread(self.device, _clear, moved, self.directory)
        return True

    def _remove_now(self, may_go: Callable[[Connection], bool], timeout_s: float) -> str:
        """Where the directory went; '' when it stays. One rename: a crash leaves all or nothing, and rubbish in ``tmp``."""
        if not self._lock.acquire(timeout=timeout_s):
            raise LockTimeout(f"{self.path}: connection busy for {timeout_s} s")
        try:
            with lock_directory(self.directory, timeout_s):
                if self.pending_size():
                    return ""
                connection = self._open(migrates=True)
                connection.execute(f"PRAGMA busy_timeout = {int(timeout_s * 1000)}")
                connection.execute("BEGIN IMMEDIATE")
                try:
                    self._check_in_place()
                    if not may_go(connection):
                        return ""
                    fs.make_directories(f"{self.device_path}/tmp", self.device_path)
                    target = f"{self.device_path}/tmp/{REMOVED}{uuid.uuid4().hex}"
                    os.rename(self.directory, target)
                    return target
                finally:
                    connection.execute("ROLLBACK")
                    self._forget()
        except _Replaced:
            return ""
        except FileNotFoundError:
            raise DatabaseNotFound(self.path) from None
        except sqlite3.Error as error:
            raise self._translated(error) from error
        finally:
            self._lock.release()

    # -- whole files ---------------------------------------------------------------------------------------------------

    def snapshot(self, path: str) -> None:
        """Write all of it, as it is now, to a file of this name. Writers wait meanwhile, updates of rows do not."""
        self.merge_pending()
        on_disk_thread(self.device, self._snapshot_now, path)

    def _snapshot_now(self, path: str) -> None:
        with self._lock:
            try:
                connection = self._open(migrates=True)
                target = sqlite3.connect(path, isolation_level=None)
                try:
                    target.execute("PRAGMA synchronous = OFF")
                    target.execute("PRAGMA journal_mode = MEMORY")
                    connection.backup(target)
                finally:
                    target.close()
            except sqlite3.Error as error:
                if "full" in str(error):
                    raise DeviceFull(f"{path}: {error}") from None
                raise self._translated(error) from error


def _clear(moved: str, directory: str) -> None:
    """Delete a removed directory, and those above its old place that are empty now."""
    shutil.rmtree(moved, ignore_errors=True)
    for _ in range(2):  # suffix, partition
        directory = os.path.dirname(directory)
        if not fs.remove_directory(directory):
            break


def _nothing(_connection: Connection) -> None:
    """The step of a write that only brings pending updates, or the tables, up to date."""


class _Replaced(Exception):
    """The file that was opened does not have the name any more."""


class _OldSchema(Exception):
    """The file was written by an older version; a write brings it up to date."""


def prepare(connection: Connection) -> None:
    """Settings and functions that every connection has."""
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    connection.execute(f"PRAGMA soft_heap_limit = {HEAP_LIMIT}")
    connection.create_function("chexor", 3, chexor, deterministic=True)


def is_locked(error: sqlite3.Error) -> bool:
    text = str(error)
    return any(sign in text for sign in _LOCKED)


