"""keelstore-recon beside swift-recon, asking the same hosts: the same lines, but for times and the order of hosts."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from keelstore.cli import recon
from test.support.recon_hosts import CHECKS, recon_hosts


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    found = tmp_path_factory.mktemp("recon")
    with recon_hosts(found):
        yield found


def lines_of(text: str) -> list[str]:
    text = re.sub(r"^\[\d[\d: -]+\]", "[now]", text, flags=re.M)
    text = re.sub(r"current time is .*", "other time", text)
    return sorted(line for line in text.splitlines() if "BaseHTTP" not in line)


@pytest.mark.parametrize("arguments", [check for check in CHECKS if "validate" not in check])
def test_the_same_lines(swift_python: str, directory: Path, capsys: pytest.CaptureFixture[str], arguments: str) -> None:
    words = ["--swiftdir", str(directory), *arguments.split()]
    theirs = subprocess.run([str(Path(swift_python).parent / "swift-recon"), *words], capture_output=True, text=True, check=True, timeout=60)
    assert recon.main(words) == 0
    assert lines_of(capsys.readouterr().out) == lines_of(theirs.stdout)
