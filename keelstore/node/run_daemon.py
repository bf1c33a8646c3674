"""Entry point of a daemon that runs alone: ``keelstore-object-updater CONF [once] [options]``.

``python -m keelstore.node.run_daemon NAME CONF [-v] [-o|--once] [-d DEVICES] [-p PARTITIONS] [-i POLICIES] [--dry-run]``
"""

from keelstore.common import concurrency

concurrency.monkey_patch()  # first: modules imported earlier would keep the blocking sockets

import argparse  # noqa: E402
import logging  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
from collections.abc import Sequence  # noqa: E402
from dataclasses import replace  # noqa: E402
from typing import Any, NoReturn  # noqa: E402

from keelstore.common import allocator, logs  # noqa: E402
from keelstore.common.daemon import (  # noqa: E402
    ProcessLock,
    ProcessOptions,
    drop_privileges,
    notify,
    raise_limits,
    set_priority,
    write_state,
)
from keelstore.common.daemon_frame import ALL, Daemon, Selection  # noqa: E402
from keelstore.common.errors import ConfigError, KeelstoreError  # noqa: E402
from keelstore.common.options import parse, parse_bool  # noqa: E402
from keelstore.common.paste_config import read_config  # noqa: E402
from keelstore.node.daemon_workers import DaemonWorkers  # noqa: E402
from keelstore.node.daemons import DAEMONS, Parts, Wanted, wanted  # noqa: E402


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(1, f"Error: {message}\n")


def _parser(name: str) -> argparse.ArgumentParser:
    parser = _Parser(prog=f"keelstore-{name}", description=f"The {name} daemon, by itself.")
    parser.add_argument("conf", nargs="?", help="configuration file, or directory of *.conf files")
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("-v", "--verbose", action="store_true", help="log to standard error as well as configured")
    parser.add_argument("-o", "--once", action="store_true", help="one pass, then exit")
    parser.add_argument("-t", "--test-config", action="store_true", help="load everything, then exit")
    parser.add_argument("--dry-run", action="store_true", help="print what one pass would do, and do nothing")
    parser.add_argument("-d", "--devices", default="", help="only these devices (a,b); one pass")
    parser.add_argument("-p", "--partitions", default="", help="only these partitions (1,2); one pass")
    parser.add_argument("-i", "--policies", default="", help="only these policies, by number (0,1); one pass")
    parser.add_argument("--processes", default="", help="of expirer and reconciler: how many share the queue")
    parser.add_argument("--process", default="", help="of the expirer: which of them this is, from 0")
    parser.add_argument("--run-dir", help=argparse.SUPPRESS)
    parser.add_argument("--name", help=argparse.SUPPRESS)
    return parser


def main(arguments: Sequence[str] | None = None, name: str = "") -> int:
    """Run to the end; gives the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not name:
        if not given or given[0] not in DAEMONS:
            print(f"Error: expected the name of a daemon: {', '.join(DAEMONS)}", file=sys.stderr)
            return 1
        name = given.pop(0)
    parser = _parser(name)
    options = parser.parse_args(given)
    if not options.conf:
        parser.error("missing config path argument")
    conf = os.path.abspath(options.conf)
    if not os.path.exists(conf):
        parser.error(f"unable to locate {options.conf}")
    logs.use_console()
    try:
        only = Selection(frozenset(_words(options.devices)), frozenset(_numbers(parser, "--partitions", options.partitions)),
                         frozenset(_numbers(parser, "--policies", options.policies)))
        config = read_config(conf)
        shares = {key: getattr(options, key) for key in ("processes", "process") if getattr(options, key)}
        if shares and name in config.sections:
            config = replace(config, sections={**config.sections, name: {**config.sections[name], **shares}})
        what = wanted(DAEMONS[name], config, ())
        daemonize = parse_bool(what.conf.get("daemonize", "yes"))
        process = parse(ProcessOptions, what.conf, section=name, file=conf)
        lock = ProcessLock.take(os.path.join(os.path.abspath(options.run_dir), f"{options.name or name}.pid")) \
            if options.run_dir else None
        drop_privileges(process.user)
        raise_limits()
        daemon = Parts().make(what)
        if options.test_config:
            print(f"{conf}: the configuration loads")
            return 0
        if options.verbose or "verbose" in options.words:
            logs.add_console(daemon.log)
        logs.use_for_modules(daemon.log)
        logs.lighten()
        allocator.keep_buffers()
        if options.dry_run:
            for line in daemon.dry_run(only):
                print(line)
            return 0
        problem = set_priority(process)
        if problem:
            daemon.log.warning("priority not as configured: %s", problem)
        once = options.once or "once" in options.words or not daemonize or not only.is_all
        if lock is not None:
            write_state(lock.path.removesuffix(".pid") + ".json", {"pid": os.getpid(), "serves": True, "workers": []})
        workers = getattr(daemon, "worker_count", 0)
        if workers and only.is_all:
            status = _run_workers(daemon, what, workers, once)
        else:
            status = _run(daemon, only if once else None)
        del lock
        return status
    except KeelstoreError as error:
        return _failed(str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}")
    except OSError as error:
        return _failed(str(error))


def _run(daemon: Daemon, only: Selection | None) -> int:
    """One pass (``only`` given), or passes until a signal ends the process."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))  # whatever it does may be cut off at any point
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    notify("READY=1")
    if only is None:
        daemon.run_forever()
        return 1
    try:
        daemon.run_once(only)
    except Exception:
        daemon.log.exception("the pass failed")
        logging.shutdown()
        return 1
    return 0


def _run_workers(daemon: Any, what: Wanted, count: int, once: bool) -> int:
    """As ``_run``, by so many processes, each with some of the devices."""

    def work(share: frozenset[str], once: bool) -> int:
        own: Any = Parts().make(what)
        own.share = share
        return _run(own, ALL if once else None)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))
    notify("READY=1")
    workers = DaemonWorkers(work, daemon.own_device_names, count, daemon.log)
    if once:
        status = workers.run_once()
        daemon.gather_recon()
        return status
    workers.run_forever()
    return 1


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _numbers(parser: argparse.ArgumentParser, option: str, text: str) -> list[int]:
    words = _words(text)
    if not all(word.isascii() and word.isdigit() for word in words):
        parser.error(f"{option}: expected numbers, such as 1,2, not {text!r}")
    return [int(word) for word in words]


def _failed(text: str) -> int:
    print(f"Error: {' '.join(text.split())}", file=sys.stderr)
    return 1


def account_replicator() -> int:
    return main(name="account-replicator")


def account_auditor() -> int:
    return main(name="account-auditor")


def account_reaper() -> int:
    return main(name="account-reaper")


def container_replicator() -> int:
    return main(name="container-replicator")


def container_auditor() -> int:
    return main(name="container-auditor")


def container_updater() -> int:
    return main(name="container-updater")


def container_reconciler() -> int:
    return main(name="container-reconciler")


def container_lifecycle() -> int:
    return main(name="container-lifecycle")


def container_sync() -> int:
    return main(name="container-sync")


def object_replicator() -> int:
    return main(name="object-replicator")


def object_reconstructor() -> int:
    return main(name="object-reconstructor")


def object_auditor() -> int:
    return main(name="object-auditor")


def object_updater() -> int:
    return main(name="object-updater")


def object_expirer() -> int:
    return main(name="object-expirer")


if __name__ == "__main__":
    sys.exit(main())
