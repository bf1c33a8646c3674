"""rsync as a replicator runs it: for peers that have an rsync daemon, and no better way to take files."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from keelstore.common import concurrency
from keelstore.common.errors import ConfigError, WaitTimeout
from keelstore.common.ring.ring import Node

_VARIABLES = ("ip", "port", "replication_ip", "replication_port", "region", "zone", "device", "meta")
MAX_OUTPUT: Final = 1 << 20  # bytes of what rsync says that are kept


@dataclass(frozen=True)
class RsyncOptions:
    module: str = "{replication_ip}::object"
    timeout_s: float = 900.0  # for one run
    io_timeout_s: float = 30.0
    bandwidth_limit: str = "0"
    compress: bool = False  # to other regions
    log_transfers: bool = True
    error_log_line_length: int = 0


def module_of(template: str, node: Node) -> str:
    """The rsync module of a node. Raises ConfigError for a variable that there is not."""
    values = {name: getattr(node, name) for name in _VARIABLES}
    for name in ("ip", "replication_ip"):
        if ":" in values[name]:
            values[name] = f"[{values[name]}]"
    try:
        return template.format(**values)
    except (KeyError, IndexError, ValueError, AttributeError) as error:
        raise ConfigError(f"expected a text with some of {{{'}, {'.join(_VARIABLES)}}}: {error}", option="rsync_module",
                          value=template) from None


def run(command: Sequence[str], options: RsyncOptions, logger: logging.Logger) -> bool:
    """Run rsync; whether it brought everything. Killed after ``timeout_s``."""
    if shutil.which(command[0]) is None:
        logger.error("rsync is needed, and there is none on this machine")
        return False
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               env={**os.environ, "LC_ALL": "C"})
    try:
        with concurrency.time_limit(options.timeout_s):
            output, _ = process.communicate()
    except WaitTimeout:
        logger.error("Killing long-running rsync after %ds: %s", options.timeout_s, " ".join(command))
        process.kill()
        process.wait()
        return False
    except BaseException:
        process.kill()
        process.wait()
        raise
    lines = output[:MAX_OUTPUT].decode("utf-8", "replace").splitlines()
    if process.returncode:
        text = f"rsync ended with {process.returncode}: {' '.join(command)}: {' | '.join(lines[-3:])}"
        limit = options.error_log_line_length
        logger.error("%s", text[:limit] if limit else text)
        return False
    if options.log_transfers:
        for line in lines:
            if line and not line.startswith("cd+"):
                logger.debug("rsync: %s", line)
        logger.info("Successful rsync of %s: %d lines", command[-1], len(lines))
    return True
