import logging

import pytest

from keelstore.common import registry
from keelstore.common.cache_embedded import EmbeddedCache
from keelstore.common.errors import ConfigError
from keelstore.common.http import Response
from keelstore.common.middleware.ratelimit import Ratelimit, RatelimitOptions, filter_factory, rate_for, rates_of
from test.unit.common.middleware.helpers import DictCache, Inner, call


class Setup:
    def __init__(self, setting="", objects=100, cache=None, **options):
        self.now = 1000.0
        self.slept: list[float] = []
        self.setting, self.objects = setting, objects
        self.cache = cache or DictCache()
        self.app = Ratelimit(self.inner, RatelimitOptions(**options), logging.getLogger("test"), lambda: self.now,
                             self.slept.append)

    def inner(self, environ, start_response):
        if environ["REQUEST_METHOD"] == "HEAD" and environ.get("swift.source") == "RL":
            return Response(204, {
                "X-Account-Sysmeta-Global-Write-Ratelimit": self.setting, "X-Container-Object-Count": str(self.objects),
            })(environ, start_response)
        return Response(200, body=b"in")(environ, start_response)

    def call(self, method="PUT", path="/v1/a/c", **extra):
        self.slept.clear()
        return call(self.app, method, path, **{"swift.cache": self.cache, **extra})


def test_an_account_is_slowed_down_and_then_refused():
    setup = Setup(account_ratelimit=1.0, max_sleep_time_seconds=4.0)
    for expected in ([], [1.0], [2.0], [3.0]):
        assert setup.call().status == 200 and setup.slept == expected
    for _ in range(3):
        got = setup.call()
        assert (got.line, got.body, got.headers["Retry-After"], setup.slept) == ("429 Too Many Requests", b"Slow down", "4", [])
    setup.now += 2
    assert setup.call().status == 200 and setup.slept == [2.0]
    setup.now += 1000
    assert setup.call().status == 200 and setup.slept == []


@pytest.mark.parametrize(("options", "line"), [({}, "429 Too Many Requests"), ({"rate_limited_status": 498}, "498 Rate Limited")])
def test_case_C31_the_status_is_one_that_clients_know_unless_swifts_is_asked_for(options, line):
    setup = Setup(account_ratelimit=1.0, max_sleep_time_seconds=1.0, **options)
    setup.call()
    got = setup.call()
    assert got.line == line and got.headers["Retry-After"] == "1"


def test_unused_rate_can_be_caught_up_with():
    setup = Setup(account_ratelimit=1.0, rate_buffer_seconds=5.0)
    setup.call()
    setup.now += 4
    for expected in ([], [], [], [], [1.0]):
        setup.call()
        assert setup.slept == expected


@pytest.mark.parametrize(("method", "path", "keys"), [
    ("PUT", "/v1/a/c", ["ratelimit/a", "ratelimit/global-write/a"]), ("DELETE", "/v1/a/c", ["ratelimit/a", "ratelimit/global-write/a"]),
    ("POST", "/v1/a/c", ["ratelimit/global-write/a"]), ("PUT", "/v1/a", ["ratelimit/global-write/a"]),
    ("PUT", "/v1/a/c/o", ["ratelimit/a/c", "ratelimit/global-write/a"]), ("COPY", "/v1/a/c/o/p", ["ratelimit/a/c", "ratelimit/global-write/a"]),
    ("DELETE", "/v1/a/c/o", ["ratelimit/a/c", "ratelimit/global-write/a"]), ("POST", "/v1/a/c/o", ["ratelimit/a/c", "ratelimit/global-write/a"]),
    ("GET", "/v1/a/c", ["ratelimit_listing/a/c"]), ("GET", "/v1/a/c/o", []), ("HEAD", "/v1/a/c", []), ("GET", "/v1/a", []),
    ("OPTIONS", "/v1/a/c/o", []), ("GET", "/info", []), ("PUT", "/v2/a/c", []), ("PUT", "/v1//c", []),
])
def test_what_counts_where(method, path, keys):
    setup = Setup("2", account_ratelimit=1.0, container_rates=((50, 1.0),), listing_rates=((50, 1.0),))
    assert setup.call(method, path).status == 200
    assert sorted(key for key in setup.cache.values if key.startswith("ratelimit")) == sorted(keys)


def test_all_counters_are_waited_for():
    setup = Setup("2", account_ratelimit=1.0, container_rates=((50, 1.0),))
    setup.call("PUT", "/v1/a/c/o")
    setup.call("COPY", "/v1/a/c/o")
    assert setup.slept == [1.0, 0.5]


@pytest.mark.parametrize("setting", ["0", "x", "-1", "inf", "nan", ""])
def test_account_settings_that_mean_nothing(setting):
    setup = Setup(setting)
    setup.call()
    assert not setup.cache.values


@pytest.mark.parametrize("method", ["PUT", "GET", "HEAD", "POST"])
@pytest.mark.parametrize("options", [{"setting": "BLACKLIST"}, {"account_blacklist": ("a",)}])
def test_blacklisted(method, options):
    setup = Setup(**options)
    got = setup.call(method, "/v1/a/c/o")
    assert got.line == "497 Blacklisted" and setup.slept == [1.0]


@pytest.mark.parametrize("options", [{"setting": "WHITELIST"}, {"account_whitelist": ("a",)}])
def test_whitelisted(options):
    setup = Setup(account_ratelimit=1.0, **options)
    for _ in range(5):
        setup.call()
        assert setup.slept == []


def test_without_a_working_cache_nothing_is_limited():
    setup = Setup(account_ratelimit=1.0, max_sleep_time_seconds=1.0)
    for _ in range(5):
        assert setup.call(**{"swift.cache": None}).status == 200
    setup.cache.fails = True
    for _ in range(5):
        assert setup.call().status == 200
    assert setup.slept == []


def test_a_request_is_handled_once():
    setup = Setup(account_ratelimit=1.0)
    setup.app.app = Ratelimit(setup.inner, setup.app.options, setup.app.log, lambda: setup.now, setup.slept.append)
    setup.call()
    assert setup.cache.values["ratelimit/a"] == 1001000


def test_it_works_with_the_embedded_cache():
    setup = Setup(account_ratelimit=1.0, cache=EmbeddedCache(64, 1024))
    for expected in ([], [1.0], [2.0]):
        setup.call()
        assert setup.slept == expected


def test_long_waits_are_logged(caplog):
    setup = Setup(account_ratelimit=1.0, log_sleep_time_seconds=1.5)
    for _ in range(3):
        setup.call()
    assert caplog.text.count("Ratelimit sleep log") == 1


RATES = ((100, 100.0), (200, 50.0), (400, 10.0))


@pytest.mark.parametrize(("size", "rate"), [
    (0, None), (1, None), (99, None), (100, 100.0), (150, 75.0), (200, 50.0), (300, 30.0), (400, 10.0), (10**9, 10.0)])
def test_rates_between_sizes(size, rate):
    assert rate_for(RATES, size) == rate


def test_size_zero_has_no_limit():
    assert rate_for(((0, 5.0),), 0) is None and rate_for(((0, 5.0),), 1) == 5.0 and rate_for((), 5) is None
    assert rate_for(((5, 0.0),), 5) is None


@pytest.mark.parametrize("conf", [{"container_ratelimit_x": "1"}, {"container_ratelimit_5": "y"}, {"container_ratelimit_-1": "1"},
                                  {"container_listing_ratelimit_5": "-2"}, {"account_ratelimit": "-1"},
                                  {"container_ratelimit_5": "nan"}, {"rate_limited_status": "500"}])
def test_bad_options_stop_the_start(conf):
    with pytest.raises(ConfigError):
        filter_factory({"log_file": "-"}, **conf)


def test_factory_and_info():
    registry.forget_all()
    app = filter_factory({"log_file": "-"}, container_ratelimit_200="50", container_ratelimit_100="100",
                         container_listing_ratelimit_0="7", account_whitelist="a, b")(Inner())
    assert app.options.container_rates == ((100, 100.0), (200, 50.0)) and app.options.account_whitelist == ("a", "b")
    assert registry.published()["ratelimit"] == {
        "account_ratelimit": 0.0, "max_sleep_time_seconds": 60.0, "container_ratelimits": [[100, 100.0], [200, 50.0]],
        "container_listing_ratelimits": [[0, 7.0]]}
    assert rates_of({}, "container_ratelimit_") == ()
