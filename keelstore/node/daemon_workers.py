"""A daemon that runs alone as several processes, each with its share of the devices (``spec: daemons 3``).

The parent forks, replaces what dies, and plans anew when the devices of the node change. It holds nothing that a child needs
to live; a child ends with its parent.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Collection
from typing import Final

from keelstore.common import concurrency
from keelstore.common.daemon import die_with_parent

POLL_S: Final = 5.0


def shares(devices: Collection[str], count: int) -> list[frozenset[str]]:
    """The devices dealt out to at most ``count`` processes, none of them without any."""
    names = sorted(devices)
    return [frozenset(names[start::count]) for start in range(min(count, len(names)))]


class DaemonWorkers:
    """``work(share, once)`` is the life of a child; ``devices`` gives the names of the devices that are to be shared."""

    def __init__(self, work: Callable[[frozenset[str], bool], int], devices: Callable[[], Collection[str]], count: int,
                 log: logging.Logger):
        self._work, self._devices, self._count, self._log = work, devices, count, log
        self._children: dict[int, frozenset[str]] = {}

    def run_once(self) -> int:
        """Every share once; 0 when all went well."""
        for share in shares(self._devices(), self._count):
            self._fork(share, True)
        status = 0
        while self._children:
            pid, ended = os.wait()
            if self._children.pop(pid, None) is not None and ended:
                status = 1
        return status

    def run_forever(self) -> None:
        """Until a signal ends the process."""
        devices = frozenset(self._devices())
        for share in shares(devices, self._count):
            self._fork(share, False)
        while True:
            time.sleep(POLL_S)
            for pid, share in list(self._children.items()):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    del self._children[pid]
                    self._log.error("the process for %s ended, and is started again", ", ".join(sorted(share)))
                    self._fork(share, False)
            now = frozenset(self._devices())
            if now != devices:
                self._log.info("the devices of this node have changed: %s", ", ".join(sorted(now)))
                self.stop()
                devices = now
                for share in shares(devices, self._count):
                    self._fork(share, False)

    def stop(self) -> None:
        """End all children; whatever they do may be cut off at any point."""
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)
        for pid in self._children:
            os.waitpid(pid, 0)
        self._children.clear()

    def _fork(self, share: frozenset[str], once: bool) -> None:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            self._children[pid] = share
            return
        status = 1
        try:
            concurrency.renew_hub()
            die_with_parent(parent)
            status = self._work(share, once)
        except BaseException:
            self._log.exception("the process for %s failed", ", ".join(sorted(share)))
        finally:
            logging.shutdown()
            os._exit(status)
