from typing import Any

import pytest

from keelstore.common import concurrency
from keelstore.common.errors import BackendError, BackendTimeout, WaitTimeout
from keelstore.common.http import Response, call_app
from keelstore.proxy.body import Piece, after, multipart_layout, size_of, spans_of
from keelstore.proxy.fanout import read_short
from test.support import fakes
from test.support.fakes import DOWN, Breaking

OBJ = "/v1/AUTH_a/c/o"
TOMBSTONE = (404, {"X-Backend-Timestamp": "1700000005.00000"})


def found(timestamp="1700000000.00000", body=b"data", etag="e1", **headers):
    return (200, {"Content-Type": "text/plain", "Etag": etag, "X-Timestamp": timestamp, "X-Backend-Timestamp": timestamp,
                  "X-Backend-Data-Timestamp": timestamp, "Content-Length": str(len(body)), **headers}, body)


@pytest.mark.parametrize(("replies", "expected"), [
    ([found()], 200), ([DOWN, found()], 200), ([503, found()], 200), ([404, 404, found()], 200),
    ([304], 304), ([416], 416), ([404, 404, 404, 404, 404], 404), ([404, 404, DOWN, DOWN, DOWN], 404),
    ([404, DOWN, DOWN, DOWN, DOWN], 503), ([DOWN, DOWN, DOWN, 404, 404], 503), ([DOWN] * 5, 503),
    ([503, 503, 503, 404, 404], 503), ([507, 404, 404, 404, 404], 404),
    ([DOWN, DOWN, DOWN, TOMBSTONE, 404], 404), ([412, 412, 412, 404, 404], 412), ([TOMBSTONE, TOMBSTONE, 404, 404, 404], 404),
])
def test_get_status_matrix(make_proxy, replies, expected):
    proxy = make_proxy(handoffs=2)
    proxy.script("object", "GET", *replies)
    assert proxy.ask("GET", OBJ).status == expected


def test_a_404_needs_a_quorum_that_knows_whatever_is_suppressed(make_proxy):
    proxy = make_proxy(handoffs=0, rebalance_missing_suppression_count=0)
    proxy.script("object", "GET", 404, DOWN, DOWN)
    assert proxy.ask("GET", OBJ).status == 503


def test_one_replica_may_say_404(make_proxy):
    proxy = make_proxy(replicas=1, handoffs=0)
    assert proxy.ask("GET", OBJ).status == 404


def test_a_tombstone_hides_older_data(make_proxy):
    proxy = make_proxy(handoffs=1)
    proxy.script("object", "GET", TOMBSTONE, TOMBSTONE, TOMBSTONE, found("1700000000.00000"))
    assert proxy.ask("GET", OBJ).status == 404
    proxy.script("object", "GET", TOMBSTONE, TOMBSTONE, TOMBSTONE, found("1700000009.00000"))
    assert proxy.ask("GET", OBJ).status == 200


def test_newest_asks_everyone(make_proxy):
    proxy = make_proxy(handoffs=1)
    proxy.script("object", "GET", found("1700000001.00000", b"one"), found("1700000003.00000", b"three"),
                 found("1700000002.00000", b"two"), 404)
    response = proxy.ask("GET", OBJ, {"X-Newest": "true"})
    assert response.body == b"three"
    assert len(proxy.sent("object", "GET")) == 4


def test_newest_sees_a_tombstone_that_comes_last(make_proxy):
    proxy = make_proxy(handoffs=0)
    proxy.script("object", "GET", found("1700000001.00000"), found("1700000001.00000"), TOMBSTONE)
    assert proxy.ask("GET", OBJ, {"X-Newest": "yes"}).status != 200


def test_headers_of_the_answer(proxy):
    proxy.script("object", "GET", found(**{"Content-Type": "a/b; charset=x;swift_bytes=9", "Etag": '"e1"', "Date": "x",
                                           "Connection": "close", "X-Object-Meta-A": "b"}))
    response = proxy.ask("GET", OBJ)
    assert response.headers["Content-Type"] == "a/b; charset=x"
    assert response.headers["Etag"] == "e1"
    assert response.headers["Accept-Ranges"] == "bytes"
    assert response.headers["X-Object-Meta-A"] == "b"
    assert response.headers["Content-Length"] == "4"
    assert "Date" not in response.headers
    assert "Connection" not in response.headers


def test_conditions_and_ranges_go_to_the_backend(proxy):
    sent = {"Range": "bytes=0-1", "If-Match": "a", "If-None-Match": "b", "If-Modified-Since": "c", "If-Unmodified-Since": "d"}
    proxy.ask("GET", OBJ, sent)
    headers = proxy.sent("object", "GET")[0].headers
    assert all(headers[name] == value for name, value in sent.items())


def test_open_expired_only_when_allowed(make_proxy):
    proxy = make_proxy(allow_open_expired=True)
    proxy.ask("GET", OBJ, {"X-Open-Expired": "true"})
    assert proxy.sent("object", "GET")[0].headers["X-Backend-Open-Expired"] == "true"
    proxy = make_proxy()
    proxy.ask("GET", OBJ, {"X-Open-Expired": "true"})
    assert "X-Backend-Open-Expired" not in proxy.sent("object", "GET")[0].headers


def test_a_device_that_fails_is_left_alone(make_proxy):
    proxy = make_proxy(error_suppression_limit=2, replicas=2, handoffs=1)
    proxy.backend.rules.append(lambda call: DOWN if call.device == "ob0" else found())
    for _ in range(5):
        proxy.ask("GET", OBJ)
    assert sum(call.device == "ob0" for call in proxy.sent("object", "GET")) == 3
    assert proxy.app.health.limited() == ["10.0.0.0:6200/ob0"]


def test_a_device_without_disk_is_left_alone_at_once(proxy):
    proxy.backend.rules.append(lambda call: 507 if call.device == "ob0" else found())
    proxy.ask("GET", OBJ)
    proxy.ask("GET", OBJ)
    assert [call.device for call in proxy.sent("object", "GET")] == ["ob0", "ob1", "ob1"]


@pytest.mark.parametrize("options", [{}, {"concurrent_gets": True}])
def test_devices_that_are_left_alone_are_better_than_none(make_proxy, options):
    proxy = make_proxy(**options)
    proxy.backend.rules.append(lambda call: 507 if call.kind == "object" and call.device.startswith("ob") else None)
    assert proxy.ask("GET", OBJ).status == 503
    assert len(proxy.app.health.limited()) > 3
    proxy.backend.rules[:] = [lambda call: found() if call.device == "ob2" else None]
    assert proxy.ask("GET", OBJ).status == 200


def test_concurrent_gets_go_on_while_one_is_slow(make_proxy):
    from keelstore.common.concurrency import sleep

    proxy = make_proxy(concurrent_gets=True, concurrency_timeout=0.01)

    def slow(call):
        if call.device == "ob0":
            sleep(0.2)
            return found(body=b"late")
        return found(body=b"soon") if call.kind == "object" else None

    proxy.backend.rules.append(slow)
    assert proxy.ask("GET", OBJ).body == b"soon"


# -- resuming ----------------------------------------------------------------------------------------------------------

DATA = bytes(range(256)) * 8


def serving(call):
    """A node that has DATA under etag e1 and serves one range."""
    if call.kind != "object":
        return None
    asked = call.headers.get("Range")
    first, last = 0, len(DATA) - 1
    headers = {"Etag": "e1", "Content-Type": "text/plain", "X-Backend-Timestamp": "1.00000"}
    if asked is None:
        return (200, {**headers, "Content-Length": str(len(DATA))}, DATA)
    (first, last), = spans_of(asked, len(DATA))
    return (206, {**headers, "Content-Length": str(last - first + 1), "Content-Range": f"bytes {first}-{last}/{len(DATA)}"},
            DATA[first:last + 1])


@pytest.mark.parametrize("error", [BackendError("reset"), None])
@pytest.mark.parametrize("taken", [0, 1, 1000, len(DATA) - 1])
def test_a_body_goes_on_from_another_node(proxy, taken, error):
    broken = Response(200, {"Etag": "e1", "Content-Length": str(len(DATA))}, app_iter=Breaking([DATA[:taken]], error))
    proxy.script("object", "GET", broken)
    proxy.backend.rules.append(serving)
    assert proxy.ask("GET", OBJ).body == DATA
    assert [call.headers.get("Range") for call in proxy.sent("object", "GET")] == [None, f"bytes={taken}-{len(DATA) - 1}"]


@pytest.mark.parametrize("taken", [0, 1000])
def test_pieces_go_on_from_another_node(proxy, taken):
    class Pieces(Breaking):
        def file_pieces(self):
            return iter(self)

    proxy.script("object", "GET", Response(200, {"Etag": "e1", "Content-Length": str(len(DATA))},
                                           app_iter=Pieces([DATA[:taken]], BackendError("reset"))))
    proxy.backend.rules.append(serving)
    environ = fakes.environ("GET", OBJ)
    environ["swift.cache"] = proxy.cache
    body: Any = call_app(proxy.app, environ).app_iter
    assert b"".join(body.file_pieces()) == DATA


def test_a_range_goes_on_from_another_node(proxy):
    broken = Response(206, {"Etag": "e1", "Content-Length": "100", "Content-Range": f"bytes 50-149/{len(DATA)}"},
                      app_iter=Breaking([DATA[50:70]], BackendError("reset")))
    proxy.script("object", "GET", broken)
    proxy.backend.rules.append(serving)
    response = proxy.ask("GET", OBJ, {"Range": "bytes=50-149"})
    assert (response.status, response.body) == (206, DATA[50:150])


@pytest.mark.parametrize("taken", range(100, 340, 7))
def test_several_ranges_go_on_from_another_node(make_proxy, taken):
    proxy = make_proxy(handoffs=0)
    asked = "bytes=0-9, -20, 100-139"
    layout = multipart_layout(spans_of(asked, len(DATA)), b"b0", b"text/plain", len(DATA))
    whole = b"".join(piece if isinstance(piece, bytes) else DATA[piece[0]:piece[1] + 1] for piece in layout)
    broken = Response(206, {"Etag": "e1", "Content-Length": str(len(whole)),
                            "Content-Type": "multipart/byteranges;boundary=b0"},
                      app_iter=Breaking([whole[:taken]], BackendError("reset")))
    proxy.script("object", "GET", broken)
    proxy.backend.rules.append(serving)
    assert proxy.ask("GET", OBJ, {"Range": asked}).body == whole


def test_another_etag_is_not_mixed_in(proxy):
    broken = Response(200, {"Etag": "e0", "Content-Length": str(len(DATA))}, app_iter=Breaking([DATA[:5]], None))
    proxy.script("object", "GET", broken)
    proxy.backend.rules.append(serving)
    with pytest.raises(BackendError):
        proxy.ask("GET", OBJ)


def test_a_second_failure_is_survived_too(proxy):
    size = str(len(DATA))
    proxy.script("object", "GET",
                 Response(200, {"Etag": "e1", "Content-Length": size}, app_iter=Breaking([DATA[:5]], None)),
                 Response(206, {"Etag": "e1", "Content-Length": str(len(DATA) - 5)},
                          app_iter=Breaking([DATA[5:50]], BackendError("reset"))))
    proxy.backend.rules.append(serving)
    assert proxy.ask("GET", OBJ).body == DATA


def test_file_regions_pass_through(proxy):
    class File(Breaking):
        def file_region(self):
            return (9, 0, len(DATA))

    from keelstore.common.http import call_app

    proxy.script("object", "GET", Response(200, {"Content-Length": str(len(DATA)), "Etag": "e1"}, app_iter=File([DATA])))
    response = call_app(proxy.app, fakes.environ("GET", OBJ))
    body: Any = response.app_iter
    assert body.file_region() == (9, 0, len(DATA))


def test_what_is_left_of_a_layout():
    layout: list[Piece] = [b"abc", (10, 19), b"de"]
    whole = sum(map(size_of, layout))
    for sent in range(whole + 1):
        assert sum(map(size_of, after(layout, sent))) == whole - sent


def test_a_silent_node_is_asked_last_and_waited_for_less(proxy):
    waits = []
    plain = proxy.backend.call

    def call(address, method, path, headers, query="", body=b"", timeout_s=None, digest=None):
        waits.append((path.split("/")[1], timeout_s))
        return plain(address, method, path, headers, query, body, timeout_s, digest)

    proxy.backend.call = call
    proxy.backend.rules.append(lambda call: BackendTimeout("silent") if call.device == "ob0" else None)
    proxy.script("object", "GET", BackendTimeout("silent"), found(), found())
    proxy.ask("GET", OBJ)
    proxy.ask("GET", OBJ)
    assert [device for device, _ in waits if device.startswith("ob")] == ["ob0", "ob1", "ob1"]
    waits.clear()
    proxy.ask("DELETE", OBJ)
    assert dict(waits)["ob0"] == 1.0
    assert dict(waits)["ob1"] == 10.0


def test_an_answer_that_drips_is_not_waited_for():
    def drip():
        while True:
            yield b"x"
            concurrency.sleep(0.01)

    with pytest.raises(WaitTimeout):
        read_short(Response(404, app_iter=drip()), 0.05)
