"""What a replicator does beside and between its passes: it shows what happens, rests longer in a quiet store, and looks at a
new ring at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from keelstore.common import concurrency
from keelstore.common.daemon_frame import SHOW_S, Daemon
from keelstore.common.peers import Peers
from keelstore.common.ring.ring import RingFile

QUIET_REST: Final = 40.0  # times as long as a pass that found all well a replicator rests after it,
MAX_QUIET_S: Final = 600.0  # but no longer than this


def rest_s(usual_s: float, quiet_s: float) -> float:
    """How long to rest. ``quiet_s``: what the last pass took if it found all well, else 0. Such a pass costs the more the
    more there is.
    """
    return max(usual_s, min(quiet_s * QUIET_REST, MAX_QUIET_S)) if quiet_s else usual_s


def keep_showing(daemon: Daemon) -> None:
    """What happens between passes is seen, too."""
    shown: dict[str, Any] = {}
    while True:
        concurrency.sleep(SHOW_S)
        figures = daemon.figures()
        if figures != shown:
            shown = figures
            daemon.show(force=True)


def watch_rings(daemon: Daemon, peers: Peers, rings: Iterable[RingFile], every_s: float) -> None:
    """A new ring is worth a pass at once. Who is in none of them any more is not waited for."""
    known = {ring: ring.current().version for ring in rings}
    while True:
        concurrency.sleep(every_s)
        changed = [ring for ring in known if ring.current().version != known[ring]]
        for ring in changed:
            known[ring] = ring.current().version
            daemon.wake()
        if changed:
            nodes = [node for ring in known for node in ring.current().nodes]
            peers.keep({address for node in nodes for address in (node.address, node.replication_address)})
