"""How an object keeps the additional checksum that came with it: ``ALGORITHM=base64;type=FULL_OBJECT`` in system metadata."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping

from keelstore.common.headers import Headers
from keelstore.common.middleware.s3api.body import ProvenBody
from keelstore.common.middleware.s3api.checksums import ALGORITHMS, FULL_OBJECT, Algorithm
from keelstore.common.middleware.s3api.upload import CHECKSUM


def keep_checksum(
    body: ProvenBody, headers: MutableMapping[str, str]
) -> Callable[[MutableMapping[str, str]], None] | None:
    """Put the checksum into ``headers`` if it is known; else give what adds it, as a footer, when the body has passed."""
    if not body.expected:
        return None
    algorithm, value = next(iter(body.expected.items()))
    if value is None and body.received == body.length:
        value = body.value(algorithm)
    if value is not None:
        headers[CHECKSUM] = f"{algorithm.name}={value};type={FULL_OBJECT}"
        return None

    def add(footers: MutableMapping[str, str]) -> None:
        footers[CHECKSUM] = f"{algorithm.name}={body.value(algorithm)};type={FULL_OBJECT}"

    return add


def stored_checksum(headers: Headers) -> tuple[Algorithm, str, str] | None:
    """Algorithm, base64 and type of what an object has kept; None when it has no checksum."""
    text, _, kind = headers.get(CHECKSUM, "").partition(";type=")
    name, _, value = text.partition("=")
    algorithm = ALGORITHMS.get(name)
    return None if algorithm is None or not value else (algorithm, value, kind or FULL_OBJECT)
