"""Whose a bucket is: one namespace of bucket names over all accounts (option ``bucket_index``; ``spec: s3-api 1.2``).

A name is an object in the cluster's own account ``.s3``: container ``buckets``, the account as its body. It is made, with
``If-None-Match: *``, before the container and removed after it, so a name that leads nowhere can be taken over and a bucket
whose name is lost is still found by its owner, in his own account, as containers made with Swift are. When it cannot be
known whose a name is, nobody is told that there is no such bucket, or that another has it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from keelstore.common.http import CACHE, Environ, Response, WSGIApp, call_app
from keelstore.common.internal import subrequest
from keelstore.common.middleware.ratelimit import HANDLED
from keelstore.common.middleware.s3api import own_account
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.timestamp import Timestamp

CONTAINER: Final = "buckets"
CACHED_S: Final = 60
YOUNG_S: Final = 60  # a name is made before its bucket, so one that leads nowhere is left to its holder for a while
_KEY: Final = "s3bucket/"


class BucketIndex:
    def __init__(self, app: WSGIApp):
        self.app = app

    def account_of(self, environ: Environ, bucket: str) -> str | None:
        """The account that holds the name; None when nobody does. Raises S3Error."""
        cache = environ.get(CACHE)
        if cache is not None:
            found = cache.get(_KEY + bucket)
            if isinstance(found, str) and found:
                return found
        account = _holder(self._ask(environ, "GET", bucket))
        if account and cache is not None:
            cache.set(_KEY + bucket, account, CACHED_S)
        return account

    def may_be_held(self, environ: Environ, bucket: str) -> bool:
        try:
            return self.account_of(environ, bucket) is not None
        except S3Error:
            return True

    def claim(self, environ: Environ, bucket: str, account: str) -> bool:
        """Take the name for an account: whether it is that account's now. A name whose bucket is gone goes to who asks.

        Raises S3Error when that cannot be told.
        """
        response = own_account.put(environ, self.app, f"{CONTAINER}/{bucket}", {"If-None-Match": "*"}, account.encode())
        response.drain()
        if response.is_success:
            return True
        if response.status != 412:
            raise _unknown(response)
        self._forget(environ, bucket)
        found = self._ask(environ, "GET", bucket)
        holder = _holder(found)
        if holder == account:
            return True
        if holder is None:
            raise _unknown(found)  # it was given up just now
        if not self._is_abandoned(environ, bucket, holder, found.headers.get("X-Timestamp", "")):
            return False
        response = self._ask(environ, "PUT", bucket, account.encode())
        response.drain()
        self._forget(environ, bucket)
        if not response.is_success:
            raise _unknown(response)
        return True

    def _is_abandoned(self, environ: Environ, bucket: str, holder: str, taken: str) -> bool:
        """Whether a name leads nowhere, and not because its bucket is being made just now."""
        if not taken or Timestamp.now().raw - Timestamp(taken).raw < YOUNG_S * 100_000:
            return False
        asked = subrequest(environ, "HEAD", f"/v1/{holder}/{bucket}", source="S3", pre_authed=True)
        asked[HANDLED] = True
        response = call_app(self.app, asked)
        response.close()
        if response.status // 100 == 5:
            raise _unknown(response)
        return response.status == 404

    def release(self, environ: Environ, bucket: str, account: str) -> None:
        """Give up the name, if it is the account's. Where that cannot be known it stays, for who asks for it later."""
        self._forget(environ, bucket)
        with suppress(S3Error):
            if self.account_of(environ, bucket) == account:
                self._ask(environ, "DELETE", bucket).drain()
        self._forget(environ, bucket)

    def _ask(self, environ: Environ, method: str, bucket: str, body: bytes = b"") -> Response:
        return own_account.ask(environ, self.app, method, f"{CONTAINER}/{bucket}", body=body)

    def _forget(self, environ: Environ, bucket: str) -> None:
        cache = environ.get(CACHE)
        if cache is not None:
            cache.delete(_KEY + bucket)


def _holder(found: Response) -> str | None:
    """The account that a name's object holds, of the answer to a GET of it. Raises S3Error."""
    if found.status == 200:
        return found.read(4096).decode("utf-8", "replace") or None
    found.drain()
    if found.status == 404:
        return None
    raise _unknown(found)


def _unknown(response: Response) -> S3Error:
    return S3Error("ServiceUnavailable", reason=f"index_{response.status}")
