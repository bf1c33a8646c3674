"""One process that serves a store through several pipelines, each on a port of its own; told apart by nothing else.

``python -m test.bench.serving NODE_CONF PORT=FILTER,FILTER...`` serves what ``NODE_CONF`` (of a store that is down) has, once
through the pipeline that its proxy has and on each further port through one of the filters named, nothing put in.
"""

from __future__ import annotations

import os
import sys

from keelstore.common import concurrency

concurrency.monkey_patch()  # first: modules imported earlier would keep the blocking sockets

from keelstore.common import logs, sockets, wsgi  # noqa: E402
from keelstore.common.backend import serve_locally  # noqa: E402
from keelstore.common.daemon import die_with_parent  # noqa: E402
from keelstore.common.httpserver import Server  # noqa: E402
from keelstore.common.paste_config import pipeline_of, read_config  # noqa: E402
from keelstore.node.roles import load_node  # noqa: E402


def main(conf: str, *others: str) -> None:
    die_with_parent(os.getppid())
    program = load_node(conf)
    logs.lighten()
    for service in program.services:
        if service.kind in wsgi.STORAGE_KINDS:
            for address in service.addresses:
                for known_as in wsgi.reached_as(address):
                    serve_locally(known_as, service.app)
            continue
        apps = {service.addresses[0][1]: service.app}
        config = read_config(service.config.path)
        filters, app = pipeline_of(config)
        for other in others:
            port, _, names = other.partition("=")
            chosen = [component for component in filters if wsgi.names_of(component) in names.split(",")]
            apps[int(port)] = wsgi.build(chosen, app, config)
        for number, wsgi_app in apps.items():
            listener = sockets.listen(("127.0.0.1", number))
            concurrency.spawn(Server(listener, wsgi_app, service.connections, service.logger).serve_forever)
    print("ready", flush=True)
    concurrency.Event().wait()  # until the parent ends us


if __name__ == "__main__":
    main(*sys.argv[1:])
