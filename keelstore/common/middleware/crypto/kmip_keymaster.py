"""kmip_keymaster: root secrets out of a server that speaks KMIP, through PyKMIP (``spec: middleware 24``).

The configuration names keys; they are fetched once, when the pipeline is loaded, and are kept in memory only. Everything else
is as in ``keymaster``. Needs the extra ``kmip`` (``pip install keelstore[kmip]``).
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
from keelstore.common.options import one_of, option, port_number

KEY: Final = "key_id"


@dataclass(frozen=True)
class KmipKeymasterOptions:
    """Options of ``[filter:kmip_keymaster]``, beside ``key_id`` and ``key_id_<id>``."""

    keymaster_config_path: str = option(
        "", "File whose section [kmip_keymaster] holds the options of this one instead.")
    active_root_secret_id: str | None = option(
        None, "Id of the root secret that new data is encrypted with; empty: the one without id.")
    meta_version_to_write: str = option("2", "Form of the key ids that are written; see keymaster.", check=one_of(*VERSIONS))
    host: str = option("", "Address of the KMIP server.")
    port: int = option(5696, "Its port.", check=port_number)
    certfile: str = option("", "Certificate to show to the server, PEM.")
    keyfile: str = option("", "Its key, PEM.")
    ca_certs: str = option("", "Certificates that the server's own is checked with, PEM.")
    username: str = option("", "User, where the server wants one beside the certificate.")
    # the user's password is read where it is used, so that no repr() of these options holds it


def load_key(client: Any, key_id: str) -> bytes:
    """One root secret. Raises ConfigError."""
    try:
        key = client.get(key_id.strip())
        algorithm, bits, secret = str(key.cryptographic_algorithm.name), int(key.cryptographic_length), key.value
    except Exception as error:  # whatever the client and its transport raise
        raise ConfigError(f"the KMIP server does not give this key ({type(error).__name__})") from None
    if algorithm != "AES" or bits != 8 * MIN_SECRET:
        raise ConfigError(f"expected an AES key of {8 * MIN_SECRET} bits, but it is {algorithm}, {bits} bits")
    if not isinstance(secret, bytes) or len(secret) != MIN_SECRET:
        raise ConfigError(f"the KMIP server did not give {MIN_SECRET} bytes")
    return secret


def connect(options: KmipKeymasterOptions, password: str) -> Any:
    """PyKMIP's client, not opened yet. Raises ConfigError."""
    try:
        from kmip.pie.client import ProxyKmipClient  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise ConfigError(f"kmip_keymaster needs PyKMIP, which is not installed ({error.name}): "
                          "pip install 'keelstore[kmip]'") from None
    return ProxyKmipClient(
        hostname=options.host or None, port=options.port, cert=options.certfile or None, key=options.keyfile or None,
        ca=options.ca_certs or None, username=options.username or None, password=password or None)


def filter_factory(global_conf: dict[str, str], **local_conf: str) -> Callable[[WSGIApp], KeyMaster]:
    section = section_of(KmipKeymasterOptions, "kmip_keymaster", KEY, global_conf, local_conf, may_be_directory=False,
                         known=("password",))
    client = connect(section.options, section.conf.get("password", ""))
    try:
        client.open()
    except Exception as error:  # of sockets, TLS and the protocol
        raise ConfigError(f"the KMIP server {section.options.host}:{section.options.port} cannot be reached "
                          f"({type(error).__name__})", file=section.file, section=section.name, option="host") from None
    try:
        secrets = load_secrets(section, KEY, lambda key_id: load_key(client, key_id))
    finally:
        client.close()
    return lambda app: KeyMaster(app, secrets)
