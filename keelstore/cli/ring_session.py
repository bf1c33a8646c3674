"""One run of the ring builder's command: its files, its arguments, and how it ends."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass

from keelstore.cli.ring_arguments import UsageError, parse_whole
from keelstore.common.ring import format as ring_format
from keelstore.common.ring.builder import RingBuilder

EXIT_OK, EXIT_WARNING, EXIT_ERROR = 0, 1, 2


class Refused(Exception):
    """The command ends here, with a message and exit code 2."""


@dataclass
class Session:
    """One run of the command."""

    program: str
    builder_file: str
    ring_file: str
    args: Sequence[str]
    now: float
    loaded: RingBuilder | None = None

    @property
    def builder(self) -> RingBuilder:
        assert self.loaded is not None
        return self.loaded

    def save(self) -> None:
        self.builder.save(self.builder_file)

    def backup(self, path: str) -> None:
        """Keep a copy of a file that was just written."""
        folder = os.path.join(os.path.dirname(os.path.abspath(path)), "backups")
        try:
            shutil.copyfile(path, os.path.join(folder, f"{int(time.time())}.{os.path.basename(path)}"))
        except OSError as error:
            raise Refused(f"{path}: written, but no backup could be made: {error}") from None

    def write_ring(self, version: int, id_bytes: int = 2) -> None:
        ring_format.save(self.builder.ring(id_bytes), self.ring_file, version)
        self.backup(self.ring_file)

    def integer(self, what: str) -> int:
        """The one argument that the command has."""
        return parse_whole(self.one_argument(), what)

    def one_argument(self) -> str:
        if len(self.args) != 1:
            raise UsageError("one argument is needed")
        return self.args[0]


def say(*lines: str) -> None:
    for line in lines:
        print(line)
