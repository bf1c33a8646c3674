"""read_only, name_check, crossdomain, etag_quoter, domain_remap, cname_lookup, list_endpoints."""

import logging
from types import SimpleNamespace

import pytest

from keelstore.common import registry
from keelstore.common.errors import ConfigError
from keelstore.common.http import Response
from keelstore.common.middleware import (
    cname_lookup,
    crossdomain,
    domain_remap,
    etag_quoter,
    list_endpoints,
    name_check,
    read_only,
)
from test.support import fakes
from test.unit.common.middleware.helpers import DictCache, Inner, call


class Marked:
    """An inner app whose accounts and containers have system metadata."""

    def __init__(self, account=None, container=None, **kwargs):
        self.account, self.container, self.inner = account or {}, container or {}, Inner(**kwargs)

    @property
    def asked(self):
        return self.inner.asked

    def __call__(self, environ, start_response):
        if environ.get("REMOTE_USER") == ".wsgi.pre_authed":
            path = environ["PATH_INFO"]
            kind, values = ("Container", self.container) if path.count("/") > 2 else ("Account", self.account.get(path.split("/")[2], {}))
            return Response(204, {f"X-{kind}-Sysmeta-{key}": value for key, value in values.items()})(environ, start_response)
        return self.inner(environ, start_response)


# -- read_only


@pytest.mark.parametrize(("method", "path", "status"), [
    ("PUT", "/v1/a/c/o", 405), ("POST", "/v1/a", 405), ("COPY", "/v1/a/c/o", 405), ("DELETE", "/v1/a/c", 405), ("GET", "/v1/a/c/o", 200),
    ("HEAD", "/v1/a", 200), ("OPTIONS", "/v1/a/c", 200), ("PUT", "/v1/open/c/o", 200), ("PUT", "/auth/v1.0", 200), ("POST", "/", 200),
])
def test_a_cluster_that_is_read_only(method, path, status):
    inner = Marked({"open": {"Read-Only": "false"}})
    got = call(read_only.filter_factory({}, read_only="true")(inner), method, path)
    assert got.status == status and len(inner.asked) == (status == 200)


def test_an_account_that_is_read_only():
    inner = Marked({"a": {"Read-Only": "true"}})
    app = read_only.filter_factory({}, allow_deletes="yes")(inner)
    assert [call(app, method, "/v1/a/c/o").status for method in ("PUT", "DELETE", "GET")] == [405, 200, 200]
    assert call(app, "PUT", "/v1/b/c/o").status == 200
    assert call(app, "COPY", "/v1/b/c/o", headers={"Destination-Account": "%61"}).status == 405
    assert call(app, "COPY", "/v1/a/c/o", headers={"Destination-Account": "b"}).status == 200


def test_read_only_is_told_when_on():
    registry.forget_all()
    read_only.filter_factory({})
    assert registry.published() == {}
    read_only.filter_factory({}, read_only="on")
    assert registry.published() == {"read_only": {}}


# -- name_check


@pytest.mark.parametrize(("path", "status"), [
    ("/v1/a/c/o", 200), ("/v1/a/c/o'", 400), ('/v1/a/c/"', 400), ("/v1/a/<", 400), ("/v1/a/c/`", 400), ("/v1/a/c/..", 400), ("/v1/a/./c", 400),
    ("/v1/a/c/../b", 400), ("/v1/a/c/.", 400), ("/v1/a/c/..x", 200), ("/v1/a/c/x.", 200), ("/" + "x" * 254, 200), ("/" + "x" * 255, 400),
    ("/" + "\xc3\xa9" * 254, 200), ("/info", 200),
])
def test_names(path, status):
    assert call(name_check.filter_factory({})(Inner()), "GET", path).status == status


def test_destinations_of_copies_are_names_too():
    app = name_check.filter_factory({})(Inner())
    assert call(app, "COPY", "/v1/a/c/o", headers={"Destination": "c/..%2Fx"}).status == 400
    assert call(app, "COPY", "/v1/a/c/o", headers={"Destination": "/c/x"}).status == 200
    assert call(app, "GET", "/v1/a/c/o", headers={"Destination": "c/..%2Fx"}).status == 200


def test_options_of_name_check():
    registry.forget_all()
    app = name_check.filter_factory({}, forbidden_chars="x", maximum_length="10", forbidden_regexp="")(Inner())
    assert [call(app, "GET", path).status for path in ("/v1/a/../c", "/v1/a/'", "/v1/x", "/v1/abcdefg")] == [200, 200, 400, 400]
    assert registry.published()["name_check"] == {"forbidden_chars": "x", "maximum_length": 10, "forbidden_regexp": ""}
    with pytest.raises(ConfigError, match="regular expression"):
        name_check.filter_factory({}, forbidden_regexp="(")


# -- crossdomain


def test_crossdomain():
    app = crossdomain.filter_factory({}, cross_domain_policy='<a b="c" />\n<d />')(Inner())
    got = call(app, "GET", "/crossdomain.xml")
    assert got.headers["Content-Type"] == "application/xml" and got.body.endswith(b'<cross-domain-policy>\n<a b="c" />\n<d />\n</cross-domain-policy>')
    inner = Inner()
    app = crossdomain.filter_factory({})(inner)
    for method, path in (("POST", "/crossdomain.xml"), ("GET", "/crossdomain.xml/"), ("GET", "/v1/a")):
        call(app, method, path)
    assert len(inner.asked) == 3 and b'<allow-access-from domain="*" secure="false" />' in call(app, "GET", "/crossdomain.xml").body


# -- etag_quoter


def quoted(account=None, container=None, etag="abc", method="GET", path="/v1/a/c/o", **options):
    inner = Marked({"a": {"Rfc-Compliant-Etags": account} if account else {}}, {"Rfc-Compliant-Etags": container} if container else {},
                   status=200, headers={"Etag": etag})
    return call(etag_quoter.EtagQuoter(inner, etag_quoter.EtagQuoterOptions(**options)), method, path).headers["Etag"]


@pytest.mark.parametrize(("wishes", "expected"), [
    ({}, "abc"), ({"container": "True"}, '"abc"'), ({"account": "True"}, '"abc"'), ({"account": "True", "container": "False"}, "abc"),
    ({"container": "True", "account": "False"}, '"abc"'), ({"enable_by_default": True}, '"abc"'), ({"enable_by_default": True, "container": "False"}, "abc"),
    ({"container": "True", "etag": '"abc"'}, '"abc"'), ({"container": "True", "etag": 'W/"abc"'}, 'W/"abc"'), ({"container": "True", "method": "PUT"}, '"abc"'),
    ({"container": "True", "path": "/v1/a/c"}, "abc"), ({"container": "True", "path": "/x"}, "abc"),
])
def test_case_X04_etags_are_quoted_where_it_is_wished(wishes, expected):
    assert quoted(**wishes) == expected


@pytest.mark.parametrize(("header", "value", "key", "stored"), [
    ("X-Container-Rfc-Compliant-Etags", "on", "CONTAINER", "True"), ("X-Container-Rfc-Compliant-Etags", "x", "CONTAINER", "False"),
    ("X-Container-Rfc-Compliant-Etags", "", "CONTAINER", ""), ("X-Remove-Container-Rfc-Compliant-Etags", "x", "CONTAINER", ""),
    ("X-Account-Rfc-Compliant-Etags", "true", "ACCOUNT", "True"), ("X-Remove-Account-Rfc-Compliant-Etags", "x", "ACCOUNT", ""),
])
def test_wishes_are_kept(header, value, key, stored):
    inner = Inner()
    call(etag_quoter.filter_factory({})(inner), "POST", "/v1/a", headers={header: value})
    assert inner.asked[0][f"HTTP_X_{key}_SYSMETA_RFC_COMPLIANT_ETAGS"] == stored


def test_wishes_are_shown():
    for level in ("Account", "Container"):
        inner = Inner(status=204, headers={f"X-{level}-Sysmeta-Rfc-Compliant-Etags": "True"})
        assert call(etag_quoter.filter_factory({})(inner), "HEAD", "/v1/a").headers[f"X-{level}-Rfc-Compliant-Etags"] == "True"


def test_it_is_the_destination_of_a_copy_that_counts():
    def copying(environ, start_response):
        if environ["REQUEST_METHOD"] != "HEAD":
            environ["PATH_INFO"] = "/v1/a/other/o"
        return inner(environ, start_response)

    inner = Marked({}, {"Rfc-Compliant-Etags": "True"}, status=201, headers={"Etag": "abc"})
    assert call(etag_quoter.filter_factory({})(copying), "COPY", "/bad").headers["Etag"] == '"abc"'


# -- domain_remap


def remapped(host, path="/o", **options):
    options.setdefault("storage_domain", "storage.example.com, other.net")
    inner = Inner()
    got = call(domain_remap.filter_factory({}, **options)(inner), "GET", path, headers={"Host": host})
    return inner.asked[0]["PATH_INFO"] if inner.asked else got.status


@pytest.mark.parametrize(("host", "path", "expected"), [
    ("AUTH_a.storage.example.com", "/c/o", "/v1/AUTH_a/c/o"), ("auth-a.storage.example.com:8080", "/", "/v1/AUTH_a/"),
    ("auth-a.STORAGE.Example.com", "", "/v1/AUTH_a/"), ("c.auth-a.storage.example.com", "/o/p", "/v1/AUTH_a/c/o/p"), ("c.auth-a.other.net", "//o", "/v1/AUTH_a/c//o"),
    ("Con-T.auth-a-b.storage.example.com", "/o", "/v1/AUTH_a-b/Con-T/o"), ("x.c.auth-a.storage.example.com", "/o", 400), (".auth-a.storage.example.com", "/o", 400),
    ("storage.example.com", "/v1/AUTH_a/c", "/v1/AUTH_a/c"), ("foo.storage.example.com", "/v1/x", "/v1/x"), ("service-a.other.net", "/o", "/o"),
    ("xstorage.example.com", "/o", "/o"), ("elsewhere.org", "/o", "/o"), ("[::1]:8080", "/o", "/o"), ("", "/o", "/o"),
    ("auth-a.storage.example.com", "/v1/AUTH_a/c", "/v1/AUTH_a/v1/AUTH_a/c"),
])
def test_hosts_become_paths(host, path, expected):
    assert remapped(host, path) == expected


def test_options_of_domain_remap():
    assert remapped("a.other.net", default_reseller_prefix="AUTH") == "/v1/AUTH_a/o"
    assert remapped("service-a.other.net", reseller_prefixes="AUTH, SERVICE") == "/v1/SERVICE_a/o"
    assert remapped("auth-a.other.net", "/v1/c/o", mangle_client_paths="true") == "/v1/AUTH_a/c/o"
    assert remapped("auth-a.other.net", "/v1x/o", mangle_client_paths="true") == "/v1/AUTH_a/v1x/o"
    assert remapped("auth-a.other.net", path_root="v1.0") == "/v1.0/AUTH_a/o"
    registry.forget_all()
    domain_remap.filter_factory({})
    assert registry.published() == {"domain_remap": {"default_reseller_prefix": None}}


@pytest.mark.parametrize(("location", "expected"), [
    ("/v1/AUTH_a/c/d/", "http://c.auth-a.other.net/d/"), ("http://x/v1/AUTH_a/c/d/?q=1#f", "http://x/d/?q=1#f"), ("http://x/v1/AUTH_a/other/d", "http://x/v1/AUTH_a/other/d"),
])
def test_locations_are_what_the_client_knows(location, expected):
    inner = Inner(status=301, headers={"Location": location, "Content-Location": location, "Other": location})
    headers = call(domain_remap.filter_factory({}, storage_domain="other.net")(inner), "GET", "/d", headers={"Host": "c.auth-a.other.net"}).headers
    assert headers["Location"] == expected and headers["Other"] == location


# -- cname_lookup


class Aliases:
    def __init__(self, depth=1, **found):
        self.found, self.asked, self.cache = {name.replace("_", "."): value for name, value in found.items()}, [], DictCache()
        self.inner = Inner()
        self.app = cname_lookup.CnameLookup(self.inner, cname_lookup.CnameLookupOptions(("storage.net",), depth), self.lookup, logging.getLogger("test"))

    def lookup(self, name):
        self.asked.append(name)
        if name not in self.found:
            raise OSError("no such name")
        return 300.0, self.found[name]

    def host(self, host):
        self.inner.asked.clear()
        got = call(self.app, "GET", "/o", headers={"Host": host}, **{"swift.cache": self.cache})
        return self.inner.asked[0]["HTTP_HOST"] if self.inner.asked else got.status


def test_an_alias_takes_the_place_of_the_host():
    aliases = Aliases(web_customer_org="c.auth-a.storage.net", deep_org="web.customer.org", loop_org="loop.org", none_org=None)
    assert aliases.host("web.customer.org") == "c.auth-a.storage.net" and aliases.host("WEB.customer.org:8080") == "c.auth-a.storage.net:8080"
    assert aliases.asked == ["web.customer.org"] and aliases.cache.values["cname-web.customer.org"] == "c.auth-a.storage.net"
    assert [aliases.host(host) for host in ("deep.org", "loop.org", "none.org", "unknown.org")] == [400] * 4
    asked = len(aliases.asked)
    assert aliases.host("unknown.org") == 400 and len(aliases.asked) == asked
    assert Aliases(2, web_customer_org="c.auth-a.storage.net", deep_org="web.customer.org").host("deep.org") == "c.auth-a.storage.net"


@pytest.mark.parametrize("host", ["storage.net", "c.auth-a.storage.net:80", "C.STORAGE.NET", "127.0.0.1:8080", "[::1]:8080", "10.0.0.1"])
def test_our_own_names_and_addresses_are_not_looked_up(host):
    aliases = Aliases()
    assert aliases.host(host) == host and aliases.asked == []


def test_options_of_cname_lookup():
    registry.forget_all()
    cname_lookup.filter_factory({}, nameservers="127.0.0.1:5353, 10.0.0.1", lookup_depth="3")
    assert registry.published() == {"cname_lookup": {"lookup_depth": 3}}
    for name, value in (("nameservers", "dns.example.org"), ("lookup_depth", "0")):
        with pytest.raises(ConfigError, match=name):
            cname_lookup.filter_factory({}, **{name: value})


# -- list_endpoints


class Ring:
    def __init__(self, name):
        self.name = name

    def partition(self, digest):
        return 7

    def primaries(self, part):
        return [SimpleNamespace(key=f"10.0.0.{i}:620{self.name}/d{i}", device=f"d{i}") for i in (1, 2)]


RINGS = {"object": Ring(0), "object-1": Ring(3), "container": Ring(1), "account": Ring(2)}


def endpoints(path, method="GET", policy="0"):
    inner = Inner(status=204, headers={"X-Backend-Storage-Policy-Index": policy})
    app = list_endpoints.ListEndpoints(inner, list_endpoints.ListEndpointsOptions(), fakes.fake_cluster(), lambda name: RINGS[name])
    return call(app, method, path)


@pytest.mark.parametrize(("path", "expected"), [
    ("a", ["http://10.0.0.1:6202/d1/7/a", "http://10.0.0.2:6202/d2/7/a"]), ("v1/a/c", ["http://10.0.0.1:6201/d1/7/a/c", "http://10.0.0.2:6201/d2/7/a/c"]),
    ("v1.0/a/c/o%20p/q", ["http://10.0.0.1:6200/d1/7/a/c/o%2520p/q", "http://10.0.0.2:6200/d2/7/a/c/o%2520p/q"]), ("a/c/", ["http://10.0.0.1:6201/d1/7/a/c", "http://10.0.0.2:6201/d2/7/a/c"]),
    ("v2/a", {"endpoints": ["http://10.0.0.1:6202/d1/7/a", "http://10.0.0.2:6202/d2/7/a"], "headers": {}}),
    ("v_x", ["http://10.0.0.1:6202/d1/7/v_x", "http://10.0.0.2:6202/d2/7/v_x"]),
])
def test_endpoints(path, expected):
    assert endpoints("/endpoints/" + path).json() == expected


def test_endpoints_of_an_object_of_another_policy():
    assert endpoints("/endpoints/v2/a/c/o", policy="1").json() == {
        "endpoints": ["http://10.0.0.1:6203/d1/7/a/c/o", "http://10.0.0.2:6203/d2/7/a/c/o"], "headers": {"X-Backend-Storage-Policy-Index": "1"}}


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "", 400), ("GET", "/", 400), ("GET", "v3/a", 400), ("GET", "v1", 400), ("GET", "a//o", 400),
                                                        ("POST", "a", 405), ("HEAD", "a", 405)])
def test_endpoints_that_are_none(method, path, status):
    assert endpoints("/endpoints/" + path, method).status == status


def test_other_paths_pass():
    assert endpoints("/endpointsx/a").status == endpoints("/v1/a").status == 204
