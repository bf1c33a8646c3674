"""Keys and their ids."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common.middleware.crypto.keys import KeySource, RootSecrets, UnknownKey, derive

ONE, TWO = bytes(range(32)), bytes(range(1, 33))
AUMLAUT = "\xc3\xa4"  # as WSGI has it


def source(account: str = "a", container: str = "c", obj: str = "o", outer: Any = None, **kwargs: Any) -> KeySource:
    kwargs.setdefault("by_id", {None: ONE})
    return KeySource(RootSecrets(**kwargs), account, container, obj, outer)


def test_what_an_object_is_written_with() -> None:
    own = {"v": "2", "path": "/a/c/o"}
    assert source()() == {"container": derive(ONE, b"/a/c"), "object": derive(ONE, b"/a/c/o"), "id": own, "all_ids": [own]}


def test_a_container_has_no_object_key() -> None:
    own = {"v": "2", "path": "/a/c"}
    assert source(obj="")() == {"container": derive(ONE, b"/a/c"), "id": own, "all_ids": [own]}
    assert source(container="", obj="")() == {}


def test_rotation_writes_with_the_active_secret_and_reads_with_all() -> None:
    found = source(by_id={None: ONE, "new": TWO}, active="new")
    own, old = {"v": "2", "path": "/a/c/o", "secret_id": "new"}, {"v": "2", "path": "/a/c/o"}
    assert (found()["id"], found()["all_ids"]) == (own, [own, old])
    assert found()["object"] == derive(TWO, b"/a/c/o")
    assert found(key_id=old)["object"] == derive(ONE, b"/a/c/o")
    assert found(key_id=own) == found()


def test_an_outer_keymaster_is_asked_for_unknown_secrets() -> None:
    wanted = {"v": "2", "path": "/a/c/o", "secret_id": "old"}
    with pytest.raises(UnknownKey):
        source()(key_id=wanted)
    with pytest.raises(UnknownKey):
        source(obj="").container_key(wanted)
    outer = source(by_id={"old": TWO}, active="old")
    assert source(outer=outer)(key_id=wanted)["object"] == derive(TWO, b"/a/c/o")
    assert source(obj="", outer=outer).container_key(wanted) == derive(TWO, b"/a/c")


@pytest.mark.parametrize(("version", "obj", "path"), [
    ("1", AUMLAUT, "/a/c/\xc3\xa4"), ("2", AUMLAUT, "/a/c/\xc3\xa4"), ("3", AUMLAUT, "/a/c/ä"),
    ("1", "/o", "/o"), ("2", "/o", "/a/c//o"), ("3", "/o", "/a/c//o"),
])
def test_paths_as_versions_spell_them(version: str, obj: str, path: str) -> None:
    found = source(obj=obj, version=version)
    assert found()["id"] == {"v": version, "path": path}
    assert found(key_id=found()["id"]) == found()


@given(st.sampled_from("123"), st.text(min_size=1), st.text(min_size=1))
def test_an_id_that_was_written_finds_the_keys_again(version: str, container: str, obj: str) -> None:
    container, obj = container.replace("/", "-").encode("utf-8", "replace").decode("latin-1"), obj.encode("utf-8", "replace").decode("latin-1")
    found = source(container=container, obj=obj, version=version)
    assert found(key_id=found()["id"]) == found()
    assert source(container=container, obj="").container_key(found()["id"]) == found()["container"]


def test_case_C17_ids_that_python_2_wrote_are_read() -> None:
    found = source(obj=AUMLAUT)
    assert found(key_id={"v": "2", "path": "/a/c/ä"})["object"] == found()["object"]
    container = source(container=AUMLAUT, obj="")
    assert container.container_key({"v": "2", "path": "/a/ä/o"}) == derive(ONE, "/a/ä".encode())
    tricky = source(obj="\xc3\x83\xc2\xa4")  # the text Ã¤, whose characters are octets of UTF-8 too
    assert tricky(key_id={"v": "2", "path": "/a/c/Ã¤"})["object"] == tricky()["object"]


def test_the_path_of_the_id_counts_not_that_of_the_request() -> None:
    moved = {"v": "2", "path": "/b/d/x/y"}
    assert source()(key_id=moved)["object"] == derive(ONE, b"/b/d/x/y")
    assert source()(key_id=moved)["container"] == derive(ONE, b"/b/d")
    assert source(obj="").container_key(moved) == derive(ONE, b"/b/d")


def test_a_path_of_version_1_that_is_a_name_alone_belongs_to_the_requests_container() -> None:
    wanted = {"v": "1", "path": "/x/y/z"}
    assert source(obj="").container_key(wanted) == derive(ONE, b"/a/c")
    assert source(obj="/x/y/z")(key_id=wanted)["object"] == derive(ONE, b"/x/y/z")
    assert {"v": "1", "path": "/x/y/z"} in source(obj="/x/y/z")()["all_ids"]


@pytest.mark.parametrize("bad", [
    {}, {"v": "9", "path": "/a/c/o"}, {"v": "2"}, {"v": "2", "path": 3}, {"v": "2", "path": "a/c/o"}, {"v": ["2"], "path": "/a"},
    {"v": "2", "path": "/a/c/o", "secret_id": []}, {"v": "2", "path": "/b"},
])
def test_what_is_no_key_id(bad: Any) -> None:
    with pytest.raises(UnknownKey):
        source()(key_id=bad)
    with pytest.raises(UnknownKey):
        source(obj="").container_key(bad)


def test_secrets_are_not_shown() -> None:
    assert ONE.hex()[:8] not in repr(RootSecrets({None: ONE})) and "by_id" not in repr(RootSecrets({None: ONE}))
