"""dlo over objects in memory: what the live tests do not reach."""

from dataclasses import replace
from hashlib import md5

import pytest

from keelstore.common.errors import ConfigError
from keelstore.common.http import Response
from keelstore.common.limits import Limits
from keelstore.common.middleware.dlo import Dlo, DloOptions, filter_factory, named
from keelstore.common.segment_reader import SegmentError
from test.unit.common.middleware.helpers import Got, Inner, call, make_environ
from test.unit.common.middleware.objects_app import ObjectsApp


class Setup:
    """A manifest ``m`` over d/1 .. d/``count``; listings come in pages of three."""

    def __init__(self, count=2, **options):
        self.store = ObjectsApp()
        options.setdefault("rate_limit_segments_per_sec", 0)
        self.app = Dlo(self.store, DloOptions(**options), replace(Limits(), container_listing_limit=3))
        for number in range(1, count + 1):
            self.store.put(f"/d/{number}", b"%d" % number * 5)
        self.store.put("/c/m", b"own")
        self.manifest("d/")

    def manifest(self, value):
        self.store.objects["/v1/a/c/m"].headers["X-Object-Manifest"] = value

    def call(self, method="GET", path="/v1/a/c/m", **extra):
        return call(self.app, method, path, **extra)


@pytest.fixture
def setup():
    made = Setup()
    made.store.put("/d/p1", b"111")
    made.store.put("/d/p2", b"22")
    made.manifest("d/p")
    return made


def test_objects_of_a_prefix_are_one(setup):
    got = setup.call()
    etag = md5("".join(md5(body).hexdigest() for body in (b"111", b"22")).encode()).hexdigest()
    assert (got.status, got.body, got.headers["Etag"]) == (200, b"11122", f'"{etag}"')
    assert (got.headers["Content-Length"], got.headers["X-Object-Manifest"]) == ("5", "d/p")
    head = setup.call("HEAD")
    assert (head.status, head.headers["Content-Length"], head.headers["Etag"]) == (200, "5", f'"{etag}"')


def test_listing_and_segments_are_asked_for_with_what_is_known(setup):
    setup.call(headers={"X-Auth-Token": "t", "Cookie": "c", "X-Object-Meta-A": "1", "Accept": "text/xml"}, query="x=y")
    listing, segment = setup.store.environs[1:3]
    assert (listing["PATH_INFO"], listing["QUERY_STRING"]) == ("/v1/a/d", "format=json&prefix=p")
    assert {key for key in listing if key.startswith("HTTP_")} == {"HTTP_X_AUTH_TOKEN", "HTTP_HOST", "HTTP_ACCEPT"}
    assert (segment["PATH_INFO"], segment["QUERY_STRING"]) == ("/v1/a/d/p1", "multipart-manifest=get")
    assert listing["swift.source"] == segment["swift.source"] == "DLO"


def test_a_plain_object_passes_untouched(setup):
    setup.store.streams = True
    got = Got(setup.app, make_environ("GET", "/v1/a/d/p1"), iterate=False)
    assert type(got.raw).__name__ == "_Parts" and setup.store.asked == ["GET /v1/a/d/p1"]
    assert setup.call(path="/v1/a/d/p1", headers={"Range": "bytes=1-1"}).body == b"1"
    assert setup.call(path="/v1/a/c/nope").status == 404


def test_a_server_that_does_not_ignore_a_range_does_not_matter(setup):
    setup.store.obeys_range = True
    for header, body in (("bytes=1-3", b"112"), ("bytes=4-", b"2")):
        got = setup.call(headers={"Range": header})
        assert (got.status, got.body) == (206, body)


def test_a_manifest_that_vanished_meanwhile(setup):
    real = setup.store.__call__

    def app(environ, start_response):
        answer = real(environ, start_response)
        setup.store.objects.pop("/v1/a/c/m", None)
        return answer

    setup.app.app = app
    assert setup.call(headers={"If-None-Match": "*"}).status == 404


@pytest.mark.parametrize("status", [401, 403, 404, 503])
def test_an_error_of_the_listing_is_the_answer(setup, status):
    setup.store.fails["/v1/a/d"] = status
    assert setup.call().status == status
    assert setup.call("HEAD").status == status


@pytest.mark.parametrize("answer", [b"no JSON", b"{}x", b'[{"name": "p1"}]', b"[3]"])
def test_a_listing_that_is_none(setup, answer):
    setup.app.app = lambda environ, start_response: (
        Response(200, {"Content-Type": "application/json"}, answer) if environ["PATH_INFO"] == "/v1/a/d"
        else setup.store)(environ, start_response)
    assert setup.call().status == 503


def test_segments_that_are_missing_or_of_another_size(setup):
    setup.store.fails["/v1/a/d/p1"] = 404
    assert setup.call().status == 409
    setup.store.fails["/v1/a/d/p1"] = 503
    assert setup.call().status == 503
    setup.store.fails.clear()
    setup.store.fails["/v1/a/d/p2"] = 404
    body = iter(Got(setup.app, make_environ("GET", "/v1/a/c/m"), iterate=False).raw)
    assert next(body) == b"111"
    with pytest.raises(SegmentError):
        next(body)


def test_an_etag_that_the_listing_does_not_know_yet_is_no_error(setup):
    setup.store.put("/d/p1", b"new", X_Object_Sysmeta_Container_Update_Override_Etag=md5(b"111").hexdigest())
    assert setup.call().body == b"new22"


# -- more than one page ------------------------------------------------------------------------------------------------


def test_many_segments_come_page_by_page_without_a_length():
    setup = Setup(8)
    setup.store.put("/d/x", b"not of it")
    for number in range(1, 9):
        setup.store.objects[f"/v1/a/d/s{number}"] = setup.store.objects.pop(f"/v1/a/d/{number}")
    setup.manifest("d/s")
    got = setup.call()
    assert got.body == b"".join(b"%d" % number * 5 for number in range(1, 9))
    assert "Content-Length" not in got.headers and got.headers["Etag"] == md5(b"own").hexdigest()
    assert [environ["QUERY_STRING"] for environ in setup.store.environs if environ["PATH_INFO"] == "/v1/a/d"] == [
        "format=json&prefix=s", "format=json&prefix=s&marker=s3", "format=json&prefix=s&marker=s6"]
    head = setup.call("HEAD")
    assert head.status == 200 and "Content-Length" not in head.headers
    assert setup.call(headers={"Range": "bytes=0-1"}).status == 200


def test_a_page_that_cannot_be_had_breaks_the_answer():
    setup = Setup(0)
    for number in range(4):
        setup.store.put(f"/d/s{number}", b"x")
    setup.manifest("d/s")
    body = iter(Got(setup.app, make_environ("GET", "/v1/a/c/m"), iterate=False).raw)
    assert next(body) == b"x"
    setup.store.fails["/v1/a/d"] = 503
    with pytest.raises(SegmentError):
        list(body)


# -- the header --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["c", "c/", "/c/x", "c//x", "", "c/x?y", "c/x&y", "c%2Fx"])
def test_a_put_needs_container_and_prefix(setup, value):
    got = setup.call("PUT", "/v1/a/c/new", body=b"", headers={"X-Object-Manifest": value})
    assert (got.status, got.body) == (400, b"X-Object-Manifest must be in the format container/prefix")
    assert setup.call("PUT", "/v1/a/c", body=b"", headers={"X-Object-Manifest": value}).status != 400


def test_named():
    assert named("c%20%C3%A9/p%3F%25/") == ("c é", "p?%/")
    assert named("c/p\xc3\xa9") == ("c", "pé")
    for value in ("c", "", "/x", "c/"):
        with pytest.raises(SegmentError):
            named(value)


def test_factory():
    assert filter_factory({}, rate_limit_after_segment="3", log_file="-")(Inner()).pace.free == 3
    with pytest.raises(ConfigError, match="max_get_time"):
        filter_factory({}, max_get_time="0")
