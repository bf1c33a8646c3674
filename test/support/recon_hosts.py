"""Two hosts that answer ``/recon/<check>`` with what they were told to, for tests of ``keelstore-recon``."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from keelstore.common.ring import format as ring_format
from keelstore.common.ring.builder import RingBuilder
from keelstore.common.ring.devices import RingDevice

DISK = {"mounted": True}
NONE = {"size": "", "used": "", "avail": ""}
ANSWERS: dict[str, list[Any]] = {
    "async": [{"async_pending": 3, "async_pending_last": 1}, {"async_pending": None}],
    "auditor/object": [
        {"object_auditor_stats_ALL": {"audit_time": 10.5, "bytes_processed": 2000, "passes": 4, "errors": 1, "quarantined": 2, "start_time": 1.0},
         "object_auditor_stats_ZBF": {"audit_time": 1.5, "bytes_processed": 0, "errors": 0, "quarantined": 0, "passes": 1}},
        {"object_auditor_stats_ALL": {
            "d1": {"audit_time": 10.5, "bytes_processed": 2000, "passes": 4, "errors": 1, "quarantined": 2},
            "d2": {"audit_time": 2.5, "bytes_processed": 1000, "passes": 2, "errors": 0, "quarantined": 1}}, "object_auditor_stats_ZBF": None}],
    "auditor/container": [
        {"container_audits_passed": 7, "container_auditor_pass_completed": 3.5, "container_audits_since": 1700000000.0, "container_audits_failed": 1},
        {"container_audits_passed": 8, "container_auditor_pass_completed": None, "container_audits_since": 1700000100.0,
         "container_audits_failed": 0}],
    "auditor/account": [
        {"account_audits_passed": 7, "account_auditor_pass_completed": 3.5, "account_audits_since": 1700000000.0, "account_audits_failed": 1},
        {"account_audits_passed": 8, "account_auditor_pass_completed": None, "account_audits_since": 5.0, "account_audits_failed": 0}],
    "updater/object": [{"object_updater_sweep": 2.5}, {"object_updater_sweep": 4}],
    "updater/container": [{"container_updater_sweep": 2.5}, {"container_updater_sweep": None}],
    "expirer/object": [{"object_expiration_pass": 2.5, "expired_last_pass": 9}, {"object_expiration_pass": None, "expired_last_pass": None}],
    "reconstruction/object": [{"object_reconstruction_time": 3.0, "object_reconstruction_last": 1700000000.0},
                              {"object_reconstruction_time": 5.0, "object_reconstruction_last": 1700003600.0}],
    "replication/object": [
        {"replication_time": 1.5, "replication_last": 0, "replication_stats": {"failure": 1, "success": 5, "attempted": 6},
         "object_replication_time": 2.5, "object_replication_last": 0},
        {"replication_time": 2.5, "replication_last": 1700000000.0, "replication_stats": {"failure": 0, "success": 15, "attempted": 16},
         "object_replication_time": 2.5, "object_replication_last": 1700000000.0}],
    "replication/container": [
        {"replication_time": 1.5, "replication_last": 1600000000.0, "replication_stats": {"failure": 1, "success": 5, "attempted": 6}},
        {"replication_time": 1.5, "replication_last": 1700000000.0, "replication_stats": {"failure": 1, "success": 5, "attempted": None}}],
    "replication/account": [{"replication_time": 1.5, "replication_last": 1600000000.0, "replication_stats": None},
                            {"replication_time": None, "replication_last": None, "replication_stats": None}],
    "unmounted": [[{"device": "sda", "mounted": False}], [{"device": "sdb", "mounted": "Input/output error"}, {"device": "sdc", "mounted": False}]],
    "load": [{"1m": 1.5, "5m": 0.25, "15m": 10.75, "tasks": "1/2", "processes": 3}, {"1m": 2.5, "5m": 0.35, "15m": 1.75}],
    "diskusage": [
        [{"device": "sda", **DISK, "size": 1000000000000, "used": 900000000000, "avail": 50000000000},
         {"device": "sdb", **DISK, "size": 2000000000000, "used": 90000000000, "avail": 1910000000000}, {"device": "sdx", "mounted": False, **NONE}],
        [{"device": "sda", **DISK, "size": 1000000000000, "used": 905000000000, "avail": 50000000000},
         {"device": "sdc", "mounted": "Input/output error", **NONE}, {"device": "sdd", **DISK, "size": 1000, "used": 1000, "avail": 0}]],
    "ringmd5": [{"/etc/swift/object.ring.gz": "a", "/etc/swift/account.ring.gz": "b"}, {"/etc/swift/object.ring.gz": None}],
    "swiftconfmd5": [{"/etc/swift/swift.conf": "a"}, {"/etc/swift/swift.conf": "b"}],
    "quarantined": [{"objects": 3, "containers": 1, "accounts": 0, "policies": {"0": {"objects": 2}, "1": {"objects": 1}}},
                    {"objects": 0, "containers": 1, "accounts": 0, "policies": {"0": {"objects": 0}}}],
    "sockstat": [{"tcp_in_use": 3, "orphan": 1, "time_wait": 2, "tcp_mem_allocated_bytes": 4096, "tcp6_in_use": 1},
                 {"tcp_in_use": 5, "orphan": 1, "time_wait": 2, "tcp_mem_allocated_bytes": 8192}],
    "driveaudit": [{"drive_audit_errors": 3}, {"drive_audit_errors": None}],
    "sharding": [{"sharding_stats": {"attempted": 3, "failure": 1, "success": 2, "sharding": {}}, "sharding_time": 5.5, "sharding_last": 1700000000.0},
                 {"sharding_stats": None, "sharding_time": None, "sharding_last": None}],
    "version": [{"version": "2.38.0"}, {"version": "2.37.0"}],
}
CHECKS = ("object --auditor -arRudlqT --sockstat --updater --expirer --driveaudit --swift-versions --top 3 --lowest 2", "object -d --human-readable",
          "container -r --auditor --sharding --updater -q", "account -r --auditor", "account --expirer --updater --sharding -R",
          "object -T --jitter 5", "object --swift-versions -l -v", "object -rv -p gold", "object -d --top 1", "object -u --zone 2", "object --validate-servers")


def _handler(host: int) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None: ...

        def version_string(self) -> str:
            return "object-server/2" if host == 0 else "nginx"

        def _send(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_OPTIONS(self) -> None:
            self._send(b"")

        def do_GET(self) -> None:
            check = self.path.removeprefix("/recon/")
            if check == "time":
                self._send(json.dumps(time.time() + host * 2.5).encode())
            elif check in ANSWERS:
                self._send(json.dumps(ANSWERS[check][host]).encode())
            else:
                self.send_error(404)

    return Handler


@contextmanager
def recon_hosts(directory: Path) -> Iterator[int]:
    """Serve on 127.0.0.1 and 127.0.0.2 and write rings that name them, and a cluster file; gives the port."""
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), _handler(0))]
    port = servers[0].server_address[1]
    servers.append(ThreadingHTTPServer(("127.0.0.2", port), _handler(1)))
    for server in servers:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    for name in ("account", "container", "object"):
        builder = RingBuilder(3, 2, 0)
        for number in (1, 2):
            ip = f"127.0.0.{number}"
            builder.add_device(RingDevice(1, number, ip, port, "sda", 1.0, ip, port))
        builder.rebalance(1.0, seed="x")
        ring_format.save(builder.ring(), str(directory / f"{name}.ring.gz"))
    (directory / "swift.conf").write_text("[swift-hash]\nswift_hash_path_suffix = x\n[storage-policy:0]\nname = gold\ndefault = yes\n")
    try:
        yield port
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
