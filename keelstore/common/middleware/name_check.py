"""name_check: refuse names with characters, lengths or forms that an operator does not want (``spec: middleware 27``).

The whole decoded path is checked, and the destination of a COPY.

Stands anywhere before the proxy. Needs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_to_bytes

from keelstore.common.headers import wire_to_text
from keelstore.common.http import Environ, Response, StartResponse, WSGIApp
from keelstore.common.options import option, parse, positive
from keelstore.common.registry import register_info

AFTER: Final = ("catch_errors", "gatekeeper")
BEFORE: Final[tuple[str, ...]] = ()


def _is_expression(value: str) -> str | None:
    try:
        re.compile(value)
    except re.error as error:
        return f"a regular expression ({error})"
    return None


@dataclass(frozen=True)
class NameCheckOptions:
    """Options of ``[filter:name_check]``."""

    forbidden_chars: str = option("'\"`<>", "Characters that no name may have.")
    maximum_length: int = option(255, "Most characters of a path, decoded, with its version.", check=positive)
    forbidden_regexp: str = option(r"/\./|/\.\./|/\.$|/\.\.$", "Expression that no path may match; empty: none.",
                                   check=_is_expression)


class NameCheck:
    def __init__(self, app: WSGIApp, options: NameCheckOptions):
        self.app, self.options = app, options
        self._forbidden = frozenset(options.forbidden_chars)
        self._expression = re.compile(options.forbidden_regexp) if options.forbidden_regexp else None

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        problem = self.problem_of(wire_to_text(environ["PATH_INFO"]))
        if problem is None and environ["REQUEST_METHOD"] == "COPY" and "HTTP_DESTINATION" in environ:
            target = unquote_to_bytes(environ["HTTP_DESTINATION"].encode("latin-1")).decode("utf-8", "surrogateescape")
            problem = self.problem_of("/" + target.lstrip("/"))
        if problem is not None:
            return Response(400, body=problem, content_type="text/html; charset=UTF-8")(environ, start_response)
        return self.app(environ, start_response)

    def problem_of(self, path: str) -> str | None:
        """What is wrong with a path (text), or None."""
        options = self.options
        if not self._forbidden.isdisjoint(path):
            return f"Object/Container/Account name contains forbidden chars from {options.forbidden_chars}"
        if len(path) > options.maximum_length:
            return f"Object/Container/Account name longer than the allowed maximum {options.maximum_length}"
        if self._expression is not None and self._expression.search(path):
            return ("Object/Container/Account name contains a forbidden substring from regular expression "
                    f"{options.forbidden_regexp}")
        return None


def filter_factory(global_conf: dict[str, str], **local_conf: str) -> Callable[[WSGIApp], NameCheck]:
    options = parse(NameCheckOptions, {**global_conf, **local_conf}, section="filter:name_check", local=local_conf,
                    known=("use", "set *", "log_*"))
    register_info("name_check", forbidden_chars=options.forbidden_chars, maximum_length=options.maximum_length,
                  forbidden_regexp=options.forbidden_regexp)
    return lambda app: NameCheck(app, options)
