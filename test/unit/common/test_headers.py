from hypothesis import given
from hypothesis import strategies as st

from keelstore.common.headers import (
    Headers,
    environ_key,
    header_of,
    is_sysmeta,
    is_transient_sysmeta,
    is_true,
    is_user_meta,
    text_to_wire,
    title,
    wire_to_text,
)


def test_names_are_title_cased_on_ascii_letters_only():
    assert title("x-object-meta-COLOUR") == "X-Object-Meta-Colour"
    assert title("x-object-meta-\xe9\xdf") == "X-Object-Meta-\xe9\xdf"
    assert environ_key("x-object-meta-\xff\xb5") == "HTTP_X_OBJECT_META_\xff\xb5"
    assert header_of("HTTP_X_FOO") == "X-Foo" and header_of("CONTENT_TYPE") == "Content-Type" and header_of("wsgi.x") is None


def test_lookups_take_any_case_and_none_deletes():
    headers = Headers({"etag": "x", "X-A": 5})
    assert headers["ETag"] == "x" and headers["x-a"] == "5" and "ETAG" in headers
    headers["etag"] = None
    assert "Etag" not in headers and headers.get("etag") is None
    assert list(Headers([("b", "1"), ("a", "2")])) == ["B", "A"]


@given(st.binary(max_size=40))
def test_octets_survive_text_and_wire(octets):
    wire = octets.decode("latin-1")
    assert text_to_wire(wire_to_text(wire)) == wire


def test_metadata_predicates_want_something_after_the_prefix():
    assert is_user_meta("object", "X-Object-Meta-A") and not is_user_meta("object", "X-Object-Meta-")
    assert is_sysmeta("container", "x-container-sysmeta-a") and not is_sysmeta("account", "x-container-sysmeta-a")
    assert is_transient_sysmeta("X-Object-Transient-Sysmeta-A")


def test_truth_is_the_fields():
    assert all(is_true(v) for v in ("true", "1", "YES", "on", "t", "Y", True))
    assert not any(is_true(v) for v in ("", None, "2", "enabled", 1, False))


def test_names_of_s3_metadata_keep_their_underscores() -> None:
    assert environ_key("x-amz-meta-a_b-c") == "HTTP_X_AMZ_META_A=5FB_C"
    assert environ_key("x-amz-meta-a-b-c") == "HTTP_X_AMZ_META_A_B_C"
    assert environ_key("x_other_a") == "HTTP_X_OTHER_A"
