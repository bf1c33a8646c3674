"""The access line: a template with ``{fields}`` to a function that renders one request.

A template is parsed once into parts; a request then costs one call for each field. Every field is percent-quoted (all but
letters, digits and ``_.-~:/{}``), and an empty one is ``-``, so that a line splits at blanks (``spec: middleware 6``).
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from string import Formatter
from typing import Any, Final
from urllib.parse import quote, unquote_plus

from keelstore.common.errors import ConfigError
from keelstore.common.headers import header_of
from keelstore.common.http import SOURCE, TRANS_ID, Environ

DEFAULT_TEMPLATE: Final = (
    "{client_ip} {remote_addr} {end_time.datetime} {method} {path} {protocol} {status_int} {referer} {user_agent} "
    "{auth_token} {bytes_recvd} {bytes_sent} {client_etag} {transaction_id} {headers} {request_time} {source} {log_info} "
    "{start_time} {end_time} {policy_index} {access_user_id}"
)

_DATETIME: Final = "%d/%b/%Y/%H/%M/%S"
_is_safe = re.compile(r"[\w.~:/{}-]+", re.ASCII).fullmatch
_is_usual = re.compile(r"[\w.~:/{} -]+", re.ASCII).fullmatch
_is_safe_path = re.compile(r"[\w.~/-]*", re.ASCII).fullmatch

# What a log may show the beginning of, so that requests can be told apart: tokens and signatures that end by themselves.
SENSITIVE_HEADERS: Final = frozenset({
    "X-Auth-Token", "X-Storage-Token", "X-Service-Token", "X-Subject-Token", "Authorization", "Cookie",
    "X-Amz-Security-Token", "X-Container-Sync-Auth",
})  # fmt: skip
# What it must show nothing of: keys that stay valid.
SECRET_HEADERS: Final = frozenset({
    "X-Auth-Key", "X-Storage-Pass", "X-Container-Sync-Key", "X-Account-Meta-Temp-Url-Key", "X-Account-Meta-Temp-Url-Key-2",
    "X-Container-Meta-Temp-Url-Key", "X-Container-Meta-Temp-Url-Key-2",
    "X-Amz-Server-Side-Encryption-Customer-Key", "X-Amz-Copy-Source-Server-Side-Encryption-Customer-Key",
    "Proxy-Authorization",
})  # fmt: skip
SENSITIVE_PARAMS: Final = frozenset({
    "temp_url_sig", "signature", "swiftinfo_sig", "x-amz-signature", "x-amz-security-token",
    "x-auth-token", "x-storage-token", "x-service-token", "token",  # of who puts one there by mistake
})  # fmt: skip


@dataclass(frozen=True)
class LineOptions:
    """What a template needs to know besides the request. ``headers`` None: none; empty: all; else those named."""

    reveal: int = 16
    anonymization_method: str = "md5"
    anonymization_salt: str = ""
    headers: frozenset[str] | None = None
    storage_domain: str = ""


class Hit:
    """One request as the log sees it. Times in seconds since the epoch; ``ttfb`` in seconds, None when nothing was sent."""

    __slots__ = ("end", "environ", "method", "path", "policy_index", "query", "received", "sent", "start", "status",
                 "ttfb", "wire_status")

    def __init__(self, environ: Environ, start: float):
        self.environ, self.start = environ, start
        self.method: str = environ["REQUEST_METHOD"]  # as it came: what follows changes them
        self.path: str = environ["PATH_INFO"]
        self.query: str = environ.get("QUERY_STRING", "")
        self.end = start
        self.ttfb: float | None = None
        self.status = self.wire_status = 0
        self.received = self.sent = 0
        self.policy_index: str | None = None


Field = Callable[[Hit], Any]


def quoted(text: str) -> str:
    """A field as it stands in the line."""
    if not text:
        return "-"
    return text if _is_safe(text) else _quote(text)


@lru_cache(maxsize=2048)
def _quote(text: str) -> str:
    try:
        return quote(text.encode("latin-1"), safe=":/{}~")
    except UnicodeEncodeError:
        return quote(text.encode("utf-8", "surrogateescape"), safe=":/{}~")


def shortened(secret: str, reveal: int) -> str:
    """The first ``reveal`` characters and ``...``; never all of it."""
    return secret[: min(reveal, max(len(secret) - 1, 0))] + "..." if secret else secret


def safe_query(query: str, reveal: int) -> str:
    """A query string whose signatures and tokens are shortened, however their names are spelt."""
    if not any(name in query.lower() for name in ("sig", "tok")) and "%" not in query:
        return query
    parts = query.split("&")
    for i, part in enumerate(parts):
        name, equals, value = part.partition("=")
        if equals and unquote_plus(name).strip().lower() in SENSITIVE_PARAMS:
            parts[i] = f"{name}={shortened(value, reveal)}"
    return "&".join(parts)


def safe_header(name: str, value: str, reveal: int) -> str:
    if name in SECRET_HEADERS:
        return "..."
    return shortened(value, reveal) if name in SENSITIVE_HEADERS else value


@lru_cache(maxsize=4)
def _clock_text(form: str, second: int) -> str:
    return time.strftime(form, time.gmtime(second))


# -- fields ------------------------------------------------------------------------------------------------------------


def client_ip(environ: Environ) -> str:
    found = environ.get("HTTP_X_CLUSTER_CLIENT_IP")
    if found is None:
        found = environ.get("HTTP_X_FORWARDED_FOR")
        if found is None:
            return str(environ.get("REMOTE_ADDR", ""))
        found = found.partition(",")[0]
    return str(found).strip()


def _environ_field(key: str) -> Field:
    return lambda hit: hit.environ.get(key)


def _log_info(hit: Hit) -> str:
    found = hit.environ.get("swift.log_info")
    return ",".join(found) if found else ""


def _user_id(hit: Hit) -> Any:
    found = hit.environ.get("swift.access_logging")
    return found.get("user_id") if found else None


def _name(place: int) -> Field:
    """Account, container or object of the request (of what an S3 request was turned into, if it was)."""

    def get(hit: Hit) -> str:
        parts = (hit.environ.get("swift.backend_path") or hit.path).split("/", 4)
        return parts[place] if len(parts) > place and parts[1] in ("v1", "v1.0") else ""

    return get


def _fields(options: LineOptions) -> dict[str, Field]:
    reveal, wanted = options.reveal, options.headers

    def auth_token(hit: Hit) -> str:
        token = hit.environ.get("HTTP_X_AUTH_TOKEN")
        return shortened(token, reveal) if token else ""

    def path(hit: Hit) -> str:
        shown = hit.path if _is_safe_path(hit.path) else quote(hit.path, encoding="latin-1")
        return f"{shown}?{safe_query(hit.query, reveal)}" if hit.query else shown

    def headers(hit: Hit) -> str:
        if wanted is None:
            return ""
        lines = []
        for key, value in hit.environ.items():
            name = header_of(key)
            if name is not None and (not wanted or name in wanted):
                lines.append(f"{name}: {safe_header(name, str(value), reveal)}")
        return "\n".join(lines)

    return {
        "client_ip": lambda hit: client_ip(hit.environ),
        "remote_addr": _environ_field("REMOTE_ADDR"),
        "method": lambda hit: hit.environ.get("swift.orig_req_method") or hit.method,
        "path": path,
        "protocol": _environ_field("SERVER_PROTOCOL"),
        "status_int": lambda hit: hit.status,
        "wire_status_int": lambda hit: hit.wire_status or hit.status,
        "referer": _environ_field("HTTP_REFERER"),
        "user_agent": _environ_field("HTTP_USER_AGENT"),
        "auth_token": auth_token,
        "bytes_recvd": lambda hit: hit.received,
        "bytes_sent": lambda hit: hit.sent,
        "client_etag": _environ_field("HTTP_ETAG"),
        "transaction_id": _environ_field(TRANS_ID),
        "headers": headers,
        "request_time": lambda hit: f"{hit.end - hit.start:.4f}",
        "source": _environ_field(SOURCE),
        "log_info": _log_info,
        "start_time": lambda hit: f"{hit.start:.9f}",
        "end_time": lambda hit: f"{hit.end:.9f}",
        "ttfb": lambda hit: "" if hit.ttfb is None else f"{hit.ttfb:.4f}",
        "policy_index": lambda hit: hit.policy_index,
        "access_user_id": _user_id,
        "pid": lambda hit: os.getpid(),
        "domain": _environ_field("HTTP_HOST"),
        "account": _name(2),
        "container": _name(3),
        "object": _name(4),
    }


_ANONYMOUS: Final = frozenset({
    "client_ip", "remote_addr", "domain", "path", "referer", "user_agent", "headers", "client_etag", "account",
    "container", "object", "access_user_id",
})  # fmt: skip
_UNITS: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_LETTERS: Final = frozenset("aAbBcdHIjmMpSUwWxXyYZ")


def _moment(name: str) -> Callable[[Hit], float]:
    return (lambda hit: hit.start) if name == "start_time" else (lambda hit: hit.end)


def _time_field(name: str, form: str) -> Field | None:
    get = _moment(name)
    if form in _UNITS:
        factor = _UNITS[form]
        return lambda hit: int(get(hit) * factor)
    if form == "iso8601":
        return lambda hit: _clock_text("%Y-%m-%dT%H:%M:%S", int(get(hit)))
    strftime = _DATETIME if form == "datetime" else "%c" if form == "asctime" else f"%{form}" if form in _LETTERS else ""
    return (lambda hit: _clock_text(strftime, int(get(hit)))) if strftime else None


def anonymizer(options: LineOptions) -> Callable[[str], str]:
    """``{MD5}hex`` of a value, ``{SMD5}hex`` with a salt."""
    method, salt = options.anonymization_method.lower(), options.anonymization_salt
    if method not in hashlib.algorithms_guaranteed:
        raise ConfigError("expected a hash function that Python has", option="log_anonymization_method", value=method)

    def anonymize(text: str) -> str:
        if not text:
            return ""
        data = (salt + text).encode("utf-8", "surrogateescape")
        digest = hashlib.new(method, data, usedforsecurity=False).hexdigest()
        return f"{{{'S' if salt else ''}{method.upper()}}}{digest}"

    return anonymize


def compile_template(template: str, options: LineOptions) -> Callable[[Hit], str]:
    """The function that renders a line. Raises ConfigError for a template that cannot be used."""
    fields, anonymize = _fields(options), anonymizer(options)

    def bad(reason: str) -> ConfigError:
        return ConfigError(reason, option="log_msg_template", value=template)

    parts: list[str | tuple[Field, str]] = []
    try:
        parsed = list(Formatter().parse(template))
    except ValueError as error:
        raise bad(f"cannot be read: {error}") from None
    for literal, name, spec, conversion in parsed:
        if literal:
            parts.append(literal)
        if name is None:
            continue
        base, _, form = name.partition(".")
        if base not in fields:
            raise bad(f"there is no field {name!r}")
        get: Field | None = fields[base]
        if form == "anonymized" and base in _ANONYMOUS:
            get = _then(fields[base], anonymize)
        elif form and base in ("start_time", "end_time"):
            get = _time_field(base, form)
        elif form:
            get = None
        if get is None or conversion:
            raise bad(f"field {base!r} has no form {form or conversion!r}")
        try:
            format("x", spec or "")
        except ValueError:
            raise bad(f"bad format {spec!r}") from None
        parts.append((get, spec or ""))
    render = _renderer(parts)
    return _default_renderer(options.reveal, render) if template == DEFAULT_TEMPLATE and options.headers is None else render


def _default_renderer(reveal: int, render: Callable[[Hit], str]) -> Callable[[Hit], str]:
    """``render`` of the default template, at half its cost for the usual line: one in which only the query and the name of
    the client's program must be quoted.

    All but these is built in one go, and then looked at as a whole: no character but blanks may need quoting, and of these
    there are no more than stand between fields.
    """
    blanks = DEFAULT_TEMPLATE.count(" ") - 2

    def usual(hit: Hit) -> str:
        get = hit.environ.get
        path, token, end = hit.path, get("HTTP_X_AUTH_TOKEN"), hit.end
        if not _is_safe_path(path) or get("swift.log_info"):
            return render(hit)
        if hit.query:
            path = quoted(f"{path}?{safe_query(hit.query, reveal)}")
        before = (f"{client_ip(hit.environ) or '-'} {get('REMOTE_ADDR') or '-'} {_clock_text(_DATETIME, int(end))} "
                  f"{get('swift.orig_req_method') or hit.method}")
        between = f"{get('SERVER_PROTOCOL') or '-'} {hit.status or '-'} {get('HTTP_REFERER') or '-'}"
        after = (
            f"{shortened(token, reveal) if token else '-'} {hit.received or '-'} {hit.sent or '-'} {get('HTTP_ETAG') or '-'} "
            f"{get(TRANS_ID) or '-'} - {end - hit.start:.4f} {get(SOURCE) or '-'} - {hit.start:.9f} {end:.9f} "
            f"{hit.policy_index or '-'} {_user_id(hit) or '-'}"
        )
        others = f"{before} {between} {after}"
        if _is_usual(others) and others.count(" ") == blanks:
            return f"{before} {path or '-'} {between} {quoted(get('HTTP_USER_AGENT') or '')} {after}"
        return render(hit)

    return usual


def _then(get: Field, change: Callable[[str], str]) -> Field:
    def both(hit: Hit) -> str:
        value = get(hit)
        return change(str(value)) if value else ""

    return both


def _renderer(parts: Sequence[str | tuple[Field, str]]) -> Callable[[Hit], str]:
    """Blanks between fields are the rule; joining at them saves half of the parts."""
    getters: list[Field] = []
    specs: list[str] = []
    literals: list[str] = [""]
    for part in parts:
        if isinstance(part, str):
            literals[-1] += part
        else:
            getters.append(part[0])
            specs.append(part[1])
            literals.append("")
    is_plain = literals[0] == "" and literals[-1] == "" and all(literal == " " for literal in literals[1:-1])
    frame = "%s".join(literal.replace("%", "%%") for literal in literals)
    safe, slow, has_specs = _is_safe, _quote, any(specs)

    def render(hit: Hit) -> str:
        values = []
        for get in getters:
            value = get(hit)
            if not value:
                values.append("-")
            elif type(value) is str:
                values.append(value if safe(value) else slow(value))
            elif type(value) is int:
                values.append(str(value))
            else:
                values.append(quoted(str(value)))
        if has_specs:
            values = [format(value, spec) for value, spec in zip(values, specs)]
        return " ".join(values) if is_plain else frame % tuple(values)

    return render
