"""The screen of ``keelstore status``: the verdict first, then what is wrong and what helps, then how everything is."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from keelstore.cli.problems import counted

MAX_PROBLEMS = 12  # of one kind of severity; the rest is counted


def show(found: Mapping[str, Any], file: TextIO | None = None, width: int | None = None) -> None:
    """Onto a terminal, or as plain lines, unfolded, where ``file`` is none."""
    out = file or sys.stdout
    if out.isatty():
        _show(Console(file=out, highlight=False, width=width), found, out.encoding)
        return
    text = io.StringIO()
    _show(Console(file=text, highlight=False, width=width or 200, _environ={}), found, out.encoding)
    lines = "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())
    encoding = out.encoding or "utf-8"
    out.write(lines.encode(encoding, "replace").decode(encoding))


def _show(console: Console, found: Mapping[str, Any], encoding: str | None) -> None:
    marks = _Marks(encoding)
    _verdict(console, marks, found)
    _problems(console, marks, found["problems"])
    if found["servers"]:
        _nodes(console, marks, found)
        _data(console, found)
        _daemons(console, marks, found["daemons"])
    _use(console, found)


class _Marks:
    """Signs, in plain letters where the terminal has no others."""

    def __init__(self, encoding: str | None):
        is_plain = not (encoding or "utf-8").lower().startswith("utf")
        self.well, self.bad, self.care = ("ok", "!!", "! ") if is_plain else ("✓", "✗", "!")


def _verdict(console: Console, marks: _Marks, found: Mapping[str, Any]) -> None:
    dangers = sum(problem["severity"] == "danger" for problem in found["problems"])
    warnings = len(found["problems"]) - dangers
    if found["state"] == "stopped":
        words, style = f"{marks.bad} STOPPED", "bold white on red"
    elif not found["safe"]:
        words, style = f"{marks.bad} NOT SAFE", "bold white on red"
    elif found["state"] != "running":
        words, style = f"{marks.care} DEGRADED", "bold black on yellow"
    else:
        words, style = f"{marks.well} SAFE", "bold black on green"
    where = found.get("data") or found.get("swift_dir", "")
    line = Text.assemble((f" {words} ", style), "  ", ("keelstore in ", "dim"), where, f": {found['state']}")
    line.append(f"   {time.strftime('%H:%M:%S', time.localtime(found['checked_at']))}", "dim")
    console.print(line, soft_wrap=True)
    counted = [
        f"{count} {word if count == 1 else word + 's'}"
        for count, word in ((dangers, "danger"), (warnings, "warning"))
        if count
    ]
    if counted:
        console.print(Text("  " + ", ".join(counted), "dim"))
    elif found["servers"]:
        console.print(Text("  every node answers, no copy is known to be missing", "dim"))


def _problems(console: Console, marks: _Marks, problems: Sequence[Mapping[str, Any]]) -> None:
    for severity, mark, style in (("danger", marks.bad, "bold red"), ("warning", marks.care, "bold yellow")):
        own = [problem for problem in problems if problem["severity"] == severity]
        for problem in own[:MAX_PROBLEMS]:
            console.print()
            console.print(_hung(Text.assemble((f"{mark} ", style), (problem["what"], "bold")), 0, 2))
            console.print(_hung(Text.assemble(("why  ", "dim"), problem["why"]), 2, 5))
            console.print(_hung(Text.assemble(("do   ", "dim"), (problem["do"], "cyan")), 2, 5))
        if len(own) > MAX_PROBLEMS:
            console.print(Text(f"\n  and {len(own) - MAX_PROBLEMS} more: add --json", "dim"))


def _hung(text: Text, left: int, hang: int) -> Padding:
    """A paragraph whose further lines stand under the first word after its mark."""
    table = Table.grid(padding=0)
    table.add_column(width=hang)
    table.add_column(overflow="fold")
    table.add_row(text[:hang], text[hang:])
    return Padding(table, (0, 0, 0, left))


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    for heading in headings:
        table.add_column(heading, no_wrap=True)
    return table


def _nodes(console: Console, marks: _Marks, found: Mapping[str, Any]) -> None:
    is_wide = console.width >= 105
    table = _table(
        "  node", "state", "servers", "devices", "used", "fullest", "up", *(("processes",) if is_wide else ())
    )
    processes = {f"node {node['number']}": node for node in found["nodes"] if "number" in node}
    for name in dict.fromkeys(server["node"] for server in found["servers"]):
        servers = [server for server in found["servers"] if server["node"] == name]
        devices = [device for device in found["devices"] if device["node"] == name]
        usable = sum(bool(device["usable"]) for device in devices)
        answering = sum(server["answers"] for server in servers)
        process = processes.get(name)
        if process is not None and not process["alive"]:
            state = Text(f"{marks.bad} stopped", "red")
        elif not answering or (process is not None and not process["answers"]):
            state = Text(f"{marks.bad} no answer", "red")
        elif answering < len(servers) or usable < len(devices):
            state = Text(f"{marks.care} partly", "yellow")
        else:
            state = Text(f"{marks.well} well", "green")
        up = [server["up_s"] for server in servers if server["up_s"] is not None]
        row: list[str | Text] = [f"  {name}", state, f"{answering}/{len(servers)}"]
        row.append(f"{usable}/{len(devices)}" if devices else "-")
        row += [*_room(devices), short(max(up)) if up else "-"]
        if is_wide:
            workers = " ".join(map(str, process["workers"])) or "-" if process else "-"
            pids = f"{process['pid']}, workers {workers}" if process else "-"
            row.append(pids if process and process["pid"] else "-")
        table.add_row(*row)
    console.print()
    console.print(table)


def _room(devices: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Used of all, and the fullest device. Devices that share a file system, as those of a small store do, count once."""
    rooms: dict[tuple[float, int], tuple[float, float, str]] = {}
    for device in devices:
        if device.get("size"):
            used, avail = device["used"], device["avail"]
            rooms.setdefault((device["size"], int(used) >> 28), (used, used + avail, device["device"]))
    if not rooms:
        return "-", "-"
    used = sum(one for one, _, _ in rooms.values())
    room = sum(whole for _, whole, _ in rooms.values())
    worst = max(rooms.values(), key=lambda one: one[0] / (one[1] or 1))
    return f"{size(used)} of {size(room)}", f"{worst[2]} {worst[0] / (worst[1] or 1):.0%}"


def size(count: float) -> str:
    """Bytes as people say them."""
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    step = 0
    while count >= 1024 and step < len(units) - 1:
        count, step = count / 1024, step + 1
    return f"{count:.0f} {units[step]}" if count >= 10 or not step else f"{count:.1f} {units[step]}"


def short(seconds: float) -> str:
    """A time in a table."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def _data(console: Console, found: Mapping[str, Any]) -> None:
    repair = found["repair"]
    policies = ", ".join(
        f"{policy['name']} ({_kind(policy)}{', the default' if policy['default'] else ''})"
        for policy in found["policies"]
    )
    lines = [("policies", policies)]
    below, handoffs = repair["partitions_below_full"], repair["handoff_partitions"]
    if below is None:
        lines.append(("copies", "no replicator has told yet"))
    else:
        both = ((below, "partition"), (repair["databases_below_full"], "database"))
        lacking = [counted(count, what) for count, what in both if count]
        parts = [f"at least {' and '.join(lacking)} below full count"] if lacking else \
            ["none is known to be missing" if found["safe"] else "no more are known to be missing than said above"]
        parts += [f"{counted(handoffs, 'partition')} on handoffs"] if handoffs else []
        parts += [f"{counted(repair['queued'], 'look')} queued"] if repair["queued"] else []
        parts += [f"this pass ends in about {short(repair['eta_s'])}"] if repair["eta_s"] else []
        lines.append(("copies", ", ".join(parts)))
    waiting = repair["updates_waiting"]
    if waiting is not None:
        lines.append(("listings", f"{waiting:.0f} updates wait" if waiting else "up to date"))
    quarantined = sum(sum(device.get("quarantined", {}).values()) for device in found["devices"])
    if quarantined:
        lines.append(("quarantine", f"{quarantined} put aside"))
    console.print()
    for title, text in lines:
        console.print(Text.assemble((f"  {title:<12}", "dim"), text), soft_wrap=True)


def _daemons(console: Console, marks: _Marks, daemons: Sequence[Mapping[str, Any]]) -> None:
    if not daemons:
        return
    table = _table("  daemon", "runs", "last pass", "took", "under way", "failed")
    for name in sorted({daemon["name"] for daemon in daemons}):
        own = [daemon for daemon in daemons if daemon["name"] == name]
        alive = sum(bool(daemon.get("alive")) for daemon in own)
        ages = [daemon["last_pass_age_s"] for daemon in own if daemon.get("last_pass_age_s") is not None]
        took = [daemon["last_pass_s"] for daemon in own if isinstance(daemon.get("last_pass_s"), (int, float))]
        failed = sum(daemon["failed"] for daemon in own if isinstance(daemon.get("failed"), int))
        table.add_row(
            f"  {name}",
            Text(f"{alive} of {len(own)}", "" if alive == len(own) else "red"),
            f"{short(max(ages))} ago" if ages else "not yet",
            short(max(took)) if took else "-",
            next(_progress(own), "-"),
            Text(str(failed), "yellow") if failed else "0",
        )
    console.print()
    console.print(table)


def _progress(own: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    running = [daemon for daemon in own if daemon.get("running")]
    done = sum(daemon.get("done") or 0 for daemon in running)
    totals = [daemon["total"] for daemon in running if isinstance(daemon.get("total"), int)]
    etas = [daemon["eta_s"] for daemon in running if isinstance(daemon.get("eta_s"), (int, float))]
    if running:
        yield (f"{done} of {sum(totals)}" if totals else f"{done} done") + (
            f", {short(max(etas))} left" if etas else ""
        )


def _kind(policy: Mapping[str, Any]) -> str:
    count = policy["replicas"]
    what = "copies" if policy["type"] == "replication" else "fragments"
    return f"{count:g} {what}" if count is not None else "no ring"


def _use(console: Console, found: Mapping[str, Any]) -> None:
    if "swift_auth_url" not in found:
        return
    console.print()
    for title, name in (
        ("auth URL", "swift_auth_url"),
        ("storage URL", "storage_url"),
        ("S3", "s3_endpoint"),
        ("user", "user"),
        ("key", "key"),
    ):
        console.print(Text.assemble((f"  {title:<12}", "dim"), found[name]), soft_wrap=True)
