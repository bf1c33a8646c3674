"""Deleting a static large object with its segments: ``DELETE ?multipart-manifest=delete`` (``spec: middleware 19.3``).

At once, as a bulk operation whose outcome stands in the body; or with ``async=on`` by entering the segments into the queue of
what expires, and deleting the manifest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import md5
from typing import TYPE_CHECKING, Any, Final

from keelstore.common import concurrency, work_report
from keelstore.common.acl import ACL
from keelstore.common.errors import BadRequest, KeelstoreError, NotFound, RequestError
from keelstore.common.expiry import expirer_container
from keelstore.common.headers import is_true
from keelstore.common.http import AUTHORIZE, Environ, Request, Response, call_app, encode_query, status_line
from keelstore.common.info import container_info
from keelstore.common.internal import subrequest
from keelstore.common.names import quoted
from keelstore.common.segment_reader import MANIFEST_LIMIT
from keelstore.common.segments import ManifestError, ObjectSegment, Segment, decode
from keelstore.common.timestamp import Timestamp, normalize_delete_at

if TYPE_CHECKING:
    from keelstore.common.middleware.slo import Slo

AGENT = "SLO MultipartDELETE"
_NOT_SLO: Final = "Not an SLO manifest"
_MANY: Final = 10  # times max_manifest_segments that one delete may touch
_ROWS: Final = 10000  # of the expiry queue in one request
_EMPTY: Final = md5(b"", usedforsecurity=False).hexdigest()


def delete(slo: Slo, request: Request) -> Any:
    """The answer to the DELETE. Raises RequestError."""
    if is_true(request.params.get("async")) and slo.options.allow_async_delete:
        return _delete_later(slo, request)
    form = work_report.format_of(request.header("Accept"))
    if form is None:
        values = {"Response Status": status_line(406), "Response Body": "", "Number Deleted": 0, "Number Not Found": 0}
        return Response(200, body=work_report.render(work_report.TEXT, "delete", values, ()),
                        content_type=work_report.TEXT)
    removal = _Removal(slo, request)
    return Response(200, content_type=form,
                    app_iter=work_report.KeptAlive(form, lambda: removal.run(form), slo.options.yield_frequency))


def _ask(slo: Slo, environ: Environ, method: str, path: str, params: dict[str, str]) -> Response:
    headers = {name: environ[key] for key, name in slo.PASSED if key in environ}
    headers["User-Agent"] = f"{environ.get('HTTP_USER_AGENT', '')} {AGENT}".strip()
    return call_app(slo.app, subrequest(environ, method, path, headers=headers, query=encode_query(params),
                                        source=slo.SOURCE))


def _version(request: Request) -> dict[str, str]:
    version = request.params.get("version-id")
    return {} if version is None else {"version-id": version}


@dataclass
class _Removal:
    """One delete with all segments, in progress. Paths are ``/container/object``, text."""

    slo: Slo
    request: Request
    deleted: int = 0
    missing: int = 0
    errors: list[tuple[str, str]] = field(default_factory=list)

    def run(self, form: str) -> bytes:
        """Do it; gives the report."""
        status, text = 200, ""
        try:
            self._remove()
        except RequestError as error:
            status, text = error.status, error.reason
        except Exception:
            self.slo.log.exception("deleting %s with its segments failed", self.request.path_quoted())
            status, text = 500, ""
        if self.errors and status == 200:
            status = 502 if any(problem[:1] == "5" for _name, problem in self.errors) else 400
        return work_report.render(form, "delete", {
            "Response Status": status_line(status), "Response Body": text,
            "Number Deleted": self.deleted, "Number Not Found": self.missing}, self.errors)

    def _remove(self) -> None:
        _, version, account, container, obj = self.request.path.split("/", 4)
        base, top = f"/{version}/{account}", f"/{container}/{obj}"
        segments, manifests = self._collect(base, top)
        if not manifests:
            return
        pool = concurrency.Pool(self.slo.options.deletes_at_once)
        for path in segments:
            pool.start(self._delete, base, path, {})
        pool.wait_all()
        for path in reversed(manifests):
            self._delete(base, path, _version(self.request) if path == top else {})

    def _collect(self, base: str, top: str) -> tuple[list[str], list[str]]:
        """The paths of all plain segments, and of all manifests from the top down; each once, what is named again counts as
        not found. No manifests: there is nothing to do, or an error."""
        limit = _MANY * self.slo.options.max_manifest_segments
        segments: dict[str, None] = {}
        manifests: dict[str, None] = {top: None}
        waiting = [top]
        while waiting:
            path = waiting.pop(0)
            found = self._manifest(base, path, _version(self.request) if path == top else {}, is_top=path == top)
            if found is None:
                del manifests[path]
                continue
            for segment in found:
                if not isinstance(segment, ObjectSegment):
                    continue
                if segment.path in manifests or segment.path in segments:
                    self.missing += 1
                elif segment.is_manifest:
                    manifests[segment.path] = None
                    waiting.append(segment.path)
                else:
                    segments[segment.path] = None
                if len(segments) + len(manifests) > limit:
                    raise BadRequest(f"Too many buffered slo segments to delete, the limit is {limit}")
        return list(segments), list(manifests)

    def _manifest(self, base: str, path: str, params: dict[str, str], is_top: bool) -> list[Segment] | None:
        """The segments of the manifest at ``path``; None when it is not there, or cannot be read (noted)."""
        response = _ask(self.slo, self.request.environ, "GET", base + path, {"multipart-manifest": "get", **params})
        if response.status == 404:
            response.drain()
            self.missing += 1
            return None
        if not response.is_success:
            response.drain()
            self.errors.append((quoted(path), status_line(response.status)))
            return None
        if not is_true(response.headers.get("X-Static-Large-Object")):
            response.close()
            if not is_top:
                return []  # overwritten by something plain: it goes as a segment does
            self.errors.append((quoted(path), _NOT_SLO))
            return None
        try:
            return decode(response.read(MANIFEST_LIMIT))
        except (ManifestError, ValueError):
            self.errors.append((quoted(path), "Unable to load SLO manifest"))
            return None

    def _delete(self, base: str, path: str, params: dict[str, str]) -> None:
        try:
            response = _ask(self.slo, self.request.environ, "DELETE", base + path, params)
            response.drain()
            status = response.status
        except (KeelstoreError, OSError):
            status = 503
        if status // 100 == 2:
            self.deleted += 1
        elif status == 404:
            self.missing += 1
        else:
            self.errors.append((quoted(path), status_line(status)))


# -- async=on ----------------------------------------------------------------------------------------------------------


class _AclRequest(Request):
    """A request as authorisation functions want it: with the ACL that applies."""

    __slots__ = ("acl",)
    acl: str | None


def _delete_later(slo: Slo, request: Request) -> Any:
    """Enter the segments into the expiry queue; gives the app, for the plain DELETE of the manifest. Raises RequestError."""
    environ = request.environ
    _, version, account, container, obj = request.path.split("/", 4)
    response = _ask(slo, environ, "GET", request.path, {"multipart-manifest": "get", **_version(request)})
    if response.status == 404:
        response.drain()
        raise NotFound("SLO manifest not found")
    if not response.is_success:
        return response
    if not is_true(response.headers.get("X-Static-Large-Object")):
        response.close()
        raise BadRequest(_NOT_SLO)
    try:
        segments = [item for item in decode(response.read(MANIFEST_LIMIT)) if isinstance(item, ObjectSegment)]
    except (ManifestError, ValueError):
        raise RequestError("Unable to load SLO manifest", status=500) from None
    if any(segment.is_manifest for segment in segments):
        raise BadRequest("No segments may be large objects.")
    containers = dict.fromkeys(segment.path.split("/", 2)[1] for segment in segments)
    if len(containers) > 1:
        names = ", ".join(f'"{quoted(name)}"' for name in containers)
        raise BadRequest(f"All segments must be in one container. Found segments in {names}")
    for name in dict.fromkeys((container, *containers)):
        denied = _denied(slo, environ, f"/{version}/{account}/{name}/{obj}", account, name)
        if denied is not None:
            return denied
    if segments:
        _enqueue(slo, environ, account, f"{container}/{obj}", dict.fromkeys(segment.path for segment in segments))
    environ["QUERY_STRING"] = encode_query(_version(request))
    return slo.app


def _denied(slo: Slo, environ: Environ, path: str, account: str, container: str) -> Any:
    """None when the client may write to the container, else the answer that says no."""
    authorize = environ.get(AUTHORIZE)
    if authorize is None:
        return None
    info = container_info(environ, slo.app, account, container, source=slo.SOURCE)
    asked = _AclRequest(subrequest(environ, "DELETE", path, source=slo.SOURCE))
    asked.acl = asked.environ[ACL] = info.write_acl
    return authorize(asked)


def _enqueue(slo: Slo, environ: Environ, account: str, own: str, paths: Iterable[str]) -> None:
    """Rows that let the expirer delete the segments now. Raises RequestError (503)."""
    options, now = slo.options, Timestamp.now()
    container, _, obj = own.partition("/")
    if slo.hash_path is None:
        raise RequestError("The expiry queue cannot be found without the cluster file", status=503)
    queue = expirer_container(int(now), options.expiring_objects_container_divisor,
                              slo.hash_path.digest(account, container, obj))
    when = normalize_delete_at(float(now), high_precision=True)
    rows = [{"name": f"{when}-{account}{path}", "deleted": 0, "created_at": now.internal, "etag": _EMPTY, "size": 0,
             "storage_policy_index": 0, "content_type": "application/async-deleted"} for path in paths]
    for start in range(0, len(rows), _ROWS):
        asked = subrequest(environ, "UPDATE", f"/v1/.{options.expiring_objects_account_name}/{queue}", source=slo.SOURCE,
                           pre_authed=True, body=json.dumps(rows[start:start + _ROWS]).encode("ascii"), headers={
                               "X-Backend-Storage-Policy-Index": "0", "X-Backend-Allow-Private-Methods": "True",
                               "Content-Type": "application/json"})
        response = call_app(slo.app, asked)
        response.drain()
        if not response.is_success:
            raise RequestError("Failed to enqueue expiration entries", status=503)
