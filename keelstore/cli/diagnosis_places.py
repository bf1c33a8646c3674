"""What is wrong with nodes, servers, devices, rings and clocks: pure. See ``diagnosis``."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from keelstore.cli.problems import DANGER, WARNING, Problem, listed
from keelstore.cli.view import Process, RingFacts, Server, View, is_number, ordered

NEARLY_FULL: Final = 0.90
CLOCK_WARN_S, CLOCK_DANGER_S = 1.0, 10.0
EMPTY_WHERE_OTHERS_HAVE: Final = 12.0  # partitions on average: with so many, no device is empty by chance

# -- nodes and servers -------------------------------------------------------------------------------------------------


def node_command(view: View, verb: str, *also: object) -> str:
    """How the command line does something with a node here."""
    return " ".join((view.command, "node", verb, *map(str, also), *_data_option(view)))


def status_command(view: View, *also: str) -> str:
    place = _data_option(view) or ("--swift-dir", shlex.quote(view.swift_dir))
    return " ".join((view.command, "status", *place, *also))


def repair_command(view: View, *also: str) -> str:
    return node_command(view, "repair", *(() if view.data else ("--conf", "NODE.CONF")), *also)


def _data_option(view: View) -> tuple[str, ...]:
    return ("--data", shlex.quote(view.data)) if view.data else ()


def down_nodes(view: View) -> set[str]:
    """Machines of which no server answers."""
    alive = {server.node for server in view.servers if server.answers}
    return {server.node for server in view.servers} - alive


def _nodes(view: View) -> Iterator[Problem]:
    by_name = {process.node: process for process in view.processes}
    down = down_nodes(view)
    for name in ordered({*down, *by_name}):
        share = _share(view, name)
        process = by_name.get(name)
        if name in down and process is None:
            errors = sorted({server.error for server in view.servers if server.node == name})
            yield Problem(
                DANGER,
                "node-down",
                f"{name} does not answer{share}",
                f"none of its servers does ({', '.join(errors)}): it is switched off, cut off, or its programs do not run",
                f"ping {name}; there: keelstore-init main status, then keelstore-init main start",
                name,
            )
        elif process is not None:
            yield from _process(view, process, name in down, share)


def _process(view: View, process: Process, is_down: bool, share: str) -> Iterator[Problem]:
    name, number = process.node, process.number
    if not process.is_running:
        yield Problem(
            DANGER,
            "node-down",
            f"{name} is stopped{share}",
            f"it was stopped, or ended by itself (its log says why: {process.log})",
            node_command(view, "start", number),
            name,
        )
    elif is_down or not process.answers:
        yield Problem(
            DANGER,
            "node-hangs",
            f"{name} runs, but does not answer{share}",
            f"its processes are stopped or busy beyond measure; {process.log}",
            f"{node_command(view, 'stop', number, '--kill')}; {node_command(view, 'start', number)}",
            name,
        )
    else:
        if process.workers < process.wanted_workers:
            yield Problem(
                WARNING,
                "workers",
                f"{name} has {process.workers} of {process.wanted_workers} workers",
                f"one has ended and is being replaced; if it goes on: {process.log}",
                f"tail {process.log}",
                name,
            )
        if not process.has_background:
            yield Problem(
                DANGER,
                "daemons-down",
                f"{name}: the process of its daemons does not run",
                "nothing is repaired there meanwhile; it is started again by itself, unless it ends at once",
                f"tail {process.log}",
                name,
            )


def _share(view: View, name: str) -> str:
    """How much of all copies of objects is out of reach with a machine."""
    total = own = 0.0
    addresses = {server.address for server in view.servers if server.node == name}
    for ring in view.rings.values():
        if ring.role == "object":
            for address, _, weight in ring.devices:
                total += weight
                own += weight if address in addresses else 0
    return f": {own / total:.0%} of all copies are out of reach" if total and own else ""


def _servers(view: View) -> Iterator[Problem]:
    """A role that does not answer on a machine whose others do."""
    down = down_nodes(view)
    for server in view.servers:
        if server.node in down or server.health:
            continue
        if server.answers:
            yield Problem(
                WARNING,
                "health-unknown",
                f"{server.node}: the {server.role} server at {server.place} {server.error}",
                "it is another program or an older one, or its pipeline has no recon",
                f"put recon into the pipeline of {server.role}-server.conf there",
                server.node,
            )
        else:
            yield Problem(
                DANGER,
                "server-down",
                f"{server.node}: the {server.role} server at {server.place} does not answer",
                server.error,
                f"there: keelstore-init {server.role}-server status, then start; its log",
                server.node,
            )


# -- devices -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Device:
    """A device of the rings, and what its server says of it: None when it does not know it."""

    server: Server
    name: str
    weight: float
    told: Mapping[str, Any] | None

    @property
    def node(self) -> str:
        return self.server.node

    @property
    def path(self) -> str:
        return f"{self.server.health.get('root') or 'DEVICES'}/{self.name}"

    @property
    def shown(self) -> str:
        return f"{self.node}, device {self.name}"


def devices_of(view: View) -> list[Device]:
    """Every device of the rings whose server told its health, once for each machine."""
    by_place = {(server.role, server.address): server for server in view.servers if server.health}
    found: dict[tuple[str, str], Device] = {}
    for ring in view.rings.values():
        for address, name, weight in ring.devices:
            server = by_place.get((ring.role, address))
            if server is None:
                continue
            key = (server.node, name)
            if key not in found or name not in server.devices:  # what one role misses is missing
                found[key] = Device(server, name, weight, server.devices.get(name))
    return [found[key] for key in sorted(found, key=lambda key: (ordered([key[0]]), key))]


def _devices(view: View) -> Iterator[Problem]:
    for device in devices_of(view):
        told = device.told
        if told is None:
            yield Problem(
                DANGER,
                "device-missing",
                f"{device.shown}: is not there",
                "the rings have it, but its directory is gone: unplugged, renamed, or not mounted since the last boot",
                "there: lsblk, mount -a; if it is lost for good: keelstore-ring-builder BUILDER set_weight "
                f"{device.server.address[0]}/{device.name} 0, then rebalance",
                device.node,
                device.name,
            )
        elif not told["usable"]:
            yield Problem(
                DANGER,
                "device-unusable",
                f"{device.shown}: {told['problem']}",
                "the disk or its file system failed, or it was not mounted",
                "there: dmesg | tail -50, then mount -a or replace the disk",
                device.node,
                device.name,
            )
        elif told["is_full"]:
            yield Problem(
                DANGER,
                "device-full",
                f"{device.shown}: full ({_percent(told):.0f} % used), takes no writes any more",
                "what it should hold goes to other devices; deletes still work",
                "add devices or weight elsewhere: keelstore-ring-builder BUILDER add ..., rebalance; see who fills it: "
                "keelstore-recon object -d --top 10",
                device.node,
                device.name,
                _percent(told),
            )
        elif told["size"] and _used(told) >= NEARLY_FULL:
            yield Problem(
                WARNING,
                "device-nearly-full",
                f"{device.shown}: {_percent(told):.0f} % used",
                "it takes no writes when its reserve (fallocate_reserve) is reached",
                "add devices, or lower its weight: keelstore-ring-builder BUILDER set_weight ...",
                device.node,
                device.name,
                _percent(told),
            )
    for server in view.servers:
        errors = server.health.get("cached", {}).get("drive_audit_errors") if server.role == "object" else None
        if isinstance(errors, int) and errors > 0:
            yield Problem(
                WARNING,
                "drive-errors",
                f"{server.node}: the kernel's log has {errors} errors of drives",
                "a disk is failing, its cable or its controller",
                "there: dmesg -T | grep -i error; smartctl -a /dev/...",
                server.node,
                count=errors,
            )


def _used(told: Mapping[str, Any]) -> float:
    """Share of the room that may be used at all."""
    room = told["used"] + told["avail"]
    return float(told["used"] / room) if room else 1.0


def _percent(told: Mapping[str, Any]) -> float:
    return _used(told) * 100


def _empty_devices(view: View) -> Iterator[Problem]:
    """A device without anything, where those beside it hold much: it was replaced or wiped."""
    known = [
        device for device in devices_of(view) if device.told is not None and device.told["usable"] and device.weight > 0
    ]
    counts = [sum(device.told["partitions"].values()) for device in known if device.told is not None]
    total_weight = sum(device.weight for device in known)
    if not total_weight:
        return
    each = sum(counts) / total_weight
    for device, count in zip(known, counts):
        expected = each * device.weight
        if count == 0 and expected >= EMPTY_WHERE_OTHERS_HAVE:
            yield Problem(
                DANGER,
                "device-empty",
                f"{device.shown}: is empty, where others hold some {expected:.0f} partitions",
                "the disk was replaced or wiped, or something else is mounted in its place",
                f"there: df, ls; if the disk is right there is nothing to do: replicators fill it; "
                f"at once: {_sooner(view, device)}",
                device.node,
                device.name,
            )


def _sooner(view: View, device: Device) -> str:
    command = repair_command(view, "--device", shlex.quote(device.name))
    return command if view.data else f"on the other machines: {command}"


def _quarantined(view: View) -> Iterator[Problem]:
    for device in devices_of(view):
        told = device.told
        if told is None or not told["quarantined"]:
            continue
        count = sum(told["quarantined"].values())
        kinds = ", ".join(f"{number} in {kind}" for kind, number in sorted(told["quarantined"].items()))
        is_restored = all(_was_round_since(view, kind, told["quarantined_at"]) for kind in told["quarantined"])
        yield Problem(
            WARNING if is_restored else DANGER,
            "quarantined",
            f"{device.shown}: {count} put aside as damaged ({kinds})",
            "an auditor or a read found it wrong; replication has been round since and brought what is good"
            if is_restored
            else "an auditor or a read found it wrong; replication has not been round since: a copy or fragment is lacking",
            f"there: ls -R {device.path}/quarantined | head; remove what you have looked at; check the disk: smartctl, dmesg",
            device.node,
            device.name,
            count,
        )


def _was_round_since(view: View, kind: str, moment: float | None) -> bool:
    """Whether every server of a ring has begun and ended a pass after ``moment`` that brings back what ``kind`` lacks: of the
    replicator, or of the reconstructor where fragments are stored.
    """
    name, dash, index = kind.partition("-")
    role = name.removesuffix("s")
    ring = view.rings.get(f"{role}{dash}{index}")
    addresses = {address for address, _, _ in ring.devices} if ring is not None else None
    work = "object_reconstruction" if ring is not None and ring.stores_fragments else "replication"
    unit_s = 60 if role == "object" else 1  # passes over objects are told in minutes
    passes = [
        server.health["cached"]
        for server in view.servers_of(role)
        if server.health and (addresses is None or server.address in addresses)
    ]
    for told in passes:
        last, took = told.get(f"{work}_last"), told.get(f"{work}_time")
        if not is_number(last) or not is_number(took) or last - took * unit_s <= (moment or 0):
            return False
    return bool(passes)


# -- configuration and clocks ------------------------------------------------------------------------------------------


def _configuration(view: View) -> Iterator[Problem]:
    known = [server for server in view.servers if server.health]
    for ring in view.rings.values():
        digests: dict[str, set[str]] = {}
        missing = set()
        for server in known:
            told = server.health["rings"].get(ring.name)
            if told is None:
                if server.role == ring.role:
                    missing.add(server.node)
            else:
                digests.setdefault(told["md5"], set()).add(server.node)
        for name in ordered(missing):
            yield Problem(
                DANGER,
                "ring-missing",
                f"{name} has no ring {ring.name}",
                "its servers and daemons cannot tell whose data is what",
                f"copy {view.swift_dir}/{ring.name}.ring.gz there",
                name,
            )
        yield from _odd_ones_out(view, ring, digests)
    files: dict[str, set[str]] = {}
    for server in known:
        if server.health.get("cluster_file_md5"):
            files.setdefault(server.health["cluster_file_md5"], set()).add(server.node)
    for names, usual in _minorities(files):
        yield Problem(
            WARNING,
            "cluster-file-differs",
            f"{listed(names)}: another cluster file than {listed(usual)}",
            "with another hash prefix or suffix, or other policies, nodes look for data in different places",
            f"compare keelstore.conf (swift.conf) of both: keelstore-recon --swiftdir {view.swift_dir} --md5",
            ordered(names)[0],
        )


def _odd_ones_out(view: View, ring: RingFacts, digests: Mapping[str, set[str]]) -> Iterator[Problem]:
    if len(digests) == 1 and ring.md5 not in digests:
        (names,) = digests.values()
        yield Problem(
            WARNING,
            "ring-here-differs",
            f"the ring {ring.name} in {view.swift_dir} is not that of the nodes",
            "it is not copied there yet, or was changed there",
            "copy it to all nodes, or fetch theirs",
        )
    for names, usual in _minorities(digests):
        yield Problem(
            DANGER,
            "ring-differs",
            f"{listed(names)}: another ring {ring.name} than {listed(usual)}",
            "a new ring is not everywhere yet: nodes do not agree where data belongs, and replicators keep their handoffs",
            f"{_copy(view, ring, names, usual)}; check: keelstore-recon --swiftdir {view.swift_dir} --md5",
            ordered(names)[0],
        )


def _copy(view: View, ring: RingFacts, names: set[str], usual: set[str]) -> str:
    """How a ring comes to those who have another, if theirs is the wrong one."""
    file, numbers = f"{ring.name}.ring.gz", {process.node: process.number for process in view.processes}
    target, source = ordered(names)[0], ordered(usual)[0]
    if target in numbers and source in numbers:
        return f"cp {view.data}/node{numbers[source]}/etc/{file} {view.data}/node{numbers[target]}/etc/"
    return (
        f"copy the newest {file} to every node"
        if len(names) > 1
        else f"scp {view.swift_dir}/{file} {target}:{view.swift_dir}/"
    )


def _minorities(digests: Mapping[str, set[str]]) -> Iterator[tuple[set[str], set[str]]]:
    """Each set of nodes that differs from the largest one, with that."""
    groups = sorted(digests.values(), key=lambda names: (-len(names), ordered(names)))
    for names in groups[1:]:
        yield names, groups[0]


def _clocks(view: View) -> Iterator[Problem]:
    worst: dict[str, float] = {}
    for server in view.servers:
        offset = server.clock_offset_s or 0.0
        if abs(offset) > abs(worst.get(server.node, 0.0)):
            worst[server.node] = offset
    for name in ordered(worst):
        offset = worst[name]
        if abs(offset) >= CLOCK_WARN_S:
            yield Problem(
                DANGER if abs(offset) >= CLOCK_DANGER_S else WARNING,
                "clock",
                f"{name}: its clock is {abs(offset):.1f} s {'ahead' if offset > 0 else 'behind'}",
                "the newest timestamp wins: with wrong clocks a later write may lose against an earlier one",
                "there: chronyc tracking (or timedatectl), and start time synchronisation",
                name,
                count=round(offset, 3),
            )


RULES: Final = (_nodes, _servers, _devices, _empty_devices, _quarantined, _configuration, _clocks)
