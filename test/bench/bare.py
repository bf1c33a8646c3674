"""Bare programs, to see how far from them a store is. The standard library only, so that they start with nothing else.

    bare.py put DIRECTORY COUNT SIZE     durable writes of three copies; prints their CPU and wall seconds as JSON
    bare.py put-dirs DIRECTORY COUNT SIZE    the same, each into a new directory
    bare.py put-layout DIRECTORY COUNT SIZE  each where the layout of objects has it: a new hash directory in a new suffix directory
    bare.py serve FILE                   sends FILE with sendfile for each request; prints its port, ends with its input
    bare.py answer DIRECTORY             a yardstick of CPU: ``GET /`` answers after a fixed piece of interpreter's work, ``PUT /`` after
                                         one durable write as of ``put-dirs`` besides; prints its port, ends with its input
"""

from __future__ import annotations

import contextlib
import email.utils
import http.client
import io
import json
import os
import resource
import socket
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable

COPIES = 3


def sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(fd)
    os.close(fd)


def put(directory: str, name: str, body: bytes, metadata: bytes, has_directory: bool) -> None:
    """One copy: created, written, its metadata with it, synced, renamed, its directory synced; the parent too when it is new."""
    temporary, home = f"{directory}/tmp/{name}", f"{directory}/objects"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(fd, body)
    os.setxattr(fd, "user.swift.metadata", metadata)
    os.fsync(fd)
    os.close(fd)
    if has_directory:
        os.mkdir(f"{home}/{name}")
        sync(home)
        home = f"{home}/{name}"
    os.rename(temporary, f"{home}/{name}.data")
    sync(home)


def put_in_layout(directory: str, name: str, body: bytes, metadata: bytes) -> None:
    """As :func:`put`, with both new directories synced beside the file, and the file linked where it had no name."""
    home = f"{directory}/objects"
    suffix = f"{home}/{name}"
    os.mkdir(suffix)
    os.mkdir(f"{suffix}/hash")
    fd = os.open(f"{suffix}/hash", os.O_TMPFILE | os.O_WRONLY, 0o600)
    os.write(fd, body)
    os.setxattr(fd, "user.swift.metadata", metadata)
    os.fsync(fd)
    sync(home)
    sync(suffix)
    os.link(f"/proc/self/fd/{fd}", f"{suffix}/hash/{name}.data", src_dir_fd=fd)  # with a descriptor given, links are followed
    sync(f"{suffix}/hash")
    os.close(fd)


def puts(directory: str, count: int, size: int, mode: str) -> None:
    body, metadata = os.urandom(size), os.urandom(300)
    devices = [f"{directory}/bare{number}" for number in range(COPIES)]
    for device in devices:
        os.makedirs(f"{device}/tmp", exist_ok=True)
        os.makedirs(f"{device}/objects", exist_ok=True)
    prefix = f"{time.time_ns():x}"
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    for number in range(count):
        for device in devices:
            if mode == "put-layout":
                put_in_layout(device, f"{prefix}-{number}", body, metadata)
            else:
                put(device, f"{prefix}-{number}", body, metadata, mode == "put-dirs")
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({"cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, "wall_s": wall}))


def serve(path: str) -> None:
    file, size = open(path, "rb"), os.path.getsize(path)

    def answer(connection: socket.socket) -> None:
        while connection.recv(65536):
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
            offset = 0
            while offset < size:
                offset += os.sendfile(connection.fileno(), file.fileno(), offset, size - offset)

    listen(answer)


def listen(answer: Callable[[socket.socket], None]) -> None:
    """A thread for each connection, until whoever started us is gone. Not paced, as connections of ours over loopback are not."""
    listener = socket.create_server(("127.0.0.1", 0))
    with contextlib.suppress(OSError):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
    print(listener.getsockname()[1], flush=True)

    def accept() -> None:
        while True:
            threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    sys.stdin.read()


def work(head: bytes) -> bytes:
    """What any server does with a request, out of the standard library and much of its code: parsed, looked at, put together again."""
    line, _, rest = head.partition(b"\r\n")
    target = urllib.parse.urlsplit(line.split()[1].decode("latin-1"))
    headers = http.client.parse_headers(io.BytesIO(rest))
    fields = {name.title(): urllib.parse.quote(value) for name, value in headers.items()}
    fields["Date"] = email.utils.formatdate(usegmt=True)
    fields["Path"] = urllib.parse.quote(target.path)
    again = json.loads(json.dumps(fields))
    return "".join(f"{name}: {value}\r\n" for name, value in sorted(again.items())).encode("latin-1")


def yardstick(directory: str) -> None:
    devices = [f"{directory}/bare{number}" for number in range(COPIES)]
    for device in devices:
        os.makedirs(f"{device}/tmp", exist_ok=True)
        os.makedirs(f"{device}/objects", exist_ok=True)
    body = bytes(4096)

    def answer(connection: socket.socket) -> None:
        number = 0
        while head := connection.recv(65536):
            found = work(head)
            if head.startswith(b"PUT"):
                number += 1
                for device in devices:
                    put(device, str(number), body, body[:300], True)
            connection.sendall(b"HTTP/1.1 200 OK\r\n%bContent-Length: 0\r\n\r\n" % found)

    listen(answer)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    elif sys.argv[1] == "answer":
        yardstick(sys.argv[2])
    else:
        puts(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[1])
