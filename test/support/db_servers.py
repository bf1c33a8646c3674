"""Account and container servers over a temporary directory, called as WSGI applications."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from keelstore.account.options import AccountServerOptions
from keelstore.account.server import AccountServer
from keelstore.common.cluster import Cluster
from keelstore.common.headers import Headers, environ_key, text_to_wire
from keelstore.common.http import Response, call_app
from keelstore.common.names import HashPath, storage_path
from keelstore.common.policy import Policies, ReplicationPolicy
from keelstore.container.options import ContainerServerOptions
from keelstore.container.server import ContainerServer

POLICIES = Policies.of([
    ReplicationPolicy(0, "gold", is_default=True), ReplicationPolicy(1, "silver"), ReplicationPolicy(2, "bronze"),
])  # fmt: skip
ACCOUNT_ADDRESS = ("127.0.0.1", 6202)


def cluster(directory: Path) -> Cluster:
    return Cluster(str(directory), str(directory / "keelstore.conf"), HashPath(b"", b"test"), POLICIES)


class LocalBackend:
    """Calls the WSGI applications registered for an address; records what was sent."""

    def __init__(self) -> None:
        self.apps: dict[tuple[str, int], Callable[..., Any]] = {}
        self.calls: list[tuple[tuple[str, int], str, str, Headers]] = []

    def call(self, address: tuple[str, int], method: str, path: str, headers: Headers, query: str = "",
             body: bytes = b"", *, timeout_s: float) -> Response:  # fmt: skip
        self.calls.append((address, method, path, headers))
        return call_app(self.apps[address], environ(method, path, headers, query=query, body=body))


def environ(
    method: str, path: str, headers: Mapping[str, Any] | None = None, *, query: str = "", body: bytes = b""
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "REQUEST_METHOD": method, "PATH_INFO": text_to_wire(path), "QUERY_STRING": query, "SCRIPT_NAME": "",
        "SERVER_NAME": "localhost", "SERVER_PORT": "80", "wsgi.url_scheme": "http", "wsgi.input": io.BytesIO(body),
    }  # fmt: skip
    if body:
        found["CONTENT_LENGTH"] = str(len(body))
    for name, value in (headers or {}).items():
        found[environ_key(name)] = str(value)
    return found


class Server:
    """One server of either kind, on one device ``sda``, partition 0."""

    def __init__(self, app: Any, root: Path):
        self.app, self.root = app, root
        self.device = root / "sda"
        self.device.mkdir(exist_ok=True)
        self.clock = 1_700_000_000

    def tick(self) -> str:
        """A timestamp newer than all before."""
        self.clock += 1
        return f"{self.clock}.00000"

    def __call__(self, method: str, path: str, headers: Mapping[str, Any] | None = None, *, query: str = "",
                 body: bytes = b"", at: str | None = None) -> Response:  # fmt: skip
        """``path`` follows the partition; X-Timestamp is ``at``, or now."""
        sent = Headers({"X-Timestamp": at or self.tick()})
        sent.update(headers or {})
        answer = call_app(self.app, environ(method, f"/sda/0{path}", sent, query=query, body=body))
        answer.body = answer.read()
        answer.app_iter = None
        return answer

    def db(self, account: str, container: str = "") -> Path:
        """The path of a database file."""
        name_hash = self.app.cluster.hash_path.hexdigest(account, container or None)
        return self.device / storage_path(self.app.datadir, "0", name_hash) / f"{name_hash}.db"


def account_server(root: Path, **options: Any) -> Server:
    parsed = AccountServerOptions(devices=str(root), mount_check=False, fallocate_reserve="0", **options)
    return Server(AccountServer(parsed, cluster(root), logging.getLogger("test")), root)


def container_server(root: Path, backend: LocalBackend | None = None, **options: Any) -> Server:
    parsed = ContainerServerOptions(devices=str(root), mount_check=False, fallocate_reserve="0", swift_dir=str(root),
                                    **options)  # fmt: skip
    return Server(ContainerServer(parsed, cluster(root), backend or LocalBackend(), logging.getLogger("test")), root)
