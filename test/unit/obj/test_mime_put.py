from __future__ import annotations

import io
import json
from hashlib import md5
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common import aligned
from keelstore.common.errors import BadRequest, ClientDisconnect, RequestError
from keelstore.common.headers import Headers
from keelstore.obj.mime_put import MimeDocuments
from test.support.objects import OBJECT, Peer, ServerBox, stamp


class Pieces(io.RawIOBase):
    """A body that comes in pieces of a given size."""

    def __init__(self, data: bytes, size: int):
        self.data, self.size, self.at = data, size, 0

    def read1(self, size: int) -> bytes:
        step = min(size, self.size)
        self.at += step
        return self.data[self.at - step : self.at]


def documents(body: bytes, footer: Any, boundary: str = "B", digest: str | None = None, end: bytes = b"--B--\r\n") -> bytes:
    text = footer if isinstance(footer, bytes) else json.dumps(footer).encode()
    checked = md5(text).hexdigest() if digest is None else digest
    md5_line = f"Content-MD5: {checked}\r\n" if checked else ""
    return (
        f"--{boundary}\r\nX-Document: object body\r\n\r\n".encode() + body
        + f"\r\n--{boundary}\r\nX-Document: object metadata\r\n{md5_line}\r\n".encode() + text + b"\r\n" + end
    )  # fmt: skip


@given(st.binary(max_size=300), st.integers(1, 50))
def test_body_and_footer_in_any_pieces(body, size):
    reader = MimeDocuments(Pieces(documents(body, {"Etag": "x"}), size), "B")
    if b"\r\n--B" in body:
        return
    assert b"".join(reader.object_body()) == body
    assert reader.footer() == {"Etag": "x"} and reader.at_end


@given(st.binary(max_size=300), st.integers(1, 50), st.integers(0, 310))
def test_body_of_announced_size_in_any_pieces(body, size, announced):
    reader = MimeDocuments(Pieces(documents(body, {"Etag": "x"}), size), "B")
    if announced == len(body):
        assert b"".join(reader.object_body(announced)) == body
        assert reader.footer() == {"Etag": "x"} and reader.at_end
    else:  # one that ends where another document does has swallowed the footer, which then is missing
        with pytest.raises((ClientDisconnect, BadRequest)):
            list(reader.object_body(announced))
            reader.footer()


class Views(Pieces):
    """As a proxy in the same process sends it."""

    def take(self, size: int) -> memoryview:
        return memoryview(self.read1(size))


@pytest.mark.parametrize("source", [Pieces, Views])
@pytest.mark.parametrize("size", [65536, 262224, 1 << 21])
def test_a_large_body_comes_in_pages(source, size):
    body = bytes(range(251)) * (aligned.LARGE // 251 + 500)
    reader = MimeDocuments(source(documents(body, {"Etag": "x"}), size), "B")
    pieces = list(reader.object_body(len(body)))
    assert b"".join(pieces) == body
    assert all(isinstance(piece, memoryview) for piece in pieces)
    assert [len(piece) for piece in pieces[:-1]] == [aligned.PIECE] * (len(pieces) - 1)
    assert reader.footer() == {"Etag": "x"} and reader.at_end


@pytest.mark.parametrize("source", [Pieces, Views])
@pytest.mark.parametrize("difference", [-1, 1, 1 << 20])
def test_a_large_body_of_another_size_than_announced(source, difference):
    body = bytes(aligned.LARGE + 77)
    reader = MimeDocuments(source(documents(body, {"Etag": "x"}), 65536), "B")
    with pytest.raises(ClientDisconnect):
        list(reader.object_body(len(body) + difference))


def test_a_large_body_without_memory_to_spare_comes_as_it_is(monkeypatch):
    none = aligned.Buffers(0)
    monkeypatch.setattr(aligned.pieces, "__defaults__", (none,))
    body = bytes(range(251)) * (aligned.LARGE // 251 + 500)
    reader = MimeDocuments(Views(documents(body, {"Etag": "x"}), 262224), "B")
    assert b"".join(reader.object_body(len(body))) == body
    assert reader.footer() == {"Etag": "x"}


def test_body_that_looks_like_a_boundary():
    body = b"\r\n--b\r\n-B\r\n--\r\n-" * 100
    for size in (1, 2, 3, 7, 64):
        assert b"".join(MimeDocuments(Pieces(documents(body, {}), size), "B").object_body()) == body


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        (b"", ClientDisconnect, "ended"), (b"junk" * 10, BadRequest, "boundary"), (b"--Bx\r\n", BadRequest, "boundary"),
        (b"--B\r\nno colon\r\n\r\n", BadRequest, "header"), (b"--B\r\n\r\nbody without end", ClientDisconnect, "ended"),
        (b"--B\r\n" + b"X: " + b"y" * 40000, BadRequest, "too long"), (b"--B--\r\n", BadRequest, "no object body"),
    ],
)  # fmt: skip
def test_bodies_that_are_refused(data, error, text):
    with pytest.raises(error, match=text):
        list(MimeDocuments(io.BytesIO(data), "B").object_body())


@pytest.mark.parametrize(
    ("data", "status", "text"),
    [
        (documents(b"x", {}, digest=""), 400, "no Content-MD5 in footer"),
        (documents(b"x", {}, digest="0" * 32), 422, "footer MD5 mismatch"),
        (documents(b"x", b"{"), 400, "JSON"), (documents(b"x", b"[]"), 400, "JSON"), (documents(b"x", {"a": [1]}), 400, "JSON"),
        (documents(b"x", b"[" * 100000), 400, "JSON"),
        (b"--B\r\nX-Document: object body\r\n\r\nx\r\n--B--\r\n", 400, "couldn't find footer MIME doc"),
        (b"--B\r\nX-Document: object body\r\n\r\nx\r\n--B\r\nX-Document: other\r\n\r\n\r\n--B--", 400, "couldn't find footer"),
        (b"--B\r\nX-Document: object body\r\n\r\nx\r\n--B\r\nX-Document: object metadata\r\n\r\n{", 400, "couldn't find footer"),
    ],
)  # fmt: skip
def test_footers_that_are_refused(data, status, text):
    reader = MimeDocuments(io.BytesIO(data), "B")
    assert b"".join(reader.object_body()) == b"x"
    with pytest.raises(RequestError, match=text) as caught:
        reader.footer()
    assert caught.value.status == status


def test_boundary_is_needed():
    for boundary in ("", "x" * 300):
        with pytest.raises(BadRequest, match="no MIME boundary"):
            MimeDocuments(io.BytesIO(b""), boundary)


# -- through the server

CONTAINER = ("127.0.0.1", 6201)


@pytest.fixture
def box(tmp_path):
    return ServerBox(str(tmp_path), {CONTAINER: Peer()})


def put(box: ServerBox, data: bytes, **headers: str) -> tuple[Any, Headers]:
    sent = Headers({
        "X-Timestamp": stamp(0).internal, "Content-Type": "text/plain", "X-Backend-Obj-Metadata-Footer": "yes",
        "X-Backend-Obj-Multipart-Mime-Boundary": "B", **{k.replace("_", "-"): v for k, v in headers.items()},
    })  # fmt: skip
    upload = box.backend.upload(OBJECT, "/sda1/7/a/c/o", sent)
    early = upload.ready()
    if early is not None:
        return early, Headers()
    upload.send(data)
    return upload.finish(), upload.continue_headers


def test_footer_adds_metadata(box):
    footer = {"X-Object-Sysmeta-Crypto": "c", "X-Object-Meta-F": "f", "Etag": md5(b"hello").hexdigest(), "X-Other": "no",
              "X-Backend-Container-Update-Override-Etag": "o1", "X-Object-Sysmeta-Container-Update-Override-Size": "99"}
    answer, continued = put(
        box, documents(b"hello", footer), X_Container_Host="127.0.0.1:6201", X_Container_Device="sdb", X_Container_Partition="1",
        X_Backend_Container_Update_Override_Etag="o0", X_Object_Meta_F="header",
    )  # fmt: skip
    assert (answer.status, continued["X-Obj-Metadata-Footer"]) == (201, "yes")
    answer = box.call("GET")
    assert answer.read() == b"hello" and answer.headers["X-Object-Sysmeta-Crypto"] == "c"
    assert answer.headers["X-Object-Meta-F"] == "f" and "X-Other" not in answer.headers
    sent = box.local[CONTAINER].calls[0][2]
    assert (sent["X-Etag"], sent["X-Size"]) == ("o1", "99")


def test_large_body_with_footer(box):
    body = bytes(range(256)) * 4096
    answer, _ = put(box, documents(body, {}), X_Backend_Obj_Content_Length=str(len(body)))
    assert answer.status == 201 and box.call("GET").read() == body


@pytest.mark.parametrize(
    ("data", "headers", "status"),
    [
        (documents(b"hello", {"Etag": "0" * 32}), {}, 422),
        (documents(b"hello", {}), {"Etag": "0" * 32}, 422),
        (documents(b"hello", {"Etag": md5(b"hello").hexdigest()}), {"Etag": "0" * 32}, 201),
        (documents(b"hello", {}, digest="0" * 32), {}, 422),
        (documents(b"hello", {}, digest=""), {}, 400),
        (documents(b"hello", {}), {"X_Backend_Obj_Content_Length": "6"}, 499),
        (documents(b"hello", {}), {"X_Backend_Obj_Content_Length": "4"}, 499),
        (documents(b"hello", {}), {"X_Backend_Obj_Content_Length": "x"}, 400),
        (documents(b"hello", {}), {"X_Backend_Obj_Multipart_Mime_Boundary": ""}, 400),
        (documents(b"hello", {})[:40], {}, 499),
    ],
)
def test_puts_that_are_refused_leave_nothing(box, data, headers, status):
    answer, _ = put(box, data, **headers)
    assert answer.status == status
    assert box.call("GET").status == (200 if status == 201 else 404)
