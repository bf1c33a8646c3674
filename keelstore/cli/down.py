"""``keelstore down``: stop all nodes of a store, and wait until they are gone."""

from __future__ import annotations

import click

from keelstore.cli import processes
from keelstore.cli.layout import Layout
from keelstore.cli.main import data_option


@click.command()
@data_option
def down(data: str) -> None:
    """Stop the store. Data and keys stay."""
    layout = Layout.open(data)
    stopped = [node.number for node in layout.nodes if processes.stop_node(node)]
    click.echo("stopped" if stopped else "it was not running")
