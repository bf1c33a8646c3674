"""formpost: files uploaded by a browser's form, which is signed as temporary URLs are (``spec: middleware 10``).

The form's fields come before its files: ``redirect``, ``max_file_size``, ``max_file_count``, ``expires``, ``signature`` and,
for all files, ``x_delete_at``, ``x_delete_after``, ``content-type``, ``content-encoding``. Each file is stored by a PUT of
its own, to the path of the form and the name of the file, and reaches nothing but the account or container whose key signed.

A form that is cut off stores nothing of the file that was cut, and no part of it may ask for a copy, a manifest or a link
(``security: S01``). The log says why a form was refused.

Stands right before authentication. Needs nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from html import escape
from typing import Any, Final
from urllib.parse import quote

from keelstore.common.errors import BadRequest, ClientDisconnect, RequestError
from keelstore.common.headers import Headers, title, wire_to_text
from keelstore.common.http import Environ, Request, Response, StartResponse, WSGIApp, call_app, status_line
from keelstore.common.httpinput import FileLike
from keelstore.common.internal import subrequest
from keelstore.common.logs import logger_for
from keelstore.common.middleware.form_data import Form, Part, boundary_of
from keelstore.common.middleware.signatures import (
    DIGESTS,
    Refused,
    check_digest,
    check_expires,
    digests_check,
    digests_info,
    form_text,
    matching,
    parse_signature,
)
from keelstore.common.middleware.url_keys import UNAUTHORIZED, UrlKey, counted, grant, note, url_keys
from keelstore.common.options import option, parse
from keelstore.common.registry import register_info
from keelstore.common.stats import NO_STATS, NoStats, stats_for

AFTER: Final = ("catch_errors", "gatekeeper", "memcache")
BEFORE: Final = ("tempauth", "authtoken", "keystoneauth", "staticweb", "copy", "slo", "dlo", "versioned_writes", "symlink")

USER: Final = ".wsgi.formpost"
MAX_VALUE: Final = 4096  # bytes of a field that count
MAX_FIELDS: Final = 256
_SIZE: Final = "FormPost: max_file_size exceeded"
# Names that a form may not smuggle in: what they make stands for another object.
_UNSAFE: Final = frozenset({
    "x-object-manifest", "x-symlink-target", "x-symlink-target-account", "x-symlink-target-etag", "x-copy-from",
    "x-copy-from-account", "x-fresh-metadata", "x-static-large-object",
})  # fmt: skip


@dataclass(frozen=True)
class FormPostOptions:
    """Options of ``[filter:formpost]``."""

    allowed_digests: tuple[str, ...] = option(DIGESTS, "Digests of signatures: sha1 (for old clients), sha256, sha512.",
                                              separator=" ", check=digests_check)


@dataclass
class Terms:
    """What the form allows, once its fields have been read and its signature checked."""

    key: UrlKey
    max_file_size: int
    max_file_count: int
    headers: dict[str, str] = field(default_factory=dict)


class FormPost:
    def __init__(self, app: WSGIApp, options: FormPostOptions, logger: logging.Logger, stats: NoStats = NO_STATS,
                 now: Callable[[], float] = time.time):
        self.app, self.options, self.log, self.stats, self._now = app, options, logger, stats, now
        self._digests = frozenset(options.allowed_digests)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] != "POST":
            return self.app(environ, start_response)
        boundary = boundary_of(environ.get("CONTENT_TYPE") or "")
        if boundary is None:
            return self.app(environ, start_response)
        return self._take(Request(environ), boundary)(environ, start_response)

    def _take(self, request: Request, boundary: bytes) -> Response:
        try:
            return self._upload(request, Form(request.body_file, boundary))
        except Refused as refused:
            note(request.environ, f"formpost:{refused.check}")
            self.log.info("Form refused: %s: %s; POST %s (txn: %s)", refused.check, refused, request.path_quoted(),
                          request.trans_id)
            text = "FormPost: Form Expired" if refused.check == "expired" else "FormPost: Invalid Signature"
            return Response(401, UNAUTHORIZED, body=text, content_type="text/html; charset=UTF-8")
        except ClientDisconnect as error:
            return Response(400, body=f"FormPost: {error.reason}", content_type="text/plain")
        except RequestError as error:
            return Response(error.status, body=error.reason, content_type="text/plain")

    def _upload(self, request: Request, form: Form) -> Response:
        """Raises Refused, and RequestError for what is no good form."""
        fields: dict[str, str] = {}
        terms: Terms | None = None
        count = 0
        last: Response | None = None
        for part in form:
            _check_names(part)
            if part.file_name is None:
                if terms is None:
                    fields[part.name.lower()] = part.value(MAX_VALUE)
                    if len(fields) > MAX_FIELDS:
                        raise BadRequest("FormPost: too many fields")
                continue
            if not part.file_name:
                continue
            if terms is None:
                terms = self._terms(request, fields)
            count += 1
            if count > terms.max_file_count:
                return self._done(fields, 400, "FormPost: Max File Count Exceeded", None)
            last = self._store(request, terms, part)
            if not last.is_success:
                break
        if last is None:
            return self._done(fields, 400, "FormPost: No Files To Process", None)
        return self._done(fields, last.status, "", last)

    # -- the form's own word -----------------------------------------------------------------------------------------

    def _terms(self, request: Request, fields: dict[str, str]) -> Terms:
        size, count = _number(fields, "max_file_size"), _number(fields, "max_file_count")
        expires = _number(fields, "expires", "expired not an integer")
        check_expires(expires, self._now())
        environ = request.environ
        parts = environ["PATH_INFO"].split("/", 4)
        if len(parts) < 4 or parts[0] or parts[1] != "v1" or not parts[2] or not parts[3]:
            raise Refused("path", "the path is not /v1/ACCOUNT/CONTAINER[/PREFIX]")
        digest, signature = parse_signature(fields.get("signature", ""))
        check_digest(digest, self._digests)
        keys = url_keys(environ, self.app, parts[2], parts[3], "FP")
        if not keys:
            raise Refused("no-key", "neither the account nor the container has a Temp-URL-Key")
        text = form_text(environ["PATH_INFO"], fields.get("redirect", ""), fields.get("max_file_size", "0"),
                         fields.get("max_file_count", "0"), fields.get("expires", "0"))
        index = matching(signature, digest, [key.value for key in keys], [text])
        if index is None:
            raise Refused("signature", f"the {digest} signature is not that of this path and these fields with any of the "
                                       f"keys ({counted(keys)})")
        self.stats.increment(f"formpost.digests.{digest}")
        headers = {}
        for name, header, kind in (("x_delete_at", "X-Delete-At", "Unix timestamp required."),
                                   ("x_delete_after", "X-Delete-After", "Number of seconds required.")):
            if name in fields:
                headers[header] = str(_number(fields, name, f"{name} not an integer: {kind}"))
        for name in ("content-type", "content-encoding"):
            if fields.get(name):
                headers[title(name)] = fields[name]
        return Terms(keys[index], size, count, headers)

    # -- files -------------------------------------------------------------------------------------------------------

    def _store(self, request: Request, terms: Terms, part: Part) -> Response:
        """The answer to the PUT of one file. Raises RequestError when the file is too large or cut off."""
        base = request.environ["PATH_INFO"]
        path = f"{base}/{part.file_name}" if base.count("/") < 4 else f"{base}{part.file_name}"
        headers = {name: part.headers[name] for name in ("Content-Type", "Content-Encoding") if part.headers.get(name)}
        headers.update(terms.headers)
        if any(not value.isprintable() for value in headers.values() if value.isascii()):
            raise BadRequest("FormPost: control character in a field")
        headers["User-Agent"] = f"{request.header('User-Agent', '')} FormPost".strip()
        body = _Limited(part, terms.max_file_size)
        environ = subrequest(request.environ, "PUT", wire_to_text(path), headers=headers, body=body, source="FP")
        grant(environ, terms.key, USER)
        try:
            response = call_app(self.app, environ)
        except RequestError:
            if body.error is not None:
                raise body.error from None
            raise
        if body.error is not None:
            response.drain()
            raise body.error
        return response

    # -- the answer --------------------------------------------------------------------------------------------------

    def _done(self, fields: dict[str, str], status: int, message: str, last: Response | None) -> Response:
        """``last``: the answer to the last PUT. Without a redirect its error text is the client's to see."""
        body = b""
        headers = Headers()
        if last is not None:
            headers.update((name, value) for name, value in last.headers.items() if name.startswith("Access-Control-"))
            if last.is_success:
                last.drain()
            else:
                body = last.read(65536)
                if not body.startswith(b"<"):
                    message = message or body.decode("utf-8", "replace")[:256]
        redirect = fields.get("redirect")
        if not redirect:
            if not body or last is None:
                body = "\r\n".join(filter(None, (status_line(status), message))).encode("utf-8")
            return Response(status, headers, body=body, content_type="text/plain")
        if any(ord(char) < 33 or ord(char) == 127 for char in redirect):
            raise BadRequest("FormPost: control character or blank in redirect")
        location = (f"{redirect}{'&' if '?' in redirect else '?'}status={status}&message="
                    f"{quote(message.removeprefix('FormPost: '))}")
        headers["Location"] = location
        page = f'<html><body><p><a href="{escape(location)}">Click to continue...</a></p></body></html>'
        return Response(303, headers, body=page.encode("latin-1", "replace"), content_type="text/html; charset=UTF-8")


class _Limited(FileLike):
    """The content of a file as the body of its PUT. What is wrong with it is kept in ``error``, and ends the PUT."""

    __slots__ = ("_left", "_part", "error")

    def __init__(self, part: Part, limit: int):
        super().__init__()
        self._part, self._left = part, limit
        self.error: RequestError | None = None

    def _more(self, size: int) -> bytes:
        try:
            data = self._part.read1(size)
        except RequestError as error:
            self.error = error
            raise
        self._left -= len(data)
        if self._left < 0:
            self.error = BadRequest(_SIZE)
            raise ClientDisconnect(_SIZE)
        return data


def _check_names(part: Part) -> None:
    """Raises BadRequest for a field or header that would make an object stand for another."""
    names: list[Any] = [part.name.lower().replace("_", "-"), *(name.lower() for name in part.headers)]
    for name in names:
        if name in _UNSAFE:
            raise BadRequest(f"FormPost: '{title(name)}' is not allowed in a form")


def _number(fields: dict[str, str], name: str, problem: str | None = None) -> int:
    text = fields.get(name) or "0"
    try:
        if len(text) <= 20:
            return int(text)
    except ValueError:
        pass
    raise BadRequest(f"FormPost: {problem or f'{name} not an integer'}")


def filter_factory(global_conf: dict[str, str], **local_conf: str) -> Callable[[WSGIApp], FormPost]:
    conf = {**global_conf, **local_conf}
    options = parse(FormPostOptions, conf, section="filter:formpost", local=local_conf, known=("use", "set *", "log_*"))
    register_info("formpost", **digests_info(options.allowed_digests))
    logger, stats = logger_for(conf, "formpost"), stats_for(conf, "proxy-server")
    return lambda app: FormPost(app, options, logger, stats)
