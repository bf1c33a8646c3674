"""Changes of several disks that one green thread makes together, step by step, so that they share their waits.

Each is given as steps (``fs.Steps``). All are brought to their next wait, the files they wait for are synced side by side,
and all go on. What is late leaves: a change whose syncs have not ended after LATE_S, or that waits for something else, is
finished (:meth:`Change.finish`) on a green thread of its own, and holds up the others no longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from keelstore.common import disk_calls, fs
from keelstore.common.errors import StorageError
from keelstore.common.pace import LATE_S, Volume
from keelstore.common.syncs import Syncing


class Change:
    """Of one device. ``has_ended``: with ``error``, or None when all went well. Not for disk threads."""

    __slots__ = ("_began", "_steps", "_syncing", "_volume", "_wanted", "device", "error", "has_ended")

    def __init__(self, device: str, steps: fs.Steps):
        self.device, self._steps = device, steps
        self.error: Exception | None = None
        self.has_ended = False
        self._wanted: Sequence[int] = ()  # files that it waits for
        self._syncing: Syncing | None = None
        self._began = 0.0
        self._volume: Volume | None = None

    def _begin(self) -> None:
        """It counts as a call on the device from now on."""
        pace = disk_calls.pace()
        self._began = pace.clock()
        self._volume = pace.begin(self.device, self._began, self)

    def _go_on(self, error: BaseException | None) -> None:
        """To the next wait, or the end."""
        try:
            self._wanted = next(self._steps) if error is None else self._steps.throw(error)
            return
        except StopIteration:
            pass
        except Exception as failure:
            self.error = failure
        except BaseException:
            self.error = StorageError("given up")
            self._end()
            raise
        self._end()

    def _end(self) -> None:
        if not self.has_ended:
            self.has_ended = True
            if self._volume is not None:
                disk_calls.pace().end(self._volume, self._began, self, True, is_own=True)

    def give_up(self) -> None:
        """It is not to go on: its maker was stopped. ``error`` says so: it is not made. What fails meanwhile keeps nothing of
        others.
        """
        syncing, self._syncing = self._syncing, None
        if syncing is not None:
            disk_calls.forget_sync(syncing)
        if not self.has_ended:
            self.error = StorageError("given up")
            try:
                with suppress(Exception):
                    self._steps.close()
            finally:
                self._end()

    def _wait_for_other(self) -> None:
        """Go on where it waits for no disk, but for a lock that another holds, who may be stopped: that tells nothing of the
        device, and only what follows does again.
        """
        volume, self._volume = self._volume, None
        assert volume is not None
        disk_calls.pace().leave_out(volume, self)
        self._go_on(None)
        if not self.has_ended:
            self._begin()

    def finish(self) -> None:
        """What :func:`together` left of it, waiting here for as long as that takes."""
        try:
            syncing, self._syncing = self._syncing, None
            if syncing is not None:
                disk_calls.finish_sync(syncing)
                if syncing.refused and not syncing.code:
                    self._wanted = syncing.refused
                else:
                    self._go_on(syncing.error)
            while not self.has_ended:
                if not self._wanted:
                    self._wait_for_other()
                    continue
                error: BaseException | None = None
                try:
                    fs.sync_files(self._wanted)
                except OSError as failure:
                    error = failure
                self._go_on(error)
        except BaseException:
            self.give_up()
            raise


def together(changes: Sequence[Change]) -> None:
    """Make them all, of devices that differ and of which ``disk_calls.syncs_here`` is true. Those that have not ended then
    are to be finished. When this green thread is stopped all are given up. Takes twice LATE_S at most, but for what is no
    wait.
    """
    began, clock = disk_calls.pace().clock(), disk_calls.pace().clock
    try:
        for change in changes:
            change._begin()
            change._go_on(None)
        live = [change for change in changes if change._wanted and not change.has_ended]
        while live and clock() - began < LATE_S:
            again = []
            for change, syncing in zip(live, disk_calls.sync_sets([change._wanted for change in live], LATE_S), strict=True):
                if syncing.left or syncing.refused:
                    change._syncing = syncing
                    continue
                change._go_on(syncing.error)
                if change._wanted and not change.has_ended:
                    again.append(change)
            live = again
    except BaseException:
        for change in changes:
            change.give_up()
        raise
