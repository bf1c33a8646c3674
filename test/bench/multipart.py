"""Objects that S3 clients send in parts and read in ranges, several at the same time: what one of today does with anything large.

An operation is a whole object: begin, PARTS parts over as many connections, and the end; or a GET of as many ranges. The connections,
signatures (SigV4, in the query) and bodies are the shared load generator's.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from types import ModuleType, SimpleNamespace
from typing import Any

MIB = 1 << 20
PARTS, PART = 8, 8 * MIB
SIZE = PARTS * PART
PUT, GET = "multipart-put", "multipart-get"
OBJECTS = 4  # of a measurement
WARM_READS = 4  # of each, before any is measured: each of our processes checks a part's MD5 when it first sends it
_UPLOAD = re.compile(rb"<UploadId>([^<]+)</UploadId>")


class Multipart:
    """The objects of one side."""

    def __init__(self, bench: ModuleType, load: Any, options: SimpleNamespace):
        self._bench, self._load, self._options, self._target = bench, load, options, load.t
        self._number = 0
        self._read: list[str] = []

    def fill(self) -> None:
        """What is read later."""
        if not self._read:
            engine = self._engine()
            self._read = [self._put(engine, self._name("g")) for _ in range(OBJECTS)]
            self._end(engine)
            for _ in range(WARM_READS):
                engine = self._engine()  # other connections, which other processes may take
                for path in self._read:
                    self._get(engine, path)
                self._end(engine)

    def measure(self, workload: str, connections: int) -> dict[str, Any]:
        """As the load generator's ``measure``. RuntimeError when something was refused."""
        bench, options = self._bench, self._options
        if workload == GET:
            self.fill()
        os.sync()
        time.sleep(options.settle)
        engine, paths, took = self._engine(connections), list[str](), list[float]()
        pids = bench.with_descendants(options.pids)
        server, client, began = bench.cpu_of(pids), bench.self_cpu(), time.perf_counter()
        for number in range(OBJECTS):
            started = time.perf_counter()
            if workload == PUT:
                paths.append(self._put(engine, self._name("p")))
            else:
                self._get(engine, self._read[number])
            took.append((time.perf_counter() - started) * 1000)
        elapsed = time.perf_counter() - began
        server, client = bench.cpu_of(pids) - server, bench.self_cpu() - client
        self._end(engine)
        for path in paths:
            self._once("DELETE", path)
        took.sort()
        return {"label": options.label, "api": "s3", "policy": "default", "workload": workload, "size": SIZE, "concurrency": connections,
                "seconds": round(elapsed, 3), "ops": OBJECTS, "ops_s": round(OBJECTS / elapsed, 2), "mib_s": round(OBJECTS * SIZE / MIB / elapsed, 3),
                "p50_ms": round(took[OBJECTS // 2], 3), "p99_ms": round(took[-1], 3), "errors": 0,
                "server_cpu_ms_op": round(server * 1000 / OBJECTS, 4), "client_cpu_ms_op": round(client * 1000 / OBJECTS, 4)}

    # -- one object ----------------------------------------------------------------------------------------------------

    def _name(self, kind: str) -> str:
        self._number += 1
        return f"/{self._load.container('multipart')}/{kind}-{time.time_ns():x}-{self._number}"

    def _put(self, engine: Any, path: str) -> str:
        target, body = self._target, self._load.body(PART).of(0)
        found = _UPLOAD.search(self._once("POST", path, "uploads="))
        if found is None:
            raise RuntimeError(f"{self._options.label}: no upload was begun")
        query = f"uploadId={found[1].decode()}"
        head = b"Content-Length: %d\r\n\r\n" % PART
        self._run(engine, [self._bench.Op(b"PUT " + target.sign("PUT", path, f"partNumber={number}&{query}") + target.http + head, body, kind="put")
                           for number in range(1, PARTS + 1)])
        etag = hashlib.md5(body).hexdigest()
        parts = "".join(f'<Part><PartNumber>{number}</PartNumber><ETag>"{etag}"</ETag></Part>' for number in range(1, PARTS + 1))
        self._once("POST", path, query, f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode())
        return path

    def _get(self, engine: Any, path: str) -> None:
        start = b"GET " + self._target.sign("GET", path) + self._target.http
        self._run(engine, [self._bench.Op(start + b"Range: bytes=%d-%d\r\n\r\n" % (at, at + PART - 1), want=PART, kind="get")
                           for at in range(0, SIZE, PART)])

    # -- the wire ------------------------------------------------------------------------------------------------------

    def _engine(self, connections: int = PARTS) -> Any:
        engine = self._bench.Engine(self._target, connections)
        engine.open()
        return engine

    def _run(self, engine: Any, operations: list[Any]) -> None:
        engine.run(iter(operations))
        if engine.errors:
            self._end(engine)
            raise RuntimeError(f"{self._options.label}: {engine.errors} parts were not taken or given: {engine.statuses}")

    def _end(self, engine: Any) -> None:
        engine.shut()

    def _once(self, method: str, path: str, query: str = "", body: bytes = b"") -> bytes:
        status, _, answer = self._target.once(method, self._target.sign(method, path, query).decode(), body=body)
        if status // 100 != 2 or b"<Error>" in answer:
            raise RuntimeError(f"{self._options.label}: {method} {path}: {status} {answer[:300]!r}")
        return bytes(answer)
