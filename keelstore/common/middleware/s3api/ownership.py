"""Who owns the objects of a bucket: its ownership controls (``spec: s3-api 3.17``). Pure; kept as one word."""

from __future__ import annotations

from typing import Final

from keelstore.common.info import ContainerInfo

ENFORCED: Final = "BucketOwnerEnforced"  # the bucket's owner, always: ACLs do not count and cannot be set
PREFERRED: Final = "BucketOwnerPreferred"  # the bucket's owner, where the writer gives him full control
WRITER: Final = "ObjectWriter"
ALL: Final = (ENFORCED, PREFERRED, WRITER)


def ownership_of(info: ContainerInfo) -> str:
    """One of ALL; '' where nobody has chosen, which is like WRITER."""
    found = info.sysmeta.get("s3api-ownership", "")
    return found if found in ALL else ""
