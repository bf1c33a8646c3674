import io
import logging
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common import registry
from keelstore.common.errors import BadRequest, ClientDisconnect
from keelstore.common.http import Request, Response
from keelstore.common.middleware.form_data import Form, boundary_of, parameters
from keelstore.common.middleware.formpost import FormPost, FormPostOptions, filter_factory
from keelstore.common.middleware.signatures import form_text, sign
from test.unit.common.middleware.helpers import CountingStats, call

BOUNDARY = "----bound"
ONE = [("file", "a.txt", b"hello", {"Content-Type": "text/plain"})]


def encode(fields, files=(), end=True):
    parts = []
    for name, value in fields:
        parts.append(f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode())
    for name, file_name, data, *headers in files:
        lines = "".join(f"{key}: {value}\r\n" for key, value in (headers[0] if headers else {}).items())
        parts.append(f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"; filename="{file_name}"\r\n{lines}\r\n'.encode() + data + b"\r\n")
    return b"".join(parts) + (f"--{BOUNDARY}--\r\n".encode() if end else b"")


class Setup:
    def __init__(self, account=None, container=None, puts=None, **options):
        self.account = {"X-Account-Meta-Temp-Url-Key": "ka"} if account is None else account
        self.container = {"X-Container-Meta-Temp-Url-Key-2": "kc"} if container is None else container
        self.puts = puts or {}  # path: answer instead of 201
        self.stored: dict = {}
        self.environs: list = []
        self.stats = CountingStats()
        self.app = FormPost(self.inner, FormPostOptions(**options), logging.getLogger("test.formpost"), self.stats, lambda: 1000.0)

    def inner(self, environ, start_response):
        path = environ["PATH_INFO"]
        if environ["REQUEST_METHOD"] == "HEAD":
            return Response(204, self.container if path.count("/") == 3 else self.account)(environ, start_response)
        self.environs.append(environ)
        if environ["REQUEST_METHOD"] != "PUT":
            return Response(200, body=b"passed")(environ, start_response)
        denied = environ["swift.authorize"](Request(environ))
        if denied or path in self.puts:
            return (denied or self.puts[path])(environ, start_response)
        data = environ["wsgi.input"].read()
        self.stored[path] = (data, environ.get("CONTENT_TYPE"))
        return Response(201, {"Access-Control-Allow-Origin": "o", "Etag": "e"}, body=b"")(environ, start_response)

    def post(self, files=ONE, path="/v1/a/c/p", key="kc", size="1000", count="10", expires="2000", redirect=None, digest="sha256", signature=None,
             extra=(), end=True, drop=(), **kwargs):
        made = sign(key, digest, form_text(path, redirect or "", size, count, expires)) if signature is None else signature
        fields = [("max_file_size", size), ("max_file_count", count), ("expires", expires), ("signature", made), *extra]
        if redirect is not None:
            fields.insert(0, ("redirect", redirect))
        return call(self.app, "POST", path, body=encode([pair for pair in fields if pair[0] not in drop], files, end),
                    headers={"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}, **kwargs)


def test_a_file_is_stored():
    setup = Setup()
    got = setup.post(query="multipart-manifest=put")
    assert (got.status, got.body, got.headers["Content-Type"]) == (201, b"201 Created", "text/plain")
    assert setup.stored == {"/v1/a/c/pa.txt": (b"hello", "text/plain")} and got.headers["Access-Control-Allow-Origin"] == "o" and "Etag" not in got.headers
    environ = setup.environs[0]
    assert environ["swift.source"] == "FP" and environ["REMOTE_USER"] == ".wsgi.formpost" and environ["QUERY_STRING"] == ""
    assert environ["HTTP_USER_AGENT"] == "FormPost" and setup.stats.counts == {"formpost.digests.sha256": 1}


@pytest.mark.parametrize(("path", "stored"), [("/v1/a/c", "/v1/a/c/a.txt"), ("/v1/a/c/", "/v1/a/c/a.txt"), ("/v1/a/c/d/", "/v1/a/c/d/a.txt")])
def test_where_it_goes(path, stored):
    setup = Setup()
    assert setup.post(path=path).status == 201 and list(setup.stored) == [stored]


@pytest.mark.parametrize(("key", "digest"), [("ka", "sha1"), ("kc", "sha256"), ("kc", "sha512")])
def test_keys_and_digests(key, digest):
    assert Setup().post(key=key, digest=digest).status == 201


def test_a_signature_reaches_its_container_only():
    setup = Setup()
    setup.post(key="kc")
    authorize = setup.environs[0]["swift.authorize"]
    assert authorize(Request({"PATH_INFO": "/v1/a/c/x"})) is None and authorize(Request({"PATH_INFO": "/v1/a/d/x"})).status == 401
    setup.post(key="ka")
    authorize = setup.environs[1]["swift.authorize"]
    assert authorize(Request({"PATH_INFO": "/v1/a/d/x"})) is None and authorize(Request({"PATH_INFO": "/v1/b/c/x"})).status == 401


@pytest.mark.parametrize(("changes", "check", "says"), [
    ({"key": "wrong"}, "signature", b"FormPost: Invalid Signature"), ({"signature": ""}, "no-signature", b"FormPost: Invalid Signature"),
    ({"signature": "zz"}, "signature-form", b"FormPost: Invalid Signature"), ({"expires": "999"}, "expired", b"FormPost: Form Expired"),
    ({"drop": ("expires",)}, "expired", b"FormPost: Form Expired"), ({"path": "/v1/a"}, "path", b"FormPost: Invalid Signature"),
    ({"path": "/v1.0/a/c/p"}, "path", b"FormPost: Invalid Signature"), ({"digest": "sha1"}, "digest-not-allowed", b"FormPost: Invalid Signature"),
    ({"redirect": "http://h/x", "key": "wrong"}, "signature", b"FormPost: Invalid Signature"), ({"extra": [("signature", "0" * 64)]}, "signature", b"FormPost: Invalid Signature"),
    ({"extra": [("max_file_size", "5000")]}, "signature", b"FormPost: Invalid Signature"), ({"path": "/v1/.a/c/p", "key": "x"}, "signature", b"FormPost: Invalid Signature"),
])
def test_refusals_are_bare_and_logged(changes, check, says, caplog):
    caplog.set_level(logging.INFO, "test.formpost")
    logged: list[str] = []
    setup = Setup(allowed_digests=("sha256", "sha512"))
    got = setup.post(**changes, **{"swift.log_info": logged, "swift.trans_id": "tx1"})
    assert (got.status, got.body, got.headers["Www-Authenticate"]) == (401, says, 'Swift realm="unknown"')
    assert logged == [f"formpost:{check}"] and f"Form refused: {check}: " in caplog.text and "(txn: tx1)" in caplog.text
    assert setup.stored == {} and "kc" not in caplog.text


def test_without_a_key():
    assert Setup(account={}, container={}).post().body == b"FormPost: Invalid Signature"


@pytest.mark.parametrize(("changes", "says"), [
    ({"size": "x"}, b"FormPost: max_file_size not an integer"), ({"count": "x"}, b"FormPost: max_file_count not an integer"),
    ({"expires": "x", "signature": "0" * 64}, b"FormPost: expired not an integer"), ({"size": "4"}, b"FormPost: max_file_size exceeded"),
    ({"size": "-1"}, b"FormPost: max_file_size exceeded"), ({"count": "0"}, b"400 Bad Request\r\nFormPost: Max File Count Exceeded"),
    ({"files": []}, b"400 Bad Request\r\nFormPost: No Files To Process"), ({"files": [("f", "", b"")]}, b"400 Bad Request\r\nFormPost: No Files To Process"),
    ({"extra": [("x_delete_at", "x")]}, b"FormPost: x_delete_at not an integer: Unix timestamp required."),
    ({"extra": [("x_delete_after", "1.5")]}, b"FormPost: x_delete_after not an integer: Number of seconds required."),
    ({"redirect": "http://h/\r\nX: y"}, b"FormPost: control character or blank in redirect"), ({"end": False}, b"FormPost: the form is cut off"),
    ({"extra": [(str(number), "x") for number in range(300)]}, b"FormPost: too many fields"),
    ({"extra": [("content-type", "a\x01b")]}, b"FormPost: control character in a field"),
])
def test_what_is_no_good_form(changes, says):
    setup = Setup()
    got = setup.post(**changes)
    assert (got.status, got.body, got.headers["Content-Type"]) == (400, says, "text/plain")
    if changes.get("redirect") is None:
        assert setup.stored == {}


def test_limits_are_inclusive():
    assert Setup().post(size="5", count="1").status == 201
    setup = Setup()
    assert setup.post(files=[*ONE, ("g", "b", b"2")], count="1").status == 400 and list(setup.stored) == ["/v1/a/c/pa.txt"]


def test_case_C19_each_file_has_its_own_type():
    setup = Setup()
    setup.post(files=[("f", "1", b"1", {"Content-Type": "text/plain", "Content-Encoding": "gzip"}), ("f", "2", b"2", {"Content-Type": "image/png"}), ("f", "3", b"3")])
    assert [kind for _, kind in setup.stored.values()] == ["text/plain", "image/png", None]
    assert setup.environs[0]["HTTP_CONTENT_ENCODING"] == "gzip" and "HTTP_CONTENT_ENCODING" not in setup.environs[1]
    setup.post(extra=[("Content-Type", "form/type"), ("x_delete_after", "5"), ("x_delete_at", "7")])
    assert setup.stored["/v1/a/c/pa.txt"][1] == "form/type" and setup.environs[-1]["HTTP_X_DELETE_AFTER"] == "5" and setup.environs[-1]["HTTP_X_DELETE_AT"] == "7"


def test_case_C20_a_refused_upload_shows_why():
    setup = Setup(puts={"/v1/a/c/pa.txt": Response(413, body="Upload exceeds quota.")})
    got = setup.post(files=[*ONE, ("g", "b", b"2")])
    assert (got.status, got.body) == (413, b"Upload exceeds quota.") and setup.stored == {}
    query = parse_qs(urlsplit(setup.post(redirect="http://h/x").headers["Location"]).query)
    assert query == {"status": ["413"], "message": ["Upload exceeds quota."]}


@pytest.mark.parametrize(("redirect", "location"), [("http://h/x", "http://h/x?status=201&message="), ("http://h/x?a=b", "http://h/x?a=b&status=201&message=")])
def test_redirects(redirect, location):
    got = Setup().post(redirect=redirect)
    assert (got.status, got.headers["Location"], got.headers["Access-Control-Allow-Origin"]) == (303, location, "o")
    assert Setup().post(redirect="http://h/x", count="0").headers["Location"] == "http://h/x?status=400&message=Max%20File%20Count%20Exceeded"


def test_security_R09_the_page_of_a_redirect_is_escaped():
    assert b"<script>" not in Setup().post(redirect="http://h/'><script>").body


@pytest.mark.parametrize("name", ["X-Copy-From", "x-copy-from-account", "X-Fresh-Metadata", "X-Object-Manifest", "X-Symlink-Target"])
def test_security_S01_a_form_cannot_copy_or_link(name):
    setup = Setup()
    assert setup.post(extra=[(name, "c2/secret")]).status == 400
    assert setup.post(extra=[(name.lower().replace("-", "_"), "c2/secret")]).status == 400
    assert setup.post(files=[("f", "a", b"", {name: "c2/secret"})]).status == 400
    assert setup.stored == {}


def test_security_R04_a_form_stays_out_of_reserved_names():
    setup = Setup(container={}, account={})
    assert setup.post(path="/v1/.expiring_objects/c/p").status == 401
    # a NUL is refused by the proxy, whatever signed it: names go to it as they are
    setup = Setup()
    setup.post(files=[("f", "\x00x", b"1")])
    assert list(setup.stored) == ["/v1/a/c/p\x00x"]


@pytest.mark.parametrize(("method", "kind"), [("PUT", f"multipart/form-data; boundary={BOUNDARY}"), ("POST", "multipart/form-data"), ("POST", "text/plain"), ("POST", None),
                                              ("POST", "multipart/mixed; boundary=x")])
def test_other_requests_pass(method, kind):
    setup = Setup()
    call(setup.app, method, "/v1/a/c/p", headers={"Content-Type": kind} if kind else {}, body=b"x", **{"swift.authorize": lambda request: None})
    assert len(setup.environs) == 1


@pytest.mark.parametrize("body", [b"", b"garbage\r\nmore", b"--other\r\n", b"--" + BOUNDARY.encode(), b"--" + BOUNDARY.encode() + b"x\r\n\r\n",
                                  b"--" + BOUNDARY.encode() + b"\r\n" + b"X: " + b"y" * 20000, b"--" + BOUNDARY.encode() + b"\r\nX: y\r\n\r\nabc"])
def test_bodies_that_are_no_forms(body):
    got = call(Setup().app, "POST", "/v1/a/c/p", body=body, headers={"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"})
    assert got.status == 400 and got.body.startswith(b"FormPost: ")


# -- reading forms


class Dribble(io.BytesIO):
    """A body that gives a few bytes at a time."""

    step = 1

    def read1(self, size=-1):
        return super().read(min(size, self.step))


@given(st.lists(st.tuples(st.text("ab", max_size=3), st.binary(max_size=60) | st.just(b"\r\n----boun\r\n--")), max_size=4), st.integers(1, 40))
def test_parts_are_read_whole_however_they_arrive(files, step):
    if any(b"\r\n--" + BOUNDARY.encode() in data for _, data in files):
        return
    body = Dribble(b"\r\n" + encode([], [("f", name, data) for name, data in files]) + b"epilogue")
    body.step = step
    if not files:
        body = Dribble(encode([], []))
    assert [(part.file_name, part.read()) for part in Form(body, BOUNDARY.encode())] == files


@given(st.binary(max_size=200), st.integers(0, 400))
def test_any_octets_are_a_form_or_refused(data, cut):
    whole = encode([("a", "b")], ONE)
    for body in (data, whole[:cut] + data, whole[:cut], whole[:cut] + data + whole[cut:]):
        try:
            for part in Form(io.BytesIO(body), BOUNDARY.encode()):
                part.value(10)
        except (BadRequest, ClientDisconnect):
            pass


def test_a_cut_form_is_never_whole():
    whole = encode([("a", "b")], ONE)
    for cut in range(len(whole) - 4):
        with pytest.raises((BadRequest, ClientDisconnect)):
            for part in Form(io.BytesIO(whole[:cut]), BOUNDARY.encode()):
                part.read()


@pytest.mark.parametrize(("value", "found"), [
    ('form-data; name="a b"; filename="x;y"', {"name": "a b", "filename": "x;y"}), ("form-data; name=a;filename=b", {"name": "a", "filename": "b"}),
    ('form-data; NAME="q\\"r"; filename="C:\\dir\\f"', {"name": 'q"r', "filename": "C:\\dir\\f"}), ("form-data", {}),
])
def test_parameters(value, found):
    assert parameters(value) == found


@pytest.mark.parametrize(("kind", "boundary"), [("multipart/form-data; boundary=x", b"x"), ('Multipart/Form-Data; Boundary="x y"', b"x y"), ("multipart/form-data", None),
                                                ("multipart/form-data; boundary=", None), ("text/plain; boundary=x", None), ("multipart/form-data; boundary=" + "x" * 201, None)])
def test_boundaries(kind, boundary):
    assert boundary_of(kind) == boundary


def test_info():
    registry.forget_all()
    filter_factory({}, allowed_digests="sha512")
    assert registry.published() == {"formpost": {"allowed_digests": ["sha512"]}}
