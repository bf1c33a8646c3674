"""Rows of the security list that the proxy answers for (S05, S13, S14, S44), and where requests go."""

import itertools

import pytest

from keelstore.common.http import Response
from test.support.fakes import Input
from test.support.waiting import quick

OBJ, C, A = "/v1/AUTH_a/c/o", "/v1/AUTH_a/c", "/v1/AUTH_a"

# Every header with which a storage server is told where to connect or what to believe; only the proxy may set them.
PLACES = [f"X-{level}-{what}" for level in ("Account", "Container", "Delete-At")
          for what in ("Host", "Device", "Partition", "Container", "Root-Db-State", "Override-Deleted")]
INTERNAL = [
    "X-Backend-Container-Path", "X-Backend-Quoted-Container-Path", "X-Backend-Next-Part-Power", "X-Backend-Replication",
    "X-Backend-Replication-Headers", "X-Backend-Ssync-Frag-Index", "X-Backend-No-Commit", "X-Backend-Obj-Content-Length",
    "X-Backend-Obj-Metadata-Footer", "X-Backend-Obj-Multipart-Mime-Boundary", "X-Backend-Obj-Multiphase-Commit",
    "X-Put-Timestamp", "X-Delete-Timestamp", "X-Object-Count", "X-Bytes-Used", "X-Size", "X-Etag", "X-Content-Type",
    "X-Meta-Timestamp", "X-Content-Type-Timestamp", "Content-Type-Timestamp", "X-Backend-Anything",
]
PRIVATE = ["X-Auth-Token", "X-Storage-Token", "X-Service-Token", "Authorization", "Cookie", "X-Forwarded-For", "Host"]
OWN = {"X-Container-Host", "X-Container-Device", "X-Container-Partition", "X-Container-Root-Db-State", "X-Account-Host",
       "X-Account-Device", "X-Account-Partition"}  # that the proxy itself sends


@pytest.mark.parametrize(("path", "method"), list(itertools.product((OBJ, C, A), ("GET", "HEAD", "PUT", "POST", "DELETE"))))
def test_no_header_of_a_client_tells_a_server_where_to_go(make_proxy, path, method):
    proxy = make_proxy(allow_account_management=True)
    proxy.backend.rules.append(lambda call: {"PUT": 201, "POST": 202, "DELETE": 204}.get(call.method))
    evil = dict.fromkeys(PLACES + INTERNAL + PRIVATE, "evil")
    proxy.ask(method, path, evil)
    sent = [call for call in proxy.backend.calls if call.method == method]
    assert sent
    for call in sent:
        for name, value in call.headers.items():
            assert value != "evil", name
        for name in set(PLACES + INTERNAL + PRIVATE) - OWN - {"X-Delete-At"}:
            assert name not in call.headers


def test_forwarded_object_headers_can_be_added(make_proxy):
    proxy = make_proxy(forwarded_object_headers=("x-custom",))
    proxy.backend.rules.append(lambda call: 201 if call.method == "PUT" else None)
    proxy.ask("PUT", OBJ, {"X-Custom": "kept", "X-Other": "dropped"}, b"")
    sent = proxy.sent("object", "PUT")[0].headers
    assert sent["X-Custom"] == "kept"
    assert "X-Other" not in sent


def test_removed_containers_headers_cannot_smuggle(proxy):
    proxy.script("container", "POST", 204, 204, 204)
    proxy.ask("POST", C, {"X-Remove-Account-Host": "x", "X-Remove-Backend-Foo": "x", "X-Remove-Container-Host": "x",
                          "X-Remove-Container-Sysmeta-A": "x", "X-Remove-Container-Meta-": "x"})
    sent = proxy.sent("container", "POST")[0].headers
    assert not {"X-Account-Host", "X-Backend-Foo", "X-Container-Host", "X-Container-Sysmeta-A"} & set(sent)


@pytest.mark.parametrize(("path", "level"), [(A, "Account"), (C, "Container"), (OBJ, "Object")])
def test_metadata_limits_hold_for_every_post(proxy, path, level):
    for headers in ({f"X-{level}-Meta-{n}": "v" for n in range(91)}, {f"X-{level}-Meta-{n}": "v" * 250 for n in range(17)}):
        assert proxy.ask("POST", path, headers).status == 400


@pytest.mark.parametrize("header", ["Range", "If-None-Match", "If-Match", "Accept", "X-Timestamp", "Referer", "X-Delete-At",
                                    "Content-Type"])
def test_header_parsing_takes_no_time(proxy, header):
    def ask() -> None:
        proxy.ask("GET", OBJ, {header: "bytes=" + ",".join(["0-0"] * 1500), "X-Container-Meta-A": '\\"' * 3000})
        proxy.ask("PUT", OBJ, {header: "\\" * 8000}, b"")

    quick(ask, 1)


def test_nothing_of_a_path_breaks_out_of_a_header(proxy):
    response = proxy.ask("GET", '/v1/AUTH_x\r\nSet-Cookie: a"<script>')
    for name, value in response.headers.items():
        assert "\r" not in value and "\n" not in value, name
    for call in proxy.backend.calls:
        assert "\r" not in call.headers["Referer"] and "\n" not in call.headers["Referer"]


def test_signatures_stay_out_of_backend_logs(proxy):
    proxy.ask("GET", OBJ, query="temp_url_sig=abc&temp_url_expires=9")
    assert "temp_url_sig" not in proxy.sent("object", "GET")[0].headers["Referer"]


# -- routing -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "expected"), [
    ("/", 404), ("", 404), ("/v1", 412), ("/v1/", 412), ("/x", 412), ("//a", 404), ("/v1//c", 404), ("/v1/a//o", 404),
    ("/v1///o", 404), ("/v2/a", 400), ("/v1/a", 204), ("/v1/a/", 204), ("/v1.0/a", 204), ("/v1/a/c/", 204), ("/v1/a/c//", 404),
    ("/v1/a/c/\x00", 412), ("/v1/\x00a", 412), ("/v1/a/\udcff", 412), ("/v1/a/c/\udced\udca0\udc80", 412),
])
def test_routes(proxy, path, expected):
    assert proxy.ask("HEAD", path).status == expected


def test_route_bodies(proxy):
    assert proxy.ask("GET", "/v1").body == b"Bad URL"
    assert proxy.ask("GET", "/v1/a/c/\x00").body == b"Invalid UTF8 or contains NULL"


@pytest.mark.parametrize(("path", "expected"), [
    ("/v1/a/\x00c/\x00o", 404), ("/v1/a/\x00c/o", 400), ("/v1/a/c/\x00o", 400), ("/v1/a/c\x00/o", 400),
])
def test_reserved_names_for_those_that_may(proxy, path, expected):
    assert proxy.ask("GET", path, {"X-Backend-Allow-Reserved-Names": "true"}).status == expected


def test_object_names_keep_their_slashes(proxy):
    proxy.ask("GET", "/v1/AUTH_a/c//o/../%2e/?é/")
    assert proxy.sent("object", "GET")[0].path.partition("/AUTH_a")[2] == "/c//o/../%2e/?é/"


def test_methods_not_allowed(proxy):
    response = proxy.ask("BREW", OBJ)
    assert response.status == 405
    assert set(response.headers["Allow"].split(", ")) == {"GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS"}
    assert "UPDATE" not in proxy.ask("BREW", C).headers["Allow"]


def test_denied_hosts(make_proxy):
    proxy = make_proxy(deny_host_headers=("Evil.example",))
    assert proxy.ask("GET", A, {"Host": "evil.example:8080"}).status == 403
    assert proxy.ask("GET", A, {"Host": "good.example"}).status == 204


def test_storage_token_is_a_token(proxy):
    seen = []
    proxy.ask("GET", A, {"X-Storage-Token": "t"}, swift__authorize=lambda request: seen.append(request.header("X-Auth-Token")))
    assert seen == ["t"]


def test_a_denial_leaves_the_body_unread(proxy):
    body = Input(b"data")
    response = proxy.ask("PUT", OBJ, {"Content-Length": "4"}, body, swift__authorize=lambda request: Response(401))
    assert response.status == 401
    assert not body.was_read


def test_a_fault_is_500_without_its_story(proxy):
    def broken(request):
        raise RuntimeError("secret")

    response = proxy.ask("GET", A, swift__authorize=broken)
    assert response.status == 500
    assert b"secret" not in response.body
