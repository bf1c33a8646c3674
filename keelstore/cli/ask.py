"""The same question to many servers at once, for ``status`` and ``keelstore-recon``."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from keelstore.cli.client import Client, ClientError

AT_ONCE = 30
Address = tuple[str, int]


@dataclass(frozen=True)
class Reply:
    """What came of it: ``status`` 0 when there was no answer, then ``error`` says why; ``value`` None when it was no JSON."""

    address: Address
    status: int = 0
    error: str = ""
    value: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    began: float = 0.0
    ended: float = 0.0


def url_of(address: Address, path: str = "") -> str:
    ip, port = address
    return f"http://[{ip}]:{port}{path}" if ":" in ip else f"http://{ip}:{port}{path}"


def ask(address: Address, path: str, method: str = "GET", timeout_s: float = 5.0) -> Reply:
    """Never raises."""
    began = time.time()
    try:
        answer = Client(url_of(address), timeout_s).request(method, path)
    except ClientError as error:
        return Reply(address, error=error.reason, began=began, ended=time.time())
    ended = time.time()
    value = None
    try:
        value = json.loads(answer.body) if answer.body else None
    except (ValueError, RecursionError):
        pass
    return Reply(
        address,
        answer.status,
        "" if answer.status == 200 else f"answers {answer.status}",
        value,
        dict(answer.headers),
        began,
        ended,
    )


def ask_all(addresses: Iterable[Address], path: str, method: str = "GET", timeout_s: float = 5.0) -> list[Reply]:
    """The replies in the order of ``addresses``."""
    wanted = list(addresses)
    if not wanted:
        return []
    with ThreadPoolExecutor(min(AT_ONCE, len(wanted))) as pool:
        return list(pool.map(lambda address: ask(address, path, method, timeout_s), wanted))
