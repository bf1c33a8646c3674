import contextlib
import hashlib
import pickle
import shutil
import socket
import subprocess
import time

import pytest
from pymemcache.client.base import Client

from keelstore.common.cache import CacheError
from keelstore.common.cache_memcached import MemcachedCache, MemcachedOptions, address_of
from keelstore.common.errors import ConfigError
from test.support.waiting import slowness

SERVERS = ("10.0.0.1:11211", "10.0.0.2:11211", "[fe80::1]:11211")


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


@contextlib.contextmanager
def memcached():
    binary = shutil.which("memcached")
    if not binary:
        pytest.skip("memcached is not installed")
    port = free_port()
    process = subprocess.Popen([binary, "-l", "127.0.0.1", "-p", str(port), "-U", "0", "-m", "16", "-u", "nobody"])
    try:
        deadline = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert time.monotonic() < deadline and process.poll() is None
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="module")
def server():
    with memcached() as name:
        yield name


@pytest.fixture
def cache(server):
    found = MemcachedCache(MemcachedOptions((server,)))
    yield found
    found.close()


@pytest.fixture
def raw(server):
    host, port = server.split(":")
    client = Client((host, int(port)), default_noreply=False)
    client.flush_all()
    yield client
    client.close()


def wire(key):
    return hashlib.md5(key.encode()).hexdigest()


def test_the_key_is_a_hash_and_the_value_json_with_flag_2(cache, raw):
    cache.set("container/AUTH_a/c", {"a": [1, "é"]}, 60)
    assert wire("container/AUTH_a/c") == "f843fa68f345f3235d0ddf290b710de3"
    assert raw.raw_command(b"get f843fa68f345f3235d0ddf290b710de3", b"END\r\n").split(b"\r\n")[:2] == [
        b"VALUE f843fa68f345f3235d0ddf290b710de3 2 18", b'{"a":[1,"\\u00e9"]}']
    assert cache.get("container/AUTH_a/c") == {"a": [1, "é"]}
    assert cache.get_raw("container/AUTH_a/c") == b'{"a":[1,"\\u00e9"]}'


def test_misses(cache, raw):
    assert cache.get("nothing") is None
    cache.delete("nothing")
    cache.set("a", 1)
    cache.delete("a")
    assert cache.get("a") is None


def test_a_pickle_is_a_miss_and_is_not_run(cache, raw, tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "run"), "w"))
    for flags in (1, 3, 0, 2):
        raw.set(wire("a"), pickle.dumps(Evil()), flags=flags)
        assert cache.get("a") is None
    assert not (tmp_path / "run").exists()


def test_counters(cache, raw):
    assert cache.incr("n", 5, 60) == 5
    assert cache.incr("n") == 6
    assert cache.decr("n", 2) == 4
    assert cache.decr("n", 100) == 0
    assert cache.decr("m", 3) == 0
    assert cache.incr("m", 3) == 3
    assert cache.get("n") == 0
    cache.set("text", "x")
    with pytest.raises(CacheError):
        cache.incr("text")


def test_unserialized_values(cache, raw):
    cache.set("a", b"12", serialize=False)
    assert raw.get(wire("a")) == b"12"
    with pytest.raises(CacheError):
        cache.set("a", object())


def test_values_expire(cache, raw):
    cache.set("a", 1, 1)
    assert cache.get("a") == 1
    deadline = time.monotonic() + 10
    while cache.get("a") is not None:
        assert time.monotonic() < deadline


@pytest.mark.parametrize(("ttl", "expected"), [
    (0, 0), (0.2, 1), (60, 60), (2592000, 2592000), (2592001, 2592001 + 5000), (-1, 0)])
def test_long_times_become_dates(ttl, expected):
    assert MemcachedCache(MemcachedOptions(SERVERS), now=lambda: 5000.4)._expiry(ttl) == expected


def test_placement_follows_the_ring():
    cache = MemcachedCache(MemcachedOptions(SERVERS, tries=5))
    points = sorted((hashlib.md5(f"{name}-{i}".encode()).hexdigest(), name) for name in SERVERS for i in range(50))
    for i in range(200):
        key = wire(f"key{i}")
        after = [name for point, name in points if point > key] + [name for _, name in points]
        assert cache.servers_for(f"key{i}") == list(dict.fromkeys(after[1:] + after))
    assert len(MemcachedCache(MemcachedOptions(SERVERS, tries=2)).servers_for("x")) == 2


def test_another_server_answers_when_the_first_does_not(server):
    dead = f"127.0.0.1:{free_port()}"
    cache = MemcachedCache(MemcachedOptions((server, dead)))
    for i in range(20):
        cache.set(f"k{i}", i, raise_on_error=True)
        assert cache.get(f"k{i}") == i
    cache.close()


def test_a_server_with_too_many_errors_is_left_alone_for_a_while(server, caplog):
    clock = [1000.0]
    dead = f"127.0.0.1:{free_port()}"
    cache = MemcachedCache(MemcachedOptions((dead,), error_suppression_limit=2), now=lambda: clock[0])
    for _ in range(5):
        assert cache.get("a") is None
    assert caplog.text.count("Error talking to memcached") == 3
    assert "Error limiting" in caplog.text
    with pytest.raises(CacheError):
        cache.incr("a")
    with pytest.raises(CacheError):
        cache.get("a", raise_on_error=True)
    clock[0] += 61
    cache.get("a")
    assert caplog.text.count("Error talking to memcached") == 4


def test_a_server_that_does_not_answer_costs_a_bounded_wait():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        cache = MemcachedCache(MemcachedOptions((f"127.0.0.1:{silent.getsockname()[1]}",), io_timeout_s=0.1))
        started = time.monotonic()
        assert cache.get("a") is None
        assert time.monotonic() - started < 2 * slowness()


def test_a_broken_connection_is_replaced():
    with memcached() as name:
        cache = MemcachedCache(MemcachedOptions((name, name)))
        cache.set("a", 1)
        next(iter(cache._servers.values())).idle[0].sock.shutdown(socket.SHUT_RDWR)
        cache.get("a")
        cache.set("a", 2, raise_on_error=True)
        assert cache.get("a") == 2
        cache.close()


def test_nonsense_from_a_server_is_a_miss():
    import threading
    with socket.socket() as odd:
        odd.bind(("127.0.0.1", 0))
        odd.listen()

        def serve():
            with contextlib.suppress(OSError):
                peer, _ = odd.accept()
                with peer:
                    peer.recv(1000)
                    peer.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        thread = threading.Thread(target=serve)
        thread.start()
        cache = MemcachedCache(MemcachedOptions((f"127.0.0.1:{odd.getsockname()[1]}",), io_timeout_s=1, tries=1))
        assert cache.get("a") is None
        thread.join()


def test_big_values_are_warned_of(server, caplog):
    cache = MemcachedCache(MemcachedOptions((server,), item_size_warning_threshold=10))
    cache.set("a", "x" * 5)
    assert not caplog.records
    cache.set("a", "x" * 50)
    assert "Item size larger" in caplog.text
    cache.close()


@pytest.mark.parametrize(("text", "address"), [
    ("h", ("h", 11211)), ("1.2.3.4:5", ("1.2.3.4", 5)), ("[::1]:5", ("::1", 5)), ("[::1]", ("::1", 11211)), ("::1", ("::1", 11211))])
def test_addresses(text, address):
    assert address_of(text) == address


@pytest.mark.parametrize("text", ["", ":5", "h:", "h:x", "h:99999", "[::1", "[::1]x"])
def test_bad_addresses(text):
    if text == "h:":
        assert address_of(text) == ("h", 11211)
        return
    with pytest.raises(ConfigError):
        address_of(text)


def test_what_is_kept_beside_a_key_is_had_with_it(server):
    with memcached() as second:
        cache = MemcachedCache(MemcachedOptions((server, second)))
        apart = next(f"k{number}" for number in range(1000) if cache.servers_for(f"k{number}")[0] != cache.servers_for(f"beside/k{number}")[0])
        cache.set(apart, {"a": 1}, 60)
        assert cache.get_beside(apart, f"beside/{apart}") == (b'{"a":1}', None)
        cache.set(f"beside/{apart}", 1, 60, at=apart)
        assert cache.get_beside(apart, f"beside/{apart}") == (b'{"a":1}', b"1")
        assert cache.get(f"beside/{apart}") is None, "it is on the other server"
        cache.delete(f"beside/{apart}", at=apart)
        cache.delete(apart)
        assert cache.get_beside(apart, f"beside/{apart}") == (None, None)
        cache.close()
    assert MemcachedCache(MemcachedOptions((f"127.0.0.1:{free_port()}",))).get_beside("a", "b") == (None, None)
