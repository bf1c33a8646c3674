"""``wsgi.input``: the body of a request as the application reads it, and the 100 Continue that goes before.

Both ways of a request have these methods: here over a connection, in ``localcall.py`` in process.

- ``read(size)`` as a file: all of ``size`` unless the body ends. ``read1(size)``: what is there, at least one byte.
- ``set_continue_headers(pairs)``: headers for the next 100 Continue. The first is sent when the body is first read (the
  application may also leave pairs in ``environ["keelstore.continue_headers"]`` until then).
- ``send_continue()``: for the two-phase PUT (spec: backend-protocol 4.2). After the end of a chunked body: send another
  100 Continue at once; the further chunked body that follows is then read as the first was.

Errors of reading: ClientTimeout (silence), ClientDisconnect (gone, or broken framing).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from time import monotonic
from typing import Any, TypeVar

from keelstore.common.errors import ClientDisconnect, ClientTimeout, WaitTimeout
from keelstore.common.httpbody import Chunked, Fixed, Source
from keelstore.common.httpparse import ProtocolError, is_plain

CONTINUE_HEADERS = "keelstore.continue_headers"
CHUNK = 65536
PACE = 65536  # bytes of a body that are to arrive within client_timeout, where less than what is asked for comes at a time
T = TypeVar("T")
V = TypeVar("V")


class FileLike:
    """What a file has, made of ``_more(size)`` (1 to size bytes, b'' at the end) and ``_at_end``."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = b""  # of a line reader that took too much

    def _more(self, size: int) -> bytes:
        raise NotImplementedError

    def read1(self, size: int = CHUNK) -> bytes:
        """What is there: 1 to ``size`` bytes, b'' at the end."""
        if self._held:
            data, self._held = self._held[:size], self._held[size:]
            return data
        return self._more(size)

    def read(self, size: int | None = -1) -> bytes:
        """``size`` bytes, fewer only at the end; without size, the rest."""
        if size is None or size < 0:
            return b"".join(iter(lambda: self.read1(CHUNK), b""))
        if not size:
            return b""
        data = self.read1(size)
        missing = size - len(data)
        if not missing or not data:
            return data
        parts = [data]
        while missing:
            data = self._more(missing)
            if not data:
                break
            parts.append(data)
            missing -= len(data)
        return b"".join(parts) if len(parts) > 1 else parts[0]

    def readline(self, size: int | None = -1) -> bytes:
        """Up to and with the next LF; at most ``size`` bytes when that is given."""
        room = -1 if size is None or size < 0 else size
        parts: list[bytes] = []
        while room:
            data = self._held or self._more(CHUNK)
            self._held = b""
            if not data:
                break
            end = data.find(b"\n") + 1 or len(data)
            if 0 <= room < end:
                end = room
            parts.append(data[:end])
            self._held = data[end:]
            room -= end if room > 0 else 0
            if parts[-1].endswith(b"\n"):
                break
        return b"".join(parts)

    def readlines(self, hint: int | None = None) -> list[bytes]:
        return list(self)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.readline, b"")


class NoBody(FileLike):
    """The input of a request without a body."""

    __slots__ = ()
    ended = True

    def _more(self, size: int) -> bytes:
        return b""

    def set_continue_headers(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Nothing will be continued."""

    def send_continue(self) -> None:
        raise ClientDisconnect("the request has no further body")


class UnreadableBody(NoBody):
    """The input of a request whose framing is not known (a transfer coding that is not ours)."""

    __slots__ = ()
    ended = False

    def _more(self, size: int) -> bytes:
        raise ClientDisconnect("the transfer coding is not known")


class RequestBody(FileLike):
    """The input of a request that came over a connection."""

    __slots__ = ("_arrived", "_environ", "_pace_s", "_pairs", "_send", "_waited_s", "awaits_continue", "failed", "source")

    def __init__(self, source: Source, environ: dict[str, Any] | None, send: Callable[[bytes], None] | None,
                 pace_s: float = 0.0):
        """``environ`` and ``send`` are given when the client waits for 100 Continue; ``pace_s``: the most to wait for
        PACE bytes, in all, where they come in smaller pieces; 0: no bound but that of each wait."""
        self._held = b""
        self.source = source
        self.failed = False  # reading broke off: nothing can follow on this connection
        self.awaits_continue = environ is not None
        self._environ, self._send = environ, send
        self._pairs: Iterable[tuple[str, str]] = ()
        self._pace_s, self._waited_s, self._arrived = pace_s, 0.0, 0

    @property
    def ended(self) -> bool:
        return self.source.ended and not self.failed

    def _more(self, size: int) -> bytes:
        if not self._pace_s:
            return self._read(self.source.more, size)
        began = monotonic()
        data = self._read(self.source.more, size)
        if len(data) < size:
            self._keep_pace(len(data), began)
        return data

    def readinto(self, view: memoryview) -> int:
        """As :meth:`read1`, into memory of the caller; how much, 0 at the end. Copies nothing where the length is known."""
        if not self._held and isinstance(self.source, Fixed):
            began = monotonic()
            count = self._read(self.source.into, view)
            if count < len(view) and self._pace_s:
                self._keep_pace(count, began)
            return count
        data = self.read1(len(view))
        view[: len(data)] = data
        return len(data)

    def _keep_pace(self, count: int, began: float) -> None:
        """Less came than was asked for. Raises ClientTimeout for a client that sends a byte now and then."""
        self._arrived += count
        if self._arrived >= PACE:
            self._arrived, self._waited_s = 0, 0.0
            return
        self._waited_s += monotonic() - began
        if self._waited_s > self._pace_s and not self.source.ended:
            self.failed = True
            raise ClientTimeout(headers={"Connection": "close"})

    def _read(self, method: Callable[[V], T], argument: V) -> T:
        if self.awaits_continue:
            self._continue()
        if self.failed:
            raise ClientDisconnect("the body broke off")
        try:
            return method(argument)
        except WaitTimeout as error:
            self.failed = True
            raise ClientTimeout(headers={"Connection": "close"}) from error
        except ProtocolError as error:
            self.failed = True
            raise ClientDisconnect(f"broken body framing: {error.reason}") from error
        except (OSError, EOFError) as error:
            self.failed = True
            raise ClientDisconnect("the client went away") from error
        except BaseException:
            self.failed = True  # stopped in the middle of a wait, perhaps with bytes lost
            raise

    def set_continue_headers(self, pairs: Iterable[tuple[str, str]]) -> None:
        self._pairs = tuple(pairs)

    def send_continue(self) -> None:
        source = self.source
        if not isinstance(source, Chunked) or self._send is None:
            raise ClientDisconnect("the client expects no 100 Continue")
        if not source.ended or self.failed:
            raise ClientDisconnect("the body before has not ended")
        self._continue()
        source.restart()

    def forget_continue(self) -> None:
        """The final answer goes out: no 100 after it."""
        self.awaits_continue = False
        self._environ = self._send = None

    def _continue(self) -> None:
        self.awaits_continue = False
        if self._send is None:
            raise ClientDisconnect("the answer was sent before the body was read")
        pairs = self._pairs or (self._environ or {}).get(CONTINUE_HEADERS) or ()
        self._pairs, self._environ = (), None
        lines = [f"{name}: {value}\r\n" for name, value in pairs]
        head = f"HTTP/1.1 100 Continue\r\n{''.join(lines)}\r\n".encode("latin-1")
        if not is_plain(head, len(lines) + 2):
            raise ValueError("control character in a header of 100 Continue")
        try:
            self._send(head)
        except (OSError, WaitTimeout) as error:
            self.failed = True
            raise ClientDisconnect("the client went away") from error
