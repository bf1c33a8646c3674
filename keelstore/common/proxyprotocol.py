"""The PROXY line, version 1, by which a load balancer tells whose connection it passes on. Pure.

    PROXY TCP4|TCP6 <source ip> <destination ip> <source port> <destination port> CRLF      or   PROXY UNKNOWN ... CRLF
"""

from __future__ import annotations

import ipaddress
from typing import Final, NamedTuple

from keelstore.common.httpparse import ProtocolError

MAX_LINE: Final = 107  # bytes with CRLF, by the protocol's own text


class Proxied(NamedTuple):
    """Addresses as the balancer saw them; None for UNKNOWN."""

    source: tuple[str, int] | None
    destination: tuple[str, int] | None


def parse_proxy_line(line: bytes) -> Proxied:
    """A line with its CRLF. Raises ProtocolError."""
    words = line[:-2].split(b" ")
    if len(line) > MAX_LINE or line[-2:] != b"\r\n" or words[0] != b"PROXY" or len(words) < 2:
        raise ProtocolError("Invalid PROXY line")
    if words[1] == b"UNKNOWN":
        return Proxied(None, None)
    if words[1] not in (b"TCP4", b"TCP6") or len(words) != 6:
        raise ProtocolError("Invalid PROXY line")
    version = 4 if words[1] == b"TCP4" else 6
    addresses = [_address(word, version) for word in words[2:4]]
    ports = [_port(word) for word in words[4:6]]
    return Proxied((addresses[0], ports[0]), (addresses[1], ports[1]))


def _address(word: bytes, version: int) -> str:
    try:
        address = ipaddress.ip_address(word.decode("ascii"))
    except ValueError:
        raise ProtocolError("Invalid PROXY line") from None
    if address.version != version:
        raise ProtocolError("Invalid PROXY line")
    return str(address)


def _port(word: bytes) -> int:
    if not word.isdigit() or len(word) > 5 or int(word) > 65535:
        raise ProtocolError("Invalid PROXY line")
    return int(word)
