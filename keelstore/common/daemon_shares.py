"""What the processes of one daemon that share its devices (``reconstructor_workers``) leave for recon: one entry of them all.

In the recon file ``daemons`` each keeps its own state under ``workers``, by daemon and first device; ``daemons`` has, under
the daemon's name, what these come to together. A process that is replaced has the share of the one before it;
what one that is gone has left counts no more, unless it was to make one pass only.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, Final

from keelstore.common.recon_cache import ReconCache

# Two processes may tell of the same partition or object: of these the most that one of them knows is sure.
_LARGEST: Final = frozenset({"at", "eta_s", "last_pass_s", "interval_s", "pid", "most_missing", "partitions_below_full",
                             "unrecoverable"})
_SMALLEST: Final = frozenset({"begun", "passes"})


def combined(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The state of a daemon out of those of its processes; in any order. What is not known of one is that of the others, but
    for ``total``.
    """
    states = list(states)
    found: dict[str, Any] = {}
    for name in dict.fromkeys(name for state in states for name in state):
        values = [state[name] for state in states if state.get(name) is not None]
        if name == "total" and len(values) < len(states):
            found[name] = None
        elif values:
            found[name] = _combined(name, values)
        else:
            found[name] = None
    return found


def _combined(name: str, values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, bool):
        return any(values)
    if isinstance(first, Mapping):
        return {key: value for one in values for key, value in sorted(one.items())}
    if isinstance(first, (list, tuple)):
        return sorted({item for one in values for item in one})
    if not isinstance(first, (int, float)):
        return first
    return max(values) if name in _LARGEST else min(values) if name in _SMALLEST else sum(values)


def leave(recon: ReconCache, name: str, share: frozenset[str], state: Mapping[str, Any], may_end: bool = False) -> None:
    """Leave the state of the process that has ``share`` of the devices of daemon ``name``; its parent is the daemon.

    ``may_end``: each process makes one pass and ends, and counts all the same.
    """
    parent = os.getppid()
    own = {**state, "pid": parent}
    key = f"{name} {min(share)}"
    known = {other: entry for other, entry in (recon.read("daemons").get("workers") or {}).items()
             if other.startswith(f"{name} ") and other != key and isinstance(entry, Mapping)}
    others = {other: entry["state"] for other, entry in known.items()
              if entry.get("parent") == parent and not share & set(entry["devices"])
              and (may_end or os.path.exists(f"/proc/{entry.get('worker')}"))}
    recon.update("daemons", {
        "workers": {**{other: {} for other in known.keys() - others.keys()},
                    key: {"parent": parent, "worker": os.getpid(), "devices": sorted(share), "state": own}},
        "daemons": {name: combined([own, *others.values()])},
    })
