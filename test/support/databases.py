"""The replicas of one account or container of an in-process cluster: where they are, and what they hold."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keelstore.account.broker import AccountBroker
from keelstore.common.names import storage_path
from keelstore.common.ring.ring import Node
from keelstore.container.broker import ContainerBroker
from test.support.cluster import InProcessCluster

LOG = logging.getLogger("test.databases")


@dataclass
class Replicas:
    cluster: InProcessCluster
    account: str
    container: str = ""

    @property
    def kind(self) -> str:
        return "container" if self.container else "account"

    @property
    def _place(self) -> tuple[Any, int, str]:
        ring = getattr(self.cluster.proxy.rings, self.kind).current()
        digest = self.cluster.proxy.cluster.hash_path.digest(self.account, self.container or None)
        return ring, ring.partition(digest), digest.hex()

    @property
    def primaries(self) -> list[Node]:
        ring, part, _ = self._place
        return list(ring.primaries(part))

    @property
    def handoffs(self) -> list[Node]:
        ring, part, _ = self._place
        return list(ring.handoffs(part))

    @property
    def part(self) -> int:
        return self._place[1]

    def path(self, node: Node) -> Path:
        """Of the database file on a device."""
        _, part, name_hash = self._place
        return self.cluster.device_path(node.device) / storage_path(f"{self.kind}s", part, name_hash) / f"{name_hash}.db"

    def broker(self, node: Node) -> Any:
        path, device = str(self.path(node)), str(self.cluster.device_path(node.device))
        return ContainerBroker(path, device, LOG) if self.container else AccountBroker(path, device, LOG)

    def holders(self) -> list[str]:
        """The devices that have a database of it, in the order of primaries and handoffs."""
        return [node.device for node in [*self.primaries, *self.handoffs] if self.path(node).exists()]

    def state(self, node: Node) -> dict[str, Any]:
        """Everything that replicas must agree on."""
        broker = self.broker(node)
        try:
            info = broker.info()

            def rows(connection: Any) -> list[tuple[Any, ...]]:
                columns = [row[1] for row in connection.execute(f"PRAGMA table_info({broker.table})") if row[1] != "ROWID"]
                return sorted(connection.execute(f"SELECT {', '.join(columns)} FROM {broker.table}"))

            return {
                "rows": broker.read_fresh(rows), "hash": info.hash, "metadata": info.metadata,
                "times": (info.created_at, info.put_timestamp, info.delete_timestamp), "is_deleted": info.is_deleted,
                "policy": getattr(info, "storage_policy_index", None), "totals": (info.object_count, info.bytes_used),
            }  # fmt: skip
        finally:
            broker.close()

    def names(self, node: Node) -> list[str]:
        """Undeleted rows."""
        return [row[0] for row in self.state(node)["rows"] if not row[5]]  # both tables have ``deleted`` there

    def agree(self) -> bool:
        """Whether all primaries hold the same."""
        states = [self.state(node) for node in self.primaries]
        return all(state == states[0] for state in states)

    def node_of(self, node: Node) -> int:
        return int(node.device[1])
