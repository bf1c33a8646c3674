"""A change of a ring's part power that is under way: how far it is, and what comes next. Pure. See ``diagnosis``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from keelstore.cli.problems import WARNING, Problem, counted, listed
from keelstore.cli.view import RingFacts, Server, View, ordered
from keelstore.obj.relink_plan import CLEANUP, RELINK

_NOT_COPIED: Final = "nothing of this policy is replicated, rebuilt or moved meanwhile"


def part_power(view: View) -> Iterator[Problem]:
    for ring in view.rings.values():
        if ring.next_part_power is not None:
            yield _change(view, ring, ring.next_part_power)


def _change(view: View, ring: RingFacts, following: int) -> Problem:
    is_prepared = following != ring.part_power
    step = RELINK if is_prepared else CLEANUP
    addresses = {address for address, _, _ in ring.devices}
    servers = {server.node: server for server in view.servers if server.role == ring.role and server.address in addresses}
    told = {name: entry for name, server in servers.items() if (entry := _entry(server.health, ring, following, step))}
    done, total = (sum(int(entry[key]) for entry in told.values()) for key in ("parts_done", "total_parts"))
    short = {name for name, entry in told.items() if entry["devices"] < _devices_of(view, ring, servers[name])}
    ready = [name for name, entry in told.items() if name not in short and _is_done(entry)]
    running = {name for name, entry in told.items() if entry.get("running")}
    failed = ordered(name for name, entry in told.items() if entry["errors"] and name not in running)
    waiting = ordered(servers.keys() - set(ready) - running)
    what = f"the part power of the ring {ring.name} " + (
        f"is being raised from {ring.part_power} to {following}" if is_prepared else f"was changed, it is {following}")
    verb = "linked" if is_prepared else "cleaned up"
    what += f": {counted(done, 'partition')} of {total} {verb}, {len(ready)} of {len(servers)} nodes ready"
    why = f"{_NOT_COPIED}; {listed(failed)}: errors, the relinker's log names them" if failed else _NOT_COPIED
    if short - running:
        why += f"; {listed(short - running)}: a device has been left out, as one that is not mounted"
    if len(ready) < len(servers):
        do = f"on {listed(waiting)}: keelstore-object-relinker {step} OBJECT-SERVER.CONF" if waiting else \
            "wait for the relinkers: keelstore status --watch 5"
    else:
        command = "increase_partition_power" if is_prepared else "finish_increase_partition_power"
        do = f"keelstore-ring-builder {ring.name}.builder {command}, then write_ring; copy the ring to every node"
    return Problem(WARNING, "part-power", what, why, do, count=round(done / total, 3) if total else None)


def _entry(health: Mapping[str, Any], ring: RingFacts, following: int, step: str) -> Mapping[str, Any] | None:
    """What the relinker of a node left of this step of this change."""
    found: Mapping[str, Any] | None = health.get("relinker", {}).get(ring.name.partition("-")[2] or "0")
    is_of_it = found is not None and (found.get("step"), found["part_power"], found["next_part_power"]) == (
        step, ring.part_power, following)
    return found if is_of_it else None


def _devices_of(view: View, ring: RingFacts, server: Server) -> int:
    """How many devices the ring has on the node of a server: at its IP address, but for those of a node beside it there."""
    here = server.address[0]
    others = {other.address for other in view.servers if other.address[0] == here and other.health
              and other.health.get("root") != server.health.get("root")}
    return sum(address[0] == here and address not in others for address, _, _ in ring.devices)


def _is_done(entry: Mapping[str, Any]) -> bool:
    return not entry.get("running") and entry["parts_done"] >= entry["total_parts"] and not entry["errors"]
