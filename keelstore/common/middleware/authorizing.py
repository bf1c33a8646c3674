"""Asking the authorization function of a request before the proxy does, for filters that answer by themselves."""

from __future__ import annotations

from typing import Any

from keelstore.common.acl import ACL
from keelstore.common.http import AUTHORIZE, Environ, Request


class AskedRequest(Request):
    """A request as an authorization function wants it: ``acl`` is the container's, for reading or writing."""

    __slots__ = ("acl",)

    def __init__(self, environ: Environ, acl: str | None):
        super().__init__(environ)
        environ[ACL] = self.acl = acl


def denial(environ: Environ, acl: str | None) -> Any:
    """The answer that says no (a WSGI application), or None when the request is allowed."""
    authorize = environ.get(AUTHORIZE)
    return None if authorize is None else authorize(AskedRequest(environ, acl))
