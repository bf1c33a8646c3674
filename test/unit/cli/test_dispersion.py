"""The dispersion tools: which names are made, what is counted, and both against a store."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.cli import dispersion, dispersion_populate, dispersion_report
from keelstore.cli.dispersion import Account, DispersionOptions, Retries, rounded
from keelstore.cli.dispersion_populate import names_to_make
from keelstore.cli.dispersion_report import Tally, missing_line
from keelstore.cli.layout import CommandError
from test.support.store import Store, running


@given(st.integers(0, 32), st.sets(st.integers(0, 63), max_size=32))
def test_each_name_has_a_partition_of_its_own(wanted: int, covered: set[int]) -> None:
    made = names_to_make("d_", wanted, lambda name: hash(int(name[2:]) * 7919) % 64, covered)
    parts = [hash(number * 7919) % 64 for number, _ in made]
    assert len(made) == wanted and len(set(parts)) == wanted and not set(parts) & covered
    assert [number for number, _ in made] == sorted(number for number, _ in made)


@pytest.mark.parametrize("lost,partitions,line", [
    (1, 1, "There was 1 partition missing 1 copy."), (1, 7, "There were 7 partitions missing 1 copy."),
    (2, 3, "! There were 3 partitions missing 2 copies."), (3, 2, "!!! There were 2 partitions missing all copies."),
    (0, 9, "There were 9 partitions missing 0 copies.")])
def test_lines_of_what_is_missing(lost: int, partitions: int, line: str) -> None:
    assert missing_line(lost, partitions, 3) == line


def test_a_tally() -> None:
    tally = Tally("object", 1024)
    for found in (3, 3, 2):
        tally.add(found, 3)
    assert tally.as_dict() == {"retries": 0, "overlapping": 0, "pct_found": pytest.approx(88.89, abs=0.01), "copies_found": 8,
                               "copies_expected": 9, "missing_0": 2, "missing_1": 1}
    tally = Tally("container", 1024)
    tally.add(3, 3)
    assert list(tally.lines()) == ["100.00% of container copies found (3 of 3)", "Sample represents 0.10% of the container partition space"]
    assert [rounded(seconds) for seconds in (3.4, 75, 7300)] == ["3s", "1m", "2h"]


class _Answers(BaseHTTPRequestHandler):
    """A proxy whose tokens are good for two requests."""

    protocol_version = "HTTP/1.1"
    given: ClassVar[dict[str, int]] = {}
    seen: ClassVar[list[str]] = []
    troubles: ClassVar[list[int]] = []

    def _answer(self, status: int, **headers: str) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(status)
        for name, value in {**headers, "Content-Length": "0"}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def do_GET(self) -> None:  # noqa: N802
        if self.headers["X-Auth-Key"] != "right":
            self.seen.append("refused")
            self._answer(401)
            return
        token = f"t{len(self.given)}"
        self.given[token] = 0
        host, port = self.server.server_address[:2]
        self._answer(200, X_Auth_Token=token, X_Storage_Url=f"http://{host!s}:{port}/v1/AUTH_a")

    def do_PUT(self) -> None:  # noqa: N802
        token = self.headers["X-Auth-Token"]
        self.given[token] += 1
        status = 401 if self.given[token] > 2 else self.troubles.pop() if self.troubles else 201
        self.seen.append(f"{self.path.rpartition('/')[2]} {token} {status}")
        self._answer(status)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def proxy() -> Iterator[str]:
    for kept in (_Answers.given, _Answers.seen, _Answers.troubles):
        kept.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/auth/v1.0"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_token_that_has_expired_is_renewed(proxy: str) -> None:
    retries = Retries(0)
    account = Account(DispersionOptions(auth_url=proxy, auth_key="right"), retries)
    for number in range(5):
        account.put(f"c{number}", body=b"x")
    assert _Answers.seen == ["c0 t0 201", "c1 t0 201", "c2 t0 401", "c2 t1 201", "c3 t1 201", "c4 t1 401", "c4 t2 201"] and retries.count == 0


def test_what_fails_is_repeated_and_what_is_refused_is_not(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispersion, "PAUSE_S", 0.001)
    retries, told = Retries(3), list[str]()
    account = Account(DispersionOptions(auth_url=proxy, auth_key="right"), retries)
    _Answers.troubles[:] = [503]
    account.put("c")
    assert retries.count == 1
    with pytest.raises(CommandError, match="no luck"):
        retries.run(lambda: int("x") if len(told) < 2 else (_ for _ in ()).throw(CommandError("no luck")), told.append)
    assert retries.count == 4 and len(told) == 3
    with pytest.raises(CommandError, match="authentication answers 401"):
        Account(DispersionOptions(auth_url=proxy, auth_key="wrong"), retries)
    assert _Answers.seen.count("refused") == 1


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with running(tmp_path_factory.mktemp("dispersion") / "data", workers=1) as store:
        yield store


@pytest.fixture(scope="module")
def conf(store: Store, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("conf") / "dispersion.conf"
    path.write_text(f"[dispersion]\nauth_url = http://127.0.0.1:{store.port}/auth/v1.0\nauth_user = test:tester\nauth_key = testing\n"
                    f"swift_dir = {store.etc()}\ndispersion_coverage = 1.0\nretries = 0\n")
    return str(path)


def report(conf: str, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    assert dispersion_report.main([*arguments, conf]) == 0
    out = capsys.readouterr()
    return out.out, out.err


def test_what_was_populated_is_found_and_what_is_lost_is_missed(store: Store, conf: str, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = report(conf, capsys)
    assert "No containers to query. Has keelstore-dispersion-populate been run?" in out
    assert dispersion_populate.main([conf]) == 0
    assert "Created 10 containers for dispersion reporting" in capsys.readouterr().out
    found = json.loads(report(conf, capsys, "-j")[0])
    assert found["object"]["pct_found"] == 100 and found["container"] == {
        "retries": 0, "overlapping": 0, "pct_found": 100.0, "copies_found": 30, "copies_expected": 30}
    lost = 0
    for device in list(store.devices().iterdir())[:3]:
        for part in (device / "objects").iterdir():
            if part.name.isdigit():
                lost += 1
                shutil.rmtree(part)
    out, err = report(conf, capsys, "-p", "--object-only")
    assert f"({30 - lost} of 30)" in out and "# Object partition" in err and "container" not in out
    assert dispersion_populate.main(["--no-overlap", "--container-only", conf]) == 0
    assert "Total container coverage is now 1.95%." in capsys.readouterr().out


def test_what_cannot_be_done_is_told_in_a_line(store: Store, conf: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.conf"
    text = Path(conf).read_text()
    for content, words in ((text.replace("testing", "wrong"), "authentication answers 401"), (text.replace("= 1.0", "= 200"), "percentage"),
                           (text.replace(str(store.port), "1"), "127.0.0.1")):
        bad.write_text(content)
        for tool in (dispersion_populate, dispersion_report):
            assert tool.main([str(bad)]) == 1
            err = capsys.readouterr().err
            assert words in err and "Traceback" not in err
    assert dispersion_report.main(["-P", "lead", conf]) == 1 and capsys.readouterr().err == "Unable to find policy: lead\n"
    assert dispersion_report.main([str(tmp_path / "none")]) == 1 and "Unable to read config file" in capsys.readouterr().err
    assert dispersion_report.main(["--object-only", "--container-only", conf]) == 1
