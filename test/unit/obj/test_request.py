from __future__ import annotations

import pytest

from keelstore.common.errors import BadRequest
from keelstore.common.headers import Headers
from keelstore.common.http import Request
from keelstore.common.timestamp import Timestamp
from keelstore.obj import request as requests
from keelstore.obj.fileset import Preference

T = Timestamp("1700000000.00000")


def test_metadata_of_put_and_post():
    environ = {
        "HTTP_X_OBJECT_META_COLOUR": "1", "HTTP_X_OBJECT_SYSMETA_S": "2", "HTTP_X_OBJECT_TRANSIENT_SYSMETA_T": "3",
        "HTTP_X_OBJECT_MANIFEST": "4", "HTTP_X_OBJECT_META_": "5", "HTTP_X_OTHER": "6", "CONTENT_TYPE": "x",
    }  # fmt: skip
    assert requests.put_metadata(environ) == {
        "X-Object-Meta-Colour": "1", "X-Object-Sysmeta-S": "2", "X-Object-Transient-Sysmeta-T": "3"}
    assert requests.post_metadata(environ) == {"X-Object-Meta-Colour": "1", "X-Object-Transient-Sysmeta-T": "3"}


def test_allowed_headers_never_hold_what_describes_the_body():
    allowed = requests.AllowedHeaders(["Cache-Control", "content-length", "ETag", "deleted", " x-robots-tag "])
    assert allowed.names == frozenset({"Cache-Control", "X-Robots-Tag"})
    assert allowed.of({"HTTP_CACHE_CONTROL": "a", "HTTP_ETAG": "b", "CONTENT_LENGTH": "5"}) == {"Cache-Control": "a"}


def test_replicator_names_more_headers():
    environ = {"HTTP_X_BACKEND_REPLICATION_HEADERS": "x-one ETAG content-length X-None", "HTTP_X_ONE": "1", "HTTP_ETAG": "2",
               "CONTENT_LENGTH": "3"}
    assert requests.AllowedHeaders([]).of(environ) == {"X-One": "1"}


def test_overrides_have_an_order():
    environ = {
        "HTTP_X_BACKEND_CONTAINER_UPDATE_OVERRIDE_ETAG": "h", "HTTP_X_BACKEND_CONTAINER_UPDATE_OVERRIDE_SIZE": "1",
        "HTTP_X_OBJECT_SYSMETA_CONTAINER_UPDATE_OVERRIDE_SIZE": "2",
    }  # fmt: skip
    assert requests.update_overrides(environ, None) == {"X-Etag": "h", "X-Size": "2"}
    footer = Headers({"X-Backend-Container-Update-Override-Etag": "f", "X-Backend-Container-Update-Override-Size": "3"})
    assert requests.update_overrides(environ, footer) == {"X-Etag": "f", "X-Size": "2"}
    footer = Headers({"X-Object-Sysmeta-Container-Update-Override-Etag": "s"})
    assert requests.update_overrides(environ, footer) == {"X-Etag": "s", "X-Size": "2"}
    assert requests.stored_overrides({"X-Object-Sysmeta-Container-Update-Override-Etag": "s", "X-Other": "o"}) == {"X-Etag": "s"}


@pytest.mark.parametrize(
    ("environ", "stored"),
    [
        ({}, None), ({"HTTP_X_DELETE_AT": "1700000001"}, "1700000001"), ({"HTTP_X_DELETE_AT": " 99999999999 "}, "9999999999"),
        ({"HTTP_X_DELETE_AFTER": "60"}, "1700000060"), ({"HTTP_X_DELETE_AFTER": "60", "HTTP_X_DELETE_AT": "junk"}, "1700000060"),
        ({"HTTP_X_DELETE_AT": "5", "HTTP_X_BACKEND_REPLICATION": "true"}, "0000000005"),
    ],
)  # fmt: skip
def test_expiry_that_is_stored(environ, stored):
    requests.check_delete_at(Request(environ), T)
    assert environ.get("HTTP_X_DELETE_AT") == stored


@pytest.mark.parametrize(
    "environ",
    [
        {"HTTP_X_DELETE_AT": value} for value in ("", "x", "1.5", "1700000000", "0", "-1", "\u0661\u0662", "9" * 50, "1e9", "0x10")
    ] + [{"HTTP_X_DELETE_AFTER": value} for value in ("", "x", "0", "-1", "1.5")],
)  # fmt: skip
def test_expiry_that_is_refused(environ):
    with pytest.raises(BadRequest, match="Delete-A"):
        requests.check_delete_at(Request(environ), T)


def test_content_type_time():
    assert requests.content_type_timestamp({}, T) is None
    assert requests.content_type_timestamp({"CONTENT_TYPE": "x/y"}, T) == T
    given = {"CONTENT_TYPE": "x/y", "HTTP_CONTENT_TYPE_TIMESTAMP": "1600000000.00000"}
    assert requests.content_type_timestamp(given, T) == Timestamp(1600000000)
    with pytest.raises(BadRequest):
        requests.content_type_timestamp({"CONTENT_TYPE": "x/y", "HTTP_CONTENT_TYPE_TIMESTAMP": "junk"}, T)


@pytest.mark.parametrize(("text", "expected"), [(None, None), ("", None), ("10", 10), ("32", 32)])
def test_next_part_power(text, expected):
    assert requests.next_part_power({"HTTP_X_BACKEND_NEXT_PART_POWER": text} if text is not None else {}) == expected


@pytest.mark.parametrize("text", ["x", "0", "33", "-1", "1" * 40])
def test_next_part_power_that_is_refused(text):
    with pytest.raises(BadRequest):
        requests.next_part_power({"HTTP_X_BACKEND_NEXT_PART_POWER": text})


def test_fragment_preferences():
    def parse(text: str) -> list[Preference] | None:
        return requests.preferences({"HTTP_X_BACKEND_FRAGMENT_PREFERENCES": text})

    assert requests.preferences({}) is None and parse("[]") == []
    assert parse('[{"timestamp": "1700000000.00000", "exclude": [1, 2]}, {"timestamp": "1700000000.00000"}]') == [
        Preference(T, frozenset({1, 2})), Preference(T, frozenset())]
    for text in ("x", "{}x", "[1]", '[{"exclude": []}]', '[{"timestamp": "x"}]', '[{"timestamp": "1", "exclude": ["a"]}]', "5",
                 "[" * 16000, "[" * 20000):  # fmt: skip
        with pytest.raises(BadRequest):
            parse(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("text/plain", ("text/plain", None)), ("text/plain;swift_bytes=5", ("text/plain", "5")),
        ("text/plain; charset=x; swift_bytes=5;a=b", ("text/plain; charset=x;a=b", "5")),
    ],
)  # fmt: skip
def test_swift_bytes(text, expected):
    assert requests.swift_bytes_of(text) == expected
