"""ETags as S3 clients see them (``spec: s3-api 2.5``). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keelstore.common.headers import Headers


def object_etag(headers: Headers) -> str:
    """Of an object that was read, without quotes. A manifest of Swift's that S3 did not make has the letter N for a count."""
    stored = headers.get("X-Object-Sysmeta-S3api-Etag") or headers.get("X-Object-Sysmeta-Swift3-Etag")
    if stored:
        return str(stored)
    found: str = headers.get("Etag", "").strip('"')
    if headers.get("X-Static-Large-Object", "").lower() in ("true", "1", "yes"):
        return found if found.endswith("-N") else f"{found}-N"
    return found


def listing_etag(entry: Mapping[str, Any]) -> str:
    """Of an entry of Swift's JSON listing, quoted."""
    found, parameters = entry.get("hash", ""), {}
    if ";" in found:
        found, *rest = (part.strip() for part in found.split(";"))
        parameters = dict(part.partition("=")[::2] for part in rest)
    stored = parameters.get("s3_etag") or entry.get("s3_etag", "").strip('"')
    if stored:
        return f'"{stored}"'
    slo = parameters.get("slo_etag") or entry.get("slo_etag", "").strip('"')
    if slo:
        return f'"{slo}-N"'
    return found if found.startswith('"') else f'"{found}"'


def bare(tag: str) -> str:
    """An ETag that a client sent, without its quotes; a weak one too."""
    tag = tag.strip()
    if tag.startswith("W/"):
        tag = tag[2:]
    return tag[1:-1] if len(tag) > 1 and tag[0] == tag[-1] == '"' else tag
