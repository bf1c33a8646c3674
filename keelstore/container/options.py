"""Options of the container server."""

from __future__ import annotations

from dataclasses import dataclass

from keelstore.common.options import option
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
