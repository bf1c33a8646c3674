"""ACLs as S3 clients write them: the document ``AccessControlPolicy``, and ``x-amz-grant-*`` headers (``spec: s3-api 2.8``).

Pure but for the errors. Who a user is cannot be known here: ``Grant.is_user`` of what was read is the caller's to check.
"""

from __future__ import annotations

import re
from typing import Final

from keelstore.common.middleware.s3api import xml
from keelstore.common.middleware.s3api.acl import GROUP_URIS, GROUPS, PERMISSIONS, Acl, Grant
from keelstore.common.middleware.s3api.errors import S3Error

MAX_GRANTS: Final = 100
MAX_ENCODED: Final = 7168  # bytes of what is kept, which is one header
GRANT_HEADERS: Final = {
    "X-Amz-Grant-Read": "READ",
    "X-Amz-Grant-Read-Acp": "READ_ACP",
    "X-Amz-Grant-Write": "WRITE",
    "X-Amz-Grant-Write-Acp": "WRITE_ACP",
    "X-Amz-Grant-Full-Control": "FULL_CONTROL",
}
_GRANTEE = re.compile(r'\s*([A-Za-z]+)\s*=\s*(?:"([^"]*)"|([^",\s]+))\s*(?:,|\Z)')


def parse(document: xml.Element) -> Acl:
    """The ACL that a document describes; the order of elements does not matter. Raises S3Error."""
    owner, grants = document.find("Owner"), document.find("AccessControlList")
    if document.name != "AccessControlPolicy" or owner is None or grants is None or not owner.value("ID"):
        raise S3Error("MalformedACLError")
    found = tuple(_grant(element) for element in grants.children("Grant"))
    return checked_size(Acl(owner.value("ID"), found))


def _grant(element: xml.Element) -> Grant:
    grantee, permission = element.find("Grantee"), element.value("Permission")
    if grantee is None or permission not in PERMISSIONS:
        raise S3Error("MalformedACLError")
    kind = (grantee.attribute("type", xml.XSI) or "").rpartition(":")[2]
    if kind == "CanonicalUser":
        return Grant(_user(grantee.value("ID") or ""), permission)
    if kind == "Group":
        return Grant(_group(grantee.value("URI") or ""), permission)
    if kind == "AmazonCustomerByEmail":
        raise _no_mail(grantee.value("EmailAddress") or "")
    raise S3Error("MalformedACLError")


def parse_grants(permission: str, text: str) -> list[Grant]:
    """The grants of one header: ``id="..."``, ``uri="..."``, ``emailAddress="..."``, with commas between. Raises S3Error."""
    found: list[Grant] = []
    text, place = text.strip(), 0
    while place < len(text):
        match = _GRANTEE.match(text, place)
        if match is None:
            raise S3Error("InvalidArgument", "Argument format not recognized", ArgumentValue=text)
        kind, value = match[1].lower(), match[2] if match[2] is not None else match[3]
        if kind == "id":
            found.append(Grant(_user(value), permission))
        elif kind == "uri":
            found.append(Grant(_group(value), permission))
        elif kind == "emailaddress":
            raise _no_mail(value)
        else:
            raise S3Error("InvalidArgument", "Argument format not recognized", ArgumentValue=text)
        place = match.end()
    return found


def checked_size(found: Acl) -> Acl:
    if len(found.grants) > MAX_GRANTS or len(found.encode()) > MAX_ENCODED:
        raise S3Error("MalformedACLError", f"The ACL has more than {MAX_GRANTS} grants, or names that are too long.")
    return found


def _user(name: str) -> str:
    """A user is ``account:user``, or ``project:user``: never mistaken for a group's name."""
    if ":" not in name or not name.isprintable():
        raise unknown_user(name)
    return name


def unknown_user(name: str) -> S3Error:
    return S3Error("InvalidArgument", "Invalid id", ArgumentName="CanonicalUser/ID", ArgumentValue=name)


def _group(uri: str) -> str:
    name = GROUPS.get(uri)
    if name is None:
        raise S3Error("InvalidArgument", "Invalid group uri", ArgumentName="uri", ArgumentValue=uri)
    return name


def _no_mail(address: str) -> S3Error:
    """Users have no addresses here."""
    return S3Error("UnresolvableGrantByEmailAddress", Email=address)


def write(found: Acl) -> bytes:
    owner = found.owner or ""
    writer = xml.Writer("AccessControlPolicy").owner(owner).open("AccessControlList")
    for grant in sorted(found.grants, key=lambda grant: grant.grantee not in GROUP_URIS):  # groups first, as others do
        uri = GROUP_URIS.get(grant.grantee)
        kind = "Group" if uri else "CanonicalUser"
        writer.open("Grant").open("Grantee", f' xmlns:xsi="{xml.XSI}" xsi:type="{kind}"')
        if uri:
            writer.leaf("URI", uri)
        else:
            writer.leaf("ID", grant.grantee).leaf("DisplayName", grant.grantee)
        writer.close().leaf("Permission", grant.permission).close()
    return writer.to_bytes()
