"""Which of two replicas of a container has the right storage policy (``spec: backend-protocol 6.1``). Pure.

Two nodes may create one container at the same time with different policies, or one may miss that it was deleted and created
again. All nodes must come to the same answer, whoever compares.
"""

from __future__ import annotations

from dataclasses import dataclass

from keelstore.common.timestamp import Timestamp


@dataclass(frozen=True, slots=True)
class PolicyClaim:
    """What one replica knows that bears on the policy."""

    policy_index: int
    put_timestamp: Timestamp
    delete_timestamp: Timestamp
    status_changed_at: Timestamp
    object_count: int

    @property
    def is_deleted(self) -> bool:
        return self.delete_timestamp > self.put_timestamp and not self.object_count

    @property
    def is_recreated(self) -> bool:
        return self.put_timestamp > self.delete_timestamp > Timestamp(0)


def remote_wins(local: PolicyClaim, remote: PolicyClaim) -> bool:
    """Whether the remote's policy is the container's; at full equality the lower index is.

    A live one wins over a deleted one; of two deleted the later change. Of two live ones, one that was created again wins; of
    two such, one whose put is older than the last delete anybody knows loses; otherwise the earlier change wins.
    """
    if local.is_deleted != remote.is_deleted:
        return local.is_deleted
    if local.is_deleted:
        if local.status_changed_at != remote.status_changed_at:
            return remote.status_changed_at > local.status_changed_at
        return remote.policy_index < local.policy_index
    if local.is_recreated != remote.is_recreated:
        return remote.is_recreated
    if local.is_recreated:
        last_delete = max(local.delete_timestamp, remote.delete_timestamp)
        is_local_stale, is_remote_stale = local.put_timestamp < last_delete, remote.put_timestamp < last_delete
        if is_local_stale != is_remote_stale:
            return is_local_stale
    if local.status_changed_at != remote.status_changed_at:
        return remote.status_changed_at < local.status_changed_at
    return remote.policy_index < local.policy_index
