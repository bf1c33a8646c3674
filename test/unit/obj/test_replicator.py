"""The replicator over an in-process cluster of four nodes: copies come back, handoffs go home, and nothing is lost."""

from __future__ import annotations

import copy
import logging
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keelstore.common import concurrency, events
from keelstore.common.backend import serve_locally
from keelstore.common.daemon_frame import ALL, Selection, World
from keelstore.common.headers import Headers
from keelstore.common.locks import lock_directory
from keelstore.common.recon_cache import ReconCache
from keelstore.common.ring.ring import Node
from keelstore.common.room import Reserve
from keelstore.common.timestamp import Timestamp
from keelstore.common.work import Risk
from keelstore.obj.options import ObjectReplicatorOptions
from keelstore.obj.replicator import ObjectReplicator
from keelstore.obj.ssync.listing import state_of
from keelstore.obj.store import ObjectStore
from test.support.cluster import InProcessCluster
from test.support.hub_disk import watched
from test.support.waiting import until

LOG = logging.getLogger("test.replicator")


def turn() -> bool:
    """Let the daemons do a little."""
    concurrency.sleep(0.01)
    return False


class Replicated:
    """A cluster with a replicator on each node."""

    def __init__(self, root: Path, **options: Any):
        self.cluster = InProcessCluster(root, nodes=4, devices=2)
        self.options = options
        proxy = self.cluster.proxy
        self.hash_path, self.policies = proxy.cluster.hash_path, proxy.cluster.policies
        self.store = ObjectStore(self.hash_path, reserve=Reserve.parse("0")).scanner()
        self.cluster.ask("PUT", "/v1/a")
        assert self.cluster.ask("PUT", "/v1/a/c").status == 201
        self.root = root

    def replicator(self, number: int, **options: Any) -> ObjectReplicator:
        recon = self.root / f"recon{number}"
        recon.mkdir(exist_ok=True)
        values = {"devices": str(self.cluster.devices(number)), "mount_check": False, **self.options, **options}
        rings = {policy.index: self.cluster.proxy.rings.object(policy) for policy in self.policies}
        return ObjectReplicator(
            ObjectReplicatorOptions(**values), World(LOG, random=random.Random(number), recon=ReconCache(str(recon))), rings,
            self.cluster.proxy.cluster, self.cluster.proxy.backend, [(self.cluster.ip, self.cluster.port("object", number))])  # fmt: skip

    def put(self, name: str, body: bytes = b"body", **headers: str) -> int:
        return self.cluster.ask("PUT", f"/v1/a/c/{name}", {"Content-Type": "a/b", **headers}, body).status

    def part(self, name: str) -> int:
        return self.cluster.proxy.rings.object(self.policies.default).current().get_part(self.hash_path, "a", "c", name)

    def nodes(self, name: str) -> tuple[list[Node], list[Node]]:
        """The primaries of an object, and its handoffs."""
        ring = self.cluster.proxy.rings.object(self.policies.default).current()
        part = self.part(name)
        return list(ring.primaries(part)), list(ring.handoffs(part))

    def state(self, node: Node, name: str) -> object:
        place = self.store.place(node.device, str(self.cluster.device_path(node.device)), self.policies.default, str(self.part(name)),
                                 "a", "c", name)  # fmt: skip
        return state_of(self.store.look(place))

    def holders(self, name: str) -> set[str]:
        primaries, handoffs = self.nodes(name)
        return {node.device for node in (*primaries, *handoffs) if self.state(node, name) != (None,) * 4}

    def number(self, node: Node) -> int:
        return int(node.device[1])

    def empty(self, device: str) -> None:
        path = self.cluster.device_path(device)
        shutil.rmtree(path)
        path.mkdir()

    def run_all(self, times: int = 1, **options: Any) -> list[ObjectReplicator]:
        found = []
        for _ in range(times):
            for number in range(4):
                found.append(self.replicator(number, **options))
                found[-1].run_once()
        return found


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Replicated]:
    found = Replicated(tmp_path)
    yield found
    found.cluster.close()


def test_an_emptied_device_gets_everything_back(cluster: Replicated) -> None:
    names = [f"o{number}" for number in range(30)]
    for name in names:
        assert cluster.put(name, name.encode() * 10) == 201
    assert cluster.cluster.ask("POST", "/v1/a/c/o3", {"X-Object-Meta-A": "b"}).status == 202
    assert cluster.cluster.ask("DELETE", "/v1/a/c/o5").status == 204
    before = {name: cluster.holders(name) for name in names}
    states = {(name, node.device): cluster.state(node, name) for name in names for node in cluster.nodes(name)[0]}
    cluster.empty("d10")
    runs = cluster.run_all()
    assert {name: cluster.holders(name) for name in names} == before
    assert states == {(name, node.device): cluster.state(node, name) for name in names for node in cluster.nodes(name)[0]}
    assert sum(run.figures()["objects_sent"] for run in runs) == sum("d10" in held for held in before.values())
    again = cluster.run_all()
    assert sum(run.figures()["objects_sent"] for run in again) == 0
    for run in again:
        assert run.stats["failure"] == 0 and run.stats["hashmatch"] > 0 and run.figures()["copies_missing"] == 0


def test_a_handoff_goes_home_and_then_goes(cluster: Replicated) -> None:
    primaries, handoffs = cluster.nodes("o")
    away = primaries[0].address
    cluster.cluster.stop(away)
    assert cluster.put("o") == 201
    assert cluster.cluster.ask("POST", "/v1/a/c/o", {"X-Object-Meta-A": "b"}).status == 202
    home, handoff = {node.device for node in primaries}, handoffs[0]
    assert cluster.holders("o") == home - {primaries[0].device} | {handoff.device}
    run = cluster.replicator(cluster.number(handoff))
    run.run_once()  # not before all primaries have it
    assert handoff.device in cluster.holders("o")
    assert run.figures()["handoff_partitions"] == 1 and run.figures()["copies_missing"] == 1 and run.stats["failure"] == 1
    assert run.stats["failure_nodes"] == {primaries[0].replication_ip: {primaries[0].device: 1}}
    cluster.cluster.start(away)
    run.run_once()
    assert cluster.holders("o") == home
    assert len({cluster.state(node, "o") for node in primaries}) == 1
    assert run.figures()["handoff_partitions"] == 0 and run.figures()["copies_missing"] == 0
    assert run.figures()["objects_removed"] == 1
    path = cluster.cluster.device_path(handoff.device) / "objects" / str(cluster.part("o"))
    assert not path.exists()


def test_a_tombstone_on_a_handoff_goes_home_too(cluster: Replicated) -> None:
    assert cluster.put("o") == 201
    primaries, _ = cluster.nodes("o")
    cluster.cluster.stop(primaries[1].address)
    assert cluster.cluster.ask("DELETE", "/v1/a/c/o").status == 204
    cluster.cluster.start(primaries[1].address)
    cluster.run_all()
    assert {cluster.state(node, "o")[0] for node in primaries} == {None}  # type: ignore[index]
    assert cluster.holders("o") == {node.device for node in primaries}


def test_handoff_delete_is_content_with_fewer(cluster: Replicated) -> None:
    primaries, handoffs = cluster.nodes("o")
    cluster.cluster.stop(primaries[0].address)
    assert cluster.put("o") == 201
    cluster.replicator(cluster.number(handoffs[0]), handoff_delete=2).run_once()
    assert handoffs[0].device not in cluster.holders("o")


def test_a_primary_with_an_older_ring_proves_nothing(cluster: Replicated, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes with different rings could each take the other for a primary, and both remove their copy."""
    primaries, handoffs = cluster.nodes("o")
    cluster.cluster.stop(primaries[0].address)
    assert cluster.put("o") == 201
    cluster.cluster.start(primaries[0].address)
    app = cluster.cluster.apps[primaries[1].address]
    ring = app.ring(cluster.policies.default)

    class Older:
        version = ring.version - 1
        primaries = staticmethod(ring.primaries)

    monkeypatch.setattr(app, "ring", lambda policy: Older)
    run = cluster.replicator(cluster.number(handoffs[0]))
    run.run_once()
    assert cluster.holders("o") == {node.device for node in (*primaries, handoffs[0])}
    assert run.figures()["handoff_partitions"] == 1

    class Elsewhere:  # a newer one, by which the partition is no longer its
        version = ring.version + 1

        @staticmethod
        def primaries(part: int) -> list[Node]:
            return []

    monkeypatch.setattr(app, "ring", lambda policy: Elsewhere)
    run.run_once()
    assert handoffs[0].device in cluster.holders("o")
    monkeypatch.undo()
    run.run_once()
    assert cluster.holders("o") == {node.device for node in primaries}


def test_a_device_that_is_not_mounted_gets_a_standin(cluster: Replicated) -> None:
    assert cluster.put("o") == 201
    primaries, handoffs = cluster.nodes("o")
    cluster.cluster.remove_device(primaries[0].device)
    run = cluster.replicator(cluster.number(primaries[1]))
    run.run_once()
    assert cluster.state(handoffs[0], "o") == cluster.state(primaries[1], "o")
    assert run.figures()["copies_missing"] > 0
    cluster.cluster.device_path(primaries[0].device).mkdir()
    cluster.run_all()
    assert cluster.holders("o") == {node.device for node in primaries}


def test_nothing_is_removed_while_somebody_receives_into_the_partition(cluster: Replicated) -> None:
    primaries, handoffs = cluster.nodes("o")
    cluster.cluster.stop(primaries[0].address)
    assert cluster.put("o") == 201
    cluster.cluster.start(primaries[0].address)
    path = cluster.cluster.device_path(handoffs[0].device) / "objects" / str(cluster.part("o"))
    with lock_directory(str(path), name="replication"):
        cluster.replicator(cluster.number(handoffs[0])).run_once()
    assert handoffs[0].device in cluster.holders("o")


def test_selections(cluster: Replicated) -> None:
    for number in range(10):
        assert cluster.put(f"o{number}") == 201
    run = cluster.replicator(0)
    lines = list(run.dry_run(ALL))
    assert lines and all(line.startswith("sync policy 0 partition ") and "of d0" in line and " with " in line for line in lines)
    part = next(iter(run.plan(ALL))).partition
    assert [job.partition for job in run.plan(Selection(partitions=frozenset({part})))] == [part]
    assert list(run.plan(Selection(devices=frozenset({"other"})))) == []
    assert list(run.plan(Selection(policies=frozenset({1})))) == []
    run.run_once(Selection(partitions=frozenset({part})))
    assert "replication_last" not in ReconCache(str(cluster.root / "recon0")).read("object")
    run.run_once()
    found = ReconCache(str(cluster.root / "recon0")).read("object")
    assert found["replication_stats"]["attempted"] == len(lines) and found["replication_last"] > 0
    assert found["object_replication_time"] == found["replication_time"]


def test_handoffs_first_leaves_primaries_alone_while_handoffs_remain(cluster: Replicated) -> None:
    primaries, handoffs = cluster.nodes("o")
    for number in range(10):
        assert cluster.put(f"o{number}") == 201
    cluster.cluster.stop(primaries[0].address)
    assert cluster.put("o") == 201
    run = cluster.replicator(cluster.number(handoffs[0]), handoffs_first=True)
    run.run_once()
    assert run.stats["attempted"] == 1
    cluster.cluster.start(primaries[0].address)
    run.run_once()
    assert run.stats["attempted"] > 1


def test_rubbish_is_left_out_of_it(cluster: Replicated) -> None:
    assert cluster.put("o") == 201
    device = cluster.cluster.device_path("d00")
    for name in ("auditor_status_ALL.json", "not-a-number", "99999999"):
        (device / "objects" / name).mkdir(parents=True)
    old = device / "tmp" / "left"
    old.parent.mkdir(exist_ok=True)
    old.touch()
    os.utime(old, (1, 1))
    run = cluster.replicator(0)
    run.run_once()
    assert run.stats["failure"] == 0 and not old.exists()


def test_a_peer_whose_hashes_are_a_bomb(cluster: Replicated, monkeypatch: pytest.MonkeyPatch) -> None:
    """S07: nothing that a peer's pickle names is run."""
    assert cluster.put("o") == 201
    primaries, _ = cluster.nodes("o")
    app = cluster.cluster.apps[primaries[1].address]
    marker = cluster.root / "ran"

    def bomb(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [b"cos\nsystem\n(S'touch %s'\ntR." % str(marker).encode()]

    concrete = app._handlers["REPLICATE"]
    assert concrete
    serve_locally(primaries[1].address, bomb)
    run = cluster.replicator(cluster.number(primaries[0]))
    run.run_once()
    assert run.stats["failure"] > 0 and not marker.exists()


def test_hashes_that_are_cached_are_trusted(cluster: Replicated) -> None:
    """spec: scenarios 133, 134."""
    assert cluster.put("o") == 201
    primaries, _ = cluster.nodes("o")
    cluster.run_all()
    part = cluster.cluster.device_path(primaries[0].device) / "objects" / str(cluster.part("o"))
    shutil.rmtree(next(path for path in part.iterdir() if path.is_dir()))
    run = cluster.replicator(cluster.number(primaries[1]))
    run.work.cycle = -cluster.part("o") + 3  # not this pass's turn to list the suffixes
    run.run_once()
    assert primaries[0].device not in cluster.holders("o")
    (part / "hashes.pkl").unlink()
    cluster.run_all()
    assert primaries[0].device in cluster.holders("o")


# -- at once -----------------------------------------------------------------------------------------------------------


def test_a_hint_sends_a_handoff_home_as_soon_as_the_peer_is_back(cluster: Replicated) -> None:
    primaries, handoffs = cluster.nodes("o")
    away = primaries[0].address
    run = cluster.replicator(cluster.number(handoffs[0]), interval=3600.0)
    task = concurrency.spawn(run.run_forever)
    try:
        until(lambda: run.passes == 1 or turn(), "its first pass is over", every_s=0)
        cluster.cluster.stop(away)
        assert cluster.put("o") == 201
        path = str(cluster.cluster.device_path(handoffs[0].device))
        run.on_hint(events.HANDOFF, (path, "0", str(cluster.part("o"))))
        run.on_hint(events.HANDOFF, (path, "x", "y"))
        run.on_hint(events.HANDOFF, (path, "77", "1"))
        until(lambda: run.figures()["peers_down"] or turn(), "it has seen that the peer is down", every_s=0)
        assert cluster.holders("o") == {node.device for node in (*primaries[1:], handoffs[0])}
        cluster.cluster.start(away)
        until(lambda: cluster.holders("o") == {node.device for node in primaries} or turn(), "the copy is home", every_s=0)
        assert run.passes == 1
    finally:
        task.kill()


def test_own_devices_are_looked_up_once_for_a_ring(cluster: Replicated) -> None:
    run = cluster.replicator(1)
    ring = run._rings[0].current()
    own = run.own(ring)
    assert own and run.own(ring) is own
    run.share = frozenset(list(own)[:1])
    assert run.own(ring) == {name: own[name] for name in run.share}
    other = copy.copy(ring)
    assert run.own(other) == run.own(ring) and len(run._own) <= len(run._rings)


def test_what_fails_is_tried_again_later_each_time(cluster: Replicated, monkeypatch: pytest.MonkeyPatch) -> None:
    primaries, handoffs = cluster.nodes("o")
    cluster.cluster.stop(primaries[0].address)
    assert cluster.put("o") == 201
    run = cluster.replicator(cluster.number(handoffs[0]))
    run._is_forever = True
    key = (0, handoffs[0].device, cluster.part("o"))
    waits = []
    for _ in range(3):
        found = run.own_now(key)
        assert found is not None
        run.care_for(key, *found)
        due = run.queue.next_due_s()
        assert due is not None
        waits.append(due - run.world.clock())
    assert waits[0] < waits[1] < waits[2] < 20
    assert run.queue.counts() == {Risk.DURABILITY: 1}


def test_an_object_that_changes_while_it_goes_home_stays(cluster: Replicated, monkeypatch: pytest.MonkeyPatch) -> None:
    primaries, handoffs = cluster.nodes("o")
    cluster.cluster.stop(primaries[0].address)
    assert cluster.put("o", b"old") == 201
    cluster.cluster.start(primaries[0].address)
    run = cluster.replicator(cluster.number(handoffs[0]))
    place = cluster.store.place(handoffs[0].device, str(cluster.cluster.device_path(handoffs[0].device)), cluster.policies.default,
                                str(cluster.part("o")), "a", "c", "o")  # fmt: skip
    stamp = Timestamp.now()
    sync = run.work._given.sender.sync

    def late(*args: Any, **options: Any) -> Any:
        outcome = sync(*args, **options)
        cluster.store.delete(place, stamp)
        return outcome

    monkeypatch.setattr(run.work._given.sender, "sync", late)
    run.run_once()
    assert cluster.state(handoffs[0], "o") == (None, stamp, None, None)
    monkeypatch.undo()
    run.run_once()
    assert {cluster.state(node, "o") for node in primaries} == {(None, stamp, None, None)}
    assert cluster.holders("o") == {node.device for node in primaries}




def test_a_server_tells_of_what_it_took_for_another(cluster: Replicated) -> None:
    channel = events.Channel()
    channel.receiver.setblocking(False)
    channel.attach()
    try:
        assert cluster.put("elsewhere") == 201
        primaries, handoffs = cluster.nodes("o")
        cluster.cluster.stop(primaries[0].address)
        assert cluster.put("o") == 201
        assert cluster.cluster.ask("POST", "/v1/a/c/o", {"X-Object-Meta-A": "b"}).status == 202
        expected = (events.HANDOFF, (str(cluster.cluster.device_path(handoffs[0].device)), "0", str(cluster.part("o"))))
        heard = []
        while True:
            try:
                heard.append(events.parse(channel.receiver.recv(8192)))
            except BlockingIOError:
                break
        assert [hint for hint in heard if hint[0] == events.HANDOFF] == [expected]
        cluster.cluster.start(primaries[0].address)
        cluster.run_all()  # what replicators write is no news
        with pytest.raises(BlockingIOError):
            while events.parse(channel.receiver.recv(8192))[0] != events.HANDOFF:
                pass
    finally:
        channel.close()


def headers_of(cluster: Replicated, node: Node, name: str) -> dict[str, str]:
    """What a HEAD of a node itself shows of an object."""
    path = f"/{node.device}/{cluster.part(name)}/a/c/{name}"
    answer = cluster.cluster.proxy.backend.call(node.address, "HEAD", path, Headers({"X-Backend-Storage-Policy-Index": "0"}))
    assert answer.status == 200, (node.device, answer.status)
    return {key: value for key, value in answer.headers.items() if key not in ("Date", "X-Trans-Id", "X-Openstack-Request-Id")}


def test_case_C16_metadata_beyond_ascii_is_the_same_on_every_replica(cluster: Replicated) -> None:
    """As wire octets: of an object that a handoff took, of one written anew by POST, and of one that an emptied disk gets back."""
    name, wire = "schl\u00fcssel \u65e5\u672c", "\u00e6\u0097\u00a5\u00e6\u009c\u00ac caf\u00c3\u00a9"
    path = f"/v1/a/c/{name}"
    primaries, handoffs = cluster.nodes(name)
    cluster.cluster.stop(primaries[0].address)
    assert cluster.put(name, **{"X-Object-Meta-Name": wire, "X-Object-Meta-\u00c3\u00a9": "x", "Content-Disposition": f"inline; filename={wire}"}) == 201
    cluster.cluster.start(primaries[0].address)
    held = next(node for node in (*primaries, *handoffs) if node.device in cluster.holders(name))
    before = headers_of(cluster, held, name)
    assert before["X-Object-Meta-Name"] == wire
    cluster.run_all()
    assert cluster.holders(name) == {node.device for node in primaries}
    for node in primaries:
        assert headers_of(cluster, node, name) == before
    cluster.cluster.stop(primaries[1].address)
    assert cluster.cluster.ask("POST", path, {"X-Object-Meta-Name": wire[::-1], "Content-Type": f"text/{wire}"}).status == 202
    cluster.cluster.start(primaries[1].address)
    cluster.empty(primaries[2].device)
    cluster.run_all()
    posted = headers_of(cluster, primaries[0], name)
    assert posted["X-Object-Meta-Name"] == wire[::-1]
    for node in primaries:
        assert headers_of(cluster, node, name) == posted
    assert cluster.cluster.ask("HEAD", path).headers["X-Object-Meta-Name"] == wire[::-1]


def test_case_X18_a_handoff_keeps_what_a_full_disk_will_not_take(cluster: Replicated, monkeypatch: pytest.MonkeyPatch) -> None:
    primaries, _ = cluster.nodes("o")
    cluster.cluster.stop(primaries[0].address)
    assert cluster.put("o") == 201
    cluster.cluster.start(primaries[0].address)
    holders = cluster.holders("o")
    assert primaries[0].device not in holders
    store = cluster.cluster.apps[primaries[0].address].store
    monkeypatch.setattr(store, "reserve", Reserve.parse("100%"))
    cluster.run_all(times=2)
    assert cluster.holders("o") == holders, "nothing was removed, nothing was written beyond the reserve"
    assert cluster.cluster.ask("GET", "/v1/a/c/o").body == b"body"
    monkeypatch.undo()
    cluster.run_all()
    assert cluster.holders("o") == {node.device for node in primaries}


def test_whether_a_partition_is_there_is_not_asked_on_the_thread_of_the_others(
        cluster: Replicated, monkeypatch: pytest.MonkeyPatch) -> None:
    primaries, _ = cluster.nodes("o")
    assert cluster.put("o") == 201
    run = cluster.replicator(cluster.number(primaries[0]))
    key = (0, primaries[0].device, cluster.part("o"))
    calls = watched(monkeypatch, cluster.cluster.root)
    assert run.own_now(key) is not None
    assert run.own_now((0, primaries[0].device, cluster.part("o") ^ 1)) is None
    assert calls == []


def test_two_workers_are_never_at_one_partition(cluster: Replicated, monkeypatch: pytest.MonkeyPatch) -> None:
    primaries, _ = cluster.nodes("o")
    assert cluster.put("o") == 201
    run = cluster.replicator(cluster.number(primaries[0]))
    key = (0, primaries[0].device, cluster.part("o"))
    plain = run.own_now

    def look(key: Any) -> Any:
        run._busy.add(key)  # another green thread came to it while the disk was asked
        return plain(key)

    monkeypatch.setattr(run, "own_now", look)
    monkeypatch.setattr(run, "care_for", lambda *_args: pytest.fail("two at once"))
    run._on_due(key, key)
    assert key in run.queue
