"""keelstore-recon-cron and keelstore-drive-audit."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from keelstore.cli import drive_audit, recon_cron
from keelstore.cli.drive_audit import (
    DriveAudit,
    DriveAuditOptions,
    comment_out,
    is_of,
    mounted_drives,
    patterns_of,
    time_of,
)

NOW = time.mktime((2026, 11, 29, 12, 0, 0, 0, 0, -1))


def test_updates_that_wait_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("d1/async_pending/abc/f1", "d1/async_pending/abc/f2", "d2/async_pending-1/def/f3", "d2/objects/1/x"):
        path = tmp_path / "devices" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    conf = tmp_path / "object-server.conf"
    conf.write_text(f"[DEFAULT]\ndevices = {tmp_path}/devices\n[filter:recon]\nrecon_cache_path = {tmp_path}\nrecon_lock_path = {tmp_path}\n")
    assert recon_cron.main([str(conf)]) == 0
    told = json.loads((tmp_path / "object.recon").read_text())
    assert told["async_pending"] == 3 and abs(told["async_pending_last"] - time.time()) < 60
    (tmp_path / recon_cron.LOCK).mkdir()
    assert recon_cron.main([str(conf)]) == 1 and "another one runs" in capsys.readouterr().err
    assert recon_cron.main([]) == 1 and recon_cron.main([str(tmp_path / "none")]) == 1
    assert "Traceback" not in capsys.readouterr().err


def audit(tmp_path: Path, log: str, **options: object) -> tuple[DriveAudit, list[Sequence[str]]]:
    (tmp_path / "kern.log").write_text(log)
    (tmp_path / "mounts").write_text(f"/dev/sda1 {tmp_path}/node/d1 xfs rw 0 0\n/dev/sdb {tmp_path}/node/d2 xfs rw 0 0\n/dev/sdc / ext4 rw 0 0\n")
    (tmp_path / "fstab").write_text(f"/dev/sda1 {tmp_path}/node/d1 xfs noatime 0 0\nUUID=x {tmp_path}/node/d2 xfs noatime 0 0\n")
    commands: list[Sequence[str]] = []
    found = DriveAudit(DriveAuditOptions(device_dir=f"{tmp_path}/node", log_file_pattern=f"{tmp_path}/kern.*", **options),  # type: ignore[arg-type]
                       patterns_of({}, ""), str(tmp_path / "mounts"), str(tmp_path / "fstab"), lambda: NOW, commands.append)
    return found, commands


LOG = """\
Nov 29 09:00:00 host kernel: sdb: old I/O error
Nov 29 11:50:00 host kernel: blk_update_request: I/O error, dev sda, sector 5
2026-11-29T11:55:00.123+00:00 host kernel: sda1: another error
Nov 29 11:56:00 host kernel: eth0: no drive
"""


def test_a_failing_drive_is_taken_out_of_use(tmp_path: Path) -> None:
    found, commands = audit(tmp_path, LOG, error_limit=2)
    assert found.carry_out() == {f"{tmp_path}/node/d1": 2, f"{tmp_path}/node/d2": 0}
    assert commands == [["umount", "-fl", f"{tmp_path}/node/d1"], ["systemctl", "daemon-reload"]]
    lines = (tmp_path / "fstab").read_text().splitlines()
    assert lines[0].startswith("#/dev/sda1") and lines[1].startswith("UUID")


def test_it_is_left_alone_below_the_limit_or_when_told_so(tmp_path: Path) -> None:
    for options in ({"error_limit": 3}, {"unmount_failed_device": False}):
        found, commands = audit(tmp_path, LOG, **options)
        found.carry_out()
        assert commands == [] and "#" not in (tmp_path / "fstab").read_text()


def test_an_unmounting_that_hangs_keeps_no_other_drive_mounted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found, commands = audit(tmp_path, LOG + "Nov 29 11:58:00 host kernel: sdb: I/O error\n")

    def run(command: Sequence[str]) -> object:
        commands.append(command)
        if command[-1].endswith("d1"):
            raise subprocess.TimeoutExpired(command, 60)
        if command[0] == "systemctl":
            raise FileNotFoundError(2, "No such file or directory")
        return subprocess.CompletedProcess(command, 32)

    found.run = run
    with caplog.at_level(logging.ERROR):
        found.carry_out()
    assert [command[-1] for command in commands if command[0] == "umount"] == [f"{tmp_path}/node/d1", f"{tmp_path}/node/d2"]
    assert (tmp_path / "fstab").read_text().count("#") == 2
    assert "has not ended within 60 s" in caplog.text and "status 32" in caplog.text and "No such file" in caplog.text


def test_what_was_before_the_boot_does_not_count(tmp_path: Path) -> None:
    found, _ = audit(tmp_path, LOG + "Nov 29 11:57:00 host kernel: [    0.000000] Linux version 6.1\n")
    assert set(found.carry_out().values()) == {0}


def test_times_of_lines() -> None:
    assert time_of("Nov 29 11:00:00 x", NOW) == NOW - 3600
    assert time_of("Dec 31 23:59:59 x", NOW) == time.mktime((2025, 12, 31, 23, 59, 59, 0, 0, -1))
    assert time_of("2026-11-29T11:59:00 x", NOW) == NOW - 60
    assert time_of("Foo 99 11:00:00", NOW) is None and time_of("", NOW) is None and time_of("9999-99-99T00:00:00", NOW) is not None


def test_small_rules() -> None:
    assert is_of("sda", "sda1") and is_of("sda1", "sda1") and is_of("nvme0n1", "nvme0n1p2")
    assert not is_of("sda", "sdab") and not is_of("sda1", "sda")
    assert mounted_drives("/dev/sdz /srv/node/a xfs\nnone /srv/node/b tmpfs\n/dev/sdy /srv/nodes/c xfs\n", "/srv/node") == {"sdz": "/srv/node/a"}
    assert comment_out("# x\n/dev/a /m xfs\n#/dev/b /m xfs\n", "/m") == "# x\n#/dev/a /m xfs\n#/dev/b /m xfs\n"
    assert patterns_of({"regex_pattern_1": r"(sd\w) is bad"}, "") == [re.compile(r"(sd\w) is bad")]


@pytest.mark.parametrize("text,words", [("regex_pattern_1 = (", "regular expression"), ("regex_pattern_1 = x", "group"), ("minutes = 0", "above 0")])
def test_bad_options(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: str) -> None:
    conf = tmp_path / "drive-audit.conf"
    conf.write_text(f"[drive-audit]\n{text}\n")
    assert drive_audit.main([str(conf)]) == 1 and words in capsys.readouterr().err


def test_a_command_that_cannot_be_killed_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drive_audit.run_for_a_while(["true"]).returncode == 0
    waits: list[float | None] = []
    left: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    class Stuck(subprocess.Popen[bytes]):
        def wait(self, timeout: float | None = None) -> int:
            waits.append(timeout)
            return super().wait(timeout)

        def kill(self) -> None:
            """As to one that hangs in the kernel."""
            left.append(self)

    monkeypatch.setattr(subprocess, "Popen", Stuck)
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        drive_audit.run_for_a_while(["sleep", "60"], 0.05)
    real.kill(left[0])
    assert caught.value.timeout == 0.05 and waits == [0.05]
    real.wait(left[0], 10)


def test_the_count_is_left_for_recon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conf = tmp_path / "drive-audit.conf"
    conf.write_text(f"[drive-audit]\ndevice_dir = {tmp_path}\nlog_file_pattern = {tmp_path}/none*\nrecon_cache_path = {tmp_path}\nuser = nobody-here\n"
                    f"log_to_console = yes\nlog_file = {tmp_path}/log\nlog_name = drives\nlog_fil = x\n")
    assert drive_audit.main([str(conf)]) == 0
    assert "drives: no errors of drives" in (tmp_path / "log").read_text() and capsys.readouterr().out == "no errors of drives\n"
    assert json.loads((tmp_path / "drive.recon").read_text()) == {"drive_audit_errors": 0}
