"""A memcached that other programs write to, that is stopped, or that answers nonsense (S18)."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pymemcache.client.base import Client

from test.fault.conftest import MAKE
from test.support.client import Account, unique
from test.support.peers import Peers
from test.support.waiting import until

JSON_FLAG, PICKLE_FLAG = 2, 1


def wire_key(key: str) -> str:
    return hashlib.md5(key.encode()).hexdigest()


@pytest.fixture
def memcached(peers: Peers) -> Iterator[Client]:
    client = Client(("127.0.0.1", peers.memcached), default_noreply=False)  # what is set is there when the next request goes out
    yield client
    client.close()


def test_security_S18_nothing_from_the_cache_is_unpickled(peers: Peers, account: Account, memcached: Client, tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return open, (str(tmp_path / "ran"), "w")

    log = peers.log_of(MAKE, "proxy", peers.proxies[MAKE])
    said = len(log.read_text()) if log.exists() else 0
    container = unique("s18")
    account.put(container, headers={"X-Container-Read": ".r:*"}).expect(201)
    account.put(container, "o", body=b"data").expect(201)
    evil = pickle.dumps(Evil(), 2)
    token_key = wire_key(f"AUTH_/token/{account.token}")
    token_value = memcached.get(token_key)
    assert token_value
    values = [(evil, PICKLE_FLAG), (evil, 0), (evil, JSON_FLAG), (b"[1, 2]", JSON_FLAG), (b"null", JSON_FLAG), (b"{", JSON_FLAG), (b"", JSON_FLAG),
              (b"[" * 100_000, JSON_FLAG), (b'{"status": "x"}', JSON_FLAG), (b'{"status": 200, "read_acl": 5}', JSON_FLAG), (b"\xff\xfe", JSON_FLAG)]
    for value, flags in values:
        for key in (f"container/{account.name}/{container}", f"account/{account.name}"):
            memcached.set(wire_key(key), value, flags=flags)
        answer = account.get(container, "o")
        assert answer.status in (200, 404, 503), (value[:20], flags, answer)
        memcached.delete(wire_key(f"container/{account.name}/{container}"))
        memcached.delete(wire_key(f"account/{account.name}"))
        assert account.get(container, "o").expect(200).body == b"data"
        memcached.set(token_key, value, flags=flags)
        assert account.get(container).status in (200, 401, 503)
        memcached.set(token_key, token_value, flags=JSON_FLAG)
    assert not (tmp_path / "ran").exists()
    if MAKE != "swift":
        assert "Traceback" not in log.read_text()[said:]


def test_without_memcached_all_but_its_tokens_work(peers: Peers) -> None:
    account = peers.proxy(MAKE).login()
    container = unique("nocache")
    account.put(container).expect(201)
    account.put(container, "o", body=b"data").expect(201)
    account.post(container, headers={"X-Container-Read": ".r:*"}).expect(204)
    process = peers.running.pop(("memcached", peers.memcached))
    command, log = process.command, process.log
    process.stop()
    try:
        assert account.anonymous().get(container, "o").expect(200, 503).status in (200, 503)
        until(lambda: account.anonymous().get(container, "o").expect(200).body == b"data", "objects are served without a cache")
        peers.proxy(MAKE).authenticate("test:tester", "testing").expect(200, 503)
        account.get(container).expect(200, 401, 503)
    finally:
        again = type(process)(command, log).start()
        peers.running["memcached", peers.memcached] = again.wait_for("127.0.0.1", peers.memcached)
    until(lambda: peers.proxy(MAKE).authenticate("test:tester", "testing").status == 200, "logging in works again", 60)
    fresh = peers.proxy(MAKE).login()
    until(lambda: fresh.get(container).expect(200).lines == ["o"], "all is well again")


def test_the_cache_is_named_as_the_field_names_it(account: Account, memcached: Client) -> None:
    """Keys and values that a proxy of Swift beside us reads too."""
    container = unique("shared")
    account.put(container).expect(201)
    account.put(container, "o", body=b"data").expect(201)
    value = json.loads(memcached.get(wire_key(f"container/{account.name}/{container}")))
    assert (value["status"] // 100, value["storage_policy"], value["read_acl"]) == (2, "0", None)
    assert memcached.get(wire_key(f"AUTH_/token/{account.token}"))
