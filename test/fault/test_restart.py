"""Stopping, killing and reloading a node: what was acknowledged stays, nothing is torn, nobody is refused (issue 2, point 2)."""

from __future__ import annotations

import http.client
import os
import random
import signal
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from test.support.client import Account, unique
from test.support.load import Uploads, run_clients
from test.support.store import Store, alive, running
from test.support.waiting import until


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with running(tmp_path_factory.mktemp("restart") / "data", workers=2) as store:
        yield store


@pytest.fixture
def account(store: Store) -> Account:
    if store.status()["state"] != "running":
        store.command("node", "start", "1", check=False)
    return store.login()


@pytest.fixture
def container(account: Account) -> str:
    name = unique("restart")
    account.put(name).expect(201)
    return name


def has_new_workers(store: Store, before: set[int]) -> bool:
    return not set(store.worker_pids()) & before and bool(store.state()["serves"])


def are_gone(pids: set[int]) -> bool:
    return not [pid for pid in pids if alive(pid)]


def no_traceback(store: Store) -> None:
    assert "Traceback" not in store.log()


def test_down_and_up_keeps_data_keys_and_tokens(store: Store, account: Account, container: str) -> None:
    before = store.status()
    account.put(container, "o", body=b"data", headers={"X-Object-Meta-A": "1"}).expect(201)
    store.down()
    stopped = store.status()
    assert (stopped["state"], stopped["pids"]) == ("stopped", [])
    assert not [pid for pid in before["pids"] if alive(pid)]
    store.up()
    after = store.status()
    assert after["state"] == "running"
    for name in ("user", "key", "swift_auth_url", "storage_url", "policies"):
        assert after[name] == before[name]
    assert not set(after["pids"]) & set(before["pids"])
    got = account.get(container, "o").expect(200)  # with the token from before
    assert (got.body, got.headers["X-Object-Meta-A"]) == (b"data", "1")
    assert account.get(container).lines == ["o"]
    store.login().get(container, "o").expect(200)
    own = store.endpoint.login(after["user"], after["key"])
    own.put("mine").expect(201, 202)


def listed(account: Account, container: str) -> set[str]:
    return {entry["name"] for entry in account.listing(container)}


def waiting(store: Store) -> int:
    """How many container updates wait on the devices."""
    return len(list(store.data.glob("node*/devices/*/async_pending*/*/*")))


def check(store: Store, uploads: Uploads) -> None:
    print(uploads.check(store.login()))
    missing = set(uploads.acknowledged) - listed(uploads.account, uploads.container)
    assert len(missing) <= waiting(store), f"acknowledged, not listed, and no update waits: {sorted(missing)[:5]} (seed {uploads.seed})"
    no_traceback(store)


def test_kill_one_worker_in_the_middle_of_uploads(store: Store, account: Account, container: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    uploads = Uploads(account, container, seed).start()
    uploads.wait_for_acknowledged(60)
    supervisor, victim = store.supervisor(), random.Random(seed).choice(store.worker_pids())
    os.kill(victim, signal.SIGKILL)
    until(lambda: victim not in store.worker_pids() and len(store.worker_pids()) == 2, "another worker takes its place")
    uploads.join()
    assert store.supervisor() == supervisor
    assert uploads.open, "the kill came too late to interrupt anything"
    check(store, uploads)
    account.get(container, next(iter(uploads.acknowledged))).expect(200)  # tokens are valid in the new worker too


def test_kill_the_whole_node_in_the_middle_of_uploads(store: Store, account: Account, container: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    uploads = Uploads(account, container, seed).start()
    uploads.wait_for_acknowledged(60)
    store.kill_all()
    uploads.join()
    assert uploads.open, "the kill came too late to interrupt anything"
    assert store.status()["state"] == "stopped"
    store.up()
    check(store, uploads)
    for name in ("after", *uploads.open):
        account.put(container, name, body=b"again").expect(201)
        assert account.get(container, name).body == b"again"


def test_temporary_files_of_a_kill_do_not_show(store: Store, account: Account, container: str) -> None:
    """Objects are written without a name until they are whole, so a kill leaves no files to clean up."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    uploads = Uploads(account, container, seed, clients=40, each=1).start()
    uploads.wait_for_acknowledged(10)
    store.kill_all()
    uploads.join()
    store.up()
    left = [path for path in store.data.glob("node1/devices/*/tmp*/*") if path.is_file()]
    assert not left, left
    names = {path.suffix for path in store.data.glob("node1/devices/*/objects*/*/*/*/*")}
    assert names <= {".data", ".meta", ".ts"}


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1], ids=lambda value: value.name)
def test_reload_under_load_refuses_nobody(store: Store, account: Account, container: str, number: signal.Signals) -> None:
    account.put(container, "o", body=b"data" * 1000).expect(201)
    done, requests = threading.Event(), [0] * 16

    def work(client: int) -> None:
        """Half of the clients keep their connection; a request that an idle connection swallowed as it closed is sent again."""
        connection = store.endpoint.connect()
        while not done.is_set():
            if client % 2:
                connection.close()
                connection = store.endpoint.connect()
            for attempt in (1, 2):
                try:
                    if client % 4 < 2:
                        account.get(container, "o", connection=connection).expect(200)
                    else:
                        account.put(container, f"o{client}", body=b"new", connection=connection).expect(201)
                    break
                except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                    if client % 2 or attempt == 2:
                        raise
                    connection.close()
                    connection = store.endpoint.connect()
            requests[client] += 1
        connection.close()

    errors: list[BaseException] = []
    load = threading.Thread(target=lambda: errors.extend(run_clients(16, work)))
    load.start()
    try:
        for _ in range(2):
            before, supervisor = set(store.worker_pids()), store.supervisor()
            until(lambda: min(requests) > 3, "the load is on")
            os.kill(supervisor, number)
            until(partial(has_new_workers, store, before), "new workers serve", 60)
            until(partial(are_gone, before), "the old workers are gone", 60)
            assert store.supervisor() == supervisor
            for client in range(16):
                requests[client] = 0
    finally:
        done.set()
        load.join()
    assert errors == []
    no_traceback(store)


def test_a_reload_takes_new_options_and_refuses_bad_ones(store: Store, account: Account) -> None:
    supervisor = store.supervisor()
    store.edit("proxy-server.conf", ("account_autocreate = true", "account_autocreate = true\nmax_containers_per_account = 0\nnode_timeout = 9"))
    os.kill(supervisor, signal.SIGHUP)
    until(lambda: store.log().count("reload: starting anew"), "the reload is done")
    store.wait_ready()
    store.edit("proxy-server.conf", ("node_timeout = 9", "node_timeout = soon"))
    os.kill(supervisor, signal.SIGHUP)
    until(lambda: "reload refused" in store.log(), "the reload is refused")
    line = next(line for line in store.log().splitlines() if "reload refused" in line)
    assert "node_timeout" in line and "soon" in line and "proxy-server.conf" in line
    account.head().expect(200, 204)
    assert store.supervisor() == supervisor
    store.edit("proxy-server.conf", ("node_timeout = soon", "node_timeout = 10"))
    no_traceback(store)


def test_sigterm_lets_requests_end(store: Store, account: Account, container: str) -> None:
    connection = store.endpoint.connect()
    raw = connection.raw
    raw.putrequest("PUT", account.target(container, "slow"))
    raw.putheader("X-Auth-Token", account.token)
    raw.putheader("Content-Length", "200000")
    raw.endheaders()
    raw.send(b"x" * 100_000)
    pids = store.pids()
    until(lambda: account.head(container).status == 204, "the store works on")
    os.kill(pids[0], signal.SIGTERM)
    until(lambda: "stopping" in store.log().splitlines()[-1] or not _accepts(store), "the node stops")
    raw.send(b"x" * 100_000)
    assert connection.answer().status == 201
    connection.close()
    until(lambda: not [pid for pid in pids if alive(pid)], "all processes have ended")
    store.up()
    assert account.get(container, "slow").body == b"x" * 200_000


def _accepts(store: Store) -> bool:
    try:
        store.endpoint.request("GET", "/healthcheck", timeout=1)
    except OSError:
        return False
    return True


def test_a_worker_alone_ends_when_its_supervisor_is_killed(store: Store, account: Account) -> None:
    pids = store.pids()
    os.kill(pids[0], signal.SIGKILL)
    until(lambda: not [pid for pid in pids if alive(pid)], "the workers end too")
    store.up()
    account.head().expect(200, 204)


def test_nothing_but_the_data_directory_is_written(store: Store) -> None:
    """Every file that the processes hold open for writing lies in the data directory."""
    for pid in store.pids():
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target, flags = os.readlink(fd), Path(f"/proc/{pid}/fdinfo/{fd.name}").read_text()
            except OSError:
                continue
            mode = int(flags.split("flags:")[1].split()[0], 8) & 3
            if target.startswith("/") and mode and not target.startswith(("/dev/", "/proc/", "/memfd:", str(store.data))):
                assert "(deleted)" in target, target
