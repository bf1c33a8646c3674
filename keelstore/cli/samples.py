"""Sample configurations and the option reference, made from the option classes.

``python -m keelstore.cli.samples`` writes ``etc/*.conf-sample`` and ``doc/admin/options.md``; with ``--check`` it only tells,
by its status, whether they are current (``test/unit/test_structure.py`` asks that too).
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from keelstore.account.options import (
    AccountAuditorOptions,
    AccountReaperOptions,
    AccountReplicatorOptions,
    AccountServerOptions,
)
from keelstore.cli.dispersion import DispersionOptions
from keelstore.cli.drive_audit import DriveAuditOptions
from keelstore.cli.layout import OFFSETS
from keelstore.cli.recon_cron import ReconCronOptions
from keelstore.common.daemon import ProcessOptions
from keelstore.common.httpserver import ServerOptions
from keelstore.common.limits import Limits
from keelstore.common.logs import LogOptions
from keelstore.common.middleware.account_quotas import AccountQuotasOptions
from keelstore.common.middleware.backend_ratelimit import BackendRatelimitOptions
from keelstore.common.middleware.bulk import BulkOptions
from keelstore.common.middleware.cache import CacheOptions
from keelstore.common.middleware.catch_errors import CatchErrorsOptions
from keelstore.common.middleware.cname_lookup import CnameLookupOptions
from keelstore.common.middleware.container_quotas import ContainerQuotasOptions
from keelstore.common.middleware.container_sync import ContainerSyncOptions
from keelstore.common.middleware.copy import CopyOptions
from keelstore.common.middleware.crossdomain import CrossDomainOptions
from keelstore.common.middleware.crypto.encryption import EncryptionOptions
from keelstore.common.middleware.crypto.keymaster import KeymasterOptions
from keelstore.common.middleware.crypto.kmip_keymaster import KmipKeymasterOptions
from keelstore.common.middleware.crypto.kms_keymaster import KmsKeymasterOptions
from keelstore.common.middleware.dlo import DloOptions
from keelstore.common.middleware.domain_remap import DomainRemapOptions
from keelstore.common.middleware.etag_quoter import EtagQuoterOptions
from keelstore.common.middleware.formpost import FormPostOptions
from keelstore.common.middleware.gatekeeper import GatekeeperOptions
from keelstore.common.middleware.healthcheck import HealthcheckOptions
from keelstore.common.middleware.keystoneauth import KeystoneAuthOptions
from keelstore.common.middleware.list_endpoints import ListEndpointsOptions
from keelstore.common.middleware.listing_formats import ListingFormatsOptions
from keelstore.common.middleware.metrics import MetricsOptions
from keelstore.common.middleware.name_check import NameCheckOptions
from keelstore.common.middleware.proxy_logging import ProxyLoggingOptions
from keelstore.common.middleware.ratelimit import RatelimitOptions
from keelstore.common.middleware.read_only import ReadOnlyOptions
from keelstore.common.middleware.recon import ReconOptions
from keelstore.common.middleware.s3api import S3ApiOptions
from keelstore.common.middleware.s3token import S3TokenOptions
from keelstore.common.middleware.slo import SloOptions
from keelstore.common.middleware.staticweb import StaticWebOptions
from keelstore.common.middleware.symlink import SymlinkOptions
from keelstore.common.middleware.tempauth import TempAuthOptions
from keelstore.common.middleware.tempurl import TempUrlOptions
from keelstore.common.middleware.versioned_writes import VersionedWritesOptions
from keelstore.common.middleware.xprofile import XProfileOptions
from keelstore.common.options import OptionDoc, document
from keelstore.common.stats import StatsdOptions
from keelstore.common.wsgi import ListenOptions
from keelstore.container.options import (
    ContainerAuditorOptions,
    ContainerLifecycleOptions,
    ContainerReconcilerOptions,
    ContainerReplicatorOptions,
    ContainerServerOptions,
    ContainerUpdaterOptions,
    SyncDaemonOptions,
)
from keelstore.node.roles import NodeOptions
from keelstore.obj.options import (
    ObjectAuditorOptions,
    ObjectExpirerOptions,
    ObjectReconstructorOptions,
    ObjectRelinkerOptions,
    ObjectReplicatorOptions,
    ObjectServerOptions,
    ObjectUpdaterOptions,
)
from keelstore.proxy.options import PolicyOptions, ProxyOptions

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DEFAULT = (ListenOptions, ServerOptions, ProcessOptions, LogOptions, StatsdOptions)
REFERENCE = os.path.join("doc", "admin", "options.md")
_WIDTH = 100


@dataclass(frozen=True)
class Section:
    """A section of a sample: lines that count (``text``), then the options of ``classes``, commented out."""

    name: str
    classes: Sequence[type] = ()
    text: str = ""
    note: str = ""


@dataclass(frozen=True)
class Sample:
    name: str
    about: str
    sections: Sequence[Section]


def _filter(name: str, entry: str, cls: type, note: str = "", text: str = "") -> Section:
    return Section(f"filter:{name}", (cls,), f"use = egg:keelstore#{entry}\n{text}", note)


def _storage(kind: str, cls: type, *daemons: tuple[str, type, str]) -> Sample:
    return Sample(f"{kind}-server.conf", f"The {kind} server.", (
        Section("DEFAULT", DEFAULT, f"bind_port = {8080 - OFFSETS[kind]}\n"),
        Section("pipeline:main", text=f"pipeline = healthcheck recon {kind}-server\n"),
        Section(f"app:{kind}-server", (cls,), f"use = egg:keelstore#{kind}\n"),
        _filter("healthcheck", "healthcheck", HealthcheckOptions),
        Section("filter:recon", (ReconOptions, *((ReconCronOptions,) if kind == "object" else ())),
                "use = egg:keelstore#recon\n"),
        _filter("backend_ratelimit", "backend_ratelimit", BackendRatelimitOptions,
                "After recon, where wanted: healthcheck recon backend_ratelimit ..."),
        *(Section(name, (options,), note=note) for name, options, note in daemons),
    ))


_PIPELINE = ("catch_errors gatekeeper healthcheck proxy-logging cache etag-quoter listing_formats s3api container_sync bulk "
             "tempurl ratelimit formpost tempauth staticweb copy container-quotas account-quotas slo dlo versioned_writes "
             "symlink proxy-logging")

SAMPLES = (
    Sample("keelstore.conf", "The cluster file: what every node must agree on. swift.conf is read in its place.", (
        Section("swift-hash", note="Where everything is stored follows from these two. Put in long random texts, the same on "
                "every node, before anything is stored, and never change them.",
                text="swift_hash_path_prefix = changeme\nswift_hash_path_suffix = changeme\n"),
        Section("storage-policy:0", text="name = gold\npolicy_type = replication\ndefault = yes\n",
                note="Its ring is object.ring.gz. Never change a policy's number once it is used."),
        Section("storage-policy:1", note="Its ring is object-1.ring.gz.",
                text="name = ec42\npolicy_type = erasure_coding\nec_type = isa_l_rs_vand\nec_num_data_fragments = 4\n"
                     "ec_num_parity_fragments = 2\n# ec_object_segment_size = 1048576\n# ec_duplication_factor = 1\n"
                     "# aliases =\n# deprecated = no\n"),
        Section("swift-constraints", (Limits,)),
    )),
    Sample("node.conf", "A node: one process group that serves several roles (keelstore-node).", (
        Section("node", (NodeOptions, ProcessOptions, LogOptions),
                "roles = proxy-server.conf, account-server.conf, container-server.conf, object-server.conf\n"),
    )),
    Sample("proxy-server.conf", "The proxy server.", (
        Section("DEFAULT", DEFAULT, "bind_port = 8080\n"),
        Section("pipeline:main", text=f"pipeline = {_PIPELINE} proxy-server\n"),
        Section("app:proxy-server", (ProxyOptions,), "use = egg:keelstore#proxy\naccount_autocreate = true\n"),
        Section("proxy-server:policy:0", (PolicyOptions,), note="What differs for one policy, by its number."),
        _filter("catch_errors", "catch_errors", CatchErrorsOptions),
        _filter("gatekeeper", "gatekeeper", GatekeeperOptions),
        _filter("healthcheck", "healthcheck", HealthcheckOptions),
        _filter("proxy-logging", "proxy_logging", ProxyLoggingOptions),
        _filter("cache", "memcache", CacheOptions),
        _filter("listing_formats", "listing_formats", ListingFormatsOptions),
        _filter("etag-quoter", "etag_quoter", EtagQuoterOptions),
        _filter("container_sync", "container_sync", ContainerSyncOptions,
                "Its realms stand in container-sync-realms.conf, beside the cluster file."),
        _filter("bulk", "bulk", BulkOptions),
        _filter("tempurl", "tempurl", TempUrlOptions),
        _filter("ratelimit", "ratelimit", RatelimitOptions),
        _filter("formpost", "formpost", FormPostOptions),
        _filter("s3api", "s3api", S3ApiOptions,
                "The S3 protocol: just left of the auth filter. Uploads in parts may have as many parts as slo allows."),
        _filter("tempauth", "tempauth", TempAuthOptions,
                "Users: user_ACCOUNT_USER = KEY [GROUP...] [STORAGE URL]. The group .admin makes an owner of the account, "
                ".reseller_admin one of all accounts. With names in base64 without '=': user64_ACCOUNT_USER.",
                "# reseller_prefix = AUTH\n# SERVICE_require_group = service\n# user_keel_admin = PUT-A-KEY-HERE .admin\n"
                "# fernet_key_1 = 32 random bytes in url-safe base64\n"),
        _filter("keystoneauth", "keystoneauth", KeystoneAuthOptions,
                "In place of 's3api ... tempauth': 'authtoken s3api s3token keystoneauth'. doc/admin/keystone.md tells how."),
        Section("filter:authtoken", note="keystonemiddleware's, with options of its own. delay_auth_decision: for public "
                "containers, temporary URLs, forms and S3.",
                text="paste.filter_factory = keystonemiddleware.auth_token:filter_factory\n"
                     "# www_authenticate_uri = http://keystone:5000/\n# auth_url = http://keystone:5000/\n"
                     "# auth_type = password\n# username = swift\n# password = PUT-A-PASSWORD-HERE\n"
                     "# user_domain_name = Default\n# project_name = service\n# project_domain_name = Default\n"
                     "# delay_auth_decision = true\n# cache = swift.cache\n# include_service_catalog = false\n"
                     "# service_token_roles = service\n# service_token_roles_required = true\n"),
        _filter("s3token", "s3token", S3TokenOptions,
                "S3 with EC2 credentials of Keystone. Its account needs the role 'service' to ask, and 'admin' to fetch "
                "secrets.",
                "# auth_uri = http://keystone:5000/v3\n# auth_url = http://keystone:5000/\n# username = swift\n"
                "# password = PUT-A-PASSWORD-HERE\n# user_domain_name = Default\n# project_name = service\n"
                "# project_domain_name = Default\n"),
        _filter("staticweb", "staticweb", StaticWebOptions),
        _filter("copy", "copy", CopyOptions),
        _filter("container-quotas", "container_quotas", ContainerQuotasOptions),
        _filter("account-quotas", "account_quotas", AccountQuotasOptions),
        _filter("slo", "slo", SloOptions),
        _filter("dlo", "dlo", DloOptions),
        _filter("versioned_writes", "versioned_writes", VersionedWritesOptions),
        _filter("symlink", "symlink", SymlinkOptions),
        _filter("keymaster", "keymaster", KeymasterOptions,
                "Encryption at rest: 'keymaster encryption' just left of the last proxy-logging. Whoever loses a root secret "
                "loses what was encrypted with it. More secrets: encryption_root_secret_<id>.",
                "# encryption_root_secret = 32 or more random bytes in base64 (openssl rand -base64 32)\n"
                "# meta_version_to_write = 3\n"),
        _filter("kms_keymaster", "kms_keymaster", KmsKeymasterOptions,
                "In place of keymaster: root secrets in a key manager, through Castellan (the extra kms). Each key_id or "
                "key_id_<id> names an AES key of at least 256 bits.",
                "# key_id =\n# password =\n# meta_version_to_write = 3\n"),
        _filter("kmip_keymaster", "kmip_keymaster", KmipKeymasterOptions,
                "In place of keymaster: root secrets on a KMIP server, through PyKMIP (the extra kmip). Each key_id or "
                "key_id_<id> names an AES key of 256 bits.",
                "# key_id =\n# password =\n# meta_version_to_write = 3\n"),
        _filter("encryption", "encryption", EncryptionOptions),
        _filter("read_only", "read_only", ReadOnlyOptions, "After ratelimit, where wanted."),
        _filter("name_check", "name_check", NameCheckOptions, "After cache, where wanted."),
        _filter("crossdomain", "crossdomain", CrossDomainOptions, "Before authentication, where wanted."),
        _filter("cname_lookup", "cname_lookup", CnameLookupOptions, "Before domain_remap, where wanted."),
        _filter("domain_remap", "domain_remap", DomainRemapOptions, "Before listing_formats, where wanted."),
        _filter("list-endpoints", "list_endpoints", ListEndpointsOptions,
                "Before authentication, where wanted: it tells addresses of the inside to everybody."),
        _filter("metrics", "metrics", MetricsOptions,
                "After healthcheck, where wanted: requests of this proxy in the form of Prometheus."),
        _filter("xprofile", "xprofile", XProfileOptions,
                "After healthcheck, for a while: it slows requests down, and answers everybody."),
    )),
    _storage("account", AccountServerOptions,
             ("account-replicator", AccountReplicatorOptions,
              "Brings other nodes what their account databases lack, and sends home what belongs elsewhere."),
             ("account-auditor", AccountAuditorOptions, "Checks every account database, and puts aside what is torn."),
             ("account-reaper", AccountReaperOptions, "Removes the content of deleted accounts.")),
    _storage("container", ContainerServerOptions,
             ("container-replicator", ContainerReplicatorOptions,
              "Brings other nodes what their container databases lack, and sends home what belongs elsewhere."),
             ("container-auditor", ContainerAuditorOptions, "Checks every container database, and puts aside what is torn."),
             ("container-updater", ContainerUpdaterOptions, "Tells accounts what their containers hold."),
             ("container-reconciler", ContainerReconcilerOptions,
              "Moves objects that were written under the wrong storage policy. A file of its own, container-reconciler.conf, "
              "does as well: with this section, and the pipeline of a proxy if the built-in one does not do."),
             ("container-lifecycle", ContainerLifecycleOptions, "Carries out the lifecycle rules of S3 buckets."),
             ("container-sync", SyncDaemonOptions, "Brings what is written to a container to its copy in another cluster.")),
    _storage("object", ObjectServerOptions,
             ("object-replicator", ObjectReplicatorOptions,
              "Brings other nodes the copies that they lack, and sends home what belongs elsewhere."),
             ("object-reconstructor", ObjectReconstructorOptions,
              "Rebuilds lost fragments of erasure coded objects, and sends home what belongs elsewhere."),
             ("object-auditor", ObjectAuditorOptions, "Reads everything, and puts aside what is wrong."),
             ("object-updater", ObjectUpdaterOptions, "Sends the container updates that a server could not deliver."),
             ("object-expirer", ObjectExpirerOptions,
              "Deletes objects whose time has come. How much longer those of an account or container stay: "
              "delay_reaping_ACCOUNT or delay_reaping_ACCOUNT/CONTAINER (URL-quoted) = seconds."),
             ("object-relinker", ObjectRelinkerOptions,
              "keelstore-object-relinker, when the part power of a ring is raised; no daemon.")),
    Sample("dispersion.conf", "keelstore-dispersion-populate and keelstore-dispersion-report.", (
        Section("dispersion", (DispersionOptions,)),
    )),
    Sample("drive-audit.conf", "keelstore-drive-audit.", (
        Section("drive-audit", (DriveAuditOptions, LogOptions),
                note="Patterns of errors: regex_pattern_1 and so on; group 1 is the drive."),
    )),
)


def options_of(section: Section) -> list[OptionDoc]:
    """Each option once, the first class that has it, without those that the section sets."""
    found: dict[str, OptionDoc] = {}
    for cls in section.classes:
        for doc in document(cls):
            found.setdefault(doc.name, doc)
    given = {line.partition("=")[0].strip("# ") for line in section.text.splitlines()}
    return [doc for doc in found.values() if doc.name not in given]


def render(sample: Sample) -> str:
    """The text of a sample file."""
    lines = [f"# {sample.about}", "#",
             "# Options that are commented out show their defaults. Generated by 'python -m keelstore.cli.samples'."]
    for section in sample.sections:
        lines += ["", f"[{section.name}]"]
        lines += textwrap.wrap(section.note, _WIDTH, initial_indent="# ", subsequent_indent="# ")
        lines += section.text.splitlines()
        for doc in options_of(section):
            lines += ["", *textwrap.wrap(doc.help, _WIDTH, initial_indent="# ", subsequent_indent="# "),
                      f"# {doc.name} = {doc.default}".rstrip()]
    return "\n".join(lines) + "\n"


def reference() -> str:
    """The option reference in Markdown."""
    lines = ["# Option reference", "",
             "Generated from the option classes by `python -m keelstore.cli.samples`. [Configuration](configuration.md) "
             "tells how files are read.", ""]
    seen: set[tuple[type, ...]] = set()
    for sample in SAMPLES:
        lines += [f"## {sample.name}", ""]
        for section in sample.sections:
            if not section.classes:
                continue
            classes = tuple(section.classes)
            lines += [f"### [{section.name}]", ""]
            if classes in seen:
                lines += ["As above.", ""]
                continue
            seen.add(classes)
            lines += ["| option | default | |", "|---|---|---|"]
            docs = options_of(Section(section.name, section.classes))
            lines += [f"| {doc.name} | {_cell(doc.default)} | {_cell(doc.help)} |" for doc in docs]
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def files() -> dict[str, str]:
    """Path below the checkout to text, of everything that is generated."""
    found = {os.path.join("etc", f"{sample.name}-sample"): render(sample) for sample in SAMPLES}
    found[REFERENCE] = reference()
    return found


def stale(root: str = ROOT) -> list[str]:
    """The generated files that are missing or not current."""
    bad = []
    for path, text in files().items():
        try:
            with open(os.path.join(root, path), encoding="utf-8") as file:
                if file.read() == text:
                    continue
        except FileNotFoundError:
            pass
        bad.append(path)
    return bad


def main(arguments: Sequence[str]) -> int:
    if "--check" in arguments:
        bad = stale()
        for path in bad:
            print(f"not current: {path}", file=sys.stderr)
        return 1 if bad else 0
    for path, text in files().items():
        os.makedirs(os.path.join(ROOT, os.path.dirname(path)), exist_ok=True)
        with open(os.path.join(ROOT, path), "w", encoding="utf-8") as file:
            file.write(text)
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
