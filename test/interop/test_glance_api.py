"""Glance's own API server on SQLite, its images on a store behind a real Keystone, and python-glanceclient as its client."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from test.support.client import Account, unique
from test.support.keystone import REGION, Keystone, KeystoneStore, User
from test.support.openstack import glance_environment
from test.support.processes import Process, free_ports
from test.support.programs import run

MB = 1000 * 1024  # as glance_store counts
CONF = """\
[DEFAULT]
enabled_backends = single:swift, tenants:swift
use_stderr = true
node_staging_uri = file://{home}/staging
[database]
connection = sqlite:///{home}/glance.db?timeout=60
[paste_deploy]
flavor = keystone
config_file = {environment}/etc/glance/glance-api-paste.ini
[keystone_authtoken]
www_authenticate_uri = {auth}
auth_url = {auth}
auth_type = password
username = swift
password = swift-service
user_domain_id = default
project_name = service
project_domain_id = default
[glance_store]
default_backend = single
[os_glance_staging_store]
filesystem_store_datadir = {home}/staging
[os_glance_tasks_store]
filesystem_store_datadir = {home}/tasks
[single]
swift_store_config_file = {home}/swift-store.conf
default_swift_reference = service
swift_store_container = {container}
{common}
[tenants]
swift_store_multi_tenant = true
swift_store_auth_address = {auth}
swift_store_user = {project_name}:{user}
swift_store_key = {password}
swift_store_container = glance
{common}
"""
COMMON = """\
swift_store_region = {region}
swift_store_create_container_on_put = true
swift_store_large_object_size = 1
swift_store_large_object_chunk_size = 1
"""
REFERENCE = """\
[service]
user = {project_name}:{user}
key = {password}
auth_address = {auth}
user_domain_id = default
project_domain_id = default
"""


@dataclass
class Api:
    """A running Glance. ``service`` is the account of its own user; ``account`` that of who asks it."""

    home: Path
    env: dict[str, str]
    service: Account
    account: Account
    container: str

    def glance(self, *arguments: str | Path) -> str:
        return run([glance_environment() / "bin" / "glance", *arguments], self.home, self.env)

    def shown(self, *arguments: str | Path) -> dict[str, Any]:
        """What a command says of an image."""
        output = self.glance(*arguments)
        rows = [line.split("|")[1:3] for line in output.splitlines() if line.count("|") >= 3]
        return {name.strip(): value.strip() for name, value in rows}


@pytest.fixture(scope="module")
def api(keystone: Keystone, keystone_store: KeystoneStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    home = tmp_path_factory.mktemp("glance-api")
    for name in ("staging", "tasks"):
        (home / name).mkdir()
    port = free_ports(1)[0]
    service = keystone.make("service", name="glance", type="image")["id"]
    for interface in ("public", "internal", "admin"):
        keystone.make("endpoint", service_id=service, interface=interface, region_id=REGION, url=f"http://127.0.0.1:{port}")
    name, asking = unique("images"), unique("asking")
    project, other = keystone.project(name), keystone.project(asking)
    user = keystone.user(unique("glance"), swiftoperator=project)
    who: User = keystone.user(unique("user"), swiftoperator=other, member=other)
    container = unique("glance")
    values = {"home": home, "auth": keystone.url, "environment": glance_environment(), "container": container, "project_name": name, "user": user.name,
              "password": user.password, "common": COMMON.format(region=REGION)}
    (home / "glance-api.conf").write_text(CONF.format(**values))
    (home / "swift-store.conf").write_text(REFERENCE.format(**values))
    python = glance_environment() / "bin" / "python"
    run([python.with_name("glance-manage"), "--config-file", home / "glance-api.conf", "db_sync"], home)
    script = Path(__file__).parents[1] / "support" / "shells" / "glance_api.py"
    process = Process([str(python), "-I", str(script), str(port)], home / "glance.log", {
        "OS_GLANCE_CONFIG_DIR": str(home), "PYTHONPATH": "", "PYTHONWARNINGS": "ignore", "NO_PROXY": "*"})
    process.start()
    env = {"OS_AUTH_URL": keystone.url, "OS_USERNAME": who.name, "OS_PASSWORD": who.password, "OS_PROJECT_ID": other, "OS_USER_DOMAIN_ID": who.domain,
           "OS_REGION_NAME": REGION, "OS_IDENTITY_API_VERSION": "3"}
    try:
        process.wait_for("127.0.0.1", port)
        yield Api(home, env, keystone_store.account(keystone.token(user, project), project),
                  keystone_store.account(keystone.token(who, other), other), container)
    finally:
        process.stop()


@pytest.mark.parametrize(("backend", "size"), [("single", 2 * MB), ("tenants", 2 * MB), ("single", 77)])
def test_an_image_is_created_downloaded_and_deleted(api: Api, backend: str, size: int) -> None:
    """Large ones are of whole segments: the client says their size (doc/admin/openstack.md)."""
    data = os.urandom(size)
    (api.home / "image").write_bytes(data)
    made = api.shown("image-create", "--name", unique("image"), "--disk-format", "raw", "--container-format", "bare", "--store", backend,
                     "--file", api.home / "image")
    assert (made["status"], made["size"], made["checksum"]) == ("active", str(size), hashlib.md5(data).hexdigest()), made
    account, container = (api.service, api.container) if backend == "single" else (api.account, f"glance_{made['id']}")
    stored = [(entry["name"].removeprefix(made["id"]), entry["bytes"]) for entry in account.listing(container)]
    assert stored == ([("", size)] if size < MB else [("", 0), ("-00001", MB), ("-00002", MB)])
    api.glance("image-download", made["id"], "--file", api.home / "back")
    assert (api.home / "back").read_bytes() == data
    api.glance("image-delete", made["id"])
    if backend == "tenants":
        account.get(container).expect(404)
    else:
        assert account.listing(container) == []
