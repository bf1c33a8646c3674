import logging
from dataclasses import dataclass

import pytest

from keelstore.common.errors import ConfigError
from keelstore.common.options import document, not_negative, one_of, option, parse, port_number, positive, unused


@dataclass(frozen=True)
class Sample:
    devices: str = option("/srv/node", "Where.")
    node_timeout: float = option(3.0, "Seconds.", check=positive)
    workers: int | None = option(None, "Processes; auto is one per core.", check=not_negative)
    mount_check: bool = option(True, "Check.")
    hosts: tuple[str, ...] = option((), "Names.")
    digests: tuple[str, ...] = option(("a",), "Names.", separator=" ")
    sorting_method: str = option("shuffle", "How.", check=one_of("shuffle", "timing"))
    bind_port: int = option(1, "Port.", check=port_number)
    old_period: float = unused(5.0, "nothing waits.", check=positive)


def test_defaults_and_types():
    found = parse(Sample, {"node_timeout": "0.5", "workers": "4", "mount_check": "off", "hosts": "a, b,", "digests": "x y"})
    assert found == Sample(node_timeout=0.5, workers=4, mount_check=False, hosts=("a", "b"), digests=("x", "y"))
    assert parse(Sample, {"workers": "auto"}).workers is None


@pytest.mark.parametrize(
    ("name", "value"),
    [("node_timeout", "soon"), ("node_timeout", "0"), ("workers", "two"), ("workers", "-1"), ("mount_check", "maybe"),
     ("sorting_method", "best"), ("bind_port", "70000"), ("bind_port", "")],
)
def test_a_bad_value_names_file_section_option_value_and_expectation(name, value):
    with pytest.raises(ConfigError) as caught:
        parse(Sample, {name: value}, section="app:x", file="/etc/x.conf")
    text = str(caught.value)
    assert "/etc/x.conf" in text and "[app:x]" in text and name in text and repr(value) in text and "expected" in text


def test_an_unknown_option_is_warned_of_with_the_nearest_name(caplog):
    with caplog.at_level(logging.WARNING, "keelstore.config"):
        parse(Sample, {"node_timeot": "3", "log_name": "x"}, section="s", local=["node_timeot", "log_name"], known=["log_*"])
    assert len(caplog.records) == 1
    assert "node_timeot" in caplog.text and "did you mean node_timeout?" in caplog.text


def test_an_option_without_effect_is_told_of_once(caplog):
    with caplog.at_level(logging.WARNING, "keelstore.config"):
        for _ in range(2):
            parse(Sample, {"old_period": "7"}, section="s", file="/once.conf", local={"old_period": "7"})
        parse(Sample, {"old_period": "5"}, section="s", file="/default.conf", local=["old_period"])
        parse(Sample, {"old_period": "7"}, section="s", file="/inherited.conf", local=[])
    assert [record.getMessage() for record in caplog.records] == ["/once.conf [s]: option old_period has no effect: nothing waits."]
    with pytest.raises(ConfigError):
        parse(Sample, {"old_period": "0"})
    assert {doc.name: doc.help for doc in document(Sample)}["old_period"] == "Accepted, without effect: nothing waits."


def test_documentation_comes_from_the_fields():
    docs = {doc.name: doc for doc in document(Sample)}
    assert docs["mount_check"].default == "true" and docs["workers"].default == "auto" and docs["node_timeout"].default == "3"
