import os

import pytest

from keelstore.common.cache_embedded import EmbeddedCache
from keelstore.common.cache_memcached import MemcachedCache
from keelstore.common.errors import ConfigError
from keelstore.common.middleware.cache import filter_factory
from test.unit.common.middleware.helpers import Inner, call


def test_without_servers_it_is_the_embedded_cache_shared_by_all(tmp_path):
    inner = Inner()
    app = filter_factory({"swift_dir": str(tmp_path)}, embedded_cache_slots="64")(inner)
    call(app)
    cache = inner.asked[0]["swift.cache"]
    assert isinstance(cache, EmbeddedCache)
    pid = os.fork()
    if pid == 0:
        cache.set("token", "x")
        os._exit(0)
    os.waitpid(pid, 0)
    assert cache.get("token") == "x"


def test_a_reload_in_the_same_process_finds_the_same_memory(tmp_path):
    conf = {"swift_dir": str(tmp_path), "__file__": str(tmp_path / "proxy.conf")}
    first = filter_factory(conf, embedded_cache_slots="64")(Inner()).cache
    first.set("token", "x")
    assert filter_factory(conf, embedded_cache_slots="64")(Inner()).cache.get("token") == "x"
    other = {**conf, "__file__": str(tmp_path / "other.conf")}
    assert filter_factory(other, embedded_cache_slots="64")(Inner()).cache.get("token") is None
    assert filter_factory({"swift_dir": str(tmp_path)})(Inner()).cache.get("token") is None


def test_servers_of_the_section(tmp_path):
    cache = filter_factory({"swift_dir": str(tmp_path)}, memcache_servers="10.0.0.1:11211, 10.0.0.2",
                           max_connections="5")(Inner()).cache
    assert isinstance(cache, MemcachedCache)
    assert cache._options.servers == ("10.0.0.1:11211", "10.0.0.2") and cache._options.max_connections == 5


def test_servers_of_memcache_conf_and_the_section_wins(tmp_path):
    (tmp_path / "memcache.conf").write_text("[memcache]\nmemcache_servers = 10.0.0.9:1\ntries = 7\nio_timeout = 9\n")
    cache = filter_factory({"swift_dir": str(tmp_path)}, tries="4")(Inner()).cache
    assert isinstance(cache, MemcachedCache)
    assert cache._options.servers == ("10.0.0.9:1",)
    assert (cache._options.tries, cache._options.io_timeout_s) == (4, 9.0)


@pytest.mark.parametrize("options", [{"memcache_servers": "h:x"}, {"tries": "0"}, {"embedded_cache_slots": "no"},
                                     {"memcache_servers": "h", "tls_enabled": "yes", "tls_cafile": "/nonexistent"}])
def test_bad_options_stop_the_start(tmp_path, options):
    with pytest.raises(ConfigError):
        filter_factory({"swift_dir": str(tmp_path)}, **options)


def test_a_broken_memcache_conf_stops_the_start(tmp_path):
    (tmp_path / "memcache.conf").write_text("nonsense")
    with pytest.raises(ConfigError):
        filter_factory({"swift_dir": str(tmp_path)})
