"""The queue of what is to be deleted at a time: where an entry for an object stands (``spec: on-disk``, ``daemons 10``)."""

from __future__ import annotations

from keelstore.common.timestamp import normalize_delete_at


def expirer_container(delete_at: int, divisor: int, digest: bytes) -> str:
    """The container of the expiry queue: a day's worth, spread over a hundred by the object's hash."""
    return normalize_delete_at(delete_at // divisor * divisor - int.from_bytes(digest, "big") % 100)
