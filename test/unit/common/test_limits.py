import pytest

from keelstore.common.errors import BadRequest, EntityTooLarge, PreconditionFailed
from keelstore.common.http import Request
from keelstore.common.limits import (
    Limits,
    check_merged_metadata,
    check_metadata,
    check_name_length,
    check_request,
    check_size,
    is_utf8,
    is_valid_text,
    listing_limit,
)

LIMITS = Limits()


def meta(count=1, name=10, value=10, level="object"):
    return [(f"X-{level}-Meta-{i:0{name}d}", "v" * value) for i in range(count)]


@pytest.mark.parametrize("kwargs", [{}, {"count": 90}, {"name": 128}, {"value": 256}, {"count": 16, "name": 100, "value": 156}])
def test_metadata_at_the_limit_is_allowed(kwargs):
    check_metadata(LIMITS, "object", meta(**kwargs))


@pytest.mark.parametrize("kwargs", [{"count": 91}, {"name": 129}, {"value": 257}, {"count": 16, "name": 100, "value": 157}])
def test_metadata_beyond_the_limit_is_refused(kwargs):
    with pytest.raises(BadRequest):
        check_metadata(LIMITS, "object", meta(**kwargs))


@pytest.mark.parametrize(
    "items", [[("X-Object-Meta-", "v")], [("X-Foo", "v" * 8193)], [("X-Container-Meta-A", "\xff")], [("X-Container-Meta-\xff", "a")]]
)
def test_other_bad_headers_are_refused(items):
    with pytest.raises(BadRequest):
        check_metadata(LIMITS, "container" if "Container" in items[0][0] else "object", items)


def test_object_metadata_need_not_be_utf8():
    check_metadata(LIMITS, "object", [("X-Object-Meta-\xff", "\xff")])


def test_security_S13_the_merged_set_is_bounded():
    check_merged_metadata(LIMITS, "account", {f"X-Account-Meta-{i}": "v" for i in range(90)} | {"X-Account-Meta-Gone": ""})
    with pytest.raises(BadRequest):
        check_merged_metadata(LIMITS, "account", {f"X-Account-Meta-{i}": "v" for i in range(91)})
    with pytest.raises(BadRequest):
        check_merged_metadata(LIMITS, "account", {f"X-Account-Meta-{i}": "v" * 256 for i in range(17)})


def test_names_are_counted_in_characters_and_double_for_system_accounts():
    check_name_length(LIMITS, "object", "ü" * 1024)
    check_name_length(LIMITS, "container", "c" * 512, ".a")
    check_name_length(LIMITS, "account", "." + "a" * 511)
    for level, name, account in (("object", "o" * 1025, "a"), ("container", "c" * 257, "a"), ("account", "a" * 257, "")):
        with pytest.raises(BadRequest):
            check_name_length(LIMITS, level, name, account)


def test_sizes():
    check_size(LIMITS, None)
    check_size(LIMITS, LIMITS.max_file_size)
    with pytest.raises(EntityTooLarge):
        check_size(LIMITS, LIMITS.max_file_size + 1)


@pytest.mark.parametrize(("text", "limit"), [(None, 9), ("", 9), ("x", 9), ("-1", 9), ("0", 0), ("9", 9), ("٣", 9), ("1.5", 9)])
def test_a_limit_that_is_no_number_is_ignored(text, limit):
    assert listing_limit(text, 9) == limit


@pytest.mark.parametrize("text", ["10", "9" * 50])
def test_a_limit_too_large_is_refused(text):
    with pytest.raises(PreconditionFailed):
        listing_limit(text, 9)


def test_text_validity():
    assert is_utf8("a") and is_utf8("\xc3\xa9") and not is_utf8("\xe9") and not is_utf8("\x00")
    assert is_valid_text("é") and not is_valid_text("\udcff") and not is_valid_text("\x00") and is_valid_text("\x00", internal=True)


@pytest.mark.parametrize("environ", [
    {}, {"HTTP_X_OBJECT_META_A": "v"}, {"HTTP_X_OBJECT_META_A": "v" * 257}, {"HTTP_X_OBJECT_META_": "v"},
    {"HTTP_X_OTHER": "v" * 8192}, {"HTTP_X_OTHER": "v" * 8193}, {"CONTENT_TYPE": "v" * 8193}, {"wsgi.input": 5, "OTHER": "v" * 8193},
    {f"HTTP_X_OBJECT_META_{number}": "v" for number in range(91)}, {f"HTTP_X_CONTAINER_META_{number}": "v" for number in range(91)},
])  # fmt: skip
def test_the_headers_of_a_request_are_judged_as_their_items(environ):
    request = Request(environ)
    for level in ("account", "container", "object"):
        outcomes = []
        for check in (lambda own: check_request(LIMITS, own, request),
                      lambda own: check_metadata(LIMITS, own, request.header_items())):
            try:
                outcomes.append(check(level))
            except BadRequest as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1]
