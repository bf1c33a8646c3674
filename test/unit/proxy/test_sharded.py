import json
from urllib.parse import parse_qs, quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keelstore.common.http import encode_query
from keelstore.common.listing import ListingQuery, Subdir, page
from keelstore.proxy.sharded import parse_namespaces
from test.unit.proxy.conftest import Proxy

C = "/v1/AUTH_a/c"


def entries_of(names, query):
    """One page as a container server gives it."""
    params = {key: values[-1] for key, values in parse_qs(query, keep_blank_values=True).items()}
    asked = ListingQuery(int(params.get("limit", 10000)), params.get("marker", ""), params.get("end_marker", ""),
                         params.get("prefix", ""), params.get("delimiter", ""), None, params.get("reverse") == "true")

    def seek(span, limit):
        found = sorted((name for name in names
                        if (not span.lower or name > span.lower or (span.is_lower_included and name == span.lower))
                        and (not span.upper or name < span.upper or (span.is_upper_included and name == span.upper))),
                       reverse=asked.is_reverse)
        return [(name,) for name in found[:limit]]

    return [{"subdir": entry.name} if isinstance(entry, Subdir) else {"name": entry[0], "bytes": 1}
            for entry in page(asked, seek)]


def sharded_proxy(names, bounds):
    """A proxy whose container AUTH_a/c is in shards that end at ``bounds``."""
    proxy = Proxy()
    edges = ["", *sorted(set(bounds)), ""]
    shards = [{"name": f".shards_AUTH_a/c-{n}", "lower": edges[n], "upper": edges[n + 1]} for n in range(len(edges) - 1)]

    def answer(call):
        if call.kind != "container" or call.method != "GET":
            return None
        headers = {"X-Backend-Storage-Policy-Index": "0", "X-Backend-Timestamp": "1.00000", "X-Put-Timestamp": "1.00000"}
        if call.path.endswith("/AUTH_a/c") and call.headers.get("X-Backend-Record-Type") != "object":
            return 200, {**headers, "X-Backend-Record-Type": "shard"}, json.dumps(shards).encode()
        shard = shards[int(call.path.rpartition("-")[2])]
        own = [n for n in names if n > shard["lower"] and (not shard["upper"] or n <= shard["upper"])]
        return (200, {**headers, "X-Backend-Record-Type": "object", "X-Backend-Record-Storage-Policy-Index": "0"},
                json.dumps(entries_of(own, call.query)).encode())

    proxy.backend.rules.append(answer)
    return proxy


names_of = st.lists(st.text("ab/c", min_size=1, max_size=4), max_size=14, unique=True)
word = st.text("ab/c", max_size=3)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names_of, st.lists(st.text("ab/c", min_size=1, max_size=3), max_size=4), st.fixed_dictionaries({}, optional={
    "marker": word, "end_marker": word, "prefix": word, "delimiter": st.sampled_from(["/", "a", "b/"]),
    "reverse": st.just("true"), "limit": st.sampled_from(["1", "2", "5"])}))
def test_shards_list_as_one(names, bounds, params):
    query = encode_query(params)
    response = sharded_proxy(names, bounds).ask("GET", C, query=query)
    assert response.status == 200
    assert json.loads(response.body) == entries_of(names, query)


def test_counts_of_an_unconstrained_listing():
    response = sharded_proxy(["a", "b", "c"], ["a", "b"]).ask("GET", C)
    assert response.headers["X-Container-Object-Count"] == "3"
    assert response.headers["X-Backend-Record-Type"] == "object"


@pytest.mark.parametrize("bad", [
    503, 404, (200, {"X-Backend-Storage-Policy-Index": "0"}, b"{"), (200, {"X-Backend-Storage-Policy-Index": "1"}, b"[]"),
])
def test_a_shard_that_fails_fails_the_listing(bad):
    proxy = sharded_proxy(["a", "b"], ["a"])
    proxy.backend.rules.insert(0, lambda call: bad if call.path.endswith("c-1") else None)
    assert proxy.ask("GET", C).status == 503


def test_explicit_record_types_are_left_alone():
    proxy = sharded_proxy(["a", "b"], ["a"])
    response = proxy.ask("GET", C, {"X-Backend-Record-Type": "shard"})
    assert len(json.loads(response.body)) == 2


def test_a_gap_is_the_roots_own_rows():
    proxy = sharded_proxy([], [])
    root = [{"name": "AUTH_a/c", "lower": "", "upper": ""}]
    headers = {"X-Backend-Storage-Policy-Index": "0", "X-Backend-Timestamp": "1.00000"}
    seen = []

    def answer(call):
        if call.kind == "container" and call.method == "GET":
            seen.append(call.headers["X-Backend-Record-Type"])
            if seen[-1] == "object":
                return 200, {**headers, "X-Backend-Record-Type": "object"}, b'[{"name": "x"}]'
            return 200, {**headers, "X-Backend-Record-Type": "shard"}, json.dumps(root).encode()
        return None

    proxy.backend.rules.insert(0, answer)
    assert json.loads(proxy.ask("GET", C).body) == [{"name": "x"}]
    assert seen == ["auto", "object"]


def test_rows_go_to_the_shard():
    proxy = Proxy()
    proxy.backend.container_headers["X-Backend-Sharding-State"] = "sharded"
    shard = json.dumps([{"name": ".shards_AUTH_a/c x", "lower": "", "upper": ""}]).encode()
    proxy.backend.rules.append(lambda call: (200, {"X-Backend-Record-Type": "shard"}, shard)
                               if call.kind == "container" and call.method == "GET" else None)
    proxy.backend.rules.append(lambda call: 201 if call.method == "PUT" else None)
    assert proxy.ask("PUT", f"{C}/obj", body=b"x").status == 201
    sent = proxy.sent("object", "PUT")[0].headers
    assert sent["X-Backend-Quoted-Container-Path"] == ".shards_AUTH_a/c%20x"
    assert sent["X-Container-Root-Db-State"] == "sharded"
    asked = proxy.sent("container", "GET")[0]
    assert "includes=obj" in asked.query
    assert "states=updating" in asked.query


@pytest.mark.parametrize("body", [b"{}", b"[1]", b'[{"name": "noslash", "lower": "", "upper": ""}]', b"x"])
def test_what_is_no_list_of_shards(body):
    with pytest.raises(ValueError):  # noqa: PT011 - any; the caller answers 503
        parse_namespaces(body)


def test_case_C15_rows_beyond_ascii_go_to_the_shard():
    """A PUT into a sharded container: what the object server is told of the shard is percent-encoded, and says the same names."""
    root, shard, name = "/v1/AUTH_a/ключ", ".shards_AUTH_a/осколок 日本", "ключ/日本"
    proxy = Proxy()
    proxy.backend.container_headers["X-Backend-Sharding-State"] = "sharded"
    body = json.dumps([{"name": shard, "lower": "", "upper": ""}]).encode()
    proxy.backend.rules.append(lambda call: (200, {"X-Backend-Record-Type": "shard"}, body)
                               if call.kind == "container" and call.method == "GET" else None)
    proxy.backend.rules.append(lambda call: 201 if call.method == "PUT" else None)
    assert proxy.ask("PUT", f"{root}/{name}", body=b"x").status == 201
    sent = proxy.sent("object", "PUT")[0].headers
    assert sent["X-Backend-Quoted-Container-Path"] == quote(shard)
    assert all(value.isascii() for key, value in sent.items() if key.startswith(("X-Container", "X-Backend-Quoted")))
    assert parse_qs(proxy.sent("container", "GET")[0].query)["includes"] == [name]
