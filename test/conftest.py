"""Fixtures of the tests that run live servers."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from test.support.store import Store, running


def pytest_configure(config: pytest.Config) -> None:
    """A run that is told to end stops its servers first, as one that is interrupted does. Hypothesis asserts no times."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("patient")
    config.addinivalue_line("markers", "alone: looks at times, memory or processor time; bin/run-tests runs nothing beside it")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store of one node: all its backend calls are function calls."""
    with running(tmp_path_factory.mktemp("one-node") / "data", is_patient=True) as store:
        yield store


@pytest.fixture(scope="session")
def cluster4(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store of four nodes that speak HTTP to each other."""
    with running(tmp_path_factory.mktemp("four-nodes") / "data", nodes=4, workers=1, is_patient=True) as store:
        yield store
