"""Metadata of accounts, containers and objects (client API 7): what is kept, replaced, removed and refused."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from test.support.client import Account, Answer, unique
from test.support.waiting import until


def meta(answer: Answer, level: str) -> dict[str, str]:
    prefix = f"x-{level}-meta-"
    return {name.removeprefix(prefix): answer.headers.text(name) for name in answer.headers if name.startswith(prefix)}


@pytest.fixture(params=["account", "container", "object"])
def thing(request: pytest.FixtureRequest, store: Any, container: str, account: Account) -> tuple[str, Account, list[str]]:
    """Something that has metadata: its level, an account of its own where that is what it is, and its names."""
    level = request.param
    if level == "account":
        admin = store.login("admin:admin", "admin")
        path = f"/v1/AUTH_{unique('meta')}"
        own = Account(store, path, admin.token)
        own.put().expect(201)
        return level, own, []
    if level == "container":
        return level, account, [container]
    account.put(container, "o", body=b"data").expect(201)
    return level, account, [container, "o"]


Thing = tuple[str, Account, list[str]]


def test_what_is_set_is_shown(thing: Thing) -> None:
    level, account, names = thing
    name = f"X-{level.title()}-Meta-"
    account.post(*names, headers={name + "Color": "blue", name + "Other-Thing": "é 日本 \U0001f600", name + "Number": 1}).expect(202, 204)
    expected = {"color": "blue", "other-thing": "é 日本 \U0001f600", "number": "1"}
    assert meta(account.head(*names).expect(), level) == expected
    assert meta(account.get(*names).expect(), level) == expected


def test_what_a_later_post_keeps_and_removes(thing: Thing) -> None:
    level, account, names = thing
    name = f"X-{level.title()}-Meta-"
    account.post(*names, headers={name + "A": "1", name + "B": "2", name + "C": "3"}).expect()
    account.post(*names, headers={name + "B": "4", name + "D": "5"}).expect()
    kept = {"b": "4", "d": "5"} if level == "object" else {"a": "1", "b": "4", "c": "3", "d": "5"}
    assert meta(account.head(*names), level) == kept
    if level != "object":
        account.post(*names, headers={name + "A": "", f"X-Remove-{level.title()}-Meta-B": "x"}).expect()
        assert meta(account.head(*names), level) == {"c": "3", "d": "5"}
        account.put(*names, headers={name + "E": "6"}).expect(202)
        assert meta(account.head(*names), level) == {"c": "3", "d": "5", "e": "6"}
        account.post(*names, headers={name + "C": "7", f"X-Remove-{level.title()}-Meta-C": "x"}).expect()
        assert meta(account.head(*names), level)["c"] == "7"


@pytest.mark.parametrize(("items", "fits"), [
    ({"N" * 128: "v"}, True), ({"N" * 129: "v"}, False), ({"N": "v" * 256}, True), ({"N": "v" * 257}, False),
    ({"N": "é" * 128}, True), ({"N": "é" * 129}, False),
    ({f"N{number:02}": "v" for number in range(90)}, True), ({f"N{number:02}": "v" for number in range(91)}, False),
    ({f"N{number:02}": "v" * 253 for number in range(16)}, True), ({f"N{number:02}": "v" * 253 for number in range(15)} | {"N15": "v" * 254}, False),
    ({"": "v"}, False),
])
@pytest.mark.parametrize("verb", ["PUT", "POST"])
def test_limits(thing: Thing, items: Mapping[str, str], fits: bool, verb: str) -> None:
    level, account, names = thing
    headers = {f"X-{level.title()}-Meta-{key}": value for key, value in items.items()}
    answer = account.request(verb, *names, headers=headers)
    if fits:
        answer.expect()
        assert len(meta(account.head(*names), level)) == len(items)
    else:
        answer.expect(400)
        assert answer.headers["Content-Type"].startswith("text/plain")
        assert meta(account.head(*names), level) == {}


def test_a_header_value_that_is_too_long(thing: Thing) -> None:
    level, account, names = thing
    with account.endpoint.connect() as connection:
        answer = account.post(*names, headers={f"X-{level.title()}-Meta-Long": "v" * 9000}, connection=connection)
    assert answer.status in (400, 431)
    account.head(*names).expect()


@pytest.mark.parametrize("value", [b"\xff\xfe", b"a\xc0\xafb"])
def test_values_that_are_no_utf8(thing: Thing, value: bytes) -> None:
    level, account, names = thing
    answer = account.post(*names, headers={f"X-{level.title()}-Meta-Odd": value})
    if level == "object":
        answer.expect(202)
        assert account.head(*names).headers["X-Object-Meta-Odd"].encode("latin-1") == value
    else:
        answer.expect(400)


def test_security_S13_limits_hold_over_many_posts_live(thing: Thing) -> None:
    """Ninety items, then more in further requests: merged sets are limited too; an object's set is replaced whole."""
    level, account, names = thing
    first = {f"X-{level.title()}-Meta-First-{number:02}": "v" for number in range(90)}
    second = {f"X-{level.title()}-Meta-Second-{number:02}": "v" for number in range(90)}
    account.post(*names, headers=first).expect()
    answer = account.post(*names, headers=second)
    if level == "object":
        answer.expect(202)
    else:
        answer.expect(400)
    for _ in range(3):
        account.post(*names, headers=second)
    assert len(meta(account.head(*names), level)) <= 90
    big = {f"X-{level.title()}-Meta-Big-{number}": "v" * 250 for number in range(12)}
    answers = [account.post(*names, headers={key.replace("Big", f"Big{turn}"): value for key, value in big.items()}) for turn in range(4)]
    assert sum(len(key) + len(value) for key, value in meta(account.head(*names), level).items()) <= 4096
    assert level == "object" or 400 in {answer.status for answer in answers}


def test_system_metadata_never_passes(thing: Thing) -> None:
    level, account, names = thing
    title = level.title()
    headers = {f"X-{title}-Sysmeta-Mine": "v", "X-Backend-Storage-Policy-Index": "1", "X-Object-Transient-Sysmeta-Mine": "v",
               "X-Timestamp": "1.00000", f"X-{title}-Meta-Seen": "v"}
    for verb in ("PUT", "POST"):
        account.request(verb, *names, headers=headers).expect()
        shown = account.head(*names).headers
        assert shown[f"X-{title}-Meta-Seen"] == "v"
        assert not [name for name in shown if "sysmeta" in name or name.startswith("x-backend")]
        assert float(shown["X-Timestamp"]) > 1_500_000_000


def test_metadata_may_be_large_on_any_filesystem(account: Account, container: str) -> None:
    """The largest legal set of a PUT and a POST: on ext4 it does not fit into the attributes of the inode."""
    items = {f"X-Object-Meta-{number:02}-{'n' * 30}": "é" * 5 for number in range(90)}
    assert sum(len(key.encode()) - 14 + len(value.encode()) for key, value in items.items()) <= 4096
    extra = {"Content-Disposition": "attachment; filename=" + "f" * 1000, "Content-Encoding": "e" * 500, "Content-Type": "x/" + "y" * 1000}
    account.put(container, "o", body=b"data", headers={**items, **extra}).expect(201)
    for turn in range(2):
        answer = account.get(container, "o").expect(200)
        assert answer.body == b"data"
        assert len(meta(answer, "object")) == 90
        assert answer.headers["Content-Disposition"] == extra["Content-Disposition"]
        assert answer.headers["Content-Type"] == extra["Content-Type"]
        if not turn:
            account.post(container, "o", headers={**items, **extra}).expect(202)
    account.delete(container, "o").expect(204)


PERSISTED = {"Content-Disposition": "attachment", "Content-Encoding": "gzip", "Cache-Control": "no-store", "Content-Language": "de",
             "Expires": "Wed, 21 Oct 2099 07:28:00 GMT", "X-Robots-Tag": "noindex"}


def test_headers_that_an_object_keeps(account: Account, container: str) -> None:
    account.put(container, "o", body=b"1", headers={**PERSISTED, "Content-Type": "text/x; charset=utf-8", "X-Other": "no"}).expect(201)
    head = account.head(container, "o").headers
    assert {name: head.get(name) for name in PERSISTED} == PERSISTED
    assert head["Content-Type"] == "text/x; charset=utf-8"
    assert "X-Other" not in head
    account.post(container, "o", headers={"Cache-Control": "private"}).expect(202)
    head = account.head(container, "o").headers
    assert {name for name in PERSISTED if name in head} == {"Cache-Control"}
    assert head["Content-Type"] == "text/x; charset=utf-8"  # its own rule: kept when not sent
    account.post(container, "o", headers={"Content-Type": "image/new"}).expect(202)
    assert account.head(container, "o").headers["Content-Type"] == "image/new"
    entry = account.listing(container)[0]
    assert (entry["content_type"], entry["hash"]) == ("image/new", hashlib.md5(b"1").hexdigest())


@pytest.mark.parametrize(("name", "headers", "expected"), [
    ("a.html", {}, "text/html"), ("a.png", {}, "image/png"), ("a.json", {}, "application/json"), ("a", {}, "application/octet-stream"),
    ("a.unheard-of", {}, "application/octet-stream"), ("a.txt", {"Content-Type": "x/y"}, "x/y"), ("a.txt", {"Content-Type": ""}, "text/plain"),
    ("a.txt", {"Content-Type": "x/y", "X-Detect-Content-Type": "true"}, "text/plain"),
    ("a.txt", {"Content-Type": "x/y", "X-Detect-Content-Type": "no"}, "x/y"),
])
def test_content_type_is_guessed(account: Account, container: str, name: str, headers: dict[str, str], expected: str) -> None:
    account.put(container, name, headers=headers, body=b"").expect(201)
    assert account.head(container, name).headers["Content-Type"] == expected


@pytest.mark.parametrize("headers", [{"Content-Type": b"\xff\xfe"}, {"Content-Type": "text/x;swift_bytes=5"}])
def test_content_types_that_are_refused(account: Account, container: str, headers: dict[str, Any]) -> None:
    account.put(container, "o", headers=headers, body=b"").expect(400)
    account.head(container, "o").expect(404)


def test_head_has_the_headers_of_get(account: Account, container: str) -> None:
    account.put(container, "o", body=b"12345", headers={"X-Object-Meta-A": "1"}).expect(201)
    account.post(container, headers={"X-Container-Meta-A": "1"}).expect(204)
    assert head_is_get(account, container, "o")
    # what is counted may reach one replica of a database a moment after another
    for names in ([container], []):
        until(partial(head_is_get, account, *names), f"HEAD and GET of {names} say the same")


def head_is_get(account: Account, *names: str) -> bool:
    """True, or a failure that shows where they differ."""
    get, head = account.get(*names).expect(200), account.head(*names).expect(200, 204)
    differ = {"date", "x-trans-id", "x-openstack-request-id", "connection"}
    if len(names) < 2:
        # each replica of a database has its own time of creation, and may not have seen a policy that came and went
        differ |= {"content-length", "x-timestamp", *(name for name in (*get.headers, *head.headers) if "storage-policy-silver" in name)}
    assert {k: v for k, v in get.headers.items() if k not in differ} == {k: v for k, v in head.headers.items() if k not in differ}
    for header in ("X-Trans-Id", "X-Openstack-Request-Id", "Date", "Content-Type"):
        assert header in get.headers and header in head.headers
    return True


@pytest.mark.parametrize("make", [lambda a, c: a.post(c, "none"), lambda a, c: a.post(unique("none")), lambda a, c: a.post(unique("none"), "o")])
def test_post_to_what_is_absent_is_404(account: Account, container: str, make: Callable[[Account, str], Answer]) -> None:
    make(account, container).expect(404)
