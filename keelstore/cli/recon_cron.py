"""``keelstore-recon-cron CONF``: counts the updates of listings that wait (``async_pending*``), for recon to show.

For a cron job, as the field has it. Our updater tells more, and all the time (``waiting``, ``oldest`` in ``daemons.recon``).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from keelstore.common.errors import KeelstoreError
from keelstore.common.options import option, parse
from keelstore.common.paste_config import read_config
from keelstore.common.recon_cache import ReconCache

LOCK = "keelstore-recon-object-cron"
_OLD_S = 24 * 3600  # a lock this old belongs to nobody


@dataclass(frozen=True)
class ReconCronOptions:
    """Options of ``[filter:recon]`` that recon-cron reads."""

    recon_cache_path: str = option("/var/cache/swift", "Directory of the recon files.")
    recon_lock_path: str = option("/var/lock", "Directory of the lock that keeps a second one from running.")
    devices: str = option("/srv/node", "Directory that holds the device mount points.")


def count_async_pending(devices: str) -> int:
    """Entries two levels below each ``async_pending*`` of each device."""
    found = 0
    for device in _entries(devices):
        for name in _entries(f"{devices}/{device}"):
            if name.startswith("async_pending"):
                base = f"{devices}/{device}/{name}"
                found += sum(len(_entries(f"{base}/{suffix}")) for suffix in _entries(base))
    return found


def _entries(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:  # a failed disk, or a file
        return []


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; gives the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if len(given) != 1 or given[0].startswith("-"):
        print("Usage: keelstore-recon-cron CONF_FILE\nex: keelstore-recon-cron /etc/keelstore/object-server.conf")
        return 1
    try:
        config = read_config(given[0])
        options = parse(ReconCronOptions, config.merged("filter:recon"), section="filter:recon", file=config.path)
        lock = os.path.join(options.recon_lock_path, LOCK)
        try:
            os.mkdir(lock)
        except FileExistsError:
            if time.time() - os.stat(lock).st_mtime < _OLD_S:
                print(
                    f"Error: {lock} is there: another one runs, or did not end well (then remove it)", file=sys.stderr
                )
                return 1
            os.utime(lock)
        try:
            ReconCache(options.recon_cache_path).update(
                "object", {"async_pending": count_async_pending(options.devices), "async_pending_last": time.time()}
            )
        finally:
            os.rmdir(lock)
    except KeelstoreError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"Error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
