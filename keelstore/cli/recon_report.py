"""What ``keelstore-recon`` prints of what the hosts answered: pure, in the field's wording (``spec: daemons 19.2``)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

RULE: Final = "=" * 79
WIDTH_OF_GRAPH: Final = 69
Answers = Sequence[tuple[str, Any]]  # host:port, what it answered


def moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))


def stat_line(name: str, values: Sequence[Any]) -> str:
    """One figure of all hosts; None counts as no result."""
    known = [float(value) for value in values if isinstance(value, (int, float))]
    if not known:
        return f"[{name}] - No hosts returned valid data."
    missing = len(values) - len(known)
    total = sum(known)
    return (
        f"[{name}] low: {int(min(known))}, high: {int(max(known))}, avg: {total / len(known):.1f}, total: {int(total)}, "
        f"Failed: {missing * 100.0 / len(values):.1f}%, no_result: {missing}, reported: {len(known)}"
    )


def get(value: Any, *keys: str) -> Any:
    """The value at a path of keys; None when there is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def stats(answers: Answers, figures: Iterable[tuple[str, Sequence[str]]], *, with_none: bool = True) -> Iterator[str]:
    """A line for each figure: (name shown, path of keys)."""
    for name, path in figures:
        values = [get(answer, *path) for _, answer in answers]
        yield stat_line(name, values if with_none else [value for value in values if value is not None])


def _dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def entries_of(answer: Any) -> list[Mapping[str, Any]]:
    """The devices of an answer that has a list of them."""
    return [entry for entry in answer if isinstance(entry, Mapping)] if isinstance(answer, list) else []


def ago(seconds: float) -> str:
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= size:
            return f"{int(seconds / size)} {unit}"
    return f"{int(seconds)} seconds"


def completions(answers: Answers, keys: Sequence[str], now: float) -> Iterator[str]:
    """Who ended a pass first, and who last. ``keys``: those that may hold the time, the first that does counts."""
    found = [
        (value, host)
        for host, answer in answers
        for value in [next((get(answer, key) for key in keys if get(answer, key) is not None), None)]
        if isinstance(value, (int, float))
    ]
    if not found:
        return
    for title, (last, host) in (
        ("Oldest", min(found, key=lambda one: one[0])),
        ("Most recent", max(found, key=lambda one: one[0])),
    ):
        if last == 0:
            yield f"{title} completion was NEVER by {host}."
        else:
            yield f"{title} completion was {moment(last)} ({ago(now - last)} ago) by {host}."


def asyncs(answers: Answers) -> Iterator[str]:
    yield from stats(answers, [("async_pending", ("async_pending",))])


def replication(answers: Answers, now: float) -> Iterator[str]:
    yield from stats(answers, [("replication_time", ("replication_time",))])
    with_stats = [(host, answer) for host, answer in answers if get(answer, "replication_stats") is not None]
    for name in ("failure", "success", "attempted"):
        yield from stats(with_stats, [(f"replication_{name}" if with_stats else name, ("replication_stats", name))])
    yield from completions(answers, ("object_replication_last", "replication_last"), now)


def reconstruction(answers: Answers, now: float) -> Iterator[str]:
    yield from stats(answers, [("object_reconstruction_time", ("object_reconstruction_time",))])
    yield from completions(answers, ("object_reconstruction_last",), now)


def updater(answers: Answers, kind: str) -> Iterator[str]:
    yield from stats(answers, [("updater_last_sweep", (f"{kind}_updater_sweep",))], with_none=False)


def expirer(answers: Answers) -> Iterator[str]:
    yield from stats(answers, [(name, (name,)) for name in ("object_expiration_pass", "expired_last_pass")])


def sharding(answers: Answers, now: float) -> Iterator[str]:
    yield from stats(answers, [("sharding_time", ("sharding_time",))])
    with_stats = [(host, answer) for host, answer in answers if get(answer, "sharding_stats") is not None]
    yield from stats(with_stats, [(name, ("sharding_stats", name)) for name in ("attempted", "failure", "success")])
    yield from completions(answers, ("sharding_last",), now)


def database_auditor(answers: Answers, kind: str) -> Iterator[str]:
    if not answers:
        yield "Error: No hosts available"
        return
    yield from stats(
        answers,
        [
            (name, (name,))
            for name in (f"{kind}_auditor_pass_completed", f"{kind}_audits_failed", f"{kind}_audits_passed")
        ],
        with_none=False,
    )
    since = [
        value
        for value in (get(answer, f"{kind}_audits_since") for _, answer in answers)
        if isinstance(value, (int, float))
    ]
    if since:
        average = moment(sum(since) / len(since))
        yield f"[last_pass] oldest: {moment(min(since))}, newest: {moment(max(since))}, avg: {average}"
    else:
        yield stat_line(f"{kind}_audits_since", [])


def object_auditor(answers: Answers) -> Iterator[str]:
    for scan, figures in (
        ("ALL", ("audit_time", "bytes_processed", "passes", "errors", "quarantined")),
        ("ZBF", ("audit_time", "bytes_processed", "errors", "quarantined")),
    ):
        told = [
            found
            for found in (get(answer, f"object_auditor_stats_{scan}") for _, answer in answers)
            if isinstance(found, Mapping) and found
        ]
        for name in figures:
            yield stat_line(f"{scan}_{name}_last_path", [_summed(found, name) for found in told])


def _summed(found: Mapping[str, Any], name: str) -> Any:
    """A figure of an auditor, or its sum where it runs for several devices at once."""
    if name in found:
        return found[name]
    inner = [get(entry, name) for entry in found.values()]
    return sum(value for value in inner if isinstance(value, (int, float)))


def unmounted(answers: Answers) -> Iterator[str]:
    entries = [(host, entry) for host, answer in answers for entry in entries_of(answer)]
    yield from (f"Not mounted: {entry.get('device')} on {host}" for host, entry in entries if entry.get("mounted") is False)
    yield from (f"Device errors: {entry.get('device')} on {host}" for host, entry in entries
                if entry.get("mounted") not in (False, True))


def load(answers: Answers) -> Iterator[str]:
    yield from stats(answers, [(f"{span}_load_avg", (span,)) for span in ("1m", "5m", "15m")])


def quarantined(answers: Answers) -> Iterator[str]:
    policies = sorted(
        {index for _, answer in answers for index in _dict(get(answer, "policies"))},
        key=lambda text: (len(text), text),
    )
    for index in policies:
        yield from stats(answers, [(f"quarantined_objects_{index}", ("policies", index, "objects"))], with_none=False)
    yield from stats(answers, [(f"quarantined_{kind}", (kind,)) for kind in ("objects", "containers", "accounts")])


def sockets(answers: Answers) -> Iterator[str]:
    for name in ("tcp_in_use", "tcp_mem_allocated_bytes", "tcp6_in_use", "time_wait", "orphan"):
        yield stat_line(name, [get(answer, name) or 0 for _, answer in answers])


def drive_audit(answers: Answers) -> Iterator[str]:
    yield from stats(answers, [("drive_audit_errors", ("drive_audit_errors",))])


def disk_usage(answers: Answers, human_readable: bool = False, top: int = 0, lowest: int = 0) -> Iterator[str]:
    """The distribution, the sums, and after a rule the fullest and the emptiest devices."""
    shares: list[tuple[float, str, str]] = []
    used = free = 0
    for host, answer in answers:
        known = False
        for entry in entries_of(answer):
            mounted, size = entry.get("mounted"), entry.get("size")
            if mounted is True and isinstance(size, int) and isinstance(entry.get("used"), int):
                known = True
                if size > 0:
                    shares.append((entry["used"] * 100.0 / size, host.rpartition(":")[0], str(entry.get("device"))))
                used, free = used + entry["used"], free + (entry.get("avail") or 0)
            elif mounted is not True and mounted is not False:
                yield f"-> http://{host}/recon/diskusage/{entry.get('device')}: Error: {mounted}"
        if not known:
            yield f"-> http://{host}/recon/diskusage: Error. No drive info available."
    if not shares:
        yield "No hosts returned valid data."
    else:
        yield from _distribution(shares)
        shown = [decimal_size(value) if human_readable else str(value) for value in (used, free, used + free)]
        yield f"Disk usage: space used: {shown[0]} of {shown[2]}"
        yield f"Disk usage: space free: {shown[1]} of {shown[2]}"
        only = [share for share, _, _ in shares]
        average = used * 100.0 / (used + free) if used + free else 0.0
        yield f"Disk usage: lowest: {_percent(min(only))}%, highest: {_percent(max(only))}%, avg: {average}%"
    yield RULE
    for title, count, is_top in (("TOP", top, True), ("LOWEST", lowest, False)):
        if count:
            yield f"{title} {count}"
            for share, ip, device in sorted(shares, reverse=is_top)[:count]:
                yield f"{share:.02f}%  {ip:<15} {device}"


def _percent(value: float) -> str:
    return f"{round(value, 2)}"


def _distribution(shares: Sequence[tuple[float, str, str]]) -> Iterator[str]:
    counts: dict[int, int] = {}
    for share, _, _ in shares:
        counts[int(share)] = counts.get(int(share), 0) + 1
    most = max(counts.values())
    yield "Distribution Graph:"
    for percent in sorted(counts):
        yield f"{percent: 3d}%{counts[percent]:5d} {'*' * int(WIDTH_OF_GRAPH * counts[percent] / most)}"


def decimal_size(count: float) -> str:
    """Whole units of a thousand, as the field's tool has it."""
    units = ("B", "KB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB")
    step = 0
    while count >= 1000 and step < len(units) - 1:
        count, step = count / 1000, step + 1
    return f"{int(count)} {units[step]}"
