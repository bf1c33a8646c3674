from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from keelstore.common.timestamp import Timestamp
from keelstore.container.policy_rule import PolicyClaim, remote_wins


def claim(index, put=1, delete=0, changed=1, count=0):
    return PolicyClaim(index, Timestamp(put), Timestamp(delete), Timestamp(changed), count)


def test_each_rule():
    live, dead = claim(0), claim(1, put=1, delete=2)
    assert not remote_wins(live, dead) and remote_wins(dead, live)
    assert remote_wins(claim(0, 1, 2, changed=2), claim(1, 1, 2, changed=3))  # both deleted: the later change
    assert remote_wins(claim(0, changed=5), claim(1, changed=3))  # both live: the earlier
    assert remote_wins(claim(0), claim(1, put=5, delete=3, changed=9))  # created again
    assert remote_wins(claim(0, put=3, delete=2, changed=1), claim(1, put=9, delete=5, changed=9))  # missed a delete
    assert not remote_wins(claim(0, put=9, delete=5, changed=9), claim(1, put=3, delete=2, changed=1))


claims = st.builds(
    claim, st.integers(0, 2), st.integers(0, 3), st.integers(0, 3), st.integers(1, 3), st.integers(0, 1))


@given(claims, claims)
def test_both_sides_come_to_the_same_policy(one, other):
    winner = other if remote_wins(one, other) else one
    assert winner.policy_index == (one if remote_wins(other, one) else other).policy_index
