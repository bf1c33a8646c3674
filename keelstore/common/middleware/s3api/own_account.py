"""What the S3 filter keeps for itself, in the cluster's own account ``.s3``: names of buckets, long documents, notes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from keelstore.common.http import Environ, Response, WSGIApp, call_app
from keelstore.common.internal import subrequest
from keelstore.common.middleware.ratelimit import HANDLED

ACCOUNT: Final = ".s3"


def ask(environ: Environ, app: WSGIApp, method: str, path: str, headers: Mapping[str, str] | None = None,
        body: bytes = b"") -> Response:
    """A request of ours about ``container[/object]``, on behalf of the one in ``environ``; no access line tells of it, and no
    rate limits it."""
    asked = subrequest(environ, method, f"/v1/{ACCOUNT}/{path}", headers=headers, body=body, source="S3", pre_authed=True)
    asked["swift.proxy_access_log_made"] = asked[HANDLED] = True
    return call_app(app, asked)


def put(environ: Environ, app: WSGIApp, path: str, headers: Mapping[str, str] | None = None, body: bytes = b"") -> Response:
    """As ``ask`` with PUT; the container is made when the first object comes."""
    response = ask(environ, app, "PUT", path, headers, body)
    if response.status == 404:
        response.drain()
        ask(environ, app, "PUT", path.partition("/")[0]).drain()
        response = ask(environ, app, "PUT", path, headers, body)
    return response
