"""Which handler serves an S3 request, and what right it asks for (``spec: s3-api 3.0``).

Each module in ``resources`` lists its ``ROUTES``. A sub-resource that no route names is refused: it must never fall
through to the plain operation on bucket or object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from keelstore.common.http import Response
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.request import S3Request

SERVICE, BUCKET, OBJECT = "SERVICE", "BUCKET", "OBJECT"
Handler = Callable[[S3Request], Response]

# Rights: a permission of an ACL, or OWNER (of the bucket), or ANYONE (the handler sees to it).
OWNER, ANYONE = "OWNER", "ANYONE"

# Names in a query that choose an operation, in the order they are looked for. What is not here is an ordinary parameter.
SUB_RESOURCES: Final = (
    "accelerate", "acl", "analytics", "annotation", "attributes", "cors", "delete", "encryption",
    "intelligent-tiering", "inventory", "legal-hold", "lifecycle", "location", "logging", "metadataConfiguration",
    "metadataTable", "metadataInventoryTable", "metadataJournalTable", "metadataAnnotationTable", "metrics",
    "notification", "object-lock", "ownershipControls", "policy", "policyStatus", "publicAccessBlock",
    "renameObject", "replication", "requestPayment", "restore", "retention", "select", "session", "tagging",
    "torrent", "abac", "website", "uploads", "uploadId", "versioning", "versions",
)  # fmt: skip


@dataclass(frozen=True)
class Route:
    """``level``, ``sub`` and ``method`` choose it. ``permission`` is a word of ``acl``, OWNER or ANYONE, on the bucket unless
    ``on_object``; ``action`` is the name that policies use."""

    level: str
    method: str
    handler: Handler
    action: str
    permission: str
    sub: str = ""
    on_object: bool = False


class Router:
    def __init__(self, routes: Iterable[Route]):
        self._routes: dict[tuple[str, str, str], Route] = {}
        for route in routes:
            key = (route.level, route.sub, route.method)
            assert key not in self._routes, key
            self._routes[key] = route
        self._methods: dict[tuple[str, str], set[str]] = {}
        for level, sub, method in self._routes:
            self._methods.setdefault((level, sub), set()).add(method)

    def keys(self) -> Iterable[tuple[str, str, str]]:
        """Level, sub-resource and method of every route."""
        return self._routes.keys()

    def route(self, request: S3Request) -> Route:
        """Raises S3Error when there is none."""
        target = request.target
        level = SERVICE if target.bucket is None else BUCKET if target.key is None else OBJECT
        query = request.query
        sub = next((name for name in SUB_RESOURCES if name in query), "") if query else ""
        found = self._routes.get((level, sub, request.method))
        if found is not None:
            return found
        if sub and (level, sub) not in self._methods:
            raise S3Error("NotImplemented", f"The sub-resource {sub} is not implemented.", Header=sub)
        if sub and request.method in ("GET", "PUT", "DELETE", "POST"):
            raise S3Error(
                "NotImplemented", f"{request.method} of the sub-resource {sub} is not implemented.", Header=sub
            )
        allowed = ", ".join(sorted(self._methods.get((level, sub), ())))
        raise S3Error(
            "MethodNotAllowed", Method=request.method, ResourceType=sub.upper() or level, headers={"Allow": allowed}
        )
