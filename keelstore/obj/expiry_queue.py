"""The queue of what expires: names of its entries, whose turn they are, how long they are held back. Pure.

An entry is a row in a container of the account ``.expiring_objects``; its name is ``<time>-<account>/<container>/<object>``,
the container's name a time not later than those in it (``spec: on-disk 9``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import md5
from itertools import islice
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from keelstore.common.errors import ConfigError
from keelstore.common.timestamp import Timestamp

ASYNC_TYPE: Final = "application/async-deleted"
DELAY: Final = "delay_reaping_"


class Task(NamedTuple):
    """One entry. ``is_async``: a deletion asked for by a user, which needs no matching X-Delete-At."""

    queue_container: str
    name: str
    delete_at: Timestamp
    account: str
    container: str
    obj: str
    is_async: bool

    @property
    def target(self) -> str:
        return f"{self.account}/{self.container}"


def parse_task(queue_container: str, name: str, content_type: str = "") -> Task:
    """Raises ValueError for what is no name of an entry."""
    stamp, dash, path = name.partition("-")
    parts = path.split("/", 2)
    if not dash or len(parts) != 3 or not all(parts):
        raise ValueError(f"no entry of the expiry queue: {name!r}")
    account, container, obj = parts
    is_async = content_type.partition(";")[0].strip() == ASYNC_TYPE
    return Task(queue_container, name, Timestamp(stamp), account, container, obj, is_async)


def queue_time(container: str) -> Timestamp | None:
    """The time in the name of a queue container; None when it has another shape."""
    try:
        return Timestamp(container)
    except ValueError:
        return None


def is_expected(container: str, divisor: int) -> bool:
    """Whether an object server of ours could have named a queue container so: up to 100 s below a multiple."""
    return container.isascii() and container.isdigit() and (-int(container)) % divisor <= 100


@dataclass(frozen=True)
class Share:
    """Which entries are ours: those whose hash modulo ``count`` is ``index``; a count of 0 means all."""

    index: int = 0
    count: int = 0

    def holds(self, task: Task) -> bool:
        if self.count <= 1:
            return True
        path = f"{task.queue_container}/{task.name}".encode("utf-8", "surrogateescape")
        return int(md5(path, usedforsecurity=False).hexdigest(), 16) % self.count == self.index


class Delays:
    """How long the objects of an account or container outlive their time, by ``delay_reaping_ACCOUNT[/CONTAINER]``."""

    def __init__(self, seconds: Mapping[str, float]):
        self._seconds = dict(seconds)  # by quoted "account" or "account/container"

    @classmethod
    def parse(cls, conf: Mapping[str, str], section: str = "object-expirer") -> Delays:
        """From the options of a section. Raises ConfigError."""
        found = {}
        for option, text in conf.items():
            if not option.startswith(DELAY):
                continue
            parts = option[len(DELAY) :].strip("/").split("/")
            try:
                seconds = float(text)
                if seconds < 0 or len(parts) > 2 or not all(parts):
                    raise ValueError
            except ValueError:
                raise ConfigError("expected delay_reaping_ACCOUNT or delay_reaping_ACCOUNT/CONTAINER (URL-quoted) and a "
                                  "number of seconds", section=section, option=option, value=text) from None
            found["/".join(quote(unquote(part)) for part in parts)] = seconds
        return cls(found)

    def of(self, task: Task) -> float:
        if not self._seconds:
            return 0.0
        account = quote(task.account)
        found = self._seconds.get(f"{account}/{quote(task.container)}")
        return found if found is not None else self._seconds.get(account, 0.0)


def spread(tasks: Iterable[Task], cache_size: int) -> Iterator[Task]:
    """The same tasks, turns taken between the containers that they are about, ``cache_size`` of them looked at at once."""
    source = iter(tasks)
    while some := list(islice(source, cache_size)):
        queues: dict[str, list[Task]] = {}
        for task in some:
            queues.setdefault(task.target, []).append(task)
        for queue in queues.values():
            queue.reverse()
        while queues:
            for target in list(queues):
                yield queues[target].pop()
                if not queues[target]:
                    del queues[target]
