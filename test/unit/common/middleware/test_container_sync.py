import logging
from typing import Any

import pytest

from keelstore.common import registry
from keelstore.common.errors import ConfigError
from keelstore.common.http import Request, Response
from keelstore.common.middleware.container_sync import ContainerSync, ContainerSyncOptions, filter_factory
from keelstore.common.sync_realms import Realm, signature
from test.unit.common.middleware.helpers import Got, call, make_environ


class Setup:
    def __init__(self, container=None, realms=None, **options):
        self.container = {"X-Container-Sync-Key": "userkey"} if container is None else container
        self.realms = {"R": Realm("R", "realmkey", "second", {"ONE": "http://one/v1/", "TWO": "x"}), "BARE": Realm("BARE")} if realms is None else realms
        self.passed: list = []
        realms_now: Any = self
        self.app = ContainerSync(self.inner, ContainerSyncOptions(**options), realms_now, logging.getLogger("test.sync"))

    def current(self):
        return self.realms

    def inner(self, environ, start_response):
        if environ.get("swift.source") == "CS" and environ["REQUEST_METHOD"] == "HEAD":
            return Response(204, self.container if environ["PATH_INFO"].count("/") > 2 else {})(environ, start_response)
        self.passed.append(environ)
        return Response(201, body=b"")(environ, start_response)

    def write(self, path="/v1/AUTH_a/c/o x", method="PUT", key="realmkey", timestamp="1700000000.00000", realm="r", user_key="userkey", header=None, **extra):
        made = signature(key, method, path.replace(" ", "%20"), timestamp or "0", "nonce1", user_key)
        headers = {"X-Container-Sync-Auth": f"{realm} nonce1 {made}" if header is None else header}
        if timestamp:
            headers["X-Backend-Inbound-X-Timestamp"] = timestamp
        return call(self.app, method, path, headers=headers, **extra)


def test_the_vector_of_the_field():
    assert signature("realmkey", "PUT", "/v1/AUTH_a/c/o%20x", "1700000000.00000", "nonce1", "userkey") == "7dd5ff10343e7b77acd5917011a1103a4723249a"


@pytest.mark.parametrize("key", ["realmkey", "second"])
def test_a_signed_write_passes_with_its_time(key):
    setup = Setup()
    logged: list = []
    assert setup.write(key=key, **{"swift.log_info": logged}).status == 201
    environ = setup.passed[0]
    assert environ["HTTP_X_TIMESTAMP"] == "1700000000.00000" and environ["swift.authorize_override"] is True and logged == ["cs:valid"]
    assert environ["swift.slo_override"] is True and environ["swift.symlink_override"] is True
    assert environ["swift.authorize"](Request({"PATH_INFO": "/v1/AUTH_a/c/other"})) is None
    assert environ["swift.authorize"](Request({"PATH_INFO": "/v1/AUTH_a/d/other"})).status == 401


def test_without_a_time():
    assert Setup().write(timestamp=None).status == 201


@pytest.mark.parametrize(("setup", "changes", "tag"), [
    (Setup(), {"header": "r nonce"}, "cs:not-3-args"), (Setup(), {"header": "a b c d"}, "cs:not-3-args"), (Setup(), {"realm": "other"}, "cs:no-local-realm-key"),
    (Setup(), {"realm": "bare"}, "cs:no-local-realm-key"), (Setup(container={}), {}, "cs:no-local-user-key"), (Setup(), {"key": "wrong"}, "cs:invalid-sig"),
    (Setup(), {"user_key": "wrong"}, "cs:invalid-sig"), (Setup(), {"header": "r nonce1 \xe9"}, "cs:invalid-sig"), (Setup(realms={"R": Realm("R", "realmkey")}), {"key": ""}, "cs:invalid-sig"),
])
def test_refusals(setup, changes, tag, caplog):
    caplog.set_level(logging.INFO, "test.sync")
    logged: list = []
    got = setup.write(**changes, **{"swift.log_info": logged})
    assert (got.status, got.body) == (401, b"X-Container-Sync-Auth header not valid; contact cluster operator for support.")
    assert got.headers["Www-Authenticate"] == 'SwiftContainerSync realm="AUTH_a"' and got.headers["Content-Type"] == "text/plain"
    assert logged == [tag] and setup.passed == [] and "Container sync refused: " in caplog.text and "userkey" not in caplog.text


def test_a_signature_is_for_one_method():
    setup = Setup()
    made = signature("realmkey", "PUT", "/v1/a/c/o", "0", "n", "userkey")
    assert call(setup.app, "DELETE", "/v1/a/c/o", headers={"X-Container-Sync-Auth": f"r n {made}"}).status == 401


@pytest.mark.parametrize("path", ["/info", "/v1/a", "/v1/a/c", "/v1/a/c/"])
def test_what_is_no_object_is_left_to_authentication(path):
    setup = Setup()
    assert setup.write(path).status == 201 and "swift.authorize" not in setup.passed[0]


@pytest.mark.parametrize(("options", "container", "value", "status"), [
    ({}, {}, "http://x/v1/a/c", 201), ({"allow_full_urls": False}, {}, "http://x/v1/a/c", 400), ({"allow_full_urls": False}, {}, "//r/one/a/c", 201),
    ({}, {"X-Container-Sysmeta-Versions-Enabled": "True"}, "//r/one/a/c", 400), ({}, {"X-Container-Sysmeta-Versions-Enabled": "True"}, "", 201),
])
def test_where_a_container_may_be_synced_to(options, container, value, status):
    setup = Setup(container=container, **options)
    for method in ("PUT", "POST"):
        assert call(setup.app, method, "/v1/a/c", headers={"X-Container-Sync-To": value}).status == status
    assert call(setup.app, "PUT", "/v1/a/c/o", headers={"X-Container-Sync-To": value}).status == 201


def test_info_knows_the_realms_of_now():
    registry.forget_all()
    setup = Setup(current="//r/one")
    assert registry.published()["container_sync"] == {"realms": {"R": {"clusters": {"ONE": {"current": True}, "TWO": {}}}, "BARE": {"clusters": {}}}}
    setup.realms = {}
    Got(setup.app, make_environ("GET", "/info"))
    assert registry.published()["container_sync"] == {"realms": {}}


@pytest.mark.parametrize("value", ["r/one", "//r", "//r/one/two", "//r/"])
def test_a_bad_current_cluster_stops_the_start(value):
    with pytest.raises(ConfigError, match="current"):
        filter_factory({}, current=value)


def test_the_factory(tmp_path):
    (tmp_path / "container-sync-realms.conf").write_text("[r]\nkey = k\ncluster_c = http://c/v1/\n")
    registry.forget_all()
    filter_factory({}, swift_dir=str(tmp_path))(Setup().inner)
    assert registry.published()["container_sync"] == {"realms": {"R": {"clusters": {"C": {}}}}}
