"""python-swiftclient, unmodified, with what the filters add: large objects of both kinds, versions, temporary URLs (issue 3, point 4)."""

from __future__ import annotations

import filecmp
import hashlib
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from swiftclient import client as swiftclient
from swiftclient.service import SwiftService, SwiftUploadObject
from swiftclient.utils import generate_temp_url

from test.functional.conftest import STORES
from test.support import programs
from test.support.client import Account, Endpoint, unique

Swift = Callable[..., str]
# Some of these take long, as each command starts an interpreter: they run on one kind of cluster.
on_one_node = pytest.mark.parametrize("running", STORES[:1], indirect=True)
on_four_nodes = pytest.mark.parametrize("running", STORES[-1:], indirect=True)
SEGMENT = 100_000
CONTENT = random.Random(3).randbytes(3 * SEGMENT + 17)


@pytest.fixture
def swift(store: Endpoint, tmp_path: Path) -> Swift:
    """The command line of the client, run in ``tmp_path``."""
    return lambda *arguments, **how: programs.swift(store.auth_url, tmp_path, *arguments, **how)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "big é.bin"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture
def large(account: Account) -> Iterator[str]:
    """The name of a container for large objects; what is left in it and in that of its segments goes at the end."""
    name = unique("large")
    yield name
    for container in (name, name + "_segments"):
        if account.head(container).status == 204:
            account.empty(container)


def segments(account: Account, container: str) -> list[str]:
    return [entry["name"] for entry in account.listing(container + "_segments")]


# -- large objects -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["--use-slo", "--use-dlo"])
def test_segmented_upload(account: Account, swift: Swift, file: Path, large: str, tmp_path: Path, kind: str) -> None:
    upload = ["upload", kind, "-S", str(SEGMENT), large, file.name]
    swift(*upload, "--meta", "Color:blue")
    first = segments(account, large)
    assert len(first) == 4
    head = account.head(large, file.name).expect(200)
    assert (head.headers["Content-Length"], head.headers["X-Object-Meta-Color"]) == (str(len(CONTENT)), "blue")
    assert ("X-Static-Large-Object" in head.headers, "X-Object-Manifest" in head.headers) == (kind == "--use-slo", kind == "--use-dlo")
    shown = swift("stat", large, file.name)
    assert f"Content Length: {len(CONTENT)}" in shown and ("Manifest: " if kind == "--use-dlo" else "X-Static-Large-Object: True") in shown

    swift("download", large, file.name, "-o", "back")
    assert (tmp_path / "back").read_bytes() == CONTENT
    assert "skip" in swift("download", "--skip-identical", large, file.name, "-o", "back", "-v").lower()

    for unchanged in ("--changed", "--skip-identical"):
        swift(*upload, unchanged)
        assert segments(account, large) == first, unchanged
    swift("copy", "--destination", f"/{large}/copied", large, file.name)
    copied = account.get(large, "copied").expect(200)
    assert copied.body == CONTENT and "X-Static-Large-Object" not in copied.headers and "X-Object-Manifest" not in copied.headers

    file.write_bytes(CONTENT[:150_000])  # shorter now: the segments of before go
    swift(*upload, "--changed")
    second = segments(account, large)
    assert len(second) == 2 and not set(first) & set(second)
    assert account.get(large, file.name).body == CONTENT[:150_000]

    file.write_bytes(CONTENT)
    swift(*upload, "--leave-segments")
    assert len(segments(account, large)) == 6
    swift("delete", "--leave-segments", large, file.name)
    assert len(segments(account, large)) == 6 and account.head(large, file.name).status == 404


@on_four_nodes
@pytest.mark.parametrize("kind", ["--use-slo", "--use-dlo"])
def test_delete_takes_the_segments_along(account: Account, swift: Swift, file: Path, large: str, kind: str) -> None:
    swift("upload", kind, "-S", str(SEGMENT), large, file.name, "--object-name", "one")
    swift("upload", kind, "-S", str(SEGMENT), large, file.name, "--object-name", "two")
    assert len(segments(account, large)) == 8
    swift("delete", large, "one")
    assert len(segments(account, large)) == 4
    swift("delete", large)
    assert segments(account, large) == [] and account.head(large).status == 404
    swift("delete", large + "_segments")


@on_one_node
def test_segments_of_a_stream(account: Account, swift: Swift, large: str) -> None:
    """From standard input the client does not know how much will come: it makes segments as it reads."""
    swift("upload", "-S", str(SEGMENT), large, "-", "--object-name", "piped", body=CONTENT)
    got = account.get(large, "piped").expect(200)
    assert got.body == CONTENT and got.headers["X-Static-Large-Object"] == "True"
    assert swift("download", large, "piped", "-o", "-").encode("utf-8", "surrogateescape") == CONTENT
    swift("upload", large, "-", "--object-name", "small", body=b"no segments")
    assert account.get(large, "small").body == b"no segments"


def test_large_objects_by_the_library(store: Endpoint, account: Account, file: Path, large: str, tmp_path: Path) -> None:
    options = {"auth": store.auth_url, "user": "test:tester", "key": "testing", "segment_size": SEGMENT}
    with SwiftService(options=options) as service:

        def done(results: Any) -> list[dict[str, Any]]:
            found = list(results)
            assert [result for result in found if not result["success"]] == []
            return found

        for name, slo in (("static", True), ("dynamic", False)):
            objects = [SwiftUploadObject(str(file), object_name=name, options={"use_slo": slo})]
            done(service.upload(large, objects))
            (status,) = done(service.stat(large, [name]))
            assert status["headers"]["content-length"] == str(len(CONTENT))
            assert ("x-static-large-object" in status["headers"]) == slo
            changed = done(service.upload(large, objects, options={"changed": True}))
            assert any(result.get("status") == "skipped-changed" for result in changed)
        done(service.post(large, ["static"], options={"meta": ["Shape:round"]}))
        assert account.head(large, "static").headers["X-Object-Meta-Shape"] == "round"
        done(service.copy(large, ["static"], options={"destination": f"/{large}/plain"}))
        done(service.download(large, options={"out_directory": str(tmp_path / "out")}))
        for name in ("static", "dynamic", "plain"):
            assert (tmp_path / "out" / name).read_bytes() == CONTENT
        done(service.delete(large, ["static", "dynamic"]))
        assert segments(account, large) == []

    connection = swiftclient.Connection(authurl=store.auth_url, user="test:tester", key="testing", retries=0)
    parts = [{"path": f"/{large}/part {number}", "etag": connection.put_object(large, f"part {number}", contents=body),
              "size_bytes": len(body)} for number, body in enumerate((CONTENT[:10], CONTENT[10:]))]
    etag = swiftclient.put_object(connection.url, connection.token, large, "made", contents=json.dumps(parts),
                                  query_string="multipart-manifest=put")
    assert etag.strip('"') == hashlib.md5("".join(str(part["etag"]) for part in parts).encode()).hexdigest()
    headers, body = connection.get_object(large, "made", query_string="part-number=1")
    assert (headers["x-parts-count"], body) == ("2", CONTENT[:10])
    assert connection.get_object(large, "made", headers={"Range": "bytes=5-14"})[1] == CONTENT[5:15]
    connection.delete_object(large, "made", query_string="multipart-manifest=delete")
    assert account.head(large, "part 0").status == 404
    connection.close()


# -- trees, versions ---------------------------------------------------------------------------------------------------


@on_one_node
def test_a_tree_that_changes(account: Account, swift: Swift, container: str, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for name in ("a", "dir é/b", "dir é/deep #1?/c%20d", "-dash", "dir é/\U0001f600"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(name)
    (tree / "empty dir").mkdir()
    swift("upload", container, ".", cwd=tree)
    names = {entry["name"] for entry in account.listing(container)}
    assert {"a", "dir é/b", "dir é/deep #1?/c%20d", "-dash", "dir é/\U0001f600", "empty dir"} <= names
    assert account.head(container, "empty dir").headers["Content-Type"] == "application/directory"

    before = {entry["name"]: entry["last_modified"] for entry in account.listing(container)}
    (tree / "a").write_text("changed")
    swift("upload", "--skip-identical", container, ".", cwd=tree)
    after = {entry["name"]: entry["last_modified"] for entry in account.listing(container)}
    assert [name for name in after if after[name] != before.get(name)] in (["a"], ["a", "empty dir"])
    assert account.get(container, "a").body == b"changed"

    swift("download", container, "--prefix", "dir é/", "-D", "out")
    swift("download", container, "-D", "whole")
    assert {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()} == {
        name for name in names if name.startswith("dir é/")}
    compared = filecmp.dircmp(tree, tmp_path / "whole")
    assert (compared.left_only, compared.right_only, compared.diff_files) == ([], [], [])
    assert swift("list", container, "--delimiter", "/").splitlines().count("dir é/") == 1
    assert "dir é/b" in swift("list", "--long", container)
    swift("delete", container, "--prefix", "dir é/")
    assert not [entry for entry in account.listing(container) if entry["name"].startswith("dir é/")]


@on_four_nodes
def test_versions(account: Account, swift: Swift, container: str, tmp_path: Path) -> None:
    swift("post", container, "-H", "X-Versions-Enabled: true")
    for number in (1, 2):
        swift("upload", container, "-", "--object-name", "o", body=b"x" * number)
    swift("delete", container, "o")
    assert "404" in swift("stat", container, "o", status=1)
    listed = [line.split() for line in swift("list", "--versions", container).splitlines()]
    assert [line[-1] for line in listed[:3]] == ["o", "o", "o"]
    ids = [entry["version_id"] for entry in account.get(container, query="versions").json()]
    assert all(any(version in line for line in listed) for version in ids)
    swift("download", "--version-id", ids[-1], container, "o", "-o", "first")
    assert (tmp_path / "first").read_bytes() == b"x"
    assert "Content Length: 2" in swift("stat", "--version-id", ids[1], container, "o")
    swift("delete", "--version-id", ids[0], container, "o")  # the delete marker
    assert [entry["version_id"] for entry in account.get(container, query="versions").json()] == ids[1:]
    swift("delete", "--versions", container)
    account.head(container).expect(404)
    account.put(container).expect(201)


# -- temporary URLs ----------------------------------------------------------------------------------------------------


def fetch(account: Account, target: str, method: str = "GET", body: bytes | None = None) -> Any:
    parts = urlsplit(target)
    return account.endpoint.request(method, f"{parts.path}?{parts.query}", body=body)


@on_one_node
def test_temporary_urls_of_the_command(account: Account, swift: Swift, container: str) -> None:
    account.put(container, "dir/o", body=b"data").expect(201)
    swift("post", container, "-m", "Temp-URL-Key:ck")
    path = f"{account.path}/{container}/dir/o"

    def signed(*arguments: str) -> str:
        return swift("tempurl", *arguments).strip()

    for options in (["--digest", "sha1"], ["--iso8601", "--digest", "sha512"], ["--ip-range", "127.0.0.0/8"]):
        url = signed(*options, "GET", "600", account.endpoint.url + path, "ck")
        assert url.startswith(account.endpoint.url) and fetch(account, url).expect(200).body == b"data"
        assert fetch(account, url, "HEAD").expect(200).headers["Content-Length"] == "4"
        assert fetch(account, url, "PUT", b"no").status == 401
    prefix = signed("--prefix-based", "GET", "1h", f"{account.path}/{container}/dir/", "ck")
    query = prefix.partition("?")[2]
    assert fetch(account, f"{path}?{query}").expect(200).body == b"data"
    fetch(account, f"{account.path}/{container}/elsewhere?{query}").expect(401)
    fetch(account, signed("PUT", "600", path + "2", "ck"), "PUT", b"put").expect(201)
    assert account.get(container, "dir/o2").body == b"put"


def test_temporary_urls_of_the_library(account: Account, container: str) -> None:
    account.post(container, headers={"X-Container-Meta-Temp-Url-Key": "ck", "X-Container-Meta-Temp-Url-Key-2": "second"}).expect(204)
    account.put(container, "o", body=b"data").expect(201)
    path = f"{account.path}/{container}/o"
    for when in (60, "10m", "2037-01-01", "2037-01-01T12:00:00", "2037-01-01T12:00:00Z"):
        for digest in ("sha1", "sha256", "sha512"):
            assert fetch(account, generate_temp_url(path, when, "second", "GET", digest=digest)).expect(200).body == b"data"
    fetch(account, generate_temp_url(path, 2147483000, "ck", "GET", absolute=True)).expect(200)
    fetch(account, generate_temp_url(path, 1000000000, "ck", "GET", absolute=True)).expect(401)
    fetch(account, generate_temp_url(path, 60, "another key", "GET")).expect(401)
    fetch(account, generate_temp_url(path, 60, "ck", "GET", ip_range="10.0.0.0/8")).expect(401)
