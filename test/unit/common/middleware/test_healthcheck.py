import pytest

from keelstore.common.middleware.healthcheck import filter_factory
from test.unit.common.middleware.helpers import Inner, call


@pytest.mark.parametrize("method", ["GET", "PUT", "POST", "FOO"])
def test_any_method_answers_ok(method):
    got = call(filter_factory({})(Inner()), method, "/healthcheck")
    assert (got.status, got.body, got.headers["Content-Type"]) == (200, b"OK", "text/plain")


def test_head_has_no_body():
    got = call(filter_factory({})(Inner()), "HEAD", "/healthcheck")
    assert (got.status, got.body, got.headers["Content-Length"]) == (200, b"", "2")


def test_disabled_by_file(tmp_path):
    app = filter_factory({}, disable_path=str(tmp_path / "off"))(Inner())
    assert call(app, "GET", "/healthcheck").status == 200
    (tmp_path / "off").touch()
    got = call(app, "GET", "/healthcheck")
    assert (got.status, got.body) == (503, b"DISABLED BY FILE")


@pytest.mark.parametrize("path", ["/healthcheck/", "/v1/healthcheck", "/healthchecks", "/"])
def test_other_paths_pass(path):
    inner = Inner(body=b"inner")
    assert call(filter_factory({})(inner), "GET", path).body == b"inner"
