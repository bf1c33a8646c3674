"""container_quotas and account_quotas, alone and one behind the other."""

import pytest

from keelstore.common.acl import ACL
from keelstore.common.http import Response
from keelstore.common.middleware.account_quotas import AccountQuotas
from keelstore.common.middleware.account_quotas import filter_factory as account_factory
from keelstore.common.middleware.container_quotas import ContainerQuotas
from keelstore.common.middleware.container_quotas import filter_factory as container_factory
from keelstore.common.middleware.quotas import is_quota, quota_of
from test.support import fakes
from test.unit.common.middleware.helpers import call

POLICIES = fakes.fake_cluster().policies


class Setup:
    def __init__(self, account=None, container=None, sysmeta=None, account_bytes=0, container_bytes=0, objects=0, policy=0):
        self.account = {f"X-Account-Sysmeta-{name}": value for name, value in (sysmeta or {}).items()}
        self.account.update({f"X-Account-Meta-{name}": value for name, value in (account or {}).items()})
        self.account.update({"X-Account-Bytes-Used": str(account_bytes), "X-Account-Object-Count": str(objects)})
        self.container = {f"X-Container-Meta-{name}": value for name, value in (container or {}).items()}
        self.container.update({"X-Container-Bytes-Used": str(container_bytes), "X-Container-Object-Count": str(objects),
                               "X-Container-Write": "writers", "X-Backend-Storage-Policy-Index": str(policy)})
        self.passed = []
        self.both = ContainerQuotas(AccountQuotas(self.inner, POLICIES))

    def inner(self, environ, start_response):
        if environ["REQUEST_METHOD"] == "HEAD" and environ.get("swift.source") in ("CQ", "AQ"):
            headers = self.container if environ["PATH_INFO"].count("/") == 3 else self.account
            return Response(204, headers)(environ, start_response)
        self.passed.append(environ)
        if "/c/" in environ["PATH_INFO"]:
            return Response(201, body=b"")(environ, start_response)
        return Response(204, self.account)(environ, start_response)

    def put(self, body=b"12345", **extra):
        return call(self.both, "PUT", "/v1/a/c/o", body=body, **extra)


@pytest.mark.parametrize(("quotas", "status"), [
    ({}, 201), ({"container": {"Quota-Bytes": "15"}}, 201), ({"container": {"Quota-Bytes": "14"}}, 413),
    ({"container": {"Quota-Count": "8"}}, 201), ({"container": {"Quota-Count": "7"}}, 413),
    ({"container": {"Quota-Bytes": "junk"}}, 201),
    ({"sysmeta": {"Quota-Bytes": "105"}}, 201), ({"sysmeta": {"Quota-Bytes": "104"}}, 413),
    ({"sysmeta": {"Quota-Count": "8"}}, 201), ({"sysmeta": {"Quota-Count": "7"}}, 413),
    ({"account": {"Quota-Bytes": "104"}}, 413), ({"account": {"Quota-Bytes": "104"}, "sysmeta": {"Quota-Bytes": "105"}}, 201),
    ({"sysmeta": {"Quota-Bytes-Policy-0": "4"}}, 413), ({"sysmeta": {"Quota-Bytes-Policy-0": "5"}}, 201),
    ({"sysmeta": {"Quota-Bytes-Policy-1": "4"}}, 201), ({"sysmeta": {"Quota-Bytes-Policy-1": "4"}, "policy": 1}, 413),
    ({"sysmeta": {"Quota-Count-Policy-0": "0"}}, 413),
])
def test_bounds(quotas, status):
    setup = Setup(account_bytes=100, container_bytes=10, objects=7, **quotas)
    got = setup.put()
    assert got.status == status
    assert len(setup.passed) == (status == 201)
    if status == 413:
        assert got.body in (b"Upload exceeds quota.", b"Upload exceeds policy quota.")


def test_a_chunked_upload_is_judged_by_what_is_there():
    setup = Setup(container={"Quota-Bytes": "10"}, container_bytes=10)
    assert setup.put(None, headers={"Transfer-Encoding": "chunked"}).status == 201
    assert setup.put(b"1").status == 413


def test_a_reseller_admin_is_not_bound_by_the_account():
    setup = Setup(sysmeta={"Quota-Bytes": "0"})
    assert setup.put(reseller_request=True).status == 201
    assert Setup(container={"Quota-Bytes": "0"}).put(reseller_request=True).status == 413


def test_who_may_not_write_hears_that_first():
    asked = []

    def authorize(request):
        asked.append((request.acl, request.environ[ACL]))
        return Response(401)

    for setup in (Setup(container={"Quota-Bytes": "0"}), Setup(sysmeta={"Quota-Bytes": "0"})):
        assert setup.put(**{"swift.authorize": authorize}).status == 401
        assert setup.put(**{"swift.authorize": lambda request: None}).status == 413
    assert asked == [("writers", "writers")] * 2


def test_case_C09_security_S50_both_quotas_exceeded():
    setup = Setup(container={"Quota-Bytes": "1", "Quota-Count": "1"}, sysmeta={"Quota-Bytes": "1", "Quota-Count": "1"},
                  account_bytes=1, container_bytes=1, objects=1)
    for _ in range(2):
        assert setup.put(**{"swift.authorize": lambda request: None}).status == 413


def test_case_C27_the_first_upload_to_an_empty_account_counts():
    assert Setup(sysmeta={"Quota-Bytes": "4"}).put().status == 413
    assert Setup(account={"Quota-Bytes": "4"}).put().status == 413


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/a/c/o"), ("POST", "/v1/a/c/o"), ("DELETE", "/v1/a/c/o"), ("PUT", "/info"),
                                              ("OPTIONS", "/v1/a/c"), ("PUT", "/"), ("GET", "/v1/a/c")])
def test_other_requests_pass(method, path):
    setup = Setup(container={"Quota-Bytes": "0"}, sysmeta={"Quota-Bytes": "0"})
    call(setup.both, method, path)
    assert len(setup.passed) == 1


@pytest.mark.parametrize(("header", "value", "status"), [
    ("Quota-Bytes", "5", 204), ("Quota-Bytes", "", 204), ("Quota-Bytes", "x", 400), ("Quota-Bytes", "-1", 400), ("Quota-Count", "1.5", 400),
    ("Quota-Count", "\xd9\xa3", 400), ("Quota-Count", "9" * 30, 400),
])
@pytest.mark.parametrize("method", ["PUT", "POST"])
def test_setting_a_container_quota(method, header, value, status):
    assert call(Setup().both, method, "/v1/a/c", headers={f"X-Container-Meta-{header}": value}).status == status


@pytest.mark.parametrize(("header", "key"), [
    ("X-Account-Quota-Bytes", "QUOTA_BYTES"), ("X-Account-Quota-Count", "QUOTA_COUNT"), ("X-Account-Meta-Quota-Bytes", "QUOTA_BYTES"),
    ("X-Account-Quota-Bytes-Policy-Silver", "QUOTA_BYTES_POLICY_1"), ("X-Account-Quota-Count-Policy-gold", "QUOTA_COUNT_POLICY_0"),
])
def test_setting_an_account_quota(header, key):
    setup = Setup()
    assert call(setup.both, "POST", "/v1/a", headers={header: "5"}).status == 403
    assert call(setup.both, "PUT", "/v1/a/", headers={header: "x"}, reseller_request=True).status == 400
    assert setup.passed == []
    assert call(setup.both, "POST", "/v1/a", headers={header: "5"}, reseller_request=True).status == 204
    assert setup.passed.pop()[f"HTTP_X_ACCOUNT_SYSMETA_{key}"] == "5"
    removing = header.replace("X-Account", "X-Remove-Account")
    assert call(setup.both, "POST", "/v1/a", headers={removing: "x"}).status == 403
    assert call(setup.both, "POST", "/v1/a", headers={removing: "x"}, reseller_request=True).status == 204
    assert setup.passed.pop()[f"HTTP_X_ACCOUNT_SYSMETA_{key}"] == ""


def test_unknown_policies_and_other_headers_are_left_alone():
    setup = Setup()
    assert call(setup.both, "POST", "/v1/a", headers={"X-Account-Quota-Bytes-Policy-Nope": "5", "X-Account-Meta-Colour": "red"}).status == 204
    assert not any("SYSMETA" in key for key in setup.passed[0])


def test_the_new_header_wins_over_the_old():
    setup = Setup()
    call(setup.both, "POST", "/v1/a", headers={"X-Account-Meta-Quota-Bytes": "5", "X-Account-Quota-Bytes": "9"}, reseller_request=True)
    assert setup.passed[0]["HTTP_X_ACCOUNT_SYSMETA_QUOTA_BYTES"] == "9"


def test_quotas_are_shown():
    setup = Setup(sysmeta={"Quota-Bytes": "5", "Quota-Count": "0", "Quota-Bytes-Policy-1": "7", "Quota-Bytes-Policy-77": "7", "Other": "x"})
    for method in ("GET", "HEAD"):
        headers = call(setup.both, method, "/v1/a").headers
        assert {name: value for name, value in headers.items() if name.startswith("X-Account-Quota")} == {
            "X-Account-Quota-Bytes": "5", "X-Account-Quota-Count": "0", "X-Account-Quota-Bytes-Policy-Silver": "7"}


def test_numbers():
    assert [quota_of(text) for text in (None, "", "x", "0", "12", "-1", " 5", "9" * 400)] == [None, None, None, 0, 12, None, None, None]
    assert is_quota("") and is_quota("0") and not is_quota("٣")


def test_factories():
    app = container_factory({})(account_factory({}, swift_dir="/nonexistent")(Setup().inner))
    assert call(app, "PUT", "/v1/a/c/o", body=b"x").status == 201
