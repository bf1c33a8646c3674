"""max_clients by the limit of open files."""

from __future__ import annotations

import os
import resource
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from keelstore.common.errors import ConfigError
from keelstore.common.httpserver import MAX_CLIENTS, ServerOptions
from keelstore.node import descriptors
from test.support.processes import ROOT
from test.unit.node.test_supervisor import Group


class Service(SimpleNamespace):
    pass


@pytest.fixture(autouse=True)
def plain_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of loaded configurations."""
    monkeypatch.setattr(descriptors, "replace", lambda value, **changes: type(value)(**{**vars(value), **changes}))


def program(**clients: int | None) -> Any:
    return SimpleNamespace(services=tuple(
        Service(kind=kind, addresses=(("127.0.0.1", 1),), connections=ServerOptions(max_clients=count), config=SimpleNamespace(path=f"{kind}.conf"))
        for kind, count in clients.items()))


def of(found: Any) -> list[int | None]:
    return [service.connections.max_clients for service in found.services]


def test_ample_limit_gives_the_usual_number() -> None:
    node = program(proxy=None, object=None, container=None, account=None)
    assert of(descriptors.fit(node, descriptors.wanted(node))) == [MAX_CLIENTS] * 4


def test_lower_limit_gives_fewer_and_what_is_chosen_stays() -> None:
    found = of(descriptors.fit(program(proxy=None, object=None, container=300), 4096))
    assert found[2] == 300 and found[0] == found[1] is not None and 16 <= found[0] < MAX_CLIENTS
    assert descriptors.BASE + found[0] * (descriptors.PROXY + descriptors.STORAGE) + 300 * descriptors.LEAST <= 4096


def test_swift_number_on_a_server_of_its_own_with_the_limit_of_old() -> None:
    assert of(descriptors.fit(program(object=1024), 4096)) == [1024]


@pytest.mark.parametrize("clients,limit,value", [(5000, 4096, "'5000'"), (None, 600, "'auto'")])
def test_too_few_are_an_error_that_names_the_option(clients: int | None, limit: int, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"^proxy.conf \[DEFAULT\] max_clients = {value}: the limit of open files is {limit}, and \d+ are needed"):
        descriptors.fit(program(proxy=clients), limit)


def test_a_node_says_so_and_does_not_start(tmp_path: Path) -> None:
    group = Group(tmp_path)
    config = (tmp_path / "app.conf").read_text().replace("[DEFAULT]", "[DEFAULT]\nmax_clients = 2000")
    (tmp_path / "app.conf").write_text(config)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))

    for arguments in ((), ("-t",)):
        done = subprocess.run(group.command(*arguments), capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
                              preexec_fn=limit, timeout=120)
        assert done.returncode == 1, done
        assert "max_clients = '2000': the limit of open files is 1024" in done.stderr
        assert "Traceback" not in done.stderr
