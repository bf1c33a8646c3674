"""Servers that die by SIGKILL, with all their processes at once, when they come to a point that a test has named.

Product code knows nothing of it: in the process that servers are forked from (``test.support.preloaded``) the functions of
:data:`POINTS` are wrapped, and the wrappers look into a file whether it is time. ``Crashes`` is the test's side.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from test.support.preloaded import Preloaded

BEFORE, AFTER = "before", "after"
POINTS = {
    # a proxy that writes fragments
    "nodes are connected": ("keelstore.proxy.erasure", "_FragmentPut._assign", AFTER),
    "a segment is encoded": ("keelstore.proxy.erasure", "_FragmentPut._encode", AFTER),
    "the body is sent": ("keelstore.proxy.erasure", "_FragmentPut._footers", AFTER),
    "a node says go on": ("keelstore.common.httpclient", "HttpUpload.ready", AFTER),
    "all have written": ("keelstore.proxy.erasure", "_FragmentPut._commit", BEFORE),
    "a node is told to commit": ("keelstore.common.httpclient", "HttpUpload.finish", BEFORE),
    "a node has committed": ("keelstore.common.httpclient", "HttpUpload.finish", AFTER),
    "a quorum has committed": ("keelstore.proxy.erasure", "_FragmentPut._commit", AFTER),
    # an object server that takes them
    "a fragment is announced": ("keelstore.obj.put", "Put.look", AFTER),
    "a part of it is on disk": ("keelstore.obj.writer", "Upload._write", AFTER),
    "its footer has come": ("keelstore.obj.mime_put", "MimeDocuments.footer", AFTER),
    "it has no name yet": ("keelstore.obj.writer", "Publication.publishing", BEFORE),
    "a change is noted": ("keelstore.obj.hashes", "fs.appending", AFTER),
    "it is written": ("keelstore.obj.writer", "Publication.publishing", AFTER),
    "the commit has come": ("keelstore.obj.mime_put", "MimeDocuments.commit", AFTER),
    "it is durable": ("keelstore.obj.store", "ObjectStore.make_durable", AFTER),
    "its container was told": ("keelstore.obj.updates", "ContainerUpdater.update_listing", AFTER),
    # a container server
    "a row comes": ("keelstore.container.broker", "ContainerBroker.put_object", BEFORE),
}


class Crashing(Preloaded):
    """Forks servers that have the wrapped functions."""

    module = "test.support.crashes"


@dataclass
class Crashes:
    """Where the servers of ``home`` shall die."""

    home: Path
    number: int = field(default=0, init=False)

    def arm(self, point: str, pids: Sequence[int] = (), nth: int = 1) -> None:
        """Each server (or only those of these pids) dies when it comes to the point for the ``nth`` time from now on."""
        assert point in POINTS
        self.number += 1
        self._write({"point": point, "pids": list(pids), "nth": nth, "number": self.number})

    def disarm(self) -> None:
        self._write({"point": ""})

    def _write(self, order: dict[str, Any]) -> None:
        new = self.home / "crash.new"
        new.write_text(json.dumps(order))
        new.rename(self.home / "crash")


def _wrap(home: str) -> None:
    seen: dict[int, int] = {}

    def arrive(name: str) -> None:
        try:
            with open(f"{home}/crash") as file:
                order = json.load(file)
        except FileNotFoundError:
            return
        if order["point"] != name or (order["pids"] and os.getsid(0) not in order["pids"]):
            return
        seen[order["number"]] = seen.get(order["number"], 0) + 1
        if seen[order["number"]] >= order["nth"]:
            os.killpg(os.getsid(0), signal.SIGKILL)

    for name, (module, path, when) in POINTS.items():
        owner: Any = importlib.import_module(module)
        *owners, last = path.split(".")
        for part in owners:
            owner = getattr(owner, part)
        setattr(owner, last, _crashing(getattr(owner, last), functools.partial(arrive, name), when))


def _crashing(function: Callable[..., Any], arrive: Callable[[], None], when: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def crashing(*arguments: Any, **named: Any) -> Any:
        if when == BEFORE:
            arrive()
        result = function(*arguments, **named)
        if when == BEFORE:
            return result
        if inspect.isgenerator(result):
            return followed(result)
        arrive()
        return result

    def followed(steps: Any) -> Any:
        yield from steps
        arrive()

    return crashing


if __name__ == "__main__":
    from test.support.preloaded import serve

    serve(functools.partial(_wrap, sys.argv[1]))
