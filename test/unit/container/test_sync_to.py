from __future__ import annotations

import pytest

from keelstore.common.errors import DeviceUnavailable
from keelstore.container.sync_to import problem_of, update_link

REALMS = {"US": frozenset({"DFW1"})}


@pytest.mark.parametrize("value, is_fine", [
    ("//us/dfw1/AUTH_a/c", True), ("//us/other/AUTH_a/c", False), ("//eu/dfw1/AUTH_a/c", False), ("//us/dfw1/AUTH_a", False),
    ("http://127.0.0.1:8080/v1/a/c", True), ("https://127.0.0.1/v1/a/c", True), ("ftp://127.0.0.1/v1/a/c", False),
    ("http://127.0.0.1", False), ("http://127.0.0.1/v1/a/c?x=y", False), ("http://10.0.0.1/v1/a/c", False),
    ("http://127.0.0.1@evil.example/v1/a/c", False), ("http://[::1/v1", False), ("nonsense", False), ("http://127.0.0.1:x/v1/a/c", False),
])
def test_targets(value, is_fine):
    assert (problem_of(value, ["127.0.0.1"], REALMS) is None) == is_fine


def test_a_device_that_went_away_is_not_made_again_for_a_link(tmp_path):
    device = f"{tmp_path}/sda1"
    name = f"{device}/containers/1/abc/{'0' * 29}abc/{'0' * 29}abc.db"
    with pytest.raises(DeviceUnavailable):
        update_link(device, name, name, True)
    assert not list(tmp_path.iterdir())
