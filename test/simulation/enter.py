"""Making a process a simulated world. Once, first of all."""

from __future__ import annotations

from test.simulation import databases, disks, lives, worldtime


def virtual_world() -> None:
    worldtime.install()
    lives.install()
    databases.install()

    import random

    entropy = random.Random(0)
    disks.install(entropy.randbytes)

    from keelstore.common import backend, expiry, logs
    from test.simulation import network

    def backend_of_node(*_args: object, **_kwargs: object) -> network.SimBackend:
        life = lives.current()
        assert life is not None and network.the is not None
        return network.SimBackend(network.the, life.node)

    backend.Backend = backend_of_node  # type: ignore[assignment,misc]

    container_of = expiry.expirer_container

    def queue_container(delete_at: int, divisor: int, digest: bytes) -> str:
        """One of two of each day, not of a hundred: each costs databases."""
        return container_of(delete_at, divisor, bytes([digest[-1] % 2]))

    expiry.expirer_container = queue_container

    import logging

    def logger_for(conf: object, name: str) -> logging.Logger:
        life = lives.current()
        return logging.getLogger(f"simulation.node{life.node if life else '-'}.{name}")

    logs.logger_for = logger_for  # type: ignore[assignment]

    from test.simulation import runner

    runner.entropy = entropy
