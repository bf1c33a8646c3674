"""The cluster of the fault scenarios: four storage servers of each kind with one device each, and a proxy."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from test.support.client import Account
from test.support.peers import OURS, Peers
from test.support.stage import CONF, Stage

MAKE = os.environ.get("KEELSTORE_SCENARIO_MAKE", OURS)  # "swift" runs the scenarios on the reference, to test the tests


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peers]:
    peers = Peers(tmp_path_factory.mktemp("scenarios"), os.environ.get("KEELSTORE_SWIFT_PYTHON", ""), sites=4, devices_per_site=1, node_timeout=3)
    try:
        peers.start(0, 1, 2, 3, make=MAKE)
        peers.start_proxies(MAKE)
        yield peers
    finally:
        peers.stop_all()


@pytest.fixture
def site(peers: Peers) -> Iterator[Peers]:
    """The cluster with all its servers up, before and after the test."""
    peers.start(0, 1, 2, 3, make=MAKE)
    yield peers
    peers.start(0, 1, 2, 3, make=MAKE)


@pytest.fixture
def account(site: Peers) -> Account:
    return site.proxy(MAKE).login()


def remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def one_stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    stage = Stage(tmp_path_factory.mktemp("stage"), sites=4, devices_per_site=1, node_timeout=3, suppression=0.01, proxy_conf=CONF)
    try:
        stage.begin()
        yield stage
    finally:
        stage.end()


@pytest.fixture
def stage(one_stage: Stage) -> Iterator[Stage]:
    """The cluster whose servers come and go often, all of them up before and after the test."""
    one_stage.start(0, 1, 2, 3)
    yield one_stage
    one_stage.start(0, 1, 2, 3)
