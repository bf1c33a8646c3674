"""The account replicator; ``common/db_replicator`` has what it does."""

from __future__ import annotations

from typing import ClassVar, cast

from keelstore.account.broker import AccountBroker
from keelstore.account.server import AccountReceiver
from keelstore.common.broker import Broker
from keelstore.common.broker_steps import Connection, timestamp_of
from keelstore.common.broker_sync import Receiver
from keelstore.common.db_replicator import DatabaseReplicator
from keelstore.common.timestamp import Timestamp


class AccountReplicator(DatabaseReplicator):
    name: ClassVar[str] = "account-replicator"
    service: ClassVar[str] = "account"
    datadir: ClassVar[str] = "accounts"

    def make_broker(self, path: str, device_path: str) -> AccountBroker:
        return AccountBroker(path, device_path, self.log)

    def make_receiver(self, broker: Broker) -> Receiver:
        return AccountReceiver(cast(AccountBroker, broker))

    def is_reclaimable(self, connection: Connection, broker: Broker, before: Timestamp) -> bool:
        info = cast(AccountBroker, broker).info_in(connection)
        deleted = timestamp_of(info.delete_timestamp)
        return not int(info.container_count or 0) and before > deleted > timestamp_of(info.put_timestamp)
