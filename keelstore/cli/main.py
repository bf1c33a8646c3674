"""``keelstore``: the command line of a store on this machine.

Bodies are in one module each and are imported when called, so that each command starts quickly.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click

from keelstore import __version__
from keelstore.common.errors import KeelstoreError

_COMMANDS = {
    "up": "keelstore.cli.up:up",
    "status": "keelstore.cli.status:status",
    "down": "keelstore.cli.down:down",
    "node": "keelstore.cli.node_command:node",
    "explain": "keelstore.cli.explain:explain",
}


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name].partition(":")
        found: Any = getattr(importlib.import_module(module), name)
        assert isinstance(found, click.Command)
        return found


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="keelstore")
def keelstore() -> None:
    """An object store that speaks OpenStack Swift's protocols.

    `keelstore up` makes and starts a store in ./keelstore-data; its first lines tell how to use it.
    """


def main() -> int:
    """Run a command. What goes wrong is told in one line, with status 1 (2: the command line itself is wrong)."""
    try:
        code: Any = keelstore(prog_name="keelstore", standalone_mode=False)
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except click.Abort:
        print("Interrupted", file=sys.stderr)
        return 130
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except KeelstoreError as error:
        return _failed(str(error))
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except OSError as error:
        return _failed(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    return code if isinstance(code, int) else 0


def _failed(text: str) -> int:
    print(f"Error: {' '.join(text.split())}", file=sys.stderr)
    return 1


data_option = click.option("--data", metavar="DIR", default="./keelstore-data", show_default=True,
                           help="The data directory.")

if __name__ == "__main__":
    sys.exit(main())
