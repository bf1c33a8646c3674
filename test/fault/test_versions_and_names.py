"""Fault scenarios of versions and of reserved names (``spec: scenarios-fault`` 15 and 18; the numbers are its rows)."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from test.support.client import Account, unique
from test.support.stage import Spot, Stage
from test.support.waiting import until

RESERVED = {"X-Backend-Allow-Reserved-Names": "true"}
ENABLE = {"X-Versions-Enabled": "true"}


def hidden(container: str) -> str:
    return f"\x00versions\x00{container}"


def totals(account: Account) -> tuple[int, ...]:
    headers = account.head().headers
    return tuple(int(headers[f"X-Account-{what}"]) for what in ("Container-Count", "Object-Count", "Bytes-Used"))


def rows(account: Account) -> list[tuple[str, int, int]]:
    return [(row["name"], row["count"], row["bytes"]) for row in account.listing()]


def delete_directly(stage: Stage, account: Account, container: str) -> None:
    """On all replicas, as no client can; the account hears of it."""
    spot, told = Spot(stage, account.name, container), Spot(stage, account.name)
    for node, target in zip(spot.primaries, told.primaries, strict=True):
        spot.ask(node, "DELETE", {"X-Timestamp": f"{time.time():.5f}", "X-Account-Host": f"{target.ip}:{target.port}",
                                  "X-Account-Partition": told.part, "X-Account-Device": target.device}).expect(204)


def test_scenario_105_106_107_108_versions_outlive_their_container(stage: Stage) -> None:
    own = stage.own()
    own.put("c", headers=ENABLE).expect(201)
    for body in (b"one.....", b"two....."):
        own.put("c", "o", body=body).expect(201)
    stage.final_state()
    assert totals(own) == (2, 3, 16)
    assert rows(own) == [("c", 1, 16)]
    own.delete("c", "o").expect(204)
    assert own.listing("c") == []
    found = own.listing("c", query="versions")
    assert [row["content_type"].partition(";")[0] for row in found] == ["application/x-deleted", *["application/octet-stream"] * 2]
    one = found[-1]["version_id"]
    assert own.get("c", "o", query=f"version-id={one}").expect(200).body == b"one....."
    stage.final_state()
    delete_directly(stage, own, "c")
    stage.final_state()
    assert totals(own) == (1, 3, 16)
    assert rows(own) == [("c", 0, 16)]
    proxy_forgets(stage, own, "c")
    own.head("c").expect(404)
    own.get("c").expect(404)
    own.get("c", query="versions").expect(404)
    until(lambda: own.get("c", "o", query=f"version-id={one}").expect(400, 404), "no version can be asked for")
    own.put("c").expect(201)
    assert own.listing("c") == []
    assert len(own.listing("c", query="versions")) == 3
    assert b"version" in own.get("c", "o", query=f"version-id={one}").expect(400).body
    own.post("c", headers=ENABLE).expect(204)
    assert own.get("c", "o", query=f"version-id={one}").expect(200).body == b"one....."


def proxy_forgets(stage: Stage, account: Account, container: str) -> None:
    """What it has cached of a container; a change that fails does that too."""
    account.post(container).expect(404)


def test_scenario_109_a_hidden_container_that_is_gone(stage: Stage) -> None:
    own = stage.own()
    own.put("c").expect(201)
    own.put("c", "o", body=b"null").expect(201)
    own.post("c", headers=ENABLE).expect(204)
    delete_directly(stage, own, hidden("c"))
    stage.internal(own).post(hidden("c"), headers=RESERVED).expect(404)
    assert [row["version_id"] for row in own.listing("c", query="versions")] == ["null"]
    for query in ("", "version-id=null"):
        assert own.get("c", "o", query=query).expect(200).body == b"null"
    own.put("c", "o", body=b"new").expect(500)
    own.delete("c", "o").expect(500)
    own.delete("c", "o", query="version-id=null").expect(204)
    own.post("c", headers=ENABLE).expect(204)
    version = own.put("c", "o", body=b"new").expect(201).headers["X-Object-Version-Id"]
    assert version != "null"
    assert [row["version_id"] for row in own.listing("c", query="versions")] == [version]


def test_scenario_136_137_reserved_names_are_for_internal_clients(stage: Stage) -> None:
    own = stage.own()
    inside = stage.internal(own)
    container, obj = f"\x00{unique('c')}", f"\x00{unique('o')}"
    inside.put(container, headers=RESERVED).expect(201, 202)
    inside.put(container, obj, body=b"reserved", headers=RESERVED).expect(201)
    inside.post(container, obj, headers={**RESERVED, "X-Object-Meta-Color": "red"}).expect(202)
    answer = inside.get(container, obj, headers=RESERVED).expect(200)
    assert (answer.body, answer.headers["X-Object-Meta-Color"]) == (b"reserved", "red")
    assert [row["name"] for row in inside.get(container, query="format=json", headers=RESERVED).expect(200).json()] == [obj]
    own.put("user").expect(201)
    own.put("user", "target", body=b"x").expect(201)
    assert [row["name"] for row in inside.get(query="format=json", headers=RESERVED).expect(200).json()] == [container, "user"]
    assert [row["name"] for row in own.listing()] == ["user"]
    own.head(container).expect(412)
    inside.put(container, "user", body=b"x", headers=RESERVED).expect(400)
    inside.put("user", obj, body=b"x", headers=RESERVED).expect(400)
    target = f"{container}/{obj}".replace("\x00", "%00")
    link = {"X-Symlink-Target": target, "Content-Type": "application/symlink"}
    own.put("user", "link", body=b"", headers=link).expect(201)
    own.get("user", "link").expect(412)
    etag = answer.headers["Etag"]
    own.put("user", "static", body=b"", headers={**link, "X-Symlink-Target-Etag": etag}).expect(412)
    inside.delete(container, obj, headers=RESERVED).expect(204)
    inside.delete(container, headers=RESERVED).expect(204)


def files_of(device: Path) -> set[Path]:
    return {path for pattern in ("objects/*/*/*/*.data", "containers/*/*/*/*.db") for path in device.glob(pattern)}


@pytest.mark.parametrize("mark", ["", "\x00"], ids=["plain", "scenario_135"])
def test_scenario_132_133_134_135_a_disk_whose_files_are_gone(stage: Stage, mark: str) -> None:
    inside = stage.internal(stage.own())
    container = f"{mark}{unique('c')}"
    inside.put(container, headers=RESERVED).expect(201, 202)
    for number in range(8):
        inside.put(container, f"{mark}o{number}", body=b"VERIFY", headers=RESERVED).expect(201)
    stage.final_state()
    spot = Spot(stage, inside.name, container)
    device = stage.devices / spot.primaries[0].device
    before = files_of(device)
    for name in ("objects", "containers", "accounts"):
        shutil.rmtree(device / name)
    with stage.passing("object-replicator", "container-replicator", interval=0.5):
        until(lambda: files_of(device) >= before, "all its files are back", 60)
        until(lambda: not any(path.stat().st_size for path in device.glob("objects/*/hashes.invalid")), "no suffix waits to be hashed", 60)
    kept = list(device.glob("objects/*/hashes.pkl"))
    objects = {path for path in before if path.suffix == ".data"}
    for path in device.glob("objects/*/*"):
        if path.is_dir():
            shutil.rmtree(path)
    stage.run("object-replicator")
    assert not files_of(device) & objects, "what a partition remembers of its suffixes is believed"
    with stage.passing("object-replicator", interval=0.5):
        for path in kept:
            path.unlink(missing_ok=True)
        until(lambda: files_of(device) >= objects, "all its files are back", 60)
