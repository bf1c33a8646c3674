"""The object servers and reconstructors of several configuration files in one process, as a node has them: one pass of each.

``python -m test.bench.rebuild_node CONF...``
"""

from __future__ import annotations

import sys

from keelstore.common import concurrency

concurrency.monkey_patch()  # first: modules imported earlier would keep the blocking sockets

from keelstore.common import allocator, logs, wsgi  # noqa: E402
from keelstore.common.backend import serve_locally  # noqa: E402
from keelstore.common.paste_config import pipeline_of, read_config  # noqa: E402
from keelstore.node.daemons import DAEMONS, Parts, wanted  # noqa: E402


def main(*paths: str) -> None:
    logs.lighten()
    allocator.keep_buffers()
    configs = [read_config(path) for path in paths]
    for config in configs:
        filters, app = pipeline_of(config)
        serve_locally((config.defaults["bind_ip"], int(config.defaults["bind_port"])), wsgi.build(filters, app, config))
    parts = Parts()
    for config in configs:
        parts.make(wanted(DAEMONS["object-reconstructor"], config, ())).run_once()


if __name__ == "__main__":
    main(*sys.argv[1:])
