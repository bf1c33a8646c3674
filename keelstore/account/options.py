"""Options of the account server and of the daemons of accounts (``spec: daemons 4 to 6``)."""

from __future__ import annotations

from dataclasses import dataclass

from keelstore.common.daemon_frame import DaemonOptions
from keelstore.common.db_options import DatabaseAuditorOptions, DatabaseReplicatorOptions
from keelstore.common.options import not_negative, option, positive, unused
from keelstore.common.storage_server import StorageServerOptions


@dataclass(frozen=True)
class AccountServerOptions(StorageServerOptions):
    """Options of ``[app:account-server]``."""

    auto_create_account_prefix: str = unused(".", "set it in [swift-constraints] of the cluster file.")
    db_preallocation: bool = unused(False, "databases grow as they need.")
    db_query_logging: bool = unused(False, "statements are not logged.")


@dataclass(frozen=True)
class AccountReaperOptions(DaemonOptions):
    """Options of ``[account-reaper]``."""

    interval: float = option(3600.0, "Seconds from the beginning of one pass to that of the next.", check=positive)
    concurrency: int = option(25, "Requests at once, shared between containers and their objects.", check=positive)
    node_timeout: float = option(10.0, "Seconds to wait for an answer of another node.", check=positive)
    delay_reaping: float = option(0.0, "Seconds that a deleted account keeps its content.", check=not_negative)
    reap_warn_after: float = option(2592000.0, "Seconds, beyond delay_reaping, after which an account that still has "
                                               "content is warned of.", check=not_negative)


@dataclass(frozen=True)
class AccountReplicatorOptions(DatabaseReplicatorOptions):
    """Options of ``[account-replicator]``."""

    rsync_module: str = option(
        "{replication_ip}::account", "rsync module of a node that has Swift's servers, for whole files; ours need none. May "
                                     "hold {ip}, {port}, {replication_ip}, {replication_port}, {region}, {zone}, {device} "
                                     "and {meta}.")


@dataclass(frozen=True)
class AccountAuditorOptions(DatabaseAuditorOptions):
    """Options of ``[account-auditor]``."""

    accounts_per_second: float = option(200.0, "Accounts that are checked in a second. 0: no limit.", check=not_negative)
