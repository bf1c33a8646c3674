"""``keelstore explain``: why a request is refused, told to the one who holds the key.

``s3-signature ANSWER CLIENT``: where the texts that an S3 client and the server sign differ (``signature_diff``).

``tempurl URL --key KEY``: which check of a temporary URL fails.

The same checks as the filter's, in the same order. When it is the signature that fails, the usual mistakes are tried one by
one and together: another method, a path signed in another form, a key with a newline at its end ...
"""

from __future__ import annotations

import itertools
import sys
import time
from base64 import b64decode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, TextIO
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import click

from keelstore.cli.layout import CommandError
from keelstore.cli.signature_diff import View, differences, read, signed_by
from keelstore.common.middleware.signatures import DIGESTS, Refused, matching, sign, url_text
from keelstore.common.middleware.temp_urls import Claim, Examined, examine

METHODS: Final = ("GET", "HEAD", "PUT", "POST", "DELETE")
_LIKELY: Final = 3  # mistakes at once that are still tried


@dataclass(frozen=True)
class Url:
    """A temporary URL taken apart: its claim, and the forms that its parts had before they were decoded."""

    claim: Claim
    raw_path: str
    origin: str
    has_form: bool  # it has the parameters of a temporary URL at all


def read_url(url: str, method: str) -> Url:
    """Raises CommandError for what is no URL."""
    try:
        parts = urlsplit(url)
        parsed = parse_qsl(parts.query, keep_blank_values=True, encoding="latin-1")
    except ValueError as error:
        raise CommandError(f"this is no URL: {error}") from None
    if not parts.path.startswith("/"):
        raise CommandError("this is no URL of an object: give it whole, in quotes, as https://HOST/v1/ACCOUNT/CONTAINER/OBJECT?...")
    params = dict(parsed)
    claim = Claim(method, unquote(_octets(parts.path), encoding="latin-1"), params.get("temp_url_sig", ""),
                  params.get("temp_url_expires", ""), params.get("temp_url_prefix"), params.get("temp_url_ip_range"))
    origin = f"{parts.scheme}://{parts.netloc}" if parts.netloc else ""
    return Url(claim, parts.path, origin, "temp_url_sig" in params or "temp_url_expires" in params)


def _octets(text: str) -> str:
    """A wire string: characters beyond ASCII, which a shell may hand over, as their UTF-8 octets."""
    return text.encode("utf-8", "surrogateescape").decode("latin-1")


@dataclass(frozen=True)
class Finding:
    """``is_good``, and the lines to show."""

    is_good: bool
    lines: tuple[str, ...]


def diagnose(url: Url, keys: Sequence[str], now: float, address: str | None = None, methods: Sequence[str] = METHODS,
             digests: Sequence[str] = DIGESTS) -> Finding:
    """Which check of a temporary URL fails. ``keys`` are wire strings; without ``address`` the client's is not checked."""
    claim = url.claim
    lines = [f"method     {claim.method}", f"path       {claim.path}"]
    if not url.has_form:
        return _failed(lines, "this is no temporary URL: it has neither temp_url_sig nor temp_url_expires")
    checked = claim if address else replace(claim, ip_range=None)
    try:
        found = examine(checked, now, address or "", methods, digests)
    except Refused as refused:
        lines.append(f"FAILS      {refused.check}: {refused}")
        return Finding(False, (*lines, *_expired_but_signed(claim, keys, digests)))
    if not address and claim.ip_range is not None:
        found = replace(found, texts=tuple(f"ip={claim.ip_range}\n{text}" for text in found.texts))
        lines.append(f"address    only for {claim.ip_range} (not checked: give --address)")
    until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(min(found.expires, 253402300799)))
    lines += [f"expires    {found.expires} ({until}), in {int(found.expires - now)} seconds", f"digest     {found.digest}"]
    if not keys:
        return _failed(lines, "no-key: give the account's or container's key with --key to check the signature")
    index = matching(found.signature, found.digest, keys, found.texts)
    if index is not None:
        number = f" (key {index + 1})" if len(keys) > 1 else ""
        return Finding(True, (*lines, f"signature  good{number}: {claim.method} is allowed until then, if this key is set"))
    lines.append("FAILS      signature: it is not that of this method, expiry and path with this key")
    mistake = find_mistake(url, found, keys)
    if mistake:
        lines.append(f"mistake    it is good for {mistake}")
    else:
        lines.append("           none of the usual mistakes explains it: most likely another key")
    lines += ["signed is  " + line if number == 0 else "           " + line
              for number, line in enumerate(found.texts[-1 if claim.method == "HEAD" else 0].split("\n"))]
    return Finding(False, tuple(lines))


def _failed(lines: list[str], text: str) -> Finding:
    return Finding(False, (*lines, f"FAILS      {text}"))


def _expired_but_signed(claim: Claim, keys: Sequence[str], digests: Sequence[str]) -> Iterator[str]:
    """Whether only time is against it."""
    try:
        found = examine(replace(claim, ip_range=None), -1e18, "", METHODS, digests)
    except Refused:
        return
    texts = found.texts if claim.ip_range is None else tuple(f"ip={claim.ip_range}\n{text}" for text in found.texts)
    if keys and matching(found.signature, found.digest, keys, texts) is not None:
        yield "           the signature itself is good"


Variant = tuple[str, str]
"""(what is different, '' for as it should be; the value)."""


def find_mistake(url: Url, found: Examined, keys: Sequence[str]) -> str | None:
    """The fewest mistakes that explain a signature, in words."""
    claim = url.claim
    methods: list[Variant] = [("", claim.method)]
    methods += [(f"the method {method}", method) for method in (*METHODS, "COPY") if method != claim.method]
    expiries: list[Variant] = [("", str(found.expires))]
    if claim.expires != str(found.expires):
        expiries.append(("an expiry signed as it is written in the URL (sign the number)", claim.expires))
    ranges: list[tuple[str, str | None]] = [("", claim.ip_range)]
    if claim.ip_range is not None:
        ranges.append(("a text without the line ip=RANGE", None))
    choices = itertools.product(methods, list(_paths(url)), expiries, ranges, list(_keys(keys)))
    tried = ((sum(bool(label) for label, _ in choice), choice) for choice in choices)
    for count, choice in sorted(tried, key=lambda one: one[0]):
        if not 0 < count <= _LIKELY:
            continue
        (_, method), (_, path), (_, expires), (_, ip_range), (_, key) = choice
        text = url_text(method, 0, path, ip_range).replace("\n0\n", f"\n{expires}\n", 1)
        if sign(key, found.digest, text) == found.signature:
            return ", and ".join(label for label, _ in choice if label)
    return None


def _paths(url: Url) -> Iterator[Variant]:
    claim = url.claim
    parts = claim.path.split("/", 4)
    whole = claim.path
    if claim.prefix is not None:
        base = "/".join(parts[:4])
        yield "", f"prefix:{base}/{claim.prefix}"
        yield "a prefix signed without 'prefix:' before its path", f"{base}/{claim.prefix}"
        yield "the whole path of this object, not the prefix", whole
        yield "a prefix signed without its path", f"prefix:{claim.prefix}"
        return
    yield "", whole
    if url.raw_path != whole:
        yield "a path signed percent-encoded, as it is in the URL (sign it decoded)", url.raw_path
    quoted = quote(whole, encoding="latin-1")
    if quoted not in (whole, url.raw_path):
        yield "a path signed percent-encoded (sign it decoded)", quoted
    yield "the whole URL (sign from /v1/ on)", f"{url.origin}{url.raw_path}"
    yield "a path without its version", "/" + "/".join(parts[2:])
    yield "a path without version and account", "/" + "/".join(parts[3:])
    yield "a path without its first slash", whole[1:]
    yield "a path with a prefix, which the URL does not name (temp_url_prefix)", f"prefix:{whole}"
    yield "a path under /swift, which is another server's", f"/swift{whole}"
    yield "a path with a slash at its end", f"{whole}/"
    if whole.endswith("/"):
        yield "a path without the slash at its end", whole.rstrip("/")
    if parts[2].startswith("AUTH_"):
        yield "an account without AUTH_", "/".join(["", parts[1], parts[2][5:], *parts[3:]])


def _keys(keys: Sequence[str]) -> Iterator[Variant]:
    for key in keys:
        yield "", key
        yield "the key with a newline at its end", key + "\n"
        if key != key.strip():
            yield "the key without the blanks around it", key.strip()
        for name, decode in (("hex", bytes.fromhex), ("base64", lambda text: b64decode(text, validate=True))):
            try:
                decoded = decode(key).decode("latin-1")
            except (ValueError, TypeError):
                continue
            yield f"the key decoded from {name} (it is used as it is written)", decoded
    yield "an empty key", ""


@click.group()
def explain() -> None:
    """Say why a request is refused, to the one who may know."""


@explain.command()
@click.argument("url")
@click.option("--key", "keys", multiple=True, envvar="KEELSTORE_TEMPURL_KEY", metavar="KEY",
              help="A Temp-URL-Key of the account or container; '-' reads it from standard input. May be given repeatedly, "
                   "or in KEELSTORE_TEMPURL_KEY.")
@click.option("--method", default="GET", show_default=True, metavar="METHOD", help="The method of the request.")
@click.option("--address", metavar="IP", help="The client's address, to check temp_url_ip_range.")
@click.option("--digests", default=" ".join(DIGESTS), show_default=True, metavar="NAMES",
              help="The digests that the cluster allows; see its /info.")
@click.option("--methods", default=" ".join(METHODS), show_default=True, metavar="NAMES",
              help="The methods that the cluster allows.")
def tempurl(url: str, keys: tuple[str, ...], method: str, address: str | None, digests: str, methods: str) -> None:
    """Say which check of a temporary URL fails. Nothing is asked of the server; status 1 when it would be refused."""
    found = diagnose(read_url(url, method.upper()), [_octets(_key(key)) for key in keys], time.time(), address,
                     methods.upper().split(), digests.lower().split())
    for line in found.lines:
        click.echo(_printable(line))
    if not found.is_good:
        raise click.exceptions.Exit(1)


def compare(server: View, client: View, secret: str | None = None) -> Finding:
    """Where the texts that server and client signed part; with the secret also whether it is the right one."""
    if server.is_empty:
        raise CommandError("the server's side has no canonical request and no string to sign: give the XML of its answer")
    lines: list[str] = []
    found = differences(server, client)
    for one in found:
        lines += [f"DIFFERS    {one.what}", f"  server   {one.server}", f"  client   {one.client}"]
        if one.hint:
            lines.append(f"  usually  {one.hint}")
    comparable = (server.canonical and client.canonical) or (server.to_sign and client.to_sign)
    if not client.is_empty and not comparable:
        lines.append("           one side has only a canonical request, the other only a string to sign: give both")
    elif comparable and not found:
        lines.append("same       both signed the same text: it is the secret key that differs")
    claimed = server.signature or client.signature
    if secret is not None and claimed:
        sides = [name for name, view in (("server", server), ("client", client))
                 if view.to_sign and signed_by(view, secret) == claimed]
        if "server" in sides:
            lines.append("secret     this secret and the server's text give the signature: the server has another secret")
        elif sides:
            lines.append("secret     good for the client's text: it is only the text that differs")
        else:
            lines.append("secret     this secret does not give the signature: the client signs with another, or another text")
    return Finding(not found and bool(comparable), tuple(lines))


@explain.command("s3-signature")
@click.argument("answer", type=click.File("r", encoding="utf-8", errors="surrogateescape"))
@click.argument("client", required=False, type=click.File("r", encoding="utf-8", errors="surrogateescape"))
@click.option("--secret", envvar="KEELSTORE_S3_SECRET", metavar="KEY",
              help="The secret key, to see whether it made the signature; '-' reads it from standard input.")
def s3_signature(answer: TextIO, client: TextIO | None, secret: str | None) -> None:
    """Say where an S3 client and the server differ about what is signed.

    ANSWER is a file with the XML of a SignatureDoesNotMatch. CLIENT is a file with what the client signed: its debug log
    (aws --debug, boto3.set_stream_logger('')), a canonical request, a string to sign, or the HTTP request itself.
    Nothing is asked of the server; status 1 when they differ.
    """
    theirs = read(client.read()) if client is not None else View()
    if client is not None and theirs.is_empty:
        raise CommandError("the client's side has no canonical request, string to sign or HTTP request")
    if client is None and secret is None:
        raise CommandError("give what the client signed, or its secret key with --secret")
    found = compare(read(answer.read()), theirs, None if secret is None else _key(secret))
    for line in found.lines:
        click.echo("".join(char if char.isprintable() else "�" for char in line))
    if not found.is_good:
        raise click.exceptions.Exit(1)


def _key(text: str) -> str:
    return sys.stdin.readline().rstrip("\r\n") if text == "-" else text


def _printable(line: str) -> str:
    text = line.encode("latin-1", "replace").decode("utf-8", "replace")
    return "".join(char if char.isprintable() else "�" for char in text)
