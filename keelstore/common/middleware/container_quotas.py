"""container_quotas: limits to the bytes and objects of a container, set by its owner (``spec: middleware 17``).

``X-Container-Meta-Quota-Bytes`` and ``X-Container-Meta-Quota-Count`` set them. An object PUT that would go beyond gets 413.
The counts are those last known here, up to a minute old; what a PUT replaces is not credited.

Stands after authentication and copy. Needs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from keelstore.common.http import Environ, Response, StartResponse, WSGIApp
from keelstore.common.info import container_info
from keelstore.common.middleware.quotas import declared_bytes, exceeded, is_quota, quota_of
from keelstore.common.names import api_path
from keelstore.common.options import parse
from keelstore.common.registry import register_info

AFTER: Final = ("catch_errors", "gatekeeper", "memcache", "tempauth", "authtoken", "keystoneauth", "copy")
BEFORE: Final = ("slo", "dlo", "versioned_writes", "symlink", "encryption")

_SETTINGS: Final = (("HTTP_X_CONTAINER_META_QUOTA_BYTES", "Invalid bytes quota."),
                    ("HTTP_X_CONTAINER_META_QUOTA_COUNT", "Invalid count quota."))


@dataclass(frozen=True)
class ContainerQuotasOptions:
    """Options of ``[filter:container-quotas]``: none."""


class ContainerQuotas:
    def __init__(self, app: WSGIApp):
        self.app = app

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        method = environ["REQUEST_METHOD"]
        if method != "PUT" and method != "POST":
            return self.app(environ, start_response)
        names = api_path(environ["PATH_INFO"])
        answer = None
        if names.obj:
            if method == "PUT":
                answer = self._check_object(environ)
        elif names.container:
            answer = _check_settings(environ)
        return (self.app if answer is None else answer)(environ, start_response)

    def _check_object(self, environ: Environ) -> Any:
        info = container_info(environ, self.app, source="CQ")
        meta = info.meta
        if not meta or not info.is_success:
            return None
        limit, count = quota_of(meta.get("quota-bytes")), quota_of(meta.get("quota-count"))
        if (limit is not None and info.bytes + declared_bytes(environ) > limit) or (
                count is not None and info.object_count + 1 > count):
            return exceeded(environ, info.write_acl, "Upload exceeds quota.")
        return None


def _check_settings(environ: Environ) -> Response | None:
    for key, problem in _SETTINGS:
        value = environ.get(key)
        if value and not is_quota(value):
            return Response(400, body=problem, content_type="text/html; charset=UTF-8")
    return None


def filter_factory(global_conf: dict[str, str], **local_conf: str) -> Callable[[WSGIApp], ContainerQuotas]:
    parse(ContainerQuotasOptions, {**global_conf, **local_conf}, section="filter:container-quotas", local=local_conf,
          known=("use", "set *", "log_*"))
    register_info("container_quotas")
    return ContainerQuotas
