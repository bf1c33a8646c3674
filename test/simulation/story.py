"""One seed: what clients do, what goes wrong, how the daemons mend it, and whether the laws hold.

Everything random comes from the seed. Requests run beside each other and beside passes of daemons, in virtual time.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import md5
from typing import Any

from keelstore.common import concurrency
from keelstore.common.http import Response
from keelstore.common.timestamp import Timestamp
from keelstore.node.daemons import DAEMONS
from test.simulation import disks, fragments, laws, lives, worldtime
from test.simulation.cluster import Node, NoEnd, Shape, SimCluster
from test.simulation.laws import ACCOUNT
from test.simulation.model import ContainerHistory, ObjectHistory, Told, Write

CONTAINERS, OBJECTS = 3, 4
REQUEST_S = 300.0  # virtual seconds that a request may take
DAY_AFTER = 3
ROUNDS = 10  # of all daemons, in which a cluster without faults must come to rest
SELDOM = ("account-reaper", "container-auditor", "account-auditor", "container-reconciler")
PASS_ORDER = ("object-auditor", "container-auditor", "account-auditor", "object-replicator", "object-reconstructor",
              "object-updater", "object-expirer", "container-replicator", "container-updater", "account-replicator",
              "container-reconciler", "account-reaper")  # so that one round is enough, mostly
LEFT_OUT = {"container-sync", "container-sharder", "container-lifecycle"}  # have nothing to do here


@dataclass
class Outcome:
    seed: int
    operations: int
    violations: list[str]
    story: list[str] = field(default_factory=list)
    cpu_s: float = 0.0
    virtual_s: float = 0.0
    rounds: int = 0

    @property
    def is_well(self) -> bool:
        return not self.violations


class Story:
    def __init__(self, seed: int, root: str, shape: Shape, rings: dict[str, list[bytes]], operations: int = 200):
        self.seed, self.operations = seed, operations
        self.chance = random.Random(seed)
        self.lines: list[str] = []
        self.violations: list[str] = []
        self.cluster = SimCluster(root, shape, rings, random.Random(self.chance.random()), self.note)
        self.objects: dict[str, ObjectHistory] = {}
        self.containers: dict[str, ContainerHistory] = {}
        self.account = ContainerHistory()
        self.number = 0
        self.running: list[concurrency.Task] = []
        self.last_loss_s = -1e9
        self.stamps: set[str] = set()
        self.rounds = 0
        # Some seeds are calm, some have one kind of fault, most have several.
        self.kinds = {kind for kind in FAULTS if self.chance.random() < 0.55}
        self.faults = dict(FAULTS)
        if shape.policy == "fragments":
            self.kinds |= {kind for kind in FRAGMENT_FAULTS if self.chance.random() < 0.55}
            self.faults |= FRAGMENT_FAULTS
        self.rotten: set[str] = set()
        self.object_daemon = "object-replicator" if shape.policy == "copies" else "object-reconstructor"
        others = "object-reconstructor" if shape.policy == "copies" else "object-replicator"  # have nothing to do
        self.daemon_names = [name for name in PASS_ORDER if name != others]
        assert {*PASS_ORDER, *LEFT_OUT} >= set(DAEMONS), "a daemon is in neither list"

    def note(self, line: str) -> None:
        self.lines.append(f"{worldtime.elapsed_s():9.3f} {line}")

    # -- the whole -----------------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """In a green thread."""
        self.cluster.start()
        for name in range(CONTAINERS):
            if self.chance.random() < 0.8:
                self._container_put(f"c{name}")
        self._join()
        for _ in range(self.operations):
            self._fault()
            self._operate()
            if len(self.running) > 4 or self.chance.random() < 0.5:
                self._join()
            concurrency.sleep(self.chance.expovariate(1.0) * self.chance.choice((0.01, 0.5, 5.0)))
        self._join()
        self._count_copies()
        self._mend()
        now = worldtime.EPOCH + worldtime.elapsed_s()
        found: list[str] = []
        for self.rounds in range(1, ROUNDS + 1):
            self._round()
            if self.rounds < 2 and self.seed % 4 == 0:
                continue  # once all is well it must stay so
            now = worldtime.EPOCH + worldtime.elapsed_s()
            found = laws.check(self.cluster, self.objects, self.containers, self.account, now,
                               bool(self.kinds & {"crash", "power"}))
            if not found:
                break
            if self.rounds == DAY_AFTER and all("account says" in line or line.startswith("(d) container")
                                                 for line in found):
                concurrency.sleep(86400.0)  # within a day each container tells its account again
            self.lines += [f"after round {self.rounds}: {line}" for line in found]
        self.violations += [*self.cluster.problems, *found]
        return Outcome(self.seed, self.operations, self.violations, self.lines, virtual_s=worldtime.elapsed_s(),
                       rounds=self.rounds)

    def _join(self) -> None:
        tasks, self.running = self.running, []
        for task in tasks:
            task.wait()

    def _mend(self) -> None:
        self.note("the faults end")
        self.cluster.weather.calm()
        for node in self.cluster.nodes:
            node.disk.crash_in = 0
            node.disk.full.clear()
            for name, versions in self.cluster.rings.items():
                node.write_ring(name, versions[self.ring_version])
            if not node.is_up:
                node.start()
        concurrency.sleep(300.0)  # caches forget, peers are believed to be up again, doubled messages arrive, all is due

    def _count_copies(self) -> None:
        if self.last_loss_s < 0:
            self.violations += laws.losses(self.cluster, self.objects)

    ring_version = 0
    has_rotten = False

    def _round(self) -> None:
        """Every daemon of every node once; those that seldom find anything only in the first rounds."""
        for name in self.daemon_names:
            if name in SELDOM and self.rounds > 1:
                continue
            for node in self.cluster.nodes:
                node.run_daemon(name)
        concurrency.sleep(400.0)

    # -- what goes wrong -----------------------------------------------------------------------------------------------

    def _fault(self) -> None:
        roll = self.chance.random()
        if roll < 0.12 and self.kinds:
            if self.chance.random() < 0.2:
                self._count_copies()
            self.faults[self.chance.choice(sorted(self.kinds))](self)
        elif roll < 0.22:
            node = self.chance.choice(self.cluster.nodes)
            name = self.chance.choice(self.daemon_names) if self.chance.random() < 0.6 else self.object_daemon
            if node.is_up:
                self.note(f"node {node.index}: a pass of {name}")
                self.running.append(concurrency.spawn(self._pass, node, name))
        elif roll < 0.28:
            for node in self.cluster.nodes:
                if not node.is_up and self.chance.random() < 0.5:
                    self.note(f"node {node.index} starts")
                    node.start()

    def _pass(self, node: Node, name: str) -> None:
        node.run_daemon(name)
        if name == self.object_daemon:
            self._count_copies()

    def _bad_weather(self) -> None:
        weather = self.cluster.weather
        if self.chance.random() < 0.4:
            weather.calm()
            self.note("the network is well")
            return
        kinds: tuple[str, ...] = ("lost", "unanswered", "doubled", "slow", "broken")
        if self.cluster.shape.policy == "fragments":
            kinds = (*kinds, "uncommitted")
        kind = self.chance.choice(kinds)
        setattr(weather, kind, self.chance.choice((0.02, 0.1, 0.3)))
        self.note(f"network: {kind} {getattr(weather, kind)}")

    def _partition(self) -> None:
        weather, nodes = self.cluster.weather, len(self.cluster.nodes)
        if weather.cut and self.chance.random() < 0.7:
            weather.cut.clear()
            self.note("the network is whole")
            return
        alone = self.chance.randrange(nodes)
        others = [node for node in range(nodes) if node != alone]
        if self.chance.random() < 0.4:
            others = [self.chance.choice(others)]
        ways = [(alone, node) for node in others] + [(node, alone) for node in others]
        if self.chance.random() < 0.3:
            ways = ways[: len(others)]  # one way only
        weather.cut.update(ways)
        self.note(f"network: cut {ways}")

    def _crash(self) -> None:
        node = self.chance.choice(self.cluster.nodes)
        if node.is_up and len(self.cluster.up) > 2:
            node.disk.crash_in = self.chance.randint(1, 60)
            self.note(f"node {node.index} will crash at its step {node.disk.crash_in}")

    def _power_cut(self) -> None:
        if self.chance.random() < 0.4:
            for node in self.cluster.up:
                self.cluster.crash(node.index)
            for node in self.cluster.nodes:
                node.start()

    def _stop(self) -> None:
        if len(self.cluster.up) > 2:
            node = self.chance.choice(self.cluster.up)
            self.note(f"node {node.index} stops")
            node.stop()

    def _fill(self) -> None:
        node = self.chance.choice(self.cluster.nodes)
        device = self.chance.choice(node.device_names)
        if node.disk.full:
            node.disk.full.clear()
            self.note(f"node {node.index} has room")
        elif sum(bool(other.disk.full) for other in self.cluster.nodes) < 2:
            node.disk.full[device] = self.chance.choice(("reserve", "hard"))
            self.note(f"{device} is full ({node.disk.full[device]})")

    def _rot(self) -> None:
        """A byte of a data file changes, if other devices have enough."""
        several = self._several()
        if not several or not self._may_lose():
            return
        path = self.chance.choice(self.chance.choice(several))
        with open(path, "r+b") as file:
            content = bytearray(file.read())
            if content:
                content[self.chance.randrange(len(content))] ^= 1 << self.chance.randrange(8)
                file.seek(0)
                file.write(content)
        self.has_rotten = True
        self.rotten.add(path)
        self.note(f"a byte of {path.removeprefix(self.cluster.root)} rots")

    def _several(self) -> list[list[str]]:
        """The data files of each object that has one to spare."""
        if self.cluster.shape.policy == "fragments":
            return fragments.spare(self.cluster, self.chance, self.rotten, 4, 6)
        files: dict[str, list[str]] = {}
        for node in self.cluster.nodes:
            for device in node.device_names:
                for directory, _, names in os.walk(f"{node.devices}/{device}/objects"):
                    for name in names:
                        path = f"{directory}/{name}"
                        if name.endswith(".data") and path not in self.rotten:
                            files.setdefault(f"{directory.rpartition('/')[2]}/{name}", []).append(path)
        return [sorted(paths) for _, paths in sorted(files.items()) if len(paths) > 1]

    def _lose_fragments(self) -> None:
        if self._may_lose():
            for path in fragments.lose(self.cluster, self.chance, self.rotten, 4, 6):
                self.note(f"{path.removeprefix(self.cluster.root)} is lost")

    def _forget_commits(self) -> None:
        for path in fragments.forget_commits(self.cluster, self.chance, 6):
            self.note(f"{path.removeprefix(self.cluster.root)} is no longer known to be durable")

    def _wipe(self) -> None:
        """A device is replaced by an empty one, when all nodes are up and the network is well."""
        if len(self.cluster.up) < len(self.cluster.nodes) or not self._may_lose(heal=True):
            return
        node = self.chance.choice(self.cluster.nodes)
        device = self.chance.choice(node.device_names)
        path = f"{node.devices}/{device}"
        self.note(f"{device} is replaced by an empty one")
        node.stop()
        node.disk.changes.clear()
        node.disk.dirty.clear()
        disks.remove_tree(path)
        disks.real.mkdir(path)
        node.start()

    def _may_lose(self, heal: bool = False) -> bool:
        """Whether a copy may be lost: only when those lost before had time to be made anew."""
        if heal:
            if self.chance.random() < 0.5 or worldtime.elapsed_s() - self.last_loss_s < 60.0:
                return False
            self._join()
            self.cluster.weather.calm()
            for node in self.cluster.nodes:
                node.disk.crash_in = 0
                node.disk.full.clear()
                if not node.is_up:
                    node.start()
            concurrency.sleep(60.0)
            for _ in range(2):
                self._round()
            self.rotten.clear()
            if len(self.cluster.up) < len(self.cluster.nodes):
                return False
        elif worldtime.elapsed_s() - self.last_loss_s < 60.0:
            return False
        self.last_loss_s = worldtime.elapsed_s()
        return True

    def _new_ring(self) -> None:
        """A node gets another version of the rings; others follow, or do not, before the end."""
        node = self.chance.choice(self.cluster.nodes)
        self.ring_version = 1
        self.note(f"node {node.index} gets the new rings")
        for name, versions in self.cluster.rings.items():
            node.write_ring(name, versions[1])

    # -- what clients do -----------------------------------------------------------------------------------------------

    def _operate(self) -> None:
        total = sum(weight for weight, _ in OPERATIONS)
        roll = self.chance.random() * total
        for weight, operation in OPERATIONS:
            roll -= weight
            if roll < 0:
                operation(self)
                return

    def _path(self) -> str:
        return f"c{self.chance.randrange(CONTAINERS)}/o{self.chance.randrange(OBJECTS)}"

    def _send(self, write: Write | None, method: str, path: str, headers: dict[str, str] | None = None, body: Any = b"",
              settle: Callable[[Response], Told] | None = None, query: str = "") -> None:
        """Have a client ask a node that is up, beside whatever else runs."""
        up = self.cluster.up
        if not up:
            for node in self.cluster.nodes:
                node.start()
            up = self.cluster.up
        node = self.chance.choice(up)
        self.running.append(concurrency.spawn(self._request, node, write, method, path, dict(headers or {}), body, settle, query))

    def _stamp(self, node: Node) -> str:
        while True:
            stamp = Timestamp(worldtime.EPOCH + worldtime.elapsed_s() + node.skew_s).internal
            if stamp not in self.stamps:
                self.stamps.add(stamp)
                return stamp
            concurrency.sleep(worldtime.STEP_S)

    def _request(self, node: Node, write: Write | None, method: str, path: str, headers: dict[str, str], body: Any,
                 settle: Callable[[Response], Told] | None, query: str) -> None:
        if write is not None:
            headers["X-Timestamp"] = self._stamp(node)
            write.stamp = float(headers["X-Timestamp"])
        life = node.life

        def ask() -> Response:
            found: Response = lives.run_as(life, node.ask, method, f"/v1/{ACCOUNT}{path}", headers, body, query)
            return found

        try:
            with concurrency.time_limit(REQUEST_S, NoEnd()):
                response = ask()
        except lives.Crash:
            self.note(f"{method} {path} at node {node.index}: the node died")
            return
        except NoEnd:
            self.note(f"{method} {path} at node {node.index}: no answer")
            if not life.is_dead:
                self.violations.append(f"(f) {method} {path}: no answer in {REQUEST_S} s of a node that lives")
            return
        except Exception as error:
            self.note(f"{method} {path} at node {node.index}: {type(error).__name__} {error}")
            if method != "GET":
                raise
            return
        if life.is_dead:
            self.note(f"{method} {path} at node {node.index}: the node died before it answered")
            return
        told = ""
        if write is not None and settle is not None:
            write.told = settle(response)
            told = f" {write.value} {headers['X-Timestamp']}"
        self.note(f"{method} {path} at node {node.index}: {response.status}{told}")
        if method == "GET" and response.status == 200 and path.count("/") > 1:
            _state, problem = laws.state_of(response, self.objects.get(path[1:], ObjectHistory()))
            if problem and not (self.has_rotten and self._is_rot(response)):
                self.violations.append(f"(f) GET {path}: {problem}")

    def _is_rot(self, response: Response) -> bool:
        """Whether one bit is wrong: a read believes for some minutes that a file is as it was when it was read last."""
        body = bytes(response.body)
        middle = max(set(body[body.find(b"|") + 1 :]), key=body.count, default=0)
        return sum(byte != middle for byte in body[body.find(b"|") + 1 :]) <= 1 or body.count(b"|") != 1

    def _history(self, path: str) -> ObjectHistory:
        return self.objects.setdefault(path, ObjectHistory())

    def _value(self) -> str:
        self.number += 1
        return f"v{self.number}"

    def _put(self, delete_after: bool = False) -> None:
        path, value = self._path(), self._value()
        size = self.chance.choice((0, 10, 10, 100, 3000, 70000)) if self.chance.random() < 0.3 else 20
        body = value.encode() + b"|" + value[-1:].encode() * size
        write = Write("put", 0.0, value, size=len(body), etag=md5(body).hexdigest())
        headers = {"X-Object-Meta-Value": value, "Content-Type": "text/plain"}
        if delete_after:
            write.delete_at = float(int(worldtime.EPOCH + worldtime.elapsed_s()) + self.chance.randint(5, 200))
            headers["X-Delete-At"] = str(int(write.delete_at))
        self._history(path).writes.append(write)
        content: Any = body
        if self.chance.random() < 0.15:
            headers["Transfer-Encoding"] = "chunked"
            content = _Stream(body)
        self._send(write, "PUT", f"/{path}", headers, content, lambda answer: (
            Told.YES if answer.status == 201 else Told.UNKNOWN if answer.status != 400 else Told.NO))

    def _put_due(self) -> None:
        self._put(delete_after=True)

    def _delete(self) -> None:
        path = self._path()
        write = Write("delete", 0.0, self._value())
        self._history(path).writes.append(write)
        self._send(write, "DELETE", f"/{path}", settle=lambda answer: Told.YES if answer.status == 204 else Told.UNKNOWN)

    def _post(self) -> None:
        path = self._path()
        write = Write("post", 0.0, self._value())
        headers = {"X-Object-Meta-Value": write.value}
        if self.chance.random() < 0.15:
            write.delete_at = float(int(worldtime.EPOCH + worldtime.elapsed_s()) + self.chance.randint(5, 200))
            headers["X-Delete-At"] = str(int(write.delete_at))
        self._history(path).writes.append(write)
        self._send(write, "POST", f"/{path}", headers, settle=lambda answer: (
            Told.YES if answer.status == 202 else Told.NO if answer.status == 400 else Told.UNKNOWN))

    def _get(self) -> None:
        self._send(None, "GET", f"/{self._path()}")

    def _list(self) -> None:
        path = self.chance.choice(("", f"/c{self.chance.randrange(CONTAINERS)}"))
        self._send(None, "GET", path, query="format=json")

    def _container_name(self) -> str:
        """Often the one that has no objects, and so can be deleted."""
        return f"c{self.chance.randrange(CONTAINERS + 2) % (CONTAINERS + 1)}" if self.chance.random() < 0.5 else f"c{CONTAINERS}"

    def _container_put(self, name: str = "") -> None:
        name = name or self._container_name()
        write = Write("put", 0.0, self._value())
        if self.chance.random() < 0.4:
            write.items = {self.chance.choice("Xy"): write.value}
        self.containers.setdefault(name, ContainerHistory()).writes.append(write)
        headers = {f"X-Container-Meta-{item}": value for item, value in write.items.items()}
        self._send(write, "PUT", f"/{name}", headers,
                   settle=lambda answer: Told.YES if answer.status in (201, 202) else Told.UNKNOWN)

    def _container_post(self) -> None:
        name = f"c{self.chance.randrange(CONTAINERS)}"
        write = Write("post", 0.0, self._value())
        write.items = {self.chance.choice("Xy"): write.value if self.chance.random() < 0.8 else ""}
        self.containers.setdefault(name, ContainerHistory()).writes.append(write)
        headers = {f"X-Container-Meta-{item}": value for item, value in write.items.items()}
        self._send(write, "POST", f"/{name}", headers,
                   settle=lambda answer: Told.YES if answer.status == 204 else Told.UNKNOWN)

    def _container_delete(self) -> None:
        name = self._container_name()
        write = Write("delete", 0.0, self._value())
        self.containers.setdefault(name, ContainerHistory()).writes.append(write)
        self._send(write, "DELETE", f"/{name}",
                   settle=lambda answer: Told.YES if answer.status == 204 else Told.UNKNOWN)

    def _account_post(self) -> None:
        write = Write("post", 0.0, self._value())
        write.items = {self.chance.choice("Xy"): write.value if self.chance.random() < 0.8 else ""}
        self.account.writes.append(write)
        headers = {f"X-Account-Meta-{item}": value for item, value in write.items.items()}
        self._send(write, "POST", "", headers, settle=lambda answer: Told.YES if answer.status == 204 else Told.UNKNOWN)


class _Stream:
    """A client's body of unknown length."""

    def __init__(self, data: bytes):
        self._data = data

    def read(self, size: int = -1) -> bytes:
        concurrency.sleep(0.001)
        if size < 0:
            size = len(self._data)
        size = min(size, 30000)
        part, self._data = self._data[:size], self._data[size:]
        return part


OPERATIONS: tuple[tuple[int, Callable[[Story], None]], ...] = (
    (36, Story._put), (16, Story._delete), (12, Story._post), (12, Story._get), (6, Story._put_due), (4, Story._list),
    (4, Story._container_put), (4, Story._container_post), (5, Story._container_delete), (2, Story._account_post),
)  # fmt: skip
FAULTS: dict[str, Callable[[Story], None]] = {
    "weather": Story._bad_weather, "partition": Story._partition, "crash": Story._crash, "power": Story._power_cut,
    "stop": Story._stop, "full": Story._fill, "rot": Story._rot, "wipe": Story._wipe, "rings": Story._new_ring,
}
FRAGMENT_FAULTS: dict[str, Callable[[Story], None]] = {
    "commits": Story._forget_commits, "fragments": Story._lose_fragments,
}
