"""keymaster: derives the keys of objects from root secrets in the configuration (``spec: middleware 24``).

It puts a callback into each request that may need keys; the filter ``encryption``, to its right, calls it. Other keymasters
hold the same :class:`KeyMaster` and differ in where the root secrets come from. Two may stand in one pipeline: what was
encrypted with a secret that the right one does not know, the left one is asked for.

Stands directly left of ``encryption``. Needs root secrets; without them what was encrypted cannot be read.
"""

from __future__ import annotations

import binascii
import dataclasses
import os
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from keelstore.common.errors import ConfigError
from keelstore.common.http import Environ, StartResponse, WSGIApp
from keelstore.common.middleware.crypto.keys import CALLBACK, VERSIONS, KeySource, RootSecrets
from keelstore.common.options import one_of, option, parse
from keelstore.common.paste_config import read_config
from keelstore.common.registry import register_admin_info, registered

AFTER: Final = ("catch_errors", "gatekeeper", "proxy_logging", "memcache", "tempauth", "authtoken", "keystoneauth", "copy",
                "slo", "dlo", "versioned_writes", "symlink")
BEFORE: Final = ("encryption",)

METHODS: Final = frozenset({"PUT", "POST", "GET", "HEAD"})
MIN_SECRET: Final = 32  # bytes
SECRET: Final = "encryption_root_secret"


@dataclass(frozen=True)
class KeymasterOptions:
    """Options of ``[filter:keymaster]``, beside ``encryption_root_secret`` and ``encryption_root_secret_<id>``."""

    keymaster_config_path: str = option(
        "", "File, or directory of *.conf, whose section [keymaster] holds the options of this one instead, so that the "
            "secrets can have stricter permissions.")
    active_root_secret_id: str | None = option(
        None, "Id of the root secret that new data is encrypted with; empty: the one without id.")
    meta_version_to_write: str = option(
        "2", "Form of the key ids that are written. 3 is right for names that are not ASCII; take 2 while a proxy of Swift "
             "before 2.28 reads the same cluster.", check=one_of(*VERSIONS))
    kms_keys: tuple[str, ...] = option(
        (), "Ids of root secrets that clients of S3 may name as keys of a key manager (x-amz-server-side-encryption: "
            "aws:kms); none: who asks for such a key is refused.")


class KeyMaster:
    def __init__(self, app: WSGIApp, secrets: RootSecrets):
        self.app, self.secrets = app, secrets

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] in METHODS:
            parts = environ["PATH_INFO"].split("/", 4)
            if len(parts) > 2 and parts[2]:
                container = parts[3] if len(parts) > 3 else ""
                obj = parts[4] if len(parts) > 4 else ""
                environ[CALLBACK] = KeySource(self.secrets, parts[2], container, obj, environ.get(CALLBACK))
        return self.app(environ, start_response)


# -- configuration -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Section:
    """Where the options of a keymaster are, and what they are: the filter's own section, or one of another file."""

    options: Any
    conf: Mapping[str, str] = field(repr=False)
    name: str = ""  # '' where the loader of the pipeline knows better
    file: str = ""


def section_of(cls: type, name: str, secret: str, global_conf: Mapping[str, str], local_conf: Mapping[str, str],
               may_be_directory: bool = True, known: tuple[str, ...] = ()) -> Section:
    """The options of the keymaster ``name``. Raises ConfigError.

    ``cls``: their dataclass. ``secret``: the option that names a root secret, which may have ``_<id>`` behind. ``known``:
    what else there is.
    """
    conf = {**global_conf, **local_conf}
    _check_names(local_conf, secret, f"filter:{name}", "")
    every = ("use", "set *", "log_*", secret, f"{secret}_*", *known)
    options: Any = parse(cls, conf, section=f"filter:{name}", local=local_conf, known=every)
    path = conf.get("keymaster_config_path", "").strip()
    if not path:
        return Section(options, conf)
    ours = {item.name for item in dataclasses.fields(cls)} - {"keymaster_config_path"}
    both = sorted(key for key in local_conf if key in ours or key in known or key.startswith(secret))
    if both:
        raise ConfigError("keymaster_config_path is set, but there are other config options specified: " + ", ".join(both))
    if not may_be_directory and os.path.isdir(path):
        raise ConfigError("expected a file, not a directory", option="keymaster_config_path", value=path)
    try:
        config = read_config(path)
    except ConfigError as error:
        if not os.path.exists(path):
            raise
        # what cannot be parsed may be a secret, so the reason is not repeated
        raise ConfigError("cannot be read, or is no configuration file", file=error.file or path) from None
    found = config.merged(name)
    _check_names(config.sections[name], secret, name, path)
    return Section(parse(cls, found, section=name, file=path, local=config.sections[name], known=every), found, name, path)


def _check_names(names: Iterable[str], secret: str, section: str, file: str) -> None:
    """Raises ConfigError where a secret stands in an option's name, as without = between them; the error does not tell it."""
    for name in names:
        if name.startswith(secret) and name.split()[0] != name:
            raise ConfigError("expected = after the option's name", file=file, section=section, option=name.split()[0])


def load_secrets(section: Section, option: str, load: Callable[[str], bytes]) -> RootSecrets:
    """The root secrets of a section: ``option`` and ``option_<id>``, each made of its value by ``load``, which raises
    ConfigError without telling the value. Raises ConfigError."""
    found: dict[str | None, bytes] = {}
    for name, value in sorted(section.conf.items()):
        if name != option and not name.startswith(option + "_"):
            continue
        secret_id = name[len(option) + 1:] or None
        if secret_id is None and name != option:
            raise ConfigError("an id must follow the last _", file=section.file, section=section.name, option=name)
        if not value.strip() and secret_id is None:
            continue
        try:
            found[secret_id] = load(value)
        except ConfigError as error:
            raise ConfigError(error.reason, file=section.file, section=section.name, option=name) from None
    active = section.options.active_root_secret_id
    if active not in found:
        missing = f"{option}_{active}" if active else option
        raise ConfigError(f"there is no root secret to encrypt with: set {missing}", file=section.file, section=section.name,
                          option="active_root_secret_id", value=active)
    return RootSecrets(found, active, section.options.meta_version_to_write)


def decode_secret(text: str) -> bytes:
    """Raises ConfigError, which does not tell the secret."""
    try:
        secret = b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        secret = b""
    if len(secret) < MIN_SECRET:
        raise ConfigError(f"must be a base64 encoding of at least {MIN_SECRET} raw bytes (openssl rand -base64 32)")
    return secret


def filter_factory(global_conf: dict[str, str], **local_conf: str) -> Callable[[WSGIApp], KeyMaster]:
    section = section_of(KeymasterOptions, "keymaster", SECRET, global_conf, local_conf)
    secrets = load_secrets(section, SECRET, decode_secret)
    for key in section.options.kms_keys:
        if key not in secrets.by_id:
            raise ConfigError(f"there is no root secret of this id: set {SECRET}_{key}", file=section.file,
                              section=section.name, option="kms_keys", value=key)
    others = (registered("keymaster") or {}).get("kms_keys", ())  # of another in the pipeline
    register_admin_info("keymaster", kms_keys=sorted({*others, *section.options.kms_keys}))
    return lambda app: KeyMaster(app, secrets)
