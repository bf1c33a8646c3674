import dataclasses

import pytest

from keelstore.proxy.app import ProxyApp
from keelstore.proxy.options import ProxyOptions
from test.support import fakes


class Proxy:
    """A proxy over fakes; ``cache`` is shared by all its requests."""

    def __init__(self, replicas=3, handoffs=5, policies=None, limits=None, shuffle=lambda nodes: None, **options):
        self.backend = fakes.FakeBackend()
        self.rings = fakes.FakeRings(replicas, handoffs)
        self.cache = fakes.FakeCache()
        self.options = dataclasses.replace(
            ProxyOptions(), **{"swift_dir": "/nonexistent", "post_quorum_timeout": 0.05, "conn_timeout": 0.02, **options})
        self.app = ProxyApp(self.options, fakes.fake_cluster(policies=policies, **(limits or {})), self.rings,
                            self.backend, fakes.silent_logger(), shuffle=shuffle)

    def ask(self, method, path, headers=None, body=b"", query="", **extra):
        extra.setdefault("swift__cache", self.cache)
        extra.setdefault("swift_owner", True)
        return fakes.ask(self.app, method, path, headers, body, query, **extra)

    def sent(self, kind, method):
        return self.backend.sent(kind, method)

    def script(self, kind, method, *replies):
        self.backend.script(kind, method, *replies)


@pytest.fixture
def make_proxy():
    return Proxy


@pytest.fixture
def proxy():
    return Proxy()
