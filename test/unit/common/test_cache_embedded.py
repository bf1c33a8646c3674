import fcntl
import mmap
import os
import random
import signal
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keelstore.common import cache_embedded
from keelstore.common.cache import CacheError, decode, encode
from keelstore.common.cache_embedded import EmbeddedCache
from test.support.waiting import slowness

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=8)


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@given(st.text(), JSON)
def test_what_is_set_is_got(key, value):
    cache = EmbeddedCache(64, 1024)
    cache.set(key, value)
    found = cache.get(key)
    assert found == value or len(encode(value)) > 1024


OPERATIONS = st.lists(st.tuples(st.sampled_from(["set", "delete", "incr", "decr", "tick", "get"]),
                                st.integers(0, 11), st.integers(0, 5)), max_size=60)


@given(OPERATIONS)
@settings(deadline=None)
def test_it_behaves_as_a_dictionary_that_may_forget(operations):
    """Against a model: what it gives is what was last set and has not expired, or nothing."""
    clock = Clock()
    cache = EmbeddedCache(16, 64, clock)
    model: dict = {}

    def live(key):
        value, expiry = model.get(key, (None, 0))
        return None if expiry and expiry <= clock.now else value
    for what, number, amount in operations:
        key = f"key {number}"
        if what == "set":
            cache.set(key, amount, amount)
            model[key] = (amount, clock.now + amount if amount else 0)
        elif what == "delete":
            cache.delete(key)
            model.pop(key, None)
        elif what == "tick":
            clock.now += amount
        elif what == "get":
            assert cache.get(key) in (None, live(key))
        else:
            delta = amount if what == "incr" else -amount
            known = cache.get(key) is not None
            found = cache.incr(key, delta)
            assert found == max((live(key) if known else 0) + delta, 0)
            model[key] = (found, model[key][1] if known else 0)
    for number in range(12):
        assert cache.get(f"key {number}") in (None, live(f"key {number}"))


def test_values_expire(clock):
    cache = EmbeddedCache(64, 256, clock)
    cache.set("a", 1, 10)
    cache.set("b", 2, time=10)
    cache.set("c", 3)
    clock.now += 9.9
    assert [cache.get(key) for key in "abc"] == [1, 2, 3]
    clock.now += 0.2
    assert [cache.get(key) for key in "abc"] == [None, None, 3]


def test_case_X17_what_expires_is_replaced_not_broken(clock):
    """Many keys in few places, each expired and set again time after time: every answer is the last value or a miss."""
    cache = EmbeddedCache(32, 256, clock)
    for turn in range(30):
        for number in range(60):
            key = f"key {number}"
            assert cache.get(key) in (None, [number, turn - 1])
            cache.set(key, [number, turn], 5 if number % 2 else 500)
            assert cache.get(key) == [number, turn]
            clock.now += 0.2 if number % 3 else 3
        cache.delete(f"key {turn}")
        assert cache.get(f"key {turn}") is None




def test_incr_starts_at_delta_and_stays_above_zero(clock):
    cache = EmbeddedCache(64, 256, clock)
    assert cache.incr("n", 5, 10) == 5
    assert cache.incr("n") == 6
    assert cache.decr("n", 10) == 0
    assert cache.decr("m", 10) == 0
    assert cache.get("n") == 0
    clock.now += 11
    assert cache.incr("n", 2) == 2  # the first one's expiry held for the increments too
    cache.set("text", "x")
    with pytest.raises(CacheError):
        cache.incr("text")


def test_too_big_is_not_kept_and_what_was_there_is_gone():
    cache = EmbeddedCache(64, 100)
    cache.set("a", "small")
    cache.set("a", "x" * 200)
    assert cache.get("a") is None
    with pytest.raises(CacheError):
        cache.set("a", "x" * 200, raise_on_error=True)
    cache.set("b", "x" * 98)
    assert cache.get("b") == "x" * 98


def test_what_is_no_json_is_refused():
    cache = EmbeddedCache(64, 100)
    for value in (object(), {1, 2}, b"\xff"):
        with pytest.raises(CacheError):
            cache.set("a", value)
    cache.set("a", b"bytes of text")
    assert cache.get("a") == "bytes of text"


def test_a_pickle_is_a_miss():
    """S18."""
    cache = EmbeddedCache(64, 100)
    place = cache._place("a")
    cache._write(place, 0.0, b"\x80\x04\x8c\x02os\x94\x8c\x06system\x94\x93\x94.")
    assert cache.get("a") is None
    assert decode(b"[" * 100000) is None


def test_a_full_set_loses_what_expires_first(clock):
    cache = EmbeddedCache(cache_embedded.WAYS, 100, clock)  # one set
    for i in range(7):
        cache.set(f"token {i}", i, 86400)
    for i in range(100):
        cache.set(f"info {i}", i, 60)
        assert cache.get(f"info {i}") == i
    assert [cache.get(f"token {i}") for i in range(7)] == list(range(7))


def test_what_is_damaged_is_a_miss():
    cache = EmbeddedCache(64, 100)
    cache.set("a", "value" * 10)
    place = cache._place("a")
    whole = bytes(cache._memory[place[2]: place[2] + 8 * 32])
    for at in range(32):
        cache._memory[place[2] + at] ^= 1
        assert cache.get_raw("a") is None
        cache._memory[place[2]: place[2] + 8 * 32] = whole
    for at in range(0, 52, 7):
        cache._memory[place[3] + at] ^= 1
        assert cache.get_raw("a") is None
        cache._memory[place[3] + at] ^= 1
    assert cache.get("a") == "value" * 10


def test_an_equal_value_is_parsed_once():
    cache = EmbeddedCache(64, 100)
    cache.set("a", {"x": 1})
    first = cache.get("a")
    cache.set("a", {"x": 1})
    assert cache.get("a") is first
    cache.set("a", {"x": 2})
    assert cache.get("a") == {"x": 2}
    assert cache.get_raw("a") == b'{"x":2}'


def test_memory_of_keys_is_bounded(monkeypatch):
    monkeypatch.setattr(cache_embedded, "_KNOWN_KEYS", 10)
    monkeypatch.setattr(cache_embedded, "_KNOWN_VALUES", 10)
    cache = EmbeddedCache(1024, 64)
    for i in range(100):
        cache.set(f"k{i}", i)
        assert cache.get(f"k{i}") == i
    assert len(cache._places) <= 10 and len(cache._parsed) <= 10


# -- many processes ----------------------------------------------------------------------------------------------------


def in_child(function, *args):
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            function(*args)
            status = 0
        finally:
            os._exit(status)
    return pid


def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_children_share_it_and_it_outlives_them():
    cache = EmbeddedCache(64, 256)
    assert ended(in_child(cache.set, "token", [1, "groups"])) == 0
    assert cache.get("token") == [1, "groups"]
    assert ended(in_child(lambda: os._exit(0 if cache.get("token") == [1, "groups"] else 3))) == 0


def test_increments_of_many_processes_are_all_counted():
    cache = EmbeddedCache(64, 256)
    pids = [in_child(lambda: [cache.incr(f"n{i % 3}") for i in range(3000)]) for _ in range(4)]
    assert [ended(pid) for pid in pids] == [0] * 4
    assert [cache.get(f"n{i}") for i in range(3)] == [4000] * 3


def test_no_torn_value_is_ever_read():
    """Writers of values that prove themselves, all in one set, while readers look."""
    cache = EmbeddedCache(cache_embedded.WAYS, 4096)
    keys = [f"k{i}" for i in range(12)]
    least = time.monotonic() + 1.0
    is_over = mmap.mmap(-1, 1)  # of all processes

    def write(seed):
        chance = random.Random(seed)
        while not is_over[0]:
            key = chance.choice(keys)
            if chance.random() < 0.05:
                cache.delete(key)
            else:
                cache.set(key, [key, chance.randrange(10) * chr(97 + chance.randrange(26)) * chance.randrange(400)], 60)

    def read(seed):
        chance = random.Random(seed)
        seen = 0
        while time.monotonic() < least or (seen <= 100 and time.monotonic() < least + 60):  # a busy machine takes its time
            key = chance.choice(keys)
            value = cache.get(key)
            if value is not None:
                seen += 1
                assert value[0] == key and len(set(value[1])) <= 1
        assert seen > 100
    writers, readers = [in_child(write, i) for i in range(2)], [in_child(read, 10 + i) for i in range(2)]
    outcomes = [ended(pid) for pid in readers]
    is_over[0] = 1
    assert outcomes + [ended(pid) for pid in writers] == [0] * 4


def test_a_process_killed_with_the_lock_blocks_nobody():
    cache = EmbeddedCache(64, 256)
    cache.set("a", "old")
    ready, told = os.pipe()

    def hold():
        place = cache._place("a")
        assert cache._lock(place)
        cache._memory[place[3]: place[3] + 3] = b"???"  # half of a write
        os.write(told, b"x")
        signal.pause()
    pid = in_child(hold)
    os.read(ready, 1)
    started = time.monotonic()
    cache.set("a", "blocked")  # gives up in time
    with pytest.raises(CacheError):
        cache.incr("a")
    for _ in range(50):
        cache.set("a", "blocked")  # the first wait was the last
    assert time.monotonic() - started < 2 * slowness()
    assert cache.get("a") is None  # half written: a miss
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    cache.set("a", "new", raise_on_error=True)
    assert cache.get("a") == "new"
    os.close(ready)
    os.close(told)


def test_the_threads_of_a_process_exclude_each_other():
    cache = EmbeddedCache(8, 256)
    threads = [threading.Thread(target=lambda: [cache.incr("n") for _ in range(500)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.get("n") == 2000


def test_the_lock_is_released_after_each_call():
    cache = EmbeddedCache(8, 256)
    for call in (lambda: cache.set("a", 1), lambda: cache.delete("a"), lambda: cache.incr("a")):
        call()

        def check():
            fcntl.lockf(cache._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, cache._place("a")[2])
        assert ended(in_child(check)) == 0


def test_clear_forgets():
    cache = EmbeddedCache(64, 256)
    cache.set("a", 1)
    cache.clear()
    assert cache.get("a") is None
