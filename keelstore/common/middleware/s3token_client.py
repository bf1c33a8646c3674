"""Keystone as s3token asks it, with a token of our own. Sole importer of keystoneauth1 (the extra ``keystone``).

Each question takes ``http_timeout`` seconds at most, follows no redirect, and leaves no secret in a log. Our token is renewed
before it ends, and, at most every RENEW_S seconds, when Keystone refuses (401) while it still should be good: a wrong
signature is refused in the same words, and must not cost a log-in each time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote

from keelstore.common.concurrency import time_limit
from keelstore.common.errors import ConfigError, WaitTimeout
from keelstore.common.middleware.s3token import (
    KeystoneUnavailable,
    S3TokenOptions,
    UnknownKey,
    WrongSignature,
    encoded,
)

try:
    from keystoneauth1 import exceptions, loading, session
except ImportError as _error:
    raise ConfigError(f"s3token needs keystoneauth1, which the extra 'keystone' brings ({_error})") from None

RENEW_S: Final = 30.0


class KeystoneClient:
    def __init__(self, uri: str, options: S3TokenOptions, conf: Mapping[str, str], logger: logging.Logger,
                 clock: Callable[[], float] = time.monotonic):
        self._uri, self._timeout, self.log, self._clock = uri, options.http_timeout, logger, clock
        self._auth = _plugin(options.auth_type, conf)
        self._session = session.Session(
            auth=self._auth, timeout=options.http_timeout, redirect=False, user_agent="keelstore",
            verify=False if options.insecure else options.cafile or True,
            cert=(options.certfile, options.keyfile) if options.keyfile else options.certfile or None)
        self._renewed = self._told_of_secrets = -RENEW_S
        if self._auth is None:
            logger.warning("s3token has no account at Keystone (auth_url, username, password ...): Keystone since 2025 "
                           "answers nobody without one, and bodies that are signed in chunks cannot be proven")

    @property
    def can_read_secrets(self) -> bool:
        return self._auth is not None

    def token_for(self, access: str, string_to_sign: bytes, signature: str) -> Any:
        """See s3token.Keystone."""
        body = {"credentials": {"access": access, "token": encoded(string_to_sign), "signature": signature}}
        answer = self._ask("POST", f"{self._uri}/s3tokens", body)
        if answer.status_code == 401 and self._may_renew():
            answer = self._ask("POST", f"{self._uri}/s3tokens", body)
        status = answer.status_code
        if 200 <= status < 300:
            return _json(answer)
        if status == 404:
            raise UnknownKey
        if status in (400, 401):
            raise WrongSignature
        if status == 403:
            raise KeystoneUnavailable("it refuses our account (403): give it the role 'service'")
        raise KeystoneUnavailable(f"it answers {status}")

    def secret_of(self, user_id: str, access: str) -> str | None:
        """See s3token.Keystone."""
        url = f"{self._uri}/users/{quote(user_id, safe='')}/credentials/OS-EC2/{quote(access, safe='')}"
        try:
            answer = self._ask("GET", url)
            found = _json(answer) if answer.status_code == 200 else None
        except KeystoneUnavailable as error:
            self._tell_of_secrets(str(error))
            return None
        if found is None:
            self._tell_of_secrets(f"it answers {answer.status_code}")
            return None
        secret = found.get("credential", {}).get("secret") if isinstance(found, dict) else None
        return secret if isinstance(secret, str) else None

    def _tell_of_secrets(self, why: str) -> None:
        if self._clock() - self._told_of_secrets >= RENEW_S:
            self._told_of_secrets = self._clock()
            self.log.warning("Keystone does not give secrets of EC2 credentials (%s): each S3 request has to ask it, and "
                             "bodies that are signed in chunks are refused; our account needs the role 'admin' for this", why)

    def _ask(self, method: str, url: str, body: Any = None) -> Any:
        headers = {"Accept": "application/json"}
        try:
            with time_limit(self._timeout):
                if self._auth is not None:
                    headers["X-Auth-Token"] = str(self._session.get_token())
                return self._session.request(url, method, json=body, headers=headers, authenticated=False, raise_exc=False,
                                             log=False)
        except WaitTimeout:
            raise KeystoneUnavailable(f"no answer within {self._timeout} s") from None
        except exceptions.ClientException as error:
            raise KeystoneUnavailable(f"{type(error).__name__}: {_line(error)}") from None

    def _may_renew(self) -> bool:
        """Whether to ask once more with a new token."""
        if self._auth is None or self._clock() - self._renewed < RENEW_S:
            return False
        self._renewed = self._clock()
        self._session.invalidate()
        return True


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _json(answer: Any) -> Any:
    try:
        return answer.json()
    except ValueError:
        raise KeystoneUnavailable("its answer is no JSON") from None


def _given(conf: Mapping[str, str], opt: Any) -> str | None:
    """An option of a plugin, under its name or an old one."""
    return next((conf[name] for name in (opt.dest, *(old.dest for old in opt.deprecated)) if name in conf), None)


def _plugin(auth_type: str, conf: Mapping[str, str]) -> Any:
    """The way our account logs in; None when no account is given. Raises ConfigError."""
    if not auth_type or not conf.get("auth_url"):
        return None
    try:
        loader: Any = loading.get_plugin_loader(auth_type)
        return loader.load_from_options_getter(lambda opt: _given(conf, opt))
    except exceptions.ClientException as error:
        raise ConfigError(_line(error), section="filter:s3token", option="auth_type", value=auth_type) from None
