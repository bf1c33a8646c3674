"""``s3cmd``, unmodified (issue 6, point 2): what it cannot guess, endpoint and keys, is given to it and nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from test.support.programs import run
from test.support.s3_clients import Keys, python_clients

BIG = (15 << 20) + 12_345  # above this client's size of a part
NAMES = ("a b+c%é", "sub/x", "sub/y#?&", "日本/~")


@pytest.fixture
def s3cmd(s3_keys: Keys, tmp_path: Path) -> Callable[..., str]:
    (tmp_path / ".s3cfg").write_text(f"[default]\naccess_key = {s3_keys.user}\nsecret_key = {s3_keys.key}\nhost_base = {s3_keys.host}\n"
                                     f"host_bucket = {s3_keys.host}\nuse_https = False\n")
    program = python_clients() / "s3cmd"
    return lambda *arguments, **how: run([program, "--no-progress", *arguments], tmp_path, **how)


def test_s3cmd(s3cmd: Callable[..., str], bucket_to_be: str, tmp_path: Path) -> None:
    url, source, back = f"s3://{bucket_to_be}", tmp_path / "source", tmp_path / "back"
    for name in NAMES:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(name)
    (tmp_path / "big").write_bytes(random.Random(1).randbytes(BIG))

    s3cmd("mb", url)
    assert url in s3cmd("ls")
    s3cmd("put", "--mime-type", "text/x", "--add-header", "x-amz-meta-colour: blue", "big", f"{url}/big")  # in parts, each of whose MD5s it compares
    info = s3cmd("info", f"{url}/big")
    assert str(BIG) in info and "text/x" in info and "x-amz-meta-colour: blue" in info and "uid:" in info, info
    assert "WARNING" not in s3cmd("get", f"{url}/big", "back-big")
    assert (tmp_path / "back-big").read_bytes() == (tmp_path / "big").read_bytes()
    info = s3cmd("info", url)
    assert "Location:  us-east-1" in info and "Policy:" in info and "CORS:" in info, info

    assert s3cmd("sync", f"{source}/", f"{url}/dir/").count("upload:") == len(NAMES)
    assert "upload:" not in s3cmd("sync", f"{source}/", f"{url}/dir/")
    back.mkdir()
    s3cmd("sync", f"{url}/dir/", f"{back}/")
    assert {str(path.relative_to(back)): path.read_text() for path in back.rglob("*") if path.is_file()} == {name: name for name in NAMES}
    (source / "sub/x").unlink()
    assert "delete:" in s3cmd("sync", "--delete-removed", f"{source}/", f"{url}/dir/")
    s3cmd("cp", f"{url}/dir/sub/y#?&", f"{url}/copied")
    s3cmd("mv", f"{url}/copied", f"{url}/moved")
    s3cmd("modify", "--mime-type", "text/y", f"{url}/moved")
    assert "text/y" in s3cmd("info", f"{url}/moved")
    s3cmd("setacl", "--acl-public", f"{url}/moved")
    assert "*anon*: READ" in s3cmd("info", f"{url}/moved")
    assert run(["curl", "-sS", "-f", s3cmd("signurl", f"{url}/dir/sub/y#?&", "+600").strip()], tmp_path) == "sub/y#?&"
    (tmp_path / "policy").write_text('{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", '
                                     f'"Resource": "arn:aws:s3:::{bucket_to_be}/dir/*"}}]}}')
    s3cmd("setpolicy", "policy", url)
    assert "s3:GetObject" in s3cmd("info", url)
    s3cmd("delpolicy", url)
    s3cmd("--signature-v2", "put", "big", f"{url}/old way")
    assert "Total" not in s3cmd("multipart", url) and str(BIG) in s3cmd("ls", "--recursive", url)
    assert "BucketNotEmpty" in s3cmd("rb", url, status=13)
    assert s3cmd("rm", "--recursive", "--force", url).count("delete:") == 6
    s3cmd("rb", url)
