#!/usr/bin/env python3
"""Swift's functional suites against a store of ``keelstore up``, made for them and removed afterwards.

    fresh_store.py 'OPTIONS OF keelstore up' [ARGUMENTS OF swift_functional.py]

SHARED names the directory that holds conformance/swift_functional.py.
"""

from __future__ import annotations

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
# The suites look at objects that have just expired: the expirer leaves them for a while.
PATIENT = ("[object-expirer]\n", "[object-expirer]\ndelay_reaping_AUTH_test = 120\n")


def main() -> int:
    options = shlex.split(sys.argv[1])
    nodes = int(options[options.index("--nodes") + 1]) if "--nodes" in options else 1
    home = Path(tempfile.mkdtemp(prefix="keelstore-conformance-"))
    store = Store.new(home / "store", nodes)
    try:
        store.up(*options)  # what the options say is written once, and then edited
        store.down()
        store.be_patient()
        for number in range(1, nodes + 1):
            store.edit("object-server.conf", PATIENT, number=number)
        store.up(*options)
        try:
            script = SHARED / "conformance" / "swift_functional.py"
            return subprocess.run([sys.executable, str(script), store.endpoint.url, *sys.argv[2:]], cwd=ROOT).returncode
        finally:
            store.down()
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
