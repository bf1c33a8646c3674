"""rclone and restic, unmodified, over their S3 backends (issue 6, point 2): the SDKs of AWS and of MinIO for Go."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from test.functional.test_real_backups import content, source
from test.support.programs import run
from test.support.s3_clients import Keys, go_program
from test.support.waiting import until

Program = Callable[..., str]
NAMES = ("plain", "with space", "per%cent%2Fescape", "what?", "#hash", "a+b&c=d;e", "back\\slash", "日本語", "nfd e\u0301", "n" * 200, "deep/er/x", "deep /y", "ünder/z")
__all__ = ["source"]


@pytest.fixture(params=("installed", "newest"))
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def rclone(release: str, s3_keys: Keys, tmp_path: Path) -> Program:
    """With a remote ``ks:``, as ``up`` says: provider, endpoint and keys, and nothing else."""
    env = {"TZ": "UTC", "RCLONE_CONFIG": os.devnull, "RCLONE_CONFIG_KS_TYPE": "s3", "RCLONE_CONFIG_KS_PROVIDER": "Other", "RCLONE_CONFIG_KS_ENDPOINT": s3_keys.endpoint,
           "RCLONE_CONFIG_KS_ACCESS_KEY_ID": s3_keys.user, "RCLONE_CONFIG_KS_SECRET_ACCESS_KEY": s3_keys.key}
    program = go_program("rclone", release)
    return lambda *arguments, **how: run([program, *arguments], tmp_path, env, **how)


@pytest.mark.parametrize("listing", ["1", "2"])
def test_rclone(rclone: Program, bucket_to_be: str, tmp_path: Path, listing: str) -> None:
    tree, back, remote, chance = tmp_path / "tree", tmp_path / "back", f"ks:{bucket_to_be}", random.Random(5)
    for name in NAMES:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(chance.randbytes(chance.choice([0, 1, 1000, 70_000])))
    os.utime(tree / "plain", (1_234_567_890.5, 1_234_567_890.5))
    how = ("--s3-list-version", listing)

    rclone("copy", *how, tree, f"{remote}/t")  # makes the bucket
    assert "0 differences found" in rclone("check", *how, tree, f"{remote}/t")
    assert "0 differences found" in rclone("check", *how, "--download", tree, f"{remote}/t")
    assert "There was nothing to transfer" in rclone("copy", *how, "-v", tree, f"{remote}/t")
    listed = {entry["Path"]: entry for entry in json.loads(rclone("lsjson", *how, "-R", "--hash", "--files-only", f"{remote}/t"))}
    assert listed["plain"]["ModTime"].startswith("2009-02-13T23:31:30.5") and set(listed) == set(NAMES)

    os.utime(tree / "plain", (1_300_000_000, 1_300_000_000))  # sets the time only: a copy onto itself
    shutil.rmtree(tree / "deep ")
    (tree / "what?").write_bytes(b"changed")
    rclone("sync", *how, tree, f"{remote}/t")
    assert "0 differences found" in rclone("check", *how, tree, f"{remote}/t")
    rclone("sync", *how, f"{remote}/t", back)
    assert content(back) == content(tree) and (back / "plain").stat().st_mtime == 1_300_000_000
    if listing == "1":
        return
    (tmp_path / "big").write_bytes(chance.randbytes((12 << 20) + 5))
    rclone("copy", "--s3-upload-cutoff", "6M", tmp_path / "big", remote)  # in parts of 5 MiB
    rclone("copyto", f"{remote}/big", f"{remote}/copied")  # within the store
    assert "0 differences found" in rclone("check", "--download", tmp_path, remote, "--include", "/big")
    assert rclone("cat", "--offset", "100", "--count", "10", f"{remote}/copied").encode("utf-8", "surrogateescape") == (tmp_path / "big").read_bytes()[100:110]
    rclone("rcat", "--s3-upload-cutoff", "0", f"{remote}/piped", body=b"piped")  # of unknown length
    assert rclone("cat", f"{remote}/piped") == "piped"
    rclone("move", f"{remote}/piped", f"{remote}/moved")
    assert run(["curl", "-sS", "-f", rclone("link", f"{remote}/moved/piped").split()[-1]], tmp_path) == "piped"
    rclone("backend", "cleanup", remote)
    rclone("purge", remote)


def test_rclone_with_versions(rclone: Program, s3_keys: Keys, bucket_to_be: str) -> None:
    s3, remote = s3_keys.boto3(), f"ks:{bucket_to_be}"
    s3.create_bucket(Bucket=bucket_to_be)
    s3.put_bucket_versioning(Bucket=bucket_to_be, VersioningConfiguration={"Status": "Enabled"})
    rclone("rcat", f"{remote}/a.txt", body=b"first")
    first = s3.head_object(Bucket=bucket_to_be, Key="a.txt")["LastModified"]
    until(lambda: datetime.now(UTC) > first, "another second begins")  # by which this client tells versions apart
    rclone("rcat", f"{remote}/a.txt", body=b"second")
    rclone("deletefile", f"{remote}/a.txt")
    assert rclone("lsf", "--files-only", remote) == ""
    old = rclone("lsf", "--s3-versions", "--files-only", remote).split()
    assert len(old) == 2 and all(name.startswith("a-v") and name.endswith(".txt") for name in old)
    assert {rclone("cat", "--s3-versions", f"{remote}/{name}") for name in old} == {"first", "second"}
    rclone("backend", "cleanup-hidden", remote)
    assert not {"Versions", "DeleteMarkers"} & set(s3.list_object_versions(Bucket=bucket_to_be))


def test_restic(release: str, s3_keys: Keys, bucket_to_be: str, source: Path, tmp_path: Path) -> None:
    program = go_program("restic", release)
    env = {**s3_keys.environment, "RESTIC_PASSWORD": "secret", "RESTIC_REPOSITORY": f"s3:{s3_keys.endpoint}/{bucket_to_be}/repo"}

    def restic(*arguments: str | Path, status: int = 0) -> str:
        return run([program, "--no-cache", "--json", *arguments], tmp_path, env, status=status)

    restic("init")  # makes the bucket
    restic("backup", source)
    first = content(source)
    (source / "big").write_bytes(first["big"][:1_000_000] + b"changed" + first["big"][1_000_000:])
    (source / "empty").unlink()
    restic("backup", source)
    snapshots = json.loads(restic("snapshots"))
    restic("check", "--read-data")
    for snapshot, expected in zip(snapshots, (first, content(source)), strict=True):
        restic("restore", snapshot["id"], "--target", tmp_path / snapshot["short_id"])
        assert content(tmp_path / snapshot["short_id"] / source.relative_to("/")) == expected
    restic("forget", "--keep-last", "1", "--prune", "--max-unused", "0")
    restic("check")
    names = [entry["Key"] for entry in s3_keys.boto3().list_objects_v2(Bucket=bucket_to_be)["Contents"]]
    assert "repo/config" in names and not [name for name in names if name.startswith("repo/locks/")]
