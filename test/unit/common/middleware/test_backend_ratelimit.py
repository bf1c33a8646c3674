import logging
import os

import pytest

from keelstore.common.errors import ConfigError
from keelstore.common.middleware.backend_ratelimit import BackendRatelimit, BackendRatelimitOptions, filter_factory
from test.unit.common.middleware.helpers import CountingStats, Inner, call


class Setup:
    def __init__(self, **options):
        self.now = 1000.0
        self.stats = CountingStats()
        options.setdefault("swift_dir", "/nonexistent")
        self.app = BackendRatelimit(Inner(status=201), BackendRatelimitOptions(**options), logging.getLogger("test.rate"), self.stats, lambda: self.now)

    def passes(self, count, method="PUT", path="/d1/7/a/c/o"):
        """How many of ``count`` requests at once are let through."""
        return sum(call(self.app, method, path).status == 201 for _ in range(count))


def test_a_device_takes_its_rate_and_what_it_saved():
    setup = Setup(requests_per_device_per_second=8.0)
    assert setup.passes(30) == 9 and setup.passes(5, path="/d2/7/a") == 5
    setup.now += 0.5
    assert setup.passes(30) == 4
    setup.now += 60
    assert setup.passes(30) == 9
    assert setup.stats.counts["backend.ratelimit"] == 21 + 26 + 21


def test_methods_have_rates_of_their_own():
    setup = Setup(put_requests_per_device_per_second=1.0, requests_per_device_rate_buffer=0.0)
    assert setup.passes(3) == 1 and setup.passes(3, "GET") == 3
    setup = Setup(put_requests_per_device_per_second=5.0, requests_per_device_per_second=2.0, requests_per_device_rate_buffer=0.0)
    assert setup.passes(3) == 1 and setup.passes(3, "GET") == 0


def test_the_answer():
    setup = Setup(requests_per_device_per_second=1.0, requests_per_device_rate_buffer=0.0)
    setup.passes(1)
    got = call(setup.app, "PUT", "/d1/7/a/c/o")
    assert got.line == "529 Too Many Backend Requests"


@pytest.mark.parametrize("path", ["/healthcheck", "/recon/version", "/", "/d1"])
def test_what_is_about_no_device_passes(path):
    assert Setup(requests_per_device_per_second=1.0, requests_per_device_rate_buffer=0.0).passes(5, path=path) == 5


def test_rates_can_be_turned_while_it_runs(tmp_path, caplog):
    path = tmp_path / "backend-ratelimit.conf"
    setup = Setup(swift_dir=str(tmp_path), requests_per_device_rate_buffer=0.0)
    assert setup.passes(5) == 5
    path.write_text("[backend_ratelimit]\nrequests_per_device_per_second = 1\n")
    assert setup.passes(5) == 5
    setup.now += 60
    assert setup.passes(5) == 1
    path.write_text("[backend_ratelimit]\nrequests_per_device_per_second = many\n")
    os.utime(path, ns=(1, 1))
    setup.now += 60
    assert setup.passes(5) == 1 and "many" in caplog.text
    path.unlink()
    setup.now += 60
    assert setup.passes(5) == 5


def test_a_named_file_that_is_missing_is_warned_of(tmp_path, caplog):
    Setup(backend_ratelimit_conf_path=str(tmp_path / "none.conf"))
    assert "none.conf cannot be read" in caplog.text


def test_bad_rates_stop_the_start():
    with pytest.raises(ConfigError, match="put_requests_per_device_per_second"):
        filter_factory({}, put_requests_per_device_per_second="-1")
    assert filter_factory({}, put_requests_per_device_per_second="5")(Inner()) is not None
