"""The file in which a device remembers how far the relinker is with a policy, and the lock beside it (``spec: daemons 21``).

``<device>/relink.<datadir>.json`` (``relink_plan.encode`` has its content), ``<device>/.relink.<datadir>.lock`` (flock).
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from keelstore.common import fs
from keelstore.common.errors import LockTimeout
from keelstore.obj import relink_plan
from keelstore.obj.relink_plan import Powers, State


class StateFile:
    def __init__(self, device_path: str, datadir: str):
        self._path, self._temporary = f"{device_path}/relink.{datadir}.json", f".relink.{datadir}.json.tmp"
        self._lock = f"{device_path}/.relink.{datadir}.lock"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Raises LockTimeout, at once, when another relinker works there; OSError."""
        fd = os.open(self._lock, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LockTimeout(f"{self._lock} is held: another relinker works here") from None
            yield
        finally:
            os.close(fd)

    def load(self, powers: Powers) -> State:
        """What there is that holds for these powers."""
        try:
            data = fs.read_file(self._path)
        except ValueError:
            data = None
        return relink_plan.decode(data, powers) or State(powers)

    def take(self, powers: Powers) -> State:
        """As :meth:`load`; a file that says something else goes."""
        found = self.load(powers)
        if not found.done:
            fs.remove_file(self._path)  # if there is one, it is of another increase, or of the step before this one
            if found.previous is not None:
                self.save(found)
        return found

    def save(self, state: State) -> None:
        fs.replace_file(self._path, relink_plan.encode(state), temporary=self._temporary)
