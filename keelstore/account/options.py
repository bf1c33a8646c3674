"""Options of the account server."""

from __future__ import annotations

from dataclasses import dataclass

from keelstore.common.options import option
from keelstore.common.storage_server import StorageServerOptions


@dataclass(frozen=True)
class AccountServerOptions(StorageServerOptions):
    """Options of ``[app:account-server]``."""

    auto_create_account_prefix: str = option(".", "Deprecated: set it in [swift-constraints] of the cluster file.")
    db_preallocation: bool = option(False, "Accepted for old files; databases grow as they need.")
    db_query_logging: bool = option(False, "Accepted for old files; statements are not logged.")
