"""What a proxy sends to store a fragment in two phases, whole: the MIME documents of a small one (``obj/mime_put.py``).

To a server in the same process they go as they are; nobody makes text of them, and nobody takes it apart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import md5
from typing import Final

from keelstore.common.headers import Headers

BODY_HEAD: Final = "--{}\r\nX-Document: object body\r\n\r\n"


def encoded_footer(boundary: str, footer: Mapping[str, str]) -> bytes:
    """What follows the data of a first body, up to its end."""
    document = json.dumps(footer).encode("ascii")
    check = md5(document, usedforsecurity=False).hexdigest()
    return (f"\r\n--{boundary}\r\nX-Document: object metadata\r\nContent-MD5: {check}\r\n\r\n".encode()
            + document + f"\r\n--{boundary}\r\n".encode())  # fmt: skip


class Archive:
    """The first body: a fragment archive and its metadata. ``size``: of the archive."""

    __slots__ = ("_boundary", "data", "footer", "size")

    def __init__(self, boundary: str, data: bytes, footer: Headers):
        self._boundary, self.data, self.footer, self.size = boundary, data, footer, len(data)

    def encoded(self) -> bytes:
        return BODY_HEAD.format(self._boundary).encode() + self.data + encoded_footer(self._boundary, self.footer)


class Commit:
    """The second body: enough nodes have theirs."""

    __slots__ = ("_boundary",)

    def __init__(self, boundary: str):
        self._boundary = boundary

    def encoded(self) -> bytes:
        return f"X-Document: put commit\r\n\r\nput_commit_confirmation\r\n--{self._boundary}--".encode()
