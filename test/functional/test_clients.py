"""The field's own clients: python-swiftclient as a library and on the command line, and curl (issue 2, point 1)."""

from __future__ import annotations

import filecmp
import hashlib
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from swiftclient import client as swift
from swiftclient.service import SwiftService, SwiftUploadObject

from test.support.client import Account, Endpoint, unique

FILES = 1000


def command(store: Endpoint, *arguments: str, cwd: Path | None = None) -> str:
    """Run the ``swift`` command."""
    done = subprocess.run([sys.executable, "-m", "swiftclient.shell", "-A", store.auth_url, "-U", "test:tester", "-K", "testing", *arguments],
                          capture_output=True, text=True, cwd=cwd, timeout=300, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"swift {arguments}: {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A thousand small files in fifty directories, some with awkward names."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    root = tmp_path_factory.mktemp("tree")
    awkward = ["with space", "per%cent", "what?", "quo\"te'", "emoji \U0001f600", "plus+", "日本", "a;b", "#hash", "n" * 200]
    for number in range(FILES):
        folder = root / f"dir {number % 50}" / ("deep" if number % 3 else "")
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{awkward[number % len(awkward)]}-{number}"
        (folder / name).write_bytes(chance.randbytes(chance.choice([0, 1, 100, 4096, 30_000])))
    return root


def files_below(root: Path) -> dict[str, Path]:
    return {str(path.relative_to(root)): path for path in root.rglob("*") if path.is_file()}


def test_a_tree_by_the_command_line(store: Endpoint, account: Account, tree: Path, tmp_path: Path) -> None:
    container = unique("tree")
    wanted = files_below(tree)
    try:
        command(store, "upload", "--object-threads", "4", container, ".", cwd=tree)
        listed = command(store, "list", container).splitlines()
        assert set(wanted) <= set(listed)
        assert f"Objects: {len(listed)}" in command(store, "stat", container)
        command(store, "download", "--object-threads", "4", "--output-dir", str(tmp_path), container)
        found = files_below(tmp_path)
        assert set(found) == set(wanted)
        match, mismatch, errors = filecmp.cmpfiles(tree, tmp_path, list(wanted), shallow=False)
        assert (len(match), mismatch, errors) == (FILES, [], [])
    finally:
        command(store, "delete", container)
    account.head(container).expect(404)


def test_a_tree_by_the_library(store: Endpoint, account: Account, tree: Path, tmp_path: Path) -> None:
    container = unique("tree")
    wanted = files_below(tree)
    options = {"auth": store.auth_url, "user": "test:tester", "key": "testing", "object_uu_threads": 4, "object_dd_threads": 4}
    with SwiftService(options=options) as service:
        uploads = [SwiftUploadObject(str(path), object_name=name) for name, path in wanted.items()]
        results: list[dict[str, Any]] = list(service.upload(container, uploads))
        assert [result for result in results if not result["success"]] == []
        names = [entry["name"] for page in service.list(container) for entry in page["listing"]]
        assert names == sorted(wanted, key=lambda name: name.encode())
        results = list(service.download(container, options={"out_directory": str(tmp_path)}))
        assert [result for result in results if not result["success"]] == []
        match, mismatch, errors = filecmp.cmpfiles(tree, tmp_path, list(wanted), shallow=False)
        assert (len(match), mismatch, errors) == (FILES, [], [])
        results = list(service.delete(container))
        assert [result for result in results if not result["success"]] == []
    account.head(container).expect(404)


@pytest.fixture
def connection(store: Endpoint) -> Iterator[swift.Connection]:
    connection = swift.Connection(authurl=store.auth_url, user="test:tester", key="testing", retries=0)
    yield connection
    connection.close()


def test_the_calls_of_the_library(connection: swift.Connection) -> None:
    container = unique("calls")
    connection.put_container(container, headers={"X-Container-Meta-Color": "blue"})
    assert connection.head_container(container)["x-container-meta-color"] == "blue"
    body = b"some data" * 1000
    assert connection.put_object(container, "é/o?", contents=body, content_type="text/x") == hashlib.md5(body).hexdigest()
    assert connection.put_object(container, "chunked", contents=iter([b"a", b"b"])) == hashlib.md5(b"ab").hexdigest()
    headers, data = connection.get_object(container, "é/o?")
    assert (headers["content-type"], data) == ("text/x", body)
    _, pieces = connection.get_object(container, "é/o?", resp_chunk_size=1000)
    assert b"".join(pieces) == body
    connection.post_object(container, "é/o?", {"X-Object-Meta-Shape": "round"})
    assert connection.head_object(container, "é/o?")["x-object-meta-shape"] == "round"
    connection.copy_object(container, "é/o?", f"/{container}/copy")
    assert connection.get_object(container, "copy")[1] == body
    headers, listing = connection.get_container(container, delimiter="/")
    assert [entry.get("subdir") or entry["name"] for entry in listing] == ["chunked", "copy", "é/"]
    assert [entry["name"] for entry in connection.get_container(container, full_listing=True, limit=1)[1]] == ["chunked", "copy", "é/o?"]
    connection.post_container(container, {"X-Container-Read": ".r:*"})
    connection.post_account({"X-Account-Meta-Client": "library"})
    headers, containers = connection.get_account(prefix=container)
    assert (headers["x-account-meta-client"], [entry["name"] for entry in containers]) == ("library", [container])
    assert "swift" in connection.get_capabilities()
    with pytest.raises(swift.ClientException) as refused:
        connection.delete_container(container)
    assert refused.value.http_status == 409
    for name in ("é/o?", "chunked", "copy"):
        connection.delete_object(container, name)
    connection.delete_container(container)
    with pytest.raises(swift.ClientException) as refused:
        connection.head_container(container)
    assert refused.value.http_status == 404


def test_one_object_by_the_command_line(store: Endpoint, account: Account, tmp_path: Path) -> None:
    container = unique("post")
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100_000)
    try:
        command(store, "upload", container, str(path), "--object-name", "o", "--header", "X-Object-Meta-A: 1", "--header", "Content-Type: a/b")
        assert account.head(container, "o").headers["X-Object-Meta-A"] == "1"
        command(store, "post", container, "o", "-m", "B:2")
        command(store, "post", container, "--read-acl", ".r:*")
        shown = command(store, "stat", container, "o")
        assert "Meta B: 2" in shown and "a/b" in shown
        command(store, "copy", "--destination", f"/{container}/copied", container, "o")
        command(store, "download", container, "copied", "-o", str(tmp_path / "back"))
        assert (tmp_path / "back").read_bytes() == path.read_bytes()
        assert "AUTH_test" in command(store, "stat")
        assert json.loads(command(store, "info", "--json"))["swift"]["max_file_size"]
        command(store, "upload", "--changed", container, str(path), "--object-name", "o")
    finally:
        command(store, "delete", container)


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
def test_curl(store: Endpoint, tmp_path: Path) -> None:
    def curl(*arguments: str) -> str:
        done = subprocess.run(["curl", "-sS", "-f", *arguments], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"curl {arguments}: {done.stderr}"
        return done.stdout

    answer = curl("-i", "-H", "X-Auth-User: test:tester", "-H", "X-Auth-Key: testing", store.auth_url)
    headers = dict(line.split(": ", 1) for line in answer.splitlines()[1:] if ": " in line)
    token, url = "X-Auth-Token: " + headers["X-Auth-Token"], headers["X-Storage-Url"]
    container = unique("curl")
    path = tmp_path / "big"
    path.write_bytes(random.Random(1).randbytes(3_000_000))
    curl("-X", "PUT", "-H", token, f"{url}/{container}")
    curl("-T", str(path), "-H", token, f"{url}/{container}/by-length")  # curl sends Expect: 100-continue
    curl("-T", str(path), "-H", token, "-H", "Transfer-Encoding: chunked", f"{url}/{container}/chunked")
    for name in ("by-length", "chunked"):
        curl("-o", str(tmp_path / name), "-H", token, f"{url}/{container}/{name}")
        assert (tmp_path / name).read_bytes() == path.read_bytes()
    assert curl("-H", token, f"{url}/{container}").split() == ["by-length", "chunked"]
    curl("-r", "0-4", "-H", token, f"{url}/{container}/chunked", "-o", str(tmp_path / "part"))
    assert (tmp_path / "part").read_bytes() == path.read_bytes()[:5]
    assert "200 OK" in curl("-I", "-H", token, f"{url}/{container}/chunked")
    assert curl("-0", "-H", token, f"{url}/{container}").split() == ["by-length", "chunked"]  # HTTP/1.0
    curl("-X", "DELETE", "-H", token, f"{url}/{container}/by-length", "--next", "-sS", "-f", "-X", "DELETE", "-H", token, f"{url}/{container}/chunked")
    curl("-X", "DELETE", "-H", token, f"{url}/{container}")
