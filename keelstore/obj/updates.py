"""What an object server tells container servers: rows of listings and of the expiry queue (``spec: backend-protocol
4.7, 4.8``).

An update that a container server did not take in time becomes an *async pending*: a file on the object's device that
the updater sends later. Format (``spec: on-disk 5``): a pickle, protocol 0, of ``{op, account, container, obj,
headers, db_state}`` and, for a shard, ``container_path``; headers as Swift's HeaderKeyDict. An update may arrive more
than once; the newest timestamp wins.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import unquote

from keelstore.common import concurrency, events, fs, plainpickle
from keelstore.common.backend import Backend, RowTaker
from keelstore.common.disk_calls import on_disk
from keelstore.common.errors import BackendError, StorageError, WaitTimeout
from keelstore.common.headers import Headers, wire_to_text
from keelstore.common.http import Request, split_path
from keelstore.common.names import HashPath
from keelstore.common.stats import NO_STATS, NoStats
from keelstore.common.timestamp import Timestamp, normalize_delete_at
from keelstore.obj import layout
from keelstore.obj.place import Place

MD5_OF_EMPTY = "d41d8cd98f00b204e9800998ecf8427e"
MAX_HOSTS = 32  # of one update
TOLD_S = 1.0  # for which it is remembered that a container server took a row at once,
MAX_TOLD = 512  # and of how many rows
Target = tuple[str, str, str]  # host, device, partition of a replica
Takers = dict[tuple[str, int], RowTaker | None]


class HeaderKeyDict(dict[str, str]):
    """Stands for Swift's class of this name in a pickle."""


_OURS = f"c{__name__}\nHeaderKeyDict\n".encode()
_SWIFTS = b"cswift.common.header_key_dict\nHeaderKeyDict\n"


def encode_pending(update: dict[str, Any]) -> bytes:
    """The content of an async pending; ``headers`` may be any mapping."""
    # protocol 0 writes a newline inside of a string as \\u000a, so this cannot replace anything but the name of the
    # class
    return plainpickle.dumps({**update, "headers": HeaderKeyDict(update["headers"])}, 0).replace(_OURS, _SWIFTS)


def decode_pending(data: bytes) -> dict[str, Any]:
    """Raises ValueError for what is no update."""
    update = plainpickle.loads(data)
    if not isinstance(update, dict) or not isinstance(update.get("headers"), dict):
        raise ValueError("not an update")
    for key in ("op", "account", "container", "obj"):
        if not isinstance(update.get(key), str):
            raise ValueError(f"an update without {key}")
    update["headers"] = Headers({str(name): str(value) for name, value in update["headers"].items()})
    return update


def write_pending(device_path: str, policy_index: int, name_hash: str, timestamp: Timestamp, data: bytes) -> None:
    """Keep an update until it is sent, durably. Raises DeviceFull, OSError. Blocks."""
    name = layout.async_name(name_hash, timestamp)
    path = f"{device_path}/{layout.async_dir(policy_index)}/{name}"
    try:
        _write(device_path, policy_index, path, data)
    except FileNotFoundError:  # the updater has just removed the directory, because it was empty
        _write(device_path, policy_index, path, data)
    events.hint(events.ASYNC_PENDING, device_path, str(policy_index), os.path.basename(name))


def _write(device_path: str, policy_index: int, path: str, data: bytes) -> None:
    directory = os.path.dirname(path)
    made = fs.make_directories(directory, device_path)
    new = fs.create_file(directory, f"{device_path}/{layout.tmp_dir(policy_index)}", device_path)
    try:
        fs.write_all(new.fd, data)
        fs.sync_file(new.fd)
        fs.link_durably(new, path, made)
    finally:
        new.discard()


class Row(NamedTuple):
    """One row to be changed. ``shard`` is ``account/container`` of the shard that takes it, or ''."""

    op: str
    account: str
    container: str
    obj: str
    headers: Headers
    shard: str = ""
    db_state: str | None = None


class Untold(NamedTuple):
    """A row, and who has not been told of it."""

    row: Row
    targets: Sequence[Target]
    place: Place


class ContainerUpdater:
    stats: NoStats = NO_STATS  # of the server; set when the pipeline is built

    def __init__(self, backend: Backend, hash_path: HashPath, logger: logging.Logger, *, wait_s: float,
                 node_timeout_s: float, expirer_divisor: int, expirer_account: str):
        self._backend, self._hash_path, self._log = backend, hash_path, logger
        self._wait_s, self._node_timeout_s = wait_s, node_timeout_s
        self._divisor, self._expirer_account = expirer_divisor, f".{expirer_account.lstrip('.')}"
        self._user_agent = f"object-server {os.getpid()}"
        self._told: dict[str, tuple[float, str, Headers]] = {}  # rows taken at once, by host and path, oldest first

    # -- listings ------------------------------------------------------------------------------------------------------

    def update_listing(self, op: str, request: Request, place: Place, names: tuple[str, str, str],
                       headers: Headers) -> None:
        """Tell the container of an object. Nothing to do when the request names no container partition."""
        rest = self.tell(op, request, place, names, headers)
        if rest is not None:
            self.send(rest)

    def tell(self, op: str, request: Request, place: Place, names: tuple[str, str, str], headers: Headers,
             takers: Takers | None = None) -> Untold | None:
        """:meth:`update_listing`, as far as that waits for nothing; the rest, to be sent. ``takers``: of this row, to be
        kept by who tells others of it, too.
        """
        environ = request.environ
        partition = environ.get("HTTP_X_CONTAINER_PARTITION")
        if not partition:
            return None
        targets = self._targets(environ.get("HTTP_X_CONTAINER_HOST"), environ.get("HTTP_X_CONTAINER_DEVICE"),
                                partition, request)
        if targets is None:
            return None
        shard = self._shard(request)
        dict.__setitem__(headers, "X-Backend-Storage-Policy-Index", str(place.policy_index))
        path = f"/{shard or f'{names[0]}/{names[1]}'}/{names[2]}"
        takers = {} if takers is None else takers
        targets = self._not_told_at_once(op, targets, path, headers, takers, place.fragments > 0)
        if not targets:
            return None
        headers = headers.copy()
        headers["X-Trans-Id"] = request.trans_id or "-"
        headers["Referer"] = f"{request.method} {request.url()}"
        headers["User-Agent"] = self._user_agent
        return Untold(Row(op, *names, headers, shard, environ.get("HTTP_X_CONTAINER_ROOT_DB_STATE")), targets, place)

    def send(self, rest: Untold) -> None:
        """Of an object; waits a moment for the container servers."""
        self._send(*rest)

    def _not_told_at_once(self, op: str, targets: Sequence[Target], path: str, headers: Headers, takers: Takers,
                          may_be_told: bool) -> list[Target]:
        """Those that did not take the row at once: not of this process, or not the usual row of a usual container.
        ``may_be_told``: each server of a fragment tells a container, and there are fewer of these; one that has just
        taken the very row from us need not hear it again.
        """
        left = []
        for target in targets:
            host, device, partition = target
            address = parse_address(host)
            if address is not None and device and partition:
                try:
                    known_as = f"{host}/{device}/{partition}{path}"
                    if may_be_told and self._is_told(known_as, op, headers):
                        continue
                    if address not in takers:
                        takers[address] = self._row_taker(address, op, path, headers)
                    take = takers[address]
                    if take is not None and take(device, partition):
                        if may_be_told:
                            self._remember(known_as, op, headers)
                        continue
                except Exception:  # in full it is said and logged
                    pass
            left.append(target)
        return left

    def _row_taker(self, address: tuple[str, int], op: str, path: str, headers: Headers) -> RowTaker | None:
        if not self._backend.is_local(address):
            return None
        wanted = headers.copy()
        dict.__setitem__(wanted, "X-Backend-Accept-Redirect", "true")
        return self._backend.row_taker(address, op, path, wanted)

    def _is_told(self, known_as: str, op: str, headers: Headers) -> bool:
        known = self._told.get(known_as)
        return known is not None and time.monotonic() - known[0] < TOLD_S and known[1] == op and known[2] == headers

    def _remember(self, known_as: str, op: str, headers: Headers) -> None:
        told = self._told
        told.pop(known_as, None)
        if len(told) >= MAX_TOLD:
            del told[next(iter(told))]
        told[known_as] = (time.monotonic(), op, headers)

    def _targets(
        self, hosts: str | None, devices: str | None, partition: str, request: Request
    ) -> Sequence[Target] | None:
        """(host, device, partition) of each replica; host and device may be ''. None when the headers make no sense."""
        host_list, device_list = _listed(hosts or ""), _listed(devices or "")
        if len(host_list) != len(device_list) or len(host_list) > MAX_HOSTS:
            self._log.error("container update not sent: %d hosts but %d devices (txn: %s)", len(host_list),
                            len(device_list), request.trans_id)
            return None
        return [(host, device, partition) for host, device in zip(host_list, device_list, strict=True)]

    def _shard(self, request: Request) -> str:
        """The ``account/container`` of the shard that the proxy knows of, or ''."""
        text = request.environ.get("HTTP_X_BACKEND_QUOTED_CONTAINER_PATH")
        if text:
            text = unquote(text, errors="surrogateescape")
        else:
            text = wire_to_text(request.environ.get("HTTP_X_BACKEND_CONTAINER_PATH", ""))
        if not text:
            return ""
        parts = text.strip("/").split("/")
        if len(parts) != 2 or not all(parts):
            self._log.error("container path %r ignored (txn: %s)", text, request.trans_id)
            return ""
        return "/".join(parts)

    # -- expiry queue --------------------------------------------------------------------------------------------------

    def queue_container(self, delete_at: int, names: tuple[str, str, str]) -> str:
        """Which container of the queue a due time belongs to; spread by name, so that one second does not hit one
        container.
        """
        shift = int(self._hash_path.hexdigest(*names), 16) % 100
        return normalize_delete_at(delete_at // self._divisor * self._divisor - shift)

    def update_queue(self, op: str, delete_at: int, request: Request, place: Place, names: tuple[str, str, str],
                     size: str = "0", written: str = "") -> None:
        """Note when an object is due (PUT), or that it no longer is (DELETE, left to the updater).

        Of entries of one POST, about data that differs, that of the newest data is the one that replicas agree upon: so the
        content type, which tells the size, has the time of the data, ``written``.
        """
        environ = request.environ
        stamp = environ["HTTP_X_TIMESTAMP"]
        headers = Headers({
            "X-Backend-Storage-Policy-Index": "0",
            "X-Timestamp": Timestamp(stamp).internal,
            "X-Trans-Id": request.trans_id or "-",
            "Referer": f"{request.method} {request.url()}",
        })  # fmt: skip
        targets: Sequence[Target] = ()
        container = self.queue_container(delete_at, names)
        if op == "PUT":
            hosts = environ.get("HTTP_X_DELETE_AT_HOST")
            if hosts is None:
                return
            headers.update(_entry(size, written or headers["X-Timestamp"]))
            wanted = environ.get("HTTP_X_DELETE_AT_CONTAINER")
            try:
                container = normalize_delete_at(int(wanted)) if wanted else container
            except ValueError:
                wanted = None
            if not wanted:
                self._log.warning("X-Delete-At-Container is missing or no number; using %s (txn: %s)", container,
                                  request.trans_id)
            partition = environ.get("HTTP_X_DELETE_AT_PARTITION", "")
            targets = self._targets(hosts, environ.get("HTTP_X_DELETE_AT_DEVICE"), partition, request) or ()
        headers["User-Agent"] = self._user_agent
        self._send(self._queue_row(op, delete_at, container, names, headers), targets, place)

    def queue_again(self, delete_at: int, place: Place, names: tuple[str, str, str], size: str, written: str,
                    now: Timestamp) -> None:
        """Have the updater note that an object is due, whatever the queue has known of it: see ``overdue``."""
        headers = Headers({
            "X-Backend-Storage-Policy-Index": "0", "X-Timestamp": now.internal, "X-Trans-Id": "-", "Referer": "-",
            "User-Agent": self._user_agent, **_entry(size, written),
        })  # fmt: skip
        self._keep(self._queue_row("PUT", delete_at, self.queue_container(delete_at, names), names, headers), place)

    def _queue_row(self, op: str, delete_at: int, container: str, names: tuple[str, str, str], headers: Headers) -> Row:
        account, container_name, obj = names
        return Row(op, self._expirer_account, container,
                   f"{normalize_delete_at(delete_at)}-{account}/{container_name}/{obj}", headers)

    # -- sending -------------------------------------------------------------------------------------------------------

    def _send(self, row: Row, targets: Iterable[Target], place: Place) -> None:
        """Send to all at once and wait a moment; what is not confirmed by then is kept as an async pending."""
        addressed = []
        is_kept = False
        for host, device, partition in targets:
            address = parse_address(host)
            if address is None or not device or not partition:
                is_kept = True
            else:
                container = row.shard or f"{row.account}/{row.container}"
                addressed.append((address, f"/{device}/{partition}/{container}/{row.obj}"))
        if not addressed:
            self._keep(row, place)
            return
        headers = row.headers.copy()
        headers["X-Backend-Accept-Redirect"] = "true"
        headers["X-Backend-Accept-Quoted-Location"] = "true"
        outcome = _Outcome(len(addressed))
        for address, path in addressed:
            if self._backend.is_local(address):
                self._call(outcome, row.op, address, path, headers, self._wait_s)
            else:
                concurrency.spawn(self._call, outcome, row.op, address, path, headers, self._node_timeout_s)
        try:
            outcome.wait(self._wait_s)
        except WaitTimeout:
            is_kept = True  # now, not when its answer came: this process may not live until then
        if is_kept or outcome.failed:
            self._keep(row._replace(shard=outcome.redirect or row.shard), place)

    def _call(self, outcome: _Outcome, op: str, address: tuple[str, int], path: str, headers: Headers,
              timeout_s: float) -> None:
        failed = True
        try:
            response = self._backend.call(address, op, path, headers, timeout_s=timeout_s)
            response.drain()
            failed = not response.is_success
            if response.status == 301:
                outcome.redirect = redirect_of(response.headers) or outcome.redirect
            elif failed:
                self._log.error("container update failed: %s from %s for %s", response.status, address, path)
        except BackendError as error:
            self._log.error("container update failed, kept for the updater: %s: %s", address, error)
        except Exception:
            self._log.exception("container update failed: %s %s", address, path)
        finally:
            outcome.ended(failed)

    def _keep(self, row: Row, place: Place) -> None:
        self.stats.increment("async_pendings")
        update: dict[str, Any] = {"op": row.op, "account": row.account, "container": row.container, "obj": row.obj,
                                  "headers": row.headers, "db_state": row.db_state}
        if row.shard:
            update["container_path"] = row.shard
        name_hash = self._hash_path.hexdigest(row.account, row.container, row.obj)
        stamp = Timestamp(row.headers.get("X-Meta-Timestamp") or row.headers["X-Timestamp"])
        try:
            on_disk(place.device, write_pending, place.device_path, place.policy_index, name_hash, stamp,
                           encode_pending(update))
        except (OSError, StorageError) as error:
            self._log.error("container update of /%s/%s/%s is lost: %s", row.account, row.container, row.obj, error)


def _entry(size: str, written: str) -> dict[str, str]:
    """The headers of an entry of the expiry queue, for an object of so many bytes."""
    return {"X-Size": "0", "X-Content-Type": f"text/plain;swift_expirer_bytes={size}", "X-Etag": MD5_OF_EMPTY,
            "X-Content-Type-Timestamp": written}


class _Outcome:
    """What several calls came to."""

    __slots__ = ("_done", "_left", "failed", "redirect")

    def __init__(self, count: int):
        self._left, self.failed, self.redirect = count, False, ""
        self._done: concurrency.Event | None = None  # made when somebody has to wait

    def ended(self, failed: bool) -> None:
        self.failed = self.failed or failed
        self._left -= 1
        if not self._left and self._done is not None:
            self._done.set()

    def wait(self, seconds: float) -> None:
        """Until all have ended. Raises WaitTimeout."""
        if self._left:
            self._done = concurrency.Event()
            self._done.wait(seconds)


@lru_cache(maxsize=1024)
def _listed(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(","))


@lru_cache(maxsize=1024)
def parse_address(text: str) -> tuple[str, int] | None:
    """``ip:port``, IPv6 in brackets or not, to (ip, port)."""
    ip, _, port = text.rpartition(":")
    if not ip or not port.isdigit() or len(port) > 5:
        return None
    return ip.strip("[]"), int(port)


def redirect_of(headers: Headers) -> str:
    """The ``account/container`` that a 301 points to, or ''."""
    location = headers.get("Location", "")
    if headers.get("X-Backend-Location-Is-Quoted", "").lower() == "true":
        location = unquote(location, errors="surrogateescape")
    else:
        location = wire_to_text(location)
    try:
        account, container, _ = split_path(location, 3, 3, rest_with_last=True)
    except ValueError:
        return ""
    return f"{account}/{container}"
