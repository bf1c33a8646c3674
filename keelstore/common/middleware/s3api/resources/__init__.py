"""The operations of S3, one module for each kind of resource; each lists its ``ROUTES``.

``service``: ListBuckets. ``bucket``: create, head, delete, location. ``listing``: ListObjects. ``objects``: put, get,
head, delete.
"""

from __future__ import annotations

from keelstore.common.middleware.s3api.resources import bucket, listing, objects, service
from keelstore.common.middleware.s3api.routing import Router


def router() -> Router:
    return Router((*service.ROUTES, *bucket.ROUTES, *listing.ROUTES, *objects.ROUTES))
