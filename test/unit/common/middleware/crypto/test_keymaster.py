"""The keymaster's configuration, and what it gives to requests."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from keelstore.common.errors import ConfigError
from keelstore.common.http import Response
from keelstore.common.middleware.crypto.keymaster import KeyMaster, filter_factory
from keelstore.common.middleware.crypto.keys import CALLBACK, derive
from keelstore.common.registry import forget_all, registered
from test.unit.common.middleware.crypto.helpers import OTHER, ROOT, ROOT_OPTION
from test.unit.common.middleware.helpers import Inner, call

OTHER_OPTION = b64encode(OTHER).decode()


def made(**options: str) -> KeyMaster:
    return filter_factory({}, **options)(Inner(status=200))


def callback(app: Any, method: str = "GET", path: str = "/v1/a/c/o", **extra: Any) -> Any:
    asked = {}

    def inner(environ: Any, start_response: Any) -> Any:
        asked.update(environ)
        return Response(200)(environ, start_response)

    app.app = inner
    call(app, method, path, **extra)
    return asked.get(CALLBACK)


def test_a_secret() -> None:
    found = callback(made(encryption_root_secret=ROOT_OPTION))()
    assert found["object"] == derive(ROOT, b"/a/c/o") and found["id"] == {"v": "2", "path": "/a/c/o"}


def test_secrets_with_ids() -> None:
    app = made(encryption_root_secret=ROOT_OPTION, encryption_root_secret_new_one=OTHER_OPTION, active_root_secret_id="new_one",
               meta_version_to_write="3")
    found = callback(app)()
    assert found["object"] == derive(OTHER, b"/a/c/o")
    assert found["all_ids"] == [{"v": "3", "path": "/a/c/o", "secret_id": "new_one"}, {"v": "3", "path": "/a/c/o"}]


def test_a_secret_may_be_longer_and_broken_over_lines() -> None:
    long = b64encode(bytes(range(100))).decode()
    assert made(encryption_root_secret=f"{long[:60]}\n{long[60:]}").secrets.by_id == {None: bytes(range(100))}


def test_keys_that_s3_clients_may_name() -> None:
    forget_all()
    made(encryption_root_secret=ROOT_OPTION, encryption_root_secret_a=OTHER_OPTION, encryption_root_secret_b=OTHER_OPTION, kms_keys="a, b")
    assert (registered("keymaster") or {})["kms_keys"] == ["a", "b"]
    made(encryption_root_secret=ROOT_OPTION)  # another in the pipeline
    assert (registered("keymaster") or {})["kms_keys"] == ["a", "b"]
    forget_all()
    made(encryption_root_secret=ROOT_OPTION)
    assert (registered("keymaster") or {})["kms_keys"] == []


@pytest.mark.parametrize(("options", "words"), [
    ({}, "no root secret"),
    ({"encryption_root_secret": ""}, "no root secret"),
    ({"encryption_root_secret": "c2VjcmV0c2VjcmV0"}, "at least 32 raw bytes"),
    ({"encryption_root_secret": ROOT_OPTION + "!"}, "at least 32 raw bytes"),
    ({"encryption_root_secret": ROOT_OPTION[:-2]}, "at least 32 raw bytes"),
    ({"encryption_root_secret": ROOT_OPTION, "encryption_root_secret_b": "c2VjcmV0"}, "encryption_root_secret_b"),
    ({"encryption_root_secret": ROOT_OPTION, "encryption_root_secret_": OTHER_OPTION}, "an id must follow"),
    ({"encryption_root_secret": ROOT_OPTION, "active_root_secret_id": "b"}, "encryption_root_secret_b"),
    ({"encryption_root_secret_b": ROOT_OPTION}, "no root secret"),
    ({"encryption_root_secret": ROOT_OPTION, "meta_version_to_write": "4"}, "one of 1, 2, 3"),
    ({"encryption_root_secret": ROOT_OPTION, "kms_keys": "b"}, "encryption_root_secret_b"),
    ({"keymaster_config_path": "/nonexistent"}, "unable to locate"),
    ({"keymaster_config_path": "/x", "encryption_root_secret": ROOT_OPTION}, "encryption_root_secret"),
    ({"keymaster_config_path": "/x", "meta_version_to_write": "3"}, "meta_version_to_write"),
])
def test_what_stops_the_start(options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        made(**options)
    assert words in str(caught.value)
    assert not [text for text in (ROOT_OPTION, OTHER_OPTION, "c2VjcmV0") if text in str(caught.value)]


def test_a_file_of_its_own(tmp_path: Path, caplog: Any) -> None:
    path = tmp_path / "keymaster.conf"
    path.write_text(f"[keymaster]\nencryption_root_secret_x = {ROOT_OPTION}\nactive_root_secret_id = x\nmeta_version_to_write = 3\n")
    app = made(keymaster_config_path=str(path))
    assert (app.secrets.by_id, app.secrets.active, app.secrets.version) == ({"x": ROOT}, "x", "3")
    assert made(keymaster_config_path=str(tmp_path)).secrets.active == "x"
    for text, words in (("[other]\na = b\n", "keymaster"), (f"[keymaster]\nencryption_root_secret {ROOT_OPTION}\n", "expected ="),
                        (f"[keymaster]\nencryption_root_secret_b {ROOT_OPTION}\n", "expected ="),
                        (f"[keymaster]\nencryption_root_secret {ROOT_OPTION[:-1]}\n", "no configuration file"), ("[keymaster]\nencryption_root_secret = x\n", "[keymaster] encryption_root_secret")):
        path.write_text(text)
        with pytest.raises(ConfigError) as caught:
            made(keymaster_config_path=str(path))
        assert words in str(caught.value) and str(path) in str(caught.value) and ROOT_OPTION not in str(caught.value)
    assert ROOT_OPTION[:-1] not in caplog.text


@pytest.mark.parametrize(("method", "path", "has"), [
    ("GET", "/v1/a/c/o", True), ("PUT", "/v1/a/c/o", True), ("POST", "/v1/a/c", True), ("HEAD", "/v1/a", True),
    ("DELETE", "/v1/a/c/o", False), ("OPTIONS", "/v1/a/c/o", False), ("GET", "/info", False), ("GET", "/", False),
])
def test_which_requests_get_keys(method: str, path: str, has: bool) -> None:
    assert (callback(made(encryption_root_secret=ROOT_OPTION), method, path) is not None) is has


def test_two_keymasters() -> None:
    inner = made(encryption_root_secret_new=OTHER_OPTION, active_root_secret_id="new")
    outer = filter_factory({}, encryption_root_secret=ROOT_OPTION)(inner)
    asked = {}

    def app(environ: Any, start_response: Any) -> Any:
        asked.update(environ)
        return Response(200)(environ, start_response)

    inner.app = app
    call(outer, "GET", "/v1/a/c/o")
    assert asked[CALLBACK]()["object"] == derive(OTHER, b"/a/c/o")
    assert asked[CALLBACK](key_id={"v": "2", "path": "/a/c/o"})["object"] == derive(ROOT, b"/a/c/o")


def test_security_S09_secrets_are_not_shown() -> None:
    app = made(encryption_root_secret=ROOT_OPTION)
    assert ROOT_OPTION not in repr(vars(app)) and repr(ROOT) not in repr(vars(app))
