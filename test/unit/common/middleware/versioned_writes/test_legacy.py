"""X-Versions-Location and X-History-Location through a whole cluster in this process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from keelstore.common.middleware.versioned_writes.names import MARKER_TYPE
from test.support import fakes


def archived(store: Any, container: str = "/v") -> list[tuple[str, int, str]]:
    """Name without its time, size and type, from the oldest."""
    listing = json.loads(store.get(container, "format=json").body or b"[]")
    return [(entry["name"].partition("/")[0], entry["bytes"], entry["content_type"]) for entry in listing]


@pytest.fixture
def stack(store: Any) -> Any:
    store.put("/v")
    store.put("/c", X_Versions_Location="v")
    return store


@pytest.fixture
def history(store: Any) -> Any:
    store.put("/v")
    store.put("/c", X_History_Location="v")
    return store


def test_a_stack_is_popped_until_404(stack: Any) -> None:
    for number in range(3):
        stack.put("/c/o", b"x" * number, Content_Type=f"t/{number}", X_Object_Meta_N=str(number))
    assert archived(stack) == [("001o", 0, "t/0"), ("001o", 1, "t/1")]
    for number in (1, 0):
        assert stack.ask("DELETE", "/c/o").status == 204
        current = stack.get("/c/o")
        assert (current.body, current.headers["Content-Type"], current.headers["X-Object-Meta-N"]) == (
            b"x" * number, f"t/{number}", str(number))
    assert [stack.ask("DELETE", "/c/o").status for _ in range(2)] == [204, 404]
    assert archived(stack) == []
    assert stack.ask("DELETE", "/c").status == 204


def test_a_container_that_is_its_own_archive(store: Any) -> None:
    store.put("/c", X_Versions_Location="c")
    for number in range(4):
        store.put("/c/o", str(number).encode())
    names = [entry["name"] for entry in json.loads(store.get("/c", "format=json").body)]
    assert len(names) == 4 and names[-1] == "o"
    assert store.ask("DELETE", f"/c/{names[0]}").status == 204  # an archived version is not archived again
    statuses: list[int] = []
    while not statuses or statuses[-1] != 404:
        statuses.append(store.ask("DELETE", "/c/o").status)
    assert statuses == [204, 204, 204, 404]
    assert store.ask("DELETE", "/c").status == 204


def test_history_keeps_everything(history: Any) -> None:
    history.put("/c/o", b"1", Content_Type="t/1")
    history.put("/c/o", b"22", Content_Type="t/2")
    assert history.ask("DELETE", "/c/o").status == 204
    assert history.ask("DELETE", "/c/o").status == 404
    assert archived(history) == [("001o", 1, "t/1"), ("001o", 2, "t/2"), ("001o", 0, MARKER_TYPE), ("001o", 0, MARKER_TYPE)]


def test_a_stack_over_a_history(history: Any) -> None:
    for number in range(2):
        history.put("/c/o", b"x" * (number + 1))
    for _ in range(3):
        history.ask("DELETE", "/c/o")
    history.ask("POST", "/c", {"X-Versions-Location": "v"})
    found = []
    for _ in range(6):
        status = history.ask("DELETE", "/c/o").status
        found.append((status, len(archived(history)), history.get("/c/o").body if history.get("/c/o").status == 200 else None))
    assert found == [(204, 4, None), (204, 3, None), (204, 1, b"xx"), (204, 0, b"x"), (204, 0, None), (404, 0, None)]


def test_over_a_marker_a_delete_only_deletes(history: Any) -> None:
    history.put("/c/o", b"1")
    history.ask("DELETE", "/c/o")
    history.put("/c/o", b"2")
    history.ask("POST", "/c", {"X-Versions-Location": "v"})
    assert history.ask("DELETE", "/c/o").status == 204
    assert history.get("/c/o").status == 404 and len(archived(history)) == 2


def test_other_objects_of_the_archive_are_left_alone(stack: Any) -> None:
    stack.put("/v/001o/not a time", b"theirs")
    stack.put("/c/o", b"1")
    assert stack.ask("DELETE", "/c/o").status == 204
    assert stack.get("/c/o").status == 404
    assert stack.get("/v/001o/not a time").body == b"theirs"


def test_without_an_archive_nothing_is_replaced(store: Any) -> None:
    store.put("/c", X_Versions_Location="missing")
    store.put("/c/o", b"1")
    assert store.ask("PUT", "/c/o", {}, b"2").status == 412
    assert store.get("/c/o").body == b"1"
    assert store.ask("DELETE", "/c/o").status == 204
    store.ask("POST", "/c", {"X-History-Location": "missing"})
    store.put("/c/o", b"1")
    assert [store.ask("DELETE", f"/c/{name}").status for name in ("o", "none")] == [412, 412]
    assert store.get("/c/o").body == b"1"


def test_a_too_large_object_is_not_replaced(stack: Any) -> None:
    stack.put("/c/o", b"12345")
    app = stack.pipeline()
    app.app._legacy.inner.max_file_size = 4
    assert stack.ask("PUT", "/c/o", {}, b"2", app=app).status == 412
    assert stack.get("/c/o").body == b"12345"


def test_an_upload_without_length_archives_nothing(stack: Any) -> None:
    stack.put("/c/o", b"1")
    environ = fakes.environ("PUT", "/v1/a/c/o")
    environ.pop("CONTENT_LENGTH", None)
    environ.update({"swift.cache": stack.cluster.cache, "swift_owner": True})
    starts: list[str] = []
    list(stack.app(environ, lambda status, headers, exc_info=None: starts.append(status)))
    assert starts == ["411 Length Required"] and archived(stack) == []


def test_case_C24_an_archived_large_object_is_listed_with_its_size(stack: Any) -> None:
    manifest = {"X-Static-Large-Object": "True", "X-Object-Sysmeta-Slo-Etag": "e" * 32, "X-Object-Sysmeta-Slo-Size": "9000",
                "Content-Type": "t/slo"}
    stack.put("/c/o", b"[...]", **{name.replace("-", "_"): value for name, value in manifest.items()})
    stack.put("/c/o", b"plain")
    assert archived(stack) == [("001o", 9000, "t/slo")]
    entry = json.loads(stack.cluster.ask("GET", "/v1/a/v", query="format=json").body)[0]
    assert entry["hash"].endswith(f"; slo_etag={'e' * 32}")
    stack.ask("DELETE", "/c/o")
    assert json.loads(stack.get("/c", "format=json").body)[0]["bytes"] == 9000
    found = stack.cluster.ask("HEAD", "/v1/a/c/o").headers
    assert (found["X-Static-Large-Object"], found["X-Object-Sysmeta-Slo-Size"]) == ("True", "9000")


def test_posts_are_not_versioned(stack: Any) -> None:
    stack.put("/c/o", b"1")
    assert stack.ask("POST", "/c/o", {"X-Object-Meta-A": "b"}).status == 202
    assert archived(stack) == []


def test_security_S12_a_delete_needs_the_right_to_write(stack: Any, forbids: Any) -> None:
    stack.put("/c/o", b"1")
    stack.put("/c/o", b"22")
    for container in ("/c", "/v"):
        stack.ask("POST", container, {"X-Container-Read": "bob,.rlistings"})
    stack.ask("POST", "/v", {"X-Container-Write": "bob"})  # even who may write to the archive
    before = archived(stack)
    for mode in ("X-Versions-Location", "X-History-Location"):
        stack.ask("POST", "/c", {mode: "v"})
        assert stack.ask("DELETE", "/c/o", **forbids("bob")).status == 403
        assert stack.ask("PUT", "/c/o", {}, b"333", **forbids("bob")).status == 403
        assert (stack.get("/c/o").body, archived(stack)) == (b"22", before)
    stack.ask("POST", "/c", {"X-Container-Write": "eve", "X-Versions-Location": "v"})
    assert stack.ask("PUT", "/c/o", {}, b"333", **forbids("eve")).status == 201
    assert stack.ask("DELETE", "/c/o", **forbids("eve")).status == 204
    assert stack.get("/c/o").body == b"22"


# -- settings ----------------------------------------------------------------------------------------------------------


def test_settings_are_shown_and_taken_away(store: Any) -> None:
    def location() -> tuple[str | None, str | None]:
        headers = store.ask("HEAD", "/c").headers
        return headers.get("X-Versions-Location"), headers.get("X-History-Location")

    store.put("/c", X_Versions_Location="a%20b")
    assert location() == ("a%20b", None)
    for headers, found in (({"X-History-Location": "h"}, (None, "h")), ({"X-Container-Meta-A": "b"}, (None, "h")),
                           ({"X-Remove-History-Location": "x"}, (None, None)),
                           ({"X-Remove-History-Location": "x", "X-Versions-Location": "v"}, ("v", None)),
                           ({"X-Versions-Location": ""}, (None, None)),
                           ({"X-Versions-Location": "v", "X-History-Location": ""}, ("v", None))):
        assert store.ask("POST", "/c", headers).status == 204
        assert location() == found, headers


@pytest.mark.parametrize(("headers", "status", "text"), [
    ({"X-Versions-Location": "a", "X-History-Location": "b"}, 400,
     b"Only one of x-versions-location or x-history-location may be specified"),
    ({"X-Versions-Location": "a/b"}, 412, b"Container name cannot contain slashes"),
    ({"X-History-Location": "%2Fa"}, 412, b"Container name cannot contain slashes"),
    ({"X-Versions-Location": "%00versions%00x"}, 412, b"Container name is not valid"),
    ({"X-Versions-Location": "%ff"}, 412, b"Container name is not valid"),
])  # fmt: skip
def test_bad_settings(store: Any, headers: dict[str, str], status: int, text: bytes) -> None:
    answer = store.ask("PUT", "/c", headers)
    assert (answer.status, answer.body) == (status, text)


def test_switched_off_and_left_to_the_container_servers(store: Any) -> None:
    off, unset = (store.pipeline(allow_versioned_writes=value) for value in (False, None))
    assert store.ask("PUT", "/c", {"X-Versions-Location": "v"}, app=off).status == 412
    assert store.ask("PUT", "/c", {"X-History-Location": "v"}, app=unset).status == 412
    assert store.ask("PUT", "/c", {"X-Versions-Location": "v"}, app=unset).status == 201
    store.put("/v")
    store.put("/set", X_Versions_Location="v")
    for app in (off, unset):
        store.ask("PUT", "/set/o", {}, b"1", app=app)
    assert archived(store) == []
