"""The tables of the ring builder, as text. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import timedelta

from keelstore.common.ring.builder import RingBuilder
from keelstore.common.ring.devices import RingDevice, shown_ip, tier_name
from keelstore.common.ring.dispersion import tier_dispersion
from keelstore.common.ring.plan import ceil, most_when_even


def summary(builder: RingBuilder, name: str, now: float, ring_state: str) -> list[str]:
    """The head of the info page."""
    devices = list(builder)
    regions = len({dev.region for dev in devices})
    zones = len({(dev.region, dev.zone) for dev in devices})
    dispersion = "" if builder.dispersion is None else f", {builder.dispersion:.2f} dispersion"
    left = timedelta(seconds=builder.min_part_seconds_left(now))
    return [
        f"{name}, build version {builder.version}, id {builder.id or '(not assigned)'}",
        f"{builder.parts} partitions, {builder.replicas:.6f} replicas, {regions} regions, {zones} zones, "
        f"{len(devices)} devices, {builder.id_bytes()}-byte IDs, {builder.balance():.2f} balance{dispersion}",
        "The minimum number of hours before a partition can be reassigned is "
        f"{builder.min_part_hours} ({left} remaining)",
        f"The overload factor is {builder.overload * 100:.2f}% ({builder.overload:.6f})",
        ring_state,
    ]


def device_table(builder: RingBuilder) -> list[str]:
    """All devices, in the order of their tiers."""
    devices = sorted(builder, key=lambda dev: (dev.region, dev.zone, dev.ip, dev.device))
    balances = builder.device_balances()
    weights = [f"{dev.weight:.2f}" for dev in devices]
    ip_width = _ip_width(10, [dev.ip for dev in devices])
    port_width = max([4, *(len(str(dev.port)) for dev in devices)])
    other_ip_width = _ip_width(14, [dev.replication_ip for dev in devices])
    other_port_width = max([4, *(len(str(dev.replication_port)) for dev in devices)])
    weight_width = max([6, *map(len, weights)])
    lines = [f"Devices:{'id':>5} {'region':>6} {'zone':>4} {'ip address':>{ip_width}}:{'port':<{port_width}} "
             f"{'replication ip':>{other_ip_width}}:{'port':<{other_port_width}} {'name':>5} "
             f"{'weight':>{weight_width}} {'partitions':>10} {'balance':>7} {'flags':>5} meta"]
    for dev, weight in zip(devices, weights, strict=True):
        flags = "DEL" if dev.id in builder.removing else ""
        lines.append(
            f"        {dev.id:>5} {dev.region:>6} {dev.zone:>4} {shown_ip(dev.ip):>{ip_width}}:{dev.port:<{port_width}} "
            f"{shown_ip(dev.replication_ip):>{other_ip_width}}:{dev.replication_port:<{other_port_width}} "
            f"{dev.device:>5} {weight:>{weight_width}} {builder.parts_of(dev.id):>10} "
            f"{balances[dev.id]:>7.2f} {flags:>5} {dev.meta}")
    return lines


def _ip_width(least: int, ips: Sequence[str]) -> int:
    return max([least, *map(len, ips)]) + (2 if any(":" in ip for ip in ips) else 0)  # brackets


def power_notes(builder: RingBuilder, program: str) -> list[str]:
    """What an increase of the partition power that is under way needs next."""
    if builder.next_part_power is None:
        return []
    if builder.next_part_power == builder.part_power + 1:
        return ["", f"Preparing increase of partition power ({builder.part_power} -> {builder.next_part_power})",
                "Link the objects on all nodes (object relinker, relink) before increase_partition_power."]
    return ["", f"Increased partition power ({builder.part_power} -> {builder.next_part_power})",
            f'Run "{program} <builder_file> write_ring" and copy the ring to all nodes, then clean up the old links on '
            "all nodes (object relinker, cleanup) before finish_increase_partition_power."]


def search_table(builder: RingBuilder, devices: Sequence[RingDevice]) -> list[str]:
    """The devices that a search found."""
    lines = ["Devices:    id  region  zone      ip address  port  replication ip  replication port      name weight "
             "partitions balance meta"]
    balances = builder.device_balances()
    for dev in devices:
        lines.append(
            f"         {dev.id:>5} {dev.region:>7} {dev.zone:>5} {dev.ip:>15} {dev.port:>5} {dev.replication_ip:>15} "
            f"{dev.replication_port:>17} {dev.device:>9} {dev.weight:>6.2f} {builder.parts_of(dev.id):>10} "
            f"{balances[dev.id]:>7.2f} {dev.meta}")
    return lines


def parts_table(found: Sequence[tuple[int, int]]) -> list[str]:
    return ["Partition   Matches", *(f"{part:>9}   {times:>7}" for part, times in found)]


def dispersion_report(builder: RingBuilder, pattern: re.Pattern[str] | None) -> tuple[list[str], list[str], bool]:
    """The lines of the report, those of its table, and whether all tiers hold no more than they should."""
    names = {dev.id: dev for dev in builder}
    most = most_when_even((dev.tier for dev in builder if dev.weight > 0), builder.replicas)
    columns = math.ceil(builder.replicas) + 1
    rows, worst, worst_name = [], 0.0, ""
    for tier, counts in sorted(builder.graph.items(), key=lambda item: item[0]):
        name = tier_name(tier, names)
        if pattern is not None and not pattern.match(name):
            continue
        limit = most.get(tier, 0)
        over = tier_dispersion(counts, limit)
        if over > worst:
            worst, worst_name = over, name
        held = sum(count * times for times, count in enumerate(counts))
        rows.append((name, held, over, limit, (counts + [0] * columns)[:max(columns, len(counts))]))
    lines = [f"Dispersion is {builder.dispersion or 0.0:.6f}, Balance is {builder.balance():.6f}, "
             f"Overload is {builder.overload * 100:.2f}%",
             f"Required overload is {builder.required_overload() * 100:.6f}%"]
    if worst:
        lines.append(f"Worst tier is {worst:.6f} ({worst_name})")
    width = max([28, *(len(row[0]) for row in rows)])
    head = f"{'Tier':<{width}} {'Parts':>7} {'%':>6} {'Max':>6}" + "".join(
        f" {i:>5}" for i in range(max([ceil(builder.replicas) + 1, *(len(row[4]) for row in rows)])))
    table = ["-" * len(head), head, "-" * len(head)]
    for name, held, over, limit, counts in rows:
        table.append(f"{name:<{width}} {held:>7} {over:>6.2f} {limit:>6}" + "".join(f" {count:>5}" for count in counts))
    return lines, table, not worst
