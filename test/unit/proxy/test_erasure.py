"""The proxy over real object servers in one process, with an erasure coded policy of 64 KiB segments, 4+2."""

import itertools
import json
import os
import random
import time
from hashlib import md5

import pytest

from keelstore.common.errors import ClientDisconnect
from keelstore.common.expiry import expirer_container
from keelstore.obj.reader import Validation
from test.support.cluster import InProcessCluster
from test.support.fakes import Input
from test.support.waiting import until

A = "/v1/AUTH_test"
PATH = f"{A}/c/o"
SEGMENT = 65536
SIZES = [0, 1, 4095, SEGMENT - 1, SEGMENT, SEGMENT + 1, 3 * SEGMENT + 17]


def made(tmp_path, **options):
    cluster = InProcessCluster(tmp_path, **options)
    assert cluster.ask("PUT", f"{A}/c", {"X-Storage-Policy": "ec42"}).status == 201
    return cluster


@pytest.fixture
def cluster(tmp_path):
    found = made(tmp_path)
    yield found
    found.close()


def octets(size, seed=1):
    return random.Random(seed).randbytes(size)


def fragments(cluster):
    """(device, name of the file) of every data file of the policy, sorted by fragment."""
    found = []
    for path in cluster.root.rglob("objects-2/**/*.data"):
        found.append((int(path.name.split("#")[1].split(".")[0]), path))
    return [path for _, path in sorted(found)]


def forget(cluster):
    """Let object servers notice files changed behind their back."""
    for app in cluster.apps.values():
        if hasattr(app, "validation"):
            app.validation = Validation()


def devices_of(cluster):
    return [node.device for node in cluster.primaries("object", "/AUTH_test/c/o", 2)]


# -- whole objects -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("is_chunked", [False, True])
def test_an_object_comes_back(cluster, size, is_chunked):
    body = octets(size)
    headers = {"X-Object-Meta-Color": "red", "Content-Type": "text/x"}
    if is_chunked:
        put = cluster.ask("PUT", PATH, headers, Input(body), HTTP_TRANSFER_ENCODING="chunked")
    else:
        put = cluster.ask("PUT", PATH, headers, body)
    etag = md5(body).hexdigest()
    assert (put.status, put.headers["Etag"]) == (201, etag)
    assert [path.name.split("#", 1)[1] for path in fragments(cluster)] == [f"{n}#d.data" for n in range(6)]
    got, head = cluster.ask("GET", PATH), cluster.ask("HEAD", PATH)
    assert (got.status, got.body) == (200, body)
    for answer in (got, head):
        assert answer.headers["Etag"] == etag and answer.headers["Content-Length"] == str(size)
        assert answer.headers["X-Object-Meta-Color"] == "red" and answer.headers["Content-Type"] == "text/x"
        assert answer.headers["Last-Modified"] == put.headers["Last-Modified"]
        assert not [name for name in answer.headers if "-Ec-" in name]
    (row,) = json.loads(cluster.ask("GET", f"{A}/c").body and cluster.ask("GET", f"{A}/c", query="format=json").body)
    assert (row["bytes"], row["hash"], row["content_type"]) == (size, etag, "text/x")


def test_each_fragment_lies_on_its_own_primary(cluster):
    cluster.ask("PUT", PATH, body=b"x" * 1000)
    assert [path.relative_to(cluster.root).parts[1] for path in fragments(cluster)] == devices_of(cluster)


@pytest.mark.parametrize("lost", list(itertools.combinations(range(6), 2)))
def test_any_two_losses_are_survived(cluster, lost):
    body = octets(2 * SEGMENT + 5)
    cluster.ask("PUT", PATH, body=body)
    for path in [fragments(cluster)[index] for index in lost]:
        path.unlink()
    assert cluster.ask("GET", PATH).body == body
    assert cluster.ask("GET", PATH, {"Range": "bytes=65530-65540"}).body == body[65530:65541]


def test_three_losses_are_an_error_and_nothing_is_said_to_be_gone(cluster):
    cluster.ask("PUT", PATH, body=octets(2 * SEGMENT))
    for path in fragments(cluster)[:3]:
        path.unlink()
    assert cluster.ask("GET", PATH).status == 503


def test_devices_that_are_left_alone_are_asked_before_it_is_an_error(cluster):
    """Two were away a while ago; now two others are."""
    body = octets(2 * SEGMENT + 5)
    cluster.ask("PUT", PATH, body=body)
    paths = fragments(cluster)
    for path in paths[:2]:
        path.unlink()
    health = cluster.proxy.health
    for node in cluster.primaries("object", "/AUTH_test/c/o", 2)[2:4]:
        health.limit_now(node, "507")
    assert len(health.limited()) == 2
    assert cluster.ask("GET", PATH).body == body
    assert cluster.ask("GET", PATH, {"Range": "bytes=65530-65540"}).body == body[65530:65541]


@pytest.mark.parametrize("size", SIZES[1:])
def test_ranges(cluster, size):
    body = octets(size)
    cluster.ask("PUT", PATH, body=body)
    points = sorted({p for p in (0, 1, SEGMENT - 1, SEGMENT, SEGMENT + 1, 2 * SEGMENT, size - 1) if 0 <= p < size})
    for first, last in itertools.combinations_with_replacement(points, 2):
        got = cluster.ask("GET", PATH, {"Range": f"bytes={first}-{last}"})
        assert (got.status, got.body) == (206, body[first : last + 1])
        assert got.headers["Content-Range"] == f"bytes {first}-{last}/{size}"
    for count in (1, SEGMENT - 1, SEGMENT, SEGMENT + 1, size, size + 9):
        got = cluster.ask("GET", PATH, {"Range": f"bytes=-{count}"})
        assert (got.status, got.body) == (206, body[-count:])
    assert cluster.ask("GET", PATH, {"Range": f"bytes={size // 2}-"}).body == body[size // 2 :]


def test_range_beyond_the_end(cluster):
    cluster.ask("PUT", PATH, body=octets(100))
    for value in ("bytes=100-", "bytes=100-200", f"bytes={10 * SEGMENT}-"):
        got = cluster.ask("GET", PATH, {"Range": value})
        assert (got.status, got.headers["Content-Range"]) == (416, "bytes */100")
    cluster.ask("PUT", PATH, body=b"")
    assert cluster.ask("GET", PATH, {"Range": "bytes=0-1"}).status == 416


@pytest.mark.parametrize("value", [
    "0-1,100000-100002,-3", "100000-100002,0-1", "900000-,0-1,70000-70001", "0-70000,65530-65540",
])  # fmt: skip
def test_several_ranges(cluster, value):
    body = octets(200000)
    cluster.ask("PUT", PATH, {"Content-Type": "text/x"}, body)
    got = cluster.ask("GET", PATH, {"Range": f"bytes={value}"})
    assert got.status == 206 and len(got.body) == int(got.headers["Content-Length"])
    found = []
    for part in got.body.split(b"--" + got.headers["Content-Type"].partition("boundary=")[2].encode())[1:-1]:
        head, _, data = part.partition(b"\r\n\r\n")
        assert b"Content-Type: text/x" in head
        found.append(data[:-2])
    wanted = []
    for piece in value.split(","):
        first, _, last = piece.partition("-")
        data = body[-int(last) :] if not first else body[int(first) : int(last) + 1 if last else None]
        if data:
            wanted.append(data)
    assert found == wanted


def test_conditions_are_judged_by_the_objects_etag(cluster):
    etag = cluster.ask("PUT", PATH, body=b"x" * 999).headers["Etag"]
    for method in ("GET", "HEAD"):
        got = cluster.ask(method, PATH, {"If-None-Match": etag})
        assert (got.status, got.headers["Etag"], got.headers["Accept-Ranges"]) == (304, etag, "bytes")
        assert cluster.ask(method, PATH, {"If-Match": "other"}).status == 412
        assert cluster.ask(method, PATH, {"If-Match": etag}).status == 200


def test_post_delete_and_overwriting(cluster):
    cluster.ask("PUT", PATH, body=b"one")
    assert cluster.ask("POST", PATH, {"X-Object-Meta-A": "b"}).status == 202
    assert cluster.ask("GET", PATH).headers["X-Object-Meta-A"] == "b"
    assert cluster.ask("GET", PATH, {"X-Newest": "true"}).body == b"one"
    assert cluster.ask("PUT", PATH, body=b"two").status == 201
    assert len(fragments(cluster)) == 6
    assert cluster.ask("GET", PATH).body == b"two"
    assert cluster.ask("DELETE", PATH).status == 204
    for method in ("GET", "HEAD", "POST", "DELETE"):
        assert cluster.ask(method, PATH).status == 404
    assert not fragments(cluster)


# -- writing -----------------------------------------------------------------------------------------------------------


def test_wrong_etag_stores_nothing(cluster):
    for body in (b"x", octets(100000)):
        assert cluster.ask("PUT", PATH, {"Etag": "0" * 32}, body).status == 422
    assert not fragments(cluster)
    assert cluster.ask("GET", PATH).status == 404
    assert cluster.ask("PUT", PATH, {"Etag": md5(b"x").hexdigest()}, b"x").status == 201


class Gone:
    """A client that leaves."""

    def __init__(self, data):
        self.data = Input(data)

    def read(self, size=-1):
        found = self.data.read(size)
        if not found:
            raise ClientDisconnect
        return found


@pytest.mark.parametrize("sent", [0, 100, SEGMENT, 2 * SEGMENT + 1])
def test_client_that_leaves_stores_nothing(cluster, sent):
    cluster.ask("PUT", PATH, body=b"before")
    for extra in ({"CONTENT_LENGTH": "500000"}, {"HTTP_TRANSFER_ENCODING": "chunked"}):
        assert cluster.ask("PUT", PATH, {}, Gone(octets(sent)), **extra).status == 499
    assert cluster.ask("PUT", PATH, {}, Input(octets(sent)), CONTENT_LENGTH="500000").status == 499
    assert cluster.ask("GET", PATH).body == b"before"


def test_only_if_there_is_none(cluster):
    headers = {"If-None-Match": "*"}
    assert [cluster.ask("PUT", PATH, headers, b"x").status for _ in range(2)] == [201, 412]


def test_a_dead_device_is_replaced_by_a_handoff(cluster):
    body = octets(100000)
    cluster.remove_device(devices_of(cluster)[2])
    assert cluster.ask("PUT", PATH, body=body).status == 201
    found = fragments(cluster)
    assert [int(path.name.split("#")[1]) for path in found] == list(range(6))
    assert found[2].relative_to(cluster.root).parts[1] not in devices_of(cluster)
    assert cluster.ask("GET", PATH).body == body


@pytest.mark.parametrize(("stopped", "status"), [(1, 201), (2, 503)])
def test_quorum_of_nodes(tmp_path, stopped, status):
    cluster = made(tmp_path, nodes=8, devices=1)
    try:
        for node in cluster.primaries("object", "/AUTH_test/c/o", 2)[:stopped]:
            cluster.stop(node.address)
        others = {node.address for node in cluster.primaries("object", "/AUTH_test/c/o", 2)}
        for address, app in cluster.apps.items():
            if hasattr(app, "validation") and address not in others:
                cluster.stop(address)
        assert cluster.ask("PUT", PATH, body=octets(100000)).status == status
        assert cluster.ask("GET", PATH).status == (200 if status == 201 else 404)
    finally:
        cluster.close()


@pytest.mark.parametrize("failing", [1, 2])
def test_commit_that_fails_on_some_nodes(cluster, monkeypatch, failing):
    body, left = octets(100000), [failing]
    from keelstore.obj.store import ObjectStore

    commit = ObjectStore.make_durable

    def broken(self, *args, **options):
        if left[0]:
            left[0] -= 1
            raise OSError("no commit")
        commit(self, *args, **options)

    monkeypatch.setattr(ObjectStore, "make_durable", broken)
    assert cluster.ask("PUT", PATH, body=body).status == (201 if failing == 1 else 503)
    assert sum("#d" in path.name for path in fragments(cluster)) == 6 - failing
    assert cluster.ask("GET", PATH).body == body  # there are enough, and one knows that it is durable


@pytest.mark.parametrize("fragment", range(6))
def test_what_a_single_commit_has_made_readable_is_listed(cluster, monkeypatch, fragment):
    """The answer is an error, but repair would bring it to life."""
    body = octets(1000)
    from keelstore.obj.store import ObjectStore

    commit = ObjectStore.make_durable

    def broken(self, place, timestamp, number, **options):
        if number != fragment:
            raise OSError("no commit")
        commit(self, place, timestamp, number, **options)

    monkeypatch.setattr(ObjectStore, "make_durable", broken)
    assert cluster.ask("PUT", PATH, body=body).status == 503
    rows = until(lambda: json.loads(cluster.ask("GET", f"{A}/c").body), "it is listed")
    assert [(row["name"], row["bytes"]) for row in rows] == [("o", len(body))]
    assert cluster.ask("GET", PATH).body == body


@pytest.mark.parametrize(("size", "step"), [(5, "write"), (200_000, "commit")])
def test_nothing_is_committed_without_a_quorum_of_fragments(cluster, monkeypatch, size, step):
    cluster.ask("PUT", PATH, body=b"before")
    from keelstore.obj.store import ObjectStore

    write, left = getattr(ObjectStore, step), [2]

    def broken(self, *args, **options):
        if left[0]:
            left[0] -= 1
            raise OSError("disk error")
        write(self, *args, **options)

    monkeypatch.setattr(ObjectStore, step, broken)
    assert cluster.ask("PUT", PATH, body=octets(size)).status == 503
    assert not left[0]
    assert cluster.ask("GET", PATH).body == b"before"
    assert cluster.ask("HEAD", PATH).headers["Content-Length"] == "6"


def test_copy_between_policies_sees_whole_objects(cluster):
    cluster.ask("PUT", f"{A}/gold")
    body = octets(100000)
    cluster.ask("PUT", PATH, body=body)
    assert cluster.ask("PUT", f"{A}/gold/o", body=cluster.ask("GET", PATH).body).status == 201
    assert cluster.ask("GET", f"{A}/gold/o").body == body


# -- durability --------------------------------------------------------------------------------------------------------


def rename_all(paths, old, new):
    for path in paths:
        path.rename(path.with_name(path.name.replace(old, new)))


def test_what_is_not_durable_is_not_there(cluster):  # scenarios-fault 69
    cluster.ask("PUT", PATH, body=octets(100000))
    rename_all(fragments(cluster), "#d", "")
    assert cluster.ask("GET", PATH).status == 404
    assert cluster.ask("HEAD", PATH).status == 404


def test_one_durable_fragment_makes_all_count(cluster):
    body = octets(100000)
    cluster.ask("PUT", PATH, body=body)
    rename_all(fragments(cluster)[1:], "#d", "")
    assert cluster.ask("GET", PATH).body == body


@pytest.mark.parametrize("lost", [(0, 1, 2), (3, 4, 5), (1, 3, 5)])
def test_a_post_that_half_of_the_devices_take_is_told_to_the_queue(cluster, lost):
    cluster.ask("PUT", PATH, body=b"x" * 999)
    rename_all([fragments(cluster)[index] for index in lost], "#d", "")
    assert cluster.ask("POST", PATH, {"X-Delete-At": "4102444800"}).status == 202
    queue = expirer_container(4102444800, 86400, cluster.proxy.cluster.hash_path.digest("AUTH_test", "c", "o"))
    (entry,) = json.loads(cluster.ask("GET", f"/v1/.expiring_objects/{queue}", query="format=json").body)
    assert entry["name"] == "4102444800-AUTH_test/c/o"


def test_old_object_is_read_while_the_new_one_is_not_durable(cluster, monkeypatch):
    cluster.ask("PUT", PATH, body=b"old" * 999)
    from keelstore.obj.store import ObjectStore

    with monkeypatch.context() as patch:
        patch.setattr(ObjectStore, "make_durable", lambda *args, **options: (_ for _ in ()).throw(OSError("crash")))
        assert cluster.ask("PUT", PATH, body=b"new" * 999).status == 503
    assert len(fragments(cluster)) == 12
    assert cluster.ask("GET", PATH).body == b"old" * 999


def test_newest_durable_object_is_read_where_some_devices_missed_it(cluster):  # scenarios-fault 62
    path = PATH
    cluster.ask("PUT", path, body=b"v1" * 999)
    device = devices_of(cluster)[0]
    aside = cluster.device_path(device).with_name("aside")
    cluster.device_path(device).rename(aside)
    cluster.ask("PUT", path, body=b"v2" * 999)
    aside.rename(cluster.device_path(device))
    cluster.proxy.health._errors.clear()
    for headers in ({}, {"X-Newest": "yes"}):
        for _ in range(5):
            assert cluster.ask("GET", path, headers).body == b"v2" * 999


def test_fragments_anywhere_are_found(cluster):
    body = octets(100000)
    cluster.ask("PUT", PATH, body=body)
    found = fragments(cluster)
    for path in found[1:4]:  # three on one device: two of them beside the one that it is asked for
        target = cluster.root / found[0].relative_to(cluster.root).parent / path.name
        path.rename(target)
    assert cluster.ask("GET", PATH).body == body


def test_handoff_fragments_count_and_duplicates_do_not(cluster):  # scenarios-fault 64, 65
    body, primaries = octets(100000), devices_of(cluster)
    away = [cluster.device_path(device) for device in primaries[:2]]
    for path in away:
        path.rename(path.with_name(f"{path.name}-away"))
    assert cluster.ask("PUT", PATH, body=body).status == 201
    for path in away:
        path.with_name(f"{path.name}-away").rename(path)
    cluster.proxy.health._errors.clear()
    assert not {path.relative_to(cluster.root).parts[1] for path in fragments(cluster)} & set(primaries[:2])
    for path in fragments(cluster)[2:4]:  # two of the primaries lose theirs
        path.unlink()
    assert cluster.ask("GET", PATH).body == body
    first = fragments(cluster)[0]
    target = cluster.device_path(primaries[0]) / first.relative_to(cluster.root).relative_to(*["/".join(
        first.relative_to(cluster.root).parts[:2])])
    target.parent.mkdir(parents=True)
    target.hardlink_to(first)  # five fragments, four of them different
    assert cluster.ask("GET", PATH).body == body
    fragments(cluster)[2].unlink()  # now three
    assert cluster.ask("GET", PATH).status == 503


def test_three_of_six_devices_dead(cluster):  # scenarios-fault 67, 68
    cluster.ask("PUT", PATH, body=octets(100000))
    for device in devices_of(cluster)[:3]:
        cluster.remove_device(device)
    assert cluster.ask("GET", PATH).status == 503
    assert cluster.ask("GET", PATH, {"X-Newest": "true"}).status == 503
    assert cluster.ask("DELETE", PATH).status == 204
    for method in ("GET", "HEAD"):
        assert cluster.ask(method, PATH).status == 404


def test_duplicated_fragments(tmp_path):
    cluster = made(tmp_path, nodes=6, devices=2, duplication=2)
    try:
        body = octets(100000)
        assert cluster.ask("PUT", PATH, body=body).status == 201
        found = fragments(cluster)
        assert [int(path.name.split("#")[1]) for path in found] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
        for path in [*found[:4], *found[4::2]]:  # both copies of two fragments, one of each other
            path.unlink()
        assert cluster.ask("GET", PATH).body == body
    finally:
        cluster.close()


# -- damage ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1000, 100000, 400000])
@pytest.mark.parametrize("damaged", [(0,), (1, 3), (0, 5)])
def test_a_rotten_fragment_is_replaced(cluster, size, damaged):
    body = octets(size)
    cluster.ask("PUT", PATH, body=body)
    forget(cluster)
    for index in damaged:
        path = fragments(cluster)[index]
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 255
        path.write_bytes(data)
    forget(cluster)
    assert cluster.ask("GET", PATH).body == body
    assert len(fragments(cluster)) in range(6 - len(damaged), 7)


@pytest.mark.parametrize("at", [0, 5, 90, 16465, 16600])
def test_a_rotten_fragment_is_replaced_when_servers_check_nothing(tmp_path, at):
    cluster = made(tmp_path)
    try:
        for app in cluster.apps.values():
            if hasattr(app, "validation"):
                app.validation._percentage = 0
        body = octets(60000 if at == 90 else 200000)
        cluster.ask("PUT", PATH, body=body)
        path = fragments(cluster)[1]
        data = bytearray(path.read_bytes())
        data[at] ^= 255
        path.write_bytes(data)
        if at == 16600:  # a payload in the middle: only the whole shows that it is wrong, too late for another
            with pytest.raises(Exception, match="do not give the object"):
                for _ in range(20):
                    assert cluster.ask("GET", PATH).body == body
        else:
            assert cluster.ask("GET", PATH).body == body
    finally:
        cluster.close()


BIG = 70 * SEGMENT + 17  # archives of more than a server checks for a range


def spoil(path, at, bits=255):
    data = bytearray(path.read_bytes())
    data[at] ^= bits
    path.write_bytes(data)


@pytest.mark.parametrize(("rotten", "value"), [
    ((0,), "bytes=100-200"), ((5,), "bytes=-20"), ((4, 5), "bytes=0-9,20-29"), ((0, 1), f"bytes={69 * SEGMENT - 5}-{69 * SEGMENT + 5}"),
    ((1, 4), "bytes=-20"), ((2, 5), "bytes=100-200"), ((0, 3), "bytes=0-9,20-29"),
])  # fmt: skip
def test_ranges_of_large_objects_are_right_whatever_rots(cluster, rotten, value):
    body = octets(BIG)
    cluster.ask("PUT", PATH, body=body)
    expected = cluster.ask("GET", PATH, {"Range": value}).read(1 << 20)
    for index in rotten:
        path = fragments(cluster)[index]
        for segment in range(71):
            spoil(path, segment * (SEGMENT // 4 + 80) + 80 + (segment if segment == 70 and index else segment * index) % 4)
    forget(cluster)
    answer = cluster.ask("GET", PATH, {"Range": value})
    assert answer.status == 206
    got = answer.read(1 << 20)
    if "," in value:  # boundaries differ
        assert got.split(b"\r\n")[4] == body[:10] and got.split(b"\r\n")[9] == body[20:30]
    else:
        assert got == expected
    assert {path.name.split("#")[1].split(".")[0] for path in fragments(cluster)} >= {str(n) for n in range(6) if n not in rotten}


def test_ranges_with_a_rotten_fragment_beside_one_that_is_gone(cluster):
    body = octets(BIG)
    cluster.ask("PUT", PATH, body=body)
    fragments(cluster)[3].unlink()
    spoil(fragments(cluster)[0], 90)
    forget(cluster)
    assert cluster.ask("GET", PATH, {"Range": "bytes=0-99"}).read(1 << 20) == body[:100]
    assert len([path for path in fragments(cluster) if "quarantined" in path.parts]) == 1
    assert cluster.ask("GET", PATH, {"Range": "bytes=0-99"}).read(1 << 20) == body[:100]


@pytest.mark.parametrize("rotten", [(0,), (2,), (0, 1), (1, 3)])
def test_ranges_of_rotten_fragments_while_devices_are_left_alone(cluster, rotten):
    """Devices that are left alone for a while are asked before there is an error, and before nothing would be noticed (one
    further fragment sees what is not equally wrong in two).
    """
    body = octets(BIG)
    cluster.ask("PUT", PATH, body=body)
    nodes = cluster.primaries("object", "/AUTH_test/c/o", 2)
    for index in rotten:
        spoil(fragments(cluster)[index], 90, bits=1 + index)
    forget(cluster)
    for node in nodes[4:]:
        cluster.proxy.health.limit_now(node, "507")
    assert cluster.ask("GET", PATH, {"Range": "bytes=0-99"}).read(1 << 20) == body[:100]


def test_ranges_of_rotten_fragments_that_no_server_looks_at_are_an_error(cluster, monkeypatch):
    from keelstore.obj.reader import StoredObject

    body = octets(BIG)
    cluster.ask("PUT", PATH, body=body)
    spoil(fragments(cluster)[0], 90)
    forget(cluster)
    monkeypatch.setattr(StoredObject, "check_first", lambda *_arguments, **_named: None)  # servers of another make
    with pytest.raises(Exception, match="do not agree"):
        cluster.ask("GET", PATH, {"Range": "bytes=0-99"}).read(1 << 20)


def test_a_range_whose_witness_is_needed_goes_on(cluster, monkeypatch):
    from keelstore.proxy.erasure_body import Stream

    body = octets(BIG)
    cluster.ask("PUT", PATH, body=body)
    forget(cluster)
    fragments(cluster)[5].unlink()
    read, left = Stream.read, [1]

    def broken(self, size):
        if self.fragment == 0 and self.position > 0 and left[0]:
            left[0] -= 1
            raise OSError("reset")
        return read(self, size)

    monkeypatch.setattr(Stream, "read", broken)
    last = 3 * SEGMENT
    assert cluster.ask("GET", PATH, {"Range": f"bytes=0-{last}"}).read(1 << 20) == body[: last + 1]
    assert not left[0]


def test_a_stream_that_breaks_goes_on_elsewhere(cluster, monkeypatch):
    body = octets(5 * SEGMENT)
    cluster.ask("PUT", PATH, body=body)
    from keelstore.proxy.erasure_body import Stream

    read, left = Stream.read, [2]

    def broken(self, size):
        if self.position > SEGMENT // 2 and left[0]:
            left[0] -= 1
            raise OSError("reset")
        return read(self, size)

    monkeypatch.setattr(Stream, "read", broken)
    assert cluster.ask("GET", PATH).body == body
    assert not left[0]


def test_a_stream_that_nobody_can_go_on_with_breaks_the_answer(cluster, monkeypatch):
    cluster.ask("PUT", PATH, body=octets(5 * SEGMENT))
    from keelstore.proxy.erasure_body import Stream

    def broken(self, size):
        raise OSError("reset")

    monkeypatch.setattr(Stream, "read", broken)
    with pytest.raises(Exception, match="no other node"):
        cluster.ask("GET", PATH)


# -- asking several at once --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("extra", ["0", "1", "9"])
def test_concurrent_reads(tmp_path, extra):
    cluster = made(tmp_path, concurrent_gets="true", concurrent_ec_extra_requests=extra, concurrency_timeout="0.01")
    try:
        body = octets(200000)
        cluster.ask("PUT", PATH, body=body)
        fragments(cluster)[0].unlink()
        assert cluster.ask("GET", PATH).body == body
        assert cluster.ask("GET", PATH, {"Range": "bytes=65530-65540"}).body == body[65530:65541]
        assert cluster.ask("HEAD", PATH).headers["Content-Length"] == "200000"
        assert cluster.ask("GET", f"{A}/c/none").status == 404
    finally:
        cluster.close()


def test_a_frozen_node_is_hedged(tmp_path):
    cluster = made(tmp_path, concurrent_gets="true", concurrency_timeout="0.01")
    try:
        body = octets(200000)
        cluster.ask("PUT", PATH, body=body)
        from keelstore.common.backend import serve_locally
        from keelstore.common.concurrency import Event

        never = Event()
        address = cluster.primaries("object", "/AUTH_test/c/o", 2)[0].address
        serve_locally(address, lambda environ, start_response: never.wait(30))
        for _ in range(4):
            assert cluster.ask("GET", PATH).body == body
        never.set()
    finally:
        cluster.close()


def test_nodes_that_take_no_more_are_waited_for_together(tmp_path, monkeypatch):
    from keelstore.common.backend import serve_locally
    from keelstore.common.concurrency import Event
    from keelstore.common.localcall import LocalUpload

    cluster = made(tmp_path, nodes=8, devices=1, node_timeout="0.3")
    never, waits, send = Event(), [], LocalUpload.send

    def stuck(environ, start_response):
        environ["wsgi.input"].set_continue_headers([("X-Obj-Metadata-Footer", "yes"), ("X-Obj-Multiphase-Commit", "yes")])
        environ["wsgi.input"].read(1)
        never.wait(30)

    def watched(self, data):
        began = time.monotonic()
        try:
            send(self, data)
        except Exception:
            waits.append((began, time.monotonic()))
            raise

    try:
        for node in cluster.primaries("object", "/AUTH_test/c/o", 2)[:2]:
            serve_locally(node.address, stuck)
        monkeypatch.setattr(LocalUpload, "send", watched)
        assert cluster.ask("PUT", PATH, body=octets(40 * SEGMENT)).status == 503
        assert len(waits) == 2 and max(began for began, _ in waits) < min(ended for _, ended in waits)
    finally:
        never.set()
        cluster.close()


@pytest.mark.parametrize("missed", [1, 2])
def test_case_X14_a_post_that_some_devices_missed_leaves_the_object_whole(cluster, missed):
    """Fragments of one object with metadata of different times: they are read together, with the newest metadata that is known to the answer."""
    body = octets(200_000)
    assert cluster.ask("PUT", PATH, {"X-Object-Meta-A": "old"}, body=body).status == 201
    away = [cluster.device_path(device) for device in devices_of(cluster)[:missed]]
    for path in away:
        path.rename(path.with_name(f"{path.name}-away"))
    assert cluster.ask("POST", PATH, {"X-Object-Meta-A": "new"}).status == 202
    for path in away:
        path.with_name(f"{path.name}-away").rename(path)
    cluster.proxy.health._errors.clear()
    for _ in range(8):  # whatever the order in which they answer
        answer = cluster.ask("GET", PATH)
        assert (answer.status, answer.body) == (200, body)
        assert answer.headers["X-Object-Meta-A"] in ("old", "new")
        assert cluster.ask("GET", PATH, {"Range": "bytes=70000-140000"}).body == body[70000:140001]
        assert cluster.ask("HEAD", PATH, {"X-Newest": "true"}).headers["X-Object-Meta-A"] == "new"
        assert cluster.ask("GET", PATH, {"X-Newest": "true"}).headers["X-Object-Meta-A"] == "new"


@pytest.mark.parametrize("size", [1000, 400_000, 900_000])
def test_a_read_leaves_no_file_open(cluster, size):
    cluster.ask("PUT", PATH, body=b"x" * size)
    assert cluster.ask("GET", PATH).read() == b"x" * size  # what is kept open is open now
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        assert cluster.ask("GET", PATH).read() == b"x" * size
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize("size", [1000, 3 * SEGMENT])
def test_a_full_device_s_fragment_goes_to_a_handoff_and_the_device_still_serves(cluster, size):
    from keelstore.common.room import Reserve

    cluster.ask("PUT", PATH, body=octets(size, 1))
    node = cluster.primaries("object", "/AUTH_test/c/o", 2)[0]
    app = cluster.apps[node.address]
    app.reserve = app.store.reserve = Reserve.parse("100%")
    full = {one.key for one in cluster.primaries("object", "/AUTH_test/c/o", 2) if one.address == node.address}
    for fill in (2, 3):
        body = octets(size, fill)
        assert cluster.ask("PUT", PATH, body=body).status == 201
        assert cluster.ask("GET", PATH).body == body
        assert len([path for path in fragments(cluster) if path.name.split("#")[1].startswith(tuple("012345"))]) >= 6
    assert not cluster.proxy.health.limited()
    assert any(cluster.proxy.health.is_full(one, 1 << 40) for one in cluster.primaries("object", "/AUTH_test/c/o", 2) if one.key in full)
    assert cluster.ask("DELETE", PATH).status == 204
    assert cluster.ask("GET", PATH).status == 404
