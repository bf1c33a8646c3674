import pytest

from keelstore.common.errors import ConfigError
from keelstore.common.names import (
    ApiPath,
    HashPath,
    api_path,
    database_file,
    partition_of,
    quoted,
    reserved_name,
    reserved_problem,
    split_reserved,
    storage_path,
)


def test_the_digest_is_md5_of_prefix_path_and_suffix():
    assert HashPath(b"p", b"s").hexdigest("a", "c", "o") == "91d0b237560f13fca7c508fc70af8535"


def test_names_are_hashed_as_utf8_and_foreign_octets_as_themselves():
    hashing = HashPath(b"", b"x")
    assert hashing.digest("ключ") == hashing.digest(b"\xd0\xba\xd0\xbb\xd1\x8e\xd1\x87".decode())
    assert len(hashing.digest(b"\xff".decode("utf-8", "surrogateescape"))) == 16


def test_an_object_needs_a_container():
    with pytest.raises(ValueError):
        HashPath(b"p", b"s").digest("a", None, "o")


def test_a_cluster_without_secret_is_refused():
    with pytest.raises(ConfigError):
        HashPath(b"", b"")


def test_partition_is_the_top_bits():
    assert partition_of(bytes.fromhex("ff800000" + "0" * 24), 22) == 1022
    assert database_file("/srv/d1/containers/5/abc/00abc") == "/srv/d1/containers/5/abc/00abc/00abc.db"
    assert storage_path("objects-1", 5, "0" * 29 + "abc") == f"objects-1/5/abc/{'0' * 29}abc"


def test_quoting_keeps_slashes_and_encodes_octets():
    assert quoted("a b/ü%?") == "a%20b/%C3%BC%25%3F"


def test_reserved_names():
    assert split_reserved(reserved_name("a", "b"), 2) == ["a", "b"]
    with pytest.raises(ValueError):
        reserved_name("a\x00")
    with pytest.raises(ValueError):
        split_reserved("a\x00b", 2)


@pytest.mark.parametrize(
    ("names", "is_fine"),
    [
        (("a", "c", "o"), True),
        (("a", "\x00c", "\x00o"), True),
        (("a", "c", "\x00o"), False),
        (("a", "\x00c", "o"), False),
        ((".a", "\x00c", "o"), True),
        ((".misplaced_objects", "1699999200", "1:/a/\x00c/\x00o"), True),
        ((".misplaced_objects", "1699999200\x00", None), False),
        (("a", "c\x00", None), False),
        (("a\x00", None, None), False),
    ],
)
def test_reserved_and_user_names_do_not_mix(names, is_fine):
    assert (reserved_problem(*names) is None) == is_fine


@pytest.mark.parametrize("path,expected", [
    ("/v1/a", ApiPath("v1", "a")),
    ("/v1/a/", ApiPath("v1", "a")),
    ("/v1/a/c", ApiPath("v1", "a", "c")),
    ("/v1/a/c/", ApiPath("v1", "a", "c")),
    ("/v1/a/c/o/p/", ApiPath("v1", "a", "c", "o/p/")),
    ("/v1/a/c//o", ApiPath("v1", "a", "c", "/o")),
    ("/v1/\xc3\xa9/c/\xff", ApiPath("v1", "\xe9", "c", "\udcff")),
    *((path, ApiPath()) for path in ("", "/", "/info", "/v1", "/v1/", "//a", "/v1//c", "/v1/a//o", "v1/a/c/o", "*")),
])
def test_api_path(path: str, expected: ApiPath) -> None:
    assert api_path(path) == expected
