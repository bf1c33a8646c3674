"""``keelstore status``: what runs, where, and whether it is well. Exit status 0 only when all is."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from keelstore.cli import processes
from keelstore.cli.layout import POLICIES, Layout
from keelstore.cli.main import data_option

REGION = "us-east-1"


def collect(layout: Layout) -> dict[str, Any]:
    """The value that ``--json`` prints."""
    settings = layout.settings
    states = [processes.state_of(layout, node) for node in layout.nodes]
    if all(state.healthy for state in states):
        overall = "running"
    elif not any(state.pids for state in states):
        overall = "stopped"
    else:
        overall = "degraded"
    return {
        "state": overall,
        "swift_auth_url": settings.auth_url,
        "storage_url": settings.storage_url,
        "s3_endpoint": settings.endpoint(),
        "s3_region": REGION,
        "user": settings.user,
        "key": settings.key,
        "pids": [pid for state in states for pid in state.pids],
        "policies": [{"index": policy.index, "name": policy.name, "type": policy.kind, "replicas": policy.replicas,
                      "default": policy.is_default} for policy in POLICIES],
        "nodes": [{"number": state.node.number, "pid": state.pid, "workers": list(state.workers),
                   "background": list(state.background), "address": state.address,
                   "alive": state.alive, "answers": state.answers, "data": state.node.path("devices"),
                   "log": state.node.log_file} for state in states],
        "data": layout.root,
    }


@click.command()
@data_option
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def status(data: str, as_json: bool) -> None:
    """Show what runs, where, and whether it is well (exit status 0)."""
    found = collect(Layout.open(data))
    if as_json:
        click.echo(json.dumps(found, indent=1))
    else:
        _show(found)
    sys.exit(0 if found["state"] == "running" else 1)


def _show(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(soft_wrap=True, highlight=False)
    colour = {"running": "green", "degraded": "yellow", "stopped": "red"}[found["state"]]
    console.print(f"keelstore in {found['data']}: [{colour}]{found['state']}[/{colour}]")
    titles = {"Swift auth URL": "swift_auth_url", "storage URL": "storage_url", "user": "user", "key": "key"}
    for title, name in titles.items():
        console.print(f"  {title:<15} {found[name]}", markup=False)
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for heading in ("  node", "address", "state", "supervisor", "workers"):
        table.add_column(heading)
    for node in found["nodes"]:
        state = "well" if node["alive"] and node["answers"] else "does not answer" if node["alive"] else "stopped"
        table.add_row(f"  {node['number']}", node["address"], state, str(node["pid"] or "-"),
                      " ".join(map(str, node["workers"])) or "-")
    console.print(table)
    policies = ", ".join(f"{policy['name']} ({_kind(policy)}{', the default' if policy['default'] else ''})"
                         for policy in found["policies"])
    console.print(f"  policies        {policies}", markup=False)


def _kind(policy: dict[str, Any]) -> str:
    return f"{policy['replicas']} copies" if policy["type"] == "replication" else f"{policy['replicas']} fragments"
