"""``keelstore-init``: start and stop a set of servers by their configuration files, as ``swift-init`` does.

    keelstore-init all|main|SERVER[.CONFIG]... start|stop|shutdown|restart|reload|reload-seamless|force-reload|kill|status

A server's configurations are all ``*.conf`` files and ``*.conf.d`` directories below the configuration directory
whose path begins with its name: ``object-server.conf``, ``object-server/1.conf``. A daemon's are those of the server
of its type that have a section for it, else files that begin with its own name. Each runs as a process group of its
own; its pid file in the run directory is locked by it, so a stale one is never believed.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from keelstore.common import daemon
from keelstore.common.entry_points import COMMANDS as COMMANDS_OF_PACKAGE
from keelstore.node.command import own_command

MAIN = ("account-server", "container-server", "object-server", "proxy-server")
DAEMONS = tuple(sorted(name.removeprefix("keelstore-") for name, target in COMMANDS_OF_PACKAGE.items()
                       if target.startswith("keelstore.node.run_daemon:")))
ALL = (*MAIN, *DAEMONS)
COMMANDS = ("start", "stop", "shutdown", "restart", "reload", "reload-seamless", "force-reload", "kill", "status",
            "no-wait", "no-daemon")
DEFAULT_CONF_DIRS = ("/etc/keelstore", "/etc/swift")
_START_S = 60.0


@dataclass(frozen=True)
class Unit:
    """One server with one configuration."""

    server: str
    conf: str
    name: str  # of its files in the run directory, without ending
    run_dir: str

    @property
    def pid_file(self) -> str:
        return os.path.join(self.run_dir, f"{self.name}.pid")

    @property
    def pid(self) -> int | None:
        return daemon.holder_of(self.pid_file)

    @property
    def processes(self) -> dict[int, int | None]:
        """The living processes of this unit with their start times, its supervisor first."""
        pid = self.pid
        found: dict[int, int | None] = {} if pid is None else {pid: daemon.start_time(pid)}
        state = daemon.read_state(os.path.join(self.run_dir, f"{self.name}.json"))
        for worker, started in [*state.get("workers", ()), *state.get("old_workers", ()), *state.get("background", ())]:
            if started is not None and daemon.start_time(worker) == started:
                found[worker] = started
        return found


def servers_of(words: Sequence[str]) -> list[tuple[str, str | None]]:
    """(server, configuration or None for all) of what was asked for; names we have no program for are dropped."""
    found: list[tuple[str, str | None]] = []
    for word in words:
        name, _, config = word.partition(".")
        if name == "all":
            names = list(ALL)
        elif name == "main":
            names = list(MAIN)
        elif name == "rest":
            names = [server for server in ALL if server not in MAIN]
        elif "*" in name:
            names = [server for server in ALL if fnmatch.fnmatch(server, name)]
        else:
            names = [name if "-" in name else f"{name}-server"]
        found += [(server, config or None) for server in names if server in ALL]
    return list(dict.fromkeys(found))


def configurations(conf_dir: str, server: str) -> list[str]:
    """The configuration files and directories of a server or daemon, in order."""
    if server in DAEMONS:
        shared = [path for path in _named(conf_dir, f"{server.partition('-')[0]}-server") if _has_section(path, server)]
        return shared or _named(conf_dir, server)
    return _named(conf_dir, server)


def _has_section(path: str, name: str) -> bool:
    files = [path] if os.path.isfile(path) else [os.path.join(path, file) for file in sorted(os.listdir(path))]
    for file in files:
        try:
            with open(file, encoding="utf-8", errors="replace") as lines:
                if any(line.strip() == f"[{name}]" for line in lines):
                    return True
        except OSError:
            continue
    return False


def _named(conf_dir: str, server: str) -> list[str]:
    found = []
    for directory, subdirectories, files in os.walk(conf_dir):
        inside = os.path.relpath(directory, conf_dir)
        for name in sorted([*files, *subdirectories]):
            path = name if inside == "." else os.path.join(inside, name)
            if not path.startswith(server) or not name.endswith((".conf", ".conf.d")) or name.startswith("."):
                continue
            found.append(os.path.join(conf_dir, path))
        subdirectories[:] = [name for name in sorted(subdirectories) if not name.endswith(".conf.d")]
    return sorted(found)


def units_of(server: str, config: str | None, conf_dir: str, run_dir: str) -> list[Unit]:
    units = []
    for path in configurations(conf_dir, server):
        stem = os.path.relpath(path, conf_dir).removesuffix(".d").removesuffix(".conf")
        if server in DAEMONS:
            stem = stem.replace(f"{server.partition('-')[0]}-server", server, 1)
        if config is None or os.path.basename(stem) == config:
            units.append(Unit(server, path, stem.replace(os.sep, "-"), run_dir))
    return units


class Manager:
    """Carries out commands; every method gives whether all went well."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.run_dir = os.path.abspath(options.run_dir)

    def run(self) -> int:
        options = self.options
        servers = servers_of(options.servers)
        well = bool(servers)
        if not servers:
            print(f"Unable to locate any of: {' '.join(options.servers)}", file=sys.stderr)
        for server, config in servers:
            units = units_of(server, config, options.conf_dir, self.run_dir)
            if not units:
                print(f"Unable to locate config for {server}" if config is None else
                      f"Unable to locate config {config} for {server}")
                strict = options.strict if options.strict is not None else options.command == "start" and len(servers) == 1
                well = well and not strict
                continue
            if options.config_num:
                if options.config_num > len(units):
                    print(f"Unable to locate config number {options.config_num} for {server}")
                    well = False
                    continue
                units = [units[options.config_num - 1]]
            well = self.carry_out(options.command, server, units) and well
        return 0 if well else 1

    def carry_out(self, command: str, server: str, units: Sequence[Unit]) -> bool:
        match command:
            case "start" | "no-wait":
                return self.start(units, wait=command == "start" and not self.options.no_wait)
            case "no-daemon":
                return self.foreground(units)
            case "stop":
                return self.stop(server, units, signal.SIGTERM)
            case "shutdown":
                return self.stop(server, units, signal.SIGTERM)
            case "kill":
                return self.stop(server, units, signal.SIGKILL)
            case "restart":
                return self.stop(server, units, signal.SIGTERM) and self.start(units)
            case "reload" | "force-reload" | "reload-seamless":
                return self.reload(server, units)
            case _:
                return self.status(server, units)

    # -- commands ------------------------------------------------------------------------------------------------------

    def start(self, units: Sequence[Unit], wait: bool = True) -> bool:
        os.makedirs(self.run_dir, exist_ok=True)
        started: list[tuple[Unit, subprocess.Popen[bytes]]] = []
        well = True
        for unit in units:
            pid = unit.pid
            if pid is not None:
                print(f"{unit.server} running ({pid} - {unit.conf})\n{unit.server} already started...")
                well = False
                continue
            print(f"Starting {unit.server}...({unit.conf})", flush=True)
            output = None if wait and self.options.verbose else subprocess.DEVNULL
            started.append((unit, subprocess.Popen(
                self._command(unit), stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.PIPE if wait else subprocess.DEVNULL, start_new_session=True, cwd="/")))
        deadline = time.monotonic() + _START_S
        for unit, process in started if wait else ():
            while process.poll() is None and time.monotonic() < deadline:
                state = daemon.read_state(os.path.join(self.run_dir, f"{unit.name}.json"))
                if state.get("serves") and state.get("pid") == process.pid:
                    break
                time.sleep(0.05)
            if process.poll() == 0 and self.options.once:
                continue
            if process.poll() is not None:
                assert process.stderr is not None
                lines = process.stderr.read().decode("utf-8", "replace").strip().splitlines()
                print(f"{unit.server} did not start: {lines[-1] if lines else 'it ended'}", file=sys.stderr)
                well = False
        return well

    def foreground(self, units: Sequence[Unit]) -> bool:
        os.makedirs(self.run_dir, exist_ok=True)
        processes = [subprocess.Popen(self._command(unit)) for unit in units]
        codes = []
        for process in processes:
            try:
                codes.append(process.wait())
            except KeyboardInterrupt:  # the terminal has told them as well
                codes.append(process.wait())
        return not any(codes)

    def stop(self, server: str, units: Sequence[Unit], number: int) -> bool:
        found: dict[int, int | None] = {}
        for unit in units:
            processes = unit.processes
            pid = unit.pid
            targets = processes if number == signal.SIGKILL or pid is None else {pid: processes.get(pid)}
            for target, started in targets.items():
                print(f"Signal {server}  pid: {target}  signal: {int(number)}")
                daemon.signal_process(target, started, number)
            found.update(processes)
        if not found:
            print(f"No {server} running")
            return True
        limit = self.options.kill_wait
        left = daemon.wait_gone(found, limit)
        if left and self.options.kill_after_timeout:
            for pid in left:
                print(f"Waited {limit} seconds for {server} to die; killing")
                daemon.signal_process(pid, found[pid], signal.SIGKILL)
            left = daemon.wait_gone(found, limit)
        for pid in found:
            if pid not in left:
                print(f"{server} ({pid}) appears to have stopped")
        if left:
            print(f"Waited {limit} seconds for {server} to die; giving up")
        return not left

    def reload(self, server: str, units: Sequence[Unit]) -> bool:
        """Ours is graceful and seamless in one: the running supervisor does it, and refuses what does not load."""
        if server in DAEMONS:  # what it does may be cut off at any point: stopping and starting loses nothing
            return self.stop(server, units, signal.SIGTERM) and self.start(units)
        well = True
        for unit in units:
            pid = unit.pid
            if pid is None:
                print(f"No {server} running")
                well = False
                continue
            trial = subprocess.run([*self._command(unit), "--test-config"], capture_output=True)
            if trial.returncode:
                lines = trial.stderr.decode("utf-8", "replace").strip().splitlines()
                why = lines[-1] if lines else "its configuration does not load"
                print(f"{server} is not reloaded: {why}", file=sys.stderr)
                well = False
                continue
            print(f"Signal {server}  pid: {pid}  signal: {int(signal.SIGUSR1)}")
            well = daemon.signal_process(pid, daemon.start_time(pid), signal.SIGUSR1) and well
        return well

    def status(self, server: str, units: Sequence[Unit]) -> bool:
        running = [(unit, unit.pid) for unit in units]
        for unit, pid in running:
            if pid is not None:
                print(f"{server} running ({pid} - {unit.conf})")
        if not any(pid for _, pid in running):
            print(f"No {server} running")
        return all(pid is not None for _, pid in running)

    def _command(self, unit: Unit) -> list[str]:
        if unit.server in DAEMONS:
            once = ["--once"] if self.options.once else []
            return own_command("keelstore.node.run_daemon", [
                unit.server, unit.conf, "--run-dir", self.run_dir, "--name", unit.name, *once])
        role = unit.server.removesuffix("-server")
        return own_command("keelstore.node", [unit.conf, "--role", role, "--run-dir", self.run_dir, "--name", unit.name])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="keelstore-init",
                                     description="Start and stop servers by their configuration files.")
    parser.add_argument("servers", nargs="+", metavar="SERVER", help=f"all, main, or of: {', '.join(ALL)}")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help=", ".join(COMMANDS))
    parser.add_argument("-v", "--verbose", action="store_true", help="show what servers print when they start")
    parser.add_argument("-w", "--no-wait", action="store_true", help="do not wait until servers serve")
    parser.add_argument("-n", "--no-daemon", action="store_true", help="start in the foreground")
    parser.add_argument("-g", "--graceful", action="store_true", help="accepted: stopping always lets requests end")
    parser.add_argument("-o", "--once", action="store_true", help="of daemons: one pass")
    parser.add_argument("-c", "--config-num", type=int, metavar="N", help="only the configuration with this number, from 1")
    parser.add_argument("-k", "--kill-wait", type=int, default=15, metavar="N", help="seconds to wait for processes to die")
    parser.add_argument("--kill-after-timeout", action="store_true", help="then kill them")
    parser.add_argument("-r", "--run-dir", default="/var/run/keelstore", metavar="DIR")
    parser.add_argument("--conf-dir", default=next((path for path in DEFAULT_CONF_DIRS if os.path.isdir(path)),
                                                   DEFAULT_CONF_DIRS[0]), metavar="DIR")
    parser.add_argument("--strict", action="store_true", default=None, help="fail when a configuration is missing")
    parser.add_argument("--non-strict", action="store_false", dest="strict")
    options = parser.parse_args(arguments)
    options.conf_dir = os.path.abspath(options.conf_dir)
    if options.no_daemon and options.command == "start":
        options.command = "no-daemon"
    try:
        return Manager(options).run()
    except OSError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
