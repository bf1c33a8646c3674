"""Options of the proxy: ``[app:proxy-server]``, and ``[proxy-server:policy:N]`` where one policy differs."""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from keelstore.common.errors import ConfigError
from keelstore.common.options import count_of_nodes, not_negative, one_of, option, parse, percent, positive, unused
from keelstore.common.policy import Policies

log = logging.getLogger("keelstore.config")

OWNER_HEADERS: Final = (
    "x-container-read", "x-container-write", "x-container-sync-key", "x-container-sync-to",
    "x-account-meta-temp-url-key", "x-account-meta-temp-url-key-2", "x-container-meta-temp-url-key",
    "x-container-meta-temp-url-key-2", "x-account-access-control",
)  # fmt: skip

_READ_MATCH = re.compile(r"\Ar([0-9]+)(?:z([0-9]+))?=([0-9]+)\Z")
_WRITE_MATCH = re.compile(r"\Ar([0-9]+)(?:z([0-9]+))?\Z")


def _read_affinity_check(text: str) -> str | None:
    good = all(_READ_MATCH.match(part.strip()) for part in text.split(",")) if text.strip() else True
    return None if good else "such as r1z1=100, r2=200"


def _write_affinity_check(text: str) -> str | None:
    good = all(_WRITE_MATCH.match(part.strip()) for part in text.split(",")) if text.strip() else True
    return None if good else "such as r1, r2z2"


def read_affinity(text: str) -> tuple[tuple[int, int | None, int], ...]:
    """``r1z1=100, r2=200`` as (region, zone or None, priority), best first."""
    found = [match for match in map(_READ_MATCH.match, (part.strip() for part in text.split(","))) if match]
    return tuple(sorted(((int(m[1]), int(m[2]) if m[2] else None, int(m[3])) for m in found), key=lambda m: m[2]))


def write_affinity(text: str) -> tuple[tuple[int, int | None], ...]:
    """``r1, r2z2`` as (region, zone or None)."""
    found = [match for match in map(_WRITE_MATCH.match, (part.strip() for part in text.split(","))) if match]
    return tuple((int(m[1]), int(m[2]) if m[2] else None) for m in found)


@dataclass(frozen=True)
class PolicyOptions:
    """Options of ``[proxy-server:policy:<index>]``; what one does not set is taken from ``[app:proxy-server]``."""

    sorting_method: str = option("shuffle", "Order in which replicas are read: shuffle, timing, affinity.",
                                 check=one_of("shuffle", "timing", "affinity"))
    read_affinity: str = option("", "For affinity: priorities such as r1z1=100, r2=200; the least is first.",
                                check=_read_affinity_check)
    write_affinity: str = option("", "Regions and zones that take new objects first, such as r1, r2z2.",
                                 check=_write_affinity_check)
    write_affinity_node_count: str = option("2 * replicas", "Nodes of write_affinity that are tried before others.",
                                            check=count_of_nodes)
    write_affinity_handoff_delete_count: int | None = option(
        None, "Local handoffs that also get a DELETE when write_affinity is set; auto: replicas minus local primaries.")
    rebalance_missing_suppression_count: int = option(
        1, "Primaries that may answer 404 for an object without proof before it counts.", check=not_negative)
    concurrent_gets: bool = option(False, "Ask further replicas when one is slow to answer a read.")
    concurrency_timeout: float | None = option(
        None, "With concurrent_gets: seconds until the next is asked; auto: conn_timeout.")
    concurrent_ec_extra_requests: int = option(
        0, "With concurrent_gets: fragments asked beyond what decoding needs.", check=not_negative)


@dataclass(frozen=True)
class ProxyOptions(PolicyOptions):
    """Options of ``[app:proxy-server]``; those that concern the server may also stand in ``[DEFAULT]``."""

    swift_dir: str = option("/etc/swift", "Directory of the cluster file and the rings.")
    require_proxy_protocol: bool = option(False, "Refuse connections that do not begin with a PROXY line.")
    client_timeout: float = option(60.0, "Seconds to wait for a client that sends or takes nothing.", check=positive)
    expose_info: bool = option(True, "Answer /info.")
    admin_key: str = option("", "Key that signs requests for the admin part of /info; empty: refused.")
    disallowed_sections: tuple[str, ...] = option(
        ("swift.auto_create_account_prefix", "swift.valid_api_versions"), "What /info does not show: dotted paths.")
    cors_allow_origin: tuple[str, ...] = option((), "Origins allowed for every container.")
    cors_expose_headers: tuple[str, ...] = option((), "Headers shown to scripts beyond the usual ones.")
    strict_cors_mode: bool = option(True, "No CORS headers for an origin that the container does not allow.")
    trans_id_suffix: str = option("", "End of transaction ids; tells proxies of several sites apart.")
    log_handoffs: bool = option(True, "Log when handoffs beyond request_node_count are used.")
    recheck_account_existence: int = option(60, "Seconds to remember what is known of an account.",
                                            check=not_negative)
    recheck_container_existence: int = option(60, "Seconds to remember what is known of a container.",
                                              check=not_negative)
    recheck_updating_shard_ranges: int = unused(3600, "shards are looked up for each update.",
                                                check=not_negative)
    recheck_listing_shard_ranges: int = unused(600, "shards are looked up for each listing.",
                                               check=not_negative)
    account_existence_skip_cache_pct: float = option(0.0, "Percentage of look-ups that ask anew.", check=percent)
    container_existence_skip_cache_pct: float = option(0.0, "Percentage of look-ups that ask anew.", check=percent)
    container_updating_shard_ranges_skip_cache_pct: float = unused(0.0, "always asked anew.",
                                                                   check=percent)
    container_listing_shard_ranges_skip_cache_pct: float = unused(0.0, "always asked anew.",
                                                                  check=percent)
    namespace_cache_tokens_per_session: int = unused(3, "shards are not cached.",
                                                     check=not_negative)
    namespace_avg_backend_fetch_time: float = unused(0.3, "shards are not cached.",
                                                     check=positive)
    object_chunk_size: int = unused(65536, "bodies are sent on in the pieces that they arrive in.", check=positive)
    client_chunk_size: int = option(65536, "Bytes read at once from a client.", check=positive)
    node_timeout: float = option(10.0, "Seconds to wait for a storage node.", check=positive)
    recoverable_node_timeout: float | None = option(
        None, "The same for reads that can go on elsewhere; auto: node_timeout.")
    conn_timeout: float = option(0.5, "Seconds to wait for a connection to a storage node.", check=positive)
    post_quorum_timeout: float = option(0.5, "Seconds to wait for the others once a quorum has answered.",
                                        check=not_negative)
    error_suppression_interval: float = option(60.0, "Seconds without error until a device is asked again.",
                                               check=positive)
    error_suppression_limit: int = option(10, "Errors after which a device is not asked for a while.",
                                          check=not_negative)
    allow_account_management: bool = option(False, "Let accounts be created and deleted by PUT and DELETE.")
    account_autocreate: bool = option(False, "Create an account when its first container is.")
    max_containers_per_account: int = option(0, "Most containers of an account; 0: any number.", check=not_negative)
    max_containers_whitelist: tuple[str, ...] = option((), "Accounts that max_containers_per_account exempts.")
    deny_host_headers: tuple[str, ...] = option((), "Host names that are refused.")
    timing_expiry: float = option(300.0, "For timing: seconds until a measured time is forgotten.", check=positive)
    request_node_count: str = option("2 * replicas", "Nodes that a request may be tried on.", check=count_of_nodes)
    swift_owner_headers: tuple[str, ...] = option(OWNER_HEADERS, "Headers that only an account's owner may see or set.")
    write_legacy_ec_crc: bool | None = option(None, "Write fragments that old versions can read; empty: as built.")
    allow_open_expired: bool = option(False, "Let X-Open-Expired requests see expired objects not yet reaped.")
    expiring_objects_container_divisor: int = option(86400, "Deprecated: seconds that one expiry queue container spans.",
                                                     check=positive)
    expiring_objects_account_name: str = option("expiring_objects", "Deprecated: account of the expiry queue.")
    forwarded_object_headers: tuple[str, ...] = option(
        (), "Further client headers that object servers get, for servers whose allowed_headers name more.")

    @property
    def read_timeout_s(self) -> float:
        return self.node_timeout if self.recoverable_node_timeout is None else self.recoverable_node_timeout


# Options that other readers take from the same section.
ALSO_KNOWN: Final = (
    "use", "set *", "log_*", "rate_limit_after_segment", "rate_limit_segments_per_sec", "max_get_time", "bind_*",
    "workers", "user", "max_clients", "backlog", "keepalive_timeout", "cert_file", "key_file", "access_log_*", "statsd_*",
    "eventlet_debug", "nice_priority", "ionice_*", "stale_worker_timeout", "keep_idle", "max_upload_time",
)  # fmt: skip

_POLICY_FIELDS = tuple(field.name for field in dataclasses.fields(PolicyOptions))


def policy_options(
    options: ProxyOptions,
    policies: Policies,
    sections: Mapping[str, Mapping[str, str]],
    file: str = "",
    warn: Callable[..., None] = log.warning,
) -> dict[int, PolicyOptions]:
    """The options of each policy. ``sections`` are those of the configuration file, by name. Raises ConfigError."""
    common = PolicyOptions(**{name: getattr(options, name) for name in _POLICY_FIELDS})
    found = {policy.index: common for policy in policies}
    base = {
        name: ("auto" if value is None else str(value))
        for name, value in ((name, getattr(options, name)) for name in _POLICY_FIELDS)
    }
    for section, conf in sections.items():
        if not section.startswith("proxy-server:policy:"):
            continue
        text = section.rpartition(":")[2].strip()
        if not (text.isascii() and text.isdigit()):
            raise ConfigError("expected a policy's index, not its name", file=file, section=section)
        index = int(text)
        if index not in found:
            raise ConfigError(f"no storage policy has index {index}", file=file, section=section)
        found[index] = parse(PolicyOptions, {**base, **conf}, section=section, file=file, local=conf)
    for index, chosen in found.items():
        if chosen.read_affinity and chosen.sorting_method != "affinity":
            warn("policy %d: read_affinity has no effect while sorting_method is %s", index, chosen.sorting_method)
    return found


def lower_set(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name.lower() for name in names)
