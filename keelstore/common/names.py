"""Names of accounts, containers and objects, and the hash that places them.

A name is text (UTF-8 where it leaves the process). A path ``/account[/container[/object]]`` hashes to 16 bytes with the
cluster's secret prefix and suffix; the first bits give the partition, the last three hex digits the suffix directory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from hashlib import md5
from urllib.parse import quote

from keelstore.common.errors import ConfigError

RESERVED = "\x00"  # first character of a name in the reserved namespace


@dataclass(frozen=True)
class HashPath:
    """The cluster's placement secret: ``[swift-hash]`` of the cluster file. Bytes, at least one of them non-empty."""

    prefix: bytes
    suffix: bytes

    def __post_init__(self) -> None:
        if not self.prefix and not self.suffix:
            raise ConfigError("both swift_hash_path_suffix and swift_hash_path_prefix are missing",
                              section="swift-hash")

    def digest(self, account: str, container: str | None = None, obj: str | None = None) -> bytes:
        """The 16 bytes that place a name. Raises ValueError for an object without container."""
        if obj and not container:
            raise ValueError("an object needs a container")
        path = f"/{account}"
        if container:
            path = f"{path}/{container}"
            if obj:
                path = f"{path}/{obj}"
        return _digest(self.prefix, path, self.suffix)

    def hexdigest(self, account: str, container: str | None = None, obj: str | None = None) -> str:
        return self.digest(account, container, obj).hex()


@lru_cache(maxsize=1024)  # a container is placed anew for each of its objects, and an object by proxy and servers
def _digest(prefix: bytes, path: str, suffix: bytes) -> bytes:
    return md5(prefix + path.encode("utf-8", "surrogateescape") + suffix, usedforsecurity=False).digest()


@dataclass(frozen=True, slots=True)
class ApiPath:
    """What a path of the API names: text, '' for what it does not name. A container may be named without object, no part
    without those before it."""

    version: str = ""
    account: str = ""
    container: str = ""
    obj: str = ""


@lru_cache(maxsize=1024)
def api_path(path: str) -> ApiPath:
    """``PATH_INFO`` (``/version/account[/container[/object]]``) taken apart; nothing but '' for any other.

    Each filter of a pipeline asks this of the same path, so that all but the first find it at the cost of a look-up.
    """
    text = path if path.isascii() else path.encode("latin-1").decode("utf-8", "surrogateescape")
    parts = text.split("/", 4)
    if len(parts) < 3 or parts[0] or not parts[1] or not parts[2] or (len(parts) == 5 and parts[4] and not parts[3]):
        return ApiPath()
    return ApiPath(*parts[1:])


def partition_of(digest: bytes, part_shift: int) -> int:
    """The partition of a name hash; ``part_shift`` is 32 minus the ring's part power."""
    return int.from_bytes(digest[:4], "big") >> part_shift


def storage_path(datadir: str, partition: int | str, name_hash: str) -> str:
    """``<datadir>/<partition>/<suffix>/<hash>``, relative to the device directory."""
    return f"{datadir}/{partition}/{name_hash[-3:]}/{name_hash}"


def database_file(hash_directory: str) -> str:
    """The database of an account or container, by its hash directory: the name without an epoch, from which a broker finds
    the one with.
    """
    return f"{hash_directory}/{hash_directory.rpartition('/')[2]}.db"


@lru_cache(maxsize=4096)
def quoted(name: str) -> str:
    """A name, or a path of names, percent-encoded for a request line; ``/`` stays."""
    return quote(name.encode("utf-8", "surrogateescape"), safe="/")


def is_reserved(name: str) -> bool:
    return name.startswith(RESERVED)


def reserved_name(*parts: str) -> str:
    """``\\0part\\0part``: a name no client can spell. Raises ValueError if a part holds the separator."""
    if any(RESERVED in part for part in parts):
        raise ValueError("a reserved name part may not hold a null")
    return "".join(RESERVED + part for part in parts)


def split_reserved(name: str, count: int) -> list[str]:
    """The ``count`` parts of a reserved name. Raises ValueError if it has another shape."""
    parts = name.split(RESERVED)
    if parts[0] or len(parts) != count + 1:
        raise ValueError("not a reserved name of that shape")
    return parts[1:]


def visible_name(name: str) -> str:
    """The name that a client knows: of a reserved object name, its first part."""
    return name.split(RESERVED, 2)[1] if name.startswith(RESERVED) else name


def reserved_problem(account: str, container: str | None = None, obj: str | None = None) -> str | None:
    """Why these names break the rules of the reserved namespace, or None (``spec: on-disk 8``).

    In the queues of system accounts objects have the paths of others as names, whatever these are.
    """
    is_queue = is_auto_create(account)
    for kind, name in (("account", account), ("container", container), ("object", None if is_queue else obj)):
        if name and RESERVED in name[1:] and not name.startswith(RESERVED):
            return f"Invalid reserved-namespace {kind}"
    if obj and container and not account.startswith("."):
        if is_reserved(container) and not is_reserved(obj):
            return "Invalid user-namespace object in reserved-namespace container"
        if is_reserved(obj) and not is_reserved(container):
            return "Invalid reserved-namespace object in user-namespace container"
    return None


def is_auto_create(account: str) -> bool:
    """System accounts start with a dot; they come into being with their first row."""
    return account.startswith(".")
