"""Whatever is sent to the S3 front, over a whole cluster in this process: no error of ours, no traceback, no hang (issue 6, point 7).

KEELSTORE_FUZZ_SEED and KEELSTORE_FUZZ_REQUESTS choose other requests, and how many there may be.
"""

from __future__ import annotations

import io
import logging
import os
import re
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lxml import etree

from keelstore.common.http import Response, call_app
from keelstore.common.middleware import bulk, copy, dlo, gatekeeper, slo, symlink, tempauth, versioned_writes
from keelstore.common.middleware import s3api as s3api_filter
from test.support.cluster import InProcessCluster
from test.support.s3_fuzz import Asked, Fuzz, Known

SEED = int(os.environ.get("KEELSTORE_FUZZ_SEED", "1"))
REQUESTS = int(os.environ.get("KEELSTORE_FUZZ_REQUESTS", "3000"))
USER = ("t:u", "secret")
LEAST, ENOUGH_S = 300, 10.0  # a busy machine sends less
LIMIT_S = 30.0  # of CPU, for one request: far from what any needs


class Body(io.BytesIO):
    """What a client has sent; who asks for more again and again hangs."""

    asked_beyond = 0

    def _counted(self, data: bytes) -> bytes:
        if not data:
            self.asked_beyond += 1
            assert self.asked_beyond < 1000, "reads on behind the end"
        return data

    def read(self, size: int | None = -1) -> bytes:
        return self._counted(super().read(size))

    def readline(self, size: int | None = -1) -> bytes:
        return self._counted(super().readline(size))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[InProcessCluster]:
    made = InProcessCluster(tmp_path, nodes=1, devices=3)
    yield made
    made.close()


class Front:
    """The pipeline of a store, without what would hide an error."""

    def __init__(self, cluster: InProcessCluster):
        conf = {"swift_dir": str(cluster.etc), "log_address": "/nonexistent"}
        app: Any = cluster.proxy
        for filter_, options in ((symlink, {}), (versioned_writes, {"allow_versioned_writes": "true", "allow_object_versioning": "true"}), (dlo, {}), (slo, {}),
                                 (copy, {}), (tempauth, {"user_t_u": "secret .admin"}), (bulk, {}), (s3api_filter, {"s3_acl": "true"}), (gatekeeper, {})):
            app = filter_.filter_factory(conf, **options)(app)  # type: ignore[attr-defined]
        self.app, self.cache = app, cluster.cache

    def ask(self, asked: Asked) -> Response:
        environ = {**asked.environ(), "wsgi.input": Body(asked.body), "wsgi.errors": io.StringIO(), "swift.cache": self.cache}
        response = call_app(self.app, environ)
        response.body = response.read()
        return response


def signed(fuzz: Fuzz, method: str, path: str, query: str = "", body: bytes = b"") -> Asked:
    asked = Asked(method, path, query, {}, body)
    while "authorization" not in asked.headers or "Credential=t:u/" not in asked.headers["authorization"]:
        asked.headers.clear()
        fuzz.sign(asked)
        asked.query = query
    return asked


def test_security_S48_nothing_breaks_the_front(cluster: InProcessCluster, caplog: pytest.LogCaptureFixture) -> None:
    print(f"KEELSTORE_FUZZ_SEED={SEED} KEELSTORE_FUZZ_REQUESTS={REQUESTS}")
    front, known = Front(cluster), Known(USER, ("plain", "versioned", "locked"), ("key", "a%20b/%C3%A9", "dir/", "parts", "new"))
    fuzz = Fuzz(SEED, known)
    setup = Fuzz(0, known)

    def do(method: str, path: str, query: str = "", body: bytes = b"") -> Response:
        for _ in range(20):  # until the signature is one of those that are right
            response = front.ask(signed(setup, method, path, query, body))
            if response.status < 300:
                return response
        raise AssertionError((method, path, response.status, response.body))

    for bucket in known.buckets:
        do("PUT", f"/{bucket}")
    for bucket in known.buckets[1:]:
        do("PUT", f"/{bucket}", "versioning", b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>")
    do("PUT", "/locked", "object-lock", b"<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled></ObjectLockConfiguration>")
    for bucket in known.buckets:
        for key in known.keys[:3]:
            known.versions.append(do("PUT", f"/{bucket}/{key}", body=b"hello").headers.get("X-Amz-Version-Id") or "null")
        upload = re.search(rb"<UploadId>(.*)</UploadId>", do("POST", f"/{bucket}/parts", "uploads").body)
        assert upload is not None
        known.uploads.append(upload[1].decode())
        do("PUT", f"/{bucket}/parts", f"partNumber=1&uploadId={known.uploads[-1]}", b"x" * 1000)

    counts: dict[int, int] = {}
    caplog.set_level(logging.ERROR)
    started = time.monotonic()
    for number in range(REQUESTS):
        if number >= LEAST and time.monotonic() - started > ENOUGH_S:
            break
        asked = fuzz.request()
        began = time.process_time()
        try:
            response = front.ask(asked)
        except Exception:
            pytest.fail(f"request {number} of seed {SEED}: {asked}\n{traceback.format_exc()}")
        assert time.process_time() - began < LIMIT_S, (number, asked)
        counts[response.status] = counts.get(response.status, 0) + 1
        what = f"request {number} of seed {SEED}: {asked}: {response.status} {response.body[:500]!r}"
        assert response.status < 500 or (response.status == 501 and b"<Code>NotImplemented</Code>" in response.body) \
            or (response.status == 501 and asked.method == "HEAD"), what
        assert not [record for record in caplog.records if record.exc_info], f"{what}\n{caplog.text}"
        assert b"Traceback" not in response.body, what
        if response.body.startswith(b"<?xml"):
            try:
                etree.fromstring(response.body)
            except etree.XMLSyntaxError as error:
                pytest.fail(f"{error} in the answer to {what}")
    print(dict(sorted(counts.items())))
    assert counts[200] > sum(counts.values()) // 20, counts  # it gets far enough in
