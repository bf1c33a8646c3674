#!/usr/bin/env python3
"""The object storage tests of OpenStack's tempest against a store whose users are those of a real Keystone.

    run_tempest.py [--known FILE] [--out DIRECTORY] [MODULE OR TEST ...]

Without names: all of tempest.api.object_storage. Starts Keystone and the store in a temporary directory; tempest makes its users
itself, with the rights of Keystone's admin, and runs in an environment of its own. FILE has the tests that may fail, one id a
line; ends with 1 when another one does, when a listed one passes, or when none passes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from test.support.environments import environment  # noqa: E402
from test.support.keystone import ADMIN_PASSWORD, REGION, Keystone, KeystoneStore, running_keystone, store_of  # noqa: E402

TEMPEST = "47.0.0"
PACKAGE = "tempest.api.object_storage"
PROCESSES = 2
OUTCOMES = ("passed", "failed", "skipped", "error")
LIMIT_S = 1200
CONF = """\
[DEFAULT]
log_dir = {home}
log_file = tempest-{number}.log
[oslo_concurrency]
lock_path = {home}/lock
[auth]
use_dynamic_credentials = true
create_isolated_networks = false
tempest_roles =
admin_username = admin
admin_password = {password}
admin_project_name = admin
admin_domain_name = Default
[identity]
auth_version = v3
uri_v3 = {auth}
region = {region}
v3_endpoint_type = public
[service_available]
swift = true
cinder = false
glance = false
neutron = false
nova = false
[object-storage]
region = {region}
operator_role = swiftoperator
reseller_admin_role = ResellerAdmin
realm_name = tempest
cluster_name = here
container_sync_timeout = 120
container_sync_interval = 1
build_timeout = 60
[object-storage-feature-enabled]
discoverable_apis = all
"""
REALMS = """\
[tempest]
key = tempest-realm-key
cluster_here = http://127.0.0.1:{port}/v1/
"""


def prepare(keystone: Keystone, store: KeystoneStore) -> None:
    """What the tests expect of a cloud: roles, a realm to copy containers in, and daemons that do not take their time."""
    for role in ("swiftoperator", "ResellerAdmin"):
        keystone.role(role)
    (store.store.etc() / "container-sync-realms.conf").write_text(REALMS.format(port=store.store.port))
    store.store.edit("container-server.conf", ("[container-sync]\ninterval = 30", "[container-sync]\ninterval = 1"))
    store.store.reload()


def run(python: Path, keystone: Keystone, home: Path, names: Sequence[str]) -> list[dict[str, str]]:
    """Run the tests in ``PROCESSES`` processes, each of which has whole modules; gives all outcomes."""
    runner = Path(__file__).with_name("tempest_runner.py")
    started: list[tuple[subprocess.Popen[bytes], Path, Path]] = []
    for number in range(PROCESSES):
        mine = list(names[number::PROCESSES])
        if not mine:
            continue
        conf, out, log = home / f"conf-{number}", home / f"outcomes-{number}", home / f"output-{number}"
        conf.mkdir()
        (conf / "tempest.conf").write_text(CONF.format(home=home, number=number, password=ADMIN_PASSWORD, auth=keystone.url, region=REGION))
        env = {**os.environ, "TEMPEST_CONFIG_DIR": str(conf), "PYTHONPATH": "", "NO_PROXY": "*", "OS_TEST_TIMEOUT": "300"}
        with open(log, "wb") as file:
            process = subprocess.Popen([python, runner, out, *mine], cwd=home, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        started.append((process, out, log))
    found: list[dict[str, str]] = []
    end = time.monotonic() + LIMIT_S
    try:
        for process, out, log in started:
            why = ""
            try:
                if process.wait(max(1.0, end - time.monotonic())):
                    why = f"ended with {process.returncode}"
            except subprocess.TimeoutExpired:
                why = f"not done in {LIMIT_S} s"
            if out.exists():
                found += [json.loads(line) for line in out.read_text().splitlines()]
            if why:
                found.append({"id": PACKAGE, "outcome": "error", "why": f"{why}\n{log.read_text(errors='replace')[-4000:]}", "seconds": "0"})
    finally:
        for process, _, _ in started:
            if process.poll() is None:
                process.kill()
                process.wait()
    return found


def modules(python: Path) -> list[str]:
    """The test modules of the package."""
    code = f"import {PACKAGE} as package, pkgutil; print(*(module.name for module in pkgutil.iter_modules(package.__path__)))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": ""})
    return [f"{PACKAGE}.{name}" for name in sorted(done.stdout.split()) if name.startswith("test_")]


def module_of(name: str) -> str:
    """Of the id of a test, or of what unittest calls the set-up of a class."""
    return name.rpartition("(")[2].removeprefix(PACKAGE + ".").split(".")[0]


def say(found: Sequence[dict[str, str]], seconds: float, known: set[str], out: Path | None) -> bool:
    """A table as swift_functional.py has it, what fails, and whether that is as it should be."""
    print(f"{'module':<50} {'passed':>7} {'failed':>7} {'skipped':>7} {'errors':>7}")
    counts: dict[str, Counter[str]] = {}
    for one in found:
        counts.setdefault(module_of(one["id"]), Counter())[one["outcome"]] += 1
    total: Counter[str] = Counter()
    for module, counter in sorted(counts.items()):
        print(f"{module:<50}", *(f"{counter[word]:>7}" for word in OUTCOMES))
        total += counter
    bad = {one["id"]: one["why"] for one in found if one["outcome"] in ("failed", "error")}
    for one in found:
        if one["outcome"] == "skipped":
            print(f"skipped: {one['id'].removeprefix(PACKAGE + '.')}: {one['why'].strip()[:160]}")
    new = sorted(set(bad) - known)
    good = sorted(known & {one["id"] for one in found if one["outcome"] == "passed"})
    for name in new:
        print(f"FAILED {name}")
    for name in good:
        print(f"passes, though it is listed as failing: {name}")
    if out:
        (out / "failing.txt").write_text("".join(f"{name}\n" for name in new))
        (out / "failing-why.txt").write_text("".join(f"{name}\n{bad[name]}\n" for name in new))
        (out / "outcomes.json").write_text(json.dumps(found, indent=1))
    print(f"{'all':<50}", *(f"{total[word]:>7}" for word in OUTCOMES), f"{seconds:.1f}")
    return not new and not good and total["passed"] > 0


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--known", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    known: set[str] = set()
    if options.known:
        known = {line.strip() for line in options.known.read_text().splitlines() if line.strip() and not line.startswith("#")}
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
    home = Path(tempfile.mkdtemp(prefix="keelstore-tempest-"))
    try:
        python = environment(f"tempest-{TEMPEST}", f"tempest=={TEMPEST}") / "bin" / "python"
        with running_keystone(home / "keystone") as keystone, store_of(keystone, home / "data") as store:
            prepare(keystone, store)
            began = time.monotonic()
            found = run(python, keystone, home, options.names or modules(python))
            good = say(found, time.monotonic() - began, known, options.out)
            if not good:
                print(store.store.log()[-2000:] if "Traceback" in store.store.log() else "")
        return 0 if good else 1
    except pytest.skip.Exception as reason:
        print(f"skipped: {reason}")
        return 0
    finally:
        if not os.environ.get("KEELSTORE_KEEP"):
            shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
