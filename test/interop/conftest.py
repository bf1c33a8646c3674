"""The reference implementation, to be run beside ours.

``KEELSTORE_SWIFT_PYTHON`` names the Python of an environment that has swift 2.38.3; without it one is made, once, in the
cache directory. Nothing of it is copied: it is run and asked.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from test.support.environments import environment
from test.support.keystone import Keystone, KeystoneStore, running_keystone, store_of
from test.support.preloaded import Preloaded

SWIFT = "2.38.3"


@pytest.fixture(scope="session")
def swift_python() -> str:
    """The path of a Python interpreter that can import swift."""
    given = os.environ.get("KEELSTORE_SWIFT_PYTHON")
    if given:
        return given
    return str(environment(f"swift-{SWIFT}", f"swift=={SWIFT}", "setuptools<81") / "bin" / "python")


@pytest.fixture(scope="session")
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Preloaded]:
    """What our servers beside Swift's are forked from."""
    found = Preloaded(tmp_path_factory.mktemp("preloaded"))
    yield found
    found.stop()


@pytest.fixture(scope="session")
def keystone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keystone]:
    """A Keystone of its own environment, on SQLite."""
    with running_keystone(tmp_path_factory.mktemp("keystone")) as found:
        yield found


@pytest.fixture(scope="session")
def keystone_store(keystone: Keystone, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeystoneStore]:
    """A store whose users are Keystone's."""
    with store_of(keystone, tmp_path_factory.mktemp("keystone-store") / "data") as store:
        yield store
