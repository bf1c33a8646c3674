"""encryption: encrypts objects before they are stored and decrypts them when they are read (``spec: middleware 25``).

Encrypted are bodies, ETags (of listings too) and user metadata of objects; names, sizes, content types and what is known of
accounts and containers are not. ``doc/formats/encryption.md`` has the layout, which is that of Swift.

Stands right of all that reads or writes objects, so that what they store is encrypted, and left of the last proxy-logging.
Needs a keymaster directly to its left.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from keelstore.common.cluster import load_cluster
from keelstore.common.errors import ConfigError, RequestError
from keelstore.common.headers import header_of, title
from keelstore.common.http import (
    BODYLESS,
    CRYPTO_BYPASS,
    CUSTOMER_KEY,
    ENCRYPTS,
    KMS_KEY,
    TRANS_ID,
    Environ,
    Response,
    StartResponse,
    WSGIApp,
    call_app,
    error_response,
)
from keelstore.common.limits import Limits, check_metadata
from keelstore.common.logs import logger_for
from keelstore.common.middleware.bodies import Answer
from keelstore.common.middleware.crypto import cipher, decrypter, encrypter, meta
from keelstore.common.middleware.crypto.decrypter import CannotDecrypt
from keelstore.common.middleware.crypto.keys import CALLBACK, Keys
from keelstore.common.middleware.crypto.listing import decrypted_listing
from keelstore.common.middleware.crypto.told import CIPHER, SECRET_ID, WANTS_SEALED
from keelstore.common.options import option, parse
from keelstore.common.registry import register_admin_info
from keelstore.common.relay import close

AFTER: Final = ("catch_errors", "gatekeeper", "proxy_logging", "memcache", "listing_formats", "tempauth", "authtoken",
                "keystoneauth", "copy", "container_quotas", "account_quotas", "slo", "dlo", "versioned_writes", "symlink",
                "keymaster", "kms_keymaster", "kmip_keymaster")
BEFORE: Final = ()

BYPASS: Final = CRYPTO_BYPASS
_CONDITIONS: Final = encrypter.CONDITIONS


@dataclass(frozen=True)
class EncryptionOptions:
    """Options of ``[filter:encryption]``."""

    disable_encryption: bool = option(
        False, "Store what is written from now on in the clear. What was encrypted can still be read, so keep the keymaster.")
    swift_dir: str = option("/etc/swift", "Directory of the cluster file.")


class Encryption:
    def __init__(self, app: WSGIApp, is_enabled: bool, limits: Limits, logger: logging.Logger):
        self.app, self.is_enabled, self.limits, self.log = app, is_enabled, limits, logger

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        method = environ["REQUEST_METHOD"]
        if environ.get(BYPASS):
            return self.app(environ, start_response)
        parts = environ["PATH_INFO"].split("/", 4)
        if len(parts) == 5 and parts[4]:
            if method == "GET" or method == "HEAD":
                return self._read(environ, start_response)
            if method == "PUT" or method == "POST":
                if self.is_enabled or environ.get(ENCRYPTS) or environ.get(CUSTOMER_KEY) is not None:
                    return self._write(environ, start_response)
        elif method == "GET" and len(parts) > 3 and parts[3]:
            return self._list(environ, start_response)
        return self.app(environ, start_response)

    # -- writing -------------------------------------------------------------------------------------------------------

    def _write(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        try:
            # the limits are on what the client sent: behind us stands what is longer
            check_metadata(self.limits, "object", ((header_of(key) or "", value) for key, value in environ.items()
                                                   if key.startswith("HTTP_X_OBJECT_META_")))
            keys = self._keys(environ)
        except RequestError as error:
            return error_response(error)(environ, start_response)
        except CannotDecrypt as error:
            return self._refused(environ, start_response, error)
        if environ["REQUEST_METHOD"] == "POST":
            encrypter.encrypt_metadata(environ, keys, meta.quoted_key_id(keys["id"]))
            return self.app(environ, start_response)
        others = environ.get(encrypter.FOOTERS)
        body = encrypter.encrypt_put(environ, keys)
        response = call_app(self.app, environ)
        environ.pop(encrypter.FOOTERS, None)  # a filter further left may go on with this environ
        if others is not None:
            environ[encrypter.FOOTERS] = others
        if body.started and response.is_success and "Etag" in response.headers:
            dict.__setitem__(response.headers, "Etag", body.etag)
        return response(environ, start_response)

    def _keys(self, environ: Environ) -> Keys:
        """What this request writes with. Raises CannotDecrypt."""
        fetch = environ.get(CALLBACK)
        keys = decrypter.fetched(fetch)
        if (secret_id := environ.get(KMS_KEY)) is not None:
            keys = decrypter.fetched(fetch, {**keys["id"], "secret_id": secret_id})
        for name in ("object", "container"):
            key = keys.get(name)
            if not isinstance(key, bytes) or len(key) != cipher.KEY_SIZE:
                raise CannotDecrypt(decrypter.NO_KEYS, f"the keymaster has given no {name} key")
        return keys

    # -- reading -------------------------------------------------------------------------------------------------------

    def _read(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        fetch = environ.get(CALLBACK)
        if fetch is not None and (_CONDITIONS[0] in environ or _CONDITIONS[1] in environ):
            try:
                encrypter.mask_conditions(environ, fetch)
            except Exception as error:
                return self._refused(environ, start_response, CannotDecrypt(decrypter.NO_KEYS, type(error).__name__))
        answer = Answer(self.app, environ)
        body = answer.body
        try:
            found = decrypter.HeaderDecrypter(answer.headers, fetch, environ.get(CUSTOMER_KEY), WANTS_SEALED in environ)
            headers = found.headers
            status = int(answer.status[:3])
            if found.body is not None and 200 <= status < 300:
                headers.append((CIPHER, cipher.NAME))
                if found.body.secret_id is not None:
                    headers.append((SECRET_ID, found.body.secret_id))
                if found.sealed is not None:
                    headers += found.sealed.headers()
                elif environ["REQUEST_METHOD"] == "GET" and status not in BODYLESS:
                    if found.is_withheld:
                        close(body)
                        refusal = Response(400, body="the object needs the key of its owner", content_type="text/plain")
                        return refusal(environ, start_response)
                    by_name = {title(name): value for name, value in headers}
                    body = decrypter.decrypted_body(body, found.body, status, by_name)
        except CannotDecrypt as error:
            close(answer.body)
            return self._refused(environ, start_response, error)
        start_response(answer.status, headers)
        return body

    def _list(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        answer = Answer(self.app, environ)
        kind = next((value for name, value in answer.headers if title(name) == "Content-Type"), "")
        if answer.status[:3] != "200" or kind.partition(";")[0].strip().lower() != "application/json":
            start_response(answer.status, answer.headers)
            return answer.body
        fetch = environ.get(CALLBACK)
        try:
            data = b"".join(answer.body)
        finally:
            close(answer.body)
        if fetch is not None:
            data = decrypted_listing(data, fetch, lambda text: self._warn(environ, text))
        elif b"; " + meta.PARAMETER.encode() in data:
            return self._refused(environ, start_response, CannotDecrypt(decrypter.NO_KEYS, "no keymaster in the pipeline"))
        headers = [pair for pair in answer.headers if title(pair[0]) != "Content-Length"]
        headers.append(("Content-Length", str(len(data))))
        start_response(answer.status, headers)
        return (data,)

    # -- failing -------------------------------------------------------------------------------------------------------

    def _warn(self, environ: Environ, text: str) -> None:
        self.log.error("%s: %s (txn: %s)", environ["PATH_INFO"], text, environ.get(TRANS_ID, "-"))

    def _refused(self, environ: Environ, start_response: StartResponse, error: CannotDecrypt) -> Iterable[bytes]:
        self._warn(environ, f"{error.text}: {error}")
        return Response(500, body=error.text, content_type="text/plain")(environ, start_response)


def filter_factory(global_conf: dict[str, str], **local_conf: str) -> Callable[[WSGIApp], Encryption]:
    conf = {**global_conf, **local_conf}
    options = parse(EncryptionOptions, conf, section="filter:encryption", local=local_conf, known=("use", "set *", "log_*"))
    try:
        limits = load_cluster(options.swift_dir).limits
    except ConfigError:  # the proxy itself says so if that matters
        limits = Limits()
    register_admin_info("encryption", enabled=not options.disable_encryption)
    logger = logger_for(conf, "encryption")
    return lambda app: Encryption(app, not options.disable_encryption, limits, logger)
