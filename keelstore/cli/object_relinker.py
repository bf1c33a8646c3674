"""``keelstore-object-relinker relink|cleanup [CONF]``: gives objects their places for another part power.

Run by an operator on every node, once for each step: ``doc/admin/part-power.md`` (``spec: daemons 17``). Exit status 0: done;
1: something failed, or the call was wrong; 2: there is no policy whose ring asks for this step.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from keelstore.common import logs
from keelstore.common.cluster import Cluster, load_cluster
from keelstore.common.daemon import ProcessOptions, die_with_parent, drop_privileges, raise_limits, set_priority
from keelstore.common.daemon_frame import Selection
from keelstore.common.errors import ConfigError, KeelstoreError, RingError
from keelstore.common.options import parse
from keelstore.common.paste_config import read_config
from keelstore.common.policy import Policy
from keelstore.common.recon_cache import ReconCache
from keelstore.common.ring.ring import RingFile
from keelstore.common.room import Reserve
from keelstore.obj.options import ObjectRelinkerOptions
from keelstore.obj.relink_hashdir import Log
from keelstore.obj.relink_plan import STEPS, Powers, applies
from keelstore.obj.relink_report import RECON_FILE, Report
from keelstore.obj.relinker import Change, Relinker, devices_in
from keelstore.obj.store import ObjectStore

SECTION: Final = "object-relinker"
DONE, FAILED, NO_POLICY = 0, 1, 2
NOTHING: Final = "No policy found to increase the partition power."


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(FAILED, f"Error: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="keelstore-object-relinker", description="Move objects to their places for another part power.")
    parser.add_argument("action", choices=STEPS,
                        help="relink: before the increase; cleanup: after it, or after it was cancelled")
    parser.add_argument("conf_file", nargs="?", help=f"configuration file with [{SECTION}], as object-server.conf")
    parser.add_argument("--swift-dir", dest="swift_dir", help="directory of the cluster file and the rings")
    parser.add_argument("--policy", action="append", default=[], dest="policies", help="only this policy, by name or number")
    parser.add_argument("--devices", help="directory that holds the device mount points")
    parser.add_argument("--user", help="user to run as, when started by root")
    parser.add_argument("--device", action="append", default=[], dest="device_list", help="only this device")
    parser.add_argument("--partition", "-p", action="append", default=[], type=int, dest="partitions",
                        help="only this partition")
    parser.add_argument("--skip-mount-check", action="store_true", help="take devices that are no mount points, too")
    parser.add_argument("--files-per-second", help="hash directories that each process looks at in a second; 0: no limit")
    parser.add_argument("--stats-interval", help="seconds between two log lines about the progress")
    parser.add_argument("--workers", help="processes that share the devices, or auto: one for each")
    parser.add_argument("--logfile", help="log to this file")
    parser.add_argument("--debug", action="store_true", help="log more")
    parser.add_argument("--clobber-hardlink-collisions", action="store_true",
                        help="put aside (relink) or give up (cleanup) a file whose name another one has in its new place")
    parser.add_argument("--dry-run", action="store_true", help="print which partitions would be worked on, and do nothing")
    return parser


def _conf_of(arguments: argparse.Namespace) -> dict[str, str]:
    """What the file says, and the command line instead. Raises ConfigError."""
    conf: dict[str, str] = {}
    if arguments.conf_file:
        path = os.path.abspath(arguments.conf_file)
        if not os.path.exists(path):
            raise ConfigError("no such file", file=path)
        config = read_config(path)
        conf = {**config.defaults, **config.sections.get(SECTION, {})}
    else:
        conf["log_file"] = "-"
    for name in ("user", "files_per_second", "stats_interval", "workers"):
        if getattr(arguments, name) is not None:
            conf[name] = getattr(arguments, name)
    for name, value in (("swift_dir", arguments.swift_dir), ("devices", arguments.devices), ("log_file", arguments.logfile)):
        if value is not None:
            conf[name] = os.path.abspath(value)
    for name, value, is_set in (("mount_check", "false", arguments.skip_mount_check), ("log_level", "DEBUG", arguments.debug),
                                ("clobber_hardlink_collisions", "true", arguments.clobber_hardlink_collisions)):
        if is_set:
            conf[name] = value
    return conf


# -- what is to be done ------------------------------------------------------------------------------------------------


def policies_of(cluster: Cluster, names: Sequence[str]) -> list[Policy]:
    """Those named, by name or number; all when none is. Raises ConfigError."""
    found = []
    for name in names:
        policy = cluster.policies.by_name(name) or (cluster.policies.get(name) if name.isdecimal() else None)
        if policy is None:
            raise ConfigError(f"there is no policy {name!r}; there are: "
                              f"{', '.join(policy.name for policy in cluster.policies)}", file=cluster.file)
        found.append(policy)
    return found or list(cluster.policies)


def changes_of(cluster: Cluster, policies: Sequence[Policy], step: str) -> list[Change]:
    """The policies whose rings ask for the step. Raises ConfigError, RingError."""
    found = []
    for policy in policies:
        path = cluster.ring_path(policy.ring_name)
        if not os.path.exists(path):
            raise ConfigError("the ring file is missing", file=path)
        ring = RingFile(path).current()
        if ring.next_part_power is not None and applies(step, ring.part_power, ring.next_part_power):
            found.append(Change(policy, Powers(ring.part_power, ring.next_part_power, ring.version)))
    return found


class PrefixedLog(logging.LoggerAdapter[logging.Logger]):
    """Lines that say which process they are of."""

    def __init__(self, logger: logging.Logger, step: str, devices: Sequence[str]):
        super().__init__(logger)
        self._start = f"[step={step}, pid={os.getpid()}, devs={','.join(devices)}] ".replace("%", "%%")

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return f"{self._start}{msg}", kwargs


@dataclass
class Run:
    """All that a process needs to do its share."""

    step: str
    cluster: Cluster
    changes: Sequence[Change]
    options: ObjectRelinkerOptions
    only: Selection
    log: logging.Logger
    recon: ReconCache | None

    def relinker(self, log: Log) -> Relinker:
        store = ObjectStore(self.cluster.hash_path, reserve=Reserve.parse("0"), reclaim_age_s=self.options.reclaim_age,
                            commit_window_s=self.options.commit_window, logger=self.log, remembers=0)
        report = Report(log, self.recon, self.options.stats_interval, time.time)
        return Relinker(self.step, self.changes, self.options, store, report, log, self.only)

    def share(self, devices: Sequence[str]) -> int:
        """Do it; gives the exit status."""
        log = PrefixedLog(self.log, self.step, devices)
        self.tell(os.getpid(), devices, None)
        status = FAILED if self.relinker(log).run(devices) else DONE
        self.tell(os.getpid(), devices, status)
        return status

    def tell(self, pid: int, devices: Sequence[str], status: int | None) -> None:
        if self.recon is not None:
            entry = {"devices": list(devices), "timestamp": time.time(), "return_code": status}
            self.recon.update(RECON_FILE, {"workers": {str(pid): entry}})


# -- processes ---------------------------------------------------------------------------------------------------------


def shared_out(devices: Sequence[str], workers: int) -> list[list[str]]:
    """The devices dealt out to at most so many processes."""
    count = min(workers, len(devices))
    return [list(devices[start::count]) for start in range(count)]


def run_workers(run: Run, shares: Sequence[Sequence[str]]) -> int:
    """A process for each share; gives the exit status for all."""
    children: dict[int, tuple[Sequence[str], float]] = {}
    parent = os.getpid()
    for share in shares:
        pid = os.fork()
        if not pid:
            _live(run, share, parent)
        children[pid] = share, time.monotonic()
    status = DONE
    while children:
        pid, ended = os.wait()
        if pid not in children:
            continue
        share, began = children.pop(pid)
        status = max(status, _ended(run, pid, share, time.monotonic() - began, os.waitstatus_to_exitcode(ended)))
    return status


def _live(run: Run, share: Sequence[str], parent: int) -> NoReturn:
    status = FAILED
    try:
        die_with_parent(parent)
        status = run.share(share)
    except BaseException:
        run.log.exception("the process for %s failed", ", ".join(share))
    finally:
        logging.shutdown()
        os._exit(status)


def _ended(run: Run, pid: int, share: Sequence[str], took_s: float, code: int) -> int:
    who, took = f"Worker (pid={pid}, devs={','.join(share)})", f"{took_s:.1f}s"
    if code == DONE:
        run.log.info("%s completed in %s", who, took)
        return DONE
    if code == FAILED:
        run.log.warning("%s completed in %s with errors", who, took)
    elif code < 0:
        run.log.error("%s exited in %s after receiving signal: %s", who, took, signal.Signals(-code).name)
    else:
        run.log.error("%s completed in %s with unexpected status %d", who, took, code)
    if code != FAILED:
        run.tell(pid, share, code)  # it could not by itself
    return FAILED


# -- main --------------------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run to the end; gives the exit status."""
    given = _parser().parse_args(arguments)
    logs.use_console()
    try:
        conf = _conf_of(given)
        options = parse(ObjectRelinkerOptions, conf, section=SECTION, file=given.conf_file or "")
        process = parse(ProcessOptions, conf, section=SECTION, file=given.conf_file or "")
        drop_privileges(process.user)
        raise_limits()
        log = logs.logger_for(conf, SECTION)
        logs.use_for_modules(log)
        problem = set_priority(process)
        if problem:
            log.warning("priority not as configured: %s", problem)
        cluster = load_cluster(options.swift_dir)
        changes = changes_of(cluster, policies_of(cluster, given.policies), given.action)
        if not changes:
            log.warning(NOTHING)
            print(NOTHING, file=sys.stderr)
            return NO_POLICY
        only = Selection(partitions=frozenset(given.partitions))
        return _run(Run(given.action, cluster, changes, options, only, log, _recon(options, log)), given)
    except (ConfigError, RingError) as error:
        return _failed(str(error))
    except KeelstoreError as error:
        return _failed(f"{type(error).__name__}: {error}")
    except OSError as error:
        return _failed(f"{error.filename}: {error.strerror}" if error.filename else str(error))


def _run(run: Run, given: argparse.Namespace) -> int:
    devices = devices_in(run.options.devices, given.device_list, run.log)
    if given.dry_run:
        for line in run.relinker(PrefixedLog(run.log, run.step, devices)).plan(devices):
            print(line)
        return DONE
    if not devices:
        return _failed(f"{run.options.devices}: there are no devices")
    if sys.stderr.isatty():
        logs.add_console(run.log)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # whatever it does may be cut off at any point
    if run.recon is not None:
        run.recon.update(RECON_FILE, {"devices": {}, "workers": {}})
    shares = shared_out(devices, len(devices) if run.options.workers is None else max(1, run.options.workers))
    began = time.monotonic()
    run.log.info("Starting relinker using %d workers: %s", len(shares), _now())
    status = run_workers(run, shares) if len(shares) > 1 else run.share(shares[0])
    run.log.info("Finished relinker: %s (%.1fs elapsed)", _now(), time.monotonic() - began)
    logging.shutdown()
    return status


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def _recon(options: ObjectRelinkerOptions, log: logging.Logger) -> ReconCache | None:
    try:
        os.makedirs(options.recon_cache_path, exist_ok=True)
    except OSError as error:
        log.warning("%s cannot be made (%s): recon and status will not know how far this is", options.recon_cache_path,
                    error.strerror)
        return None
    return ReconCache(options.recon_cache_path, log)


def _failed(text: str) -> int:
    print(f"Error: {' '.join(text.split())}", file=sys.stderr)
    return FAILED


if __name__ == "__main__":
    sys.exit(main())
