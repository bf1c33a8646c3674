"""Who sends an S3 request, as the auth filter to the right of us says it (``spec: s3-api 2.2``).

A *probe* is a request of the made-up method ``TEST`` that carries only the signature. Our auth filters answer it themselves
(``S3_PROBE``); any other lets it pass, and the proxy refuses it. What counts is what it did to the environ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from keelstore.common.headers import wire_to_text
from keelstore.common.http import AUTHORIZE, AUTHORIZE_OVERRIDE, CLEAN_ACL, OWNER, Environ, Request, WSGIApp, call_app
from keelstore.common.internal import subrequest
from keelstore.common.middleware.s3api.authentication import Signed
from keelstore.common.middleware.s3api.errors import S3Error

S3_DETAILS: Final = "s3api.auth_details"
S3_PROBE: Final = "identify_only"  # in the details: answer as soon as the environ says who it is
UNKNOWN_KEY: Final = "unknown_key"  # in the details, set by an auth filter that knows all access keys
PROBE_METHOD: Final = "TEST"
KEYSTONE_IDENTITY: Final = "keystone.identity"
_KEPT: Final = ("REMOTE_USER", AUTHORIZE, CLEAN_ACL, "HTTP_X_USER_ID", "HTTP_X_PROJECT_ID", KEYSTONE_IDENTITY)


@dataclass(frozen=True)
class Identity:
    """``user`` and ``account`` None: anonymous. ``rights`` are the keys of an environ that lets requests act for the user."""

    user: str | None = None
    account: str | None = None
    rights: dict[str, Any] = field(default_factory=dict, repr=False)
    access_key: str = ""

    def owns_account(self, environ: Environ) -> bool:
        """Whether the user may make and remove containers of the account."""
        authorize: Callable[[Any], Any] | None = self.rights.get(AUTHORIZE)
        if authorize is None or self.account is None:
            return False
        asked = subrequest(environ, "PUT", f"/v1/{self.account}/c")
        asked.pop(OWNER, None)
        asked.update(self.rights)
        return authorize(Request(asked)) is None and bool(asked.get(OWNER))


ANONYMOUS: Final = Identity()


def identify(environ: Environ, app: WSGIApp, signed: Signed) -> Identity:
    """Who made the signature. Raises S3Error when nobody known did."""
    details: dict[str, Any] = {
        "access_key": signed.access_key,
        "signature": signed.signature,
        "string_to_sign": signed.string_to_sign,
        "check_signature": signed.check,
        S3_PROBE: True,
    }
    probe = subrequest(environ, PROBE_METHOD, f"/v1/{signed.access_key}", source="S3")
    for key in ("REMOTE_USER", AUTHORIZE, AUTHORIZE_OVERRIDE):
        probe.pop(key, None)  # ours alone to say
    probe[S3_DETAILS] = details
    response = call_app(app, probe)
    response.close()
    if details.get(UNKNOWN_KEY):
        raise S3Error("InvalidAccessKeyId", AWSAccessKeyId=signed.access_key)
    if response.status in (429, 498):
        raise S3Error("SlowDown")
    if response.status >= 500:
        raise S3Error("ServiceUnavailable")
    account = wire_to_text(probe["PATH_INFO"]).split("/")[2:3]
    if AUTHORIZE not in probe or response.status == 401 or "REMOTE_USER" not in probe or not account:
        raise signed.mismatch()
    rights: dict[str, Any] = {key: probe[key] for key in _KEPT if key in probe}
    rights[AUTHORIZE_OVERRIDE] = True
    return Identity(_user_of(probe, signed), account[0], rights, signed.access_key)


def is_known(environ: Environ, app: WSGIApp, asker: Identity, user: str) -> bool:
    """Whether there is such a user, as far as can be known: where ids are access keys, and an auth filter knows them all."""
    if asker.user is None or asker.user != asker.access_key:
        return True
    details: dict[str, Any] = {
        "access_key": user,
        "signature": "",
        "string_to_sign": b"",
        "check_signature": lambda _secret: False,
        S3_PROBE: True,
    }
    probe = subrequest(environ, PROBE_METHOD, f"/v1/{user}", source="S3")
    for key in ("REMOTE_USER", AUTHORIZE, AUTHORIZE_OVERRIDE):
        probe.pop(key, None)
    probe[S3_DETAILS] = details
    call_app(app, probe).close()
    return not details.get(UNKNOWN_KEY)


def _user_of(probe: Environ, signed: Signed) -> str:
    """The id that XML and ACLs name: the access key, with Keystone ``project:user``."""
    project, user = probe.get("HTTP_X_TENANT_NAME") or probe.get("HTTP_X_PROJECT_NAME"), probe.get("HTTP_X_USER_NAME")
    if project and user:
        return f"{wire_to_text(project)}:{wire_to_text(user)}"
    return signed.access_key
