"""What a bucket lets be public: its public access block (``spec: s3-api 3.17``). Pure; kept as the names of what is on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from keelstore.common.info import ContainerInfo

# Names of the elements, in order, and of the fields that hold them.
ELEMENTS: Final = {
    "BlockPublicAcls": "block_public_acls",
    "IgnorePublicAcls": "ignore_public_acls",
    "BlockPublicPolicy": "block_public_policy",
    "RestrictPublicBuckets": "restrict_public_buckets",
}
SEPARATOR: Final = ","


@dataclass(frozen=True)
class PublicAccess:
    """``block_*``: what makes public cannot be set. ``ignore_public_acls``: grants to groups do not count.
    ``restrict_public_buckets``: what a public policy allows is for users of the bucket's account only."""

    block_public_acls: bool = False
    ignore_public_acls: bool = False
    block_public_policy: bool = False
    restrict_public_buckets: bool = False

    def encode(self) -> str:
        """Never empty: an empty value would be none."""
        return SEPARATOR.join(name for name, field in ELEMENTS.items() if getattr(self, field)) or "-"


NO_BLOCK: Final = PublicAccess()


def decode(text: str | None) -> PublicAccess | None:
    """What ``encode`` made; None where nothing is set."""
    if not text:
        return None
    names = text.split(SEPARATOR)
    return PublicAccess(**{field: name in names for name, field in ELEMENTS.items()})


def public_access_of(info: ContainerInfo) -> PublicAccess:
    text = info.sysmeta.get("s3api-public-access-block")
    return NO_BLOCK if text is None else decode(text) or NO_BLOCK
