import io
import json

import pytest

from keelstore.common.http import Response
from keelstore.common.internal import BodyOf, InternalClient, SourceEnded, UnexpectedResponse, make_path, subrequest
from test.support.fakes import environ


def test_a_subrequest_takes_only_what_is_listed():
    client = environ("PUT", "/v1/a/c/o", {"X-Auth-Token": "t", "X-Object-Meta-A": "b", "Range": "bytes=0-1", "User-Agent": "me",
                                          "X-Backend-Storage-Policy-Index": "1", "Cookie": "c"}, b"data", "a=b")
    client.update({"swift.cache": "cache", "swift.authorize": "auth", "REMOTE_USER": "u", "swift_owner": True})
    made = subrequest(client, "GET", "/v1/a/é", headers={"X-Newest": "true"}, query={"q": "é&"}, source="SRC")
    assert made["HTTP_USER_AGENT"] == "me"
    assert made["swift.cache"] == "cache"
    assert made["swift.authorize"] == "auth"
    assert made["REMOTE_USER"] == "u"
    assert made["swift.source"] == "SRC"
    assert made["HTTP_X_NEWEST"] == "true"
    assert made["PATH_INFO"] == "/v1/a/\xc3\xa9"
    assert made["QUERY_STRING"] == "q=%C3%A9%26"
    assert made["wsgi.input"].read() == b""
    for key in ("HTTP_X_AUTH_TOKEN", "HTTP_X_OBJECT_META_A", "HTTP_RANGE", "HTTP_X_BACKEND_STORAGE_POLICY_INDEX", "HTTP_COOKIE",
                "swift_owner"):
        assert key not in made


def test_pre_authorised():
    made = subrequest({"swift.authorize": lambda request: Response(403)}, "GET", "/v1/a", pre_authed=True)
    assert made["swift.authorize"](None) is None
    assert made["swift_owner"] is True
    assert made["REMOTE_USER"] == ".wsgi.pre_authed"


def test_bodies():
    assert subrequest({}, "PUT", "/x", body=b"abc")["CONTENT_LENGTH"] == "3"
    assert subrequest({}, "PUT", "/x", body=[b"ab", b"c"])["wsgi.input"].read() == b"abc"
    streamed = subrequest({}, "PUT", "/x", body=io.BytesIO(b"abc"))
    assert streamed["HTTP_TRANSFER_ENCODING"] == "chunked"
    assert "CONTENT_LENGTH" not in streamed
    assert subrequest({}, "PUT", "/x", body=io.BytesIO(b"abc"), length=3)["CONTENT_LENGTH"] == "3"


class App:
    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    def __call__(self, env, start_response):
        self.asked.append((env["REQUEST_METHOD"], env["PATH_INFO"], env["QUERY_STRING"], env["wsgi.input"].read()))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer(env, start_response)


def client(app, **kwargs):
    return InternalClient(app, "test", pause_s=0, **kwargs)


def test_failures_are_tried_again():
    app = App(Response(503), OSError("x"), Response(201))
    client(app).put_object(io.BytesIO(b"data"), "a", "c", "o", length=4)
    assert [asked[3] for asked in app.asked] == [b"data"] * 3
    with pytest.raises(UnexpectedResponse) as error:
        client(App(Response(503), Response(503), Response(500))).metadata("a", "c")
    assert error.value.status == 500


def test_a_refusal_is_not_tried_again():
    app = App(Response(404))
    with pytest.raises(UnexpectedResponse):
        client(app).get_object("a", "c", "o")
    assert len(app.asked) == 1


def test_listing_goes_page_by_page():
    pages = [[{"name": "a"}, {"name": "b é"}], [{"subdir": "c/"}], []]
    app = App(*(Response(200, body=json.dumps(page)) for page in pages))
    assert [entry.get("name") for entry in client(app).list_container("a", "c", prefix="x")] == ["a", "b é", None]
    assert [asked[2] for asked in app.asked] == ["prefix=x&format=json", "prefix=x&format=json&marker=b%20%C3%A9",
                                                 "prefix=x&format=json&marker=c%2F"]
    assert list(client(App(Response(404))).list_container("a", "c")) == []


def test_paths():
    assert make_path("a") == "/v1/a"
    assert make_path("a", "c", "d/e") == "/v1/a/c/d/e"


def test_the_body_of_an_answer_is_read_as_a_file():
    for response in (Response(200, app_iter=iter([b"ab", b"", b"cde"])), Response(200, body=b"abcde")):
        body = BodyOf(response, 5)
        assert (body.read(1), body.read(3), body.read(), body.read(), body.is_broken) == (b"a", b"bcd", b"e", b"", False)


@pytest.mark.parametrize("parts", [[], [b"ab"], [b"abcd", b"ef"], [b"ab", OSError("disk gone")]])
def test_the_body_of_an_answer_that_is_not_whole_does_not_look_so(parts):
    def source():
        for part in parts:
            if isinstance(part, OSError):
                raise part
            yield part

    body = BodyOf(Response(200, app_iter=source()), 5)
    with pytest.raises(SourceEnded):
        body.read()
    assert body.is_broken
