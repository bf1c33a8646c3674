"""What an operator asks of the daemons of a running node: look at this device, partition or policy now.

``run_dir`` of a node has a socket, ``<name>.daemons``, for those who may write there. One line of JSON goes each way::

    {"daemons": ["object-replicator"], "devices": ["d1"], "partitions": [3], "policies": [0]}
    {"asked": ["object-replicator"]}                    or {"error": "..."}

An empty list means all; ``daemons`` must name some. A daemon does what was asked before anything that is only due.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from keelstore.common import concurrency, sockets
from keelstore.common.daemon_frame import ALL, Selection
from keelstore.common.errors import KeelstoreError, WaitTimeout

MAX_WISH: Final = 65536  # bytes
ANSWER_S: Final = 10.0
_MAX_PATH: Final = 100  # of the address of a socket


@dataclass(frozen=True)
class Wish:
    daemons: tuple[str, ...]
    only: Selection = ALL

    def encode(self) -> bytes:
        value = {"daemons": list(self.daemons), "devices": sorted(self.only.devices),
                 "partitions": sorted(self.only.partitions), "policies": sorted(self.only.policies)}
        return json.dumps(value).encode() + b"\n"


def decode(data: bytes) -> Wish:
    """Raises ValueError."""
    try:
        value = json.loads(data)
        texts = [value["daemons"], value["devices"]]
        numbers = [value["partitions"], value["policies"]]
        if not all(isinstance(word, str) for words in texts for word in words) or not value["daemons"] \
                or not all(type(word) is int for words in numbers for word in words):
            raise ValueError("a wish has names of daemons and devices, numbers of partitions and policies")
        return Wish(tuple(texts[0]), Selection(frozenset(texts[1]), frozenset(numbers[0]), frozenset(numbers[1])))
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"no wish: {error}") from None


class NotAsked(KeelstoreError):
    """The daemons could not be asked; the text says why."""


def send(path: str, wish: Wish) -> tuple[str, ...]:
    """Ask the node whose socket this is; the daemons that do it. Raises NotAsked."""
    try:
        with _address(path) as address, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(ANSWER_S)
            sock.connect(address)
            sock.sendall(wish.encode())
            answer = b""
            while not answer.endswith(b"\n"):
                part = sock.recv(MAX_WISH)
                if not part or len(answer) > MAX_WISH:
                    break
                answer += part
        value = json.loads(answer)
        if "error" in value:
            raise NotAsked(str(value["error"]))
        return tuple(str(name) for name in value["asked"])
    except (FileNotFoundError, ConnectionRefusedError):
        raise NotAsked("its daemons do not run") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NotAsked(f"its daemons do not answer: {error}") from None


class Door:
    """The socket, in the process of the daemons. ``ask`` carries out a wish and gives the names of who was asked."""

    def __init__(self, path: str, ask: Callable[[Wish], Sequence[str]]):
        self.path, self._ask = path, ask

    def open(self) -> Any:
        """The listening socket, in place of what an earlier process left. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        with _address(self.path) as address:
            return sockets.listen_at(address)

    def serve(self, sock: Any) -> None:
        """Answer one after the other; never returns."""
        for client, _ in sockets.accept(sock):
            concurrency.spawn(self._answer, client)

    def _answer(self, client: Any) -> None:
        stream = sockets.Stream(client, ANSWER_S)
        try:
            data = b""
            while not data.endswith(b"\n"):
                part = stream.receive(MAX_WISH)
                if not part or len(data) > MAX_WISH:
                    return
                data += part
            try:
                answer: dict[str, Any] = {"asked": list(self._ask(decode(data)))}
            except (ValueError, KeelstoreError) as error:
                answer = {"error": str(error)}
            stream.send(json.dumps(answer).encode() + b"\n")
        except (OSError, WaitTimeout):
            pass  # whoever asked has gone
        finally:
            stream.close()


@contextlib.contextmanager
def _address(path: str) -> Iterator[str]:
    """What to bind or connect to for a path of any length, of which the kernel takes only some."""
    if len(os.fsencode(path)) <= _MAX_PATH:
        yield path
        return
    fd = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{fd}/{os.path.basename(path)}"
    finally:
        os.close(fd)
