"""A whole cluster in this process behind listing_formats, versioned_writes and symlink."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from keelstore.common.http import Response
from keelstore.common.middleware.listing_formats import ListingFormats
from keelstore.common.middleware.symlink import Symlink, SymlinkOptions
from keelstore.common.middleware.versioned_writes import VersionedWrites, VersionedWritesOptions
from test.support import fakes
from test.support.cluster import InProcessCluster


class Store:
    """``ask`` as the owner of /v1/a; paths are relative to the account."""

    def __init__(self, cluster: InProcessCluster):
        self.cluster = cluster
        self.app = self.pipeline()
        self.extra: dict[str, Any] = {}
        self.asked: list[str] = []  # what goes to the proxy itself: method and path
        self.failing: set[str] = set()  # of those, what is answered 503

    def pipeline(self, **options: Any) -> Any:
        own = VersionedWritesOptions(**{"allow_versioned_writes": True, "allow_object_versioning": True, **options})
        proxy = self.cluster.proxy

        def watched(environ: Any, start_response: Any) -> Any:
            asked = f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}"
            self.asked.append(asked)
            if asked in self.failing:
                return Response(503)(environ, start_response)
            return proxy(environ, start_response)

        return ListingFormats(VersionedWrites(Symlink(watched, SymlinkOptions()), own, proxy.cluster.limits,
                                              proxy.cluster.policies))

    def ask(self, method: str, path: str = "", headers: dict[str, Any] | None = None, body: Any = b"", query: str = "",
            app: Any = None, **extra: Any) -> Response:
        found = {"swift__cache": self.cluster.cache, "swift_owner": True, **self.extra, **extra}
        return fakes.ask(app or self.app, method, f"/v1/a{path}", headers, body, query, **found)

    def put(self, path: str, body: bytes = b"", **headers: str) -> Response:
        response = self.ask("PUT", path, {name.replace("_", "-"): value for name, value in headers.items()}, body)
        assert response.status in (201, 202), (response.status, response.body)
        return response

    def get(self, path: str, query: str = "") -> Response:
        return self.ask("GET", path, query=query)

    def hidden(self, method: str, path: str, **kwargs: Any) -> Response:
        """Straight to the proxy, reserved names allowed."""
        return self.cluster.ask(method, f"/v1/a{path}", {"X-Backend-Allow-Reserved-Names": "true"}, **kwargs)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    cluster = InProcessCluster(tmp_path, nodes=1, devices=3)
    yield Store(cluster)
    cluster.close()


@pytest.fixture
def forbids() -> Callable[..., dict[str, Any]]:
    """Environ of a client that may do what ``acl`` says: the authorization function allows only where ACL holds it."""

    def environ(acl: str) -> dict[str, Any]:
        def authorize(request: Any) -> Response | None:
            return None if request.acl and acl in request.acl else Response(403)

        return {"swift__authorize": authorize, "swift_owner": False}

    return environ
