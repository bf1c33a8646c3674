"""Rows that a container server takes without a wait, an environ or a green thread: the same rows and answers as in full."""

from __future__ import annotations

import logging
import os

import pytest

from keelstore.common import wsgi
from keelstore.common.backend import Backend
from keelstore.common.headers import Headers
from keelstore.common.http import call_app
from keelstore.common.locks import lock_directory
from keelstore.common.middleware.healthcheck import Healthcheck, HealthcheckOptions
from keelstore.common.paste_config import Component, Configuration
from keelstore.common.ranges import ShardRange, State
from keelstore.common.room import Reserve
from keelstore.common.timestamp import Timestamp
from keelstore.container.broker import GRACE_S
from keelstore.container.shard_rows import merge_ranges
from test.support.db_servers import container_server, environ
from test.support.waiting import until

ADDRESS = ("127.0.0.1", 6201)
ROW = {"X-Size": "5", "X-Content-Type": "text/plain", "X-Etag": "d41d8cd98f00b204e9800998ecf8427e",
       "X-Backend-Accept-Redirect": "true", "X-Backend-Accept-Quoted-Location": "true"}


@pytest.fixture
def server(tmp_path):
    """With a container ``a/c`` of which it knows that it has no shards."""
    found = container_server(tmp_path)
    assert found("PUT", "/a/c").status == 201
    broker = found.app.brokers.get(str(found.device), "0", "a", "c")
    until(lambda: broker.settled_state() is not None, "a file that is not quite new")
    assert found("PUT", "/a/c/first", ROW).status == 201
    return found


def ask(server, method, path, headers=None, at=None):
    sent = Headers({**ROW, "X-Timestamp": at or server.tick()})
    sent.update(headers or {})
    return server.app.at_once(method, f"/sda/0{path}", sent)


def pending(server):
    path = f"{server.db('a', 'c')}.pending"
    with open(path, "rb") as file:
        return file.read()


@pytest.mark.parametrize(("method", "name", "headers"), [
    ("PUT", "o", {}),
    ("PUT", "über/日本//x", {"X-Backend-Storage-Policy-Index": "1"}),
    ("PUT", "o/", {"X-Content-Type-Timestamp": "1700000001.00000", "X-Meta-Timestamp": "1700000002.00000"}),
    ("DELETE", "o", {}),
])  # fmt: skip
def test_the_same_row_and_answer_as_in_full(server, method, name, headers):
    before = pending(server)
    at = server.tick()
    full = call_app(server.app, environ(method, f"/sda/0/a/c/{name}", {**ROW, "X-Timestamp": at, **headers}))
    middle = pending(server)
    quick = ask(server, method, f"/a/c/{name}", headers, at)
    assert quick is not None and (quick.status, quick.body, quick.app_iter) == (full.status, full.body, full.app_iter)
    assert quick.headers == full.headers
    assert len(middle) > len(before) and pending(server) == middle + middle[len(before):]


def test_a_row_is_listed(server):
    assert ask(server, "PUT", "/a/c/o").status == 201
    assert server("GET", "/a/c").body == b"first\no\n"
    assert server("DELETE", "/a/c/first", ROW).status == 204  # in full, since the file has changed
    assert server("GET", "/a/c").body == b"o\n"


@pytest.mark.parametrize(("method", "path", "headers"), [
    ("PUT", "/a/absent/o", {}), ("PUT", "/a/c", {}), ("PUT", "/a/c/", {}), ("PUT", "/a//o", {}), ("GET", "/a/c/o", {}),
    ("PUT", "/a/c/o\0", {}), ("PUT", "/a/c/o\udcff", {}),
    ("PUT", "/a/c/o", {"X-Size": None}), ("PUT", "/a/c/o", {"X-Size": "-1"}), ("PUT", "/a/c/o", {"X-Etag": None}),
    ("PUT", "/a/c/o", {"X-Content-Type": "\xc3\xbc"}), ("PUT", "/a/c/o", {"X-Timestamp": "now"}),
    ("PUT", "/a/c/o", {"X-Meta-Timestamp": "now"}), ("PUT", "/a/c/o", {"X-Backend-Storage-Policy-Index": "x"}),
    ("PUT", "/a/c/o", {"X-Backend-Accept-Redirect": None}), ("DELETE", "/a/c/o", {"X-Timestamp": None}),
])  # fmt: skip
def test_all_else_is_asked_in_full(server, method, path, headers):
    before = pending(server)
    assert ask(server, method, path, headers) is None
    assert pending(server) == before


def test_nothing_is_done_while_another_holds_the_lock(server):
    directory = os.path.dirname(server.db("a", "c"))
    before = pending(server)
    with lock_directory(directory):
        assert ask(server, "PUT", "/a/c/o") is None
    assert pending(server) == before
    assert ask(server, "PUT", "/a/c/o").status == 201


def test_a_slow_device_is_asked_in_full(server, monkeypatch):
    monkeypatch.setattr("keelstore.container.broker.is_off_limits", lambda device: device == "sda")
    assert ask(server, "PUT", "/a/c/o") is None


def test_what_waits_beyond_the_cap_is_merged_in_full(server, monkeypatch):
    monkeypatch.setattr("keelstore.common.pending.CAP", 0)
    assert ask(server, "PUT", "/a/c/o") is None
    assert server("PUT", "/a/c/o", ROW).status == 201
    assert pending(server) == b""


def test_a_full_device_takes_deletions_only(server):
    server.app.reserve = Reserve(100.0, True)
    assert ask(server, "PUT", "/a/c/o") is None
    assert ask(server, "DELETE", "/a/c/o").status == 204


def test_a_device_that_is_gone_is_asked_in_full(server):
    assert server.app.at_once("PUT", "/sdz/0/a/c/o", Headers({**ROW, "X-Timestamp": server.tick()})) is None


def test_rows_of_a_sharded_container_are_redirected(server):
    low = ShardRange(".shards_a/c-low", "", "m", Timestamp(server.tick()), state=State.ACTIVE)
    broker = server.app.brokers.get(str(server.device), "0", "a", "c")
    broker.write(lambda connection: merge_ranges(connection, [low]))
    assert ask(server, "PUT", "/a/c/b") is None
    assert server("PUT", "/a/c/b", ROW).status == 301
    assert ask(server, "PUT", "/a/c/b") is None


def other(server):
    """The database as another process has it open."""
    found = server.app.brokers.get(str(server.device), "0", "a", "c")
    return type(found)(found.path, found.device_path, logging.getLogger("test"))


def test_rows_are_taken_while_the_database_is_written(server, monkeypatch):
    broker = other(server)
    assert ask(server, "PUT", "/a/c/before").status == 201
    broker.write(lambda connection: None)
    assert ask(server, "PUT", "/a/c/o").status == 201, "its times tell nothing yet"
    until(lambda: broker.settled_state() is not None, "they do")
    mine = server.app.brokers.get(str(server.device), "0", "a", "c")
    assert mine._state_of(os.stat(mine.path)) != mine._rangeless
    mine._rangeless_at = 0.0
    assert ask(server, "PUT", "/a/c/o").status == 201, "it has looked"
    monkeypatch.setattr("keelstore.common.broker.RACY_NS", 10**18)
    assert ask(server, "PUT", "/a/c/o").status == 201
    mine._rangeless_at = 0.0
    assert ask(server, "PUT", "/a/c/o") is None, "too long ago, and its times still tell nothing"
    broker.close()


def test_ranges_that_another_writes_are_seen_soon(server):
    broker = other(server)
    assert ask(server, "PUT", "/a/c/before").status == 201
    low = ShardRange(".shards_a/c-low", "", "m", Timestamp(server.tick()), state=State.ACTIVE)
    broker.write(lambda connection: merge_ranges(connection, [low]))
    until(lambda: ask(server, "PUT", "/a/c/b") is None, "it is asked in full", GRACE_S)
    assert server("PUT", "/a/c/b", ROW).status == 301
    broker.close()


def test_lines_that_somebody_reads_are_written(server):
    logger = server.app.logger = logging.getLogger("test.at-once")
    logger.setLevel(logging.DEBUG)
    assert ask(server, "PUT", "/a/c/o") is None
    logger.setLevel(logging.INFO)
    assert ask(server, "PUT", "/a/c/o").status == 201


def test_a_backend_asks_so_first_and_in_full_where_that_says_nothing(server):
    app, asked = server.app, []

    def counted(environ, start_response):
        asked.append(environ["PATH_INFO"])
        return app(environ, start_response)

    counted.at_once = app.at_once
    backend = Backend(local={ADDRESS: counted})
    headers = Headers({**ROW, "X-Timestamp": server.tick()})
    assert backend.call(ADDRESS, "PUT", "/sda/0/a/c/o", headers).status == 201
    assert not asked
    assert backend.call(ADDRESS, "PUT", "/sda/0/a/absent/o", headers).status == 404
    assert asked == ["/sda/0/a/absent/o"]


def test_filters_are_passed_by_only_if_they_say_so(server):
    def built(*filters):
        config = Configuration("test.conf", {}, {})
        components = [Component("filter", f"filter:{number}", "other", "test:x", lambda _conf, _make=make: _make)
                      for number, make in enumerate(filters)]
        app = Component("app", "app:x", "other", "test:x", lambda _conf: server.app)
        return wsgi.build(components, app, config)

    def other(app):
        return lambda environ, start_response: app(environ, start_response)

    def healthcheck(app):
        return Healthcheck(app, HealthcheckOptions())

    assert built(healthcheck).at_once == server.app.at_once
    assert not hasattr(built(healthcheck, other), "at_once")
    assert not hasattr(built(other, healthcheck), "at_once")
