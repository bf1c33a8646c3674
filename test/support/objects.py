"""An object store, or an object server, over a temporary directory."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from hashlib import md5
from typing import Any

from keelstore.common.backend import Backend
from keelstore.common.cluster import Cluster
from keelstore.common.headers import Headers
from keelstore.common.http import Response, WSGIApp
from keelstore.common.limits import Limits
from keelstore.common.names import HashPath
from keelstore.common.policy import ErasureCodingPolicy, Policies, ReplicationPolicy
from keelstore.common.room import Reserve
from keelstore.common.timestamp import Timestamp
from keelstore.obj import layout
from keelstore.obj.options import ObjectServerOptions
from keelstore.obj.place import Place
from keelstore.obj.server import ObjectServer
from keelstore.obj.store import ObjectStore

HASH_PATH = HashPath(b"p", b"s")
POLICIES = Policies.of([
    ReplicationPolicy(0, "gold", is_default=True),
    ReplicationPolicy(1, "silver"),
    ErasureCodingPolicy(2, "ec42", ndata=4, nparity=2),
])  # fmt: skip
NOW = 1700000000.0
OBJECT = ("127.0.0.1", 6200)


class Clock:
    def __init__(self, now: float = NOW):
        self.now = now

    def __call__(self) -> float:
        return self.now


def stamp(seconds: float, offset: int = 0) -> Timestamp:
    """``seconds`` after NOW."""
    return Timestamp(NOW + seconds, offset)


class StoreBox:
    """A store with one device."""

    def __init__(self, directory: str, reserve: str = "0", **options: Any):
        self.devices = directory
        self.device_path = f"{directory}/sda1"
        os.makedirs(self.device_path, exist_ok=True)
        self.clock = Clock()
        self.store = ObjectStore(HASH_PATH, reserve=Reserve.parse(reserve), clock=self.clock, **options)

    def place(self, name: str = "o", partition: str = "7", policy: int = 0) -> Place:
        return self.store.place("sda1", self.device_path, POLICIES.by_index[policy], partition, "a", "c", name)

    def put(self, name: str = "o", body: bytes = b"hello", at: float = 0, metadata: dict[str, str] | None = None,
            **options: Any) -> Place:
        place = self.place(name)
        when = stamp(at)
        self.store.write(place, when, body, metadata_of(place, when, body, metadata), **options)
        return place

    def files(self, place: Place) -> list[str]:
        """The names in its hash directory, short: seconds after NOW and kind."""
        try:
            names = os.listdir(place.directory)
        except FileNotFoundError:
            return []
        return sorted(_short(name) for name in names)


def _short(name: str) -> str:
    if name.startswith(layout.ATTRS):
        return f"{float(name[len(layout.ATTRS):]) - NOW:g}.attrs"
    stem, _, kind = name.rpartition(".")
    return f"{float(stem) - NOW:g}.{kind}"


def metadata_of(place: Place, when: Timestamp, body: bytes, more: dict[str, str] | None = None) -> dict[str, str]:
    return {
        "X-Timestamp": when.internal, "Content-Type": "text/plain", "Content-Length": str(len(body)),
        "ETag": md5(body, usedforsecurity=False).hexdigest(), **(more or {}), "name": place.name,
    }  # fmt: skip


class ServerBox(StoreBox):
    """An object server with one device, called in process. ``peers`` are container servers by address."""

    def __init__(self, directory: str, peers: dict[tuple[str, int], WSGIApp] | None = None, limits: Limits | None = None,
                 **options: Any):
        super().__init__(directory)
        self.logger = logging.getLogger("test.object-server")
        self.local: dict[tuple[str, int], WSGIApp] = dict(peers or {})
        self.backend = Backend(0.2, local=self.local)
        values: dict[str, Any] = {"devices": directory, "mount_check": False, "fallocate_reserve": "0", **options}
        cluster = Cluster(directory, directory, HASH_PATH, POLICIES, limits or Limits())
        self.app = ObjectServer(ObjectServerOptions(**values), cluster, self.backend, self.logger, self.clock)
        self.store = self.app.store
        self.local[OBJECT] = self.app

    def call(self, method: str, path: str = "/sda1/7/a/c/o", headers: dict[str, str] | None = None, body: bytes = b"",
             at: float | None = None, digest: Callable[[], str] | None = None) -> Response:
        """One request; ``at`` gives it an X-Timestamp."""
        sent = Headers(headers or {})
        if at is not None:
            sent.setdefault("X-Timestamp", stamp(at).internal)
        if method == "PUT":
            sent.setdefault("Content-Type", "text/plain")
        return self.backend.call(OBJECT, method, path, sent, body=body, digest=digest)


class Peer:
    """A container server that notes what it is told and answers as told."""

    def __init__(self, status: str = "201 Created", headers: list[tuple[str, str]] | None = None):
        self.status, self.headers = status, headers or []
        self.calls: list[tuple[str, str, Headers]] = []

    def __call__(self, environ: dict[str, Any], start_response: Any) -> list[bytes]:
        headers = Headers({
            key[5:].replace("_", "-"): value for key, value in environ.items() if key.startswith("HTTP_")
        })  # fmt: skip
        self.calls.append((environ["REQUEST_METHOD"], environ["PATH_INFO"], headers))
        start_response(self.status, [*self.headers, ("Content-Length", "0")])
        return []
