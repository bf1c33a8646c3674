"""The cluster file: what every node of a cluster must agree on.

``keelstore.conf`` in the configuration directory (``swift_dir``), or ``swift.conf`` in its place, holds ``[swift-hash]``
(the placement secret), ``[swift-constraints]`` (API limits) and ``[storage-policy:N]``.
"""

from __future__ import annotations

import configparser
import os
from dataclasses import dataclass, field, replace
from functools import lru_cache

from keelstore.common.errors import ConfigError
from keelstore.common.limits import Limits
from keelstore.common.names import HashPath
from keelstore.common.options import parse
from keelstore.common.policy import ErasureCodingPolicy, Policies, Policy, ReplicationPolicy, policy_from

FILE_NAMES = ("keelstore.conf", "swift.conf")
DEFAULT_DIR = "/etc/swift"


@dataclass(frozen=True)
class Cluster:
    """``directory`` holds the cluster file, the rings and, as a rule, the services' configuration."""

    directory: str
    file: str
    hash_path: HashPath
    policies: Policies
    limits: Limits = field(default_factory=Limits)

    def ring_path(self, name: str) -> str:
        """The file of the ring ``account``, ``container``, ``object`` or ``object-N``."""
        return os.path.join(self.directory, f"{name}.ring.gz")


def cluster_file(directory: str) -> str:
    """The path of the cluster file in ``directory``. Raises ConfigError when there is none."""
    for name in FILE_NAMES:
        path = os.path.join(directory, name)
        if os.path.exists(path):
            return path
    raise ConfigError(f"no {' or '.join(FILE_NAMES)} found", file=directory)


def load_cluster(directory: str | None = None) -> Cluster:
    """Read the cluster file of ``directory`` (default /etc/swift). Raises ConfigError. Equal calls share one value."""
    path = cluster_file(directory or DEFAULT_DIR)
    return _load(path, os.stat(path).st_mtime_ns)


@lru_cache(maxsize=16)
def _load(path: str, _mtime_ns: int) -> Cluster:
    parser = configparser.ConfigParser()
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        with open(path, encoding="latin-1") as file:
            parser.read_file(file)
    except (OSError, configparser.Error) as error:
        raise ConfigError(f"cannot be read: {error}", file=path) from None
    try:
        sections = {name: dict(parser.items(name)) for name in parser.sections()}
    except configparser.Error as error:
        raise ConfigError(f"bad value: {error}", file=path) from None
    hashing = sections.get("swift-hash", {})
    prefix, suffix = (
        hashing.get(f"swift_hash_path_{part}", "").encode("latin-1") for part in ("prefix", "suffix")
    )
    if not prefix and not suffix:
        raise ConfigError(f"both swift_hash_path_suffix and swift_hash_path_prefix are missing from {path}",
                          file=path, section="swift-hash")
    policies = []
    for name, conf in sections.items():
        if not name.startswith("storage-policy:"):
            continue
        index = name.partition(":")[2]
        if not (index.isascii() and index.isdigit()):
            raise ConfigError("expected a section name storage-policy:<number>", file=path, section=name)
        policies.append(_runnable(policy_from(int(index), conf, path), path))
    try:
        collection = Policies.of(policies or [ReplicationPolicy(0, "Policy-0", is_default=True)])
    except ConfigError as error:
        raise ConfigError(error.reason, file=path, section=error.section) from None
    constraints = sections.get("swift-constraints", {})
    limits = parse(Limits, constraints, section="swift-constraints", file=path, local=constraints)
    return Cluster(os.path.dirname(path), path, HashPath(prefix, suffix), collection, limits)


def _runnable(policy: Policy, path: str) -> Policy:
    """The policy, with what its erasure code itself knows. Raises ConfigError for a code that cannot be run here."""
    if not isinstance(policy, ErasureCodingPolicy):
        return policy
    from keelstore.common.codec import codec_for  # the library is loaded only where a policy needs it

    try:
        codec = codec_for(policy.scheme, policy.ndata, policy.nparity)
    except ConfigError as error:
        raise ConfigError(error.reason, file=path, section=f"storage-policy:{policy.index}", option="ec_type",
                          value=policy.scheme) from None
    return replace(policy, min_parity=codec.min_parity)
