import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common.middleware.s3api import acl, acl_xml, xml
from keelstore.common.middleware.s3api.errors import S3Error

USERS = st.tuples(st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S"]), min_size=1), st.text(max_size=5)).map(
    lambda parts: f"{parts[0]}:{''.join(char for char in parts[1] if char.isprintable())}"
)
GRANTS = st.builds(acl.Grant, USERS | st.sampled_from(sorted(acl.GROUP_URIS)), st.sampled_from(acl.PERMISSIONS))


@given(USERS, st.lists(GRANTS, max_size=6))
def test_what_is_written_is_read_again(owner: str, grants: list[acl.Grant]) -> None:
    found = acl_xml.parse(xml.parse(acl_xml.write(acl.Acl(owner, tuple(grants)))))
    assert found.owner == owner
    assert sorted(found.grants, key=repr) == sorted(grants, key=repr)


GRANT = (
    '<Grant><Permission>{right}</Permission><Grantee xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" '
    'xsi:type="{kind}">{more}</Grantee></Grant>'
)


def document(right: str = "READ", kind: str = "CanonicalUser", more: str = "<ID>a:b</ID>", owner: str = "<ID>o:o</ID>") -> bytes:
    grant = GRANT.format(right=right, kind=kind, more=more)
    return (
        f"<AccessControlPolicy><AccessControlList>{grant}</AccessControlList><Owner>{owner}</Owner></AccessControlPolicy>"
    ).encode()


def test_children_in_any_order_and_without_namespace() -> None:
    assert acl_xml.parse(xml.parse(document())) == acl.Acl("o:o", (acl.Grant("a:b", "READ"),))


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"<Other/>", "MalformedACLError"),
        (b"<AccessControlPolicy/>", "MalformedACLError"),
        (b"<AccessControlPolicy><Owner><ID>a:b</ID></Owner></AccessControlPolicy>", "MalformedACLError"),
        (document(right="SPEAK"), "MalformedACLError"),
        (document(kind="Stranger"), "MalformedACLError"),
        (document(owner=""), "MalformedACLError"),
        (document(more=""), "InvalidArgument"),
        (document(more="<ID>AllUsers</ID>"), "InvalidArgument"),  # a group's name is no user's
        (document(kind="Group", more="<URI>AllUsers</URI>"), "InvalidArgument"),
        (document(kind="AmazonCustomerByEmail", more="<EmailAddress>a@b</EmailAddress>"), "UnresolvableGrantByEmailAddress"),
    ],
)
def test_documents_that_are_refused(data: bytes, code: str) -> None:
    with pytest.raises(S3Error) as caught:
        acl_xml.parse(xml.parse(data))
    assert caught.value.code == code


def test_an_acl_that_does_not_fit_into_a_header_is_refused() -> None:
    for found in (acl.Acl("a:b", (acl.Grant("a:b", "READ"),) * 101), acl.Acl("a:b", (acl.Grant("a:" + "b" * 8000, "READ"),))):
        with pytest.raises(S3Error):
            acl_xml.checked_size(found)


@pytest.mark.parametrize(
    ("text", "grantees"),
    [
        ('id="a:b"', ["a:b"]),
        ("id=a:b", ["a:b"]),
        ('id="a:b", id="c:d"', ["a:b", "c:d"]),
        ('id="a:b",uri="http://acs.amazonaws.com/groups/global/AllUsers" ', ["a:b", "AllUsers"]),
        (' ID = "a:b" , ', ["a:b"]),
        ("", []),
    ],
)
def test_grants_in_headers(text: str, grantees: list[str]) -> None:
    assert acl_xml.parse_grants("READ", text) == [acl.Grant(name, "READ") for name in grantees]


@pytest.mark.parametrize("text", ["a:b", "id=", 'id="a:b" id="c:d"', "id=AllUsers", 'name="a:b"', 'id="a:b', "uri=a:b", ",", "=" * 9])
def test_grants_in_headers_that_are_refused(text: str) -> None:
    with pytest.raises(S3Error) as caught:
        acl_xml.parse_grants("READ", text)
    assert caught.value.code == "InvalidArgument"


@given(st.text())
def test_any_header_is_read_or_refused(text: str) -> None:
    try:
        acl_xml.parse_grants("READ", text)
    except S3Error as error:
        assert error.status == 400


PIECES = st.sampled_from(
    ["<AccessControlPolicy>", "</AccessControlPolicy>", "<Owner>", "</Owner>", "<ID>", "</ID>", "a:b", "<AccessControlList>", "</AccessControlList>",
     "<Grant>", "</Grant>", "<Grantee ", "</Grantee>", 'xsi:type="Group"', 'xmlns:xsi="x"', ">", "<Permission>READ</Permission>", "<!-- -->",
     "<?a b?>", "&amp;", "<URI/>", "\x00"]
)  # fmt: skip


@given(st.lists(PIECES, max_size=16).map("".join) | st.text())
def test_any_document_is_read_or_refused(text: str) -> None:
    try:
        acl_xml.parse(xml.parse(text.encode("utf-8", "surrogatepass")))
    except xml.XmlError:
        pass
    except S3Error as error:
        assert error.status == 400
