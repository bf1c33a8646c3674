"""The ``aws`` command, unmodified and with its default settings (issue 6, point 2)."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from test.support.programs import run
from test.support.s3_clients import Keys, aws_v2, python_clients

Aws = Callable[..., str]
BIG = (8 << 20) + 12_345  # above this client's threshold for uploads in parts
NAMES = ("a b+c%é", "sub/x", "sub/y#?&", "sub//z", "日本/~")


@pytest.fixture(params=("1", "2"))
def aws(request: pytest.FixtureRequest, s3_keys: Keys, tmp_path: Path) -> Aws:
    """Of either major version. ``refused``: the service is to have said no."""
    program, more, refusal = (python_clients() / "aws", {}, 255) if request.param == "1" else (*aws_v2(), 254)

    def call(*arguments: str | Path, refused: bool = False, **how: Any) -> str:
        return run([program, *arguments], tmp_path, {**s3_keys.environment, **more}, status=how.pop("status", refusal * refused), **how)

    return call


@pytest.fixture
def api(aws: Aws) -> Callable[..., Any]:
    """``aws s3api``: what it prints, read."""

    def call(*arguments: str, **how: Any) -> Any:
        output = aws("s3api", *arguments, "--output", "json", **how)
        return json.loads(output) if output.strip() and not how.get("refused") else output

    return call


@pytest.fixture
def bucket(s3_keys: Keys, bucket_to_be: str) -> str:
    s3_keys.boto3().create_bucket(Bucket=bucket_to_be)
    return bucket_to_be


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def listed(output: str) -> list[str]:
    """Keys of ``ls --recursive``."""
    return [line.split(maxsplit=3)[3] for line in output.splitlines()]


def test_files_and_trees(aws: Aws, bucket_to_be: str, tmp_path: Path) -> None:
    """mb, cp, sync, mv, rm, presign, rb: as in the client's manual."""
    url, source, back = f"s3://{bucket_to_be}", tmp_path / "source", tmp_path / "back"
    for name in NAMES:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(name)
    (source / "big").write_bytes(random.Random(1).randbytes(BIG))
    quiet = "--no-progress"

    assert aws("s3", "mb", url).strip() == f"make_bucket: {url[5:]}"
    assert url[5:] in aws("s3", "ls")
    assert aws("s3", "sync", quiet, source, f"{url}/dir").count("upload:") == len(tree(source))
    assert aws("s3", "sync", quiet, source, f"{url}/dir") == ""  # sizes and times are as they were
    aws("s3", "sync", quiet, f"{url}/dir", back)
    assert tree(back) == tree(source)

    (source / "sub/x").unlink()
    (source / "new").write_text("new")
    assert sorted(line.split()[0] for line in aws("s3", "sync", quiet, "--delete", source, f"{url}/dir").splitlines()) == ["delete:", "upload:"]
    assert {line.split()[0] for line in aws("s3", "sync", quiet, "--delete", f"{url}/dir", back).splitlines()} == {"delete:", "download:"}
    assert tree(back) == tree(source)

    aws("s3", "cp", quiet, "--content-type", "text/x", "--metadata", "colour=blue", source / "big", f"{url}/big")  # in parts
    head = json.loads(aws("s3api", "head-object", "--bucket", bucket_to_be, "--key", "big"))
    assert (head["ContentType"], head["Metadata"], head["ContentLength"]) == ("text/x", {"colour": "blue"}, BIG)
    aws("s3", "mv", quiet, f"{url}/big", f"{url}/moved")  # parts again, each copied
    aws("s3", "cp", quiet, f"{url}/moved", back / "moved")
    assert (back / "moved").read_bytes() == (source / "big").read_bytes()
    aws("s3", "mv", quiet, source / "new", f"{url}/from here/")
    assert not (source / "new").exists() and aws("s3", "cp", f"{url}/from here/new", "-") == "new"
    aws("s3", "cp", "-", f"{url}/piped", body=b"piped")
    signed = aws("s3", "presign", f"{url}/piped").strip()
    assert run(["curl", "-sS", "-f", signed], tmp_path) == "piped"
    assert run(["curl", "-sS", "-o", os.devnull, "-w", "%{http_code}", signed + "x"], tmp_path) == "403"

    aws("s3", "rm", "--recursive", f"{url}/dir", "--exclude", "*", "--include", "sub/*")
    assert listed(aws("s3", "ls", "--recursive", url)) == ["dir/a b+c%é", "dir/big", "dir/new", "dir/日本/~", "from here/new", "moved", "piped"]
    assert "BucketNotEmpty" in aws("s3", "rb", url, status=1)
    assert f"remove_bucket: {url[5:]}" in aws("s3", "rb", "--force", url)
    assert "NoSuchBucket" in aws("s3", "ls", url, refused=True)


def test_s3api(api: Callable[..., Any], bucket: str, tmp_path: Path) -> None:
    """Subcommands of each kind, their documents as this client writes and reads them."""
    at: tuple[str, ...] = ("--bucket", bucket)
    policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": f"arn:aws:s3:::{bucket}/*"}]}
    (tmp_path / "body").write_bytes(b"x" * 1000)

    assert api("get-bucket-location", *at)["LocationConstraint"] is None
    api("wait", "bucket-exists", *at)
    api("put-bucket-policy", *at, "--policy", json.dumps(policy))
    assert json.loads(api("get-bucket-policy", *at)["Policy"]) == policy
    assert api("get-bucket-policy-status", *at)["PolicyStatus"]["IsPublic"] is True
    api("put-bucket-versioning", *at, "--versioning-configuration", "Status=Enabled")
    assert api("get-bucket-versioning", *at) == {"Status": "Enabled"}
    api("put-bucket-cors", *at, "--cors-configuration", '{"CORSRules": [{"AllowedOrigins": ["*"], "AllowedMethods": ["GET"]}]}')
    assert api("get-bucket-cors", *at)["CORSRules"] == [{"AllowedOrigins": ["*"], "AllowedMethods": ["GET"]}]
    assert "NoSuchWebsiteConfiguration" in api("get-bucket-website", *at, refused=True)
    site = {"IndexDocument": {"Suffix": "index.html"}, "ErrorDocument": {"Key": "error.html"}}
    api("put-bucket-website", *at, "--website-configuration", json.dumps(site))
    assert api("get-bucket-website", *at) == site
    api("delete-bucket-website", *at)
    assert "NoSuchWebsiteConfiguration" in api("get-bucket-website", *at, refused=True)
    assert "NotImplemented" in api("put-bucket-accelerate-configuration", *at, "--accelerate-configuration", "Status=Enabled", refused=True)

    put = api("put-object", *at, "--key", "é 1", "--body", "body", "--tagging", "a=b", "--checksum-algorithm", "SHA256")
    assert put["ChecksumSHA256"] and put["VersionId"]
    assert api("get-object-tagging", *at, "--key", "é 1")["TagSet"] == [{"Key": "a", "Value": "b"}]
    attributes = api("get-object-attributes", *at, "--key", "é 1", "--object-attributes", "ETag", "Checksum", "ObjectSize")
    assert (attributes["ObjectSize"], attributes["Checksum"]["ChecksumSHA256"], attributes["ETag"]) == (1000, put["ChecksumSHA256"], put["ETag"].strip('"'))
    got = api("get-object", *at, "--key", "é 1", "--range", "bytes=990-", "--checksum-mode", "ENABLED", str(tmp_path / "got"))
    assert (tmp_path / "got").read_bytes() == b"x" * 10 and got["ContentRange"] == "bytes 990-999/1000"
    assert "PreconditionFailed" in api("put-object", *at, "--key", "é 1", "--if-none-match", "*", "--body", "body", refused=True)
    for name in ("b", "a"):
        api("copy-object", *at, "--copy-source", f"{bucket}/é 1", "--key", name)
    pages = api("list-objects-v2", *at, "--page-size", "1")
    assert [entry["Key"] for entry in pages["Contents"]] == ["a", "b", "é 1"]
    page = api("list-objects-v2", *at, "--max-items", "2", "--page-size", "2")
    assert len(page["Contents"]) == 2
    assert [entry["Key"] for entry in api("list-objects-v2", *at, "--starting-token", page["NextToken"])["Contents"]] == ["é 1"]

    marker = api("delete-object", *at, "--key", "a")
    assert marker["DeleteMarker"] is True
    versions = api("list-object-versions", *at, "--prefix", "a")
    assert [entry["VersionId"] for entry in versions["DeleteMarkers"]] == [marker["VersionId"]] and len(versions["Versions"]) == 1
    assert "404" in api("head-object", *at, "--key", "a", refused=True)
    api("delete-object", *at, "--key", "a", "--version-id", marker["VersionId"])
    assert api("head-object", *at, "--key", "a")["ContentLength"] == 1000
    gone = api("delete-objects", *at, "--delete", '{"Objects": [{"Key": "a"}, {"Key": "none"}]}')
    assert {entry["Key"] for entry in gone["Deleted"]} == {"a", "none"}
    upload = api("create-multipart-upload", *at, "--key", "parts")["UploadId"]
    assert [entry["UploadId"] for entry in api("list-multipart-uploads", *at)["Uploads"]] == [upload]
    api("abort-multipart-upload", *at, "--key", "parts", "--upload-id", upload)
