"""Pickles of plain data: what peers and disks of the field hold, read without running anything.

Existing formats (extended attributes, suffix hashes, pending updates, REPLICATE answers, builder files) are pickles. Reading
one accepts None, numbers, strings, bytes and the containers made of them, plus the few named globals that writers of those
formats emit. Anything else raises ValueError; nothing that a pickle names is ever imported or called but these.
"""

from __future__ import annotations

import codecs
import io
import pickle
from collections.abc import Callable, Mapping
from typing import Any

MAX_SIZE = 64 << 20  # bytes; no honest file of these formats comes near
LOOKS_AHEAD = 256  # bytes; of more a buffered reader lets the unpickler look ahead, which is up to four times as fast


def _encode(text: str, encoding: str = "latin1") -> bytes:
    """How Python 3 writes bytes at protocol 2: ``_codecs.encode(text, 'latin1')``; no other codec is needed."""
    if encoding not in ("latin1", "latin-1") or not isinstance(text, str):
        raise pickle.UnpicklingError(f"codec {encoding!r} is not allowed")
    return codecs.latin_1_encode(text)[0]


def _reconstruct(cls: type, base: type, state: Any) -> Any:
    """How protocols 0 and 1 write an instance of a dict subclass; only our plain stand-ins pass."""
    if cls is not dict or base is not dict:
        raise pickle.UnpicklingError("only dicts may be reconstructed")
    return dict(state) if state else {}


_GLOBALS: Mapping[tuple[str, str], Any] = {
    ("_codecs", "encode"): _encode,
    ("copy_reg", "_reconstructor"): _reconstruct,
    ("copyreg", "_reconstructor"): _reconstruct,
    ("swift.common.header_key_dict", "HeaderKeyDict"): dict,
    ("swift.common.swob", "HeaderKeyDict"): dict,
    ("swift.common.utils", "HeaderKeyDict"): dict,
    ("__builtin__", "dict"): dict,
    ("builtins", "dict"): dict,
    ("__builtin__", "bytes"): bytes,
    ("builtins", "bytes"): bytes,
}


class _Reader(pickle.Unpickler):
    def __init__(self, data: bytes, extra: Mapping[tuple[str, str], Callable[..., Any]], encoding: str):
        file: io.BytesIO | io.BufferedReader = io.BytesIO(data)
        if len(data) > LOOKS_AHEAD:
            file = io.BufferedReader(io.BytesIO(data), 65536)
        super().__init__(file, encoding=encoding, errors="surrogateescape")
        self._extra = extra

    def find_class(self, module: str, name: str) -> Any:
        found = self._extra.get((module, name)) or _GLOBALS.get((module, name))
        if found is None:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed")
        return found

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("persistent ids are not allowed")


def loads(
    data: bytes, *, extra: Mapping[tuple[str, str], Callable[..., Any]] | None = None, encoding: str = "utf-8",
    max_size: int = MAX_SIZE,
) -> Any:
    """The plain value of a pickle. ``encoding`` reads Python 2 strings ('bytes' keeps them). Raises ValueError."""
    if len(data) > max_size:
        raise ValueError(f"pickle of {len(data)} bytes is too large")
    try:
        return _Reader(data, extra or {}, encoding).load()
    except ValueError:
        raise
    except Exception as error:  # a damaged pickle raises nearly anything
        raise ValueError(f"not a plain pickle: {type(error).__name__}: {error}") from None


def dumps(value: Any, protocol: int = 2) -> bytes:
    """The pickle of plain data."""
    return pickle.dumps(value, protocol=protocol)
