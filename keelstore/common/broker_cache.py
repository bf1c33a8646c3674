"""The brokers that a process used last, with their connections open."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from keelstore.common.broker import Broker

B = TypeVar("B", bound=Broker)
CONNECTIONS = 64  # brokers a process keeps open


class BrokerCache(Generic[B]):
    """At most ``size`` brokers, each made by ``make(*key)`` when first asked for."""

    def __init__(self, make: Callable[..., B], size: int = CONNECTIONS):
        self._make, self._size = make, size
        self._brokers: OrderedDict[tuple[str, ...], B] = OrderedDict()
        self._process = os.getpid()
        self._inherited: list[Any] = []

    def get(self, *key: str) -> B:
        if self._process != os.getpid():
            # Connections must not cross a fork, nor be closed on its other side.
            self._inherited.append(self._brokers)
            self._brokers, self._process = OrderedDict(), os.getpid()
        broker = self._brokers.get(key)
        if broker is not None:
            self._brokers.move_to_end(key)
            return broker
        broker = self._brokers[key] = self._make(*key)
        if len(self._brokers) > self._size:
            self._brokers.popitem(last=False)[1].close()
        return broker

    def close(self) -> None:
        for broker in self._brokers.values():
            broker.close()
        self._brokers.clear()

    def __len__(self) -> int:
        return len(self._brokers)
