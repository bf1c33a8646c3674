"""Temporary URLs and upload forms as a client signs them; written for the tests, apart from what they test."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Iterable
from urllib.parse import quote

BOUNDARY = "------------------------tests"


def temp_url(path: str, key: str, method: str = "GET", seconds: int = 600, expires: int | None = None, digest: str = "sha256",
             prefix: str | None = None, ip: str | None = None, **params: str) -> str:
    """A request target: ``path`` (plain text, /v1/a/c/o) signed with ``key``."""
    expires = int(time.time()) + seconds if expires is None else expires
    signed = path if prefix is None else "prefix:" + "/".join(path.split("/")[:4]) + "/" + prefix
    text = f"{method}\n{expires}\n{signed}"
    if ip is not None:
        text, params = f"ip={ip}\n{text}", {**params, "temp_url_ip_range": ip}
    if prefix is not None:
        params = {**params, "temp_url_prefix": prefix}
    signature = hmac.new(key.encode(), text.encode(), digest).hexdigest()
    query = "".join(f"&{name}={quote(value, safe='')}" for name, value in params.items())
    return f"{quote(path)}?temp_url_sig={signature}&temp_url_expires={expires}{query}"


def form_fields(path: str, key: str, redirect: str = "", max_size: int = 1 << 20, max_count: int = 5, seconds: int = 600) -> dict[str, str]:
    """The fields of a form that posts to ``path``."""
    expires = int(time.time()) + seconds
    text = f"{path}\n{redirect}\n{max_size}\n{max_count}\n{expires}"
    fields = {"redirect": redirect} if redirect else {}
    return {**fields, "max_file_size": str(max_size), "max_file_count": str(max_count), "expires": str(expires),
            "signature": hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()}


def form_body(fields: dict[str, str], files: Iterable[tuple[str, bytes, str]]) -> bytes:
    """A multipart/form-data body; files are (name, content, type)."""
    parts = [f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode() for name, value in fields.items()]
    for number, (name, content, kind) in enumerate(files):
        parts.append(f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file{number}"; filename="{name}"\r\nContent-Type: {kind}\r\n\r\n'.encode()
                     + content + b"\r\n")
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


FORM_TYPE = f"multipart/form-data; boundary={BOUNDARY}"
