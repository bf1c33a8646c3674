"""keelstore-object-relinker: what it is told, its processes, its exit status and what it leaves for recon."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from keelstore.cli import object_relinker
from keelstore.cli.object_relinker import main, shared_out
from keelstore.common.ring import format as ring_format
from keelstore.common.ring.builder import RingBuilder
from keelstore.common.ring.devices import RingDevice
from keelstore.obj.relinker import PolicyOnDevice
from test.support.objects import POLICIES, metadata_of, stamp
from test.support.relinking import RelinkBox

POWER = 2
DEVICES = ("sda1", "sda2")


class Node:
    """A cluster of one node with two devices, whose ring ``object`` is prepared."""

    def __init__(self, home: Path):
        self.home = home
        self.box = RelinkBox(str(home / "srv"))
        (home / "keelstore.conf").write_text("[swift-hash]\nswift_hash_path_prefix = p\nswift_hash_path_suffix = s\n"
                                             "[storage-policy:0]\nname = gold\ndefault = yes\n[storage-policy:1]\nname = silver\n")
        self.builder = RingBuilder(POWER, 1, 1)
        for name in DEVICES:
            self.builder.add_device(RingDevice(1, 1, "127.0.0.1", 6200, name, 1.0, "127.0.0.1", 6200))
        self.builder.rebalance(0.0, seed="x")
        ring_format.save(self.builder.ring(), str(home / "object-1.ring.gz"))
        assert self.builder.prepare_increase_partition_power()
        self.push()
        self.conf = home / "object-server.conf"
        self.conf.write_text(f"[DEFAULT]\ndevices = {home / 'srv'}\nmount_check = false\nswift_dir = {home}\nuser = root\n"
                             f"recon_cache_path = {home / 'recon'}\n[object-relinker]\nlog_file = {home / 'log'}\n")
        for name in DEVICES:
            (home / "srv" / name).mkdir(exist_ok=True)
            for number in range(4):
                place = self.box.store.place(name, str(home / "srv" / name), POLICIES.by_index[0], "0", "a", "c", f"o{number}").moved(POWER)
                self.box.store.write(place, stamp(0), b"x", metadata_of(place, stamp(0), b"x"))

    def push(self) -> None:
        ring_format.save(self.builder.ring(), str(self.home / "object.ring.gz"))

    def run(self, step: str, *more: str) -> int:
        return main([step, str(self.conf), *more])

    def recon(self) -> dict[str, Any]:
        found = json.loads((self.home / "recon" / "relinker.recon").read_text())
        assert isinstance(found, dict)
        return found

    @property
    def log(self) -> str:
        return (self.home / "log").read_text()


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr(object_relinker, "drop_privileges", lambda user: None)
    monkeypatch.setattr(object_relinker, "raise_limits", lambda: None)
    return Node(tmp_path)


def test_each_device_has_a_process(node: Node) -> None:
    assert node.run("relink") == 0
    found = node.recon()
    assert {name: device["stats"]["errors"] for name, device in found["devices"].items()} == {"sda1": 0, "sda2": 0}
    assert found["devices"]["sda1"]["stats"]["linked"] > 0
    assert sorted(worker["devices"] for worker in found["workers"].values()) == [["sda1"], ["sda2"]]
    assert {worker["return_code"] for worker in found["workers"].values()} == {0}
    assert str(os.getpid()) not in found["workers"]
    log = node.log
    assert "Starting relinker using 2 workers: " in log and "Finished relinker: " in log and " elapsed)" in log
    pids = sorted(found["workers"], key=lambda pid: found["workers"][pid]["devices"])
    assert f"[step=relink, pid={pids[0]}, devs=sda1] Device: sda1 Policy: gold Partitions: " in log
    assert f"Processing files for policy gold under {node.home / 'srv'}/sda1" in log
    assert f"Worker (pid={pids[1]}, devs=sda2) completed in" in log
    assert "hash dirs processed (" in log


def test_one_process_and_a_selection(node: Node) -> None:
    assert node.run("relink", "--workers", "1", "--device", "sda2", "--policy", "0") == 0
    found = node.recon()
    assert set(found["devices"]) == {"sda2"} and set(found["workers"]) == {str(os.getpid())}
    assert not (node.home / "srv/sda1/relink.objects.json").exists()
    assert node.run("relink", "--workers", "1", "--dry-run") == 0


def test_a_dry_run_says_what_would_be_done(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    assert node.run("relink", "--dry-run") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" partitions: ")[0].rpartition(" ")[0] for line in lines] == [f"{name}, policy gold: relink" for name in DEVICES]
    assert not (node.home / "recon/relinker.recon").exists()


def test_errors_end_with_1(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: PolicyOnDevice, number: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(PolicyOnDevice, "partition", fail)
    assert node.run("relink") == 1
    assert {worker["return_code"] for worker in node.recon()["workers"].values()} == {1}
    assert "with errors" in node.log and "Input/output error" in node.log
    assert node.run("relink", "--workers", "1") == 1


def test_a_process_that_is_killed_is_an_error(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(self: PolicyOnDevice, number: int) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(PolicyOnDevice, "partition", die)
    assert node.run("relink") == 1
    assert "after receiving signal: SIGKILL" in node.log
    assert {worker["return_code"] for worker in node.recon()["workers"].values()} == {-signal.SIGKILL}


def test_a_missing_device_is_an_error(node: Node) -> None:
    assert node.run("relink", "--device", "sda1", "--device", "sdx") == 1
    assert "device sdx is not mounted" in node.log


@pytest.mark.parametrize("step,more", [("cleanup", ()), ("relink", ("--policy", "silver")), ("relink", ("--policy", "1"))])
def test_no_policy_ends_with_2(node: Node, step: str, more: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert node.run(step, *more) == 2
    assert capsys.readouterr().err == "No policy found to increase the partition power.\n"


@pytest.mark.parametrize("arguments,text", [
    (["--policy", "nickel"], "there is no policy 'nickel'; there are: gold, silver"),
    (["--workers", "many"], "expected a whole number"), (["--files-per-second", "-1"], "expected a number of 0 or more"),
    (["--devices", "/nowhere"], "/nowhere: there are no devices"), (["--swift-dir", "/nowhere"], "no keelstore.conf or swift.conf found"),
])  # fmt: skip
def test_what_cannot_be_is_said_in_a_line(node: Node, arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert node.run("relink", *arguments) == 1
    error = capsys.readouterr().err
    assert text in error and error.count("\n") == 1


def test_rings_and_files_that_are_missing(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["relink", "/nowhere.conf"]) == 1
    (node.home / "object.ring.gz").write_bytes(b"rubbish")
    assert node.run("relink") == 1
    (node.home / "object.ring.gz").unlink()
    assert node.run("relink") == 1
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 3 and all(error.startswith("Error: ") for error in errors)
    with pytest.raises(SystemExit) as ended:
        main(["link"])
    assert ended.value.code == 1


def test_cleaning_up(node: Node) -> None:
    assert node.run("relink") == 0
    assert node.builder.increase_partition_power()
    node.push()
    assert node.run("relink") == 2
    assert node.run("cleanup") == 0
    assert all(device["policies"]["0"]["step"] == "cleanup" for device in node.recon()["devices"].values()), "reset at the start"
    assert node.recon()["devices"]["sda1"]["stats"]["removed"] > 0
    state = json.loads((node.home / "srv/sda1/relink.objects.json").read_text())
    assert (state["part_power"], state["next_part_power"], state["prev_part_power"]) == (3, 3, 2)


def test_devices_are_dealt_out() -> None:
    assert shared_out(["a", "b", "c"], 2) == [["a", "c"], ["b"]]
    assert shared_out(["a"], 5) == [["a"]]
