"""Container updates, the expiry queue, and the files that hold what could not be sent."""

from __future__ import annotations

import os
import pickle
from typing import Any

import pytest

from keelstore.common import concurrency
from keelstore.common.backend import RowTaker
from keelstore.common.headers import Headers
from keelstore.common.names import HashPath
from keelstore.obj import updates
from keelstore.obj.updates import decode_pending, encode_pending, parse_address, redirect_of
from test.support.objects import HASH_PATH, NOW, Peer, ServerBox, stamp

CONTAINER = ("127.0.0.1", 6201)
OTHER = ("127.0.0.2", 6201)
DEAD = ("127.0.0.1", 1)
UPDATE = {"X-Container-Host": "127.0.0.1:6201", "X-Container-Device": "sdb", "X-Container-Partition": "9"}

# what Swift 2.38 wrote (its own test values)
SWIFT_PENDING = (
    b"(dp0\nVop\np1\nVPUT\np2\nsVaccount\np3\nVa\np4\nsVcontainer\np5\nVc\np6\nsVobj\np7\nVo\np8\nsVheaders\np9\nccopy_reg\n"
    b"_reconstructor\np10\n(cswift.common.header_key_dict\nHeaderKeyDict\np11\nc__builtin__\ndict\np12\n(dp13\nVX-Size\np14\nV5\n"
    b"p15\nsVX-Content-Type\np16\nVtext/plain\np17\nsVX-Timestamp\np18\nV1402436408.91203\np19\nsVX-Etag\np20\n"
    b"V5d41402abc4b2a76b9719d911017c592\np21\nsVX-Trans-Id\np22\nVtx1\np23\nsVReferer\np24\nVPUT http://localhost/sda1/0/a/c/o\np25\n"
    b"sVX-Backend-Storage-Policy-Index\np26\nV0\np27\nsVUser-Agent\np28\nVobject-server 15019\np29\nstp30\nRp31\nsVdb_state\np32\n"
    b"Vunsharded\np33\ns."
)
SWIFT_UPDATE: dict[str, Any] = {
    "op": "PUT", "account": "a", "container": "c", "obj": "o",
    "headers": {
        "X-Size": "5", "X-Content-Type": "text/plain", "X-Timestamp": "1402436408.91203",
        "X-Etag": "5d41402abc4b2a76b9719d911017c592", "X-Trans-Id": "tx1", "Referer": "PUT http://localhost/sda1/0/a/c/o",
        "X-Backend-Storage-Policy-Index": "0", "User-Agent": "object-server 15019",
    },
    "db_state": "unsharded",
}  # fmt: skip


@pytest.fixture
def peer():
    return Peer()


@pytest.fixture
def box(tmp_path, peer):
    return ServerBox(str(tmp_path), {CONTAINER: peer}, container_update_timeout=0.1, node_timeout=0.5)


def pendings(box: ServerBox, datadir: str = "async_pending") -> dict[str, dict[str, Any]]:
    """The async pendings by file name; each must be where its hash says."""
    found = {}
    for root, _, names in os.walk(f"{box.device_path}/{datadir}"):
        for name in names:
            with open(f"{root}/{name}", "rb") as file:
                found[name] = decode_pending(file.read())
            assert os.path.basename(root) == name.partition("-")[0][-3:]
    return found


# -- format


def test_pending_is_as_swift_writes_it():
    assert encode_pending(SWIFT_UPDATE) == SWIFT_PENDING
    assert decode_pending(SWIFT_PENDING) == SWIFT_UPDATE


def test_names_of_any_kind_survive():
    update = {**SWIFT_UPDATE, "obj": "\u00e9\n\udcff\\u000a\U0001f600", "container_path": ".shards_a/c-1"}
    update["headers"] = {"X-Content-Type": "c" + updates.__name__ + "\nHeaderKeyDict\n"}
    assert decode_pending(encode_pending(update)) == update


class Bomb:
    def __reduce__(self):
        return (os.mkdir, ("/tmp/keelstore-was-here",))


@pytest.mark.parametrize("data", [b"", b"x", pickle.dumps({"op": Bomb()}), pickle.dumps([]), pickle.dumps({"headers": {}}, 0)])
def test_pendings_that_are_refused(data):
    with pytest.raises(ValueError):
        decode_pending(data)
    assert not os.path.exists("/tmp/keelstore-was-here")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1.2.3.4:5", ("1.2.3.4", 5)), ("[::1]:5", ("::1", 5)), ("::1:5", ("::1", 5)), ("", None), (":5", None), ("h:x", None)],
)
def test_addresses(text, expected):
    assert parse_address(text) == expected


def test_redirects():
    assert redirect_of(Headers({"Location": "/.shards_a/c%20d/o", "X-Backend-Location-Is-Quoted": "true"})) == ".shards_a/c d"
    assert redirect_of(Headers({"Location": "/a/c%20d/o/p"})) == "a/c%20d"
    assert redirect_of(Headers({"Location": "nonsense"})) == "" and redirect_of(Headers()) == ""


# -- listings


def test_put_tells_the_container(box, peer):
    headers = {**UPDATE, "X-Trans-Id": "tx1", "X-Backend-Storage-Policy-Index": "1"}
    assert box.call("PUT", headers=headers, body=b"hello", at=0).status == 201
    (method, path, sent), = peer.calls
    assert (method, path) == ("PUT", "/sdb/9/a/c/o")
    assert sent.items() >= {
        "X-Size": "5", "X-Content-Type": "text/plain", "X-Timestamp": stamp(0).internal, "X-Trans-Id": "tx1",
        "X-Etag": "5d41402abc4b2a76b9719d911017c592", "X-Backend-Storage-Policy-Index": "1",
        "User-Agent": f"object-server {os.getpid()}", "X-Backend-Accept-Redirect": "true",
    }.items()  # fmt: skip
    assert sent["Referer"].startswith("PUT http://127.0.0.1:6200/sda1/7/a/c/o")
    assert pendings(box) == {}


class Prompt(Peer):
    """A container server of this process that takes rows at once, or so many of them."""

    def __init__(self, takes: int):
        super().__init__()
        self.takes, self.taken = takes, []

    def row_taker(self, method: str, path: str, headers: Headers) -> RowTaker:
        def take(device: str, partition: str) -> bool:
            if len(self.taken) >= self.takes:
                return False
            self.taken.append((method, f"/{device}/{partition}{path}", dict(headers)))
            return True

        return take


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_a_container_server_in_this_process_takes_the_row_at_once(tmp_path, method):
    peer = Prompt(takes=1)
    box = ServerBox(str(tmp_path), {CONTAINER: peer})
    box.call(method, headers=UPDATE, body=b"hello" if method == "PUT" else b"", at=0)
    wanted = {"X-Size": "5", "X-Content-Type": "text/plain", "X-Etag": "5d41402abc4b2a76b9719d911017c592"} if method == "PUT" else {}
    assert peer.taken == [(method, "/sdb/9/a/c/o", {
        **wanted, "X-Timestamp": stamp(0).internal, "X-Backend-Storage-Policy-Index": "0", "X-Backend-Accept-Redirect": "true"})]
    assert not peer.calls and not pendings(box)


def test_who_does_not_take_the_row_at_once_is_asked_in_full(tmp_path):
    peer, other = Prompt(takes=0), Prompt(takes=1)
    box = ServerBox(str(tmp_path), {CONTAINER: peer, OTHER: other})
    hosts = {**UPDATE, "X-Container-Host": "127.0.0.1:6201,127.0.0.2:6201", "X-Container-Device": "sdb,sdc"}
    assert box.call("PUT", headers={**hosts, "X-Trans-Id": "tx1"}, body=b"hello", at=0).status == 201
    ((method, path, sent),) = peer.calls
    assert (method, path, sent["X-Trans-Id"], sent["X-Size"]) == ("PUT", "/sdb/9/a/c/o", "tx1", "5")
    assert [path for _, path, _ in other.taken] == ["/sdc/9/a/c/o"] and not peer.taken and not other.calls
    assert not pendings(box)


def test_what_the_servers_of_two_fragments_tell_one_container_server_is_told_once(tmp_path, monkeypatch):
    peer = Prompt(takes=9)
    box = ServerBox(str(tmp_path), {CONTAINER: peer})

    def put(index: int, at: float, **more: str) -> None:
        assert box.call("PUT", headers={**UPDATE, "X-Backend-Storage-Policy-Index": "2", "X-Object-Sysmeta-Ec-Frag-Index": str(index),
                                        "X-Backend-Container-Update-Override-Etag": "whole", **more}, body=b"hello", at=at).status == 201

    put(1, 0), put(2, 0)
    assert len(peer.taken) == 1
    put(1, 1)  # another write
    put(2, 1, **{"X-Container-Partition": "8"})
    put(3, 1, **{"X-Backend-Container-Update-Override-Etag": "other"})
    assert len(peer.taken) == 4
    monkeypatch.setattr(updates, "TOLD_S", 0.0)  # it was long ago
    put(4, 1, **{"X-Backend-Container-Update-Override-Etag": "other"})
    assert len(peer.taken) == 5 and not pendings(box)


def test_a_row_that_was_not_taken_at_once_is_told_again(tmp_path):
    peer = Prompt(takes=0)
    box = ServerBox(str(tmp_path), {CONTAINER: peer})
    for index in (1, 2):
        box.call("PUT", headers={**UPDATE, "X-Backend-Storage-Policy-Index": "2", "X-Object-Sysmeta-Ec-Frag-Index": str(index)},
                 body=b"hello", at=0)
    assert len(peer.calls) == 2


def test_only_so_many_rows_are_remembered(tmp_path, monkeypatch):
    monkeypatch.setattr(updates, "MAX_TOLD", 3)
    box = ServerBox(str(tmp_path), {CONTAINER: Prompt(takes=9)})
    updater = box.app.updater
    for number in range(5):
        updater._remember(f"host/{number}", "PUT", Headers({"X-Timestamp": str(number)}))
    assert list(updater._told) == ["host/2", "host/3", "host/4"]


def test_overrides_of_what_the_container_is_told(box, peer):
    box.call("PUT", headers={
        **UPDATE, "X-Backend-Container-Update-Override-Size": "1", "X-Backend-Container-Update-Override-Etag": "e1",
        "X-Object-Sysmeta-Container-Update-Override-Etag": "e2",
    }, body=b"hello", at=0)  # fmt: skip
    sent = peer.calls[0][2]
    assert (sent["X-Size"], sent["X-Etag"], sent["X-Content-Type"]) == ("1", "e2", "text/plain")
    box.call("POST", headers=UPDATE, at=1)
    sent = peer.calls[1][2]
    assert (sent["X-Size"], sent["X-Etag"]) == ("5", "e2")


def test_post_tells_all_three_times(box, peer):
    box.call("PUT", headers={"Content-Type": "text/a;swift_bytes=99"}, body=b"hello", at=0)
    box.call("POST", headers={**UPDATE, "Content-Type": "text/b"}, at=1)
    box.call("POST", headers={**UPDATE}, at=2)
    first, second = (call[2] for call in peer.calls)
    assert (first["X-Timestamp"], first["X-Content-Type-Timestamp"], first["X-Meta-Timestamp"]) == (
        stamp(0).internal, stamp(1).internal, stamp(1).internal)
    assert first["X-Content-Type"] == second["X-Content-Type"] == "text/b;swift_bytes=99"
    assert (second["X-Content-Type-Timestamp"], second["X-Meta-Timestamp"]) == (stamp(1).internal, stamp(2).internal)
    assert first["X-Size"] == "5"


def test_delete_tells_the_container_when_it_wrote_a_tombstone(box, peer):
    box.call("PUT", body=b"hello", at=2)
    box.call("DELETE", headers=UPDATE, at=1)
    assert peer.calls == []
    box.call("DELETE", headers=UPDATE, at=3)
    box.call("DELETE", headers=UPDATE, at=4)
    assert [(method, path, sent["X-Timestamp"]) for method, path, sent in peer.calls] == [
        ("DELETE", "/sdb/9/a/c/o", stamp(3).internal), ("DELETE", "/sdb/9/a/c/o", stamp(4).internal)]


def test_nobody_is_told_without_a_partition(box, peer):
    box.call("PUT", headers={"X-Container-Host": "127.0.0.1:6201", "X-Container-Device": "sdb"}, body=b"x", at=0)
    assert peer.calls == [] and pendings(box) == {}


def test_shard_is_told_in_place_of_the_container(box, peer):
    box.call("PUT", headers={**UPDATE, "X-Backend-Quoted-Container-Path": ".shards_a/c%20d"}, body=b"x", at=0)
    box.call("PUT", headers={**UPDATE, "X-Backend-Container-Path": ".shards_a/c1"}, body=b"x", at=1)
    box.call("PUT", headers={**UPDATE, "X-Backend-Container-Path": "../../x"}, body=b"x", at=2)
    assert [call[1] for call in peer.calls] == ["/sdb/9/.shards_a/c d/o", "/sdb/9/.shards_a/c1/o", "/sdb/9/a/c/o"]


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Container-Host": "127.0.0.1:1"}, {"X-Container-Host": ""}, {"X-Container-Device": ""}, {"X-Container-Host": "no port"},
        {"X-Container-Host": "127.0.0.1:6201,127.0.0.1:1", "X-Container-Device": "sdb,sdc"},
    ],
)  # fmt: skip
def test_update_that_cannot_be_sent_is_kept(box, headers):
    sent = {**UPDATE, **headers, "X-Container-Root-Db-State": "unsharded", "X-Backend-Container-Path": ".shards_a/c1"}
    assert box.call("PUT", headers=sent, body=b"hello", at=0).status == 201
    (name, update), = pendings(box).items()
    assert name == f"{HASH_PATH.hexdigest('a', 'c', 'o')}-{stamp(0).internal}"
    assert (update["op"], update["account"], update["container"], update["obj"]) == ("PUT", "a", "c", "o")
    assert (update["db_state"], update["container_path"], update["headers"]["X-Size"]) == ("unsharded", ".shards_a/c1", "5")
    assert "X-Backend-Accept-Redirect" not in update["headers"]


@pytest.mark.parametrize("status", ["503 Service Unavailable", "404 Not Found", "507 Insufficient Storage"])
def test_update_that_is_refused_is_kept(box, peer, status):
    peer.status = status
    box.call("PUT", headers={**UPDATE, "X-Backend-Storage-Policy-Index": "1"}, body=b"x", at=0)
    assert len(pendings(box, "async_pending-1")) == 1


def test_redirect_is_kept_for_the_updater(box, peer):
    peer.status, peer.headers = "301 Moved", [("Location", "/.shards_a/c%201/o"), ("X-Backend-Location-Is-Quoted", "true")]
    box.call("PUT", headers=UPDATE, body=b"x", at=0)
    assert [update["container_path"] for update in pendings(box).values()] == [".shards_a/c 1"]


def test_post_is_kept_under_its_own_time(box):
    box.call("PUT", body=b"x", at=0)
    box.call("POST", headers={**UPDATE, "X-Container-Host": "127.0.0.1:1"}, at=1)
    assert [name.partition("-")[2] for name in pendings(box)] == [stamp(1).internal]


def test_uneven_lists_are_ignored(box, peer):
    assert box.call("PUT", headers={**UPDATE, "X-Container-Host": "127.0.0.1:6201,h:1"}, body=b"x", at=0).status == 201
    assert peer.calls == [] and pendings(box) == {}


def test_container_that_does_not_answer_costs_a_bounded_wait(box):
    """The update is kept before the answer goes out: nobody else knows of it."""
    class Slow(Peer):
        def __call__(self, environ, start_response):
            concurrency.sleep(0.3)
            return super().__call__(environ, start_response)

    box.local[CONTAINER] = slow = Slow()
    assert box.call("PUT", headers=UPDATE, body=b"x", at=0).status == 201
    assert slow.calls == [] and len(pendings(box)) == 1


def test_several_containers_are_told(box, peer):
    box.local[OTHER] = other = Peer()
    box.call("PUT", headers={**UPDATE, "X-Container-Host": "127.0.0.1:6201, 127.0.0.2:6201", "X-Container-Device": "sdb,sdc"},
             body=b"x", at=0)
    assert [call[1] for call in (*peer.calls, *other.calls)] == ["/sdb/9/a/c/o", "/sdc/9/a/c/o"]


# -- expiry queue

QUEUE = {"X-Delete-At-Host": "127.0.0.1:6201", "X-Delete-At-Device": "sdq", "X-Delete-At-Partition": "3",
         "X-Delete-At-Container": "1700000099"}
DUE = str(int(NOW) + 1000)


def test_put_queues_its_expiry(box, peer):
    box.call("PUT", headers={**QUEUE, "X-Delete-At": DUE}, body=b"hello", at=0)
    (method, path, sent), = peer.calls
    assert (method, path) == ("PUT", f"/sdq/3/.expiring_objects/1700000099/{DUE}-a/c/o")
    assert sent.items() >= {
        "X-Size": "0", "X-Content-Type": "text/plain;swift_expirer_bytes=5", "X-Etag": "d41d8cd98f00b204e9800998ecf8427e",
        "X-Timestamp": stamp(0).internal, "X-Content-Type-Timestamp": stamp(0).internal, "X-Backend-Storage-Policy-Index": "0",
    }.items()  # fmt: skip


def test_post_queues_its_expiry(box, peer):
    box.call("PUT", body=b"hello", at=0)
    box.call("POST", headers={**QUEUE, "X-Delete-At": DUE}, at=1)
    assert [call[1] for call in peer.calls] == [f"/sdq/3/.expiring_objects/1700000099/{DUE}-a/c/o"]
    assert peer.calls[0][2]["X-Content-Type"] == "text/plain;swift_expirer_bytes=5"


def test_queue_container_of_our_own_is_that_of_swift():
    updater = ServerBox.__new__(ServerBox)
    del updater
    own = updates.ContainerUpdater(None, HashPath(b"p", b"s"), None, wait_s=1, node_timeout_s=1, expirer_divisor=86400,  # type: ignore[arg-type]
                                   expirer_account="expiring_objects")
    assert own.queue_container(9999999999, ("a", "c", "o")) == "9999935935"


@pytest.mark.parametrize("container", [None, "x"])
def test_queue_container_that_is_not_given_is_guessed(box, peer, container):
    headers = {**QUEUE, "X-Delete-At": "9999999999"}
    del headers["X-Delete-At-Container"]
    if container:
        headers["X-Delete-At-Container"] = container
    box.call("PUT", headers=headers, body=b"x", at=0)
    assert peer.calls[0][1] == "/sdq/3/.expiring_objects/9999935935/9999999999-a/c/o"


def test_queue_without_hosts(box, peer):
    box.call("PUT", headers={"X-Delete-At": DUE}, body=b"x", at=0)
    assert peer.calls == [] and pendings(box) == {}
    box.call("PUT", headers={**QUEUE, "X-Delete-At": DUE, "X-Delete-At-Host": "", "X-Delete-At-Device": ""}, body=b"x", at=1)
    (name, update), = pendings(box).items()
    assert (update["op"], update["account"], update["container"]) == ("PUT", ".expiring_objects", "1700000099")
    assert name == f"{HASH_PATH.hexdigest('.expiring_objects', '1700000099', f'{DUE}-a/c/o')}-{stamp(1).internal}"


def test_change_of_expiry_takes_the_old_entry_back(box, peer):
    box.call("PUT", headers={**QUEUE, "X-Delete-At": DUE}, body=b"x", at=0)
    box.call("PUT", headers={**QUEUE, "X-Delete-At": DUE}, body=b"x", at=1)
    assert pendings(box) == {} and len(peer.calls) == 2, "the same again is said again, and nothing is taken back"
    box.call("POST", headers={**QUEUE, "X-Delete-At": str(int(NOW) + 2000)}, at=2)
    (update,) = pendings(box).values()
    assert (update["op"], update["obj"], update["headers"]["X-Timestamp"]) == ("DELETE", f"{DUE}-a/c/o", stamp(2).internal)
    assert update["container"] == box.app.updater.queue_container(int(DUE), ("a", "c", "o"))
    assert len(peer.calls) == 3


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE"])
def test_expiry_that_is_no_more_is_taken_back(box, peer, method):
    box.call("PUT", headers={"X-Delete-At": DUE}, body=b"x", at=0)
    box.call(method, at=1)
    assert [(update["op"], update["obj"]) for update in pendings(box).values()] == [("DELETE", f"{DUE}-a/c/o")]


def test_old_delete_takes_the_entry_back_too(box):
    box.call("PUT", headers={"X-Delete-At": DUE}, body=b"x", at=2)
    assert box.call("DELETE", at=1).status == 409 and len(pendings(box)) == 1


def test_queue_is_left_alone_when_told(box):
    box.call("PUT", headers={"X-Delete-At": DUE}, body=b"x", at=0)
    box.call("DELETE", headers={"X-Backend-Clean-Expiring-Object-Queue": "no"}, at=1)
    assert pendings(box) == {}


def test_replicators_do_not_touch_the_queue(box, peer):
    for method in ("PUT", "POST", "DELETE"):
        box.call("PUT", headers={"X-Backend-Replication": "true", "X-Delete-At": DUE, **QUEUE}, body=b"x", at=0)
        box.call(method, headers={"X-Backend-Replication": "true"}, at=1)
    assert peer.calls == [] and pendings(box) == {}
