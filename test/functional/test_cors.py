"""Requests from scripts of other origins (client API 12)."""

from __future__ import annotations

import pytest

from test.support.client import Account, Answer

ORIGIN = "http://app.example"


def words(answer: Answer, name: str) -> set[str]:
    return {word.strip().lower() for word in answer.headers.get(name, "").split(",") if word.strip()}


@pytest.fixture
def open_to(account: Account, container: str) -> str:
    headers = {"X-Container-Meta-Access-Control-Allow-Origin": f"http://other.example {ORIGIN}",
               "X-Container-Meta-Access-Control-Max-Age": "5", "X-Container-Meta-Access-Control-Expose-Headers": "X-Mine X-Yours",
               "X-Container-Read": ".r:*"}
    account.post(container, headers=headers).expect(204)
    account.put(container, "o", body=b"data", headers={"X-Object-Meta-Color": "blue"}).expect(201)
    return container


@pytest.mark.parametrize("names", [[], ["o"]])
def test_preflight(account: Account, open_to: str, names: list[str]) -> None:
    headers = {"Origin": ORIGIN, "Access-Control-Request-Method": "GET", "Access-Control-Request-Headers": "X-Auth-Token, X-Other"}
    answer = account.anonymous().request("OPTIONS", open_to, *names, headers=headers).expect(200)
    assert answer.headers["Access-Control-Allow-Origin"] == ORIGIN
    assert answer.headers["Access-Control-Max-Age"] == "5"
    expected = {"get", "head", "put", "post", "delete", "options"}
    assert words(answer, "Access-Control-Allow-Methods") - (set() if names else {"copy"}) == expected | ({"copy"} if names else set())
    assert words(answer, "Access-Control-Allow-Headers") == {"x-auth-token", "x-other"}
    assert words(answer, "Vary") == {"origin", "access-control-request-headers"}


@pytest.mark.parametrize(("origin", "method"), [("http://evil.example", "GET"), (ORIGIN, "MAKE"), (ORIGIN, ""), (ORIGIN + ".evil", "GET"), ("null", "GET")])
def test_preflights_that_are_refused(account: Account, open_to: str, origin: str, method: str) -> None:
    answer = account.anonymous().request("OPTIONS", open_to, "o", headers={"Origin": origin, "Access-Control-Request-Method": method})
    assert answer.status == 401
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert "get" in words(answer, "Allow")


def test_options_without_an_origin(account: Account, open_to: str) -> None:
    for names in ([], [open_to], [open_to, "o"]):
        answer = account.anonymous().request("OPTIONS", *names).expect(200)
        assert {"get", "head", "post", "options"} <= words(answer, "Allow")
    answer = account.endpoint.request("OPTIONS", "/info").expect(200)
    assert words(answer, "Allow") == {"get", "head", "options"}


def test_an_actual_request(account: Account, open_to: str) -> None:
    answer = account.anonymous().get(open_to, "o", headers={"Origin": ORIGIN}).expect(200)
    assert answer.headers["Access-Control-Allow-Origin"] == ORIGIN
    assert "origin" in words(answer, "Vary")
    exposed = words(answer, "Access-Control-Expose-Headers")
    assert exposed >= {"x-mine", "x-yours", "x-object-meta-color", "etag", "x-trans-id", "content-type", "last-modified", "x-timestamp"}
    for verb, names in (("HEAD", ["o"]), ("PUT", ["p"]), ("POST", ["o"]), ("DELETE", ["p"]), ("GET", [])):
        answer = account.request(verb, open_to, *names, headers={"Origin": ORIGIN})
        assert answer.headers["Access-Control-Allow-Origin"] == ORIGIN, verb


def test_origins_that_are_not_listed_get_nothing(account: Account, open_to: str) -> None:
    for headers in ({"Origin": "http://evil.example"}, {}):
        answer = account.anonymous().get(open_to, "o", headers=headers).expect(200)
        assert not [name for name in answer.headers if name.startswith("access-control")]


def test_security_R17_any_origin_is_answered_without_credentials(account: Account, open_to: str) -> None:
    account.post(open_to, headers={"X-Container-Meta-Access-Control-Allow-Origin": "*"}).expect(204)
    answer = account.anonymous().get(open_to, "o", headers={"Origin": "http://anyone.example"}).expect(200)
    assert answer.headers["Access-Control-Allow-Origin"] == "*"
    assert "access-control-allow-credentials" not in answer.headers
    headers = {"Origin": "http://anyone.example", "Access-Control-Request-Method": "PUT"}
    assert account.anonymous().request("OPTIONS", open_to, headers=headers).headers["Access-Control-Allow-Origin"] == "*"


def test_info_answers_any_origin(account: Account) -> None:
    answer = account.endpoint.request("GET", "/info", {"Origin": ORIGIN}).expect(200)
    assert answer.headers["Access-Control-Allow-Origin"] == ORIGIN
