"""Many clients on the same names at once: every read is one whole write, the end is the same everywhere."""

from __future__ import annotations

import hashlib
import random
import threading

import pytest

from test.support.client import Account, Endpoint, unique
from test.support.load import run_clients
from test.support.store import Store
from test.support.waiting import until


def body_of(number: int) -> bytes:
    """A body that names its writer in every part of it; sizes differ, some are larger than the network's chunk."""
    return b"%08d" % number * (1 + number * 977 % 40_000)


def proxies(running: Store | None, store: Endpoint) -> list[Endpoint]:
    return [running.proxy(number) for number in range(1, running.nodes + 1)] if running else [store]


def test_readers_see_one_write_whole(running: Store | None, store: Endpoint, account: Account, container: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    through, done, reads = proxies(running, store), threading.Event(), [0]
    account.put(container, "o", body=body_of(0), headers={"X-Object-Meta-Number": "0"}).expect(201)

    def write(client: int) -> None:
        chance = random.Random(f"{seed}/{client}")
        mine = account.at(through[client % len(through)])
        for turn in range(12):
            number = client * 100 + turn + 1
            body = body_of(number)
            chunked = {"Transfer-Encoding": "chunked"} if chance.random() < 0.3 else {}
            mine.put(container, "o", body=iter([body]) if chunked else body, headers={"X-Object-Meta-Number": number, **chunked}).expect(201, 202)
            if chance.random() < 0.2:
                mine.delete(container, "o").expect(204, 404, 409)

    def read(client: int) -> None:
        mine = account.at(through[client % len(through)])
        with mine.endpoint.connect() as connection:
            while not done.is_set():
                answer = mine.get(container, "o", connection=connection)
                if answer.expect(200, 404).status == 404:
                    continue
                number = int(answer.headers["X-Object-Meta-Number"])
                assert answer.body == body_of(number), f"torn read of {number} (seed {seed})"
                assert answer.headers["Etag"] == hashlib.md5(answer.body).hexdigest()
                reads[0] += 1

    errors: list[BaseException] = []
    readers = threading.Thread(target=lambda: errors.extend(run_clients(6, read)))
    readers.start()
    errors += run_clients(8, write)
    done.set()
    readers.join()
    assert errors == []
    assert reads[0] > 20
    final = account.get(container, "o", headers={"X-Newest": "true"})
    for endpoint in through:
        for _ in range(6):
            again = account.at(endpoint).get(container, "o")
            assert (again.status, again.body) == (final.status, final.body)

    def agrees() -> bool:
        entries = account.listing(container)
        if final.status == 404:
            return entries == []
        return [(entry["name"], entry["hash"], entry["bytes"]) for entry in entries] == [("o", final.headers["Etag"], len(final.body))]

    until(agrees, "the listing agrees with the object")


def test_only_one_of_many_creates(running: Store | None, store: Endpoint, account: Account, container: str) -> None:
    """``If-None-Match: *`` from many clients, one after the other has answered: the first wins, the rest get 412."""
    through = proxies(running, store)
    account.put(container, "o", body=b"first", headers={"If-None-Match": "*"}).expect(201)
    statuses: list[int] = []

    def create(client: int) -> None:
        answer = account.at(through[client % len(through)]).put(container, "o", body=b"late %d" % client, headers={"If-None-Match": "*"})
        statuses.append(answer.status)

    assert run_clients(12, create) == []
    assert set(statuses) == {412}
    assert account.get(container, "o").body == b"first"


@pytest.mark.parametrize("kind", ["container", "account"])
def test_many_create_the_same_at_once(running: Store | None, store: Endpoint, account: Account, kind: str) -> None:
    through = proxies(running, store)
    admin = store.login("admin:admin", "admin")
    own = Account(store, f"/v1/AUTH_{unique('race')}", admin.token)
    if kind == "container":
        own.put().expect(201)

    def create(client: int) -> None:
        mine = own.at(through[client % len(through)])
        mine.put("c", headers={f"X-Container-Meta-From-{client}": "1"}).expect(201, 202)
        mine.put("c", f"o{client}", body=b"x").expect(201)

    assert run_clients(12, create) == []
    until(lambda: len(own.listing("c")) == 12, "all objects are listed")
    head = own.head("c").headers
    assert len([name for name in head if name.startswith("x-container-meta-from-")]) == 12
    assert [entry["name"] for entry in own.listing()] == ["c"]
    own.empty("c")


def test_uploads_and_deletes_of_many_names(running: Store | None, store: Endpoint, account: Account, container: str) -> None:
    """Each client owns its names; what each did last is what is there in the end, and what is listed."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    through = proxies(running, store)
    last: dict[str, bytes | None] = {}

    def work(client: int) -> None:
        chance = random.Random(f"{seed}/{client}")
        mine = account.at(through[client % len(through)])
        with mine.endpoint.connect() as connection:
            for turn in range(30):
                name = f"{client}/{chance.randrange(5)}"
                if chance.random() < 0.3 and last.get(name) is not None:
                    mine.delete(container, name, connection=connection).expect(204)
                    last[name] = None
                else:
                    body = body_of(client * 1000 + turn)
                    mine.put(container, name, body=body, connection=connection).expect(201)
                    last[name] = body

    assert run_clients(10, work) == []
    alive = {name: body for name, body in last.items() if body is not None}
    until(lambda: {entry["name"] for entry in account.listing(container)} == set(alive), "the listing agrees")
    assert {entry["name"]: entry["hash"] for entry in account.listing(container)} == {
        name: hashlib.md5(body).hexdigest() for name, body in alive.items()}
    for name, body in last.items():
        answer = account.get(container, name)
        assert (answer.status, answer.body if body is not None else None) == ((200, body) if body is not None else (404, None))
    count = account.head(container).headers
    assert (count["X-Container-Object-Count"], count["X-Container-Bytes-Used"]) == (str(len(alive)), str(sum(map(len, alive.values()))))
