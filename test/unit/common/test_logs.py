"""Where log lines go and what they look like."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common import logs
from keelstore.common.errors import ConfigError
from keelstore.common.logs import NOTICE, cut, line_of, logger_for


@pytest.fixture(autouse=True)
def own_sinks() -> Iterator[None]:
    before = dict(logs._sinks)
    logs._sinks.clear()
    yield
    logs._sinks.clear()
    logs._sinks.update(before)


def record(message: str, *args: object, **extra: object) -> logging.LogRecord:
    return logging.makeLogRecord({"msg": message, "args": args, "levelno": 20, "levelname": "INFO", **extra})


def test_a_file_gets_time_process_level_name_and_message(tmp_path: Path) -> None:
    logger = logger_for({"log_file": str(tmp_path / "x.log")}, "object-server")
    logger.info("stored %s", "a\nb")
    logger.log(NOTICE, "é\udcff")
    first, second = (tmp_path / "x.log").read_text().splitlines()
    stamp, pid, level, text = first.split(" ", 3)
    assert stamp.endswith("Z") and len(stamp) == 24
    assert (pid, level, text) == (f"[{os.getpid()}]", "INFO", "object-server: stored a#012b")
    assert second.split(" ", 2)[2] == r"NOTICE object-server: é\udcff"


def test_level_and_name_come_from_the_configuration(tmp_path: Path) -> None:
    logger = logger_for({"log_file": str(tmp_path / "x.log"), "log_level": "warning", "log_name": "mine"}, "other")
    logger.info("no")
    logger.warning("yes")
    assert (tmp_path / "x.log").read_text().split(" ", 2)[2] == "WARNING mine: yes\n"


def test_equal_configurations_share_a_logger_and_different_ones_do_not(tmp_path: Path) -> None:
    conf = {"log_file": str(tmp_path / "x.log")}
    assert logger_for(conf, "a") is logger_for(conf, "a")
    assert logger_for(conf, "a") is not logger_for({"log_file": str(tmp_path / "y.log")}, "a")


def test_syslog_datagrams_have_facility_severity_and_name(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.settimeout(5)
        server.bind(str(tmp_path / "log"))
        logger = logger_for({"log_address": str(tmp_path / "log"), "log_facility": "LOG_LOCAL2"}, "proxy-server")
        logger.error("oh")
        logger.log(NOTICE, "hm")
        assert server.recv(1000) == b"<%d>proxy-server: oh\0" % (18 * 8 + 3)
        assert server.recv(1000) == b"<%d>proxy-server: hm\0" % (18 * 8 + 5)


def test_a_syslog_that_takes_nothing_holds_nobody_up_and_the_loss_is_told(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.settimeout(5)
        server.bind(str(tmp_path / "log"))
        logger = logger_for({"log_address": str(tmp_path / "log")}, "x")
        for number in range(5000):  # far more than a datagram socket queues
            logger.info("line %d", number)
        taken = 0
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            while server.recv(1000):
                taken += 1
        assert 0 < taken < 5000
        logger.info("after")
        assert server.recv(1000).endswith(b"x: after (%d earlier lines of log were lost)\0" % (5000 - taken))


def test_a_restarted_syslog_is_found_again(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as first:
        first.bind(path)
        logger = logger_for({"log_address": path}, "x")
        logger.info("one")
    os.unlink(path)
    logger.info("lost")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as second:
        second.settimeout(5)
        second.bind(path)
        logger.info("two")
        assert b"two" in second.recv(1000)


def test_udp_syslog() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.settimeout(5)
        server.bind(("127.0.0.1", 0))
        logger = logger_for({"log_udp_host": "127.0.0.1", "log_udp_port": str(server.getsockname()[1])}, "x")
        logger.info("hello")
        assert server.recv(1000) == b"<%d>x: hello" % (16 * 8 + 6)


def test_a_pipe_that_nobody_reads_costs_a_moment_once() -> None:
    reader, writer = os.pipe()
    try:
        sink = logs.FileSink(writer)
        for number in range(3000):  # 3000 lines of 100 bytes: more than a pipe holds
            sink.write("x" * 100, logging.INFO, float(number))
        assert sink._lost > 0
    finally:
        os.close(reader)
        os.close(writer)


def test_without_a_syslog_lines_go_to_standard_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    logger_for({"log_address": str(tmp_path / "none")}, "x").info("here")
    assert capfd.readouterr().err.endswith("x: here\n")


@pytest.mark.parametrize("conf,says", [
    ({"log_level": "LOUD"}, "log_level = 'LOUD': expected one of"),
    ({"log_facility": "LOG_SOUP"}, "log_facility = 'LOG_SOUP': expected a syslog facility"),
    ({"log_file": "/nonexistent/x.log"}, "cannot log to file /nonexistent/x.log: No such file"),
    ({"log_file": "-", "log_custom_handlers": "no.such.thing"}, "log_custom_handlers = 'no.such.thing': cannot be loaded"),
])
def test_bad_options_are_told(conf: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        logger_for(conf, "x")


def test_custom_handlers_are_called(tmp_path: Path) -> None:
    logger = logger_for({"log_file": str(tmp_path / "x"), "log_custom_handlers": f"{__name__}.note"}, "noted")
    assert _noted == [("noted", logger)]


_noted: list[object] = []


def note(conf: object, name: str, to_console: bool, route: str, fmt: object, logger: object, adapted: object) -> None:
    _noted.append((name, logger))


def test_the_transaction_is_added_once() -> None:
    assert line_of(record("m", txn_id="tx1")) == "m (txn: tx1)"
    assert line_of(record("m (txn: tx1)", txn_id="tx1")) == "m (txn: tx1)"


def test_an_os_error_is_one_line_and_a_bug_has_its_traceback() -> None:
    for error, expected in ((ConnectionRefusedError(), "m: Connection refused"), (OSError(28, "No space"), "m: [Errno 28] No space")):
        assert line_of(record("m", exc_info=(type(error), error, None))) == expected
    try:
        raise ValueError("boom")
    except ValueError as caught:
        line = line_of(record("m", exc_info=(ValueError, caught, caught.__traceback__)))
    assert line.startswith("m#012Traceback") and line.endswith("ValueError: boom") and "\n" not in line


def test_a_bad_format_never_fails_the_caller(tmp_path: Path) -> None:
    logger_for({"log_file": str(tmp_path / "x")}, "x").info("%d", "no number")
    assert "(bad log line)" in (tmp_path / "x").read_text()


@given(st.text(max_size=200), st.integers(1, 200))
def test_a_cut_line_is_never_longer_than_asked(text: str, length: int) -> None:
    assert len(cut(text, length)) <= length or len(text) <= length
    if len(text) > length >= 7:
        assert " ... " in cut(text, length)


def test_an_access_line_is_written_as_a_record_would_be(tmp_path: Path) -> None:
    path = tmp_path / "log"
    logger = logger_for({"log_file": str(path), "log_max_line_length": "20"}, "access")
    logger.info("a line of more than twenty characters")
    logs.write_access_line(logger, "a line of more than twenty characters", 1795970000.25)
    first, second = path.read_text().splitlines()
    assert first.split(" ", 1)[1] == second.split(" ", 1)[1]
    assert second.startswith("2026-11-29T16:33:20.250Z ")


def test_handlers_of_others_get_a_record_of_an_access_line(tmp_path: Path) -> None:
    got: list[logging.LogRecord] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            got.append(record)

    logger = logging.Logger("x")
    logger.addHandler(Handler())
    logs.write_access_line(logger, "100 %s", 0.0)
    assert [(one.getMessage(), one.levelname) for one in got] == [("100 %s", "INFO")]
