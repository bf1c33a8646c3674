"""``keelstore-drive-audit CONF``: looks for errors of drives in the kernel's log; takes a failing drive out of use.

For a cron job, as root. A drive with ``error_limit`` errors within ``minutes`` is unmounted, so that servers answer 507
for it and replicators copy what it held from elsewhere; its line in ``/etc/fstab`` is commented out, so that it does
not come back.
"""

from __future__ import annotations

import glob
import gzip
import locale
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from keelstore.common.errors import ConfigError, KeelstoreError
from keelstore.common.fs import replace_file
from keelstore.common.logs import LogOptions, logger_for
from keelstore.common.options import document, option, parse, positive
from keelstore.common.paste_config import read_config
from keelstore.common.recon_cache import ReconCache

MAX_LOG = 256 << 20  # bytes of one file that are looked at, from its end
DEFAULT_PATTERNS = (r"\berror\b.*\b(sd[a-z]{1,2}\d?)\b", r"\b(sd[a-z]{1,2}\d?)\b.*\berror\b")
_BOOT = re.compile(r"kernel: (\[ *0\.0+\] )?Linux version ")
_MONTHS = {
    name: number
    for number, name in enumerate(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), 1
    )
}
_SYSLOG_TIME = re.compile(r"([A-Z][a-z]{2}) +(\d{1,2}) (\d\d):(\d\d):(\d\d)")
_ISO_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)")


@dataclass(frozen=True)
class DriveAuditOptions:
    """Options of ``[drive-audit]`` in ``drive-audit.conf``; ``regex_pattern_1`` and so on: group 1 is the drive."""

    device_dir: str = option("/srv/node", "Directory below which drives are mounted.")
    minutes: int = option(60, "How far back the log is read.", check=positive)
    error_limit: int = option(1, "So many errors, and a drive is taken out of use.", check=positive)
    log_file_pattern: str = option("/var/log/kern.*[!.][!g][!z]", "The kernel's log files.")
    log_file_encoding: str = option("auto", "Their encoding; auto: that of the locale.")
    unmount_failed_device: bool = option(True, "Unmount such a drive; else it is only told.")
    log_to_console: bool = option(False, "Tell on standard output, too.")
    recon_cache_path: str = option("/var/cache/swift", "Directory of the recon files.")
    user: str = option("swift", "Owner of the recon file.")


@dataclass
class DriveAudit:
    options: DriveAuditOptions
    patterns: Sequence[re.Pattern[str]]
    mounts: str = "/proc/mounts"
    fstab: str = "/etc/fstab"
    now: Callable[[], float] = time.time
    run: Callable[[Sequence[str]], object] = field(default_factory=lambda: run_for_a_while)
    tell: Callable[[str], None] = print
    logger: logging.Logger = field(default_factory=lambda: logging.getLogger("keelstore.drive-audit"))

    def carry_out(self) -> dict[str, int]:
        """Errors by mount point; failing drives are taken out of use."""
        drives = mounted_drives(_read(self.mounts), self.options.device_dir)
        errors = self._errors()
        found = {
            mount: sum(count for name, count in errors.items() if is_of(name, drive)) for drive, mount in drives.items()
        }
        for mount, count in found.items():
            if count >= self.options.error_limit:
                self._take_out(mount, count)
        if not any(count for count in found.values()):
            self._say("no errors of drives")
        return found

    def _say(self, text: str, level: int = logging.INFO) -> None:
        self.logger.log(level, "%s", text)
        if self.options.log_to_console:
            self.tell(text)

    def _errors(self) -> dict[str, int]:
        """By the drive's name in the log."""
        found: dict[str, int] = {}
        encoding = self.options.log_file_encoding
        encoding = locale.getpreferredencoding(False) if encoding == "auto" else encoding
        paths = sorted(glob.glob(self.options.log_file_pattern), key=lambda path: -os.stat(path).st_mtime)
        for path in paths:
            for line in reversed(list(last_lines(path, encoding))):
                if _BOOT.search(line):
                    return found
                moment = time_of(line, self.now())
                if moment is not None and moment < self.now() - self.options.minutes * 60:
                    return found
                for pattern in self.patterns:
                    match = pattern.search(line)
                    if match:
                        found[match.group(1)] = found.get(match.group(1), 0) + 1
                        break
        return found

    def _take_out(self, mount: str, count: int) -> None:
        if not self.options.unmount_failed_device:
            self._say(f"{mount} has failed with {count} errors; it is left as it is (unmount_failed_device)", logging.ERROR)
            return
        self._say(f"{mount} has failed with {count} errors: unmounting it", logging.ERROR)
        self._run("umount", "-fl", mount)  # if that hangs: the servers find out themselves that the device does not answer
        text = _read(self.fstab)
        commented = comment_out(text, mount)
        if commented != text:
            replace_file(self.fstab, commented.encode("utf-8", "surrogateescape"))
            self._run("systemctl", "daemon-reload")

    def _run(self, *command: str) -> None:
        """What goes wrong is told: the other drives, and the lines in fstab, are to be seen to all the same."""
        try:
            status = getattr(self.run(list(command)), "returncode", 0)
        except subprocess.TimeoutExpired as error:
            self._say(f"{' '.join(command)}: has not ended within {error.timeout:.0f} s", logging.ERROR)
        except OSError as error:
            self._say(f"{' '.join(command)}: {error.strerror}", logging.ERROR)
        else:
            if status:
                self._say(f"{' '.join(command)}: ended with status {status}", logging.ERROR)


def run_for_a_while(command: Sequence[str], seconds: float = 60) -> subprocess.Popen[bytes]:
    """The process, ended. Raises TimeoutExpired when it does not: it is killed then and not waited for, since one that hangs
    in the kernel, as umount of a dead drive may, does not end by that either."""
    process = subprocess.Popen(command)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process


def mounted_drives(mounts: str, device_dir: str) -> dict[str, str]:
    """Kernel name of each drive that is mounted below ``device_dir``, and where."""
    found = {}
    for line in mounts.splitlines():
        words = line.split()
        if len(words) > 1 and words[0].startswith("/dev/") and words[1].startswith(device_dir.rstrip("/") + "/"):
            found[os.path.basename(os.path.realpath(words[0]))] = words[1]
    return found


def is_of(name: str, drive: str) -> bool:
    """Whether an error of ``name`` is one of ``drive``: the same, or the disk that ``drive`` is a partition of."""
    return name == drive or (drive.startswith(name) and drive[len(name) :].lstrip("p").isdigit())


def time_of(line: str, now: float) -> float | None:
    """When a line was written (local time); None when it does not say. A line without a year is of the last twelve months."""
    iso = _ISO_TIME.match(line)
    try:
        if iso:
            return time.mktime((*map(int, iso.groups()), 0, 0, -1))  # type: ignore[arg-type]
        syslog = _SYSLOG_TIME.match(line)
        if not syslog or syslog[1] not in _MONTHS:
            return None
        year = time.localtime(now).tm_year
        parts = (_MONTHS[syslog[1]], *map(int, syslog.groups()[1:]))
        found = time.mktime((year, *parts, 0, 0, -1))  # type: ignore[arg-type]
        return found if found <= now + 86400 else time.mktime((year - 1, *parts, 0, 0, -1))  # type: ignore[arg-type]
    except (OverflowError, ValueError):
        return None


def last_lines(path: str, encoding: str) -> Iterator[str]:
    with gzip.open(path) if path.endswith(".gz") else open(path, "rb") as file:
        if not path.endswith(".gz"):
            file.seek(max(0, os.stat(path).st_size - MAX_LOG))
        yield from file.read(MAX_LOG).decode(encoding, "surrogateescape").splitlines()


def comment_out(fstab: str, mount: str) -> str:
    """The file with the line of a mount point commented out."""
    lines = []
    for line in fstab.splitlines(keepends=True):
        words = line.split()
        lines.append("#" + line if len(words) > 1 and words[1] == mount and not line.lstrip().startswith("#") else line)
    return "".join(lines)


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()


def patterns_of(conf: Mapping[str, str], path: str) -> list[re.Pattern[str]]:
    """Those of ``regex_pattern_N``, else the usual ones. Raises ConfigError."""
    given = [(name, text) for name, text in sorted(conf.items()) if name.startswith("regex_pattern_")]
    found = []
    for name, text in given or [("", pattern) for pattern in DEFAULT_PATTERNS]:
        try:
            pattern = re.compile(text)
        except re.error as error:
            raise ConfigError(
                f"expected a regular expression: {error}", file=path, section="drive-audit", option=name, value=text
            ) from None
        if not pattern.groups:
            raise ConfigError(
                "expected a group, the name of the drive", file=path, section="drive-audit", option=name, value=text
            )
        found.append(pattern)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; gives the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if len(given) != 1 or given[0].startswith("-"):
        print("Usage: keelstore-drive-audit CONF_FILE")
        return 1
    try:
        config = read_config(given[0])
        conf = config.merged("drive-audit")
        options = parse(
            DriveAuditOptions,
            conf,
            section="drive-audit",
            file=config.path,
            local=config.sections["drive-audit"],
            known=("regex_pattern_*", *(doc.name for doc in document(LogOptions))),
        )
        audit = DriveAudit(options, patterns_of(conf, config.path), logger=logger_for(conf, "drive-audit"))
        found = audit.carry_out()
        cache = ReconCache(options.recon_cache_path)
        cache.update("drive", {**found, "drive_audit_errors": sum(found.values())})
        _give_to(cache.path("drive"), options.user)
    except KeelstoreError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"Error: {error.filename}: {error.strerror}" if error.filename else f"Error: {error}", file=sys.stderr)
        return 1
    return 0


def _give_to(path: str, user: str) -> None:
    """The servers, which run as ``user``, update the file too."""
    import pwd

    try:
        entry = pwd.getpwnam(user)
        os.chown(path, entry.pw_uid, entry.pw_gid)
    except (KeyError, OSError):  # no such user, or we are not root: then the file is ours alone
        pass


if __name__ == "__main__":
    sys.exit(main())
