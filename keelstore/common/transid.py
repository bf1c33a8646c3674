"""Transaction ids: ``tx`` + 21 hex digits + ``-`` + 10 hex digits of unix time + suffix (spec: client-api 15)."""

from __future__ import annotations

import time
from random import getrandbits
from urllib.parse import quote


def make_trans_id(suffix: str = "", now_s: float | None = None) -> str:
    """A new transaction id. ``suffix`` (the configured one, then ``-`` and the client's extra) is URL-quoted."""
    stamp = int(time.time() if now_s is None else now_s)
    plain = f"tx{getrandbits(84):021x}-{stamp:010x}"
    return plain + quote(suffix) if suffix else plain
