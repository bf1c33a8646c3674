"""Log set-up and line format: to syslog, to a file, or to standard error.

A line is ``<log name>: <message>``, newlines within as ``#012``, the transaction id added when the record has one and the
text does not, cut in the middle when longer than ``log_max_line_length`` (``spec: daemons 1``). To a file or standard error
it goes with time, process and level in front.

A worker never waits long for its log: datagrams that syslog does not take at once are dropped and counted, a pipe that nobody
reads is given up after a moment, and the next line that gets through tells how many were lost.
"""

from __future__ import annotations

import _socket
import logging
import logging.handlers
import os
import select
import stat
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from keelstore.common.errors import ConfigError
from keelstore.common.options import not_negative, option, parse, port_number

NOTICE = 25
LEVELS = {"CRITICAL": 50, "ERROR": 40, "WARNING": 30, "WARN": 30, "NOTICE": NOTICE, "INFO": 20, "DEBUG": 10}
FACILITIES = logging.handlers.SysLogHandler.facility_names
_SEVERITIES = ((50, 2), (40, 3), (30, 4), (NOTICE, 5), (20, 6), (0, 7))
_PIPE_WAIT_MS = 100  # how long a line may wait for the reader of a pipe
_PIPE_ATOM = 4096  # PIPE_BUF: a pipe said to be writable takes this much without waiting


def _level(value: str) -> str | None:
    return None if value.upper() in LEVELS else "one of " + ", ".join(LEVELS)


def _facility(value: str) -> str | None:
    name = value.lower().removeprefix("log_")
    return None if name in FACILITIES else "a syslog facility such as LOG_LOCAL0"


@dataclass(frozen=True)
class LogOptions:
    """Where a server or daemon logs to; in ``[DEFAULT]`` or any section."""

    log_name: str = option("", "Name at the start of each line; empty: that of the server or section.")
    log_level: str = option("INFO", "Least level that is logged: CRITICAL, ERROR, WARNING, NOTICE, INFO, DEBUG.",
                            check=_level)
    log_facility: str = option("LOG_LOCAL0", "Syslog facility.", check=_facility)
    log_address: str = option("/dev/log", "Socket of the local syslog; when there is none, lines go to standard error.")
    log_udp_host: str = option("", "Host of a syslog that takes UDP; used in place of log_address.")
    log_udp_port: int = option(514, "Its port.", check=port_number)
    log_max_line_length: int = option(0, "Longer lines are cut in their middle; 0: never.", check=not_negative)
    log_file: str = option("", "File to log to in place of syslog; '-' is standard error. A reload opens it anew.")
    log_custom_handlers: tuple[str, ...] = option(
        (), "Functions (module.function) called with (conf, name, log_to_console, log_route, fmt, logger, "
            "adapted_logger) to add handlers.")


class Sink(Protocol):
    """Takes whole lines, without their end; ``level`` is logging's, ``created_s`` seconds since the epoch."""

    def write(self, text: str, level: int, created_s: float) -> None: ...


class FileSink:
    """Appends to a descriptor: a file, or standard error."""

    def __init__(self, fd: int):
        self._fd = fd
        self._is_pipe = not stat.S_ISREG(os.fstat(fd).st_mode)
        self._lost = 0
        self._second, self._stamp = -1, ""

    def write(self, text: str, level: int, created_s: float) -> None:
        second = int(created_s)
        if second != self._second:
            self._second, self._stamp = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        line = (f"{self._stamp}.{int((created_s - second) * 1000):03d}Z [{os.getpid()}] {logging.getLevelName(level)} "
                f"{text}\n").encode("utf-8", "backslashreplace")
        if self._is_pipe and not self._write_to_pipe(line):
            self._lost += 1
            return
        try:
            if not self._is_pipe:
                os.write(self._fd, line)
            if self._lost:
                lost, self._lost = self._lost, 0
                os.write(self._fd, b"(%d lines of log were lost here)\n" % lost)
        except OSError:  # disk full, reader gone: nowhere to tell it
            self._lost += 1

    def _write_to_pipe(self, line: bytes) -> bool:
        for start in range(0, len(line), _PIPE_ATOM):
            try:
                poll = _poll()
                poll.register(self._fd, select.POLLOUT)
                if not poll.poll(_PIPE_WAIT_MS if not self._lost else 0):
                    return False
                os.write(self._fd, line[start : start + _PIPE_ATOM])
            except OSError:
                return False
        return True


def _poll() -> Any:
    """A real poll object: the green-thread library takes ``select.poll`` away when it patches."""
    from keelstore.common.concurrency import real_poll

    return real_poll()


class SyslogSink:
    """Datagrams to the local syslog socket or to a host."""

    def __init__(self, facility: str, path: str = "", host: tuple[str, int] | None = None):
        self._facility = FACILITIES[facility.lower().removeprefix("log_")] << 3
        self._path, self._host = path, host
        self._sock: Any = None
        self._lost = 0
        self._connect()

    def _connect(self) -> None:
        if self._sock is not None:
            self._sock.close()
        family = _socket.AF_UNIX
        target: Any = self._path
        if self._host:
            family, _, _, _, target = _socket.getaddrinfo(*self._host, 0, _socket.SOCK_DGRAM)[0]
        self._sock = _socket.socket(family, _socket.SOCK_DGRAM)  # the plain kind: never a green one
        self._sock.setblocking(False)
        self._sock.connect(target)

    def write(self, text: str, level: int, created_s: float) -> None:
        if self._lost:
            text = f"{text} ({self._lost} earlier lines of log were lost)"
        data = f"<{self._facility | severity_of(level)}>{text}".encode("utf-8", "backslashreplace")
        if self._path:
            data += b"\0"
        for attempt in (1, 2):
            try:
                self._sock.send(data)
                self._lost = 0
                return
            except BlockingIOError:
                break
            except OSError:  # syslog was restarted, or the line is too long for a datagram
                if attempt == 2:
                    break
                try:
                    self._connect()
                except OSError:
                    break
        self._lost += 1


class LeanHandler(logging.Handler):
    """Formats and writes without a lock: a line is one write, which the kernel keeps whole."""

    def __init__(self, sink: Sink, name: str, max_length: int = 0):
        super().__init__()
        self._sink, self._name, self._max_length = sink, name, max_length

    def createLock(self) -> None:  # noqa: N802 - logging's name
        self.lock = None

    def handle(self, record: logging.LogRecord) -> bool:
        self.emit(record)
        return True

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._sink.write(f"{self._name}: {line_of(record, self._max_length)}", record.levelno, record.created)
        except Exception:  # a log line that cannot be made must never fail the request that it tells of
            self._sink.write(f"{self._name}: (bad log line) {record.msg!r} {record.args!r}", logging.ERROR, record.created)

    def write_line(self, line: str, level: int, created_s: float) -> None:
        """As :meth:`emit`, of a line that is one already: without a record."""
        if self._max_length and len(line) > self._max_length:
            line = cut(line, self._max_length)
        self._sink.write(f"{self._name}: {line}", level, created_s)


def write_access_line(logger: logging.Logger, line: str, created_s: float) -> None:
    """Log a finished line at info. A record, which costs more than all the rest, is made only for handlers of others."""
    handlers = logger.handlers
    if len(handlers) == 1 and type(handlers[0]) is LeanHandler and not logger.propagate:
        handlers[0].write_line(line, logging.INFO, created_s)
    else:
        logger.handle(logging.LogRecord(logger.name, logging.INFO, "", 0, line, None, None))


def severity_of(level: int) -> int:
    for least, severity in _SEVERITIES:
        if level >= least:
            return severity
    return 7


def line_of(record: logging.LogRecord, max_length: int = 0) -> str:
    """The message of a record as one line."""
    message = record.getMessage()
    if record.exc_info and record.exc_info[1] is not None:
        error = record.exc_info[1]
        if isinstance(error, OSError):  # what the world does: one line tells it
            message = f"{message}: {_os_error(error)}"
        else:
            message = f"{message}\n{''.join(traceback.format_exception(error)).rstrip()}"
    txn = getattr(record, "txn_id", "")
    if txn and txn not in message:
        message = f"{message} (txn: {txn})"
    if "\n" in message:
        message = message.replace("\n", "#012")
    if max_length and len(message) > max_length:
        message = cut(message, max_length)
    return message


def _os_error(error: OSError) -> str:
    kinds = {ConnectionRefusedError: "Connection refused", ConnectionResetError: "Connection reset",
             BrokenPipeError: "Broken pipe", TimeoutError: "Connection timeout"}
    for kind, text in kinds.items():
        if isinstance(error, kind):
            return text
    return str(error)


def cut(text: str, length: int) -> str:
    """``text`` in at most ``length`` characters, its middle replaced by `` ... ``."""
    if len(text) <= length:
        return text
    if length < 7:
        return text[:length]
    half = (length - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"


# -- loggers -----------------------------------------------------------------------------------------------------------

_sinks: dict[tuple[Any, ...], Sink] = {}  # one for each destination: descriptors are shared by all loggers of a process


def logger_for(conf: Mapping[str, str], name: str) -> logging.Logger:
    """The logger of a server or section: ``conf`` is what it inherits, ``name`` its name unless ``log_name`` is set.

    Equal destinations share a descriptor. Raises ConfigError.
    """
    options = parse(LogOptions, conf)
    shown = options.log_name or name
    logging.addLevelName(NOTICE, "NOTICE")
    sink_key, sink = _sink_for(options)
    logger = logging.getLogger(f"keelstore.at.{shown}.{abs(hash((sink_key, options)))}")
    logger.setLevel(LEVELS[options.log_level.upper()])
    logger.propagate = False
    if not logger.handlers:
        logger.addHandler(LeanHandler(sink, shown, options.log_max_line_length))
        for path in options.log_custom_handlers:
            _custom_handler(path)(conf, shown, False, shown, None, logger, logger)
    return logger


def use_for_modules(logger: logging.Logger) -> None:
    """Send what modules log by themselves (``keelstore.*``, libraries' warnings) where ``logger`` writes."""
    for name in ("keelstore", ""):
        target = logging.getLogger(name)
        target.handlers[:] = logger.handlers
        target.setLevel(logger.level if name else logging.WARNING)
    logging.getLogger("keelstore").propagate = False


def use_console() -> None:
    """Standard error gets the modules' warnings; for commands, and while a configuration is read."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    logger = logging.getLogger("keelstore")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.WARNING)
    logger.propagate = False


def lighten() -> None:
    """Switch off what logging collects and our lines never show: a quarter of the cost of a line."""
    logging._srcfile = None  # documented: "Optimization" in the logging HOWTO
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    if hasattr(logging, "logAsyncioTasks"):
        logging.logAsyncioTasks = False


def _sink_for(options: LogOptions) -> tuple[tuple[Any, ...], Sink]:
    key: tuple[Any, ...]
    if options.log_file and options.log_file != "-":
        key = ("file", options.log_file)
    elif options.log_file == "-":
        key = ("stderr",)
    elif options.log_udp_host:
        key = ("udp", options.log_udp_host, options.log_udp_port, options.log_facility)
    elif _is_socket(options.log_address):
        key = ("unix", options.log_address, options.log_facility)
    else:
        key = ("stderr",)
    if key not in _sinks:
        try:
            _sinks[key] = _open_sink(key, options)
        except OSError as error:
            raise ConfigError(f"cannot log to {' '.join(map(str, key))}: {error.strerror}") from None
    return key, _sinks[key]


def _open_sink(key: tuple[Any, ...], options: LogOptions) -> Sink:
    match key[0]:
        case "file":
            return FileSink(os.open(key[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640))
        case "udp":
            return SyslogSink(options.log_facility, host=(options.log_udp_host, options.log_udp_port))
        case "unix":
            return SyslogSink(options.log_facility, path=options.log_address)
        case _:
            return FileSink(2)


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False


def _custom_handler(path: str) -> Any:
    import importlib

    module, _, function = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"cannot be loaded: {error}", option="log_custom_handlers", value=path) from None


def add_console(logger: logging.Logger) -> None:
    """Let ``logger`` write to standard error too, unless it does already."""
    if ("stderr",) not in _sinks:
        _sinks[("stderr",)] = FileSink(2)
        logger.addHandler(LeanHandler(_sinks[("stderr",)], "console"))
