"""A real glance_store, with its driver for Swift, on a store behind a real Keystone: ``clients.md`` G1 to G16.

Its code runs in an environment of its own (``test.support.openstack``). Large images and their segments are of 1 MB, where
Glance has 5 GiB and 200 MiB. ``test/functional/test_glance.py`` makes the same requests one by one.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from test.support.client import Account, unique
from test.support.keystone import REGION, Keystone, KeystoneStore, User
from test.support.openstack import Refused, Shell, glance_environment, shell
from test.support.relay import Relay, relay

MB = 1000 * 1024  # as glance_store counts
CONF = """\
[DEFAULT]
[glance_store]
default_backend = single
[single]
{single}
[seeded]
{single}
swift_store_multiple_containers_seed = 3
[strict]
{single}
swift_store_container = {container}-none
swift_store_create_container_on_put = false
[plain]
{single}
swift_store_container = {container}-plain
swift_store_large_object_size = 100
[buffered]
{single}
swift_store_container = {container}-buffered
swift_buffer_on_upload = true
swift_upload_buffer_dir = {home}
swift_store_endpoint = http://localhost:{relay}/v1/AUTH_{project}
[resuming]
{single}
swift_store_retry_get_count = 3
swift_store_endpoint = http://localhost:{relay}/v1/AUTH_{project}
[application]
{single}
default_swift_reference = application
[tenants]
{tenants}
swift_store_use_trusts = true
swift_store_expire_soon_interval = 1000000
[tenants_alone]
{tenants}
swift_store_use_trusts = false
"""
COMMON = """\
swift_store_region = {region}
swift_store_create_container_on_put = true
swift_store_large_object_size = 1
swift_store_large_object_chunk_size = 1
swift_store_auth_version = 3
"""
SINGLE = COMMON + """\
swift_store_config_file = {home}/swift-store.conf
default_swift_reference = service
swift_store_container = {container}
"""
TENANTS = COMMON + """\
swift_store_multi_tenant = true
swift_store_container = glance
swift_store_admin_tenants = {admins}
swift_store_auth_address = {auth}
swift_store_user = {project_name}:{user}
swift_store_key = {password}
"""
REFERENCES = """\
[service]
user = {project_name}:{user}
key = {password}
auth_address = {auth}
user_domain_id = default
project_domain_id = default
[application]
application_credential_id = {application[id]}
application_credential_secret = {application[secret]}
auth_address = {auth}
"""
BACKENDS = ("single", "seeded", "strict", "plain", "buffered", "resuming", "application", "tenants", "tenants_alone")


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


@dataclass
class Image:
    """What was stored of one, as glance_store says it."""

    id: str
    data: bytes
    uri: str
    backend: str


@dataclass
class Glance:
    """A glance_store, its service user, and that user's account as anybody with a token sees it."""

    shell: Shell
    home: Path
    account: Account
    container: str
    relay: Relay
    user: User
    project: str

    def file(self, data: bytes = b"") -> Path:
        path = self.home / uuid.uuid4().hex
        path.write_bytes(data)
        return path

    def add(self, backend: str, data: bytes, is_size_known: bool = True, **more: Any) -> Image:
        """Store an image; what glance_store says of it must be right."""
        image, path = str(uuid.uuid4()), self.file(data)
        found = self.shell("add", backend=backend, image=image, path=str(path), size=len(data) if is_size_known else 0, **more)
        path.unlink()
        assert (found["size"], found["checksum"], found["digest"]) == (len(data), md5(data), hashlib.sha512(data).hexdigest())
        return Image(image, data, found["uri"], backend)

    def read(self, image: Image, **more: Any) -> bytes:
        path = self.file()
        size = self.shell("get", backend=image.backend, uri=image.uri, path=str(path), **more)
        data = path.read_bytes()
        path.unlink()
        assert size == len(image.data)
        return data

    def size(self, image: Image, **more: Any) -> int:
        return int(self.shell("size_of", backend=image.backend, uri=image.uri, **more))

    def delete(self, image: Image, **more: Any) -> None:
        self.shell("delete", backend=image.backend, uri=image.uri, **more)

    def objects(self, image: Image, container: str | None = None) -> list[tuple[str, int]]:
        """Of an image, what there is: the ends of the names, and sizes."""
        return [(entry["name"].removeprefix(image.id), entry["bytes"])
                for entry in self.account.listing(container or self.container, query=f"prefix={image.id}")]


@pytest.fixture(scope="module")
def glance(keystone: Keystone, keystone_store: KeystoneStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Glance]:
    home = tmp_path_factory.mktemp("glance")
    name = unique("images")
    project = keystone.project(name)
    user = keystone.user(unique("glance"), swiftoperator=project)
    token = keystone.token(user, project)
    made = keystone.ask("POST", f"users/{user.id}/application_credentials", {"application_credential": {"name": "glance"}}, token)
    container = unique("glance")
    with relay(keystone_store.endpoint.host, keystone_store.endpoint.port) as between:
        values = {"home": home, "region": REGION, "container": container, "auth": keystone.url, "project": project, "project_name": name,
                  "user": user.name, "password": user.password, "admins": project, "relay": between.port, "application": made["application_credential"]}
        values.update(single=SINGLE.format(**values), tenants=TENANTS.format(**values))
        (home / "swift-store.conf").write_text(REFERENCES.format(**values))
        (home / "glance.conf").write_text(CONF.format(**values))
        with shell(glance_environment() / "bin" / "python", "glance_shell.py", home) as asked:
            asked("configure", path=str(home / "glance.conf"), backends=BACKENDS)
            yield Glance(asked, home, keystone_store.account(token, project), container, between, user, project)


@dataclass
class Tenant:
    """A user of Glance in a project of her own, whose container an image is in where each has hers."""

    user: User
    project: str
    account: Account
    context: dict[str, Any]


def tenant_of(keystone: Keystone, store: KeystoneStore, *roles: str) -> Tenant:
    project = keystone.project(unique("tenant"))
    user = keystone.user(unique("user"), **dict.fromkeys(roles, project))
    account = store.account(keystone.token(user, project), project)
    url = store.endpoint.url + account.path
    catalog = [{"type": "object-store", "name": "swift", "endpoints": [{"region": REGION, "publicURL": url, "internalURL": url, "adminURL": url}]}]
    return Tenant(user, project, account, {
        "auth_token": account.token, "user_id": user.id, "project_id": project, "service_catalog": catalog})


@pytest.fixture(scope="module")
def tenant(keystone: Keystone, keystone_store: KeystoneStore) -> Tenant:
    return tenant_of(keystone, keystone_store, "swiftoperator", "member")


def test_glance_store_G1_containers_are_made_when_they_are_needed(glance: Glance) -> None:
    with pytest.raises(Refused) as refused:
        glance.add("strict", b"data")
    assert refused.value.kind == "BackendException" and "does not exist" in refused.value.text
    glance.account.head(f"{glance.container}-none").expect(404)
    for _ in range(2):
        image = glance.add("seeded", b"data")
        container = f"{glance.container}_{image.id[:3]}"
        assert glance.objects(image, container) == [("", 4)]
        assert f"/{container}/{image.id}" in image.uri
        glance.delete(image)


@pytest.mark.parametrize("size", [1, 65_536, MB - 1])
def test_glance_store_G2_a_small_image(glance: Glance, size: int) -> None:
    """One PUT, whose ETag is the image's checksum (``add`` looks at it)."""
    image = glance.add("single", os.urandom(size))
    assert glance.objects(image) == [("", size)]
    assert (glance.read(image), glance.size(image)) == (image.data, size)
    glance.delete(image)
    assert glance.objects(image) == []


@pytest.mark.parametrize("backend", ["single", "buffered", "application"])
@pytest.mark.parametrize(("size", "is_size_known"), [(2 * MB, True), (MB, True), (2 * MB, False), (2 * MB + 1, False), (7, False)])
def test_glance_store_G3_G4_G5_G8_G10_G11_a_large_image(glance: Glance, backend: str, size: int, is_size_known: bool) -> None:
    """Segments and a manifest, read whole, sized, and gone with all its segments."""
    container = f"{glance.container}-buffered" if backend == "buffered" else glance.container
    image = glance.add(backend, random.randbytes(size), is_size_known)
    sizes = [min(MB, size - start) for start in range(0, size, MB)]
    assert glance.objects(image, container) == [("", 0), *((f"-{number:05}", part) for number, part in enumerate(sizes, 1))]
    assert glance.account.head(container, image.id).expect(200).headers["X-Object-Manifest"] == f"{container}/{image.id}-"
    assert glance.read(image) == image.data
    assert glance.size(image) == size
    glance.delete(image)
    assert glance.objects(image, container) == []


def test_glance_store_G3_a_last_segment_that_is_shorter_than_announced(glance: Glance, keystone_store: KeystoneStore) -> None:
    """glance_store announces each segment of an image of known size as a whole one, so that the last, when it is shorter, ends in 408,
    as it does on Swift; nothing of the image stays. A store that waits for three seconds, in place of a minute, tells it sooner."""
    store = keystone_store.store
    before = (store.etc() / "proxy-server.conf").read_text()
    store.edit("proxy-server.conf", ("[DEFAULT]\n", "[DEFAULT]\nclient_timeout = 3\n"))
    store.reload()
    try:
        with pytest.raises(Refused) as refused:
            glance.add("single", os.urandom(MB + 1))
    finally:
        (store.etc() / "proxy-server.conf").write_text(before)
        store.reload()
    assert refused.value.kind in ("BackendException", "ClientException"), refused.value
    assert not [entry for entry in glance.account.listing(glance.container) if entry["bytes"] in (MB, MB + 1)]


def test_glance_store_G5_an_image_is_not_mixed_up_with_another(glance: Glance) -> None:
    image = glance.add("single", os.urandom(MB + 3), is_size_known=False)
    for name in (f"{image.id}x-00001", f"{image.id}.00001", f"{image.id[:-1]}-00003"):
        glance.account.put(glance.container, name, body=b"another's").expect(201)
    assert glance.read(image) == image.data
    glance.delete(image)
    assert [name for name, _ in glance.objects(image)] == [".00001", "x-00001"]


def test_glance_store_G6_a_segment_is_sent_again_from_its_buffer(glance: Glance) -> None:
    data, before = os.urandom(2 * MB + 9), glance.relay.broken
    glance.relay.break_up = 300_000
    image = glance.add("buffered", data, is_size_known=False)
    assert glance.relay.broken == before + 1
    assert glance.objects(image, f"{glance.container}-buffered") == [("", 0), ("-00001", MB), ("-00002", MB), ("-00003", 9)]
    assert glance.read(image) == data
    glance.delete(image)


def test_glance_store_G7_segments_of_an_upload_that_failed_are_taken_back(glance: Glance) -> None:
    before = glance.account.listing(glance.container)
    with pytest.raises(Refused):
        glance.add("single", os.urandom(3 * MB), is_size_known=False, fails_at=2 * MB + 500_000)
    assert glance.account.listing(glance.container) == before


@pytest.mark.parametrize("kind", ["plain", "dynamic", "static"])
def test_glance_store_G9_a_broken_read_goes_on_where_it_was(glance: Glance, kind: str) -> None:
    data = os.urandom(3 * MB + 77)
    if kind == "plain":
        image = glance.add("plain", data)
        container = f"{glance.container}-plain"
    else:
        image = glance.add("single", data, is_size_known=False)
        container = glance.container
    if kind == "static":
        make_static(glance, image)
    uri = f"swift+config://service/{container}/{image.id}"
    before = glance.relay.broken
    read = Image(image.id, data, uri, "resuming")
    glance.relay.break_down = MB + 12_345
    assert glance.read(read) == data
    assert glance.relay.broken == before + 1
    glance.delete(image)


def make_static(glance: Glance, image: Image) -> None:
    segments = [{"path": f"/{glance.container}/{image.id}{end}"} for end, size in glance.objects(image) if size]
    glance.account.put(glance.container, image.id, query="multipart-manifest=put", body=json.dumps(segments)).expect(201)


def test_glance_store_G11_a_static_large_object_goes_with_its_segments(glance: Glance) -> None:
    image = glance.add("single", os.urandom(2 * MB), is_size_known=True)
    make_static(glance, image)
    assert (glance.read(image), glance.size(image)) == (image.data, 2 * MB)
    glance.delete(image)
    assert glance.objects(image) == []
    with pytest.raises(Refused, match="NotFound"):
        glance.delete(image)


@pytest.mark.parametrize("backend", ["tenants", "tenants_alone"])
@pytest.mark.parametrize(("size", "is_size_known"), [(5, True), (2 * MB, True), (MB + 5, False)])
def test_glance_store_G12_G14_images_in_their_owners_accounts(glance: Glance, keystone: Keystone, tenant: Tenant, backend: str, size: int,
                                                             is_size_known: bool) -> None:
    """A container for each image, which goes right after its last segment. A large one is written with tokens of a trust, a new one for
    each segment (as if each was about to expire), and the trust ends with the upload."""
    image = glance.add(backend, os.urandom(size), is_size_known, context=tenant.context)
    container = f"glance_{image.id}"
    assert sum(entry["bytes"] for entry in tenant.account.listing(container)) == size
    glance.account.get(container).expect(404)
    assert (glance.read(image, context=tenant.context), glance.size(image, context=tenant.context)) == (image.data, size)
    glance.delete(image, context=tenant.context)
    tenant.account.head(container).expect(404)
    assert keystone.ask("GET", f"OS-TRUST/trusts?trustor_user_id={tenant.user.id}")["trusts"] == []


def test_glance_store_G13_who_may_read_an_image(glance: Glance, keystone: Keystone, keystone_store: KeystoneStore, tenant: Tenant) -> None:
    image = glance.add("tenants", os.urandom(MB + 5), is_size_known=False, context=tenant.context)
    container = f"glance_{image.id}"
    first, second = (tenant_of(keystone, keystone_store, "member") for _ in range(2))

    def readers() -> list[int]:
        return [one.account.of(tenant.account).get(container, image.id).status for one in (first, second)]

    def set_acls(**acls: Any) -> None:
        glance.shell("acls", backend="tenants", uri=image.uri, context=tenant.context, **acls)

    assert readers() == [403, 403]
    set_acls(public=True)
    assert readers() == [200, 200]
    shown = tenant.account.head(container).expect(204).headers
    assert (shown["X-Container-Read"], shown["X-Container-Write"]) == ("*:*", f"{glance.project}:*")
    assert first.account.of(tenant.account).anonymous().get(container, image.id).status == 401
    seen = Image(image.id, image.data, image.uri, "tenants")
    assert glance.read(seen, context=first.context) == image.data  # as another user of Glance
    set_acls(read=[first.project, "0" * 32])
    assert readers() == [200, 403]
    set_acls(write=[second.project])
    assert readers() == [403, 403]
    assert "X-Container-Read" not in tenant.account.head(container).headers
    second.account.of(tenant.account).put(container, "o", body=b"x").expect(201)
    first.account.of(tenant.account).put(container, "o", body=b"x").expect(403)
    glance.account.of(tenant.account).delete(container, "o").expect(204)  # of a tenant that administers
    glance.delete(image, context=tenant.context)


def test_glance_store_G15_errors(glance: Glance) -> None:
    lost = Image(str(uuid.uuid4()), b"", f"swift+config://service/{glance.container}/{uuid.uuid4()}", "single")
    for ask in (glance.read, glance.delete):
        with pytest.raises(Refused) as refused:
            ask(lost)
        assert refused.value.kind == "NotFound"
    assert glance.size(lost) == 0
    container = f"{glance.container}-plain"
    glance.account.put(container).expect(201, 202)
    glance.account.post(container, headers={"X-Container-Meta-Quota-Bytes": "100"}).expect(204)
    with pytest.raises(Refused) as refused:
        glance.add("plain", os.urandom(101))
    assert refused.value.kind == "StorageFull"
    glance.account.post(container, headers={"X-Remove-Container-Meta-Quota-Bytes": "x"}).expect(204)
    before = glance.account.listing(glance.container)
    used = sum(entry["bytes"] for entry in before)
    glance.account.post(glance.container, headers={"X-Container-Meta-Quota-Bytes": str(used + MB - 1)}).expect(204)
    with pytest.raises(Refused) as refused:
        glance.add("single", os.urandom(3 * MB), is_size_known=True)
    assert refused.value.kind == "StorageFull"
    glance.account.post(glance.container, headers={"X-Remove-Container-Meta-Quota-Bytes": "x"}).expect(204)
    assert glance.account.listing(glance.container) == before


def test_glance_store_G16_the_endpoint_is_the_operators_choice(glance: Glance) -> None:
    """``swift_store_endpoint`` is the relay, under another name than the catalog's; its listener has seen the image, which is where it belongs."""
    image = glance.add("resuming", b"elsewhere")
    assert glance.objects(image) == [("", 9)]
    before = glance.relay.broken
    glance.relay.break_down = 1
    assert glance.read(image) == image.data and glance.relay.broken == before + 1
    glance.delete(image)


def test_the_functional_tests_of_glance_store(glance: Glance, keystone: Keystone, tmp_path: Path) -> None:
    project = keystone.ask("GET", f"projects/{glance.project}")["project"]["name"]
    cloud = {"auth": {"auth_url": keystone.base, "username": glance.user.name, "password": glance.user.password, "project_name": project,
                      "user_domain_id": "default", "project_domain_id": "default"},
             "region_name": REGION, "identity_api_version": "3", "volume_api_version": "3"}
    (tmp_path / "clouds.yaml").write_text(json.dumps({"clouds": {"devstack-admin": cloud}}))  # which is YAML, too
    python = glance_environment() / "bin" / "python"
    env = {"PATH": f"{python.parent}:/usr/bin:/bin", "HOME": str(tmp_path), "OS_CLIENT_CONFIG_FILE": str(tmp_path / "clouds.yaml"), "NO_PROXY": "*"}
    done = subprocess.run([python, "-I", "-m", "unittest", "-v", "glance_store.tests.functional.swift.test_functional_swift"], cwd=tmp_path, env=env,
                          capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Ran 4 tests" in done.stderr and "skipped" not in done.stderr
