"""The laws, checked when the faults have ended and the daemons have run.

(a) No acknowledged write is lost. (b) Nothing deleted comes back. (c) All replicas of everything are identical, and where they
belong. (d) Listings equal the objects. (e) Counters equal the listings. And, at any time: (f) nothing half is ever read, and every request is
answered; (g) what was acknowledged is on as many devices as an acknowledgement takes, as long as no device was lost.

(a) and (b) are one check: what is found must be one of the states that ``model`` allows.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from hashlib import md5
from typing import Any

from keelstore.common.policy import Policy
from keelstore.obj import attributes, layout
from keelstore.obj.fileset import resolve
from keelstore.obj.hashdir import parse_names
from test.simulation import lives
from test.simulation.cluster import Node, SimCluster
from test.simulation.model import ContainerHistory, ObjectHistory, State, candidates

ACCOUNT = "AUTH_sim"



def check(cluster: SimCluster, objects: dict[str, ObjectHistory], containers: dict[str, ContainerHistory],
          account: ContainerHistory, now: float, has_crashed: bool) -> list[str]:
    """The violations; none when all is well. Run in a green thread.

    ``has_crashed``: an object server may have died between an object and its container update. Then the listing need not
    have what was never acknowledged; see doc/design/simulation, "What it leaves out".
    """
    node = cluster.nodes[0]
    node.cache = type(node.cache)()
    found: list[str] = []
    found += _Disk(cluster).differences()
    found += lives.run_as(node.life, _Clients(cluster, node, objects, containers, account, now, has_crashed).differences)
    return found


def losses(cluster: SimCluster, objects: dict[str, ObjectHistory]) -> list[str]:
    """(g), at any time when no device was lost: what was acknowledged, or something newer, is on as many devices as it takes.

    Not checked through servers, which may be down: by what is on their disks.
    """
    proxy = cluster.nodes[0].apps["proxy"]
    policy, hash_path = next(iter(proxy.cluster.policies)), proxy.cluster.hash_path
    datadir, fragments = layout.objects_dir(policy.index), layout.fragment_count(policy)
    newest: dict[str, dict[str, float]] = {}  # hash to its copies: devices, or fragments wherever they are
    for node in cluster.nodes:
        for device in node.device_names:
            top = f"{node.devices}/{device}/{datadir}"
            for partition in _names(top):
                for suffix in _names(f"{top}/{partition}"):
                    for name in _names(f"{top}/{partition}/{suffix}"):
                        found = parse_names([entry for entry in os.listdir(f"{top}/{partition}/{suffix}/{name}")
                                             if not entry.startswith(".")], top, fragments)
                        copies = newest.setdefault(name, {})
                        for file in found:
                            if file.kind in (layout.DATA, layout.TOMBSTONE):
                                is_fragment = fragments and file.kind == layout.DATA
                                copy = f"fragment {file.fragment}" if is_fragment else device
                                copies[copy] = max(copies.get(copy, 0.0), float(file.timestamp.normal))
    needed = policy.write_quorum(cluster.shape.replicas)
    lines = []
    for path, history in sorted(objects.items()):
        base = candidates([write for write in history.writes if write.kind == "put"])[0]
        if base is None or (fragments and any(write.stamp > base.stamp for write in history.writes if write.kind != "post")):
            continue  # what is newer takes the place of fragments on other devices than theirs
        container, _, name = path.partition("/")
        held = newest.get(hash_path.hexdigest(ACCOUNT, container, name), {}).values()
        count = sum(stamp > base.stamp - 0.000005 for stamp in held)
        if count < needed:
            lines.append(f"(g) {path}: {base.value} was acknowledged and has {count} copies")
    return lines


# -- what clients see --------------------------------------------------------------------------------------------------


class _Clients:
    def __init__(self, cluster: SimCluster, node: Node, objects: dict[str, ObjectHistory],
                 containers: dict[str, ContainerHistory], account: ContainerHistory, now: float, has_crashed: bool):
        self.cluster, self.node, self.now, self.has_crashed = cluster, node, now, has_crashed
        self.objects, self.containers, self.account = objects, containers, account

    def differences(self) -> list[str]:
        found: list[str] = []
        for container, history in sorted(self.containers.items()):
            found += self._container(container, history)
        return [*found, *self._account()]

    def _container(self, name: str, history: ContainerHistory) -> Iterator[str]:
        head = self.node.ask("HEAD", f"/v1/{ACCOUNT}/{name}")
        if head.status not in (204, 404):
            yield f"(c) {name}: HEAD answers {head.status}"
            return
        exists, may = head.status == 204, history.may_exist()
        if exists not in may:
            there = self._objects_in(name)
            if not exists or not there:
                yield f"({'a' if not exists else 'b'}) container {name}: is {'' if exists else 'not '}there"
                return
        if not exists:
            return
        for item in sorted(history.items()):
            value = head.headers.get(f"X-Container-Meta-{item}", "")
            if value not in history.allowed(item):
                yield f"(a) container {name}: item {item} is {value!r}, allowed {sorted(history.allowed(item))}"
        yield from self._listing(name, head)

    def _objects_in(self, container: str) -> list[str]:
        answer = self.node.ask("GET", f"/v1/{ACCOUNT}/{container}", query="format=json")
        return [entry["name"] for entry in json.loads(answer.body or b"[]")] if answer.status == 200 else []

    def _listing(self, container: str, head: Any) -> Iterator[str]:
        answer = self.node.ask("GET", f"/v1/{ACCOUNT}/{container}", query="format=json")
        rows = {entry["name"]: entry for entry in json.loads(answer.body)} if answer.status == 200 else {}
        count, size = 0, 0
        for path, history in sorted(self.objects.items()):
            own, _, name = path.partition("/")
            if own != container:
                continue
            got = yield from self._object(path, history)
            row = rows.pop(name, None)
            if self.has_crashed and history.is_unsure:
                got = None if row is None else (row["hash"], row["bytes"])
            if got is None:
                if row is not None:
                    yield f"(d) {path}: listed, and not there"
                continue
            count += 1
            size += got[1]
            if row is None:
                yield f"(d) {path}: there, and not listed"
            elif (row["hash"], row["bytes"]) != got:
                yield f"(d) {path}: listed as {row['hash']}, {row['bytes']} bytes, and is {got[0]}, {got[1]} bytes"
        yield from (f"(d) {container}/{name}: listed, and nobody wrote it" for name in rows)
        told = head.headers.get("X-Container-Object-Count"), head.headers.get("X-Container-Bytes-Used")
        if told != (str(count), str(size)):
            yield f"(e) container {container}: counts {told[0]} objects, {told[1]} bytes; there are {count}, {size}"

    def _object(self, path: str, history: ObjectHistory) -> Iterator[str]:
        """Gives, as its result, etag and size; None when it is not there."""
        answer = self.node.ask("GET", f"/v1/{ACCOUNT}/{path}")
        allowed = history.allowed(self.now)
        if answer.status == 404:
            if None not in allowed:
                yield f"(a) {path}: is gone; allowed {_texts(allowed)}"
            return None
        if answer.status != 200:
            yield f"(a) {path}: answers {answer.status}; allowed {_texts(allowed)}"
            return None
        state, problem = state_of(answer, history)
        if problem:
            yield f"(f) {path}: {problem}"
        elif state not in allowed:
            yield f"({'b' if None in allowed else 'a'}) {path}: is {_texts({state})}, allowed {_texts(allowed)}"
        return answer.headers.get("Etag", "").strip('"'), len(answer.body)

    def _account(self) -> Iterator[str]:
        head = self.node.ask("HEAD", f"/v1/{ACCOUNT}")
        if head.status not in (204, 404):
            yield f"(c) account: HEAD answers {head.status}"
            return
        for item in sorted(self.account.items()):
            value = head.headers.get(f"X-Account-Meta-{item}", "")
            if value not in self.account.allowed(item):
                yield f"(a) account: item {item} is {value!r}, allowed {sorted(self.account.allowed(item))}"
        answer = self.node.ask("GET", f"/v1/{ACCOUNT}", query="format=json")
        rows = {entry["name"]: entry for entry in json.loads(answer.body)} if answer.status == 200 else {}
        for name in sorted(self.containers):
            head_of = self.node.ask("HEAD", f"/v1/{ACCOUNT}/{name}")
            row = rows.pop(name, None)
            if head_of.status == 204 and row is None:
                yield f"(d) container {name}: there, and not listed"
            elif head_of.status == 404 and row is not None:
                yield f"(d) container {name}: listed, and not there"
            elif row is not None:
                told = (head_of.headers["X-Container-Object-Count"], head_of.headers["X-Container-Bytes-Used"])
                if told != (str(row["count"]), str(row["bytes"])):
                    yield f"(e) container {name}: account says {row['count']}, {row['bytes']}; it has {told[0]}, {told[1]}"
        yield from (f"(d) container {name}: listed, and nobody made it" for name in rows)


def _texts(states: set[State | None]) -> str:
    return ", ".join(sorted("nothing" if state is None else f"{state.body}+{state.metadata}" for state in states))


def state_of(answer: Any, history: ObjectHistory) -> tuple[State | None, str]:
    """What a GET that succeeded gave: whose body and metadata; else what is wrong with it."""
    body = answer.body
    value = body.partition(b"|")[0].decode("ascii", "replace")
    write = history.of_value(value)
    if write is None or len(body) != write.size or md5(body).hexdigest() != write.etag:
        return None, f"a body that nobody wrote: {body[:40]!r}, {len(body)} bytes"
    etag = answer.headers.get("Etag", "").strip('"')
    if etag != write.etag:
        return None, f"Etag {etag}, and the body is {write.etag}"
    return State(value, answer.headers.get("X-Object-Meta-Value", "")), ""


# -- what is on the disks ----------------------------------------------------------------------------------------------


class _Disk:
    def __init__(self, cluster: SimCluster):
        self.cluster = cluster
        proxy = cluster.nodes[0].apps["proxy"]
        self.rings, self.policies = proxy.rings, proxy.cluster.policies

    def differences(self) -> list[str]:
        found = list(self._objects(next(iter(self.policies))))
        for kind in ("container", "account"):
            found += self._databases(kind)
        return found + list(self._pending())

    def _hash_directories(self, datadir: str) -> dict[tuple[int, str], dict[str, str]]:
        """(partition, hash): device to path."""
        found: dict[tuple[int, str], dict[str, str]] = {}
        for node in self.cluster.nodes:
            for device in node.device_names:
                top = f"{node.devices}/{device}/{datadir}"
                for partition in _names(top):
                    for suffix in _names(f"{top}/{partition}"):
                        for name in _names(f"{top}/{partition}/{suffix}"):
                            if len(name) == 32:
                                path = f"{top}/{partition}/{suffix}/{name}"
                                if os.listdir(path):
                                    found.setdefault((int(partition), name), {})[device] = path
        return found

    def _objects(self, policy: Policy) -> Iterator[str]:
        ring = self.rings.object(policy).current()
        for (partition, name), places in sorted(self._hash_directories(layout.objects_dir(policy.index)).items()):
            primaries = {node.device: node.index for node in ring.primaries(partition)}
            contents = {}
            for device, path in sorted(places.items()):
                content = _content(path, layout.fragment_count(policy), primaries.get(device))
                if content:
                    contents[device] = content
            if not contents:
                continue
            if set(contents) != set(primaries):
                yield f"(c) object {name} is on {sorted(contents)}, and belongs on {sorted(primaries)}"
            if len({str(value) for value in contents.values()}) > 1:
                yield f"(c) object {name} differs: {contents}"

    def _databases(self, kind: str) -> Iterator[str]:
        ring = getattr(self.rings, kind).current()
        for (partition, name), places in sorted(self._hash_directories(f"{kind}s").items()):
            primaries = {node.device for node in ring.primaries(partition)}
            contents = {}
            for device, path in places.items():
                if os.path.exists(f"{path}/{name}.db"):
                    node = self.cluster.nodes[int(device[1])]
                    broker = node.apps[kind].make_broker(f"{path}/{name}.db", f"{node.devices}/{device}")
                    broker.merge_pending()
                    broker.close()
                    contents[device] = _rows(f"{path}/{name}.db", kind)
            if not contents:
                continue
            if set(contents) != primaries:
                yield f"(c) {kind} {name} is on {sorted(contents)}, and belongs on {sorted(primaries)}"
            first = contents[min(contents)]
            for device, content in sorted(contents.items()):
                if content != first:
                    yield f"(c) {kind} {name} differs: {min(contents)} {_only(first, content)}, {device} {_only(content, first)}"

    def _pending(self) -> Iterator[str]:
        """Updates of containers that are there must have arrived."""
        for node in self.cluster.nodes:
            for device in node.device_names:
                top = f"{node.devices}/{device}/async_pending"
                for suffix in _names(top):
                    for name in _names(f"{top}/{suffix}"):
                        yield f"(d) an update waits for ever: {device} {name}"


def _names(path: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(path) if not name.startswith(".") and os.path.isdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _content(path: str, fragments: int, index: int | None) -> dict[str, str]:
    """The files that count: name to digest of content and metadata. Of a fragment that is the right one only that it is."""
    files = parse_names([name for name in os.listdir(path) if not name.startswith(".")], path, fragments)
    found = resolve(files, stores_fragments=fragments > 0)
    content = {}
    for file in [found.data, found.meta, found.tombstone]:
        if file is None:
            continue
        full = f"{path}/{file.name}"
        fd = os.open(full, os.O_RDONLY)
        try:
            metadata = attributes.read(fd, lambda: None)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with it is what we look for
            metadata = {"unreadable": str(error)}
        finally:
            os.close(fd)
        with open(full, "rb") as stream:
            body = stream.read()
        if file.kind == layout.DATA and fragments:
            own = metadata.pop("X-Object-Sysmeta-Ec-Frag-Index", None)
            ours = "the right one" if own == str(index) else f"fragment {own}"
            if file.timestamp != found.durable:
                ours += ", not durable"
            metadata.pop("ETag", None)
            content[f"{file.timestamp.internal}.data"] = f"{ours} {sorted(metadata.items())}"
            continue
        if file.kind == layout.DATA and metadata.get("ETag") != md5(body).hexdigest():
            metadata["rotten"] = "yes"
        content[file.name] = f"{md5(body).hexdigest()[:8]} {sorted(metadata.items())}"
    return content


def _rows(path: str, kind: str) -> list[str]:
    """All that replicas must agree on. Of a deleted object's row the content type does not count: nobody is ever told it."""
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        if kind == "container":
            rows = connection.execute("SELECT name, created_at, size, iif(deleted, '', content_type), etag, deleted, storage_policy_index"
                                      " FROM object ORDER BY name").fetchall()
            stat = connection.execute("SELECT created_at, put_timestamp, delete_timestamp, storage_policy_index, metadata"
                                      " FROM container_info").fetchone()
        else:
            rows = connection.execute("SELECT name, put_timestamp, delete_timestamp, object_count, bytes_used, deleted,"
                                      " storage_policy_index FROM container ORDER BY name").fetchall()
            stat = connection.execute("SELECT created_at, put_timestamp, delete_timestamp, metadata"
                                      " FROM account_stat").fetchone()
    finally:
        connection.close()
    *plain, metadata = stat
    return [f"stat {plain}", *(f"item {item}" for item in sorted(json.loads(metadata or "{}").items())),
            *(f"row {row}" for row in rows)]


def _only(ours: list[str], theirs: list[str]) -> list[str]:
    return [line for line in ours if line not in theirs]


