"""Account and container databases and servers beside Swift 2.38: each opens the other's files, both answer alike."""

from __future__ import annotations

import json
import logging
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
from lxml import etree

from keelstore.account.broker import AccountBroker
from keelstore.common.http import call_app
from keelstore.common.listing import ListingQuery, Subdir
from keelstore.common.timestamp import Timestamp
from keelstore.container import schema
from keelstore.container.broker import ContainerBroker
from test.support import db_servers

log = logging.getLogger("test")
CONF = """[swift-hash]
swift_hash_path_suffix = test
[storage-policy:0]
name = gold
default = yes
[storage-policy:1]
name = silver
[storage-policy:2]
name = bronze
"""

SWIFT = """
import io, json, sys
from swift.common import utils
root = args["root"]
utils.set_swift_dir(root)
utils.validate_configuration()
from swift.common import storage_policy
storage_policy.reload_storage_policies()
from swift.common.utils import Timestamp
from swift.container.backend import ContainerBroker
from swift.account.backend import AccountBroker
from swift.container.server import ContainerController
from swift.account.server import AccountController
answer = None

def call(app, method, path, headers, query, body):
    environ = {"REQUEST_METHOD": method, "PATH_INFO": path.encode().decode("latin-1"), "QUERY_STRING": query, "SCRIPT_NAME": "",
               "SERVER_NAME": "x", "SERVER_PORT": "80", "SERVER_PROTOCOL": "HTTP/1.1", "wsgi.url_scheme": "http",
               "wsgi.input": io.BytesIO(body.encode()), "wsgi.errors": sys.stderr, "CONTENT_LENGTH": str(len(body.encode()))}
    for name, value in headers.items():
        environ["HTTP_" + name.upper().replace("-", "_")] = value
    got = []
    text = b"".join(app(environ, lambda status, sent, info=None: got.append((status, sent))))
    return [int(got[0][0][:3]), {name.title(): value for name, value in got[0][1]}, text.decode("utf-8", "replace")]
"""


class Swift:
    """Runs code in the environment that has Swift; it leaves its result in ``answer``."""

    def __init__(self, python: str, root: Path):
        self.python, self.root = python, root
        (root / "swift.conf").write_text(CONF)

    def __call__(self, code: str, **args: Any) -> Any:
        script = f"import json, sys\nargs = json.load(sys.stdin)\n{SWIFT}\n{code}\nprint(json.dumps(answer))"
        run = subprocess.run([self.python, "-c", script], input=json.dumps({"root": str(self.root), **args}),
                             capture_output=True, text=True, check=False)  # fmt: skip
        assert run.returncode == 0, run.stderr
        return json.loads(run.stdout.splitlines()[-1])


@pytest.fixture
def swift(swift_python, tmp_path):
    return Swift(swift_python, tmp_path)


def brokers(root: Path) -> tuple[ContainerBroker, AccountBroker]:
    device = root / "sda"
    device.mkdir(exist_ok=True)
    return (ContainerBroker(str(device / "containers/0/abc/habc/habc.db"), str(device), log),
            AccountBroker(str(device / "accounts/0/abc/habc/habc.db"), str(device), log))


def listed(container: ContainerBroker, query: ListingQuery) -> list[str]:
    found = container.read(lambda connection: container.list_in(connection, query))
    return [entry.name if isinstance(entry, Subdir) else entry[0] for entry in found]


MAKE = """
import os
for kind in ("containers", "accounts"):
    os.makedirs(f"{root}/sda/{kind}/0/abc/habc", exist_ok=True)
container = ContainerBroker(f"{root}/sda/containers/0/abc/habc/habc.db", account="a", container="c")
container.initialize("1700000000.00000", 0)
account = AccountBroker(f"{root}/sda/accounts/0/abc/habc/habc.db", account="a")
account.initialize("1700000000.00000")
"""

OPEN = """
container = ContainerBroker(f"{root}/sda/containers/0/abc/habc/habc.db")
account = AccountBroker(f"{root}/sda/accounts/0/abc/habc/habc.db")
"""

STATE = """
answer = {"info": container.get_info(), "metadata": container.metadata, "state": container.get_db_state(),
          "objects": [list(row) for row in container.list_objects_iter(
              10000, "", "", "", "", storage_policy_index=container.storage_policy_index)],
          "account": account.get_info(), "stats": {str(k): v for k, v in account.get_policy_stats().items()},
          "containers": [list(row) for row in account.list_containers_iter(10000, "", "", "", "")]}
"""


def names_for_listing() -> list[str]:
    source = random.Random(5)
    letters = ["a", "b", "/", "//", "0", ".", "é", "\U0001f600", "~", "-"]
    return sorted({"".join(source.choice(letters) for _ in range(source.randint(1, 6))) for _ in range(300)})


def test_a_database_of_swift_is_ours(swift, tmp_path):
    swift(MAKE + """
container.put_object("ü/1", Timestamp(1700000001).internal, 5, "text/plain;swift_bytes=7", "e1")
container.put_object("gone", Timestamp(1700000001).internal, 5, "text/plain", "e2")
container.delete_object("gone", Timestamp(1700000002).internal)
container.put_object("other policy", Timestamp(1700000001).internal, 9, "text/plain", "e3", storage_policy_index=1,
                     ctype_timestamp=Timestamp(1700000005).internal, meta_timestamp=Timestamp(1700000006).internal)
container.update_metadata({"X-Container-Meta-A": ("b\\u00fc", "1700000001.00000")})
account.put_container("c", "1700000001.00000", "0", 5, 50, 1)
""")
    container, account = brokers(tmp_path)
    info = container.info()
    assert (info.object_count, info.bytes_used, info.metadata) == (1, 5, {"X-Container-Meta-A": ("bü", "1700000001.00000")})
    assert listed(container, ListingQuery(10)) == ["ü/1"]
    row = container.read(lambda c: c.execute("SELECT created_at FROM object WHERE storage_policy_index = 1").fetchone())
    assert row == ("1700000001.00000+61a80+186a0",)
    assert (account.info().container_count, account.info().object_count) == (1, 5)
    container.put_object("ours", "1700000003.00000", 1, "t", "e", 0)  # waits in the pending file, for Swift to merge
    account.put_container("ours", "1700000003.00000", "0", 1, 2, 0)
    state = swift(OPEN + STATE)
    assert [row[0] for row in state["objects"]] == ["ours", "ü/1"]
    assert state["info"]["object_count"] == 2 and state["info"]["hash"] == container.info().hash
    assert [row[0] for row in state["containers"]] == ["c", "ours"] and state["account"]["hash"] == account.info().hash
    container.close()
    account.close()


def test_a_database_of_ours_is_swifts(swift, tmp_path):
    container, account = brokers(tmp_path)
    container.initialize("a", "c", "1700000000.00000", 1)
    account.initialize("a", "1700000000.00000")
    container.put_object("ü/1", "1700000001.00000", 5, "text/plain", "e1", 1, "1700000005.00000", "1700000006.00000")
    container.put_object("wrong", "1700000001.00000", 5, "text/plain", "e1", 0)
    container.write(lambda c: container.update_metadata(c, {"X-Container-Meta-A": ("bü", "1700000001.00000")}))
    account.put_container("c", "1700000001.00000", "0", 5, 50, 1)
    state = swift(OPEN + """
container.put_object("swift's", Timestamp(1700000009).internal, 7, "text/plain", "e", storage_policy_index=1)
account.put_container("swift's", "1700000001.00000", "0", 1, 2, 0)
container.reclaim("1600000000.00000", "1600000000.00000")
""" + STATE)
    assert state["state"] == "unsharded" and state["metadata"] == {"X-Container-Meta-A": ["bü", "1700000001.00000"]}
    assert state["objects"] == [["swift's", "1700000009.00000", 7, "text/plain", "e"],
                                ["ü/1", "1700000006.00000", 5, "text/plain", "e1"]]
    assert (state["info"]["storage_policy_index"], state["info"]["bytes_used"]) == (1, 12)
    assert state["stats"]["1"] == {"container_count": 1, "object_count": 5, "bytes_used": 50}
    info = container.info()
    assert (info.object_count, info.bytes_used, info.hash) == (2, 12, state["info"]["hash"])
    assert account.info().container_count == 2
    container.close()
    account.close()


def test_rows_merge_alike(swift, tmp_path):
    source = random.Random(3)
    items = []
    for number in range(400):
        item: dict[str, Any] = {"name": f"o{source.randint(0, 40)}", "size": number, "etag": f"e{number}", "storage_policy_index": 0,
                "content_type": f"t/{number}", "deleted": 0,
                # no two alike: at equal times Swift keeps what came first, we what is greater
                "created_at": Timestamp.from_raw(170000000000000 + source.randint(0, 10**6) * 400 + number).internal,
                "ctype_timestamp": None, "meta_timestamp": None}  # fmt: skip
        if source.random() < 0.2:
            item.update(size=0, etag="noetag", content_type="application/deleted", deleted=1)
        elif source.random() < 0.4:
            item["ctype_timestamp"] = Timestamp(item["created_at"], delta=400 * source.randint(0, 10**5)).internal
            item["meta_timestamp"] = Timestamp(item["ctype_timestamp"], delta=400 * source.randint(0, 10**5)).internal
        items.append(item)
    theirs = swift(MAKE + """
for start in range(0, 400, 50):
    container.merge_items(args["items"][start:start + 50])
with container.get() as connection:
    answer = [list(row) for row in connection.execute(
        "SELECT name, created_at, size, content_type, etag, deleted FROM object ORDER BY name")]
""", items=items)
    (tmp_path / "sdb").mkdir()
    container = ContainerBroker(str(tmp_path / "sdb/containers/0/abc/x/x.db"), str(tmp_path / "sdb"), log)
    container.initialize("a", "c", "1700000000.00000", 0)
    source.shuffle(items)
    container.write(lambda c: container.merge_rows(c, items))
    ours = container.read(lambda c: c.execute(
        "SELECT name, created_at, size, content_type, etag, deleted FROM object ORDER BY name").fetchall())
    assert [list(row) for row in ours] == theirs
    container.close()


def test_many_rows_at_once_leave_a_database_of_swift_as_swift_would(swift, tmp_path):
    """A batch takes the triggers away for a moment (``container/row_batch``): those that are there afterwards are Swift's."""
    swift(MAKE + """
for number in range(100):
    container.put_object(f"o{number}", Timestamp(1700000001).internal, 5, "text/plain", "e", storage_policy_index=number % 2)
container._commit_puts()
""")
    triggers = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' ORDER BY name"
    container, account = brokers(tmp_path)
    before = container.read(lambda c: c.execute(triggers).fetchall())
    assert len(schema.row_triggers(container._connection)) == 2
    items = [{"name": f"o{number}", "created_at": "1700000002.00000", "size": number, "content_type": "t", "etag": "e",
              "deleted": number % 3 == 0, "storage_policy_index": number % 2} for number in range(50, 200)]
    container.write(lambda c: container.merge_rows(c, items))
    assert container.read(lambda c: c.execute(triggers).fetchall()) == before
    counts = "SELECT storage_policy_index, SUM(1 - deleted), SUM(size) FROM object GROUP BY 1 ORDER BY 1"
    counted = container.read(lambda c: [c.execute(counts).fetchall(), c.execute("SELECT * FROM policy_stat ORDER BY 1").fetchall()])
    assert counted[0] == counted[1]
    theirs = swift("items, root = args['items'], root + '/other'" + MAKE + """
for number in range(100):
    container.put_object(f"o{number}", Timestamp(1700000001).internal, 5, "text/plain", "e", storage_policy_index=number % 2)
container.merge_items(items)
answer = container.get_info()["hash"]
""", items=items)
    assert container.info().hash == theirs
    state = swift(OPEN + """
container.put_object("later", Timestamp(1700000009).internal, 7, "text/plain", "e")
container.delete_object("o1", Timestamp(1700000009).internal, storage_policy_index=1)
""" + STATE)
    info = container.info()
    assert (info.hash, info.object_count) == (state["info"]["hash"], state["info"]["object_count"])
    container.close()
    account.close()


def test_what_waits_for_a_container_that_is_being_sharded_waits_in_one_place(swift, tmp_path):
    found = swift(MAKE + """
container.put_object("old", Timestamp(1700000001).internal, 5, "text/plain", "e")
container.enable_sharding(Timestamp(1700000002))
assert container.set_sharding_state()
container.put_object("theirs", Timestamp(1700000003).internal, 5, "text/plain", "e")
answer = sorted(os.listdir(f"{root}/sda/containers/0/abc/habc"))
""")
    assert found == [".lock", "habc.db", "habc.db.pending", "habc_1700000002.00000.db"]
    container, _ = brokers(tmp_path)
    rows = "SELECT name FROM object ORDER BY name"
    assert not container.remove(lambda connection: True), "an update waits"
    assert container.read_fresh(lambda connection: connection.execute(rows).fetchall()) == [("theirs",)]
    assert not container.pending_size()
    container.put_object("ours", "1700000004.00000", 5, "text/plain", "e", 0)
    container.close()
    theirs = swift(OPEN + f"""
container._commit_puts()
with container.get() as connection:
    answer = [row[0] for row in connection.execute({rows!r})]
""")
    assert theirs == ["ours", "theirs"]


def test_listings_are_alike(swift, tmp_path):
    names, source = names_for_listing(), random.Random(7)

    def part(chance):
        return source.choice(names)[: source.randint(1, 4)] if source.random() < chance else ""

    queries = [
        {"limit": source.choice([1, 2, 5, 50]), "marker": part(0.5), "end_marker": part(0.3), "prefix": part(0.5),
         "delimiter": source.choice(["", "/", "//", "a", "é"]), "is_reverse": source.random() < 0.4}
        for _ in range(1000)
    ]  # fmt: skip
    theirs = swift(MAKE + """
container.merge_items([{"name": name, "created_at": "1700000001.00000", "size": 1, "content_type": "t", "etag": "e",
                        "deleted": 0, "storage_policy_index": 0} for name in args["names"]])
answer = [[row[0] for row in container.list_objects_iter(
    query["limit"], query["marker"], query["end_marker"], query["prefix"] or None, query["delimiter"] or None,
    reverse=query["is_reverse"])] for query in args["queries"]]
""", names=names, queries=queries)
    container, _ = brokers(tmp_path)
    for query, expected in zip(queries, theirs):
        assert listed(container, ListingQuery(**query)) == expected, query
    container.close()


# -- servers -----------------------------------------------------------------------------------------------------------

SERVE = """
app = (ContainerController if args["kind"] == "container" else AccountController)(
    {"devices": root, "mount_check": "false", "swift_dir": root, "fallocate_reserve": "0", "log_requests": "no"})
answer = [call(app, *request) for request in args["requests"]]
"""

# Content-Type of error pages differs in case and kind; times of creation are clocks. The rest is known and meant:
# a delete of an account tells its status here only when the account is gone already.
UNCOMPARED = {"X-Timestamp", "X-Backend-Timestamp", "Content-Length", "Date", "Content-Type", "X-Account-Status"}


def container_requests(source: random.Random) -> list[list[Any]]:
    def time():
        return f"17000{source.randint(1, 400):05d}.00000"

    found = []
    for _ in range(700):
        path = f"/sda/0{source.choice(['/a', '/.exp', '/.shards_a'])}/{source.choice(['c', 'd', 'ü'])}"
        headers, query, body = {"X-Timestamp": time()}, "", ""
        verb = source.choice(["PUT", "PUT", "GET", "GET", "HEAD", "POST", "DELETE", "row", "row", "row", "gone", "UPDATE"])
        if verb in ("row", "gone"):
            path += "/" + source.choice(["o1", "o2", "x/1", "x/2", "y&<é>", "\x00n"])
            if source.random() < 0.2:
                headers["X-Backend-Auto-Create"] = source.choice(["true", "false"])
            if verb == "row":
                headers.update({"X-Size": str(source.randint(0, 9)), "X-Etag": f"e{source.randint(0, 9)}",
                                "X-Content-Type": source.choice(["text/plain", "image/png;swift_bytes=77"])})  # fmt: skip
                if source.random() < 0.3:
                    headers["X-Meta-Timestamp"] = time()
            verb = "PUT" if verb == "row" else "DELETE"
        elif verb in ("PUT", "POST"):
            if source.random() < 0.4:
                headers[f"X-Container-Meta-{source.choice('AB')}"] = source.choice(["", "v", "w"])
            if verb == "PUT" and source.random() < 0.3:
                headers["X-Backend-Storage-Policy-Index"] = source.choice(["0", "1", "2", "9", "x"])
            if source.random() < 0.2:
                headers["X-Backend-No-Timestamp-Update"] = "true"
        elif verb in ("GET", "HEAD"):
            query = source.choice(["", "format=json", "format=json", "delimiter=/&format=xml", "prefix=x/", "limit=2", "limit=10001",
                                   "reverse=on", "marker=o1&format=json", "format=json&delimiter=/&limit=1", "marker=%ff"])  # fmt: skip
            if source.random() < 0.2:
                headers["Accept"] = source.choice(["application/json", "text/xml", "image/png", "*/*"])
            if source.random() < 0.1:
                headers["X-Backend-Storage-Policy-Index"] = source.choice(["0", "1"])
        elif verb == "UPDATE":
            body = source.choice(["[]", json.dumps([{
                "name": "u1", "created_at": "1700000100.00000", "size": 3, "content_type": "t", "etag": "e", "deleted": 0,
                "storage_policy_index": 0}])])  # fmt: skip
            if source.random() < 0.5:
                headers.update({"X-Backend-Auto-Create": "true", "X-Backend-Storage-Policy-Index": "0"})
        found.append([verb, path, headers, query, body])
    return found


def account_requests(source: random.Random) -> list[list[Any]]:
    found, clock = [], 1700000000
    for _ in range(500):
        clock += 1  # ever newer: about what is late we differ, and say so in doc/formats/databases.md
        path = f"/sda/0{source.choice(['/a', '/.exp', '/b'])}"
        headers, query = {"X-Timestamp": f"{clock}.00000"}, ""
        verb = source.choice(["PUT", "GET", "GET", "HEAD", "POST", "row", "row", "row"])
        if verb == "row":
            verb, count = "PUT", source.randint(0, 2)
            path += "/" + source.choice(["c1", "c2", "d-1", "d-2", "ü"])
            headers.update({"X-Put-Timestamp": f"{clock}.00000", "X-Object-Count": str(count), "X-Bytes-Used": str(count * 10),
                            "X-Delete-Timestamp": source.choice(["0", f"{clock}.50000"]),
                            "X-Backend-Storage-Policy-Index": str(source.randint(0, 1))})  # fmt: skip
        elif verb in ("PUT", "POST"):
            headers[f"X-Account-Meta-{source.choice('AB')}"] = source.choice(["", "v"])
        else:
            query = source.choice(["", "format=json", "format=xml", "delimiter=-", "prefix=d", "limit=1", "limit=10001", "reverse=on"])
        found.append([verb, path, headers, query, ""])
    return [*found, ["DELETE", "/sda/0/a", {"X-Timestamp": "1700009999.00000"}, "", ""],
            *(["GET", "/sda/0/a", {}, "", ""], ["PUT", "/sda/0/a", {"X-Timestamp": "1700010000.00000"}, "", ""])]  # fmt: skip


@pytest.mark.parametrize("kind", ["container", "account"])
def test_servers_answer_alike(swift, tmp_path, kind):
    (tmp_path / "sda").mkdir()
    requests = (container_requests if kind == "container" else account_requests)(random.Random(11))
    theirs = swift(SERVE, kind=kind, requests=requests)
    ours = tmp_path / "ours"
    ours.mkdir()
    server = (db_servers.container_server if kind == "container" else db_servers.account_server)(ours)
    for request, (status, headers, body) in zip(requests, theirs):
        verb, path, sent, query, text = request
        answer = call_app(server.app, db_servers.environ(verb, path, sent, query=query, body=text.encode()))
        found = (answer.read() or b"").decode()
        assert answer.status == status, (request, body, found)
        compared = {name: value for name, value in answer.headers.items() if name not in UNCOMPARED}
        expected = {name: value for name, value in headers.items() if name not in UNCOMPARED}
        if not (verb == "POST" and status == 404):  # ours tell why, theirs only sometimes
            assert compared == expected, request
        if status < 300 and verb == "GET":
            assert answer.headers["Content-Type"] == headers["Content-Type"], request
            if "json" in headers["Content-Type"]:
                assert json.loads(found) == json.loads(body), request
            elif "xml" in headers["Content-Type"]:
                assert etree.canonicalize(found) == etree.canonicalize(body), request
            else:
                assert found == body, request
