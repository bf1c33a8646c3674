import hmac
import json
import logging
from dataclasses import replace
from typing import Any

import pytest

from keelstore.common import acl, registry
from keelstore.common.cache_embedded import EmbeddedCache
from keelstore.common.errors import ConfigError
from keelstore.common.http import Request, Response
from keelstore.common.middleware import tempauth
from keelstore.common.middleware.tempauth import TempAuth, filter_factory
from keelstore.common.middleware.tempauth_conf import User, rules_of, users_of
from keelstore.common.middleware.tempauth_tokens import FernetTokens
from test.unit.common.middleware.helpers import DictCache, call

FERNET_KEY = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
OTHER_KEY = "MTEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
USERS = {
    "user_test_tester": "testing .admin", "user_test_tester3": "testing3", "user_test2_tester2": "testing2 .admin",
    "user_admin_admin": "admin .admin .reseller_admin", "user_audit_reader": "audit .reseller_reader",
    "user_test_grouped": "grouped staff", "user_u_url": "k .admin http://foo/v1/AUTH_other",
    "user_h_host": "k $HOST/v1/AUTH_zzz", "user_svc_service": "service service",
}


class Authorizing:
    """An inner app that does as the proxy does: it authorizes, and answers account HEADs of the filter itself."""

    def __init__(self):
        self.acl = None
        self.account_acl = {}
        self.asked = []
        self.environ: Any = None

    def __call__(self, environ, start_response):
        if environ.get("swift.source") == "TA":
            self.asked.append(environ["PATH_INFO"])
            account = environ["PATH_INFO"].rpartition("/")[2]
            headers = {"X-Account-Container-Count": "1"}
            if account in self.account_acl:
                headers["X-Account-Sysmeta-Core-Access-Control"] = self.account_acl[account]
            return Response(204, headers)(environ, start_response)
        self.environ = environ
        environ[acl.ACL] = self.acl
        authorize = environ.get("swift.authorize")
        answer = authorize(Request(environ)) if authorize else None
        return (answer or Response(200, body=b"in"))(environ, start_response)


class Setup:
    def __init__(self, **conf):
        self.cache: Any = DictCache()
        self.inner = Authorizing()
        self.app: TempAuth = filter_factory({"log_file": "-"}, **{**USERS, **conf})(self.inner)

    def call(self, method="GET", path="/v1/AUTH_test/c", token=None, user=None, headers=None, **extra):
        headers = dict(headers or {})
        if user:
            token = self.token(user)
        if token:
            headers["X-Auth-Token"] = token
        return call(self.app, method, path, headers=headers, **{"swift.cache": self.cache, **extra})

    def get_token(self, user, key, path="/auth/v1.0", **extra):
        return self.call("GET", path, headers={"X-Auth-User": user, "X-Auth-Key": key}, **extra)

    def token(self, user):
        key = USERS["user_" + user.replace(":", "_")].split()[0]
        got = self.get_token(user, key)
        assert got.status == 200
        return got.headers["X-Auth-Token"]


@pytest.fixture
def setup():
    return Setup()


# -- getting a token ---------------------------------------------------------------------------------------------------

GOOD = {"X-Auth-User": "test:tester", "X-Auth-Key": "testing"}
GOOD_PART = {"X-Storage-User": "tester", "X-Storage-Pass": "testing"}


@pytest.mark.parametrize(("path", "headers"), [
    ("/auth/v1.0", GOOD), ("/auth/v1.0/", GOOD), ("/auth/v1.0/more", GOOD), ("/auth/auth", GOOD), ("/auth/v1/test/auth", GOOD),
    ("/auth/v1/test/auth", GOOD_PART), ("/auth/v1/test/auth", {"X-Storage-User": "tester", "X-Auth-Key": "testing"}),
    ("/auth/v1.0", {"X-Storage-User": "test:tester", "X-Storage-Pass": "testing"}),
    ("/auth/v1.0", {"X-Auth-User": "test:tester", "X-Storage-Pass": "testing"}),
])
def test_a_token_is_given(setup, path, headers):
    got = setup.call("GET", path, headers=headers)
    assert got.status == 200 and got.body == b""
    token = got.headers["X-Auth-Token"]
    assert token.startswith("AUTH_tk") and len(token) == 7 + 32 and int(token[7:], 16) >= 0
    assert got.headers["X-Storage-Token"] == token
    assert got.headers["X-Storage-Url"] == "http://store:8080/v1/AUTH_test"
    assert 86390 < int(got.headers["X-Auth-Token-Expires"]) <= 86400


@pytest.mark.parametrize(("method", "path", "headers", "status", "realm"), [
    ("GET", "/auth/v1.0", {}, 401, "unknown"), ("PUT", "/auth/v1.0", GOOD, 405, None), ("POST", "/auth/", {}, 405, None),
    ("HEAD", "/auth/v1.0", GOOD, 405, None), ("GET", "/auth/", {}, 404, None), ("GET", "/auth/v2.0", GOOD, 400, None),
    ("GET", "/auth/v1", GOOD, 400, None), ("GET", "/auth/v1/test", GOOD, 400, None), ("GET", "/auth/v1/test/foo", GOOD, 400, None),
    ("GET", "/auth/v1/test/v1.0", GOOD_PART, 400, None), ("GET", "/auth/test/auth", GOOD_PART, 400, None),
    ("GET", "/auth/v1/test/auth", {}, 401, "test"),
    ("GET", "/auth/v1/test/auth", {"X-Auth-User": "foo:tester", "X-Auth-Key": "testing"}, 401, "test"),
    ("GET", "/auth/v1.0", {"X-Auth-User": "tester", "X-Auth-Key": "testing"}, 401, "unknown"),
    ("GET", "/auth/v1.0", {"X-Auth-User": "test:tester", "X-Auth-Key": "bad"}, 401, "test"),
    ("GET", "/auth/v1.0", {"X-Auth-User": "test:nobody", "X-Auth-Key": "testing"}, 401, "test"),
    ("GET", "/auth/v1.0", {"X-Auth-User": "test:tester", "X-Auth-Key": ""}, 401, "test"),
    ("GET", "/auth/v1.0", {"X-Auth-User": "test:tester"}, 401, "test"),
    ("GET", "/auth/v1.0", {"X-Auth-User": "test:", "X-Auth-Key": "testing"}, 401, "test"),
    ("GET", "/auth/v1.0", {"X-Auth-User": 'a"\r\nSet-Cookie: x:b', "X-Auth-Key": "x"}, 401, "a%22%0D%0ASet-Cookie"),
])
def test_what_gets_no_token(setup, method, path, headers, status, realm):
    got = setup.call(method, path, headers=headers)
    assert got.status == status
    assert got.headers.get("Www-Authenticate") == (realm and f'Swift realm="{realm}"')
    assert not setup.cache.values and "X-Auth-Token" not in got.headers


def test_a_token_is_given_again_while_it_is_good(setup):
    first = setup.token("test:tester")
    assert setup.token("test:tester") == first
    assert setup.token("test:tester3") != first
    now = setup.app._now
    setup.app._now = lambda: now() + 86401
    assert setup.token("test:tester") != first


def test_a_token_is_not_given_again_when_the_groups_have_changed(setup):
    first = setup.token("test:tester")
    setup.cache.values["AUTH_/token/" + first][1] += ",more"
    assert setup.token("test:tester") != first


def test_what_lies_in_the_cache_is_what_swift_puts_there(setup):
    token = setup.token("test:tester")
    expires, groups = setup.cache.values[f"AUTH_/token/{token}"]
    assert groups == "test,test:tester,AUTH_test" and isinstance(expires, float)
    assert setup.cache.values["AUTH_/user/test:tester"] == token


@pytest.mark.parametrize(("user", "groups", "url"), [
    ("admin:admin", "admin,admin:admin,.reseller_admin,AUTH_admin", "http://store:8080/v1/AUTH_admin"),
    ("test:tester3", "test,test:tester3", "http://store:8080/v1/AUTH_test"),
    ("u:url", "u,u:url,AUTH_u,AUTH_other", "http://foo/v1/AUTH_other"),
    ("h:host", "h,h:host", "http://store:8080/v1/AUTH_zzz"),
])
def test_groups_and_urls(setup, user, groups, url):
    got = setup.get_token(user, USERS["user_" + user.replace(":", "_")].split()[0])
    assert got.headers["X-Storage-Url"] == url
    assert setup.cache.values["AUTH_/token/" + got.headers["X-Auth-Token"]][1] == groups


def test_the_scheme_of_urls_can_be_set():
    setup = Setup(storage_url_scheme="https")
    assert setup.get_token("test:tester", "testing").headers["X-Storage-Url"] == "https://store:8080/v1/AUTH_test"


@pytest.mark.parametrize("cache", [None, "failing"])
def test_without_a_working_cache_it_is_503(setup, cache):
    setup.cache.fails = True
    got = setup.get_token("test:tester", "testing", **({"swift.cache": None} if cache is None else {}))
    assert got.status == 503


def test_user64_and_names_of_any_script():
    setup = Setup(user64_dGVzdF95_dXNlcl9h="secret .admin", user64_dMOpc3Q_w7xzZXI="sécret".encode().decode("latin-1"))
    assert setup.get_token("test_y:user_a", "secret").headers["X-Storage-Url"].endswith("/v1/AUTH_test_y")


# -- keys and secrets --------------------------------------------------------------------------------------------------


def test_security_R20_an_empty_key_never_matches():
    with pytest.raises(ConfigError) as error:
        filter_factory({"log_file": "-"}, user_a_b="")
    assert "user_a_b" in str(error.value)
    app = Setup().app
    app.options = replace(app.options, users={"x:y": User("x", "y", "")})
    for key in ("", "x"):
        assert call(app, path="/auth/v1.0", headers={"X-Auth-User": "x:y", "X-Auth-Key": key},
                    **{"swift.cache": DictCache()}).status == 401


def test_there_are_no_users_by_default():
    app = filter_factory({"log_file": "-"})(Authorizing())
    for user, key in (("admin:admin", "admin"), ("test:tester", "testing")):
        assert call(app, path="/auth/v1.0", headers={"X-Auth-User": user, "X-Auth-Key": key},
                    **{"swift.cache": DictCache()}).status == 401


def test_keys_are_compared_in_constant_time(setup, monkeypatch):
    """S15."""
    seen = []
    real = hmac.compare_digest

    def compare(a, b):
        seen.append((a, b))
        return real(a, b)
    monkeypatch.setattr(tempauth.hmac, "compare_digest", compare)
    setup.get_token("test:tester", "wrong")
    setup.get_token("test:nobody", "wrong")
    assert seen[0] == (b"testing", b"wrong") and seen[1][1] == b"wrong"
    setup.call(path="/v1/AUTH_x/c/o", method="PUT", headers={"X-Container-Sync-Key": "sk", "X-Timestamp": "1"},
               swift_sync_key="sk")
    assert seen[2] == (b"sk", b"sk")


def test_no_key_or_token_is_logged_or_shown(setup, caplog):
    caplog.set_level(logging.DEBUG)
    setup.cache.fails = True
    got = setup.get_token("test:tester", "testing")
    assert "testing" not in caplog.text and b"testing" not in got.body
    assert "testing" not in repr(setup.app.options)
    for conf in ({"fernet_key_a": "not-a-good-key"}, {"user_nounderscore": "topsecret"}, {"user64_!_!": "topsecret"}):
        with pytest.raises(ConfigError) as error:
            filter_factory({"log_file": "-"}, **conf)
        assert "topsecret" not in str(error.value) and "not-a-good-key" not in str(error.value)


@pytest.mark.parametrize("path", [
    '/v1/AUTH_x\r\nSet-Cookie: a=b"<script>', "/v1/AUTH_x%0d%0a", '/v1/KEY_"', "/v1/\xc3\xa9"])
def test_the_realm_holds_nothing_that_ends_it(setup, path):
    """S14."""
    got = setup.call("GET", path)
    assert got.status == 401
    value = got.headers["Www-Authenticate"]
    assert value.startswith('Swift realm="') and value.endswith('"')
    assert not set('\r\n"<> ') & set(value[13:-1])


@pytest.mark.parametrize(("path", "realm"), [
    ("/v1/AUTH_test/c", "AUTH_test"), ("/", "unknown"), ("/v1", "unknown"), ("/info", "unknown"), ("/auth", "unknown"),
    ("/v1/KEY_t", "KEY_t"), ("/x/auth", "unknown"), ("/x/v1.0/y", "unknown")])
def test_realm(setup, path, realm):
    assert setup.call("GET", path).headers["Www-Authenticate"] == f'Swift realm="{realm}"'


# -- requests ----------------------------------------------------------------------------------------------------------


def test_a_token_identifies(setup):
    got = setup.call(user="test:tester")
    assert got.body == b"in"
    environ = setup.inner.environ
    assert environ["REMOTE_USER"] == "test,test:tester,AUTH_test"
    assert environ["swift_owner"] is True and "reseller_request" not in environ
    assert environ["swift.clean_acl"]("X-Container-Read", "bob, sue") == "bob,sue"


def test_storage_token_will_do(setup):
    assert setup.call(headers={"X-Storage-Token": setup.token("test:tester")}).status == 200


@pytest.mark.parametrize("token", ["AUTH_tkbad", "AUTH_", "AUTH_ftkbad", "AUTH_zftkbad", "AUTH_tk\xe9"])
def test_a_bad_token_is_401_at_once(setup, token):
    got = setup.call(token=token)
    assert got.status == 401 and setup.inner.environ is None
    assert got.headers["Www-Authenticate"] == 'Swift realm="AUTH_test"'


@pytest.mark.parametrize("held", [b"x", "text", 5, [], [1], ["x", "y"], [9e12, 5], [9e12, "g", 1], {"a": 1}, [1.0, "g"]])
def test_what_the_cache_holds_is_checked(setup, held):
    setup.cache.get = lambda key, raise_on_error=False: held
    assert setup.call(token="AUTH_tk1").status == 401


def test_anothers_token_is_no_token(setup):
    assert setup.call(token="gAAAA").status == 401
    assert setup.inner.environ["swift.authorize"] == setup.app.authorize


def test_foreign_accounts_are_denied_unless_another_authorizes(setup):
    assert setup.call(path="/v1/KEY_x").status == 401
    assert setup.call(path="/v1/KEY_x", user="test:tester").status == 403
    assert setup.call(path="/v1/KEY_x", **{"swift.authorize": lambda request: None}).status == 200


def test_overrides():
    extra = {"swift.authorize_override": True, "swift.authorize": lambda request: None}
    assert Setup().call(token="AUTH_tkbad", **extra).status == 200
    assert Setup(allow_overrides="false").call(token="AUTH_tkbad", **extra).status == 401


def test_service_tokens_add_groups():
    setup = Setup(reseller_prefix="AUTH, SERVICE", SERVICE_require_group="service")
    user, service = setup.token("test:tester"), setup.token("svc:service")
    assert setup.call(path="/v1/SERVICE_test/c", token=user).status == 403
    assert setup.call(path="/v1/SERVICE_test/c", token=user, headers={"X-Service-Token": service}).status == 200
    assert setup.call(path="/v1/SERVICE_test/c", token=user, headers={"X-Service-Token": "AUTH_tkbad"}).status == 403
    assert setup.call(path="/v1/AUTH_test/c", token=user).status == 200
    assert setup.call(path="/v1/AUTH_test/c", headers={"X-Service-Token": service}).status == 401


# -- authorization: who may do what ------------------------------------------------------------------------------------

OWNER, ANON, OTHER, MEMBER, ROOT, READER = "test:tester", None, "test2:tester2", "test:tester3", "admin:admin", "audit:reader"


@pytest.mark.parametrize(("method", "path", "user", "status", "owner"), [
    ("GET", "/v1/AUTH_test", OWNER, 200, True), ("POST", "/v1/AUTH_test", OWNER, 200, True),
    ("PUT", "/v1/AUTH_test", OWNER, 403, False), ("DELETE", "/v1/AUTH_test", OWNER, 403, False),
    ("PUT", "/v1/AUTH_test/", OWNER, 403, False), ("PUT", "/v1/AUTH_test/c", OWNER, 200, True),
    ("DELETE", "/v1/AUTH_test/c/o", OWNER, 200, True),
    ("GET", "/v1/AUTH_test", MEMBER, 403, False), ("GET", "/v1/AUTH_test", OTHER, 403, False),
    ("GET", "/v1/AUTH_test", ANON, 401, False), ("PUT", "/v1/AUTH_test/c/o", ANON, 401, False),
    ("PUT", "/v1/AUTH_x", ROOT, 200, True), ("DELETE", "/v1/AUTH_x", ROOT, 200, True), ("PUT", "/v1/AUTH_x/c/o", ROOT, 200, True),
    ("GET", "/v1/AUTH_", ROOT, 403, False), ("GET", "/v1/AUTH_.auth", ROOT, 403, False), ("GET", "/v1/KEY_x", ROOT, 403, False),
    ("GET", "/v1/AUTH_x/c/o", READER, 200, False), ("HEAD", "/v1/AUTH_x", READER, 200, False),
    ("PUT", "/v1/AUTH_x/c/o", READER, 403, False), ("POST", "/v1/AUTH_x", READER, 403, False), ("GET", "/v1/AUTH_", READER, 403, False),
    ("OPTIONS", "/v1/AUTH_test/c", ANON, 200, False), ("OPTIONS", "/v1/KEY_test", ANON, 401, False),
    ("GET", "/", ANON, 401, False), ("GET", "/v1", ANON, 401, False), ("GET", "/info", ANON, 401, False),
    ("GET", "/foo", OWNER, 403, False), ("GET", "/v1//c", OWNER, 403, False), ("GET", "/v1/test/c", OWNER, 403, False),
    ("GET", "/v1/test2/c", OTHER, 403, False),
])
def test_rights(setup, method, path, user, status, owner):
    assert setup.call(method, path, user=user).status == status
    assert bool(setup.inner.environ.get("swift_owner")) == owner
    assert bool(setup.inner.environ.get("reseller_request")) == (user == ROOT)


@pytest.mark.parametrize(("rights", "path", "user", "referer", "status"), [
    ("test2", "/v1/AUTH_test/c/o", OTHER, None, 200), ("test2:tester2", "/v1/AUTH_test/c", OTHER, None, 200),
    ("test2:other", "/v1/AUTH_test/c", OTHER, None, 403), ("staff", "/v1/AUTH_test/c", "test:grouped", None, 200),
    ("staff", "/v1/AUTH_test/c", OTHER, None, 403), ("test2", "/v1/AUTH_test/c", ANON, None, 401),
    (".r:*", "/v1/AUTH_test/c/o", ANON, None, 200), (".r:*", "/v1/AUTH_test/c", ANON, None, 401),
    (".r:*,.rlistings", "/v1/AUTH_test/c", ANON, None, 200), (".rlistings", "/v1/AUTH_test/c", ANON, None, 401),
    (".r:.example.com", "/v1/AUTH_test/c/o", ANON, "http://www.example.com/x", 200),
    (".r:.example.com", "/v1/AUTH_test/c/o", ANON, "http://evil.com/", 401),
    (".r:*,.r:-evil.com", "/v1/AUTH_test/c/o", ANON, "http://evil.com/", 401),
    (".r:*,.r:-evil.com", "/v1/AUTH_test/c/o", OTHER, "http://evil.com/", 403),
    ("%74est2", "/v1/AUTH_test/c/o", OTHER, None, 200), (None, "/v1/AUTH_test/c/o", OTHER, None, 403),
])
def test_container_acls(setup, rights, path, user, referer, status):
    setup.inner.acl = rights
    got = setup.call("GET", path, user=user, headers={"Referer": referer} if referer else {})
    assert got.status == status
    assert not setup.inner.environ.get("swift_owner")


@pytest.mark.parametrize(("level", "method", "path", "status", "owner"), [
    ("read-only", "GET", "/v1/AUTH_test", 200, False), ("read-only", "HEAD", "/v1/AUTH_test/c/o", 200, False),
    ("read-only", "PUT", "/v1/AUTH_test/c/o", 403, False), ("read-only", "POST", "/v1/AUTH_test", 403, False),
    ("read-write", "PUT", "/v1/AUTH_test/c/o", 200, False), ("read-write", "DELETE", "/v1/AUTH_test/c", 200, False),
    ("read-write", "GET", "/v1/AUTH_test", 200, False), ("read-write", "POST", "/v1/AUTH_test", 403, False),
    ("admin", "POST", "/v1/AUTH_test", 200, True), ("admin", "PUT", "/v1/AUTH_test/c", 200, True),
    ("admin", "PUT", "/v1/AUTH_test", 403, False), ("admin", "DELETE", "/v1/AUTH_test", 403, False),
])
def test_account_acls(setup, level, method, path, status, owner):
    setup.inner.account_acl["AUTH_test"] = json.dumps({level: ["test2"]})
    assert setup.call(method, path, user=OTHER).status == status
    assert bool(setup.inner.environ.get("swift_owner")) == owner
    assert setup.call(method, path).status == 401  # nobody known gains nothing
    assert setup.call(method, path, user="test:tester3").status == 403


def test_account_acl_that_cannot_be_read_grants_nothing(setup):
    setup.inner.account_acl["AUTH_test"] = "nonsense"
    assert setup.call(user=OTHER).status == 403


@pytest.mark.parametrize(("value", "status"), [
    ("{}", 200), ("", 200), ('{"admin":["x"]}', 200), ('{"foo":1}', 400), ("bad", 400), ('{"admin":"x"}', 400),
    ('{"admin":[1]}', 400), ("[]", 400), ('{"read-only":null}', 400)])
def test_syntax_of_account_acls(setup, value, status):
    headers = {"X-Account-Access-Control": value}
    got = setup.call("POST", "/v1/AUTH_test", user=OWNER, headers=headers)
    assert got.status == status
    if status == 400:
        assert got.body.startswith(b"X-Account-Access-Control invalid: ") and got.body.endswith(
            f"\n\nInput: {value}\n".encode())
        assert got.headers["Content-Type"] == "text/plain; charset=UTF-8"
        assert setup.call("POST", "/v1/AUTH_test", headers=headers).status == 400
    assert setup.call("POST", "/v1/AUTH_test/c", user=OWNER, headers=headers).status == 200


@pytest.mark.parametrize(("key", "given", "timestamp", "status"), [
    ("sk", "sk", "1", 200), ("sk", "no", "1", 401), ("sk", "sk", None, 401), ("", "", "1", 401), (None, "sk", "1", 401)])
def test_sync_keys(setup, key, given, timestamp, status):
    headers = {"X-Container-Sync-Key": given, **({"X-Timestamp": timestamp} if timestamp else {})}
    assert setup.call("PUT", "/v1/AUTH_test/c/o", headers=headers, swift_sync_key=key).status == status


def test_the_empty_prefix():
    setup = Setup(reseller_prefix="''")
    got = setup.get_token("test:tester", "testing")
    assert got.headers["X-Auth-Token"].startswith("tk") and got.headers["X-Storage-Url"].endswith("/v1/test")
    assert setup.call(path="/v1/test/c", token=got.headers["X-Auth-Token"]).status == 200
    assert setup.call(path="/v1/test/c").status == 401
    assert setup.call(path="/v1/test/c", token="bad").status == 401
    assert setup.call(path="/v1/test/c", token="bad", **{"swift.authorize": lambda request: None}).status == 200


def test_s3_requests(setup):
    details = {"access_key": "test:tester", "check_signature": lambda key: key == "testing"}
    got = setup.call(path="/v1/test:tester/b", **{"s3api.auth_details": details})
    assert got.status == 200
    assert setup.inner.environ["PATH_INFO"] == "/v1/AUTH_test/b"
    for bad in ({**details, "access_key": "test:none"}, {**details, "check_signature": lambda key: False}):
        assert setup.call(path="/v1/test:tester/b", **{"s3api.auth_details": bad}).status in (401, 403)


# -- tokens that outlive ------------------------------------------------------------------------------------------------


def test_tokens_hold_in_the_embedded_cache_for_every_worker():
    cache = EmbeddedCache(64, 1024)
    first, second = Setup(), Setup()
    first.cache = second.cache = cache
    token = first.token("test:tester")
    assert second.call(token=token).status == 200


def fernet(**conf):
    return Setup(fernet_key_a=FERNET_KEY, active_fernet_key_id="a", **conf)


def test_fernet_tokens_need_no_cache():
    setup = fernet()
    setup.cache.fails = True
    token = setup.token("test:tester")
    assert token.startswith("AUTH_ftk")
    assert fernet().call(token=token).status == 200
    assert Setup(fernet_key_b=OTHER_KEY, active_fernet_key_id="b", fernet_key_a=FERNET_KEY).call(token=token).status == 200
    assert Setup(fernet_key_a=FERNET_KEY).call(token=token).status == 200
    assert Setup(fernet_key_a=OTHER_KEY, active_fernet_key_id="a").call(token=token).status == 401
    assert Setup().call(token=token).status == 401
    for changed in (token[:40] + "xyz" + token[43:], token[:-9], token[:20], token.replace("ftk", "zftk")):
        assert setup.call(token=changed).status == 401


def test_long_groups_are_packed():
    setup = Setup(user_big_user="k " + " ".join(f"group-number-{i}" for i in range(50)), fernet_key_a=FERNET_KEY,
                  active_fernet_key_id="a")
    got = setup.get_token("big:user", "k")
    assert got.headers["X-Auth-Token"].startswith("AUTH_zftk")
    setup.call(token=got.headers["X-Auth-Token"])
    assert setup.inner.environ["REMOTE_USER"].endswith("group-number-49")


def test_a_token_of_the_cache_is_given_again_even_with_fernet():
    old = Setup()
    token = old.token("test:tester")
    new = fernet()
    new.cache = old.cache
    assert new.token("test:tester") == token


def test_fernet_tokens_age_and_the_memory_of_them_is_bounded(monkeypatch):
    clock = [1700000000.0]
    tokens = FernetTokens({"a": FERNET_KEY}, "a", 100, now=lambda: clock[0])
    token = tokens.make("a,b", "AUTH_")
    assert tokens.groups_of(token, "AUTH_") == "a,b"
    assert tokens.groups_of(token, "AUTH_") == "a,b"
    clock[0] += 101
    assert tokens.groups_of(token, "AUTH_") is None
    assert FernetTokens({"a": FERNET_KEY}, "a", 100, now=lambda: clock[0]).groups_of(token, "AUTH_") is None
    monkeypatch.setattr("keelstore.common.middleware.tempauth_tokens.MAX_KNOWN", 3)
    for i in range(10):
        assert tokens.groups_of(tokens.make(f"g{i}", ""), "") == f"g{i}"
    assert len(tokens._known) <= 3


# -- configuration -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("conf", [
    {"fernet_key_a": "x"}, {"active_fernet_key_id": "b"}, {"fernet_key_a": FERNET_KEY, "active_fernet_key_id": "zz"},
    {"user_": "k"}, {"user_a": "k"}, {"user64_a_b": "k"}, {"token_life": "0"}, {"storage_url_scheme": "ftp"},
    {"user_a_b,c": "k"}, {"auth_prefix": "/"},
])
def test_bad_options_stop_the_start(conf):
    with pytest.raises(ConfigError):
        filter_factory({"log_file": "-"}, **conf)


def test_prefixes():
    rules = rules_of({"reseller_prefix": "AUTH, SERVICE_ , ''", "require_group": "g", "SERVICE_require_group": "s",
                      "''require_group": "e"})
    assert rules.prefixes == ("AUTH_", "SERVICE_", "")
    assert rules.require_group == {"AUTH_": "g", "SERVICE_": "s", "": "e"}
    assert rules.longest_first == ("SERVICE_", "AUTH_", "")
    assert rules_of({}).prefixes == ("AUTH_",)


def test_users():
    assert users_of({"user_a_b_c": "k g1 .admin $HOST/v1/x/", "other": "x"}) == {
        "a:b_c": User("a", "b_c", "k", ("g1", ".admin"), "$HOST/v1/x")}


def test_another_auth_prefix():
    setup = Setup(auth_prefix="tempauth")
    assert setup.get_token("test:tester", "testing", path="/tempauth/v1.0").status == 200
    assert setup.get_token("test:tester", "testing", path="/auth/v1.0").status == 401


def test_info(setup):
    assert registry.published()["tempauth"] == {"account_acls": True}


def test_metrics(setup):
    seen = []
    setup.app.stats = type("S", (), {"increment": lambda self, metric: seen.append(metric)})()
    setup.call()
    setup.call(user=OTHER)
    setup.get_token("test:tester", "wrong")
    setup.cache.fails = True
    setup.get_token("test:grouped", "grouped")
    assert seen == ["tempauth.AUTH_.unauthorized", "tempauth.AUTH_.forbidden", "tempauth.AUTH_.token_denied",
                    "tempauth.AUTH_.errors"]


# -- what the log says of a refusal --------------------------------------------------------------------------------------


def noted(setup, method="GET", path="/v1/AUTH_test/c", **kwargs):
    """The status, the checks that the access line names, and what the client learns."""
    info: list[str] = []
    got = setup.call(method, path, **kwargs, **{"swift.log_info": info})
    return got.status, info, got.body


@pytest.mark.parametrize(("headers", "check"), [
    ({}, "no-credentials"), ({"X-Auth-User": "test"}, "no-credentials"), ({"X-Auth-User": "test:tester"}, "no-credentials"),
    ({"X-Auth-User": "test:nobody", "X-Auth-Key": "testing"}, "unknown-user"), ({"X-Auth-User": "test:tester", "X-Auth-Key": "x"}, "wrong-key"),
])
def test_the_log_says_why_there_is_no_token(setup, headers, check):
    status, info, body = noted(setup, path="/auth/v1.0", headers=headers)
    assert (status, info) == (401, [f"tempauth:{check}"]) and check.encode() not in body


def test_the_log_says_what_is_wrong_with_a_token():
    setup = Setup(fernet_key_a=FERNET_KEY, active_fernet_key_id="a", token_life="100")
    setup.cache.values["AUTH_/token/AUTH_tkold"] = [1.0, "test,test:tester"]
    fresh = FernetTokens({"a": FERNET_KEY}, "a", 100).make("test", "AUTH_")
    stale = FernetTokens({"a": FERNET_KEY}, "a", 100, lambda: 1000).make("test", "AUTH_")
    foreign = FernetTokens({"a": OTHER_KEY}, "a", 100).make("test", "AUTH_")
    for token, check in (("AUTH_tk" + "0" * 32, "token-unknown"), ("AUTH_tkold", "token-expired"), (stale, "token-expired"),
                         (foreign, "token-signature"), (fresh[:-4] + "AAAA", "token-signature"), ("AUTH_ftk\xe9", "token-unknown"),
                         ("gAAAAA-of-keystone", "token-foreign"), (None, "no-token")):
        status, info, body = noted(setup, token=token)
        assert (status, info) == (401, [f"tempauth:{check}"]), token
        assert check.encode() not in body
    assert noted(setup, token=fresh)[:2] == (403, ["tempauth:needs-listing"])


@pytest.mark.parametrize(("method", "path", "check"), [
    ("GET", "/v1/AUTH_test/c/o", "needs-read"), ("HEAD", "/v1/AUTH_test/c/o", "needs-read"), ("PUT", "/v1/AUTH_test/c/o", "needs-write"),
    ("POST", "/v1/AUTH_test/c/o", "needs-write"), ("DELETE", "/v1/AUTH_test/c/o", "needs-write"), ("GET", "/v1/AUTH_test/c", "needs-listing"),
    ("PUT", "/v1/AUTH_test/c", "needs-owner"), ("DELETE", "/v1/AUTH_test/c", "needs-owner"), ("HEAD", "/v1/AUTH_test", "needs-owner"),
    ("GET", "/v1/ELSE_test/c", "not-ours"), ("GET", "/v1", "not-ours"),
])
def test_case_C36_the_log_says_which_right_is_missing(setup, method, path, check):
    assert noted(setup, method, path, user="test:tester3")[:2] == (403, [f"tempauth:{check}"])


def test_who_may_leaves_no_such_mark(setup):
    setup.inner.acl = ".r:*"
    assert noted(setup, path="/v1/AUTH_test/c/o")[:2] == (200, [])
    assert noted(setup, user="test:tester")[:2] == (200, [])
