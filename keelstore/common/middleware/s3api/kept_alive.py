"""Answers that may take long: silent at first, so that errors keep their status; then blanks, then the result.

The XML declaration always comes first; what follows an answer that has begun is a document without one, and an error is told
inside it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Final

from keelstore.common import concurrency
from keelstore.common.errors import RequestError, WaitTimeout
from keelstore.common.http import Response
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.xml import DECLARATION

_log = logging.getLogger("keelstore.s3api")
SILENT_S: Final = 10.0
EVERY_S: Final = 5.0

Outcome = Response | BaseException


def respond(work: Callable[[], Response], resource: str, request_id: str, silent_s: float = SILENT_S) -> Response:
    """The response that ``work`` gives, if it comes in time; else one that keeps the client waiting for its body.

    ``work`` runs apart and to its end, whether or not the client stays. Raises what it raises, while that is still possible.
    """
    result = concurrency.Event()

    def run() -> None:
        try:
            result.set(work())
        except Exception as error:
            result.set(error)

    concurrency.spawn(run)
    try:
        outcome: Outcome = result.wait(silent_s)
    except WaitTimeout:
        return Response(200, app_iter=_waiting(result, resource, request_id), content_type="application/xml")
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def _waiting(result: concurrency.Event, resource: str, request_id: str) -> Iterator[bytes]:
    yield DECLARATION
    while True:
        try:
            outcome: Outcome = result.wait(EVERY_S)
            break
        except WaitTimeout:
            yield b" "
    if isinstance(outcome, Response):
        yield outcome.read().removeprefix(DECLARATION)
    else:
        if isinstance(outcome, RequestError):
            outcome = S3Error("InvalidRequest", outcome.reason)
        elif not isinstance(outcome, S3Error):
            _log.error("what was answered late failed (txn: %s)", request_id, exc_info=outcome)
            outcome = S3Error("InternalError")
        yield outcome.to_xml(resource, request_id, declare=False)
