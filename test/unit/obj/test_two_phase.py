"""The two-phase PUT of a fragment, through the object server."""

from __future__ import annotations

import json
import os
from hashlib import md5
from time import monotonic
from typing import Any

import pytest

from keelstore.common import concurrency, disk_calls, disk_turns
from keelstore.common.errors import ObjectStateChanged
from keelstore.common.headers import Headers
from keelstore.common.pace import LEAST, Pace, Volume
from keelstore.common.room import Reserve
from keelstore.common.two_phase import Archive, Commit
from keelstore.obj import hashes, writer
from test.support.objects import NOW, OBJECT, POLICIES, Peer, ServerBox, stamp

CONTAINER = ("127.0.0.1", 6201)
PATH = "/sda1/7/a/c/o"
COMMIT = b"X-Document: put commit\r\n\r\nput_commit_confirmation\r\n--B--"


@pytest.fixture
def box(tmp_path):
    return ServerBox(str(tmp_path), {CONTAINER: Peer()})


def first_body(data: bytes, index: object = 3, **more: str) -> bytes:
    footer = {"Etag": md5(data).hexdigest(), "X-Object-Sysmeta-Ec-Etag": "whole", "X-Object-Sysmeta-Ec-Content-Length": "99",
              "X-Backend-Container-Update-Override-Etag": "whole", "X-Backend-Container-Update-Override-Size": "99", **more}
    if index is not None:
        footer["X-Object-Sysmeta-Ec-Frag-Index"] = str(index)
    text = json.dumps(footer).encode()
    return (b"--B\r\nX-Document: object body\r\n\r\n" + data + b"\r\n--B\r\nX-Document: object metadata\r\nContent-MD5: "
            + md5(text).hexdigest().encode() + b"\r\n\r\n" + text + b"\r\n--B\r\n")  # fmt: skip


def begin(box: ServerBox, body: bytes, at: float = 0, path: str = PATH, **headers: str) -> Any:
    """The upload after its first phase, and what the server says to that (None: go on)."""
    sent = Headers({
        "X-Timestamp": stamp(at).internal, "Content-Type": "text/plain", "X-Backend-Obj-Metadata-Footer": "yes",
        "X-Backend-Obj-Multiphase-Commit": "yes", "X-Backend-Obj-Multipart-Mime-Boundary": "B",
        "X-Backend-Storage-Policy-Index": "2", **{k.replace("_", "-"): v for k, v in headers.items()},
    })  # fmt: skip
    upload = box.backend.upload(OBJECT, path, sent)
    early = upload.ready()
    if early is None:
        assert upload.continue_headers["X-Obj-Multiphase-Commit"] == upload.continue_headers["X-Obj-Metadata-Footer"] == "yes"
        upload.send(body)
        upload.end_body()
        early = upload.ready()
    return upload, early


def finish(upload: Any, document: bytes = COMMIT) -> int:
    upload.send(document)
    return int(upload.finish().status)


def begin_whole(box: ServerBox, data: bytes, index: object = 3, at: float = 0, *, size: int = -1, path: str = PATH, etag: str = "",
                **headers: str) -> Any:
    """As :func:`begin`, of a proxy in the same process."""
    footer = Headers({"Etag": etag or md5(data).hexdigest(), "X-Object-Sysmeta-Ec-Etag": "whole",
                      "X-Object-Sysmeta-Ec-Content-Length": "99", "X-Backend-Container-Update-Override-Etag": "whole",
                      "X-Backend-Container-Update-Override-Size": "99"})
    if index is not None:
        footer["X-Object-Sysmeta-Ec-Frag-Index"] = str(index)
    sent = Headers({
        "X-Timestamp": stamp(at).internal, "Content-Type": "text/plain", "X-Backend-Obj-Metadata-Footer": "yes",
        "X-Backend-Obj-Multiphase-Commit": "yes", "X-Backend-Obj-Multipart-Mime-Boundary": "B",
        "X-Backend-Storage-Policy-Index": "2", "X-Backend-Obj-Content-Length": str(len(data) if size < 0 else size),
        **{k.replace("_", "-"): v for k, v in headers.items()},
    })  # fmt: skip
    upload = box.backend.upload(OBJECT, path, sent)
    early = upload.ready()
    if early is None:
        upload.send_whole(Archive("B", data, footer))
        upload.end_body()
        early = upload.ready()
    return upload, early


def finish_whole(upload: Any) -> int:
    upload.send_whole(Commit("B"))
    return int(upload.finish().status)


def names(box: ServerBox) -> list[str]:
    directory = box.place(policy=2).directory
    return sorted(os.listdir(directory)) if os.path.isdir(directory) else []


def name(index: int, durable: bool, at: float = 0) -> str:
    return f"{stamp(at).internal}#{index}{'#d' if durable else ''}.data"


def get(box: ServerBox, **headers: str) -> Any:
    return box.call("GET", PATH, {"X-Backend-Storage-Policy-Index": "2", **{k.replace("_", "-"): v for k, v in headers.items()}})


@pytest.mark.parametrize(("size", "is_announced"), [(0, False), (5, True), (300000, False), (5 << 20, False), (5 << 20, True)])
def test_nothing_counts_before_the_commit(box, size, is_announced):
    data = bytes(range(250)) * (size // 250) + b"x" * (size % 250)
    announced = {"X-Backend-Obj-Content-Length": str(size)} if is_announced else {}
    upload, early = begin(box, first_body(data), X_Container_Host="127.0.0.1:6201", X_Container_Device="sdb",
                          X_Container_Partition="1", **announced)
    assert early is None
    assert names(box) == [name(3, False)]
    assert get(box).status == 404
    assert get(box, X_Backend_Fragment_Preferences="[]").status == 200
    assert not box.local[CONTAINER].calls
    assert finish(upload) == 201
    assert names(box) == [name(3, True)]
    found = get(box)
    assert (found.status, found.read()) == (200, data)
    assert found.headers["X-Object-Sysmeta-Ec-Frag-Index"] == "3"
    assert json.loads(found.headers["X-Backend-Fragments"]) == {stamp(0).internal: [3]}
    told = box.local[CONTAINER].calls[0][2]
    assert (told["X-Etag"], told["X-Size"]) == ("whole", "99")


def test_sender_that_gives_up_leaves_a_fragment_that_does_not_count(box):
    upload, _ = begin(box, first_body(b"hello"))
    upload.abort()
    assert names(box) == [name(3, False)] and get(box).status == 404


@pytest.mark.parametrize(("document", "status"), [
    (b"X-Document: other\r\n\r\nx\r\n--B--", 500), (b"", 400), (b"X-Document: put com", 400), (COMMIT[:-5], 400),
])  # fmt: skip
def test_what_is_no_commit(box, document, status):
    upload, _ = begin(box, first_body(b"hello"))
    assert finish(upload, document) == status
    assert names(box) == [name(3, False)]


@pytest.mark.parametrize(("body", "headers", "status"), [
    (first_body(b"x", None), {}, 400), (first_body(b"x", 6), {}, 400), (first_body(b"x", "x"), {}, 400),
    (first_body(b"x", Etag="0" * 32), {}, 422), (first_body(b"xy"), {"X_Backend_Obj_Content_Length": "3"}, 499),
    (first_body(b"x"), {"X_Backend_Storage_Policy_Index": "0"}, 501),
    (first_body(b"x"), {"X_Backend_Obj_Multipart_Mime_Boundary": ""}, 400),
])  # fmt: skip
def test_first_phase_that_is_refused(box, body, headers, status):
    _, early = begin(box, body, **headers)
    assert early.status == status and names(box) == []


def test_a_fragment_needs_an_index(box):
    answer = box.call("PUT", PATH, {"X-Backend-Storage-Policy-Index": "2"}, b"x", at=0)
    assert (answer.status, names(box)) == (400, [])


def test_older_put_is_refused_and_newer_one_replaces(box):
    upload, _ = begin(box, first_body(b"new"), at=5)
    finish(upload)
    _, early = begin(box, first_body(b"old"), at=4)
    assert early.status == 409
    upload, _ = begin(box, first_body(b"newer", 1), at=6)
    assert names(box) == [name(3, True, 5), name(1, False, 6)]
    assert get(box).read() == b"new"
    assert finish(upload) == 201
    assert names(box) == [name(1, True, 6)]


@pytest.mark.parametrize("newer", ["delete", "put"])
def test_commit_of_what_was_superseded_meanwhile(box, newer):
    upload, _ = begin(box, first_body(b"old"), at=1)
    if newer == "delete":
        box.call("DELETE", PATH, {"X-Backend-Storage-Policy-Index": "2"}, at=2)
        assert get(box).status == 404
    else:
        other, _ = begin(box, first_body(b"new"), at=2)
        assert finish(other) == 201
    assert finish(upload) == 201
    assert len(names(box)) == 1 and names(box)[0].startswith(stamp(2).internal)


@pytest.mark.parametrize("data", [b"", b"hello", b"x" * 70000])
def test_what_is_handed_over_whole_is_stored_as_what_is_sent(box, data):
    """The larger is not taken whole: it is read, as documents."""
    told = {"X_Container_Host": "127.0.0.1:6201", "X_Container_Device": "sdb", "X_Container_Partition": "1"}
    upload, early = begin_whole(box, data, **told)
    assert early is None and names(box) == [name(3, False)]
    assert get(box).status == 404 and not box.local[CONTAINER].calls
    assert finish_whole(upload) == 201 and names(box) == [name(3, True)]
    found = get(box)
    assert (found.status, found.read(), found.headers["X-Object-Sysmeta-Ec-Frag-Index"]) == (200, data, "3")
    assert "X-Backend-Container-Update-Override-Etag" not in found.headers
    assert (box.local[CONTAINER].calls[0][2]["X-Etag"], box.local[CONTAINER].calls[0][2]["X-Size"]) == ("whole", "99")
    upload, early = begin(box, first_body(data), path=f"{PATH}2")
    assert early is None and finish(upload) == 201
    other = box.call("GET", f"{PATH}2", {"X-Backend-Storage-Policy-Index": "2"})
    assert {key: value for key, value in other.headers.items() if "Name" not in key} == dict(found.headers)


@pytest.mark.parametrize(("options", "status"), [
    ({"index": None}, 400), ({"index": 6}, 400), ({"etag": "0" * 32}, 422), ({"size": 4}, 499),
    ({"X_Backend_Storage_Policy_Index": "0"}, 501),
])  # fmt: skip
def test_what_is_handed_over_whole_is_refused_as_what_is_sent(box, options, status):
    _, early = begin_whole(box, b"hello", **options)
    assert early.status == status and names(box) == []


def test_who_hands_over_and_gives_up_leaves_a_fragment_that_does_not_count(box):
    upload, _ = begin_whole(box, b"hello")
    upload.abort()
    concurrency.sleep(0)
    assert names(box) == [name(3, False)] and get(box).status == 404
    upload, _ = begin_whole(box, b"hello", at=1)
    assert finish(upload, b"") == 400  # no commit


def test_a_full_device_is_heard_of_before_it_gets_the_body(box, monkeypatch):
    monkeypatch.setattr(Reserve, "allows", lambda self, target, size=0: size < 5)
    _, early = begin_whole(box, b"hello")
    assert early.status == 507 and names(box) == []
    assert begin_whole(box, b"hell")[1] is None


@pytest.mark.parametrize("comes", ["nothing", "another", "in the partition", "consolidated"])
def test_a_commit_cleans_its_directory_where_it_may_have_company(box, monkeypatch, comes):
    looks: list[str] = []
    clean = writer.clean
    monkeypatch.setattr(writer, "clean", lambda directory, *args: looks.append(directory) or clean(directory, *args))
    upload, _ = begin_whole(box, b"old", at=1)
    place = box.place(policy=2)
    if comes == "another":
        other, _ = begin_whole(box, b"older", at=0)
        assert finish_whole(other) == 201
    elif comes == "in the partition":
        hashes.invalidate(place.partition_path, "abc")
    elif comes == "consolidated":
        box.store.hashes("sda1", box.device_path, POLICIES.by_index[2], "7")
    looks.clear()
    assert finish_whole(upload) == 201
    assert looks == ([] if comes == "nothing" else [place.directory])
    assert names(box) == [name(3, True, 1)]
    looks.clear()
    newer, _ = begin_whole(box, b"newer", at=2)  # into a directory that is not new
    assert finish_whole(newer) == 201 and looks == [place.directory]
    assert names(box) == [name(3, True, 2)]


def test_a_change_is_noted_again_at_the_commit(box):
    place, policy = box.place(policy=2), POLICIES.by_index[2]
    upload, _ = begin_whole(box, b"x")
    before = box.store.hashes("sda1", box.device_path, policy, "7")
    assert finish_whole(upload) == 201
    assert box.store.hashes("sda1", box.device_path, policy, "7")[place.suffix] != before[place.suffix]


def test_commit_of_what_vanished(box):
    upload, _ = begin(box, first_body(b"x"))
    os.unlink(f"{box.place(policy=2).directory}/{name(3, False)}")
    assert finish(upload) == 503


def test_commit_in_both_partitions_while_the_part_power_grows(box):
    place = box.place(policy=2)
    upload, _ = begin(box, first_body(b"x"), X_Backend_Next_Part_Power="9")
    other = place.moved(9)
    assert other.directory != place.directory and os.listdir(other.directory) == [name(3, False)]
    assert finish(upload) == 201
    assert os.listdir(other.directory) == names(box) == [name(3, True)]


def test_a_second_commit_does_nothing(box):
    place = box.place(policy=2)
    upload, _ = begin(box, first_body(b"x"))
    finish(upload)
    box.store.make_durable(place, stamp(0), 3)  # again: it is durable already
    with pytest.raises(ObjectStateChanged):
        box.store.make_durable(place, stamp(9), 3)


def test_a_fragment_that_comes_once_more_is_not_needed(box):
    """Two uploads of one time: the second was let in before the first was committed."""
    sent = Headers({
        "X-Timestamp": stamp(0).internal, "Content-Type": "text/plain", "X-Backend-Obj-Metadata-Footer": "yes",
        "X-Backend-Obj-Multiphase-Commit": "yes", "X-Backend-Obj-Multipart-Mime-Boundary": "B", "X-Backend-Storage-Policy-Index": "2",
    })  # fmt: skip
    late = box.backend.upload(OBJECT, PATH, sent)
    assert late.ready() is None
    upload, _ = begin(box, first_body(b"x"))
    assert finish(upload) == 201
    late.send(first_body(b"x"))
    late.end_body()
    assert late.ready() is None
    assert names(box) == [name(3, True), name(3, False)]
    box.store.hashes("sda1", box.device_path, POLICIES.by_index[2], "7", [box.place(policy=2).suffix])  # which cleans
    assert names(box) == [name(3, True)]
    assert finish(late) == 201
    assert names(box) == [name(3, True)] and get(box, X_Backend_Fragment_Preferences="[]").read() == b"x"


def test_a_twin_that_is_left_changes_no_suffix_hash_and_goes(box):
    place = box.place(policy=2)
    upload, _ = begin(box, first_body(b"x"))
    finish(upload)
    policy = POLICIES.by_index[2]
    before = box.store.hashes("sda1", box.device_path, policy, "7")
    os.link(f"{place.directory}/{name(3, True)}", f"{place.directory}/{name(3, False)}")
    hashes.invalidate(place.partition_path, place.suffix)
    assert box.store.hashes("sda1", box.device_path, policy, "7") == before
    assert names(box) == [name(3, True)]


@pytest.mark.parametrize("size", [1000, 70000, 1 << 20])
@pytest.mark.parametrize("range_", ["", "bytes=5-9"])
def test_a_rotten_fragment_is_not_found(box, size, range_):
    data = os.urandom(size)
    upload, _ = begin(box, first_body(data))
    finish(upload)
    path = f"{box.place(policy=2).directory}/{name(3, True)}"
    with open(path, "r+b") as file:
        file.seek(size // 2)
        file.write(bytes([data[size // 2] ^ 1]))
    found = get(box, **({"Range": range_} if range_ else {}))
    assert (found.status, names(box)) == (404, [])
    assert os.listdir(f"{box.device_path}/quarantined/objects-2")


def test_a_fragment_that_was_checked_says_so(box):
    upload, _ = begin(box, first_body(os.urandom(70000)))
    finish(upload)
    for headers in ({}, {"Range": "bytes=0-9"}):
        assert get(box, **headers).headers["X-Backend-Body-Checked"] == "true"


@pytest.mark.parametrize("is_committed", [True, False])
def test_an_expired_fragment_that_nobody_committed_hides_nothing(box, is_committed):
    upload, _ = begin(box, first_body(b"old"))
    assert finish(upload) == 201
    upload, _ = begin(box, first_body(b"new"), 1, X_Delete_At=str(int(NOW) + 10))
    assert finish(upload, COMMIT if is_committed else b"") == (201 if is_committed else 400)
    wishes = {"X_Backend_Fragment_Preferences": "[]"}
    assert get(box, **wishes).read() == b"new"
    box.clock.now = NOW + 11
    answer = get(box, **wishes)
    if is_committed:
        assert (answer.status, answer.headers["X-Backend-Timestamp"]) == (404, stamp(1).internal)
    else:
        assert (answer.status, answer.read(), answer.headers["X-Backend-Data-Timestamp"]) == (200, b"old", stamp(0).internal)


def test_an_expired_fragment_alone_that_nobody_committed_is_no_proof(box):
    upload, _ = begin(box, first_body(b"new"), 1, X_Delete_At=str(int(NOW) + 10))
    assert finish(upload, b"") == 400
    box.clock.now = NOW + 11
    answer = get(box, X_Backend_Fragment_Preferences="[]")
    assert answer.status == 404 and "X-Backend-Timestamp" not in answer.headers


def test_a_first_phase_keeps_no_turn_while_the_others_are_waited_for(box, monkeypatch):
    """All fragments may be written to one file system, and a proxy confirms none before it has heard of all."""
    pace = Pace(monotonic)
    monkeypatch.setattr(disk_calls, "_pace", pace)
    disk_turns._forget()
    volume = pace.share("sda1", os.stat(box.place(policy=2).device_path).st_dev)
    volume.window, volume.slow_until = LEAST, monotonic() + 1000
    monkeypatch.setattr(Volume, "ended", lambda *_: None)
    began = [begin(box, first_body(b"hello"), path=f"{PATH}{number}") for number in range(2 * int(LEAST))]
    assert [early for _, early in began] == [None] * len(began)
    assert [finish(upload) for upload, _ in began] == [201] * len(began)
    assert not disk_turns._turns_of("sda1", box.place(policy=2).device_path, monotonic()).at_work
    disk_turns._forget()
