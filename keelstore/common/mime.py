"""The content type of an object, guessed from its name."""

from __future__ import annotations

import mimetypes
import os
from functools import lru_cache

DEFAULT_TYPE = "application/octet-stream"


class ContentTypes:
    """Guesses from the system's tables and ``<swift_dir>/mime.types``, which wins."""

    def __init__(self, files: tuple[str, ...]):
        self._types = mimetypes.MimeTypes(files)
        self._of_suffix = lru_cache(maxsize=1024)(self._guess)

    def of(self, name: str) -> str:
        """The type of an object's name; octet-stream when nothing is known."""
        last = name.rpartition("/")[2]
        return self._of_suffix(last if len(last) <= 64 else f"x{last[-64:]}")

    def _guess(self, name: str) -> str:
        return self._types.guess_type(f"/{name}", strict=True)[0] or DEFAULT_TYPE  # the slash: never taken for a scheme


@lru_cache(maxsize=4)
def content_types(swift_dir: str) -> ContentTypes:
    files = [str(name) for name in mimetypes.knownfiles if os.path.isfile(name)]
    own = os.path.join(swift_dir, "mime.types")
    if os.path.isfile(own):
        files.append(own)
    return ContentTypes(tuple(files))
