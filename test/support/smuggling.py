"""Requests on whose end two readers could disagree (S40). Each is sent with another request behind it, which must not run.

The target is ``/o``; :func:`aimed` puts another there, with headers.
"""

from __future__ import annotations

# What is no request at all, with the status it is refused with.
REFUSED = {
    "length and coding": (b"PUT /o HTTP/1.1\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "coding and length": (b"PUT /o HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n0\r\n\r\n", 400),
    "two lengths": (b"PUT /o HTTP/1.1\r\nContent-Length: 0\r\nContent-Length: 5\r\n\r\n", 400),
    "equal lengths": (b"PUT /o HTTP/1.1\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n", 400),
    "length list": (b"PUT /o HTTP/1.1\r\nContent-Length: 0, 0\r\n\r\n", 400),
    "length plus": (b"PUT /o HTTP/1.1\r\nContent-Length: +0\r\n\r\n", 400),
    "length minus": (b"PUT /o HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
    "length space": (b"PUT /o HTTP/1.1\r\nContent-Length: 0 0\r\n\r\n", 400),
    "length hex": (b"PUT /o HTTP/1.1\r\nContent-Length: 0x0\r\n\r\n", 400),
    "length empty": (b"PUT /o HTTP/1.1\r\nContent-Length:\r\n\r\n", 400),
    "length word": (b"PUT /o HTTP/1.1\r\nContent-Length: abc\r\n\r\n", 400),
    "length unicode digit": (b"PUT /o HTTP/1.1\r\nContent-Length: \xb2\r\n\r\n", 400),
    "length huge": (b"PUT /o HTTP/1.1\r\nContent-Length: " + b"9" * 40 + b"\r\n\r\n", 400),
    "length underscore": (b"PUT /o HTTP/1.1\r\nContent_Length: 4\r\n\r\n", 400),
    "coding underscore": (b"PUT /o HTTP/1.1\r\nTransfer_Encoding: chunked\r\n\r\n", 400),
    "bare lf in head": (b"PUT /o HTTP/1.1\nContent-Length: 0\r\n\r\n", 400),
    "bare lf before a header": (b"PUT /o HTTP/1.1\r\nX-A: b\nContent-Length: 0\r\n\r\n", 400),
    "bare lf ends the head": (b"PUT /o HTTP/1.1\nX-A: b\n\n", 400),
    "bare cr": (b"PUT /o HTTP/1.1\r\nX-A: b\rX-B: c\r\n\r\n", 400),
    "folded": (b"PUT /o HTTP/1.1\r\nX-A: b\r\n c\r\n\r\n", 400),
    "folded with tab": (b"PUT /o HTTP/1.1\r\nX-A: b\r\n\tc\r\n\r\n", 400),
    "folded first": (b"PUT /o HTTP/1.1\r\n X-A: b\r\n\r\n", 400),
    "nul in name": (b"PUT /o HTTP/1.1\r\nX-\0A: b\r\n\r\n", 400),
    "nul in value": (b"PUT /o HTTP/1.1\r\nX-A: b\0c\r\n\r\n", 400),
    "control in name": (b"PUT /o HTTP/1.1\r\nX-\x01A: b\r\n\r\n", 400),
    "del in value": (b"PUT /o HTTP/1.1\r\nX-A: \x7f\r\n\r\n", 400),
    "vertical tab before coding": (b"PUT /o HTTP/1.1\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n", 400),
    "space before colon": (b"PUT /o HTTP/1.1\r\nContent-Length : 0\r\n\r\n", 400),
    "tab before colon": (b"PUT /o HTTP/1.1\r\nTransfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n", 400),
    "space in name": (b"PUT /o HTTP/1.1\r\nX A: b\r\n\r\n", 400),
    "empty name": (b"PUT /o HTTP/1.1\r\n: b\r\n\r\n", 400),
    "no colon": (b"PUT /o HTTP/1.1\r\nHost\r\n\r\n", 400),
    "two hosts": (b"GET /o HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
    "one word": (b"GET\r\n\r\n", 400),
    "four words": (b"GET /o x HTTP/1.1\r\n\r\n", 400),
    "double space": (b"GET  /o HTTP/1.1\r\n\r\n", 400),
    "tab as space": (b"GET\t/o\tHTTP/1.1\r\n\r\n", 400),
    "junk version": (b"GET /o JUNK\r\n\r\n", 400),
    "signed version": (b"GET /o HTTP/+1.1\r\n\r\n", 400),
    "lower-case version": (b"GET /o http/1.1\r\n\r\n", 400),
    "version 2": (b"GET /o HTTP/2.0\r\n\r\n", 505),
    "preface of HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "0.9 but no GET": (b"PUT /o\r\n\r\n", 400),
    "binary": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    "method with colon": (b"GE:T /o HTTP/1.1\r\n\r\n", 400),
    "line too long": (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n", 414),
    "header too long": (b"GET /o HTTP/1.1\r\nX-A: " + b"a" * 9000 + b"\r\n\r\n", 400),
    "head too long": (b"GET /o HTTP/1.1\r\n" + b"X-A: " + b"".join(b"X-%d: %s\r\n" % (n, b"a" * 8000) for n in range(12)), 400),
    "too many headers": (b"GET /o HTTP/1.1\r\n" + b"X-A: b\r\n" * 202 + b"\r\n", 431),
}


# What reaches the application (spec: client-api 21.2) and has a length that nobody can know, or a body with broken framing.
CHUNKED_HEAD = b"PUT /o HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
DOUBTFUL = {
    "coding gzip": b"PUT /o HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n",
    "coding gzip, chunked": b"PUT /o HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "coding in capitals": b"PUT /o HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n0\r\n\r\n",
    "coding xchunked": b"PUT /o HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "coding twice": b"PUT /o HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "coding identity": b"PUT /o HTTP/1.1\r\nTransfer-Encoding: identity\r\n\r\n",
    "coding with HTTP/1.0": b"PUT /o HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunk size 0x": CHUNKED_HEAD + b"0x1\r\na\r\n0\r\n\r\n",
    "chunk size sign": CHUNKED_HEAD + b"+1\r\na\r\n0\r\n\r\n",
    "chunk size negative": CHUNKED_HEAD + b"-1\r\na\r\n0\r\n\r\n",
    "chunk size underscore": CHUNKED_HEAD + b"1_0\r\na\r\n0\r\n\r\n",
    "chunk size spaces": CHUNKED_HEAD + b" 1 \r\na\r\n0\r\n\r\n",
    "chunk size empty": CHUNKED_HEAD + b"\r\na\r\n0\r\n\r\n",
    "chunk size overflow": CHUNKED_HEAD + b"1" + b"0" * 16 + b"\r\na\r\n0\r\n\r\n",
    "chunk size word": CHUNKED_HEAD + b"xyz\r\na\r\n0\r\n\r\n",
    "chunk line without cr": CHUNKED_HEAD + b"1\na\r\n0\r\n\r\n",
    "chunk longer than said": CHUNKED_HEAD + b"1\r\nab\r\n0\r\n\r\n",
    "chunk ends with lf": CHUNKED_HEAD + b"1\r\na\n0\r\n\r\n",
    "chunk extension with lf": CHUNKED_HEAD + b"1;a\nb\r\na\r\n0\r\n\r\n",
    "chunk extension too long": CHUNKED_HEAD + b"1;" + b"a" * 2000 + b"\r\na\r\n0\r\n\r\n",
    "trailer without colon": CHUNKED_HEAD + b"0\r\nGET /canary HTTP/1.1\r\n\r\n",
    "trailer with space": CHUNKED_HEAD + b"0\r\nX : y\r\n\r\n",
    "trailer folded": CHUNKED_HEAD + b"0\r\nX: y\r\n z\r\n\r\n",
    "trailer with lf": CHUNKED_HEAD + b"0\r\nX: y\n\r\n",
    "trailers too long": CHUNKED_HEAD + b"0\r\n" + b"X: yyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n" * 400 + b"\r\n",
}


def aimed(request: bytes, target: bytes, headers: bytes = b"") -> bytes:
    """The request for ``target``; ``headers`` (lines with CRLF) go behind the request line, where that is whole."""
    line, end, rest = request.partition(b"\r\n")
    return line.replace(b"/o", target, 1) + end + (headers if line.count(b" ") == 2 else b"") + rest
