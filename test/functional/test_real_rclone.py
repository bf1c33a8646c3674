"""rclone, unmodified, over its ``swift:`` backend (issue 3, point 4)."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from test.functional.conftest import STORES
from test.support.client import Account, Endpoint, unique
from test.support.programs import run

pytestmark = pytest.mark.skipif(not shutil.which("rclone"), reason="rclone is not installed")

Rclone = Callable[..., str]
CHUNK = 1 << 20
AWKWARD = [
    "plain", "with space", "trailing space ", " leading", "per%cent%2Fescape", "what?", "#hash", "a+b&c=d;e", "quo\"te'`$HOME", "-dash", "back\\slash",
    "new\nline", "tab\t", "日本語", "emoji \U0001f600", "nfd e\u0301", "nfc \u00e9", "~tilde", "dots...", "*star[0]", "<xml>&amp;", "n" * 200,
    "deep/er/than/most/x", "deep /sp ace/y", "deep/ünder/z"]


@pytest.fixture
def rclone(store: Endpoint, tmp_path: Path) -> Rclone:
    """Run rclone with a remote ``ks:``, quickly: it does not try again."""
    env = {"RCLONE_CONFIG": "/dev/null", "RCLONE_CONFIG_KS_TYPE": "swift", "RCLONE_CONFIG_KS_USER": "test:tester", "RCLONE_CONFIG_KS_KEY": "testing",
           "RCLONE_CONFIG_KS_AUTH": store.auth_url, "RCLONE_RETRIES": "1", "RCLONE_LOW_LEVEL_RETRIES": "1"}
    return lambda *arguments, **how: run(["rclone", *arguments], tmp_path, env, **how)


@pytest.fixture
def remote(account: Account) -> Iterator[str]:
    name = unique("rclone")
    yield name
    for container in (name, name + "_segments"):
        if account.head(container).status == 204:
            account.empty(container)


def tree_of(root: Path) -> dict[bytes, bytes]:
    found = {}
    for folder, _, files in os.walk(os.fsencode(root)):
        for name in files:
            path = os.path.join(folder, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, os.fsencode(root))] = file.read()
    return found


def names(account: Account, container: str) -> set[str]:
    return {entry["name"] for entry in account.listing(container)}


def test_copy_sync_and_check(account: Account, rclone: Rclone, remote: str, tmp_path: Path) -> None:
    source, back = tmp_path / "source", tmp_path / "back"
    chance = random.Random(5)
    for name in AWKWARD:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(chance.randbytes(chance.choice([0, 1, 1000, 70_000])))
    invalid = os.path.join(os.fsencode(source), b"not \xff utf-8")
    with open(invalid, "wb") as file:
        file.write(b"latin")
    os.utime(source / "plain", (1_234_567_890.5, 1_234_567_890.5))

    rclone("copy", source, f"ks:{remote}")
    assert set(AWKWARD) <= names(account, remote) and len(names(account, remote)) == len(AWKWARD) + 1
    assert account.get(remote, "with space").body == (source / "with space").read_bytes()
    for how in ([], ["--download"], ["--size-only"]):
        assert "0 differences found" in rclone("check", *how, source, f"ks:{remote}")
    listed = {entry["Path"]: entry for entry in json.loads(rclone("lsjson", "-R", "--hash", "--files-only", f"ks:{remote}"))}
    assert listed["plain"]["ModTime"].startswith("2009-02-13T23:31:30.5") and len(listed["plain"]["Hashes"]["md5"]) == 32
    assert "There was nothing to transfer" in rclone("copy", "-v", source, f"ks:{remote}")

    os.remove(invalid)
    shutil.rmtree(source / "deep ")
    (source / "what?").write_bytes(b"changed")
    os.utime(source / "plain", (1_300_000_000, 1_300_000_000))  # sets the time only: a POST
    assert "ERROR" in rclone("check", source, f"ks:{remote}", status=1)
    rclone("sync", source, f"ks:{remote}")
    assert "0 differences found" in rclone("check", source, f"ks:{remote}")
    assert names(account, remote) == set(AWKWARD) - {"deep /sp ace/y"}
    assert account.head(remote, "plain").headers["X-Object-Meta-Mtime"].startswith("1300000000")

    rclone("sync", f"ks:{remote}", back)
    assert tree_of(back) == tree_of(source)
    rclone("move", f"ks:{remote}/deep", f"ks:{remote}/moved")  # copies within the store, then deletes
    assert rclone("lsf", "-R", "--files-only", f"ks:{remote}/moved").split() == ["er/than/most/x", "ünder/z"]
    assert rclone("cat", f"ks:{remote}/moved/ünder/z").encode("utf-8", "surrogateescape") == (source / "deep/ünder/z").read_bytes()
    rclone("delete", f"ks:{remote}/moved")
    assert not [name for name in names(account, remote) if name.startswith(("moved", "deep"))]
    rclone("purge", f"ks:{remote}")
    account.head(remote).expect(404)


def test_files_in_chunks(account: Account, rclone: Rclone, remote: str, tmp_path: Path) -> None:
    big = tmp_path / "big é #1"
    content = random.Random(6).randbytes(3 * CHUNK + 12_345)
    big.write_bytes(content)
    segments = remote + "_segments"
    chunked = ["--swift-chunk-size", "1M"]

    rclone("copy", *chunked, big, f"ks:{remote}/in")
    head = account.head(remote, "in/" + big.name).expect(200)
    assert head.headers["Content-Length"] == str(len(content)) and (
        "X-Object-Manifest" in head.headers or "X-Static-Large-Object" in head.headers)
    first = names(account, segments)
    assert len(first) == 4
    assert "0 differences found" in rclone("check", "--download", tmp_path, f"ks:{remote}/in", "--include", "/big*")
    part = rclone("cat", "--offset", str(CHUNK - 5), "--count", "10", f"ks:{remote}/in/{big.name}")
    assert part.encode("utf-8", "surrogateescape") == content[CHUNK - 5:CHUNK + 5]
    assert "Copied" not in rclone("copy", "-v", *chunked, big, f"ks:{remote}/in")
    listed: list[dict[str, Any]] = json.loads(rclone("lsjson", f"ks:{remote}/in"))
    assert [entry["Size"] for entry in listed] == [len(content)]

    rclone("copyto", f"ks:{remote}/in/{big.name}", f"ks:{remote}/copied")  # within the store
    assert account.get(remote, "copied").expect(200).body == content
    rclone("deletefile", f"ks:{remote}/copied")
    rclone("check", "--download", tmp_path, f"ks:{remote}/in", "--include", "/big*")

    big.write_bytes(content[::-1])  # once more: the segments of before go
    rclone("copy", *chunked, big, f"ks:{remote}/in")
    assert len(names(account, segments)) == 4 and not names(account, segments) & first
    assert account.get(remote, "in/" + big.name).body == content[::-1]

    rclone("rcat", *chunked, f"ks:{remote}/piped", body=content)
    assert account.get(remote, "piped").expect(200).body == content
    rclone("copy", f"ks:{remote}/in", tmp_path / "back")
    assert (tmp_path / "back" / big.name).read_bytes() == content[::-1]
    rclone("delete", f"ks:{remote}")
    assert names(account, remote) == names(account, segments) == set()


@pytest.mark.parametrize("running", STORES[:1], indirect=True)
def test_containers_and_policies(account: Account, rclone: Rclone, remote: str, tmp_path: Path) -> None:
    rclone("mkdir", "--swift-storage-policy", "silver", f"ks:{remote}")
    assert account.head(remote).headers["X-Storage-Policy"] == "silver"
    assert remote in rclone("lsd", "ks:").split()
    rclone("rcat", f"ks:{remote}/dir/o", body=b"data")
    assert rclone("cat", f"ks:{remote}/dir/o") == "data"
    assert rclone("md5sum", f"ks:{remote}").split() == ["8d777f385d3dfec8815d20f7496026dc", "dir/o"]
    rclone("rmdir", f"ks:{remote}", status=1)  # it is not empty
    account.head(remote, "dir/o").expect(200)
    rclone("touch", "-t", "2001-02-03T04:05:06", f"ks:{remote}/dir/o")
    assert account.head(remote, "dir/o").headers["X-Object-Meta-Mtime"].startswith("981173106")
    assert "Objects:" in rclone("about", "ks:")
    assert "not found" in rclone("copy", f"ks:{remote}-none", tmp_path, status=3)
    rclone("purge", f"ks:{remote}")
