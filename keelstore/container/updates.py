"""Telling the account of a container that it changed, as the request for the container asks."""

from __future__ import annotations

import logging
import os
from typing import Protocol

from keelstore.common.concurrency import Task, spawn
from keelstore.common.errors import BackendError, BadRequest, WaitTimeout
from keelstore.common.headers import Headers, is_true
from keelstore.common.http import Request, Response
from keelstore.container.broker import ContainerInfo

Address = tuple[str, int]


class Caller(Protocol):
    """What is used of ``keelstore.common.backend.Backend``."""

    def call(
        self, address: Address, method: str, path: str, headers: Headers, query: str = "", body: bytes = b"", *,
        timeout_s: float,
    ) -> Response: ...  # fmt: skip


def targets(request: Request) -> tuple[str, list[tuple[Address, str]]]:
    """The account's partition, and address and device of each node to tell. Raises BadRequest.

    From ``X-Account-Host``, ``-Device`` (comma separated, equally long) and ``-Partition``; empty when one is missing.
    """
    environ = request.environ
    partition = environ.get("HTTP_X_ACCOUNT_PARTITION")
    hosts = _split(environ.get("HTTP_X_ACCOUNT_HOST"))
    devices = _split(environ.get("HTTP_X_ACCOUNT_DEVICE"))
    if len(hosts) != len(devices):
        raise BadRequest("X-Account-Host and X-Account-Device are not equally long")
    if not partition:
        return "", []
    found = []
    for host, device in zip(hosts, devices):
        ip, _, port = host.rpartition(":")
        if not ip or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
            raise BadRequest(f"Invalid X-Account-Host: {host[:80]!r}")
        found.append(((ip.strip("[]"), int(port)), device))
    return partition, found


def _split(text: str | None) -> list[str]:
    return [part.strip() for part in text.split(",")] if text else []


class AccountUpdater:
    """Sends the updates; failures are only logged, since the container updater will tell the account again."""

    def __init__(self, backend: Caller, timeout_s: float, logger: logging.Logger):
        self.backend, self.timeout_s, self.logger = backend, timeout_s, logger

    def tell(self, request: Request, account: str, container: str, info: ContainerInfo) -> bool:
        """Update every account node that the request names. False when each one answered that there is no such account."""
        partition, nodes = targets(request)
        if not nodes:
            return True
        headers = Headers({
            "X-Put-Timestamp": info.put_timestamp,
            "X-Delete-Timestamp": info.delete_timestamp,
            "X-Object-Count": info.object_count,
            "X-Bytes-Used": info.bytes_used,
            "X-Trans-Id": request.environ.get("HTTP_X_TRANS_ID", "-"),
            "X-Backend-Storage-Policy-Index": info.storage_policy_index,
            "User-Agent": f"container-server {os.getpid()}",
            "Referer": f"{request.method} {request.url()}",
        })  # fmt: skip
        if is_true(request.environ.get("HTTP_X_ACCOUNT_OVERRIDE_DELETED")):
            headers["X-Account-Override-Deleted"] = "yes"
        calls = [(address, f"/{device}/{partition}/{account}/{container}") for address, device in nodes]
        tasks: list[Task] = [spawn(self._one, address, path, headers) for address, path in calls[1:]]
        statuses = [self._one(*calls[0], headers), *(task.wait() for task in tasks)]
        return any(status != 404 for status in statuses)

    def _one(self, address: Address, path: str, headers: Headers) -> int:
        """The status, 0 when there was no answer."""
        try:
            response = self.backend.call(address, "PUT", path, headers, timeout_s=self.timeout_s)
            response.drain()
        except (BackendError, WaitTimeout) as error:
            self.logger.warning("account update to %s:%s%s failed, the updater will repeat it: %s (txn: %s)",
                                *address, path, error or type(error).__name__, headers["X-Trans-Id"])  # fmt: skip
            return 0
        if not response.is_success and response.status != 404:
            self.logger.warning("account update to %s:%s%s was answered %d, the updater will repeat it (txn: %s)",
                                *address, path, response.status, headers["X-Trans-Id"])  # fmt: skip
        return response.status
