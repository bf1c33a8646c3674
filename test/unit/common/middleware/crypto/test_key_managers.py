"""The keymasters whose secrets are elsewhere; stand-ins take the place of the libraries, which are extras."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from keelstore.common.errors import ConfigError
from keelstore.common.middleware.crypto import kmip_keymaster, kms_keymaster
from test.unit.common.middleware.crypto.helpers import OTHER, ROOT
from test.unit.common.middleware.helpers import Inner

CASTELLAN = ("castellan", "castellan.common", "castellan.common.credentials", "castellan.common.credentials.keystone_password",
             "oslo_config")
KMIP = ("kmip", "kmip.pie", "kmip.pie.client")


def module(monkeypatch: Any, name: str, **members: Any) -> None:
    made = ModuleType(name)
    vars(made).update(members)
    monkeypatch.setitem(sys.modules, name, made)


def kms_key(algorithm: Any = "AES", bits: Any = 256, form: Any = "RAW", secret: Any = ROOT) -> Any:
    return SimpleNamespace(algorithm=algorithm, bit_length=bits, format=form, get_encoded=lambda: secret)


class Manager:
    def __init__(self, **keys: Any):
        self.keys = keys

    def get(self, _context: Any, key_id: str) -> Any:
        return self.keys[key_id]


@pytest.fixture
def castellan(monkeypatch: Any) -> dict[str, Any]:
    """What the stand-ins are told; its ``manager`` answers."""
    told: dict[str, Any] = {"manager": Manager(one=kms_key(), two=kms_key(secret=OTHER, bits=512, algorithm="aes", form="raw"))}

    class Conf:
        def __call__(self, *_args: Any, **_kwargs: Any) -> None:
            pass

        def set_override(self, name: str, value: str, group: str) -> None:
            told[name] = value

    module(monkeypatch, "oslo_config", cfg=SimpleNamespace(ConfigOpts=Conf, Error=LookupError))
    options = SimpleNamespace(set_defaults=lambda _conf, **values: told.update(defaults=values))
    module(monkeypatch, "castellan", key_manager=SimpleNamespace(API=lambda _conf: told["manager"]), options=options)
    module(monkeypatch, "castellan.common")
    password = SimpleNamespace(KeystonePassword=lambda **values: told.update(credentials=values))
    module(monkeypatch, "castellan.common.credentials", keystone_password=password)
    return told


def test_secrets_from_a_key_manager(castellan: dict[str, Any]) -> None:
    app = kms_keymaster.filter_factory({}, key_id="one", key_id_b="two", active_root_secret_id="b", username="u", password="p",
                                       project_name="q", auth_endpoint="http://k/v3", barbican_region_name="r")(Inner())
    assert (app.secrets.by_id, app.secrets.active) == ({None: ROOT, "b": OTHER}, "b")
    assert castellan["defaults"] == {"auth_endpoint": "http://k/v3"} and castellan["barbican_region_name"] == "r"
    credentials = castellan["credentials"]
    assert (credentials["username"], credentials["password"], credentials["user_id"]) == ("u", "p", None)
    assert credentials["reauthenticate"] is True


@pytest.mark.parametrize("key", [
    kms_key(bits=128), kms_key("DES"), kms_key(form="X.509"), kms_key(secret=b"short"), kms_key(secret=None), kms_key(None, None, None),
])
def test_keys_of_a_key_manager_that_will_not_do(castellan: dict[str, Any], key: Any) -> None:
    castellan["manager"] = Manager(bad=key)
    for key_id in ("bad", "absent"):
        with pytest.raises(ConfigError) as caught:
            kms_keymaster.filter_factory({}, key_id=key_id, password="pass" + "word")
        assert "key_id" in str(caught.value) and "password" not in str(caught.value)


def test_a_file_for_the_key_manager(castellan: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "kms.conf"
    path.write_text("[kms_keymaster]\nkey_id = one\npassword = p\nusername = u\n")
    assert kms_keymaster.filter_factory({}, keymaster_config_path=str(path))(Inner()).secrets.by_id == {None: ROOT}
    assert castellan["credentials"]["password"] == "p"
    for other in ({"password": "p"}, {"username": "u"}, {"key_id_b": "two"}):
        with pytest.raises(ConfigError, match="other config options"):
            kms_keymaster.filter_factory({}, keymaster_config_path=str(path), **other)


class Client:
    """KMIP's, as far as it is used."""

    def __init__(self, **settings: Any):
        self.settings, self.is_open, self.was_open = settings, False, False
        self.keys: dict[str, Any] = {"one": self.key(), "short": self.key(bits=128), "other": self.key("TRIPLE_DES"),
                                     "odd": self.key(value=b"x")}

    @staticmethod
    def key(algorithm: str = "AES", bits: int = 256, value: bytes = ROOT) -> Any:
        return SimpleNamespace(cryptographic_algorithm=SimpleNamespace(name=algorithm), cryptographic_length=bits, value=value)

    def open(self) -> None:
        if self.settings["hostname"] == "down":
            raise OSError("refused")
        self.is_open = self.was_open = True

    def close(self) -> None:
        self.is_open = False

    def get(self, key_id: str) -> Any:
        assert self.is_open
        return self.keys[key_id]


@pytest.fixture
def clients(monkeypatch: Any) -> list[Client]:
    made: list[Client] = []

    def client(**settings: Any) -> Client:
        made.append(Client(**settings))
        return made[-1]

    module(monkeypatch, "kmip")
    module(monkeypatch, "kmip.pie")
    module(monkeypatch, "kmip.pie.client", ProxyKmipClient=client)
    return made


def test_secrets_from_a_kmip_server(clients: list[Client], tmp_path: Path) -> None:
    app = kmip_keymaster.filter_factory({}, key_id="one", host="h", port="1234", certfile="c", password="p")(Inner())
    assert app.secrets.by_id == {None: ROOT}
    assert clients[0].was_open and not clients[0].is_open
    assert clients[0].settings == {"hostname": "h", "port": 1234, "cert": "c", "key": None, "ca": None, "username": None, "password": "p"}
    with pytest.raises(ConfigError, match="not a directory"):
        kmip_keymaster.filter_factory({}, keymaster_config_path=str(tmp_path))


@pytest.mark.parametrize("key_id", ["short", "other", "odd", "absent"])
def test_keys_of_a_kmip_server_that_will_not_do(clients: list[Client], key_id: str) -> None:
    with pytest.raises(ConfigError, match="key_id"):
        kmip_keymaster.filter_factory({}, key_id=key_id, host="h")
    assert not clients[0].is_open


def test_a_kmip_server_that_is_down(clients: list[Client]) -> None:
    with pytest.raises(ConfigError, match="down:5696 cannot be reached"):
        kmip_keymaster.filter_factory({}, key_id="one", host="down")


@pytest.mark.parametrize(("make", "names", "extra"), [
    (kms_keymaster.filter_factory, CASTELLAN, "keelstore[kms]"), (kmip_keymaster.filter_factory, KMIP, "keelstore[kmip]"),
])
def test_without_the_extra_the_message_says_what_to_install(monkeypatch: Any, make: Any, names: Any, extra: str) -> None:
    for name in names:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError) as caught:
        make({}, key_id="one")
    assert extra in str(caught.value)
