import socket

import pytest

from keelstore.common.errors import ConfigError
from keelstore.common.stats import NO_STATS, Statsd, StatsdOptions, labelled_line, stats_for


@pytest.fixture
def receiver():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.settimeout(5)
        yield sock


def stats(receiver, tail="proxy-server", **conf):
    return stats_for({"log_statsd_host": "127.0.0.1", "log_statsd_port": str(receiver.getsockname()[1]), **conf}, tail)


def test_without_a_host_it_is_false_and_does_nothing():
    found = stats_for({})
    assert found is NO_STATS and not found
    for call in (lambda: found.increment("a"), lambda: found.timing("a", 1), lambda: found.labelled("a", "c", 1, {}),
                 lambda: found.timing_since("a", 1), lambda: found.update("a", 1), lambda: found.decrement("a"),
                 lambda: found.transfer_rate("a", 1, 1)):
        assert call() is None


@pytest.mark.parametrize(("call", "line"), [
    (lambda s: s.increment("errors"), b"h.proxy-server.errors:1|c"), (lambda s: s.decrement("x"), b"h.proxy-server.x:-1|c"),
    (lambda s: s.update("x", 42), b"h.proxy-server.x:42|c"), (lambda s: s.timing("x", 1.23456), b"h.proxy-server.x:1.2346|ms"),
    (lambda s: s.transfer_rate("x", 2, 4096), b"h.proxy-server.x:500.0|ms"),
])
def test_lines(receiver, call, line):
    found = stats(receiver, log_statsd_metric_prefix="h")
    assert found
    call(found)
    assert receiver.recv(1000) == line
    found.close()


def test_no_prefix_no_dot(receiver):
    stats(receiver, "").increment("x")
    assert receiver.recv(1000) == b"x:1|c"


def test_timing_since(receiver):
    found = stats(receiver)
    found._now = lambda: 10.5
    found.timing_since("x", 10.0)
    assert receiver.recv(1000) == b"proxy-server.x:500.0|ms"


def test_sampling(receiver, monkeypatch):
    found = stats(receiver, log_statsd_default_sample_rate="0.5", log_statsd_sample_rate_factor="0.5")
    monkeypatch.setattr("random.random", lambda: 0.3)
    found.increment("dropped")
    monkeypatch.setattr("random.random", lambda: 0.2)
    found.increment("kept")
    found.increment("also", sample_rate=1)
    assert receiver.recv(1000) == b"proxy-server.kept:1|c|@0.25"
    assert receiver.recv(1000) == b"proxy-server.also:1|c|@0.5"


@pytest.mark.parametrize(("mode", "line"), [
    ("dogstatsd", "m:1|c|#a:1,b:x_y"), ("graphite", "m;a=1;b=x_y:1|c"), ("librato", "m#a=1,b=x_y:1|c"),
    ("influxdb", "m,a=1,b=x_y:1|c")])
def test_labelled_lines(receiver, mode, line):
    assert labelled_line(mode, "m", "c", 1, {"b": "x,y", "a": "1"}) == line
    found = stats(receiver, statsd_label_mode=mode, statsd_user_label_b="x,y")
    found.labelled("m", "c", 1, {"a": 1, "none": None})
    assert receiver.recv(1000).decode() == line


def test_a_label_cannot_end_its_line():
    assert "\n" not in labelled_line("dogstatsd", "m", "c", 1, {"a": "x\ny:1|c"})
    assert labelled_line("graphite", "m", "c", 1, {}) == "m:1|c"


def test_labels_only(receiver):
    found = stats(receiver, statsd_emit_legacy="false", statsd_label_mode="graphite")
    found.increment("plain")
    found.labelled("m", "c", 1, {})
    assert receiver.recv(1000) == b"m:1|c"


def test_nobody_listening_or_no_such_host_is_no_error(receiver):
    found = stats(receiver)
    receiver.close()
    for _ in range(3):
        found.increment("x")
    lost = Statsd(StatsdOptions(log_statsd_host="host.invalid"), now=lambda: 1.0)
    lost.increment("x")
    lost.increment("x")


@pytest.mark.parametrize("conf", [{"log_statsd_port": "x"}, {"log_statsd_default_sample_rate": "2"}, {"statsd_label_mode": "x"}])
def test_bad_options(conf):
    with pytest.raises(ConfigError):
        stats_for({"log_statsd_host": "h", **conf})


def test_a_name_is_looked_up_aside(receiver):
    found = Statsd(StatsdOptions(log_statsd_host="localhost", log_statsd_port=receiver.getsockname()[1]))
    receiver.settimeout(0.05)
    for _ in range(200):
        found.increment("x")
        try:
            assert receiver.recv(1000) == b"x:1|c"
            break
        except TimeoutError:
            if found._sock is not None and found._sock.family != socket.AF_INET:
                pytest.skip("localhost is an IPv6 address here")
    else:
        pytest.fail("the name was not looked up")
