"""``keelstore-reconciler-enqueue``: have the reconciler look at an object that is, or may be, under the wrong policy.

Puts an entry into the queue of misplaced objects, on the replicas of its container (``spec: daemons 19, 25``), and prints the
name of that container.
"""

from __future__ import annotations

import time

import click

from keelstore.common import concurrency
from keelstore.common.backend import Backend
from keelstore.common.cluster import Cluster, load_cluster
from keelstore.common.errors import BackendError, KeelstoreError
from keelstore.common.headers import Headers
from keelstore.common.quorum import majority_size
from keelstore.common.ring.ring import Node, RingFile
from keelstore.common.timestamp import Timestamp
from keelstore.container import reconcile

TIMEOUT_S = 10.0


@click.command(context_settings={"ignore_unknown_options": False})
@click.argument("policy", required=False, default="")
@click.argument("path", required=False, default="")
@click.argument("timestamp", required=False, default="")
@click.option("-X", "--op", type=click.Choice(["PUT", "DELETE"]), default="PUT", help="What happened to it; default PUT.")
@click.option("-f", "--force", is_flag=True, help="Also when it was queued and carried out before.")
@click.option("--swift-dir", default="/etc/swift", help="Directory of the cluster file and the rings.")
def command(policy: str, path: str, timestamp: str, op: str, force: bool, swift_dir: str) -> None:
    """Queue /account/container/object, which was written under POLICY (name or number) at TIMESTAMP."""
    if not timestamp:
        raise click.ClickException("expected POLICY /account/container/object TIMESTAMP")
    try:
        cluster = load_cluster(swift_dir)
        found = cluster.policies.get(policy) if policy.isdigit() else cluster.policies.by_name(policy)
        if found is None:
            raise click.ClickException(f"there is no policy {policy!r}")
        parts = path.split("/", 3)
        if len(parts) != 4 or parts[0] or not all(parts[1:]):
            raise click.ClickException(f"expected /account/container/object, not {path!r}")
        try:
            when = Timestamp(timestamp)
        except ValueError:
            raise click.ClickException(f"{timestamp!r} is no timestamp") from None
        click.echo(enqueue(cluster, found.index, (parts[1], parts[2], parts[3]), when, op == "DELETE", force))
    except (KeelstoreError, OSError) as error:
        raise click.ClickException(str(error)) from None


def enqueue(cluster: Cluster, policy_index: int, names: tuple[str, str, str], when: Timestamp, is_delete: bool,
            force: bool = False) -> str:
    """The container of the queue that has the entry now. Raises BackendError when a majority of replicas did not take it."""
    account, container, obj = names
    row = {"name": obj, "created_at": when.internal, "deleted": 0, "storage_policy_index": policy_index}
    [(queue, [entry])] = reconcile.queue_rows(account, container, [row]).items()
    ring = RingFile(cluster.ring_path("container")).current()
    part = ring.partition(cluster.hash_path.digest(reconcile.ACCOUNT, queue))
    headers = Headers({
        "X-Timestamp": Timestamp(time.time()).internal if force else when.internal, "X-Size": "0", "X-Etag": entry["etag"],
        "X-Content-Type": reconcile.DELETE_TYPE if is_delete else reconcile.PUT_TYPE,
        "X-Backend-Storage-Policy-Index": "0", "User-Agent": "reconciler-enqueue"})  # fmt: skip
    backend = Backend(conn_timeout_s=TIMEOUT_S)
    path = f"{part}/{reconcile.ACCOUNT}/{queue}/{entry['name']}"

    def put(node: Node) -> str:
        try:
            answer = backend.call(node.replication_address, "PUT", f"/{node.device}/{path}", headers, timeout_s=TIMEOUT_S)
            answer.drain()
            return "" if answer.is_success else f"{node.key} answered {answer.status}"
        except BackendError as error:
            return f"{node.key}: {error}"

    nodes = ring.primaries(part)
    tasks = [concurrency.spawn(put, node) for node in nodes]
    problems = [problem for problem in (task.wait() for task in tasks) if problem]
    backend.close()
    if len(nodes) - len(problems) < majority_size(len(nodes)):
        raise BackendError("too few replicas of the queue took the entry: " + "; ".join(problems))
    return queue


def main() -> int:
    try:
        command(standalone_mode=False)
    except click.ClickException as error:
        click.echo(f"ERROR: {' '.join(error.format_message().split())}", err=True)
        return 1
    except click.exceptions.Abort:
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
