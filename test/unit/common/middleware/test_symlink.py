"""symlink over objects in memory: what the live tests do not reach."""

import json
from hashlib import md5

import pytest

from keelstore.common import registry
from keelstore.common.http import Response
from keelstore.common.middleware.symlink import (
    EMPTY_ETAG,
    OVERRIDE,
    Symlink,
    SymlinkOptions,
    filter_factory,
    with_links,
)
from test.unit.common.middleware.helpers import Got, Inner, call, make_environ
from test.unit.common.middleware.objects_app import ObjectsApp

ETAG = md5(b"target").hexdigest()
_PREFIX = "X-Object-Sysmeta-Symlink-Target"


class Setup:
    def __init__(self):
        self.store = ObjectsApp()
        self.app = Symlink(self.store, SymlinkOptions())
        self.store.put("/c/t", b"target", Content_Type="a/b")

    def call(self, method="GET", path="/v1/a/c/l", **extra):
        return call(self.app, method, path, **extra)

    def link(self, target="c/t", name="l", **more):
        headers = {"X-Symlink-Target": target, **{f"X-Symlink-Target-{key}": value for key, value in more.items()}}
        return self.call("PUT", f"/v1/a/c/{name}", body=b"", headers=headers)

    def stored(self, name="l"):
        return self.store.objects[f"/v1/a/c/{name}"].headers


@pytest.fixture
def setup():
    return Setup()


def test_what_a_dynamic_link_is_stored_with(setup):
    assert setup.link("c/t%20x", Account="b").status == 201
    assert setup.stored() == {
        _PREFIX: "c/t%20x", f"{_PREFIX}-Account": "b", "Content-Type": "application/symlink",
        "X-Object-Sysmeta-Container-Update-Override-Etag":
            f"{EMPTY_ETAG}; symlink_target=c/t%20x; symlink_target_account=b"}


def test_what_a_static_link_is_stored_with(setup):
    assert setup.link(Etag=ETAG).status == 201
    assert setup.stored() == {
        _PREFIX: "c/t", f"{_PREFIX}-Etag": ETAG, f"{_PREFIX}-Bytes": "6", "Content-Type": "a/b",
        "X-Object-Sysmeta-Container-Update-Override-Etag":
            f"{EMPTY_ETAG}; symlink_target=c/t; symlink_target_etag={ETAG}; symlink_target_bytes=6"}
    head = setup.store.environs[0]
    assert (head["REQUEST_METHOD"], head["PATH_INFO"], head["swift.source"]) == ("HEAD", "/v1/a/c/t", "SYM")


def test_a_static_link_to_a_large_object_has_its_size(setup):
    setup.store.put("/c/m", b"[]", X_Static_Large_Object="True", X_Object_Sysmeta_Slo_Etag="se", X_Object_Sysmeta_Slo_Size="99")
    assert setup.link("c/m", Etag=md5(b"[]").hexdigest()).status == 201
    assert setup.stored()[f"{_PREFIX}-Bytes"] == "99"
    assert setup.stored()["X-Object-Sysmeta-Container-Update-Override-Etag"].startswith(f"{EMPTY_ETAG}; slo_etag=se; ")


def test_a_trusted_writer_is_not_checked(setup):
    got = call(setup.app, "PUT", "/v1/a/c/l", body=b"", **{OVERRIDE: True}, headers={
        "X-Symlink-Target": "c/none", "X-Symlink-Target-Etag": "e", "X-Symlink-Target-Bytes": "7"})
    assert got.status == 201 and (setup.stored()[f"{_PREFIX}-Etag"], setup.stored()[f"{_PREFIX}-Bytes"]) == ("e", "7")
    assert setup.store.asked == ["PUT /v1/a/c/l"]


def test_a_target_that_cannot_be_looked_at_gives_its_own_status(setup):
    for status in (401, 403, 503):
        setup.store.fails["/v1/a/c/t"] = status
        got = setup.link(Etag=ETAG)
        assert got.status == status and got.headers["Content-Location"] == "/v1/a/c/t"


def test_static_links_that_go_round_end(setup):
    setup.link(Etag=ETAG, name="x")
    setup.stored("x")[_PREFIX] = "c/x"
    assert setup.link("c/x", Etag=ETAG).status == 409


def test_a_target_is_asked_with_what_is_meant_for_it(setup):
    setup.link()
    setup.store.environs.clear()
    setup.call(query="x=y&symlink=no", headers={
        "Range": "bytes=1-2", "If-Match": ETAG, "X-Newest": "true", "X-Auth-Token": "t", "X-Object-Meta-A": "1",
        "X-Copy-From": "x", "Cookie": "c", "X-Backend-Etag-Is-At": "e", "X-Open-Expired": "true"}, REMOTE_USER="u")
    _first, second = setup.store.environs
    assert {key for key in second if key.startswith("HTTP_")} == {
        "HTTP_RANGE", "HTTP_IF_MATCH", "HTTP_X_NEWEST", "HTTP_X_AUTH_TOKEN", "HTTP_X_BACKEND_ETAG_IS_AT",
        "HTTP_X_OPEN_EXPIRED", "HTTP_HOST"}
    assert (second["QUERY_STRING"], second["swift.source"], second["REMOTE_USER"]) == ("", "SYM", "u")


def test_every_step_is_authorized_anew(setup):
    setup.link("c/l2")
    setup.link("c/t", name="l2")
    asked = []
    call(setup.app, "GET", "/v1/a/c/l", **{"swift.authorize": lambda request: asked.append(request.path)})
    assert asked == ["/v1/a/c/l", "/v1/a/c/l2", "/v1/a/c/t"]
    denied = call(setup.app, "GET", "/v1/a/c/l", **{
        "swift.authorize": lambda request: Response(401) if request.path.endswith("l2") else None})
    assert (denied.status, denied.headers["Content-Location"]) == (401, "/v1/a/c/l2")


def test_links_of_other_filters(setup):
    """They lead into the reserved names, with the cluster's own rights, and do not count as one of the way."""
    for number in range(4):
        setup.store.put(f"/c/v{number}", b"", **{
            _PREFIX: f"c/v{number + 1}" if number < 3 else "%00v/%00t", "X-Object-Sysmeta-Symloop-Extend": "true",
            **({"X-Object-Sysmeta-Allow-Reserved-Names": "true"} if number == 3 else {})})
    setup.store.put("/\0v/\0t", b"version")
    asked = []
    got = call(setup.app, "GET", "/v1/a/c/v0", **{"swift.authorize": lambda request: asked.append(request.path)})
    assert got.body == b"version" and asked == [f"/v1/a/c/v{number}" for number in range(4)]
    assert setup.store.environs[-1]["HTTP_X_BACKEND_ALLOW_RESERVED_NAMES"] == "true"
    assert "HTTP_X_BACKEND_ALLOW_RESERVED_NAMES" not in setup.store.environs[-2]


def test_a_link_from_there_has_the_clients_rights_again(setup):
    setup.store.put("/c/v", b"", **{_PREFIX: "%00v/%00l", "X-Object-Sysmeta-Symloop-Extend": "true",
                                    "X-Object-Sysmeta-Allow-Reserved-Names": "true"})
    setup.store.put("/\0v/\0l", b"", **{_PREFIX: "d/secret"})
    setup.store.put("/d/secret", b"secret")
    got = call(setup.app, "GET", "/v1/a/c/v", **{
        "swift.authorize": lambda request: Response(403) if request.path == "/v1/a/d/secret" else None})
    assert got.status == 403 and b"secret" not in got.body


def test_what_is_no_link_passes_untouched(setup):
    setup.store.streams = True
    got = Got(setup.app, make_environ("GET", "/v1/a/c/t"), iterate=False)
    assert type(got.raw).__name__ == "_Parts" and setup.store.asked == ["GET /v1/a/c/t"]
    assert setup.call(path="/v1/a/c/t", query="symlink=get").body == b"target"
    assert setup.call("DELETE", path="/v1/a/c/t").status == 204
    assert setup.call(path="/v1/a/c/t").status == 404
    assert setup.call("PUT", "/v1/a/c/n", body=b"x", headers={"X-Symlink-Target-Etag": "e"}).status == 201
    assert setup.call("POST", "/v1/a/c/n").status == 202


def test_a_post_that_failed_is_not_told_as_done(setup):
    setup.link()
    setup.store.fails["/v1/a/c/l"] = 503
    assert setup.call("POST").status == 503


# -- listings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text,expected", [
    ("e", {"hash": "e"}),
    ("e; slo_etag=s", {"hash": "e; slo_etag=s"}),
    ("e; symlink_target=c/o", {"hash": "e", "symlink_path": "/v1/A%20%C3%A9/c/o"}),
    ("e; slo_etag=s; symlink_target=c/o%3B; symlink_target_account=b; symlink_target_etag=t; symlink_target_bytes=9",
     {"hash": "e; slo_etag=s", "symlink_path": "/v1/b/c/o%3B", "symlink_etag": "t", "symlink_bytes": 9}),
    ("e; symlink_target=c/o; symlink_target_bytes=x", {"hash": "e", "symlink_path": "/v1/A%20%C3%A9/c/o"}),
    ("e; symlink_target_etag=t", {"hash": "e; symlink_target_etag=t"}),
])
def test_with_links(text, expected):
    entries = [{"name": "n; symlink_target=x", "hash": text}, {"subdir": "d; symlink_target=x/"}]
    assert json.loads(with_links(json.dumps(entries).encode(), "v1", "A é")) == [
        {"name": "n; symlink_target=x", **expected}, entries[1]]


@pytest.mark.parametrize("data", [b"no JSON", b'{"a": 1}', b'[{"hash": 3}]', b"[7]"])
def test_with_links_leaves_what_is_no_listing(data):
    assert with_links(data, "v1", "a") == data


def test_a_container_is_listed_with_its_links(setup):
    setup.link(Etag=ETAG)
    got = setup.call(path="/v1/a/c")
    assert got.headers["Content-Length"] == str(len(got.body))
    assert {row["name"]: row.get("symlink_path") for row in got.json()} == {"l": "/v1/a/c/t", "t": None}


def test_factory():
    assert filter_factory({}, symloop_max="0")(Inner()).most == 2
    assert filter_factory({}, symloop_max="5")(Inner()).most == 5
    assert registry.published()["symlink"] == {"symloop_max": 5, "static_links": True}
