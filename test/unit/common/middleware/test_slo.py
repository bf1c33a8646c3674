"""slo over objects in memory: what the live tests do not reach."""

import json
import logging
from hashlib import md5

import pytest

from keelstore.common import registry
from keelstore.common.errors import ConfigError
from keelstore.common.http import Response
from keelstore.common.middleware.slo import OVERRIDE, Slo, SloOptions, filter_factory, with_etags
from keelstore.common.names import HashPath
from keelstore.common.segments import ObjectSegment, encode, etag_of, whole
from test.unit.common.middleware.helpers import Got, Inner, call, make_environ
from test.unit.common.middleware.objects_app import ObjectsApp

PUT, GET, DELETE = "multipart-manifest=put", "multipart-manifest=get", "multipart-manifest=delete"


class Setup:
    def __init__(self, **options):
        self.store = ObjectsApp()
        self.app = Slo(self.store, SloOptions(**options), HashPath(b"", b"s"), logging.getLogger("test.slo"))
        for name, body in (("a", b"aaaaa"), ("b", b"bbbbb")):
            self.store.put(f"/c/{name}", body)

    def call(self, method="GET", path="/v1/a/c/m", query="", **extra):
        return call(self.app, method, path, query=query, **extra)

    def make(self, *entries, path="/v1/a/c/m", query=PUT, **headers):
        body = json.dumps([{"path": f"/c/{entry}"} if isinstance(entry, str) else entry for entry in entries]).encode()
        return self.call("PUT", path, query, body=body, headers={name.replace("_", "-"): v for name, v in headers.items()})

    def legacy(self, *segments, name="m"):
        """A manifest as it was written before its size and ETag were kept with it."""
        made = encode(segments)
        return self.store.put(f"/c/{name}", made, X_Static_Large_Object="True", Content_Type="a/b")


@pytest.fixture
def setup():
    return Setup()


# -- what is written ---------------------------------------------------------------------------------------------------


def test_what_a_manifest_is_stored_with(setup):
    got = setup.make("a", "b", X_Object_Meta_M="1", Content_Type="a/b;c=d", X_Copy_Nothing="x")
    expected = md5("".join(md5(body).hexdigest() for body in (b"aaaaa", b"bbbbb")).encode()).hexdigest()
    assert (got.status, got.headers["Etag"]) == (201, f'"{expected}"')
    stored = setup.store.objects["/v1/a/c/m"]
    etag = got.headers["Etag"].strip('"')
    assert stored.headers == {
        "X-Static-Large-Object": "True", "X-Object-Meta-M": "1", "X-Object-Sysmeta-Slo-Etag": etag,
        "X-Object-Sysmeta-Slo-Size": "10", "Content-Type": "a/b;c=d;swift_bytes=10",
        "X-Object-Sysmeta-Container-Update-Override-Etag": f"{stored.etag}; slo_etag={etag}"}
    assert json.loads(stored.body)[0] == {
        "name": "/c/a", "bytes": 5, "hash": md5(b"aaaaa").hexdigest(), "content_type": "application/octet-stream",
        "last_modified": "2001-09-09T01:46:40.000000"}


@pytest.mark.parametrize("headers", [{}, {"X-Detect-Content-Type": "true", "Content-Type": "x/y"}])
def test_a_type_that_is_not_given_is_guessed_so_that_the_size_goes_with_it(setup, headers):
    assert setup.call("PUT", "/v1/a/c/m.txt", PUT, body=b'[{"path": "/c/a"}]', headers=headers).status == 201
    assert setup.store.objects["/v1/a/c/m.txt"].headers["Content-Type"] == "text/plain;swift_bytes=5"


def test_a_client_cannot_say_the_size(setup):
    assert setup.make("a", Content_Type="a/b; Swift_Bytes=7").status == 400


def test_each_path_is_looked_at_once_with_the_clients_token(setup):
    setup.make("a", "b", "a", X_Auth_Token="t", X_Object_Meta_M="1", Cookie="c", Range="bytes=0-1", If_Match="x")
    heads = [environ for environ in setup.store.environs if environ["REQUEST_METHOD"] == "HEAD"]
    assert [environ["PATH_INFO"] for environ in heads] == ["/v1/a/c/a", "/v1/a/c/b"]
    assert {key for key in heads[0] if key.startswith("HTTP_")} == {"HTTP_X_AUTH_TOKEN", "HTTP_HOST", "HTTP_USER_AGENT"}
    assert heads[0]["swift.source"] == "SLO"


def test_a_legacy_manifest_below_is_computed(setup):
    below = [whole("/c/a", 5, md5(b"aaaaa").hexdigest()), ObjectSegment("/c/b", 5, md5(b"bbbbb").hexdigest(), 1, 3)]
    setup.legacy(*below, name="below")
    assert setup.make("below").status == 201
    entry = json.loads(setup.store.objects["/v1/a/c/m"].body)[0]
    assert (entry["bytes"], entry["hash"], entry["sub_slo"]) == (7, etag_of(below), True)
    assert setup.call().body == b"aaaaabb"


def test_a_dynamic_manifest_counts_with_its_own_bytes(setup):
    setup.store.put("/c/dlo", b"own", X_Object_Manifest="c/x")
    assert setup.make("dlo").status == 201
    assert setup.call().body == b"own"


def test_a_manifest_of_less_than_was_announced_is_refused(setup):
    environ = make_environ("PUT", "/v1/a/c/m", PUT, body=b'[{"path": "/c/a"}]')
    environ["CONTENT_LENGTH"] = "100"
    assert Got(setup.app, environ).status == 499


def test_a_copy_is_no_manifest(setup):
    assert setup.make("a", X_Copy_From="/c/x").status == 405


def test_problems_come_in_the_form_the_client_likes(setup):
    got = setup.make("nope", Accept="application/xml")
    assert (got.status, got.headers["Content-Type"]) == (400, "application/xml")
    assert got.body == (b"<upload>\n<errors>\n<object><name>/c/nope</name><status>404 Not Found</status></object>\n"
                        b"</errors>\n</upload>\n")


def test_a_failure_in_a_heartbeat_is_told_in_the_body(setup):
    def app(environ, start_response):
        if environ["REQUEST_METHOD"] == "PUT":
            raise RuntimeError("boom")
        return setup.store(environ, start_response)

    setup.app.app = app
    got = setup.make("a", query=f"{PUT}&heartbeat=on")
    assert got.status == 202 and b"Response Status: 500 Internal Error" in got.body


# -- what is read ------------------------------------------------------------------------------------------------------


def test_a_plain_object_passes_untouched(setup):
    setup.store.streams = True
    got = Got(setup.app, make_environ("GET", "/v1/a/c/a"), iterate=False)
    assert type(got.raw).__name__ == "_Parts" and setup.store.asked == ["GET /v1/a/c/a"]
    assert not any(key.startswith("HTTP_X_BACKEND") for key in setup.store.environs[0])
    assert setup.call(path="/v1/a/c/a", headers={"Range": "bytes=1-2"}).body == b"aa"
    assert setup.call(path="/v1/a/c/nope").status == 404


def test_the_override_bypasses_everything(setup):
    setup.make("a")
    got = call(setup.app, "GET", "/v1/a/c/m", **{OVERRIDE: True})
    assert got.body == setup.store.objects["/v1/a/c/m"].body
    assert call(setup.app, "PUT", "/v1/a/c/x", body=b"raw", query=PUT, headers={"X-Static-Large-Object": "true"},
                **{OVERRIDE: True}).status == 201


def test_other_filters_names_of_etags_stay(setup):
    setup.call(headers={"If-Match": "x", "Range": "bytes=0-1", "X-Backend-Etag-Is-At": "a", })
    environ = setup.store.environs[0]
    assert environ["HTTP_X_BACKEND_ETAG_IS_AT"] == "a,x-object-sysmeta-slo-etag"
    assert environ["HTTP_X_BACKEND_IGNORE_RANGE_IF_METADATA_PRESENT"] == "x-static-large-object"


def test_a_server_that_does_not_ignore_a_range_is_asked_again():
    setup = Setup(rate_limit_segments_per_sec=0)
    setup.make("a", "b")
    setup.store.obeys_range = True
    for header, status, body in (("bytes=3-6", 206, b"aabb"), ("bytes=5-", 206, b"bbbbb")):
        got = setup.call(headers={"Range": header})
        assert (got.status, got.body) == (status, body)
    setup.make("a", "b", *["a"] * 200)
    got = setup.call(headers={"Range": "bytes=900-"})  # satisfiable for the object, not for its manifest, or the reverse
    assert (got.status, len(got.body)) == (206, 110)
    got = setup.call(headers={"Range": "bytes=2000-"})
    assert (got.status, got.headers["Content-Range"]) == (416, "bytes */1010")


def test_a_manifest_that_became_a_plain_object_meanwhile_is_read_as_such(setup):
    setup.make("a", "b")
    real = setup.store.__call__

    def app(environ, start_response):
        answer = real(environ, start_response)
        setup.store.put("/c/m", b"plain now")
        return answer

    setup.app.app = app
    got = setup.call("HEAD", query="part-number=1")
    assert (got.status, got.headers["Content-Length"]) == (200, "9") and "X-Static-Large-Object" not in got.headers


def test_a_manifest_that_was_overwritten_meanwhile_is_read_anew(setup):
    setup.make("a", "b")
    real = setup.store.__call__
    times: list[int] = []

    def app(environ, start_response):
        answer = real(environ, start_response)
        if not times:
            times.append(1)
            setup.app.app = real
            setup.make("b")
            setup.store.objects["/v1/a/c/m"].when += 5
            setup.app.app = app
        return answer

    setup.app.app = app
    got = setup.call("HEAD", query="part-number=1")
    assert (got.status, got.headers["X-Parts-Count"], got.headers["Content-Range"]) == (206, "1", "bytes 0-4/5")


def test_an_older_manifest_is_not_taken_for_the_one_asked_for(setup):
    setup.make("a", "b")
    setup.store.objects["/v1/a/c/m"].when += 5
    real = setup.store.__call__

    def app(environ, start_response):
        answer = real(environ, start_response)
        setup.store.objects["/v1/a/c/m"].when -= 3
        return answer

    setup.app.app = app
    assert setup.call("HEAD", query="part-number=1").status == 503


def test_a_manifest_that_vanished_meanwhile(setup):
    setup.make("a")
    real = setup.store.__call__

    def app(environ, start_response):
        answer = real(environ, start_response)
        setup.store.objects.pop("/v1/a/c/m", None)
        return answer

    setup.app.app = app
    assert setup.call("HEAD", query="part-number=1").status == 404


def test_a_legacy_manifest_is_read_and_its_etag_computed(setup):
    segments = [whole("/c/a", 5, md5(b"aaaaa").hexdigest()), whole("/c/b", 5, md5(b"bbbbb").hexdigest())]
    made, etag = setup.legacy(*segments), f'"{etag_of(segments)}"'
    for got in (setup.call(), setup.call("HEAD")):
        assert (got.status, got.headers["Etag"], got.headers["Content-Length"]) == (200, etag, "10")
        assert got.headers["X-Manifest-Etag"] == made.etag
    assert setup.call().body == b"aaaaabbbbb"
    assert setup.call(headers={"If-None-Match": etag}).status == 304
    assert setup.call(headers={"If-Match": etag}).body == b"aaaaabbbbb"
    assert setup.call(headers={"If-Match": etag, "Range": "bytes=4-5"}).body == b"ab"
    assert setup.call("HEAD", headers={"If-None-Match": etag}).status == 304
    assert setup.call(headers={"If-Match": made.etag}).status == 412


@pytest.mark.parametrize("change", [b"no JSON", b"[]", b'[{"name": "/c/a", "bytes": 4, "hash": "x"}]'])
def test_a_manifest_that_does_not_fit_its_size_is_not_served(setup, change):
    setup.make("a")
    setup.store.objects["/v1/a/c/m"].body = change
    got = setup.call()
    assert (got.status, got.body) == (500, b"Unable to load SLO manifest")


def test_a_manifest_with_a_size_that_is_none(setup):
    setup.make("a")
    setup.store.objects["/v1/a/c/m"].headers["X-Object-Sysmeta-Slo-Size"] = "x"
    assert setup.call("HEAD").status == 500


def test_the_first_of_several_ranges_is_closed_when_nobody_reads(setup):
    setup.store.put("/c/long", b"l" * 10)
    setup.make("long", "a")
    setup.store.streams = True
    setup.store.closed = 0
    got = Got(setup.app, make_environ("GET", "/v1/a/c/m", headers={"Range": "bytes=0-9,12-13"}), iterate=False)
    assert got.status == 206
    opened = setup.store.asked.count("GET /v1/a/c/long")
    got.raw.close()
    assert (opened, setup.store.closed) == (1, 2)  # the manifest, the segment


def test_raw_manifests_obey_conditions_on_their_own_etag(setup):
    setup.make("a")
    raw = f"{GET}&format=raw"
    etag = setup.call(query=raw).headers["Etag"]
    assert setup.call(query=raw, headers={"If-None-Match": etag}).status == 304
    assert setup.call(query=raw, headers={"If-Match": etag}).status == 200
    assert setup.call(query=raw, headers={"If-Match": setup.store.objects["/v1/a/c/m"].etag}).status == 412
    assert setup.call(path="/v1/a/c/a", query=raw).body == b"aaaaa"


# -- listings ----------------------------------------------------------------------------------------------------------


def test_listings_tell_the_etags_apart(setup):
    etag = setup.make("a").headers["Etag"]
    rows = {row["name"]: row for row in setup.call(path="/v1/a/c").json()}
    assert (rows["m"]["slo_etag"], rows["m"]["hash"]) == (etag, setup.store.objects["/v1/a/c/m"].etag)
    assert "slo_etag" not in rows["a"]


@pytest.mark.parametrize("text,expected", [
    ('e1; slo_etag=e2', {"hash": "e1", "slo_etag": '"e2"'}),
    ('e1; slo_etag=e2; symlink_target=c/o', {"hash": "e1; symlink_target=c/o", "slo_etag": '"e2"'}),
    ('e1; symlink_target=c/o; slo_etag=e2', {"hash": "e1; symlink_target=c/o", "slo_etag": '"e2"'}),
    ('e1', {"hash": "e1"}),
])
@pytest.mark.parametrize("compact", [False, True])
def test_with_etags(text, expected, compact):
    entries = [{"name": 'a"hash": "x; slo_etag=y"', "hash": text, "bytes": 1}, {"subdir": "d; slo_etag=x/"}]
    data = json.dumps(entries, separators=(",", ":") if compact else None).encode()
    assert json.loads(with_etags(data, "slo_etag")) == [{"name": entries[0]["name"], "bytes": 1, **expected}, entries[1]]


@pytest.mark.parametrize("response", [
    Response(200, {"Content-Type": "text/plain"}, body="x; slo_etag=y"), Response(404),
    Response(200, {"Content-Type": "application/json"}, body='{"hash": "x; slo_etag=y'),
    Response(200, {"Content-Type": "application/json"}, body='{"name,": 1, "x; slo_etag=y": 2}')])
def test_what_is_no_listing_passes(response):
    app = Slo(Inner(response), SloOptions(), None, logging.getLogger("x"))
    got = call(app, "GET", "/v1/a/c")
    assert (got.status, got.body) == (response.status, response.body or got.body)


# -- deletes -----------------------------------------------------------------------------------------------------------


def test_a_delete_goes_on_past_what_fails(setup):
    setup.make("a", "b")
    setup.store.denied.add("/v1/a/c/a")
    got = setup.call("DELETE", query=DELETE, headers={"Accept": "application/json"})
    assert got.json() == {"Response Status": "400 Bad Request", "Response Body": "", "Number Deleted": 2, "Number Not Found": 0,
                          "Errors": [["/c/a", "403 Forbidden"]]}
    setup.make("b")
    setup.store.put("/c/b", b"bbbbb")
    setup.make("b")
    setup.store.fails["/v1/a/c/b"] = 503
    got = setup.call("DELETE", query=DELETE, headers={"Accept": "application/json"})
    assert got.json()["Response Status"] == "502 Bad Gateway"


def test_a_delete_has_a_limit():
    setup = Setup(max_manifest_segments=1)
    entries = encode([whole(f"/c/{number}", 1, "e") for number in range(11)])
    setup.store.put("/c/m", entries, X_Static_Large_Object="True")
    got = setup.call("DELETE", query=DELETE, headers={"Accept": "application/json"})
    assert got.json()["Response Status"] == "400 Bad Request" and "/v1/a/c/m" in setup.store.objects


def test_a_version_is_deleted_as_such(setup):
    setup.make("a")
    setup.call("DELETE", query=f"{DELETE}&version-id=1.2")
    asked = [(environ["REQUEST_METHOD"], environ["PATH_INFO"], environ["QUERY_STRING"]) for environ in setup.store.environs[-3:]]
    assert asked == [("GET", "/v1/a/c/m", "multipart-manifest=get&version-id=1.2"), ("DELETE", "/v1/a/c/a", ""),
                     ("DELETE", "/v1/a/c/m", "version-id=1.2")]


def test_a_delete_later_enters_the_segments_into_the_expiry_queue(setup):
    setup.make("a", {"data": "eA=="}, "b", "a")
    assert setup.call("DELETE", query=f"{DELETE}&async=on").status == 204
    update = next(environ for environ in setup.store.environs if environ["REQUEST_METHOD"] == "UPDATE")
    assert update["PATH_INFO"].startswith("/v1/.expiring_objects/") and update["REMOTE_USER"] == ".wsgi.pre_authed"
    assert update["HTTP_X_BACKEND_STORAGE_POLICY_INDEX"] == "0"
    rows = json.loads(update["wsgi.input"].getvalue())
    assert [row["name"].partition("-")[2] for row in rows] == ["a/c/a", "a/c/b"]
    assert {(row["content_type"], row["size"], row["deleted"], row["storage_policy_index"], row["etag"]) for row in rows} == {
        ("application/async-deleted", 0, 0, 0, md5(b"").hexdigest())}
    assert len(rows[0]["name"].partition("-")[0]) == 16
    assert setup.store.asked[-1] == "DELETE /v1/a/c/m" and setup.store.environs[-1]["QUERY_STRING"] == ""


def test_a_queue_that_cannot_be_written_keeps_the_manifest(setup):
    setup.make("a")
    setup.app.app = lambda environ, start_response: (
        Response(503)(environ, start_response) if environ["REQUEST_METHOD"] == "UPDATE" else setup.store(environ, start_response))
    assert setup.call("DELETE", query=f"{DELETE}&async=on").status == 503
    assert "/v1/a/c/m" in setup.store.objects


def test_a_delete_later_where_it_is_not_allowed_is_one_now():
    setup = Setup(allow_async_delete=False)
    setup.make("a")
    assert setup.call("DELETE", query=f"{DELETE}&async=on").status == 200
    assert sorted(setup.store.objects) == ["/v1/a/c/b"]


# -- configuration -----------------------------------------------------------------------------------------------------


def test_factory_publishes_its_limits(tmp_path):
    app = filter_factory({"swift_dir": str(tmp_path)}, max_manifest_segments="7", concurrency="3", log_file="-")(Inner())
    assert app.options.deletes_at_once == 3
    assert registry.published()["slo"] == {"max_manifest_segments": 7, "max_manifest_size": 8388608, "yield_frequency": 10,
                                           "min_segment_size": 1, "allow_async_delete": True}


@pytest.mark.parametrize("option,value", [("concurrency", "0"), ("concurrency", "1001"), ("max_manifest_segments", "0"),
                                          ("yield_frequency", "0"), ("delete_concurrency", "x")])
def test_bad_options(option, value):
    with pytest.raises(ConfigError, match=option):
        filter_factory({}, **{option: value})
