"""The object server by its requests: reading, writing, metadata, deleting (``spec: backend-protocol 4``)."""

from __future__ import annotations

import os
import pickle
import time
from hashlib import md5

import pytest

from keelstore.common.errors import BackendError, ObjectStateChanged, XattrNotSupported
from keelstore.common.headers import Headers
from keelstore.common.limits import Limits
from keelstore.common.room import Reserve
from keelstore.obj import attributes, layout
from keelstore.obj.server import app_factory
from test.support.objects import NOW, OBJECT, ServerBox, stamp

HELLO = md5(b"hello").hexdigest()
PATH = "/sda1/7/a/c/o"


@pytest.fixture
def box(tmp_path):
    return ServerBox(str(tmp_path))


def put(box, at=0.0, body=b"hello", path=PATH, **headers):
    return box.call("PUT", path, {k.replace("_", "-"): v for k, v in headers.items()}, body, at)


# -- PUT and GET


def test_put_then_get(box):
    answer = put(box, X_Object_Meta_Colour="blue", X_Object_Sysmeta_S="1", X_Object_Transient_Sysmeta_T="2",
                 Content_Encoding="gzip", X_Unknown="no")
    assert (answer.status, answer.headers["Etag"]) == (201, HELLO)
    answer = box.call("GET")
    assert answer.status == 200 and answer.read() == b"hello"
    assert answer.headers == Headers({
        "Content-Type": "text/plain", "Content-Length": "5", "Etag": HELLO, "Content-Encoding": "gzip",
        "Last-Modified": "Tue, 14 Nov 2023 22:13:20 GMT", "X-Object-Meta-Colour": "blue", "X-Object-Sysmeta-S": "1",
        "X-Object-Transient-Sysmeta-T": "2", "X-Timestamp": stamp(0).normal, "X-Backend-Timestamp": stamp(0).internal,
        "X-Backend-Data-Timestamp": stamp(0).internal, "X-Backend-Durable-Timestamp": stamp(0).internal,
    })  # fmt: skip
    head = box.call("HEAD")
    assert head.status == 200 and head.read() == b"" and head.headers == answer.headers


@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 65537, 1 << 20])
def test_body_of_any_size(box, size):
    body = os.urandom(size)
    answer = put(box, body=body)
    assert (answer.status, answer.headers["Etag"]) == (201, md5(body).hexdigest())
    for _ in range(2):
        assert box.call("GET").read() == body
    assert box.call("HEAD").headers["Content-Length"] == str(size)


@pytest.mark.parametrize("pieces", [[], [b""], [b"hello"], [b"h", b"ello"], [b"x" * 65536] * 20])
def test_chunked_body(box, pieces):
    upload = box.backend.upload(OBJECT, PATH, Headers({"X-Timestamp": stamp(0).internal, "Content-Type": "text/plain"}))
    assert upload.ready() is None
    for piece in pieces:
        if piece:
            upload.send(piece)
    answer = upload.finish()
    body = b"".join(pieces)
    assert (answer.status, answer.headers["Etag"]) == (201, md5(body).hexdigest())
    assert box.call("GET").read() == body


def test_chunked_body_of_another_length_than_announced(box):
    headers = {"X-Timestamp": stamp(0).internal, "Content-Type": "text/plain", "X-Backend-Obj-Content-Length": "6"}
    upload = box.backend.upload(OBJECT, PATH, Headers(headers))
    upload.ready()
    upload.send(b"hello")
    assert upload.finish().status == 499 and box.call("GET").status == 404


def test_body_that_breaks_off(box):
    upload = box.backend.upload(OBJECT, PATH, Headers({"X-Timestamp": stamp(0).internal, "Content-Type": "x/y"}), length=1 << 20)
    upload.ready()
    upload.send(b"x" * 100000)
    upload.abort()
    assert box.call("GET").status == 404


def test_digest_of_the_caller_is_used(box):
    answer = box.call("PUT", body=b"hello", at=0, digest=lambda: "0" * 32)
    assert answer.headers["Etag"] == "0" * 32


@pytest.mark.parametrize("body", [b"hello", b"x" * 100000])
def test_etag_is_checked(box, body):
    assert put(box, body=body, Etag="0" * 32).status == 422
    assert box.call("GET").status == 404
    digest = md5(body).hexdigest()
    assert put(box, body=body, Etag=f'"{digest.upper()}"').status == 201
    assert put(box, at=1, body=body, Etag=digest).status == 201


@pytest.mark.parametrize(
    ("headers", "status", "text"),
    [
        ({"X-Timestamp": ""}, 400, b"Invalid X-Timestamp header"),
        ({"X-Timestamp": "now"}, 400, b"Invalid X-Timestamp header"),
        ({"Content-Type": ""}, 400, b"No content type"),
        ({"X-Delete-At": "soon"}, 400, b"Non-integer X-Delete-At"),
        ({"X-Delete-At": "1.5"}, 400, b"Non-integer X-Delete-At"),
        ({"X-Delete-At": str(int(NOW) - 1)}, 400, b"X-Delete-At in past"),
        ({"X-Delete-After": "x"}, 400, b"Non-integer X-Delete-After"),
        ({"X-Delete-After": "-5"}, 400, b"X-Delete-After in past"),
        ({"X-Object-Meta-A": "v" * 257}, 400, b"Metadata value longer than 256"),
        ({f"X-Object-Meta-{i}": "v" for i in range(91)}, 400, b"Too many metadata items"),
        ({"X-Backend-Storage-Policy-Index": "9"}, 503, b"No policy with index 9"),
        ({"X-Backend-Next-Part-Power": "x"}, 400, b"Invalid X-Backend-Next-Part-Power"),
    ],
)
def test_put_that_is_refused(box, headers, status, text):
    answer = box.call("PUT", PATH, {"X-Timestamp": stamp(0).internal, **headers}, b"hello")
    assert answer.status == status and text in answer.read()
    assert box.call("GET").status == 404 and os.listdir(box.device_path) == []


def test_put_without_timestamp(box):
    answer = box.call("PUT", body=b"x")
    assert (answer.status, answer.read()) == (400, b"Missing X-Timestamp header")


def test_limits_of_size_and_name(tmp_path):
    box = ServerBox(str(tmp_path), limits=Limits(max_file_size=10, max_object_name_length=5))
    assert put(box, body=b"x" * 11).status == 413
    assert put(box, body=b"x" * 10).status == 201
    assert put(box, path="/sda1/7/a/c/toolong").status == 400
    upload = box.backend.upload(OBJECT, PATH, Headers({"X-Timestamp": stamp(1).internal, "Content-Type": "x/y"}))
    upload.ready()
    upload.send(b"x" * 11)
    assert upload.finish().status == 413 and len(box.call("GET").read()) == 10


def test_older_put_is_refused(box):
    put(box, at=2)
    for at in (1, 2):
        answer = put(box, at=at, body=b"old")
        assert (answer.status, answer.headers["X-Backend-Timestamp"]) == (409, stamp(2).internal)
    box.call("DELETE", at=3)
    assert put(box, at=3).status == 409 and put(box, at=4).status == 201


def test_newer_metadata_does_not_keep_a_put_out(box):
    put(box, at=0)
    box.call("POST", at=5)
    assert put(box, at=3, body=b"new").status == 201
    assert box.call("GET").read() == b"new" and box.files(box.place()) == ["3.data", "5.meta"]


@pytest.mark.parametrize(("tag", "status"), [("*", 412), (HELLO, 412), (f'"x", "{HELLO}"', 412), ("other", 201)])
def test_put_only_if_none_matches(box, tag, status):
    assert put(box, If_None_Match="*").status == 201
    assert put(box, at=1, If_None_Match=tag).status == status
    box.call("DELETE", at=2)
    assert put(box, at=3, If_None_Match="*").status == 201


def test_put_over_an_expired_object(box):
    put(box, X_Delete_At=str(int(NOW) + 10))
    box.clock.now = NOW + 20
    assert put(box, at=20, If_None_Match="*").status == 201


def test_put_over_a_corrupt_object(box):
    put(box, at=5)
    os.truncate(f"{box.place().directory}/{layout.data_name(stamp(5))}", 0)
    assert put(box, at=1, body=b"new").status == 201 and box.call("GET").read() == b"new"


def test_names_and_values_of_any_octets(box):
    path = "/sda1/7/a/c/\u00e9 %?\U0001f600/\"x"
    wire = "\u00e9\u65e5".encode().decode("latin-1")
    answer = box.call("PUT", path, {"X-Object-Meta-X": wire, "X-Object-Meta-Y": "\u00ff"}, b"x", 0)
    assert answer.status == 201
    answer = box.call("GET", path)
    assert (answer.headers["X-Object-Meta-X"], answer.headers["X-Object-Meta-Y"], answer.read()) == (wire, "\u00ff", b"x")


def test_large_legal_metadata(box):
    """testMetadataNumberLimit on ext4: 90 items, 4096 bytes together."""
    items = {f"X-Object-Meta-{i:03}{'n' * 19}": "v" * 23 for i in range(90)}
    assert box.call("PUT", PATH, items, b"hello", 0).status == 201
    assert box.call("HEAD").headers.items() >= items.items()
    assert box.call("POST", PATH, items, at=1).status == 202
    assert box.call("GET").headers.items() >= items.items()
    assert box.call("DELETE", at=2).status == 204
    assert box.call("GET").status == 404


def test_longest_names(box):
    path = "/sda1/7/" + "\U0001f600" * 256 + "/" + "\U0001f600" * 256 + "/" + "\U0001f600" * 1024
    assert put(box, path=path).status == 201
    assert box.call("GET", path).read() == b"hello"
    assert box.call("POST", path, {"X-Object-Meta-A": "1"}, at=1).status == 202
    assert box.call("HEAD", path).headers["X-Object-Meta-A"] == "1"
    assert box.call("DELETE", path, at=2).status == 204


def test_replication_headers_are_stored(box):
    box.call("PUT", PATH, {"X-Backend-Replication": "true", "X-Backend-Replication-Headers": "x-odd content-length etag x-keelstore-attrs",
                           "X-Odd": "1", "X-Keelstore-Attrs": "x", "X-Delete-At": "1"}, b"hello", 0)
    stored = box.store.open(box.place(), open_expired=True)
    stored.close()
    assert stored.metadata["X-Odd"] == "1" and stored.metadata["Content-Length"] == "5"
    assert "X-Keelstore-Attrs" not in stored.metadata and stored.metadata["X-Delete-At"] == "0000000001"


def test_expiry_times_are_normalized(box):
    put(box, X_Delete_After="100")
    assert box.call("HEAD").headers["X-Delete-At"] == str(int(NOW) + 100)
    put(box, at=1, X_Delete_At="99999999999")
    assert box.call("HEAD").headers["X-Delete-At"] == "9999999999"


# -- conditional and partial reads


@pytest.mark.parametrize(
    ("header", "value", "status"),
    [
        ("If-Match", HELLO, 200), ("If-Match", "*", 200), ("If-Match", "x", 412), ("If-None-Match", HELLO, 304),
        ("If-None-Match", "*", 304), ("If-None-Match", "x", 200), ("If-Modified-Since", "Tue, 14 Nov 2023 22:13:20 GMT", 304),
        ("If-Modified-Since", "Tue, 14 Nov 2023 22:13:19 GMT", 200), ("If-Unmodified-Since", "Tue, 14 Nov 2023 22:13:19 GMT", 412),
        ("If-Unmodified-Since", "Tue, 14 Nov 2023 22:13:20 GMT", 200), ("If-Modified-Since", "yesterday", 200),
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_conditional_reads(box, method, header, value, status):
    put(box)
    answer = box.call(method, headers={header: value})
    assert answer.status == status and answer.headers["Etag"] == HELLO
    assert answer.read() == (b"hello" if status == 200 and method == "GET" else b"")
    if status != 200:
        assert answer.headers["Content-Length"] == "0"


def test_etag_for_conditions_may_be_elsewhere(box):
    put(box, X_Object_Sysmeta_Other_Etag="abc")
    named = {"X-Backend-Etag-Is-At": "X-Object-Sysmeta-None, x-object-sysmeta-other-etag", "If-None-Match": "abc"}
    assert box.call("GET", headers=named).status == 304


def test_etag_elsewhere_that_was_emptied_is_none(box):
    put(box, X_Object_Sysmeta_Other_Etag="")
    assert box.call("GET", headers={"X-Backend-Etag-Is-At": "X-Object-Sysmeta-Other-Etag", "If-Match": HELLO}).status == 200


def test_read_of_nothing_that_must_match(box):
    assert box.call("GET", headers={"If-Match": "*"}).status == 412
    assert box.call("GET", headers={"If-Match": "x"}).status == 404


@pytest.mark.parametrize(
    ("value", "status", "body", "where"),
    [
        ("bytes=0-2", 206, b"hel", "bytes 0-2/5"), ("bytes=1-", 206, b"ello", "bytes 1-4/5"), ("bytes=-2", 206, b"lo", "bytes 3-4/5"),
        ("bytes=0-99", 206, b"hello", "bytes 0-4/5"), ("bytes=5-", 416, None, "bytes */5"), ("bytes=2-1", 200, b"hello", None),
        ("lines=1-2", 200, b"hello", None), ("bytes=-0", 416, None, "bytes */5"),
    ],
)  # fmt: skip
def test_one_range(box, value, status, body, where):
    put(box)
    answer = box.call("GET", headers={"Range": value})
    assert (answer.status, answer.headers.get("Content-Range")) == (status, where)
    if body is not None:
        assert answer.read() == body and answer.headers["Content-Length"] == str(len(body))
    assert box.call("HEAD", headers={"Range": value}).status == 200


def test_several_ranges(box):
    put(box)
    answer = box.call("GET", headers={"Range": "bytes=0-1,3-3,9-"})
    boundary = answer.headers["Content-Type"].partition("boundary=")[2]
    assert answer.status == 206 and answer.headers["Content-Type"].startswith("multipart/byteranges;boundary=")
    body = answer.read()
    assert len(body) == int(answer.headers["Content-Length"])
    assert body == (
        f"--{boundary}\r\nContent-Type: text/plain\r\nContent-Range: bytes 0-1/5\r\n\r\nhe\r\n"
        f"--{boundary}\r\nContent-Type: text/plain\r\nContent-Range: bytes 3-3/5\r\n\r\nl\r\n--{boundary}--"
    ).encode()


@pytest.mark.parametrize(
    "ranges", ["0-0," * 50 + "0-0", "0-4,0-4,0-4", ",".join(f"{9 - i}-{9 - i}" for i in range(9))]
)  # S44
def test_egregious_ranges(box, ranges):
    put(box, body=b"0123456789" * 10)
    assert box.call("GET", headers={"Range": f"bytes={ranges}"}).status == 416


def test_range_is_dropped_when_metadata_says_so(box):
    put(box, X_Static_Large_Object="True")
    headers = {"Range": "bytes=0-1", "X-Backend-Ignore-Range-If-Metadata-Present": "X-Other,X-Static-Large-Object"}
    assert box.call("GET", headers=headers).read() == b"hello"


def test_no_descriptor_is_left_open(box):
    put(box, body=b"x" * 100000)
    before = len(os.listdir("/proc/self/fd"))
    for headers in ({}, {"Range": "bytes=0-1"}, {"Range": "bytes=0-1,5-6"}, {"Range": "bytes=999999-"}, {"If-Match": "x"},
                    {"If-None-Match": "*"}):  # fmt: skip
        for method in ("GET", "HEAD"):
            answer = box.call(method, headers=headers)
            answer.close() if headers else answer.read()
    assert len(os.listdir("/proc/self/fd")) == before


def test_bad_time_of_a_read(box):
    put(box)
    assert box.call("GET", headers={"X-Timestamp": "x"}).status == 400


def test_expired_object_is_not_found(box):
    put(box, X_Delete_At=str(int(NOW) + 10))
    assert box.call("GET").status == 200
    for headers in ({"X-Timestamp": stamp(10).internal}, {}):
        box.clock.now = NOW + 10
        answer = box.call("GET", headers=headers)
        assert (answer.status, answer.headers["X-Backend-Timestamp"]) == (404, stamp(0).internal)
    assert box.call("POST", at=11).status == 404
    for header in ("X-Backend-Open-Expired", "X-Backend-Replication"):
        assert box.call("GET", headers={header: "true"}).status == 200


def test_name_of_another_object_in_its_place(box):
    put(box)
    place, other = box.place(), box.place("other")
    os.makedirs(os.path.dirname(other.directory), exist_ok=True)
    os.rename(place.directory, other.directory)
    for method in ("GET", "HEAD", "POST", "DELETE"):
        assert box.call(method, "/sda1/7/a/c/other", at=5).status == 403
    assert put(box, at=5, path="/sda1/7/a/c/other").status == 403


# -- POST


def test_post_replaces_metadata(box):
    put(box, X_Object_Meta_A="1", X_Object_Sysmeta_S="s", Content_Encoding="gzip", X_Static_Large_Object="True")
    answer = box.call("POST", headers={"X-Object-Meta-B": "2", "X-Object-Sysmeta-S": "no", "Cache-Control": "x"}, at=1)
    assert answer.status == 202
    assert (answer.headers["X-Backend-Content-Type"], answer.headers["X-Object-Sysmeta-S"]) == ("text/plain", "s")
    headers = box.call("GET").headers
    assert (headers["X-Object-Meta-B"], headers["Cache-Control"], headers["X-Object-Sysmeta-S"]) == ("2", "x", "s")
    assert headers["X-Static-Large-Object"] == "True" and headers["Content-Type"] == "text/plain"
    assert "X-Object-Meta-A" not in headers and "Content-Encoding" not in headers
    assert (headers["X-Timestamp"], headers["X-Backend-Data-Timestamp"]) == (stamp(1).normal, stamp(0).internal)
    assert box.files(box.place()) == ["0.data", "1.meta"]


def test_post_of_nothing(box):
    assert box.call("POST", at=0).status == 404
    put(box)
    box.call("DELETE", at=1)
    answer = box.call("POST", at=2)
    assert (answer.status, answer.headers["X-Backend-Timestamp"]) == (404, stamp(1).internal)


def test_older_post_is_refused(box):
    put(box, at=1)
    for at in (0, 1):
        answer = box.call("POST", at=at)
        assert (answer.status, answer.headers["X-Backend-Timestamp"]) == (409, stamp(1).internal)
    assert box.call("POST", at=3).status == 202
    assert box.call("POST", at=3).status == 409


def test_content_type_has_its_own_time(box):
    put(box)
    box.call("POST", headers={"Content-Type": "text/one"}, at=1)
    box.call("POST", headers={"X-Object-Meta-A": "1"}, at=3)
    assert box.call("HEAD").headers["Content-Type"] == "text/one"
    answer = box.call("POST", headers={"Content-Type": "text/two"}, at=2)
    assert (answer.status, answer.headers["X-Backend-Content-Type"]) == (202, "text/two")
    headers = box.call("HEAD").headers
    assert (headers["Content-Type"], headers["X-Object-Meta-A"], headers["X-Backend-Timestamp"]) == (
        "text/two", "1", stamp(3).internal)
    assert box.call("POST", headers={"Content-Type": "text/three"}, at=2).status == 409
    stored = box.store.open(box.place())
    stored.close()
    assert stored.content_type_timestamp == stamp(2)


def test_content_type_time_of_a_replicator(box):
    put(box)
    box.call("POST", headers={"Content-Type": "a/b", "Content-Type-Timestamp": stamp(1).internal}, at=2)
    stored = box.store.open(box.place())
    stored.close()
    assert (stored.timestamp, stored.content_type_timestamp) == (stamp(2), stamp(1))


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ({"X-Delete-At": "soon"}, b"Non-integer X-Delete-At"), ({"X-Delete-At": str(int(NOW) - 5)}, b"X-Delete-At in past"),
        ({"Content-Type": "x/y", "Content-Type-Timestamp": "x"}, b"Content-Type-Timestamp"),
        ({f"X-Object-Meta-{i}": "v" for i in range(91)}, b"Too many metadata items"),
        ({f"X-Object-Meta-{i}": "v" * 250 for i in range(20)}, b"Total metadata too large"),
    ],
)  # fmt: skip  # S13, S47, C04
def test_case_C04_security_S47_post_that_is_refused(box, headers, text):
    put(box)
    answer = box.call("POST", headers=headers, at=1)
    assert answer.status == 400 and text in answer.read()
    assert box.files(box.place()) == ["0.data"]


# -- DELETE


def tombstones(box) -> list[str]:
    return [name for name in box.files(box.place()) if name.endswith(".ts")]


@pytest.mark.parametrize("at", [1, 5])
def test_delete_of_a_live_object(box, at):
    put(box)
    box.call("POST", at=3)
    answer = box.call("DELETE", at=at)
    assert (answer.status, answer.headers["X-Backend-Timestamp"]) == (204, stamp(at).internal)
    assert answer.headers["X-Backend-Content-Type"] == "text/plain"
    assert tombstones(box) == [f"{at}.ts"] and box.call("GET").status == 404
    assert box.call("GET").headers["X-Backend-Timestamp"] == stamp(at).internal


@pytest.mark.parametrize("at", [1, 2])
def test_old_delete_writes_no_tombstone(box, at):  # S16
    put(box, at=2)
    answer = box.call("DELETE", at=at)
    assert (answer.status, answer.headers["X-Backend-Timestamp"]) == (409, stamp(2).internal)
    assert tombstones(box) == [] and box.call("GET").status == 200


def test_delete_of_nothing_writes_a_tombstone(box):
    answer = box.call("DELETE", at=1)
    assert (answer.status, answer.headers["X-Backend-Timestamp"], answer.headers["X-Backend-Content-Type"]) == (
        404, stamp(1).internal, "")
    assert tombstones(box) == ["1.ts"]
    assert box.call("DELETE", at=2).status == 404 and tombstones(box) == ["2.ts"]
    for at in (1, 2):
        answer = box.call("DELETE", at=at)
        assert (answer.status, answer.headers["X-Backend-Timestamp"]) == (404, stamp(2).internal)
        assert tombstones(box) == ["2.ts"]


def test_delete_of_an_expired_object(box):
    put(box, X_Delete_At=str(int(NOW) + 10))
    box.clock.now = NOW + 20
    assert box.call("DELETE", at=20).status == 404 and tombstones(box) == ["20.ts"]


def test_delete_while_the_files_change(box, monkeypatch):
    put(box)
    monkeypatch.setattr(type(box.store), "_open_file", _vanished)
    assert box.call("DELETE", at=1).status == 503
    assert box.call("GET").status == 503
    assert tombstones(box) == []


def _vanished(self, place, name):
    raise ObjectStateChanged("gone")


@pytest.mark.parametrize(
    ("existing", "wanted", "at", "status"),
    [
        ("10", "10", 20, 204), ("10", "11", 20, 412), (None, "10", 20, 412), (None, "0", 20, 204), ("10", "x", 20, 400),
        ("10", "10", 0, 409),
    ],
)  # fmt: skip
@pytest.mark.parametrize("now", [0, 30])
def test_delete_by_the_expirer(box, existing, wanted, at, status, now):
    put(box, **({"X_Delete_At": str(int(NOW) + int(existing))} if existing else {}))
    box.clock.now = NOW + now
    wanted = wanted if wanted in ("x", "0") else str(int(NOW) + int(wanted))
    answer = box.call("DELETE", headers={"X-If-Delete-At": wanted}, at=at)
    assert answer.status == status and bool(tombstones(box)) == (status == 204)
    assert ("X-Backend-Timestamp" in answer.headers) == (status == 204)


def test_delete_by_the_expirer_of_what_is_not_there(box):
    assert box.call("DELETE", headers={"X-If-Delete-At": "5"}, at=1).status == 404 and tombstones(box) == []
    box.call("DELETE", at=1)
    assert box.call("DELETE", headers={"X-If-Delete-At": "5"}, at=2).status == 412
    assert box.call("DELETE", headers={"X-If-Delete-At": "5"}, at=1).status == 409


# -- REPLICATE


def test_replicate_gives_hashes(box):
    assert pickle.loads(box.call("REPLICATE", "/sda1/7").read()) == {}
    put(box)
    answer = box.call("REPLICATE", "/sda1/7")
    place = box.place()
    assert answer.status == 200
    assert pickle.loads(answer.read()) == {place.suffix: md5(f"{stamp(0).internal}.data".encode()).hexdigest()}
    os.unlink(f"{place.directory}/{layout.data_name(stamp(0))}")
    answer = box.call("REPLICATE", f"/sda1/7/{place.suffix}-zzz-..")
    assert answer.status == 200 and pickle.loads(answer.read()) is None
    assert pickle.loads(box.call("REPLICATE", "/sda1/7").read()) == {}


def test_replicate_of_another_policy(box):
    put(box, X_Backend_Storage_Policy_Index="1")
    answer = box.call("REPLICATE", "/sda1/7", {"X-Backend-Storage-Policy-Index": "1"})
    assert list(pickle.loads(answer.read())) == [box.place().suffix]
    assert os.path.isdir(f"{box.device_path}/objects-1/7")


def test_replication_verbs_elsewhere(tmp_path):
    box = ServerBox(str(tmp_path), replication_server=False)
    assert box.call("REPLICATE", "/sda1/7").status == 405


# -- devices and paths


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "POST", "DELETE"])
def test_device_that_is_not_there(box, method):
    answer = box.call(method, "/sdz9/7/a/c/o", at=0, body=b"x" if method == "PUT" else b"")
    assert answer.status == 507 and not os.path.exists(f"{box.devices}/sdz9")
    assert "X-Backend-Keelstore-Reason" not in answer.headers  # nothing works there
    assert box.call("REPLICATE", "/sdz9/7").status == 507


def test_device_that_is_not_mounted(tmp_path):
    box = ServerBox(str(tmp_path), mount_check=True)
    assert put(box).status == 507
    with open(f"{box.device_path}/.ismount", "w"):
        pass
    assert put(box).status == 201


@pytest.mark.parametrize(
    "path",
    [
        "/../7/a/c/o", "/./7/a/c/o", "/../../etc/1/a/c/o", "/sda1/../a/c/o", "/sda1/./a/c/o", "//7/a/c/o", "/sda1//a/c/o",
        "/sda1/7/a/c", "/sda1/7", "/sda1/x/a/c/o", "/sda1/-7/a/c/o", "/sda1/7\x00/a/c/o", "/sd\x00/7/a/c/o", "/" + "d" * 256 + "/7/a/c/o",
        "/sda1/7/a/c\x00/o", "/sda1/\u0667/a/c/o", "/sda1/00000000007/a/c/o",
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "PUT", "POST", "DELETE"])
def test_paths_that_lead_elsewhere(box, method, path):  # S53
    answer = box.call(method, path, at=0)
    assert answer.status in (400, 507), answer.status
    assert sorted(os.listdir(box.devices)) == ["sda1"] and os.listdir(box.device_path) == []


@pytest.mark.parametrize("path", ["/../7", "/sda1/..", "/sda1/../abc", "/sda1/7/abc/def", "/sda1/x"])
def test_replicate_of_paths_that_lead_elsewhere(box, path):
    assert box.call("REPLICATE", path).status == 400
    assert os.listdir(box.device_path) == []


def test_object_name_of_dots_is_a_name(box):
    path = "/sda1/7/a/c/../../../../etc/passwd"
    assert put(box, path=path).status == 201 and box.call("GET", path).read() == b"hello"


def test_name_that_is_not_utf8(box):
    answer = box.call("PUT", "/sda1/7/a/c/\udcff", at=0, body=b"x")
    assert (answer.status, answer.read()) == (412, b"Invalid UTF8 or contains NULL")


def test_full_device(tmp_path):  # S46, C14
    box = ServerBox(str(tmp_path))
    put(box)
    box.store.reserve = box.app.reserve = Reserve.parse("100%")
    answer = put(box, at=1)
    assert (answer.status, answer.headers["X-Backend-Keelstore-Reason"]) == (507, "room")
    assert b"There was not enough space to save the resource. Drive: sda1" in answer.read()
    assert put(box, at=1, body=b"x" * 100000).status == 507
    headers = Headers({"X-Timestamp": stamp(1).internal, "Content-Type": "x/y"})
    upload = box.backend.upload(OBJECT, PATH, headers)
    early = upload.ready()
    if early is None:
        upload.send(b"x")
        early = upload.finish()
    assert (early.status, early.headers["X-Backend-Keelstore-Reason"]) == (507, "room")
    assert box.call("POST", at=1).status == 507
    assert box.call("GET").read() == b"hello"
    assert box.call("DELETE", at=2).status == 204 and box.call("GET").status == 404


def test_file_system_without_attributes(box, monkeypatch):
    def refuse(target, name, value):
        raise XattrNotSupported("no")

    monkeypatch.setattr("keelstore.obj.attributes.fs.set_xattr", refuse)
    assert put(box).status == 507 and box.call("DELETE", at=1).status == 507


# -- corruption (spec: scenarios-fault 10)


def data_file(box) -> str:
    return f"{box.place().directory}/{layout.data_name(stamp(0))}"


def damage_etag(box) -> None:
    fd = os.open(data_file(box), os.O_RDWR)
    metadata = attributes.read(fd, lambda: None)
    attributes.write(fd, {**metadata, "ETag": "badetag"})
    os.close(fd)


def test_70_wrong_etag_is_noticed_by_the_first_read(box):
    put(box, body=b"VERIFY")
    damage_etag(box)
    answer = box.call("GET")
    assert answer.status == 200 and answer.read() == b"VERIFY"
    assert box.call("GET").status == 404


def test_71_only_a_full_read_notices(box):
    put(box, body=b"RANGE")
    damage_etag(box)
    for value, expected in (("bytes=0-2", b"RAN"), ("bytes=1-11", b"ANGE"), ("bytes=0-11", b"RANGE")):
        assert box.call("GET", headers={"Range": value}).read() == expected
    assert box.call("GET").status == 404


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
def test_72_73_74_truncated_file(box, method):
    put(box)
    os.truncate(data_file(box), 0)
    assert box.call(method, at=1).status == 404
    assert os.listdir(f"{box.device_path}/quarantined/objects") == [box.place().name_hash]


def test_large_object_that_is_cut_breaks_the_answer(box):
    put(box, body=b"x" * 300000)
    answer = box.call("GET")
    os.truncate(data_file(box), 100000)
    with pytest.raises(BackendError):
        answer.read()
    assert box.call("GET").status == 404


# -- the application


def test_other_methods(box):
    assert box.call("BREW").status == 405
    answer = box.call("OPTIONS", "/")
    assert answer.status == 200 and "REPLICATE" in answer.headers["Allow"]


def test_option_slow(tmp_path):
    box = ServerBox(str(tmp_path), slow=0.05)
    started = time.monotonic()
    assert put(box).status == 201 and box.call("DELETE", at=1).status == 204
    assert time.monotonic() - started >= 0.1


def test_app_is_made_from_a_configuration(tmp_path):
    with open(tmp_path / "swift.conf", "w") as file:
        file.write("[swift-hash]\nswift_hash_path_suffix = x\n")
    app = app_factory({"devices": str(tmp_path), "swift_dir": str(tmp_path), "__file__": "x"}, mb_per_sync="1",
                      allowed_headers="X-One, etag, Content-Length")
    assert app.options.mb_per_sync == 1 and app.allowed.names == frozenset({"X-One"})
