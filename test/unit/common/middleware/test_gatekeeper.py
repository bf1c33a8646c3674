import pytest

from keelstore.common.http import Response
from keelstore.common.middleware.gatekeeper import Gatekeeper, GatekeeperOptions, filter_factory, is_internal, relative
from test.unit.common.middleware.helpers import Inner, call

INTERNAL = [
    "X-Account-Sysmeta-Core-Access-Control", "x-container-sysmeta-a", "X-Object-SYSMETA-b",
    "X-Object-Transient-Sysmeta-Crypto-Meta", "X-Backend-Timestamp", "X-Backend", "X-Backendfoo",
    "X-Backend-Replication", "X-Account-Host", "X-Account-Device", "X-Account-Partition", "X-Container-Host",
    "X-Container-Device", "X-Container-Partition", "X-Container-Root-Db-State", "X-Delete-At-Host", "X-Delete-At-Device",
    "X-Delete-At-Partition", "X-Delete-At-Container",
]
PUBLIC = [
    "X-Account-Meta-A", "X-Container-Meta-Host", "X-Object-Meta-Sysmeta-X", "X-Delete-At", "X-Delete-After", "X-Newest",
    "X-Container-Read", "X-Account-Hostage", "X-Auth-Token", "Etag", "X-Object-Manifest", "X-Account-Host-Name",
]


@pytest.mark.parametrize("name", INTERNAL)
def test_internal_headers_neither_enter_nor_leave(name):
    inner = Inner(headers={name: "10.0.0.1", "X-Object-Meta-Color": "red"})
    for spelling in (name, name.upper(), name.lower(), name.replace("-", "_")):
        got = call(Gatekeeper(inner, GatekeeperOptions()), headers={spelling: "evil"})
        assert not any(value == "evil" for value in inner.asked[-1].values())
        assert name not in got.headers
        assert got.headers["X-Object-Meta-Color"] == "red"


@pytest.mark.parametrize("name", PUBLIC)
def test_public_headers_pass(name):
    inner = Inner(headers={name: "out"})
    got = call(Gatekeeper(inner, GatekeeperOptions()), headers={name: "in"})
    assert "in" in inner.asked[0].values()
    assert got.headers[name] == "out"
    assert not is_internal(name)


def test_a_clients_timestamp_is_moved():
    inner = Inner()
    call(Gatekeeper(inner, GatekeeperOptions()), "PUT", headers={"X-Timestamp": "1"})
    assert "HTTP_X_TIMESTAMP" not in inner.asked[0]
    assert inner.asked[0]["HTTP_X_BACKEND_INBOUND_X_TIMESTAMP"] == "1"
    call(Gatekeeper(inner, GatekeeperOptions(shunt_inbound_x_timestamp=False)), "PUT", headers={"X-Timestamp": "1"})
    assert inner.asked[1]["HTTP_X_TIMESTAMP"] == "1"


def test_a_client_cannot_name_the_moved_timestamp_itself():
    inner = Inner()
    call(Gatekeeper(inner, GatekeeperOptions()), "PUT", headers={"X-Backend-Inbound-X-Timestamp": "1"})
    assert "HTTP_X_BACKEND_INBOUND_X_TIMESTAMP" not in inner.asked[0]


def test_reserved_names_only_when_allowed():
    inner = Inner()
    call(Gatekeeper(inner, GatekeeperOptions()), headers={"X-Allow-Reserved-Names": "true"})
    assert "HTTP_X_BACKEND_ALLOW_RESERVED_NAMES" not in inner.asked[0]
    call(Gatekeeper(inner, GatekeeperOptions(allow_reserved_names_header=True)),
         headers={"X-Allow-Reserved-Names": "true"})
    assert inner.asked[1]["HTTP_X_BACKEND_ALLOW_RESERVED_NAMES"] == "true"


def test_location_is_made_relative_when_asked():
    def app(environ, start_response):
        environ["swift.leave_relative_location"] = True
        return Response(307, {"Location": "http://h:1/v1/a/c/o?x=1#f"})(environ, start_response)
    assert call(Gatekeeper(app, GatekeeperOptions())).headers["Location"] == "/v1/a/c/o?x=1#f"
    assert relative("/v1/a") == "/v1/a"


def test_factory():
    inner = Inner()
    call(filter_factory({}, shunt_inbound_x_timestamp="false")(inner), headers={"X-Timestamp": "1"})
    assert inner.asked[0]["HTTP_X_TIMESTAMP"] == "1"
