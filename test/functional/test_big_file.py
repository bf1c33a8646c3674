"""One big object up and down while every process of the store stays small (issue 2, point 1).

``KEELSTORE_BIG_FILE_MIB`` sets the size of the file (default 256 MiB; 2048 in CI).
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from test.functional.conftest import FOREIGN
from test.support.client import unique
from test.support.store import Store

SIZE_MIB = int(os.environ.get("KEELSTORE_BIG_FILE_MIB", "256"))
LIMIT_MIB = 150
BLOCK = 1 << 20

pytestmark = [pytest.mark.alone, pytest.mark.skipif(bool(FOREIGN), reason="looks at the processes of the store"), pytest.mark.timeout(900)]


class Memory(threading.Thread):
    """Samples the resident memory of processes until stopped; ``peaks`` has each one's peak in MiB."""

    def __init__(self, pids: list[int]):
        super().__init__(daemon=True)
        self.pids, self.peaks, self.done = pids, dict.fromkeys(pids, 0.0), threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.2):
            for pid in self.pids:
                self.peaks[pid] = max(self.peaks[pid], resident_mib(pid))

    @classmethod
    @contextmanager
    def watched(cls, pids: list[int]) -> Iterator[Memory]:
        memory = cls(pids)
        memory.start()
        try:
            yield memory
        finally:
            memory.done.set()
            memory.join()


def resident_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS"))) / 1024


class Stream:
    """``mib`` MiB of data that does not repeat within, made as it is sent; the MD5 of what was made so far."""

    def __init__(self, mib: int):
        self.mib, self.digest = mib, hashlib.md5()
        self.base = os.urandom(BLOCK)

    def __iter__(self) -> Iterator[bytes]:
        for number in range(self.mib):
            block = number.to_bytes(8, "big") + self.base[8:]
            self.digest.update(block)
            yield block


@pytest.mark.parametrize("kind", ["cluster", "cluster4"])
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
def test_a_big_file(request: pytest.FixtureRequest, kind: str, chunked: bool) -> None:
    store: Store = request.getfixturevalue(kind)
    mib = SIZE_MIB if (kind, chunked) == ("cluster", False) else min(SIZE_MIB, 256)
    account, container = store.login(), unique("big")
    account.put(container).expect(201)
    data = Stream(mib)
    pids = [pid for number in range(1, store.nodes + 1) for pid in store.pids(number)]
    try:
        with Memory.watched(pids) as memory:
            length = {"Transfer-Encoding": "chunked"} if chunked else {"Content-Length": mib * BLOCK}
            put = account.put(container, "big", body=iter(data), headers=length).expect(201)
            assert put.headers["Etag"] == data.digest.hexdigest()
            with store.endpoint.connect() as connection:
                connection.send("GET", account.target(container, "big"), {"X-Auth-Token": account.token})
                response = connection.response()
                assert (response.status, response.getheader("Content-Length")) == (200, str(mib * BLOCK))
                digest = hashlib.md5()
                while piece := response.read(BLOCK):
                    digest.update(piece)
            assert digest.hexdigest() == data.digest.hexdigest()
            last = account.get(container, "big", headers={"Range": "bytes=-8"}).expect(206)
            assert last.body == data.base[-8:]
            if mib <= 256:
                account.request("COPY", container, "big", headers={"Destination": f"{container}/copy"}).expect(201)
                assert account.head(container, "copy").headers["Etag"] == digest.hexdigest()
    finally:
        account.empty(container)
    print({pid: round(peak) for pid, peak in memory.peaks.items()})
    assert max(memory.peaks.values()) < LIMIT_MIB, memory.peaks
