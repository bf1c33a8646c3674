"""The operations of S3, one module for each kind of resource; each lists its ``ROUTES``.

``service``: ListBuckets. ``bucket``: create, head, delete, location. ``listing``: ListObjects. ``objects``: put, get,
head, delete. ``copies``: CopyObject. ``uploads``, ``parts``, ``complete``: uploads in parts.
``versioning``: the configuration, ListObjectVersions. ``multi_delete``: DeleteObjects. ``tagging``, ``object_lock``,
``attributes``: what is said of an object besides. ``acls``: ACLs of buckets and objects.
``ownership``, ``public_access``, ``policy``: who owns objects, what may be public, who may do what.
``website``: what staticweb serves. ``configs``: CORS, lifecycle, encryption, and what is not offered.
"""

from __future__ import annotations

from keelstore.common.middleware.s3api.resources import (
    acls,
    attributes,
    bucket,
    complete,
    configs,
    listing,
    multi_delete,
    object_lock,
    objects,
    ownership,
    parts,
    policy,
    public_access,
    service,
    tagging,
    uploads,
    versioning,
    website,
)
from keelstore.common.middleware.s3api.routing import Router


def router() -> Router:
    modules = (
        service,
        bucket,
        listing,
        objects,
        uploads,
        parts,
        complete,
        versioning,
        multi_delete,
        tagging,
        object_lock,
        attributes,
        acls,
        ownership,
        public_access,
        policy,
        website,
        configs,
    )
    return Router(route for module in modules for route in module.ROUTES)
