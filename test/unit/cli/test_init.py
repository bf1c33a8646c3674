"""keelstore-init: a set of servers by their configuration files."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from keelstore.cli import generate, init
from keelstore.cli.layout import Layout, Settings
from keelstore.common import daemon
from test.support.processes import ROOT
from test.support.store import free_port
from test.support.waiting import until


@pytest.mark.parametrize("words,expected", [
    (["main"], list(init.MAIN)), (["all"], [*init.MAIN, *init.DAEMONS]), (["rest"], list(init.DAEMONS)),
    (["proxy"], ["proxy-server"]), (["object-server", "object"], ["object-server"]), (["object-s*"], ["object-server"]),
    (["nonsense", "object-fridge"], []), (["object-updater"], ["object-updater"]),
])
def test_names(words: list[str], expected: list[str]) -> None:
    assert [name for name, _ in init.servers_of(words)] == expected


def test_configurations_of_a_server(tmp_path: Path) -> None:
    for name in ("object-server/1.conf", "object-server/2.conf", "object-server/notes.txt", "proxy-server.conf", "object-expirer.conf",
                 "account-server.conf.d/10.conf"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    assert init.configurations(str(tmp_path), "object-server") == [str(tmp_path / "object-server" / f"{n}.conf") for n in (1, 2)]
    assert init.configurations(str(tmp_path), "account-server") == [str(tmp_path / "account-server.conf.d")]
    (unit,) = init.units_of("object-server", "2", str(tmp_path), "/run")
    assert unit.pid_file == "/run/object-server-2.pid"


def test_configurations_of_a_daemon(tmp_path: Path) -> None:
    for name, text in (("object-server/1.conf", "[object-updater]\n"), ("object-server/2.conf", ""), ("object-expirer.conf", "[object-expirer]\n")):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    (unit,) = init.units_of("object-updater", None, str(tmp_path), "/run")
    assert (unit.conf, unit.pid_file) == (str(tmp_path / "object-server" / "1.conf"), "/run/object-updater-1.pid")
    assert init.configurations(str(tmp_path), "object-expirer") == [str(tmp_path / "object-expirer.conf")]
    assert init.configurations(str(tmp_path), "account-reaper") == []


class Init:
    def __init__(self, root: Path):
        layout = Layout(str(root / "store"), replace(Settings.fresh("127.0.0.1", free_port(), 1), workers=1))
        (root / "store").mkdir()
        generate.prepare(layout)
        self.run_dir, self.etc = root / "run", layout.node(1).path("etc")
        for kind in ("proxy", "account", "container", "object"):
            path = Path(self.etc) / f"{kind}-server.conf"
            path.write_text(path.read_text().replace("[DEFAULT]", "[DEFAULT]\nworkers = 1"))

    def __call__(self, *arguments: str) -> tuple[int, str]:
        done = subprocess.run([sys.executable, "-m", "keelstore.cli.init", *arguments, "-r", str(self.run_dir), "--conf-dir", self.etc],
                              capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": str(ROOT)})
        return done.returncode, done.stdout + done.stderr

    def pid(self, server: str) -> int | None:
        return daemon.holder_of(str(self.run_dir / f"{server}.pid"))


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Init]:
    run = Init(tmp_path)
    yield run
    run("all", "kill")


def test_start_status_reload_restart_stop(run: Init) -> None:
    assert run("container", "status") == (1, "No container-server running\n")
    code, text = run("container", "object", "start")
    assert code == 0 and f"Starting container-server...({run.etc}/container-server.conf)" in text
    pid = run.pid("container-server")
    assert run("container", "status") == (0, f"container-server running ({pid} - {run.etc}/container-server.conf)\n")
    code, text = run("container", "start")
    assert code == 1 and "container-server already started..." in text
    assert run("container", "reload")[0] == 0 and run.pid("container-server") == pid
    code, text = run("container", "restart")
    assert code == 0 and f"container-server ({pid}) appears to have stopped" in text
    assert run.pid("container-server") not in (pid, None)
    code, text = run("all", "stop")
    assert code == 0 and "No proxy-server running" in text
    until(lambda: run.pid("object-server") is None, "it is gone")


def test_a_server_that_does_not_start_and_a_reload_that_would_not(run: Init) -> None:
    assert run("object", "start")[0] == 0
    conf = Path(run.etc) / "object-server.conf"
    good = conf.read_text()
    conf.write_text(good.replace("use = egg:keelstore#object", "use = egg:keelstore#objekt"))
    code, text = run("object", "reload")
    assert code == 1 and "object-server is not reloaded: Error: " in text and "did you mean object" in text
    assert run.pid("object-server") is not None
    code, text = run("object", "restart")
    assert code == 1 and "object-server did not start: Error: " in text


def test_a_missing_configuration(run: Init) -> None:
    (Path(run.etc) / "object-server.conf").unlink()
    assert run("object", "start") == (1, "Unable to locate config for object-server\n")
    assert run("nonsense", "start")[0] == 1


def test_a_daemon_is_started_and_stopped_and_makes_one_pass(tmp_path: Path) -> None:
    run = Init(tmp_path)
    try:
        code, text = run("object-updater", "start")
        assert code == 0 and "Starting object-updater" in text
        first = run.pid("object-updater")
        assert first and run("object-updater", "status")[0] == 0
        assert run("object-updater", "start")[0] == 1
        code, text = run("object-updater", "reload", "-k", "90")
        assert code == 0, text
        assert run.pid("object-updater") not in (None, first)
        code, text = run("object-updater", "stop", "-k", "90")
        assert code == 0 and run.pid("object-updater") is None, text
        code, text = run("object-updater", "container-updater", "start", "--once")
        assert code == 0, text
        until(lambda: run.pid("object-updater") is None and run.pid("container-updater") is None, "both passes have ended")
        assert (Path(run.etc).parent / "cache" / "daemons.recon").exists()
    finally:
        run("rest", "kill")
