"""The realms of container sync: clusters that trust each other, and the keys that they share.

``container-sync-realms.conf`` in the directory of the cluster file::

    [realm1]
    key = the realm's secret
    key2 = the one before, or the next; taken from others, never used to sign
    cluster_name1 = https://host1/v1/

Names are told apart without regard to case. The file is read again when it has changed.
"""

from __future__ import annotations

import configparser
import hmac
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

FILE_NAME: Final = "container-sync-realms.conf"
_CLUSTER: Final = "cluster_"


@dataclass(frozen=True)
class Realm:
    """``clusters``: upper-case name to endpoint. Keys are wire strings, '' when not set."""

    name: str
    key: str = field(default="", repr=False)
    key2: str = field(default="", repr=False)
    clusters: Mapping[str, str] = field(default_factory=dict)


def signature(key: str, method: str, path: str, timestamp: str, nonce: str, user_key: str) -> str:
    """The signature of a write: keys are wire strings, ``path`` is percent-encoded and without query."""
    text = f"{method}\n{path}\n{timestamp}\n{nonce}\n{user_key}"
    return hmac.digest(key.encode("latin-1"), text.encode("latin-1"), "sha1").hex()


def parse_realms(text: str) -> dict[str, Realm]:
    """Upper-case name to realm. Raises ValueError for what is no such file."""
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(text)
    except configparser.Error as error:
        raise ValueError(" ".join(str(error).split())) from None
    found = {}
    for section in parser.sections():
        items = dict(parser.items(section))
        found[section.upper()] = Realm(
            section.upper(), items.get("key", "").strip(), items.get("key2", "").strip(),
            {name[len(_CLUSTER):].upper(): value.strip() for name, value in items.items() if name.startswith(_CLUSTER)})
    return found


class Realms:
    """The realms of a file, looked at again at most every ``interval_s`` seconds."""

    def __init__(self, directory: str, interval_s: float = 300.0, on_error: Callable[[str], None] | None = None,
                 now: Callable[[], float] = time.monotonic):
        self.path = os.path.join(directory, FILE_NAME)
        self._interval_s, self._on_error, self._now = interval_s, on_error, now
        self._realms: dict[str, Realm] = {}
        self._mtime_ns = self._next = -1.0

    def current(self) -> Mapping[str, Realm]:
        """Empty when there is no file; those read last when a new one cannot be read (which ``on_error`` is told)."""
        now = self._now()
        if now >= self._next:
            self._next = now + self._interval_s
            self._read()
        return self._realms

    def _read(self) -> None:
        try:
            mtime_ns = os.stat(self.path).st_mtime_ns
            if mtime_ns == self._mtime_ns:
                return
            with open(self.path, encoding="latin-1") as file:
                self._realms = parse_realms(file.read())
            self._mtime_ns = mtime_ns
        except FileNotFoundError:
            self._realms, self._mtime_ns = {}, -1
        except (OSError, ValueError) as error:
            self._mtime_ns = -1
            if self._on_error is not None:
                self._on_error(f"{self.path}: {error}")
