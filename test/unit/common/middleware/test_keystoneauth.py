from dataclasses import replace

import pytest

from keelstore.common.acl import ACL
from keelstore.common.http import Request, Response
from keelstore.common.middleware.keystoneauth import (
    Asked,
    Identity,
    KeystoneAuth,
    KeystoneAuthOptions,
    PrefixRules,
    Rules,
    decide,
    filter_factory,
    identity_of,
    rules_of,
)
from test.unit.common.middleware.helpers import Got, make_environ

OPERATOR = frozenset({"admin", "swiftoperator"})
RULES = Rules((PrefixRules("SERVICE_", OPERATOR, frozenset({"service"}), frozenset()),
               PrefixRules("AUTH_", OPERATOR, frozenset(), frozenset({"reader"}))), "reselleradmin", frozenset({"sysreader"}))
USER = Identity("uid", "uname", "pid", "pname", frozenset({"member"}))


def who(*roles, **changes):
    return replace(USER, roles=frozenset(roles), **changes)


def verdict(identity, method="GET", path="AUTH_pid/c/o", groups=(), **kwargs):
    account, container, obj = [*path.split("/", 2), "", ""][:3]
    found = decide(RULES, identity, Asked(method, account, container, obj, groups, **kwargs))
    if not found.is_allowed:
        assert not found.is_owner and found.reason
        return found.reason
    return "owner" if found.is_owner else "ok"


@pytest.mark.parametrize(("identity", "method", "path", "expected"), [
    (None, "OPTIONS", "AUTH_pid/c/o", "ok"), (USER, "OPTIONS", "AUTH_other/c", "ok"),
    (who("admin"), "GET", "AUTH_pid/c/o", "owner"), (who("swiftoperator"), "PUT", "AUTH_pid/c", "owner"), (who("admin"), "POST", "AUTH_pid", "owner"),
    (who("admin"), "PUT", "AUTH_pid", "owner"), (who("admin"), "DELETE", "AUTH_pid", "account-delete"), (who("admin"), "GET", "AUTH_other/c/o", "not-in-project"),
    (who("member"), "GET", "AUTH_pid/c/o", "no-operator-role"), (who("reselleradmin"), "DELETE", "AUTH_other", "owner"), (who("reselleradmin"), "PUT", "x/c/o", "owner"),
    (who("reader"), "GET", "AUTH_pid/c/o", "ok"), (who("reader"), "HEAD", "AUTH_pid", "ok"), (who("reader"), "PUT", "AUTH_pid/c/o", "no-operator-role"),
    (who("reader"), "GET", "AUTH_other/c/o", "not-in-project"), (who("sysreader", is_system=True), "GET", "AUTH_other/c/o", "ok"),
    (who("sysreader", is_system=True), "PUT", "AUTH_other/c/o", "not-in-project"), (who("sysreader"), "GET", "AUTH_other/c/o", "not-in-project"),
    (who("admin"), "GET", "SERVICE_pid/c/o", "no-service-role"), (who("admin", service_roles=frozenset({"service"})), "GET", "SERVICE_pid/c/o", "owner"),
    (who("admin", service_roles=frozenset({"other"})), "GET", "SERVICE_pid/c/o", "no-service-role"), (who("admin"), "GET", "AUTH_pidx/c", "not-in-project"),
    (who("admin", project_id=""), "GET", "AUTH_x/c", "not-in-project"), (None, "GET", "AUTH_pid/c/o", "nobody"), (None, "GET", "x/c/o", "not-our-account"),
])
def test_roles(identity, method, path, expected):
    assert verdict(identity, method, path) == expected


@pytest.mark.parametrize(("groups", "expected"), [
    (["pid:uid"], "ok"), (["*:uid"], "ok"), (["pid:*"], "ok"), (["*:*"], "ok"), (["pid:other"], "not-in-project"), (["other:uid"], "not-in-project"),
    (["pname:uname"], "not-in-project"), (["*:uname"], "not-in-project"), (["member"], "not-in-project"), ([":"], "not-in-project"), (["*"], "not-in-project"),
])
def test_acls_name_users_of_other_projects(groups, expected):
    assert verdict(USER, path="AUTH_other/c/o", groups=groups) == expected


@pytest.mark.parametrize(("groups", "expected"), [(["pname:uname"], "ok"), (["*:uname"], "ok"), (["pname:uid"], "ok"), (["pid:uname"], "ok"), (["x:uname"], "not-in-project")])
def test_names_count_where_they_mean_one_user(groups, expected):
    assert verdict(USER, path="AUTH_other/c/o", groups=groups, names_count=True) == expected
    assert verdict(Identity("", "", "", ""), path="AUTH_other/c/o", groups=[":"], names_count=True) == "not-in-project"


def test_role_names_in_acls_are_for_the_project_itself():
    assert verdict(USER, groups=["MEMBER"]) == "ok" and verdict(USER, path="AUTH_other/c/o", groups=["member"]) == "not-in-project"


@pytest.mark.parametrize("identity", [None, who("member", project_id="other")])
def test_public_containers(identity):
    deny = "nobody" if identity is None else "not-in-project"
    assert verdict(identity, referrers=["*"]) == "ok" and verdict(identity, path="AUTH_pid/c", referrers=["*"]) == deny
    assert verdict(identity, path="AUTH_pid/c", referrers=["*"], groups=[".rlistings"]) == "ok"
    assert verdict(identity, groups=[".rlistings"]) == deny and verdict(identity, referrers=["example.com"]) == deny
    assert verdict(identity, referrers=["example.com"], referrer="http://example.com/x") == "ok" and verdict(identity, has_sync_key=True) == "ok"


@pytest.mark.parametrize("acl", [{"referrers": ["*"], "groups": [".rlistings"]}, {"groups": ["*:*"]}, {"groups": ["pid:uid"]}, {"groups": ["admin"]}])
def test_an_owner_is_one_whoever_else_may_read(acl):
    """So that the owner is shown what the ACL is."""
    assert verdict(who("admin"), path="AUTH_pid/c", **acl) == "owner"
    assert verdict(who("admin"), path="SERVICE_pid/c", **acl) == "ok"  # but without the service's token


HEADERS = {"X-Identity-Status": "Confirmed", "X-Roles": "admin,Member", "X-User-Id": "uid", "X-User-Name": "uname", "X-Project-Id": "pid",
           "X-Project-Name": "pname", "X-User-Domain-Id": "default", "X-Project-Domain-Id": "default"}
MARK: dict = {"keystone.token_info": {"token": {}}}


class Setup:
    def __init__(self, stored=None, exists=True, **options):
        self.stored, self.exists = stored, exists
        self.passed: list = []
        parsed = KeystoneAuthOptions(**options)
        self.app = KeystoneAuth(self.inner, parsed, rules_of(parsed, {}))

    def inner(self, environ, start_response):
        headers = {"X-Account-Sysmeta-Project-Domain-Id": self.stored} if self.stored else {}
        if not self.exists:
            headers["X-Backend-Fake-Account-Listing"] = "yes"
        if environ.get("REMOTE_USER") != ".wsgi.pre_authed":
            self.passed.append(environ)
            denied = environ["swift.authorize"](Request(environ)) if "swift.authorize" in environ else None
            if denied:
                return denied(environ, start_response)
        return Response(204, headers)(environ, start_response)

    def call(self, method="GET", path="/v1/AUTH_pid/c/o", headers=None, acl=None, mark=True, **extra):
        environ = make_environ(method, path, headers=HEADERS if headers is None else headers, **{**(MARK if mark else {}), **extra})
        if acl is not None:
            environ[ACL] = acl
        self.got = Got(self.app, environ)
        return self.got.status, environ


def test_an_operator_owns_the_account():
    status, environ = Setup().call()
    assert status == 204 and environ["swift_owner"] is True and environ["REMOTE_USER"] == "pname" and "reseller_request" not in environ


def test_a_reseller_admin_is_marked():
    status, environ = Setup().call(headers={**HEADERS, "X-Roles": "RESELLERADMIN"}, path="/v1/AUTH_other")
    assert status == 204 and environ["swift_owner"] is True and environ["reseller_request"] is True


def test_denials():
    setup = Setup()
    status, environ = setup.call(path="/v1/AUTH_other/c/o")
    assert status == 403 and environ["swift.log_info"] == ["keystone:not-in-project"]
    status, environ = setup.call(headers={})
    assert status == 401 and setup.got.headers["Www-Authenticate"] == 'Swift realm="AUTH_pid"' and environ["swift.log_info"] == ["keystone:nobody"]


def test_security_S32_headers_of_a_client_are_not_believed():
    setup = Setup()
    sent = {**HEADERS, "X-Roles": "ResellerAdmin", "X-Service-Roles": "service", "X-Tenant-Id": "pid", "X-Is-Admin-Project": "True", "OpenStack-System-Scope": "all",
            "X-Service-Identity-Status": "Confirmed", "X-Domain-Id": "default", "X-Other": "kept"}
    status, environ = setup.call(headers=sent, mark=False)
    assert status == 401 and "reseller_request" not in environ and "REMOTE_USER" not in environ
    assert [key for key in environ if key.startswith("HTTP_") and key not in ("HTTP_HOST", "HTTP_X_OTHER")] == []


@pytest.mark.parametrize("headers", [{**HEADERS, "X-Identity-Status": "Invalid"}, {**HEADERS, "X-Service-Identity-Status": "Invalid"}, {}])
def test_what_is_not_confirmed_is_nobody(headers):
    assert identity_of(make_environ(headers=headers, **MARK)) is None


def test_old_names_of_headers():
    found = identity_of(make_environ(headers={"X-Identity-Status": "Confirmed", "X-Tenant-Id": "t", "X-Tenant-Name": "n", "X-User-Id": "u", "X-Roles": " A , b,"}, **MARK))
    assert found == Identity("u", "", "t", "n", frozenset({"a", "b"}))


def test_sub_requests_are_judged_by_the_same_identity():
    _, environ = Setup().call()
    assert environ["swift.authorize"](Request({"PATH_INFO": "/v1/AUTH_pid/d/x", "REQUEST_METHOD": "PUT"})) is None
    assert environ["swift.authorize"](Request({"PATH_INFO": "/v1/AUTH_q/d/x", "REQUEST_METHOD": "PUT"})).status == 403
    assert environ["swift.authorize"](Request({"PATH_INFO": "/", "REQUEST_METHOD": "GET"})).status == 403


def test_overrides():
    _, environ = Setup().call(headers={}, **{"swift.authorize_override": True})
    assert "swift.authorize" not in environ
    assert Setup(allow_overrides=False).call(headers={}, **{"swift.authorize_override": True})[0] == 401


def test_headers_without_a_value_of_authtoken_go():
    """A domain, where the token is of a project; also when a temporary URL has authorized the request already."""
    for override in (True, False):
        setup = Setup()
        _, environ = setup.call(HTTP_X_DOMAIN_ID=None, **{"swift.authorize_override": override})
        assert "HTTP_X_DOMAIN_ID" not in environ and len(setup.passed) == 1


@pytest.mark.parametrize(("stored", "changes", "options", "status"), [
    ("default", {}, {}, 204), (None, {}, {}, 204), ("_unknown", {}, {}, 204), ("other", {}, {}, 403), ("default", {"X-User-Domain-Id": "other"}, {}, 403),
    ("default", {"X-Project-Domain-Id": "other"}, {}, 403), ("default", {"X-User-Domain-Id": "", "X-Project-Domain-Id": ""}, {}, 204),
    ("default", {}, {"allow_names_in_acls": False}, 403), ("default", {}, {"default_domain_id": "d2"}, 403),
])
def test_names_in_acls(stored, changes, options, status):
    assert Setup(stored, **options).call(path="/v1/AUTH_other/c/o", headers={**HEADERS, **changes}, acl="pname:uname")[0] == status


@pytest.mark.parametrize(("method", "path", "stored", "exists", "changes", "kept"), [
    ("PUT", "/v1/AUTH_pid", None, False, {}, "default"), ("POST", "/v1/AUTH_pid", None, True, {}, "default"), ("POST", "/v1/AUTH_pid", "_unknown", True, {}, "default"),
    ("POST", "/v1/AUTH_pid", "default", True, {}, None), ("POST", "/v1/AUTH_pid", "other", True, {}, None), ("PUT", "/v1/AUTH_pid/c", None, False, {}, "default"),
    ("PUT", "/v1/AUTH_pid/c", None, True, {}, None), ("POST", "/v1/AUTH_pid/c", None, False, {}, None), ("PUT", "/v1/AUTH_pid/c/o", None, False, {}, None),
    ("PUT", "/v1/AUTH_other", None, False, {"X-Roles": "ResellerAdmin"}, "_unknown"), ("PUT", "/v1/AUTH_pid", None, False, {"X-Project-Domain-Id": ""}, "_unknown"),
    ("POST", "/v1/AUTH_pid", "_unknown", True, {"X-Project-Domain-Id": ""}, None), ("PUT", "/v1/x", None, False, {}, None),
])
def test_the_domain_of_a_project_is_kept(method, path, stored, exists, changes, kept):
    _, environ = Setup(stored, exists).call(method, path, {**HEADERS, **changes})
    assert environ.get("HTTP_X_ACCOUNT_SYSMETA_PROJECT_DOMAIN_ID") == kept


def test_the_domain_is_shown():
    setup = Setup("default")
    setup.call("HEAD", "/v1/AUTH_pid")
    assert setup.got.headers["X-Account-Project-Domain-Id"] == "default"


def test_options_of_prefixes():
    options = KeystoneAuthOptions(reseller_prefix="AUTH, SERVICE_, ''", operator_roles=("admin",), project_reader_roles=("Reader",))
    rules = rules_of(options, {"SERVICE_service_roles": "Service, x", "SERVICE_operator_roles": "boss", "AUTH_project_reader_roles": ""})
    by_prefix = {one.prefix: one for one in rules.prefixes}
    assert [one.prefix for one in rules.prefixes] == ["SERVICE_", "AUTH_", ""]
    assert by_prefix["SERVICE_"].service_roles == {"service", "x"} and by_prefix["SERVICE_"].operator_roles == {"boss"}
    assert by_prefix["AUTH_"].operator_roles == {"admin"} and by_prefix["AUTH_"].reader_roles == {"reader"} and by_prefix[""].service_roles == set()


def test_the_factory(caplog: pytest.LogCaptureFixture) -> None:
    app = filter_factory({}, reseller_prefix="AUTH, SERVICE", SERVICE_service_roles="service", operator_roles="boss")(lambda environ, start: [])
    by_prefix = {one.prefix: one for one in app.rules.prefixes}
    assert by_prefix["SERVICE_"].service_roles == {"service"} and by_prefix["AUTH_"].operator_roles == {"boss"}
    assert "unknown option" not in caplog.text
