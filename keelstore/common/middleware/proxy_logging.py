"""proxy_logging: one line for each request, in the access log, and its statsd metrics.

It stands in a pipeline twice: on the left, where clients' requests pass, and in front of the proxy, for what middlewares
ask in their own name. A request is logged by the first that it meets. Bodies are held to their Content-Length here too, so
that what is logged as whole was whole. Tokens and signatures are shortened, keys left out.

Stands after catch_errors and gatekeeper; a second time last. Needs nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from keelstore.common.errors import ClientTimeout, ConfigError
from keelstore.common.headers import title
from keelstore.common.http import BODYLESS, SOURCE, Environ, StartResponse, WSGIApp
from keelstore.common.logs import logger_for, write_access_line
from keelstore.common.middleware.access_line import (
    DEFAULT_TEMPLATE,
    Hit,
    LineOptions,
    compile_template,
)
from keelstore.common.middleware.bodies import Answer, Exact, WrongLength, held_pieces
from keelstore.common.options import not_negative, option, parse, unused
from keelstore.common.relay import Pieces, Region, close, file_pieces, file_region, file_region_sent
from keelstore.common.stats import NO_STATS, NoStats, stats_for

AFTER: Final[tuple[str, ...]] = ()
BEFORE: Final[tuple[str, ...]] = ()

MADE: Final = "swift.proxy_access_log_made"
STATUS_OVERRIDE: Final = "swift.proxy_logging_status"
CLIENT_GONE: Final = 499
T = TypeVar("T")


@dataclass(frozen=True)
class ProxyLoggingOptions:
    """Options of ``[filter:proxy-logging]``; every ``log_*`` and ``statsd_*`` option may be set as ``access_log_*`` too."""

    log_msg_template: str = option(DEFAULT_TEMPLATE, "The line, with {fields}; doc/admin/middleware lists them.")
    access_log_headers: bool = option(False, "Log the request's headers.", names=("access_log_headers", "log_headers"))
    access_log_headers_only: tuple[str, ...] = option(
        (), "Log these headers only.", names=("access_log_headers_only", "log_headers_only"))
    valid_http_methods: tuple[str, ...] = option(
        ("GET", "HEAD", "POST", "PUT", "DELETE", "COPY", "OPTIONS", "UPDATE"),
        "Methods that have metrics of their own; others count as BAD_METHOD.",
        names=("access_log_statsd_valid_http_methods", "log_statsd_valid_http_methods"))
    reveal_sensitive_prefix: int = option(16, "Characters shown of a token or signature.", check=not_negative)
    log_anonymization_method: str = option("md5", "Hash function of {field.anonymized}.")
    log_anonymization_salt: str = option("", "Salt of {field.anonymized}.")
    storage_domain: str = unused("", "paths are logged as they came.")
    emit_every_s: float = option(
        -1.0, "Seconds between metrics of a body still under way; 0: at each part; below 0: never.",
        names=("statsd_emit_buffer_xfer_bytes_seconds",))


class ProxyLogging:
    def __init__(self, app: WSGIApp, options: ProxyLoggingOptions, logger: logging.Logger, stats: NoStats = NO_STATS,
                 now: Callable[[], float] = time.time):
        self.app, self.options, self.log, self.stats, self._now = app, options, logger, stats, now
        only = frozenset(title(name) for name in options.access_log_headers_only)
        self._render = compile_template(options.log_msg_template, LineOptions(
            reveal=options.reveal_sensitive_prefix,
            anonymization_method=options.log_anonymization_method,
            anonymization_salt=options.log_anonymization_salt,
            headers=only if options.access_log_headers else None,
            storage_domain=options.storage_domain,
        ))
        self._methods = frozenset(method.upper() for method in options.valid_http_methods)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if MADE in environ:
            return self.app(environ, start_response)
        environ[MADE] = True
        if not self.stats and not self.log.isEnabledFor(logging.INFO):
            return self.app(environ, start_response)
        hit = Hit(environ, self._now())
        taken = None
        if environ.get("CONTENT_LENGTH", "0") not in ("0", "") or "HTTP_TRANSFER_ENCODING" in environ:
            taken = environ["wsgi.input"] = CountedInput(environ["wsgi.input"])
            if self.options.emit_every_s >= 0 and self.stats.has_labels:
                taken.on_part = self._emitter(hit, "swift_proxy_server_request_body_streaming_bytes")
        try:
            answer = Answer(self.app, environ)
        except Exception:
            hit.wire_status = 500
            self._finish(hit, 500, taken)
            raise
        headers, body = answer.headers, answer.body
        status = int(answer.status[:3])
        length = -1
        for name, value in headers:
            size = len(name)
            if size == 14:
                if name == "Content-Length" or name.lower() == "content-length":
                    length = int(value) if value.isascii() and value.isdigit() else -1
            elif size == 30 and name.lower() == "x-backend-storage-policy-index":
                hit.policy_index = value
        hit.wire_status = status
        if status in BODYLESS:
            length = -1
        if hit.method == "HEAD":
            close(body)
            body = ()
        if type(body) is tuple or type(body) is list:
            size = sum(map(len, body))
            if length < 0 and hit.method != "HEAD" and status not in BODYLESS:
                headers = [*headers, ("Content-Length", str(size))]
            elif size != length >= 0 and hit.method != "HEAD":
                body = Exact(body, length)
        start_response(answer.status, headers)
        if type(body) is tuple or type(body) is list:
            hit.sent = size
            self._finish(hit, status, taken)
            return body
        return LoggedBody(self, hit, status, body, length, taken)

    def _finish(self, hit: Hit, status: int, taken: CountedInput | None) -> None:
        """Write the line and send the metrics."""
        environ = hit.environ
        hit.end = self._now()
        if taken is not None:
            hit.received = taken.count
            if taken.is_broken:
                status = CLIENT_GONE
        hit.status = environ.get(STATUS_OVERRIDE) or status
        if hit.policy_index is None:
            hit.policy_index = environ.get("HTTP_X_BACKEND_STORAGE_POLICY_INDEX")
        log = self.log
        if log.isEnabledFor(logging.INFO):
            write_access_line(log, self._render(hit), hit.end)
        if self.stats:
            self._measure(hit)

    # -- metrics -----------------------------------------------------------------------------------------------------

    def _kind(self, hit: Hit) -> tuple[str, list[str]]:
        """What was asked for: account, container or object (else the source of the request), and its names."""
        parts = (hit.environ.get("swift.backend_path") or hit.path).split("/", 4)
        if len(parts) > 2 and parts[1] in ("v1", "v1.0") and parts[2]:
            names = [part for part in parts[2:] if part]
            return ("account", "container", "object")[len(names) - 1], names
        return hit.environ.get(SOURCE) or "UNKNOWN", []

    def _measure(self, hit: Hit) -> None:
        stats = self.stats
        kind, names = self._kind(hit)
        method = hit.environ.get("swift.orig_req_method") or hit.method
        if method not in self._methods:
            method = "BAD_METHOD"
        took_ms = (hit.end - hit.start) * 1000
        bases = [f"{kind}.{method}.{hit.status}"]
        if kind == "object" and hit.policy_index:
            bases.append(f"object.policy.{hit.policy_index}.{method}.{hit.status}")
        for base in bases:
            stats.timing(f"{base}.timing", took_ms)
            if method == "GET" and hit.ttfb is not None:
                stats.timing(f"{base}.first-byte.timing", hit.ttfb * 1000)
            stats.update(f"{base}.xfer", hit.received + hit.sent)
        if stats.has_labels:
            labels = self._labels(hit, kind, names, method)
            labels["status"] = hit.status
            stats.labelled("swift_proxy_server_request_timing", "ms", round(took_ms, 4), labels)
            stats.labelled("swift_proxy_server_request_body_bytes", "c", hit.received, labels)
            stats.labelled("swift_proxy_server_response_body_bytes", "c", hit.sent, labels)
            if method == "GET" and hit.ttfb is not None:
                stats.labelled("swift_proxy_server_request_ttfb", "ms", round(hit.ttfb * 1000, 4), labels)

    def _labels(self, hit: Hit, kind: str, names: list[str], method: str) -> dict[str, Any]:
        return {
            "resource": kind, "method": method, "policy": hit.policy_index,
            "account": names[0] if names else None, "container": names[1] if len(names) > 1 else None,
            "api": "S3" if "swift.backend_path" in hit.environ else "swift",
        }  # fmt: skip

    def _emitter(self, hit: Hit, metric: str) -> Callable[[int], None]:
        """Counts bytes and sends what has come together every ``emit_every_s`` seconds."""
        waiting, due = 0, self._now() + self.options.emit_every_s

        def emit(count: int) -> None:
            nonlocal waiting, due
            waiting += count
            now = self._now()
            if now >= due:
                kind, names = self._kind(hit)
                self.stats.labelled(metric, "c", waiting, self._labels(hit, kind, names, hit.method))
                waiting, due = 0, now + self.options.emit_every_s

        return emit


class CountedInput:
    """A request's body that counts what is read of it. ``is_broken``: the client went away or broke the framing."""

    def __init__(self, source: Any):
        self._source = source
        self.count = 0
        self.is_broken = False
        self.on_part: Callable[[int], None] | None = None

    def read(self, *args: Any) -> bytes:
        return self._count(self._source.read, args)

    def read1(self, *args: Any) -> bytes:
        return self._count(self._source.read1, args)

    def readinto(self, view: memoryview) -> int:
        read_into = getattr(type(self._source), "readinto", None)
        if read_into is not None:
            return self._count(read_into, (self._source, view), int)
        data = self.read(min(len(view), 65536))
        view[: len(data)] = data
        return len(data)

    def readline(self, *args: Any) -> bytes:
        return self._count(self._source.readline, args)

    def readlines(self, *args: Any) -> list[bytes]:
        return list(self)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.readline, b"")

    def _count(self, method: Callable[..., T], args: tuple[Any, ...], size_of: Callable[[Any], int] = len) -> T:
        try:
            data = method(*args)
        except ClientTimeout:  # there still, but silent: the 408 that follows says so
            raise
        except Exception:
            self.is_broken = True
            raise
        size = size_of(data)
        self.count += size
        if self.on_part is not None:
            self.on_part(size)
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)


class LoggedBody:
    """A streamed body: counted, held to its length (-1: none), and logged when it ends or the client leaves."""

    def __init__(self, owner: ProxyLogging, hit: Hit, status: int, body: Iterable[bytes], length: int,
                 taken: CountedInput | None):
        self._owner, self._hit, self._status = owner, hit, status
        self._body, self._length, self._taken = body, length, taken
        self._is_logged = False

    def __iter__(self) -> Iterator[bytes]:
        owner, hit, length = self._owner, self._hit, self._length
        emit = None
        if owner.options.emit_every_s >= 0 and owner.stats.has_labels:
            emit = owner._emitter(hit, "swift_proxy_server_response_body_streaming_bytes")
        sent = 0
        try:
            for part in self._body:
                if not part:
                    continue
                if not sent:
                    hit.ttfb = owner._now() - hit.start
                sent += len(part)
                if sent > length >= 0:
                    part = part[: length - sent]
                    hit.sent = length
                    if part:
                        yield part
                    raise WrongLength(f"the body is longer than its {length} bytes")
                hit.sent = sent
                if emit is not None:
                    emit(len(part))
                yield part
            if sent < length:
                raise WrongLength(f"the body ended {length - sent} bytes short of its {length}")
        except Exception:
            self._log(500)
            raise
        self._log(self._status)

    def _log(self, status: int) -> None:
        if not self._is_logged:
            self._is_logged = True
            self._owner._finish(self._hit, status, self._taken)

    def file_region(self) -> Region | None:
        region = file_region(self._body)
        return region if region is not None and region[2] == self._length else None

    def file_region_sent(self) -> None:
        self._hit.sent = self._length
        file_region_sent(self._body)

    def file_pieces(self) -> Pieces | None:
        owner = self._owner
        if self._length < 0 or (owner.options.emit_every_s >= 0 and owner.stats.has_labels):
            return None
        pieces = file_pieces(self._body)
        return None if pieces is None else self._counted(held_pieces(pieces, self._length))

    def _counted(self, pieces: Pieces) -> Pieces:
        """``pieces``, each counted once the next one is asked for: it has been sent then."""
        owner, hit, sent = self._owner, self._hit, 0
        try:
            for piece in pieces:
                if not sent:
                    hit.ttfb = owner._now() - hit.start
                yield piece
                sent += piece[2] if type(piece) is tuple else len(piece)
                hit.sent = sent
        except Exception:
            self._log(500)
            raise
        self._log(self._status)

    def close(self) -> None:
        close(self._body)
        self._log(self._status if self._hit.sent == self._length else CLIENT_GONE)


def filter_factory(global_conf: dict[str, str], **local_conf: str) -> Callable[[WSGIApp], ProxyLogging]:
    conf = {**global_conf, **local_conf}
    options = parse(ProxyLoggingOptions, conf, section="filter:proxy-logging", local=local_conf,
                    known=("use", "set *", "access_log_*", "log_*", "statsd_*"))
    for name, value in list(conf.items()):
        if name.startswith("access_log_"):
            conf[name.removeprefix("access_")] = value
        elif name.startswith("access_"):
            conf.setdefault(name.removeprefix("access_"), value)
    try:
        logger = logger_for(conf, conf.get("access_log_route", "proxy-access"))
    except ConfigError as error:
        raise ConfigError(error.reason, section="filter:proxy-logging", option=f"access_{error.option}",
                          value=error.value) from None
    stats = stats_for(conf, "proxy-server")
    return lambda app: ProxyLogging(app, options, logger, stats)


