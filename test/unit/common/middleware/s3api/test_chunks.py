"""Bodies in chunks, against the published vectors and against everything that may be wrong with them."""

from __future__ import annotations

import base64
import io
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common.middleware.s3api import checksums
from keelstore.common.middleware.s3api import signature as sign
from keelstore.common.middleware.s3api.authentication import Signed
from keelstore.common.middleware.s3api.body import BodyRefused
from keelstore.common.middleware.s3api.chunks import ChunkedBody, names_of, open_stream

SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
SIGNED, TRAILER = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
PLAIN = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
DATA = b"a" * 66560
SEEDS = {SIGNED: "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9",
         TRAILER: "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e"}
CHAINS = {
    SIGNED: ("ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
             "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
             "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9"),
    TRAILER: ("b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2",
              "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7",
              "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992"),
}
TRAILING = (b"x-amz-checksum-crc32c:sOO8/Q==\r\n"
            b"x-amz-trailer-signature:d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435\r\n")


def signed_body(kind: str) -> bytes:
    one, two, three = CHAINS[kind]
    return b"".join((f"10000;chunk-signature={one}\r\n".encode(), DATA[:65536], f"\r\n400;chunk-signature={two}\r\n".encode(), DATA[65536:],
                     f"\r\n0;chunk-signature={three}\r\n".encode(), TRAILING if kind == TRAILER else b"", b"\r\n"))


def open_signed(kind: str, body: bytes, length: int = len(DATA)) -> ChunkedBody:
    scope = sign.Scope("20130524", "us-east-1")
    claim = Signed("v4", "k", SEEDS[kind], b"", "20130524T000000Z", scope, payload_hash=kind, signing_key=scope.key(SECRET))
    return open_stream(io.BytesIO(body), kind, str(length), "x-amz-checksum-crc32c" if kind == TRAILER else None, claim, {})


def open_plain(body: bytes, length: int, trailer: str | None = None) -> ChunkedBody:
    return open_stream(io.BytesIO(body), PLAIN, str(length), trailer, None, {})


def failure_of(body: ChunkedBody) -> str:
    got = bytearray()
    with pytest.raises(BodyRefused):
        while part := body.read1(4096):
            got += part
    assert body.failure is not None
    assert body.length is not None and (len(got) < body.length or body.length == 0), "all was handed on before the error"
    return body.failure.code


@pytest.mark.parametrize("kind", [SIGNED, TRAILER])
def test_the_published_vectors(kind: str) -> None:
    body = open_signed(kind, signed_body(kind))
    assert body.read() == DATA and body.read() == b""
    if kind == TRAILER:
        assert body.value(checksums.ALGORITHMS["CRC32C"]) == "sOO8/Q=="


@pytest.mark.parametrize("kind", [SIGNED, TRAILER])
def test_another_octet_or_signature_anywhere_is_found(kind: str) -> None:
    good = signed_body(kind)
    for place in (90, 65000, 65540 + 90, good.index(b"\r\n0;") + 25, *((good.rindex(b"sOO8") + 1, good.rindex(b"signature:") + 20)
                                                                        if kind == TRAILER else ())):
        bad = bytearray(good)
        bad[place] = ord("b") if bad[place] != ord("b") else ord("c")
        assert failure_of(open_signed(kind, bytes(bad))) in ("SignatureDoesNotMatch", "IncompleteBody")


@pytest.mark.parametrize("kind", [SIGNED, TRAILER])
@given(cut=st.integers(0, 66900))
def test_security_S06_a_cut_body_ends_at_once(kind: str, cut: int) -> None:
    whole = signed_body(kind)
    if cut < len(whole) and cut != len(whole) - 2:  # only the empty line at the end may be missing
        assert failure_of(open_signed(kind, whole[:cut])) == "IncompleteBody"


@given(sizes=st.lists(st.integers(8192, 20000), max_size=4), last=st.integers(1, 9000))
def test_plain_chunks_of_any_size_come_out_whole(sizes: list[int], last: int) -> None:
    chunks = [bytes([65 + i]) * size for i, size in enumerate([*sizes, last])]
    data = b"".join(chunks)
    framed = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    value = base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()
    body = open_plain(framed + f"0\r\nx-amz-checksum-crc32:{value}\r\n\r\n".encode(), len(data), "x-amz-checksum-crc32")
    assert body.read() == data
    assert body.expected == {checksums.ALGORITHMS["CRC32"]: value}


CRC = "x-amz-checksum-crc32"


@pytest.mark.parametrize(("body", "length", "trailer", "code"), [
    (b"hello", 5, None, "IncompleteBody"),
    (b"5\r\nhello\r\n", 5, None, "IncompleteBody"),
    (b"5\nhello\r\n0\r\n\r\n", 5, None, "IncompleteBody"),
    (b"5\r\nhelloXX0\r\n\r\n", 5, None, "IncompleteBody"),
    (b"5\r\nhello\r\n0\r\n\r\n", 6, None, "IncompleteBody"),
    (b"5\r\nhello\r\n0\r\n\r\n", 4, None, "IncompleteBody"),
    (b"5\r\nhello\r\n0\r\n\r", 5, None, "IncompleteBody"),
    (b"5\r\nhello\r\n0\r\n", 5, CRC, "IncompleteBody"),
    (b"5\r\nhello\r\n0\r\nx-amz-checksum-crc32:NhCmhg==", 5, CRC, "IncompleteBody"),
    (b"-5\r\nhello\r\n0\r\n\r\n", 5, None, "IncompleteBody"),
    (b"5\r\nhello\r\n5\r\nhello\r\n0\r\n\r\n", 10, None, "InvalidChunkSizeError"),
    (b"5\r\nhello\r\n0\r\n\r\n", 5, CRC, "MalformedTrailerError"),
    (b"5\r\nhello\r\n0\r\nx-amz-checksum-sha1:x\r\n\r\n", 5, CRC, "MalformedTrailerError"),
    (b"5\r\nhello\r\n0\r\nx-amz-checksum-crc32:NhCmhg==\r\n\r\n", 5, None, "MalformedTrailerError"),
    (b"5\r\nhello\r\n0\r\n\r\nx-amz-checksum-crc32:NhCmhg==\r\n\r\n", 5, CRC, "MalformedTrailerError"),
    (b"5\r\nhello\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n", 5, CRC, "BadDigest"),
    (b"5\r\nhello\r\n0\r\nx-amz-checksum-crc32:!!\r\n\r\n", 5, CRC, "InvalidRequest"),
    (b"0\r\nx-amz-checksum-crc32:NhCmhg==\r\n\r\n", 0, CRC, "BadDigest"),
    (b"5" * 2000, 5, None, "IncompleteBody"),
])
def test_what_is_wrong_with_plain_chunks_is_told(body: bytes, length: int, trailer: str | None, code: str) -> None:
    assert failure_of(open_plain(body, length, trailer)) == code


@pytest.mark.parametrize("end", [b"", b"\r\n", b"\r\nmore", b"\r\nbonus: trailer\r\n", b"\r\n\r\n"])
def test_what_comes_at_the_end_or_not_does_not_matter(end: bytes) -> None:
    assert open_plain(b"5\r\nhello\r\n0\r\nx-amz-checksum-crc32: NhCmhg==\r\n" + end, 5, CRC).read() == b"hello"


@pytest.mark.parametrize(("length", "provided"), [(6, 5), (4, 5)])
def test_only_a_wrong_number_of_octets_is_told_as_one(length: int, provided: int) -> None:
    body = open_plain(b"5\r\nhello\r\n0\r\n\r\n", length)
    failure_of(body)
    assert body.failure is not None
    assert body.failure.fields == {"NumberBytesExpected": length, "NumberBytesProvided": provided}
    broken = open_plain(b"5\nhello\r\n0\r\n\r\n", 5)
    failure_of(broken)
    assert broken.failure is not None and not broken.failure.fields


@pytest.mark.parametrize(("parameters", "code"), [
    (b"", "IncompleteBody"), (b";", "IncompleteBody"), (b";chunk-signature=", "IncompleteBody"),
    (b";chunk-signature=%s;extra=param" % b"0" * 64, "IncompleteBody"), (b";chunk-signature=invalid", "SignatureDoesNotMatch"),
    (b";extra=param;chunk-signature=%s" % (b"0" * 64), "SignatureDoesNotMatch"),
])
def test_what_is_wrong_with_the_line_of_a_signed_chunk_is_told(parameters: bytes, code: str) -> None:
    body = open_signed(SIGNED, b"10400%b\r\n%b\r\n" % (parameters, DATA))
    assert failure_of(body) == code
    if code == "SignatureDoesNotMatch":
        assert body.failure is not None and body.failure.fields["AWSAccessKeyId"] == "k"
        assert body.failure.fields["StringToSign"].startswith("AWS4-HMAC-SHA256-PAYLOAD\n")


@pytest.mark.parametrize(("text", "names"), [
    (None, []), ("", []), ("a", ["a"]), ("a,", ["a"]), ("a,,", ["a"]), ("a, ", ["a"]), (",a", ["", "a"]), ("a, ,", ["a", ""]),
])
def test_names_of_trailers(text: str | None, names: list[str]) -> None:
    assert names_of(text) == names


def test_the_last_of_two_equal_trailers_counts() -> None:
    body = open_plain(b"5\r\nhello\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\nx-amz-checksum-crc32:NhCmhg==\r\n\r\n", 5, CRC)
    assert body.read() == b"hello"
