"""The container auditor; ``common/db_auditor`` has what it does."""

from __future__ import annotations

from typing import ClassVar, cast

from keelstore.common.broker import Broker
from keelstore.common.broker_steps import Connection
from keelstore.common.daemon_frame import World
from keelstore.common.db_auditor import DatabaseAuditor, counts_problem
from keelstore.container.broker import ContainerBroker
from keelstore.container.options import ContainerAuditorOptions


class ContainerAuditor(DatabaseAuditor):
    name: ClassVar[str] = "container-auditor"
    service: ClassVar[str] = "container"
    datadir: ClassVar[str] = "containers"

    def __init__(self, options: ContainerAuditorOptions, world: World):
        super().__init__(options, world, options.containers_per_second)

    def make_broker(self, path: str, device_path: str) -> ContainerBroker:
        return ContainerBroker(path, device_path, self.log)

    def problem_in(self, connection: Connection, broker: Broker) -> str | None:
        cast(ContainerBroker, broker).info_in(connection)
        return None

    def problem_of_rows(self, connection: Connection) -> str | None:
        return counts_problem(connection, "object", ("object_count", "bytes_used"), "SUM(1 - deleted), SUM(size)")
