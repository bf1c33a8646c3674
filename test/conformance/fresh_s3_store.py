#!/usr/bin/env python3
"""ceph/s3-tests against a store of ``keelstore up``, made for them and removed afterwards.

    fresh_s3_store.py 'OPTIONS OF keelstore up' [ARGUMENTS OF s3_tests.py]

SHARED names the directory that holds conformance/s3_tests.py; S3TESTS_SRC (a checkout) or S3TESTS_MIRROR (a git directory) say
where s3-tests are, of which nothing is kept here. Without them, and without a mirror beside SHARED, it says so and ends well.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from test.support.store import Store  # noqa: E402

SHARED = Path(os.environ.get("SHARED") or ROOT.parent / "shared")
SCRIPT = SHARED / "conformance" / "s3_tests.py"
MIRROR = SHARED.parent / ".mirror" / "ceph+s3-tests" / "repo"
USERS = ("--main", "test:tester,testing", "--alt", "test2:tester2,testing2")


def source() -> list[str] | None:
    """Where s3-tests are, as arguments; None when they are nowhere."""
    if os.environ.get("S3TESTS_SRC") or os.environ.get("S3TESTS_MIRROR"):
        return []
    return ["--mirror", str(MIRROR)] if MIRROR.is_dir() else None


def main() -> int:
    where = source()
    if where is None or not SCRIPT.exists():
        print("skipped: ceph/s3-tests are not here (S3TESTS_SRC names a checkout of them, S3TESTS_MIRROR a git directory)")
        return 0
    home = Path(tempfile.mkdtemp(prefix="keelstore-s3-tests-"))
    store = Store.new(home / "store", 1)
    out = Path(sys.argv[sys.argv.index("--out") + 1]) if "--out" in sys.argv else home / "out"
    work = Path(tempfile.gettempdir()) / "s3tests-work"
    try:
        store.up(*shlex.split(sys.argv[1]))
        try:
            environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
            status = subprocess.run(
                [sys.executable, str(SCRIPT), "--endpoint", store.endpoint.url, *USERS, *where, "--work", str(work),
                 "--out", str(out), *sys.argv[2:]], env=environ).returncode
        finally:
            store.down()
        if status in (0, 1) and (out / "summary.json").exists():  # it came to its end
            say_counts(out)
        return status
    finally:
        shutil.rmtree(home, ignore_errors=True)


def say_counts(out: Path) -> None:
    """As swift_functional.py ends, so that one reader does for both: all, passed, failed, skipped, errors, seconds."""
    found = json.loads((out / "summary.json").read_text())
    row = found["total"]
    print("all", *(row.get(word, 0) for word in ("passed", "failed", "skipped", "error")), found["wall_s"])


if __name__ == "__main__":
    sys.exit(main())
