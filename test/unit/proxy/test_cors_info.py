import json
import time

import pytest

from keelstore import SWIFT_VERSION, __version__
from keelstore.common import registry
from keelstore.proxy.app import publish
from keelstore.proxy.info_endpoint import signature
from test.support.fakes import fake_cluster

C = "/v1/AUTH_a/c"
META = "X-Container-Meta-Access-Control-"


@pytest.fixture
def site(proxy):
    proxy.backend.container_headers.update({f"{META}Allow-Origin": "http://a http://b", f"{META}Max-Age": "60",
                                            f"{META}Expose-Headers": "X-Foo", "X-Container-Meta-Color": "red"})
    return proxy


def test_preflight(site):
    response = site.ask("OPTIONS", f"{C}/o", {"Origin": "http://b", "Access-Control-Request-Method": "PUT",
                                              "Access-Control-Request-Headers": "x-a, x-b,x-a"})
    assert response.status == 200
    assert response.headers["Access-Control-Allow-Origin"] == "http://b"
    assert response.headers["Access-Control-Max-Age"] == "60"
    assert "PUT" in response.headers["Access-Control-Allow-Methods"]
    assert response.headers["Access-Control-Allow-Headers"] == "x-a, x-b"
    assert response.headers["Vary"] == "Origin, Access-Control-Request-Headers"


@pytest.mark.parametrize(("origin", "method"), [("http://c", "GET"), ("http://a", "COPY"), ("http://a", None), ("http://a", "UPDATE")])
def test_preflight_refused(site, origin, method):
    response = site.ask("OPTIONS", C, {"Origin": origin, "Access-Control-Request-Method": method})
    assert response.status == 401
    assert "Allow" in response.headers
    assert not [name for name in response.headers if name.startswith("Access-Control")]


def test_options_without_origin(site):
    for path in ("/v1/AUTH_a", C, f"{C}/o"):
        response = site.ask("OPTIONS", path)
        assert response.status == 200
        assert "GET" in response.headers["Allow"]


def test_actual_requests(site):
    headers = site.ask("HEAD", C, {"Origin": "http://a"}).headers
    assert headers["Access-Control-Allow-Origin"] == "http://a"
    exposed = set(headers["Access-Control-Expose-Headers"].split(", "))
    assert {"etag", "x-trans-id", "x-foo", "x-container-meta-color"} <= exposed
    assert "Access-Control-Allow-Origin" not in site.ask("HEAD", C, {"Origin": "http://c"}).headers
    assert "Access-Control-Allow-Origin" not in site.ask("HEAD", C).headers


def test_any_origin(proxy):
    proxy.backend.container_headers[f"{META}Allow-Origin"] = "*"
    headers = proxy.ask("HEAD", f"{C}/o", {"Origin": "http://x"}).headers
    assert headers["Access-Control-Allow-Origin"] == "*"
    assert "Vary" not in headers


def test_cluster_wide_origins(make_proxy):
    proxy = make_proxy(cors_allow_origin=("http://x",))
    proxy.backend.rules.append(lambda call: 404 if call.kind == "container" else None)
    preflight = {"Origin": "http://x", "Access-Control-Request-Method": "GET"}
    assert proxy.ask("OPTIONS", C, preflight).status == 200


def test_lax_mode(make_proxy):
    proxy = make_proxy(strict_cors_mode=False)
    assert proxy.ask("HEAD", C, {"Origin": "http://y"}).headers["Access-Control-Allow-Origin"] == "http://y"


# -- /info -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def published(make_proxy):
    registry.forget_all()
    proxy = make_proxy(admin_key="adminkey")
    publish(proxy.options, fake_cluster())
    yield proxy
    registry.forget_all()


def test_info(published):
    response = published.ask("GET", "/info")
    assert (response.status, response.headers["Content-Type"]) == (200, "application/json; charset=UTF-8")
    swift = json.loads(response.body)["swift"]
    assert (swift["version"], json.loads(response.body)["keelstore"]["version"]) == (SWIFT_VERSION, __version__)
    assert swift["max_file_size"] == 5368709122
    assert {"name": "gold", "aliases": "gold, first", "default": True} in swift["policies"]
    assert "valid_api_versions" not in swift
    assert "admin" not in json.loads(response.body)
    assert published.ask("HEAD", "/info").status == 200
    assert published.ask("OPTIONS", "/info").headers["Allow"] == "HEAD, GET, OPTIONS"
    assert published.ask("POST", "/info").status == 405
    assert published.ask("GET", "/info", {"Origin": "http://x"}).headers["Access-Control-Allow-Origin"] == "http://x"


def test_signature_of_the_specification():
    assert signature("adminkey", "GET", 1700000000) == "7fb5ca53cc66406d58582a1ef4422d4a58905f38"


@pytest.mark.parametrize(("method", "signed", "age", "expected"), [
    ("GET", "GET", 60, 200), ("HEAD", "GET", 60, 200), ("HEAD", "HEAD", 60, 200), ("GET", "HEAD", 60, 401), ("GET", "GET", -60, 401),
])
def test_admin_info(published, method, signed, age, expected):
    expires = int(time.time()) + age
    query = f"swiftinfo_sig={signature('adminkey', signed, expires)}&swiftinfo_expires={expires}"
    response = published.ask(method, "/info", query=query)
    assert response.status == expected
    if expected == 200 and method == "GET":
        assert "disallowed_sections" in json.loads(response.body)["admin"]


@pytest.mark.parametrize("query", ["swiftinfo_sig=x&swiftinfo_expires=y", "swiftinfo_sig=%FF&swiftinfo_expires=99999999999"])
def test_bad_signatures_are_401(published, query):
    assert published.ask("GET", "/info", query=query).status == 401


def test_info_can_be_switched_off(make_proxy):
    assert make_proxy(expose_info=False).ask("GET", "/info").status == 403
    assert make_proxy().ask("GET", "/info", query="swiftinfo_sig=a&swiftinfo_expires=1").status == 403
