"""What operations cost as work grows: rows of a container and of an account, objects of a device, devices of a ring.

    python -m test.bench.scale objects|containers|device|rings... [--most N] [--data DIR] [--out FILE] [--lock FILE]
    python -m test.bench.scale page [--out FILE] [--page doc/design/scale.md]

``objects``: objects of one container, 10^3 to 10^6. ``containers``: containers of one account, 10^3 to 10^5. ``device``: objects on one
device, 10^4 to 10^6; needs root, for the loop device, and some 12 GiB. ``rings``: a ring of 20,000 devices beside ones of 100. Each adds JSON
lines to FILE; ``page`` writes the newest of each measure into the page, and the picture beside it. CPU is what counts; while
it is measured, ``--lock`` is held, where several share a machine. Data are built first, and removed at the end.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from test.bench import scale_device, scale_ring, scale_rows
from test.bench.compare import between_marks
from test.bench.curves import Curve, Panel, picture
from test.bench.report import shown, table

SIZES = {"objects": (1_000, 10_000, 100_000, 1_000_000), "containers": (1_000, 10_000, 100_000), "device": (10_000, 100_000, 1_000_000)}
MARKS = ("<!-- test.bench.scale writes from here", "<!-- test.bench.scale writes to here -->")

Line = dict[str, object]
Series = dict[str, dict[int, tuple[float, str]]]  # measure: size: value, unit


@contextmanager
def held(path: str | None) -> Iterator[None]:
    """A lock that others who measure take too."""
    if path is None:
        yield
        return
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def measure(what: str, most: int | None, data: Path, lock: str | None) -> Iterator[Line]:
    if what == "rings":
        with held(lock):
            for title, (name, _, value, unit) in scale_ring.rings(data, print):
                yield {"what": what, "measure": name, "size": title, "value": value, "unit": unit}
        return
    sizes = [size for size in SIZES[what] if most is None or size <= most]
    if what == "device":
        points: Iterable[scale_device.Point] = scale_device.objects(data, sizes, print, lambda: held(lock))
    else:
        found = (scale_rows.objects if what == "objects" else scale_rows.containers)(data, sizes, print)
        next(found)
        with held(lock):
            points = next(found)
        found.close()
    for name, size, value, unit in points:
        yield {"what": what, "measure": name, "size": size, "value": value, "unit": unit}


# -- the page ----------------------------------------------------------------------------------------------------------


def series(lines: Iterable[Line], what: str) -> Series:
    """The newest value of each measure and size, in the order of their first appearance."""
    found: Series = {}
    for line in lines:
        if line["what"] == what and isinstance(line["size"], int):
            found.setdefault(str(line["measure"]), {})[line["size"]] = float(str(line["value"])), str(line["unit"])
    return found


def curve_table(found: Series) -> str:
    sizes = sorted({size for values in found.values() for size in values})
    return table(("", *(f"{size:,}" for size in sizes)), (
        (f"{name}, {unit}" if unit else name, *(shown(values[size][0]) if size in values else "" for size in sizes))
        for name, values in found.items() for unit in [next(iter(values.values()))[1]]))


def ring_table(lines: Sequence[Line]) -> str:
    found: dict[str, dict[str, str]] = {}
    for line in lines:
        if line["what"] == "rings":
            found.setdefault(f"{line['measure']}, {line['unit']}", {})[str(line["size"])] = shown(float(str(line["value"])))
    titles = list(dict.fromkeys(title for values in found.values() for title in values))
    return table(("", *titles), ((name, *(values.get(title, "") for title in titles)) for name, values in found.items()))


def curves(found: Series, names: Iterable[str]) -> tuple[Curve, ...]:
    return tuple(Curve(name.removesuffix(": CPU for each object"), tuple((size, value) for size, (value, _) in sorted(found[name].items())))
                 for name in names if name in found)


def panels(lines: Sequence[Line]) -> list[Panel]:
    objects, containers, device = (series(lines, what) for what in ("objects", "containers", "device"))
    sizes, each = "objects in the container", "server CPU, µs"
    changes, listed = ("PUT", "DELETE", "HEAD"), [name for name in objects if name not in ("PUT", "DELETE", "HEAD")]
    of_account = [name for name in containers if name not in changes]
    costs = [name for name in device if "CPU for each object" in name]
    return [
        Panel("Objects of one container: operations", f"{each}; a PUT or DELETE with what its row costs later", sizes, curves(objects, changes)),
        Panel("Objects of one container: listings", f"{each} for a page of 500 names as JSON", sizes, curves(objects, listed)),
        Panel("Containers of one account: operations", each, "containers in the account", curves(containers, changes)),
        Panel("Containers of one account: listings", f"{each} for a page of 500 names as JSON", "containers in the account", curves(containers, of_account)),
        Panel("Objects on one device", "CPU for each object, µs", "objects on the device, in 1,024 partitions", curves(device, costs)),
        Panel("Objects on one device: memory", "growth of the process, MiB; less than 1 is shown as 1", "objects on the device", tuple(
            Curve(name.removesuffix(": memory"), tuple((size, max(value, 1.0)) for size, (value, _) in sorted(device[name].items())))
            for name in device if name.endswith(": memory"))),
    ]  # fmt: skip


def page(lines: Sequence[Line]) -> str:
    parts = ["![Curves of cost by size](scale.svg)"]
    for what, title in (("objects", "Objects of one container"), ("containers", "Containers of one account"), ("device", "Objects on one device")):
        found = series(lines, what)
        if found:
            parts += [f"### {title}", curve_table(found)]
    if any(line["what"] == "rings" for line in lines):
        parts += ["### Rings", ring_table(lines)]
    return "\n\n".join(parts)


def write_page(path: Path, lines: Sequence[Line]) -> None:
    path.with_suffix(".svg").write_text(picture("What it costs as work grows", "Flat is good. CPU of the processes; medians of blocks, sizes in turns",
                                                panels(lines)))
    path.write_text(between_marks(path.read_text(), page(lines), MARKS))


def main() -> None:
    parser = argparse.ArgumentParser(description="What operations cost as work grows.")
    parser.add_argument("what", nargs="+", choices=[*SIZES, "rings", "page"])
    parser.add_argument("--most", type=int, help="the largest size")
    parser.add_argument("--data", help="directory of the temporary one")
    parser.add_argument("--out", type=Path, default=Path("bench-results/scale.jsonl"))
    parser.add_argument("--page", type=Path, default=Path("doc/design/scale.md"))
    parser.add_argument("--lock", help="a file that is locked while something is measured")
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    for what in given.what:
        if what == "page":
            with open(given.out, encoding="utf-8") as file:
                write_page(given.page, [json.loads(line) for line in file])
            continue
        with tempfile.TemporaryDirectory(prefix="keelstore-scale-", dir=given.data) as directory, open(given.out, "a", encoding="utf-8") as out:
            for line in measure(what, given.most, Path(directory), given.lock):
                print(f"{line['what']}: {line['measure']} at {line['size']}: {line['value']:.4g} {line['unit']}", flush=True)
                print(json.dumps(line), file=out, flush=True)


if __name__ == "__main__":
    main()
