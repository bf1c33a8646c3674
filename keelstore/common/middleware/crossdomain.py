"""crossdomain: ``/crossdomain.xml``, which tells browser plug-ins what other sites may ask here (``spec: middleware 28``).

Stands before authentication. Needs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from keelstore.common.http import Environ, Response, StartResponse, WSGIApp
from keelstore.common.options import option, parse
from keelstore.common.registry import register_info

AFTER: Final = ("catch_errors", "gatekeeper")
BEFORE: Final = ("tempauth", "authtoken", "keystoneauth")

_HEAD: Final = ('<?xml version="1.0"?>\n<!DOCTYPE cross-domain-policy SYSTEM '
                '"http://www.adobe.com/xml/dtds/cross-domain-policy.dtd" >\n<cross-domain-policy>\n')


@dataclass(frozen=True)
class CrossDomainOptions:
    """Options of ``[filter:crossdomain]``."""

    cross_domain_policy: str = option('<allow-access-from domain="*" secure="false" />',
                                      "The elements of the policy; may go on over several lines.")


class CrossDomain:
    def __init__(self, app: WSGIApp, options: CrossDomainOptions):
        self.app = app
        self._policy = f"{_HEAD}{options.cross_domain_policy}\n</cross-domain-policy>"

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/crossdomain.xml" and environ["REQUEST_METHOD"] == "GET":
            return Response(200, body=self._policy, content_type="application/xml")(environ, start_response)
        return self.app(environ, start_response)


def filter_factory(global_conf: dict[str, str], **local_conf: str) -> Callable[[WSGIApp], CrossDomain]:
    options = parse(CrossDomainOptions, {**global_conf, **local_conf}, section="filter:crossdomain", local=local_conf,
                    known=("use", "set *", "log_*"))
    register_info("crossdomain")
    return lambda app: CrossDomain(app, options)
