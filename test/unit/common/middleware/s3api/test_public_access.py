from hypothesis import given
from hypothesis import strategies as st

from keelstore.common.info import ContainerInfo
from keelstore.common.middleware.s3api.ownership import ENFORCED, ownership_of
from keelstore.common.middleware.s3api.public_access import NO_BLOCK, PublicAccess, decode, public_access_of


@given(st.builds(PublicAccess, st.booleans(), st.booleans(), st.booleans(), st.booleans()))
def test_what_is_kept_is_read_again(found: PublicAccess) -> None:
    assert found.encode() and decode(found.encode()) == found
    assert public_access_of(ContainerInfo(sysmeta={"s3api-public-access-block": found.encode()})) == found


def test_nothing_is_blocked_where_nothing_is_set() -> None:
    assert public_access_of(ContainerInfo()) is NO_BLOCK and decode("") is None
    assert PublicAccess().encode() and decode(PublicAccess().encode()) is not None  # set, and all off


def test_ownership_is_one_of_three_words() -> None:
    assert ownership_of(ContainerInfo(sysmeta={"s3api-ownership": ENFORCED})) == ENFORCED
    assert ownership_of(ContainerInfo(sysmeta={"s3api-ownership": "Nobody"})) == ownership_of(ContainerInfo()) == ""
