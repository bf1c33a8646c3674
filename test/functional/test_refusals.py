"""A refusal tells the client nothing, the log which check failed, and ``keelstore explain`` the same to who holds the key (issue 3, point 6)."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from test.functional.conftest import FOREIGN
from test.support.client import Account, Answer
from test.support.signing import FORM_TYPE, form_body, form_fields, temp_url
from test.support.store import Store, keelstore
from test.support.waiting import until

pytestmark = pytest.mark.skipif(bool(FOREIGN), reason="reads the log of a node")
BARE = (401, b"401 Unauthorized: Temp URL invalid\n")
Logged = Callable[[Callable[[], Answer]], tuple[Answer, str]]


@pytest.fixture
def logged(running: Store) -> Logged:
    """Ask, and give the answer with the lines that node 1 has written of that transaction."""
    def ask(call: Callable[[], Answer]) -> tuple[Answer, str]:
        mark = len(running.log())
        answer = call()

        def lines() -> str:  # the last is that of the access log, written when the answer has been sent
            found = [line for line in running.log()[mark:].splitlines() if answer.headers["X-Trans-Id"] in line]
            return "\n".join(found) if any(" proxy-access: " in line for line in found) else ""

        return answer, until(lines, "the request is logged")

    return ask


@pytest.fixture
def box(account: Account, container: str) -> str:
    account.post(container, headers={"X-Container-Meta-Temp-Url-Key": "mykey"}).expect(204)
    account.put(container, "o", body=b"data").expect(201)
    return container


def explained(target: str, account: Account, *arguments: str) -> tuple[str, int]:
    """The check that fails according to ``keelstore explain``, and its exit code."""
    done = keelstore("explain", "tempurl", account.endpoint.url + target, "--key", "mykey", *arguments)
    found = re.search(r"FAILS +([a-z-]+)", done.stdout)
    return found[1] if found else "", done.returncode


@pytest.mark.parametrize(("check", "made", "method"), [
    ("expired", {"expires": 1000}, "GET"), ("signature", {"method": "GET"}, "PUT"), ("signature", {"key": "other"}, "GET"),
    ("path", {"name": ""}, "GET"), ("signature-form", {"digest": "md5"}, "GET"), ("method-not-allowed", {}, "PATCH"),
    ("prefix", {"prefix": "other/"}, "GET"), ("ip-range", {"ip": "192.0.2.0/24"}, "GET"),
])
def test_case_C33_a_temporary_url(account: Account, box: str, logged: Logged, check: str, made: dict[str, str], method: str) -> None:
    made = {"key": "mykey", "name": "/o", **made}
    target = temp_url(f"{account.path}/{box}{made.pop('name')}", made.pop("key"), **made)  # type: ignore[arg-type]
    answer, lines = logged(lambda: account.endpoint.request(method, target))
    assert (answer.status, answer.body) == BARE
    assert not {"X-Temp-Url", "X-Error"} & set(answer.headers.names)
    assert f"Temp URL refused: {check}: " in lines and f"tempurl:{check}" in lines
    assert explained(target, account, "--method", method, "--address", "127.0.0.1") == (check, 1)
    assert "mykey" not in lines


def test_case_C33_a_temporary_url_without_a_key(account: Account, container: str, logged: Logged) -> None:
    account.post(headers={"X-Remove-Account-Meta-Temp-Url-Key": "x", "X-Remove-Account-Meta-Temp-Url-Key-2": "x"}).expect(204)
    target = temp_url(f"{account.path}/{container}/o", "mykey")
    answer, lines = logged(lambda: account.endpoint.request("GET", target))
    assert (answer.status, answer.body) == BARE
    assert "Temp URL refused: no-key: " in lines and "tempurl:no-key" in lines
    done = keelstore("explain", "tempurl", account.endpoint.url + target)
    assert done.returncode == 1 and "no-key" in done.stdout


def test_a_good_url_is_called_good(account: Account, box: str, logged: Logged) -> None:
    target = temp_url(f"{account.path}/{box}/o", "mykey")
    answer, lines = logged(lambda: account.endpoint.request("GET", target))
    assert answer.expect(200).body == b"data" and "refused" not in lines
    assert explained(target, account) == ("", 0)


@pytest.mark.parametrize(("check", "changes", "seconds"), [
    ("expired", {}, -5), ("signature", {"signature": "0" * 64}, 600), ("signature", {"max_file_count": "6"}, 600),
])
def test_a_form(account: Account, box: str, logged: Logged, check: str, changes: dict[str, str], seconds: int) -> None:
    target = f"{account.path}/{box}/"
    body = form_body({**form_fields(target, "mykey", seconds=seconds), **changes}, [("a", b"1234", "text/plain")])
    answer, lines = logged(lambda: account.endpoint.request("POST", target, {"Content-Type": FORM_TYPE}, body))
    assert answer.status == 401 and answer.body in (b"FormPost: Form Expired", b"FormPost: Invalid Signature")  # what the field expects
    assert f"Form refused: {check}: " in lines and f"formpost:{check}" in lines and "mykey" not in lines
    assert [entry["name"] for entry in account.listing(box)] == ["o"]


@pytest.mark.parametrize(("check", "token"), [
    ("token-unknown", "AUTH_tk" + "0" * 32), ("token-signature", "AUTH_ftk" + "A" * 120), ("token-foreign", "gAAAAAB-of-another-make"), ("no-token", ""),
])
def test_a_token(account: Account, box: str, logged: Logged, check: str, token: str) -> None:
    stranger = Account(account.endpoint, account.path, token)
    bodies = set()
    for names in ((), (box,), (box, "o")):
        answer, lines = logged(lambda names=names: stranger.get(*names))  # type: ignore[misc]
        assert answer.status == 401 and f"tempauth:{check}" in lines
        bodies.add(answer.body)
    body, = bodies
    assert not any(word in body.lower() for word in (b"expired", b"unknown", b"signature", b"foreign"))


@pytest.mark.parametrize(("check", "user", "key"), [("wrong-key", "test:tester", "not-her-key"), ("unknown-user", "test:nobody", "some-key")])
def test_a_request_for_a_token(account: Account, logged: Logged, check: str, user: str, key: str) -> None:
    answer, lines = logged(lambda: account.endpoint.authenticate(user, key))
    reference = account.endpoint.authenticate("test:third", "key")
    assert (answer.status, answer.body) == (reference.status, reference.body) == (401, reference.body)
    assert f"tempauth:{check}" in lines and key not in lines
