"""Where two S3 clients' views of one request part: what the client signed, and what the server says it should have (pure).

Both come as text: the XML of a SignatureDoesNotMatch, the debug log of a client, a bare canonical request or string to sign,
or an HTTP request as it went over the wire, of which the canonical request is made here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import unescape
from typing import Final
from urllib.parse import unquote

from keelstore.common.middleware.s3api import signature as sign

_BLANKS = re.compile(r"[ \t]+")
_METHOD: Final = r"(?:GET|PUT|POST|HEAD|DELETE|OPTIONS)"
_CANONICAL = re.compile(rf"^{_METHOD}\n/.*\n.*\n(?:[^\n:]+:.*\n)+\n[a-z0-9;_.-]+\n\S+", re.MULTILINE)
_TO_SIGN = re.compile(r"AWS4-HMAC-SHA256\n\d{8}T\d{6}Z\n\S+/aws4_request\n[0-9a-f]{64}")
_SIGNATURE = re.compile(r"Signature[=:]\s*([0-9a-f]{64})\b")
_REQUEST = re.compile(rf"^{_METHOD} \S+(?: HTTP/\d(?:\.\d)?)?$", re.MULTILINE)
_TO_SIGN_V2 = re.compile(rf"^{_METHOD}\n[^\n]*\n[^\n]*\n[^\n]*\n(?:x-amz-[^\n]*\n)*/[^\n]*", re.MULTILINE)


@dataclass(frozen=True)
class View:
    """One side's texts; '' for what is not known of it."""

    canonical: str = ""
    to_sign: str = ""
    signature: str = ""

    @property
    def is_empty(self) -> bool:
        return not (self.canonical or self.to_sign)


def read(text: str) -> View:
    """What a text tells, whatever it is of those named above."""
    text = text.replace("\r\n", "\n")
    if "<CanonicalRequest>" in text or "<StringToSign>" in text:
        return View(_element(text, "CanonicalRequest"), _element(text, "StringToSign"), _element(text, "SignatureProvided"))
    canonical, to_sign, signature = _CANONICAL.search(text), _TO_SIGN.search(text), _SIGNATURE.search(text)
    if canonical is None and to_sign is None:
        request = _REQUEST.search(text)
        if request is not None:
            return of_request(text[request.start():])
        to_sign = _TO_SIGN_V2.search(text)
    return View(canonical[0] if canonical else "", to_sign[0] if to_sign else "", signature[1] if signature else "")


def _element(text: str, name: str) -> str:
    found = re.search(f"<{name}>(.*?)</{name}>", text, re.DOTALL)
    return unescape(found[1]) if found else ""


def of_request(text: str) -> View:
    """The canonical request of an HTTP request that has an ``Authorization`` of version 4, and what it signs."""
    lines = text.split("\n\n", 1)[0].split("\n")
    method, target = lines[0].split(" ")[:2]
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if colon:
            key = name.strip().lower()
            headers[key] = f"{headers[key]},{value.strip()}" if key in headers else value.strip()
    fields = dict(part.partition("=")[::2] for part in re.split(r"[,\s]+", headers.get("authorization", "")) if "=" in part)
    path, _, query = target.encode("utf-8", "surrogateescape").decode("latin-1").partition("?")  # octets, as on the wire
    pairs = sign.query_pairs(query)
    if not fields:
        given = {name.decode("latin-1"): value.decode("latin-1") for name, value in pairs}
        fields = {name: given.get(f"X-Amz-{name}", "") for name in ("SignedHeaders", "Signature", "Credential")}
        headers.setdefault("x-amz-date", given.get("X-Amz-Date", ""))
        payload = headers.get("x-amz-content-sha256", sign.UNSIGNED_PAYLOAD)
    else:
        payload = headers.get("x-amz-content-sha256", "")
    names = sorted(name for name in fields.get("SignedHeaders", "").split(";") if name)
    signed = "".join(f"{name}:{_BLANKS.sub(' ', headers.get(name, ''))}\n" for name in names)
    canonical = sign.canonical_request(method, path, pairs, names, signed, payload)
    _, _, scope = fields.get("Credential", "").partition("/")
    digest = hashlib.sha256(canonical.encode("utf-8", "surrogateescape")).hexdigest()
    to_sign = f"{sign.ALGORITHM}\n{headers.get('x-amz-date', '')}\n{scope}\n{digest}" if scope else ""
    return View(canonical, to_sign, fields.get("Signature", ""))


# -- comparing ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """``what`` differs: the server has one, the client the other. ``hint``: the usual reason."""

    what: str
    server: str
    client: str
    hint: str = ""


def differences(server: View, client: View) -> list[Difference]:
    """All of them, those of the canonical request first: it is what most often goes wrong, and the rest follows."""
    found: list[Difference] = []
    if server.canonical and client.canonical:
        found += _of_canonical(server.canonical, client.canonical)
    if server.to_sign and client.to_sign:
        found += _of_to_sign(server.to_sign, client.to_sign, bool(found))
    return found


def _of_canonical(server: str, client: str) -> Iterator[Difference]:
    ours, theirs = _parts(server), _parts(client)
    for what in ("method", "path"):
        if ours[what] != theirs[what]:
            yield Difference(what, ours[what], theirs[what], _path_hint(ours[what], theirs[what]) if what == "path" else "")
    yield from _of_lists("query parameter", ours["query"].split("&"), theirs["query"].split("&"), "=")
    yield from _of_lists("header", ours["headers"].split("\n"), theirs["headers"].split("\n"), ":")
    if ours["signed"] != theirs["signed"]:
        yield Difference("signed headers", ours["signed"], theirs["signed"], "a proxy on the way added or took away headers")
    if ours["payload"] != theirs["payload"]:
        yield Difference("payload hash", ours["payload"], theirs["payload"],
                         "the client signs another body, or another way of sending it, than x-amz-content-sha256 says")


def _parts(text: str) -> dict[str, str]:
    lines = text.split("\n")
    lines += [""] * (6 - len(lines))
    headers = "\n".join(line for line in lines[3:-2] if line)
    return {"method": lines[0], "path": lines[1], "query": lines[2], "headers": headers, "signed": lines[-2],
            "payload": lines[-1]}


def _of_lists(what: str, server: list[str], client: list[str], mark: str) -> Iterator[Difference]:
    ours, theirs = ([item for item in items if item] for items in (server, client))
    if sorted(ours) == sorted(theirs):
        if ours != theirs:
            yield Difference(f"order of {what}s", " ".join(ours), " ".join(theirs), "they are sorted by their octets")
        return
    mine = dict(item.partition(mark)[::2] for item in ours)
    other = dict(item.partition(mark)[::2] for item in theirs)
    for name in sorted({*mine, *other}):
        one, two = mine.get(name), other.get(name)
        if one != two:
            yield Difference(f"{what} {name}", "(absent)" if one is None else one, "(absent)" if two is None else two,
                             _value_hint(what, name, one, two))
    if mine == other:
        yield Difference(f"{what}s", "&".join(ours), "&".join(theirs), "one of them is there more than once")


def _value_hint(what: str, name: str, server: str | None, client: str | None) -> str:
    if server is None or client is None:
        return "it did not arrive" if server is None else "the client did not sign it"
    if what == "header" and name == "host":
        return "a proxy on the way changes Host, or the client signs another port"
    if server.split() == client.split():
        return "blanks are joined to one, and those at the ends go"
    if unquote(server) == unquote(client):
        return "encoded differently: each octet but A-Z a-z 0-9 - _ . ~ is %XX, in capitals"
    return ""


def _path_hint(server: str, client: str) -> str:
    if unquote(unquote(client)) == unquote(server) or unquote(unquote(server)) == unquote(client):
        return "it is encoded once for S3, not twice as for other services" if unquote(server) != unquote(client) else \
            "encoded differently: each octet but A-Z a-z 0-9 - _ . ~ / is %XX, in capitals"
    if re.sub("/+", "/", server) == re.sub("/+", "/", client):
        return "slashes that follow each other stay for S3"
    if server.rstrip("/") == client.rstrip("/"):
        return "a slash at its end"
    if server.endswith(client) or client.endswith(server):
        return "a proxy on the way changes the path, or one side puts the bucket into the host name"
    return ""


_LINES: Final = ("algorithm", "time", "scope", "hash of the canonical request")
_HINTS: Final = {"scope": "another day, region or service", _LINES[3]: "the canonical requests differ: give them too"}
_LINES_V2: Final = ("method", "Content-MD5", "Content-Type", "date")


def _of_to_sign(server: str, client: str, is_explained: bool) -> Iterator[Difference]:
    names = _LINES if server.startswith("AWS4-") else _LINES_V2
    ours, theirs = server.split("\n"), client.split("\n")
    for number in range(max(len(ours), len(theirs))):
        one = ours[number] if number < len(ours) else "(absent)"
        two = theirs[number] if number < len(theirs) else "(absent)"
        if one == two or (is_explained and number == 3 and names is _LINES):
            continue
        what = names[number] if number < len(names) else "headers and resource"
        yield Difference(what, one, two, _HINTS.get(what, ""))


# -- the secret --------------------------------------------------------------------------------------------------------


def signed_by(view: View, secret: str) -> str:
    """The signature that a secret gives for a string to sign."""
    if view.to_sign.startswith("AWS4-"):
        date, region, service = view.to_sign.split("\n")[2].split("/")[:3]
        return sign.signature(sign.Scope(date, region, service).key(secret), view.to_sign.encode("utf-8", "surrogateescape"))
    return sign.signature_v2(secret, view.to_sign.encode("utf-8", "surrogateescape"))
