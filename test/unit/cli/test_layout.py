"""The data directory of ``up``: what is ours, what is not, and what is written there."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from keelstore.cli import generate
from keelstore.cli.layout import DEVICES, POLICIES, TEST_USERS, CommandError, Layout, Settings, command_name
from keelstore.common.cluster import load_cluster
from keelstore.common.ring.ring import RingFile
from keelstore.common.wsgi import load


def fresh(root: Path, **changes: object) -> Layout:
    root.mkdir(exist_ok=True)
    return Layout(str(root), replace(Settings.fresh("127.0.0.1", 18080, 1), **changes))  # type: ignore[arg-type]


def test_an_empty_or_missing_directory_may_become_ours_and_nothing_else(tmp_path: Path) -> None:
    assert not Layout.exists(str(tmp_path / "new"))
    assert not Layout.exists(str(tmp_path))
    (tmp_path / "file").write_text("x")
    with pytest.raises(CommandError, match="not empty and not a keelstore data directory"):
        Layout.exists(str(tmp_path))
    with pytest.raises(CommandError, match="is not a directory"):
        Layout.exists(str(tmp_path / "file"))
    with pytest.raises(CommandError, match=r"has no keelstore\.json"):
        Layout.open(str(tmp_path))


def test_settings_come_back_and_only_their_owner_can_read_them(tmp_path: Path) -> None:
    layout = fresh(tmp_path)
    layout.save()
    assert Layout.exists(str(tmp_path)) and Layout.open(str(tmp_path)).settings == layout.settings
    assert (tmp_path / "keelstore.json").stat().st_mode & 0o777 == 0o600
    assert layout.settings.key not in repr(layout.settings)


@pytest.mark.parametrize("text,says", [
    ("{", "cannot be read"), ("{}", "damaged"), ("[]", "damaged"), ('{"version": 99}', "newer keelstore"),
    ('{"version": 1, "host": "x"}', "damaged"),
])
def test_a_damaged_or_newer_marker_is_told(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "keelstore.json").write_text(text)
    with pytest.raises(CommandError, match=says):
        Layout.open(str(tmp_path))


def test_unknown_settings_of_a_marker_are_left_alone(tmp_path: Path) -> None:
    layout = fresh(tmp_path)
    layout.save()
    value = json.loads((tmp_path / "keelstore.json").read_text())
    (tmp_path / "keelstore.json").write_text(json.dumps({**value, "later": 1}))
    assert Layout.open(str(tmp_path)).settings == layout.settings


def test_secrets_are_never_the_same_twice() -> None:
    one, two = Settings.fresh("127.0.0.1", 8080, 1), Settings.fresh("127.0.0.1", 8080, 1)
    for name in ("key", "hash_prefix", "hash_suffix", "fernet_key"):
        assert getattr(one, name) != getattr(two, name) and len(getattr(one, name)) >= 32


@pytest.mark.parametrize("host,nodes,node,proxy,storage,endpoint", [
    ("127.0.0.1", 1, 1, "127.0.0.1", "127.0.0.1", "http://127.0.0.1:8080"),
    ("0.0.0.0", 1, 1, "0.0.0.0", "127.0.0.1", "http://127.0.0.1:8080"),
    ("192.0.2.7", 1, 1, "192.0.2.7", "127.0.0.1", "http://192.0.2.7:8080"),
    ("::1", 1, 1, "::1", "127.0.0.1", "http://[::1]:8080"),
    ("127.0.0.1", 4, 3, "127.0.0.3", "127.0.0.3", "http://127.0.0.3:8080"),
])
def test_where_things_listen(host: str, nodes: int, node: int, proxy: str, storage: str, endpoint: str) -> None:
    settings = Settings.fresh(host, 8080, nodes)
    assert (settings.proxy_ip(node), settings.storage_ip(node), settings.endpoint(node)) == (proxy, storage, endpoint)
    assert [settings.storage_port(kind) for kind in ("object", "container", "account")] == [6200, 6201, 6202]


def test_what_up_writes_is_what_an_operator_would_write(tmp_path: Path) -> None:
    layout = fresh(tmp_path / "store", test_users=True)
    assert generate.prepare(layout) == []
    etc = tmp_path / "store" / "node1" / "etc"
    cluster = load_cluster(str(etc))
    assert [(policy.index, policy.name, policy.policy_type) for policy in cluster.policies] == [
        (policy.index, policy.name, policy.kind) for policy in POLICIES]
    assert cluster.policies.default.name == "gold"
    for name, (kind, replicas) in generate.rings().items():
        ring = RingFile(str(etc / f"{name}.ring.gz")).current()
        assert ring.replica_count == replicas and {node.device for node in ring.nodes} == set(DEVICES)
        assert {node.address for node in ring.nodes} == {("127.0.0.1", layout.settings.storage_port(kind))}
    for name in ("proxy-server.conf", "keelstore.conf"):
        assert (etc / name).stat().st_mode & 0o077 == 0
    services = [load(str(etc / f"{kind}-server.conf")) for kind in ("proxy", "account", "container", "object")]
    assert [service.addresses[0][1] for service in services] == [18080, 16202, 16201, 16200]
    text = (etc / "proxy-server.conf").read_text()
    assert all(f"user_{account}_{user} = {key}" in text for account, user, key, _ in TEST_USERS)
    assert sorted(os.listdir(tmp_path / "store" / "node1" / "devices")) == sorted(DEVICES)


def test_without_test_users_only_the_generated_one_is_there(tmp_path: Path) -> None:
    layout = fresh(tmp_path / "store")
    generate.prepare(layout)
    users = [line for line in (tmp_path / "store/node1/etc/proxy-server.conf").read_text().splitlines() if line.startswith("user_")]
    assert users == [f"user_keel_admin = {layout.settings.key} .admin"]


def test_encryption_is_switched_on_and_off_and_the_secret_stays(tmp_path: Path) -> None:
    layout = fresh(tmp_path / "store")
    generate.prepare(layout)
    etc = tmp_path / "store" / "node1" / "etc"
    assert "disable_encryption = true" in (etc / "proxy-server.conf").read_text()
    secret = (etc / "keymaster.conf").read_text()
    layout.settings = layout.settings.encrypting(True)
    generate.prepare(layout)
    assert "disable_encryption = false" in (etc / "proxy-server.conf").read_text()
    assert (etc / "keymaster.conf").read_text() == secret
    assert layout.settings.root_secret in secret and layout.settings.root_secret not in repr(layout.settings)
    assert (etc / "keymaster.conf").stat().st_mode & 0o077 == 0
    service = load(str(etc / "proxy-server.conf"))
    assert service.pipeline[-4:] == ("keymaster", "encryption", "proxy_logging", "proxy")
    again = Layout.open(layout.root)
    for encrypts in (False, True):
        again.settings = again.settings.encrypting(encrypts)
        assert generate.prepare(again) == []
        assert (etc / "keymaster.conf").read_text() == secret
        off = "false" if encrypts else "true"
        assert f"disable_encryption = {off}" in (etc / "proxy-server.conf").read_text()


def test_a_store_from_before_there_was_a_root_secret_gets_one_when_it_is_to_encrypt(tmp_path: Path) -> None:
    layout = fresh(tmp_path / "store")
    layout.settings = replace(layout.settings, root_secret="")
    generate.prepare(layout)
    etc = tmp_path / "store" / "node1" / "etc"
    assert "filter:encryption" not in (etc / "proxy-server.conf").read_text() and not (etc / "keymaster.conf").exists()
    layout.settings = layout.settings.encrypting(True)
    generate.prepare(layout)
    assert layout.settings.root_secret in (etc / "keymaster.conf").read_text()


def test_four_nodes_have_a_zone_and_devices_each_and_the_same_secrets(tmp_path: Path) -> None:
    layout = fresh(tmp_path / "store", nodes=4)
    generate.prepare(layout)
    ring = RingFile(layout.node(3).path("etc", "object.ring.gz")).current()
    assert {(node.zone, node.ip) for node in ring.nodes} == {(number, f"127.0.0.{number}") for number in range(1, 5)}
    for part in range(0, ring.partition_count, 97):
        assert len({node.zone for node in ring.primaries(part)}) == 3
    texts = {Path(node.path("etc", "keelstore.conf")).read_text() for node in layout.nodes}
    assert len(texts) == 1


def test_a_file_that_an_operator_has_changed_is_left_alone_and_the_others_follow(tmp_path: Path) -> None:
    layout = fresh(tmp_path / "store")
    generate.prepare(layout)
    etc = tmp_path / "store" / "node1" / "etc"
    ring = (etc / "object.ring.gz").read_bytes()
    (etc / "object-server.conf").write_text("# mine\n")
    again = Layout.open(layout.root)
    again.settings = replace(again.settings, test_users=True, workers=3)
    assert generate.prepare(again) == [str(etc / "object-server.conf")]
    assert (etc / "object-server.conf").read_text() == "# mine\n"
    assert "workers = 3" in (etc / "node.conf").read_text() and "user_test_tester" in (etc / "proxy-server.conf").read_text()
    assert (etc / "object.ring.gz").read_bytes() == ring
    assert generate.prepare(Layout.open(layout.root)) == [str(etc / "object-server.conf")]


def test_advice_names_the_command_as_it_was_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KEELSTORE_COMMAND", raising=False)
    assert command_name() == "keelstore"
    monkeypatch.setenv("KEELSTORE_COMMAND", "bin/keelstore")
    assert command_name() == "bin/keelstore"


def test_any_policy_is_the_default(tmp_path: Path) -> None:
    layout = fresh(tmp_path / "data", default_policy="ec42")
    generate.prepare(layout)
    cluster = load_cluster(str(tmp_path / "data" / "node1" / "etc"))
    assert [policy.name for policy in cluster.policies if policy.is_default] == ["ec42"]
    assert Layout.open(layout.root).settings.default_policy == "ec42"
