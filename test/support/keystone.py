"""A real Keystone for tests: PyPI's release in an environment of its own, on SQLite with Fernet tokens, and a store that asks it.

``KEELSTORE_KEYSTONE_PYTHON`` names the Python of an environment that has it; without it one is made, once, in the cache
directory, with a database that has been set up already: a run copies that and starts within seconds.
"""

from __future__ import annotations

import fcntl
import getpass
import grp
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import requests

from test.support.client import Account, Endpoint
from test.support.environments import environment
from test.support.processes import Process, free_ports
from test.support.store import Store, running

KEYSTONE = "30.0.0"
ADMIN_PASSWORD = "keystone-admin"
SERVICE_PASSWORD = "swift-service"
REGION = "RegionOne"
DEFAULT = "default"  # the id of the domain that there is from the start

CONF = """\
[DEFAULT]
use_stderr = true
log_file =
default_publisher_id = test
[database]
connection = sqlite:///{home}/keystone.db
[fernet_tokens]
key_repository = {home}/fernet
[fernet_receipts]
key_repository = {home}/receipts
[credential]
key_repository = {home}/credential
[cache]
enabled = true
backend = oslo_cache.dict
[identity]
password_hash_rounds = 4
[oslo_messaging_notifications]
driver = noop
"""

RUNNER = """\
import sys

port, config = int(sys.argv.pop()), sys.argv.pop()  # Keystone reads the rest of the command line

import os
import threading

os.environ["OS_KEYSTONE_CONFIG_FILES"] = config
from keystone.server.wsgi import initialize_public_application
from werkzeug.serving import make_server

app = initialize_public_application()
lock = threading.Lock()


def one_at_a_time(environ, start_response):  # SQLite: two that write at once end in "database is locked"
    with lock:
        return list(app(environ, start_response))


make_server("127.0.0.1", port, one_at_a_time, threaded=True).serve_forever()
"""


def keystone_python() -> Path:
    given = os.environ.get("KEELSTORE_KEYSTONE_PYTHON")
    return Path(given) if given else environment(f"keystone-{KEYSTONE}", f"keystone=={KEYSTONE}") / "bin" / "python"


def _template(python: Path) -> Path:
    """A home of Keystone as it is after its first set-up; made once for an environment."""
    root = python.parent.parent
    template, ready = root / "template", root / "template" / "ready"
    if ready.exists():
        return template
    with open(root / "template.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if ready.exists():
            return template
        shutil.rmtree(template, ignore_errors=True)
        for name in ("fernet", "receipts", "credential"):
            (template / name).mkdir(parents=True, mode=0o700)
        conf = template / "keystone.conf"
        conf.write_text(CONF.format(home=template))
        manage = [python.parent / "keystone-manage", "--config-file", conf]
        owner = ["--keystone-user", getpass.getuser(), "--keystone-group", grp.getgrgid(os.getgid()).gr_name]
        first = [[*manage, "db_sync"], [*manage, "fernet_setup", *owner], [*manage, "credential_setup", *owner]]
        processes = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for command in first]
        for process in processes:
            output = process.communicate()[0]
            assert process.returncode == 0, output.decode(errors="replace")[-2000:]
        done = subprocess.run([*manage, "bootstrap", "--bootstrap-password", ADMIN_PASSWORD], capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode(errors="replace")[-2000:]
        ready.touch()
    return template


@dataclass(frozen=True)
class User:
    id: str
    name: str
    password: str
    domain: str = DEFAULT


@dataclass(frozen=True)
class Ec2:
    """A key pair for S3, as boto3 takes it."""

    access: str
    secret: str

    @property
    def pair(self) -> tuple[str, str]:
        return self.access, self.secret


@dataclass
class Keystone:
    """A running Keystone, and its API with the rights of its admin."""

    port: int
    process: Process

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.base}/v3"

    def call(self, method: str, path: str, body: Any = None, token: str | None = None,
             headers: Mapping[str, str] | None = None) -> requests.Response:
        sent = {"X-Auth-Token": token or self.admin, **(headers or {})}
        return requests.request(method, f"{self.url}/{path}", json=body, headers=sent, timeout=60)

    def ask(self, method: str, path: str, body: Any = None, token: str | None = None, **more: Any) -> Any:
        answer = self.call(method, path, body, token, **more)
        assert answer.ok, f"{method} {path}: {answer.status_code} {answer.text[:500]}"
        return answer.json() if answer.content else None

    def make(self, kind: str, token: str | None = None, under: str = "", **fields: Any) -> Any:
        """Make one of a kind (``project``, ``user`` ...)."""
        return self.ask("POST", f"{under}{kind}s", {kind: fields}, token)[kind]

    @cached_property
    def admin(self) -> str:
        """A token of the admin, scoped to its project. The first use waits until Keystone answers, and tells it where it is."""
        self.process.wait_for("127.0.0.1", self.port)
        token = self.token(User("", "admin", ADMIN_PASSWORD), {"project": {"name": "admin", "domain": {"id": DEFAULT}}})
        service = self.make("service", token, name="keystone", type="identity")["id"]
        self.make("region", token, id=REGION)
        for interface in ("public", "internal", "admin"):
            self.make("endpoint", token, service_id=service, interface=interface, region_id=REGION, url=self.url)
        return token

    @cached_property
    def admin_id(self) -> str:
        return str(self.ask("GET", "users?name=admin")["users"][0]["id"])

    # -- who there is --------------------------------------------------------------------------------------------------

    def domain(self, name: str) -> str:
        return str(self.make("domain", name=name)["id"])

    def project(self, name: str, domain: str = DEFAULT) -> str:
        return str(self.make("project", name=name, domain_id=domain)["id"])

    def user(self, name: str, domain: str = DEFAULT, **roles: str) -> User:
        """``roles``: names of roles to ids of projects."""
        password = f"{name}-password"
        user = User(str(self.make("user", name=name, password=password, domain_id=domain)["id"]), name, password, domain)
        for role, project in roles.items():
            self.grant(user, role, project)
        return user

    def role(self, name: str) -> str:
        """The id of a role, which is made when there is none."""
        found = self.ask("GET", f"roles?name={name}")["roles"]
        return str(found[0]["id"] if found else self.make("role", name=name)["id"])

    def grant(self, user: User, role: str, project: str) -> None:
        self.ask("PUT", f"projects/{project}/users/{user.id}/roles/{self.role(role)}")

    def withdraw(self, user: User, role: str, project: str) -> None:
        self.ask("DELETE", f"projects/{project}/users/{user.id}/roles/{self.role(role)}")

    # -- tokens and keys -----------------------------------------------------------------------------------------------

    def token(self, user: User, scope: Any = None) -> str:
        """``scope``: the id of a project, or a scope as the API has it."""
        who = {"name": user.name, "domain": {"id": user.domain}, "password": user.password}
        if isinstance(scope, str):
            scope = {"project": {"id": scope}}
        return self.login({"methods": ["password"], "password": {"user": who}}, scope)

    def login(self, identity: Any, scope: Any = None) -> str:
        body: dict[str, Any] = {"auth": {"identity": identity}}
        if scope is not None:
            body["auth"]["scope"] = scope
        answer = requests.post(f"{self.url}/auth/tokens", json=body, timeout=60)
        assert answer.status_code == 201, answer.text
        return answer.headers["X-Subject-Token"]

    def revoke(self, token: str) -> None:
        self.ask("DELETE", "auth/tokens", headers={"X-Subject-Token": token})

    def ec2(self, user: User, project: str) -> Ec2:
        """Made by the admin: a user needs the role ``member`` to make one."""
        found = self.ask("POST", f"users/{user.id}/credentials/OS-EC2", {"tenant_id": project})["credential"]
        return Ec2(found["access"], found["secret"])


@contextmanager
def running_keystone(home: Path) -> Iterator[Keystone]:
    """One that has been started: it answers some seconds later, which the first question waits for."""
    python = keystone_python()
    shutil.copytree(_template(python), home, dirs_exist_ok=True)
    for name in ("fernet", "receipts", "credential"):
        (home / name).chmod(0o700)
    conf, runner = home / "keystone.conf", home / "runner.py"
    conf.write_text(CONF.format(home=home))
    runner.write_text(RUNNER)
    port = free_ports(1)[0]
    process = Process([str(python), str(runner), str(conf), str(port)], home / "keystone.log", {"PYTHONPATH": "", "PYTHONWARNINGS": "ignore"})
    process.start()
    try:
        yield Keystone(port, process)
    finally:
        process.stop()


# -- a store that asks it ----------------------------------------------------------------------------------------------

STRICT = "cache = swift.cache\nservice_token_roles_required = true"
FILTERS = """
[filter:authtoken]
paste.filter_factory = keystonemiddleware.auth_token:filter_factory
www_authenticate_uri = {base}
auth_url = {base}
auth_type = password
username = swift
password = {password}
user_domain_id = default
project_name = service
project_domain_id = default
delay_auth_decision = true
include_service_catalog = false
service_token_roles = service
{more}

[filter:s3token]
use = egg:keelstore#s3token
auth_uri = {base}/v3
auth_url = {base}
username = swift
password = {password}
user_domain_id = default
project_name = service
project_domain_id = default
secret_cache_duration = 60

[filter:keystoneauth]
use = egg:keelstore#keystoneauth
reseller_prefix = AUTH, SERVICE
operator_roles = admin, swiftoperator
AUTH_project_reader_roles = reader
SERVICE_service_roles = service
system_reader_roles = reader
"""


@dataclass
class KeystoneStore:
    """A store behind Keystone; ``service``: Keystone's user that the store itself is."""

    store: Store
    keystone: Keystone
    service: User
    service_project: str
    memcached: int | None  # its port; without one its cache is of the embedded kind

    @property
    def endpoint(self) -> Endpoint:
        return self.store.endpoint

    def account(self, token: str, project: str, prefix: str = "AUTH_") -> Account:
        """An account as the holder of a token sees it."""
        return Account(self.endpoint, f"/v1/{prefix}{project}", token)


def service_user(keystone: Keystone) -> tuple[User, str]:
    """The user that a store is at Keystone, made once, and its project."""
    project = keystone.project("service")
    made = keystone.make("user", name="swift", password=SERVICE_PASSWORD, domain_id=DEFAULT)
    user = User(str(made["id"]), "swift", SERVICE_PASSWORD)
    for role in ("service", "admin"):
        keystone.grant(user, role, project)
    return user, project


@contextmanager
def _memcached(log: Path) -> Iterator[int | None]:
    if not shutil.which("memcached"):
        yield None
        return
    port = free_ports(1)[0]
    process = Process(["memcached", "-l", "127.0.0.1", "-p", str(port), "-u", getpass.getuser(), "-m", "32"], log)
    process.start()
    try:
        process.wait_for("127.0.0.1", port)
        yield port
    finally:
        process.stop()


@contextmanager
def store_of(keystone: Keystone, data: Path, more: str = STRICT) -> Iterator[KeystoneStore]:
    pytest.importorskip("keystonemiddleware")
    with _memcached(data.parent / "memcached.log") as memcached, running(data, workers=1, is_patient=True) as store:
        user, project = service_user(keystone)  # Keystone has been starting meanwhile
        text = (store.etc() / "proxy-server.conf").read_text() + FILTERS.format(base=keystone.base, password=SERVICE_PASSWORD, more=more)
        assert " tempauth " in text
        text = text.replace("s3_acl = true", "s3_acl = false")  # Swift's default: roles decide
        if memcached:
            assert "memcache_servers =\n" in text
            text = text.replace("memcache_servers =\n", f"memcache_servers = 127.0.0.1:{memcached}\n")
        (store.etc() / "proxy-server.conf").write_text(text.replace(" tempauth ", " authtoken s3token keystoneauth ", 1))
        catalog(keystone, store.endpoint.url)
        store.reload()
        yield KeystoneStore(store, keystone, user, project, memcached)


def catalog(keystone: Keystone, url: str) -> None:
    """Tell clients where the store is."""
    service = keystone.make("service", name="swift", type="object-store")["id"]
    for interface in ("public", "internal", "admin"):
        keystone.make("endpoint", service_id=service, interface=interface, region_id=REGION, url=f"{url}/v1/AUTH_%(project_id)s")


