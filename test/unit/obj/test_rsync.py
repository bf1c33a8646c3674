"""rsync as the replicator runs it: its command line, and a real rsync daemon over an in-process cluster."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from keelstore.common.errors import ConfigError
from keelstore.common.ring.ring import Node
from keelstore.obj import layout
from keelstore.obj.rsync import RsyncOptions, arguments, module_of, run
from test.support.processes import Process, free_ports
from test.unit.obj.test_replicator import Replicated

LOG = logging.getLogger("test.rsync")
NODE = Node(1, 2, 3, "10.0.0.1", 6200, "10.1.0.1", 6400, "sdb1", 1.0, meta="x")
V6 = Node(1, 2, 3, "::1", 6200, "::2", 6400, "sdb1", 1.0)


def test_modules() -> None:
    assert module_of("{replication_ip}::object", NODE) == "10.1.0.1::object"
    assert module_of("{replication_ip}::object", V6) == "[::2]::object"
    assert module_of("{ip}::object_{device}_{region}_{zone}_{port}_{replication_port}_{meta}", NODE) == "10.0.0.1::object_sdb1_2_3_6200_6400_x"
    for bad in ("{nonsense}::object", "{0}", "{ip", "{ip.nothing}"):
        with pytest.raises(ConfigError):
            module_of(bad, NODE)


def test_the_command() -> None:
    found = arguments(RsyncOptions(io_timeout_s=7.0, bandwidth_limit="5m", compress=True), ["/srv/node/sda/objects/3/abc"], NODE, "objects", 3, True)
    assert found == [
        "rsync", "--recursive", "--whole-file", "--human-readable", "--xattrs", "--itemize-changes", "--ignore-existing", "--timeout=7",
        "--contimeout=7", "--bwlimit=5m", "--exclude=.*.[0-9a-zA-Z][0-9a-zA-Z][0-9a-zA-Z][0-9a-zA-Z][0-9a-zA-Z][0-9a-zA-Z]", "--compress",
        "/srv/node/sda/objects/3/abc", "10.1.0.1::object/sdb1/objects/3"]  # fmt: skip
    assert "--compress" not in arguments(RsyncOptions(compress=True), [], NODE, "objects", 3, False)


def test_a_command_that_fails_or_does_not_end(caplog: pytest.LogCaptureFixture) -> None:
    assert run(["true"], RsyncOptions(), LOG)
    assert not run(["false"], RsyncOptions(), LOG)
    assert not run(["no-such-command-here"], RsyncOptions(), LOG)


needs_rsync = pytest.mark.skipif(shutil.which("rsync") is None, reason="there is no rsync here")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Replicated]:
    port = free_ports(1)[0]
    found = Replicated(tmp_path, sync_method="rsync", rsync_module=f"rsync://127.0.0.1:{port}/of_{{device}}")
    modules = "".join(f"[of_{device.name}]\npath = {device.parent}\nread only = no\n"
                      for number in range(4) for device in found.cluster.devices(number).iterdir())  # fmt: skip
    conf = tmp_path / "rsyncd.conf"
    owner = "uid = root\ngid = root\n" if os.geteuid() == 0 else ""
    conf.write_text(f"use chroot = no\n{owner}log file = {tmp_path}/rsyncd.log\npid file = {tmp_path}/rsyncd.pid\n{modules}")
    daemon = Process(["rsync", "--daemon", "--no-detach", f"--port={port}", "--address=127.0.0.1", f"--config={conf}"], tmp_path / "rsyncd.out")
    daemon.start().wait_for("127.0.0.1", port)
    yield found
    daemon.stop()
    found.cluster.close()


@needs_rsync
def test_copies_come_back_and_handoffs_go_home_by_rsync(cluster: Replicated) -> None:
    for number in range(10):
        assert cluster.put(f"o{number}", b"x" * number) == 201
    many = {f"X-Object-Meta-{number:03d}": "v" * 40 for number in range(89)}  # more than the attributes of ext4 hold
    assert cluster.put("many", b"body", **many) == 201
    primaries, handoffs = cluster.nodes("o")
    cluster.cluster.stop(primaries[0].address)
    assert cluster.put("o") == 201
    cluster.cluster.start(primaries[0].address)
    assert handoffs[0].device in cluster.holders("o")
    names = [*(f"o{number}" for number in range(10)), "many", "o"]
    device = cluster.nodes("many")[0][0].device
    shutil.rmtree(cluster.cluster.device_path(device) / "objects")
    cluster.run_all(2)
    for name in names:
        homes = cluster.nodes(name)[0]
        assert cluster.holders(name) == {node.device for node in homes}, name
        assert len({cluster.state(node, name) for node in homes}) == 1
    opened = cluster.cluster.ask("HEAD", "/v1/a/c/many")
    assert {name: opened.headers[name] for name in many} == many
    siblings = list(cluster.root.rglob(f"{layout.ATTRS}*"))
    assert len(siblings) in (0, 3)  # with the data everywhere, where they are needed
