"""What is known of an account, a container or an object: asked through the pipeline, cached (``spec: proxy 11``).

Order of asking: ``environ["swift.infocache"]`` (this request), ``environ["swift.cache"]`` (memcached or the node's embedded
cache; may be None), a HEAD through ``app``. The proxy remembers what such a HEAD, or a client's own, has found. Cached values
are the JSON objects that Swift keeps under the same keys, so both can share a memcached. Values are wire strings, metadata
keys lower case without their prefix.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote

from keelstore.common.headers import Headers
from keelstore.common.http import CACHE, INFOCACHE, Environ, Request, WSGIApp, call_app
from keelstore.common.internal import subrequest
from keelstore.common.names import api_path

ACCOUNT_RECHECK: Final = "X-Backend-Recheck-Account-Existence"
CONTAINER_RECHECK: Final = "X-Backend-Recheck-Container-Existence"
CHANGING_S: Final = 10.0  # that a write may take, or a replica may lag behind a write that did not reach all of them
NEGATIVE_SHARE: Final = 0.1  # of the recheck time, for what is not there

_CHANGING: Final = "keelstore/changing/"
_CORS_KEYS = ("allow-origin", "expose-headers", "max-age")
_MAX_PARSED = 4096


@dataclass(frozen=True, slots=True)
class AccountInfo:
    """``status`` is 0 when nothing could be asked. ``really_exists`` is False for an account that autocreate would make."""

    status: int = 0
    container_count: int = 0
    total_object_count: int = 0
    bytes: int = 0
    storage_policies: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    meta: Mapping[str, str] = field(default_factory=dict)
    sysmeta: Mapping[str, str] = field(default_factory=dict)
    really_exists: bool = False

    @property
    def is_success(self) -> bool:
        return self.status // 100 == 2

    def to_cache(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "status": self.status,
            "container_count": str(self.container_count),
            "total_object_count": str(self.total_object_count),
            "bytes": str(self.bytes),
            "storage_policies": {str(index): dict(counts) for index, counts in self.storage_policies.items()},
            "meta": dict(self.meta),
            "sysmeta": dict(self.sysmeta),
        }
        if self.is_success:
            found["account_really_exists"] = self.really_exists
        return found

    @classmethod
    def from_cache(cls, value: Mapping[str, Any]) -> AccountInfo:
        """Raises TypeError or ValueError for what is no such value."""
        return cls(
            int(value["status"]),
            _number(value.get("container_count")),
            _number(value.get("total_object_count")),
            _number(value.get("bytes")),
            {int(index): counts for index, counts in (value.get("storage_policies") or {}).items()},
            value.get("meta") or {},
            value.get("sysmeta") or {},
            bool(value.get("account_really_exists", value["status"] // 100 == 2)),
        )


@dataclass(frozen=True, slots=True)
class ContainerInfo:
    """``status`` is 0 when the account is not there. ``storage_policy`` is a policy index. Times are wire timestamps."""

    status: int = 0
    read_acl: str | None = None
    write_acl: str | None = None
    sync_to: str | None = None
    sync_key: str | None = None
    object_count: int = 0
    bytes: int = 0
    versions: str | None = None
    storage_policy: int = 0
    cors: Mapping[str, str | None] = field(default_factory=lambda: dict.fromkeys(("allow_origin", "expose_headers",
                                                                                  "max_age")))
    meta: Mapping[str, str] = field(default_factory=dict)
    sysmeta: Mapping[str, str] = field(default_factory=dict)
    sharding_state: str = "unsharded"
    created_at: str | None = None
    put_timestamp: str | None = None
    delete_timestamp: str | None = None
    status_changed_at: str | None = None

    @property
    def is_success(self) -> bool:
        return self.status // 100 == 2

    def to_cache(self) -> dict[str, Any]:
        return {
            "status": self.status,
            "read_acl": self.read_acl,
            "write_acl": self.write_acl,
            "sync_to": self.sync_to,
            "sync_key": self.sync_key,
            "object_count": str(self.object_count),
            "bytes": str(self.bytes),
            "versions": self.versions,
            "storage_policy": str(self.storage_policy),
            "cors": dict(self.cors),
            "meta": dict(self.meta),
            "sysmeta": dict(self.sysmeta),
            "sharding_state": self.sharding_state,
            "created_at": self.created_at,
            "put_timestamp": self.put_timestamp,
            "delete_timestamp": self.delete_timestamp,
            "status_changed_at": self.status_changed_at,
        }

    @classmethod
    def from_cache(cls, value: Mapping[str, Any]) -> ContainerInfo:
        """Raises KeyError, TypeError or ValueError for what is no such value."""
        cors = value.get("cors") or {}
        return cls(
            int(value["status"]),
            value.get("read_acl"),
            value.get("write_acl"),
            value.get("sync_to"),
            value.get("sync_key"),
            _number(value.get("object_count")),
            _number(value.get("bytes")),
            value.get("versions"),
            _number(value.get("storage_policy")),
            {key: cors.get(key) for key in ("allow_origin", "expose_headers", "max_age")},
            value.get("meta") or {},
            value.get("sysmeta") or {},
            value.get("sharding_state") or "unsharded",
            value.get("created_at"),
            value.get("put_timestamp"),
            value.get("delete_timestamp"),
            value.get("status_changed_at"),
        )


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    status: int = 0
    length: int | None = None
    type: str | None = None
    etag: str | None = None
    meta: Mapping[str, str] = field(default_factory=dict)
    sysmeta: Mapping[str, str] = field(default_factory=dict)
    transient_sysmeta: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_success(self) -> bool:
        return self.status // 100 == 2


def _number(value: Any) -> int:
    return int(value or 0)


def cache_key(account: str, container: str = "") -> str:
    return f"container/{account}/{container}" if container else f"account/{account}"


# -- from the headers of an answer -------------------------------------------------------------------------------------


def _below(headers: Headers, prefix: str) -> dict[str, str]:
    cut = len(prefix)
    return {name[cut:].lower(): value for name, value in headers.items() if name.startswith(prefix)}


def account_info_of(status: int, headers: Headers, policy_index: Callable[[str], int | None] | None = None) -> AccountInfo:
    """What the answer to a HEAD or GET of an account tells. ``policy_index`` maps the policy names in its headers to
    indexes; without it the counts per policy are left out."""
    policies: dict[int, dict[str, int]] = {}
    prefix = "X-Account-Storage-Policy-"
    for name, value in headers.items() if policy_index is not None else ():
        if not name.startswith(prefix) or not value.isdigit():
            continue
        for ending, key in (("-Container-Count", "container_count"), ("-Object-Count", "object_count"),
                            ("-Bytes-Used", "bytes")):
            if policy_index is not None and name.endswith(ending):
                index = policy_index(name[len(prefix):-len(ending)])
                if index is not None:
                    policies.setdefault(index, {})[key] = int(value)
    return AccountInfo(
        status,
        _header_number(headers, "X-Account-Container-Count"),
        _header_number(headers, "X-Account-Object-Count"),
        _header_number(headers, "X-Account-Bytes-Used"),
        policies,
        _below(headers, "X-Account-Meta-"),
        _below(headers, "X-Account-Sysmeta-"),
        status // 100 == 2 and headers.get("X-Backend-Fake-Account-Listing", "").lower() not in ("yes", "true"),
    )


def container_info_of(status: int, headers: Headers) -> ContainerInfo:
    """What the answer to a HEAD or GET of a container tells."""
    get = headers.get
    meta = _below(headers, "X-Container-Meta-")
    return ContainerInfo(
        status,
        get("X-Container-Read"),
        get("X-Container-Write"),
        get("X-Container-Sync-To"),
        get("X-Container-Sync-Key"),
        _header_number(headers, "X-Container-Object-Count"),
        _header_number(headers, "X-Container-Bytes-Used"),
        get("X-Versions-Location"),
        _header_number(headers, "X-Backend-Storage-Policy-Index"),
        {key.replace("-", "_"): meta.get(f"access-control-{key}") for key in _CORS_KEYS},
        {key: value for key, value in meta.items() if not (key.startswith("access-control-") and key[15:] in _CORS_KEYS)},
        _below(headers, "X-Container-Sysmeta-"),
        get("X-Backend-Sharding-State", "unsharded"),
        get("X-Backend-Timestamp"),
        get("X-Backend-Put-Timestamp"),
        get("X-Backend-Delete-Timestamp"),
        get("X-Backend-Status-Changed-At"),
    )


def _header_number(headers: Headers, name: str) -> int:
    value = headers.get(name)
    return int(value) if value and value.isascii() and value.isdigit() else 0


# -- cache -------------------------------------------------------------------------------------------------------------

_parsed: dict[str, tuple[Any, AccountInfo | ContainerInfo]] = {}  # what each key's cached value was parsed to last


def _parse(kind: type[AccountInfo] | type[ContainerInfo], key: str, value: Any) -> Any:
    last = _parsed.get(key)
    if last is not None and (last[0] is value or last[0] == value):
        return last[1]
    try:
        info = kind.from_cache(json.loads(value) if isinstance(value, bytes) else value)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return None  # another program's value, or damaged: ask anew
    if len(_parsed) >= _MAX_PARSED:
        _parsed.clear()
    _parsed[key] = (value, info)
    return info


def _cached(environ: Environ, kind: type[AccountInfo] | type[ContainerInfo], key: str, skip_pct: float) -> Any:
    infocache = environ.setdefault(INFOCACHE, {})
    info = infocache.get(key)
    if info is not None:
        return info if type(info) is kind else _parse(kind, key, info)
    cache = environ.get(CACHE)
    if cache is None or (skip_pct and random.random() * 100 < skip_pct):
        return None
    get_raw = getattr(cache, "get_raw", None)  # the caches of others lack it
    value = cache.get(key) if get_raw is None else get_raw(key)
    if not value:
        return None
    info = _parse(kind, key, value)
    if info is not None:
        infocache[key] = info
    return info


def remember(environ: Environ, key: str, info: AccountInfo | ContainerInfo, recheck_s: float) -> None:
    """Keep what an answer told, for this request and, when it is certain (2xx, 404, 410), for others.

    An account that autocreate would make is kept no longer than one that is missing, lest its creation go unseen. Nothing is
    kept for others while it changes (:func:`begin_change`). What is kept already is left to its time.
    """
    environ.setdefault(INFOCACHE, {})[key] = info
    cache = environ.get(CACHE)
    if cache is None:
        return
    get_beside = getattr(cache, "get_beside", None)  # the caches of others lack it
    if get_beside is None:
        if cache.get(_CHANGING + key):
            return
    else:  # one question, which a client's HEAD or GET of something unchanged ends with
        kept, changing = get_beside(key, _CHANGING + key)
        if changing or (kept and _parse(type(info), key, kept) == info):
            return
    if info.status // 100 == 2:
        is_faked = isinstance(info, AccountInfo) and not info.really_exists
        cache.set(key, info.to_cache(), recheck_s * NEGATIVE_SHARE if is_faked else recheck_s)
    elif info.status in (404, 410):
        cache.set(key, info.to_cache(), recheck_s * NEGATIVE_SHARE)


def _is_changing(cache: Any, key: str) -> bool:
    get_beside = getattr(cache, "get_beside", None)
    return bool(cache.get(_CHANGING + key) if get_beside is None else get_beside(key, _CHANGING + key)[1])


def clear_info(environ: Environ, account: str, container: str = "") -> None:
    """Forget what was known of the container, or without one of the account."""
    key = cache_key(account, container)
    environ.setdefault(INFOCACHE, {}).pop(key, None)
    cache = environ.get(CACHE)
    if cache is not None:
        cache.delete(key)


def begin_change(environ: Environ, account: str, container: str = "") -> None:
    """Before a write to the container, or without one to the account; then :func:`end_change`.

    From here on nothing is kept, and who must know asks for the newest replica: an answer from before the write, or of a
    replica that it has not reached, must not be what everybody believes for a minute. An ACL may have been withdrawn.
    """
    cache = environ.get(CACHE)
    if cache is not None:
        key = cache_key(account, container)
        if hasattr(cache, "get_beside"):
            cache.set(_CHANGING + key, 1, CHANGING_S, at=key)
        else:
            cache.set(_CHANGING + key, 1, CHANGING_S)
    clear_info(environ, account, container)


def end_change(environ: Environ, account: str, container: str, is_everywhere: bool) -> None:
    """After it. ``is_everywhere``: all replicas have taken it; otherwise things stay so for :data:`CHANGING_S`."""
    clear_info(environ, account, container)
    cache = environ.get(CACHE)
    if is_everywhere and cache is not None:
        key = cache_key(account, container)
        if hasattr(cache, "get_beside"):
            cache.delete(_CHANGING + key, at=key)
        else:
            cache.delete(_CHANGING + key)


@lru_cache(maxsize=1024)
def _keys_of(path: str) -> tuple[str, str]:
    """The keys of the account and of the container that a request's path names."""
    names = api_path(path)
    return cache_key(names.account), cache_key(names.account, names.container)


def account_info(environ: Environ, app: WSGIApp, account: str | None = None, source: str | None = None,
                 skip_pct: float = 0) -> AccountInfo:
    """What is known of an account, by default that of the request's path."""
    if account is None:
        path = environ["PATH_INFO"]
        account, key = api_path(path).account, _keys_of(path)[0]
    else:
        key = cache_key(account)
    info = _cached(environ, AccountInfo, key, skip_pct)
    if info is not None:
        return info
    status, headers = _head(environ, app, f"/v1/{account}", source or "GET_ACCOUNT_INFO", key)
    info = environ[INFOCACHE].get(key)
    if isinstance(info, AccountInfo) and info.status == status:
        return info
    info = environ[INFOCACHE][key] = account_info_of(status, headers)
    return info


def container_info(environ: Environ, app: WSGIApp, account: str | None = None, container: str | None = None,
                   source: str | None = None, skip_pct: float = 0) -> ContainerInfo:
    """What is known of a container, by default that of the request's path. ``status`` 0: its account is not there."""
    if account is None or container is None:
        path = environ["PATH_INFO"]
        names = api_path(path)
        account, container, key = names.account, names.container, _keys_of(path)[1]
    else:
        key = cache_key(account, container)
    info = _cached(environ, ContainerInfo, key, skip_pct)
    if info is None:
        if not account.startswith("."):
            owner = account_info(environ, app, account, source)
            if not owner.is_success or not owner.really_exists:
                return ContainerInfo(status=owner.status if owner.status // 100 == 5 else 0)
        status, headers = _head(environ, app, f"/v1/{account}/{container}", source or "GET_CONTAINER_INFO", key)
        info = environ[INFOCACHE].get(key)
        if not isinstance(info, ContainerInfo) or info.status != status:
            info = environ[INFOCACHE][key] = container_info_of(status, headers)
    versions = info.sysmeta.get("versions-container") if info.sysmeta else None
    if versions:
        other = container_info(environ, app, account, unquote(versions), source)
        return replace(info, bytes=info.bytes + other.bytes)
    return info


def object_info(environ: Environ, app: WSGIApp, path: str | None = None, source: str | None = None) -> ObjectInfo:
    """What a HEAD tells of an object (``path`` is text, default the request's own); kept for this request only."""
    if path is None:
        path = Request(environ).path
    key = "object/" + path.split("/", 2)[-1]
    info = environ.setdefault(INFOCACHE, {}).get(key)
    if isinstance(info, ObjectInfo):
        return info
    status, headers = _head(environ, app, path, source or "GET_OBJECT_INFO")
    length = headers.get("Content-Length", "")
    info = environ[INFOCACHE][key] = ObjectInfo(
        status, int(length) if length.isdigit() else None, headers.get("Content-Type"), headers.get("Etag"),
        _below(headers, "X-Object-Meta-"), _below(headers, "X-Object-Sysmeta-"),
        _below(headers, "X-Object-Transient-Sysmeta-"),
    )  # fmt: skip
    return info


def _head(environ: Environ, app: WSGIApp, path: str, source: str, key: str = "") -> tuple[int, Headers]:
    headers = {"X-Backend-Allow-Reserved-Names": "true"}
    cache = environ.get(CACHE)
    if key and cache is not None and _is_changing(cache, key):
        headers["X-Newest"] = "true"
    asked = subrequest(environ, "HEAD", path, source=source, pre_authed=True, headers=headers)
    asked.pop("HTTP_ORIGIN", None)
    asked[INFOCACHE] = environ[INFOCACHE]
    owner = getattr(app, "__self__", app)  # the loader of pipelines hands on methods
    response = call_app(getattr(owner, "logged_app", None) or app, asked)
    response.drain()
    return response.status, response.headers
