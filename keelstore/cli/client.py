"""The few HTTP requests that the commands make themselves."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from keelstore.common.errors import KeelstoreError

_MAX_BODY = 16 << 20


class ClientError(KeelstoreError):
    """No usable answer. ``reason``: without the address."""

    def __init__(self, message: str, reason: str = ""):
        super().__init__(message)
        self.reason = reason or message


@dataclass(frozen=True)
class Answer:
    """``headers`` has lower-case names."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Client:
    """One request a connection."""

    def __init__(self, endpoint: str, timeout_s: float):
        parts = urlsplit(endpoint)
        self._host, self._port, self._timeout_s = parts.hostname or "", parts.port or 80, timeout_s

    def request(self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes | None = None) -> Answer:
        """Raises ClientError."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        try:
            connection.request(method, path, body=body, headers={"Connection": "close", **(headers or {})})
            response = connection.getresponse()
            return Answer(response.status, {name.lower(): value for name, value in response.getheaders()},
                          response.read(_MAX_BODY))
        except (OSError, http.client.HTTPException) as error:
            reason = str(error.strerror if isinstance(error, OSError) and error.strerror else error) or type(error).__name__
            raise ClientError(f"{self._host}:{self._port} does not answer: {reason}", reason) from None
        finally:
            connection.close()

    def authenticate(self, user: str, key: str) -> tuple[str, str]:
        """Token and storage URL of a user. Raises ClientError."""
        answer = self.request("GET", "/auth/v1.0", {"X-Auth-User": user, "X-Auth-Key": key})
        if answer.status not in (200, 204) or "x-auth-token" not in answer.headers:
            raise ClientError(f"authentication answers {answer.status}")
        return answer.headers["x-auth-token"], answer.headers.get("x-storage-url", "")
