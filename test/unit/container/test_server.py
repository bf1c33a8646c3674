"""The verbs of the container server, over real files and real WSGI calls (``spec: backend-protocol 3``)."""

from __future__ import annotations

import json
import os

import pytest
from lxml import etree

from keelstore.common.errors import BackendError
from keelstore.common.ranges import ShardRange, State
from keelstore.common.timestamp import Timestamp
from keelstore.container import shard_rows
from test.support.db_servers import ACCOUNT_ADDRESS, LocalBackend, account_server, container_server

ROW = {"X-Size": 5, "X-Content-Type": "text/plain", "X-Etag": "d41d8cd98f00b204e9800998ecf8427e"}
ACCOUNT = {"X-Account-Host": "127.0.0.1:6202", "X-Account-Device": "sda", "X-Account-Partition": "0"}
POLICY = "X-Backend-Storage-Policy-Index"


@pytest.fixture
def server(tmp_path):
    return container_server(tmp_path)


@pytest.fixture
def both(tmp_path):
    backend = LocalBackend()
    account = account_server(tmp_path)
    backend.apps[ACCOUNT_ADDRESS] = account.app
    return container_server(tmp_path, backend), account, backend


def names(response):
    return response.body.decode().splitlines()


# -- containers --------------------------------------------------------------------------------------------------------


def test_put_creates_then_updates(server):
    first = server("PUT", "/a/c", {"X-Container-Meta-Color": "blau ü".encode().decode("latin-1")})
    assert (first.status, first.headers[POLICY]) == (201, "0")
    assert server("PUT", "/a/c").status == 202
    head = server("HEAD", "/a/c")
    assert head.status == 204 and head.headers["Content-Length"] == "0"
    assert head.headers["X-Container-Meta-Color"].encode("latin-1").decode() == "blau ü"
    assert head.headers["X-Put-Timestamp"] == "1700000002.00000"
    assert head.headers["X-Backend-Sharding-State"] == "unsharded"
    assert head.headers["Last-Modified"] == "Tue, 14 Nov 2023 22:13:22 GMT"
    assert head.headers["Content-Type"] == "text/plain; charset=utf-8"


def test_an_absent_container(server):
    for method in ("GET", "HEAD"):
        answer = server(method, "/a/c")
        assert answer.status == 404
        assert answer.headers["X-Backend-Timestamp"] == "0000000000.00000"
        assert answer.headers[POLICY] == "0"
    assert [server(method, "/a/c").status for method in ("POST", "DELETE")] == [404, 404]
    assert server("PUT", "/a/c/o", ROW).status == 404
    assert server("DELETE", "/a/c/o").status == 404
    assert os.listdir(server.device) == []


def test_delete_and_put_again(server):
    server("PUT", "/a/c", {"X-Container-Meta-A": "b"})
    created = server("HEAD", "/a/c").headers
    assert server("DELETE", "/a/c").status == 204
    gone = server("GET", "/a/c")
    assert gone.status == 404 and gone.headers["X-Backend-Delete-Timestamp"] == "1700000003.00000"
    assert server("DELETE", "/a/c").status == 404
    assert server("POST", "/a/c").status == 404
    assert server("PUT", "/a/c").status == 201
    again = server("HEAD", "/a/c").headers
    assert "X-Container-Meta-A" not in again
    assert again["X-Backend-Status-Changed-At"] > created["X-Backend-Status-Changed-At"]


def test_an_old_put_does_not_bring_a_deleted_container_back(server):
    server("PUT", "/a/c", at="1700000001.00000")
    server("DELETE", "/a/c", at="1700000009.00000")
    assert server("PUT", "/a/c", at="1700000005.00000").status == 409
    assert server("GET", "/a/c").status == 404


def test_an_old_delete_of_a_newer_container(server):
    # S16
    server("PUT", "/a/c", at="1700000009.00000")
    assert server("DELETE", "/a/c", at="1700000005.00000").status == 409
    head = server("HEAD", "/a/c")
    assert head.status == 204
    # the state that the other order of arrival gives
    assert head.headers["X-Backend-Delete-Timestamp"] == "1700000005.00000"


def test_a_container_is_deleted_directly_after_its_last_object(server):
    server("PUT", "/a/c")
    server("PUT", "/a/c/o", ROW)
    assert server("DELETE", "/a/c").status == 409
    server("DELETE", "/a/c/o")
    assert server("DELETE", "/a/c").status == 204


def test_policies(server):
    assert server("PUT", "/a/c", {POLICY: "1"}).headers[POLICY] == "1"
    conflict = server("PUT", "/a/c", {POLICY: "2"})
    assert (conflict.status, conflict.headers[POLICY]) == (409, "1")
    assert server("PUT", "/a/c").headers[POLICY] == "1"
    server("DELETE", "/a/c")
    again = server("PUT", "/a/c", {POLICY: "2"})
    assert (again.status, again.headers[POLICY]) == (201, "2")
    assert server("PUT", "/a/d", {"X-Backend-Storage-Policy-Default": "2"}).headers[POLICY] == "2"
    for bad in ("9", "x", "-1"):
        answer = server("PUT", "/a/e", {POLICY: bad})
        assert answer.status == 400 and answer.body.startswith(b"Invalid X-Backend-Storage-Policy-Index")
    assert server("HEAD", "/a/e").status == 404


def test_post(server):
    server("PUT", "/a/c", {"X-Container-Meta-A": "1", "X-Container-Read": ".r:*"})
    assert server("POST", "/a/c", {"X-Container-Meta-A": "", "X-Container-Meta-B": "2", "X-Other": "no"}).status == 204
    headers = server("HEAD", "/a/c").headers
    assert "X-Container-Meta-A" not in headers and "X-Other" not in headers
    assert (headers["X-Container-Meta-B"], headers["X-Container-Read"]) == ("2", ".r:*")
    before = headers["X-Put-Timestamp"]
    server("POST", "/a/c", {"X-Container-Meta-B": "3", "X-Backend-No-Timestamp-Update": "true"})
    headers = server("HEAD", "/a/c").headers
    assert (headers["X-Container-Meta-B"], headers["X-Put-Timestamp"]) == ("3", before)
    server("POST", "/a/c", {"X-Container-Meta-B": "old"}, at="1700000001.50000")
    assert server("HEAD", "/a/c").headers["X-Container-Meta-B"] == "3"


def test_metadata_limits_hold_for_the_sum_of_many_posts(server):
    # S13
    server("PUT", "/a/c")
    statuses = [
        server("POST", "/a/c", {f"X-Container-Meta-K{batch}-{n}": "v" for n in range(30)}).status for batch in range(5)]
    assert statuses == [204, 204, 204, 400, 400]
    assert server("PUT", "/a/c", {f"X-Container-Meta-L{n}": "v" for n in range(30)}).status == 400
    kept = server("HEAD", "/a/c").headers
    assert len([name for name in kept if name.startswith("X-Container-Meta-")]) == 90
    server("PUT", "/a/d")
    assert [server("POST", "/a/d", {f"X-Container-Meta-{n}": "x" * 250}).status for n in range(18)].count(400) == 2


def test_metadata_must_be_utf8(server):
    assert server("PUT", "/a/c", {"X-Container-Meta-A": "\xff"}).status == 400


# -- rows --------------------------------------------------------------------------------------------------------------


def test_rows(server):
    server("PUT", "/a/c")
    assert server("PUT", "/a/c/ä/b c", ROW).status == 201
    assert names(server("GET", "/a/c")) == ["ä/b c"]
    (entry,) = json.loads(server("GET", "/a/c", query="format=json").body)
    assert entry == {"name": "ä/b c", "bytes": 5, "hash": ROW["X-Etag"], "content_type": "text/plain",
                     "last_modified": "2023-11-14T22:13:22.000000"}
    assert server("DELETE", "/a/c/ä/b c").status == 204
    empty = server("GET", "/a/c")
    assert (empty.status, empty.body) == (204, b"")
    assert server("GET", "/a/c", query="format=json").body == b"[]"


def test_old_row_updates_lose(server):
    # S16: whatever the order of arrival
    server("PUT", "/a/c", at="1700000000.00000")
    server("PUT", "/a/c/o", ROW, at="1700000009.00000")
    assert server("DELETE", "/a/c/o", at="1700000005.00000").status == 204
    assert names(server("GET", "/a/c")) == ["o"]
    server("DELETE", "/a/c/o", at="1700000011.00000")
    server("PUT", "/a/c/o", ROW, at="1700000010.00000")
    assert server("GET", "/a/c").status == 204


def test_the_three_times_of_a_row(server):
    server("PUT", "/a/c")
    server("PUT", "/a/c/o", {**ROW, "X-Content-Type": "image/png", "X-Content-Type-Timestamp": "1700000050.00000",
                             "X-Meta-Timestamp": "1700000060.00000"}, at="1700000040.00000")
    server("PUT", "/a/c/o", {**ROW, "X-Size": 7}, at="1700000045.00000")
    (entry,) = json.loads(server("GET", "/a/c", query="format=json").body)
    assert (entry["bytes"], entry["content_type"], entry["last_modified"]) == (7, "image/png", "2023-11-14T22:14:20.000000")


def test_bad_rows(server):
    server("PUT", "/a/c")
    for change in ({"X-Size": None}, {"X-Size": "x"}, {"X-Size": "-1"}, {"X-Etag": None}, {"X-Content-Type": None},
                   {"X-Meta-Timestamp": "x"}, {POLICY: "x"}):
        headers = {**ROW, **change}
        assert server("PUT", "/a/c/o", {k: v for k, v in headers.items() if v is not None}).status == 400
    assert server("PUT", "/a/c/o", ROW, at="x").body == b"Invalid X-Timestamp header"
    assert server("GET", "/a/c").status == 204


def test_ten_thousand_rows_are_listed_at_once(server):
    server("PUT", "/a/c")
    for number in range(10000):
        server("PUT", f"/a/c/o{number:05d}", ROW)
    assert len(names(server("GET", "/a/c"))) == 10000
    assert server("HEAD", "/a/c").headers["X-Container-Object-Count"] == "10000"
    found: list[str] = []
    marker = ""
    while part := names(server("GET", "/a/c", query=f"limit=3000&marker={marker}")):
        found, marker = found + part, part[-1]
    assert len(found) == 10000


def test_system_accounts_get_their_containers_with_the_first_row(server):
    assert server("PUT", "/.expiring_objects/1700000000/o", ROW).status == 201
    assert names(server("GET", "/.expiring_objects/1700000000")) == ["o"]
    assert server("PUT", "/.shards_a/c/o", ROW).status == 404
    assert server("PUT", "/.shards_a/c/o", {**ROW, "X-Backend-Auto-Create": "true"}).status == 201
    assert server("PUT", "/.misplaced_objects/1/o", {**ROW, "X-Backend-Auto-Create": "false"}).status == 404
    assert server("DELETE", "/.misplaced_objects/1/o").status == 204
    assert server("GET", "/.misplaced_objects/1").status == 204


def test_update_merges_rows(server):
    rows = [{"name": f"o{n}", "created_at": "1700000001.00000", "size": n, "content_type": "t", "etag": "e", "deleted": 0,
             "storage_policy_index": 0} for n in range(3)]
    body = json.dumps(rows).encode()
    assert server("UPDATE", "/a/c", body=body).status == 404
    assert server("UPDATE", "/.shards_a/c", {"X-Backend-Auto-Create": "true"}, body=body).status == 400
    assert server("UPDATE", "/.shards_a/c", {"X-Backend-Auto-Create": "true", POLICY: "0"}, body=body).status == 202
    assert names(server("GET", "/.shards_a/c")) == ["o0", "o1", "o2"]
    for bad in (b"{", b"{}", b"[1]", b'[{"name": "x"}]', b""):
        assert server("UPDATE", "/.shards_a/c", body=bad).status == 400


# -- listings ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def filled(server):
    server("PUT", "/a/c")
    for name in ("a", "b/1", "b/2", "c"):
        server("PUT", f"/a/c/{name}", ROW)
    return server


@pytest.mark.parametrize("query, expected", [
    ("", ["a", "b/1", "b/2", "c"]), ("delimiter=/", ["a", "b/", "c"]), ("path=b", ["b/1", "b/2"]), ("limit=2", ["a", "b/1"]),
    ("reverse=on&marker=b/2", ["b/1", "a"]), ("prefix=b/", ["b/1", "b/2"]), ("limit=0", []), ("limit=nonsense", ["a", "b/1", "b/2", "c"]),
    ("delimiter=/&limit=2", ["a", "b/"]), ("delimiter=%2F1", ["a", "b/1", "b/2", "c"]),
])
def test_listing_parameters(filled, query, expected):
    assert names(filled("GET", "/a/c", query=query)) == expected


def test_listing_forms_and_headers(filled):
    answer = filled("GET", "/a/c", {"Accept": "application/json"})
    assert answer.headers["Content-Type"] == "application/json; charset=utf-8"
    assert answer.headers["X-Backend-Record-Type"] == "object"
    assert answer.headers["X-Backend-Record-Storage-Policy-Index"] == "0"
    assert answer.headers["X-Container-Object-Count"] == "4" and answer.headers["X-Container-Bytes-Used"] == "20"
    answer = filled("GET", "/a/c", query="format=xml&delimiter=/")
    assert [child.tag for child in etree.fromstring(answer.body)] == ["object", "subdir", "object"]
    assert filled("GET", "/a/c", {POLICY: "1"}).status == 204


def test_reserved_names_are_listed_on_request_only(server):
    server("PUT", "/a/\x00versions\x00c")
    server("PUT", "/a/\x00versions\x00c/\x00o\x001", ROW)
    assert server("GET", "/a/\x00versions\x00c").status == 204
    shown = server("GET", "/a/\x00versions\x00c", {"X-Backend-Allow-Reserved-Names": "true"})
    assert names(shown) == ["\x00o\x001"]


def test_listing_refusals(filled):
    answer = filled("GET", "/a/c", query="limit=10001")
    assert (answer.status, answer.body) == (412, b"Maximum limit is 10000")
    assert filled("GET", "/a/c", query="marker=%ff").status == 400
    assert filled("GET", "/a/c", {"Accept": "image/png"}).status == 406
    assert filled("HEAD", "/a/c", {"Accept": "image/png"}).status == 406


def test_the_container_name_is_escaped_in_xml(server):
    # S17
    name = "<>&\"'\x01\ufffe"
    assert server("PUT", f"/a/{name}").status == 201
    server("PUT", f"/a/{name}/{name}", ROW)
    root = etree.fromstring(server("GET", f"/a/{name}", query="format=xml").body)
    assert root.get("name") == "<>&\"'\ufffd\ufffd" == root.findtext("object/name")
    assert json.loads(server("GET", f"/a/{name}", query="format=json").body)[0]["name"] == name


# -- paths -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [
    "/../../etc/1/a/c", "/../0/a/c", "/./0/a/c", "/sda/../a/c", "/sda/./a/c", "//0/a/c", "/sda//a/c", "/s\x00da/0/a/c",
    "/" + "d" * 300 + "/0/a/c", "/sda/0\x00/a/c",
])
@pytest.mark.parametrize("method", ["PUT", "POST", "GET", "HEAD", "DELETE", "UPDATE"])
def test_no_path_leaves_the_devices(server, tmp_path, path, method):
    # S53
    from keelstore.common.http import call_app
    from test.support.db_servers import environ

    before = sorted(os.listdir(tmp_path.parent))
    for tail in ("", "/o"):
        answer = call_app(server.app, environ(method, path + tail, {"X-Timestamp": "1700000000.00000", **ROW}))
        assert answer.status in (400, 507), (method, path, answer.status)
    assert os.listdir(server.device) == [] and sorted(os.listdir(tmp_path.parent)) == before


@pytest.mark.parametrize("name_hash", ["..", ".", "a%2Fb", "x\x00y", "../../../etc"])
def test_no_replicate_leaves_the_devices(server, name_hash):
    answer = server("REPLICATE", f"/{name_hash}", body=json.dumps(["complete_rsync", "x"]).encode())
    assert answer.status in (400, 404)
    for local_id in ("../../x", "..", "/etc/passwd", "", ".x"):
        answer = server("REPLICATE", "/abc", body=json.dumps(["complete_rsync", local_id]).encode())
        assert answer.status == 400
    for name in ("../x.db", "other.db", "abc_../../x.db"):
        answer = server("REPLICATE", "/abc", body=json.dumps(["complete_rsync", "id", name]).encode())
        assert answer.status in (400, 404)


def test_other_refusals(server):
    assert server("GET", "/a").status == 400
    assert server("PUT", "/a/c", at="nonsense").status == 400
    assert server("PATCH", "/a/c").status == 405
    assert server("_PRIVATE", "/a/c").status == 405
    assert server("PUT", "/a/c\x00d").body == b"Invalid reserved-namespace container"
    assert server("PUT", "/a/c/\x00o", ROW).status == 400
    answer = server("OPTIONS", "/a/c")
    assert answer.headers["Allow"] == "DELETE, GET, HEAD, OPTIONS, POST, PUT, REPLICATE, UPDATE"


def test_an_unmounted_device_is_507(tmp_path):
    server = container_server(tmp_path)
    os.rmdir(server.device)
    for method in ("PUT", "GET", "HEAD", "DELETE", "POST"):
        assert server(method, "/a/c").status == 507


def test_a_full_device_takes_no_rows_but_lets_delete(tmp_path):
    server = container_server(tmp_path)
    server("PUT", "/a/c")
    server("PUT", "/a/c/o", ROW)
    server.app.reserve = type(server.app.reserve).parse("100%")
    assert [server(method, "/a/c").status for method in ("PUT", "POST", "UPDATE")] == [507, 507, 507]
    assert server("PUT", "/a/c/p", ROW).status == 507
    assert server("DELETE", "/a/c/o").status == 204
    assert server("DELETE", "/a/c").status == 204


def test_replication_verbs_may_be_left_to_another_process(tmp_path):
    assert container_server(tmp_path, replication_server=False)("REPLICATE", "/abc", body=b"[]").status == 405


def test_a_corrupt_database_sends_the_proxy_elsewhere_once(server, caplog):
    server("PUT", "/a/c")
    path = server.db("a", "c")
    server.app.brokers.close()
    path.write_bytes(b"garbage" * 2000)
    assert server("GET", "/a/c").status == 503
    assert "is corrupt" in caplog.text
    assert server("GET", "/a/c").status == 404
    assert server("PUT", "/a/c").status == 201


# -- the account -------------------------------------------------------------------------------------------------------


def test_the_account_is_told(both):
    server, account, backend = both
    account("PUT", "/a")
    assert server("PUT", "/a/c", {**ACCOUNT, "X-Trans-Id": "tx1"}).status == 201
    address, method, path, headers = backend.calls[-1]
    assert (address, method, path) == (ACCOUNT_ADDRESS, "PUT", "/sda/0/a/c")
    assert headers["User-Agent"] == f"container-server {os.getpid()}" and headers["X-Trans-Id"] == "tx1"
    assert names(account("GET", "/a")) == ["c"]
    server("DELETE", "/a/c", ACCOUNT)
    assert account("GET", "/a").status == 204


def test_no_account_is_404_for_the_container(both):
    server, account, _ = both
    assert server("PUT", "/a/c", ACCOUNT).status == 404
    assert server("PUT", "/a/c", {**ACCOUNT, "X-Account-Host": "127.0.0.1:6202,127.0.0.1:6202", "X-Account-Device": "sda,sda"}).status == 404
    assert server("PUT", "/a/c", {**ACCOUNT, "X-Account-Override-Deleted": "yes"}).status == 404
    account("PUT", "/a")
    assert server("PUT", "/a/c", ACCOUNT).status == 202


def test_an_account_that_cannot_be_told_is_left_to_the_updater(both, caplog):
    server, _, backend = both

    def down(*args, **kwargs):
        raise BackendError("connection refused")

    backend.call = down
    assert server("PUT", "/a/c", ACCOUNT).status == 201
    assert "the updater will repeat it" in caplog.text


def test_bad_account_headers_change_nothing(both):
    server, _, _ = both
    for change in ({"X-Account-Device": "sda,sdb"}, {"X-Account-Host": "nonsense"}, {"X-Account-Host": "h:99999"}):
        assert server("PUT", "/a/c", {**ACCOUNT, **change}).status == 400
    assert server("HEAD", "/a/c").status == 404


# -- sync targets ------------------------------------------------------------------------------------------------------


def test_sync_targets_are_checked_and_linked(server, tmp_path):
    assert server("PUT", "/a/c", {"X-Container-Sync-To": "http://evil.example/v1/a/c"}).status == 400
    assert server("HEAD", "/a/c").status == 404
    target = {"X-Container-Sync-To": "http://127.0.0.1/v1/a/d", "X-Container-Sync-Key": "k"}
    assert server("PUT", "/a/c", target).status == 201
    path = server.db("a", "c")
    link = server.device / "sync_containers" / path.relative_to(server.device / "containers")
    assert os.readlink(link) == str(path)
    server("POST", "/a/c", {"X-Container-Sync-Key": ""})
    assert not link.is_symlink() and not link.parent.exists()
    server("POST", "/a/c", {"X-Container-Sync-Key": "k"})
    assert link.is_symlink()
    server("DELETE", "/a/c")
    assert not link.is_symlink()


def test_another_sync_target_starts_over(server):
    server("PUT", "/a/c", {"X-Container-Sync-To": "http://127.0.0.1/v1/a/d"})
    broker = server.app.brokers.get(str(server.device), "0", "a", "c")
    broker.write(lambda c: broker.set_sync_points(c, 5, 3))
    server("POST", "/a/c", {"X-Container-Sync-To": "http://127.0.0.1/v1/a/d"})
    assert broker.info().x_container_sync_point1 == 5
    server("POST", "/a/c", {"X-Container-Sync-To": "http://127.0.0.1/v1/a/e"})
    assert (broker.info().x_container_sync_point1, broker.info().x_container_sync_point2) == (-1, -1)


# -- shard ranges ------------------------------------------------------------------------------------------------------


def shard(name, lower, upper, state=State.ACTIVE, **more):
    return ShardRange.create(name, Timestamp(1700000050), lower, upper, state=state, **more)


@pytest.fixture
def sharded(server):
    server("PUT", "/a/c")
    body = json.dumps([one.to_dict() for one in (
        shard("a/c", "", "", State.SHARDING), shard(".shards_a/c-1", "", "m", State.CLEAVED),
        shard(".shards_a/c-2", "m", "t", State.CREATED))]).encode()
    assert server("PUT", "/a/c", {"X-Backend-Record-Type": "shard"}, body=body).status == 202
    return server


def ranges(server, query="", **headers):
    sent = {"X-Backend-Record-Type": "shard", **{name.replace("_", "-"): value for name, value in headers.items()}}
    answer = server("GET", "/a/c", sent, query=query)
    assert answer.status == 200, answer.body
    return [(one["name"], one["lower"], one["upper"]) for one in json.loads(answer.body)]


def test_shard_ranges_are_stored_and_listed(sharded):
    assert ranges(sharded) == [(".shards_a/c-1", "", "m"), (".shards_a/c-2", "m", "t")]
    assert ranges(sharded, "states=listing") == [(".shards_a/c-1", "", "m"), ("a/c", "m", "")]
    assert ranges(sharded, "states=updating") == [(".shards_a/c-1", "", "m"), (".shards_a/c-2", "m", "t"), ("a/c", "t", "")]
    assert ranges(sharded, "states=updating&end_marker=p") == [(".shards_a/c-1", "", "m"), (".shards_a/c-2", "m", "t")]
    assert ranges(sharded, "includes=p") == [(".shards_a/c-2", "m", "t")]
    assert ranges(sharded, "includes=z&states=updating") == [("a/c", "", "")]
    assert ranges(sharded, "states=auditing")[-1] == ("a/c", "", "")
    assert ranges(sharded, "reverse=true") == [(".shards_a/c-2", "m", "t"), (".shards_a/c-1", "", "m")]
    answer = sharded("GET", "/a/c", {"X-Backend-Record-Type": "shard"})
    assert answer.headers["X-Backend-Record-Type"] == "shard" and answer.headers["X-Backend-Record-Shard-Format"] == "full"
    assert json.loads(answer.body)[0]["last_modified"] == "2023-11-14T22:14:10.000000"
    answer = sharded("GET", "/a/c", {"X-Backend-Record-Type": "shard", "X-Backend-Record-Shard-Format": "namespace"})
    assert json.loads(answer.body)[0] == {"name": ".shards_a/c-1", "lower": "", "upper": "m"}
    assert sharded("GET", "/a/c", {"X-Backend-Record-Type": "auto"}).headers["X-Backend-Record-Type"] == "object"


def test_bad_shard_requests(sharded):
    for query, headers in (("states=nonsense", {}), ("states=auditing", {"X-Backend-Record-Shard-Format": "namespace"})):
        assert sharded("GET", "/a/c", {"X-Backend-Record-Type": "shard", **headers}, query=query).status == 400
    for body in (b"{", b"{}", b'[{"name": "x"}]'):
        answer = sharded("PUT", "/a/c", {"X-Backend-Record-Type": "shard"}, body=body)
        assert answer.status == 400 and answer.body.startswith(b"Invalid body: ")
    assert sharded("PUT", "/a/new", {"X-Backend-Record-Type": "shard"}, body=b"[]").status == 404
    created = sharded("PUT", "/.shards_a/new", {"X-Backend-Record-Type": "shard", "X-Backend-Auto-Create": "true", POLICY: "1"}, body=b"[]")
    assert (created.status, created.headers[POLICY]) == (201, "1")


def test_a_deleted_containers_ranges_on_request(sharded):
    sharded("DELETE", "/a/c")
    assert sharded("GET", "/a/c", {"X-Backend-Record-Type": "shard"}).status == 404
    assert len(ranges(sharded, X_Backend_Override_Deleted="true")) == 2


def test_row_updates_are_redirected(sharded):
    plain = sharded("PUT", "/a/c/b", ROW)
    assert plain.status == 201
    answer = sharded("PUT", "/a/c/b", {**ROW, "X-Backend-Accept-Redirect": "true"})
    assert answer.status == 301
    assert answer.headers["Location"] == "/.shards_a/c-1/b"
    assert answer.headers["X-Backend-Location-Is-Quoted"] == "true"
    assert answer.headers["X-Backend-Redirect-Timestamp"] == "1700000050.00000"
    assert sharded("DELETE", "/a/c/ü", {"X-Backend-Accept-Redirect": "true"}).status == 204
    assert sharded("PUT", "/a/c/b ü", {**ROW, "X-Backend-Accept-Redirect": "true"}).status == 201
    answer = sharded("PUT", "/a/c/b ü", {**ROW, "X-Backend-Accept-Redirect": "true", "X-Backend-Accept-Quoted-Location": "true"})
    assert (answer.status, answer.headers["Location"]) == (301, "/.shards_a/c-1/b%20%C3%BC")


# -- replication -------------------------------------------------------------------------------------------------------


def replicate(server, name_hash, *call):
    answer = server("REPLICATE", f"/{name_hash}", body=json.dumps(list(call)).encode())
    return answer.status, json.loads(answer.body) if answer.body[:1] in (b"{", b"[") else answer.body


def test_replication_info_and_sync(server):
    server("PUT", "/a/c", {"X-Container-Meta-A": "b"})
    server("PUT", "/a/c/o", ROW)
    name_hash = server.db("a", "c").stem
    metadata = json.dumps({"X-Container-Meta-B": ["c", "1700000009.00000"]})
    call = ["sync", 5, "0" * 32, "remote-id", "1600000000.00000", "1700000050.00000", "0000000000.00000", metadata]
    status, info = replicate(server, name_hash, *call)
    assert status == 200
    assert (info["count"], info["bytes_used"], info["max_row"], info["shard_max_row"], info["point"]) == (1, 5, 1, -1, -1)
    assert (info["created_at"], info["put_timestamp"]) == ("1600000000.00000", "1700000050.00000")
    assert set(json.loads(info["metadata"])) == {"X-Container-Meta-A", "X-Container-Meta-B"}
    assert "object_count" not in info and info["db_state"] == "unsharded"
    call[2] = info["hash"]
    assert replicate(server, name_hash, *call)[1]["point"] == 5  # equal hashes: the point advances


def test_sync_settles_the_policy(server):
    server("PUT", "/a/c", {POLICY: "1"}, at="1700000020.00000")
    name_hash = server.db("a", "c").stem
    older = ["sync", -1, "0" * 32, "r", "1700000010.00000", "1700000010.00000", "0", "", "1700000010.00000", 0, 2]
    status, info = replicate(server, name_hash, *older)
    assert (status, info["storage_policy_index"]) == (200, 2)
    newer = ["sync", -1, "0" * 32, "r", "1700000030.00000", "1700000030.00000", "0", "", "1700000030.00000", 0, 0]
    assert replicate(server, name_hash, *newer)[1]["storage_policy_index"] == 2
    # one that was deleted and created again wins over one that knows nothing of it
    again = ["sync", -1, "0" * 32, "r", "1700000030.00000", "1700000050.00000", "1700000040.00000", "", "1700000050.00000", 0, 1]
    assert replicate(server, name_hash, *again)[1]["storage_policy_index"] == 1


def test_rows_and_points_of_a_peer(server):
    server("PUT", "/a/c")
    name_hash = server.db("a", "c").stem
    rows = [{"ROWID": 7, "name": "o", "created_at": "1700000001.00000", "size": 1, "content_type": "t", "etag": "e",
             "deleted": 0, "storage_policy_index": 0}]
    assert replicate(server, name_hash, "merge_items", rows, "peer") == (202, b"")
    assert replicate(server, name_hash, "merge_syncs", [{"remote_id": "third", "sync_point": 4}])[0] == 202
    assert names(server("GET", "/a/c")) == ["o"]
    broker = server.app.brokers.get(str(server.device), "0", "a", "c")
    assert {p["remote_id"]: p["sync_point"] for p in broker.read(broker.sync_points)} == {"peer": 7, "third": 4}
    for bad in (["merge_items", [{"name": "x"}], "peer"], ["merge_items"], ["nonsense"], ["sync", "x"], ["merge_syncs", [{}]], [5]):
        assert replicate(server, name_hash, *bad)[0] == 400
    assert replicate(server, "0" * 32, "merge_items", rows, "peer")[0] == 404
    assert server("REPLICATE", f"/{name_hash}", body=b"{").status == 400
    assert server("REPLICATE", f"/{name_hash}", body=b"{}").body == b"Invalid object type"


def arrive(server, account, container):
    """A copy of a database in ``tmp``, as rsync would bring it."""
    import shutil

    os.makedirs(server.device / "tmp", exist_ok=True)
    broker = server.app.brokers.get(str(server.device), "0", account, container)
    broker.merge_pending()
    shutil.copy(broker.path, server.device / "tmp" / "remote-id")


def test_a_whole_file_arrives(server):
    server("PUT", "/a/c")
    server("PUT", "/a/c/o", ROW)
    arrive(server, "a", "c")
    name_hash = server.app.cluster.hash_path.hexdigest("a", "d")
    assert replicate(server, name_hash, "complete_rsync", "remote-id")[0] == 204
    assert names(server("GET", "/a/d")) == ["o"]
    broker = server.app.brokers.get(str(server.device), "0", "a", "d")
    assert broker.read(lambda c: broker.sync_point(c, "remote-id")) == 1
    assert broker.info().id != server.app.brokers.get(str(server.device), "0", "a", "c").info().id
    assert replicate(server, name_hash, "complete_rsync", "remote-id")[0] == 404
    arrive(server, "a", "c")
    assert replicate(server, name_hash, "complete_rsync", "remote-id")[0] == 404  # a database is there


def test_a_whole_file_arrives_and_ours_is_merged_into_it(server):
    server("PUT", "/a/c", {"X-Container-Meta-Theirs": "1"})
    server("PUT", "/a/c/theirs", ROW)
    arrive(server, "a", "c")
    server("PUT", "/a/d", {"X-Container-Meta-Ours": "1"})
    server("PUT", "/a/d/ours", ROW)
    assert replicate(server, server.db("a", "d").stem, "rsync_then_merge", "remote-id")[0] == 204
    assert names(server("GET", "/a/d")) == ["ours", "theirs"]
    headers = server("HEAD", "/a/d").headers
    assert headers["X-Container-Meta-Ours"] == headers["X-Container-Meta-Theirs"] == "1"
    assert headers["X-Container-Object-Count"] == "2"
    assert os.listdir(server.device / "tmp") == []
    assert replicate(server, server.db("a", "d").stem, "rsync_then_merge", "remote-id")[0] == 404


def test_what_arrives_and_is_no_database_is_refused(server):
    server("PUT", "/a/c")
    os.makedirs(server.device / "tmp")
    (server.device / "tmp" / "junk").write_bytes(b"junk" * 5000)
    for operation in ("complete_rsync", "rsync_then_merge"):
        name_hash = server.db("a", "c").stem if operation == "rsync_then_merge" else "0" * 32
        assert replicate(server, name_hash, operation, "junk")[0] == 400
    assert not (server.device / "quarantined").exists()
    assert server("GET", "/a/c").status == 204


def test_shard_ranges_of_a_peer(sharded, caplog):
    name_hash = sharded.db("a", "c").stem
    broker = sharded.app.brokers.get(str(sharded.device), "0", "a", "c")
    own = shard("a/c", "", "", State.SHARDED, epoch=Timestamp(1700000060), state_timestamp=Timestamp(1700000060))
    assert replicate(sharded, name_hash, "merge_shard_ranges", [own.to_dict()], "peer")[0] == 202
    assert broker.read(shard_rows.stored_own_range).epoch == Timestamp(1700000060)
    stale = shard("a/c", "", "", State.ACTIVE, state_timestamp=Timestamp(1700000070))
    assert replicate(sharded, name_hash, "merge_shard_ranges", [stale.to_dict()], "peer")[0] == 202
    assert "Ignoring remote osr w/o epoch" in caplog.text
    status, found = replicate(sharded, name_hash, "get_shard_ranges")
    assert status == 200 and [one["name"] for one in found] == [".shards_a/c-1", ".shards_a/c-2", "a/c"]
    assert found[2]["epoch"] == "1700000060.00000"


# -- the factory -------------------------------------------------------------------------------------------------------


def test_the_factory(tmp_path, caplog):
    from keelstore.common.errors import ConfigError
    from keelstore.container.server import app_factory

    (tmp_path / "keelstore.conf").write_text("[swift-hash]\nswift_hash_path_suffix = x\n")
    conf = {"swift_dir": str(tmp_path), "devices": str(tmp_path), "bind_port": "6201"}
    app = app_factory(conf, mount_check="false", fallocate_reserve="0", replicaton_server="false", log_level="DEBUG")
    assert app.options_common.mount_check is False
    assert "replicaton_server (did you mean replication_server?)" in caplog.text and "log_level" not in caplog.text
    with pytest.raises(ConfigError, match="node_timeout"):
        app_factory(conf, node_timeout="soon")
