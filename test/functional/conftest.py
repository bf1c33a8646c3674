"""The live clusters of the functional tests, each started once a run.

``store`` is the proxy that most tests speak to: a node that does all its calls in process, then one of four nodes that speak
HTTP to each other. ``KEELSTORE_TEST_ENDPOINT=http://HOST:PORT`` runs the same tests against a server that is already there
(with the field's test users); what needs the machine itself is skipped then.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from test.support.client import Account, Endpoint, unique
from test.support.s3 import client, remove_bucket
from test.support.s3_clients import Keys
from test.support.store import Store

FOREIGN = os.environ.get("KEELSTORE_TEST_ENDPOINT")
STORES = ["foreign"] if FOREIGN else ["one-node", "four-nodes"]


@pytest.fixture(scope="session", params=STORES)
def running(request: pytest.FixtureRequest) -> Store | None:
    """The cluster itself; None when it is not ours. Tests that use it, or ``store``, run for each kind of cluster."""
    if FOREIGN:
        return None
    found: Store = request.getfixturevalue("cluster" if request.param == "one-node" else "cluster4")
    return found


@pytest.fixture(scope="session")
def store(running: Store | None) -> Endpoint:
    """The cluster's proxy."""
    return running.endpoint if running else Endpoint.of(str(FOREIGN))


@pytest.fixture(scope="session")
def account(store: Endpoint) -> Account:
    """test:tester, admin of AUTH_test."""
    return store.login()


@pytest.fixture(scope="session")
def other(store: Endpoint) -> Account:
    """test2:tester2, admin of AUTH_test2."""
    return store.login("test2:tester2", "testing2")


@pytest.fixture(scope="session")
def plain(store: Endpoint) -> Account:
    """test:tester3, of AUTH_test but no admin of it."""
    return store.login("test:tester3", "testing3")


@pytest.fixture
def container(account: Account) -> Iterator[str]:
    """A new container, removed with its content afterwards."""
    name = unique("c")
    account.put(name).expect(201)
    yield name
    account.empty(name)


@pytest.fixture(scope="session")
def s3_keys(request: pytest.FixtureRequest) -> Keys:
    """Those that the one-command start prints for S3 clients."""
    if FOREIGN:
        return Keys.of_tester(Endpoint.of(FOREIGN))
    found: Store = request.getfixturevalue("cluster")
    return Keys.of_status(found.status())


@pytest.fixture(scope="module")
def endpoint(cluster: Store) -> Endpoint:
    """The proxy of the one node, for tests of S3."""
    return cluster.endpoint


@pytest.fixture(scope="module")
def s3(endpoint: Endpoint) -> Any:
    """boto3's client, as test:tester."""
    return client(endpoint)


@pytest.fixture
def bucket_to_be(s3_keys: Keys) -> Iterator[str]:
    """The name of a bucket that a client is to make; removed with its content, if it is there, afterwards."""
    s3, name = s3_keys.boto3(), unique("client")
    yield name
    if name in [entry["Name"] for entry in s3.list_buckets()["Buckets"]]:
        remove_bucket(s3, name)
