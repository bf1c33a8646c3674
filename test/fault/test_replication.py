"""Fault scenarios that replicators and auditors mend (``spec: scenarios-fault``; the numbers are its rows), over processes."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from test.fault.conftest import remove
from test.fault.test_scenarios import Thing, an_object
from test.support.client import Account, unique
from test.support.daemon_runs import run_once, running
from test.support.peers import Peers
from test.support.waiting import until
from test.support.wiping import wipe

REPLICATOR, AUDITOR = "object-replicator", "object-auditor"


@pytest.fixture
def made(account: Account) -> Iterator[str]:
    name = unique("made")
    account.put(name).expect(201)
    yield name


def test_scenario_53_a_handoff_goes_home_to_an_emptied_disk(site: Peers, account: Account, made: str) -> None:
    thing = an_object(site, account, made)
    failed, handoff = thing.primaries[0], thing.handoffs[0]
    objects = site.devices / failed.device / "objects"
    thing.stop(thing.sites[0])
    remove(objects)
    account.put(*thing.names[1:], body=b"VERIFY").expect(201)
    thing.start(thing.sites[0])
    assert thing.ask(failed).status == 404 and thing.ask(handoff).status == 200
    run_once(site, REPLICATOR, thing.sites[0])
    assert objects.exists()
    run_once(site, REPLICATOR, thing.other)
    assert thing.ask(failed).expect(200).body == b"VERIFY"
    assert thing.ask(handoff).status == 404


def test_scenario_54_55_temporary_files_stay_and_a_delete_comes_after(site: Peers, account: Account, made: str) -> None:
    thing = an_object(site, account, made)
    missed, handoff = thing.primaries[0], thing.handoffs[0]
    thing.stop(thing.sites[0])
    account.put(*thing.names[1:], body=b"VERIFY").expect(201)
    thing.start(thing.sites[0])
    data = next(thing.folder(handoff).glob("*.data"))
    (data.parent / f".{data.name}.6MbL6r").write_bytes(b"part")
    for number in (*thing.sites, thing.other):
        run_once(site, REPLICATOR, number)
    assert thing.ask(missed).expect(200).body == b"VERIFY"
    assert os.listdir(thing.folder(missed)) == [data.name]
    assert thing.ask(handoff).status == 404
    thing.stop(thing.sites[0])
    account.delete(*thing.names[1:]).expect(204)
    account.head(*thing.names[1:]).expect(404)
    thing.start(thing.sites[0])
    assert thing.ask(missed).expect(200).body == b"VERIFY"
    for number in (*thing.sites, thing.other):
        run_once(site, REPLICATOR, number)
    answers = [thing.ask(node) for node in (*thing.primaries, handoff)]
    assert [answer.status for answer in answers] == [404] * 4
    assert ["X-Backend-Timestamp" in answer.headers for answer in answers] == [True] * 3 + [False]


def test_scenario_61_what_only_handoffs_had_is_read_after_replication(site: Peers, account: Account, made: str) -> None:
    thing = an_object(site, account, made)
    two, one = thing.halves
    thing.stop(*two)
    account.put(*thing.names[1:], body=b"VERIFY").expect(201, 503)
    thing.start(*two)
    for _ in range(2):
        run_once(site, REPLICATOR)
    thing.stop(*one)
    assert account.get(*thing.names[1:]).expect(200).body == b"VERIFY"


def files_of(site: Peers, device: str) -> set[str]:
    root = site.devices / device
    return {str(path.relative_to(root)) for path in root.glob("objects/*/*/*/*") if path.is_file()}


def test_scenario_132_133_134_a_disk_whose_files_are_gone(site: Peers, account: Account, made: str) -> None:
    names = [unique("o") for _ in range(8)]
    for name in names:
        account.put(made, name, body=b"VERIFY").expect(201)
    run_once(site, REPLICATOR)
    device = max(site.device_names, key=lambda name: len(files_of(site, name)))
    before = files_of(site, device)
    assert before
    with running(site, REPLICATOR, 0, 1, 2, 3, interval=1):
        wipe(site.devices / device / "objects")
        until(lambda: files_of(site, device) >= before, "all its files are back", 60)
        until(lambda: not any(path.stat().st_size for path in (site.devices / device).glob("objects/*/hashes.invalid")),
              "no suffix waits to be hashed", 60)
    for path in (site.devices / device).glob("objects/*/*"):
        if path.is_dir():
            shutil.rmtree(path)
    pickles = list((site.devices / device).glob("objects/*/hashes.pkl"))
    assert pickles and not files_of(site, device)
    with running(site, REPLICATOR, 0, 1, 2, 3, interval=1):
        for path in pickles:
            path.unlink(missing_ok=True)
        until(lambda: files_of(site, device) >= before, "all its files are back", 60)


def dark_object(site: Peers, account: Account, container: str) -> Thing:
    """Deleted while two primaries were down; then its tombstone and its row were lost, and the old copies came back."""
    thing = an_object(site, account, container)
    account.put(*thing.names[1:], body=b"VERIFY").expect(201)
    one, _ = thing.halves
    thing.stop(*one)
    account.delete(*thing.names[1:]).expect(204, 404, 503)
    for path in site.devices.glob(f"*/objects/{thing.part}/*/*/*.ts"):
        path.unlink()
    thing.start(*one)
    for path in site.devices.glob(f"*/objects/{thing.part}/hashes.pkl"):
        path.unlink()
    for _ in range(2):
        run_once(site, REPLICATOR)
    listing = Thing(site, "container", *thing.names[:2])
    for node in listing.primaries:  # one replica may not have heard of the deletion
        endpoint, row = site.direct(node, listing.part, *thing.names)
        endpoint.request("DELETE", row, {"X-Timestamp": f"{time.time():.5f}"}).expect(204, 404)
    assert len(data_files(site, thing)) == 3
    return thing


def data_files(site: Peers, thing: Thing) -> list[Path]:
    digest = site.hash_path.digest(*thing.names).hex()
    return list(site.devices.glob(f"*/objects/*/*/{digest}/*.data"))


@pytest.mark.parametrize("action", ["delete", "quarantine"])
def test_scenario_45_46_dark_data(site: Peers, account: Account, made: str, action: str) -> None:
    thing = dark_object(site, account, made)
    other = an_object(site, account, made)
    account.put(*other.names[1:], body=b"listed").expect(201)
    section = f"\n[object-auditor:watcher:swift#dark_data]\naction = {action}\ngrace_age = 0\n"
    run_once(site, AUDITOR, 0, watchers=f"swift#dark_data{section}")
    assert data_files(site, thing) == [] and len(data_files(site, other)) == 3
    digest = site.hash_path.digest(*thing.names).hex()
    aside = list(site.devices.glob(f"*/quarantined/objects/{digest}/*.data"))
    assert len(aside) == (3 if action == "quarantine" else 0)


def test_what_rots_is_replaced(site: Peers, account: Account, made: str) -> None:
    thing = an_object(site, account, made)
    account.put(*thing.names[1:], body=b"VERIFY").expect(201)
    path = next(thing.folder(thing.primaries[1]).glob("*.data"))
    path.write_bytes(b"VERIFX")
    run_once(site, AUDITOR, 0)
    assert thing.ask(thing.primaries[1]).status == 404
    run_once(site, REPLICATOR)
    assert thing.ask(thing.primaries[1]).expect(200).body == b"VERIFY"
