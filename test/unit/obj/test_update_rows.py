"""Which of two updates of one object says all that the other does."""

from __future__ import annotations

from typing import Any

import pytest

from keelstore.common.headers import Headers
from keelstore.common.timestamp import Timestamp
from keelstore.obj.update_rows import includes


def update(data: float, content_type: float = 0, meta: float = 0, op: str = "PUT") -> dict[str, Any]:
    times = {"X-Timestamp": data, "X-Content-Type-Timestamp": content_type, "X-Meta-Timestamp": meta}
    return {"op": op, "headers": Headers({name: Timestamp(when).internal for name, when in times.items() if when})}


@pytest.mark.parametrize(("newer", "older", "expected"), [
    (update(2), update(1), True),
    (update(1), update(1), True),
    (update(2, op="DELETE"), update(1, 1, 1), True),
    (update(1, 1, 4), update(1, 1, 3), True),
    (update(1, 3, 4), update(1, 2, 3), True),
    (update(1, 2, 4), update(1, 3, 3), False),  # a POST of metadata alone, and before it one that changed the type, too
    (update(1, 1, 4), update(3), False),  # a POST of a clock that is ahead, and a PUT after it
    (update(1, 1, 4), update(3, op="DELETE"), False),
    (update(3), update(1, 1, 4), False),
    ({"headers": Headers()}, update(1), False),
    (update(2), {"headers": Headers({"X-Timestamp": "x"})}, False),
])  # fmt: skip
def test_includes(newer: dict[str, Any], older: dict[str, Any], expected: bool) -> None:
    assert includes(newer, older) is expected
