"""The proxy over real account, container and object servers in one process, with real rings, files and databases."""

import errno
import json
import os
from hashlib import md5

import pytest

from keelstore.common import aligned, concurrency, fs
from keelstore.common.expiry import expirer_container
from test.support.cluster import InProcessCluster
from test.support.fakes import Input
from test.support.waiting import until

A = "/v1/AUTH_test"
NAMES = ["o", "with space", "per%cent %2F", "q?u#e", 'quote"\'s', "smile-😀", "ключ/日本", "a//b/../c/.", "tail/", "new\nline",
         "n" * 1024, "ü" * 1024, "é" * 200]


@pytest.fixture
def cluster(tmp_path):
    cluster = InProcessCluster(tmp_path)
    assert cluster.ask("PUT", f"{A}/c").status == 201
    yield cluster
    cluster.close()


def listed(cluster, path=f"{A}/c", query=""):
    return json.loads(cluster.ask("GET", path, query=query).body or b"[]")


@pytest.mark.parametrize("name", NAMES)
def test_an_object_comes_back(cluster, name):
    path, body = f"{A}/c/{name}", name.encode() * 3
    put = cluster.ask("PUT", path, {"Content-Type": "text/x", "X-Object-Meta-Color": "r\xc3\xa9d"}, body)
    assert put.status == 201
    assert put.headers["Etag"] == md5(body).hexdigest()
    got = cluster.ask("GET", path)
    assert (got.status, got.body) == (200, body)
    assert got.headers["X-Object-Meta-Color"] == "r\xc3\xa9d"
    assert got.headers["Content-Type"] == "text/x"
    assert got.headers["Last-Modified"] == put.headers["Last-Modified"]
    head = cluster.ask("HEAD", path)
    assert (head.status, head.headers["Content-Length"], head.body) == (200, str(len(body)), b"")
    assert [entry["name"] for entry in listed(cluster)] == [name]
    assert cluster.ask("DELETE", path).status == 204
    assert cluster.ask("GET", path).status == 404
    assert cluster.ask("DELETE", path).status == 404
    assert listed(cluster) == []


def test_longest_names(cluster):
    name = "ü" * 1024
    assert cluster.ask("PUT", f"{A}/c/{name}", body=b"x").status == 201
    assert cluster.ask("GET", f"{A}/c/{name}").body == b"x"
    assert cluster.ask("PUT", f"{A}/c/{name}x", body=b"x").status == 400


@pytest.mark.parametrize("size", [0, 1, 65536, 65537, 1_000_000, 4 << 20, 5_000_001])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_bodies_of_any_size(cluster, size, is_chunked):
    body = bytes(range(256)) * (size // 256 + 1)
    body = body[:size]
    headers = {"Content-Length": None, "Transfer-Encoding": "chunked"} if is_chunked else {}
    assert cluster.ask("PUT", f"{A}/c/o", headers, body).status == 201
    assert len(cluster.files(".data")) == 3
    got = cluster.ask("GET", f"{A}/c/o")
    assert got.body == body
    assert got.headers["Etag"] == md5(body).hexdigest()
    entry, = listed(cluster)
    assert (entry["bytes"], entry["hash"]) == (size, md5(body).hexdigest())


def test_a_copy_of_a_large_body_that_fails_drops_out_alone(cluster, monkeypatch):
    path, body = f"{A}/c/o", os.urandom(6_000_000)
    broken = cluster.primaries("object", "/AUTH_test/c/o")[0]
    fds, failed = set(), []
    real_create, real_write = fs.create_file, fs.write_direct

    def create_file(directory, *args):
        new = real_create(directory, *args)
        # the number of a file closed is the next one's: a copy on another device may get it
        (fds.add if f"/{broken.device}/" in directory else fds.discard)(new.fd)
        return new

    def write_direct(fd, data):
        if fd in fds:
            failed.append(fd)
            raise OSError(errno.EIO, "broken")
        return real_write(fd, data)

    monkeypatch.setattr(fs, "create_file", create_file)
    monkeypatch.setattr(fs, "set_direct", lambda fd, is_direct: True)
    monkeypatch.setattr(fs, "write_direct", write_direct)
    assert cluster.ask("PUT", path, body=body).status == 201
    assert failed and len(cluster.files(".data")) == 2
    monkeypatch.undo()
    assert cluster.ask("GET", path).body == body


@pytest.mark.parametrize("change", [{"Etag": "0" * 32}, {"Content-Length": "6000001"}])
def test_a_large_body_that_is_not_what_was_said_is_not_stored(cluster, change):
    answer = cluster.ask("PUT", f"{A}/c/o", change, os.urandom(6_000_000))
    assert answer.status == (422 if "Etag" in change else 499)
    assert cluster.files(".data") == [] and cluster.ask("GET", f"{A}/c/o").status == 404

    def are_back() -> bool:
        concurrency.sleep(0.001)  # the servers hear of it
        return len(aligned.buffers._permits) == aligned.LIMIT

    until(are_back, "all buffers are given back")


def test_container_and_account_flow(cluster):
    assert cluster.ask("PUT", f"{A}/c").status == 202
    assert cluster.ask("POST", f"{A}/c", {"X-Container-Meta-A": "b", "X-Container-Read": ".r:*"}).status == 204
    head = cluster.ask("HEAD", f"{A}/c").headers
    assert (head["X-Container-Meta-A"], head["X-Container-Read"], head["X-Storage-Policy"]) == ("b", ".r:*", "gold")
    assert cluster.ask("POST", f"{A}/c", {"X-Remove-Container-Meta-A": "x"}).status == 204
    assert "X-Container-Meta-A" not in cluster.ask("HEAD", f"{A}/c").headers
    assert [entry["name"] for entry in listed(cluster, A)] == ["c"]
    assert cluster.ask("POST", A, {"X-Account-Meta-K": "v"}).status == 204
    assert cluster.ask("HEAD", A).headers["X-Account-Meta-K"] == "v"
    assert cluster.ask("PUT", f"{A}/c", {"X-Storage-Policy": "silver"}).status == 409
    cluster.ask("PUT", f"{A}/c/o", body=b"x")
    assert cluster.ask("DELETE", f"{A}/c").status == 409
    cluster.ask("DELETE", f"{A}/c/o")
    assert cluster.ask("DELETE", f"{A}/c").status == 204
    assert cluster.ask("DELETE", f"{A}/c").status == 404
    assert cluster.ask("GET", f"{A}/c").status == 404
    assert listed(cluster, A) == []
    assert cluster.ask("PUT", f"{A}/c", {"X-Storage-Policy": "silver"}).status == 201


def test_policies(cluster):
    assert cluster.ask("PUT", f"{A}/s", {"X-Storage-Policy": "silver"}).status == 201
    assert cluster.ask("PUT", f"{A}/s/o", body=b"x").status == 201
    assert len(cluster.files(".data")) == 2
    assert cluster.ask("GET", f"{A}/s/o").body == b"x"
    assert cluster.ask("DELETE", f"{A}/s/o").status == 204


def test_listing_in_pages(cluster):
    names = [f"dir{n // 4}/o{n:02d}" for n in range(12)]
    for name in names:
        assert cluster.ask("PUT", f"{A}/c/{name}", body=b"").status == 201
    assert [entry["name"] for entry in listed(cluster)] == names
    assert [entry["name"] for entry in listed(cluster, query="limit=5&marker=dir0/o02")] == names[3:8]
    assert [entry["subdir"] for entry in listed(cluster, query="delimiter=/")] == ["dir0/", "dir1/", "dir2/"]
    assert [entry["name"] for entry in listed(cluster, query="prefix=dir1/&reverse=on")] == names[7:3:-1]
    assert cluster.ask("GET", f"{A}/c", query="limit=10001").status == 412


def test_post_replaces_metadata(cluster):
    cluster.ask("PUT", f"{A}/c/o", {"X-Object-Meta-A": "1", "Content-Type": "text/plain"}, b"x")
    assert cluster.ask("POST", f"{A}/c/o", {"X-Object-Meta-B": "2"}).status == 202
    head = cluster.ask("HEAD", f"{A}/c/o").headers
    assert "X-Object-Meta-A" not in head
    assert (head["X-Object-Meta-B"], head["Content-Type"]) == ("2", "text/plain")
    assert cluster.ask("POST", f"{A}/c/o", {"Content-Type": "a/b"}).status == 202
    assert listed(cluster)[0]["content_type"] == "a/b"
    assert cluster.ask("POST", f"{A}/c/none").status == 404


def test_conditions_and_ranges(cluster):
    body = bytes(range(100))
    etag = cluster.ask("PUT", f"{A}/c/o", body=body).headers["Etag"]
    ask = lambda **headers: cluster.ask("GET", f"{A}/c/o", {k.replace("_", "-"): v for k, v in headers.items()})  # noqa: E731
    assert ask(If_None_Match=etag).status == 304
    assert ask(If_Match="other").status == 412
    assert ask(If_Match=f'"{etag}"').status == 200
    part = ask(Range="bytes=10-19")
    assert (part.status, part.body, part.headers["Content-Range"]) == (206, body[10:20], "bytes 10-19/100")
    assert ask(Range="bytes=-5").body == body[-5:]
    assert ask(Range="bytes=100-").status == 416
    assert ask(Range="nonsense").status == 200
    several = ask(Range="bytes=0-1,50-51")
    assert several.status == 206
    assert several.body.count(b"Content-Range: bytes ") == 2
    assert several.headers["Content-Length"] == str(len(several.body))
    assert cluster.ask("PUT", f"{A}/c/o", {"If-None-Match": "*"}, b"new").status == 412
    assert cluster.ask("PUT", f"{A}/c/o2", {"If-None-Match": "*"}, b"new").status == 201
    assert cluster.ask("GET", f"{A}/c/o").body == body


def test_wrong_etag_and_old_timestamps(cluster):
    for size in (4, 100_000):
        assert cluster.ask("PUT", f"{A}/c/o", {"Etag": "0" * 32}, b"x" * size).status == 422
    assert cluster.files(".data") == []
    assert cluster.ask("GET", f"{A}/c/o").status == 404
    good = md5(b"data").hexdigest()
    assert cluster.ask("PUT", f"{A}/c/o", {"Etag": good, "X-Timestamp": "1700000009.00000"}, b"data").status == 201
    assert cluster.ask("PUT", f"{A}/c/o", {"X-Timestamp": "1700000001.00000"}, b"older").status == 202
    assert cluster.ask("POST", f"{A}/c/o", {"X-Timestamp": "1700000001.00000"}).status == 409
    assert cluster.ask("DELETE", f"{A}/c/o", {"X-Timestamp": "1700000001.00000"}).status == 409
    assert cluster.ask("GET", f"{A}/c/o").body == b"data"


def test_a_client_that_stops_leaves_nothing(cluster):
    for size in (10, 200_000):
        response = cluster.ask("PUT", f"{A}/c/o", {"Content-Length": str(size + 5)}, Input(b"x" * size))
        assert response.status == 499
    assert cluster.files(".data") == []
    assert cluster.ask("GET", f"{A}/c/o").status == 404


def test_expiry(cluster):
    cluster.ask("PUT", f"{A}/c/o", {"X-Delete-After": "1000"}, b"x")
    assert cluster.ask("GET", f"{A}/c/o").headers["X-Delete-At"].isdigit()
    when = int(cluster.ask("HEAD", f"{A}/c/o").headers["X-Delete-At"])
    digest = cluster.proxy.cluster.hash_path.digest("AUTH_test", "c", "o")
    queue = listed(cluster, f"/v1/.expiring_objects/{expirer_container(when, 86400, digest)}")
    assert [entry["name"] for entry in queue] == [f"{when}-AUTH_test/c/o"]


# -- faults ------------------------------------------------------------------------------------------------------------


def test_a_missing_device_is_replaced_by_a_handoff(cluster):
    primaries = cluster.primaries("object", "/AUTH_test/c/o")
    cluster.remove_device(primaries[0].device)
    for size in (4, 100_000):
        assert cluster.ask("PUT", f"{A}/c/o", body=b"x" * size).status == 201
    holders = cluster.files(".data")
    assert len(holders) == 3
    assert primaries[0].device not in holders
    assert cluster.ask("GET", f"{A}/c/o").status == 200


def test_a_stopped_node_is_replaced_by_a_handoff(cluster):
    primaries = cluster.primaries("object", "/AUTH_test/c/o")
    cluster.stop(primaries[0].address)
    assert cluster.ask("PUT", f"{A}/c/o", body=b"data").status == 201
    assert len(cluster.files(".data")) == 3
    for node in primaries[1:]:
        cluster.stop(node.address)
    assert cluster.ask("GET", f"{A}/c/o").body == b"data"
    for node in primaries:
        cluster.start(node.address)
    assert cluster.ask("DELETE", f"{A}/c/o").status == 204
    assert cluster.ask("GET", f"{A}/c/o").status == 404  # though a handoff has an old copy


def test_doubt_is_503_and_proof_is_404(cluster):
    primaries = cluster.primaries("object", "/AUTH_test/c/never")
    for node in primaries:
        cluster.stop(node.address)
    assert cluster.ask("GET", f"{A}/c/never").status == 503
    cluster.start(primaries[0].address)
    assert cluster.ask("DELETE", f"{A}/c/never").status in (204, 404)
    cluster.stop(primaries[0].address)
    assert cluster.ask("GET", f"{A}/c/never").status == 404  # tombstones on handoffs
    for node in primaries:
        cluster.start(node.address)


def test_all_devices_of_an_object_gone(cluster):
    cluster.ask("PUT", f"{A}/c/o", body=b"x")
    for node in cluster.primaries("object", "/AUTH_test/c/o"):
        cluster.remove_device(node.device)
    assert cluster.ask("GET", f"{A}/c/o").status == 503


def test_post_when_one_primary_lacks_the_object(cluster):
    primaries = cluster.primaries("object", "/AUTH_test/c/o")
    cluster.stop(primaries[0].address)
    cluster.ask("PUT", f"{A}/c/o", body=b"x")
    cluster.start(primaries[0].address)
    assert cluster.ask("POST", f"{A}/c/o", {"X-Object-Meta-A": "b"}).status == 202
    assert cluster.ask("HEAD", f"{A}/c/o").headers["X-Object-Meta-A"] == "b"


def test_if_none_match_is_held_by_one_copy(cluster):
    primaries = cluster.primaries("object", "/AUTH_test/c/o")
    for node in primaries[:2]:
        cluster.stop(node.address)
    cluster.ask("PUT", f"{A}/c/o", body=b"first")
    for node in primaries[:2]:
        cluster.start(node.address)
    before = cluster.files(".data")
    for body, headers in ((b"x", {}), (b"", {}), (b"x", {"Content-Length": None, "Transfer-Encoding": "chunked"}),
                          (b"", {"Content-Length": None, "Transfer-Encoding": "chunked"})):
        assert cluster.ask("PUT", f"{A}/c/o", {"If-None-Match": "*", **headers}, body).status == 412
    assert cluster.files(".data") == before


def test_containers_without_their_servers(cluster):
    cluster.ask("PUT", f"{A}/c/o", body=b"x")
    primaries = cluster.primaries("container", "/AUTH_test/c")
    for node in primaries:
        cluster.stop(node.address)
    assert cluster.ask("GET", f"{A}/c").status == 503
    assert cluster.ask("PUT", f"{A}/c/o2", body=b"x").status == 201  # what is cached of the container still holds
    assert cluster.ask("POST", f"{A}/c").status == 503  # and now it is forgotten
    assert cluster.ask("PUT", f"{A}/c/o3", body=b"x").status == 503
    for node in primaries:
        cluster.start(node.address)


def test_absence_is_not_remembered_when_it_was_doubt(cluster):
    primaries = cluster.primaries("object", "/AUTH_test/c/o")
    cluster.ask("PUT", f"{A}/c/o", body=b"x")
    for node in primaries:
        cluster.stop(node.address)
    assert cluster.ask("GET", f"{A}/c/o").status == 503
    for node in primaries:
        cluster.start(node.address)
    assert cluster.ask("GET", f"{A}/c/o").status == 200


def test_a_missing_ring_stops_the_start(tmp_path):
    from keelstore.common.errors import ConfigError
    from keelstore.proxy.app import app_factory

    (tmp_path / "keelstore.conf").write_text("[swift-hash]\nswift_hash_path_suffix = x\n")
    with pytest.raises(ConfigError, match=r"account\.ring\.gz"):
        app_factory({}, swift_dir=str(tmp_path))
