"""An internal client over HTTP: a proxy whose pipeline is what its file says, with no gatekeeper put in. ``main([CONF])``."""

from __future__ import annotations

from collections.abc import Sequence

from keelstore.common import concurrency

concurrency.monkey_patch()  # first: modules imported earlier would keep the blocking sockets

from keelstore.common import logs, sockets, wsgi  # noqa: E402
from keelstore.common.cluster import load_cluster  # noqa: E402
from keelstore.common.httpserver import Server, server_options  # noqa: E402
from keelstore.common.paste_config import pipeline_of, read_config  # noqa: E402


def main(arguments: Sequence[str]) -> int:
    config = read_config(arguments[0])
    filters, app = pipeline_of(config)
    cluster = load_cluster(config.defaults["swift_dir"])
    listener = sockets.listen((config.defaults["bind_ip"], int(config.defaults["bind_port"])))
    Server(listener, wsgi.build(filters, app, config), server_options(config.defaults, cluster.limits),
           logs.logger_for(config.defaults, "internal")).serve_forever()
    return 0
