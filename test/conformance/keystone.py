#!/usr/bin/env python3
"""Swift's functional suite against a store whose users are those of a real Keystone.

    keystone.py [ARGUMENTS OF swift_functional.py]

Starts both in a temporary directory, makes the users that the suite wants (those of test/support/keystone.py do not do: it
logs in by names), and runs ``swift_functional.py`` with a configuration for version 3 in place of its own. SHARED names
the directory that holds conformance/swift_functional.py.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from test.support.keystone import DEFAULT, Ec2, Keystone, User, running_keystone, store_of  # noqa: E402

LENIENT = "cache = swift.cache\nservice_token_roles_required = false"  # the suite sends service tokens of those who are none
SHARED = Path(os.environ.get("SHARED") or ROOT.parent / "shared")
CONF = """\
[func_test]
auth_version = 3
auth_uri = {auth}
s3_storage_url = {base}/
s3_region = us-east-1
s3_access_key = {key[1].access}
s3_secret_key = {key[1].secret}
s3_access_key2 = {key[2].access}
s3_secret_key2 = {key[2].secret}
s3_access_key3 = {key[3].access}
s3_secret_key3 = {key[3].secret}
account = test
username = tester
password = tester-password
account2 = test2
username2 = tester2
password2 = tester2-password
username3 = tester3
password3 = tester3-password
account4 = test4
username4 = tester4
password4 = tester4-password
domain4 = test-domain
account5 = test5
username5 = tester5
password5 = tester5-password
service_prefix = SERVICE
account6 = admin
username6 = tester6
password6 = tester6-password
storage_domain = example.net
collate = C
insecure = yes

[s3api_test]
endpoint = {base}
region = us-east-1
access_key1 = {key[1].access}
secret_key1 = {key[1].secret}
access_key2 = {key[2].access}
secret_key2 = {key[2].secret}
access_key3 = {key[3].access}
secret_key3 = {key[3].secret}
s3_acl_tests_enabled = False

[unit_test]
fake_syslog = False

[swift-constraints]
"""


def users(keystone: Keystone) -> dict[int, Ec2]:
    """Make the users; gives the S3 keys of the first three."""
    test, test2 = keystone.project("test"), keystone.project("test2")
    domain = keystone.domain("test-domain")
    test4 = keystone.project("test4", domain)
    first: list[tuple[User, str]] = [
        (keystone.user("tester", admin=test), test),
        (keystone.user("tester2", admin=test2), test2),
        (keystone.user("tester3", _plain=test), test),
    ]
    keystone.user("tester4", domain, admin=test4)
    keystone.user("tester5", service=keystone.project("test5"))
    admin = keystone.ask("GET", f"projects?name=admin&domain_id={DEFAULT}")["projects"][0]["id"]
    keystone.user("tester6", ResellerAdmin=admin, admin=admin)
    return {number: keystone.ec2(user, project) for number, (user, project) in enumerate(first, 1)}


def main() -> int:
    spec = importlib.util.spec_from_file_location("swift_functional", SHARED / "conformance" / "swift_functional.py")
    assert spec is not None and spec.loader is not None
    suite: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(suite)
    home = Path(tempfile.mkdtemp(prefix="keelstore-keystone-"))
    try:
        with running_keystone(home / "keystone") as keystone, store_of(keystone, home / "store", LENIENT) as store:
            text = CONF.format(auth=keystone.url, base=store.endpoint.url, key=users(keystone))
            suite.write_conf = lambda path, endpoint, opts: Path(path).write_text(text)
            sys.argv[1:1] = [store.endpoint.url]
            result = suite.main()
        return int(result)
    except pytest.skip.Exception as reason:
        print(f"skipped: {reason}")
        return 0
    finally:
        if not os.environ.get("KEELSTORE_KEEP"):
            shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
