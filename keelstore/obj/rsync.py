"""rsync as the replicator runs it: for peers that have an rsync daemon and want it (``sync_method = rsync``).

Our attributes files come along: they are files, and their names are not among those that are excluded.
"""

from __future__ import annotations

from collections.abc import Sequence

from keelstore.common.ring.ring import Node
from keelstore.common.rsync import RsyncOptions, module_of, run

__all__ = ["RsyncOptions", "arguments", "module_of", "run"]
TEMPORARY = ".*." + "[0-9a-zA-Z]" * 6  # files that another rsync is just writing


def arguments(options: RsyncOptions, sources: Sequence[str], node: Node, datadir: str, partition: int,
              is_remote_region: bool) -> list[str]:
    """The command that brings suffix directories into a partition of a node's device."""
    found = [
        "rsync", "--recursive", "--whole-file", "--human-readable", "--xattrs", "--itemize-changes", "--ignore-existing",
        f"--timeout={options.io_timeout_s:.0f}", f"--contimeout={options.io_timeout_s:.0f}",
        f"--bwlimit={options.bandwidth_limit}", f"--exclude={TEMPORARY}",
    ]  # fmt: skip
    if options.compress and is_remote_region:
        found.append("--compress")
    return [*found, *sources, f"{module_of(options.module, node)}/{node.device}/{datadir}/{partition}"]
