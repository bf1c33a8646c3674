"""Options of the container server and of the daemons of containers (``spec: daemons 4 to 10``)."""

from __future__ import annotations

from dataclasses import dataclass

from keelstore.common.daemon_frame import DaemonOptions
from keelstore.common.options import not_negative, option, positive
from keelstore.common.storage_server import StorageServerOptions


@dataclass(frozen=True)
class ContainerServerOptions(StorageServerOptions):
    """Options of ``[app:container-server]``."""

    allow_versions: bool = option(False, "Keep X-Versions-Location, for the legacy form of object versioning.")
    allowed_sync_hosts: tuple[str, ...] = option(
        ("127.0.0.1",), "Hosts that X-Container-Sync-To may name in a plain URL; realms need no entry here."
    )
    auto_create_account_prefix: str = option(".", "Deprecated: set it in [swift-constraints] of the cluster file.")
    db_preallocation: bool = option(False, "Accepted for old files; databases grow as they need.")
    db_query_logging: bool = option(False, "Accepted for old files; statements are not logged.")


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
    slowdown: float = option(0.01, "Deprecated: use containers_per_second.", check=not_negative)
    account_suppression_time: float = option(60.0, "Seconds that an account is left alone that could not be told.",
                                             check=not_negative)
