"""A pending container update as a request for one row, or as a row of a request for many. Pure."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, Final

from keelstore.common.headers import Headers, wire_to_text
from keelstore.common.timestamp import Timestamp

_DELETED: Final = {"size": 0, "content_type": "application/deleted", "etag": "noetag", "deleted": 1}


def row_of(update: Mapping[str, Any]) -> dict[str, Any] | None:
    """The row of a decoded update, as UPDATE takes it; None when it cannot be told in JSON and must go by itself."""
    headers: Headers = update["headers"]
    try:
        row: dict[str, Any] = {
            "name": update["obj"], "created_at": Timestamp(headers["X-Timestamp"]).internal,
            "storage_policy_index": int(headers.get("X-Backend-Storage-Policy-Index") or 0),
        }  # fmt: skip
        if update["op"] == "DELETE":
            row.update(_DELETED)
        else:
            row.update(size=int(headers["X-Size"]), content_type=wire_to_text(headers["X-Content-Type"]),
                       etag=headers["X-Etag"], deleted=0)
            for key, name in (("ctype_timestamp", "X-Content-Type-Timestamp"), ("meta_timestamp", "X-Meta-Timestamp")):
                if headers.get(name):
                    row[key] = Timestamp(headers[name]).internal
        for text in (row["name"], row["content_type"], row["etag"]):
            text.encode()  # no octets that are not UTF-8
    except (KeyError, ValueError):
        return None
    return row


def includes(newer: Mapping[str, Any], older: Mapping[str, Any]) -> bool:
    """Whether a row that is told of ``newer`` is none the wiser for ``older``: its data, content type and metadata are of no
    later time.
    """
    try:
        return all(have >= want for have, want in zip(_times(newer), _times(older), strict=True))
    except (KeyError, ValueError):
        return False


def _times(update: Mapping[str, Any]) -> tuple[Timestamp, ...]:
    headers: Headers = update["headers"]
    data = Timestamp(headers["X-Timestamp"])
    others = (headers.get(name) for name in ("X-Content-Type-Timestamp", "X-Meta-Timestamp"))
    return data, *(max(data, Timestamp(text)) if text else data for text in others)


def request_headers(update: Mapping[str, Any]) -> Headers:
    """The headers of the request for one row."""
    headers = Headers(update["headers"])
    headers["User-Agent"] = f"object-updater {os.getpid()}"
    headers.setdefault("X-Backend-Storage-Policy-Index", "0")
    headers.setdefault("X-Backend-Accept-Redirect", "true")
    headers.setdefault("X-Backend-Accept-Quoted-Location", "true")
    return headers


def redirected(update: dict[str, Any], answers: Iterable[tuple[str, str]]) -> dict[str, Any] | None:
    """The update after redirects (container path, timestamp): it goes where the newest says, to all replicas anew.

    One that comes back to where it has been goes to the container itself, which knows its shards. None: no redirect.
    """
    found = []
    for path, stamp in answers:
        try:
            found.append((Timestamp(stamp or "0"), path))
        except ValueError:
            found.append((Timestamp("0"), path))
    if not found:
        return None
    path = max(found)[1]
    history = [entry for entry in update.get("redirect_history") or () if isinstance(entry, str)]
    new = {**update, "successes": []}
    if path in history:
        new.update(container_path=None, redirect_history=[])
    else:
        new.update(container_path=path, redirect_history=[*history, path])
    return new
