import pytest

from keelstore.common.errors import ConfigError
from keelstore.common.options import node_count, parse
from keelstore.common.policy import Policies, ReplicationPolicy
from keelstore.proxy.options import ProxyOptions, policy_options, read_affinity, write_affinity

POLICIES = Policies.of([ReplicationPolicy(0, "gold", is_default=True), ReplicationPolicy(1, "silver")])


@pytest.mark.parametrize(("text", "replicas", "expected"), [("2 * replicas", 3, 6), ("5", 3, 5), ("1*replicas", 4, 4)])
def test_node_count(text, replicas, expected):
    assert node_count(text, replicas) == expected


def test_affinities():
    assert read_affinity("r2=200, r1z1=100") == ((1, 1, 100), (2, None, 200))
    assert write_affinity("r1, r2z2") == ((1, None), (2, 2))
    assert read_affinity("") == ()


@pytest.mark.parametrize(("name", "value"), [
    ("request_node_count", "lots"), ("request_node_count", "0"), ("read_affinity", "r1"), ("write_affinity", "r1=2"),
    ("sorting_method", "best"), ("node_timeout", "0"), ("account_existence_skip_cache_pct", "101"), ("account_autocreate", "?"),
])
def test_bad_values_are_named(name, value):
    with pytest.raises(ConfigError, match=name):
        parse(ProxyOptions, {name: value}, section="app:proxy-server")


def test_a_policy_overrides_what_it_names():
    options = parse(ProxyOptions, {"sorting_method": "timing", "write_affinity": "r1"})
    found = policy_options(options, POLICIES, {"proxy-server:policy:1": {"sorting_method": "affinity", "read_affinity": "r1=1",
                                                                         "concurrency_timeout": "0.3"}})
    assert (found[0].sorting_method, found[1].sorting_method) == ("timing", "affinity")
    assert (found[0].write_affinity, found[1].write_affinity) == ("r1", "r1")
    assert found[1].concurrency_timeout == 0.3
    assert found[0].concurrency_timeout is None


@pytest.mark.parametrize("section", ["proxy-server:policy:7", "proxy-server:policy:gold"])
def test_unknown_policies_are_refused(section):
    with pytest.raises(ConfigError):
        policy_options(ProxyOptions(), POLICIES, {section: {}})


def test_read_affinity_without_effect_is_warned_of():
    warnings = []
    policy_options(parse(ProxyOptions, {"read_affinity": "r1=1"}), POLICIES, {}, warn=lambda *args: warnings.append(args))
    assert warnings
