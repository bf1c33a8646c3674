"""What account, container and object servers share (``spec: backend-protocol 1``).

A server names its verbs; this class dispatches, checks paths and timestamps, maps errors to statuses and writes the access
line. Handlers are methods ``(request) -> Response``; they raise RequestError or StorageError for everything that goes wrong
on purpose. What they raise otherwise is a fault of ours: it is logged with the transaction id and answered 500.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from keelstore import __version__
from keelstore.common.cluster import Cluster
from keelstore.common.devices import check_device, device_path
from keelstore.common.errors import (
    BadRequest,
    DatabaseCorrupt,
    DeviceBusy,
    DeviceFull,
    DeviceUnavailable,
    LockTimeout,
    ObjectCollision,
    ObjectNotFound,
    ObjectStateChanged,
    RequestError,
    StorageError,
    XattrNotSupported,
)
from keelstore.common.headers import BUSY, REASON, ROOM, is_true
from keelstore.common.http import IN_PROCESS, Environ, Request, Response, StartResponse, error_response, split_path
from keelstore.common.limits import is_valid_text
from keelstore.common.metrics import Meter
from keelstore.common.names import reserved_problem
from keelstore.common.options import option, positive
from keelstore.common.room import Reserve, reserve_problem
from keelstore.common.stats import NO_STATS, NoStats
from keelstore.common.timestamp import Timestamp

Handler = Callable[[Request], Response]
MAX_DEVICE_NAME = 255


@dataclass(frozen=True)
class StorageServerOptions:
    """Options that all storage servers have."""

    devices: str = option("/srv/node", "Directory that holds the device mount points.")
    mount_check: bool = option(True, "Refuse a device that is not a mount point.")
    swift_dir: str = option("/etc/swift", "Directory of the cluster file and the rings.")
    replication_server: bool = option(True, "Answer the replication verbs too; false leaves them to another process.")
    log_requests: bool = option(True, "Write an access line for each request.")
    fallocate_reserve: str = option("1%", "Space kept free on each device: bytes, or a percentage with %.",
                                    check=reserve_problem)
    conn_timeout: float = option(0.5, "Seconds to wait for a connection to another node.", check=positive)
    node_timeout: float = option(3.0, "Seconds to wait for an answer of another node.", check=positive)


@dataclass(frozen=True, slots=True)
class Names:
    """What a backend path names; ``container`` and ``obj`` are '' when absent."""

    device: str
    partition: str
    account: str
    container: str = ""
    obj: str = ""


class StorageServer:
    """A WSGI application over the devices of one node."""

    service: ClassVar[str] = ""
    replication_verbs: ClassVar[frozenset[str]] = frozenset({"REPLICATE", "SSYNC"})
    debug_verbs: ClassVar[frozenset[str]] = frozenset({"REPLICATE", "SSYNC"})
    meter: Meter | None = None  # these two are set when the pipeline is built
    stats: NoStats = NO_STATS

    def __init__(self, options: StorageServerOptions, cluster: Cluster, logger: logging.Logger,
                 clock: Callable[[], float] = time.time):
        self.options_common, self.cluster, self.logger, self.clock = options, cluster, logger, clock
        self.reserve = Reserve.parse(options.fallocate_reserve)
        allowed = dict(self.handlers())
        if not options.replication_server:
            for verb in self.replication_verbs:
                allowed.pop(verb, None)
        allowed["OPTIONS"] = self._options
        self._handlers = allowed
        self._allow = ", ".join(sorted(allowed))

    def measure_by(self, stats: NoStats) -> None:
        """Send statsd metrics; called before the first request."""
        self.stats = stats

    def handlers(self) -> Mapping[str, Handler]:
        """The verbs of this server; called once."""
        raise NotImplementedError

    # -- for handlers --------------------------------------------------------------------------------------------------

    def split(self, request: Request, minimum: int, maximum: int) -> Names:
        """Device, partition and names of the path. Raises BadRequest; the object's name keeps its slashes."""
        try:
            parts = split_path(request.path, minimum, maximum, rest_with_last=maximum == 5)
        except ValueError as error:
            raise BadRequest(str(error)) from None
        device, partition, account = parts[0] or "", parts[1] or "", parts[2] or ""
        check_segment("device", device)
        check_segment("partition", partition)
        container = (parts[3] if maximum > 3 else None) or ""
        obj = (parts[4] if maximum > 4 else None) or ""
        if "\x00" in request.path:
            problem = reserved_problem(account, container, obj)
            if problem:
                raise BadRequest(problem)
        return Names(device, partition, account, container, obj)

    def timestamp(self, request: Request) -> Timestamp:
        """X-Timestamp. Raises BadRequest when it is missing or no timestamp."""
        text = request.environ.get("HTTP_X_TIMESTAMP")
        if text is None:
            raise BadRequest("Missing X-Timestamp header")
        try:
            return Timestamp(text)
        except ValueError:
            raise BadRequest("Invalid X-Timestamp header") from None

    def device_path(self, device: str) -> str:
        """The directory of a usable device. Raises DeviceUnavailable (507)."""
        return check_device(self.options_common.devices, device, self.options_common.mount_check)

    def device_path_to_try(self, device: str) -> str:
        """As :meth:`device_path`, where a directory that is not there is found out by what is done in it."""
        common = self.options_common
        return self.device_path(device) if common.mount_check else device_path(common.devices, device)

    def check_space(self, device_path: str) -> None:
        """Raises DeviceFull (507) when the device is within its reserve."""
        self.reserve.check(device_path)

    # -- the application -----------------------------------------------------------------------------------------------

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        started = time.time()
        request = Request(environ)
        handler = self._handlers.get(environ["REQUEST_METHOD"])
        try:
            if handler is None:
                response = Response(405, {"Allow": self._allow}, content_type="text/html; charset=UTF-8")
            elif not is_valid_text(request.path, internal=True):
                text = "Invalid UTF8" if self.service == "account" else "Invalid UTF8 or contains NULL"
                response = Response(412, body=text, content_type="text/plain")
            else:
                response = handler(request)
        except Exception as error:
            response = self.answer_to(error, request)
        if self.meter is not None:
            self.meter.record(environ["REQUEST_METHOD"], response.status, time.time() - started)
        if self.stats:
            self._measure(request, response, started)
        if self.options_common.log_requests:
            self._log(request, response, started)
        return response(environ, start_response)

    def _measure(self, request: Request, response: Response, started: float) -> None:
        """The field's statsd metrics of a request: ``<VERB>.timing``, ``<VERB>.errors.timing``, and one with labels."""
        stats, method, status = self.stats, request.environ["REQUEST_METHOD"], response.status
        stats.timing_since(f"{method}.errors.timing" if status >= 500 else f"{method}.timing", started)
        if stats.has_labels:
            stats.labelled(f"swift_{self.service}_server_request_timing", "ms", round((time.time() - started) * 1000, 4),
                           {"method": method, "status": status})

    def _options(self, request: Request) -> Response:
        return Response(200, {"Allow": self._allow, "Server": f"{self.service}-server/{__version__}"},
                        content_type="text/plain")

    def answer_to(self, error: Exception, request: Request) -> Response:
        """What a request is answered that raised an error; logged where it is not the client's."""
        if isinstance(error, RequestError):
            return error_response(error)
        if isinstance(error, StorageError):
            return self._storage_error(error, request)
        self.logger.error("%s %s failed (txn: %s)", request.method, request.path_quoted(), request.trans_id, exc_info=error)
        return Response(500, body="The server could not carry out the request; its log says why.", content_type="text/plain")

    def _storage_error(self, error: StorageError, request: Request) -> Response:
        status = status_of(error)
        if isinstance(error, DeviceBusy):
            return Response(status, {REASON: BUSY, "Retry-After": "1"})
        if status in (500, 503):
            self.logger.error("%s %s: %s (txn: %s)", request.method, request.path_quoted(),
                              error or type(error).__name__, request.trans_id)
        elif isinstance(error, (DeviceFull, XattrNotSupported)):
            self.logger.warning("%s %s: %s (txn: %s)", request.method, request.path_quoted(),
                                error or type(error).__name__, request.trans_id)
        return Response(status, {REASON: ROOM} if isinstance(error, DeviceFull) else None)

    def _log(self, request: Request, response: Response, started: float) -> None:
        environ = request.environ
        quiet = (
            IN_PROCESS in environ
            or environ["REQUEST_METHOD"] in self.debug_verbs
            or (self.service == "object" and is_true(environ.get("HTTP_X_BACKEND_REPLICATION")))
        )
        level = logging.DEBUG if quiet else logging.INFO
        if self.logger.isEnabledFor(level):
            self.logger.log(level, "%s", access_line(request, response, started, time.time()))


def status_of(error: StorageError) -> int:
    """The status that answers a StorageError which no handler turned into something better."""
    if isinstance(error, (DeviceUnavailable, DeviceFull, XattrNotSupported)):
        return 507
    if isinstance(error, ObjectNotFound):
        return 404
    if isinstance(error, ObjectCollision):
        return 403
    if isinstance(error, (LockTimeout, ObjectStateChanged, DatabaseCorrupt, DeviceBusy)):
        return 503
    return 500


@lru_cache(maxsize=8192)
def check_segment(kind: str, text: str) -> None:
    """Raises BadRequest for a device or partition that could leave its directory."""
    if not text or text in (".", "..") or "/" in text or "\x00" in text or len(text.encode()) > MAX_DEVICE_NAME:
        raise BadRequest(f"Invalid {kind}: {text[:80].encode('unicode_escape').decode()}")


def access_line(request: Request, response: Response, started: float, ended: float) -> str:
    """One request as the field's log tools read it."""
    environ = request.environ
    path = request.path_quoted()
    if environ.get("QUERY_STRING"):
        path = f"{path}?{environ['QUERY_STRING']}"
    length = response.headers.get("Content-Length", "-")
    if length == "-" and response.body is not None:
        length = str(len(response.body))
    info = environ.get("swift.log_info")
    when = time.strftime("%d/%b/%Y:%H:%M:%S +0000", time.gmtime(ended))
    return (
        f"{environ.get('REMOTE_ADDR') or '-'} - - [{when}] "
        f'"{request.method} {path}" {response.status} {length} "{_safe(environ.get("HTTP_REFERER"))}" '
        f'"{request.trans_id or "-"}" "{_safe(environ.get("HTTP_USER_AGENT"))}" {ended - started:.4f} '
        f'"{",".join(info) if info else "-"}" {os.getpid()} '
        f"{environ.get('HTTP_X_BACKEND_STORAGE_POLICY_INDEX') or '-'}"
    )


def _safe(value: str | None) -> str:
    return value.replace('"', "%22") if value else "-"
