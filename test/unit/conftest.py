"""Fixtures of several unit tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from test.support.held_syncs import HeldSyncs


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldSyncs]:
    """Syncs that end when the test says so."""
    found = HeldSyncs()
    found.install(monkeypatch)
    yield found
    found.remove()
