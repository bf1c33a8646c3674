"""The account auditor; ``common/db_auditor`` has what it does."""

from __future__ import annotations

from typing import ClassVar, cast

from keelstore.account.broker import AccountBroker
from keelstore.account.options import AccountAuditorOptions
from keelstore.common.broker import Broker
from keelstore.common.broker_steps import Connection
from keelstore.common.daemon_frame import World
from keelstore.common.db_auditor import DatabaseAuditor, counts_problem

COLUMNS = ("container_count", "object_count", "bytes_used")


class AccountAuditor(DatabaseAuditor):
    name: ClassVar[str] = "account-auditor"
    service: ClassVar[str] = "account"
    datadir: ClassVar[str] = "accounts"

    def __init__(self, options: AccountAuditorOptions, world: World):
        super().__init__(options, world, options.accounts_per_second)

    def make_broker(self, path: str, device_path: str) -> AccountBroker:
        return AccountBroker(path, device_path, self.log)

    def problem_in(self, connection: Connection, broker: Broker) -> str | None:
        """The sums over the policies are the totals."""
        account = cast(AccountBroker, broker)
        info = account.info_in(connection)
        if info.is_deleted:
            return None
        stats = account.policy_stats_in(connection)
        for name in COLUMNS:
            total, found = int(getattr(info, name) or 0), sum(int(getattr(stat, name) or 0) for stat in stats)
            if total != found:
                return f"The total {name} for the account ({total}) does not match the sum over its policies ({found})"
        return None

    def problem_of_rows(self, connection: Connection) -> str | None:
        return counts_problem(connection, "container", COLUMNS, "SUM(1 - deleted), SUM(object_count), SUM(bytes_used)")
