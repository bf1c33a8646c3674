import json
from urllib.parse import parse_qs

import pytest

from keelstore.common.acl import ACL
from keelstore.common.errors import ConfigError
from keelstore.common.http import Response
from keelstore.common.middleware import staticweb
from keelstore.common.middleware.staticweb import StaticWeb, StaticWebOptions, filter_factory
from keelstore.common.middleware.tempurl import WEB_PAGE
from keelstore.common.middleware.web_pages import human_size, link_query, listing_page
from keelstore.common.wsgi import Rule, broken_rules
from test.unit.common.middleware.helpers import call

FILES = {"index.html": "ROOT", "d/index.html": "SUB", "d/e/f.txt": "text", "m": "", "m2/": "", "404err": "NOT THERE", "401err": "NOT YOU",
         "<b>&'\".txt": "x", "x//y": "1", "x/./y": "1", "\N{SNOWMAN}": "1"}
TYPES = {"m": "application/directory", "m2/": "application/directory"}
WEB = {"Web-Index": "index.html", "Web-Listings": "true", "Web-Error": "err"}


class Store:
    """A container ``c`` of ``files``; ``may_list`` and ``may_read`` say what a visitor is granted."""

    def __init__(self, meta=None, files=None, may_list=True, may_read=True, exists=True, **options):
        self.meta, self.files, self.exists = WEB if meta is None else meta, FILES if files is None else files, exists
        self.may_list, self.may_read = may_list, may_read
        self.asked = []
        self.app = StaticWeb(self.inner, StaticWebOptions(**options))

    def authorize(self, request):
        path = request.environ["PATH_INFO"]
        is_object = path.count("/") > 3 and not path.endswith("/c/")
        return None if (self.may_read if is_object else self.may_list and request.environ[ACL] == "readers") else Response(401, {"Www-Authenticate": "x"})

    def inner(self, environ, start_response):
        path, method = environ["PATH_INFO"].encode("latin-1").decode(), environ["REQUEST_METHOD"]
        name = path[len("/v1/a/c"):][1:]
        if environ.get("REMOTE_USER") == ".wsgi.pre_authed":
            headers = {f"X-Container-Meta-{key}": value for key, value in self.meta.items()}
            found = Response(204 if self.exists else 404, {"X-Container-Read": "readers", **headers}) if path.count("/") > 2 else Response(204)
            return found(environ, start_response)
        self.asked.append((method, path, environ["QUERY_STRING"]))
        if not name:
            environ[ACL] = "readers"
            return (environ["swift.authorize"](_Asked(environ)) or self.listing(environ))(environ, start_response)
        denied = environ["swift.authorize"](_Asked(environ))
        if denied or name not in self.files:
            return (denied or Response(404))(environ, start_response)
        return Response(200, {"Content-Type": TYPES.get(name, "text/html"), "Etag": "e"}, body=self.files[name])(environ, start_response)

    def listing(self, environ):
        query = {key: values[0] for key, values in parse_qs(environ["QUERY_STRING"]).items()}
        prefix, found = query.get("prefix", ""), []
        for name in sorted(name for name in self.files if name.startswith(prefix)):
            head, slash, _ = name[len(prefix):].partition("/")
            if query.get("delimiter") and slash:
                entry = {"subdir": prefix + head + "/"}
                if entry not in found:
                    found.append(entry)
            else:
                found.append({"name": name, "bytes": 2000, "last_modified": "2026-01-02T03:04:05.678900", "content_type": "text/plain; charset=x"})
        return Response(200, body=json.dumps(found[:int(query.get("limit", "10000"))]), content_type="application/json")

    def get(self, path, method="GET", **extra):
        extra.setdefault("swift.authorize", self.authorize)
        return call(self.app, method, ("/v1/a/c" + path).encode().decode("latin-1"), **extra)


class _Asked:
    def __init__(self, environ):
        self.environ = environ


@pytest.mark.parametrize(("path", "status", "body"), [
    ("", 301, "/v1/a/c/"), ("/", 200, b"ROOT"), ("/index.html", 200, b"ROOT"), ("/d", 301, "/v1/a/c/d/"), ("/d/", 200, b"SUB"),
    ("/d/e", 301, "/v1/a/c/d/e/"), ("/d/e/", 200, None), ("/nope", 404, b"NOT THERE"), ("/nope/", 404, b"NOT THERE"),
    ("/m", 404, b"NOT THERE"), ("/m2", 301, "/v1/a/c/m2/"), ("//", 404, b"NOT THERE"), ("/x/", 200, None), ("/x//", 200, None),
])
def test_a_site_with_everything(path, status, body):
    for method in ("GET", "HEAD"):
        got = Store().get(path, method)
        assert got.status == status
        if status == 301:
            assert got.headers["Location"] == "http://store:8080" + body
        elif method == "HEAD":
            assert got.body == b""
        elif body is None:
            assert got.body.startswith(b"<!DOCTYPE html>") and b'<table id="listing">' in got.body
        else:
            assert got.body == body


@pytest.mark.parametrize(("meta", "path", "status", "says"), [
    ({}, "/", 200, b"["), ({}, "/nope", 404, b"Not Found"), ({}, "/m", 200, b""), ({"Web-Error": "err"}, "/nope", 404, b"Not Found"),
    ({"Web-Error": "err"}, "/", 200, b"["), ({"Web-Listings-CSS": "x"}, "/", 200, b"["),
    ({"Web-Listings": "true"}, "/", 200, b"Listing of /v1/a/c/"), ({"Web-Listings": "false"}, "/", 404, b"does not list"),
    ({"Web-Index": "none"}, "/", 404, b"<b>none</b>"), ({"Web-Index": "none", "Web-Listings": "true"}, "/", 200, b"Listing of"),
    ({"Web-Index": "index.html"}, "/d/e/", 404, b"does not list"), ({"Web-Index": "index.html", "Web-Error": "err"}, "/d/e/", 404, b"NOT THERE"),
    ({"Web-Listings": "true", "Web-Directory-Type": "text/html"}, "/x//y", 404, b"Not Found"),
    ({"Web-Listings": "true", "Web-Directory-Type": "text/html"}, "/m", 200, b""),
])
def test_what_a_container_says_of_itself(meta, path, status, says):
    got = Store(meta).get(path)
    assert got.status == status and says in got.body


def test_who_may_not_list_sees_objects_only():
    store = Store(may_list=False)
    assert (store.get("/").status, store.get("/").body, store.get("/").headers["Www-Authenticate"]) == (401, b"NOT YOU", "x")
    assert store.get("/index.html").body == b"ROOT" and store.get("/d/").body == b"SUB"
    assert (store.get("/d/e/").status, store.get("/d/e/").body) == (401, b"NOT YOU")
    assert store.get("/d").status == 301 and store.get("/d/e").status == 404
    private = Store(may_list=False, may_read=False)
    assert [private.get(path).status for path in ("", "/", "/d/", "/nope", "/index.html")] == [401] * 5
    assert b"NOT YOU" not in private.get("/").body


@pytest.mark.parametrize(("extra", "is_web"), [
    ({}, True), ({"REMOTE_USER": "test:tester"}, False), ({"REMOTE_USER": "test:tester", "headers": {"X-Web-Mode": "true"}}, True),
    ({"REMOTE_USER": "test:tester", "headers": {"X-Web-Mode": "false"}}, False), ({"REMOTE_USER": ".wsgi.tempurl"}, True),
    ({"swift.authorize": None}, False), ({"method": "POST"}, False),
])
def test_who_gets_pages(extra, is_web):
    store = Store({"Web-Listings": "true"})
    environ = dict(extra)
    if "swift.authorize" in environ:
        environ.pop("swift.authorize")
        got = call(StaticWeb(lambda e, s: Response(200, body=b"api")(e, s), StaticWebOptions()), "GET", "/v1/a/c/")
        assert got.body == b"api"
        return
    got = store.get("/", **environ)
    assert (b"<!DOCTYPE" in got.body) is is_web


def test_web_mode_of_a_container_that_is_no_site():
    assert Store({}).get("/", headers={"X-Web-Mode": "true"}).status == 404
    assert Store({}, exists=False).get("/").status == 200  # the proxy's to answer


def test_security_S17_case_X05_names_are_escaped_and_dots_are_names():
    page = Store({"Web-Listings": "true", "Web-Listings-Label": "<i>"}).get("/").body.decode()
    assert 'href="./%3Cb%3E%26%27%22%2Etxt">&lt;b&gt;&amp;&#x27;&quot;.txt</a>' in page and "<b>" not in page and "<i>" not in page
    assert 'href="./%E2%98%83">☃</a>' in page and "Listing of &lt;i&gt;/" in page
    below = Store({"Web-Listings": "true"}).get("/x/").body.decode()
    assert 'href="./%2E/">./</a>' in below and 'href=".//">/</a>' in below
    assert 'href="./y">y</a>' in Store({"Web-Listings": "true"}).get("/x/./").body.decode()


def test_security_R09_pages_forbid_scripts_and_sniffing():
    headers = Store({"Web-Listings": "true"}).get("/").headers
    assert headers["X-Content-Type-Options"] == "nosniff" and "default-src 'none'" in headers["Content-Security-Policy"]
    assert headers["Content-Type"] == "text/html; charset=UTF-8"


def test_the_shape_of_a_listing():
    page = listing_page("T/d/", "d/", [{"subdir": "d/e/"}, {"name": "d/", "bytes": 0, "last_modified": "x", "content_type": "a/b"},
                                       {"name": "d/f.txt", "bytes": 1536, "last_modified": "2026-01-02T03:04:05.678", "content_type": "text/plain;x=y"}],
                        "style/a\"b.css", "?q=1&r", True)
    assert '<title>Listing of T/d/</title>' in page and '<h1 id="title">Listing of T/d/</h1>' in page
    assert '<link rel="stylesheet" type="text/css" href="../style/a%22b.css" />' in page
    assert page.index('id="parent"') < page.index('class="item subdir"') < page.index('class="item type-text type-plain"')
    assert '<a href="../?q=1&amp;r">../</a>' in page and '<a href="./f%2Etxt?q=1&amp;r">f.txt</a>' in page
    assert '<td class="colsize">2Ki</td>' in page and '<td class="coldate">2026-01-02 03:04:05</td>' in page
    for css in ("/a.css", "//h/a.css", "https://h/a.css"):
        assert f'href="{css}"' in listing_page("t", "d/", [], css)


def test_links_carry_a_temporary_url_with_a_prefix():
    params = {"inline": "1", "temp_url_sig": "s", "temp_url_expires": "1", "temp_url_prefix": "a b", "temp_url_ip_range": "10.0.0.0/8", "filename": "x"}
    assert link_query(params) == "?temp_url_prefix=a%20b&temp_url_expires=1&temp_url_sig=s&temp_url_ip_range=10.0.0.0/8&inline"
    assert link_query({"temp_url_sig": "s", "temp_url_expires": "1"}) == ""
    store = Store({"Web-Listings": "true"})
    query = "temp_url_prefix=d/&temp_url_expires=1&temp_url_sig=s"
    page = store.get("/d/", query=query, REMOTE_USER=".wsgi.tempurl").body.decode()
    assert 'href="./e/?temp_url_prefix=d/&amp;temp_url_expires=1&amp;temp_url_sig=s"' in page and 'id="parent"' not in page
    assert 'href="../?temp_url_prefix=d/' in store.get("/d/e/", query=query, REMOTE_USER=".wsgi.tempurl").body.decode()
    assert "temp_url" not in store.get("/d/", query=query).body.decode()


def test_pages_are_marked_for_tempurl():
    from test.unit.common.middleware.helpers import Got, make_environ
    for path, expected in (("/v1/a/c/", True), ("/v1/a/c/d/e/", True), ("/v1/a/c/d/", True), ("/v1/a/c/index.html", False), ("/v1/a/c/nope", False)):
        store = Store()
        environ = make_environ("GET", path, **{"swift.authorize": store.authorize})
        Got(store.app, environ)
        assert (WEB_PAGE in environ) is expected, path


def test_what_is_asked_of_the_store_carries_nothing_of_the_query():
    store = Store()
    store.get("/d/", query="multipart-manifest=get&x=1")
    assert store.asked[1:] == [("GET", "/v1/a/c/d/index.html", "")]


@pytest.mark.parametrize(("base", "location"), [
    ("https://web.example.com", "https://web.example.com/v1/a/c/d/"), ("//web.example.com", "http://web.example.com/v1/a/c/d/"),
    ("https://", "https://store:8080/v1/a/c/d/"),
])
def test_redirects_go_to_the_front(base, location):
    assert Store(url_base=base).get("/d", query="x=1").headers["Location"] == location


def test_a_bad_url_base_stops_the_start():
    for bad in ("ftp://x", "https://h/path", "web.example.com"):
        with pytest.raises(ConfigError, match="url_base"):
            filter_factory({}, url_base=bad)


@pytest.mark.parametrize(("count", "text"), [(0, "0"), (1023, "1023"), (1024, "1Ki"), (1535, "1Ki"), (1536, "2Ki"), (1048575, "1Mi"),
                                             (1600000, "2Mi"), (5 << 40, "5Ti"), (10 ** 22, "8674Ei")])
def test_sizes_for_people(count, text):
    assert human_size(count) == text


@pytest.mark.parametrize("auth", ["tempauth", "keystoneauth", "authtoken"])
def test_security_S21_a_pipeline_that_has_it_before_authentication_does_not_start(auth):
    rules = [Rule("staticweb", other, True) for other in staticweb.AFTER] + [Rule("staticweb", other, False) for other in staticweb.BEFORE]
    assert broken_rules(["catch_errors", "staticweb", auth, "copy"], rules) == [Rule("staticweb", auth, True)]
    assert broken_rules(["catch_errors", auth, "staticweb", "copy"], rules) == []
