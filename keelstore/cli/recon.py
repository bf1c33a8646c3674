"""``keelstore-recon``: what all hosts of the rings tell of themselves, in the field's form (``spec: daemons 19.2``).

``keelstore-recon [account|container|object]... [checks]``. Ends with 0 whatever was found: ``keelstore status`` judges.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import md5
from typing import Any, Final

from keelstore.cli import recon_report as report
from keelstore.cli.ask import Address, Reply, ask_all, url_of
from keelstore.common.cluster import Cluster, cluster_file, load_cluster
from keelstore.common.errors import KeelstoreError
from keelstore.common.ring.ring import RingFile

KINDS: Final = ("account", "container", "object")
_ABOUT: Final = """keelstore-recon [account|container|object]... [options]

Asks the servers of that kind (default: object) of every host in the rings, thirty at a time, for their /recon."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="keelstore-recon", usage=_ABOUT)
    parser.add_argument("kinds", nargs="*", help=argparse.SUPPRESS)
    flag = "store_true"
    parser.add_argument("-v", "--verbose", action=flag, help="print each answer")
    parser.add_argument("--suppress", action=flag, help="print no errors of connections")
    parser.add_argument(
        "-a", "--async", dest="asyncs", action=flag, help="updates of listings that wait, as recon-cron counted them"
    )
    parser.add_argument("-r", "--replication", action=flag, help="passes of replicators")
    parser.add_argument("-R", "--reconstruction", action=flag, help="passes of reconstructors")
    parser.add_argument("--auditor", action=flag, help="passes of auditors")
    parser.add_argument("--updater", action=flag, help="passes of updaters")
    parser.add_argument("--expirer", action=flag, help="passes of expirers")
    parser.add_argument("--sharding", action=flag, help="passes of sharders")
    parser.add_argument("-u", "--unmounted", action=flag, help="devices that are not mounted")
    parser.add_argument("-d", "--diskusage", action=flag, help="how full devices are")
    parser.add_argument("--human-readable", action=flag, help="sizes with units")
    parser.add_argument("-l", "--loadstats", action=flag, help="load averages")
    parser.add_argument("-q", "--quarantined", action=flag, help="what was put aside as damaged")
    parser.add_argument("--validate-servers", action=flag, help="that a server of the right kind answers")
    parser.add_argument("--md5", action=flag, help="compare rings and cluster file with those here")
    parser.add_argument("--sockstat", action=flag, help="sockets in use")
    parser.add_argument("--driveaudit", action=flag, help="errors that drive-audit found")
    parser.add_argument("-T", "--time", action=flag, help="compare clocks with the one here")
    parser.add_argument("--jitter", type=float, default=0.0, metavar="SECONDS", help="by so much clocks may differ")
    parser.add_argument("--swift-versions", action=flag, help="versions of the software")
    parser.add_argument("--top", type=int, default=0, metavar="COUNT", help="with -d: the fullest devices")
    parser.add_argument("--lowest", type=int, default=0, metavar="COUNT", help="with -d: the emptiest devices")
    parser.add_argument("--all", action=flag, help="all checks")
    parser.add_argument("--region", type=int, help="only hosts of this region")
    parser.add_argument("-z", "--zone", type=int, help="only hosts of this zone")
    parser.add_argument("-t", "--timeout", type=float, default=5.0, metavar="SECONDS", help="for an answer (default 5)")
    parser.add_argument(
        "--swiftdir", default="/etc/swift", help="directory of the cluster file and the rings (default /etc/swift)"
    )
    parser.add_argument("-p", "--policy", help="only object servers of this storage policy, by name or number")
    return parser


class Recon:
    """One kind of server. ``lines`` gives what is printed, check by check, as the answers come in."""

    def __init__(
        self,
        options: argparse.Namespace,
        kind: str,
        rings: dict[str, str],
        hosts: Sequence[Address],
        out: Callable[[str], None] = print,
    ):
        self.options, self.kind, self.rings, self.hosts, self.out = options, kind, rings, hosts, out
        self._silent = 0  # hosts that did not answer the check under way

    def run(self) -> None:
        for line in (report.RULE, f"--> Starting reconnaissance on {len(self.hosts)} hosts ({self.kind})", report.RULE):
            self.out(line)
        for wanted, fits, problem, check in self._checks():
            if not wanted:
                continue
            if fits:
                check()
            else:
                self.out(f"Error: Can't check {problem}.")
                self.out(report.RULE)

    def _checks(self) -> Iterator[tuple[bool, bool, str, Callable[[], None]]]:
        """Whether each was asked for, fits the kind, what is said when not, and how it is done; in the order of output."""
        options, kind = self.options, self.kind
        is_object, is_container, every = kind == "object", kind == "container", options.all
        yield (
            options.asyncs or (every and is_object),
            is_object,
            "asyncs on non object servers",
            self._simple("async", "Checking async pendings", report.asyncs),
        )
        yield options.unmounted and not every, True, "", self._unmounted
        yield options.replication and not every, True, "", self._replication
        auditor_heading = "Checking auditor stats " if is_object else "Checking auditor stats"
        yield (
            options.auditor or every,
            True,
            "",
            self._simple(
                f"auditor/{kind}",
                auditor_heading,
                report.object_auditor if is_object else lambda answers: report.database_auditor(answers, kind),
            ),
        )
        yield (
            options.updater or (every and kind != "account"),
            kind != "account",
            f"updaters on {kind} servers",
            self._simple(f"updater/{kind}", "Checking updater times", lambda answers: report.updater(answers, kind)),
        )
        yield (
            options.expirer or (every and is_object),
            is_object,
            "expirer on non object servers",
            self._simple("expirer/object", "Checking on expirers", report.expirer),
        )
        yield (
            options.sharding or (every and is_container),
            is_container,
            "sharding on non container servers",
            self._simple("sharding", "Checking on sharders", lambda answers: report.sharding(answers, time.time())),
        )
        yield (
            options.reconstruction or (every and is_object),
            is_object,
            "reconstruction stats on non object servers",
            self._simple(
                "reconstruction/object",
                "Checking on reconstructors",
                lambda answers: report.reconstruction(answers, time.time()),
            ),
        )
        yield every, True, "", self._replication
        yield every, True, "", self._unmounted
        yield options.validate_servers and not every, True, "", self._validate
        yield options.loadstats or every, True, "", self._simple("load", "Checking load averages", report.load)
        yield options.diskusage or every, True, "", self._disk_usage
        yield options.md5 or every, True, "", self._rings
        yield options.md5 or every, True, "", self._cluster_file
        yield (
            options.quarantined or every,
            True,
            "",
            self._simple("quarantined", "Checking quarantine", report.quarantined),
        )
        yield options.sockstat or every, True, "", self._simple("sockstat", "Checking socket usage", report.sockets)
        yield every, True, "", self._validate
        yield (
            options.driveaudit or every,
            True,
            "",
            self._simple("driveaudit", "Checking drive-audit errors", report.drive_audit),
        )
        yield options.time or every, True, "", self._time
        yield options.swift_versions or every, True, "", self._versions

    # -- asking --------------------------------------------------------------------------------------------------------

    def _heading(self, text: str) -> None:
        self.out(f"[{report.moment(time.time())}] {text}")

    def _ask(self, check: str) -> list[Reply]:
        """The good replies; the others are told."""
        good: list[Reply] = []
        for reply in ask_all(self.hosts, f"/recon/{check}", timeout_s=self.options.timeout):
            url = url_of(reply.address, f"/recon/{check}")
            if reply.status == 200 and reply.value is not None:
                good.append(reply)
                if self.options.verbose:
                    self.out(f"-> {url}: {reply.value}")
            elif not self.options.suppress:
                self.out(f"-> {url}: {reply.error or 'no JSON in the answer'}")
        self._silent = len(self.hosts) - len(good)
        return good

    def _simple(self, check: str, heading: str, lines: Callable[[report.Answers], Iterable[str]]) -> Callable[[], None]:
        def carry_out() -> None:
            self._heading(heading)
            for line in lines(_by_host(self._ask(check))):
                self.out(line)
            self.out(report.RULE)

        return carry_out

    def _replication(self) -> None:
        self._simple(
            f"replication/{self.kind}",
            "Checking on replication",
            lambda answers: report.replication(answers, time.time()),
        )()

    def _unmounted(self) -> None:
        self._simple("unmounted", f"Getting unmounted drives from {len(self.hosts)} hosts...", report.unmounted)()

    def _disk_usage(self) -> None:
        self._heading("Checking disk usage now")
        for line in report.disk_usage(
            _by_host(self._ask("diskusage")), self.options.human_readable, self.options.top, self.options.lowest
        ):
            self.out(line)

    # -- comparing -----------------------------------------------------------------------------------------------------

    def _count(self, matched: int, errors: int, what: str = "matched") -> None:
        self.out(f"{matched}/{len(self.hosts)} hosts {what}, {errors} error[s] while checking hosts.")

    def _compare(self, check: str, heading: str, problems_of: Callable[[Any], list[str]]) -> None:
        """``problems_of`` an answer: what does not match, in the words of one line each."""
        self._heading(heading)
        matched = 0
        for reply in self._ask(check):
            url = url_of(reply.address, f"/recon/{check}")
            problems = problems_of(reply.value)
            for problem in problems:
                self.out(f"!! {url} ({problem}) doesn't match on disk md5sum")
            if not problems:
                matched += 1
                if self.options.verbose:
                    self.out(f"-> {url} matches.")
        self._count(matched, len(self.hosts) - matched)
        self.out(report.RULE)

    def _rings(self) -> None:
        def problems(value: Any) -> list[str]:
            told = {os.path.basename(path): digest for path, digest in value.items()} if isinstance(value, dict) else {}
            return [
                f"{name} => {told.get(name)}" for name, digest in sorted(self.rings.items()) if told.get(name) != digest
            ]

        self._compare("ringmd5", "Checking ring md5sums", problems)

    def _cluster_file(self) -> None:
        path = cluster_file(self.options.swiftdir)
        own = digest_of(path)

        def problems(value: Any) -> list[str]:
            told = value if isinstance(value, dict) and value else {path: None}
            return [f"{name} => {digest}" for name, digest in told.items() if digest != own]

        self._compare("swiftconfmd5", "Checking swift.conf md5sum", problems)

    def _time(self) -> None:
        self._heading("Checking time-sync")
        matched = errors = 0
        jitter = self.options.jitter
        for reply in self._ask("time"):
            url, told = url_of(reply.address, "/recon/time"), reply.value
            if not isinstance(told, (int, float)):
                errors += 1
            elif reply.began - jitter <= told <= reply.ended + jitter:
                matched += 1
                if self.options.verbose:
                    self.out(f"-> {url} matches.")
            else:
                off = told - reply.ended if told > reply.ended else reply.began - told
                self.out(
                    f"!! {url} current time is {report.moment(reply.ended)}, but remote is {report.moment(told)}, "
                    f"differs by {off:.4f} sec"
                )
        self._count(matched, errors + self._silent)
        self.out(report.RULE)

    def _versions(self) -> None:
        self._heading("Checking versions")
        found = set()
        for reply in self._ask("version"):
            version = str(report.get(reply.value, "version"))
            found.add(version)
            if self.options.verbose:
                self.out(f"-> {url_of(reply.address, '/recon/version')} installed version {version}")
        words = (
            f"Versions matched ({next(iter(found), '')})"
            if len(found) < 2
            else f"Versions not matched ({', '.join(sorted(found))})"
        )
        self.out(f"{words}, {self._silent} error[s] while checking hosts.")
        self.out(report.RULE)

    def _validate(self) -> None:
        self._heading(f"Validating server type '{self.kind}' on {len(self.hosts)} hosts...")
        invalid, matched = [], 0
        for reply in ask_all(self.hosts, "/", "OPTIONS", self.options.timeout):
            url = url_of(reply.address, "/")
            if not reply.status:
                if not self.options.suppress:
                    self.out(f"-> {url}: {reply.error}")
                continue
            server = reply.headers.get("server", "").partition("/")[0]
            if self.options.verbose:
                self.out(f"-> {url}: {server} ok" if server == f"{self.kind}-server" else f"-> {url}: {server}")
            if server == f"{self.kind}-server":
                matched += 1
            else:
                invalid.append(f"Invalid: {url} is {server}")
        self._count(matched, len(self.hosts) - matched, "ok")
        for line in invalid:
            self.out(line)
        self.out(report.RULE)


# -- what to ask -------------------------------------------------------------------------------------------------------


def _by_host(replies: Iterable[Reply]) -> report.Answers:
    return [(url_of(reply.address).removeprefix("http://"), reply.value) for reply in replies]


def digest_of(path: str) -> str:
    with open(path, "rb") as file:
        return md5(file.read(), usedforsecurity=False).hexdigest()


def ring_names(cluster: Cluster, kind: str, policy: str | None) -> list[str] | None:
    """The rings of a kind; None when there is no such policy."""
    if kind != "object":
        return [kind]
    if policy is None:
        return [one.ring_name for one in cluster.policies if os.path.exists(cluster.ring_path(one.ring_name))]
    found = cluster.policies.by_name(policy) or (cluster.policies.get(policy) if policy.isdigit() else None)
    return [found.ring_name] if found is not None else None


def hosts_of(cluster: Cluster, names: Iterable[str], region: int | None, zone: int | None) -> list[Address]:
    """Addresses of the servers, once each. Raises RingError, OSError."""
    found = {
        node.address
        for name in names
        for node in RingFile(cluster.ring_path(name)).current().nodes
        if region in (None, node.region) and zone in (None, node.zone)
    }
    return sorted(found)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; gives the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = _parser()
    try:
        options = parser.parse_intermixed_args(given)
    except SystemExit as leave:
        return int(leave.code or 0)
    if not given or len(options.kinds) > 3:
        parser.print_help()
        return 0
    kinds = list(dict.fromkeys(options.kinds)) or ["object"]
    if not set(kinds) <= set(KINDS):
        print("Invalid Server Type")
        parser.print_help()
        return 1
    try:
        cluster = load_cluster(options.swiftdir)
        for kind in kinds:
            names = ring_names(cluster, kind, options.policy)
            if names is None:
                print(f"Invalid Storage Policy: {options.policy}")
                parser.print_help()
                return 0
            rings = {f"{name}.ring.gz": digest_of(cluster.ring_path(name)) for name in names}
            Recon(options, kind, rings, hosts_of(cluster, names, options.region, options.zone)).run()
    except KeelstoreError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, BrokenPipeError):
        sys.stderr.close()
        return 130
    except OSError as error:
        print(f"Error: {error.filename}: {error.strerror}" if error.filename else f"Error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
