"""Patterns of policies: ``*`` stands for any text, ``?`` for one character. Pure.

A pattern is cut at its stars and the pieces are looked for from left to right, so no pattern takes more than the product of
its length and the text's: a client chooses both.
"""

from __future__ import annotations

import re
from functools import lru_cache

_Piece = str | re.Pattern[str]


@lru_cache(1024)
def _pieces(pattern: str) -> tuple[_Piece, ...]:
    return tuple(_piece(part) for part in pattern.split("*"))


def _piece(part: str) -> _Piece:
    if "?" not in part:
        return part
    return re.compile("".join("." if char == "?" else re.escape(char) for char in part), re.DOTALL)


def fits(pattern: str, text: str) -> bool:
    """Whether the whole of ``text`` fits."""
    if "*" not in pattern:
        if "?" not in pattern:
            return pattern == text
        piece = _pieces(pattern)[0]
        return isinstance(piece, re.Pattern) and piece.fullmatch(text) is not None
    parts = pattern.split("*")
    first, last = len(parts[0]), len(parts[-1])
    if len(text) < sum(map(len, parts)):
        return False
    pieces = _pieces(pattern)
    if not _at(pieces[0], text, 0, first) or not _at(pieces[-1], text, len(text) - last, last):
        return False
    at, end = first, len(text) - last
    for piece, part in zip(pieces[1:-1], parts[1:-1], strict=True):
        if isinstance(piece, str):
            at = text.find(piece, at, end)
        else:
            found = piece.search(text, at, end)
            at = found.start() if found else -1
        if at < 0:
            return False
        at += len(part)
    return True


def _at(piece: _Piece, text: str, at: int, length: int) -> bool:
    if isinstance(piece, str):
        return text.startswith(piece, at)
    return piece.match(text, at, at + length) is not None
