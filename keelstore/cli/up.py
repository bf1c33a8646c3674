"""``keelstore up``: make a store if there is none, and start it."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import click

from keelstore.cli import generate, processes
from keelstore.cli.layout import POLICIES, CommandError, Layout, Settings, command_name
from keelstore.cli.main import data_option
from keelstore.common import daemon

NEEDED_BYTES = 256 << 20
DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8080
_LEAST_PORT = 1881  # the storage roles listen up to 1880 below


@click.command()
@data_option
@click.option("--host", metavar="ADDRESS", help=f"Address of the proxy.  [default: {DEFAULT_HOST}]")
@click.option("--port", type=click.IntRange(_LEAST_PORT, 65535), metavar="PORT",
              help=f"Port of the proxy; the storage roles follow it.  [default: {DEFAULT_PORT}]")
@click.option("--workers", type=click.IntRange(1, 256), metavar="N", help="Worker processes of each node.  [default: CPUs]")
@click.option("--nodes", type=click.IntRange(1, 64), metavar="N",
              help="Nodes, each with its own address 127.0.0.K, zone and devices.  [default: 1]")
@click.option("--detach", is_flag=True, help="Return when the store answers; it runs on.")
@click.option("--test-users/--no-test-users", "test_users", default=None,
              help="Add the field's well-known test accounts; only on a loopback address.")
@click.option("--encrypt/--no-encrypt", "encrypt", default=None,
              help="Encrypt what is stored from now on; or no longer, while what was encrypted stays readable.")
@click.option("--default-policy", type=click.Choice([policy.name for policy in POLICIES]),
              help="What new containers are stored under that ask for none; kept, like the rest.  [default: gold]")
def up(data: str, host: str | None, port: int | None, workers: int | None, nodes: int | None, detach: bool,
       test_users: bool | None, encrypt: bool | None, default_policy: str | None) -> None:
    """Make a store if there is none in the data directory, and start it.

    Eight devices on each node; policies gold (three copies), silver (two) and ec42 (erasure code 4+2).
    """
    is_new = not Layout.exists(data)
    _check_space(data)
    with _only_one(data):
        layout = _layout(data, is_new, host, port, nodes)
        if not is_new:
            _check_not_running(layout)
        settings = layout.settings
        if workers is not None:
            settings = replace(settings, workers=workers)
        if test_users is not None:
            settings = replace(settings, test_users=test_users)
        if encrypt is not None:
            settings = settings.encrypting(encrypt)
        if default_policy is not None:
            settings = replace(settings, default_policy=default_policy)
        if settings.test_users and not _is_loopback(settings.host):
            raise CommandError(f"--test-users is refused: everybody knows these passwords, and {settings.host} is an "
                               "address that others reach")
        layout.settings = settings
        for node in layout.nodes:
            processes.check_ports(layout, node)
        kept = generate.prepare(layout)
        for path in kept:
            click.echo(f"{path} was changed by hand and is left as it is", err=True)
        running = processes.start_nodes(layout, layout.nodes)
    _tell(layout, data)
    if not detach:
        _stay(layout, running)


def _layout(data: str, is_new: bool, host: str | None, port: int | None, nodes: int | None) -> Layout:
    """The data directory; nothing is written yet. Raises CommandError when it was made for something else."""
    if is_new:
        host, nodes = host or DEFAULT_HOST, nodes or 1
        if nodes > 1 and host != DEFAULT_HOST:
            raise CommandError(f"several nodes live on 127.0.0.1 to 127.0.0.{nodes}: leave out --host")
        return Layout(data, Settings.fresh(host, port or DEFAULT_PORT, nodes))
    layout = Layout.open(data)
    made_for = layout.settings
    for name, asked, have in (("host", host, made_for.host), ("port", port, made_for.port), ("nodes", nodes, made_for.nodes)):
        if asked is not None and asked != have:
            raise CommandError(f"{data} was made with --{name} {have}, which its rings hold: leave out --{name}, or give "
                               "another directory with --data")
    return layout


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check_space(data: str) -> None:
    place = os.path.abspath(data)
    while not os.path.exists(place):
        place = os.path.dirname(place)
    free = shutil.disk_usage(place).free
    if free < NEEDED_BYTES:
        raise CommandError(f"too little space for {data}: {free >> 20} MiB are free, {NEEDED_BYTES >> 20} MiB are needed")
    if not os.access(place, os.W_OK | os.X_OK):
        raise CommandError(f"{place} cannot be written to")


@contextmanager
def _only_one(data: str) -> Iterator[None]:
    """Keep a second ``up`` for the same directory away until this one has started its nodes. A directory that is made
    here and left empty goes again."""
    is_made = not os.path.exists(data)
    os.makedirs(data, exist_ok=True)
    lock = os.open(data, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise CommandError(f"another 'up' is working on {data}") from None
    finally:
        os.close(lock)
        if is_made and not os.listdir(data):
            os.rmdir(data)


def _check_not_running(layout: Layout) -> None:
    running = {node.number: daemon.holder_of(node.pid_file) for node in layout.nodes}
    found = {number: pid for number, pid in running.items() if pid is not None}
    if len(found) == len(running):
        raise CommandError(f"it is already running (process {', '.join(map(str, found.values()))}); "
                           f"'{command_name()} status' tells more, '{command_name()} down' stops it")
    if found:
        missing = ", ".join(str(number) for number, pid in running.items() if pid is None)
        raise CommandError(f"it is already running, without node {missing}: '{command_name()} node start' starts one")
    for node in layout.nodes:
        processes.stop_node(node)  # workers that a killed supervisor has left behind end by themselves; wait for it


def _tell(layout: Layout, data: str) -> None:
    settings, url = layout.settings, layout.settings.endpoint()
    where = "" if data == "./keelstore-data" else f" --data {data}"
    lines = [
        f"keelstore is running in {layout.root}" + (f" on {settings.nodes} nodes" if settings.nodes > 1 else ""), "",
        f"  Swift auth URL  {settings.auth_url}",
        f"  storage URL     {settings.storage_url}",
    ]
    lines += [
        f"  S3 endpoint     {url}  (region us-east-1)",
        f"  user            {settings.user}",
        f"  key             {settings.key}", "", "Try:",
        f"  curl -i -H 'X-Auth-User: {settings.user}' -H 'X-Auth-Key: {settings.key}' {settings.auth_url}",
        f"  swift -A {settings.auth_url} -U {settings.user} -K {settings.key} upload photos README.md",
        f"  AWS_ACCESS_KEY_ID={settings.user} AWS_SECRET_ACCESS_KEY={settings.key} aws --endpoint-url {url} s3 mb s3://pictures",
        f"  rclone --s3-provider Other --s3-endpoint {url} --s3-access-key-id {settings.user} "
        f"--s3-secret-access-key {settings.key} copy README.md :s3:pictures",
        f"  {command_name()} status{where}",
    ]
    click.echo("\n".join(lines))


def _stay(layout: Layout, running: dict[int, subprocess.Popen[bytes]]) -> None:
    """Until interrupted, or until every node has ended (by ``down`` from elsewhere)."""
    click.echo("\nCtrl-C stops it; --detach starts it in the background.")

    def on_term(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, on_term)
    try:
        while any(process.poll() is None for process in running.values()):
            time.sleep(0.5)
        bad = [process.returncode for process in running.values() if process.returncode]
        if bad:
            raise CommandError(f"a node has ended with status {bad[0]}; see {layout.node(1).log_file}")
    except KeyboardInterrupt:
        click.echo("stopping")
        for node in layout.nodes:
            processes.stop_node(node)
        for process in running.values():
            process.wait()
        sys.exit(0)
