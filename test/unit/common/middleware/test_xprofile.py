import json
import os

import pytest

from keelstore.common.http import Response
from keelstore.common.middleware.xprofile import XProfile, XProfileOptions, filter_factory
from test.support import fakes
from test.unit.common.middleware.helpers import call


def work():
    return sum(range(100))


def inner(environ, start_response):
    work()
    return Response(200, body=b"done")(environ, start_response)


class Setup:
    def __init__(self, tmp_path, **options):
        self.now = 1000.0
        self.app = XProfile(inner, XProfileOptions(log_filename_prefix=str(tmp_path / "p" / "x."), **options), fakes.silent_logger(), lambda: self.now)

    def get(self, path="", query="", method="GET"):
        return call(self.app, method, "/__profile__" + path, query=query)


@pytest.fixture
def setup(tmp_path):
    setup = Setup(tmp_path)
    for _ in range(3):
        assert call(setup.app, "GET", "/v1/a").body == b"done"
    return setup


def test_functions_are_counted(setup):
    rows = {row["function"]: row for row in setup.get("/current", "format=json&limit=0").json()}
    mine = next(row for name, row in rows.items() if name.endswith("(work)"))
    assert mine["calls"] == 3 and mine["total_s"] >= mine["own_s"] >= 0


def test_profiles_of_all_workers(setup, tmp_path):
    assert os.listdir(tmp_path / "p") == [f"x.{os.getpid()}.json"]
    (tmp_path / "p" / "x.1.json").write_text(json.dumps({"f.py:1(work)": [2, 0.5, 1.5]}))
    (tmp_path / "p" / "x.1-99.json").write_text(json.dumps({"f.py:1(work)": [1, 0.5, 1.5]}))
    assert setup.get("/1/f.py", "format=json").json() == [{"function": "f.py:1(work)", "calls": 2, "own_s": 0.5, "total_s": 1.5}]
    assert setup.get("/all/f.py", "format=csv").body.splitlines()[1] == b"f.py:1(work),3,1.0,3.0"
    page = setup.get().body.decode()
    assert all(f'href="/__profile__/{name}"' in page for name in ("current", "all", "1", "1-99", str(os.getpid())))


def test_dumps_come_now_and_then(tmp_path):
    setup = Setup(tmp_path, dump_interval=5.0, dump_timestamp=True)
    for moment in (1000.0, 1004.0, 1006.0):
        setup.now = moment
        call(setup.app, "GET", "/v1/a")
    assert sorted(os.listdir(tmp_path / "p")) == [f"x.{os.getpid()}-1000.json", f"x.{os.getpid()}-1006.json"]


@pytest.mark.parametrize("path", ["/../../etc/passwd", "/%2e%2e", "/1/../2", "/__import__('os')", "/x.1", "/1.json", "/99999", "/-", "/1-"])
def test_security_S43_an_id_is_a_number_or_nothing(setup, path):
    assert setup.get(path).status == 404


@pytest.mark.parametrize("query", ["sort=__import__('os').system('x')", "limit=os", "limit=-1", "limit=1e3", "sort="])
def test_security_S43_parameters_are_looked_up(setup, query):
    assert setup.get("/current", query).status == 400
    assert setup.get("/current", "format=pickle").status == 404


def test_pages_are_escaped_and_forbid_scripts(setup, tmp_path):
    (tmp_path / "p" / "x.1.json").write_text(json.dumps({"<script>": [1, 0, 0]}))
    got = setup.get("/1")
    assert b"<script>" not in got.body and b"&lt;script&gt;" in got.body and got.headers["Content-Security-Policy"] == "default-src 'none'"


@pytest.mark.parametrize("text", ["", "[]", '{"f": 1}', '{"f": [1]}', '{"f": ["x", "y", "z"]}', "\x80\x04."])
def test_files_that_are_no_profiles_are_not_shown(setup, tmp_path, text):
    (tmp_path / "p" / "x.1.json").write_text(text)
    assert setup.get("/1").status == 404


def test_methods_and_sorting(setup):
    assert setup.get(method="POST").status == 405
    calls = [row["calls"] for row in setup.get("/current", "format=json&sort=calls&limit=5").json()]
    assert calls == sorted(calls, reverse=True) and len(calls) <= 5


def test_a_directory_that_cannot_be_written(tmp_path):
    setup = Setup(tmp_path)
    (tmp_path / "p").write_text("a file")
    assert call(setup.app, "GET", "/v1/a").status == 200 and setup.get().status == 200


def test_the_factory(tmp_path):
    assert call(filter_factory({}, log_filename_prefix=str(tmp_path / "x."), unwind="yes")(inner), "GET", "/v1/a").body == b"done"
