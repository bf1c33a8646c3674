"""HTTP/1.x heads and chunk framing, parsed strictly. Pure: octets in, values out.

Where two readers of one byte stream could disagree about where a message ends, the message is refused (RFC 9112 11.2):
bare CR or LF, folded lines, white space around names, control characters, Content-Length that is repeated, signed or beside
Transfer-Encoding, chunk sizes that are not plain hexadecimal. A refusal is a :class:`ProtocolError`; the connection it came
from cannot be used again. All work is linear in the size of the input.

Header names may hold octets from 0x80 (Swift's clients send metadata names in UTF-8); only ASCII letters change case.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple
from urllib.parse import unquote_to_bytes

from keelstore.common.errors import KeelstoreError
from keelstore.common.headers import Headers, environ_key, title

CHUNKED: Final = -1  # Head.length: the body is chunked
UNKNOWN: Final = -2  # Head.length: a transfer coding that is not ours; the body cannot be read, nor what follows it

MAX_HEAD: Final = 65536  # bytes of a whole head, beyond the request line
MAX_CHUNK_LINE: Final = 1024  # bytes of a chunk size with its extensions
MAX_TRAILERS: Final = 8192  # bytes of all trailers of one body
MAX_LENGTH_DIGITS: Final = 18

_CRLF: Final = b"\r\n"
_PLAIN: Final = bytes(c for c in range(256) if (c >= 0x20 and c != 0x7F) or c == 0x09)
_NAME: Final = bytes(c for c in range(0x21, 256) if c not in (0x3A, 0x7F))
_TOKEN: Final = b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_HEX: Final = b"0123456789abcdefABCDEF"
_DIGITS: Final = b"0123456789"
_BREAKS: Final = tuple(_CRLF * count for count in range(512))
_METHODS: Final = {
    name.encode(): name
    for name in ("GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS", "COPY", "REPLICATE", "SSYNC", "UPDATE")
}
# Two spellings must not reach one key here: whoever stands before us may have read only one of them.
_EXACT_KEYS: Final = frozenset(
    {"CONTENT_LENGTH", "CONTENT_TYPE", "HTTP_TRANSFER_ENCODING", "HTTP_CONNECTION", "HTTP_EXPECT", "HTTP_HOST"}
)
_CACHED_NAMES: Final = 4096


class ProtocolError(KeelstoreError):
    """What came is no HTTP that can be answered and gone on from. ``status`` is the answer, for a request."""

    def __init__(self, reason: str, status: int = 400):
        super().__init__(reason)
        self.reason, self.status = reason, status


class Head(NamedTuple):
    """What the server itself needs to know of a request's head."""

    version: int  # 9, 10 or 11
    keep_alive: bool
    length: int  # of the body in bytes, or CHUNKED, or UNKNOWN
    expects_continue: bool


def is_plain(head: bytes, breaks: int) -> bool:
    """Whether ``head`` holds no control character but tabs and exactly ``breaks`` CRLFs."""
    found = head.translate(None, _PLAIN)
    return found == (_BREAKS[breaks] if breaks < 512 else _CRLF * breaks)


# -- request heads -----------------------------------------------------------------------------------------------------

_keys: dict[bytes, str] = {}  # header name as sent: environ key; bounded by _CACHED_NAMES


def _key_of(name: bytes) -> str:
    if not name or name.translate(None, _NAME):
        raise ProtocolError("Invalid header name")
    text = name.upper().replace(b"-", b"_").decode("latin-1")
    key = text if text in ("CONTENT_LENGTH", "CONTENT_TYPE") else "HTTP_" + text
    if b"_" in name:
        if key in _EXACT_KEYS:
            raise ProtocolError("Invalid header name")
        if key.startswith("HTTP_X_AMZ_META_"):
            key = environ_key(name.decode("latin-1"))
    if len(name) <= 64:
        if len(_keys) >= _CACHED_NAMES:
            _keys.clear()
        _keys[name] = key
    return key


def parse_request(
    head: bytes, environ: dict[str, Any], max_request_line: int = 8192, max_header_size: int = 8192,
    max_headers: int = 201,
) -> Head:
    """Put a request's head (without its closing blank line) into ``environ``. Raises ProtocolError.

    ``environ`` must hold no request yet: a key that is there already counts as a repeated header.
    """
    lines = head.split(_CRLF)
    line = lines[0]
    if len(line) + 2 >= max_request_line:
        raise ProtocolError("", 414)
    if not is_plain(head, len(lines) - 1):
        raise ProtocolError("Invalid character or line end in the request head")
    version = parse_request_line(line, environ)
    if version == 9:
        return Head(9, False, 0, False)
    if len(lines) - 1 > max_headers:
        raise ProtocolError("Too many headers", 431)
    del lines[0]
    long_ones = len(head) > max_header_size
    for line in lines:
        name, colon, value = line.partition(b":")
        key = _keys.get(name) or _key_of(name)
        if not colon:
            raise ProtocolError("Header line without colon")
        if long_ones and len(line) > max_header_size:
            raise ProtocolError("Header line too long")
        text = value.strip(b" \t").decode("latin-1")
        if key in environ:
            if key == "CONTENT_LENGTH" or key == "HTTP_HOST":
                raise ProtocolError(f"Repeated {'Content-Length' if key == 'CONTENT_LENGTH' else 'Host'}")
            if key != "CONTENT_TYPE":
                text = f"{environ[key]},{text}"
        environ[key] = text

    get = environ.get
    coding, size, length = get("HTTP_TRANSFER_ENCODING"), get("CONTENT_LENGTH"), 0
    if coding is not None:
        if size is not None:
            raise ProtocolError("Both Content-Length and Transfer-Encoding")
        length = CHUNKED if coding == "chunked" else UNKNOWN
    elif size is not None:
        if not (size.isascii() and size.isdigit() and len(size) <= MAX_LENGTH_DIGITS):
            raise ProtocolError("Invalid Content-Length")
        length = int(size)
    connection, keep_alive = get("HTTP_CONNECTION"), version == 11
    if connection is not None:
        tokens = [token.strip(" \t") for token in connection.lower().split(",")]
        keep_alive = "close" not in tokens and (keep_alive or "keep-alive" in tokens)
    if length == UNKNOWN or (version == 10 and coding is not None):
        keep_alive = False  # RFC 9112 6.1: framing that others may have read otherwise
    expect = get("HTTP_EXPECT")  # any other is not looked at (RFC 9110 10.1.1): S3 clients send empty ones
    expects = expect is not None and version == 11 and length != 0 and expect.lower() == "100-continue"
    return Head(version, keep_alive, length, expects)


def parse_request_line(line: bytes, environ: dict[str, Any]) -> int:
    """Put method, path, query and protocol into ``environ``; 9, 10 or 11. Raises ProtocolError.

    An absolute target counts as its path; any other that lacks the slash is passed on, for the application to refuse.
    Control characters other than tabs are the caller's to refuse.
    """
    words = line.split(b" ")
    if len(words) == 3:
        word = words[2]
        version = 11 if word == b"HTTP/1.1" else 10 if word == b"HTTP/1.0" else _version(word)
    elif len(words) == 2:
        version = 9
        if words[0] != b"GET":
            raise ProtocolError(f"Bad HTTP/0.9 request type ({_shown(words[0])})")
    else:
        raise ProtocolError(f"Bad request syntax ({_shown(line)})")
    name = words[0]
    method = _METHODS.get(name)
    if method is None:
        if not name or name.translate(None, _TOKEN):
            raise ProtocolError(f"Bad request syntax ({_shown(line)})")
        method = name.decode("latin-1")
    if b"\t" in line or not words[1]:
        raise ProtocolError(f"Bad request syntax ({_shown(line)})")
    target = words[1].decode("latin-1")
    if target[:1] != "/":
        target = _path_of(target)
    path, _, query = target.partition("?")
    environ["REQUEST_METHOD"] = method
    environ["RAW_PATH_INFO"] = path
    environ["PATH_INFO"] = unquote_to_bytes(path.encode("latin-1")).decode("latin-1") if "%" in path else path
    environ["QUERY_STRING"] = query
    environ["SERVER_PROTOCOL"] = "HTTP/1.1" if version == 11 else "HTTP/1.0" if version == 10 else "HTTP/0.9"
    return version


def _shown(octets: bytes) -> str:
    return ascii(octets[:100].decode("latin-1"))


def _version(word: bytes) -> int:
    major, dot, minor = word[5:].partition(b".")
    if (
        word[:5] != b"HTTP/" or not dot or not major or not minor or len(word) > 16
        or (major + minor).translate(None, _DIGITS)
    ):
        raise ProtocolError(f"Bad request version ({_shown(word)})")
    if int(major) >= 2:
        raise ProtocolError(f"Invalid HTTP version ({int(major)}.{int(minor)})", 505)
    if int(major) == 1:
        return 11 if int(minor) else 10
    raise ProtocolError(f"Bad request version ({_shown(word)})")


def _path_of(target: str) -> str:
    """The path and query of an absolute target (RFC 9112 3.2.2); others as they are."""
    if target[:7].lower() != "http://" and target[:8].lower() != "https://":
        return target
    rest = target.partition("//")[2]
    for mark, char in enumerate(rest):
        if char == "/":
            return rest[mark:]
        if char == "?":
            return "/" + rest[mark:]
    return "/"


# -- chunk framing -----------------------------------------------------------------------------------------------------


def parse_chunk_line(line: bytes | bytearray) -> int:
    """The size that a chunk line (without CRLF) states. Raises ProtocolError."""
    size, mark, extension = line.partition(b";")
    if not size or len(size) > 15 or size.translate(None, _HEX):
        raise ProtocolError("Invalid chunk size")
    if mark and extension.translate(None, _PLAIN):
        raise ProtocolError("Invalid chunk extension")
    return int(size, 16)


def check_trailer(line: bytes | bytearray) -> None:
    """Raises ProtocolError for a trailer line (without CRLF) that is no header line. Its content is nobody's."""
    name, colon, value = line.partition(b":")
    if not colon or not name or name.translate(None, _NAME) or value.translate(None, _PLAIN):
        raise ProtocolError("Invalid trailer")


# -- response heads ----------------------------------------------------------------------------------------------------


class ResponseHead(NamedTuple):
    status: int
    headers: Headers
    keep_alive: bool
    length: int | None  # of the body in bytes, or CHUNKED; None: it ends with the connection


_titles: dict[bytes, str] = {}  # header name as sent: Title-Cased; bounded by _CACHED_NAMES


def _title_of(name: bytes) -> str:
    if not name or name.translate(None, _NAME):
        raise ProtocolError("Invalid header name in an answer")
    text = title(name.decode("latin-1"))
    if len(name) <= 64:
        if len(_titles) >= _CACHED_NAMES:
            _titles.clear()
        _titles[name] = text
    return text


def parse_response(head: bytes, method: str) -> ResponseHead:
    """The head of an answer to a ``method`` request (without its closing blank line). Raises ProtocolError."""
    lines = head.split(_CRLF)
    if not is_plain(head, len(lines) - 1):
        raise ProtocolError("Invalid character or line end in the head of an answer")
    line = lines[0]
    protocol, code = line[:9], line[9:12]
    if (
        protocol not in (b"HTTP/1.1 ", b"HTTP/1.0 ") or len(code) != 3 or not code.isdigit() or code[0] == 0x30
        or line[12:13] not in (b"", b" ")
    ):
        raise ProtocolError("Invalid status line")
    status = int(code)
    found: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        key = _titles.get(name) or _title_of(name)
        if not colon:
            raise ProtocolError("Header line without colon in an answer")
        text = value.strip(b" \t").decode("latin-1")
        if key in found:
            if key == "Content-Length":
                raise ProtocolError("Repeated Content-Length in an answer")
            text = f"{found[key]}, {text}"
        found[key] = text
    get = found.get
    connection, keep_alive = get("Connection"), protocol == b"HTTP/1.1 "
    if connection is not None:
        tokens = [token.strip(" \t") for token in connection.lower().split(",")]
        keep_alive = "close" not in tokens and (keep_alive or "keep-alive" in tokens)
    coding, size = get("Transfer-Encoding"), get("Content-Length")
    length: int | None
    if size is not None and not (size.isascii() and size.isdigit() and len(size) <= MAX_LENGTH_DIGITS):
        raise ProtocolError("Invalid Content-Length in an answer")
    if method == "HEAD" or status < 200 or status in (204, 304):
        length = 0
    elif coding is not None:
        if size is not None or coding.lower() != "chunked":
            raise ProtocolError("Ambiguous length of an answer")
        length = CHUNKED
    elif size is not None:
        length = int(size)
    else:
        length, keep_alive = None, False
    headers = Headers()
    dict.update(headers, found)  # the names are title-cased already
    return ResponseHead(status, headers, keep_alive, length)
