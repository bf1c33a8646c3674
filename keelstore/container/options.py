"""Options of the container server and of the daemons of containers (``spec: daemons 4 to 10``)."""

from __future__ import annotations

from dataclasses import dataclass

from keelstore.common.daemon_frame import DaemonOptions
from keelstore.common.db_options import DatabaseAuditorOptions, DatabaseReplicatorOptions
from keelstore.common.options import not_negative, option, positive, unused
from keelstore.common.storage_server import StorageServerOptions


@dataclass(frozen=True)
class ContainerServerOptions(StorageServerOptions):
    """Options of ``[app:container-server]``."""

    allow_versions: bool = option(False, "Keep X-Versions-Location, for the legacy form of object versioning.")
    allowed_sync_hosts: tuple[str, ...] = option(
        ("127.0.0.1",), "Hosts that X-Container-Sync-To may name in a plain URL; realms need no entry here."
    )
    auto_create_account_prefix: str = unused(".", "set it in [swift-constraints] of the cluster file.")
    db_preallocation: bool = unused(False, "databases grow as they need.")
    db_query_logging: bool = unused(False, "statements are not logged.")


@dataclass(frozen=True)
class ContainerUpdaterOptions(DaemonOptions):
    """Options of ``[container-updater]``."""

    interval: float = option(300.0, "Seconds from the beginning of one scan of the devices to that of the next; changes "
                                    "that a server of the same node has just made are told within seconds.",
                             check=positive)
    concurrency: int = option(4, "Containers that tell their accounts at once.", check=positive)
    node_timeout: float = option(3.0, "Seconds to wait for an answer of another node.", check=positive)
    containers_per_second: float = option(50.0, "Containers that are looked at in a second; those that have not changed "
                                                "do not count. 0: no limit.", check=not_negative)
    slowdown: float | None = option(None, "Deprecated, in favour of containers_per_second: seconds from one container to the "
                                          "next at the least.", check=not_negative)
    account_suppression_time: float = option(60.0, "Seconds that an account is left alone that could not be told.",
                                             check=not_negative)

    @property
    def rate(self) -> float:
        """Containers a second by both options of that; 0: no limit."""
        limits = (self.containers_per_second, 1 / self.slowdown if self.slowdown else 0.0)
        return min((limit for limit in limits if limit), default=0.0)


@dataclass(frozen=True)
class ContainerReconcilerOptions(DaemonOptions):
    """Options of ``[container-reconciler]``, in a file of its own (with the pipeline that its requests go through) or in that
    of the container server.
    """

    interval: float = option(30.0, "Seconds from the beginning of one pass over the queue to that of the next.",
                             check=positive)
    reclaim_age: float = option(604800.0, "Seconds after which an object that was never found is given up, and an empty "
                                          "container of the queue goes.", check=positive)
    request_tries: int = option(3, "Times that a request is tried.", check=positive)
    concurrency: int = option(1, "Objects that are moved at once.", check=positive)
    processes: int = option(0, "Processes in the cluster that share the queue; 0: in a node, all nodes share it; alone, "
                               "one does everything.", check=not_negative)
    process: int = option(0, "Which of them this is, from 0.", check=not_negative)
    ring_check_interval: float = unused(15.0, "rings are looked at every 15 s.", check=positive)
    node_timeout: float = option(10.0, "Seconds to wait for an answer of another node.", check=positive)
    internal_client_conf_path: str = option("", "Configuration of the pipeline that requests go through; empty: that of "
                                                "this file if it ends in a proxy, else one of cache and proxy-server. It "
                                                "must neither encrypt nor decrypt.")


@dataclass(frozen=True)
class ContainerLifecycleOptions(DaemonOptions):
    """Options of ``[container-lifecycle]``."""

    interval: float = option(3600.0, "Seconds from the beginning of one pass over the buckets that have lifecycle rules to "
                                     "that of the next.", check=positive)
    concurrency: int = option(2, "Buckets that are looked through at once.", check=positive)
    deletes_at_once: int = option(4, "Objects of one bucket that are deleted at once.", check=positive)
    request_tries: int = option(3, "Times that a request is tried.", check=positive)
    lifecycle_day_seconds: float = option(86400.0, "Seconds of a day of the rules. Only tests need another.", check=positive)
    internal_client_conf_path: str = option("", "Configuration of the pipeline that requests go through; empty: one of "
                                                "cache, slo, versioned_writes, symlink and proxy-server. Another must have "
                                                "these, too.")


@dataclass(frozen=True)
class SyncDaemonOptions(DaemonOptions):
    """Options of ``[container-sync]``."""

    interval: float = option(300.0, "Seconds from the beginning of one pass over all synced containers to that of the next; "
                                    "what a server of the same node has just changed is synced within seconds.",
                             check=positive)
    container_time: float = option(60.0, "Seconds after which a container is left, to go on with it in the next pass.",
                                   check=positive)
    conn_timeout: float = option(5.0, "Seconds to wait for a connection to the other cluster.", check=positive)
    sync_row_concurrency: int = option(8, "Objects of a container that are sent at once.", check=positive)
    request_tries: int = option(3, "Times that a request within this cluster is tried.", check=positive)
    sync_proxy: tuple[str, ...] = option((), "HTTP proxies to reach other clusters through, of which one is picked for each "
                                             "connection.")
    allowed_sync_hosts: tuple[str, ...] = option(("127.0.0.1",), "Hosts that X-Container-Sync-To may name in a plain URL; "
                                                                 "realms need no entry here.")
    internal_client_conf_path: str = option("", "Configuration of the pipeline that objects are read through; empty: "
                                                "internal-client.conf in swift_dir if there is one, else one of cache, "
                                                "symlink and proxy-server. Where objects are encrypted it must have the "
                                                "filters of that.")


@dataclass(frozen=True)
class ContainerReplicatorOptions(DatabaseReplicatorOptions):
    """Options of ``[container-replicator]``."""

    rsync_module: str = option(
        "{replication_ip}::container", "rsync module of a node that has Swift's servers, for whole files; ours need none. "
                                       "May hold {ip}, {port}, {replication_ip}, {replication_port}, {region}, {zone}, "
                                       "{device} and {meta}.")


@dataclass(frozen=True)
class ContainerAuditorOptions(DatabaseAuditorOptions):
    """Options of ``[container-auditor]``."""

    containers_per_second: float = option(200.0, "Containers that are checked in a second. 0: no limit.", check=not_negative)
