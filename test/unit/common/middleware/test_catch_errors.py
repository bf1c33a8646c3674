import logging
import re

import pytest

from keelstore.common.errors import BackendError
from keelstore.common.http import Response
from keelstore.common.middleware.bodies import WrongLength
from keelstore.common.middleware.catch_errors import CatchErrors, CatchErrorsOptions, filter_factory
from test.unit.common.middleware.helpers import Got, Inner, call, make_environ

LOG = logging.getLogger("test.catch_errors")
TRANS_ID = re.compile(r"^tx[0-9a-f]{21}-[0-9a-f]{10}$")


def catch(app, suffix=""):
    return CatchErrors(app, CatchErrorsOptions(suffix), LOG)


def sized(length, *parts):
    def app(environ, start_response):
        start_response("200 OK", [("Content-Length", str(length))])
        return iter(parts)
    return app


def test_each_answer_has_the_transaction_id_twice_and_the_environ_too():
    inner = Inner(body=b"hello")
    got = call(catch(inner))
    trans_id = got.headers["X-Trans-Id"]
    assert TRANS_ID.match(trans_id)
    assert got.headers["X-Openstack-Request-Id"] == trans_id == inner.asked[0]["swift.trans_id"]
    assert call(catch(inner)).headers["X-Trans-Id"] != trans_id


def test_an_id_that_the_app_has_set_is_replaced_not_doubled():
    got = call(catch(Inner(headers={"X-Trans-Id": "old", "X-OpenStack-Request-Id": "old"})))
    names = [name.lower() for name, _ in got.starts[0][1]]
    assert names.count("x-trans-id") == names.count("x-openstack-request-id") == 1
    assert got.headers["X-Trans-Id"] != "old"


def test_suffix_and_the_clients_extra_are_appended_quoted_and_cut():
    got = call(catch(Inner(), "-reg"), headers={"X-Trans-Id-Extra": "a b/" + "x" * 40})
    assert got.headers["X-Trans-Id"].endswith("-reg-a%20b/" + "x" * 28)


def test_an_exception_is_a_plain_500_with_ids_and_no_traceback(caplog):
    def app(environ, start_response):
        raise RuntimeError("secret detail")
    got = call(catch(app))
    assert got.line == "500 Internal Error"
    assert got.headers["Content-Type"] == "text/plain"
    assert b"secret" not in got.body and b"Traceback" not in got.body
    assert got.headers["Content-Length"] == str(len(got.body))
    assert got.headers["X-Trans-Id"] and got.headers["X-Openstack-Request-Id"]
    assert caplog.records[-1].txn_id == got.headers["X-Trans-Id"]


def test_an_exception_after_start_response_is_a_500_still():
    def app(environ, start_response):
        start_response("200 OK", [])
        raise RuntimeError
    got = call(catch(app))
    assert got.status == 500 and len(got.starts) == 1


def test_an_app_that_starts_late_is_served_and_its_early_errors_are_500():
    def late(environ, start_response):
        start_response("200 OK", [("Content-Length", "2")])
        yield b"o"
        yield b"k"

    def broken(environ, start_response):
        if environ:
            raise RuntimeError
        yield b""
    assert call(catch(late)).body == b"ok"
    assert call(catch(broken)).status == 500


def test_a_body_of_the_right_length_passes_untouched():
    body = (b"hello",)
    def app(environ, start_response):
        start_response("200 OK", [("Content-Length", "5")])
        return body
    got = Got(catch(app), make_environ())
    assert got.raw is body
    assert call(catch(sized(5, b"he", b"llo"))).body == b"hello"


@pytest.mark.parametrize(("length", "parts", "sent"), [
    (5, (b"hell",), b"hell"), (5, (), b""), (5, (b"hello", b"!"), b"hello"), (5, (b"hel", b"lo wor"), b"hello"),
    (0, (b"x",), b""),
])
def test_a_wrong_length_breaks_the_connection_after_at_most_the_promised_bytes(length, parts, sent):
    taken: list[bytes] = []
    with pytest.raises(WrongLength):
        taken.extend(Got(catch(sized(length, *parts)), make_environ(), iterate=False).raw)
    assert b"".join(taken) == sent


def test_a_list_of_the_wrong_length_breaks_it_too():
    def app(environ, start_response):
        start_response("200 OK", [("Content-Length", "9")])
        return [b"short"]
    with pytest.raises(WrongLength):
        call(catch(app))


def test_a_body_without_length_passes():
    def app(environ, start_response):
        start_response("200 OK", [])
        return iter([b"a", b"b"])
    assert call(catch(app)).body == b"ab"


def test_a_head_with_a_body_raises_and_one_with_a_length_does_not():
    with pytest.raises(WrongLength):
        call(catch(sized(5, b"hello")), "HEAD")
    assert call(catch(sized(5)), "HEAD").headers["Content-Length"] == "5"


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
def test_bodyless_statuses_may_name_a_length(status):
    def app(environ, start_response):
        start_response(status, [("Content-Length", "77")])
        return iter(())
    assert call(catch(app)).body == b""


def test_an_error_in_mid_body_is_logged_and_passed_on(caplog):
    def parts():
        yield b"abc"
        raise OSError("disk gone")
    with pytest.raises(OSError):
        call(catch(Inner(Response(200, {"Content-Length": "9"}, app_iter=parts()))))
    assert "broke off" in caplog.text


def test_nodes_that_do_not_give_what_they_promised_are_told_of_without_a_traceback(caplog):
    def body():
        yield b"ab"
        raise BackendError("no other node has a fragment")

    def app(environ, start_response):
        start_response("200 OK", [("Content-Length", "5")])
        return body()

    with pytest.raises(BackendError):
        call(catch(app))
    assert "no other node" in caplog.text and "Traceback" not in caplog.text


def test_the_inner_body_is_closed():
    class Body:
        closed = False
        def __iter__(self):
            return iter([b"x"])
        def close(self):
            Body.closed = True
    call(catch(Inner(Response(200, {"Content-Length": "1"}, app_iter=Body()))))
    assert Body.closed


def test_factory_reads_the_suffix():
    app = filter_factory({}, trans_id_suffix="-x", log_file="-")(Inner())
    assert call(app).headers["X-Trans-Id"].endswith("-x")
