"""restic and duplicity, unmodified: backup, check and restore over their Swift backends (issue 3, point 4)."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from test.functional.conftest import STORES
from test.support.client import Account, Endpoint, unique
from test.support.programs import run

SYSTEM_PYTHON = "/usr/bin/python3"  # duplicity's, which finds python-swiftclient there or not at all


def has_duplicity() -> bool:
    """Whether duplicity is here, with the client that its Swift backend needs."""
    if not shutil.which("duplicity"):
        return False
    return subprocess.run([SYSTEM_PYTHON, "-I", "-c", "import swiftclient.service"], capture_output=True, check=False).returncode == 0


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A directory to back up, with some megabytes in few files and odd names."""
    root, chance = tmp_path / "source", random.Random(9)
    for name, size in (("big", 2_500_000), ("dir é/small", 10), ("dir é/日本 %?#", 5000), ("empty", 0), ("deep/er/file", 70_000)):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(chance.randbytes(size))
        os.utime(root / name, (1_500_000_000, 1_500_000_000))  # a change in the same second is none to duplicity
    (root / "link").symlink_to("empty")
    return root


@pytest.fixture
def remote(account: Account) -> Iterator[str]:
    name = unique("backup")
    yield name
    if account.head(name).status == 204:
        account.empty(name)


def content(root: Path) -> dict[str, bytes]:
    """Files and links below a directory, a link by where it leads."""
    return {str(path.relative_to(root)): bytes(path.readlink()) if path.is_symlink() else path.read_bytes()
            for path in root.rglob("*") if path.is_symlink() or path.is_file()}


@pytest.mark.skipif(not shutil.which("restic"), reason="restic is not installed")
@pytest.mark.parametrize("running", STORES[:1], indirect=True)  # each takes its time: on one kind of cluster
def test_case_C30_restic(store: Endpoint, account: Account, remote: str, source: Path, tmp_path: Path) -> None:
    env = {"ST_AUTH": store.auth_url, "ST_USER": "test:tester", "ST_KEY": "testing", "RESTIC_PASSWORD": "secret", "RESTIC_REPOSITORY": f"swift:{remote}:/repo"}

    def restic(*arguments: str | Path, status: int = 0) -> str:
        return run(["restic", "--no-cache", "--json", *arguments], tmp_path, env, status=status)

    restic("init")
    restic("backup", source)
    first = content(source)
    (source / "big").write_bytes(first["big"][:1_000_000] + b"changed" + first["big"][1_000_000:])
    (source / "empty").unlink()
    (source / "new").write_text("new")
    restic("backup", source)
    second = content(source)
    snapshots = json.loads(restic("snapshots"))
    assert len(snapshots) == 2
    restic("check", "--read-data")
    for snapshot, expected in zip(snapshots, (first, second), strict=True):
        restic("restore", snapshot["id"], "--target", tmp_path / snapshot["short_id"])
        assert content(tmp_path / snapshot["short_id"] / source.relative_to("/")) == expected
    before = {entry["name"] for entry in account.listing(remote)}
    restic("forget", "--keep-last", "1", "--prune", "--max-unused", "0")
    after = {entry["name"] for entry in account.listing(remote)}
    assert [name for name in before - after if name.startswith("repo/data/")] and not [name for name in after if name.startswith("repo/locks/")]
    restic("check")

    # It tells damage: a pack that is not what its name says.
    pack = next(name for name in after if name.startswith("repo/data/"))
    body = account.get(remote, pack).body
    account.put(remote, pack, body=body[:100] + bytes([body[100] ^ 1]) + body[101:]).expect(201)
    restic("check", "--read-data", status=1)


@pytest.mark.skipif(not has_duplicity(), reason="duplicity with python-swiftclient is not installed")
@pytest.mark.parametrize("running", STORES[-1:], indirect=True)
def test_duplicity(store: Endpoint, account: Account, remote: str, source: Path, tmp_path: Path) -> None:
    env = {"SWIFT_AUTHURL": store.auth_url, "SWIFT_AUTHVERSION": "1", "SWIFT_USERNAME": "test:tester", "SWIFT_PASSWORD": "testing",
           # some of its calls read these instead
           "ST_AUTH": store.auth_url, "ST_USER": "test:tester", "ST_KEY": "testing"}
    url = f"swift://{remote}"

    def duplicity(*arguments: str | Path, status: int = 0) -> str:
        return run(["duplicity", "--no-encryption", "--num-retries", "1", "--tempdir", tmp_path, *arguments], tmp_path, env, status=status)

    assert "Errors 0" in duplicity("full", "--volsize", "1", source, url)
    names = {entry["name"] for entry in account.listing(remote)}
    assert len([name for name in names if ".vol" in name]) == 3
    first = content(source)
    (source / "dir é/small").write_text("changed")
    (source / "empty").unlink()
    assert "Errors 0" in duplicity("incremental", source, url)
    assert "0 differences found" in duplicity("verify", "--compare-data", url, source)
    assert "No orphaned or incomplete backup sets found" in duplicity("collection-status", url)
    assert "dir é/日本 %?#" in duplicity("list-current-files", url)
    shutil.rmtree(tmp_path / ".cache" / "duplicity")  # as on a new machine: all it knows is in the store
    duplicity("restore", url, tmp_path / "back")
    assert content(tmp_path / "back") == content(source)
    stamp = next(name for name in names if name.endswith(".manifest")).split(".")[1]
    when = datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").strftime("%Y-%m-%dT%H:%M:%S+00:00")
    duplicity("restore", "--file-to-restore", "dir é/small", "--time", when, url, tmp_path / "small")
    assert (tmp_path / "small").read_bytes() == first["dir é/small"]
    (source / "big").write_bytes(b"smaller")
    assert "difference" in duplicity("verify", "--compare-data", url, source, status=1)
    duplicity("full", source, url)
    duplicity("remove-all-but-n-full", "1", "--force", url)
    assert not names & {entry["name"] for entry in account.listing(remote)}
    assert "0 differences found" in duplicity("verify", "--compare-data", url, source)
