"""``keelstore node repair``: have the daemons of running nodes look at something now, not at their next scan."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import click

from keelstore.cli.layout import CommandError, Layout
from keelstore.cli.main import data_option
from keelstore.common.cluster import Cluster, load_cluster
from keelstore.common.daemon_frame import Selection
from keelstore.common.options import parse
from keelstore.common.paste_config import read_config
from keelstore.common.ring.ring import RingFile
from keelstore.node.daemons import DAEMONS
from keelstore.node.roles import NodeOptions, socket_of
from keelstore.node.wishes import NotAsked, Wish, send

DATABASES = ("account-replicator", "container-replicator")
OBJECTS = ("object-replicator", "object-reconstructor")
UPDATERS = ("container-updater", "object-updater")


@dataclass(frozen=True)
class Place:
    """A node that may be asked: how it is called, its socket, and the directory of its rings."""

    name: str
    socket: str
    swift_dir: str


def places_of_store(data: str, numbers: Sequence[int]) -> list[Place]:
    """Raises CommandError."""
    layout = Layout.open(data)
    for number in numbers:
        if not 1 <= number <= layout.settings.nodes:
            raise CommandError(f"there is no node {number}: this store has {layout.settings.nodes}")
    return [Place(f"node {node.number}", socket_of(node.run_dir, node.name), node.path("etc"))
            for node in layout.nodes if not numbers or node.number in numbers]


def place_of_conf(path: str) -> Place:
    """The node of a node.conf. Raises ConfigError."""
    config = read_config(os.path.abspath(path))
    options = parse(NodeOptions, config.merged("node"), section="node", file=config.path)
    roles = [read_config(os.path.join(config.here, role)).defaults for role in options.roles]
    swift_dir = next((defaults["swift_dir"] for defaults in roles if "swift_dir" in defaults), "/etc/swift")
    return Place(options.name, socket_of(os.path.join(config.here, options.run_dir), options.name),
                 os.path.join(config.here, swift_dir))


def wishes_for(path: str, only: Selection, daemons: Sequence[str], swift_dir: str) -> Iterator[tuple[str, Wish]]:
    """What to ask, each with what it is in words. Raises CommandError, ConfigError, RingError."""
    if not path:
        what = ", ".join(filter(None, (
            _words("device", sorted(only.devices)), _words("partition", sorted(only.partitions)),
            _words("policy", sorted(only.policies))))) or "everything"
        objects = [name for name in daemons or (*DATABASES, *OBJECTS, *UPDATERS) if name.startswith("object-")]
        # Databases that a device lost are brought by the others: theirs are all to be looked at.
        others = [name for name in daemons or (*DATABASES, *OBJECTS, *UPDATERS) if name not in objects]
        if objects:
            yield what, Wish(tuple(objects), only)
        if others and not only.policies:
            yield what, Wish(tuple(others), Selection(partitions=only.partitions))
        return
    names = path.strip("/").split("/", 2)
    if not path.startswith("/") or not all(names):
        raise CommandError(f"expected /account, /account/container or /account/container/object, not {path!r}")
    cluster = load_cluster(swift_dir)
    if len(names) < 3:
        kind = ("account", "container")[len(names) - 1]
        part = _partition(cluster, kind, names)
        also = ("container-updater",) if kind == "container" else ()
        yield f"{path} (partition {part})", Wish(tuple(daemons) or (f"{kind}-replicator", *also),
                                                 Selection(only.devices, frozenset({part})))
        return
    for policy in cluster.policies:
        if only.has_policy(policy.index):
            part = _partition(cluster, policy.ring_name, names)
            name = "object-reconstructor" if policy.stores_fragments else "object-replicator"
            yield f"{path} (policy {policy.index}, partition {part})", Wish(
                tuple(daemons) or (name,), Selection(only.devices, frozenset({part}), frozenset({policy.index})))


def _partition(cluster: Cluster, ring: str, names: Sequence[str]) -> int:
    return RingFile(cluster.ring_path(ring)).current().partition(cluster.hash_path.digest(*names))


def _words(noun: str, values: Sequence[object]) -> str:
    return f"{noun} {' '.join(map(str, values))}" if values else ""


@click.command()
@click.argument("path", required=False, default="")
@click.option("--node", "-n", "nodes", multiple=True, type=int, help="Only node K; may be given several times.")
@click.option("--device", "-d", "devices", multiple=True, help="What this device has, and what it should have.")
@click.option("--partition", "-p", "partitions", multiple=True, type=click.IntRange(min=0), help="This partition.")
@click.option("--policy", "-i", "policies", multiple=True, type=click.IntRange(min=0),
              help="Objects of this policy, by number.")
@click.option("--daemon", "daemons", multiple=True, type=click.Choice(sorted(DAEMONS)), metavar="NAME",
              help="This daemon, not those that repair.")
@click.option("--conf", default="", help="The node.conf of a real machine, in place of --data.")
@data_option
def repair(path: str, nodes: Sequence[int], devices: Sequence[str], partitions: Sequence[int], policies: Sequence[int],
           daemons: Sequence[str], conf: str, data: str) -> None:
    """Have the daemons of running nodes look at something now.

    PATH is /account, /account/container or /account/container/object. With nothing given, they look at everything. Each node
    looks at what it has: without --node all nodes are asked.
    """
    places = [place_of_conf(conf)] if conf else places_of_store(data, nodes)
    only = Selection(frozenset(devices), frozenset(partitions), frozenset(policies))
    is_asked = False
    for place in places:
        for what, wish in wishes_for(path, only, daemons, place.swift_dir):
            try:
                asked = send(place.socket, wish)
            except NotAsked as error:
                click.echo(f"{place.name}: {error}", err=True)
                continue
            is_asked = True
            click.echo(f"{place.name}: {', '.join(asked)} {'look' if len(asked) > 1 else 'looks'} at {what} now")
    if not is_asked:
        raise CommandError("nothing was asked for")
