"""Deliberate faults of the product: each must make seeds fail, or the simulation is no test.

Each is a function that breaks the product in this process, before any seed runs.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

FAULTS: dict[str, Callable[[], None]] = {}


def fault(function: Callable[[], None]) -> Callable[[], None]:
    FAULTS[function.__name__.replace("_", "-")] = function
    return function


def replace(old: Any, new: Any) -> None:
    """In every module that has it under some name."""
    count = 0
    for name, module in list(sys.modules.items()):
        if name.startswith("keelstore."):
            for key, value in list(vars(module).items()):
                if value is old:
                    setattr(module, key, new)
                    count += 1
    assert count, f"{old} is nowhere"


# -- durability --------------------------------------------------------------------------------------------------------


@fault
def skip_directory_sync() -> None:
    """A new name is acknowledged before it is on disk."""
    from keelstore.common import fs

    sync = fs._sync

    def skipping(fds: Sequence[int], data_only: bool = False) -> None:
        sync([fd for fd in fds if not stat.S_ISDIR(os.fstat(fd).st_mode)], data_only)

    replace(sync, skipping)


@fault
def skip_file_sync() -> None:
    """A file gets its name before its content is on disk."""
    from keelstore.common import fs

    syncing_above = fs.syncing_above
    replace(fs.sync_file, lambda fd: None)
    replace(fs.syncing_file_and_above, lambda fd, directory, made: syncing_above(directory, made))


@fault
def quorum_of_one() -> None:
    """One device is enough for an acknowledgement."""
    from keelstore.common import quorum

    replace(quorum.quorum_size, lambda count: 1)


@fault
def empty_the_queue_first() -> None:
    """Rows that wait are removed from the disk before they are in the database."""
    from keelstore.common import fs
    from keelstore.common.pending import Merge

    read = Merge.records

    def reading(self: Any, on_bad: Any) -> list[Any]:
        found = read(self, on_bad)
        fs.truncate(self._path)
        return found

    Merge.records = reading  # type: ignore[method-assign]


# -- the newest wins ---------------------------------------------------------------------------------------------------


@fault
def ignore_a_tombstone() -> None:
    """An object is there as long as there is data."""
    from keelstore.obj import fileset, layout

    resolve = fileset.resolve

    def resolving(files: Any, **options: Any) -> Any:
        files = list(files)
        if any(file.kind == layout.DATA for file in files):
            files = [file for file in files if file.kind != layout.TOMBSTONE]
        return resolve(files, **options)

    replace(resolve, resolving)


@fault
def accept_an_older_row() -> None:
    """The row that arrives last is the one that counts."""
    from keelstore.container import rows

    replace(rows.merge, lambda one, other: other)


@fault
def accept_an_older_container() -> None:
    """What a container tells its account last counts, whether it is newer or not."""
    from keelstore.account import rows

    replace(rows.merge, lambda known, new: new)


@fault
def accept_older_metadata() -> None:
    """Of a container's metadata the item that arrives last counts."""
    from keelstore.common import broker_steps

    replace(broker_steps.merge_metadata, lambda known, updates: {**known, **updates})


# -- repair ------------------------------------------------------------------------------------------------------------


@fault
def delete_a_handoff_after_one_confirmation() -> None:
    from keelstore.obj import jobs

    removable = jobs.removable
    replace(removable, lambda held, needed, same: removable(held, 1, same))


@fault
def drop_an_async_pending() -> None:
    """A container update that failed is forgotten."""
    from keelstore.obj import updates

    replace(updates.write_pending, lambda *args: None)


@fault
def do_not_note_changes() -> None:
    """The suffix hashes of a partition do not follow what is written."""
    from keelstore.common.fs import Steps
    from keelstore.obj import hashes

    class Unnoted(nullcontext[None]):
        def entering(self) -> Steps:
            yield from ()

    replace(hashes.changing, lambda *args, **kwargs: Unnoted())


@fault
def believe_what_is_rotten() -> None:
    """The auditor finds everything well."""
    from keelstore.obj.auditor import ObjectAuditor

    ObjectAuditor.carry_out = lambda self, job: None  # type: ignore[method-assign,assignment]


@fault
def expire_without_the_check() -> None:
    """The expirer deletes what the queue names, whatever the object says."""
    from keelstore.common.internal import make_path
    from keelstore.common.timestamp import Timestamp
    from keelstore.obj.expirer import ObjectExpirer

    def delete(self: Any, task: Any) -> None:
        self.client.request("DELETE", make_path(task.account, task.container, task.obj),
                            {"X-Timestamp": Timestamp(self.world.clock()).internal}, (2, 404, 409)).drain()

    ObjectExpirer._delete_object = delete  # type: ignore[method-assign]
