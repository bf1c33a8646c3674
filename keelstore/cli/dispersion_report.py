"""``keelstore-dispersion-report``: how many copies of the populated containers and objects are where they belong.

Every primary device of each is asked directly.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from keelstore.cli.ask import url_of
from keelstore.cli.client import Client, ClientError
from keelstore.cli.dispersion import (
    CONF,
    Account,
    Progress,
    Retries,
    Target,
    in_parallel,
    load_target,
    write,
)
from keelstore.cli.layout import CommandError
from keelstore.common.errors import KeelstoreError
from keelstore.common.ring.ring import Node, Ring

ANSWER_S = 10.0


@dataclass
class Tally:
    """What was found of one kind."""

    kind: str
    partitions: int  # of the ring
    queried: int = 0
    overlapping: int = 0
    found: int = 0
    expected: int = 0
    retries: int = 0
    missing: dict[int, int] = field(default_factory=dict)  # copies missing: partitions
    replicas: int = 0

    def add(self, found: int, expected: int) -> None:
        self.queried += 1
        self.found, self.expected, self.replicas = (
            self.found + found,
            self.expected + expected,
            max(self.replicas, expected),
        )
        lost = expected - found
        if lost or self.kind == "object":
            self.missing[lost] = self.missing.get(lost, 0) + 1

    @property
    def percent(self) -> float:
        return self.found * 100.0 / self.expected if self.expected else 0.0

    def as_dict(self) -> dict[str, Any]:
        return {
            "retries": self.retries,
            "overlapping": self.overlapping,
            "pct_found": self.percent,
            "copies_found": self.found,
            "copies_expected": self.expected,
            **{f"missing_{lost}": self.missing[lost] for lost in sorted(self.missing)},
        }

    def lines(self) -> Iterator[str]:
        if self.overlapping:
            yield f"There were {self.overlapping} overlapping partitions"
        for lost in sorted(self.missing):
            yield missing_line(lost, self.missing[lost], self.replicas)
        yield f"{self.percent:.02f}% of {self.kind} copies found ({self.found} of {self.expected})"
        yield f"Sample represents {self.queried * 100.0 / self.partitions:.02f}% of the {self.kind} partition space"


def missing_line(lost: int, partitions: int, replicas: int) -> str:
    mark = "!!! " if lost == replicas else "! " if lost == replicas - 1 and lost else ""
    verb, noun = ("was", "partition") if partitions == 1 else ("were", "partitions")
    copies = "all copies" if lost == replicas else "1 copy" if lost == 1 else f"{lost} copies"
    return f"{mark}There {verb} {partitions} {noun} missing {copies}."


class Report:
    def __init__(
        self,
        target: Target,
        account: Account,
        retries: Retries,
        *,
        debug: bool = False,
        partitions: bool = False,
        out: Callable[[str], None] = write,
        err: Callable[[str], None] | None = None,
    ):
        self._target, self._account, self._retries = target, account, retries
        self._debug, self._partitions, self._out = debug, partitions, out
        self._err = err or (lambda line: print(line, file=sys.stderr, flush=True))
        self._unmounted: set[str] = set()
        self._lock = threading.Lock()

    def containers(self) -> Tally | None:
        ring, prefix = self._target.ring("container"), self._target.container_prefix
        names = self._account.listing("", prefix)
        return self._look("container", ring, ((name,) for name in names))

    def objects(self) -> Tally | None:
        ring, container = self._target.ring("object"), self._target.objects_container
        names = self._account.listing(container, "dispersion_")
        return self._look("object", ring, ((container, name) for name in names))

    def _look(self, kind: str, ring: Ring, items: Iterable[tuple[str, ...]]) -> Tally | None:
        """None: nothing was populated."""
        tally = Tally(kind, ring.partition_count)
        places: dict[int, tuple[str, ...]] = {}
        for names in items:
            part = ring.partition(self._target.cluster.hash_path.digest(self._account.name, *names))
            if part in places:
                tally.overlapping += 1
            else:
                places[part] = names
        if not places:
            return None
        first = self._retries.count
        progress = Progress(
            f"Querying {kind}s",
            f"Queried {{count}} {kind}s for dispersion reporting",
            len(places),
            self._retries,
            self._out,
        )

        def ask(item: tuple[int, tuple[str, ...]]) -> tuple[int, int, int]:
            part, names = item
            nodes = ring.primaries(part)
            return part, sum(self._has(kind, node, part, names) for node in nodes), len(nodes)

        for part, found, expected in in_parallel(ask, places.items(), self._target.options.concurrency):
            tally.add(found, expected)
            progress.step()
            lost = expected - found
            if lost and self._partitions:
                self._err(
                    f"\r\x1b[K# {kind.capitalize()} partition {part} missing {lost} {'copy' if lost == 1 else 'copies'}"
                )
        progress.end()
        tally.retries = self._retries.count - first
        return tally

    def _has(self, kind: str, node: Node, part: int, names: tuple[str, ...]) -> bool:
        path = "/".join(quote(name, safe="") for name in (node.device, str(part), self._account.name, *names))
        headers = {"X-Backend-Storage-Policy-Index": str(self._target.policy.index)} if kind == "object" else {}
        shown = f"{node.ip}:{node.port}/{node.device}"

        def ask() -> bool:
            try:
                status = Client(url_of((node.ip, node.port)), ANSWER_S).request("HEAD", f"/{path}", headers).status
            except ClientError as error:
                raise CommandError(error.reason) from error
            if status == 507:
                self._tell_unmounted(shown)
            elif status == 404:
                if self._debug:
                    self._err(f"ERROR: {shown} returned a 404")
            elif not 200 <= status < 300:
                raise CommandError(f"HEAD answers {status}")
            return status < 300

        try:
            return self._retries.run(ask, lambda problem: self._err(f"ERROR: {shown}: {problem}") if self._debug else None)
        except CommandError as error:
            self._err(f"ERROR: {shown}: Giving up on /{part}/{self._account.name}/{'/'.join(names)}: {error}")
            return False

    def _tell_unmounted(self, shown: str) -> None:
        with self._lock:
            if shown in self._unmounted:
                return
            self._unmounted.add(shown)
        self._err(
            f"ERROR: {shown} is unmounted -- This will cause replicas designated for that device to be considered "
            "missing until resolved or the ring is updated."
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; gives the exit status."""
    parser = argparse.ArgumentParser(prog="keelstore-dispersion-report", description=__doc__)
    parser.add_argument("conf", nargs="?", default=CONF, help=f"configuration file (default {CONF})")
    parser.add_argument("-j", "--dump-json", action="store_true", help="the report as JSON")
    parser.add_argument("-d", "--debug", action="store_true", help="tell what answers 404, or fails, on standard error")
    parser.add_argument(
        "-p", "--partitions", action="store_true", help="tell partitions that miss copies on standard error"
    )
    parser.add_argument("--container-only", action="store_true", help="only containers")
    parser.add_argument("--object-only", action="store_true", help="only objects")
    parser.add_argument("--insecure", action="store_true", help="do not verify certificates")
    parser.add_argument("-P", "--policy-name", help="the storage policy (default: the default one)")
    options = parser.parse_args(arguments)
    try:
        target = load_target(
            options.conf, options.policy_name, keystone_api_insecure="yes" if options.insecure else None
        )
        as_json = options.dump_json or target.options.dump_json
        wanted = [
            kind
            for kind, asked, other in (
                ("container", target.options.container_report, options.object_only),
                ("object", target.options.object_report, options.container_only),
            )
            if asked and not other
        ]
        if not wanted:
            print("Neither container or object report is set to run")
            return 1
        if not as_json:
            write(f"Using storage policy: {target.policy.name} \n")
        retries = Retries(target.options.retries)
        quiet: Callable[[str], None] = lambda text: None  # noqa: E731
        report = Report(
            target,
            Account(target.options, retries),
            retries,
            debug=options.debug,
            partitions=options.partitions,
            out=quiet if as_json else write,
        )
        found: dict[str, Any] = {}
        for kind in wanted:
            tally = report.containers() if kind == "container" else report.objects()
            if tally is None:
                print(
                    f"No {kind}s to query. Has keelstore-dispersion-populate been run?",
                    file=sys.stderr if as_json else sys.stdout,
                )
                continue
            found[kind] = tally.as_dict()
            for line in () if as_json else tally.lines():
                print(line, flush=True)
        if as_json:
            print(json.dumps(found))
    except CommandError as error:
        print(str(error) if str(error).startswith("Unable") else f"Error: {error}", file=sys.stderr)
        return 1
    except (KeelstoreError, OSError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
