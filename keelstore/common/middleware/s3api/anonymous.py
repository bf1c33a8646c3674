"""Which requests without a signature are for S3: those whose path, or host, begins with the name of a bucket.

A request for Swift is never taken: not one with a token, a signed URL or any Authorization, nor one whose path is of Swift
or of something that stands beside it. Swift's own requests pay one comparison for that.
"""

from __future__ import annotations

from typing import Final

from keelstore.common.headers import wire_to_text
from keelstore.common.http import Environ
from keelstore.common.middleware.s3api.options import S3ApiOptions
from keelstore.common.middleware.s3api.target import bucket_of_host, is_bucket_name

ANONYMOUS_KIND: Final = "anonymous"
# First segments of paths that others answer; one that cannot be a bucket's name needs no mention.
_TAKEN: Final = frozenset(
    ("auth", "info", "healthcheck", "endpoints", "recon", "metrics", "status", "crossdomain.xml", "__profile__", "v1.0")
)
_SWIFT: Final = ("/v1/", "/v1.0/")
_METHODS: Final = frozenset(("GET", "HEAD", "PUT", "POST", "DELETE"))
_OF_SWIFT: Final = ("HTTP_X_AUTH_TOKEN", "HTTP_X_STORAGE_TOKEN", "HTTP_X_AUTH_USER", "HTTP_X_STORAGE_USER")


def bucket_of(environ: Environ, options: S3ApiOptions) -> str | None:
    """The bucket that an unsigned request may be for; None for what is none of ours."""
    path = environ["PATH_INFO"]
    if path.startswith(_SWIFT) or environ["REQUEST_METHOD"] not in _METHODS:
        return None
    if environ.get("HTTP_AUTHORIZATION") or "temp_url_sig=" in environ.get("QUERY_STRING", ""):
        return None
    if any(key in environ for key in _OF_SWIFT):
        return None
    by_host = bucket_of_host(environ.get("HTTP_HOST", ""), options.storage_domain) if options.storage_domain else None
    name = by_host or wire_to_text(path[1:].partition("/")[0])
    if (by_host is None and name in _TAKEN) or not is_bucket_name(name, options.dns_compliant_bucket_names):
        return None
    return name
