"""What ``/info`` publishes: sections that the proxy and its middlewares register when they are loaded."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

_public: dict[str, dict[str, Any]] = {}
_admin: dict[str, dict[str, Any]] = {}


def register_info(name: str, **data: Any) -> None:
    """Publish ``data`` in section ``name``, adding to what is there."""
    _public.setdefault(name, {}).update(data)


def register_admin_info(name: str, **data: Any) -> None:
    """As :func:`register_info`, shown to holders of the admin key only."""
    _admin.setdefault(name, {}).update(data)


def registered(name: str) -> Mapping[str, Any] | None:
    """What was registered in section ``name``, in either way; None when nothing was: what it stands for is not there."""
    found = _public.get(name)
    return found if found is not None else _admin.get(name)


def published(disallowed: Iterable[str] = (), admin: bool = False) -> dict[str, Any]:
    """All sections but those (dotted paths) in ``disallowed``; with ``admin`` also the ``admin`` section."""
    hidden = tuple(disallowed)
    found: dict[str, Any] = copy.deepcopy(_public)
    for path in hidden:
        *parents, last = path.split(".")
        place: Any = found
        for parent in parents:
            place = place.get(parent, {}) if isinstance(place, dict) else {}
        if isinstance(place, dict):
            place.pop(last, None)
    if admin:
        found["admin"] = copy.deepcopy(_admin)
        found["admin"]["disallowed_sections"] = list(hidden)
    return found


def forget_all() -> None:
    """For tests, and before a pipeline is loaded anew."""
    _public.clear()
    _admin.clear()
