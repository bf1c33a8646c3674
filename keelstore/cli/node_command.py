"""``keelstore node``: one node of a store, or one node of a real machine in the foreground."""

from __future__ import annotations

import os
import sys

import click

from keelstore.cli import processes
from keelstore.cli.layout import CommandError, Layout, NodePaths
from keelstore.cli.main import data_option
from keelstore.common import daemon


class _Node(click.Group):
    """``repair`` is imported only when it is wanted: it needs much that the others do not."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), "repair"])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name != "repair":
            return super().get_command(ctx, cmd_name)
        from keelstore.cli.node_repair import repair

        return repair


@click.group(cls=_Node)
def node() -> None:
    """Start, stop and list single nodes; have their daemons repair something now."""



@node.command("list")
@data_option
def list_nodes(data: str) -> None:
    """The nodes of a store."""
    layout = Layout.open(data)
    for paths in layout.nodes:
        state = processes.state_of(layout, paths)
        how = "running" if state.healthy else "stopped" if not state.pids else "degraded"
        click.echo(f"{paths.number}\t{state.address}\t{how}\t{' '.join(map(str, state.pids)) or '-'}")


@node.command()
@click.argument("number", metavar="K", type=int)
@data_option
def start(number: int, data: str) -> None:
    """Start node K; returns when it answers."""
    layout = Layout.open(data)
    paths = _paths(layout, number)
    pid = daemon.holder_of(paths.pid_file)
    if pid is not None:
        raise CommandError(f"node {number} is already running (process {pid})")
    processes.stop_node(paths)
    processes.start_nodes(layout, [paths])
    click.echo(f"node {number} is running on {layout.settings.endpoint(number)}")


@node.command()
@click.argument("number", metavar="K", type=int)
@click.option("--kill", is_flag=True, help="SIGKILL at once.")
@data_option
def stop(number: int, kill: bool, data: str) -> None:
    """Stop node K; returns when all its processes are gone."""
    layout = Layout.open(data)
    stopped = processes.stop_node(_paths(layout, number), at_once=kill)
    click.echo(f"node {number} is stopped" if stopped else f"node {number} was not running")


@node.command(context_settings={"ignore_unknown_options": True})
@click.argument("conf")
@data_option
@click.option("-t", "--test-config", is_flag=True, help="Load everything, then exit.")
def run(conf: str, data: str, test_config: bool) -> None:
    """Serve the node of a node.conf in the foreground; for init systems."""
    from keelstore.node.command import own_command

    command = own_command("keelstore.node", [os.path.abspath(conf), *(["-t"] if test_config else [])])
    sys.stdout.flush()
    os.execv(command[0], command)


def _paths(layout: Layout, number: int) -> NodePaths:
    if not 1 <= number <= layout.settings.nodes:
        raise CommandError(f"there is no node {number}: this store has {layout.settings.nodes}")
    return layout.node(number)
