"""Tokens that carry their groups, encrypted and signed (Fernet).

``<prefix>ftk<fernet>``, or ``<prefix>zftk<fernet>`` where zlib makes it shorter. They need no cache and hold on every node
that has the key. Any configured key opens, the active one makes.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from keelstore.common.errors import ConfigError

MAX_KNOWN = 2048  # tokens whose groups a process remembers; opening one costs a hundred times as much
MAX_GROUPS = 1 << 20  # bytes; we made the token, but a bound costs nothing
SECTION = "filter:tempauth"


class FernetTokens:
    def __init__(self, keys: Mapping[str, str], active: str, life_s: float, now: Callable[[], float] = time.time):
        """Raises ConfigError; it never shows a key."""
        from cryptography.fernet import Fernet, MultiFernet  # 10 MB of memory, for those who use it

        ciphers: dict[str, Any] = {}
        for name, key in keys.items():
            try:
                ciphers[name] = Fernet(key)
            except (ValueError, TypeError):
                raise ConfigError("expected 32 bytes in URL-safe base64", section=SECTION,
                                  option=f"fernet_key_{name}") from None
        if active and active not in ciphers:
            raise ConfigError(f"there is no fernet_key_{active}", section=SECTION, option="active_fernet_key_id",
                              value=active)
        self._maker = ciphers.get(active)
        order = [ciphers[active]] if active else []
        self._opener = MultiFernet(order + [cipher for name, cipher in ciphers.items() if name != active])
        self._life_s, self._now = life_s, now
        self._known: dict[str, tuple[float, str]] = {}

    @property
    def is_active(self) -> bool:
        """Whether new tokens are made here."""
        return self._maker is not None

    def make(self, groups: str, prefix: str) -> str:
        assert self._maker is not None
        data = groups.encode("utf-8", "surrogateescape")
        packed = zlib.compress(data, 9)
        kind = "ftk"
        if len(packed) < len(data):
            kind, data = "zftk", packed
        return f"{prefix}{kind}{self._maker.encrypt_at_time(data, int(self._now())).decode('ascii')}"

    def groups_of(self, token: str, prefix: str) -> str | None:
        """The groups of a token, or None when it is none of ours, not genuine, or too old."""
        now = self._now()
        known = self._known.get(token)
        if known is not None:
            return known[1] if known[0] > now else None
        kind = next((kind for kind in ("zftk", "ftk") if token.startswith(kind, len(prefix))), None)
        if kind is None or not token.isascii():
            return None
        sealed = token[len(prefix) + len(kind):].encode("ascii")
        from cryptography.fernet import InvalidToken

        try:
            data = self._opener.decrypt_at_time(sealed, int(self._life_s), int(now))
            if kind == "zftk":
                data = zlib.decompressobj().decompress(data, MAX_GROUPS)
            groups = data.decode("utf-8", "surrogateescape")
            made_at = self._opener.extract_timestamp(sealed)
        except (InvalidToken, zlib.error, TypeError):
            return None
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[token] = (made_at + self._life_s, groups)
        return groups

    def problem_of(self, token: str, prefix: str) -> str | None:
        """Why a token gives no groups, in a word for the log; None for what is no token of this kind."""
        kind = next((kind for kind in ("zftk", "ftk") if token.startswith(kind, len(prefix))), None)
        if kind is None or not token.isascii():
            return None
        from cryptography.fernet import InvalidToken

        try:
            self._opener.decrypt(token[len(prefix) + len(kind):].encode("ascii"))
        except (InvalidToken, TypeError):
            return "token-signature"
        return "token-expired"
