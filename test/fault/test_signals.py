"""Fault scenarios of signals to a server with a request in its middle (``spec: scenarios-fault`` 20; the numbers are its rows), and of an
upload in parts whose parts are under another policy (19).
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from test.support.client import Connection, unique
from test.support.peers import STORAGE_CONF
from test.support.processes import Process, free_ports
from test.support.s3 import client
from test.support.stage import Stage
from test.support.store import alive
from test.support.waiting import until

HALF = b"x" * 700_000  # of an upload; more than a server holds before it has a file for it
WORKERS = 2


@dataclass
class Served:
    """An object server with workers, and an upload to it of which half has arrived."""

    home: Path
    port: int
    process: Process
    connection: Connection
    busy: int = 0

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.home / "run" / "object.json").read_text())
        return found

    @property
    def workers(self) -> list[int]:
        return [pid for pid, _ in self.state()["workers"]]

    def finish(self) -> int:
        self.connection.raw.send(HALF)
        status = self.connection.answer().status
        self.connection.close()
        return status


@pytest.fixture
def served(stage: Stage, tmp_path: Path) -> Iterator[Served]:
    port = free_ports(1)[0]
    (tmp_path / "devices" / "d1").mkdir(parents=True)
    text = STORAGE_CONF.format(kind="object", port=port, home=tmp_path, devices=tmp_path / "devices", swift_dir=stage.swift_dir,
                               user=getpass.getuser(), log=f"log_file = {tmp_path / 'object.log'}").replace("workers = 0", f"workers = {WORKERS}")
    (tmp_path / "object.conf").write_text(text)
    process = Process([sys.executable, "-m", "keelstore.node", "--role", "object", str(tmp_path / "object.conf"), "--run-dir", str(tmp_path / "run"),
                       "--name", "object"], tmp_path / "out").start()
    try:
        process.wait_for("127.0.0.1", port)
        connection = Connection("127.0.0.1", port)
        connection.raw.putrequest("PUT", "/d1/1/a/c/o")
        for name, value in (("X-Timestamp", f"{time.time():.5f}"), ("Content-Type", "x/y"), ("Content-Length", str(2 * len(HALF)))):
            connection.raw.putheader(name, value)
        connection.raw.endheaders()
        connection.raw.send(HALF)
        found = Served(tmp_path, port, process, connection)
        until(lambda: len(found.workers) == WORKERS, "all workers are there")
        found.busy = until(lambda: holder(found), "a worker has the upload")
        yield found
    finally:
        process.stop()


def holder(served: Served) -> int:
    """The worker that has a temporary file open: the upload."""
    for pid in served.workers:
        for entry in os.listdir(f"/proc/{pid}/fd"):
            try:
                if str(served.home / "devices") in os.readlink(f"/proc/{pid}/fd/{entry}"):
                    return pid
            except OSError:
                continue
    return 0


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1], ids=["scenario_139", "scenario_140"])
def test_scenario_139_140_a_reload_lets_the_upload_end(served: Served, number: signal.Signals) -> None:
    """In Swift a SIGHUP drains, and a new server is started beside it; here both signals reload, in place."""
    supervisor, before = served.process.pid, served.workers
    os.kill(supervisor, number)
    until(lambda: len(served.workers) == WORKERS and not set(served.workers) & set(before) and served.state()["serves"], "new workers serve", 60)
    until(lambda: [pid for pid in before if alive(pid)] == [served.busy], "only the busy one is left of the old")
    assert alive(supervisor) and served.state()["pid"] == supervisor
    assert served.finish() == 201
    until(lambda: not alive(served.busy), "the old worker ends with its connection")
    assert sorted(pid for pid in served.workers if alive(pid)) == sorted(served.workers)


def test_scenario_141_workers_that_are_told_themselves_are_replaced_one_by_one(served: Served) -> None:
    supervisor, before = served.process.pid, served.workers
    for pid in before:
        os.kill(pid, signal.SIGUSR1)
    until(lambda: [pid for pid in before if alive(pid)] == [served.busy], "only the busy one is left of the old")
    idle = next(pid for pid in before if pid != served.busy)
    until(lambda: len(served.workers) == WORKERS and idle not in served.workers, "the idle one has a successor")
    assert alive(supervisor)
    assert served.finish() == 201
    until(lambda: not alive(served.busy) and len(served.workers) == WORKERS and not set(served.workers) & set(before), "and so has the busy one")


def test_scenario_138_parts_of_an_upload_under_another_policy(stage: Stage) -> None:
    own = stage.proxy("keelstore").login()
    bucket = unique("bucket")
    own.put(bucket, headers={"X-Storage-Policy": "gold"}).expect(201)
    own.put(f"{bucket}+segments", headers={"X-Storage-Policy": "silver"}).expect(201)
    s3 = client(own.endpoint)
    parts = [b"a" * (5 << 20), b"b" * (5 << 20), b"c" * 1000]
    upload = s3.create_multipart_upload(Bucket=bucket, Key="o")["UploadId"]
    told = [{"PartNumber": number, "ETag": s3.upload_part(Bucket=bucket, Key="o", UploadId=upload, PartNumber=number, Body=body)["ETag"]}
            for number, body in enumerate(parts, 1)]
    etag = s3.complete_multipart_upload(Bucket=bucket, Key="o", UploadId=upload, MultipartUpload={"Parts": told})["ETag"]
    whole, md5s = b"".join(parts), [hashlib.md5(part) for part in parts]
    assert etag == '"' + hashlib.md5(b"".join(md5.digest() for md5 in md5s)).hexdigest() + '-3"'
    assert s3.get_object(Bucket=bucket, Key="o")["Body"].read() == whole
    answer = own.get(bucket, "o").expect(200)
    assert answer.body == whole and answer.headers["X-Static-Large-Object"] == "True"
    assert answer.headers["Etag"] == '"' + hashlib.md5("".join(md5.hexdigest() for md5 in md5s).encode()).hexdigest() + '"'
    entry = own.listing(bucket)[0]
    manifest = own.get(bucket, "o", query="multipart-manifest=get").expect(200)
    assert (entry["bytes"], entry["s3_etag"], entry["slo_etag"]) == (len(whole), etag, answer.headers["Etag"])
    assert entry["hash"] and len(manifest.json()) == 3
    segments = [row for row in own.listing(f"{bucket}+segments") if row["bytes"]]
    assert [row["bytes"] for row in segments] == [len(part) for part in parts]
    for row in segments:
        assert stage.places("object", own.name, f"{bucket}+segments", row["name"], policy=1)[1]
        assert any(list(stage.devices.glob(f"*/objects-1/*/*/{stage.hash_path.digest(own.name, f'{bucket}+segments', row['name']).hex()}/*.data")))
