import logging
from urllib.parse import quote

import pytest

from keelstore.common import registry
from keelstore.common.errors import ConfigError
from keelstore.common.http import Request, Response
from keelstore.common.middleware.signatures import sign, url_text
from keelstore.common.middleware.tempurl import WEB_PAGE, TempUrl, TempUrlOptions, filter_factory
from test.unit.common.middleware.helpers import CountingStats, call

PATH = "/v1/AUTH_a/c/o"


class Setup:
    """tempurl over an account with key ``ka`` and a container with key ``kc``; ``inner`` answers what passes."""

    def __init__(self, response=None, account=None, container=None, **options):
        self.account = {"X-Account-Meta-Temp-Url-Key": "ka"} if account is None else account
        self.container = {"X-Container-Meta-Temp-Url-Key": "kc", "X-Container-Meta-Temp-Url-Key-2": "kc2"} if container is None else container
        self.response = response or Response(200, {"X-Object-Meta-Secret": "s", "X-Object-Meta-Public-Name": "n", "Content-Type": "text/plain"}, body=b"data")
        self.passed = []
        self.page = False
        self.log = logging.getLogger("test.tempurl")
        self.stats = CountingStats()
        self.app = TempUrl(self.inner, TempUrlOptions(**options), self.log, self.stats, lambda: 1000.0)

    def inner(self, environ, start_response):
        if environ["REQUEST_METHOD"] == "HEAD" and environ.get("swift.source") == "TU":
            headers = self.container if environ["PATH_INFO"].count("/") == 3 else self.account
            return Response(204, headers)(environ, start_response)
        self.passed.append(environ)
        if self.page:
            environ[WEB_PAGE] = True
        return self.response(environ, start_response)

    def call(self, method="GET", path=PATH, key="kc", signed=None, expires="2000", digest="sha256", query="", prefix=None, ip=None, **extra):
        target = path if prefix is None else "prefix:/v1/AUTH_a/c/" + prefix
        signature = sign(key, digest, url_text(signed or method, int(expires), target, ip))
        query = f"temp_url_sig={signature}&temp_url_expires={expires}{query}"
        if prefix is not None:
            query += "&temp_url_prefix=" + quote(prefix, encoding="latin-1")
        if ip is not None:
            query += "&temp_url_ip_range=" + quote(ip)
        return call(self.app, method, path, query=query, **extra)


@pytest.mark.parametrize("key", ["ka", "kc", "kc2"])
def test_any_key_of_account_or_container_signs(key):
    setup = Setup()
    got = setup.call(key=key)
    assert (got.status, got.body) == (200, b"data")
    environ = setup.passed[0]
    assert environ["swift.authorize_override"] is True and environ["REMOTE_USER"] == ".wsgi.tempurl"
    assert environ["swift.authorize"](Request({"PATH_INFO": "/v1/AUTH_a/c/other"})) is None
    assert environ["swift.authorize"](Request({"PATH_INFO": "/v1/AUTH_b/c/o"})).status == 401
    elsewhere = environ["swift.authorize"](Request({"PATH_INFO": "/v1/AUTH_a/d/o"}))
    assert elsewhere is None if key == "ka" else elsewhere.status == 401
    assert setup.stats.counts == {"tempurl.digests.sha256": 1}


@pytest.mark.parametrize(("method", "query"), [("GET", ""), ("GET", "format=json"), ("GET", "temp_url_prefix=x"),
                                               ("OPTIONS", "temp_url_sig=x&temp_url_expires=1")])
def test_other_requests_pass_untouched(method, query):
    setup = Setup()
    assert call(setup.app, method, PATH, query=query).status == 200
    assert "swift.authorize" not in setup.passed[0] and setup.passed[0]["QUERY_STRING"] == query


@pytest.mark.parametrize(("method", "signed", "status"), [
    ("GET", "GET", 200), ("PUT", "PUT", 200), ("POST", "POST", 200), ("DELETE", "DELETE", 200), ("HEAD", "HEAD", 200),
    ("HEAD", "GET", 200), ("HEAD", "PUT", 200), ("HEAD", "POST", 200), ("HEAD", "DELETE", 401), ("GET", "HEAD", 401),
    ("GET", "PUT", 401), ("PUT", "GET", 401), ("DELETE", "PUT", 401), ("POST", "PUT", 401), ("REPORT", "REPORT", 401),
])
def test_methods(method, signed, status):
    assert Setup().call(method, signed=signed).status == status


def test_a_head_of_a_get_url_in_2038():
    """clients.md H15, H-c: Heat's agents ask HEAD of a GET URL, and its URLs expire at the end of 32-bit time."""
    got = Setup().call("HEAD", signed="GET", expires="2147483646", digest="sha1")
    assert got.status == 200 and got.headers["Expires"] == "Tue, 19 Jan 2038 03:14:06 GMT"


def test_case_C33_the_answer_is_bare_and_the_log_says_why(caplog):
    caplog.set_level(logging.INFO, "test.tempurl")
    for check, setup, args in [
        ("expired", Setup(), {"expires": "999"}),
        ("digest-not-allowed", Setup(allowed_digests=("sha256", "sha512")), {"digest": "sha1"}),
        ("signature", Setup(), {"signed": "PUT"}),
        ("signature", Setup(), {"key": "wrong"}),
        ("no-key", Setup(account={}, container={}), {}),
        ("path", Setup(), {"path": "/v1/AUTH_a/c"}),
        ("ip-range", Setup(), {"ip": "192.0.2.0/24"}),
        ("prefix", Setup(), {"prefix": "x"}),
        ("method-not-allowed", Setup(methods=("PUT",)), {}),
    ]:
        caplog.clear()
        logged: list[str] = []
        got = setup.call(**args, **{"swift.log_info": logged, "swift.trans_id": "tx1"})
        assert (got.status, got.body) == (401, b"401 Unauthorized: Temp URL invalid\n"), check
        assert got.headers["Content-Type"] == "text/html; charset=UTF-8" and got.headers["Www-Authenticate"] == 'Swift realm="unknown"'
        assert setup.passed == [] and logged == [f"tempurl:{check}"]
        assert f"refused: {check}: " in caplog.text and "(txn: tx1)" in caplog.text


def test_security_S09_no_signature_and_no_key_is_logged(caplog):
    caplog.set_level(logging.DEBUG)
    setup = Setup()
    setup.call(key="wrong-key")
    assert sign("wrong-key", "sha256", url_text("GET", 2000, PATH)) not in caplog.text
    assert "kc" not in caplog.text and "wrong-key" not in caplog.text


def test_a_refused_head_has_no_body():
    got = Setup().call("HEAD", key="wrong")
    assert (got.status, got.body, got.headers["Content-Length"]) == (401, b"", "0")


@pytest.mark.parametrize("query", ["temp_url_sig=abc", "temp_url_expires=2000", "temp_url_sig=&temp_url_expires="])
def test_half_a_signature_is_refused(query):
    assert call(Setup().app, "GET", PATH, query=query).status == 401


@pytest.mark.parametrize("header", ["X-Copy-From", "X-Copy-From-Account", "X-Fresh-Metadata"])
@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE"])
def test_security_S01_a_signed_request_cannot_copy(method, header):
    setup = Setup()
    got = setup.call(method, headers={header: "c2/secret"})
    assert (got.status, got.body) == (400, f"The header '{header}' is not allowed in this tempurl".encode())
    assert setup.passed == []


@pytest.mark.parametrize("signed", ["COPY", "PUT"])
def test_security_S01_copy_method(signed):
    setup = Setup()
    assert setup.call("COPY", signed=signed, headers={"Destination": "c/dst"}).status == 400
    assert setup.call("COPY", signed="GET", headers={"Destination": "c/dst"}).status == 401
    assert setup.passed == []


@pytest.mark.parametrize("header", ["X-Object-Manifest", "X-Symlink-Target", "X-Symlink-Target-Account"])
def test_security_S11_a_signed_request_cannot_make_a_manifest_or_link(header):
    setup = Setup()
    assert setup.call("PUT", headers={header: "c2/secret"}).status == 400
    assert setup.call("PUT", query="&multipart-manifest=put").status == 400
    assert setup.call("PUT", key="wrong", headers={header: "c2/secret"}).status == 401
    assert setup.passed == []


def test_only_its_own_parameters_are_left():
    setup = Setup()
    setup.call("DELETE", query="&multipart-manifest=delete&version-id=1&filename=a%20b&inline&format=xml")
    names = {pair.partition("=")[0] for pair in setup.passed[0]["QUERY_STRING"].split("&")}
    assert names == {"temp_url_sig", "temp_url_expires", "filename", "inline"}


def test_headers_are_filtered_both_ways():
    setup = Setup()
    got = setup.call(headers={"X-Timestamp": "1", "X-Open-Expired": "true", "X-Other": "2"})
    assert "HTTP_X_TIMESTAMP" not in setup.passed[0] and "HTTP_X_OPEN_EXPIRED" not in setup.passed[0] and "HTTP_X_OTHER" in setup.passed[0]
    assert "X-Object-Meta-Secret" not in got.headers and got.headers["X-Object-Meta-Public-Name"] == "n"
    setup = Setup(incoming_remove_headers=("x-*",), incoming_allow_headers=("x-keep-*",), outgoing_remove_headers=("x-object-meta-secret",), outgoing_allow_headers=())
    got = setup.call(headers={"X-Gone": "1", "X-Keep-This": "2"})
    assert "HTTP_X_GONE" not in setup.passed[0] and "HTTP_X_KEEP_THIS" in setup.passed[0]
    assert "X-Object-Meta-Secret" not in got.headers and "X-Object-Meta-Public-Name" in got.headers


@pytest.mark.parametrize(("path", "query", "stored", "expected"), [
    (PATH, "", None, "attachment; filename=\"o\"; filename*=UTF-8''o"),
    ("/v1/AUTH_a/c/dir/x/", "", None, "attachment; filename=\"x\"; filename*=UTF-8''x"),
    ('/v1/AUTH_a/c/"b;c %27', "", None, "attachment; filename=\"%22b%3Bc %2527\"; filename*=UTF-8''%22b%3Bc%20%2527"),
    ("/v1/AUTH_a/c/\xc3\xa9", "", None, "attachment; filename=\"%C3%A9\"; filename*=UTF-8''%C3%A9"),
    (PATH, "", "attachment; filename=zz", "attachment; filename=zz"),
    (PATH, "&filename=", "attachment; filename=zz", "attachment; filename=zz"),
    (PATH, "&filename=aa", "attachment; filename=zz", "attachment; filename=\"aa\"; filename*=UTF-8''aa"),
    (PATH, "&filename=a%0d%0ab%26/c", None, "attachment; filename=\"a%0D%0Ab%26/c\"; filename*=UTF-8''a%0D%0Ab%26/c"),
    (PATH, "&inline", "attachment; filename=zz", "inline"),
    (PATH, "&inline=false", None, "inline"),
    (PATH, "&inline=&filename=x%C3%A9", None, "inline; filename=\"x%C3%A9\"; filename*=UTF-8''x%C3%A9"),
])
def test_disposition(path, query, stored, expected):
    setup = Setup(Response(200, {"Content-Disposition": stored, "Expires": "never"}, body=b"x"))
    got = setup.call(path=path, query=query)
    assert got.headers["Content-Disposition"] == expected
    assert got.headers["Expires"] == "Thu, 01 Jan 1970 00:33:20 GMT"


def test_an_error_gets_no_disposition():
    got = Setup(Response(404)).call()
    assert got.status == 404 and "Content-Disposition" not in got.headers


def test_a_container_is_given_as_a_page_only():
    setup = Setup()
    assert setup.call(path="/v1/AUTH_a/c", prefix="").status == 401
    setup.page = True
    got = setup.call(path="/v1/AUTH_a/c/", prefix="")
    assert got.status == 200 and got.headers["Content-Disposition"] == "inline"
    assert setup.call(path="/v1/AUTH_a/c/d/", prefix="d", query="&filename=x").headers["Content-Disposition"].startswith("inline; filename=")


def test_info_lists_what_is_allowed():
    registry.forget_all()
    filter_factory({}, allowed_digests="sha256 sha1", methods="GET PUT")
    assert registry.published()["tempurl"] == {
        "methods": ["GET", "PUT"], "incoming_remove_headers": ["x-timestamp", "x-open-expired"], "incoming_allow_headers": [],
        "outgoing_remove_headers": ["x-object-meta-*"], "outgoing_allow_headers": ["x-object-meta-public-*"],
        "allowed_digests": ["sha1", "sha256"], "deprecated_digests": ["sha1"]}


@pytest.mark.parametrize("value", ["md5", "sha256 sha3", ""])
def test_digests_that_are_none_stop_the_start(value):
    with pytest.raises(ConfigError, match="sha256"):
        filter_factory({}, allowed_digests=value)
