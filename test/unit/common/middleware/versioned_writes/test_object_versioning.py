"""Object versioning through a whole cluster in this process."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from keelstore.common import registry
from keelstore.common.errors import ConfigError
from keelstore.common.http import Response
from keelstore.common.middleware.symlink import filter_factory as symlink_factory
from keelstore.common.middleware.versioned_writes import (
    VersionedWrites,
    VersionedWritesOptions,
    filter_factory,
    named,
    shown,
)
from keelstore.common.middleware.versioned_writes.names import MARKER_TYPE, version_name
from keelstore.common.timestamp import Timestamp
from test.support import fakes

ID, CURRENT = "X-Object-Version-Id", "X-Object-Current-Version-Id"


@pytest.fixture
def versioned(store: Any) -> Any:
    store.put("/c", X_Versions_Enabled="true")
    return store


def versions(store: Any, query: str = "") -> list[tuple[str, str, bool]]:
    response = store.get("/c", f"versions&{query}")
    assert response.status == 200, response.body
    return [(entry["name"], entry["version_id"], entry["is_latest"]) for entry in json.loads(response.body)]


def test_each_put_is_a_version(versioned: Any) -> None:
    first = versioned.put("/c/o.txt", b"one", X_Object_Meta_A="1")
    second = versioned.put("/c/o.txt", b"two!")
    assert first.headers["Etag"] == "f97c5d29941bfb1b2fdab0874906ab82"
    assert [versions(versioned)] == [[("o.txt", second.headers[ID], True), ("o.txt", first.headers[ID], False)]]
    current = versioned.get("/c/o.txt")
    assert (current.body, current.headers[ID]) == (b"two!", second.headers[ID])
    assert current.headers["Content-Location"] == f"/v1/a/c/o.txt?version-id={second.headers[ID]}"
    assert current.headers["Content-Type"] == "text/plain"
    old = versioned.get("/c/o.txt", f"version-id={first.headers[ID]}")
    assert (old.body, old.headers[ID], old.headers["X-Object-Meta-A"]) == (b"one", first.headers[ID], "1")
    listing = json.loads(versioned.get("/c", "format=json").body)
    assert [(entry["name"], entry["bytes"], entry["version_symlink"], entry["symlink_path"]) for entry in listing] == [
        ("o.txt", 4, True, f"/v1/a/c/o.txt?version-id={second.headers[ID]}")]
    assert versioned.ask("HEAD", "/c").headers["X-Container-Bytes-Used"] == "7"


def test_where_versions_are_kept(versioned: Any) -> None:
    version_id = versioned.put("/c/o", b"one").headers[ID]
    rows = json.loads(versioned.hidden("GET", "/\x00versions\x00c", query="format=json").body)
    assert [row["name"] for row in rows] == [version_name("o", Timestamp(version_id))]
    link = versioned.cluster.ask("HEAD", "/v1/a/c/o").headers
    target = f"%00versions%00c/%00o%00{Timestamp(version_id).invert().internal}"
    assert {name: value for name, value in link.items() if name.startswith("X-Object-Sysmeta-")} == {
        "X-Object-Sysmeta-Allow-Reserved-Names": "true", "X-Object-Sysmeta-Symloop-Extend": "true",
        "X-Object-Sysmeta-Versions-Symlink": "true", "X-Object-Sysmeta-Symlink-Target": target,
        "X-Object-Sysmeta-Symlink-Target-Etag": "f97c5d29941bfb1b2fdab0874906ab82",
        "X-Object-Sysmeta-Symlink-Target-Bytes": "3",
        "X-Object-Sysmeta-Container-Update-Override-Etag":
            f"d41d8cd98f00b204e9800998ecf8427e; symlink_target={target}; "
            "symlink_target_etag=f97c5d29941bfb1b2fdab0874906ab82; symlink_target_bytes=3",
    }  # fmt: skip
    assert link["X-Backend-Timestamp"] == f"{version_id}_0000000000000001"


def test_a_delete_leaves_a_marker(versioned: Any) -> None:
    version_id = versioned.put("/c/o", b"one").headers[ID]
    gone = versioned.ask("DELETE", "/c/o")
    assert gone.status == 204
    assert versioned.get("/c/o").status == 404
    assert versions(versioned) == [("o", gone.headers[ID], True), ("o", version_id, False)]
    marker = versioned.get("/c/o", f"version-id={gone.headers[ID]}")
    assert (marker.status, marker.headers[ID], marker.headers["Content-Type"]) == (404, gone.headers[ID], MARKER_TYPE)
    again = versioned.ask("DELETE", "/c/o")
    assert (again.status, len(versions(versioned))) == (404, 3)
    restored = versioned.ask("PUT", "/c/o", query=f"version-id={version_id}")
    assert (restored.status, restored.headers[ID]) == (201, version_id)
    assert versioned.get("/c/o").body == b"one"
    assert [key for key in versions(versioned) if key[2]] == [("o", version_id, True)]
    assert versioned.ask("PUT", "/c/o", query=f"version-id={gone.headers[ID]}").status == 404


def test_deleting_versions_for_good(versioned: Any) -> None:
    first, second = (versioned.put("/c/o", body).headers[ID] for body in (b"1", b"22"))
    gone = versioned.ask("DELETE", "/c/o", query=f"version-id={first}")
    assert (gone.status, gone.headers[ID], gone.headers[CURRENT]) == (204, first, second)
    gone = versioned.ask("DELETE", "/c/o", query=f"version-id={second}")
    assert (gone.status, gone.headers[CURRENT]) == (204, "null")
    assert (versioned.get("/c/o").status, versions(versioned)) == (404, [])
    gone = versioned.ask("DELETE", "/c/o", query=f"version-id={second}")
    assert (gone.status, gone.headers[ID]) == (404, second)


def test_null_versions(store: Any) -> None:
    store.put("/c")
    store.put("/c/o", b"null", X_Object_Meta_A="1", Content_Type="a/b")
    assert store.get("/c/o").headers.get(ID) is None
    assert versions(store) == [("o", "null", True)]
    assert store.ask("POST", "/c", {"X-Versions-Enabled": "true"}).status == 204
    assert store.get("/c/o").headers[ID] == "null"
    assert store.get("/c/o", "version-id=null").headers[ID] == "null"
    second = store.put("/c/o", b"two").headers[ID]
    assert store.get("/c/o", "version-id=null").status == 404
    found = versions(store)
    assert [key[2] for key in found] == [True, False] and found[0][1] == second
    kept = store.get("/c/o", f"version-id={found[1][1]}")
    assert (kept.body, kept.headers["X-Object-Meta-A"], kept.headers["Content-Type"]) == (b"null", "1", "a/b")
    assert store.ask("POST", "/c", {"X-Versions-Enabled": "false"}).status == 204
    assert store.put("/c/o", b"null again").headers.get(ID) is None
    assert versions(store)[0] == ("o", "null", True) and len(versions(store)) == 3
    assert store.ask("DELETE", "/c/o", query="version-id=null").status == 204
    assert [key[2] for key in versions(store)] == [False, False]


def test_a_delete_keeps_what_was_written_without_versions(store: Any) -> None:
    store.put("/c")
    store.put("/c/o", b"null")
    store.ask("POST", "/c", {"X-Versions-Enabled": "true"})
    assert store.ask("DELETE", "/c/o").status == 204
    found = versions(store)
    assert len(found) == 2 and store.get("/c/o", f"version-id={found[1][1]}").body == b"null"


def test_a_post_changes_the_version(versioned: Any) -> None:
    version_id = versioned.put("/c/o", b"one", X_Object_Meta_A="1").headers[ID]
    assert versioned.ask("POST", "/c/o", {"X-Object-Meta-B": "2", "X-Delete-At": "3000000000"}).status == 202
    for query in ("", f"version-id={version_id}"):
        headers = versioned.get("/c/o", query).headers
        assert (headers.get("X-Object-Meta-A"), headers["X-Object-Meta-B"]) == (None, "2")
        assert "X-Delete-At" not in headers
    assert versioned.get("/c/o", "symlink=get").headers["X-Delete-At"] == "3000000000"
    assert versioned.ask("POST", "/c/o", query=f"version-id={version_id}").status == 400
    assert versioned.ask("POST", "/c/o", query="version-id=null").status == 400
    assert versioned.ask("POST", "/c/none").status == 404


def test_expiry_is_the_links(versioned: Any) -> None:
    version_id = versioned.put("/c/o", b"one", X_Delete_At="3000000000").headers[ID]
    assert "X-Delete-At" not in versioned.get("/c/o", f"version-id={version_id}").headers
    assert versioned.get("/c/o", "symlink=get").headers["X-Delete-At"] == "3000000000"


def test_case_C06_put_of_the_null_version_is_a_bad_request(versioned: Any) -> None:
    answer = versioned.ask("PUT", "/c/o", query="version-id=null")
    assert (answer.status, answer.body) == (400, b"Invalid version parameter")


def test_case_C10_an_upload_without_length_is_refused_before_anything_is_done(versioned: Any) -> None:
    versioned.put("/c/o", b"one")
    versioned.asked.clear()
    environ = fakes.environ("PUT", "/v1/a/c/o")
    environ.pop("CONTENT_LENGTH", None)
    environ.update({"swift.cache": versioned.cluster.cache, "wsgi.input": io.BytesIO(b"GET / HTTP/1.1\r\n\r\n")})
    starts: list[str] = []
    list(versioned.app(environ, lambda status, headers, exc_info=None: starts.append(status)))
    assert starts == ["411 Length Required"]
    assert not [asked for asked in versioned.asked if asked.startswith("PUT")]
    assert environ["wsgi.input"].tell() == 0


def test_a_conditional_upload_leaves_no_version_behind(versioned: Any) -> None:
    answer = versioned.ask("PUT", "/c/o", {"If-None-Match": "*"}, b"one")
    assert answer.status == 201
    assert versioned.ask("PUT", "/c/o", {"If-None-Match": "*"}, b"two").status == 412
    assert versions(versioned) == [("o", answer.headers[ID], True)]
    assert versioned.ask("PUT", "/c/o", {"If-None-Match": '"x"'}, b"two").status == 400


def test_a_failed_upload_changes_nothing(versioned: Any) -> None:
    version_id = versioned.put("/c/o", b"one").headers[ID]
    assert versioned.ask("PUT", "/c/o", {"Etag": "0" * 32}, b"two").status == 422
    assert versioned.ask("PUT", "/c/o", {"X-Object-Meta-" + "a" * 200: "1"}, b"two").status == 400
    assert versions(versioned) == [("o", version_id, True)]


def test_what_was_current_stays_so_when_the_link_cannot_be_written(versioned: Any) -> None:
    versioned.put("/c/o", b"one")
    versioned.failing.add("PUT /v1/a/c/o")
    assert versioned.ask("PUT", "/c/o", {}, b"two").status == 503
    assert versioned.get("/c/o").body == b"one"
    versioned.failing = {"DELETE /v1/a/c/o"}
    current = versions(versioned)[1][1]
    assert versioned.ask("DELETE", "/c/o", query=f"version-id={current}").status == 503
    assert versioned.get("/c/o").body == b"one"  # its data must outlive the link
    versioned.failing.clear()
    assert [key[2] for key in versions(versioned)] == [False, True]


def test_nothing_is_replaced_when_it_is_not_known_what_is_current(versioned: Any) -> None:
    versioned.put("/c/o", b"one")
    versioned.failing.add("GET /v1/a/c/o")
    for method in ("PUT", "DELETE"):
        assert versioned.ask(method, "/c/o", {}, b"two" if method == "PUT" else b"").status == 503
    versioned.failing.clear()
    assert len(versions(versioned)) == 1 and versioned.get("/c/o").body == b"one"


def test_an_upload_of_unknown_size(versioned: Any) -> None:
    environ = fakes.environ("PUT", "/v1/a/c/o", {"Transfer-Encoding": "chunked"}, b"12345")
    environ.pop("CONTENT_LENGTH", None)
    environ.update({"swift.cache": versioned.cluster.cache, "swift_owner": True})
    starts: list[str] = []
    list(versioned.app(environ, lambda status, headers, exc_info=None: starts.append(status)))
    assert starts == ["201 Created"]
    assert json.loads(versioned.get("/c", "format=json").body)[0]["bytes"] == 5


@pytest.mark.parametrize(("method", "query", "status", "text"), [
    ("GET", "version-id=abc", 400, b"Invalid version parameter"),
    ("DELETE", "version-id=abc", 400, b"Invalid version parameter"),
    ("GET", "version-id=1700000000.00000", 404, None),
    ("PUT", "version-id=1700000000.00000", 404, b"The specified version does not exist"),
])  # fmt: skip
def test_bad_version_ids(versioned: Any, method: str, query: str, status: int, text: bytes | None) -> None:
    answer = versioned.ask(method, "/c/o", query=query)
    assert answer.status == status and (text is None or answer.body == text)


def test_version_ids_need_versions(store: Any) -> None:
    store.put("/c")
    for method in ("GET", "HEAD", "PUT", "DELETE"):
        assert store.ask(method, "/c/o", query="version-id=1700000000.00000").status == 400
    store.put("/c/o", b"1")
    assert store.ask("PUT", "/c/o", {}, b"x", query="version-id=1700000000.00000").status == 400


def test_a_restore_takes_no_body(versioned: Any) -> None:
    version_id = versioned.put("/c/o", b"one").headers[ID]
    answer = versioned.ask("PUT", "/c/o", {}, b"x", query=f"version-id={version_id}")
    assert (answer.status, answer.body) == (400, b"PUT version-id requests require a zero byte body")


def test_listings_of_versions_are_json(versioned: Any) -> None:
    versioned.put("/c/o", b"1")
    for query, headers, status in (("versions", {}, 200), ("versions&format=json", {}, 200), ("versions&format=xml", {}, 406),
                                   ("versions&format=plain", {}, 406), ("versions", {"Accept": "text/plain"}, 406),
                                   ("versions", {"Accept": "application/json"}, 200), ("versions", {"Accept": "*/*"}, 200)):
        answer = versioned.ask("GET", "/c", headers, query=query)
        assert answer.status == status, (query, headers)
        if status == 200:
            assert answer.headers["Content-Type"] == "application/json; charset=utf-8"
            assert answer.headers["Content-Length"] == str(len(answer.body))
    assert versioned.get("/c", "versions&version_marker=null").status == 400


# -- containers --------------------------------------------------------------------------------------------------------


def test_switching_versions_on_and_off(store: Any) -> None:
    store.put("/c")
    assert "X-Versions-Enabled" not in store.ask("HEAD", "/c").headers
    store.ask("POST", "/c", {"X-Versions-Enabled": "yes"})
    assert store.ask("HEAD", "/c").headers["X-Versions-Enabled"] == "True"
    store.ask("POST", "/c", {"X-Container-Meta-A": "b"})
    assert store.get("/c").headers["X-Versions-Enabled"] == "True"
    store.ask("PUT", "/c", {"X-Versions-Enabled": "false"})
    assert store.ask("HEAD", "/c").headers["X-Versions-Enabled"] == "False"


def test_a_container_goes_with_its_last_version(versioned: Any) -> None:
    version_id = versioned.put("/c/o", b"1").headers[ID]
    versioned.ask("DELETE", "/c/o")
    answer = versioned.ask("DELETE", "/c")
    assert (answer.status, answer.body) == (409, b"Delete all versions before deleting container.")
    for name, found, _latest in versions(versioned):
        versioned.ask("DELETE", f"/c/{name}", query=f"version-id={found}")
    assert version_id not in str(versions(versioned))
    assert versioned.ask("DELETE", "/c").status == 204
    assert versioned.hidden("HEAD", "/\x00versions\x00c").status == 404
    assert versioned.ask("DELETE", "/c").status == 404


def test_a_container_with_other_objects_keeps_its_versions_container(store: Any) -> None:
    store.put("/c")
    store.put("/c/o", b"null")
    store.ask("POST", "/c", {"X-Versions-Enabled": "true"})
    assert store.ask("DELETE", "/c").status == 409
    assert store.hidden("HEAD", "/\x00versions\x00c").status == 204


@pytest.mark.parametrize("first", [{"X-Versions-Location": "x"}, {"X-Container-Sync-To": "http://127.0.0.1/v1/a/b"}])
def test_versions_go_with_neither_archive_nor_sync(store: Any, first: dict[str, str]) -> None:
    enable = {"X-Versions-Enabled": "true"}
    assert store.ask("PUT", "/both", {**first, **enable}).status == 400
    assert store.ask("HEAD", "/both").status == 404
    assert store.ask("PUT", "/one", first).status == 201
    assert store.ask("POST", "/one", enable).status == 400
    assert store.ask("PUT", "/two", enable).status == 201
    assert store.ask("POST", "/two", first).status == 400


def test_a_refused_container_leaves_no_hidden_one(store: Any) -> None:
    for headers in ({"X-Storage-Policy": "none"}, {"X-Container-Read": ".bad:x"}):
        assert store.ask("PUT", "/c", {"X-Versions-Enabled": "true", **headers}).status == 400
        assert store.hidden("HEAD", "/\x00versions\x00c").status == 404
    assert store.ask("POST", "/c", {"X-Versions-Enabled": "true"}).status == 404
    assert store.hidden("HEAD", "/\x00versions\x00c").status == 404
    name = "x" * 257
    assert store.ask("PUT", f"/{name}", {"X-Versions-Enabled": "true"}).status == 400


def test_versions_are_kept_with_the_containers_policy(store: Any) -> None:
    store.put("/c", X_Storage_Policy="silver")
    store.ask("POST", "/c", {"X-Versions-Enabled": "true"})
    assert store.hidden("HEAD", "/\x00versions\x00c").headers["X-Backend-Storage-Policy-Index"] == "1"
    store.put("/d", X_Storage_Policy="silver", X_Versions_Enabled="true")
    assert store.hidden("HEAD", "/\x00versions\x00d").headers["X-Backend-Storage-Policy-Index"] == "1"


def test_the_longest_names(store: Any) -> None:
    container, obj = "c" * 256, "o" * 1024
    store.put(f"/{container}", X_Versions_Enabled="true")
    version_id = store.put(f"/{container}/{obj}", b"1").headers[ID]
    assert store.get(f"/{container}/{obj}", f"version-id={version_id}").body == b"1"
    assert store.ask("PUT", f"/{container}/{obj}o", {}, b"1").status == 400
    assert store.ask("PUT", f"/{container}/" + "\U0001f600" * 1024, {}, b"1").status == 400


def test_names_of_any_kind(versioned: Any) -> None:
    for name in ("ü/ö?%20", "a b", "x\ny", "\U0001f600", "/lead", "q?version-id=1"):
        version_id = versioned.put(f"/c/{name}", name.encode()).headers[ID]
        assert versioned.get(f"/c/{name}").body == name.encode()
        assert versioned.get(f"/c/{name}", f"version-id={version_id}").body == name.encode()
        assert (name, version_id, True) in versions(versioned)


# -- what was lost (spec: scenarios-fault 15) --------------------------------------------------------------------------


def test_scenario_109_a_lost_container_of_versions(store: Any) -> None:
    store.put("/c")
    store.put("/c/o", b"null")
    store.ask("POST", "/c", {"X-Versions-Enabled": "true"})
    assert store.hidden("DELETE", "/\x00versions\x00c").status == 204
    assert versions(store) == [("o", "null", True)]
    assert store.get("/c/o").body == store.get("/c/o", "version-id=null").body == b"null"
    assert store.ask("PUT", "/c/o", {}, b"two").status == 500
    assert store.ask("DELETE", "/c/o").status == 500
    assert store.get("/c/o").body == b"null"
    assert store.ask("POST", "/c", {"X-Versions-Enabled": "true"}).status == 204
    assert store.ask("PUT", "/c/o", {}, b"two").status == 201
    assert len(versions(store)) == 2


def test_scenario_108_versions_outlive_their_container(versioned: Any) -> None:
    version_id = versioned.put("/c/o", b"one").headers[ID]
    versioned.ask("DELETE", "/c/o")
    assert versioned.cluster.ask("DELETE", "/v1/a/c").status == 204
    versioned.cluster.cache.values.clear()
    for query in ("", "versions"):
        assert versioned.get("/c", query).status == 404
    assert versioned.get("/c/o", f"version-id={version_id}").status == 400
    versioned.put("/c")
    assert len(versions(versioned)) == 2
    assert versioned.get("/c/o", f"version-id={version_id}").status == 400
    versioned.ask("POST", "/c", {"X-Versions-Enabled": "true"})
    assert versioned.get("/c/o", f"version-id={version_id}").body == b"one"
    assert len(versions(versioned)) == 2


# -- symlinks ----------------------------------------------------------------------------------------------------------


def test_symlinks_have_versions(versioned: Any) -> None:
    versioned.put("/d")
    versioned.put("/d/t", b"target")
    etag = versioned.ask("HEAD", "/d/t").headers["Etag"]
    dynamic = versioned.put("/c/s", X_Symlink_Target="d/t").headers[ID]
    static = versioned.put("/c/s", X_Symlink_Target="d/t", X_Symlink_Target_Etag=etag).headers[ID]
    versioned.put("/c/s", b"plain")
    for version_id in (dynamic, static):
        assert versioned.get("/c/s", f"version-id={version_id}").body == b"target"
        assert versioned.ask("PUT", "/c/s", query=f"version-id={version_id}").status == 201
        assert versioned.get("/c/s").body == b"target"
    assert versioned.get("/c/s", "symlink=get").headers["X-Symlink-Target"] == f"c/s?version-id={static}"


def test_a_null_symlink_becomes_a_version(store: Any) -> None:
    store.put("/c")
    store.put("/d")
    store.put("/d/t", b"target")
    store.put("/c/s", X_Symlink_Target="d/t")
    store.ask("POST", "/c", {"X-Versions-Enabled": "true"})
    store.put("/c/s", b"new")
    old = versions(store)[1][1]
    assert store.get("/c/s", f"version-id={old}").body == b"target"
    entry = json.loads(store.get("/c", "versions").body)[1]
    assert entry["symlink_path"] == "/v1/a/d/t"


def test_security_S51_a_version_that_is_a_link_is_followed_with_the_readers_rights(versioned: Any) -> None:
    versioned.put("/foreign")
    versioned.put("/foreign/secret", b"secret")
    versioned.put("/c/o", b"open")
    versioned.put("/c/s", X_Symlink_Target="foreign/secret")
    versioned.ask("POST", "/c", {"X-Container-Read": "bob"})

    def authorize(request: Any) -> Response | None:
        return None if request.acl and "bob" in request.acl else Response(403)

    reader = {"swift__authorize": authorize, "swift_owner": False}
    assert versioned.ask("GET", "/c/o", **reader).body == b"open"
    answer = versioned.ask("GET", "/c/s", **reader)
    assert answer.status == 403 and b"secret" not in answer.body


def test_scripts_may_read_versions_as_their_container_allows(versioned: Any) -> None:
    versioned.ask("POST", "/c", {"X-Container-Meta-Access-Control-Allow-Origin": "http://good"})
    version_id = versioned.put("/c/o", b"1").headers[ID]
    for origin, allowed in (("http://good", "http://good"), ("http://bad", None)):
        for method, query in (("PUT", ""), ("GET", ""), ("HEAD", f"version-id={version_id}"), ("POST", ""),
                              ("PUT", f"version-id={version_id}"), ("DELETE", "")):
            answer = versioned.ask(method, "/c/o", {"Origin": origin}, query=query)
            assert answer.headers.get("Access-Control-Allow-Origin") == allowed, (method, query)
    gone = versioned.ask("DELETE", "/c/o", {"Origin": "http://good"}, query=f"version-id={version_id}")
    assert gone.headers["Access-Control-Allow-Origin"] == "http://good"


# -- rights ------------------------------------------------------------------------------------------------------------


def test_security_S12_versions_are_not_deleted_without_the_right_to(versioned: Any, forbids: Any) -> None:
    old, current = (versioned.put("/c/o", body).headers[ID] for body in (b"1", b"22"))
    versioned.ask("POST", "/c", {"X-Container-Read": "bob", "X-Container-Write": "eve"})
    before = versions(versioned)
    reader, writer = forbids("bob"), forbids("eve")
    for query in ("", f"version-id={old}", f"version-id={current}", "version-id=null"):
        assert versioned.ask("DELETE", "/c/o", query=query, **reader).status == 403, query
    for query in (f"version-id={old}", f"version-id={current}"):  # history is the owner's
        assert versioned.ask("DELETE", "/c/o", query=query, **writer).status == 403
        assert versioned.ask("GET", "/c/o", query=query, **reader).status == 403
    assert versioned.ask("PUT", "/c/o", {}, b"x", **reader).status == 403
    assert versioned.ask("PUT", "/c/o", query=f"version-id={old}", **reader).status == 403
    assert versioned.ask("POST", "/c/o", {"X-Object-Meta-A": "b"}, **reader).status == 403
    assert versioned.ask("POST", "/c", {"X-Versions-Enabled": "false"}, **reader).status == 403
    assert versioned.ask("DELETE", "/c", **writer).status == 403
    assert versions(versioned) == before
    assert versioned.ask("GET", "/c/o", **reader).body == b"22"
    assert versioned.ask("PUT", "/c/o", {}, b"333", **writer).status == 201
    assert versioned.ask("DELETE", "/c/o", **writer).status == 204


def test_who_may_not_create_a_container_creates_no_hidden_one(store: Any, forbids: Any) -> None:
    store.put("/first")  # the account
    assert store.ask("PUT", "/c", {"X-Versions-Enabled": "true"}, **forbids("bob")).status == 403
    assert store.hidden("HEAD", "/\x00versions\x00c").status == 404


# -- the filter itself -------------------------------------------------------------------------------------------------


def test_a_container_without_versions_costs_no_further_request(store: Any) -> None:
    store.put("/c")
    store.put("/c/o", b"1")
    store.asked.clear()
    store.put("/c/o", b"2")
    store.get("/c/o")
    store.ask("DELETE", "/c/o")
    assert store.asked == ["PUT /v1/a/c/o", "GET /v1/a/c/o", "DELETE /v1/a/c/o"]


def test_switched_off_versions_are_refused_and_left_alone(store: Any) -> None:
    app = store.pipeline(allow_object_versioning=False, allow_versioned_writes=False)
    assert store.ask("PUT", "/c", {"X-Versions-Enabled": "true"}, app=app).status == 412
    assert store.ask("PUT", "/c", {"X-Versions-Enabled": "false"}, app=app).status == 201
    store.put("/v", X_Versions_Enabled="true")
    assert ID not in store.ask("PUT", "/v/o", {}, b"1", app=app).headers


def test_object_versioning_needs_symlink(tmp_path: Any) -> None:
    registry.forget_all()
    conf = {"swift_dir": str(tmp_path), "log_address": "/nonexistent"}
    with pytest.raises(ConfigError, match="symlink"):
        filter_factory(conf, allow_object_versioning="true")
    symlink_factory(conf)
    app: Any = None
    made = filter_factory(conf, allow_object_versioning="true", allow_versioned_writes="yes")(app)
    assert isinstance(made, VersionedWrites)
    assert registry.published()["object_versioning"] == {}
    assert registry.published()["versioned_writes"] == {"allowed_flags": ["x-versions-location", "x-history-location"]}
    registry.forget_all()


def test_reserved_names_and_foreign_paths_pass() -> None:
    seen: list[str] = []

    def inner(environ: Any, start_response: Any) -> Any:
        seen.append(environ["PATH_INFO"])
        start_response("200 OK", [])
        return ()

    app = VersionedWrites(inner, VersionedWritesOptions(True, True))
    for path in ("/", "/info", "/v1", "/v9/a/c/o", "/v1/a/\x00versions\x00c/\x00o\x001", "/v1/a/\x00versions\x00c", "/v1//c/o"):
        assert fakes.ask(app, "PUT", path).status == 200
    assert len(seen) == 7


def test_paths_to_versions_are_shown_as_clients_may_ask() -> None:
    location = "/v1/a/%00versions%00c/%00o%008204036027.06107"
    assert shown([("Content-Location", location)]) == [("Content-Location", "/v1/a/c/o?version-id=1795963972.93892")]
    other = [("Content-Location", "/v1/a/d/e"), ("X-Other", location)]
    assert shown(other) is other
    assert named([("content-location", location)], "c")[1:] == [(ID, "1795963972.93892")]
    assert named(other, "c") == other
    assert named([], "c") == [(ID, "null")]


def test_accounts_show_what_versions_hold() -> None:
    def inner(environ: Any, start_response: Any) -> Any:
        hidden = "versions" in environ["QUERY_STRING"]
        assert hidden == ("HTTP_X_BACKEND_ALLOW_RESERVED_NAMES" in environ)
        entries = [{"name": "\x00versions\x00c" if hidden else "c", "count": 1, "bytes": 10 if hidden else 5}]
        return Response(200, body=json.dumps(entries), content_type="application/json")(environ, start_response)

    app = VersionedWrites(inner, VersionedWritesOptions(True, True))
    answer = fakes.ask(app, "GET", "/v1/a", query="format=json")
    body = answer.body or b""
    assert json.loads(body) == [{"name": "c", "count": 1, "bytes": 15}]
    assert answer.headers["Content-Length"] == str(len(body))
