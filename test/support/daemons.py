"""Daemons over an in-process cluster: each as it would run on one of its nodes."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keelstore.account.auditor import AccountAuditor
from keelstore.account.options import AccountAuditorOptions, AccountReaperOptions, AccountReplicatorOptions
from keelstore.account.reaper import AccountReaper
from keelstore.account.replicator import AccountReplicator
from keelstore.common.daemon_frame import World
from keelstore.common.internal import InternalClient
from keelstore.common.recon_cache import ReconCache
from keelstore.container.auditor import ContainerAuditor
from keelstore.container.options import (
    ContainerAuditorOptions,
    ContainerReconcilerOptions,
    ContainerReplicatorOptions,
    ContainerUpdaterOptions,
)
from keelstore.container.reconciler import ContainerReconciler
from keelstore.container.replicator import ContainerReplicator
from keelstore.container.updater import ContainerUpdater
from keelstore.obj.expirer import ObjectExpirer
from keelstore.obj.options import ObjectExpirerOptions, ObjectUpdaterOptions
from keelstore.obj.updater import ObjectUpdater
from test.support.cluster import InProcessCluster

LOG = logging.getLogger("test.daemon")


@dataclass
class Clock:
    """A clock that a test moves; it starts at the present."""

    ahead_s: float = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_s


@dataclass
class Daemons:
    cluster: InProcessCluster
    clock: Clock = field(default_factory=Clock)

    def recon(self, node: int) -> Path:
        path = self.cluster.root / f"recon{node}"
        path.mkdir(exist_ok=True)
        return path

    def world(self, node: int) -> World:
        return World(LOG, self.clock, random.Random(1), ReconCache(str(self.recon(node))))

    def _options(self, cls: Callable[..., Any], node: int, **options: Any) -> Any:
        return cls(devices=str(self.cluster.devices(node)), mount_check=False, swift_dir=str(self.cluster.etc), **options)

    def object_updater(self, node: int = 0, **options: Any) -> ObjectUpdater:
        proxy = self.cluster.proxy
        options = {"objects_per_second": 0, "concurrency": 4, **options}
        return ObjectUpdater(self._options(ObjectUpdaterOptions, node, **options), self.world(node), proxy.rings.container,
                             proxy.cluster.hash_path, proxy.backend, [0, 1])

    def container_updater(self, node: int = 0, **options: Any) -> ContainerUpdater:
        proxy = self.cluster.proxy
        options = {"containers_per_second": 0, **options}
        return ContainerUpdater(self._options(ContainerUpdaterOptions, node, **options), self.world(node), proxy.rings.account,
                                proxy.cluster.hash_path, proxy.backend)

    def replicator(self, kind: str, node: int = 0, **options: Any) -> AccountReplicator | ContainerReplicator:
        """Of ``account`` or ``container``."""
        proxy = self.cluster.proxy
        cls, options_cls = {"account": (AccountReplicator, AccountReplicatorOptions),
                            "container": (ContainerReplicator, ContainerReplicatorOptions)}[kind]  # fmt: skip
        options = {"databases_per_second": 0, "fallocate_reserve": "0", **options}
        return cls(self._options(options_cls, node, **options), self.world(node), getattr(proxy.rings, kind), proxy.cluster,
                   proxy.backend, [(self.cluster.ip, self.cluster.port(kind, node))])

    def auditor(self, kind: str, node: int = 0, **options: Any) -> AccountAuditor | ContainerAuditor:
        if kind == "account":
            return AccountAuditor(self._options(AccountAuditorOptions, node, accounts_per_second=0, **options), self.world(node))
        return ContainerAuditor(self._options(ContainerAuditorOptions, node, containers_per_second=0, **options), self.world(node))

    def reaper(self, node: int = 0, **options: Any) -> AccountReaper:
        proxy = self.cluster.proxy
        return AccountReaper(self._options(AccountReaperOptions, node, **options), self.world(node), proxy.rings, proxy.cluster,
                             proxy.backend, [(self.cluster.ip, self.cluster.port("account", node))])

    def expirer(self, node: int = 0, **options: Any) -> ObjectExpirer:
        proxy = self.cluster.proxy
        client = InternalClient(proxy, "object-expirer 1", tries=1)
        options = {"tasks_per_second": 0, "concurrency": 4, **options}
        return ObjectExpirer(self._options(ObjectExpirerOptions, node, **options), self.world(node), client, proxy.rings.container,
                             proxy.cluster.hash_path, proxy.backend)

    def reconciler(self, node: int = 0, **options: Any) -> ContainerReconciler:
        proxy = self.cluster.proxy
        client = InternalClient(proxy, "container-reconciler 1", tries=1)
        return ContainerReconciler(self._options(ContainerReconcilerOptions, node, **options), self.world(node), client, proxy.rings,
                                   proxy.cluster, proxy.backend)

    @property
    def nodes(self) -> range:
        return range(self.cluster.nodes)
