"""backend_ratelimit: requests per second to each device of a storage server (``spec: middleware 33``).

Beyond a rate the answer is 529, at once: a proxy then asks another replica. Rates are those of one worker, for all methods
together and for single ones. They may also stand in ``backend-ratelimit.conf``, which is read again when it changes, so that
they can be turned while the server runs.

Stands first in a storage server's pipeline, after healthcheck and recon. Needs nothing.
"""

from __future__ import annotations

import configparser
import dataclasses
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from keelstore.common.errors import ConfigError
from keelstore.common.http import Environ, Response, StartResponse, WSGIApp
from keelstore.common.logs import logger_for
from keelstore.common.options import not_negative, option, parse
from keelstore.common.stats import NO_STATS, NoStats, stats_for

AFTER: Final[tuple[str, ...]] = ()
BEFORE: Final[tuple[str, ...]] = ()

SECTION: Final = "backend_ratelimit"
METHODS: Final = ("DELETE", "GET", "HEAD", "POST", "PUT", "REPLICATE", "UPDATE")
_MAX_BUCKETS: Final = 10000  # devices times methods; what is beyond is not limited
_EVERY: Final = "all methods"


@dataclass(frozen=True)
class BackendRatelimitOptions:
    """Options of ``[filter:backend_ratelimit]``; all rates are for one device and one worker, 0 is no limit."""

    requests_per_device_per_second: float = option(0.0, "Requests of all methods together.", check=not_negative)
    delete_requests_per_device_per_second: float = option(0.0, "DELETE requests.", check=not_negative)
    get_requests_per_device_per_second: float = option(0.0, "GET requests.", check=not_negative)
    head_requests_per_device_per_second: float = option(0.0, "HEAD requests.", check=not_negative)
    post_requests_per_device_per_second: float = option(0.0, "POST requests.", check=not_negative)
    put_requests_per_device_per_second: float = option(0.0, "PUT requests.", check=not_negative)
    replicate_requests_per_device_per_second: float = option(0.0, "REPLICATE requests.", check=not_negative)
    update_requests_per_device_per_second: float = option(0.0, "UPDATE requests.", check=not_negative)
    requests_per_device_rate_buffer: float = option(1.0, "Seconds of unused rate that may be caught up with.",
                                                    check=not_negative)
    backend_ratelimit_conf_path: str = option("", "File whose section [backend_ratelimit] overrides the options above. "
                                                  "Empty: backend-ratelimit.conf in swift_dir, if it is there.")
    config_reload_interval: float = option(60.0, "Seconds between looks at that file.", check=not_negative)
    swift_dir: str = option("/etc/swift", "Directory of the cluster file.")

    def rates(self) -> dict[str, float]:
        """Method (or all of them together) to its rate, for those that are limited."""
        found = {method: getattr(self, f"{method.lower()}_requests_per_device_per_second") for method in METHODS}
        found[_EVERY] = self.requests_per_device_per_second
        return {name: rate for name, rate in found.items() if rate > 0}


class BackendRatelimit:
    def __init__(self, app: WSGIApp, options: BackendRatelimitOptions, logger: logging.Logger, stats: NoStats = NO_STATS,
                 now: Callable[[], float] = time.monotonic):
        self.app, self.log, self.stats, self._now = app, logger, stats, now
        self._own = self.options = options
        self._is_named = bool(options.backend_ratelimit_conf_path)
        self._path = options.backend_ratelimit_conf_path or os.path.join(options.swift_dir, "backend-ratelimit.conf")
        self._rates = options.rates()
        self._next: dict[tuple[str, str], float] = {}  # when the bucket will be full again
        self._mtime_ns = self._next_look = -1.0
        self._look()

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if self._now() >= self._next_look:
            self._look()
        if self._rates:
            parts = environ["PATH_INFO"].split("/", 3)
            if len(parts) > 2 and parts[2].isdigit() and not self._allows(parts[1], environ["REQUEST_METHOD"]):
                self.stats.increment("backend.ratelimit")
                return Response(529, body="Too Many Backend Requests", content_type="text/plain")(environ, start_response)
        return self.app(environ, start_response)

    def _allows(self, device: str, method: str) -> bool:
        now = self._now()
        waiting = []
        for name in (method, _EVERY):
            rate = self._rates.get(name)
            if rate is None:
                continue
            key = (device, name)
            due = max(self._next.get(key, 0.0), now - self.options.requests_per_device_rate_buffer)
            if due > now:
                return False
            if key in self._next or len(self._next) < _MAX_BUCKETS:
                waiting.append((key, due + 1 / rate))
        self._next.update(waiting)
        return True

    def _look(self) -> None:
        """Read the file of rates when it has changed; one that is wrong changes nothing."""
        self._next_look = self._now() + self._own.config_reload_interval
        try:
            mtime_ns: float = os.stat(self._path).st_mtime_ns
        except OSError as error:
            if self._is_named and self._mtime_ns != 0:
                self.log.warning("%s cannot be read: %s", self._path, error.strerror)
            if self._mtime_ns > 0:
                self._use(self._own)
            self._mtime_ns = 0
            return
        if mtime_ns == self._mtime_ns:
            return
        self._mtime_ns = mtime_ns
        try:
            self._use(parse(BackendRatelimitOptions, {**_as_conf(self._own), **_read(self._path)}, section=SECTION,
                            file=self._path))
        except ConfigError as error:
            self.log.error("the rates stay as they are: %s", error)

    def _use(self, options: BackendRatelimitOptions) -> None:
        self.options = options
        self._rates = options.rates()


def _as_conf(options: BackendRatelimitOptions) -> dict[str, str]:
    return {name: str(value) for name, value in dataclasses.asdict(options).items()}


def _read(path: str) -> Mapping[str, str]:
    parser = configparser.ConfigParser(interpolation=None)
    try:
        with open(path, encoding="utf-8") as file:
            parser.read_file(file)
        return dict(parser.items(SECTION)) if parser.has_section(SECTION) else {}
    except (OSError, UnicodeDecodeError, configparser.Error) as error:
        raise ConfigError(" ".join(str(error).split()), file=path) from None


def filter_factory(global_conf: dict[str, str], **local_conf: str) -> Callable[[WSGIApp], BackendRatelimit]:
    conf = {**global_conf, **local_conf}
    options = parse(BackendRatelimitOptions, conf, section="filter:backend_ratelimit", local=local_conf,
                    known=("use", "set *", "log_*"))
    logger, stats = logger_for(conf, "backend_ratelimit"), stats_for(conf, "backend_ratelimit")
    return lambda app: BackendRatelimit(app, options, logger, stats)
