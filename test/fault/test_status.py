"""What ``keelstore status`` and ``/metrics`` say of a store of four nodes in which something is wrong (issue 4, "Seeing it")."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from keelstore.cli import recon
from test.support.client import Endpoint, unique
from test.support.store import Store, keelstore, running
from test.support.waiting import until

NODES = (1, 2, 3, 4)
OBJECTS = 160  # with three copies on 32 devices each has some fifteen: then an empty one stands out


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with running(tmp_path_factory.mktemp("status") / "data", nodes=4, workers=1, edit=often_replicated) as store:
        account = store.login()
        account.put("c").expect(201)
        for number in range(OBJECTS):
            account.put("c", f"o{number}", body=b"x" * 100).expect(201)
        yield store


def often_replicated(store: Store) -> None:
    for number in NODES:
        for role, interval in (("object", 60), ("container", 30), ("account", 30)):
            section = f"[{role}-replicator]\ninterval = "
            store.edit(f"{role}-server.conf", (f"{section}{interval}\n", f"{section}10\n"), number=number)


def status(store: Store) -> dict[str, Any]:
    return store.status()


def problems(store: Store) -> dict[str, dict[str, Any]]:
    """By code; what each says is there to be read."""
    found = status(store)["problems"]
    assert all(problem["what"] and problem["why"] and problem["do"] and problem["severity"] in ("danger", "warning") for problem in found)
    return {problem["code"]: problem for problem in found}


def well(store: Store) -> bool:
    found = status(store)
    return found["safe"] and found["state"] == "running" and not found["problems"]


def test_a_well_store_is_safe(store: Store) -> None:
    until(lambda: well(store), "all is well", 120)
    done = store.command("status")
    lines = done.stdout.splitlines()
    assert "SAFE" in lines[0] and "NOT" not in lines[0] and any(line.startswith("  node 4") for line in lines)
    found = status(store)
    assert len(found["servers"]) == 12 and all(server["answers"] for server in found["servers"])
    assert len(found["devices"]) == 32 and {daemon["node"] for daemon in found["daemons"]} == {f"node {n}" for n in (1, 2, 3, 4)}
    assert found["repair"]["partitions_below_full"] == 0
    by_rings = json.loads(keelstore("status", "--swift-dir", str(store.etc()), "--json").stdout)
    assert by_rings["state"] == "running" and by_rings["safe"]
    assert {node["address"] for node in by_rings["nodes"]} == {f"127.0.0.{n}" for n in (1, 2, 3, 4)}


def test_a_stopped_node_and_the_writes_that_missed_it(store: Store) -> None:
    store.stop_node(3)
    try:
        account = store.login()
        for number in range(60):
            account.put("c", f"late{number}", body=b"y" * 50).expect(201)
        done = store.command("status", check=False)
        assert done.returncode == 1 and "NOT SAFE" in done.stdout and f"keelstore node start 3 --data {store.data}" in done.stdout
        found = problems(store)
        assert found["node-down"]["node"] == "node 3" and "25%" in found["node-down"]["what"] and status(store)["state"] == "degraded"
        until(lambda: {"handoffs", "below-full"} <= set(problems(store)), "handoffs and missing copies are told", 120)
        found = problems(store)
        assert "node 3 is away" in found["handoffs"]["why"] and found["below-full"]["severity"] == "danger"
        page = store.server("object", 1).request("GET", "/metrics").body.decode()
        assert 'keelstore_daemon_partitions_below_full{daemon="object-replicator"}' in page
    finally:
        store.start_node(3)
    until(lambda: well(store), "all is well again", 150)


def test_a_wiped_device(store: Store) -> None:
    device = store.devices(2) / "d4"
    daemons = [pid for number in (1, 2, 3, 4) for pid in store.background_pids(number)]
    store.signal(daemons, signal.SIGSTOP)  # none fills it before it was named
    try:
        for entry in device.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        problem = problems(store)["device-empty"]
    finally:
        store.signal(daemons, signal.SIGCONT)
    assert (problem["node"], problem["device"], problem["severity"]) == ("node 2", "d4", "danger")
    store.command("node", "repair", "--device", "d4")
    until(lambda: well(store), "it is filled again", 150)


def test_a_device_that_is_gone(store: Store) -> None:
    device = store.devices(4) / "d1"
    device.rename(device.with_name("elsewhere"))
    try:
        problem = problems(store)["device-missing"]
        assert (problem["node"], problem["device"]) == ("node 4", "d1")
    finally:
        if device.exists():
            shutil.rmtree(device)
        device.with_name("elsewhere").rename(device)
    until(lambda: "device-missing" not in problems(store), "it is there again")


def test_a_quarantined_object_is_a_danger_until_replication_has_been_round(store: Store) -> None:
    account, name = store.login(), unique("rot")
    account.put("c", name, body=b"z" * 500).expect(201)
    paths = [path for node in (1, 2, 3, 4) for path in store.devices(node).glob("d*/objects/*/*/*/*.data")]
    path = max(paths, key=lambda found: found.stat().st_mtime_ns)
    path.unlink()
    path.write_bytes(b"rotten")  # without its metadata: whoever opens it puts it aside
    device, node = path.parents[4], next(n for n in (1, 2, 3, 4) if path.is_relative_to(store.devices(n)))
    port = store.port - 1880
    target = path.relative_to(device / "objects").parts[0]
    Endpoint(f"127.0.0.{node}", port).request("GET", f"/{device.name}/{target}/AUTH_test/c/{name}", {"X-Backend-Storage-Policy-Index": "0"})
    problem = problems(store)["quarantined"]
    assert (problem["node"], problem["device"], problem["count"]) == (f"node {node}", device.name, 1)
    assert f"{device}/quarantined" in problem["do"]
    store.command("node", "repair")
    until(lambda: problems(store).get("quarantined", {}).get("severity") == "warning", "its copy is back", 150)
    page = store.server("object", node).request("GET", "/metrics").body.decode()
    assert f'keelstore_quarantined{{device="{device.name}",kind="objects"}} 1' in page
    shutil.rmtree(device / "quarantined")


def test_a_node_with_another_ring(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    path = store.etc(4) / "object.ring.gz"
    good = path.read_bytes()
    path.write_bytes((store.etc(4) / "object-1.ring.gz").read_bytes())
    try:
        problem = problems(store)["ring-differs"]
        assert problem["node"] == "node 4" and str(store.etc(4)) in problem["do"]
        assert recon.main(["--swiftdir", str(store.etc()), "object", "--md5"]) == 0
        out = capsys.readouterr().out
        assert "!! http://127.0.0.4:" in out and "3/4 hosts matched, 1 error[s] while checking hosts." in out
    finally:
        path.write_bytes(good)
    until(lambda: "ring-differs" not in problems(store), "the rings are the same again")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_full_disk(store: Store) -> None:
    device = store.devices(1) / "d2"
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(device)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount here: {done.stderr.strip()}")
    try:
        (device / "filler").write_bytes(b"x" * 1040000)
        problem = problems(store)["device-full"]
        assert (problem["node"], problem["device"], problem["severity"]) == ("node 1", "d2", "danger")
    finally:
        subprocess.run(["umount", "-l", str(device)], check=True)


def test_a_frozen_node(store: Store) -> None:
    with store.frozen(2):
        found = problems(store)
        assert found["node-hangs"]["node"] == "node 2" and "--kill" in found["node-hangs"]["do"]
    until(lambda: "node-hangs" not in problems(store), "it answers again")


def test_metrics_are_the_sums_of_a_node_and_not_for_everybody(store: Store) -> None:
    before = _count(store, "proxy", 'method="GET",status="200"')
    account = store.login()
    for _ in range(20):
        account.get("c", "o1").expect(200)
    assert _count(store, "proxy", 'method="GET",status="200"') >= before + 21
    asked = store.proxy(1).request("GET", "/metrics", {"X-Forwarded-For": "8.8.8.8"})
    assert asked.status != 200 and b"keelstore_" not in asked.body
    asked = store.proxy(1).request("GET", "/recon/health")
    assert asked.status != 200 and b"devices" not in asked.body
    for role in ("account", "container", "object"):
        page = store.server(role, 1).request("GET", "/metrics").body.decode()
        assert f'keelstore_info{{role="{role}"' in page and "keelstore_requests_total" in page


def _count(store: Store, role: str, labels: str) -> int:
    endpoint = store.proxy(1) if role == "proxy" else store.server(role, 1)
    text = endpoint.request("GET", "/metrics").body.decode()
    return sum(int(line.rpartition(" ")[2]) for line in text.splitlines()
               if line.startswith("keelstore_requests_total{") and labels in line)

