"""Which directories this process has made whose name may not be on disk yet. Pure bookkeeping; ``fs`` makes and syncs them.

Whoever makes a directory syncs the one above with what it writes. It may not come to that, or not before another writes
there, who finds the directory and must not take it for safe. Of what other processes have made nothing is known here: there
we trust that a journal writes what came before a synced file with it.
"""

from __future__ import annotations

import itertools
from typing import Final

MAX_NOTED: Final = 100_000
_LEVELS: Final = 4  # of directories below a device, as many as there are: a device itself is never made
_noted: dict[str, int] = {}  # by path: a number for each time that it was made
_numbers = itertools.count(1)

Note = tuple[str, int]  # a directory, and the number of its note


def note(path: str) -> tuple[int, int | None]:
    """Before a directory is made, so that nobody finds it and takes it for synced. Its number, and the one before."""
    before, number = _noted.get(path), next(_numbers)
    if len(_noted) >= MAX_NOTED:
        _noted.clear()
    _noted[path] = number
    return number, before


def number_of(path: str) -> int | None:
    return _noted.get(path)


def forget(path: str, number: int, before: int | None = None) -> None:
    """Its note is to be as it was, unless another has noted it since."""
    if _noted.get(path) == number:
        if before is not None:
            _noted[path] = before
        else:
            _noted.pop(path, None)


def at_or_above(directory: str) -> list[Note]:
    """The notes of a directory and of those that it is in, innermost first."""
    found: list[Note] = []
    if not _noted:
        return found
    path = directory
    for _ in range(_LEVELS):
        number = _noted.get(path)
        if number is not None:
            found.append((path, number))
        path = path.rpartition("/")[0]
    return found
