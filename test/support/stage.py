"""The cluster of the fault scenarios whose servers and daemons come and go often: four sites with a device each, a proxy with the
filters that clients know, and an *internal client*, a proxy without gatekeeper and authentication. All are processes of their own,
forked from one that has loaded their code (``test.support.preloaded``).
"""

from __future__ import annotations

import json
import pickle
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from keelstore.common.ring.ring import Node
from test.support.client import Account, Answer, Endpoint, unique
from test.support.daemon_runs import check_log, configuration, log_of, recon_of
from test.support.peers import KINDS, OURS, PROXY_CONF, SWIFT, Peers
from test.support.preloaded import DAEMON, INTERNAL, Preloaded
from test.support.processes import Process

FILTERS = """
[filter:container_sync]
use = egg:swift#container_sync
[filter:s3api]
use = egg:swift#s3api
[filter:bulk]
use = egg:swift#bulk
[filter:slo]
use = egg:swift#slo
[filter:dlo]
use = egg:swift#dlo
[filter:versioned_writes]
use = egg:swift#versioned_writes
allow_versioned_writes = true
allow_object_versioning = true
[filter:symlink]
use = egg:swift#symlink
"""
CONF = PROXY_CONF.replace("listing_formats tempauth copy",
                          "listing_formats s3api container_sync bulk tempauth copy slo dlo versioned_writes symlink") + FILTERS
INTERNAL_CONF = PROXY_CONF.replace("account_autocreate = true", "account_autocreate = true\nallow_open_expired = true").replace(
    "catch_errors gatekeeper healthcheck proxy-logging cache listing_formats tempauth copy proxy-logging",
    "catch_errors healthcheck cache listing_formats copy slo dlo versioned_writes symlink") + FILTERS
CLIENT = """\
[DEFAULT]
swift_dir = {swift_dir}
log_file = {home}/client.log
[pipeline:main]
pipeline = catch_errors symlink proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
allow_account_management = true
allow_open_expired = true
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:symlink]
use = egg:swift#symlink
"""
REPLICATORS = ("object-replicator", "container-replicator", "account-replicator")
UPDATERS = ("object-updater", "container-updater")  # at one site: the sites share one directory of devices
INTERNAL_HEADERS = {"X-Backend-Allow-Reserved-Names": "true", "User-Agent": "test"}


class Stage(Peers):
    """See above. Start it with ``begin``; end it with ``end``."""

    preloader: type[Preloaded] = Preloaded

    def begin(self) -> None:
        self.preloaded = self.preloader(self.home)
        (self.swift_dir / "container-sync-realms.conf").write_text(
            f"[realm]\nkey = the realm's secret\ncluster_here = http://127.0.0.1:{self.proxies[OURS]}/v1/\n")
        (self.home / "client.conf").write_text(CLIENT.format(swift_dir=self.swift_dir, home=self.home))
        self.start_proxies(OURS)
        self._start(OURS, "proxy", self.proxies[SWIFT], INTERNAL_CONF, memcached=self.memcached, node_timeout=self.node_timeout, suppression=self.suppression)
        self.start(*range(self.sites))
        self.running["proxy", self.proxies[SWIFT]].wait_for("127.0.0.1", self.proxies[SWIFT])

    def end(self) -> None:
        self.stop_all()
        self._forks.stop()

    def _launch(self, make: str, kind: str, conf: Path, out: Path) -> Process:
        if kind == "proxy" and str(self.proxies[SWIFT]) in conf.name:
            return self._forks.fork(INTERNAL, [str(conf)], out)
        return super()._launch(make, kind, conf, out)

    @property
    def _forks(self) -> Preloaded:
        assert self.preloaded is not None
        return self.preloaded

    @property
    def internal_endpoint(self) -> Endpoint:
        return Endpoint("127.0.0.1", self.proxies[SWIFT])

    def own(self, name: str = "") -> Account:
        """An account of one test alone, as a reseller admin uses it."""
        endpoint = self.proxy(OURS)
        return Account(endpoint, f"/v1/AUTH_{name or unique('a')}", endpoint.login("admin:admin", "admin").token)

    def internal(self, account: Account) -> Account:
        """The same account for an internal client."""
        return Account(self.internal_endpoint, account.path, "internal")

    # -- daemons -------------------------------------------------------------------------------------------------------

    def run(self, name: str, *sites: int, **options: Any) -> list[dict[str, Any]]:
        """One pass of a daemon at each of these sites (default: all); gives what each left in recon of itself."""
        where = sites or tuple(range(self.sites))
        self.passes([(name, site) for site in where], **options)
        return [json.loads((recon_of(self, site) / "daemons.recon").read_text())["daemons"][name] for site in where]

    def passes(self, which: Sequence[tuple[str, int]], **options: Any) -> None:
        """One pass of each of these daemons, one after the other."""
        said = {(name, site): len(log_of(self, name, site)) for name, site in which}
        confs = [(name, configuration(self, name, site, **self._options(name), **options)) for name, site in which]
        self._forks.run([(DAEMON, [name, str(conf), "once"]) for name, conf in confs], self.home / "passes.out")
        for (name, site), length in said.items():
            check_log(self, name, site, length)

    @contextmanager
    def passing(self, *names: str, **options: Any) -> Iterator[None]:
        """These daemons at all sites, pass after pass."""
        forked = []
        try:
            for name in names:
                for site in range(self.sites):
                    conf = configuration(self, name, site, **self._options(name), **options)
                    forked.append(self._forks.fork(DAEMON, [name, str(conf)], self.home / "passes.out"))
            yield
        finally:
            for process in forked:
                process.stop()

    def _options(self, name: str) -> dict[str, Any]:
        return {"internal_client_conf_path": self.home / "client.conf"} if name in ("container-sync", "object-expirer") else {}

    def final_state(self, *kinds: str) -> None:
        """Replicators, updaters, replicators: then everything is the same everywhere."""
        names = [name for name in REPLICATORS if not kinds or name.partition("-")[0] in kinds]
        everywhere = [(name, site) for name in names for site in range(self.sites)]
        self.passes([*everywhere, *((name, 0) for name in UPDATERS), *everywhere])

    # -- servers -------------------------------------------------------------------------------------------------------

    @contextmanager
    def without(self, *sites: int, kinds: Sequence[str] = KINDS) -> Iterator[None]:
        self.stop(*sites, kinds=kinds)
        try:
            yield
        finally:
            self.start(*sites, kinds=kinds)


class Spot:
    """An account, container or object and where it lives."""

    def __init__(self, stage: Stage, *names: str, policy: int = 0):
        self.stage, self.names, self.policy = stage, names, policy
        self.kind = ("account", "container", "object")[len(names) - 1]
        self.part, self.primaries, self.handoffs = stage.places(self.kind, *names, policy=policy)
        self.sites = [stage.site_of(node) for node in self.primaries]
        self.others = [site for site in range(stage.sites) if site not in self.sites]

    def ask(self, node: Node, method: str = "GET", headers: dict[str, Any] | None = None, query: str = "", body: Any = None) -> Answer:
        endpoint, path = self.stage.direct(node, self.part, *self.names)
        sent = {"X-Backend-Storage-Policy-Index": str(self.policy)} if self.kind == "object" else {}
        return endpoint.request(method, path + query, {**INTERNAL_HEADERS, **sent, **(headers or {})}, body)

    def statuses(self, method: str = "HEAD", headers: dict[str, Any] | None = None) -> list[int]:
        """What each primary answers."""
        return [self.ask(node, method, headers).status for node in self.primaries]

    def headers(self) -> list[dict[str, str]]:
        """What each primary says, but for what belongs to the answer."""
        found = []
        for node in self.primaries:
            answer = self.ask(node, "HEAD")
            found.append({name.title(): value for name, value in answer.headers.items()
                          if name.title() not in ("Date", "X-Openstack-Request-Id", "X-Trans-Id", "Connection")} | {"status": str(answer.status)})
        return found

    def rows(self, node: Node, headers: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """What an account or container server itself lists."""
        found: list[dict[str, Any]] = self.ask(node, headers=headers, query="?format=json").expect(200).json()
        return found

    def listed(self, node: Node) -> list[str]:
        return [row["name"] for row in self.rows(node)]

    @property
    def digest(self) -> str:
        return self.stage.hash_path.digest(*self.names).hex()

    def folder(self, node: Node) -> Path:
        top = f"{self.kind}s" + (f"-{self.policy}" if self.kind == "object" and self.policy else "")
        return self.stage.on_disk(node, self.part, *self.names, folder=top)

    def database(self, node: Node) -> Path:
        return self.folder(node) / f"{self.digest}.db"

    def database_hash(self, node: Node) -> str:
        self.ask(node)  # what waits beside it is merged
        with closing(sqlite3.connect(self.database(node))) as connection:
            return str(connection.execute("SELECT hash FROM container_info").fetchone()[0])

    def suffix_hash(self, node: Node) -> str:
        suffix = self.digest[-3:]
        endpoint = Endpoint(node.ip, node.port)
        headers = {"X-Backend-Storage-Policy-Index": str(self.policy)}
        return str(pickle.loads(endpoint.request("REPLICATE", f"/{node.device}/{self.part}", headers).expect(200).body)[suffix])

    @property
    def half(self) -> tuple[int, int]:
        """The half of the sites whose two are both primaries."""
        assert len(self.others) == 1
        return (2, 3) if self.others[0] < 2 else (0, 1)


def object_beside(stage: Stage, container: Spot, policy: int = 0) -> Spot:
    """An object whose halves are those of its container."""
    while True:
        spot = Spot(stage, *container.names, unique("o"), policy=policy)
        if policy or spot.half == container.half:
            return spot
