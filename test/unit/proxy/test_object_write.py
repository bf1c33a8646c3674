import json
from hashlib import md5

import pytest

from keelstore.common.errors import BackendError, BackendTimeout
from keelstore.proxy import replicated
from test.support.fakes import DOWN

OBJ = "/v1/AUTH_a/c/o"
ETAG = md5(b"data").hexdigest()
CREATED = (201, {"Etag": ETAG})


@pytest.mark.parametrize(("replies", "expected"), [
    ([201, 201, 201], 201), ([201, 201, 503], 201), ([201, DOWN, 201], 201), ([507, 201, 201], 201),
    ([201, 409, 201], 202), ([409, 409, 409], 202), ([422, 422, 422], 422), ([422, 422, 201], 422),
    ([400, 400, 400], 400), ([413, 413, 201], 413),
])
def test_small_put_status_matrix(make_proxy, replies, expected):
    proxy = make_proxy(handoffs=0)
    proxy.script("object", "PUT", *[CREATED if r == 201 else r for r in replies])
    response = proxy.ask("PUT", OBJ, body=b"data")
    assert response.status == expected


@pytest.mark.parametrize("replies", [[201, 503, 503], [503, 503, 503], [DOWN, DOWN, 201], [507, 507, 201], [201, 422, 503]])
def test_put_without_quorum_is_503(make_proxy, replies):
    proxy = make_proxy(handoffs=0)
    proxy.script("object", "PUT", *[CREATED if r == 201 else r for r in replies])
    assert proxy.ask("PUT", OBJ, body=b"data").status == 503


@pytest.mark.parametrize("size", [4, 100_000])
def test_a_handoff_takes_the_place_of_a_primary_that_fails(proxy, size):
    body = b"x" * size
    etag = md5(body).hexdigest()
    proxy.backend.rules.append(lambda call: DOWN if call.device == "ob1" else None)
    proxy.backend.rules.append(lambda call: (201, {"Etag": etag}) if call.method == "PUT" else None)
    if size > 65536:
        proxy.script("object", "EXPECT", None, DOWN)
    response = proxy.ask("PUT", OBJ, body=body)
    assert response.status == 201
    assert response.headers["Etag"] == etag
    devices = [call.device for call in proxy.sent("object", "PUT")]
    assert "ob3" in devices
    assert sum(call.body == body for call in proxy.sent("object", "PUT") if call.device != "ob1") == 3


NO_ROOM = (507, {"X-Backend-Keelstore-Reason": "room"})


@pytest.mark.parametrize("size", [500, 100_000])
def test_a_device_without_room_takes_no_puts_as_large_and_all_else(proxy, size):
    body = b"x" * size
    proxy.backend.rules.append(lambda call: NO_ROOM if call.device == "ob1" and call.method == "PUT" and call.kind == "object" else None)
    proxy.backend.rules.append(lambda call: {"PUT": (201, {"Etag": "e"}), "DELETE": 204, "POST": 202, "GET": (200, {}, b"")}.get(call.method)
                               if call.kind == "object" else None)

    def asked(method, **also):
        del proxy.backend.calls[:]
        answer = proxy.ask(method, OBJ, **also)
        return answer.status, sorted(call.device for call in proxy.sent("object", method))

    tried_for_it = [] if size > 65536 else ["ob3"]  # no handoff takes what has passed
    assert asked("PUT", body=body) == (201, ["ob0", "ob1", "ob2", *tried_for_it])
    assert asked("PUT", body=body + b"x") == (201, ["ob0", "ob2", "ob3"])
    assert asked("PUT", body=body[:400]) == (201, ["ob0", "ob1", "ob2", "ob3"])  # it might have room for that
    assert asked("DELETE") == (204, ["ob0", "ob1", "ob2"])
    assert asked("POST") == (202, ["ob0", "ob1", "ob2"])
    assert proxy.app.health.limited() == []
    assert asked("PUT", body=body) == (201, ["ob0", "ob2", "ob3"])


def test_a_device_without_room_before_the_body_takes_no_puts_of_that_size(proxy):
    body = b"x" * 100_000
    proxy.script("object", "EXPECT", None, NO_ROOM)
    proxy.backend.rules.append(lambda call: (201, {"Etag": "e"}) if call.kind == "object" and call.method == "PUT" else None)
    assert proxy.ask("PUT", OBJ, body=body).status == 201
    full = [node for node in proxy.rings.ring.primaries(0) if proxy.app.health.is_full(node, len(body))]
    assert len(full) == 1
    assert not proxy.app.health.is_full(full[0], len(body) - 1)


@pytest.mark.parametrize("path", ["/v1/AUTH_a/c", "/v1/AUTH_a"])
def test_containers_and_accounts_go_past_devices_without_room(make_proxy, path):
    kind = "container" if path.endswith("/c") else "account"
    proxy = make_proxy(allow_account_management=True)
    proxy.backend.rules.append(lambda call: NO_ROOM if call.kind == kind and call.method in ("PUT", "POST") and call.device.endswith("1") else None)
    proxy.backend.rules.append(lambda call: 201 if call.method == "PUT" else 204 if call.method == "POST" else None)
    for _ in range(2):
        assert proxy.ask("PUT", path).status in (201, 202)
    assert sum(call.device.endswith("1") for call in proxy.sent(kind, "PUT")) == 1
    for _ in range(2):
        assert proxy.ask("POST", path).status == 204
    assert sum(call.device.endswith("1") for call in proxy.sent(kind, "POST")) == 2
    assert proxy.app.health.limited() == []


def test_nodes_that_disagree_on_the_etag_are_500(make_proxy):
    proxy = make_proxy(handoffs=0)
    proxy.script("object", "PUT", CREATED, (201, {"Etag": "other"}), CREATED)
    assert proxy.ask("PUT", OBJ, body=b"data").status == 500


def test_put_answers_etag_and_time(proxy):
    proxy.script("object", "PUT", CREATED, CREATED, CREATED)
    response = proxy.ask("PUT", OBJ, {"X-Timestamp": "1700000000.00001"}, b"data")
    assert response.headers["Etag"] == ETAG
    assert response.headers["Last-Modified"] == "Tue, 14 Nov 2023 22:13:21 GMT"
    assert response.headers["Content-Type"] == "text/html; charset=UTF-8"
    assert response.headers["Content-Length"] == "0"


def test_if_none_match_is_settled_before_any_body_is_sent(proxy):
    proxy.script("object", "EXPECT", None, 412, None)
    response = proxy.ask("PUT", OBJ, {"If-None-Match": "*"}, b"data")
    assert response.status == 412
    assert all(not call.body for call in proxy.sent("object", "PUT"))
    assert sum(call.was_aborted for call in proxy.sent("object", "PUT")) == 2


def test_if_none_match_with_an_etag_is_400(proxy):
    assert proxy.ask("PUT", OBJ, {"If-None-Match": "abc"}, b"data").status == 400
    assert not proxy.sent("object", "PUT")


@pytest.mark.parametrize(("first", "expected"), [
    ([409, None, None], 202), ([DOWN, DOWN, DOWN], 503), ([503, 507, None], 503), ([507, None, None], 201),
    ([400, 400, 400], 400),
])
def test_streamed_put_first_answers(make_proxy, first, expected):
    proxy = make_proxy(handoffs=0)
    body = b"y" * 70_000
    proxy.script("object", "EXPECT", *first)
    proxy.script("object", "PUT", *[(201, {"Etag": md5(body).hexdigest()})] * 3)
    assert proxy.ask("PUT", OBJ, body=body).status == expected


def test_streamed_put_drops_a_node_that_stops_taking_data(make_proxy):
    proxy = make_proxy(handoffs=0, client_chunk_size=1000)
    body = b"z" * 70_000
    proxy.script("object", "SEND", None, None, None, BackendError("broken pipe"))
    proxy.script("object", "PUT", *[(201, {"Etag": md5(body).hexdigest()})] * 2)
    assert proxy.ask("PUT", OBJ, body=body).status == 201
    assert sorted(len(call.body) for call in proxy.sent("object", "PUT")) == [1000, 70_000, 70_000]


def test_a_node_that_was_silent_has_little_time_to_answer_and_as_much_as_others_for_the_body(proxy):
    waits = []
    plain = proxy.backend.upload

    def upload(address, path, headers, **kwargs):
        made = plain(address, path, headers, **kwargs)
        made.ready = lambda timeout_s=None: waits.append((path.split("/")[1], kwargs["timeout_s"], timeout_s))
        return made

    proxy.backend.upload = upload
    node = proxy.rings.ring.primaries(0)[0]
    proxy.app.health.failed(node, "PUT", BackendTimeout("silent"))
    proxy.script("object", "PUT", 201, 201, 201)
    assert proxy.ask("PUT", OBJ, body=b"x" * 70000).status == 201
    assert sorted(waits) == [("ob0", 10.0, 1.0), ("ob1", 10.0, 10.0), ("ob2", 10.0, 10.0)]


def test_streamed_put_gives_up_below_quorum(make_proxy):
    proxy = make_proxy(handoffs=0, client_chunk_size=1000)
    proxy.script("object", "SEND", BackendError("one"), BackendError("two"))
    assert proxy.ask("PUT", OBJ, body=b"z" * 70_000).status == 503
    assert [call.was_aborted for call in proxy.sent("object", "PUT")].count(True) == 1


@pytest.mark.parametrize("size", [10, 70_000, 5_000_000])
def test_body_shorter_than_announced_is_499_and_nothing_is_kept(proxy, size):
    response = proxy.ask("PUT", OBJ, {"Content-Length": str(size + 1)}, b"x" * size)
    assert response.status == 499
    assert all(call.was_aborted for call in proxy.sent("object", "PUT"))


def test_chunked_body_beyond_the_largest_size_is_413(make_proxy):
    proxy = make_proxy(limits={"max_file_size": 1000}, client_chunk_size=100)
    response = proxy.ask("PUT", OBJ, {"Content-Length": None, "Transfer-Encoding": "chunked"}, b"x" * 1001)
    assert response.status == 413
    assert all(call.was_aborted for call in proxy.sent("object", "PUT"))


def test_chunked_body_is_stored(proxy):
    proxy.script("object", "PUT", CREATED, CREATED, CREATED)
    response = proxy.ask("PUT", OBJ, {"Content-Length": None, "Transfer-Encoding": "chunked"}, b"data")
    assert response.status == 201
    assert [call.body for call in proxy.sent("object", "PUT")] == [b"data"] * 3


@pytest.mark.parametrize(("headers", "expected"), [
    ({"Content-Length": None}, 411),
    ({"Transfer-Encoding": "gzip"}, 400),
    ({"Transfer-Encoding": "gzip,chunked"}, 501),
    ({"Content-Length": None, "Transfer-Encoding": "Chunked"}, 411),
    ({"Content-Length": "-1"}, 400),
    ({"Content-Length": "ten"}, 400),
    ({"Content-Length": str(5368709123)}, 413),
    ({"X-Delete-At": "soon"}, 400),
    ({"X-Delete-At": "1"}, 400),
    ({"X-Delete-After": "x"}, 400),
    ({"X-Delete-After": "0"}, 400),
    ({"X-Delete-After": "-5"}, 400),
    ({"Content-Type": "text/\xff"}, 400),
    ({"Content-Type": "text/plain; swift_bytes=5"}, 400),
    ({"X-Object-Meta-": "x"}, 400),
    ({"X-Object-Meta-" + "a" * 129: "x"}, 400),
    ({"X-Object-Meta-A": "x" * 257}, 400),
    ({f"X-Object-Meta-{n}": "x" for n in range(91)}, 400),
    ({f"X-Object-Meta-{n}": "x" * 200 for n in range(21)}, 400),
    ({"X-Anything": "x" * 8193}, 400),
    ({"X-Timestamp": "then"}, 400),
])
def test_bad_put_requests(proxy, headers, expected):
    response = proxy.ask("PUT", OBJ, headers, b"data")
    assert response.status == expected
    assert not proxy.sent("object", "PUT")


@pytest.mark.parametrize("headers", [
    {"X-Object-Meta-" + "a" * 128: "x" * 256}, {f"X-Object-Meta-{n}": "x" for n in range(90)},
    {"X-Object-Meta-Blob": "\xff\xfe"},
])
def test_metadata_at_the_limit_is_taken(proxy, headers):
    proxy.script("object", "PUT", CREATED, CREATED, CREATED)
    assert proxy.ask("PUT", OBJ, headers, b"data").status == 201
    sent = proxy.sent("object", "PUT")[0].headers
    assert all(sent[name] == value for name, value in headers.items())


def test_object_names_are_counted_in_characters(proxy):
    proxy.backend.rules.append(lambda call: CREATED if call.method == "PUT" else None)
    assert proxy.ask("PUT", "/v1/AUTH_a/c/" + "ü" * 1024, body=b"data").status == 201
    assert proxy.ask("PUT", "/v1/AUTH_a/c/" + "ü" * 1025, body=b"data").status == 400


@pytest.mark.parametrize(("name", "headers", "expected"), [
    ("a.html", {}, "text/html"), ("a.tar.gz", {}, "application/x-tar"), ("noext", {}, "application/octet-stream"),
    (".png", {}, "application/octet-stream"), ("a.html", {"Content-Type": "x/y; charset=z"}, "x/y; charset=z"),
    ("a.html", {"Content-Type": "x/y", "X-Detect-Content-Type": "true"}, "text/html"), ("d/e.JPG", {}, "image/jpeg"),
])
def test_content_type_is_guessed_from_the_name(proxy, name, headers, expected):
    proxy.script("object", "PUT", CREATED, CREATED, CREATED)
    proxy.ask("PUT", f"/v1/AUTH_a/c/{name}", headers, b"data")
    sent = proxy.sent("object", "PUT")[0].headers
    assert sent["Content-Type"] == expected
    assert "X-Detect-Content-Type" not in sent


def test_container_updates_are_dealt_out(proxy):
    proxy.script("object", "PUT", CREATED, CREATED, CREATED)
    proxy.ask("PUT", OBJ, body=b"data")
    sent = [call.headers for call in proxy.sent("object", "PUT")]
    assert sorted(own["X-Container-Host"] for own in sent) == [f"10.0.0.{n}:6201" for n in range(3)]
    assert sorted(own["X-Container-Device"] for own in sent) == ["co0", "co1", "co2"]
    assert {own["X-Container-Root-Db-State"] for own in sent} == {"unsharded"}
    assert sorted(own["X-Backend-Clean-Expiring-Object-Queue"] for own in sent) == ["f", "t", "t"]
    assert all(own["X-Backend-Storage-Policy-Index"] == "0" for own in sent)
    assert all(own["X-Trans-Id"] == "tx-test" for own in sent)
    assert all(own["Referer"] == "PUT http://localhost:8080/v1/AUTH_a/c/o" for own in sent)
    assert all(own["User-Agent"].startswith("proxy-server ") for own in sent)


def test_expiry_names_the_queue(proxy):
    proxy.script("object", "PUT", CREATED, CREATED, CREATED)
    proxy.ask("PUT", OBJ, {"X-Delete-At": "4102444800", "X-Timestamp": "1700000000.00000"}, b"data")
    sent = [call.headers for call in proxy.sent("object", "PUT")]
    assert {own["X-Delete-At"] for own in sent} == {"4102444800"}
    assert sorted(own["X-Delete-At-Host"] for own in sent) == [f"10.0.0.{n}:6201" for n in range(3)]
    assert all(4102444800 - 86400 - 100 < int(own["X-Delete-At-Container"]) <= 4102444800 for own in sent)
    assert all(own["X-Delete-At-Partition"].isdigit() for own in sent)


def test_delete_after_wins_and_is_not_passed_on(proxy):
    proxy.script("object", "PUT", CREATED, CREATED, CREATED)
    proxy.ask("PUT", OBJ, {"X-Delete-At": "1", "X-Delete-After": "60", "X-Timestamp": "1700000000.00000"}, b"data")
    sent = proxy.sent("object", "PUT")[0].headers
    assert sent["X-Delete-At"] == "1700000060"
    assert "X-Delete-After" not in sent


@pytest.mark.parametrize(("replies", "more", "expected"), [
    ([202, 202, 202], [], 202), ([202, 202, 404], [], 202), ([404, 404, 404], [], 404), ([409, 409, 409], [], 409),
    ([202, 404, 404], [202, 404], 202),
    ([202, 404, 404], [(404, {"X-Backend-Timestamp": "1.00000"})] * 2, 503),
])
def test_post_status_matrix(make_proxy, replies, more, expected):
    proxy = make_proxy(handoffs=3)
    proxy.script("object", "POST", *replies, *more)
    assert proxy.ask("POST", OBJ, {"X-Object-Meta-A": "b"}).status == expected


def test_post_never_says_404_when_one_copy_took_it(make_proxy):
    proxy = make_proxy(handoffs=0)
    proxy.script("object", "POST", 404, 202, 404)
    assert proxy.ask("POST", OBJ).status == 503


@pytest.mark.parametrize("headers", [{"X-Delete-At": "soon"}, {f"X-Object-Meta-{n}": "v" for n in range(200)}])
def test_bad_post_is_400(proxy, headers):
    assert proxy.ask("POST", OBJ, headers).status == 400


@pytest.mark.parametrize(("replies", "expected"), [
    ([204, 204, 204], 204), ([204, 204, 404], 204), ([404, 404, 404], 404), ([204, 404, 404], 404),
    ([204, 404, DOWN], 204), ([409, 409, 409], 409), ([204, DOWN, DOWN], 503), ([409, 204, DOWN], 503),
])
def test_delete_status_matrix(make_proxy, replies, expected):
    proxy = make_proxy(handoffs=0)
    proxy.script("object", "DELETE", *replies)
    assert proxy.ask("DELETE", OBJ).status == expected


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE"])
def test_a_missing_container_is_404(proxy, method):
    proxy.backend.rules.append(lambda call: 404 if call.kind == "container" else None)
    assert proxy.ask(method, OBJ).status == 404
    assert not proxy.sent("object", method)


@pytest.mark.parametrize("method", ["GET", "PUT", "POST", "DELETE"])
def test_a_container_that_cannot_be_asked_is_503(proxy, method):
    proxy.backend.rules.append(lambda call: DOWN if call.kind == "container" else None)
    assert proxy.ask(method, OBJ).status == 503


def test_nodes_that_do_not_offer_two_phases_get_no_fragments(make_proxy):
    from keelstore.common.policy import ErasureCodingPolicy, Policies, ReplicationPolicy

    proxy = make_proxy(policies=Policies.of([ReplicationPolicy(0, "gold", is_default=True), ErasureCodingPolicy(2, "ec42")]))
    proxy.backend.container_headers["X-Backend-Storage-Policy-Index"] = "2"
    response = proxy.ask("PUT", OBJ, body=b"data")
    assert response.status == 503


def test_an_unknown_policy_is_503(proxy):
    proxy.backend.container_headers["X-Backend-Storage-Policy-Index"] = "7"
    assert proxy.ask("GET", OBJ).status == 503


def test_footers_of_a_middleware_are_stored(proxy):
    proxy.backend.rules.append(lambda call: CREATED if call.method == "PUT" else None)

    def footers(found):
        found["X-Object-Sysmeta-Crypto"] = "yes"

    key = "swift.callback.update_footers"
    proxy.ask("PUT", OBJ, body=b"data", **{key.replace(".", "__"): footers})
    assert all(call.headers["X-Object-Sysmeta-Crypto"] == "yes" for call in proxy.sent("object", "PUT"))
    proxy.backend.calls.clear()
    body = b"w" * 70_000
    proxy.ask("PUT", OBJ, body=body, **{key.replace(".", "__"): footers})
    for call in proxy.sent("object", "PUT"):
        assert call.headers["X-Backend-Obj-Content-Length"] == "70000"
        boundary = call.headers["X-Backend-Obj-Multipart-Mime-Boundary"].encode()
        start = b"--" + boundary + b"\r\nX-Document: object body\r\n\r\n" + body + b"\r\n--" + boundary
        assert call.body.startswith(start)
        document = json.dumps({"X-Object-Sysmeta-Crypto": "yes", "Etag": md5(body).hexdigest()}).encode()
        assert b"\r\n\r\n" + document + b"\r\n--" + boundary + b"--\r\n" in call.body
    proxy.backend.calls.clear()
    proxy.ask("PUT", OBJ, {"Etag": "0" * 32}, body=body, **{key.replace(".", "__"): footers})
    assert all(b"Etag" not in call.body and call.headers["Etag"] == "0" * 32 for call in proxy.sent("object", "PUT"))


def test_an_input_that_gives_little_at_a_time_is_read_to_its_end(proxy):
    class Slow:
        def __init__(self):
            self.left = b"data"

        def read(self, size=-1):
            given, self.left = self.left[:1], self.left[1:]
            return given

    proxy.script("object", "PUT", CREATED, CREATED, CREATED)
    assert proxy.ask("PUT", OBJ, {"Content-Length": "4"}, Slow()).status == 201
    assert {call.body for call in proxy.sent("object", "PUT")} == {b"data"}


@pytest.mark.parametrize("size", [4, 70_000, 4 << 20, 5_000_001])
@pytest.mark.parametrize("is_local", [False, True])
def test_a_body_is_hashed_here_only_for_nodes_of_this_process(proxy, monkeypatch, size, is_local):
    hashed, digests = [], []

    class Md5:
        def __init__(self, data=b"", usedforsecurity=True):
            self._inner = md5()
            self.update(data)

        def update(self, data):
            hashed.append(len(data))
            self._inner.update(data)

        def hexdigest(self):
            return self._inner.hexdigest()

    def keep(plain):
        def ask(*args, **kwargs):
            if "digest" in kwargs and args[0][1] == 6200:
                digests.append(kwargs["digest"])
            return plain(*args, **kwargs)

        return ask

    monkeypatch.setattr(replicated, "md5", Md5)
    for name in ("call", "upload"):
        monkeypatch.setattr(proxy.backend, name, keep(getattr(proxy.backend, name)))
    monkeypatch.setattr(proxy.backend, "is_local", lambda address: is_local)
    proxy.script("object", "PUT", 201, 201, 201)
    body = b"x" * size
    assert proxy.ask("PUT", OBJ, body=body).status == 201
    if is_local:
        assert [digest() for digest in digests] == [md5(body).hexdigest()] * 3
    assert sum(hashed) == (size if is_local else 0)
    assert {call.body == body for call in proxy.sent("object", "PUT")} == {True}
