"""Whose a bucket is: one namespace of bucket names over all accounts (option ``bucket_index``; ``spec: s3-api 1.2``).

A name is an object in the cluster's own account ``.s3``: container ``buckets``, the account as its body. It is made, with
``If-None-Match: *``, before the container and removed after it, so a name that leads nowhere can be taken over and a bucket
whose name is lost is still found by its owner, in his own account, as containers made with Swift are.
"""

from __future__ import annotations

from typing import Final

from keelstore.common.http import CACHE, Environ, Response, WSGIApp, call_app
from keelstore.common.internal import subrequest
from keelstore.common.middleware.s3api import own_account
from keelstore.common.timestamp import Timestamp

CONTAINER: Final = "buckets"
CACHED_S: Final = 60
YOUNG_S: Final = 60  # a name is made before its bucket, so one that leads nowhere is left to its holder for a while
_KEY: Final = "s3bucket/"


class BucketIndex:
    def __init__(self, app: WSGIApp):
        self.app = app

    def account_of(self, environ: Environ, bucket: str) -> str | None:
        """The account that holds the name; None when nobody does."""
        cache = environ.get(CACHE)
        if cache is not None:
            found = cache.get(_KEY + bucket)
            if isinstance(found, str) and found:
                return found
        response = self._ask(environ, "GET", bucket)
        account = response.read(4096).decode("utf-8", "replace") if response.status == 200 else None
        if response.status != 200:
            response.drain()
        elif account and cache is not None:
            cache.set(_KEY + bucket, account, CACHED_S)
        return account or None

    def claim(self, environ: Environ, bucket: str, account: str) -> bool:
        """Take the name for an account: whether it is that account's now. A name whose bucket is gone goes to who asks."""
        response = own_account.put(environ, self.app, f"{CONTAINER}/{bucket}", {"If-None-Match": "*"}, account.encode())
        response.drain()
        if response.status != 412:
            return response.is_success
        self._forget(environ, bucket)
        found = self._ask(environ, "GET", bucket)
        holder = found.read(4096).decode("utf-8", "replace") if found.status == 200 else None
        if holder == account:
            return True
        if holder is None or not self._is_abandoned(environ, bucket, holder, found.headers.get("X-Timestamp", "")):
            return False
        response = self._ask(environ, "PUT", bucket, account.encode())
        response.drain()
        self._forget(environ, bucket)
        return response.is_success

    def _is_abandoned(self, environ: Environ, bucket: str, holder: str, taken: str) -> bool:
        """Whether a name leads nowhere, and not because its bucket is being made just now."""
        if not taken or Timestamp.now().raw - Timestamp(taken).raw < YOUNG_S * 100_000:
            return False
        asked = subrequest(environ, "HEAD", f"/v1/{holder}/{bucket}", source="S3", pre_authed=True)
        response = call_app(self.app, asked)
        response.close()
        return response.status == 404

    def release(self, environ: Environ, bucket: str, account: str) -> None:
        """Give up the name, if it is the account's."""
        self._forget(environ, bucket)
        if self.account_of(environ, bucket) == account:
            self._ask(environ, "DELETE", bucket).drain()
        self._forget(environ, bucket)

    def _ask(self, environ: Environ, method: str, bucket: str, body: bytes = b"") -> Response:
        return own_account.ask(environ, self.app, method, f"{CONTAINER}/{bucket}", body=body)

    def _forget(self, environ: Environ, bucket: str) -> None:
        cache = environ.get(CACHE)
        if cache is not None:
            cache.delete(_KEY + bucket)
