"""``keelstore-dispersion-populate``: containers and objects spread over the partitions, for the report to look for."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from keelstore.cli.dispersion import CONF, Account, Progress, Retries, Target, in_parallel, load_target, write
from keelstore.cli.layout import CommandError
from keelstore.common.errors import KeelstoreError
from keelstore.common.ring.ring import Ring


def names_to_make(
    prefix: str, wanted: int, partition: Callable[[str], int], covered: set[int]
) -> list[tuple[int, str]]:
    """Suffix and name of as many items as are wanted, each in a partition that none before it, nor ``covered``, has."""
    covered, number = set(covered), 0
    found: list[tuple[int, str]] = []
    while len(found) < wanted:
        name = f"{prefix}{number}"
        place = partition(name)
        if place not in covered:
            covered.add(place)
            found.append((number, name))
        number += 1
    return found


class Populate:
    def __init__(
        self, target: Target, account: Account, retries: Retries, no_overlap: bool, out: Callable[[str], None] = write
    ):
        self._target, self._account, self._retries, self._no_overlap, self._out = (
            target,
            account,
            retries,
            no_overlap,
            out,
        )

    def _digest(self, *names: str) -> bytes:
        return self._target.cluster.hash_path.digest(self._account.name, *names)

    def containers(self, start: int) -> None:
        target, ring = self._target, self._target.ring("container")
        self._make(
            "container",
            ring,
            target.container_prefix,
            lambda name: ring.partition(self._digest(name)),
            lambda name: self._account.put(name, headers={"X-Storage-Policy": target.policy.name}),
            lambda: self._account.listing("", target.container_prefix),
            start,
        )

    def objects(self, start: int) -> None:
        target, ring, container = self._target, self._target.ring("object"), self._target.objects_container
        self._account.put(container, headers={"X-Storage-Policy": target.policy.name})
        self._make(
            "object",
            ring,
            "dispersion_",
            lambda name: ring.partition(self._digest(container, name)),
            lambda name: self._account.put(
                container, name, headers={"X-Object-Meta-Dispersion": name}, body=name.encode()
            ),
            lambda: self._account.listing(container, "dispersion_"),
            start,
        )

    def _make(
        self,
        kind: str,
        ring: Ring,
        prefix: str,
        partition: Callable[[str], int],
        make: Callable[[str], None],
        existing: Callable[[], object],
        start: int,
    ) -> None:
        covered = {partition(name) for name in existing()} if self._no_overlap else set()  # type: ignore[attr-defined]
        count = ring.partition_count
        wanted = min(int(self._target.options.dispersion_coverage / 100 * count), count - len(covered))
        names = names_to_make(prefix, wanted, partition, covered)
        progress = Progress(
            f"Creating {kind}s", f"Created {{count}} {kind}s for dispersion reporting", wanted, self._retries, self._out
        )
        for _ in in_parallel(
            lambda item: make(item[1]) if item[0] >= start else None, names, self._target.options.concurrency
        ):
            progress.step()
        progress.end()
        if self._no_overlap:
            self._out(f"\r\x1b[KTotal {kind} coverage is now {(len(covered) + wanted) * 100.0 / count:.2f}%.\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; gives the exit status."""
    parser = argparse.ArgumentParser(prog="keelstore-dispersion-populate", description=__doc__)
    parser.add_argument("conf", nargs="?", default=CONF, help=f"configuration file (default {CONF})")
    parser.add_argument("--container-only", action="store_true", help="only containers")
    parser.add_argument("--object-only", action="store_true", help="only objects")
    parser.add_argument(
        "--container-suffix-start", type=int, default=0, help="containers with a lesser number are there already"
    )
    parser.add_argument(
        "--object-suffix-start", type=int, default=0, help="objects with a lesser number are there already"
    )
    parser.add_argument("--insecure", action="store_true", help="do not verify certificates")
    parser.add_argument(
        "--no-overlap", action="store_true", help="cover further partitions, beyond those that are covered"
    )
    parser.add_argument("-P", "--policy-name", help="the storage policy (default: the default one)")
    options = parser.parse_args(arguments)
    try:
        target = load_target(
            options.conf, options.policy_name, keystone_api_insecure="yes" if options.insecure else None
        )
        write(f"Using storage policy: {target.policy.name} \n")
        retries = Retries(target.options.retries)
        populate = Populate(target, Account(target.options, retries), retries, options.no_overlap)
        if target.options.container_populate and not options.object_only:
            populate.containers(options.container_suffix_start)
        if target.options.object_populate and not options.container_only:
            populate.objects(options.object_suffix_start)
    except CommandError as error:
        is_ours = str(error).startswith("Unable")
        print(str(error) if is_ours else f"Error: {error}\nGave up due to error(s).", file=sys.stderr)
        return 1
    except (KeelstoreError, OSError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
