"""The error tree of keelstore.

Errors carry fields, not only text. ``common/http.py`` alone turns them into HTTP statuses; library errors are translated
where the library is called.
"""

from __future__ import annotations


class KeelstoreError(Exception):
    """Base of every error that keelstore raises on purpose."""


class ConfigError(KeelstoreError):
    """A configuration that cannot be used. ``str()`` names file, section, option, value and what was expected."""

    def __init__(self, reason: str, *, file: str = "", section: str = "", option: str = "", value: str | None = None):
        self.reason, self.file, self.section, self.option, self.value = reason, file, section, option, value
        where = file
        if section:
            where = f"{where} [{section}]".strip()
        if option:
            where = f"{where} {option}".strip()
        if value is not None:
            where = f"{where} = {value!r}"
        super().__init__(f"{where}: {reason}" if where else reason)


class RingError(KeelstoreError):
    """A ring or builder file that cannot be used, or a change that a builder refuses."""


# -- the client's ------------------------------------------------------------------------------------------------------


class RequestError(KeelstoreError):
    """A request that is answered with an error status. ``status`` is the number, the text becomes the body."""

    status = 400

    def __init__(self, reason: str = "", *, status: int | None = None, headers: dict[str, str] | None = None):
        super().__init__(reason)
        self.reason = reason
        self.headers = headers or {}
        if status is not None:
            self.status = status


class BadRequest(RequestError):
    status = 400


class Unauthorized(RequestError):
    status = 401


class Forbidden(RequestError):
    status = 403


class NotFound(RequestError):
    status = 404


class ClientTimeout(RequestError):
    """The client sent nothing for ``client_timeout`` seconds."""

    status = 408


class LengthRequired(RequestError):
    status = 411


class PreconditionFailed(RequestError):
    status = 412


class EntityTooLarge(RequestError):
    status = 413


class UnprocessableEntity(RequestError):
    status = 422


class ClientDisconnect(RequestError):
    """The client went away, or its body ended early or broke the chunked framing."""

    status = 499


# -- one device --------------------------------------------------------------------------------------------------------


class StorageError(KeelstoreError):
    """Something on one device prevents the call."""


class ObjectNotFound(StorageError):
    """There is nothing under this name; ``timestamp`` is None, or that of what was there (see subclasses)."""

    def __init__(self, text: str = "", timestamp: object | None = None):
        super().__init__(text)
        self.timestamp = timestamp


class ObjectDeleted(ObjectNotFound):
    """A tombstone is the newest; ``timestamp`` is its Timestamp."""


class ObjectExpired(ObjectNotFound):
    """The object's X-Delete-At has passed; ``timestamp`` is its Timestamp, ``metadata`` what it held."""

    def __init__(self, text: str = "", timestamp: object | None = None, metadata: dict[str, str] | None = None):
        super().__init__(text, timestamp)
        self.metadata = metadata or {}


class ObjectCorrupt(ObjectNotFound):
    """What was found failed a check and has been quarantined."""


class ObjectCollision(StorageError):
    """The hash directory holds an object of another name."""


class ObjectStateChanged(StorageError):
    """Files vanished between listing and opening; ask again, or elsewhere."""


class DeviceUnavailable(StorageError):
    """The device is not mounted, or is not a directory."""

    def __init__(self, device: str = ""):
        super().__init__(f"device {device} is not available")
        self.device = device


class DeviceFull(StorageError):
    """No room within the reserve (ENOSPC, EDQUOT or ``fallocate_reserve``)."""


class DeviceBusy(StorageError):
    """The device is slow, and as much as may waits for it."""

    def __init__(self, device: str = ""):
        super().__init__(f"device {device} is slow, and enough waits for it")
        self.device = device


class XattrNotSupported(StorageError):
    """The file system refuses extended attributes."""


class LockTimeout(StorageError):
    """A lock was not had in time."""


class DatabaseCorrupt(StorageError):
    """The SQLite file cannot be read as one of ours; it has been quarantined."""


# -- other nodes -------------------------------------------------------------------------------------------------------


class BackendError(KeelstoreError):
    """One node could not be asked, or broke off: connect refused, timeout, reset, malformed answer."""

    def __init__(self, text: str = "", node: object | None = None):
        super().__init__(text)
        self.node = node


class BackendTimeout(BackendError):
    """A node did not answer within its limit."""


class WaitTimeout(KeelstoreError):
    """A bounded wait of ours ran out (the translated form of the green-thread library's timeout)."""


class PeerSilent(WaitTimeout):
    """It was a wait for the other end of a connection, which moved nothing."""
