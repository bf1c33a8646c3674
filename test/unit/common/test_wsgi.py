"""Loading pipelines: mandatory filters, order, secrets, addresses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from keelstore.common import wsgi
from keelstore.common.errors import ConfigError
from keelstore.common.paste_config import Component, Configuration, read_config
from keelstore.common.ring.builder import RingBuilder
from keelstore.common.ring.devices import RingDevice
from keelstore.common.ring.format import save
from keelstore.common.wsgi import Rule, broken_rules

CONFIG = Configuration("/etc/p.conf", {}, {})


def names_with_mandatory(pipeline: str) -> str:
    filters = [Component("filter", f"filter:{name}", name, f"keelstore.common.middleware.{name}", lambda: None)
               for name in pipeline.split()]
    return " ".join(component.entry for component in wsgi.with_mandatory(filters, CONFIG))


@pytest.mark.parametrize("given,expected", [
    ("", "catch_errors gatekeeper listing_formats copy dlo versioned_writes"),
    ("catch_errors gatekeeper listing_formats copy", "catch_errors gatekeeper listing_formats copy dlo versioned_writes"),
    ("catch_errors gatekeeper proxy_logging tempauth copy container_quotas account_quotas proxy_logging",
     "catch_errors gatekeeper proxy_logging listing_formats tempauth copy container_quotas account_quotas dlo versioned_writes "
     "proxy_logging"),
    ("healthcheck proxy_logging memcache tempauth proxy_logging",
     "catch_errors gatekeeper healthcheck proxy_logging memcache listing_formats tempauth copy dlo versioned_writes proxy_logging"),
    ("catch_errors healthcheck proxy_logging tempauth proxy_logging",
     "catch_errors gatekeeper healthcheck proxy_logging listing_formats tempauth copy dlo versioned_writes proxy_logging"),
    ("healthcheck catch_errors tempauth", "gatekeeper healthcheck catch_errors listing_formats tempauth copy dlo versioned_writes"),
])
def test_mandatory_filters_are_put_in_where_swift_puts_them(given: str, expected: str) -> None:
    assert names_with_mandatory(given) == expected


@pytest.mark.parametrize("pipeline,rule,holds", [
    ("auth web", Rule("web", "auth", True), True),
    ("web auth", Rule("web", "auth", True), False),
    ("web", Rule("web", "auth", True), True),
    ("limit auth", Rule("limit", "auth", False), True),
    ("auth limit", Rule("limit", "auth", False), False),
    ("limit auth limit", Rule("limit", "auth", False), True),
    ("web auth web", Rule("web", "auth", True), False),
    ("log auth log", Rule("auth", "log", True), True),
    ("log auth log", Rule("auth", "log", False), True),
])
def test_rules_of_order(pipeline: str, rule: Rule, holds: bool) -> None:
    assert (broken_rules(pipeline.split(), [rule]) == []) is holds


# -- whole configurations ----------------------------------------------------------------------------------------------

PROXY = """
[DEFAULT]
bind_port = {port}
bind_ip = {ip}
swift_dir = %(here)s
log_file = -
log_level = CRITICAL
{defaults}
[pipeline:main]
pipeline = {pipeline} proxy-server
[app:proxy-server]
use = egg:swift#proxy
{app}
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:gatekeeper]
use = egg:swift#gatekeeper
[filter:healthcheck]
use = egg:swift#healthcheck
[filter:proxy-logging]
use = egg:swift#proxy_logging
[filter:cache]
use = egg:swift#memcache
[filter:tempauth]
use = egg:swift#tempauth
{users}
[filter:copy]
use = egg:swift#copy
{rest}
"""
PIPELINE = "catch_errors gatekeeper healthcheck proxy-logging cache tempauth copy proxy-logging"


def etc(tmp_path: Path, prefix: str = "p", suffix: str = "s") -> Path:
    """A configuration directory with a cluster file and rings of one device, 127.0.0.1:6200 to 6202."""
    (tmp_path / "swift.conf").write_text(
        f"[swift-hash]\nswift_hash_path_prefix = {prefix}\nswift_hash_path_suffix = {suffix}\n")
    for name, port in (("object", 6200), ("container", 6201), ("account", 6202)):
        builder = RingBuilder(2, 1, 0)
        builder.add_device(RingDevice(1, 1, "127.0.0.1", port, "d1", 1.0, "127.0.0.1", port))
        builder.rebalance(0.0, seed=1)
        save(builder.ring(), str(tmp_path / f"{name}.ring.gz"))
    return tmp_path


def proxy_conf(directory: Path, **changes: Any) -> str:
    values = {"port": 8080, "ip": "127.0.0.1", "defaults": "", "pipeline": PIPELINE, "app": "", "users": "", "rest": ""}
    path = directory / "proxy-server.conf"
    path.write_text(PROXY.format(**{**values, **changes}))
    return str(path)


def test_a_swift_operators_file_loads_as_it_is(tmp_path: Path) -> None:
    service = wsgi.load(proxy_conf(etc(tmp_path)))
    assert service.kind == "proxy" and service.name == "proxy-server" and service.addresses == (("127.0.0.1", 8080),)
    assert service.pipeline == ("catch_errors", "gatekeeper", "healthcheck", "proxy_logging", "memcache",
                                "listing_formats", "tempauth", "copy", "dlo", "versioned_writes", "proxy_logging", "proxy")
    assert service.workers >= 1


def test_security_S21_a_pipeline_in_unsafe_order_does_not_start(tmp_path: Path) -> None:
    """security S21: a middleware that serves data in front of authentication would show private containers."""
    pipeline = "catch_errors gatekeeper proxy-logging cache copy tempauth proxy-logging"
    with pytest.raises(ConfigError) as caught:
        wsgi.load(proxy_conf(etc(tmp_path), pipeline=pipeline))
    text = str(caught.value)
    assert "proxy-server.conf [pipeline:main] pipeline" in text
    assert "'copy' must stand after 'tempauth'" in text or "'tempauth' must stand before 'copy'" in text
    assert "nobody has authenticated" in text


def test_gatekeeper_stands_before_what_it_protects(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="gatekeeper"):
        wsgi.load(proxy_conf(etc(tmp_path), pipeline="catch_errors proxy-logging cache tempauth gatekeeper copy"))


@pytest.mark.parametrize("port", ["", "0", "65536"])
def test_a_server_needs_a_port(tmp_path: Path, port: str) -> None:
    with pytest.raises(ConfigError, match="bind_port wasn't properly set in the config file"):
        wsgi.load(proxy_conf(etc(tmp_path), port=port))


@pytest.mark.parametrize("defaults,says", [
    ("workers = many", r"\[DEFAULT\] workers = 'many': expected a whole number"),
    ("keep_idle = 40000", r"keep_idle = '40000': expected a number from 1 to 32766"),
    ("client_timeout = -1", r"client_timeout = '-1': expected a number above 0"),
    ("ionice_class = FAST", "expected one of IOPRIO_CLASS_RT"),
    ("cert_file = /nonexistent.pem", "cert_file"),
])
def test_a_bad_value_stops_the_start(tmp_path: Path, defaults: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        wsgi.load(proxy_conf(etc(tmp_path), defaults=defaults))
    assert "proxy-server.conf" in str(caught.value)


def test_a_bad_value_of_the_app_names_file_section_and_option(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"proxy-server\.conf \[app:proxy-server\] node_timeout = 'soon': expected a number"):
        wsgi.load(proxy_conf(etc(tmp_path), app="node_timeout = soon"))


def test_what_the_app_says_of_connections_counts(tmp_path: Path) -> None:
    path = etc(tmp_path)
    assert wsgi.load(proxy_conf(path, defaults="client_timeout = 9")).connections.client_timeout_s == 9
    found = wsgi.load(proxy_conf(path, defaults="max_clients = 5", app="client_timeout = 7")).connections
    assert (found.client_timeout_s, found.max_clients) == (7, 5)
    assert wsgi.load(proxy_conf(path, defaults="client_timeout = 9", app="set client_timeout = 7")).connections.client_timeout_s == 7


def test_security_R15_placeholder_hash_secrets_are_refused(tmp_path: Path) -> None:
    """security R15"""
    path = proxy_conf(etc(tmp_path, "changeme", "changeme"))
    with pytest.raises(ConfigError, match="are placeholders"):
        wsgi.load(path)
    wsgi.load(proxy_conf(tmp_path, defaults="allow_placeholder_secrets = true"))


@pytest.mark.parametrize("ip,key,refused", [
    ("0.0.0.0", "testing .admin", True), ("192.0.2.1", "testing .admin", True), ("127.0.0.1", "testing .admin", False),
    ("127.0.0.2", "testing", False), ("::1", "testing .admin", False), ("0.0.0.0", "2wJx9 .admin", False),
])
def test_security_R15_well_known_users_are_refused_where_others_reach_them(tmp_path: Path, ip: str, key: str, refused: bool) -> None:
    path = proxy_conf(etc(tmp_path), ip=ip, users=f"user_test_tester = {key}")
    if refused:
        with pytest.raises(ConfigError, match=r"\[filter:tempauth\] user_test_tester: a user with a well-known key"):
            wsgi.load(path)
    else:
        wsgi.load(path)


def storage_conf(directory: Path, kind: str, port: int, defaults: str = "", app: str = "") -> str:
    path = directory / f"{kind}-server.conf"
    path.write_text(f"[DEFAULT]\nbind_port = {port}\nswift_dir = {directory}\nlog_file = -\nmount_check = false\ndevices = {directory}\n"
                    f"{defaults}\n[pipeline:main]\npipeline = {kind}-server\n[app:{kind}-server]\nuse = egg:swift#{kind}\n{app}\n")
    return str(path)


def test_security_S55_R19_a_storage_server_listens_where_the_rings_say_it_is_and_not_everywhere(tmp_path: Path) -> None:
    """security S55: its protocol knows no authentication."""
    assert wsgi.load(storage_conf(etc(tmp_path), "object", 6200)).addresses == (("127.0.0.1", 6200),)
    with pytest.raises(ConfigError, match="bind_ip is not set, and the rings have no account device of this host with port 7000"):
        wsgi.load(storage_conf(tmp_path, "account", 7000))
    assert wsgi.load(storage_conf(tmp_path, "account", 7000, "bind_ip = 0.0.0.0")).addresses == (("0.0.0.0", 7000),)


def test_a_proxy_listens_everywhere_unless_told(tmp_path: Path) -> None:
    assert wsgi.load(proxy_conf(etc(tmp_path), ip="")).addresses == (("0.0.0.0", 8080),)


def test_a_listener_on_all_addresses_is_known_by_each() -> None:
    assert ("127.0.0.1", 6200) in wsgi.reached_as(("0.0.0.0", 6200))
    assert wsgi.reached_as(("127.0.0.3", 6200)) == [("127.0.0.3", 6200)]


@pytest.mark.parametrize("kind,port", [("account", 6202), ("container", 6201), ("object", 6200)])
def test_an_unknown_option_is_a_warning_with_the_nearest_name(tmp_path: Path, kind: str, port: int) -> None:
    path = storage_conf(etc(tmp_path), kind, port, app="node_timeuot = 3")
    done = subprocess.run([sys.executable, "-m", "keelstore.node", path, "--role", kind, "--test-config"], capture_output=True,
                          text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert f"[app:{kind}-server]: unknown option node_timeuot (did you mean node_timeout?)" in done.stderr


def test_defaults_are_looked_at_for_slips_of_the_pen_only(tmp_path: Path) -> None:
    """``[DEFAULT]`` belongs to daemons and foreign filters too."""
    path = storage_conf(etc(tmp_path), "object", 6200, "worker = 3\nmount_chek = true\nconcurrency = 4\nservers_per_port = 2\n")
    done = subprocess.run([sys.executable, "-m", "keelstore.node", path, "--role", "object", "-t"], capture_output=True, text=True,
                          timeout=60)
    told = [line for line in done.stderr.splitlines() if "[DEFAULT]" in line]
    assert len(told) == 3 and done.returncode == 0, done.stderr
    assert "worker (did you mean workers?)" in told[0] and "mount_chek (did you mean mount_check?)" in told[1]
    assert "servers_per_port is not supported" in told[2]


def test_a_missing_cluster_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no keelstore\.conf or swift\.conf found"):
        wsgi.load(proxy_conf(tmp_path))


def test_a_filter_that_is_none_of_ours_gets_its_name_into_the_error(tmp_path: Path) -> None:
    rest = "[filter:bad]\npaste.filter_factory = test.unit.common.test_wsgi:failing_factory\n"
    with pytest.raises(ConfigError, match=r"\[filter:bad\]: .*failing_factory failed: ValueError: no luck"):
        wsgi.load(proxy_conf(etc(tmp_path), pipeline=PIPELINE + " bad", rest=rest))


def failing_factory(global_conf: dict[str, str], **local_conf: str) -> Any:
    raise ValueError("no luck")


def test_sub_requests_have_the_inner_logging_as_their_door(tmp_path: Path) -> None:
    service = wsgi.load(proxy_conf(etc(tmp_path)))
    outer: Any = service.app
    assert outer.logged_app is not None and outer.logged_app.app.__self__.__class__.__name__ == "ProxyApp"


def test_sections_of_daemons_may_stand_in_the_same_file(tmp_path: Path) -> None:
    path = Path(storage_conf(etc(tmp_path), "object", 6200))
    path.write_text(path.read_text() + "[object-replicator]\nconcurrency = 4\n")
    assert wsgi.load(str(path)).kind == "object"
    assert read_config(str(path)).merged("object-replicator")["concurrency"] == "4"
