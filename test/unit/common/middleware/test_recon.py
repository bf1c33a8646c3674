import hashlib
import json
import logging
import os

import pytest

from keelstore import __version__
from keelstore.common import node_health
from keelstore.common.middleware.recon import Recon, ReconOptions, filter_factory
from test.unit.common.middleware.helpers import Inner, call


@pytest.fixture
def node(tmp_path):
    for path in ("cache", "dev/sda", "dev/sdb/quarantined/objects/x", "dev/sdb/quarantined/objects-1/y",
                 "dev/sda/quarantined/containers/z", "dev/sda/quarantined/odd-1/z", "swift", "proc/net"):
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / "dev/file").touch()
    (tmp_path / "proc/loadavg").write_text("1.75 2.05 1.30 4/257 21363\n")
    (tmp_path / "proc/meminfo").write_text("MemTotal:       24684084 kB\nHugePages_Total:       0\n")
    (tmp_path / "proc/mounts").write_text("proc /proc proc rw 0 0\n/dev/vda / ext4 rw 0 0\n")
    (tmp_path / "proc/net/sockstat").write_text(
        "sockets: used 271\nTCP: inuse 29 orphan 1 tw 7978 alloc 45 mem 75\nUDP: inuse 3 mem 2\n")
    (tmp_path / "proc/net/sockstat6").write_text("TCP6: inuse 4\nUDP6: inuse 1\n")
    return tmp_path


def app(node, **extra):
    options = ReconOptions(str(node / "cache"), str(node / "dev"), str(node / "swift"))
    return Recon(Inner(body=b"inner"), options, logging.getLogger("test"), str(node / "proc"), **extra)


def ask(node, check, method="GET"):
    return call(app(node), method, f"/recon/{check}")


def leave(node, name, **values):
    (node / "cache" / f"{name}.recon").write_text(json.dumps(values))


CACHED = {
    "async": ("object", ["async_pending", "async_pending_last"]),
    "replication": ("object", ["replication_time", "replication_stats", "replication_last", "object_replication_time",
                               "object_replication_last"]),
    "replication/object": ("object", ["replication_time", "replication_stats", "replication_last",
                                      "object_replication_time", "object_replication_last"]),
    "replication/account": ("account", ["replication_time", "replication_stats", "replication_last"]),
    "replication/container": ("container", ["replication_time", "replication_stats", "replication_last"]),
    "reconstruction/object": ("object", ["object_reconstruction_last", "object_reconstruction_time"]),
    "updater/container": ("container", ["container_updater_sweep"]),
    "updater/object": ("object", ["object_updater_sweep", "object_updater_stats", "object_updater_last"]),
    "auditor/account": ("account", ["account_audits_passed", "account_auditor_pass_completed", "account_audits_since",
                                    "account_audits_failed"]),
    "auditor/container": ("container", ["container_audits_passed", "container_auditor_pass_completed",
                                        "container_audits_since", "container_audits_failed"]),
    "auditor/object": ("object", ["object_auditor_stats_ALL", "object_auditor_stats_ZBF"]),
    "expirer/object": ("object", ["object_expiration_pass", "expired_last_pass"]),
    "sharding": ("container", ["sharding_stats", "sharding_time", "sharding_last"]),
    "driveaudit": ("drive", ["drive_audit_errors"]),
    "relinker": ("relinker", ["devices", "workers"]),
}


@pytest.mark.parametrize("check", CACHED)
def test_what_daemons_left(node, check):
    name, keys = CACHED[check]
    got = ask(node, check)
    assert (got.status, got.headers["Content-Type"]) == (200, "application/json")
    assert got.json() == dict.fromkeys(keys)
    leave(node, name, **{key: {"n": i} for i, key in enumerate(keys)}, other=1)
    assert ask(node, check).json() == {key: {"n": i} for i, key in enumerate(keys)}
    for broken in ("", "nonsense", "[1]", "[" * 9999):
        (node / "cache" / f"{name}.recon").write_text(broken)
        assert ask(node, check).json() == dict.fromkeys(keys)


@pytest.mark.parametrize("check", ["", "foo", "replication/foo", "reconstruction", "updater", "updater/account", "auditor",
                                   "expirer", "expirer/account", "replication/object/x", "mem/x/y", "foo<script>"])
def test_unknown_checks(node, check):
    got = ask(node, check)
    assert (got.status, got.headers["Content-Type"]) == (404, "text/plain")
    assert got.body == f"Invalid path: /recon/{check}".encode()


def test_other_paths_pass(node):
    for path in ("/recon", "/reconx", "/v1/recon/mem", "/"):
        assert call(app(node), path=path).body == b"inner"


def test_any_method(node):
    assert ask(node, "version", "PUT").json() == {"version": __version__}
    assert ask(node, "version", "HEAD").body == b""
    assert ask(node, "mem/x").status == ask(node, "async/object").status == 200


def test_the_machine(node):
    assert ask(node, "load").json() == {"1m": 1.75, "5m": 2.05, "15m": 1.3, "tasks": "4/257", "processes": 21363}
    assert ask(node, "mem").json() == {"MemTotal": "24684084 kB", "HugePages_Total": "0"}
    assert ask(node, "sockstat").json() == {
        "tcp_in_use": 29, "orphan": 1, "time_wait": 7978, "tcp6_in_use": 4,
        "tcp_mem_allocated_bytes": 75 * os.sysconf("SC_PAGESIZE")}
    assert ask(node, "mounted").json() == [{"device": "proc", "path": "/proc"}, {"device": "/dev/vda", "path": "/"}]
    assert call(app(node, now=lambda: 12.5), path="/recon/time").json() == 12.5


def test_the_real_machine(tmp_path):
    real = filter_factory({"log_file": "-"}, recon_cache_path=str(tmp_path), devices=str(tmp_path), swift_dir=str(tmp_path))(
        Inner())
    for check in ("load", "mem", "sockstat", "mounted", "time"):
        assert call(real, path=f"/recon/{check}").status == 200


def test_what_cannot_be_read_is_500(node):
    (node / "proc/loadavg").unlink()
    (node / "proc/meminfo").unlink()
    assert ask(node, "load").status == ask(node, "mem").status == 500
    (node / "proc/loadavg").write_text("odd")
    assert ask(node, "load").status == 500


def test_devices(node):
    assert ask(node, "devices").json() == {str(node / "dev"): ["file", "sda", "sdb"]}
    assert ask(node, "unmounted").json() == [{"device": "sda", "mounted": False}, {"device": "sdb", "mounted": False}]
    nothing = {"mounted": False, "size": "", "used": "", "avail": ""}
    assert ask(node, "diskusage").json() == [{"device": "sda", **nothing}, {"device": "sdb", **nothing}]


def test_mounted_devices(node, monkeypatch):
    real = os.path.ismount

    def ismount(path):
        if path.endswith("sda"):
            return True
        if path.endswith("sdb"):
            raise OSError(5, "Input/output error")
        return real(path)
    monkeypatch.setattr(os.path, "ismount", ismount)
    assert ask(node, "unmounted").json() == [{"device": "sdb", "mounted": "Input/output error"}]
    first, second = ask(node, "diskusage").json()
    disk = os.statvfs(node / "dev/sda")
    assert first["size"] == disk.f_blocks * disk.f_frsize and first["mounted"] is True
    assert isinstance(first["used"], int) and isinstance(first["avail"], int)
    assert second == {"device": "sdb", "mounted": "Input/output error", "size": "", "used": "", "avail": ""}


def test_a_device_that_hangs_holds_up_nothing(node, monkeypatch):
    monkeypatch.setattr(node_health, "DEVICE_S", 0.1)
    end, begin = os.pipe()

    def ismount(path):
        return bool(os.read(end, 1)) if path.endswith("sdb") else True

    monkeypatch.setattr(os.path, "ismount", ismount)
    try:
        assert ask(node, "unmounted").json() == [{"device": "sdb", "mounted": "does not answer within 0 s"}]
        assert ask(node, "diskusage").json()[1]["mounted"] == "does not answer within 0 s"
    finally:
        os.write(begin, b"xx")


def test_no_devices(tmp_path):
    empty = Recon(Inner(), ReconOptions(str(tmp_path), str(tmp_path / "gone"), str(tmp_path)), logging.getLogger("test"))
    assert call(empty, path="/recon/devices").json() == {str(tmp_path / "gone"): None}
    assert call(empty, path="/recon/diskusage").json() == call(empty, path="/recon/unmounted").json() == []
    assert call(empty, path="/recon/quarantined").json() == {"objects": 0, "containers": 0, "accounts": 0, "policies": {}}


def test_quarantined(node):
    assert ask(node, "quarantined").json() == {
        "objects": 2, "containers": 1, "accounts": 0, "policies": {"0": {"objects": 1}, "1": {"objects": 1}}}


def test_digests(node):
    for name in ("account.ring.gz", "object.ring.gz", "object-2.ring.gz", "odd.ring.gz", "container.ring.gz.old", "object.builder"):
        (node / "swift" / name).write_bytes(name.encode())
    recon = app(node)
    expected = {str(node / "swift" / name): hashlib.md5(name.encode()).hexdigest()
                for name in ("account.ring.gz", "object.ring.gz", "object-2.ring.gz")}
    assert call(recon, path="/recon/ringmd5").json() == expected
    (node / "swift/object.ring.gz").write_bytes(b"another ring")
    assert call(recon, path="/recon/ringmd5").json()[str(node / "swift/object.ring.gz")] == hashlib.md5(
        b"another ring").hexdigest()
    assert call(recon, path="/recon/swiftconfmd5").json() == {str(node / "swift/swift.conf"): None}
    (node / "swift/swift.conf").write_bytes(b"x")
    assert call(recon, path="/recon/swiftconfmd5").json() == {str(node / "swift/swift.conf"): hashlib.md5(b"x").hexdigest()}
