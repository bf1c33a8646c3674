"""Options of the daemons that account and container databases have alike (``spec: daemons 4, 5``)."""

from __future__ import annotations

from dataclasses import dataclass

from keelstore.common.daemon_frame import DaemonOptions
from keelstore.common.options import not_negative, option, port_number, positive
from keelstore.common.room import reserve_problem


@dataclass(frozen=True)
class DatabaseReplicatorOptions(DaemonOptions):
    """Options of ``[account-replicator]`` and ``[container-replicator]``."""

    interval: float = option(30.0, "Seconds from the beginning of one pass over all databases to that of the next; what a "
                                   "server tells of, and what failed for a peer that is back, does not wait for it.",
                             check=positive, names=("interval", "run_pause"))
    concurrency: int = option(8, "Databases that are worked on at once.", check=positive)
    databases_per_second: float = option(50.0, "Databases that a pass looks at in a second. 0: no limit.",
                                         check=not_negative)
    per_diff: int = option(1000, "Rows that are sent at once; a database that lacks more than this, and more than half of "
                                 "all, gets the whole file.", check=positive)
    max_diffs: int = option(100, "Times that per_diff rows are sent to a peer before other databases have their turn.",
                            check=positive)
    node_timeout: float = option(10.0, "Seconds to wait for an answer of another node.", check=positive)
    rsync_compress: bool = option(False, "Have rsync compress what goes to another region.")
    rsync_module: str = option(
        "{replication_ip}::database", "rsync module of a node that has Swift's servers, for whole files; ours need none. May "
                                      "hold {ip}, {port}, {replication_ip}, {replication_port}, {region}, {zone}, {device} "
                                      "and {meta}.")
    reclaim_age: float = option(604800.0, "Seconds after which the rows of what was deleted go, and deleted databases.",
                                check=positive)
    handoffs_only: bool = option(False, "Send home what belongs elsewhere, and do nothing else.")
    handoff_delete: int | None = option(
        None, "Primaries that must hold a database before a handoff's copy of it goes; auto or 0: all of them. Fewer is for "
              "emergencies: the copy that goes may be needed.", check=not_negative)
    bind_port: int | None = option(None, "Port by which the ring knows this node's servers, where it is not theirs.",
                                   check=port_number)
    ring_check_interval: float = option(15.0, "Seconds between two looks for a new ring.", check=positive)
    fallocate_reserve: str = option("1%", "Space that copies of databases leave free on a device: bytes, or a percentage.",
                                    check=reserve_problem)


@dataclass(frozen=True)
class DatabaseAuditorOptions(DaemonOptions):
    """Options of ``[account-auditor]`` and ``[container-auditor]``, but for how many a second."""

    interval: float = option(1800.0, "Seconds from the beginning of one pass to that of the next.", check=positive)
    check_time: float = option(3.0, "Seconds that a database may be held for the check of its pages and counts; what takes "
                                    "longer is opened and read, not checked to its end. 0: no such check.",
                               check=not_negative)
