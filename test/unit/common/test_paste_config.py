"""Configuration files to sections, sections to components."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keelstore.common.errors import ConfigError
from keelstore.common.paste_config import component, config_files, pipeline_of, read_config


def written(tmp_path: Path, text: str, name: str = "x.conf") -> str:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return str(path)


def app_factory(global_conf: dict[str, str], **local_conf: str) -> Any:
    return global_conf, local_conf


def filter_factory(global_conf: dict[str, str], **local_conf: str) -> Callable[[Any], Any]:
    return lambda app: ("filter", local_conf, app)


def filter_app_factory(app: Any, global_conf: dict[str, str], **local_conf: str) -> Any:
    return "filter_app", local_conf, app


ME = __name__


def test_option_names_keep_their_case_and_defaults_are_inherited(tmp_path: Path) -> None:
    config = read_config(written(tmp_path, "[DEFAULT]\nDevices = /srv\n[object-replicator]\nInterval=3\n"))
    merged = config.merged("object-replicator")
    assert (merged["Devices"], merged["Interval"]) == ("/srv", "3")
    assert merged["__file__"] == str(tmp_path / "x.conf") and merged["here"] == str(tmp_path)


def test_references_are_replaced_only_where_a_value_holds_one(tmp_path: Path) -> None:
    config = read_config(written(tmp_path, "[DEFAULT]\nswift_dir = %(here)s/etc\nplain = 100% of %s\n[a]\nb = %(c)s!\nc = %(swift_dir)s\n"))
    assert config.defaults["swift_dir"] == f"{tmp_path}/etc"
    assert config.defaults["plain"] == "100% of %s"
    assert config.sections["a"]["b"] == f"{tmp_path}/etc!"


@pytest.mark.parametrize("text,says", [
    ("[a]\nb = %(nope)s\n", "no option 'nope'"),
    ("[a]\nb = %(b)s\n", "references itself"),
    ("b = 1\n", "cannot be read"),
    ("[a\n", "cannot be read"),
])
def test_a_bad_file_is_told_in_one_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        read_config(written(tmp_path, text))
    assert "\n" not in str(caught.value) and "x.conf" in str(caught.value)


def test_a_directory_is_read_in_order_of_name_as_one(tmp_path: Path) -> None:
    written(tmp_path, "[DEFAULT]\nlevel = 1\n[a]\nb = 1\n", "d.conf.d/10.conf")
    written(tmp_path, "[DEFAULT]\nlevel = 2\n[a]\nc = 3\n", "d.conf.d/20.conf")
    written(tmp_path, "[DEFAULT]\nlevel = 3\n", "d.conf.d/.hidden.conf")
    written(tmp_path, "[DEFAULT]\nlevel = 4\n", "d.conf.d/30.conf.bak")
    config = read_config(str(tmp_path / "d.conf.d"))
    assert config.defaults["level"] == "2" and config.sections["a"] == {"b": "1", "c": "3"}
    assert config.here == str(tmp_path / "d.conf.d")


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unable to locate"):
        config_files(str(tmp_path / "none.conf"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"no \*\.conf file"):
        config_files(str(tmp_path / "empty"))
    with pytest.raises(ConfigError, match=r"Unable to find object-auditor config section in .*x\.conf"):
        read_config(written(tmp_path, "[a]\n")).merged("object-auditor")


def test_a_default_wins_over_a_plain_option_and_set_wins_over_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As PasteDeploy's manual has it, surprising as it is; we say so."""
    text = f"[DEFAULT]\nn1 = g\nn2 = g\nn3 = g\n[app:m]\npaste.app_factory = {ME}:app_factory\nn2 = l\nset n3 = l\nset n5 = l\nn6 = l\nget n7 = n1\n"
    with caplog.at_level(logging.WARNING, "keelstore.config"):
        logging.getLogger("keelstore").propagate = True
        found = component(read_config(written(tmp_path, text)), "app", "m")
    global_conf, local_conf = found.build()
    assert {name: global_conf.get(name) for name in ("n1", "n2", "n3", "n5")} == {"n1": "g", "n2": "g", "n3": "l", "n5": "l"}
    assert local_conf == {"n6": "l", "n7": "g", "__name__": "m"}
    assert "write 'set n2 = l'" in caplog.text


def test_every_way_to_name_a_factory(tmp_path: Path) -> None:
    text = f"""
[pipeline:main]
pipeline = ours a b c app
[app:app]
paste.app_factory = {ME}:app_factory
[filter:ours]
use = egg:swift#healthcheck
[filter:a]
paste.filter_factory = {ME}:filter_factory
x = 1
[filter:b]
paste.filter_app_factory = {ME}:filter_app_factory
[filter:c]
use = a
x = 2
"""
    filters, app = pipeline_of(read_config(written(tmp_path, text)))
    assert [entry.entry for entry in filters] == ["healthcheck", "a", "b", "c"] and app.entry == "app"
    assert filters[0].is_ours and not filters[1].is_ours
    assert filters[1].build()("next")[:2] == ("filter", {"x": "1", "__name__": "a"})
    assert filters[2].build()("next")[0] == "filter_app"
    assert filters[3].build()("next")[1]["x"] == "2"


def test_a_filter_of_another_distribution_is_loaded_by_pastedeploy(tmp_path: Path) -> None:
    text = f"[pipeline:main]\npipeline = other app\n[app:app]\npaste.app_factory = {ME}:app_factory\n[filter:other]\nuse = egg:PasteDeploy#prefix\nprefix = /p\n"
    filters, _ = pipeline_of(read_config(written(tmp_path, text)))
    made = filters[0].build()
    assert callable(made)
    filters, _ = pipeline_of(read_config(written(tmp_path, text.replace("egg:PasteDeploy#prefix", "egg:NoSuchThing#prefix"))))
    with pytest.raises(ConfigError, match=r"\[filter:other\] use = 'egg:NoSuchThing#prefix': cannot be loaded"):
        filters[0].build()


@pytest.mark.parametrize("sections,says", [
    ("", "Unable to find pipeline:main config section"),
    ("[pipeline:main]\npipeline =\n", "expected the names of filters and of one app"),
    ("[pipeline:main]\npipeline = nope\n", r"no \[app:nope\] section"),
    ("[pipeline:main]\npipeline = proxy-server cache\n[app:proxy-server]\nuse = egg:swift#proxy\n[filter:cache]\nuse = egg:swift#memcache\n",
     "the app stands last"),
    ("[pipeline:main]\npipeline = a\n[app:a]\nuse = egg:swift#proxi\n", "did you mean proxy"),
    ("[pipeline:main]\npipeline = a\n[app:a]\nuse = egg:swift#zzz\n", "known are: account, container, object, proxy"),
    ("[pipeline:main]\npipeline = a\n[app:a]\nx = 1\n", "expected an option 'use'"),
    ("[pipeline:main]\npipeline = a\n[app:a]\nuse = nonsense\n", "expected egg:"),
    ("[pipeline:main]\npipeline = a\n[app:a]\nuse = b\n[app:b]\nuse = a\n", "uses itself"),
    ("[pipeline:main]\npipeline = a\n[app:a]\npaste.app_factory = no.such.module:f\n", "cannot be loaded"),
    ("[composite:main]\nuse = egg:Paste#urlmap\n", "composite sections are not supported"),
])
def test_a_bad_pipeline_is_told_in_one_line(tmp_path: Path, sections: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        pipeline_of(read_config(written(tmp_path, sections)))
    assert "x.conf" in str(caught.value) and "\n" not in str(caught.value)
