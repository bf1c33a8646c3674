"""Entry point of the servers: ``python -m keelstore.node [--role KIND] CONF [-v] [-t]``.

Without a role CONF is a ``node.conf``, and all roles that it lists are served.
"""

from keelstore.common import concurrency

concurrency.monkey_patch()  # first: modules imported earlier would keep the blocking sockets

import argparse  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from collections.abc import Sequence  # noqa: E402
from dataclasses import replace  # noqa: E402
from typing import NoReturn  # noqa: E402

from keelstore.common import allocator, daemon, logs  # noqa: E402
from keelstore.common.daemon import AlreadyRunning  # noqa: E402
from keelstore.common.errors import ConfigError, KeelstoreError, RingError  # noqa: E402
from keelstore.common.wsgi import STORAGE_KINDS  # noqa: E402
from keelstore.node import descriptors  # noqa: E402
from keelstore.node.command import own_command  # noqa: E402
from keelstore.node.listeners import BindError  # noqa: E402
from keelstore.node.roles import load_node, load_role, socket_of  # noqa: E402
from keelstore.node.supervisor import Inherited, Supervisor  # noqa: E402


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(1, f"Error: {message}\n")


def main(arguments: Sequence[str] | None = None, role: str | None = None) -> int:
    """Run to the end; gives the exit status."""
    parser = _Parser(prog=f"keelstore-{role}-server" if role else "keelstore-node",
                     description="Serve %s." % (f"the {role} role" if role else "all roles of a node"))
    parser.add_argument("conf", nargs="?", help="configuration file, or directory of *.conf files")
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("-v", "--verbose", action="store_true", help="log to standard error as well as configured")
    parser.add_argument("-t", "--test-config", action="store_true", help="load everything, then exit")
    parser.add_argument("--role", choices=("proxy", *STORAGE_KINDS), help=argparse.SUPPRESS)
    parser.add_argument("--run-dir", help="directory for the pid and state files")
    parser.add_argument("--name", help="their name, without ending")
    options = parser.parse_args(arguments)
    role = role or options.role
    if not options.conf:
        parser.error("missing config path argument")
    options.conf = os.path.abspath(options.conf)
    if not os.path.exists(options.conf):
        parser.error(f"unable to locate {options.conf}")
    verbose = options.verbose or "verbose" in options.words
    logs.use_console()
    inherited = Inherited.take()
    try:
        program = load_role(options.conf, role) if role else load_node(options.conf)
        if options.test_config:
            descriptors.fit(program, daemon.raise_limits(descriptors.wanted(program)))
            print(f"{options.conf}: the configuration loads")
            return 0
        if options.run_dir:
            name = options.name or os.path.basename(options.conf).removesuffix(".d").removesuffix(".conf")
            program = replace(program, run_dir=os.path.abspath(options.run_dir), name=name)
            if program.background is not None:
                program.background.socket_path = socket_of(os.path.abspath(options.run_dir), name)
        if verbose:
            logs.add_console(program.logger)
        logs.use_for_modules(program.logger)
        logs.lighten()
        allocator.keep_buffers()
        again = [options.conf, *(["--role", role] if role else []), *(["-v"] if verbose else []),
                 *(["--run-dir", os.path.abspath(options.run_dir), "--name", program.name] if options.run_dir else [])]
        return Supervisor(program, own_command("keelstore.node", again), inherited).run()
    except (ConfigError, RingError, BindError, AlreadyRunning) as error:
        return _failed(str(error))
    except KeelstoreError as error:
        return _failed(f"{type(error).__name__}: {error}")
    except OSError as error:
        return _failed(str(error))


def _failed(text: str) -> int:
    print(f"Error: {' '.join(text.split())}", file=sys.stderr)
    return 1


def proxy_server() -> int:
    return main(role="proxy")


def account_server() -> int:
    return main(role="account")


def container_server() -> int:
    return main(role="container")


def object_server() -> int:
    return main(role="object")


if __name__ == "__main__":
    sys.exit(main())
