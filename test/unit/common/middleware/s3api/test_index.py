import time
from types import SimpleNamespace
from typing import Any

import pytest

from keelstore.common.http import Request, Response
from keelstore.common.middleware.ratelimit import HANDLED
from keelstore.common.middleware.s3api import S3Api
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.index import YOUNG_S, BucketIndex
from keelstore.common.middleware.s3api.options import S3ApiOptions
from keelstore.common.timestamp import Timestamp

NAMES = "/v1/.s3/buckets"


class Swift:
    """What stands to the right: names, by object, and containers."""

    def __init__(self) -> None:
        self.made = False
        self.names: dict[str, tuple[bytes, float]] = {}
        self.containers: set[str] = set()
        self.failing: dict[tuple[str, str], int] = {}  # method and path: status

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        return self.answer(Request(environ))(environ, start_response)

    def answer(self, request: Request) -> Response:
        path, method = request.path, request.method
        if (status := self.failing.get((method, path))) is not None:
            return Response(status)
        if path == NAMES:
            self.made = True
            return Response(201)
        if not path.startswith(NAMES + "/"):
            return Response(204 if path in self.containers else 404)
        name = path.removeprefix(NAMES + "/")
        if not self.made:
            return Response(404)
        if method == "PUT":
            if name in self.names and request.header("If-None-Match") == "*":
                return Response(412)
            self.names[name] = (request.body_file.read(), time.time())
            return Response(201)
        if name not in self.names:
            return Response(404)
        body, taken = self.names[name]
        if method == "DELETE":
            del self.names[name]
            return Response(204)
        return Response(200, {"X-Timestamp": Timestamp(taken).normal}, body=body)


@pytest.fixture
def swift() -> Swift:
    return Swift()


@pytest.fixture
def index(swift: Swift) -> BucketIndex:
    return BucketIndex(swift)


def test_the_first_who_asks_has_the_name(index: BucketIndex) -> None:
    assert index.account_of({}, "b") is None
    assert index.claim({}, "b", "AUTH_a") and index.claim({}, "b", "AUTH_a")
    assert not index.claim({}, "b", "AUTH_b")
    assert index.account_of({}, "b") == "AUTH_a"


def test_only_the_holder_gives_a_name_up(index: BucketIndex) -> None:
    index.claim({}, "b", "AUTH_a")
    index.release({}, "b", "AUTH_b")
    assert index.account_of({}, "b") == "AUTH_a"
    index.release({}, "b", "AUTH_a")
    assert index.account_of({}, "b") is None and index.claim({}, "b", "AUTH_b")


@pytest.mark.parametrize(("age_s", "is_there", "goes_over"), [(1, False, False), (YOUNG_S + 1, False, True), (YOUNG_S + 1, True, False)])
def test_a_name_that_leads_nowhere_goes_to_who_asks_after_a_while(
    swift: Swift, index: BucketIndex, age_s: float, is_there: bool, goes_over: bool
) -> None:
    index.claim({}, "b", "AUTH_a")
    swift.names["b"] = (b"AUTH_a", time.time() - age_s)
    if is_there:
        swift.containers.add("/v1/AUTH_a/b")
    assert index.claim({}, "b", "AUTH_b") == goes_over
    assert index.account_of({}, "b") == ("AUTH_b" if goes_over else "AUTH_a")


@pytest.mark.parametrize(("method", "path", "status"), [("PUT", f"{NAMES}/b", 503), ("PUT", f"{NAMES}/b", 500), ("GET", f"{NAMES}/b", 503), ("HEAD", "/v1/AUTH_a/b", 503)])
def test_a_name_that_cannot_be_looked_up_is_nobodys_answer(swift: Swift, index: BucketIndex, method: str, path: str, status: int) -> None:
    """Neither "there is no such bucket", nor "another has it"."""
    index.claim({}, "b", "AUTH_a")
    swift.names["b"] = (b"AUTH_a", time.time() - YOUNG_S - 1)
    swift.failing[method, path] = status
    with pytest.raises(S3Error) as caught:
        index.claim({}, "b", "AUTH_b")
    assert caught.value.code == "ServiceUnavailable"
    if method == "GET":
        with pytest.raises(S3Error):
            index.account_of({}, "b")
        assert index.may_be_held({}, "b")
        index.release({}, "b", "AUTH_a")
    swift.failing.clear()
    assert index.account_of({}, "b") == "AUTH_a" and not index.may_be_held({}, "other")


def test_an_answer_that_is_no_outage_leaves_the_name_with_its_holder(swift: Swift, index: BucketIndex) -> None:
    index.claim({}, "b", "AUTH_a")
    swift.names["b"] = (b"AUTH_a", time.time() - YOUNG_S - 1)
    swift.failing["HEAD", "/v1/AUTH_a/b"] = 497  # ratelimit's, for an account on its blacklist
    assert not index.claim({}, "b", "AUTH_b")


def test_no_rate_limits_what_is_asked_of_the_index(index: BucketIndex, swift: Swift) -> None:
    index.app = lambda environ, start_response: Response(201 if HANDLED in environ else 429)(environ, start_response)
    assert index.claim({}, "b", "AUTH_a")


@pytest.mark.parametrize(("status", "found"), [(200, "AUTH_me"), (404, "AUTH_a"), (503, None)])
def test_anothers_bucket_never_stands_in_for_an_own_one_that_cannot_be_looked_up(swift: Swift, status: int, found: str | None) -> None:
    api = S3Api(swift, S3ApiOptions(s3_acl=True))
    assert api.index is not None
    api.index.claim({}, "b", "AUTH_a")
    own = SimpleNamespace(is_success=status == 200, status=status)
    request: Any = SimpleNamespace(identity=SimpleNamespace(account="AUTH_me"), container_info=lambda *_: own, environ={})
    if found is None:
        with pytest.raises(S3Error) as caught:
            api._locate(request, "b")
        assert caught.value.status == 503
    else:
        assert api._locate(request, "b") == found
