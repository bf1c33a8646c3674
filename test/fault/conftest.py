"""The cluster of the fault scenarios: four storage servers of each kind with one device each, and a proxy."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from test.support.client import Account
from test.support.fragment_stage import Fragments, FragmentStage, object_with_sites
from test.support.peers import OURS, Peers
from test.support.preloaded import Preloaded
from test.support.stage import CONF, Stage

MAKE = os.environ.get("KEELSTORE_SCENARIO_MAKE", OURS)  # "swift" runs the scenarios on the reference, to test the tests


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peers]:
    peers = Peers(tmp_path_factory.mktemp("scenarios"), os.environ.get("KEELSTORE_SWIFT_PYTHON", ""), sites=4, devices_per_site=1, conn_timeout=0.5,
                  node_timeout=6)
    peers.preloaded = Preloaded(peers.home)
    try:
        peers.start(0, 1, 2, 3, make=MAKE)
        peers.start_proxies(MAKE)
        yield peers
    finally:
        peers.stop_all()
        peers.preloaded.stop()


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
    stage = Stage(tmp_path_factory.mktemp("stage"), sites=4, devices_per_site=1, suppression=0.01, proxy_conf=CONF)
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


@pytest.fixture(scope="session")
def one_fragment_stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FragmentStage]:
    stage = FragmentStage.new(tmp_path_factory.mktemp("fragments"))
    try:
        stage.begin()
        yield stage
    finally:
        stage.end()


@pytest.fixture
def fragment_stage(one_fragment_stage: FragmentStage) -> Iterator[FragmentStage]:
    """The cluster of the scenarios about erasure coding, all of it up before and after the test."""
    one_fragment_stage.revive()
    yield one_fragment_stage
    one_fragment_stage.revive()


@pytest.fixture(scope="session")
def fragment_account(one_fragment_stage: FragmentStage) -> Account:
    return one_fragment_stage.own()


@pytest.fixture(scope="session")
def fragment_container(one_fragment_stage: FragmentStage, fragment_account: Account) -> str:
    return one_fragment_stage.container(fragment_account)


@pytest.fixture
def spot(fragment_stage: FragmentStage, fragment_account: Account, fragment_container: str) -> Fragments:
    """An object with a name of its own; two sites hold two fragments of it, two hold one."""
    return object_with_sites(fragment_stage, fragment_account, fragment_container, 2, 2, 1, 1)
