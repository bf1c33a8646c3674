"""s3token with a Keystone that is played: what is asked, kept, told and passed on. The real one is asked in test/interop."""

import logging

import pytest

from keelstore.common.errors import ConfigError
from keelstore.common.http import CACHE
from keelstore.common.middleware.keystoneauth import KeystoneAuth, KeystoneAuthOptions, identity_of, rules_of
from keelstore.common.middleware.s3token import (
    BadAnswer,
    KeystoneUnavailable,
    S3Token,
    S3TokenOptions,
    UnknownKey,
    WrongSignature,
    check_uri,
    encoded,
    owner_of,
)
from keelstore.common.paste_config import pipeline_of, read_config
from keelstore.common.wsgi import broken_rules, names_of
from keelstore.common.wsgi import rules_of as rules_of_pipeline
from test.unit.common.middleware.helpers import Got, Inner, make_environ

TOKEN = {"token": {
    "user": {"id": "uid", "name": "Zoë", "domain": {"id": "ud", "name": "Users"}},
    "project": {"id": "pid", "name": "proj", "domain": {"id": "pd", "name": "Projects"}},
    "roles": [{"id": "1", "name": "admin"}, {"id": "2", "name": "member"}],
}}
TOKEN_V2 = {"access": {"user": {"id": "uid", "name": "u", "roles": [{"name": "admin"}]}, "token": {"tenant": {"id": "pid", "name": "proj"}}}}


class Played:
    """A Keystone that answers as told."""

    can_read_secrets = True

    def __init__(self, answer=TOKEN, secret="right"):
        self.answer, self.secret, self.asked, self.fetched = answer, secret, [], []

    def token_for(self, access, string_to_sign, signature):
        self.asked.append((access, string_to_sign, signature))
        if isinstance(self.answer, type):
            raise self.answer
        return self.answer

    def secret_of(self, user_id, access):
        self.fetched.append((user_id, access))
        return self.secret


class Cache(dict):
    def set(self, key, value, ttl_s=0, *, time=0, **_more):
        self[key] = value
        self.time = time


def ask(keystone, key="AK", cache=None, inner=None, headers=None, signed_with="right", **options):
    inner = inner or Inner()
    details = {"access_key": key, "signature": "sig", "string_to_sign": b"text\xff", "check_signature": lambda secret: secret == signed_with}
    environ = make_environ("TEST", f"/v1/{key}", headers=headers, **{"s3api.auth_details": details, CACHE: cache})
    got = Got(S3Token(inner, S3TokenOptions(auth_uri="http://k/v3", **options), keystone, logging.getLogger("test")), environ)
    return got, environ, inner


def test_an_owner_of_version_3_is_known_by_headers_and_path():
    keystone = Played()
    got, environ, inner = ask(keystone)
    assert keystone.asked == [("AK", b"text\xff", "sig")]
    assert got.status == 200 and len(inner.asked) == 1
    assert environ["PATH_INFO"] == "/v1/AUTH_pid"
    identity = identity_of(environ)
    assert (identity.user_id, identity.user_name, identity.project_id, identity.project_name) == ("uid", "Zoë", "pid", "proj")
    assert (identity.user_domain_id, identity.project_domain_id) == ("ud", "pd")
    assert identity.roles == {"admin", "member"} and not identity.service_roles


def test_an_owner_of_version_2():
    assert owner_of(TOKEN_V2).headers["X-Tenant-Name"] == "proj"
    assert "X-User-Domain-Id" not in owner_of(TOKEN_V2).headers


@pytest.mark.parametrize("body", [None, [], "x", {}, {"token": {}}, {"access": 1}, {"token": {**TOKEN["token"], "project": None}},
                                  {"token": {**TOKEN["token"], "roles": [1]}}, {"token": {**TOKEN["token"], "user": {"id": 1}}}])
def test_an_answer_that_is_no_token_lets_nobody_in(body):
    with pytest.raises(BadAnswer):
        owner_of(body)
    got, _environ, inner = ask(Played(answer=body))
    assert got.status == 503 and inner.asked == []


@pytest.mark.parametrize(("error", "status"), [(WrongSignature, 401), (UnknownKey, 401), (KeystoneUnavailable, 503)])
def test_security_S30_a_refusal_is_bare(error, status):
    got, environ, inner = ask(Played(answer=error))
    assert (got.status, inner.asked) == (status, [])
    assert b"eystone" not in got.body
    assert bool(environ["s3api.auth_details"].get("unknown_key")) == (error is UnknownKey)


def test_delay_auth_decision_lets_filters_to_the_right_decide():
    _got, environ, inner = ask(Played(answer=WrongSignature), delay_auth_decision=True)
    assert len(inner.asked) == 1 and identity_of(environ) is None and environ["PATH_INFO"] == "/v1/AK"
    got, _environ, inner = ask(Played(answer=KeystoneUnavailable), delay_auth_decision=True)
    assert got.status == 503 and inner.asked == []


def test_security_S32_headers_of_the_client_do_not_survive():
    claimed = {"X-Roles": "ResellerAdmin", "X-Service-Roles": "service", "X-Is-Admin-Project": "True", "OpenStack-System-Scope": "all",
               "X-Domain-Id": "d", "X-Service-Identity-Status": "Confirmed"}
    for answer in (TOKEN, WrongSignature):
        _got, environ, _inner = ask(Played(answer=answer), headers=claimed, delay_auth_decision=True)
        assert "HTTP_X_SERVICE_ROLES" not in environ and "HTTP_OPENSTACK_SYSTEM_SCOPE" not in environ and "HTTP_X_DOMAIN_ID" not in environ
        assert environ.get("HTTP_X_ROLES") == ("admin,member" if answer is TOKEN else None)


def test_a_key_with_a_project_is_for_its_account():
    keystone = Played()
    _got, environ, _inner = ask(keystone, key="AK:other", reseller_prefix="KEY_")
    assert keystone.asked[0][0] == "AK"
    assert environ["PATH_INFO"] == "/v1/KEY_other"


def test_secrets_are_kept_and_prove_without_keystone():
    keystone, cache = Played(), Cache()
    ask(keystone, cache=cache, secret_cache_duration=7)
    assert cache["s3secret/AK"][1:] == [{"id": "pid", "name": "proj"}, "right"] and cache.time == 7
    _got, environ, _inner = ask(keystone, cache=cache)
    assert len(keystone.asked) == 1 and identity_of(environ).project_id == "pid"
    ask(keystone, cache=cache, signed_with="changed")
    assert len(keystone.asked) == 2  # what the kept secret does not prove may be right still
    keystone.answer = WrongSignature
    assert ask(keystone, cache=cache, signed_with="forged")[0].status == 401


@pytest.mark.parametrize("changes", [{"secret": None}, {"secret": "not the one"}])
def test_a_secret_that_does_not_prove_is_not_kept(changes):
    cache = Cache()
    assert ask(Played(**changes), cache=cache)[0].status == 200
    assert cache == {}


def test_nothing_is_kept_when_told_not_to_or_without_an_account():
    cache, keystone = Cache(), Played()
    ask(keystone, cache=cache, secret_cache_duration=0)
    keystone.can_read_secrets = False
    ask(keystone, cache=cache)
    assert cache == {} and keystone.fetched == []


@pytest.mark.parametrize("kept", ["x", [], [{}, {}, ""], [{"X-Roles": 1}, {"id": "p"}, "right"], [{}, {"id": ""}, "right"], [{}, None, "right"]])
def test_rubbish_in_the_cache_counts_for_nothing(kept):
    keystone = Played()
    assert ask(keystone, cache=Cache({"s3secret/AK": kept}))[0].status == 200
    assert len(keystone.asked) == 1


def test_what_swift_keeps_is_understood():
    kept = ({"X-Identity-Status": "Confirmed", "X-Roles": "admin", "X-User-Id": "u", "X-User-Name": "n", "X-Tenant-Id": "pid", "X-Tenant-Name": "p",
             "X-Project-Id": "pid", "X-Project-Name": "p"}, {"id": "pid", "name": "p"}, "right")
    keystone = Played()
    _got, environ, _inner = ask(keystone, cache=Cache({"s3secret/AK": kept}))
    assert keystone.asked == [] and identity_of(environ).project_id == "pid"


def test_what_s3api_did_not_sign_passes_unread():
    inner, keystone = Inner(), Played()
    environ = make_environ("GET", "/v1/AUTH_a", headers={"X-Roles": "admin"}, **{"keystone.token_info": {}})
    Got(S3Token(inner, S3TokenOptions(), keystone, logging.getLogger("test")), environ)
    assert inner.asked[0]["HTTP_X_ROLES"] == "admin" and keystone.asked == []


def test_keystoneauth_answers_who_asks_only_for_an_identity():
    inner = Inner()
    auth = KeystoneAuth(inner, KeystoneAuthOptions(), rules_of(KeystoneAuthOptions(), {}))
    for keystone, status in ((Played(), 204), (Played(answer=WrongSignature), 401)):
        details = {"access_key": "AK", "signature": "s", "string_to_sign": b"", "check_signature": lambda _secret: True, "identify_only": True}
        environ = make_environ("TEST", "/v1/AK", **{"s3api.auth_details": details})
        app = S3Token(auth, S3TokenOptions(delay_auth_decision=True), keystone, logging.getLogger("test"))
        assert Got(app, environ).status == status
        assert ("REMOTE_USER" in environ) == (status == 204)
    assert inner.asked == []


@pytest.mark.parametrize("uri", ["", "keystone:5000", "ftp://k/v3", "http://", "http:///v3", "http://k/v3?x=1", "http://k/v3#f", "http://u:p@k/v3",
                                 "http://k:port/v3", "http://k/v3?", "http://[k/v3"])
def test_an_auth_uri_that_is_none_stops_the_start(uri):
    with pytest.raises(ConfigError, match="auth_uri"):
        check_uri(uri)


def test_a_good_auth_uri_loses_its_last_slash():
    assert check_uri("https://[::1]:5000/identity/v3/") == "https://[::1]:5000/identity/v3"


def test_what_was_signed_is_sent_in_url_safe_base64():
    assert encoded(b"\xfb\xff") == "-_8="


@pytest.mark.parametrize("names", [
    "authtoken s3api s3token keystoneauth bulk slo",  # Swift's
    "s3api bulk tempurl formpost authtoken s3token keystoneauth slo",  # ours
    "bulk tempurl authtoken keystoneauth slo",
])
def test_pipelines_of_the_field_are_in_a_safe_order(names, tmp_path):
    pytest.importorskip("keystonemiddleware")
    assert _broken(names, tmp_path) == []


@pytest.mark.parametrize("names", ["authtoken s3token s3api keystoneauth slo", "authtoken s3api keystoneauth s3token slo", "s3token authtoken keystoneauth"])
def test_s3token_has_to_stand_between_s3api_and_keystoneauth(names, tmp_path):
    pytest.importorskip("keystonemiddleware")
    assert _broken(names, tmp_path) != []


def _broken(names, tmp_path):
    filters = ["catch_errors", "gatekeeper", "cache", *names.split(), "dlo", "versioned_writes"]
    uses = {"cache": "use = egg:swift#memcache", "authtoken": "paste.filter_factory = keystonemiddleware.auth_token:filter_factory"}
    sections = "".join(f"[filter:{name}]\n{uses.get(name, f'use = egg:swift#{name}')}\n" for name in filters)
    path = tmp_path / "proxy-server.conf"
    path.write_text(f"[pipeline:main]\npipeline = {' '.join(filters)} proxy-server\n[app:proxy-server]\nuse = egg:swift#proxy\n{sections}")
    found, _app = pipeline_of(read_config(str(path)))
    return broken_rules([names_of(one) for one in found], rules_of_pipeline(found))
