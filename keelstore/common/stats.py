"""Statsd: counters and timings as lines in UDP datagrams, named as the field names them.

``stats_for(conf, tail)`` gives a :class:`Statsd`, or :data:`NO_STATS` (which is false, and does nothing) when
``log_statsd_host`` is not set; callers on a hot path ask ``if stats:`` before they build a name. A plain line is
``[<log_statsd_metric_prefix>.]<tail>.<metric>:<value>|<c|ms>[|@<rate>]``; a labelled one has its labels in the form of
``statsd_label_mode``. Sending never waits and never fails.
"""

from __future__ import annotations

import _socket
import _thread
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from keelstore.common.options import one_of, option, parse, port_number

USER_LABEL_PREFIX: Final = "statsd_user_label_"


def _rate(value: float) -> str | None:
    return None if 0 <= value <= 1 else "a number from 0 to 1"


@dataclass(frozen=True)
class StatsdOptions:
    """Where a server or daemon sends statsd lines; in ``[DEFAULT]`` or any section."""

    log_statsd_host: str = option("", "Host that takes statsd lines over UDP; empty: none are sent.")
    log_statsd_port: int = option(8125, "Its port.", check=port_number)
    log_statsd_default_sample_rate: float = option(1.0, "Share of the events that are sent.", check=_rate)
    log_statsd_sample_rate_factor: float = option(1.0, "Every sample rate is multiplied by this.", check=_rate)
    log_statsd_metric_prefix: str = option("", "Put in front of every metric's name; tells hosts apart.")
    statsd_emit_legacy: bool = option(True, "Send the metrics without labels.")
    statsd_label_mode: str = option(
        "disabled", "Form of labelled metrics: disabled, librato, influxdb, graphite or dogstatsd.",
        check=one_of("disabled", "librato", "influxdb", "graphite", "dogstatsd"))


class NoStats:
    """Takes every call and does nothing; false."""

    has_labels = False

    def __bool__(self) -> bool:
        return False

    def increment(self, metric: str, sample_rate: float | None = None) -> None: ...

    def decrement(self, metric: str, sample_rate: float | None = None) -> None: ...

    def update(self, metric: str, count: int, sample_rate: float | None = None) -> None: ...

    def timing(self, metric: str, milliseconds: float, sample_rate: float | None = None) -> None: ...

    def timing_since(self, metric: str, start_s: float, sample_rate: float | None = None) -> None: ...

    def transfer_rate(self, metric: str, seconds: float, count: int, sample_rate: float | None = None) -> None: ...

    def labelled(self, metric: str, kind: str, value: float, labels: Mapping[str, object]) -> None: ...


NO_STATS: Final = NoStats()


class Statsd(NoStats):
    """Sends to one host. ``tail`` is the server's name, such as ``proxy-server``."""

    def __init__(self, options: StatsdOptions, tail: str = "", user_labels: Mapping[str, str] | None = None,
                 now: Callable[[], float] = time.time):
        self._options, self._now = options, now
        parts = [part for part in (options.log_statsd_metric_prefix, tail) if part]
        self._prefix = ".".join(parts) + "." if parts else ""
        self._user_labels = dict(user_labels or {})
        self.has_labels = options.statsd_label_mode != "disabled"
        self._sock: _socket.socket | None = None
        self._retry_at = 0.0

    def __bool__(self) -> bool:
        return True

    def increment(self, metric: str, sample_rate: float | None = None) -> None:
        self._plain(metric, 1, "c", sample_rate)

    def decrement(self, metric: str, sample_rate: float | None = None) -> None:
        self._plain(metric, -1, "c", sample_rate)

    def update(self, metric: str, count: int, sample_rate: float | None = None) -> None:
        self._plain(metric, count, "c", sample_rate)

    def timing(self, metric: str, milliseconds: float, sample_rate: float | None = None) -> None:
        self._plain(metric, round(milliseconds, 4), "ms", sample_rate)

    def timing_since(self, metric: str, start_s: float, sample_rate: float | None = None) -> None:
        self._plain(metric, round((self._now() - start_s) * 1000, 4), "ms", sample_rate)

    def transfer_rate(self, metric: str, seconds: float, count: int, sample_rate: float | None = None) -> None:
        """Milliseconds for each KiB."""
        if count:
            self._plain(metric, round(seconds * 1000 / count * 1024, 4), "ms", sample_rate)

    def labelled(self, metric: str, kind: str, value: float, labels: Mapping[str, object]) -> None:
        """One labelled metric; ``kind`` is ``c`` or ``ms``. Labels whose value is None are left out."""
        if self.has_labels:
            found = {**self._user_labels, **{key: str(v) for key, v in labels.items() if v is not None}}
            line = labelled_line(self._options.statsd_label_mode, metric, kind, value, found)
            self._sample(line, None)

    def _plain(self, metric: str, value: float, kind: str, sample_rate: float | None) -> None:
        if self._options.statsd_emit_legacy:
            self._sample(f"{self._prefix}{metric}:{value}|{kind}", sample_rate)

    def _sample(self, line: str, sample_rate: float | None) -> None:
        options = self._options
        rate = options.log_statsd_default_sample_rate if sample_rate is None else sample_rate
        rate *= options.log_statsd_sample_rate_factor
        if rate < 1:
            if random.random() >= rate:
                return
            line = f"{line}|@{rate:g}"
        try:
            sock = self._sock or self._open()
            if sock is not None:
                sock.send(line.encode("utf-8", "replace"))
        except OSError:  # nobody listens, or the buffer is full: a lost number is no reason to stop
            pass

    def _open(self) -> _socket.socket | None:
        """An address is connected to at once. A name is looked up by a native thread, again a minute after it could not be;
        what is sent meanwhile is lost."""
        now = self._now()
        if now >= self._retry_at:
            self._retry_at = now + 60
            if not self._connect(_socket.AI_NUMERICHOST):
                _thread.start_new_thread(self._connect, (0,))
        return self._sock

    def _connect(self, flags: int) -> bool:
        try:
            family, kind, proto, _, address = _socket.getaddrinfo(
                self._options.log_statsd_host, self._options.log_statsd_port, 0, _socket.SOCK_DGRAM, 0, flags)[0]
            sock = _socket.socket(family, kind, proto)  # the plain kind: never a green one
            sock.setblocking(False)
            sock.connect(address)
        except OSError:
            return False
        self._sock = sock
        return True

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None


def labelled_line(mode: str, metric: str, kind: str, value: float, labels: Mapping[str, str]) -> str:
    """A labelled metric in one of the four forms in use; labels are sorted, and what would end one early is replaced."""
    pairs = [(key, _label(text)) for key, text in sorted(labels.items())]
    if not pairs:
        return f"{metric}:{value}|{kind}"
    match mode:
        case "dogstatsd":
            return f"{metric}:{value}|{kind}|#{','.join(f'{key}:{text}' for key, text in pairs)}"
        case "graphite":
            return f"{metric};{';'.join(f'{key}={text}' for key, text in pairs)}:{value}|{kind}"
        case "librato":
            return f"{metric}#{','.join(f'{key}={text}' for key, text in pairs)}:{value}|{kind}"
        case _:
            return f"{metric},{','.join(f'{key}={text}' for key, text in pairs)}:{value}|{kind}"


_UNSAFE_IN_LABEL = str.maketrans(dict.fromkeys(":|@#,;= \n\r\t\x00", "_"))


def _label(text: str) -> str:
    return text.translate(_UNSAFE_IN_LABEL)


def stats_for(conf: Mapping[str, str], tail: str = "") -> NoStats:
    """The statsd sender of a server or section, NO_STATS when none is configured. Raises ConfigError."""
    if not conf.get("log_statsd_host"):
        return NO_STATS
    options = parse(StatsdOptions, conf)
    labels = {key[len(USER_LABEL_PREFIX):]: value for key, value in conf.items() if key.startswith(USER_LABEL_PREFIX)}
    return Statsd(options, tail, labels)
