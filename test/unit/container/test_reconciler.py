"""The container reconciler over an in-process cluster: objects come to the policy of their container, whatever was raced."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from keelstore.common.headers import Headers
from keelstore.common.names import storage_path
from keelstore.common.timestamp import Timestamp
from keelstore.container import reconcile
from keelstore.container.broker import ContainerBroker
from keelstore.container.misplaced import MisplacedQueue
from keelstore.container.reconciler import claim_of
from test.support.cluster import InProcessCluster
from test.support.daemons import Daemons

LOG = logging.getLogger("test")
ACCOUNT = reconcile.ACCOUNT
_times = itertools.count(1)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[InProcessCluster]:
    """A container of policy silver (1)."""
    cluster = InProcessCluster(tmp_path)
    assert cluster.ask("PUT", "/v1/a/c", {"X-Storage-Policy": "silver"}).status == 201
    yield cluster
    cluster.close()


@pytest.fixture
def daemons(cluster: InProcessCluster) -> Daemons:
    return Daemons(cluster)


def tick(daemons: Daemons) -> str:
    """A time later than those before."""
    return Timestamp(daemons.clock() - 100 + next(_times) / 1000).internal


def write(cluster: InProcessCluster, method: str, policy: int, at: str, body: bytes = b"", **headers: str) -> int:
    """Write /a/c/o as a proxy would that believes in this policy."""
    return cluster.ask(method, "/v1/a/c/o", {"X-Backend-Storage-Policy-Index": str(policy), "X-Timestamp": at,
                                             **{name.replace("_", "-"): value for name, value in headers.items()}}, body).status


def brokers(cluster: InProcessCluster, account: str, container: str) -> Iterator[tuple[ContainerBroker, int]]:
    """The databases of a container, each with its node."""
    name_hash = cluster.proxy.cluster.hash_path.hexdigest(account, container)
    for node in cluster.primaries("container", f"/{account}/{container}"):
        part = cluster.proxy.rings.container.current().partition(bytes.fromhex(name_hash))
        device = cluster.device_path(node.device)
        broker = ContainerBroker(f"{device}/{storage_path('containers', part, name_hash)}/{name_hash}.db", str(device), LOG)
        yield broker, int(node.device[1])
        broker.close()


def enqueue(cluster: InProcessCluster) -> int:
    """As container replicators do: feed the queue, and bring its databases to their primaries."""
    count = 0
    ring = cluster.proxy.rings.container
    for broker, node in list(brokers(cluster, "a", "c")):
        broker.merge_pending()
        own = [one for one in ring.current().nodes if one.device[1] == str(node)]
        queue = MisplacedQueue(str(cluster.devices(node)), ring, cluster.proxy.cluster.hash_path, partial(list, own), LOG)
        count = max(count, queue.feed(broker).count)
        for place in queue.take_written():
            local = ContainerBroker(f"{place.path}/{place.path.rpartition('/')[2]}.db", place.device_path, LOG)
            names = local.info().container
            rows = local.read(partial(local.rows_since, start=-1, count=1000))
            local.close()
            for primary, _ in brokers(cluster, ACCOUNT, names):
                if not primary.exists:
                    primary.initialize(ACCOUNT, names, Timestamp(names).internal, 0)
                primary.write(partial(primary.merge_rows, items=rows))
    daemons = Daemons(cluster)
    for node in daemons.nodes:
        daemons.container_updater(node).run_once()
    return count


def names_in(cluster: InProcessCluster, path: str) -> list[str]:
    return [entry["name"] for entry in json.loads(cluster.ask("GET", path, query="format=json").read() or b"[]")]


def queued(cluster: InProcessCluster) -> list[str]:
    return [name for queue in names_in(cluster, f"/v1/{ACCOUNT}") for name in names_in(cluster, f"/v1/{ACCOUNT}/{queue}")]


def state(cluster: InProcessCluster, policy: int) -> tuple[int, bytes, str]:
    """Status, body and time of /a/c/o under a policy."""
    answer = cluster.ask("GET", "/v1/a/c/o", {"X-Backend-Storage-Policy-Index": str(policy), "X-Newest": "true"})
    return answer.status, answer.read() if answer.status == 200 else b"", answer.headers.get("X-Backend-Timestamp", "")


def listing(cluster: InProcessCluster) -> list[str]:
    return names_in(cluster, "/v1/a/c")


def test_an_object_comes_to_the_policy_of_its_container(cluster: InProcessCluster, daemons: Daemons) -> None:
    at = tick(daemons)
    assert write(cluster, "PUT", 0, at, b"body", X_Object_Meta_Color="red", Content_Type="text/x", X_Object_Sysmeta_S="s") == 201
    assert listing(cluster) == []
    assert cluster.ask("GET", "/v1/a/c/o").status == 404
    assert enqueue(cluster) == 1
    assert queued(cluster) == ["0:/a/c/o"]
    reconciler = daemons.reconciler()
    assert list(reconciler.dry_run()) == [f"object /a/c/o under policy 0, of {Timestamp(at).isoformat}: belongs under policy 1"]
    reconciler.run_once()
    answer = cluster.ask("GET", "/v1/a/c/o")
    assert (answer.status, answer.read()) == (200, b"body")
    assert {name: answer.headers.get(name) for name in ("X-Object-Meta-Color", "Content-Type", "X-Object-Sysmeta-S")} == {
        "X-Object-Meta-Color": "red", "Content-Type": "text/x", "X-Object-Sysmeta-S": "s"}
    assert answer.headers["X-Backend-Timestamp"] == Timestamp(at, offset=3).internal
    assert state(cluster, 0)[0] == 404
    assert listing(cluster) == ["o"]
    assert queued(cluster) == []
    assert {name: count for name, count in reconciler.counts.items() if count} == {
        "success": 1, "pop_queue": 1, "cleanup_attempt": 1, "cleanup_success": 1, "misplaced_object": 1, "copy_attempt": 1,
        "copy_success": 1}
    # The tombstone in the wrong policy is not queued, and nothing that is queued late undoes what was done.
    assert enqueue(cluster) <= 1
    assert queued(cluster) == []
    daemons.reconciler().run_once()
    assert cluster.ask("GET", "/v1/a/c/o").status == 200


def test_a_deletion_is_carried_over(cluster: InProcessCluster, daemons: Daemons) -> None:
    assert write(cluster, "PUT", 1, tick(daemons), b"old") == 201
    at = tick(daemons)
    assert write(cluster, "DELETE", 0, at) in (204, 404)
    enqueue(cluster)
    daemons.reconciler().run_once()
    assert state(cluster, 1)[0] == state(cluster, 0)[0] == 404
    assert listing(cluster) == queued(cluster) == []
    assert enqueue(cluster) <= 1
    assert queued(cluster) == []


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_newest_of_two_policies_wins_in_any_order(cluster: InProcessCluster, daemons: Daemons, order: tuple[int, ...]) -> None:
    writes = [("PUT", 0, tick(daemons), b"first"), ("PUT", 1, tick(daemons), b"second"), ("DELETE", 0, tick(daemons), b"")]
    for index in order:
        write(cluster, *writes[index])
        enqueue(cluster)
        daemons.reconciler().run_once()
    assert state(cluster, 0)[0] == state(cluster, 1)[0] == 404
    assert listing(cluster) == queued(cluster) == []
    at = tick(daemons)
    assert write(cluster, "PUT", 0, at, b"third") == 201
    enqueue(cluster)
    daemons.reconciler().run_once()
    assert state(cluster, 1) == (200, b"third", Timestamp(at, offset=3).internal)
    assert listing(cluster) == ["o"]
    assert queued(cluster) == []


def test_what_was_written_later_where_it_belongs_stays(cluster: InProcessCluster, daemons: Daemons) -> None:
    write(cluster, "PUT", 0, tick(daemons), b"wrong")
    later = tick(daemons)
    write(cluster, "PUT", 1, later, b"right")
    enqueue(cluster)
    reconciler = daemons.reconciler()
    reconciler.run_once()
    assert state(cluster, 1) == (200, b"right", later)
    assert state(cluster, 0)[0] == 404
    assert (reconciler.counts["found_object"], queued(cluster)) == (1, [])


def test_a_copy_on_too_few_devices_is_no_reason_to_remove_the_other(cluster: InProcessCluster, daemons: Daemons) -> None:
    """As after a move that was cut off: of two policies of three and two copies, the three stay until both are there."""
    at = tick(daemons)
    cluster.ask("PUT", "/v1/a/gold", {"X-Storage-Policy": "gold"})
    headers = {"X-Backend-Storage-Policy-Index": "1", "X-Timestamp": at}
    cluster.ask("PUT", "/v1/a/gold/o", headers, b"body")
    [first, *_] = cluster.primaries("object", "/a/gold/o", 0)
    part = cluster.proxy.rings.object(cluster.proxy.cluster.policies.by_index[0]).current().partition(
        cluster.proxy.cluster.hash_path.digest("a", "gold", "o"))
    moved = Timestamp(at, offset=3).internal
    answer = cluster.proxy.backend.call(first.address, "PUT", f"/{first.device}/{part}/a/gold/o", Headers({
        "X-Timestamp": moved, "Content-Type": "text/plain", "Content-Length": "4", "X-Backend-Storage-Policy-Index": "0"}), body=b"body")
    assert answer.status == 201
    entry = reconcile.Entry(reconcile.queue_of(Timestamp(at)), "1:/a/gold/o", 1, "a", "gold", "o", False, Timestamp(at), Timestamp(at))
    cluster.ask("PUT", f"/v1/{ACCOUNT}/{entry.queue}")
    reconciler = daemons.reconciler()
    assert reconciler.carry_out(entry)
    assert reconciler.counts["copy_success"] == 1
    assert len(cluster.files(f"{moved}.data")) == 3


def test_an_expired_object_is_deleted_on_both_sides(cluster: InProcessCluster, daemons: Daemons) -> None:
    write(cluster, "PUT", 1, tick(daemons), b"old")
    at = tick(daemons)
    soon = str(int(daemons.clock()) + 2)
    assert write(cluster, "PUT", 0, at, b"short", X_Delete_At=soon) == 201
    enqueue(cluster)
    daemons.clock.ahead_s = 10
    daemons.reconciler().run_once()
    assert state(cluster, 1)[0] == 404
    assert queued(cluster) == []


def test_what_cannot_be_told_waits(cluster: InProcessCluster, daemons: Daemons) -> None:
    write(cluster, "PUT", 0, tick(daemons), b"body")
    enqueue(cluster)
    for node in cluster.primaries("container", "/a/c")[:2]:
        cluster.stop(node.address)
    reconciler = daemons.reconciler(request_tries=1)
    entry = reconcile.Entry("0", "0:/a/c/o", 0, "a", "c", "o", False, Timestamp(1), Timestamp(1))
    assert not reconciler.carry_out(entry)
    assert reconciler.counts["unavailable_container"] == 1
    for node in cluster.primaries("container", "/a/c"):
        cluster.start(node.address)


def test_an_entry_whose_object_is_not_found_is_kept_until_it_is_old(cluster: InProcessCluster, daemons: Daemons) -> None:
    at = Timestamp(daemons.clock() - 1000)
    queue = reconcile.queue_of(at)
    for broker, _ in brokers(cluster, ACCOUNT, queue):
        broker.initialize(ACCOUNT, queue, Timestamp(queue).internal, 0)
        broker.put_object("0:/a/c/o", at.internal, 0, "application/x-put", at.internal, 0)
        broker.put_object("nonsense", at.internal, 0, "application/x-put", at.internal, 0)
    for node in daemons.nodes:
        daemons.container_updater(node).run_once()
    reconciler = daemons.reconciler()
    reconciler.run_once()
    assert (reconciler.counts["unavailable_source"], reconciler.counts["invalid_record"], reconciler.left) == (1, 1, 1)
    reconciler.run_once()
    assert reconciler.counts["unavailable_source"] == 1  # it waits for a while
    assert sorted(queued(cluster)) == ["0:/a/c/o", "nonsense"]
    reconciler = daemons.reconciler(reclaim_age=500)
    reconciler.run_once()
    assert (reconciler.counts["lost_source"], queued(cluster)) == (1, ["nonsense"])


def test_an_old_empty_container_of_the_queue_goes(cluster: InProcessCluster, daemons: Daemons) -> None:
    for broker, _ in brokers(cluster, ACCOUNT, "1699999200"):
        broker.initialize(ACCOUNT, "1699999200", "1699999200.00000", 0)
    for node in daemons.nodes:
        daemons.container_updater(node).run_once()
    assert list(daemons.reconciler().dry_run()) == []
    assert cluster.ask("HEAD", f"/v1/{ACCOUNT}/1699999200").status == 204
    daemons.reconciler().run_once()
    assert cluster.ask("HEAD", f"/v1/{ACCOUNT}/1699999200").status == 404


def test_a_share_is_taken_over_when_nobody_else_takes_it(cluster: InProcessCluster, daemons: Daemons) -> None:
    write(cluster, "PUT", 0, tick(daemons), b"body")
    enqueue(cluster)
    theirs = [reconciler for reconciler in (daemons.reconciler(processes=2, process=process) for process in (0, 1))
              if not list(reconciler.dry_run())]
    assert len(theirs) == 1
    daemons.clock.ahead_s = 61
    assert len(list(theirs[0].dry_run())) == 1


def test_a_reserved_name_is_moved_like_any_other(cluster: InProcessCluster, daemons: Daemons) -> None:
    allow = {"X-Backend-Allow-Reserved-Names": "true"}
    assert cluster.ask("PUT", "/v1/a/\0c", {"X-Storage-Policy": "silver", **allow}).status == 201
    at = tick(daemons)
    path = "/v1/a/\0c/\0o"
    assert cluster.ask("PUT", path, {"X-Backend-Storage-Policy-Index": "0", "X-Timestamp": at, **allow}, b"body").status == 201
    queue = reconcile.queue_of(Timestamp(at))
    for broker, _ in brokers(cluster, ACCOUNT, queue):
        broker.initialize(ACCOUNT, queue, Timestamp(queue).internal, 0)
        rows = reconcile.queue_rows("a", "\0c", [{"name": "\0o", "created_at": at, "deleted": 0, "storage_policy_index": 0}])[queue]
        broker.write(partial(broker.merge_rows, items=rows))
    for node in daemons.nodes:
        daemons.container_updater(node).run_once()
    reconciler = daemons.reconciler()
    reconciler.run_once()
    assert reconciler.counts["copy_success"] == reconciler.counts["pop_queue"] == 1, reconciler.counts
    assert cluster.ask("GET", path, allow).read() == b"body"


def test_what_knows_nothing_of_a_container_makes_no_claim() -> None:
    zeros: dict[str, Any] = {f"X-Backend-{name}": "0000000000.00000" for name in ("Timestamp", "Put-Timestamp", "Delete-Timestamp")}
    assert claim_of(Headers({**zeros, "X-Backend-Storage-Policy-Index": "0"})) is None
    assert claim_of(Headers()) is None
    claim = claim_of(Headers({**zeros, "X-Backend-Put-Timestamp": "0000000001.00000", "X-Backend-Storage-Policy-Index": "2"}))
    assert claim is not None and claim.policy_index == 2


@pytest.mark.parametrize(("right", "wrong"), [("ec42", 0), ("gold", 2)])
def test_an_object_becomes_fragments_and_fragments_an_object(cluster: InProcessCluster, daemons: Daemons, right: str, wrong: int) -> None:
    cluster.ask("PUT", "/v1/a/d", {"X-Storage-Policy": right})
    at = tick(daemons)
    body = bytes(range(256)) * 1000
    sent = {"X-Backend-Storage-Policy-Index": str(wrong), "X-Timestamp": at, "Content-Type": "text/x"}
    assert cluster.ask("PUT", "/v1/a/d/o", sent, body).status == 201
    entry = reconcile.Entry(reconcile.queue_of(Timestamp(at)), f"{wrong}:/a/d/o", wrong, "a", "d", "o", False, Timestamp(at), Timestamp(at))
    cluster.ask("PUT", f"/v1/{ACCOUNT}/{entry.queue}")
    reconciler = daemons.reconciler()
    assert reconciler.carry_out(entry)
    assert reconciler.counts["copy_success"] == 1
    answer = cluster.ask("GET", "/v1/a/d/o")
    assert (answer.status, answer.body, answer.headers["Content-Type"]) == (200, body, "text/x")
    assert names_in(cluster, "/v1/a/d") == ["o"]
    sent.pop("X-Timestamp")
    assert cluster.ask("GET", "/v1/a/d/o", {**sent, "X-Newest": "true"}).status == 404
    listed = json.loads(cluster.ask("GET", "/v1/a/d", query="format=json").body or b"")[0]
    assert (listed["bytes"], listed["hash"]) == (len(body), answer.headers["Etag"])
    again = daemons.reconciler()  # as after an end between the move and the removal of the entry
    assert again.carry_out(entry)
    assert again.counts["found_object"] == 1
    assert cluster.ask("GET", "/v1/a/d/o").body == body


def test_what_middlewares_keep_with_an_object_comes_along(cluster: InProcessCluster, daemons: Daemons) -> None:
    """A large object's size is a parameter of its content type, which clients are neither shown nor let send."""
    at = tick(daemons)
    headers = {"X-Backend-Storage-Policy-Index": "0", "X-Timestamp": at, "Content-Type": "text/x;swift_bytes=1234", "X-Static-Large-Object": "True",
               "X-Object-Sysmeta-Slo-Size": "1234", "X-Object-Transient-Sysmeta-T": "t", "Content-Encoding": "gzip"}
    answer = cluster.ask("PUT", "/v1/a/c/o", headers, b"[]", swift__content_type_overridden=True)
    assert answer.status == 201
    enqueue(cluster)
    daemons.reconciler().run_once()
    answer = cluster.ask("GET", "/v1/a/c/o")
    assert {name: answer.headers.get(name) for name in headers if name.startswith(("X-Static", "X-Object", "Content-"))} == {
        "Content-Type": "text/x", "X-Static-Large-Object": "True", "X-Object-Sysmeta-Slo-Size": "1234", "X-Object-Transient-Sysmeta-T": "t",
        "Content-Encoding": "gzip"}
    assert json.loads(cluster.ask("GET", "/v1/a/c", query="format=json").body or b"")[0]["bytes"] == 1234
