"""Where a container may be synced to: the values of ``X-Container-Sync-To``, and the links that say which are."""

from __future__ import annotations

import os
from collections.abc import Iterable
from urllib.parse import urlsplit

from keelstore.common import fs

TO, KEY = "X-Container-Sync-To", "X-Container-Sync-Key"


def problem_of(value: str, allowed_hosts: Iterable[str], realms: dict[str, frozenset[str]]) -> str | None:
    """Why a container may not be synced to ``value``, or None.

    ``//realm/cluster/account/container``, or the http(s) URL of a container on an allowed host.
    """
    value = value.strip()
    if value.startswith("//"):
        parts = value[2:].split("/")
        if len(parts) != 4 or not all(parts):
            return "Invalid X-Container-Sync-To format: expected //realm/cluster/account/container"
        realm, cluster = parts[0].upper(), parts[1].upper()
        if realm not in realms:
            return f"No realm key for {realm!r}"
        if cluster not in realms[realm]:
            return f"No cluster endpoint for {realm!r} {cluster!r}"
        return None
    try:
        url = urlsplit(value)
        host, _ = url.hostname, url.port
    except ValueError:
        return f"Invalid URL {value[:200]!r}"
    if url.scheme not in ("http", "https"):
        return f'Invalid scheme {url.scheme!r} in X-Container-Sync-To, must be "//", "http", or "https".'
    if not url.path or url.path == "/":
        return "Path required in X-Container-Sync-To"
    if url.query or url.fragment:
        return "Params, queries, and fragments not allowed in X-Container-Sync-To"
    if host not in set(allowed_hosts):
        return f"Invalid host {host!r} in X-Container-Sync-To"
    return None


def update_link(device_path: str, name: str, database: str, is_synced: bool) -> None:
    """Keep ``sync_containers/…`` a link to the database of every container that is synced, for the sync daemon to walk.

    ``name``: the path of the database without epoch, which names the link; ``database``: where it leads.
    """
    prefix = f"{device_path}/containers/"
    if not name.startswith(prefix):
        return
    link = f"{device_path}/sync_containers/{name[len(prefix):]}"
    if is_synced:
        try:
            if os.readlink(link) == database:
                return
            fs.remove_file(link)
        except OSError:
            pass
        fs.make_directories(os.path.dirname(link), device_path)
        try:
            os.symlink(database, link)
        except FileExistsError:
            pass
    elif os.path.islink(link):
        fs.remove_file(link)
        directory = os.path.dirname(link)
        for _ in range(3):  # hash, suffix, partition
            if not fs.remove_directory(directory):
                break
            directory = os.path.dirname(directory)
