"""Stands in for the replicators of databases until they are there: every replica gets all rows of every other."""

from __future__ import annotations

import json
import os
import shutil
from typing import Any

from keelstore.common.broker import DatabaseNotFound
from keelstore.common.errors import BackendError
from keelstore.common.headers import Headers
from keelstore.common.names import storage_path
from test.simulation import disks
from test.simulation.cluster import Node, SimCluster
from test.simulation.network import SimBackend


def replicate(cluster: SimCluster, node: Node, kind: str) -> None:
    app = node.apps[kind]
    ring = getattr(node.apps["proxy"].rings, kind).current()
    backend = SimBackend(cluster.network, node.index)
    for device in node.device_names:
        top = f"{node.devices}/{device}/{kind}s"
        for partition in sorted(os.listdir(top)) if os.path.isdir(top) else ():
            for suffix in sorted(name for name in os.listdir(f"{top}/{partition}") if len(name) == 3):
                for name in sorted(os.listdir(f"{top}/{partition}/{suffix}")):
                    if os.path.exists(f"{top}/{partition}/{suffix}/{name}/{name}.db"):
                        _one(cluster, node, app, ring, backend, device, kind, int(partition), name)


def _one(cluster: SimCluster, node: Node, app: Any, ring: Any, backend: SimBackend, device: str, kind: str, partition: int,
         name: str) -> None:
    path = f"{node.devices}/{device}/{storage_path(kind + 's', str(partition), name)}/{name}.db"
    broker = app.make_broker(path, f"{node.devices}/{device}")
    try:
        broker.merge_pending()
        info = broker.read(broker.info_dict)
        rows = broker.read(lambda connection: broker.rows_since(connection, -1, 10000))
        is_sent = []
        for peer in ring.primaries(partition):
            if peer.device == device:
                continue
            target = cluster.nodes[int(peer.device[1])]

            def call(*body: Any, peer: Any = peer) -> Any:
                return backend.call(peer.replication_address, "REPLICATE", f"/{peer.device}/{partition}/{name}", Headers(),
                                    body=json.dumps(body).encode(), timeout_s=10.0)

            try:
                answer = call("sync", -1, info["hash"], info["id"], info["created_at"], info["put_timestamp"],
                              info["delete_timestamp"], info["metadata"])
                if answer.status == 404 and target.is_up:
                    arrived = f"{target.devices}/{peer.device}/tmp"
                    if not os.path.isdir(arrived):
                        disks.real.mkdir(arrived)
                    shutil.copyfile(path, f"{arrived}/{info['id']}")
                    answer = call("complete_rsync", info["id"], f"{name}.db")
                if answer.status == 200 and json.loads(answer.read())["hash"] == info["hash"]:
                    is_sent.append(True)
                    continue
                answer = call("merge_items", rows, info["id"])
                is_sent.append(answer.status // 100 == 2)
            except BackendError:
                is_sent.append(False)
        if device not in {peer.device for peer in ring.primaries(partition)} and all(is_sent):
            broker.close()
            shutil.rmtree(os.path.dirname(path))
    except DatabaseNotFound:
        pass
    finally:
        broker.close()
