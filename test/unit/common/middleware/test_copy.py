import io
import json

import pytest

from keelstore.common import concurrency
from keelstore.common.errors import ClientDisconnect
from keelstore.common.http import Request, Response
from keelstore.common.limits import Limits
from keelstore.common.middleware.copy import Copy, CopyOptions, filter_factory
from test.unit.common.middleware.helpers import Got, Inner, call, make_environ

SOURCE = {
    "Content-Length": "5", "Etag": "e5", "Content-Type": "a/b", "X-Object-Meta-A": "1", "X-Object-Sysmeta-S": "s",
    "X-Object-Transient-Sysmeta-T": "t", "X-Object-Sysmeta-Container-Update-Override-Etag": "ov", "X-Timestamp": "1",
    "X-Backend-Timestamp": "2", "Last-Modified": "LM", "X-Delete-At": "99", "Content-Disposition": "cd",
    "X-Backend-Storage-Policy-Index": "3", "Accept-Ranges": "bytes", "X-Object-Version-Id": "vid", "Date": "D",
    "X-Trans-Id": "tx", "Vary": "v", "X-Robots-Tag": "r",
}  # fmt: skip


class Store:
    """An inner app: GET gives the source, PUT reads its body as the proxy does."""

    def __init__(self, status=200, headers=None, body=b"hello", answer=None):
        self.status, self.headers, self.body, self.answer = status, SOURCE if headers is None else headers, body, answer
        self.gets, self.puts, self.bodies = [], [], []

    def __call__(self, environ, start_response):
        if environ["REQUEST_METHOD"] == "GET":
            self.gets.append(environ)
            body = self.body if isinstance(self.body, bytes) else None
            response = Response(self.status, dict(self.headers), body, None if body is not None else self.body)
            return response(environ, start_response)
        self.puts.append(environ)
        request = Request(environ)
        try:
            data = request.read_body(1 << 30)
        except ClientDisconnect:
            return Response(499)(environ, start_response)
        if len(data) != request.content_length:
            return Response(499)(environ, start_response)
        self.bodies.append(data)
        return (self.answer or Response(201, {"Etag": "new", "Last-Modified": "now"}, b""))(environ, start_response)


def do(store, method="COPY", path="/v1/a/c/o", query="", body=b"", limits=None, frequency=10.0, extra=None, **headers):
    app = Copy(store, CopyOptions(frequency), limits)
    return call(app, method, path, query=query, body=body,
                headers={name.replace("_", "-"): value for name, value in headers.items()}, **(extra or {}))


def sent(environ):
    return {name: value for name, value in Request(environ).header_items() if name != "Host"}


def test_copy_reads_the_source_and_puts_the_destination():
    store = Store()
    got = do(store, Destination="c2/o2")
    assert got.status == 201
    source, target = store.gets[0], store.puts[0]
    assert (source["PATH_INFO"], source["QUERY_STRING"], source["HTTP_X_NEWEST"]) == ("/v1/a/c/o", "", "true")
    assert source["swift.source"] == target["swift.source"] == "SSC"
    assert (target["REQUEST_METHOD"], target["PATH_INFO"], target["swift.orig_req_method"]) == ("PUT", "/v1/a/c2/o2", "COPY")
    assert store.bodies == [b"hello"]
    assert sent(target) == {
        "Content-Length": "5", "Content-Type": "a/b", "Etag": "e5", "X-Object-Meta-A": "1", "X-Object-Sysmeta-S": "s",
        "X-Object-Transient-Sysmeta-T": "t", "X-Object-Sysmeta-Container-Update-Override-Etag": "ov", "X-Delete-At": "99",
        "Content-Disposition": "cd", "X-Robots-Tag": "r"}
    shown = {name: value for name, value in got.headers.items() if name.startswith("X-")}
    assert shown == {"X-Copied-From": "c/o", "X-Copied-From-Account": "a", "X-Copied-From-Last-Modified": "LM",
                     "X-Copied-From-Version-Id": "vid", "X-Object-Meta-A": "1", "X-Delete-At": "99"}
    assert got.headers["Etag"] == "new" and got.body == b""


def test_put_with_copy_from():
    store = Store()
    got = do(store, "PUT", "/v1/a/c/o", X_Copy_From="/c2/o 2%20%C3%A9", X_Copy_From_Account="b%20")
    assert store.gets[0]["PATH_INFO"] == "/v1/b /c2/o 2 \xc3\xa9"
    assert store.puts[0]["PATH_INFO"] == "/v1/a/c/o"
    assert got.headers["X-Copied-From"] == "c2/o%202%20%C3%A9" and got.headers["X-Copied-From-Account"] == "b%20"
    assert "swift.orig_req_method" not in store.puts[0]


def test_headers_of_the_request_win():
    store = Store()
    do(store, Destination="/c2/o%202/x", Destination_Account="b", X_Object_Meta_B="2", X_Object_Meta_A="mine",
       Content_Type="x/y", X_Delete_At="55")
    assert store.puts[0]["PATH_INFO"] == "/v1/b/c2/o 2/x"
    found = sent(store.puts[0])
    assert (found["X-Object-Meta-A"], found["X-Object-Meta-B"], found["Content-Type"], found["X-Delete-At"]) == (
        "mine", "2", "x/y", "55")
    assert "X-Object-Meta-B" not in sent(store.gets[0]) and "Content-Type" not in sent(store.gets[0])


def test_fresh_metadata_copies_sysmeta_only():
    store = Store()
    do(store, Destination="c2/o2", X_Fresh_Metadata="true", X_Object_Meta_B="2")
    assert sent(store.puts[0]) == {
        "Content-Length": "5", "Content-Type": "a/b", "Etag": "e5", "X-Object-Sysmeta-S": "s", "X-Object-Meta-B": "2",
        "X-Object-Sysmeta-Container-Update-Override-Etag": "ov", "X-Fresh-Metadata": "true"}


def test_conditions_and_range_are_for_the_source():
    conditions = {"If_Match": "m", "If_None_Match": "n", "If_Modified_Since": "d", "If_Unmodified_Since": "u",
                  "Range": "bytes=0-2"}
    store = Store(206, {**SOURCE, "Content-Length": "3", "Content-Range": "bytes 0-2/5"}, b"hel")
    assert do(store, Destination="c/o2", **conditions).status == 201
    for name, value in conditions.items():
        assert sent(store.gets[0])[name.replace("_", "-")] == value
        assert name.replace("_", "-") not in sent(store.puts[0])
    target = sent(store.puts[0])
    assert target["Content-Length"] == "3"
    for name in ("Etag", "Content-Range", "X-Object-Sysmeta-Container-Update-Override-Etag"):
        assert name not in target


@pytest.mark.parametrize("name", ["X-Backend-Storage-Policy-Index", "X-Timestamp", "X-Object-Manifest", "X-Object-Meta-Z",
                                  "Accept", "X-Copy-From", "X-Delete-After", "Etag"])
def test_nothing_else_of_the_client_reaches_the_source(name):
    store = Store()
    do(store, "PUT", X_Copy_From="c/o", **({} if name == "X-Copy-From" else {name.replace("-", "_"): "evil"}))
    assert set(sent(store.gets[0])) == {"X-Newest", "Content-Length"}


@pytest.mark.parametrize(("headers", "text"), [
    ({}, "Destination header required"), ({"Destination": ""}, "Destination header required"),
    *[({"Destination": bad}, "Destination header must be of the form <container name>/<object name>")
      for bad in ("/", "c", "/c", "/c/", "//c/o", "%2F", "/%2Fc")],
    ({"Destination": "c/o", "Destination_Account": "x/y"}, "Account name cannot contain slashes"),
    ({"Destination": "c/o", "Destination_Account": "x%2Fy"}, "Account name cannot contain slashes"),
    ({"Destination": "c/o", "Destination_Account": ""}, "Account name cannot be empty"),
])
def test_malformed_copies_are_412(headers, text):
    store = Store()
    got = do(store, **headers)
    assert (got.status, got.body.decode()) == (412, text)
    assert not store.gets and not store.puts


@pytest.mark.parametrize("value", ["c", "/", "/c/", "//c/o"])
def test_malformed_sources_are_412(value):
    got = do(Store(), "PUT", X_Copy_From=value)
    assert (got.status, got.body) == (412, b"X-Copy-From header must be of the form <container name>/<object name>")


@pytest.mark.parametrize(("value", "path"), [
    ("c//o", "/v1/a/c//o"), ("c/o?x=1", "/v1/a/c/o?x=1"), ("%2Fc%2Fo", "/v1/a/c/o"), ("c%2Fo", "/v1/a/c/o"),
    ("/c/o/", "/v1/a/c/o/"), ("c/%FF", "/v1/a/c/\xff")])
def test_odd_destinations(value, path):
    store = Store()
    assert do(store, Destination=value).status == 201
    assert store.puts[0]["PATH_INFO"] == path


@pytest.mark.parametrize(("method", "headers"), [("COPY", {"Destination": "c/o"}), ("PUT", {"X_Copy_From": "c/o"})])
def test_a_body_is_400(method, headers):
    store = Store()
    got = do(store, method, body=b"xx", **headers)
    assert (got.status, got.body) == (400, b"Copy requests require a zero byte body")
    environ = make_environ(method, headers={**{k.replace("_", "-"): v for k, v in headers.items()},
                                            "Transfer-Encoding": "chunked"}, **{"wsgi.input": io.BytesIO(b"x")})
    assert Got(Copy(store, CopyOptions()), environ).status == 400
    assert not store.gets and not store.puts
    environ["wsgi.input"] = io.BytesIO(b"")
    assert Got(Copy(store, CopyOptions()), environ).status == 201
    assert "Transfer-Encoding" not in sent(store.puts[0])


@pytest.mark.parametrize("user", [".wsgi.tempurl", ".wsgi.formpost"])
def test_a_signed_request_may_not_copy(user):
    """S01."""
    for method, headers in (("PUT", {"X_Copy_From": "c2/secret"}), ("COPY", {"Destination": "c/dst"})):
        store = Store()
        assert do(store, method, extra={"REMOTE_USER": user}, **headers).status == 400
        assert not store.gets and not store.puts


@pytest.mark.parametrize(("method", "path", "headers"), [
    ("COPY", "/v1/a/c", {"Destination": "c/o"}), ("COPY", "/v1/a", {}), ("PUT", "/v1/a/c", {"X_Copy_From": "c/o"}),
    ("PUT", "/v1/a/c/o", {}), ("PUT", "/v1/a/c/o", {"X_Copy_From": ""}), ("POST", "/v1/a/c/o", {"X_Copy_From": "c/o"}),
    ("GET", "/v1/a/c/o", {"Destination": "c/o"}), ("COPY", "/v1/a/c/", {"Destination": "c/o"}), ("COPY", "/info", {}),
    ("COPY", "/v1//c/o", {"Destination": "c/o"}),
])
def test_other_requests_pass(method, path, headers):
    inner = Inner(body=b"inner")
    assert do(inner, method, path, **headers).body == b"inner"
    assert (inner.asked[0]["REQUEST_METHOD"], inner.asked[0]["PATH_INFO"]) == (method, path)


@pytest.mark.parametrize("status", [304, 401, 403, 404, 412, 416, 503])
def test_errors_of_the_source_are_returned(status):
    store = Store(status, {"Content-Type": "text/html", "X-Why": "w"}, b"nah" if status != 304 else b"")
    for query in ("", "heartbeat=on"):
        got = do(store, Destination="c/o2", query=query)
        assert got.status == status and got.headers["X-Why"] == "w" and not store.puts


@pytest.mark.parametrize("length", ["6", "99999999999"])
def test_too_big_a_source_is_413(length):
    closed = []

    class Body:
        def __iter__(self):
            return iter([b"hello!"])

        def close(self):
            closed.append(True)
    store = Store(headers={"Content-Length": length}, body=Body())
    got = do(store, Destination="c/o2", limits=Limits(max_file_size=5))
    assert got.status == 413 and closed and not store.puts


def test_unknown_length_is_413():
    assert do(Store(headers={}, body=iter([b"x"])), Destination="c/o2").status == 413


@pytest.mark.parametrize("parts", [[b"he"], [b"hello", b"!"], []])
def test_a_source_of_another_length_stores_nothing(parts):
    store = Store(body=iter(parts))
    if parts == [b"hello", b"!"]:
        assert do(store, Destination="c/o2").status == 201  # read no further than its length
        return
    assert do(store, Destination="c/o2").status == 503
    assert not store.bodies


def test_a_source_that_breaks_off_stores_nothing():
    def parts():
        yield b"he"
        raise OSError("gone")
    store = Store(body=parts())
    assert do(store, Destination="c/o2").status == 503
    assert not store.bodies


def test_the_source_is_closed_and_streams_in_parts():
    class Body:
        closed = 0

        def __iter__(self):
            return iter([b"", b"h", b"", b"ell", b"o"])

        def close(self):
            Body.closed += 1
    store = Store(body=Body())
    assert do(store, Destination="c/o2").status == 201
    assert store.bodies == [b"hello"] and Body.closed


def test_errors_of_the_put_are_returned_without_tales_of_copying():
    got = do(Store(answer=Response(422, body="fail")), Destination="c/o2")
    assert (got.status, got.body) == (422, b"fail")
    assert "X-Copied-From" not in got.headers


SLO = {"Content-Length": "2", "Etag": '"slo"', "X-Static-Large-Object": "True", "X-Manifest-Etag": "m", "Content-Type": "t",
       "X-Object-Sysmeta-Slo-Etag": "x", "X-Object-Sysmeta-Container-Update-Override-Etag": "ov"}
DLO = {"Content-Length": "0", "Etag": '"dlo"', "X-Object-Manifest": "c/p", "Content-Type": "t"}


@pytest.mark.parametrize(("headers", "query", "source_query", "query_of_put", "there", "absent"), [
    (SLO, "", "", "", (), ("Etag", "X-Static-Large-Object", "X-Manifest-Etag",
                           "X-Object-Sysmeta-Container-Update-Override-Etag")),
    (SLO, "multipart-manifest=get", "multipart-manifest=get&format=raw", "multipart-manifest=put", (),
     ("Etag", "X-Static-Large-Object")),
    (DLO, "", "", "", (), ("Etag", "X-Object-Manifest")),
    (DLO, "multipart-manifest=get", "multipart-manifest=get&format=raw", "", ("Etag", "X-Object-Manifest"), ()),
    (SOURCE, "multipart-manifest=get&version-id=12&symlink=get&foo=bar",
     "multipart-manifest=get&symlink=get&version-id=12&format=raw", "foo=bar", ("Etag",), ()),
])
def test_large_objects_and_parameters(headers, query, source_query, query_of_put, there, absent):
    store = Store(headers=headers, body=b"hello"[: int(headers["Content-Length"])])
    assert do(store, Destination="c/o2", query=query).status == 201
    assert (store.gets[0]["QUERY_STRING"], store.puts[0]["QUERY_STRING"]) == (source_query, query_of_put)
    for name in there:
        assert name in sent(store.puts[0])
    for name in absent:
        assert name not in sent(store.puts[0])


def test_authorization_is_the_clients_own():
    store = Store()
    authorize = lambda request: None  # noqa: E731
    do(store, Destination="c/o2", X_Auth_Token="t", extra={"REMOTE_USER": "u,g", "swift.authorize": authorize})
    for environ in (store.gets[0], store.puts[0]):
        assert environ["REMOTE_USER"] == "u,g" and environ["swift.authorize"] is authorize
        assert "swift.authorize_override" not in environ and "swift_owner" not in environ


# -- heartbeat ---------------------------------------------------------------------------------------------------------


def in_green_thread(function):
    return concurrency.spawn(function).wait()


def test_heartbeat_as_json():
    got = in_green_thread(lambda: do(Store(), Destination="c/o2", query="heartbeat=on", Accept="application/json"))
    assert got.status == 202 and got.headers["Content-Type"] == "application/json"
    assert "Content-Length" not in got.headers
    assert got.body.startswith(b" {")
    assert json.loads(got.body) == {
        "Response Status": "201 Created", "Response Body": "", "Etag": "new", "Last-Modified": "now", "Content-Length": "0",
        "Content-Type": "text/html; charset=UTF-8",
        "X-Copied-From-Account": "a", "X-Copied-From": "c/o", "X-Copied-From-Last-Modified": "LM",
        "X-Copied-From-Version-Id": "vid", "X-Object-Meta-A": "1", "X-Delete-At": "99", "Errors": []}


def test_heartbeat_as_text_with_a_failure():
    got = in_green_thread(lambda: do(Store(answer=Response(422, body="fail")), Destination="c/o2", query="heartbeat=on"))
    assert got.status == 202 and got.headers["Content-Type"] == "text/plain"
    assert got.body == (b" Content-Length: 4\nContent-Type: text/html; charset=UTF-8\nResponse Body: fail\n"
                        b"Response Status: 422 Unprocessable Entity\nErrors:\nc/o, 422 Unprocessable Entity\n")


def test_heartbeat_beats_while_the_put_takes_its_time():
    release = concurrency.Event()

    class Slow(Store):
        def __call__(self, environ, start_response):
            if environ["REQUEST_METHOD"] == "PUT":
                release.wait()
            return super().__call__(environ, start_response)

    def run():
        app = Copy(Slow(), CopyOptions(0.01))
        parts = iter(Got(app, make_environ("COPY", "/v1/a/c/o", "heartbeat=on", headers={"Destination": "c/o2"}),
                         iterate=False).raw)
        beats = [next(parts) for _ in range(4)]
        release.set()
        return beats, b"".join(parts)
    beats, rest = in_green_thread(run)
    assert beats == [b" "] * 4 and b"Response Status: 201 Created" in rest


def test_heartbeat_tells_of_an_exception():
    class Broken(Store):
        def __call__(self, environ, start_response):
            if environ["REQUEST_METHOD"] == "PUT":
                raise RuntimeError("detail")
            return super().__call__(environ, start_response)
    got = in_green_thread(lambda: do(Broken(), Destination="c/o2", query="heartbeat=on"))
    assert b"Response Status: 500 Internal Error" in got.body and b"detail" not in got.body


# -- OPTIONS -----------------------------------------------------------------------------------------------------------


def test_options_of_an_object_name_copy():
    inner = Inner(headers={"Allow": "GET, PUT", "Access-Control-Allow-Methods": "GET, PUT"})
    got = do(inner, "OPTIONS")
    assert got.headers["Allow"] == got.headers["Access-Control-Allow-Methods"] == "GET, PUT, COPY"
    for path in ("/v1/a/c", "/v1/a"):
        assert do(inner, "OPTIONS", path).headers["Allow"] == "GET, PUT"


def test_factory(tmp_path):
    (tmp_path / "swift.conf").write_text("[swift-hash]\nswift_hash_path_suffix = x\n[swift-constraints]\nmax_file_size = 7\n")
    app = filter_factory({"swift_dir": str(tmp_path), "log_file": "-"}, yield_frequency="3")(Inner())
    assert app.limits.max_file_size == 7 and app.options.yield_frequency == 3
