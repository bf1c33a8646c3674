"""From what is known of a cluster to what is wrong with it: pure. ``diagnosis_places`` has nodes, devices and rings,
``diagnosis_part_power`` an increase that is under way.

Daemons are judged by what they tell (``FIGURES``): one that tells ``partitions_below_full`` or ``lag_s`` needs nothing here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from keelstore.cli import diagnosis_part_power, diagnosis_places
from keelstore.cli.diagnosis_places import devices_of, down_nodes, node_command, repair_command, status_command
from keelstore.cli.problems import DANGER, WARNING, Problem, counted, listed, number, span
from keelstore.cli.view import Server, View, ordered

STARTING_S: Final = 60.0  # a server this young need not have heard of its daemons yet
STALE_LEAST_S: Final = (
    3600.0  # a daemon is late when its last pass is older than this, and than four intervals and passes
)
LAG_S: Final = 3600.0
ASYNC_S: Final = 900.0
COPIERS: Final = ("object-replicator", "object-reconstructor", "container-replicator", "account-replicator")


def diagnose(view: View) -> list[Problem]:
    """All problems, the worst first."""
    found = [
        Problem(
            DANGER,
            "rings",
            text,
            "without its rings nobody knows where data belongs",
            f"look into {view.swift_dir}; keelstore-ring-builder writes rings",
        )
        for text in view.problems
    ]
    for rule in (*diagnosis_places.RULES, _daemons, _figures, _peers, diagnosis_part_power.part_power):
        found += rule(view)
    return sorted(found, key=lambda problem: problem.severity != DANGER)


# -- daemons -----------------------------------------------------------------------------------------------------------


def daemons_of(view: View) -> list[tuple[Server, str, Mapping[str, Any]]]:
    """Every daemon of every machine, once."""
    found: dict[tuple[str, str], tuple[Server, str, Mapping[str, Any]]] = {}
    for server in view.servers:
        for name, entry in server.own_daemons.items():
            found.setdefault((server.node, name), (server, name, entry))
    return list(found.values())


def _daemons(view: View) -> Iterator[Problem]:
    for server, name, entry in daemons_of(view):
        if server.health["up_s"] < STARTING_S:
            continue
        severity = DANGER if name in COPIERS else WARNING
        if not entry.get("alive"):
            yield Problem(
                severity,
                "daemon-down",
                f"{server.node}: {name} does not run",
                "it was stopped or has ended; what it repairs or delivers waits",
                _start(view, server, name),
                server.node,
            )
        else:
            age = last_pass_age_s(entry, server.health["time"])
            limit = max(STALE_LEAST_S, 4 * (number(entry.get("interval_s")) + number(entry.get("last_pass_s"))))
            if age is not None and age > limit and not entry.get("running"):
                yield Problem(
                    severity,
                    "daemon-late",
                    f"{server.node}: {name} has finished no pass for {span(age)}",
                    "it hangs, or waits for something that does not answer; its log",
                    _start(view, server, name),
                    server.node,
                    count=round(age),
                )


def _start(view: View, server: Server, name: str) -> str:
    number = next((process.number for process in view.processes if process.node == server.node), None)
    if number is not None:
        return f"{node_command(view, 'stop', number)}; {node_command(view, 'start', number)}"
    return f"there: keelstore-init {name} status, then restart (in a node: kill -HUP its supervisor); its log"


def last_pass_age_s(entry: Mapping[str, Any], now: float) -> float | None:
    """Seconds since a pass ended, or the one under way began; None when none did."""
    begun, took = entry.get("begun"), entry.get("last_pass_s")
    if not isinstance(begun, (int, float)):
        return None
    ended = begun if entry.get("running") or not isinstance(took, (int, float)) else begun + took
    return max(0.0, now - ended)


@dataclass(frozen=True)
class Figure:
    """What a figure of any daemon means. ``counts`` gives how bad it is, 0 for well; ``combine`` over machines."""

    name: str
    severity: str
    code: str
    what: str  # with the words that _figures fills in
    why: str
    do: str
    counts: Callable[[Any, float], float]
    combine: Callable[[Iterable[float]], float] = sum


def _plain(value: Any, now: float) -> float:
    return number(value)


def _above(limit: float) -> Callable[[Any, float], float]:
    return lambda value, now: number(value) if number(value) > limit else 0


def _older(limit: float) -> Callable[[Any, float], float]:
    return lambda value, now: now - value if isinstance(value, (int, float)) and value and now - value > limit else 0


def _length(value: Any, now: float) -> float:
    return len(value) if isinstance(value, (Mapping, list, tuple)) else number(value)


_REPAIRED: Final = "nothing, it repairs itself{eta}; at once: {repair}; watch it: {watch}"
FIGURES: Final = (
    Figure(
        "partitions_below_full",
        DANGER,
        "below-full",
        "at least {partitions} with fewer {copies} than there should be",
        "a device or node is away, or was, or lost data",
        _REPAIRED,
        _plain,
        max,
    ),
    Figure(
        "databases_below_full",
        DANGER,
        "below-full",
        "at least {databases} with fewer copies than there should be",
        "a device or node is away, or was, or lost data",
        _REPAIRED,
        _plain,
        max,
    ),
    Figure(
        "unrecoverable",
        DANGER,
        "unrecoverable",
        "at least {objects} with too few fragments to be rebuilt",
        "too many of their devices are away or lost",
        "bring back nodes and devices; {daemon}'s log names the objects",
        _length,
        max,
    ),
    Figure(
        "braked",
        DANGER,
        "auditor-stopped",
        "{daemon} has stopped on {devices}: too much there is damaged at once",
        "a controller, memory or the whole device is at fault, rather than so many objects",
        "look at the device: dmesg, smartctl; replace it, or restart the daemon when it is well",
        _length,
    ),
    Figure(
        "handoff_partitions",
        WARNING,
        "handoffs",
        "{partitions} on devices where they do not belong",
        "they were written while their own devices were away, or a new ring moved them",
        _REPAIRED,
        _plain,
    ),
    Figure(
        "handoff_databases",
        WARNING,
        "handoffs",
        "{databases} on devices where they do not belong",
        "they were written while their own devices were away, or a new ring moved them",
        _REPAIRED,
        _plain,
    ),
    Figure(
        "oldest",
        WARNING,
        "updates-late",
        "listings lag: the oldest update has waited for {span}",
        "container servers do not answer, or are too slow",
        "keelstore-recon object --async; the container servers and {daemon}'s log",
        _older(ASYNC_S),
        max,
    ),
    Figure(
        "lag_s",
        WARNING,
        "expiry-late",
        "{daemon} lags: the oldest object should have gone {span} ago",
        "object or container servers do not answer, or tasks_per_second is too low",
        "{daemon}'s log; raise its concurrency",
        _above(LAG_S),
        max,
    ),
)


def _figures(view: View) -> Iterator[Problem]:
    """Over all machines, one problem for each figure and daemon."""
    for figure in FIGURES:
        by_daemon: dict[str, dict[str, float]] = {}
        details: dict[str, list[str]] = {}
        for server, name, entry in daemons_of(view):
            value = entry.get(figure.name)
            count = figure.counts(value, server.health["time"])
            if count > 0:
                by_daemon.setdefault(name, {})[server.node] = count
                if isinstance(value, Mapping):
                    details.setdefault(name, []).extend(f"{server.node}, {key}: {text}" for key, text in value.items())
        for name, counts in by_daemon.items():
            count = figure.combine(counts.values())
            copies = "fragments" if "reconstructor" in name else "copies"
            words = {"count": count, "daemon": name, "span": span(count), "eta": _eta(view, name), "copies": copies,
                     "repair": repair_command(view), "watch": status_command(view, "--watch 5"),
                     "partitions": counted(count, "partition"), "devices": counted(count, "device"),
                     "databases": counted(count, f"{name.partition('-')[0]} database"), "objects": counted(count, "object")}
            where = (
                ", ".join(f"{node} {counts[node]:.0f}" for node in ordered(counts))
                if figure.combine is not max
                else listed(counts)
            )
            why = figure.why + (f" ({'; '.join(details[name])})" if name in details else f" (seen by {where})")
            do = figure.do.format(**words)
            cause = _cause(view) if figure.code in ("below-full", "handoffs") else ""
            if cause:
                why, do = (
                    cause,
                    "bring that back, and the rest follows by itself; lost for good: take it out of the rings, rebalance",
                )
            node = next(iter(counts)) if len(counts) == 1 else ""
            yield Problem(figure.severity, figure.code, figure.what.format(**words), why, do, node, count=count)


def _cause(view: View) -> str:
    """Why copies are missing, where it is plain."""
    away = ordered(down_nodes(view))
    if away:
        return f"{listed(away)} is away" if len(away) == 1 else f"{listed(away)} are away"
    broken = [device.shown for device in devices_of(view) if device.told is None or not device.told["usable"]]
    return f"{'; '.join(broken[:3])} cannot be used" if broken else ""


def _eta(view: View, name: str) -> str:
    times = [
        entry["eta_s"]
        for _, other, entry in daemons_of(view)
        if other == name and isinstance(entry.get("eta_s"), (int, float))
    ]
    return f" (this pass ends in about {span(max(times))})" if times else ""


def _peers(view: View) -> Iterator[Problem]:
    """Who cannot be reached by others, though we reach it: the network between them."""
    down = down_nodes(view)
    by_place = {server.place: server for server in view.servers}
    seen: Counter[tuple[str, str]] = Counter()
    for server, _, entry in daemons_of(view):
        for figure in ("peers_down", "down"):
            for place in entry.get(figure) or () if isinstance(entry.get(figure), (list, tuple)) else ():
                other = by_place.get(str(place))
                if other is not None and other.answers and other.node not in down:
                    seen[server.node, place] += 1
    for (name, place), _ in sorted(seen.items()):
        yield Problem(
            WARNING,
            "unreachable",
            f"{name} cannot reach {place} ({by_place[place].node}), which answers here",
            "a firewall or a link between them, or it was away until a moment ago",
            f"on {name}: curl http://{place}/healthcheck",
            name,
        )


def combined(view: View, figure: str, combine: Callable[[Sequence[float]], float] = sum,
             of: str = "") -> float | None:
    """A figure over all daemons that have it, of those whose name has ``of`` in it; None when none has."""
    found = [float(entry[figure]) for _, name, entry in daemons_of(view)
             if of in name and isinstance(entry.get(figure), (int, float))]
    return combine(found) if found else None
