"""A small app for tests of the supervisor: says who answers, and does what its path says."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from keelstore.common import concurrency


def app_factory(global_conf: dict[str, str], **local_conf: str) -> Any:
    text = local_conf.get("text", "")
    if text == "dies":
        os._exit(3)

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path.startswith("/until/"):  # answers once the file exists; says that it is here by another
            open(path.removeprefix("/until") + ".here", "w").close()
            while not os.path.exists(path.removeprefix("/until")):
                concurrency.sleep(0.02)
        elif path == "/die":
            os._exit(3)
        body = f"{text} {os.getpid()}".encode()
        start_response("200 OK", [("Content-Length", str(len(body)))])
        return [body]

    return app
