"""The rings of a cluster as the proxy uses them."""

from __future__ import annotations

import os

from keelstore.common.cluster import Cluster
from keelstore.common.errors import ConfigError
from keelstore.common.policy import Policy
from keelstore.common.ring.ring import Ring, RingFile


class Rings:
    """Ring files of accounts, containers and every policy's objects. Raises ConfigError when one is missing or unfit."""

    def __init__(self, cluster: Cluster, reload_s: float = 15.0):
        self.account = self._open(cluster, "account", reload_s)
        self.container = self._open(cluster, "container", reload_s)
        self._objects: dict[int, RingFile] = {}
        for policy in cluster.policies:
            self._objects[policy.index] = self._open(cluster, policy.ring_name, reload_s, policy)

    def object(self, policy: Policy) -> RingFile:
        return self._objects[policy.index]

    @staticmethod
    def _open(cluster: Cluster, name: str, reload_s: float, policy: Policy | None = None) -> RingFile:
        path = cluster.ring_path(name)
        if not os.path.exists(path):
            whose = f"policy {policy.index} ({policy.name})" if policy else f"the {name}s"
            raise ConfigError(f"the ring file of {whose} is missing", file=path)
        expected = policy.expected_replicas() if policy else None

        def check(ring: Ring) -> None:
            if expected is not None and ring.replica_count != expected:
                raise ConfigError(f"policy {policy.index if policy else ''} needs a ring of {expected} replicas, "
                                  f"not {ring.replica_count:g}", file=path)

        found = RingFile(path, reload_s, check)
        found.current()
        return found
