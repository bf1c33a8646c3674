"""CORS rules of a bucket: read, and matched (``spec: s3-api 3.12``). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from keelstore.common.headers import Headers
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.xml import Element

METHODS: Final = ("GET", "PUT", "POST", "DELETE", "HEAD")
MAX_RULES: Final = 100


@dataclass(frozen=True)
class CorsRule:
    methods: tuple[str, ...]
    origins: tuple[str, ...]
    headers: tuple[str, ...] = ()
    exposed: tuple[str, ...] = ()
    max_age: str | None = None

    def allows(self, origin: str, method: str, headers: Iterable[str] = ()) -> bool:
        return (
            method in self.methods
            and any(_fits(pattern, origin) for pattern in self.origins)
            and all(any(_fits(pattern.lower(), header.lower()) for pattern in self.headers) for header in headers)
        )

    def answer(self, origin: str, asked_headers: Sequence[str] = ()) -> Headers:
        """The headers of an answer to who is allowed."""
        is_any = "*" in self.origins
        found = Headers({"Access-Control-Allow-Origin": "*" if is_any else origin})
        if not is_any:
            found["Access-Control-Allow-Credentials"] = "true"
        found["Access-Control-Allow-Methods"] = ", ".join(self.methods)
        if asked_headers:
            found["Access-Control-Allow-Headers"] = ", ".join(asked_headers)
        if self.exposed:
            found["Access-Control-Expose-Headers"] = ", ".join(self.exposed)
        if self.max_age is not None:
            found["Access-Control-Max-Age"] = self.max_age
        found["Vary"] = "Origin, Access-Control-Request-Headers, Access-Control-Request-Method"
        return found


def _fits(pattern: str, text: str) -> bool:
    """Whether a text fits a pattern of at most one ``*``."""
    before, star, after = pattern.partition("*")
    if not star:
        return pattern == text
    return len(text) >= len(before) + len(after) and text.startswith(before) and text.endswith(after)


def read(document: Element) -> tuple[CorsRule, ...]:
    """Raises S3Error for a document that is not a CORS configuration."""
    rules = []
    for element in document.children("CORSRule"):
        methods = tuple(child.text for child in element.children("AllowedMethod"))
        origins = tuple(child.text for child in element.children("AllowedOrigin"))
        headers = tuple(child.text for child in element.children("AllowedHeader"))
        exposed = tuple(child.text for child in element.children("ExposeHeader"))
        age = element.value("MaxAgeSeconds")
        if not methods or not origins:
            raise S3Error("MalformedXML")
        for method in methods:
            if method not in METHODS:
                raise S3Error(
                    "InvalidRequest", f"Found unsupported HTTP method in CORS config. Unsupported method is {method}"
                )
        for value in (*origins, *headers):
            if value.count("*") > 1:
                raise S3Error("InvalidRequest", f'"{value}" can not have more than one wildcard.')
        for value in (*origins, *headers, *exposed):
            if not value.isprintable():  # it becomes part of a header (security: R08)
                raise S3Error("InvalidRequest", "CORS rules may not hold control characters.")
        if any("*" in value for value in exposed):
            raise S3Error(
                "InvalidRequest",
                "ExposeHeader contains wildcard. We currently do not support wildcard for ExposeHeader",
            )
        if age is not None and not (age.isascii() and age.isdigit() and len(age) <= 10):
            raise S3Error("MalformedXML")
        rules.append(CorsRule(methods, origins, headers, exposed, age))
    if not 1 <= len(rules) <= MAX_RULES:
        raise S3Error("MalformedXML")
    return tuple(rules)


def match(rules: Iterable[CorsRule], origin: str, method: str, headers: Iterable[str] = ()) -> CorsRule | None:
    wanted = tuple(headers)
    return next((rule for rule in rules if rule.allows(origin, method, wanted)), None)
