"""ratelimit: writes and listings per second, for each account and container (``spec: middleware 11``). Off unless configured.

Counters in the shared cache hold, in ticks, the time up to which requests have been let through. A request adds its
share; what lies ahead of now is how long it must wait. One that would wait too long is refused, with 429 and Retry-After
(498, as Swift has it, is an option: clients that do not know it take it for the end of their run, cases.md C31).

Stands after cache and before authentication. Needs ``swift.cache``; without it, or while that fails, nothing is limited.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from keelstore.common.cache import CacheError
from keelstore.common.concurrency import sleep
from keelstore.common.errors import ConfigError
from keelstore.common.http import CACHE, Environ, Response, StartResponse, WSGIApp
from keelstore.common.info import account_info, container_info
from keelstore.common.logs import logger_for
from keelstore.common.names import api_path
from keelstore.common.options import not_negative, option, parse, positive
from keelstore.common.registry import register_info

AFTER: Final = ("catch_errors", "gatekeeper", "memcache")
BEFORE: Final[tuple[str, ...]] = ()

HANDLED: Final = "swift.ratelimit.handled"
SECTION: Final = "filter:ratelimit"
_WRITES: Final = frozenset({"PUT", "DELETE", "POST", "COPY"})


def _limit_status(value: int) -> str | None:
    return None if value in (429, 498) else "429 or 498"


@dataclass(frozen=True)
class RatelimitOptions:
    """Options of ``[filter:ratelimit]``.

    Besides these: ``container_ratelimit_<size> = <rate>`` (writes of objects in containers of that many objects) and
    ``container_listing_ratelimit_<size>``; between two sizes the rate is interpolated.
    """

    account_ratelimit: float = option(0.0, "PUT and DELETE of containers a second in one account; 0: no limit.",
                                      check=not_negative)
    max_sleep_time_seconds: float = option(60.0, "A request that would wait longer is refused.", check=not_negative)
    log_sleep_time_seconds: float = option(0.0, "Log waits longer than this; 0: none.", check=not_negative)
    rate_buffer_seconds: float = option(5.0, "Seconds of unused rate that may be caught up with.", check=not_negative)
    clock_accuracy: int = option(1000, "Ticks of the counters in a second.", check=positive)
    account_whitelist: tuple[str, ...] = option((), "Accounts without limits. Deprecated: see Global-Write-Ratelimit.")
    account_blacklist: tuple[str, ...] = option((), "Accounts that are refused. Deprecated: see Global-Write-Ratelimit.")
    rate_limited_status: int = option(
        429, "Status of what is refused: 429, which clients know and repeat, or 498, as Swift has it.", check=_limit_status)
    container_rates: tuple[tuple[int, float], ...] = field(default=())
    listing_rates: tuple[tuple[int, float], ...] = field(default=())


def rates_of(conf: Mapping[str, str], prefix: str) -> tuple[tuple[int, float], ...]:
    """``<prefix><size> = <rate>`` as (size, rate), by size. Raises ConfigError."""
    found = []
    for name, value in conf.items():
        if not name.startswith(prefix):
            continue
        size = name[len(prefix):]
        try:
            rate = float(value)
        except ValueError:
            rate = -1.0
        if not (size.isascii() and size.isdigit()) or not rate >= 0:
            raise ConfigError(f"expected {prefix}<size> = <requests a second>", section=SECTION, option=name, value=value)
        found.append((int(size), rate))
    return tuple(sorted(found))


def rate_for(rates: tuple[tuple[int, float], ...], size: int) -> float | None:
    """Requests a second at ``size`` objects: on the line between the points around it, constant after the last; None: any."""
    if not rates or not size or size < rates[0][0]:
        return None
    at = bisect_left(rates, (size, float("-inf")))
    if at == len(rates):
        return rates[-1][1] or None
    upper_size, upper = rates[at]
    if upper_size == size:
        return upper or None
    lower_size, lower = rates[at - 1]
    return lower + (upper - lower) * (size - lower_size) / (upper_size - lower_size) or None


class TooLong(Exception):
    """The request would have to wait ``seconds``."""

    def __init__(self, seconds: float):
        super().__init__(seconds)
        self.seconds = seconds


class Ratelimit:
    def __init__(self, app: WSGIApp, options: RatelimitOptions, logger: logging.Logger,
                 now: Callable[[], float] = time.time, wait: Callable[[float], Any] = sleep):
        self.app, self.options, self.log, self._now, self._wait = app, options, logger, now, wait
        self._has_rates = bool(options.account_ratelimit or options.container_rates or options.listing_rates)
        self._free, self._banned = frozenset(options.account_whitelist), frozenset(options.account_blacklist)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if HANDLED in environ:
            return self.app(environ, start_response)
        environ[HANDLED] = True
        method = environ["REQUEST_METHOD"]
        cache = environ.get(CACHE)
        names = api_path(environ["PATH_INFO"])
        if cache is None or not names.account or names.version not in ("v1", "v1.0"):
            return self.app(environ, start_response)
        answer = self._limit(environ, cache, method, names.account, names.container, names.obj)
        return (self.app if answer is None else answer)(environ, start_response)

    def _limit(self, environ: Environ, cache: Any, method: str, account: str, container: str, obj: str) -> Response | None:
        """Wait as long as the request must; the refusal when that is too long."""
        setting = self._account_setting(environ)
        if account in self._free or setting == "WHITELIST":
            return None
        if account in self._banned or setting == "BLACKLIST":
            self.log.error("Returning 497 because of blacklisting: %s", account)
            self._wait(1.0)
            return Response(497, body="Your account has been blacklisted", content_type="text/plain")
        if not setting and not self._has_rates:
            return None
        for key, rate in self._keys(environ, method, account, container, obj, setting):
            try:
                seconds = self._seconds_to_wait(cache, key, rate)
            except CacheError:
                continue  # better unlimited than out of order
            except TooLong as refused:
                self.log.error("Returning %d for %s to %s/%s/%s . Ratelimit (Max Sleep) %s",
                               self.options.rate_limited_status, method, account, container, obj, key)
                return Response(self.options.rate_limited_status, {"Retry-After": str(max(1, round(refused.seconds)))},
                                body="Slow down", content_type="text/plain")
            if seconds > 0:
                if 0 < self.options.log_sleep_time_seconds < seconds:
                    self.log.warning("Ratelimit sleep log: %s for %s/%s/%s", seconds, account, container, obj)
                self._wait(seconds)
        return None

    def _account_setting(self, environ: Environ) -> str:
        sysmeta = account_info(environ, self.app, source="RL").sysmeta
        return (sysmeta.get("global-write-ratelimit") or "") if sysmeta else ""

    def _keys(self, environ: Environ, method: str, account: str, container: str, obj: str,
              setting: str) -> list[tuple[str, float]]:
        """The counters that the request adds to, and the rate of each."""
        options = self.options
        found: list[tuple[str, float]] = []
        if container and not obj and method in ("PUT", "DELETE") and options.account_ratelimit:
            found.append((f"ratelimit/{account}", options.account_ratelimit))
        if obj and method in _WRITES and options.container_rates:
            rate = rate_for(options.container_rates, self._size(environ, account, container))
            if rate:
                found.append((f"ratelimit/{account}/{container}", rate))
        if container and not obj and method == "GET" and options.listing_rates:
            rate = rate_for(options.listing_rates, self._size(environ, account, container))
            if rate:
                found.append((f"ratelimit_listing/{account}/{container}", rate))
        if setting and method in _WRITES:
            try:
                rate = float(setting)
            except ValueError:
                rate = 0.0
            if 0 < rate < float("inf"):
                found.append((f"ratelimit/global-write/{account}", rate))
        return found

    def _size(self, environ: Environ, account: str, container: str) -> int:
        return container_info(environ, self.app, account, container, source="RL").object_count or 0

    def _seconds_to_wait(self, cache: Any, key: str, rate: float) -> float:
        """Raises TooLong, having taken the request's share back, and CacheError."""
        options = self.options
        accuracy = options.clock_accuracy
        now = round(self._now() * accuracy)
        share = round(accuracy / rate)
        reached = cache.incr(key, share)
        ahead = 0
        if now - reached > options.rate_buffer_seconds * accuracy:
            cache.incr(key, now + share - reached)
        else:
            ahead = max(reached - now - share, 0)
        longest = options.max_sleep_time_seconds * accuracy
        if longest - ahead <= longest * 0.01 and ahead:
            cache.decr(key, share)
            raise TooLong(ahead / accuracy)
        return ahead / accuracy


def filter_factory(global_conf: dict[str, str], **local_conf: str) -> Callable[[WSGIApp], Ratelimit]:
    conf = {**global_conf, **local_conf}
    parsed = parse(RatelimitOptions, {k: v for k, v in conf.items() if k not in ("container_rates", "listing_rates")},
                   section=SECTION, local=local_conf,
                   known=("use", "set *", "log_*", "container_ratelimit_*", "container_listing_ratelimit_*"))
    options = RatelimitOptions(**{
        **{name: getattr(parsed, name) for name in parsed.__dataclass_fields__},
        "container_rates": rates_of(conf, "container_ratelimit_"),
        "listing_rates": rates_of(conf, "container_listing_ratelimit_"),
    })
    register_info("ratelimit", account_ratelimit=options.account_ratelimit,
                  max_sleep_time_seconds=options.max_sleep_time_seconds,
                  container_ratelimits=[list(pair) for pair in options.container_rates],
                  container_listing_ratelimits=[list(pair) for pair in options.listing_rates])
    logger = logger_for(conf, "ratelimit")
    return lambda app: Ratelimit(app, options, logger)


