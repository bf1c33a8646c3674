"""What clients asked for and were told, and what may be true of it in the end. Pure.

Each write has a time stamp of its own, and the newest wins. A write that was acknowledged must win over all that is older. A
write whose answer was an error, or did not come, may have happened, may happen later, or not at all. So for each thing there is
a set of states that are allowed in the end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

SLACK_S = 5.0  # that clocks of nodes may be apart, and more


class Told(Enum):
    YES = "acknowledged"
    UNKNOWN = "unknown"
    NO = "refused"  # before anything was done


@dataclass
class Write:
    """One request that changes something. ``value``: what tells its content from that of others."""

    kind: str  # put, delete, post
    stamp: float
    value: str = ""
    told: Told = Told.UNKNOWN
    delete_at: float | None = None
    size: int = 0
    etag: str = ""
    items: dict[str, str] = field(default_factory=dict)  # metadata of containers and accounts


class State(NamedTuple):
    """Of an object: whose body, and whose metadata, by their values; None: there is no object."""

    body: str
    metadata: str


class ObjectHistory:
    def __init__(self) -> None:
        self.writes: list[Write] = []

    def of_value(self, value: str) -> Write | None:
        return next((write for write in self.writes if write.value == value), None)

    @property
    def is_unsure(self) -> bool:
        """Whether something that was never acknowledged may be newer than all that was."""
        return any(write is not None and write.told is Told.UNKNOWN
                   for write in [*candidates(write for write in self.writes if write.kind != "post"),
                                 *candidates(write for write in self.writes if write.kind == "post")])

    def allowed(self, now: float) -> set[State | None]:
        """The states that are allowed when all has come to rest at ``now``."""
        found: set[State | None] = set()
        for base in self._bases():
            if base is None or base.kind == "delete":
                found.add(None)
                continue
            for metadata in self._metadata_of(base):
                if metadata.delete_at is None or metadata.delete_at > now:
                    found.add(State(base.value, metadata.value))
                else:
                    found.add(None)
            if base.delete_at is not None and self._was_due(base, base):
                found.add(None)
            for post in self._posts_of(base):
                if post.delete_at is not None and self._was_due(base, post):
                    found.add(None)
        return found

    def _bases(self) -> list[Write | None]:
        """The writes that may be the last of those that make or delete the whole."""
        return list(candidates([write for write in self.writes if write.kind in ("put", "delete")]))

    def _posts_of(self, base: Write) -> list[Write]:
        return [write for write in self.writes if write.kind == "post" and write.stamp > base.stamp
                and write.told is not Told.NO]

    def _metadata_of(self, base: Write) -> list[Write]:
        found = [write for write in candidates(self._posts_of(base)) if write is not None]
        has_acknowledged = any(write.told is Told.YES for write in found)
        return found if has_acknowledged else [base, *found]

    def _was_due(self, base: Write, metadata: Write) -> bool:
        """Whether its time may have come before the next metadata took the time of deletion away: then it is gone."""
        assert metadata.delete_at is not None
        later = [post.stamp for post in self._posts_of(base) if post.stamp > metadata.stamp and post.told is Told.YES]
        return bool(later) and min(later) + SLACK_S >= metadata.delete_at


def candidates(writes: Iterable[Write]) -> list[Write | None]:
    """Which of these may be the newest that happened: the newest acknowledged one (None: none was), and those newer than it
    of which nothing is known.
    """
    writes = [write for write in writes if write.told is not Told.NO]
    base = max((write for write in writes if write.told is Told.YES), key=lambda write: write.stamp, default=None)
    since = base.stamp if base is not None else -1.0
    return [base, *(write for write in writes if write.told is Told.UNKNOWN and write.stamp > since)]


class ContainerHistory:
    """``put`` and ``post`` may carry metadata items; a delete takes them all away."""

    def __init__(self) -> None:
        self.writes: list[Write] = []

    def may_exist(self) -> set[bool]:
        """A change of metadata makes a container anew, too, on a replica that the delete before had not reached."""
        likely = candidates([write for write in self.writes if write.kind in ("put", "delete")])
        found = {write is not None and write.kind == "put" for write in likely}
        deletes = [write.stamp for write in likely if write is not None and write.kind == "delete"]
        if deletes and any(write.kind == "post" and write.told is not Told.NO and write.stamp > min(deletes)
                           for write in self.writes):
            found.add(True)
        return found

    def items(self) -> set[str]:
        return {name for write in self.writes for name in write.items}

    def allowed(self, name: str) -> set[str]:
        """The values that a metadata item may have; '' for none."""
        relevant = [write for write in self.writes if name in write.items or write.kind == "delete"]
        return {"" if write is None or write.kind == "delete" else write.items[name] for write in candidates(relevant)}
