"""catch_errors: give each request its transaction id, and keep errors from the client.

An exception becomes a plain 500. Each answer gets ``X-Trans-Id`` and ``X-Openstack-Request-Id``. A body must have
exactly its Content-Length, and that of a HEAD none: otherwise an error closes the connection, so that no client takes a
part for the whole.

Stands first. Needs nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from keelstore.common.errors import BackendError
from keelstore.common.http import TRANS_ID, Environ, StartResponse, WSGIApp, failure_response, status_line
from keelstore.common.logs import logger_for
from keelstore.common.middleware.bodies import Answer, Exact, held_to, promised_length
from keelstore.common.options import option, parse
from keelstore.common.relay import Pieces, Region, close, file_pieces, file_region, file_region_sent
from keelstore.common.transid import make_trans_id

AFTER: Final[tuple[str, ...]] = ()
BEFORE: Final = ("gatekeeper", "proxy_logging", "listing_formats", "ratelimit", "tempauth", "keystoneauth", "copy")

T = TypeVar("T")
MAX_EXTRA: Final = 32  # characters of X-Trans-Id-Extra that are used


@dataclass(frozen=True)
class CatchErrorsOptions:
    """Options of ``[filter:catch_errors]``."""

    trans_id_suffix: str = option("", "Text at the end of each transaction id; tells clusters apart.")


class CatchErrors:
    def __init__(self, app: WSGIApp, options: CatchErrorsOptions, logger: logging.Logger):
        self.app, self.log = app, logger
        self._suffix = options.trans_id_suffix

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        extra = environ.get("HTTP_X_TRANS_ID_EXTRA")
        trans_id = make_trans_id(f"{self._suffix}-{extra[:MAX_EXTRA]}" if extra else self._suffix)
        environ[TRANS_ID] = trans_id
        method = environ["REQUEST_METHOD"]  # as the client has it; what follows may change it
        try:
            answer = Answer(self.app, environ)
            length = promised_length(answer.status, answer.headers, method)
            body = held_to(answer.body, length)
        except Exception as error:
            if isinstance(error, BackendError):  # storage nodes failed: no fault of this program
                self.log.error("Error: %s", error, extra={"txn_id": trans_id})
            else:
                self.log.exception("Error: An error occurred", extra={"txn_id": trans_id})
            text = b"An error occurred"
            start_response(status_line(failure_response(error).status), [
                ("Content-Type", "text/plain"), ("Content-Length", str(len(text))),
                ("X-Trans-Id", trans_id), ("X-Openstack-Request-Id", trans_id)])
            return () if method == "HEAD" else (text,)
        headers = [header for header in answer.headers if header[0][:2] not in _X or header[0].lower() not in _OURS]
        headers.append(("X-Trans-Id", trans_id))
        headers.append(("X-Openstack-Request-Id", trans_id))
        start_response(answer.status, headers)
        if type(body) is Exact:
            return _Told(body, self.log, trans_id)
        return body


_X: Final = frozenset({"X-", "x-"})
_OURS: Final = frozenset({"x-trans-id", "x-openstack-request-id"})


class _Told:
    """A body whose errors are logged before they close the connection."""

    __slots__ = ("_body", "_log", "_trans_id")

    def __init__(self, body: Iterable[bytes], log: logging.Logger, trans_id: str):
        self._body, self._log, self._trans_id = body, log, trans_id

    def __iter__(self) -> Iterator[bytes]:
        return self._told(iter(self._body))

    def _told(self, parts: Iterator[T]) -> Iterator[T]:
        try:
            yield from parts
        except BackendError as error:  # storage nodes could not give what they had promised: no fault of this program
            self._log.error("Error: the body of a response broke off: %s", error, extra={"txn_id": self._trans_id})
            raise
        except Exception:
            self._log.exception("Error: the body of a response broke off", extra={"txn_id": self._trans_id})
            raise

    def file_pieces(self) -> Pieces | None:
        pieces = file_pieces(self._body)
        return None if pieces is None else self._told(pieces)

    def file_region(self) -> Region | None:
        return file_region(self._body)

    def file_region_sent(self) -> None:
        file_region_sent(self._body)

    def close(self) -> None:
        close(self._body)


def filter_factory(global_conf: dict[str, str], **local_conf: str) -> Callable[[WSGIApp], CatchErrors]:
    conf: dict[str, Any] = {**global_conf, **local_conf}
    options = parse(CatchErrorsOptions, conf, section="filter:catch_errors", local=local_conf,
                    known=("use", "set *", "log_*"))
    logger = logger_for(conf, "catch-errors")
    return lambda app: CatchErrors(app, options, logger)
