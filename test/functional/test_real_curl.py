"""curl with temporary URLs and upload forms, as scripts and browsers use them (issue 3, point 4)."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from test.support.client import Account
from test.support.programs import run
from test.support.signing import form_fields, temp_url

pytestmark = pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")

Curl = Callable[..., str]
KEY = "curl key"


@pytest.fixture
def curl(tmp_path: Path) -> Curl:
    return lambda *arguments, **how: run(["curl", "-sS", *arguments], tmp_path, **how)


@pytest.fixture
def signed(account: Account, container: str) -> Callable[..., str]:
    """Make URLs of objects of the container."""
    account.post(container, headers={"X-Container-Meta-Temp-Url-Key": KEY}).expect(204)
    return lambda name, method="GET", **how: account.endpoint.url + temp_url(f"{account.path}/{container}/{name}", KEY, method, **how)


def test_temporary_urls(account: Account, container: str, curl: Curl, signed: Callable[..., str], tmp_path: Path) -> None:
    body = random.Random(8).randbytes(2_000_000)
    (tmp_path / "big").write_bytes(body)
    put = signed("dir/ü 1.bin", "PUT")
    curl("-f", "-T", "big", "-H", "Content-Type: x/y", put)  # with Expect: 100-continue
    assert account.get(container, "dir/ü 1.bin").body == body
    curl("-f", "-T", "-", put, body=b"chunked")  # of unknown length
    assert account.get(container, "dir/ü 1.bin").body == b"chunked"
    curl("-f", "-X", "PUT", "--data-binary", "@big", put)
    got = account.get(container, "dir/ü 1.bin").expect(200)
    assert (got.body, got.headers["Content-Type"]) == (body, "application/x-www-form-urlencoded")

    get = signed("dir/ü 1.bin")
    curl("-f", "-R", "-o", "dated", get)  # with the time of the object
    assert (tmp_path / "dated").read_bytes() == body
    (tmp_path / "back").write_bytes(body[:700_000])
    curl("-f", "-C", "-", "-o", "back", get)  # goes on where it stopped
    assert (tmp_path / "back").read_bytes() == body
    head = curl("-f", "-I", get)
    assert f"content-length: {len(body)}" in head.lower() and "accept-ranges: bytes" in head.lower()
    assert curl("-f", "-I", signed("dir/ü 1.bin", "PUT")).startswith("HTTP/1.1 200")
    for how, name in (({"filename": "other name.txt"}, "other name.txt"), ({"inline": ""}, "")):
        shown = curl("-f", "-o", "/dev/null", "-D", "-", signed("dir/ü 1.bin", **how))
        assert ("inline" if not name else f'attachment; filename="{name}"') in shown
    curl("-f", "-O", "-J", signed("dir/ü 1.bin", filename="saved.bin"))
    assert (tmp_path / "saved.bin").read_bytes() == body
    assert curl("-w", "%{http_code}", "-o", "/dev/null", "-z", "dated", get) == "304"

    bare = curl("-w", " %{http_code}", "-X", "DELETE", get)
    assert bare.endswith(" 401") and account.head(container, "dir/ü 1.bin").status == 200
    assert curl("-w", "%{http_code}", "-o", "/dev/null", signed("dir/ü 1.bin", seconds=-1)) == "401"
    assert curl("-w", "%{http_code}", "-o", "/dev/null", "-T", "big", signed("dir/ü 1.bin")) == "401"
    curl("-f", "-X", "DELETE", signed("dir/ü 1.bin", "DELETE"))
    account.head(container, "dir/ü 1.bin").expect(404)


def test_a_form(account: Account, container: str, curl: Curl, signed: Callable[..., str], tmp_path: Path) -> None:
    del signed  # has set the key
    (tmp_path / "photo é.jpg").write_bytes(random.Random(7).randbytes(300_000))
    (tmp_path / "notes.txt").write_text("text")
    target = f"{account.path}/{container}/in/"

    def post(*files: str, seconds: int = 600, **fields: str) -> str:
        form = {**form_fields(target, KEY, account.endpoint.url + "/healthcheck", max_size=1 << 20, max_count=2, seconds=seconds), **fields}
        parts = [part for name, value in form.items() for part in ("--form-string", f"{name}={value}")]
        for number, file in enumerate(files):
            parts += ["-F", f"file{number}=@{file}"]
        return curl("-L", "-w", " %{http_code} %{num_redirects} %{url_effective}", *parts, account.endpoint.url + target)

    said = post("photo é.jpg;type=image/jpeg", "notes.txt")
    assert said.startswith("OK 200 1 ") and "?status=201&message=" in said  # sent on to the page named
    for name, kind in (("photo é.jpg", "image/jpeg"), ("notes.txt", "text/plain")):
        got = account.get(container, "in/" + name).expect(200)
        assert (got.body, got.headers["Content-Type"]) == ((tmp_path / name).read_bytes(), kind)
    assert "status=400" in post("notes.txt", "notes.txt;filename=b", "notes.txt;filename=c")
    assert post("notes.txt;filename=d", seconds=-10).startswith("FormPost: Form Expired 401 0 ")
    assert post("notes.txt;filename=e", signature="0" * 64).startswith("FormPost: Invalid Signature 401 0 ")
    assert {"in/d", "in/e"}.isdisjoint(entry["name"] for entry in account.listing(container))
