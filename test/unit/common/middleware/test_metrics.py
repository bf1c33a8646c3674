"""Who may read a proxy's /metrics, and what a storage server's recon says there."""

import logging

import pytest

from keelstore.common.errors import ConfigError
from keelstore.common.metrics import Meter
from keelstore.common.middleware.metrics import filter_factory
from keelstore.common.middleware.recon import Recon, ReconOptions
from test.unit.common.middleware.helpers import Inner, call


def app(**conf):
    found = filter_factory({}, **conf)(Inner(body=b"inner"))
    found.meter = Meter("proxy")
    found.meter.record("GET", 200, 0.01)
    return found


def ask(filtered, remote="127.0.0.1", path="/metrics", method="GET", **headers):
    environ = {"REMOTE_ADDR": remote, **{f"HTTP_{name.upper()}": value for name, value in headers.items()}}
    return call(filtered, method, path, **environ)


def is_page(answer):
    return b"keelstore_requests_total" in answer.body


@pytest.mark.parametrize("conf,remote,headers,may", [
    ({}, "127.0.0.1", {}, False),
    ({"allow_from": "127.0.0.0/8"}, "127.0.0.1", {}, True),
    ({"allow_from": "10.0.0.0/8, ::1"}, "::1", {}, True),
    ({"allow_from": "10.0.0.0/8"}, "192.168.1.1", {}, False),
    ({"allow_from": "10.0.0.0/8"}, "", {}, False),
    ({"allow_from": "127.0.0.0/8"}, "127.0.0.1", {"x_forwarded_for": "8.8.8.8"}, False),
    ({"allow_from": "127.0.0.0/8"}, "127.0.0.1", {"forwarded": "for=8.8.8.8"}, False),
    ({"bearer_token": "t0ken"}, "8.8.8.8", {"authorization": "Bearer t0ken"}, True),
    ({"bearer_token": "t0ken"}, "8.8.8.8", {"authorization": "Bearer other"}, False),
    ({"bearer_token": "t0ken"}, "8.8.8.8", {"authorization": "Bearer "}, False),
    ({}, "8.8.8.8", {"authorization": "Bearer "}, False),
])
def test_who_may_read_it(conf, remote, headers, may):
    answer = ask(app(**conf), remote, **headers)
    assert is_page(answer) == may and (may or answer.body == b"inner")


def test_other_paths_and_methods_pass():
    filtered = app(allow_from="127.0.0.1")
    assert ask(filtered, path="/metrics/x").body == b"inner" and ask(filtered, method="PUT").body == b"inner"
    assert is_page(ask(app(allow_from="127.0.0.1", metrics_path="/m"), path="/m"))


def test_a_bad_network_stops_the_start():
    with pytest.raises(ConfigError, match="networks"):
        app(allow_from="everywhere")


@pytest.mark.parametrize("role,may", [("object", True), ("proxy", False)])
def test_recon_has_it_on_storage_servers_only(tmp_path, role, may):
    (tmp_path / "d1").mkdir()
    options = ReconOptions(str(tmp_path), str(tmp_path), str(tmp_path), mount_check=False)
    recon = Recon(Inner(body=b"inner"), options, logging.getLogger("test"))
    recon.meter = Meter(role)
    recon.meter.record("PUT", 201, 0.01)
    answer = call(recon, "GET", "/metrics")
    assert is_page(answer) == may and (not may or b'keelstore_device_usable{device="d1"} 1' in answer.body)


def test_health_of_devices(tmp_path):
    for path in ("dev/d1/objects/7", "dev/d1/objects-1/8", "dev/d1/containers/1", "dev/d1/quarantined/objects/x", "dev/d2", "cache"):
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / "dev/file").touch()
    (tmp_path / "cache/daemons.recon").write_text('{"daemons": {"object-x": {"pid": 1, "figure": 3}, "bad": 5}}')
    options = ReconOptions(str(tmp_path / "cache"), str(tmp_path / "dev"), str(tmp_path), mount_check=False)
    recon = Recon(Inner(), options, logging.getLogger("test"))
    found = recon.health()
    assert set(found["devices"]) == {"d1", "d2"} and found["devices"]["d2"]["partitions"] == {}
    first = found["devices"]["d1"]
    assert first["partitions"] == {"objects": 1, "objects-1": 1, "containers": 1} and first["usable"] and not first["is_full"]
    assert first["quarantined"] == {"objects": 1} and first["quarantined_at"] > 0 and first["size"] > 0
    assert found["daemons"] == {"object-x": {"pid": 1, "figure": 3, "alive": True}}
    full = ReconOptions(str(tmp_path / "cache"), str(tmp_path / "dev"), str(tmp_path), mount_check=False, fallocate_reserve="100%")
    assert Recon(Inner(), full, logging.getLogger("test")).health()["devices"]["d1"]["is_full"]
    unmounted = ReconOptions(str(tmp_path / "cache"), str(tmp_path / "dev"), str(tmp_path))
    assert Recon(Inner(), unmounted, logging.getLogger("test")).health()["devices"]["d1"]["problem"] == "is not mounted"
