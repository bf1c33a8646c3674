"""The cluster of the fault scenarios about erasure coding: four sites of two devices, 4+2 fragments, a proxy; and one object of it."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from keelstore.common.codec import codec_for
from keelstore.common.ring.ring import Node
from keelstore.common.timestamp import Timestamp
from test.support.client import Account, Answer, unique
from test.support.crashes import Crashes, Crashing
from test.support.fragments import metadata
from test.support.peers import OURS, SWIFT
from test.support.stage import CONF, Spot, Stage
from test.support.waiting import until

POLICY = 2
SEGMENT = 1 << 20
RECONSTRUCTOR = "object-reconstructor"
Stored = dict[str, dict[str, tuple[str, tuple[tuple[str, str], ...]]]]


class FragmentStage(Stage):
    preloader = Crashing

    @classmethod
    def new(cls, home: Path) -> FragmentStage:
        return cls(home, sites=4, devices_per_site=2, has_fragments=True, suppression=0.01, proxy_conf=CONF)

    @property
    def crashes(self) -> Crashes:
        return Crashes(self.home)

    def container(self, account: Account, **headers: str) -> str:
        name = unique("fragm\u00e9nts")
        until(lambda: account.put(name, headers={"X-Storage-Policy": "ec42", **headers}).expect(201), "the container is made")
        return name

    def reconstruct(self, *sites: int, times: int = 1, **options: Any) -> None:
        """Passes at these sites (default: all), in this order."""
        self.passes([(RECONSTRUCTOR, site) for site in sites or range(self.sites)] * times, **options)

    def reclaim(self, **options: Any) -> None:
        """The auditor sees that what nobody completed is old; who hashes it next removes it. That may be a server that another
        site's reconstructor asks, and for servers it is not old here: so before each site's turn it is seen once more.
        """
        for site in range(self.sites):
            self.run("object-auditor", 0, reclaim_age=0.001)
            self.reconstruct(site, reclaim_age=0.001, **options)

    # -- devices -------------------------------------------------------------------------------------------------------

    @contextmanager
    def lost(self, *nodes: Node) -> Iterator[None]:
        """Their devices are unmounted; what is on them comes back afterwards."""
        for node in nodes:
            (self.devices / node.device).rename(self.devices / f"{node.device}X")
        try:
            yield
        finally:
            for node in nodes:
                (self.devices / f"{node.device}X").rename(self.devices / node.device)

    # -- servers -------------------------------------------------------------------------------------------------------

    def restart_proxy(self) -> None:
        port = self.proxies[OURS]
        process = self.running.pop(("proxy", port), None)
        if process is not None:
            process.stop()
        self._start(OURS, "proxy", port, self.proxy_conf, memcached=self.memcached, node_timeout=self.node_timeout, suppression=self.suppression)
        self.running["proxy", port].wait_for("127.0.0.1", port)

    def revive(self) -> None:
        """Start again what has died."""
        for kind, port in [key for key, process in self.running.items() if key[0] != "memcached" and not process.is_alive()]:
            assert port != self.proxies[SWIFT]
            if kind == "proxy":
                self.restart_proxy()
            else:
                self.running.pop((kind, port))
        self.start(*range(self.sites))


class Fragments(Spot):
    """An object of the policy, and what lies of it on the devices."""

    stage: FragmentStage

    def __init__(self, stage: FragmentStage, account: Account, container: str, name: str = ""):
        super().__init__(stage, account.name, container, name or unique("o\u65e5"), policy=POLICY)
        self.account, self.container, self.name = account, container, self.names[2]

    # -- through the proxy ---------------------------------------------------------------------------------------------

    def put(self, body: bytes, **headers: str) -> None:
        self.account.put(self.container, self.name, body=body, headers=headers).expect(201)

    def get(self, **headers: str) -> Answer:
        return self.account.get(self.container, self.name, headers=headers)

    def post(self, **headers: str) -> None:
        self.account.post(self.container, self.name, headers=headers).expect(202)

    # -- on the devices ------------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> list[Node]:
        return [*self.primaries, *self.handoffs]

    def stored(self) -> Stored:
        """File names, MD5s and metadata, by device."""
        found: Stored = {}
        for node in self.nodes:
            folder = self.folder(node)
            if folder.is_dir() and (files := sorted(folder.iterdir())):
                found[node.device] = {
                    path.name: (hashlib.md5(path.read_bytes()).hexdigest(), tuple(sorted(metadata(path).items()))) for path in files}
        return found

    def names_on(self, node: Node) -> list[str]:
        """Of its files: the part after the timestamp."""
        return sorted(name.partition("#")[2] or name.rpartition(".")[2] for name in self.stored().get(node.device, {}))

    def indexes(self, stored: Mapping[str, Any] | None = None) -> list[int]:
        """Of the durable fragments, wherever they are."""
        return sorted(int(name.split("#")[1]) for names in (stored or self.stored()).values() for name in names if name.endswith("#d.data"))

    @property
    def is_home(self) -> bool:
        """Each primary has its own fragment, durable, and nobody else has anything."""
        return {node.device: [name for name in self.names_on(node) if name != "meta"] for node in self.nodes} == {
            **{node.device: [f"{node.index}#d.data"] for node in self.primaries}, **{node.device: [] for node in self.handoffs}}

    def holders(self) -> list[Node]:
        """The handoffs that have something of it."""
        return [node for node in self.handoffs if self.folder(node).is_dir() and any(self.folder(node).iterdir())]

    def fail(self, *places: int) -> None:
        """These primaries lose the partition, with its hashes."""
        for place in places:
            shutil.rmtree(self.folder(self.primaries[place]).parent.parent)

    def undo_durable(self, *nodes: Node) -> None:
        """As if the commit of the newest had not come there."""
        for node in nodes:
            newest = max(self.folder(node).glob("*#d.data"))
            newest.rename(newest.with_name(newest.name.replace("#d", "")))
            self.forget_hashes(node)

    def forget_hashes(self, node: Node) -> None:
        (self.folder(node).parent.parent / "hashes.pkl").unlink(missing_ok=True)

    def put_direct(self, body: bytes, stamp: Timestamp, is_durable: bool = True) -> None:
        """Fragments on all primaries, as the reconciler writes them."""
        codec, etag = codec_for("isa_l_rs_vand", 4, 2), hashlib.md5(body).hexdigest()
        parts = [codec.encode(body[at : at + SEGMENT]) for at in range(0, len(body), SEGMENT)]
        for node in self.primaries:
            headers = {
                "X-Timestamp": stamp.internal, "Content-Type": "a/b", "X-Backend-No-Commit": str(not is_durable),
                "X-Object-Sysmeta-Ec-Frag-Index": str(node.index), "X-Object-Sysmeta-Ec-Etag": etag,
                "X-Object-Sysmeta-Ec-Scheme": codec.description, "X-Object-Sysmeta-Ec-Content-Length": str(len(body)),
                "X-Object-Sysmeta-Ec-Segment-Size": str(SEGMENT)}  # fmt: skip
            self.ask(node, "PUT", headers, body=b"".join(part[node.index or 0] for part in parts)).expect(201)


def object_with_sites(stage: FragmentStage, account: Account, container: str, *fragments: int) -> Fragments:
    """An object of which the sites hold so many fragments: 2, 2, 1, 1 or 2, 2, 2, 0."""
    while True:
        found = Fragments(stage, account, container)
        if sorted((found.sites.count(site) for site in range(stage.sites)), reverse=True) == list(fragments):
            return found
