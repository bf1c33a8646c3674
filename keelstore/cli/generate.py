"""What ``keelstore up`` writes into a data directory: the files that an operator would write.

A file that was changed since we wrote it is the operator's: it is left alone. The others are brought up to date at each
start, so that a newer keelstore brings its newer pipelines.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import time
from collections.abc import Iterator
from dataclasses import replace

from keelstore.cli.layout import DEVICES, POLICIES, TEST_USERS, Layout, NodePaths, Settings

PART_POWER = 10
MIN_PART_HOURS = 1
_HEAD = "# Written by 'keelstore up'. Once you change this file, it is yours: 'up' leaves it alone.\n\n"
_PIPELINE = ("catch_errors", "gatekeeper", "healthcheck", "metrics", "proxy-logging", "cache", "etag-quoter", "domain_remap",
             "listing_formats", "s3api", "container_sync", "bulk", "tempurl", "ratelimit", "crossdomain", "formpost",
             "tempauth", "staticweb", "copy", "container-quotas", "account-quotas", "slo", "dlo", "versioned_writes",
             "symlink", "proxy-logging", "proxy-server")
_ENCRYPTION = ("keymaster", "encryption")  # left of the last proxy-logging
KMS_KEY = "keelstore"
SECRET_FILES = ("keelstore.conf", "proxy-server.conf", "keymaster.conf")


def prepare(layout: Layout) -> list[str]:
    """Make or update all files of the data directory; gives the paths that an operator has changed and that were left."""
    layout.save()  # the marker first: whatever follows is then known to be ours
    generated, kept = dict(layout.settings.generated), []
    for node in layout.nodes:
        for directory in ("etc", "run", "log", "cache", *(f"devices/{device}" for device in DEVICES)):
            os.makedirs(node.path(*directory.split("/")), exist_ok=True)
        for name, text in files_of(layout.settings, node):
            path = node.path("etc", name)
            key = os.path.relpath(path, layout.root)
            current = _digest_of_file(path)
            wanted = hashlib.sha256(text.encode()).hexdigest()
            if current not in (None, generated.get(key)):
                kept.append(path)
                continue
            if current != wanted:
                _write(path, text, 0o600 if name in SECRET_FILES else 0o644)
            generated[key] = wanted
    make_rings(layout)
    layout.settings = replace(layout.settings, generated=generated)
    layout.save()
    return kept


def current_user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container that runs us under a number without a name: then nothing is to be dropped either
        return "nobody"


def _digest_of_file(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except FileNotFoundError:
        return None


def _write(path: str, text: str, mode: int) -> None:
    fd = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".new", path)


# -- configuration -----------------------------------------------------------------------------------------------------


def files_of(settings: Settings, node: NodePaths) -> Iterator[tuple[str, str]]:
    """Name and text of each file in the ``etc`` of a node."""
    yield "keelstore.conf", _HEAD + cluster_file(settings)
    yield "node.conf", _HEAD + node_file(settings, node)
    yield "proxy-server.conf", _HEAD + proxy_file(settings, node) + encryption_sections(settings)
    if settings.root_secret:
        yield "keymaster.conf", _HEAD + keymaster_file(settings)
        yield "container-sync.conf", _HEAD + sync_client_file(node) + encryption_sections(settings)
    for kind in ("account", "container", "object"):
        yield f"{kind}-server.conf", _HEAD + storage_file(settings, node, kind)


def cluster_file(settings: Settings) -> str:
    parts = [f"""\
[swift-hash]
# Where everything is stored follows from these: never change them once data is stored.
swift_hash_path_prefix = {settings.hash_prefix}
swift_hash_path_suffix = {settings.hash_suffix}
"""]
    for policy in POLICIES:
        lines = [f"[storage-policy:{policy.index}]", f"name = {policy.name}", f"policy_type = {policy.kind}"]
        if policy.name == settings.default_policy:
            lines.append("default = yes")
        if policy.fragments:
            lines += ["ec_type = isa_l_rs_vand", f"ec_num_data_fragments = {policy.fragments[0]}",
                      f"ec_num_parity_fragments = {policy.fragments[1]}"]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def node_file(settings: Settings, node: NodePaths) -> str:
    workers = "auto" if settings.workers is None else str(settings.workers)
    return f"""\
[node]
name = {node.name}
roles = proxy-server.conf, account-server.conf, container-server.conf, object-server.conf
workers = {workers}
run_dir = ../run
user = {current_user()}
log_file = {node.log_file}
"""


def _defaults(settings: Settings, node: NodePaths, ip: str, port: int) -> str:
    return f"""\
[DEFAULT]
bind_ip = {ip}
bind_port = {port}
bind_timeout = 5
user = {current_user()}
swift_dir = %(here)s
log_file = {node.log_file}
"""


def pipeline(settings: Settings) -> tuple[str, ...]:
    """The proxy's filters and app."""
    names = (*_PIPELINE[:-2], *(_ENCRYPTION if settings.root_secret else ()), *_PIPELINE[-2:])
    return names if settings.test_users else tuple(name for name in names if name != "domain_remap")


def keymaster_file(settings: Settings) -> str:
    kms = f"""
# The key that S3 clients may name (x-amz-server-side-encryption: aws:kms)
encryption_root_secret_{KMS_KEY} = {settings.kms_secret}
kms_keys = {KMS_KEY}
""" if settings.kms_secret else ""
    return f"""\
[keymaster]
# Without these secrets what was encrypted with them is lost: keep a copy of this file elsewhere.
encryption_root_secret = {settings.root_secret}
meta_version_to_write = 3
{kms}"""


def sync_client_file(node: NodePaths) -> str:
    """What container sync reads objects through: it sends them as they were before they were encrypted."""
    return f"""\
[DEFAULT]
swift_dir = %(here)s
log_file = {node.log_file}
log_level = WARNING

[pipeline:main]
pipeline = catch_errors cache symlink {" ".join(_ENCRYPTION)} proxy-server

[app:proxy-server]
use = egg:keelstore#proxy

[filter:catch_errors]
use = egg:keelstore#catch_errors

[filter:cache]
use = egg:keelstore#memcache
embedded_cache_slots = 1024

[filter:symlink]
use = egg:keelstore#symlink
"""


def _metrics_options(settings: Settings) -> str:
    """``/metrics`` of the proxy is for this machine, as long as nobody else reaches it."""
    if not settings.is_loopback:
        return "# bearer_token = give one, and the page is for those who send it\n"
    return "allow_from = 127.0.0.0/8, ::1\n"


def _remap_section(settings: Settings) -> str:
    """Host names as accounts, for the field's test suites, which ask for hosts below example.net."""
    if not settings.test_users:
        return ""
    return """
[filter:domain_remap]
use = egg:keelstore#domain_remap
storage_domain = example.net
"""


def encryption_sections(settings: Settings) -> str:
    if not settings.root_secret:
        return ""
    return f"""
[filter:keymaster]
use = egg:keelstore#keymaster
keymaster_config_path = %(here)s/keymaster.conf

[filter:encryption]
use = egg:keelstore#encryption
disable_encryption = {"false" if settings.encrypts else "true"}
"""


def proxy_file(settings: Settings, node: NodePaths) -> str:
    account, _, user = settings.user.partition(":")
    users = [f"user_{account}_{user} = {settings.key} .admin"]
    if settings.test_users:
        users += [f"user_{name}_{who} = {key} {groups}".rstrip() for name, who, key, groups in TEST_USERS]
    lines = "\n".join(users)
    return f"""\
{_defaults(settings, node, settings.proxy_ip(node.number), settings.port)}
[pipeline:main]
pipeline = {" ".join(pipeline(settings))}

[app:proxy-server]
use = egg:keelstore#proxy
account_autocreate = true
allow_account_management = true
allow_open_expired = true

[filter:catch_errors]
use = egg:keelstore#catch_errors

[filter:gatekeeper]
use = egg:keelstore#gatekeeper

[filter:healthcheck]
use = egg:keelstore#healthcheck

[filter:metrics]
use = egg:keelstore#metrics
{_metrics_options(settings)}
[filter:proxy-logging]
use = egg:keelstore#proxy_logging

[filter:cache]
use = egg:keelstore#memcache
# No memcached: a cache in memory that the workers of this node share.
memcache_servers =

[filter:listing_formats]
use = egg:keelstore#listing_formats

[filter:etag-quoter]
use = egg:keelstore#etag_quoter
{_remap_section(settings)}
[filter:container_sync]
use = egg:keelstore#container_sync

[filter:bulk]
use = egg:keelstore#bulk

[filter:tempurl]
use = egg:keelstore#tempurl

[filter:ratelimit]
use = egg:keelstore#ratelimit

[filter:crossdomain]
use = egg:keelstore#crossdomain

[filter:formpost]
use = egg:keelstore#formpost

[filter:s3api]
use = egg:keelstore#s3api
s3_acl = true
check_bucket_owner = true

[filter:tempauth]
use = egg:keelstore#tempauth
reseller_prefix = AUTH, SERVICE
SERVICE_require_group = service
# Tokens are sealed with this key, so that every node of the cluster knows them.
fernet_key_1 = {settings.fernet_key}
active_fernet_key_id = 1
{lines}

[filter:staticweb]
use = egg:keelstore#staticweb

[filter:copy]
use = egg:keelstore#copy

[filter:slo]
use = egg:keelstore#slo
max_manifest_segments = 10000

[filter:dlo]
use = egg:keelstore#dlo

[filter:versioned_writes]
use = egg:keelstore#versioned_writes
allow_versioned_writes = true
allow_object_versioning = true

[filter:symlink]
use = egg:keelstore#symlink

[filter:container-quotas]
use = egg:keelstore#container_quotas

[filter:account-quotas]
use = egg:keelstore#account_quotas
"""


def storage_file(settings: Settings, node: NodePaths, kind: str) -> str:
    sync_client = "internal_client_conf_path = %(here)s/container-sync.conf\n" if settings.root_secret else ""
    return f"""\
{_defaults(settings, node, settings.storage_ip(node.number), settings.storage_port(kind))}devices = {node.path("devices")}
mount_check = false
recon_cache_path = {node.path("cache")}

[pipeline:main]
pipeline = healthcheck recon {kind}-server

[app:{kind}-server]
use = egg:keelstore#{kind}

[filter:healthcheck]
use = egg:keelstore#healthcheck

[filter:recon]
use = egg:keelstore#recon
{DAEMON_SECTIONS[kind]}{sync_client if kind == "container" else ""}"""


# A small store is right within seconds; an operator's larger one keeps the defaults. container-sync is the last of its file.
DAEMON_SECTIONS = {
    "account": """
[account-replicator]
interval = 30

[account-auditor]
interval = 600

[account-reaper]
interval = 30
""",
    "container": """
[container-replicator]
interval = 30

[container-auditor]
interval = 600

[container-updater]
interval = 10
containers_per_second = 200
account_suppression_time = 5

[container-sync]
interval = 30
""",
    "object": """
[object-replicator]
interval = 60

[object-reconstructor]
interval = 60

[object-auditor]
interval = 600

[object-updater]
interval = 5
objects_per_second = 500

[object-expirer]
interval = 10
tasks_per_second = 500
concurrency = 8
""",
}


# -- rings -------------------------------------------------------------------------------------------------------------


def rings() -> dict[str, tuple[str, int]]:
    """Name of each ring to the kind of server it is for and its replicas."""
    found = {"account": ("account", 3), "container": ("container", 3)}
    found.update((policy.ring_name, ("object", policy.replicas)) for policy in POLICIES)
    return found


def make_rings(layout: Layout) -> None:
    """Build the rings that do not exist yet, and give every node its copy."""
    missing = [(name, kind, replicas) for name, (kind, replicas) in rings().items()
               if not all(os.path.exists(node.path("etc", f"{name}.ring.gz")) for node in layout.nodes)]
    if not missing:
        return
    from keelstore.common.ring import format as ring_format
    from keelstore.common.ring.builder import RingBuilder
    from keelstore.common.ring.devices import RingDevice

    settings = layout.settings
    directory = os.path.join(layout.root, "rings")
    os.makedirs(directory, exist_ok=True)
    for name, kind, replicas in missing:
        path = os.path.join(directory, f"{name}.builder")
        if os.path.exists(path):
            builder = RingBuilder.load(path)
        else:
            builder = RingBuilder(PART_POWER, replicas, MIN_PART_HOURS)
            for node in layout.nodes:
                ip, port = settings.storage_ip(node.number), settings.storage_port(kind)
                for device in DEVICES:
                    builder.add_device(RingDevice(1, node.number, ip, port, device, 100.0, ip, port))
            builder.rebalance(time.time(), seed=name)
            builder.save(path)
        for node in layout.nodes:
            ring_format.save(builder.ring(), node.path("etc", f"{name}.ring.gz"))
