"""The keys that sign temporary URLs and forms: up to two of an account and two of a container, in their metadata."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from keelstore.common.headers import wire_to_text
from keelstore.common.http import AUTHORIZE, AUTHORIZE_OVERRIDE, LOG_INFO, Environ, Request, Response, WSGIApp
from keelstore.common.info import account_info, container_info

NAMES: Final = ("temp-url-key", "temp-url-key-2")
UNAUTHORIZED: Final = {"Www-Authenticate": 'Swift realm="unknown"'}


class UrlKey(NamedTuple):
    """``container`` is None for a key of the account, whose signatures are good in all its containers. Wire strings."""

    value: str
    account: str
    container: str | None


def url_keys(environ: Environ, app: WSGIApp, account: str, container: str, source: str) -> list[UrlKey]:
    """The keys that may have signed a request for something in ``container``; names are wire strings."""
    account_text, container_text = wire_to_text(account), wire_to_text(container)
    meta = account_info(environ, app, account_text, source=source).meta
    found = [UrlKey(meta[name], account, None) for name in NAMES if meta.get(name)]
    meta = container_info(environ, app, account_text, container_text, source=source).meta
    found += [UrlKey(meta[name], account, container) for name in NAMES if meta.get(name)]
    return found


class Scope:
    """The authorization of a request signed with a key: whatever it leads to must lie where the key reaches."""

    __slots__ = ("_account", "_container")

    def __init__(self, key: UrlKey):
        self._account, self._container = key.account, key.container

    def __call__(self, request: Request) -> Response | None:
        parts = request.environ["PATH_INFO"].split("/", 4)
        if len(parts) > 2 and parts[2] == self._account and (
                self._container is None or (len(parts) > 3 and parts[3] == self._container)):
            return None
        return Response(401, UNAUTHORIZED)


def grant(environ: Environ, key: UrlKey, user: str) -> None:
    """Let the request pass as one that ``key`` has signed."""
    environ[AUTHORIZE] = Scope(key)
    environ[AUTHORIZE_OVERRIDE] = True
    environ["REMOTE_USER"] = user


def note(environ: Environ, text: str) -> None:
    """Add to what the access line says of this request (``log_info``)."""
    environ.setdefault(LOG_INFO, []).append(text)


def counted(keys: Iterable[UrlKey]) -> str:
    """How many keys there are and of what, to be logged."""
    levels = ["account" if key.container is None else "container" for key in keys]
    return ", ".join(f"{levels.count(level)} of the {level}" for level in ("account", "container") if level in levels)
