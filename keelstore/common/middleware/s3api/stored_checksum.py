"""How an object keeps the additional checksum that came with it: ``ALGORITHM=base64;type=FULL_OBJECT`` in system metadata."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping

from keelstore.common.middleware.s3api.body import ProvenBody
from keelstore.common.middleware.s3api.checksums import FULL_OBJECT
from keelstore.common.middleware.s3api.upload import CHECKSUM


def keep_checksum(
    body: ProvenBody, headers: MutableMapping[str, str]
) -> Callable[[MutableMapping[str, str]], None] | None:
    """Put the checksum into ``headers`` if it is known; else give what adds it, as a footer, when the body has passed."""
    if not body.expected:
        return None
    algorithm, value = next(iter(body.expected.items()))
    if value is not None:
        headers[CHECKSUM] = f"{algorithm.name}={value};type={FULL_OBJECT}"
        return None

    def add(footers: MutableMapping[str, str]) -> None:
        footers[CHECKSUM] = f"{algorithm.name}={body.value(algorithm)};type={FULL_OBJECT}"

    return add
