"""Storage policies: small objects that answer how a kind of object is stored, and their collection.

Callers never ask what kind a policy is; they ask it for what they need. ``[storage-policy:N]`` sections of the cluster file
define them (``spec: rings 9``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from keelstore.common.errors import ConfigError
from keelstore.common.options import parse_bool
from keelstore.common.quorum import quorum_size

_NAME = re.compile(r"\A[A-Za-z0-9-]+\Z")
_COMMON = {"name", "aliases", "policy_type", "default", "deprecated", "diskfile_module"}
_EC = {"ec_type", "ec_num_data_fragments", "ec_num_parity_fragments", "ec_object_segment_size", "ec_duplication_factor"}


def datadir(base: str, index: int) -> str:
    """``objects`` for policy 0, ``objects-N`` for the others; the same rule for async_pending and tmp."""
    return f"{base}-{index}" if index else base


@dataclass(frozen=True)
class ReplicationPolicy:
    """Each object is whole on as many devices as the ring has replicas."""

    index: int
    name: str
    aliases: tuple[str, ...] = ()
    is_default: bool = False
    is_deprecated: bool = False

    policy_type = "replication"
    stores_fragments = False

    @property
    def ring_name(self) -> str:
        """The ring file's name without ``.ring.gz``."""
        return datadir("object", self.index)

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)

    def write_quorum(self, replicas: int) -> int:
        """How many of ``replicas`` devices must hold an object before the write is acknowledged."""
        return quorum_size(replicas)

    def expected_replicas(self) -> int | None:
        """The replica count that the ring must have, or None for any."""
        return None


@dataclass(frozen=True)
class ErasureCodingPolicy(ReplicationPolicy):
    """Each object becomes ``ndata + nparity`` fragments, each on its own device (times ``duplication``)."""

    scheme: str = "isa_l_rs_vand"
    ndata: int = 4
    nparity: int = 2
    segment_size: int = 1048576
    duplication: int = 1
    min_parity: int = 1  # beyond ndata, to be sure of a rebuild

    policy_type = "erasure_coding"
    stores_fragments = True

    @property
    def fragments(self) -> int:
        """Distinct fragments of one object."""
        return self.ndata + self.nparity

    def write_quorum(self, replicas: int) -> int:
        return (self.ndata + self.min_parity) * self.duplication

    def expected_replicas(self) -> int | None:
        return self.fragments * self.duplication

    def backend_index(self, primary_index: int) -> int:
        """The fragment that the primary node of this index holds."""
        return primary_index % self.fragments

    def holds_parity(self, primary_index: int) -> bool:
        """Whether that is parity, of which an object has to be computed."""
        return self.backend_index(primary_index) >= self.ndata


Policy = ReplicationPolicy


@dataclass(frozen=True)
class Policies:
    """All policies of a cluster, by index and by name (case does not matter)."""

    by_index: Mapping[int, Policy]
    default: Policy
    _by_name: Mapping[str, Policy] = field(repr=False, default_factory=dict)

    @classmethod
    def of(cls, policies: Iterable[Policy]) -> Policies:
        """Raises ConfigError when indexes or names clash, or the default is missing or deprecated."""
        found = sorted(policies, key=lambda policy: policy.index)
        by_index: dict[int, Policy] = {}
        by_name: dict[str, Policy] = {}
        for policy in found:
            if policy.index in by_index:
                raise ConfigError(f"duplicate policy index {policy.index}")
            by_index[policy.index] = policy
            for name in policy.names:
                if name.upper() in by_name:
                    raise ConfigError(f"duplicate policy name {name!r}", section=f"storage-policy:{policy.index}")
                if name.upper() == "POLICY-0" and policy.index != 0:
                    raise ConfigError("the name Policy-0 is reserved for index 0",
                                      section=f"storage-policy:{policy.index}")
                by_name[name.upper()] = policy
        if 0 not in by_index:
            raise ConfigError("a policy with index 0 must exist")
        defaults = [policy for policy in found if policy.is_default]
        if len(found) == 1 and not defaults:
            defaults = found
        if len(defaults) != 1:
            raise ConfigError("exactly one storage policy must be the default")
        if defaults[0].is_deprecated:
            raise ConfigError("a deprecated policy cannot be the default",
                              section=f"storage-policy:{defaults[0].index}")
        return cls(by_index, defaults[0], by_name)

    def __iter__(self) -> Iterator[Policy]:
        return iter(self.by_index.values())

    def __len__(self) -> int:
        return len(self.by_index)

    def get(self, index: str | int | None) -> Policy | None:
        """By index as a header has it: None or '' is 0; what is no number, or unknown, is None."""
        if index is None or index == "":
            index = 0
        try:
            return self.by_index.get(int(index))
        except (TypeError, ValueError):
            return None

    def by_name(self, name: str) -> Policy | None:
        return self._by_name.get(name.upper())


def policy_from(index: int, conf: Mapping[str, str], file: str = "") -> Policy:
    """The policy of one ``[storage-policy:N]`` section. Raises ConfigError."""
    section = f"storage-policy:{index}"

    def bad(option: str, expected: str) -> ConfigError:
        return ConfigError(f"expected {expected}", file=file, section=section, option=option, value=conf.get(option))

    kind = conf.get("policy_type", "replication")
    if kind not in ("replication", "erasure_coding"):
        raise bad("policy_type", "replication or erasure_coding")
    unknown = set(conf) - _COMMON - (_EC if kind == "erasure_coding" else set())
    if unknown:
        raise ConfigError("unknown option", file=file, section=section, option=min(unknown))
    name = conf.get("name", "").strip()
    aliases = tuple(alias.strip() for alias in conf.get("aliases", "").split(",") if alias.strip())
    for option, value in (("name", name), *(("aliases", alias) for alias in aliases)):
        if not _NAME.match(value):
            raise bad(option, "letters, digits and hyphens")
    default, deprecated = parse_bool(conf.get("default", "no")), parse_bool(conf.get("deprecated", "no"))
    if kind == "replication":
        return ReplicationPolicy(index, name, aliases, default, deprecated)

    def whole(option: str, fallback: int | None = None) -> int:
        text = conf.get(option, "" if fallback is None else str(fallback))
        if not text.isdigit() or int(text) < 1:
            raise bad(option, "a whole number above 0")
        return int(text)

    scheme = conf.get("ec_type", "")
    if not scheme:
        raise bad("ec_type", "the name of an erasure code")
    nparity = whole("ec_num_parity_fragments")
    if scheme == "isa_l_rs_vand" and nparity >= 5 and not deprecated:
        raise bad("ec_num_parity_fragments", "less than 5 for isa_l_rs_vand, or deprecated = yes")
    return ErasureCodingPolicy(
        index, name, aliases, default, deprecated, scheme, whole("ec_num_data_fragments"), nparity,
        whole("ec_object_segment_size", 1048576), whole("ec_duplication_factor", 1),
    )  # fmt: skip
