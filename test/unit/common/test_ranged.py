import pytest

from keelstore.common.http import Request, Response
from keelstore.common.ranged import ranged_response

DATA = bytes(range(100))


def respond(headers=None, method="GET", data=DATA, status=200):
    environ = {"REQUEST_METHOD": method, **({"HTTP_RANGE": headers} if headers else {})}
    response = Response(status, {"Content-Type": "image/png", "Etag": "e", "Content-Encoding": "x"})
    ranged_response(Request(environ), response, len(data), lambda start, stop: iter([data[start:stop]]))
    sent = {}

    def start_response(line, pairs):
        sent.update(pairs)

    body = b"".join(response(environ, start_response))
    assert method == "HEAD" or sent["Content-Length"] == str(len(body))
    return response.status, sent, body


def test_whole():
    for header in (None, "bytes=x", "items=0-1"):
        status, headers, body = respond(header)
        assert (status, body) == (200, DATA) and "Content-Range" not in headers


def test_one_range():
    status, headers, body = respond("bytes=10-19")
    assert (status, body, headers["Content-Range"]) == (206, DATA[10:20], "bytes 10-19/100")
    assert headers["Content-Type"] == "image/png"


def test_several_ranges():
    status, headers, body = respond("bytes=0-1,-2")
    assert status == 206 and headers["Content-Type"].startswith("multipart/byteranges;boundary=")
    assert body.count(b"Content-Type: image/png\r\n") == 2 and "Content-Range" not in headers


@pytest.mark.parametrize("header", ["bytes=100-", "bytes=-0", "bytes=" + "0-9," * 9 + "0-9"])
def test_unsatisfiable(header):
    status, headers, body = respond(header)
    assert status == 416 and headers["Content-Range"] == "bytes */100" and b"Range requested is not available" in body
    assert headers["Etag"] == "e" and "Content-Encoding" not in headers and headers["Content-Type"].startswith("text/html")


def test_head_ignores_range():
    status, headers, body = respond("bytes=0-1", "HEAD")
    assert (status, headers["Content-Length"], body) == (200, "100", b"")


def test_empty():
    assert respond("bytes=-5", data=b"")[0] == 200
    assert respond("bytes=0-", data=b"")[0] == 416
    assert respond(data=b"")[2] == b""


def test_other_status_ignores_range():
    assert respond("bytes=0-1", status=203)[0] == 203
