"""keelstore beside the reference, in turns, in one run on one machine: ``bin/bench``.

Each side is started fresh on the same file system, each keeps three copies and syncs as it always does, and the same workloads of the
shared load generator are asked of them in turns (A B, B A, ...). What comes out, in ``--out``:

- ``results.jsonl``: a line for each side, row and round, as the load generator makes it
- ``results.md``: the table of factors, with the machine, versions and commands
- ``ratios.svg``: the factors as a picture

``--page FILE`` puts the page between the marks of a Markdown file, and the picture beside it. Results are written after each
round, so that a run that is stopped leaves what it has. Ctrl-C stops and removes both sides.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType, ModuleType

from test.bench import limits, plot, report, rgw, sides
from test.bench.loads import Kind, Load, Row, generator, rows
from test.bench.report import Compared, Line, NodeRow
from test.bench.sides import Side, Unusable
from test.support.processes import ROOT

BEGIN, END = "<!-- bin/bench writes from here", "<!-- bin/bench writes to here -->"
IDLE_AIM_MIB, START_AIM_S = 250, 3


@dataclass
class Comparison:
    """A run: what is measured, of whom, and what came out so far."""

    bench: ModuleType
    rows: list[Row]
    rounds: int
    seconds: float
    command: str
    lines: list[Line] = field(default_factory=list)
    sides: dict[str, Side] = field(default_factory=dict)  # ours is the first
    used_mib: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    limits: str = ""
    load_before: str = ""
    loads: dict[tuple[str, Kind], Load] = field(default_factory=dict)

    def measure(self, number: int) -> None:
        """One round of all rows; the order of the sides is turned from round to round."""
        for place, row in enumerate(self.rows, 1):
            able = [name for name, side in self.sides.items() if side.target.has(row.kind)]
            found = {name: self._measure_one(name, row, number) for name in (able if number % 2 else reversed(able))}
            figures = "; ".join(f"{name} {found[name]}" for name in able)
            say(f"round {number} of {self.rounds}, row {place} of {len(self.rows)}, {row.key}: {figures}")

    def _measure_one(self, name: str, row: Row, number: int) -> str:
        try:
            line = self._load(name, row).measure(row)
        except (RuntimeError, OSError) as error:
            self.notes.append(f"{name}: {row.key}: {error}")
            return f"not measured ({error})"
        self.lines.append({"side": name, "row": row.key, "round": number, **line})
        return f"{line.get('server_cpu_ms_op') or 0:.2f} ms, {line['mib_s'] if row.is_large else line['ops_s']:.0f} {'MiB/s' if row.is_large else '/s'}"

    def _load(self, name: str, row: Row) -> Load:
        side, key = self.sides[name], (name, row.kind)
        if key not in self.loads:
            self.loads[key] = Load(self.bench, side.target, row.kind, side.pids(), self.seconds)
        return self.loads[key]

    def prepare(self) -> None:
        """Write what is read later, which warms both sides up too."""
        for name in self.sides:
            began = time.perf_counter()
            for row in (row for row in self.rows if self.sides[name].target.has(row.kind)):
                try:
                    self._load(name, row).fill(row)
                except (RuntimeError, OSError, SystemExit) as error:
                    self.notes.append(f"{name}: {row.key}: {error}")
            say(f"{name}: what is read later is written, in {time.perf_counter() - began:.0f} s")

    # -- what comes out ------------------------------------------------------------------------------------------------

    def compared(self, other: str) -> list[Compared]:
        ours = next(iter(self.sides))
        found = [report.compare(row, other, self.of(ours, row), self.of(other, row)) for row in self.rows]
        return [one for one in found if one.cpu or one.rate]

    def of(self, name: str, row: Row) -> list[Line]:
        return [line for line in self.lines if line["side"] == name and line["row"] == row.key]

    def nodes(self, other: str) -> list[NodeRow]:
        ours, theirs = next(iter(self.sides.values())), self.sides[other]
        values = (("time to the first answer, fresh", "s", ours.first_start_s, theirs.first_start_s, ""),
                  ("time to the first answer, second start", "s", ours.second_start_s, theirs.second_start_s,
                   aim(ours.second_start_s, START_AIM_S, "s")),
                  ("memory, idle (PSS)", "MiB", ours.idle_mib, theirs.idle_mib, aim(ours.idle_mib, IDLE_AIM_MIB, "MiB")),
                  ("memory, after use (PSS)", "MiB", self.used_mib.get(ours.target.label), self.used_mib.get(other), ""))
        return [NodeRow(title, unit, own, their, wanted) for title, unit, own, their, wanted in values if own and their]

    def page(self, picture: str) -> str:
        parts = [f"Made by `{self.command}` on {time.strftime('%Y-%m-%d %H:%M %Z')}, keelstore {commit()}. {machine()}. "
                 f"Load of the machine before: {self.load_before}; after: {load_average()} (both with what this run does). Rounds in turns: {self.rounds}; "
                 f"{self.seconds:g} s for each small row. CPU is that of all processes of a side. "
                 "Large objects have been read before: that our servers check the MD5 of one when they first send it is not in the figures."]
        parts.append("\n".join(f"- **{side.title}**: {'; '.join(side.notes)}." for side in self.sides.values()))
        if len(self.sides) > 1:
            parts.append("A factor says how many times keelstore is ahead (their CPU by ours, our rate by theirs, their latency by ours); behind it the least and the most of the rounds.")
        for other in list(self.sides)[1:]:
            title = self.sides[other].title
            parts += [f"### Beside {title}", f"![Factors beside {title}]({picture_name(picture, other, self.sides)})",
                      report.beside(title, self.compared(other)), report.nodes(title, self.nodes(other))]
        ours = next(iter(self.sides))
        if len(self.sides) == 1:
            parts.append(report.table(("", "connections", "ms CPU", "rate", "latency"), (
                (f"{row.kind.title}: {row.title}", str(row.connections), *report.side_cells(row, self.of(ours, row), not row.is_large))
                for row in self.rows if self.of(ours, row))))
        if self.limits:
            parts += ["### Distance to the limit", self.limits]
        notes = self.notes + report.failures(self.lines, lambda line: f"{line['side']}: {line['row']}, round {line['round']}")
        if notes:
            parts += ["### Left out, and failures", "\n".join(f"- {note}" for note in dict.fromkeys(notes))]
        return "\n\n".join(parts) + "\n"

    def write(self, out: Path, page: Path | None) -> None:
        """All files anew."""
        (out / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in self.lines))
        (out / "results.md").write_text(self.page("ratios.svg"))
        for other in list(self.sides)[1:]:
            drawn = self.picture(other)
            (out / picture_name("ratios.svg", other, self.sides)).write_text(drawn)
            if page is not None:
                page.with_name(picture_name(f"{page.stem}.svg", other, self.sides)).write_text(drawn)
        if page is not None:
            page.write_text(between_marks(page.read_text(), self.page(f"{page.stem}.svg")))

    def picture(self, other: str) -> str:
        title = f"How many times keelstore is ahead of {self.sides[other].title}"
        return plot.picture(title, f"{time.strftime('%Y-%m-%d')}, keelstore {commit()}; one run, in turns, rounds: {self.rounds}; {machine()}",
                            self.compared(other), self.nodes(other))


def picture_name(name: str, other: str, everyone: dict[str, Side]) -> str:
    """The picture of the first reference has the plain name, a further one's says whose it is."""
    return name if other == list(everyone)[1] else name.replace(".svg", f"-{other}.svg")


def between_marks(text: str, page: str, marks: tuple[str, str] = (BEGIN, END)) -> str:
    """A Markdown file with the page in the place of what stood between the marks; the first goes on to the end of its comment."""
    before, begin, rest = text.partition(marks[0])
    comment, arrow, rest = rest.partition("-->")
    _, end, after = rest.partition(marks[1])
    if not begin or not end or not arrow:
        raise SystemExit(f"Error: the page has no lines '{marks[0]} ... -->' and '{marks[1]}'")
    return f"{before}{begin}{comment}{arrow}\n\n{page}\n{end}{after}"


def aim(value: float | None, most: float, unit: str) -> str:
    return "" if value is None else f"below {most} {unit} {'met' if value < most else '**not met**'}"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def load_average() -> str:
    return f"{os.getloadavg()[0]:.1f}"


@cache
def commit() -> str:
    """Of this checkout when it was first asked for: what is written below changes it."""
    done = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or "(no commit)"


def machine() -> str:
    """Cores, memory, kernel, Python."""
    model = next((line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "CPU")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    return f"{os.cpu_count()} cores ({model}), {memory} GiB, Linux {os.uname().release.partition('-')[0]}, Python {sys.version.split()[0]}"


def file_system(path: Path) -> str:
    """The type of the file system that a path lies on."""
    device = path.stat().st_dev
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        if fields[2] == f"{os.major(device)}:{os.minor(device)}":
            return fields[fields.index("-") + 1]
    return "an unknown file system"


def interrupt(_: int, __: FrameType | None) -> None:
    raise KeyboardInterrupt


def run(given: argparse.Namespace, chosen: list[Row], base: Path, home: Path) -> int:
    comparison = Comparison(generator(given.shared), chosen, given.rounds, given.seconds, shlex.join(["bin/bench", *sys.argv[1:]]),
                            load_before=load_average())
    say(f"keelstore {commit()}; {machine()}; load {load_average()}")
    is_stopped = False
    with ExitStack() as stack:
        try:
            start_all(comparison, given, stack, base, home)
            comparison.prepare()
            for number in range(1, given.rounds + 1):
                comparison.measure(number)
                comparison.used_mib = {name: side.pss_mib() for name, side in comparison.sides.items()}
                comparison.write(given.out, given.page)
            if not given.no_limits:
                say("the limits of PUT and GET")
                ours = next(iter(comparison.sides.values()))
                comparison.limits = limits.shown_limits(*limits.measure(comparison.bench, ours.target, ours.pids, base, given.rounds))
                comparison.write(given.out, given.page)
        except KeyboardInterrupt:
            is_stopped = True
            say("stopped; ending what was started")
            if comparison.lines:
                comparison.write(given.out, None)  # a page is for whole rounds
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C must not leave servers behind
    if comparison.lines:
        say(f"written: {given.out}/results.md, results.jsonl, pictures" + (f", {given.page}" if given.page else ""))
    return 130 if is_stopped else 0


def start_all(comparison: Comparison, given: argparse.Namespace, stack: ExitStack, base: Path, home: Path) -> None:
    say("starting keelstore")
    side = stack.enter_context(sides.ours(base, given.workers))
    side.notes.append(f"devices on {file_system(base)}")
    comparison.sides[side.target.label] = side
    if given.reference in ("swift", "all"):
        say("starting Swift (its very first start installs it, which takes minutes)")
        reference = stack.enter_context(sides.swift(base, given.shared, home))
        comparison.sides[reference.target.label] = reference
    if given.reference in ("rgw", "all"):
        say("starting RGW")
        try:
            gateway = stack.enter_context(rgw.rgw(base))
            comparison.sides[gateway.target.label] = gateway
        except Unusable as why:
            if given.reference == "rgw":
                raise
            comparison.notes.append(f"RGW is left out: {why}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description="Measure keelstore beside the reference, in turns, and write a table and a picture of the factors.")
    parser.add_argument("--quick", action="store_true", help="fewer rows and rounds: some 4 minutes in place of 15")
    parser.add_argument("--rounds", type=int, help="rounds in turns  [default: 3; 2 with --quick]")
    parser.add_argument("--rows", help="only these, such as 'copies-*,ec-put-4k-8'; --list-rows says which there are")
    parser.add_argument("--list-rows", action="store_true", help="name the rows and do nothing")
    parser.add_argument("--seconds", type=float, help="of each small measurement  [default: 2; 1.5 with --quick]")
    parser.add_argument("--reference", choices=("all", "swift", "rgw", "none"), default="all", help="beside whom  [default: Swift, and RGW where it is installed]")
    parser.add_argument("--workers", type=int, default=2, help="worker processes of keelstore; the reference has two of each kind that matters  [default: 2]")
    parser.add_argument("--no-limits", action="store_true", help="leave out the bare program and sendfile")
    parser.add_argument("--shared", type=Path, default=Path(os.environ.get("SHARED") or ROOT.parent / "shared"),
                        help="directory that holds bench/bench.py  [default: SHARED, ../shared]")
    parser.add_argument("--home", type=Path, default=Path(os.environ.get("REFERENCE_HOME") or Path(tempfile.gettempdir()) / "keelstore-reference"),
                        help="where the reference is installed; all data goes there too  [default: REFERENCE_HOME, else a directory in TMPDIR]")
    parser.add_argument("--out", type=Path, default=Path("bench-results"), help="directory of the results  [default: bench-results]")
    parser.add_argument("--page", type=Path, help="Markdown file whose marked part the results replace")
    given = parser.parse_args()
    given.rounds = given.rounds or (2 if given.quick else 3)
    given.seconds = given.seconds or (1.5 if given.quick else 2.0)
    return given


def main() -> int:
    given = arguments()
    chosen = rows(given.quick)
    if given.rows:
        wanted = given.rows.split(",")
        chosen = [row for row in chosen if any(fnmatch.fnmatchcase(row.key, one) for one in wanted)]
    if given.list_rows or not chosen:
        print("\n".join(row.key for row in (chosen or rows(given.quick))))
        return 0 if chosen else 1
    home = given.home.resolve()
    home.mkdir(parents=True, exist_ok=True)
    given.out.mkdir(parents=True, exist_ok=True)
    if given.page is not None:
        between_marks(given.page.read_text(), "")  # now, not in a quarter of an hour
    signal.signal(signal.SIGINT, interrupt)  # also where a shell started us in the background and has it ignored
    signal.signal(signal.SIGTERM, interrupt)
    base = Path(tempfile.mkdtemp(prefix="bench-", dir=home))
    try:
        return run(given, chosen, base, home)
    except Unusable as why:
        print(f"Error: {why}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
