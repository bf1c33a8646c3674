"""Programs of Debian's newest packages, beside what this machine has installed: fetched once, unpacked in the cache directory, never installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from test.support.environments import made_once

ARCHIVE = "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian sid main\n"
CONFIGURATION = """Dir::State "{home}/apt";
Dir::State::Lists "{home}/apt/lists";
Dir::State::status "/dev/null";
Dir::Cache "{home}/apt/cache";
Dir::Etc::sourcelist "{home}/apt/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Acquire::Languages "none";
APT::Sandbox::User "root";
"""


def newest(*packages: str) -> Path:
    """The directory in which ``packages`` are unpacked, their signatures checked by apt; what they depend on is not there.

    The test is skipped where there is no apt, or no archive within reach.
    """
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        pytest.skip("there is no apt here")
    return made_once(f"debian-{'-'.join(packages)}", lambda home: _unpack(home, packages)) / "root"


def _unpack(home: Path, packages: tuple[str, ...]) -> None:
    shutil.rmtree(home, ignore_errors=True)
    for folder in ("apt/lists/partial", "apt/cache/archives/partial", "root"):
        (home / folder).mkdir(parents=True)
    (home / "apt/sources.list").write_text(ARCHIVE)
    (home / "apt/apt.conf").write_text(CONFIGURATION.format(home=home))
    if not _apt(home, "update", "--error-on=any"):
        pytest.skip("there is no archive of Debian within reach")
    assert _apt(home, "download", *packages), f"Debian has no {' '.join(packages)}"
    for package in home.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", package, home / "root"], check=True)
        package.unlink()
    shutil.rmtree(home / "apt")


def _apt(home: Path, *command: str) -> bool:
    return subprocess.run(["apt-get", "-qq", *command], cwd=home, env={**os.environ, "APT_CONFIG": str(home / "apt/apt.conf")}, stdout=subprocess.DEVNULL,
                          check=False).returncode == 0
