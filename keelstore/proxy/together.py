"""A small change of an object on the devices that hold it: those of one node in this process make it together
(``obj/together.py``), the others each by itself, all at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Protocol

from keelstore.common.errors import WaitTimeout
from keelstore.common.headers import Headers
from keelstore.common.http import Response
from keelstore.proxy import fanout
from keelstore.proxy.fanout import Answer, Asking, Gathering, address_of, answer_of, pad, quorum_of
from keelstore.proxy.placement import Nodes
from keelstore.proxy.request import ProxyRequest

if TYPE_CHECKING:
    from keelstore.proxy.app import ProxyApp


class Late(Protocol):
    """As ``obj/together.Late``: an answer that is not there yet."""

    def wait(self, seconds: float) -> Response: ...


def to_quorum(app: ProxyApp, request: ProxyRequest, nodes: Nodes, method: str, part: int, path: str,
              headers: Sequence[Headers], body: bytes = b"", digest: Callable[[], str] | None = None) -> list[Answer]:
    """As ``fanout.to_quorum``, for a small PUT or a DELETE."""
    count = len(headers)
    first = list(islice(nodes, count))
    use_replication = request.uses_replication_network
    by_node: dict[Any, list[int]] = {}
    for index, node in enumerate(first):
        change = app.backend.together(address_of(node, use_replication))
        if change is not None:
            by_node.setdefault(change, []).append(index)
    if not by_node:
        return fanout.to_quorum(app, request, chain(first, nodes), method, part, path, headers, body=body, digest=digest)
    change, together = max(by_node.items(), key=lambda item: len(item[1]))

    asking = Asking(app, request, method, part, path, headers, body=body, digest=digest)

    def alone(index: int) -> Answer | None:
        """In full: the node, and then those after it."""
        return asking.one(index, chain((first[index],), nodes) if index < len(first) else nodes)

    def later(index: int, outcome: Response | Late) -> Answer | None:
        """The answer that the node gives later, or gave when it could not; when it does not count that of those after it."""
        answer = _settled(app, first[index], method, path, outcome, len(body))
        if answer is None:
            return asking.one(index, nodes)
        answer.index = index
        return answer

    gathering = Gathering(count, quorum_of(count))
    gathering.start([partial(alone, index) for index in range(count) if index not in together], app.log_failure)
    wanted = [(address_of(first[index], use_replication), first[index].device, headers[index]) for index in together]
    left = []
    for index, outcome in zip(together, change(method, f"/{part}{path}", wanted, body, digest), strict=True):
        if outcome is None:
            left.append(partial(alone, index))
        elif isinstance(outcome, Response) and outcome.status < 500:
            gathering.give(later(index, outcome))
        else:
            left.append(partial(later, index, outcome))
    gathering.start(left, app.log_failure)
    return pad(gathering.wait(app.options.post_quorum_timeout), count)


def _settled(app: ProxyApp, node: Any, method: str, path: str, outcome: Response | Late, size: int) -> Answer | None:
    """What a device of this process says, once it does; None when that does not count."""
    if not isinstance(outcome, Response):
        try:
            outcome = outcome.wait(app.health.patience_s(node, app.options.node_timeout))
        except WaitTimeout as error:
            app.health.failed(node, f"{method} {path}", error)
            return None
    return answer_of(app, node, method, path, outcome.status, outcome.headers, outcome.body, size)
