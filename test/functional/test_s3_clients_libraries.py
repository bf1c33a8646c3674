"""minio-py, s3fs and AWS's SDK for JavaScript, at their newest releases and with their default settings (issue 6, point 2).

Each is driven by a script in ``test/support/clients``, in an environment of its own.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from test.support.programs import run
from test.support.s3_clients import Keys, javascript_sdk, python_clients

SCRIPTS = Path(__file__).parent.parent / "support" / "clients"


def test_minio_py(s3_keys: Keys, bucket_to_be: str, tmp_path: Path) -> None:
    run([python_clients() / "python", SCRIPTS / "s3_minio.py", s3_keys.host, s3_keys.region, bucket_to_be, tmp_path], tmp_path, s3_keys.environment)


def test_s3fs(s3_keys: Keys, bucket_to_be: str, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    for name in ("a", "b c", "é"):
        (tmp_path / "tree" / name).write_text(name)
    run([python_clients() / "python", SCRIPTS / "s3_fsspec.py", bucket_to_be, tmp_path / "tree"], tmp_path, s3_keys.environment)


def test_aws_sdk_for_javascript(s3_keys: Keys, bucket_to_be: str, tmp_path: Path) -> None:
    node, packages = javascript_sdk()
    script = tmp_path / "s3_sdk.mjs"  # imports are looked for beside it
    shutil.copy(SCRIPTS / script.name, script)
    (tmp_path / "node_modules").symlink_to(packages / "node_modules")
    run([node, script, bucket_to_be], tmp_path, s3_keys.environment)
