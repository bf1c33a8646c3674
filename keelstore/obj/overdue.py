"""Objects that are due, and that nobody has removed.

What removes an object is its entry in the expiry queue. A write that too few devices took can leave an object with a time
to go and without that entry: the devices that were to make it were those that the write did not reach, and the replicators
then bring the object, not the entry, to all. It would be listed for ever, and never be there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from keelstore.common.timestamp import Timestamp
from keelstore.obj.expiry_queue import Delays, Task
from keelstore.obj.reader import StoredObject
from keelstore.obj.updates import ContainerUpdater

MAX_TOLD: Final = 100_000  # objects remembered


class Overdue:
    """Puts what is due since ``after_s`` seconds, and what its account or container gives beyond that, into the queue once
    more, and again after as long. The expirer asks the object whether it is so; an entry too many does no harm.
    """

    def __init__(self, updater: ContainerUpdater, after_s: float, delays: Delays, clock: Callable[[], float],
                 logger: logging.Logger):
        self._updater, self._after_s, self._delays, self._clock, self._log = updater, after_s, delays, clock, logger
        self._told: dict[str, float] = {}  # hash directory: when it may be told of again
        self.count = 0  # entries made

    def see(self, stored: StoredObject) -> None:
        """Look at an object that is well."""
        due, now = stored.delete_at, self._clock()
        if due is None or not self._after_s or now < due + self._after_s:
            return
        name = stored.metadata["name"]
        account, container, obj = name.lstrip("/").split("/", 2)
        if now < due + self._after_s + self._delays.of(Task("", "", Timestamp(due), account, container, obj, False)):
            return
        if now < self._told.get(stored.place.directory, 0.0):
            return
        if len(self._told) >= MAX_TOLD:
            self._told.clear()
        self._told[stored.place.directory] = now + self._after_s
        size = stored.metadata.get("X-Object-Sysmeta-Ec-Content-Length") or stored.metadata["Content-Length"]
        self._updater.queue_again(due, stored.place, (account, container, obj), size, stored.data_timestamp.internal,
                                  Timestamp(now))
        self.count += 1
        self._log.warning("%s was due at %d and is still there: it is put into the expiry queue once more", name, due)
