"""kms_keymaster: root secrets out of a key manager such as Barbican, through Castellan (``spec: middleware 24``).

The configuration names keys; they are fetched once, when the pipeline is loaded, and are kept in memory only. Everything else
is as in ``keymaster``. Needs the extra ``kms`` (``pip install keelstore[kms]``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from keelstore.common.errors import ConfigError
from keelstore.common.http import WSGIApp
from keelstore.common.middleware.crypto.keymaster import AFTER as AFTER
from keelstore.common.middleware.crypto.keymaster import BEFORE as BEFORE
from keelstore.common.middleware.crypto.keymaster import MIN_SECRET, KeyMaster, load_secrets, section_of
from keelstore.common.middleware.crypto.keys import VERSIONS
from keelstore.common.options import one_of, option

KEY: Final = "key_id"


@dataclass(frozen=True)
class KmsKeymasterOptions:
    """Options of ``[filter:kms_keymaster]``, beside ``key_id`` and ``key_id_<id>``."""

    keymaster_config_path: str = option(
        "", "File, or directory of *.conf, whose section [kms_keymaster] holds the options of this one instead.")
    active_root_secret_id: str | None = option(
        None, "Id of the root secret that new data is encrypted with; empty: the one without id.")
    meta_version_to_write: str = option("2", "Form of the key ids that are written; see keymaster.", check=one_of(*VERSIONS))
    username: str = option("", "User of the key manager.")
    user_id: str = option("", "Its id, in place of the name.")
    user_domain_name: str = option("", "Domain of the user.")
    user_domain_id: str = option("", "Its id.")
    project_name: str = option("", "Project that owns the keys.")
    project_id: str = option("", "Its id, in place of the name.")
    project_domain_name: str = option("", "Domain of the project.")
    project_domain_id: str = option("", "Its id.")
    domain_name: str = option("", "Domain to be scoped to, in place of a project.")
    domain_id: str = option("", "Its id.")
    trust_id: str = option("", "Trust to use.")
    reauthenticate: bool = option(True, "Get a new token when the old one runs out.")
    auth_endpoint: str = option("", "URL of Keystone, with version.")
    api_class: str = option("", "Castellan's key manager, e.g. barbican or a class; empty: its default.")
    barbican_endpoint: str = option("", "URL of Barbican; empty: as the service catalogue says.")
    barbican_region_name: str = option("", "Region of Barbican in the catalogue.")
    # the user's password is read where it is used, so that no repr() of these options holds it


_CREDENTIALS: Final = ("username", "user_id", "user_domain_name", "user_domain_id", "project_name", "project_id",
                       "project_domain_name", "project_domain_id", "domain_name", "domain_id", "trust_id")
_MANAGER: Final = ("auth_endpoint", "api_class", "barbican_endpoint")


def load_key(manager: Any, context: Any, key_id: str) -> bytes:
    """One root secret. Raises ConfigError."""
    try:
        key = manager.get(context, key_id.strip())
        algorithm, bits, form = str(key.algorithm or ""), int(key.bit_length or 0), str(key.format or "")
        secret = key.get_encoded()
    except Exception as error:  # whatever the manager and its transport raise; what they say may hold tokens
        raise ConfigError(f"the key manager does not give this key ({type(error).__name__})") from None
    if algorithm.lower() != "aes" or bits < 8 * MIN_SECRET or form.upper() != "RAW":
        raise ConfigError(f"expected an AES key of at least {8 * MIN_SECRET} bits in format RAW, but it is "
                          f"{algorithm or 'none'}, {bits} bits, {form or 'no format'}")
    if not isinstance(secret, bytes) or len(secret) < MIN_SECRET:
        raise ConfigError(f"the key manager gave fewer than {MIN_SECRET} bytes")
    return secret


def connect(options: KmsKeymasterOptions, password: str) -> tuple[Any, Any]:
    """Castellan's key manager, and the context of calls to it. Raises ConfigError."""
    try:
        from castellan import key_manager  # type: ignore[import-not-found,unused-ignore]
        from castellan import options as castellan_options
        from castellan.common.credentials import keystone_password  # type: ignore[import-not-found,unused-ignore]
        from oslo_config import cfg  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise ConfigError(f"kms_keymaster needs Castellan, which is not installed ({error.name}): "
                          "pip install 'keelstore[kms]'") from None
    conf = cfg.ConfigOpts()
    conf([], default_config_files=[], default_config_dirs=[])
    castellan_options.set_defaults(conf, **{name: getattr(options, name) for name in _MANAGER if getattr(options, name)})
    if options.barbican_region_name:
        try:
            conf.set_override("barbican_region_name", options.barbican_region_name, group="barbican")
        except cfg.Error:
            raise ConfigError("is not known to this version of Castellan", option="barbican_region_name",
                              value=options.barbican_region_name) from None
    context = keystone_password.KeystonePassword(
        auth_url=options.auth_endpoint or None, password=password or None, reauthenticate=options.reauthenticate,
        **{name: getattr(options, name) or None for name in _CREDENTIALS})
    return key_manager.API(conf), context


def filter_factory(global_conf: dict[str, str], **local_conf: str) -> Callable[[WSGIApp], KeyMaster]:
    section = section_of(KmsKeymasterOptions, "kms_keymaster", KEY, global_conf, local_conf, known=("password",))
    manager, context = connect(section.options, section.conf.get("password", ""))
    secrets = load_secrets(section, KEY, lambda key_id: load_key(manager, context, key_id))
    return lambda app: KeyMaster(app, secrets)
