"""When a peer's word that it holds something is a proof: good enough to remove a copy of our own.

A peer that goes by an older ring than ours may take us for a primary, as we take it for one; were both to remove what the
other has, nothing would be left. So its word counts when its ring is as new as ours or newer, and by that ring it is a
primary itself. It says so in two headers of its answer. Swift's servers do not say; their word counts, as for Swift.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from keelstore.common.headers import is_true
from keelstore.common.ring.ring import Ring

RING_VERSION: Final = "X-Keelstore-Ring-Version"
IS_PRIMARY: Final = "X-Keelstore-Is-Primary"


def said_of(ring: Ring | None, partition: str, device: str, host: str | None) -> dict[str, str]:
    """The headers of an answer of ``device``; ``host``: what the request calls its server. Empty without a ring."""
    if ring is None or ring.version is None or not (partition.isascii() and partition.isdigit()):
        return {}
    ip, _, port = (host or "").rpartition(":")
    address = (ip.strip("[]"), int(port) if port.isascii() and port.isdigit() else 0)
    is_primary = any(node.device == device and address in (node.replication_address, node.address)
                     for node in ring.primaries(int(partition)))  # fmt: skip
    return {RING_VERSION: str(ring.version), IS_PRIMARY: str(is_primary)}


def is_proof(headers: Mapping[str, str], ring_version: int | None) -> bool:
    """Whether an answer with these headers is a proof for one whose ring has this version."""
    version = headers.get(RING_VERSION)
    if version is None:
        return True
    if ring_version is not None and not (version.isdigit() and int(version) >= ring_version):
        return False
    return is_true(headers.get(IS_PRIMARY))
