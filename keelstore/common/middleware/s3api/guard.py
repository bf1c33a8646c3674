"""A write that depends on what is there: decided and made while nobody else decides on that object (``spec: s3-api 3.10``).

The condition is looked at when all of the body has come and been proven, just before its last octets are handed on, so a slow
upload holds nobody up, and who commits first is who was first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from keelstore.common.headers import Headers
from keelstore.common.http import Response
from keelstore.common.middleware.s3api.body import ProvenBody
from keelstore.common.middleware.s3api.conditions import WriteConditions
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.exclusive import Exclusive
from keelstore.common.middleware.s3api.outcome import error_of
from keelstore.common.middleware.s3api.reading import head
from keelstore.common.middleware.s3api.request import S3Request

LATE: Final = 65536  # bytes: a longer body is not even asked for when the condition does not hold before it


class Guard:
    """Of one write of ``request``'s object."""

    def __init__(self, request: S3Request, conditions: WriteConditions):
        self._request, self._conditions = request, conditions
        self._held = Exclusive(request.environ, request.account, request.bucket, request.key)

    def watch(self, body: ProvenBody) -> None:
        """Decide when ``body`` has come. Raises S3Error when it is long and the condition does not hold now."""
        if body.length is None or body.length > LATE:
            self._look()
        body.at_end = self.decide

    def decide(self) -> None:
        """From now on nobody else writes under a condition. Raises S3Error when ours does not hold."""
        self._held.acquire()
        self._look()

    def _look(self) -> None:
        request = self._request
        response = head(request, None, newest=True)
        current: Headers | None = response.headers
        if response.status == 404:
            current = None
            request.bucket_info()
        elif not response.is_success:
            raise error_of(request, response)
        self._conditions.check(request.key, current)

    def headers(self) -> dict[str, str]:
        """What the object servers are to look at themselves."""
        return {"If-None-Match": "*"} if self._conditions.none_match.strip() == "*" else {}

    def settle(self, response: Response) -> Response:
        """The answer to the write, unless it was overtaken: something newer had come by another way. Raises S3Error."""
        if response.status == 202:
            response.drain()
            raise S3Error("ConditionalRequestConflict", Condition="If-Match", Key=self._request.key)
        return response

    def release(self) -> None:
        self._held.release()


@contextmanager
def guarded(request: S3Request) -> Iterator[Guard | None]:
    """The guard of a request that has conditions; None for one without. Raises S3Error."""
    conditions = WriteConditions.of(request)
    if conditions is None:
        yield None
        return
    guard = Guard(request, conditions)
    try:
        yield guard
    finally:
        guard.release()
