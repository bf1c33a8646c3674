"""A small change of an object on the devices that hold it: those of one node in this process make it together
(``obj/together.py``), the others each by itself, all at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from keelstore.common.errors import WaitTimeout
from keelstore.common.headers import Headers
from keelstore.common.http import Response
from keelstore.common.quorum import have_quorum
from keelstore.proxy import fanout
from keelstore.proxy.fanout import Answer, Gathering, address_of, ask_for_one, note_failure, pad
from keelstore.proxy.placement import Nodes
from keelstore.proxy.request import ProxyRequest

if TYPE_CHECKING:
    from keelstore.proxy.app import ProxyApp


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

    def alone(index: int, late: Any = None) -> Callable[[], Answer | None]:
        """To ask in full: the node, or, when its answer is late and bad, those after it."""

        def run() -> Answer | None:
            node = first[index] if index < len(first) else None
            if late is not None:
                answer = _late(app, node, method, path, late, len(body))
                if answer is not None:
                    answer.index = index
                    return answer
                node = None
            others = nodes if node is None else chain((node,), nodes)
            return ask_for_one(app, request, others, method, part, path, headers, index, body=body, digest=digest)

        return run

    gathering: Gathering[Answer] = Gathering(count, lambda found: have_quorum([answer.status for answer in found], count))
    gathering.start([alone(index) for index in range(count) if index not in together], app.log_failure)
    wanted = [(address_of(first[index], use_replication), first[index].device, headers[index]) for index in together]
    left = []
    for index, outcome in zip(together, change(method, f"/{part}{path}", wanted, body, digest), strict=True):
        if isinstance(outcome, Response) and outcome.status < 500:
            app.health.answered(first[index])
            gathering.give(Answer(outcome.status, outcome.headers, outcome.body, first[index], index))
        else:
            left.append(alone(index, outcome))
    gathering.start(left, app.log_failure)
    return pad(gathering.wait(app.options.post_quorum_timeout), count)


def _late(app: ProxyApp, node: Any, method: str, path: str, outcome: Any, size: int) -> Answer | None:
    """The answer that a device of this process gives later, or gave when it could not; None for one that does not count."""
    if not isinstance(outcome, Response):
        try:
            outcome = outcome.wait(app.health.patience_s(node, app.options.node_timeout))
        except WaitTimeout as error:
            app.health.failed(node, f"{method} {path}", error)
            return None
    app.health.answered(node)
    if outcome.status >= 500:
        note_failure(app, node, method, path, outcome.status, outcome.headers, size)
        return None
    return Answer(outcome.status, outcome.headers, outcome.body, node)
