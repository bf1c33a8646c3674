"""Repair that a write asks for: some copy or fragment of it came to no device at all, not even to that of a handoff.

The primaries are asked to look at the partition (a REPLICATE of its suffix with ``REBUILD_NOW``), so that those that have the
object bring it to those that have not, without a scan having to come round. It costs nothing while writes go well. Nothing is
lost when the asking fails: a scan finds the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from keelstore.common.concurrency import sleep, spawn
from keelstore.common.headers import REBUILD_NOW, Headers
from keelstore.proxy.fanout import FAILURES

if TYPE_CHECKING:
    from keelstore.proxy.app import ProxyApp

DELAY_S: Final = 1.0  # so that the nodes that take the write have it by then
SAME_S: Final = 5.0  # a partition is asked for once in this time
MAX_KNOWN: Final = 4096  # partitions of which it is remembered when they were asked for
MAX_ASKING: Final = 64  # partitions that are asked for at once; more are left to the scan


class Repair:
    def __init__(self, app: ProxyApp):
        self._app = app
        self._asked: dict[tuple[int, int], float] = {}
        self._asking = 0

    def ask(self, policy_index: int, part: int, path: str) -> None:
        """Have what was written at ``path`` looked at soon. Does not wait."""
        now = self._app.clock()
        key = policy_index, part
        if self._asking >= MAX_ASKING or 0 <= now - self._asked.get(key, -SAME_S) < SAME_S:
            return
        if len(self._asked) >= MAX_KNOWN:
            self._asked.clear()
        self._asked[key] = now
        self._asking += 1
        spawn(self._ask, policy_index, part, path)

    def _ask(self, policy_index: int, part: int, path: str) -> None:
        app = self._app
        try:
            sleep(DELAY_S)
            policy = app.cluster.policies.by_index[policy_index]
            suffix = app.cluster.hash_path.hexdigest(*path[1:].split("/", 2))[-3:]
            headers = Headers({"X-Backend-Storage-Policy-Index": str(policy_index), REBUILD_NOW: "true"})
            for node in app.rings.object(policy).current().primaries(part):
                if app.health.is_limited(node):
                    continue
                try:
                    app.backend.call(node.replication_address, "REPLICATE", f"/{node.device}/{part}/{suffix}", headers,
                                     timeout_s=app.options.node_timeout).close()
                except (*FAILURES, ValueError) as error:
                    app.logger.info("%s could not be asked to look at partition %d: %s", node.key, part, error)
        finally:
            self._asking -= 1
