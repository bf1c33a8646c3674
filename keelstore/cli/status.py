"""``keelstore status``: whether data is safe, and if not, what is wrong and what helps. Exit status 0 only when it is.

Asks every server of the rings at ``/recon/health``, judges what they say (``diagnosis``), shows it on one screen or as JSON.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from dataclasses import asdict
from typing import Any

import click

from keelstore.cli import diagnosis, processes, view
from keelstore.cli.diagnosis_places import devices_of, down_nodes
from keelstore.cli.layout import POLICIES, Layout, command_name
from keelstore.cli.main import data_option
from keelstore.cli.problems import DANGER, Problem, is_safe
from keelstore.cli.processes import NodeState
from keelstore.cli.view import Process, View

REGION = "us-east-1"
FORMAT = 1


def collect(layout: Layout) -> dict[str, Any]:
    """The value that ``--json`` prints for a store of ``keelstore up``."""
    settings = layout.settings
    states = [processes.state_of(layout, node) for node in layout.nodes]
    if all(state.healthy for state in states):
        overall = "running"
    elif not any(state.pids for state in states):
        overall = "stopped"
    else:
        overall = "degraded"
    names = {settings.storage_ip(state.node.number): f"node {state.node.number}" for state in states}
    seen = (
        view.look(layout.node(1).path("etc"), names, [_process(state) for state in states], layout.root,
                  command=command_name())
        if overall != "stopped"
        else None
    )
    return {
        "state": overall,
        **judged(seen, overall, layout.root),
        "swift_auth_url": settings.auth_url,
        "storage_url": settings.storage_url,
        "s3_endpoint": settings.endpoint(),
        "s3_region": REGION,
        "user": settings.user,
        "key": settings.key,
        "pids": [pid for state in states for pid in state.pids],
        "policies": [
            {
                "index": policy.index,
                "name": policy.name,
                "type": policy.kind,
                "replicas": policy.replicas,
                "default": policy.name == settings.default_policy,
            }
            for policy in POLICIES
        ],
        "nodes": [
            {
                "number": state.node.number,
                "pid": state.pid,
                "workers": list(state.workers),
                "background": list(state.background),
                "address": state.address,
                "alive": state.alive,
                "answers": state.answers,
                "data": state.node.path("devices"),
                "log": state.node.log_file,
            }
            for state in states
        ],
        "data": layout.root,
    }


def collect_cluster(swift_dir: str) -> dict[str, Any]:
    """The same for any other cluster, by its rings. Raises ConfigError."""
    from keelstore.common.cluster import load_cluster

    seen = view.look(swift_dir, command=command_name())
    answering = [server.answers for server in seen.servers]
    state = "running" if all(answering) and answering else "degraded" if any(answering) else "stopped"
    policies = load_cluster(swift_dir).policies
    nodes = view.ordered({server.node for server in seen.servers})
    down = down_nodes(seen)
    return {
        "state": state, **judged(seen, state),
        "policies": [{"index": policy.index, "name": policy.name,
                      "type": "erasure_coding" if policy.stores_fragments else "replication",
                      "replicas": seen.rings[policy.ring_name].replicas if policy.ring_name in seen.rings else None,
                      "default": policy.is_default} for policy in policies],
        "nodes": [{"address": name, "answers": name not in down} for name in nodes],
        "swift_dir": os.path.abspath(swift_dir),
    }  # fmt: skip


def _process(state: NodeState) -> Process:
    return Process(
        f"node {state.node.number}",
        state.node.number,
        state.alive,
        state.answers,
        len(state.workers),
        state.wanted_workers,
        bool(state.background),
        state.node.log_file,
    )


def judged(seen: View | None, state: str, data: str = "") -> dict[str, Any]:
    """What of the JSON is about health. ``seen`` None: everything in ``data`` is stopped, and nobody can be asked."""
    if seen is None:
        problems = [
            Problem(DANGER, "stopped", "the store is stopped", "nothing of it runs",
                    f"{command_name()} up --detach --data {shlex.quote(data)}")
        ]
        return {
            "format": FORMAT,
            "safe": False,
            "checked_at": time.time(),
            "problems": [asdict(problem) for problem in problems],
            "servers": [],
            "devices": [],
            "daemons": [],
            "repair": repair(None),
        }
    problems = diagnosis.diagnose(seen)
    return {
        "format": FORMAT,
        "safe": state != "stopped" and is_safe(problems),
        "checked_at": seen.at,
        "problems": [asdict(problem) for problem in problems],
        "servers": [{"node": server.node, "role": server.role, "address": server.place, "answers": server.answers,
                     "error": server.error, "version": server.health.get("version"), "up_s": server.health.get("up_s"),
                     "clock_offset_s": server.clock_offset_s} for server in seen.servers],
        "devices": [{"node": device.node, "device": device.name, "weight": device.weight,
                     **(device.told or {"usable": False, "problem": "is not there"})} for device in devices_of(seen)],
        "daemons": [{"node": server.node, "name": name, **entry,
                     "last_pass_age_s": diagnosis.last_pass_age_s(entry, server.health["time"])}
                    for server, name, entry in diagnosis.daemons_of(seen)],
        "repair": repair(seen),
    }  # fmt: skip


def repair(seen: View | None) -> dict[str, Any]:
    """What is known of it over all machines; None: nobody tells."""

    def over(figure: str, combine: Any = sum, of: str = "") -> float | None:
        return diagnosis.combined(seen, figure, combine, of) if seen is not None else None

    return {
        "partitions_below_full": over("partitions_below_full", max),
        "copies_missing": over("copies_missing"),
        "databases_below_full": over("databases_below_full", max),
        "fragments_missing": over("fragments_missing"),
        "handoff_partitions": over("handoff_partitions"),
        "handoff_databases": over("handoff_databases"),
        "queued": over("queued"),
        "eta_s": over("eta_s", max),
        "updates_waiting": over("waiting", of="updater"),
        "expiry_lag_s": over("lag_s", max),
    }


@click.command()
@data_option
@click.option("--swift-dir", metavar="DIR", help="Any other cluster: the directory of its cluster file and rings.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@click.option("--watch", type=click.FloatRange(1), metavar="SECONDS", help="Again and again, until data is safe.")
def status(data: str, swift_dir: str | None, as_json: bool, watch: float | None) -> None:
    """Show whether data is safe (exit status 0), what is wrong, and what helps."""
    layout = None if swift_dir else Layout.open(data)
    while True:
        found = collect(layout) if layout is not None else collect_cluster(swift_dir or "")
        is_well = found["state"] == "running" and found["safe"]
        if as_json:
            click.echo(json.dumps(found, indent=1))
        else:
            from keelstore.cli.status_screen import show

            if watch is not None and sys.stdout.isatty():
                click.clear()
            show(found)
        if watch is None or is_well:
            sys.exit(0 if is_well else 1)
        time.sleep(watch)
