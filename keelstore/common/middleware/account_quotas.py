"""account_quotas: limits to the bytes and objects of an account, set by a reseller admin (``spec: middleware 18``).

``X-Account-Quota-Bytes`` and ``X-Account-Quota-Count`` set them, both also for one storage policy, with ``-Policy-<name>`` at
the end; ``X-Remove-Account-Quota-...``, or an empty value, takes them away. They lie in system metadata. Old clients set
``X-Account-Meta-Quota-Bytes``, which is still honoured. An object PUT that would go beyond gets 413, whoever asks but a
reseller admin. The counts are those last known here, up to a minute old.

Stands after authentication and copy. Needs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from keelstore.common.cluster import load_cluster
from keelstore.common.errors import ConfigError
from keelstore.common.headers import environ_key, title
from keelstore.common.http import RESELLER, Environ, Response, StartResponse, WSGIApp
from keelstore.common.info import AccountInfo, ContainerInfo, account_info, container_info
from keelstore.common.middleware.quotas import declared_bytes, exceeded, is_quota, quota_of
from keelstore.common.names import api_path
from keelstore.common.options import option, parse
from keelstore.common.policy import Policies
from keelstore.common.registry import register_info

AFTER: Final = ("catch_errors", "gatekeeper", "memcache", "tempauth", "authtoken", "keystoneauth", "copy")
BEFORE: Final = ("slo", "dlo", "versioned_writes", "symlink", "encryption")

_KINDS: Final = ("Bytes", "Count")
_LEGACY: Final = "HTTP_X_ACCOUNT_META_QUOTA_BYTES"
_LEGACY_REMOVE: Final = "HTTP_X_REMOVE_ACCOUNT_META_QUOTA_BYTES"


@dataclass(frozen=True)
class AccountQuotasOptions:
    """Options of ``[filter:account-quotas]``."""

    swift_dir: str = option("/etc/swift", "Directory of the cluster file.")


class AccountQuotas:
    def __init__(self, app: WSGIApp, policies: Policies | tuple[()] = ()):
        self.app = app
        self._sysmeta: dict[str, str] = {}  # environ key of what sets a quota: environ key of where it is kept
        self._removing: dict[str, str] = {}
        self._shown: dict[str, str] = {}  # header of where a quota is kept: header that shows it
        names = [("", "")]
        for policy in policies:
            names += [(f"-Policy-{name}", f"-Policy-{policy.index}") for name in reversed(policy.names)]
        for kind in _KINDS:
            for name, stored in names:
                kept = f"X-Account-Sysmeta-Quota-{kind}{stored}"
                self._sysmeta[environ_key(f"X-Account-Quota-{kind}{name}")] = environ_key(kept)
                self._removing[environ_key(f"X-Remove-Account-Quota-{kind}{name}")] = environ_key(kept)
                self._shown[title(kept)] = title(f"X-Account-Quota-{kind}{name}")

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        method = environ["REQUEST_METHOD"]
        if method == "DELETE" or method == "OPTIONS":
            return self.app(environ, start_response)
        names = api_path(environ["PATH_INFO"])
        if names.obj:
            answer = self._check_object(environ) if method == "PUT" else None
            return (self.app if answer is None else answer)(environ, start_response)
        if names.container or not names.account:
            return self.app(environ, start_response)
        if method == "GET" or method == "HEAD":
            return self.app(environ, self._showing(start_response))
        answer = self._settle(environ) if method == "PUT" or method == "POST" else None
        return (self.app if answer is None else answer)(environ, start_response)

    # -- settings ----------------------------------------------------------------------------------------------------

    def _settle(self, environ: Environ) -> Response | None:
        """Turn the headers that set quotas into system metadata. The answer that refuses them, or None."""
        asked: dict[str, str] = {}
        if _LEGACY in environ:
            asked["HTTP_X_ACCOUNT_SYSMETA_QUOTA_BYTES"] = environ[_LEGACY]
        elif _LEGACY_REMOVE in environ:
            asked["HTTP_X_ACCOUNT_SYSMETA_QUOTA_BYTES"] = ""
        for key, kept in self._removing.items():
            if key in environ:
                asked[kept] = ""
        for key, kept in self._sysmeta.items():
            if key in environ:
                asked[kept] = environ[key]
        if not asked:
            return None
        if not environ.get(RESELLER):
            return Response(403)
        if not all(is_quota(value) for value in asked.values()):
            return Response(400)
        environ.update(asked)
        return None

    def _showing(self, start_response: StartResponse) -> Any:
        """``start_response`` that adds the headers that show quotas."""

        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            shown = self._shown
            added = [(shown[name], value) for name, value in headers if name in shown and value]
            if added:
                headers = [*headers, *added]
            return start_response(status, headers) if exc_info is None else start_response(status, headers, exc_info)

        return start

    # -- uploads -----------------------------------------------------------------------------------------------------

    def _check_object(self, environ: Environ) -> Any:
        if environ.get(RESELLER):
            return None
        info = account_info(environ, self.app, source="AQ")
        sysmeta = info.sysmeta
        if not info.is_success or not (info.meta or sysmeta):
            return None
        limit = quota_of(sysmeta.get("quota-bytes") or info.meta.get("quota-bytes"))
        count = quota_of(sysmeta.get("quota-count"))
        if limit is None and count is None and not any(name.startswith("quota-") for name in sysmeta):
            return None
        container = container_info(environ, self.app, source="AQ")
        if not container.is_success:
            return None
        size = declared_bytes(environ)
        if _is_beyond(info.bytes, size, limit, info.total_object_count, count):
            return exceeded(environ, container.write_acl, "Upload exceeds quota.")
        if self._is_beyond_policy(info, container, size):
            return exceeded(environ, container.write_acl, "Upload exceeds policy quota.")
        return None

    def _is_beyond_policy(self, info: AccountInfo, container: ContainerInfo, size: int) -> bool:
        index = container.storage_policy
        used = info.storage_policies.get(index, {})
        return _is_beyond(used.get("bytes", 0), size, quota_of(info.sysmeta.get(f"quota-bytes-policy-{index}")),
                          used.get("object_count", 0), quota_of(info.sysmeta.get(f"quota-count-policy-{index}")))


def _is_beyond(used: int, size: int, limit: int | None, objects: int, count: int | None) -> bool:
    return (limit is not None and used + size > limit) or (count is not None and objects + 1 > count)


def filter_factory(global_conf: dict[str, str], **local_conf: str) -> Callable[[WSGIApp], AccountQuotas]:
    options = parse(AccountQuotasOptions, {**global_conf, **local_conf}, section="filter:account-quotas", local=local_conf,
                    known=("use", "set *", "log_*"))
    policies: Policies | tuple[()] = ()
    try:
        policies = load_cluster(options.swift_dir).policies
    except ConfigError:  # the proxy itself says so if that matters
        pass
    register_info("account_quotas")
    return lambda app: AccountQuotas(app, policies)
