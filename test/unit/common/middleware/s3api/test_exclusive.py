"""One writer at a time of one object."""

from __future__ import annotations

import subprocess
import sys

import pytest

from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.exclusive import Exclusive, exclusive


class Counters:
    """As a memcached that several proxies share."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {}

    def incr(self, key: str, delta: int = 1, ttl_s: float = 0) -> int:
        self.values[key] = self.values.get(key, 0) + delta
        return self.values[key]

    def delete(self, key: str) -> None:
        self.values.pop(key, None)


def test_second_writer_waits_and_then_gives_up() -> None:
    with exclusive({}, "a", "c", "o"), pytest.raises(S3Error) as refused:
        Exclusive({}, "a", "c", "o").acquire(wait_s=0.01)
    assert refused.value.code == "ConditionalRequestConflict"


def test_other_objects_are_free() -> None:
    with exclusive({}, "a", "c", "o"), exclusive({}, "a", "c", "p"):
        pass


def test_next_writer_comes_after_the_first() -> None:
    first, second = Exclusive({}, "a", "c", "o"), Exclusive({}, "a", "c", "o")
    first.acquire()
    first.release()
    second.acquire(wait_s=0)
    second.release()


def test_proxies_of_other_machines_are_kept_out_by_the_cache() -> None:
    counters = Counters()
    counters.incr("elsewhere")
    environ = {"swift.cache": counters}
    with exclusive(environ, "a", "c", "o"):
        (name,) = set(counters.values) - {"elsewhere"}
    assert name not in counters.values
    counters.incr(name)  # held by a proxy elsewhere
    with pytest.raises(S3Error):
        Exclusive(environ, "a", "c", "o").acquire(wait_s=0.01)
    counters.delete(name)
    with exclusive(environ, "a", "c", "o"):
        pass


def test_process_that_dies_lets_go() -> None:
    code = (
        "import os\n"
        "from keelstore.common.middleware.s3api.exclusive import Exclusive\n"
        "Exclusive({}, 'a', 'c', 'dies').acquire()\n"
        "os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    Exclusive({}, "a", "c", "dies").acquire(wait_s=0)
