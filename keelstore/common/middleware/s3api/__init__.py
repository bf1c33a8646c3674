"""s3api: the S3 protocol on top of the Swift API (``spec: s3-api``).

A request that is signed as S3 clients sign (or is for a bucket, anonymously) is read by ``authentication`` and
``target``, identified by the auth filter to the right (``identity``), routed (``routing``), allowed (``access``) and
served by a module in ``resources``, which speaks to the right through ``S3Request.swift`` only. Everything else
passes unread, at the price of two look-ups and a comparison.

Pure: ``signature``, ``target``, ``acl``, ``etags``, ``xml``, ``checksums``, ``errors``, ``times``. At the edge:
``body`` and ``chunks`` (reading), ``index`` (bucket names), ``own_account`` (what is ours).

Stands after cache, before the auth filter, which needs to know ``s3api.auth_details``; needs slo for uploads in
parts, bulk to delete them, copy, and symlink and versioned_writes for versions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from keelstore.common.errors import RequestError
from keelstore.common.http import INFOCACHE, Environ, Request, Response, StartResponse, WSGIApp, call_app
from keelstore.common.middleware.s3api import access, authentication, cors, post_form
from keelstore.common.middleware.s3api.anonymous import ANONYMOUS_KIND, bucket_of
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.identity import identify
from keelstore.common.middleware.s3api.index import BucketIndex
from keelstore.common.middleware.s3api.options import S3ApiOptions
from keelstore.common.middleware.s3api.post_form import FORM_KIND, is_form
from keelstore.common.middleware.s3api.request import S3Request
from keelstore.common.middleware.s3api.resources import router
from keelstore.common.middleware.s3api.target import Target, bucket_of_host, is_bucket_name, target_of
from keelstore.common.options import parse
from keelstore.common.registry import register_info

AFTER: Final = ("catch_errors", "gatekeeper", "memcache")
BEFORE: Final = ("tempauth", "s3token", "keystoneauth", "bulk", "slo", "copy", "versioned_writes", "symlink")


class S3Api:
    def __init__(self, app: WSGIApp, options: S3ApiOptions, clock: Callable[[], float] = time.time):
        self.app, self.options, self.clock = app, options, clock
        self.router = router()
        self.index = BucketIndex(app) if options.s3_acl and options.bucket_index else None

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] == "OPTIONS" and (kind := self._preflight_kind(environ)):
            return self._answer(environ, start_response, self._serve(environ, kind))
        kind = authentication.kind_of(environ)
        if not kind and is_form(environ) and bucket_of(environ, self.options) is not None:
            kind = FORM_KIND
        if not kind:
            bucket = bucket_of(environ, self.options) if self.index is not None else None
            if self.index is None or bucket is None:
                return self.app(environ, start_response)
            try:
                if self.index.account_of(environ, bucket) is None:
                    return self._unclaimed(environ, start_response)
            except S3Error as error:
                return self._unclaimed(environ, start_response, error)
            kind = ANONYMOUS_KIND
        return self._answer(environ, start_response, self._serve(environ, kind))

    def _preflight_kind(self, environ: Environ) -> str:
        """'' for a preflight of Swift's."""
        bucket = bucket_of({**environ, "REQUEST_METHOD": "GET"}, self.options)
        if bucket is None or self.index is None or not self.index.may_be_held(environ, bucket):
            return ""
        return ANONYMOUS_KIND

    def _unclaimed(self, environ: Environ, start_response: StartResponse, unknown: S3Error | None = None) -> Iterable[bytes]:
        """Nobody's request for a bucket that there is not, or of which that is ``unknown``: another's to the right, else
        answered as S3 does.
        """
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        response = call_app(self.app, environ)
        if response.status not in (400, 401, 403, 404, 405, 412) or environ["PATH_INFO"] != path:
            return response(environ, start_response)
        response.close()
        makes_bucket = method == "PUT" and "/" not in path.strip("/")
        error = unknown or S3Error("AccessDenied" if makes_bucket else "NoSuchBucket")
        return self._answer(environ, start_response, error.response(path, environ.get("swift.trans_id", ""), method))

    def _answer(self, environ: Environ, start_response: StartResponse, response: Response) -> Iterable[bytes]:
        trans_id = environ.get("swift.trans_id", "")
        response.headers["x-amz-request-id"] = response.headers["x-amz-id-2"] = trans_id
        response.headers.setdefault("Content-Type", "application/xml")
        if not response.headers.get("Location", "").startswith(("http://", "https://")):  # where a form sends the browser
            environ["swift.leave_relative_location"] = True

        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            return start_response(status, [(_spelled(name), value) for name, value in headers])

        return response(environ, start)

    def _serve(self, environ: Environ, kind: str) -> Response:
        environ["swift.source"] = "S3"
        environ.setdefault(INFOCACHE, {})  # what one of our requests learns serves the others
        resource, trans_id = environ.get("RAW_PATH_INFO") or environ["PATH_INFO"], environ.get("swift.trans_id", "")
        request: S3Request | None = None
        try:
            target = target_of(Request(environ).path, environ.get("HTTP_HOST", ""), self.options.storage_domain)
            resource = target.resource
            request = self._read(environ, kind, target)
            if request.method == "OPTIONS":
                return cors.preflight(request)
            if kind == FORM_KIND and target.key is None:
                response = post_form.upload(request, self.clock())
            else:
                route = self.router.route(request)
                access.check(request, route)
                response = route.handler(request)
            cors.add_headers(request, response)
            return response
        except S3Error as error:
            found = error
        except RequestError as error:
            found = (
                request.body.failure
                if request is not None and request.body is not None and request.body.failure
                else _of(error)
            )
        environ.setdefault("swift.log_info", []).append(
            f"s3:err:{found.code}{'.' + found.reason if found.reason else ''}"
        )
        response = found.response(resource, trans_id, environ["REQUEST_METHOD"])
        if request is not None and request.method != "OPTIONS":
            cors.add_headers(request, response)
        return response

    def _read(self, environ: Environ, kind: str, target: Target) -> S3Request:
        by_host = bucket_of_host(environ.get("HTTP_HOST", ""), self.options.storage_domain) or ""
        signed = None
        if kind not in (ANONYMOUS_KIND, FORM_KIND):
            signed = authentication.read(environ, kind, self.options, by_host, self.clock())
            environ["swift.access_logging"] = {
                "user_id": signed.access_key if len(signed.access_key) <= 128 else signed.access_key[:125] + "..."
            }
        request = S3Request(environ, self.app, self.options, target, signed, self._locate, self.index)
        if (
            target.bucket is not None
            and not target.by_host
            and not is_bucket_name(target.bucket, self.options.dns_compliant_bucket_names)
        ):
            raise S3Error("InvalidBucketName", BucketName=target.bucket)
        if signed is not None:
            request.identity = identify(environ, self.app, signed)
        return request

    def _locate(self, request: S3Request, bucket: str) -> str | None:
        """The account that a bucket is in: the user's own before that of anybody else. Raises S3Error."""
        own = request.identity.account
        if self.index is None:
            return own
        if own is not None:
            info = request.container_info(bucket, own)
            if info.is_success:
                return own
            if info.status // 100 == 5:  # it may be there: another's of that name must not stand in for it
                raise S3Error("ServiceUnavailable", reason=f"own_{info.status}")
        return self.index.account_of(request.environ, bucket) or own


def _spelled(name: str) -> str:
    """A header's name as S3 clients, some of which compare exactly, expect it."""
    return name.lower() if name.startswith("X-Amz-") else "ETag" if name == "Etag" else name


def _of(error: RequestError) -> S3Error:
    """An error of the request itself, met while its body was read."""
    if error.status in (408, 499):
        return S3Error("RequestTimeout", headers={"Connection": "close"})
    return S3Error("EntityTooLarge" if error.status == 413 else "InvalidRequest", error.reason)


def filter_factory(global_conf: dict[str, str], **local_conf: str) -> Callable[[WSGIApp], S3Api]:
    options = parse(S3ApiOptions, {**global_conf, **local_conf}, section="filter:s3api", local=local_conf,
                    known=("use", "set *", "log_*"))
    register_info(
        "s3api",
        max_bucket_listing=options.max_bucket_listing,
        max_parts_listing=options.max_parts_listing,
        max_upload_part_num=options.max_upload_part_num,
        max_multi_delete_objects=options.max_multi_delete_objects,
        allow_multipart_uploads=options.allow_multipart_uploads,
        min_segment_size=options.min_segment_size,
        s3_acl=options.s3_acl,
    )

    def make(app: WSGIApp) -> S3Api:
        return S3Api(app, options)

    return make


__all__: Any = ("AFTER", "BEFORE", "S3Api", "S3ApiOptions", "filter_factory")
