import dataclasses
import json

import pytest

from keelstore.common import info
from keelstore.common.cache_embedded import EmbeddedCache
from keelstore.common.headers import Headers
from keelstore.common.http import Response
from keelstore.common.info import (
    AccountInfo,
    ContainerInfo,
    account_info,
    begin_change,
    clear_info,
    container_info,
    end_change,
    object_info,
)
from test.support.fakes import FakeCache, environ


class App:
    """Answers HEADs from a table of paths; ``asked`` are the environs."""

    def __init__(self, answers):
        self.answers, self.asked = answers, []

    def __call__(self, env, start_response):
        self.asked.append(env)
        status, headers = self.answers.get(env["PATH_INFO"], (404, {}))
        return Response(status, Headers(headers), b"")(env, start_response)


@pytest.fixture
def app():
    return App({
        "/v1/a": (204, {"X-Account-Container-Count": "7", "X-Account-Meta-Color": "red", "X-Account-Sysmeta-S": "t"}),
        "/v1/a/c": (204, {"X-Container-Object-Count": "3", "X-Container-Bytes-Used": "9", "X-Container-Read": "r",
                          "X-Backend-Storage-Policy-Index": "1", "X-Backend-Sharding-State": "sharded"}),
        "/v1/a/v": (204, {"X-Container-Bytes-Used": "5", "X-Container-Sysmeta-Versions-Container": "c"}),
        "/v1/.dot/c": (204, {}),
        "/v1/a/c/o": (200, {"Content-Length": "12", "Etag": "e", "X-Object-Meta-K": "v"}),
        "/v1/broken": (503, {}), "/v1/faked": (200, {"X-Backend-Fake-Account-Listing": "yes"}),
    })


def test_account(app):
    found = account_info(environ("GET", "/v1/a/c/o"), app)
    assert (found.container_count, found.meta, found.sysmeta, found.really_exists) == (7, {"color": "red"}, {"s": "t"}, True)


def test_container(app):
    found = container_info(environ("GET", "/v1/a/c/o"), app)
    assert (found.object_count, found.bytes, found.read_acl, found.storage_policy) == (3, 9, "r", 1)
    assert found.sharding_state == "sharded"
    assert [env["PATH_INFO"] for env in app.asked] == ["/v1/a", "/v1/a/c"]


def test_the_question_is_the_clusters_own(app):
    client = environ("PUT", "/v1/a/c/o", {"X-Auth-Token": "secret", "Origin": "http://x", "X-Timestamp": "1"}, query="x=y")
    container_info(client, app)
    asked = app.asked[-1]
    assert asked["REQUEST_METHOD"] == "HEAD"
    assert asked["QUERY_STRING"] == ""
    assert asked["swift.source"] == "GET_CONTAINER_INFO"
    assert asked["REMOTE_USER"] == ".wsgi.pre_authed"
    assert asked["HTTP_X_BACKEND_ALLOW_RESERVED_NAMES"] == "true"
    for key in ("HTTP_X_AUTH_TOKEN", "HTTP_ORIGIN", "HTTP_X_TIMESTAMP"):
        assert key not in asked


def test_a_request_asks_once(app):
    env = environ("GET", "/v1/a/c")
    assert container_info(env, app) is container_info(env, app)
    account_info(env, app)
    assert len(app.asked) == 2
    clear_info(env, "a", "c")
    container_info(env, app)
    assert len(app.asked) == 3


def test_missing_account_means_no_container(app):
    assert container_info(environ("GET", "/v1/nosuch/c"), app).status == 0
    assert container_info(environ("GET", "/v1/faked/c"), app).status == 0
    assert container_info(environ("GET", "/v1/broken/c"), app).status == 503
    assert container_info(environ("GET", "/v1/.dot/c"), app).status == 204


def test_versions_count_as_bytes(app):
    assert container_info(environ("GET", "/v1/a/v"), app).bytes == 14


def test_object(app):
    env = environ("GET", "/v1/a/c/o")
    found = object_info(env, app)
    assert (found.length, found.etag, found.meta) == (12, "e", {"k": "v"})
    assert object_info(env, app) is found


def test_logged_app_is_asked(app):
    class Filter:
        logged_app = app

        def __call__(self, env, start_response):
            raise AssertionError

    assert account_info(environ("GET", "/v1/a"), Filter()).status == 204


def test_cached_values_are_parsed_once(app):
    cache = FakeCache()
    cache.set("container/a/c", ContainerInfo(status=204, bytes=5, meta={"a": "b"}).to_cache())
    first, second = ({**environ("GET", "/v1/a/c"), "swift.cache": cache} for _ in range(2))
    assert container_info(first, app) is container_info(second, app)
    assert not app.asked
    cache.set("container/a/c", ContainerInfo(status=204, bytes=6).to_cache())
    assert container_info({**environ("GET", "/v1/a/c"), "swift.cache": cache}, app).bytes == 6


@pytest.mark.parametrize("value", [{}, {"status": "x"}, [], "text", {"status": None}, {"status": 200, "bytes": "x"}])
def test_damaged_cache_values_are_asked_anew(app, value):
    cache = FakeCache()
    cache.set("container/a/c", value)
    assert container_info({**environ("GET", "/v1/a/c"), "swift.cache": cache}, app).object_count == 3


def test_round_trip_and_nulls():
    one = AccountInfo(204, 1, 2, 3, {0: {"bytes": 5}}, {"a": "b"}, {"c": "d"}, True)
    assert AccountInfo.from_cache(json.loads(json.dumps(one.to_cache()))) == one
    two = dataclasses.replace(ContainerInfo(), status=204, read_acl="x", meta={"a": "b"}, storage_policy=2)
    assert ContainerInfo.from_cache(json.loads(json.dumps(two.to_cache()))) == two
    assert ContainerInfo.from_cache({"status": 204, "bytes": None, "storage_policy": None}).bytes == 0


def test_times():
    cache = FakeCache()
    env = {"swift.cache": cache}
    for status, really, expected in ((204, True, 60), (404, False, 6), (410, False, 6), (200, False, 6)):
        info.remember(env, "account/x", AccountInfo(status, really_exists=really), 60)
        assert cache.ttls["account/x"] == expected
    cache.values.clear()
    info.remember(env, "account/x", AccountInfo(503), 60)
    assert not cache.values


def test_while_a_container_changes_nothing_is_kept_and_the_newest_replica_is_asked(app):
    """Otherwise an answer from before the change, or of a replica that lags behind, is what everybody is told for a minute."""
    cache = FakeCache()
    env: dict = {"swift.cache": cache}
    old = ContainerInfo(204, read_acl="old")
    begin_change(env, "a", "c")
    info.remember({"swift.cache": cache}, "container/a/c", old, 60)
    assert "container/a/c" not in cache.values
    container_info(environ("GET", "/v1/a/c/o") | env, app)
    assert app.asked[-1]["HTTP_X_NEWEST"] == "true"
    end_change(env, "a", "c", is_everywhere=False)
    info.remember({"swift.cache": cache}, "container/a/c", old, 60)
    assert "container/a/c" not in cache.values and 1 < max(cache.ttls.values()) <= 60
    end_change(env, "a", "c", is_everywhere=True)
    info.remember({"swift.cache": cache}, "container/a/c", old, 60)
    assert "container/a/c" in cache.values
    container_info(environ("GET", "/v1/a/d/o") | env, app)
    assert "HTTP_X_NEWEST" not in app.asked[-1]


class Counted:
    """An embedded cache that counts what it is asked."""

    def __init__(self):
        self.cache, self.calls = EmbeddedCache(), []

    def __getattr__(self, name):
        def call(*args, **named):
            self.calls.append(name)
            return getattr(self.cache, name)(*args, **named)

        return call


def test_what_is_kept_already_costs_one_question():
    cache = Counted()
    env: dict = {"swift.cache": cache}
    found = info.container_info_of(204, Headers({"X-Container-Object-Count": "3", "X-Container-Meta-A": "\xc3\xa9", "X-Container-Read": "r"}))
    info.remember(env, "container/a/c", found, 60)
    assert cache.calls == ["get_beside", "set"]
    info.remember({"swift.cache": cache}, "container/a/c", dataclasses.replace(found), 60)
    assert cache.calls == ["get_beside", "set", "get_beside"]
    info.remember({"swift.cache": cache}, "container/a/c", dataclasses.replace(found, object_count=4), 60)
    assert cache.calls[3:] == ["get_beside", "set"]
    assert json.loads(cache.cache.get_raw("container/a/c"))["object_count"] == "4"


def test_while_it_changes_nothing_is_kept_in_a_cache_of_ours_either(app):
    cache = EmbeddedCache()
    env: dict = {"swift.cache": cache}
    old = ContainerInfo(204, read_acl="old")
    info.remember(env, "container/a/c", old, 60)
    begin_change(env, "a", "c")
    assert cache.get_raw("container/a/c") is None
    info.remember({"swift.cache": cache}, "container/a/c", old, 60)
    assert cache.get_raw("container/a/c") is None
    container_info(environ("GET", "/v1/a/c/o") | env, app)
    assert app.asked[-1]["HTTP_X_NEWEST"] == "true"
    end_change(env, "a", "c", is_everywhere=True)
    info.remember({"swift.cache": cache}, "container/a/c", old, 60)
    assert cache.get_raw("container/a/c")
