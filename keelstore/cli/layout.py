"""The data directory of ``keelstore up``: where things are, and the settings that its marker file keeps.

::

    DIR/keelstore.json        the marker: settings and keys; only its owner may read it
    DIR/rings/*.builder       the ring builder files
    DIR/nodeK/etc/            what an operator would write: cluster file, rings, paste configurations, node.conf
    DIR/nodeK/devices/d1..d8  the devices
    DIR/nodeK/run/            lock and state of the supervisor, recon files
    DIR/nodeK/log/node.log
"""

from __future__ import annotations

import base64
import dataclasses
import ipaddress
import json
import os
import secrets
from dataclasses import dataclass, field
from typing import Any

from keelstore.common.errors import KeelstoreError

MARKER = "keelstore.json"
VERSION = 1
DEVICES = tuple(f"d{number}" for number in range(1, 9))
OFFSETS = {"object": 1880, "container": 1879, "account": 1878}
"""How far below the proxy's port each storage role listens."""

TEST_USERS = (
    ("admin", "admin", "admin", ".admin .reseller_admin"),
    ("test", "tester", "testing", ".admin"),
    ("test", "tester2", "testing2", ".admin"),
    ("test", "tester3", "testing3", ""),
    ("test2", "tester2", "testing2", ".admin"),
    ("test5", "tester5", "testing5", "service"),
)


def command_name() -> str:
    """How this command was called, to be shown in advice."""
    return os.environ.get("KEELSTORE_COMMAND") or "keelstore"


class CommandError(KeelstoreError):
    """Why a command cannot do what was asked; one line for the person who asked."""


@dataclass(frozen=True)
class Policy:
    index: int
    name: str
    replicas: int
    fragments: tuple[int, int] | None = None

    @property
    def kind(self) -> str:
        return "erasure_coding" if self.fragments else "replication"

    @property
    def ring_name(self) -> str:
        return f"object-{self.index}" if self.index else "object"


POLICIES = (
    Policy(0, "gold", 3),
    Policy(1, "silver", 2),
    Policy(2, "ec42", 6, fragments=(4, 2)),
)


def _new_root_secret() -> str:
    return base64.b64encode(secrets.token_bytes(32)).decode()


@dataclass(frozen=True)
class Settings:
    """What was decided, and generated, when the data directory was made."""

    host: str
    port: int
    nodes: int
    user: str
    key: str = field(repr=False)
    hash_prefix: str = field(repr=False)
    hash_suffix: str = field(repr=False)
    fernet_key: str = field(repr=False)
    workers: int | None = None
    test_users: bool = False
    root_secret: str = field(default="", repr=False)  # of encryption; '' in stores from before there was one
    kms_secret: str = field(default="", repr=False)  # another, of the key that S3 clients may name; '' as above
    encrypts: bool = False  # all objects; otherwise those whose writers ask for it (S3's server-side encryption)
    default_policy: str = POLICIES[0].name  # of containers that ask for none
    generated: dict[str, str] = field(default_factory=dict, repr=False)  # file: SHA-256 of what we last wrote there
    version: int = VERSION

    @classmethod
    def fresh(cls, host: str, port: int, nodes: int) -> Settings:
        return cls(
            host, port, nodes, user="keel:admin", key=secrets.token_hex(16), hash_prefix=secrets.token_hex(16),
            hash_suffix=secrets.token_hex(16), fernet_key=base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
            root_secret=_new_root_secret(), kms_secret=_new_root_secret())

    def encrypting(self, encrypts: bool) -> Settings:
        """With encryption on or off from now on; what was encrypted stays readable."""
        return dataclasses.replace(self, encrypts=encrypts, root_secret=self.root_secret or _new_root_secret(),
                                   kms_secret=self.kms_secret or _new_root_secret())

    @property
    def account(self) -> str:
        return "AUTH_" + self.user.partition(":")[0]

    def proxy_ip(self, node: int) -> str:
        """Where the proxy of a node listens."""
        return self.host if self.nodes == 1 else f"127.0.0.{node}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches the proxies."""
        ip = self.proxy_ip(1)
        try:
            return ip == "localhost" or ipaddress.ip_address(ip).is_loopback
        except ValueError:
            return False

    def storage_ip(self, node: int) -> str:
        """Where the storage roles of a node listen: never on an address that others reach."""
        if self.nodes == 1:
            return self.host if self.host.startswith("127.") else "127.0.0.1"
        return f"127.0.0.{node}"

    def storage_port(self, kind: str) -> int:
        return self.port - OFFSETS[kind]

    def endpoint(self, node: int = 1) -> str:
        """The URL of a node's proxy for a client on this machine."""
        ip = self.proxy_ip(node)
        ip = {"0.0.0.0": "127.0.0.1", "::": "::1", "localhost": "127.0.0.1"}.get(ip, ip)
        return f"http://[{ip}]:{self.port}" if ":" in ip else f"http://{ip}:{self.port}"

    @property
    def auth_url(self) -> str:
        return f"{self.endpoint()}/auth/v1.0"

    @property
    def storage_url(self) -> str:
        return f"{self.endpoint()}/v1/{self.account}"


@dataclass(frozen=True)
class NodePaths:
    """The directories and files of node ``number``."""

    number: int
    root: str

    @property
    def name(self) -> str:
        return f"node{self.number}"

    def path(self, *parts: str) -> str:
        return os.path.join(self.root, *parts)

    @property
    def conf(self) -> str:
        return self.path("etc", "node.conf")

    @property
    def run_dir(self) -> str:
        return self.path("run")

    @property
    def pid_file(self) -> str:
        return self.path("run", f"{self.name}.pid")

    @property
    def state_file(self) -> str:
        return self.path("run", f"{self.name}.json")

    @property
    def log_file(self) -> str:
        return self.path("log", "node.log")


class Layout:
    """A data directory that exists and is ours."""

    def __init__(self, root: str, settings: Settings):
        self.root, self.settings = os.path.abspath(root), settings

    @classmethod
    def open(cls, root: str) -> Layout:
        """Raises CommandError when it is none of ours."""
        path = os.path.join(root, MARKER)
        try:
            with open(path, encoding="utf-8") as file:
                value: Any = json.load(file)
        except (FileNotFoundError, NotADirectoryError):
            raise CommandError(f"{root} is not a keelstore data directory (it has no {MARKER}); "
                               f"'{command_name()} up' makes one") from None
        except (OSError, ValueError) as error:
            raise CommandError(f"{path} cannot be read: {error}") from None
        known = {item.name for item in dataclasses.fields(Settings)}
        try:
            if value["version"] > VERSION:
                raise CommandError(f"{root} was made by a newer keelstore (data directory version {value['version']}, "
                                   f"this one knows {VERSION})")
            settings = Settings(**{name: item for name, item in value.items() if name in known})
        except (KeyError, TypeError):
            raise CommandError(f"{path} is not a marker of keelstore, or is damaged") from None
        return cls(root, settings)

    @classmethod
    def exists(cls, root: str) -> bool:
        """Whether the directory is ours. Raises CommandError when it is something else's and not empty."""
        if os.path.exists(os.path.join(root, MARKER)):
            return True
        if not os.path.exists(root):
            return False
        if not os.path.isdir(root):
            raise CommandError(f"{root} is not a directory")
        try:
            foreign = os.listdir(root)
        except OSError as error:
            raise CommandError(f"{root} cannot be read: {error.strerror}") from None
        if foreign:
            raise CommandError(f"{root} is not empty and not a keelstore data directory: give another one with --data")
        return False

    def save(self) -> None:
        """Write the marker in one step; its keys are for the owner only."""
        path = os.path.join(self.root, MARKER)
        fd = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            json.dump(dataclasses.asdict(self.settings), file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(path + ".new", path)

    def node(self, number: int) -> NodePaths:
        return NodePaths(number, os.path.join(self.root, f"node{number}"))

    @property
    def nodes(self) -> list[NodePaths]:
        return [self.node(number) for number in range(1, self.settings.nodes + 1)]
