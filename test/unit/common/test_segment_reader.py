"""Bodies of large objects: nothing missing, changed or short passes for the whole, and nothing stays open."""

from hashlib import md5

import pytest

from keelstore.common import concurrency
from keelstore.common.byteranges import parse
from keelstore.common.http import Request, Response, call_app
from keelstore.common.segment_reader import Pace, SegmentedBody, SegmentError, SegmentSource, add_name, base_of
from keelstore.common.segments import ObjectSegment, encode, etag_of, length_of, plan, whole
from test.unit.common.middleware.helpers import make_environ

FAST = Pace(max_s=100, per_second=0)


class Parts:
    """A body in parts of ``size`` bytes that knows whether it was closed."""

    def __init__(self, store, data, size=4):
        self.store, self.data, self.size, self.closed = store, data, size, False
        store.bodies.append(self)

    def __iter__(self):
        for start in range(0, len(self.data), self.size):
            yield self.data[start:start + self.size]

    def close(self):
        self.closed = True


class Store:
    """Objects by path; what is asked is kept."""

    def __init__(self, **objects):
        self.objects = {f"/c/{name}": data for name, data in objects.items()}
        self.extra, self.bodies, self.asked, self.gates = {}, [], [], {}
        self.newest = {}

    def __call__(self, environ, start_response):
        request = Request(environ)
        path = "/" + request.path.split("/", 3)[3]
        self.asked.append(environ)
        if path in self.gates:
            self.gates[path].wait()
        data = self.objects.get(path)
        if request.is_true_header("X-Newest"):
            data = self.newest.get(path, data)
        if isinstance(data, int):
            return Response(data)(environ, start_response)
        if data is None:
            return Response(404)(environ, start_response)
        headers = {"Etag": md5(data).hexdigest(), "Content-Length": str(len(data))}
        status, spans = 200, parse(request.header("Range"), len(data))
        if spans:
            start, stop = spans[0]
            headers.update({"Content-Range": f"bytes {start}-{stop - 1}/{len(data)}", "Content-Length": str(stop - start)})
            data, status = data[start:stop], 206
        headers.update(self.extra.get(path, {}))
        body = self.extra.get(path, {}).get("body", data)
        headers.pop("body", None)
        return Response(status, headers, app_iter=Parts(self, body))(environ, start_response)

    @property
    def open(self):
        return [body for body in self.bodies if not body.closed]


def segment(store, name):
    data = store.objects[f"/c/{name}"]
    return whole(f"/c/{name}", len(data), md5(data).hexdigest())


def body_of(store, segments, pace=FAST, start=0, stop=None, clock=lambda: 0.0, **environ):
    source = SegmentSource(store, make_environ(**environ), "/v1/AUTH_a", "SLO", "SLO MultipartGET")
    return SegmentedBody(source, plan(segments, start, stop), pace, clock)


def read(body):
    got = []
    try:
        for data in body:
            got.append(data)
    except SegmentError as error:
        return b"".join(got), error
    finally:
        body.close()
    return b"".join(got), None


@pytest.fixture
def store():
    return Store(a=b"aaaaaaaaaa", b=b"bbbbbbbbbb", c=b"cccccccccc")


@pytest.fixture
def abc(store):
    return [segment(store, name) for name in "abc"]


@pytest.mark.parametrize("ahead", [0, 1, 2, 9])
def test_segments_come_in_order(store, abc, ahead):
    body = body_of(store, abc, Pace(per_second=0, ahead=ahead))
    body.start()
    assert read(body) == (b"a" * 10 + b"b" * 10 + b"c" * 10, None)
    assert store.open == []


def test_without_start_too(store, abc):
    assert read(body_of(store, abc))[0][:11] == b"aaaaaaaaaab"


def test_parts_are_asked_for_by_range(store, abc):
    assert read(body_of(store, abc, start=8, stop=22)) == (b"aa" + b"b" * 10 + b"cc", None)
    assert [environ.get("HTTP_RANGE") for environ in store.asked] == ["bytes=8-9", None, "bytes=0-1"]


def test_a_request_for_a_segment_holds_only_what_is_known(store, abc):
    read(body_of(store, abc[:1], headers={
        "X-Auth-Token": "t", "X-Object-Meta-A": "1", "X-Copy-From": "x/y", "If-Match": "x", "Range": "bytes=1-", "Cookie": "c",
        "X-Open-Expired": "true", "User-Agent": "curl"}, path="/v1/AUTH_b/x/y"))
    environ = store.asked[0]
    assert {name: value for name, value in Request(environ).header_items() if name != "Host"} == {
        "X-Auth-Token": "t", "X-Open-Expired": "true", "User-Agent": "curl SLO MultipartGET", "Content-Length": "0"}
    assert environ["PATH_INFO"] == "/v1/AUTH_a/c/a" and environ["QUERY_STRING"] == "multipart-manifest=get"
    assert environ["swift.source"] == "SLO"


# -- what is wrong -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer,status", [(None, 409), (401, 409), (403, 409), (503, 503), (500, 503)])
def test_a_first_segment_that_is_not_there_is_an_answer(store, abc, answer, status):
    store.objects["/c/a"] = answer
    with pytest.raises(SegmentError) as caught:
        body_of(store, abc).start()
    assert caught.value.status == status and caught.value.path == "/c/a"


def test_the_first_segment_is_looked_at_although_data_comes_before_it(store, abc):
    store.objects["/c/a"] = None
    body = SegmentedBody(SegmentSource(store, make_environ(), "/v1/a", "SLO", ""), [b"xyz", *plan(abc)], FAST)
    with pytest.raises(SegmentError):
        body.start()


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("now", [None, 503, b"BBBBBBBBBB", b"bbbbbbbbb", b"bbbbbbbbbbb"])
def test_a_later_segment_that_is_missing_or_changed_ends_the_body(store, abc, now, ahead):
    store.objects["/c/b"] = now
    body = body_of(store, abc, Pace(per_second=0, ahead=ahead))
    body.start()
    got, error = read(body)
    assert got == b"a" * 10 and error.path == "/c/b"
    assert store.open == []


def test_a_ranged_segment_of_another_size_is_refused(store, abc):
    store.extra["/c/a"] = {"Content-Range": "bytes 2-3/11"}
    with pytest.raises(SegmentError, match="has changed"):
        body_of(store, abc, start=2, stop=4).start()


def test_a_range_that_was_ignored_is_refused(store, abc):
    wrong = ObjectSegment("/c/a", 8, abc[0].etag, 9, 12)
    with pytest.raises(SegmentError, match="has changed"):
        body_of(store, [wrong]).start()


@pytest.mark.parametrize("body,problem", [(b"aaaa", "ended 6 bytes early"), (b"a" * 12, "longer than it said"),
                                          (b"aaaaaaaaXa", "is damaged")])
def test_a_body_that_is_not_the_object(store, abc, body, problem):
    store.extra["/c/a"] = {"body": body}
    got, error = read(body_of(store, abc))
    assert problem in error.reason and len(got) < 10
    assert store.open == []


def test_damage_does_not_leave_with_the_last_bytes(store, abc):
    store.extra["/c/c"] = {"body": b"ccccccccXc"}
    got, error = read(body_of(store, abc))
    assert error.reason.startswith("is damaged") and got == b"a" * 10 + b"b" * 10 + b"c" * 8


def test_a_node_that_missed_a_write_is_not_believed(store, abc):
    store.objects["/c/b"], store.newest["/c/b"] = b"older", b"b" * 10
    assert read(body_of(store, abc))[1] is None
    assert [environ.get("HTTP_X_NEWEST") for environ in store.asked] == [None, None, "true", None]


def test_segments_without_a_known_etag_are_held_to_their_own(store):
    segments = [ObjectSegment("/c/a", 10, "", 0, 10)]
    assert read(body_of(store, segments))[1] is None
    store.extra["/c/a"] = {"body": b"aaaaaaaaaX"}
    assert read(body_of(store, segments))[1].reason.startswith("is damaged")


def test_a_read_has_a_time(store, abc):
    times = iter([0.0, 5.0, 11.0, 12.0])
    got, error = read(body_of(store, abc, Pace(per_second=0, max_s=10, ahead=0), clock=lambda: next(times)))
    assert got == b"a" * 10 and "not reached within 10 s" in error.reason


# -- manifests below ---------------------------------------------------------------------------------------------------


def manifest(store, name, segments):
    store.objects[f"/c/{name}"] = encode(segments)
    store.extra[f"/c/{name}"] = {"X-Static-Large-Object": "True"}
    size = length_of(segments)
    return ObjectSegment(f"/c/{name}", size, etag_of(segments), 0, size, True)


def test_a_manifest_below_gives_its_segments(store, abc):
    below = manifest(store, "m", abc[:2])
    assert read(body_of(store, [abc[2], below, abc[2]])) == (b"c" * 10 + b"a" * 10 + b"b" * 10 + b"c" * 10, None)


def test_a_part_of_a_manifest_below(store, abc):
    below = manifest(store, "m", abc[:2])
    part = ObjectSegment(below.path, 20, below.etag, 8, 13, True)
    assert read(body_of(store, [abc[2], part], start=9)) == (b"caabbb", None)
    assert [environ.get("HTTP_RANGE") for environ in store.asked] == ["bytes=9-9", None, "bytes=8-9", "bytes=0-2"]


def test_a_manifest_below_that_changed_is_refused(store, abc):
    below = manifest(store, "m", abc[:2])
    manifest(store, "m", [abc[0], abc[2]])
    with pytest.raises(SegmentError, match="has changed") as caught:
        body_of(store, [below]).start()
    assert caught.value.status == 409
    got, error = read(body_of(store, [abc[0], below]))
    assert got == b"a" * 10 and "has changed" in error.reason


@pytest.mark.parametrize("data,extra", [(b"a" * 20, {}), (b"no JSON", {"X-Static-Large-Object": "True"}), (None, {})])
def test_a_manifest_below_that_is_none_any_more(store, abc, data, extra):
    below = manifest(store, "m", abc[:2])
    store.objects["/c/m"], store.extra["/c/m"] = data, extra
    with pytest.raises(SegmentError):
        body_of(store, [below]).start()
    assert store.open == []


def test_ten_manifests_are_followed_and_no_more(store, abc):
    level = manifest(store, "m2", abc[:1])  # the top one is not asked for here: it is manifest 1
    for depth in range(3, 11):
        level = manifest(store, f"m{depth}", [level])
    assert read(body_of(store, [level]))[0] == b"a" * 10
    level = manifest(store, "m11", [level])
    with pytest.raises(SegmentError, match="10 deep"):
        body_of(store, [level]).start()


def test_a_manifest_below_is_read_once(store, abc):
    below = manifest(store, "m", abc[:1])
    assert read(body_of(store, [below, abc[1], below]))[0] == b"a" * 10 + b"b" * 10 + b"a" * 10
    assert sum(environ["PATH_INFO"].endswith("/m") for environ in store.asked) == 1


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_segment_that_was_just_checked_is_not_checked_again(store, abc):
    store.extra["/c/a"] = {"body": b"aaaaaaaaaX", "X-Backend-Body-Checked": "true"}
    assert read(body_of(store, abc[:1])) == (b"aaaaaaaaaX", None)


def test_segments_that_are_files_come_as_such(store, abc):
    """But not those that are to be checked, and bytes in memory."""
    regions = {b"a" * 10: (7, 0, 10), b"b" * 10: (8, 0, 10), b"ccc": (9, 4, 3)}
    store.extra["/c/a"] = {"X-Backend-Body-Checked": "true"}
    told = []

    class FileParts(Parts):
        def file_region(self):
            return regions.get(self.data)

        def file_region_sent(self):
            told.append(self.data[:1])

    def app(environ, start_response):
        response = call_app(store, environ)
        response.app_iter = FileParts(store, b"".join(response.app_iter or ()))
        return response(environ, start_response)

    store.bodies.clear()
    body = SegmentedBody(SegmentSource(app, make_environ(), "/v1/a", "SLO", ""), [b"xy", *plan(abc, 0, 23)], FAST)
    body.start()
    assert list(body.file_pieces()) == [b"xy", (7, 0, 10), b"bbbb", b"bbbb", b"bb", (9, 4, 3)]
    assert told == [b"a", b"c"]
    assert [each for each in store.open if type(each) is FileParts] == []


@pytest.mark.parametrize(("last", "error"), [((8, 5, 4), None), ((8, 5, 3), "ended 1 bytes early"), ((8, 5, 5), "is longer than it said")])
def test_a_segment_of_several_pieces_of_files_is_counted(store, abc, last, error):
    class Pieces(Parts):
        def file_pieces(self):
            return iter([(7, 0, 4), b"aa", last])

    def app(environ, start_response):
        response = call_app(store, environ)
        response.app_iter = Pieces(store, b"".join(response.app_iter or ()))
        return response(environ, start_response)

    store.extra["/c/a"] = {"X-Backend-Body-Checked": "true"}
    body = SegmentedBody(SegmentSource(app, make_environ(), "/v1/a", "SLO", ""), [*plan(abc, 0, 10)], FAST)
    body.start()
    if error is None:
        assert list(body.file_pieces()) == [(7, 0, 4), b"aa", last]
    else:
        with pytest.raises(SegmentError, match=error):
            list(body.file_pieces())


# -- bounds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_so_many_are_open_at_once(store, abc, ahead):
    most = 0
    body = body_of(store, abc * 3, Pace(per_second=0, ahead=ahead))
    for _data in body:
        concurrency.sleep()
        most = max(most, len(store.open))
    assert most == ahead + 1 and store.open == []


def test_a_client_that_leaves_leaves_nothing_open(store, abc):
    body = body_of(store, abc)
    body.start()
    next(iter(body))
    concurrency.sleep()
    assert len(store.open) == 2
    body.close()
    body.close()
    assert store.open == []


def test_closed_before_anything_was_read(store, abc):
    body = body_of(store, abc)
    body.start()
    body.close()
    assert store.open == [] and list(body) == []


def test_closed_while_a_segment_is_being_opened(store, abc):
    gate = store.gates["/c/b"] = concurrency.Event()
    body = body_of(store, abc)
    next(iter(body))
    concurrency.sleep()  # the next one is asked for and hangs
    body.close()
    gate.set()
    concurrency.sleep()
    concurrency.sleep()
    assert len(store.bodies) == 2 and store.open == []


def test_small_segments_come_at_their_pace(store, abc, monkeypatch):
    slept: list[float] = []
    monkeypatch.setattr(concurrency, "sleep", slept.append)
    pace = Pace(small_bytes=100, free=2, per_second=4, ahead=0)
    assert read(body_of(store, abc * 2, pace))[1] is None
    assert slept == [0.25, 0.5, 0.75]  # the third waits for nobody; the clock stands


def test_large_segments_come_at_once(store, abc, monkeypatch):
    monkeypatch.setattr(concurrency, "sleep", lambda _seconds: pytest.fail("waited"))
    assert read(body_of(store, abc * 4, Pace(small_bytes=10, free=2, per_second=1, ahead=0)))[1] is None


def test_base_of():
    assert base_of("/v1/AUTH_a/c/o", None) == "/v1/AUTH_a"
    assert base_of("/v1/AUTH_a/c/o", "/v1/AUTH_%C3%A9/c/o%20x") == "/v1/AUTH_é"
    assert base_of("/v1/AUTH_a/c/o", "nonsense") == "/v1/AUTH_a"


def test_add_name():
    environ: dict[str, str] = {}
    add_name(environ, "K", "a")
    add_name(environ, "K", "b")
    assert environ == {"K": "a,b"}
