"""The examples of doc/api/clients.md, run as they stand there, section by section."""

from __future__ import annotations

import filecmp
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from test.functional.conftest import STORES
from test.functional.test_real_backups import has_duplicity
from test.support.client import Account, Endpoint
from test.support.processes import ROOT
from test.support.programs import run

PAGE = (ROOT / "doc" / "api" / "clients.md").read_text()
INTRO, *SECTIONS = re.split(r"^## ", PAGE, flags=re.M)
BY_NAME = {section.partition("\n")[0]: section for section in SECTIONS}
CONTAINERS = ("photos", "photos_segments", "backup", "backup_segments", "restic", "duplicity", "docs")


def script(text: str) -> str:
    return "\n".join(line[4:] for line in text.splitlines() if line.startswith("    ")) + "\n"


@pytest.fixture
def home() -> Iterator[Path]:
    """A short path: that of the socket of gpg's agent has little room."""
    path = Path(tempfile.mkdtemp(prefix="kp-"))
    (path / "album" / "deep").mkdir(parents=True)
    (path / "album" / "big").write_bytes(random.Random(1).randbytes(2_500_000))
    (path / "album" / "small").write_text("small")
    (path / "album" / "deep" / "ü").write_text("deep")
    (path / "bin").mkdir()
    (path / "bin" / "swift").write_text(f'#!/bin/sh\nexec {sys.executable} -m swiftclient.shell "$@"\n')
    (path / "bin" / "swift").chmod(0o755)
    yield path
    if shutil.which("gpgconf") and (path / ".gnupg").exists():
        subprocess.run(["gpgconf", "--kill", "all"], env={"HOME": str(path), "PATH": "/usr/bin:/bin"}, check=False)
    shutil.rmtree(path)


def test_all_sections_are_run() -> None:
    assert list(BY_NAME) == ["swift", "rclone", "restic", "duplicity", "curl"]


@pytest.mark.parametrize("running", STORES[:1], indirect=True)
@pytest.mark.parametrize("name", list(BY_NAME))
def test_section(store: Endpoint, account: Account, home: Path, name: str) -> None:
    if name == "duplicity" and not has_duplicity():
        pytest.skip("duplicity with python-swiftclient is not installed")
    for program in {name, "curl", "openssl"} - {"swift"}:
        if not shutil.which(program):
            pytest.skip(f"{program} is not installed")
    text = script(INTRO) + script(BY_NAME[name])
    assert text.count("http://127.0.0.1:8080") == 1
    text = "set -e -o pipefail\nPATH=$HOME/bin:$PATH\n" + text.replace("http://127.0.0.1:8080", store.url)
    try:
        run(["bash", "-c", text], home)
        back = {"swift": "back/album", "rclone": "restored", "restic": "restored/album", "duplicity": "restored"}.get(name)
        if back:
            compared = filecmp.dircmp(home / "album", home / back)
            assert (compared.left_only, compared.right_only, compared.diff_files) == ([], [], [])
        if name == "swift":
            assert (home / "report").read_text() == "small" and account.listing("photos_segments") == []
        if name == "curl":
            assert (home / "big").read_bytes() == account.get("docs", "in/big").body == (home / "album" / "big").read_bytes()
            assert account.get("docs", "new").body == b"small"
        if name in ("rclone", "curl"):
            begin, length = (1_048_570, 20) if name == "rclone" else (0, 100)
            assert (home / "part").read_bytes() == (home / "album" / "big").read_bytes()[begin:begin + length]
    finally:
        for container in CONTAINERS:
            if account.head(container).status == 204:
                account.empty(container)
