"""The verbs of the account server, over real files and real WSGI calls (``spec: backend-protocol 2``)."""

from __future__ import annotations

import json
import os

import pytest
from lxml import etree

from keelstore.common.http import call_app
from test.support.db_servers import account_server, environ

ROW = {"X-Put-Timestamp": "1700000001.00000", "X-Delete-Timestamp": "0", "X-Object-Count": "2", "X-Bytes-Used": "20"}


@pytest.fixture
def server(tmp_path):
    return account_server(tmp_path)


def names(response):
    return response.body.decode().splitlines()


def test_put_creates_then_updates(server):
    assert server("PUT", "/a", {"X-Account-Meta-A": "b"}).status == 201
    assert server("PUT", "/a", {"X-Account-Sysmeta-S": "t"}).status == 202
    headers = server("HEAD", "/a").headers
    assert (headers["X-Account-Meta-A"], headers["X-Account-Sysmeta-S"]) == ("b", "t")
    assert [headers[f"X-Account-{name}"] for name in ("Container-Count", "Object-Count", "Bytes-Used")] == ["0", "0", "0"]
    assert headers["X-Put-Timestamp"] == "1700000002.00000" and headers["Content-Length"] == "0"


def test_an_absent_account(server):
    assert [server(method, "/a").status for method in ("GET", "HEAD", "POST", "DELETE")] == [404] * 4
    assert server("PUT", "/a/c", ROW).status == 404
    assert os.listdir(server.device) == []


def test_delete(server):
    server("PUT", "/a")
    assert server("DELETE", "/a").status == 204
    for method, status in (("GET", 404), ("HEAD", 404), ("POST", 404), ("DELETE", 404), ("PUT", 403)):
        answer = server(method, "/a")
        assert (answer.status, answer.headers["X-Account-Status"]) == (status, "Deleted")
    assert server("PUT", "/a").body == b"Recently deleted"
    assert server("PUT", "/a/c", ROW).status == 404
    assert server("PUT", "/a/c", {**ROW, "X-Account-Override-Deleted": "yes"}).status == 201


def test_post_and_metadata_limits_over_many_posts(server):
    # S13
    server("PUT", "/a")
    assert server("POST", "/a", {"X-Account-Meta-A": "1"}).status == 204
    server("POST", "/a", {"X-Account-Meta-A": ""})
    assert "X-Account-Meta-A" not in server("HEAD", "/a").headers
    statuses = [server("POST", "/a", {f"X-Account-Meta-K{batch}-{n}": "v" for n in range(30)}).status for batch in range(5)]
    assert statuses == [204, 204, 204, 400, 400]
    assert server("PUT", "/a", {f"X-Account-Meta-L{n}": "v" for n in range(30)}).status == 400


def test_container_rows(server):
    server("PUT", "/a")
    assert server("PUT", "/a/c", {**ROW, "X-Backend-Storage-Policy-Index": "1", "X-Trans-Id": "tx"}).status == 201
    headers = server("HEAD", "/a").headers
    assert (headers["X-Account-Container-Count"], headers["X-Account-Object-Count"]) == ("1", "2")
    assert headers["X-Account-Storage-Policy-Silver-Bytes-Used"] == "20"
    (entry,) = json.loads(server("GET", "/a", query="format=json").body)
    assert entry == {"name": "c", "count": 2, "bytes": 20, "last_modified": "2023-11-14T22:13:21.000000",
                     "storage_policy": "silver"}
    gone = {**ROW, "X-Delete-Timestamp": "1700000009.00000", "X-Object-Count": "0", "X-Bytes-Used": "0"}
    assert server("PUT", "/a/c", gone).status == 204
    assert server("GET", "/a").status == 204
    assert server("PUT", "/a/c", ROW).status == 201  # older than the delete: it stays deleted
    assert server("GET", "/a").status == 204


def test_bad_rows(server):
    server("PUT", "/a")
    for change in ({"X-Put-Timestamp": "x"}, {"X-Object-Count": "x"}, {"X-Bytes-Used": "1e3"}, {"X-Backend-Storage-Policy-Index": "x"}):
        assert server("PUT", "/a/c", {**ROW, **change}).status == 400
    assert server("PUT", "/a/c").status == 400
    assert server("PUT", "/a/c", ROW, at="x").body == b"Invalid X-Timestamp header"
    assert server("GET", "/a").status == 204


def test_system_accounts_come_with_their_first_container(server):
    assert server("PUT", "/.expiring_objects/c", ROW).status == 201
    assert names(server("GET", "/.expiring_objects")) == ["c"]


def test_listings(server):
    server("PUT", "/a")
    for name in ("a", "b-1", "b-2", "c"):
        server("PUT", f"/a/{name}", ROW)
    server("PUT", "/a/\x00r", ROW)
    assert names(server("GET", "/a")) == ["a", "b-1", "b-2", "c"]
    assert names(server("GET", "/a", query="delimiter=-")) == ["a", "b-", "c"]
    assert names(server("GET", "/a", query="reverse=on&limit=2&prefix=b")) == ["b-2", "b-1"]
    assert names(server("GET", "/a", query="marker=b-1&end_marker=c")) == ["b-2"]
    assert names(server("GET", "/a", {"X-Backend-Allow-Reserved-Names": "true"}))[0] == "\x00r"
    answer = server("GET", "/a", query="limit=10001")
    assert (answer.status, answer.body) == (412, b"Maximum limit is 10000")
    assert server("GET", "/a", {"Accept": "image/png"}).status == 406
    assert server("GET", "/a", query="prefix=%ff").status == 400
    assert server("GET", "/a", query="format=xml").headers["Content-Type"] == "application/xml; charset=utf-8"
    assert server("GET", "/a", query="format=json&prefix=zzz").body == b"[]"


def test_the_account_name_is_escaped_in_xml(server):
    # S17
    name = "<>&\"'\x01\ufffe"
    server("PUT", f"/{name}")
    server("PUT", f"/{name}/{name}", ROW)
    root = etree.fromstring(server("GET", f"/{name}", query="format=xml").body)
    assert root.get("name") == "<>&\"'\ufffd\ufffd" == root.findtext("container/name")


@pytest.mark.parametrize("path", ["/../0/a", "/sda/../a", "/./0/a", "/sda/./a", "//0/a", "/../../etc/1/a", "/" + "d" * 300 + "/0/a"])
@pytest.mark.parametrize("method", ["PUT", "POST", "GET", "HEAD", "DELETE", "REPLICATE"])
def test_no_path_leaves_the_devices(server, tmp_path, path, method):
    # S53
    before = sorted(os.listdir(tmp_path.parent))
    for tail in ("", "/c"):
        answer = call_app(server.app, environ(method, path + tail, {"X-Timestamp": "1700000000.00000", **ROW}))
        assert answer.status in (400, 507)
    assert os.listdir(server.device) == [] and sorted(os.listdir(tmp_path.parent)) == before


def test_other_refusals(server):
    assert server("GET", "/a/c").status == 400
    assert server("PUT", "/a/c/o", ROW).status == 400
    assert server("UPDATE", "/a").status == 405
    assert server("PUT", "/a", at="x").status == 400
    answer = call_app(server.app, environ("PUT", "/sda/0/a\udcff"))
    assert (answer.status, answer.read()) == (412, b"Invalid UTF8")
    assert server("OPTIONS", "/a").headers["Allow"] == "DELETE, GET, HEAD, OPTIONS, POST, PUT, REPLICATE"


def test_an_unmounted_or_full_device_is_507(server):
    server("PUT", "/a")
    server.app.reserve = type(server.app.reserve).parse("100%")
    assert [server("PUT", "/a").status, server("POST", "/a").status, server("PUT", "/a/c", ROW).status] == [507] * 3
    assert server("DELETE", "/a").status == 204
    os.rename(server.device, server.root / "elsewhere")
    assert [server(method, "/a").status for method in ("PUT", "GET", "HEAD", "DELETE", "POST")] == [507] * 5


def test_a_corrupt_database_sends_the_proxy_elsewhere_once(server):
    server("PUT", "/a")
    server.app.brokers.close()
    server.db("a").write_bytes(b"")
    assert server("HEAD", "/a").status == 503
    assert server("HEAD", "/a").status == 404
    assert os.listdir(server.device / "quarantined/accounts") == [server.db("a").stem]


def test_replication(server):
    server("PUT", "/a", {"X-Account-Meta-A": "b"})
    server("PUT", "/a/c", ROW)
    name_hash = server.db("a").stem
    call = ["sync", 1, "0" * 32, "peer", "1600000000.00000", "1700000009.00000", "0", ""]
    answer = server("REPLICATE", f"/{name_hash}", body=json.dumps(call).encode())
    info = json.loads(answer.body)
    assert (info["count"], info["object_count"], info["max_row"], info["point"]) == (1, 2, 1, -1)
    assert "container_count" not in info and info["created_at"] == "1600000000.00000"
    rows = [{"ROWID": 4, "name": "d", "put_timestamp": "1700000001.00000", "delete_timestamp": "0", "object_count": 1,
             "bytes_used": 1, "deleted": 0, "storage_policy_index": 0}]
    answer = server("REPLICATE", f"/{name_hash}", body=json.dumps(["merge_items", rows, "peer"]).encode())
    assert answer.status == 202 and names(server("GET", "/a")) == ["c", "d"]
    info = json.loads(server("REPLICATE", f"/{name_hash}", body=json.dumps(call).encode()).body)
    assert info["point"] == 4
    assert server("REPLICATE", f"/{name_hash}", body=b'["merge_shard_ranges", []]').status == 400


# -- the factory -------------------------------------------------------------------------------------------------------


def test_the_factory(tmp_path, caplog):
    from keelstore.account.server import app_factory
    from keelstore.common.errors import ConfigError

    (tmp_path / "keelstore.conf").write_text("[swift-hash]\nswift_hash_path_suffix = x\n")
    conf = {"swift_dir": str(tmp_path), "devices": str(tmp_path), "bind_port": "6201"}
    app = app_factory(conf, mount_check="false", fallocate_reserve="0", replicaton_server="false", log_level="DEBUG")
    assert app.options_common.mount_check is False
    assert "replicaton_server (did you mean replication_server?)" in caplog.text and "log_level" not in caplog.text
    with pytest.raises(ConfigError, match="node_timeout"):
        app_factory(conf, node_timeout="soon")
