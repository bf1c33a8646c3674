"""What came of long work with many parts: bulk operations, large object manifests, deletes with all segments.

Such a request is answered at once; blanks keep its connection alive, and the outcome stands in the body, in the form that
the client accepts (``spec: middleware 8.1``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final
from xml.sax.saxutils import escape

from keelstore.common import concurrency
from keelstore.common.errors import BadRequest, WaitTimeout
from keelstore.common.http import EXPLANATIONS, REASONS, best_match

TEXT: Final = "text/plain"
JSON: Final = "application/json"
FORMATS: Final = (TEXT, JSON, "application/xml", "text/xml")
SEPARATOR: Final = b"\r\n\r\n"  # between the blanks and the outcome
_XML_HEAD: Final = b'<?xml version="1.0" encoding="UTF-8"?>\n'

Errors = Iterable[tuple[str, str]]


def format_of(accept: str | None) -> str | None:
    """The form that an Accept header asks for; None when it asks for none of ours, or cannot be read."""
    try:
        return best_match(accept, FORMATS)
    except BadRequest:
        return None


def render(form: str, root: str, values: Mapping[str, Any], errors: Errors) -> bytes:
    """``values`` by their titles (``Response Status``), ``errors`` as (percent-encoded name, status line)."""
    if form == JSON:
        return json.dumps({**values, "Errors": [list(error) for error in errors]}).encode("ascii")
    if form.endswith("/xml"):
        parts = [f"<{root}>\n"]
        for name, value in sorted(values.items()):
            tag = name.lower().replace(" ", "_")
            parts.append(f"<{tag}>{escape(str(value))}</{tag}>\n")
        parts.append("<errors>\n")
        parts += [f"<object><name>{escape(name)}</name><status>{escape(status)}</status></object>\n"
                  for name, status in errors]
        parts.append(f"</errors>\n</{root}>\n")
    else:
        parts = [f"{name}: {value}\n" for name, value in sorted(values.items())]
        parts.append("Errors:\n")
        parts += [f"{name}, {status}\n" for name, status in errors]
    return "".join(parts).encode("utf-8", "replace")


def explained(status: int) -> str:
    """The value of ``Response Body`` for a failure that has no text of its own."""
    return f"{REASONS.get(status, '')}\n{EXPLANATIONS.get(status, '')}"


class KeptAlive:
    """The body of an answer whose outcome is not known yet: ``work()`` gives the rest of it, run apart.

    A blank goes out at once where ``is_eager``, and every ``every_s`` seconds; then ``work``'s bytes, after the separator if
    any blank went before. For XML the first blank is the XML declaration. When the client leaves, the work goes on to its
    end: half done helps nobody.
    """

    def __init__(self, form: str, work: Callable[[], bytes], every_s: float, is_eager: bool = False):
        self._form, self._work, self._every_s, self._is_eager = form, work, every_s, is_eager

    def __iter__(self) -> Iterator[bytes]:
        result = concurrency.Event()

        def run() -> None:
            try:
                result.set(self._work())
            except Exception as error:
                result.set(error)

        concurrency.spawn(run)
        said = self._is_eager
        if said:
            yield b" "
        while True:
            try:
                outcome = result.wait(self._every_s)
                break
            except WaitTimeout:
                yield _XML_HEAD if not said and self._form.endswith("/xml") else b" "
                said = True
        if isinstance(outcome, Exception):
            raise outcome
        yield SEPARATOR + outcome if said else outcome
