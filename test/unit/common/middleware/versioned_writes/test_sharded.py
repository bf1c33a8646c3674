"""Versions of a container that is in shards, as its container of versions is (cases.md C07)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl

import pytest

from keelstore.common.middleware.symlink import Symlink, SymlinkOptions
from keelstore.common.middleware.versioned_writes import VersionedWrites, VersionedWritesOptions
from keelstore.common.middleware.versioned_writes.names import Version, version_name
from keelstore.common.timestamp import Timestamp
from test.support import fakes
from test.unit.common.middleware.versioned_writes.test_listing import listed
from test.unit.proxy.conftest import Proxy

HIDDEN = "\x00versions\x00c"
NAMES = ("a", "b", "c")
ROWS: dict[str, dict[str, Any]] = {}
for _name in NAMES:
    for _time in (1, 2, 3):
        ROWS[version_name(_name, Timestamp(_time))] = {"bytes": _time, "hash": "h", "content_type": "t", "last_modified": "l"}
    _target = Version("c", _name, Timestamp(3)).target
    ROWS[_name] = {"bytes": 0, "hash": f"e; symlink_target={_target}; symlink_target_etag=h; symlink_target_bytes=3",
                   "content_type": "t", "last_modified": "l"}


def container_servers(bounds: dict[str, list[str]]) -> Callable[[Any], Any]:
    """Container servers that hold ROWS; containers named in ``bounds`` are in shards that end there."""

    def shards_of(container: str) -> list[dict[str, str]]:
        edges = ["", *bounds[container], ""]
        return [{"name": f".shards_a/{container}-{n}", "lower": edges[n], "upper": edges[n + 1]} for n in range(len(edges) - 1)]

    def answer(call: Any) -> Any:
        if call.kind != "container":
            return 204, {"X-Account-Container-Count": "1", "X-Backend-Timestamp": "1.00000"}, b""
        _, _device, _part, account, container = call.path.split("/", 4)
        headers = {"X-Backend-Storage-Policy-Index": "0", "X-Backend-Timestamp": "1.00000", "X-Put-Timestamp": "1.00000",
                   "X-Backend-Record-Storage-Policy-Index": "0", "X-Container-Object-Count": "3",
                   "X-Container-Bytes-Used": "18", "Content-Type": "application/json; charset=utf-8"}
        if container == "c":
            headers["X-Container-Sysmeta-Versions-Container"] = "%00versions%00c"
            headers["X-Container-Sysmeta-Versions-Enabled"] = "True"
        if call.method == "HEAD":
            return 204, headers, b""
        if account == "a" and call.headers.get("X-Backend-Record-Type") != "object":
            return 200, {**headers, "X-Backend-Record-Type": "shard"}, json.dumps(shards_of(container)).encode()
        root, _, number = container.rpartition("-")
        shard = shards_of(root)[int(number)]
        own = [name for name in ROWS if (name[0] == "\x00") == (root == HIDDEN) and name > shard["lower"]
               and (not shard["upper"] or name <= shard["upper"])]
        if root == HIDDEN:
            assert call.headers["X-Backend-Allow-Reserved-Names"] == "true"
        entries = listed([{"name": name, **ROWS[name]} for name in own], dict(parse_qsl(call.query)))
        return 200, {**headers, "X-Backend-Record-Type": "object"}, json.dumps(entries).encode()

    return answer


@pytest.mark.parametrize("limit", [1, 2, 5, 100])
def test_case_C07_versions_of_a_sharded_container_are_all_listed(limit: int) -> None:
    proxy = Proxy()
    middle = version_name("b", Timestamp(2))  # a shard that ends among the versions of one object
    proxy.backend.rules.append(container_servers({"c": ["a", "b"], HIDDEN: [middle, "\x00c"]}))
    app = VersionedWrites(Symlink(proxy.app, SymlinkOptions()), VersionedWritesOptions(True, True))
    found: list[tuple[str, str, bool]] = []
    query = f"versions&limit={limit}"
    while True:
        response = fakes.ask(app, "GET", "/v1/a/c", query=query, swift__cache=proxy.cache, swift_owner=True)
        assert response.status == 200, response.body
        page = [(entry["name"], entry["version_id"], entry["is_latest"]) for entry in json.loads(response.body or b"")]
        found += page
        if len(page) < limit:
            break
        query = f"versions&limit={limit}&marker={page[-1][0]}&version_marker={page[-1][1]}"
    assert found == [(name, Timestamp(time).internal, time == 3) for name in NAMES for time in (3, 2, 1)]
