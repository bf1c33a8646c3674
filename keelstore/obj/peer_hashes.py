"""The suffix hashes of a partition: those of a device here, and those that a peer tells of one of its own."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from keelstore.common import plainpickle
from keelstore.common.daemon_frame import World
from keelstore.common.disk_calls import on_disk_thread
from keelstore.common.errors import BackendError
from keelstore.common.headers import Headers
from keelstore.common.peers import Peers
from keelstore.common.ring.ring import Node
from keelstore.obj import hashes, layout
from keelstore.obj.ssync.sender import Source
from keelstore.obj.store import ObjectStore

MAX_ANSWER: Final = 64 << 20  # bytes of the hashes of a partition


class SuffixHashes:
    def __init__(self, store: ObjectStore, peers: Peers, log: logging.Logger, world: World, timeout_s: float):
        """``store`` is one that remembers nothing."""
        self._store, self._peers, self._log, self._world, self._timeout_s = store, peers, log, world, timeout_s

    def own(self, source: Source, recalculate: Iterable[str] = (), do_listdir: bool = False) -> tuple[int, dict[str, Any]]:
        """How many suffixes were computed, and the hashes of all. Raises OSError, StorageError."""
        rules = self._store.rules(layout.fragment_count(source.policy))

        def quarantine(directory: str) -> None:
            self._store.quarantine_directory(directory, source.device_path, layout.objects_dir(source.policy.index),
                                             "cannot be listed")

        computed, found = on_disk_thread(source.device, hashes.get_hashes, source.partition_path, rules,
                                         self._world.clock(), quarantine, tuple(recalculate), do_listdir)
        if computed:
            self._world.stats.update("suffix.hashes", computed)
        return computed, found

    def of(self, node: Node, source: Source, suffixes: Sequence[str] = (),
           more: Mapping[str, str] | None = None) -> dict[str, Any] | int | None:
        """A peer's suffix hashes; 507 when its device is not there, None when it gives none that can be used.

        With ``suffixes``: have it compute these anew when it is asked next. ``more``: further headers.
        """
        path = f"/{node.device}/{source.partition}{'/' + '-'.join(suffixes) if suffixes else ''}"
        headers = Headers({"X-Backend-Storage-Policy-Index": str(source.policy.index), **(more or {})})
        try:
            answer = self._peers.call(node.replication_address, "REPLICATE", path, headers, timeout_s=self._timeout_s)
            body = answer.read(MAX_ANSWER)
            answer.close()
        except BackendError as error:
            self._log.info("%s: %s", node.key, error)
            return None
        if answer.status == 507:
            self._log.error("%s responded as unmounted", node.key)
            return 507
        if answer.status != 200:
            self._log.error("Invalid response %d from %s", answer.status, node.key)
            return None
        try:
            found = plainpickle.loads(body)
        except ValueError as error:
            self._log.error("%s: its hashes cannot be read: %s", node.key, error)
            return None
        if suffixes and found is None:
            return {}
        return found if isinstance(found, dict) else None
