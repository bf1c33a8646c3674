"""Conditional and ranged reads (client API 6)."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterator
from email.utils import formatdate, parsedate_to_datetime

import pytest

from test.support.client import Account, Answer, unique

BODY = bytes(range(256)) * 40  # 10,240 octets
SIZE = len(BODY)
ETAG = hashlib.md5(BODY).hexdigest()
LONG_AGO, FAR_OFF = "Sat, 01 Jan 2000 00:00:00 GMT", "Fri, 01 Jan 2100 00:00:00 GMT"


@pytest.fixture(scope="module")
def held(account: Account) -> Iterator[str]:
    name = unique("reading")
    account.put(name).expect(201)
    account.put(name, "o", body=BODY, headers={"Content-Type": "text/x", "X-Object-Meta-A": "1"}).expect(201)
    account.put(name, "empty", body=b"").expect(201)
    yield name
    account.empty(name)


@pytest.mark.parametrize(("value", "span"), [
    ("bytes=0-0", (0, 0)), ("bytes=0-9", (0, 9)), ("bytes=5-", (5, SIZE - 1)), ("bytes=-5", (SIZE - 5, SIZE - 1)),
    (f"bytes={SIZE - 1}-", (SIZE - 1, SIZE - 1)), ("bytes=10-999999", (10, SIZE - 1)), ("bytes=-999999", (0, SIZE - 1)),
    ("Bytes=1-2", (1, 2)), ("bytes = 1 - 2", (1, 2)), ("bytes=1-2,", None),
    # syntax errors: the header is ignored
    ("bytes", None), ("bytes=", None), ("bytes=-", None), ("bytes=a-b", None), ("bytes=5-4", None), ("0-5", None), ("lines=0-5", None),
    ("bytes=1-2-3", None), ("bytes=0x1-0x5", None), ("bytes=--5", None), ("bytes=1.0-2", None), ("bytes=٣-٤", None),
    ("bytes=0-5;q=1", None), ("bytes=,", None),
])
def test_one_range(account: Account, held: str, value: str, span: tuple[int, int] | None) -> None:
    answer = account.get(held, "o", headers={"Range": value})
    if value == "bytes=1-2,":  # a trailing comma: either reading is allowed, the whole or the part
        assert (answer.status, answer.body) in ((206, BODY[1:3]), (200, BODY))
    elif span is None:
        assert (answer.status, answer.body) == (200, BODY)
        assert "Content-Range" not in answer.headers
    else:
        start, last = span
        assert (answer.status, answer.body) == (206, BODY[start:last + 1])
        assert answer.headers["Content-Range"] == f"bytes {start}-{last}/{SIZE}"
        assert answer.headers["Content-Length"] == str(last + 1 - start)
        assert answer.headers["Etag"] == ETAG


@pytest.mark.parametrize("value", [f"bytes={SIZE}-", f"bytes={SIZE}-{SIZE + 5}", "bytes=-0", f"bytes={SIZE + 9}-,-0"])
def test_ranges_beyond_the_end(account: Account, held: str, value: str) -> None:
    answer = account.get(held, "o", headers={"Range": value})
    assert (answer.status, answer.headers["Content-Range"]) == (416, f"bytes */{SIZE}")


def parts(answer: Answer) -> list[tuple[str, str, bytes]]:
    """(content type, content range, data) of a multipart/byteranges answer, which must be exact to the octet."""
    assert answer.status == 206
    found = re.fullmatch(r"multipart/byteranges;boundary=(\w{32})", answer.headers["Content-Type"])
    assert found
    mark = b"--" + found[1].encode()
    assert int(answer.headers["Content-Length"]) == len(answer.body)
    assert answer.body.endswith(mark + b"--")
    result = []
    for piece in answer.body[:-len(mark) - 2].split(mark + b"\r\n")[1:]:
        head, _, data = piece.partition(b"\r\n\r\n")
        lines = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        assert data.endswith(b"\r\n")
        result.append((lines["Content-Type"], lines["Content-Range"], data[:-2]))
    return result


@pytest.mark.parametrize(("value", "spans"), [
    ("bytes=0-4,10-14", [(0, 4), (10, 14)]), ("bytes=10-14,0-4", [(10, 14), (0, 4)]), ("bytes=0-0,-1", [(0, 0), (SIZE - 1, SIZE - 1)]),
    (f"bytes=0-4,{SIZE}-,6-7", [(0, 4), (6, 7)]), ("bytes=0-,1-2", [(0, SIZE - 1), (1, 2)]), ("bytes=0-1, 3-4 , 6-7", [(0, 1), (3, 4), (6, 7)]),
    ("bytes=" + ",".join(f"{n * 10}-{n * 10 + 1}" for n in range(50)), [(n * 10, n * 10 + 1) for n in range(50)]),
])
def test_several_ranges(account: Account, held: str, value: str, spans: list[tuple[int, int]]) -> None:
    answer = account.get(held, "o", headers={"Range": value})
    assert parts(answer) == [("text/x", f"bytes {a}-{b}/{SIZE}", BODY[a:b + 1]) for a, b in spans]


def test_one_satisfiable_range_of_several_is_a_single_part(account: Account, held: str) -> None:
    answer = account.get(held, "o", headers={"Range": f"bytes=3-4,{SIZE}-"})
    assert (answer.status, answer.body, answer.headers["Content-Range"]) == (206, BODY[3:5], f"bytes 3-4/{SIZE}")


@pytest.mark.parametrize("value", [
    "bytes=" + ",".join(f"{n * 10}-{n * 10 + 1}" for n in range(51)),
    "bytes=0-100,50-60,55-70,58-80",
    "bytes=" + ",".join(f"{n * 10}-{n * 10 + 1}" for n in range(9, 0, -1)),
])
def test_security_S44_egregious_ranges_are_refused_live(account: Account, held: str, value: str) -> None:
    answer = account.get(held, "o", headers={"Range": value})
    assert (answer.status, answer.headers["Content-Range"]) == (416, f"bytes */{SIZE}")


@pytest.mark.parametrize(("value", "status"), [("bytes=-5", 200), ("bytes=0-", 416), ("bytes=0-5", 416), ("bytes=oops", 200)])
def test_ranges_of_an_empty_object(account: Account, held: str, value: str, status: int) -> None:
    answer = account.get(held, "empty", headers={"Range": value})
    assert answer.status == status
    assert status == 416 or answer.body == b""


def test_head_ignores_ranges(account: Account, held: str) -> None:
    answer = account.head(held, "o", headers={"Range": "bytes=0-4"})
    assert (answer.status, answer.headers["Content-Length"]) == (200, str(SIZE))


def test_random_ranges_agree_with_slices(account: Account, held: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with account.endpoint.connect() as connection:
        for _ in range(100):
            start = chance.randrange(SIZE)
            last = chance.randrange(start, SIZE + 100)
            answer = account.get(held, "o", headers={"Range": f"bytes={start}-{last}"}, connection=connection)
            assert (answer.status, answer.body) == (206, BODY[start:last + 1])


OTHER = "0" * 32
CONDITIONS = [  # headers, status of GET and HEAD
    ({"If-None-Match": ETAG}, 304), ({"If-None-Match": f'"{ETAG}"'}, 304), ({"If-None-Match": "*"}, 304),
    ({"If-None-Match": f'"{OTHER}", "{ETAG}"'}, 304), ({"If-None-Match": OTHER}, 200), ({"If-None-Match": f'W/"{ETAG}"'}, 200),
    ({"If-Match": ETAG}, 200), ({"If-Match": f'"{ETAG}"'}, 200), ({"If-Match": "*"}, 200), ({"If-Match": f"{OTHER},{ETAG}"}, 200),
    ({"If-Match": OTHER}, 412), ({"If-Match": f'"{OTHER}", "x"'}, 412),
    ({"If-Modified-Since": LONG_AGO}, 200), ({"If-Modified-Since": FAR_OFF}, 304), ({"If-Modified-Since": "SAME"}, 304),
    ({"If-Unmodified-Since": LONG_AGO}, 412), ({"If-Unmodified-Since": FAR_OFF}, 200), ({"If-Unmodified-Since": "SAME"}, 200),
    ({"If-Modified-Since": "yesterday"}, 200), ({"If-Unmodified-Since": "never"}, 200),
    # the first that applies wins
    ({"If-None-Match": ETAG, "If-Match": OTHER}, 304), ({"If-None-Match": OTHER, "If-Modified-Since": FAR_OFF}, 304),
    ({"If-Match": OTHER, "If-Modified-Since": FAR_OFF}, 412), ({"If-Match": ETAG, "If-Unmodified-Since": LONG_AGO}, 412),
    ({"If-Modified-Since": FAR_OFF, "If-Unmodified-Since": LONG_AGO}, 304),
]


@pytest.mark.parametrize(("conditions", "status"), CONDITIONS)
@pytest.mark.parametrize("verb", ["GET", "HEAD"])
def test_conditions(account: Account, held: str, conditions: dict[str, str], status: int, verb: str) -> None:
    date = account.head(held, "o").headers["Last-Modified"]
    headers = {name: date if value == "SAME" else value for name, value in conditions.items()}
    with account.endpoint.connect() as connection:
        answer = account.request(verb, held, "o", headers=headers, connection=connection)
        assert answer.status == status
        assert answer.body == (BODY if (status, verb) == (200, "GET") else b"")
        assert answer.headers["Etag"] == ETAG
        if status == 304:
            assert answer.headers["Last-Modified"] == date
        assert account.get(held, "o", connection=connection).body == BODY  # the connection goes on


def test_conditions_on_what_is_absent(account: Account, held: str) -> None:
    for verb in ("GET", "HEAD"):
        assert account.request(verb, held, "none", headers={"If-Match": "*"}).status == 412
        assert account.request(verb, held, "none", headers={"If-None-Match": "*"}).status == 404


def test_a_condition_comes_before_the_range(account: Account, held: str) -> None:
    answer = account.get(held, "o", headers={"Range": "bytes=0-4", "If-Match": ETAG})
    assert (answer.status, answer.body) == (206, BODY[:5])
    assert account.get(held, "o", headers={"Range": "bytes=0-4", "If-None-Match": ETAG}).status == 304
    assert account.get(held, "o", headers={"Range": "bytes=0-4", "If-Match": OTHER}).status == 412
    assert account.get(held, "o", headers={"Range": f"bytes={SIZE}-", "If-None-Match": ETAG}).status == 304


def test_put_only_when_absent(account: Account, container: str) -> None:
    only = {"If-None-Match": "*"}
    account.put(container, "o", body=b"first", headers=only).expect(201)
    for body in (b"second", b""):
        with account.endpoint.connect() as connection:
            account.put(container, "o", body=body, headers=only, connection=connection).expect(412)
        headers = {**only, "Transfer-Encoding": "chunked"}
        account.put(container, "o", body=iter([body] if body else []), headers=headers).expect(412)
    assert account.get(container, "o").body == b"first"
    account.put(container, "o", body=b"x", headers={"If-None-Match": OTHER}).expect(400)
    account.put(container, "o", body=b"third", headers={"If-Match": OTHER, "If-Modified-Since": FAR_OFF}).expect(201)
    account.delete(container, "o").expect(204)
    account.put(container, "o", body=b"again", headers=only).expect(201)


def test_last_modified_is_rounded_up(account: Account, container: str) -> None:
    put = account.put(container, "o", body=b"x").expect(201)
    head = account.head(container, "o")
    stamp = float(head.headers["X-Timestamp"])
    shown = parsedate_to_datetime(head.headers["Last-Modified"]).timestamp()
    assert 0 <= shown - stamp < 1
    assert put.headers["Last-Modified"] == head.headers["Last-Modified"] == formatdate(shown, usegmt=True)
    assert re.fullmatch(r"\d{10}\.\d{5}", head.headers["X-Timestamp"])


@pytest.mark.parametrize("verb", ["GET", "HEAD"])
def test_newest_is_answered_at_every_level(account: Account, held: str, verb: str) -> None:
    for names in ([], [held], [held, "o"]):
        account.request(verb, *names, headers={"X-Newest": "true"}).expect(200, 204)
    account.request(verb, held, "none", headers={"X-Newest": "true"}).expect(404)
