"""keelstore-recon against two hosts with known answers. test/interop compares its lines with those of the field's tool."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from keelstore.cli import recon, recon_report
from test.support.recon_hosts import CHECKS, recon_hosts
from test.support.store import free_port


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int]]:
    directory = tmp_path_factory.mktemp("recon")
    with recon_hosts(directory) as port:
        yield directory, port


def run(directory: Path, capsys: pytest.CaptureFixture[str], arguments: str) -> tuple[int, list[str]]:
    code = recon.main(["--swiftdir", str(directory), *arguments.split()])
    out = capsys.readouterr()
    assert "Traceback" not in out.err
    return code, out.out.splitlines()


@pytest.mark.parametrize("arguments", [*CHECKS, "object --all", "account container --all"])
def test_every_check_has_its_frame(hosts: tuple[Path, int], capsys: pytest.CaptureFixture[str], arguments: str) -> None:
    code, lines = run(hosts[0], capsys, arguments)
    assert code == 0 and lines[0] == lines[2] == "=" * 79
    assert re.fullmatch(r"--> Starting reconnaissance on [12] hosts \((account|container|object)\)", lines[1])
    headings = [line for line in lines if re.match(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] ", line)]
    assert headings or any(line.startswith("Error: Can't check") for line in lines)


@pytest.mark.parametrize("arguments,expected", [
    ("object -a", "[async_pending] low: 3, high: 3, avg: 3.0, total: 3, Failed: 50.0%, no_result: 1, reported: 1"),
    ("object -r", "Oldest completion was NEVER by 127.0.0.1:{port}."),
    ("object -R", "[object_reconstruction_time] low: 3, high: 5, avg: 4.0, total: 8, Failed: 0.0%, no_result: 0, reported: 2"),
    ("object --auditor", "[ALL_audit_time_last_path] low: 10, high: 13, avg: 11.8, total: 23, Failed: 0.0%, no_result: 0, reported: 2"),
    ("container --auditor", "[last_pass] oldest: 2023-11-14 22:13:20, newest: 2023-11-14 22:15:00, avg: 2023-11-14 22:14:10"),
    ("container -r", "[replication_attempted] low: 6, high: 6, avg: 6.0, total: 6, Failed: 50.0%, no_result: 1, reported: 1"),
    ("object -u", "Device errors: sdb on 127.0.0.2:{port}"),
    ("object -d", " 90%    2 *********************************************************************"),
    ("object -d", "Disk usage: space used: 1895000001000 of 3905000001000"),
    ("object -d --human-readable", "Disk usage: space free: 2 TB of 3 TB"),
    ("object -d --top 1", "100.00%  127.0.0.2       sdd"),
    ("object --md5", "0/2 hosts matched, 2 error[s] while checking hosts."),
    ("object -q", "[quarantined_objects_1] low: 1, high: 1, avg: 1.0, total: 1, Failed: 0.0%, no_result: 0, reported: 1"),
    ("object --sockstat", "[tcp6_in_use] low: 0, high: 1, avg: 0.5, total: 1, Failed: 0.0%, no_result: 0, reported: 2"),
    ("object --validate-servers", "Invalid: http://127.0.0.2:{port}/ is nginx"),
    ("object -T", "1/2 hosts matched, 0 error[s] while checking hosts."),
    ("object --swift-versions", "Versions not matched (2.37.0, 2.38.0), 0 error[s] while checking hosts."),
    ("account --updater", "Error: Can't check updaters on account servers."),
    ("account -a", "Error: Can't check asyncs on non object servers."),
])
def test_lines(hosts: tuple[Path, int], capsys: pytest.CaptureFixture[str], arguments: str, expected: str) -> None:
    assert expected.format(port=hosts[1]) in run(hosts[0], capsys, arguments)[1]


def test_ways_to_call_it_wrongly(hosts: tuple[Path, int], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(hosts[0], capsys, "router -a")[0] == 1
    code, lines = run(hosts[0], capsys, "object -a -p lead")
    assert code == 0 and lines[0] == "Invalid Storage Policy: lead"
    assert recon.main([]) == 0 and "keelstore-recon" in capsys.readouterr().out
    assert recon.main(["--swiftdir", str(tmp_path), "object", "-a"]) == 1
    assert capsys.readouterr().err.startswith("Error: ")


def test_hosts_that_do_not_answer_are_told_unless_suppressed(hosts: tuple[Path, int], capsys: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    options = recon._parser().parse_args(["-l"])
    port = free_port()
    recon.Recon(options, "object", {}, [("127.0.0.9", port)], lines.append).run()
    assert f"-> http://127.0.0.9:{port}/recon/load: Connection refused" in lines and "[1m_load_avg] - No hosts returned valid data." in lines
    lines.clear()
    options.suppress = True
    recon.Recon(options, "object", {}, [("127.0.0.9", port)], lines.append).run()
    assert not any(line.startswith("->") for line in lines)


def test_answers_that_are_no_such_thing() -> None:
    for answer in (None, 5, "x", [], {}, [1], {"replication_stats": 7}):
        answers = [("h:1", answer)]
        for lines in (recon_report.disk_usage(answers), recon_report.unmounted(answers), recon_report.replication(answers, 1.0),
                      recon_report.object_auditor(answers), recon_report.quarantined(answers), recon_report.sharding(answers, 1.0)):
            assert all(isinstance(line, str) for line in lines)
