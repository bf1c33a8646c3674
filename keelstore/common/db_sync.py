"""Bringing one peer what it lacks of one database (``spec: backend-protocol 6``). ``broker_sync`` answers what this asks.

First ``sync``: each side tells the other its metadata and times, and the answer how far the peer has our rows. Then the rows
above that point in batches, or, when too many are missing, or all, the whole file: over the replication port where the peer
takes it (``db_transfer``), else by rsync.
"""

from __future__ import annotations

import json
import logging
import math
import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from keelstore.common import db_transfer, fs, rsync
from keelstore.common.broker import Broker
from keelstore.common.broker_steps import Connection, merge_metadata, parse_metadata, timestamp_of
from keelstore.common.broker_sync import Receiver
from keelstore.common.concurrency import Semaphore
from keelstore.common.db_options import DatabaseReplicatorOptions
from keelstore.common.db_rules import Extent, Job, Step, step_for
from keelstore.common.disk_calls import on_disk_thread
from keelstore.common.errors import BackendError
from keelstore.common.headers import Headers
from keelstore.common.http import Response
from keelstore.common.peers import Peers
from keelstore.common.proof import is_proof
from keelstore.common.ring.ring import Node
from keelstore.common.room import Reserve
from keelstore.common.rsync import RsyncOptions
from keelstore.common.timestamp import Timestamp

MAX_ANSWER: Final = 64 << 20  # bytes: metadata, or the shard ranges of a very large container
ROUNDS: Final = 3  # of sync and sending, until the peer says that it has everything
ROWS_A_SECOND: Final = 2000  # at which a peer merges what it has into a file that arrived, at least
BYTES_A_SECOND: Final = 10 << 20  # at which it syncs one

Info = dict[str, Any]


@dataclass
class Outcome:
    """What came of it. ``is_proof``: the peer said that it has all that we have, and its word is one (``proof``)."""

    node: Node
    is_success: bool = False
    is_proof: bool = False
    had_it: bool = False  # we knew before that it has all our rows; or there is no such database, and need not be
    is_capped: bool = False  # as many rows as may be sent at once were sent, and more wait
    is_deferred: bool = False  # rows are not sent now: the container is being sharded, or is being written to
    status: int = 0  # of the last answer
    reason: str = ""


@dataclass
class Talk:
    """One database and one peer."""

    job: Job
    broker: Broker
    receiver: Receiver
    node: Node


@dataclass
class Collaborators:
    peers: Peers
    backend: Any
    options: DatabaseReplicatorOptions
    log: logging.Logger
    count: Callable[[str, int], None]
    agent: str
    reserve: Reserve = field(init=False)

    def __post_init__(self) -> None:
        self.reserve = Reserve.parse(self.options.fallocate_reserve)


class DatabaseSync:
    """Subclasses add what their databases have besides rows, sync points, metadata and times."""

    def __init__(self, given: Collaborators):
        self._given, self.options, self.log = given, given.options, given.log
        self.rows_sent = self.files_sent = self.bytes_sent = 0
        self._sending: dict[str, Semaphore] = {}

    # -- what a subclass adds ------------------------------------------------------------------------------------------

    def arguments(self, info: Info) -> list[Any]:
        """Of ``sync``."""
        return [info["max_row"], info["hash"], info["id"], info["created_at"], info["put_timestamp"],
                info["delete_timestamp"], info["metadata"]]

    def is_news(self, info: Info, remote: Info) -> bool:
        """Whether an answer has metadata or times that we do not know."""
        if (timestamp_of(remote["created_at"]) < timestamp_of(info["created_at"])
                or timestamp_of(remote["put_timestamp"]) > timestamp_of(info["put_timestamp"])
                or timestamp_of(remote["delete_timestamp"]) > timestamp_of(info["delete_timestamp"])):  # fmt: skip
            return True
        if remote["metadata"] == info["metadata"]:
            return False
        known = parse_metadata(info["metadata"])
        return merge_metadata(known, parse_metadata(remote["metadata"])) is not known

    def learn(self, connection: Connection, talk: Talk, remote: Info) -> None:
        """Take what an answer knows better."""
        broker = talk.broker
        broker.update_metadata(connection, parse_metadata(remote["metadata"]))
        broker.merge_timestamps(connection, *(
            Timestamp(remote[name] or "0").internal for name in ("created_at", "put_timestamp", "delete_timestamp")))

    def before_rows(self, talk: Talk, info: Info, remote: Info) -> bool:
        """What is exchanged before rows are. False: rows are not sent now."""
        return True

    # -- one peer ------------------------------------------------------------------------------------------------------

    def bring(self, talk: Talk, may_send_rows: bool = True, may_create: bool = True, wants_proof: bool = False) -> Outcome:
        """Have the peer of ``talk`` hold what we hold. Raises StorageError when our own database cannot be used.

        ``may_create`` False: what only waits to be forgotten is not made where it is not. ``wants_proof``: ask again after
        sending, so that its own answer says what it has.
        """
        outcome = Outcome(talk.node)
        try:
            self._bring(talk, outcome, may_send_rows, may_create, wants_proof)
        except BackendError as error:
            outcome.reason = str(error)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            outcome.reason = f"its answer cannot be used: {error!r}"
        return outcome

    def _bring(self, talk: Talk, outcome: Outcome, may_send_rows: bool, may_create: bool, wants_proof: bool) -> None:
        broker, receiver = talk.broker, talk.receiver
        for number in range(ROUNDS):
            info = broker.read_fresh(receiver.info_in)
            answer = self.ask(talk, ["sync", *self.arguments(info)])
            outcome.status = answer.status
            if answer.status == 404 and not may_create:
                outcome.is_success = outcome.is_proof = outcome.had_it = True
                return
            if answer.status == 404:
                outcome.is_success = self._send_whole(talk, info, "complete_rsync", answer.headers)
                if outcome.is_success and not wants_proof:
                    return
                outcome.is_success = False
                continue  # see what is there now
            if not answer.is_success:
                outcome.reason = f"answered {answer.status}"
                return
            remote = json.loads(answer.body or b"null")
            if not isinstance(remote, dict):
                raise ValueError("no JSON object")
            info = self._learn(talk, info, remote)
            if not self.before_rows(talk, info, remote):
                outcome.is_success = outcome.is_deferred = True
                return
            step, point, was_known = self._step(talk, info, remote, wants_proof)
            if step in (Step.EQUAL, Step.HAS_OURS):
                self._given.count("hashmatch" if step is Step.EQUAL else "no_change", 1)
                self._remember(talk, str(remote["id"]), int(info["max_row"]))
                outcome.is_success, outcome.had_it = True, was_known and not number
                outcome.is_proof = is_proof(answer.headers, talk.job.ring_version)
                return
            if not may_send_rows:
                outcome.is_success = outcome.is_deferred = True
                return
            if step is Step.WHOLE:
                self._given.count("remote_merge", 1)
                outcome.is_success = self._send_whole(talk, info, "rsync_then_merge", answer.headers)
            else:
                outcome.is_capped = not self._send_rows(talk, info, str(remote["id"]), point)
                outcome.is_success = not outcome.is_capped
            if outcome.is_capped or (outcome.is_success and not wants_proof):
                return
            outcome.is_success = False
        outcome.reason = "has not come to say that it has everything; it is tried again"

    def _step(self, talk: Talk, info: Info, remote: Info, wants_proof: bool) -> tuple[Step, int, bool]:
        """What the peer needs, from which row on, and whether we knew that it has everything. For a proof its own word
        counts alone, not what we remember.
        """
        table, remote_id = talk.broker.table, str(remote["id"])

        def facts(connection: Connection) -> tuple[int, int]:
            last = connection.execute(f"SELECT MAX(ROWID) FROM {table}").fetchone()[0]
            return -1 if last is None else last, talk.broker.sync_point(connection, remote_id, is_incoming=False)

        last, remembered = talk.broker.read(facts)
        point = int(remote["point"])
        if not wants_proof:
            point = max(point, remembered)
        step = step_for(Extent(last, info["hash"]), Extent(int(remote["max_row"]), str(remote["hash"])), point,
                        self.options.per_diff)  # fmt: skip
        return step, point, remembered >= last

    def _learn(self, talk: Talk, info: Info, remote: Info) -> Info:
        if not self.is_news(info, remote):
            return info
        talk.broker.write(lambda connection: self.learn(connection, talk, remote))
        return talk.broker.read(talk.receiver.info_in)

    def _remember(self, talk: Talk, remote_id: str, point: int) -> None:
        """How far a peer has our rows."""
        broker = talk.broker
        if broker.read(lambda connection: broker.sync_point(connection, remote_id, is_incoming=False)) < point:
            broker.write(lambda connection: broker.merge_sync_points(connection, [(remote_id, point)], is_incoming=False))

    # -- rows ----------------------------------------------------------------------------------------------------------

    def _send_rows(self, talk: Talk, info: Info, remote_id: str, point: int) -> bool:
        """Send the rows above ``point``. False: some wait yet."""
        broker, size = talk.broker, self.options.per_diff
        self._given.count("diff", 1)

        def rows_after(start: int) -> list[dict[str, Any]]:
            return broker.read(lambda connection: broker.rows_since(connection, start, size))

        rows = rows_after(point)
        for _ in range(self.options.max_diffs):
            if not rows:
                break
            self.told(talk, ["merge_items", rows, info["id"]])
            self.rows_sent += len(rows)
            point = rows[-1]["ROWID"]
            rows = rows_after(point) if len(rows) == size else []
        if rows:
            self._given.count("diff_capped", 1)
            return False
        known = broker.read(broker.sync_points)
        if known:  # what others had told us of their rows went along with ours
            self.told(talk, ["merge_syncs", known])
        self._remember(talk, remote_id, point)
        return True

    # -- whole files ---------------------------------------------------------------------------------------------------

    def _send_whole(self, talk: Talk, info: Info, operation: str, offered: Headers) -> bool:
        """Send a copy of the file, and have the peer take it into use. False: another file was there first.

        Raises BackendError; DeviceFull when there is no room for the copy.
        """
        job, broker = talk.job, talk.broker
        path = broker.locate()
        on_disk_thread(job.device, _check_room, self._given.reserve, job.device_path, path)
        copy = f"{job.device_path}/tmp/{db_transfer.SENT}{uuid.uuid4().hex}"
        if operation == "complete_rsync":
            self._given.count("rsync", 1)
        with self._sending.setdefault(talk.node.key, Semaphore()):
            on_disk_thread(job.device, fs.make_directories, os.path.dirname(copy), job.device_path)
            try:
                broker.snapshot(copy)
                if db_transfer.OFFER in offered:
                    size = db_transfer.send(
                        self._given.backend, talk.node.replication_address, self._path(talk), copy, job.device,
                        info["id"], self._given.agent, self.options.node_timeout)  # fmt: skip
                else:
                    size = self._rsync(talk, copy, info["id"])
            finally:
                on_disk_thread(job.device, fs.remove_file, copy)
            timeout_s = max(self.options.node_timeout, size / BYTES_A_SECOND)
            if operation == "rsync_then_merge":
                timeout_s = max(timeout_s, int(info["count"] or 0) / ROWS_A_SECOND)
            answer = self.ask(talk, [operation, info["id"], os.path.basename(path)], timeout_s)
        if answer.status == 404:
            return False
        if not answer.is_success:
            raise BackendError(f"answered {answer.status} to {operation}", talk.node.replication_address)
        self.files_sent += 1
        self.bytes_sent += size
        self.log.info("%s: the whole file (%d bytes) went to %s", path, size, talk.node.key)
        return True

    def _rsync(self, talk: Talk, source: str, database_id: str) -> int:
        """As Swift's servers take files. Raises BackendError."""
        node, options = talk.node, self.options
        size = on_disk_thread(talk.job.device, os.stat, source).st_size
        command = [
            "rsync", "--quiet", "--no-motd", f"--timeout={math.ceil(options.node_timeout)}",
            f"--contimeout={math.ceil(options.conn_timeout)}", "--whole-file",
            *(["--compress"] if options.rsync_compress and node.region != talk.job.own.region else []),
            source, f"{rsync.module_of(options.rsync_module, node)}/{node.device}/tmp/{database_id}",
        ]  # fmt: skip
        limits = RsyncOptions(timeout_s=max(900.0, size / (1 << 20)), log_transfers=False)
        if not rsync.run(command, limits, self.log):
            raise BackendError("rsync failed", node.replication_address)
        return size

    # -- calls ---------------------------------------------------------------------------------------------------------

    @staticmethod
    def _path(talk: Talk) -> str:
        return f"/{talk.node.device}/{talk.job.partition}/{talk.job.name_hash}"

    def ask(self, talk: Talk, call: list[Any], timeout_s: float | None = None) -> Response:
        """One REPLICATE, its answer read. Raises BackendError."""
        headers = Headers({"Content-Type": "application/json", "User-Agent": self._given.agent})
        answer = self._given.peers.call(
            talk.node.replication_address, "REPLICATE", self._path(talk), headers,
            body=json.dumps(call).encode("ascii"), timeout_s=timeout_s or self.options.node_timeout)  # fmt: skip
        answer.body, answer.app_iter = answer.read(MAX_ANSWER), None
        return answer

    def told(self, talk: Talk, call: list[Any]) -> None:
        """As ``ask``, for what has to succeed. Raises BackendError."""
        answer = self.ask(talk, call)
        if not answer.is_success:
            raise BackendError(f"answered {answer.status} to {call[0]}", talk.node.replication_address)


def _check_room(reserve: Reserve, device_path: str, path: str) -> None:
    """Raises DeviceFull when the device has no room for a copy of the file."""
    reserve.check(device_path, os.stat(path).st_size)
