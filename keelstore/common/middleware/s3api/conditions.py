"""Conditions of writes and deletes: what the object must be like for them to happen (``spec: s3-api 3.5, 3.10``). Pure."""

from __future__ import annotations

from dataclasses import dataclass

from keelstore.common.headers import Headers
from keelstore.common.http import parse_http_date
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.etags import bare, object_etag
from keelstore.common.middleware.s3api.request import S3Request


def _names(header: str, headers: Headers) -> bool:
    """Whether a header's list of entity tags has that of the object, or is ``*``."""
    wanted = [bare(tag) for tag in header.split(",") if tag.strip()]
    return "*" in wanted or object_etag(headers) in wanted


@dataclass(frozen=True)
class WriteConditions:
    """``If-Match`` and ``If-None-Match`` of a PUT, a copy or the end of an upload in parts."""

    match: str = ""
    none_match: str = ""

    @classmethod
    def of(cls, request: S3Request) -> WriteConditions | None:
        """Those of a request; None when it has none. Raises S3Error for those that no write can have."""
        match, none_match = request.header("If-Match"), request.header("If-None-Match")
        for name in ("If-Modified-Since", "If-Unmodified-Since"):
            if request.header(name):
                raise S3Error("NotImplemented", "A write cannot depend on a time.", Header=name)
        if not match and not none_match:
            return None
        return cls(match or "", none_match or "")

    def check(self, key: str, current: Headers | None) -> None:
        """``current``: headers of the object that is there; None for none, and for a delete marker. Raises S3Error."""
        if self.match:
            if current is None:
                raise S3Error("NoSuchKey", Key=key)
            if not _names(self.match, current):
                raise S3Error("PreconditionFailed", Condition="If-Match")
        if self.none_match and current is not None and _names(self.none_match, current):
            raise S3Error("PreconditionFailed", Condition="If-None-Match")


@dataclass(frozen=True)
class DeleteConditions:
    """Of a delete; texts as the client sent them, '' for none. ``modified``: an HTTP date, or one of ISO 8601."""

    match: str = ""
    size: str = ""
    modified: str = ""

    @classmethod
    def of(cls, request: S3Request) -> DeleteConditions | None:
        return cls.made(
            request.header("If-Match"),
            request.header("X-Amz-If-Match-Size"),
            request.header("X-Amz-If-Match-Last-Modified-Time"),
        )

    @classmethod
    def made(cls, match: str | None, size: str | None, modified: str | None) -> DeleteConditions | None:
        """None when there is nothing to check."""
        return cls(match or "", size or "", modified or "") if match or size or modified else None

    def check(self, current: Headers | None, is_marker: bool) -> None:
        """``current``: headers of what is to be deleted; None for nothing, which always may be. Raises S3Error."""
        if current is None:
            return
        if self.match and (bare(self.match) != "*" if is_marker else not _names(self.match, current)):
            raise S3Error("PreconditionFailed", Condition="If-Match")
        if self.size and self.size.strip() != ("0" if is_marker else current.get("Content-Length", "0")):
            raise S3Error("PreconditionFailed", Condition="x-amz-if-match-size")
        if self.modified:
            wanted = _seconds(self.modified)
            found = parse_http_date(current.get("Last-Modified", ""))
            if wanted is None or ((found is not None or is_marker) and found != wanted):
                raise S3Error("PreconditionFailed", Condition="x-amz-if-match-last-modified-time")


def _seconds(text: str) -> int | None:
    from keelstore.common.middleware.s3api.times import seconds_of

    found = parse_http_date(text)
    if found is not None:
        return int(found)
    exact = seconds_of(text)
    return None if exact is None else int(exact)
