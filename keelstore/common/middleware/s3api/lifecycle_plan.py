"""What the lifecycle rules of a bucket want done to one key now (``spec: s3-api 3.13``). Pure.

A current object ends by ``Days`` or ``Date``: with versioning that makes a delete marker. A noncurrent version ends so many
days after a newer one came, and only behind the ``NewerNoncurrentVersions`` newest. A delete marker that nothing is left
behind ends with ``ExpiredObjectDeleteMarker``, or when an object would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from keelstore.common.middleware.s3api.lifecycle_rules import DAY_S, Rule, days_after


@dataclass(frozen=True)
class Version:
    """One line of a listing. ``version_id``: '' in a bucket without versions."""

    key: str
    size: int
    modified_s: float
    version_id: str = ""
    is_marker: bool = False
    is_latest: bool = True


@dataclass(frozen=True)
class Due:
    """``whole``: the key is to be deleted as a client would, else this version is to go for good."""

    version: Version
    whole: bool


TagsOf = Callable[[Version], Mapping[str, str]]


def due(
    rules: Iterable[Rule], versions: Sequence[Version], tags_of: TagsOf, now_s: float, day_s: float = DAY_S
) -> list[Due]:
    """``versions``: all of one key, newest first. ``tags_of`` is asked only where a rule wants to know."""
    wanted = [rule for rule in rules if rule.enabled]
    found = []
    for place, version in enumerate(versions):
        if place == 0 and version.is_latest:
            if version.is_marker:
                if len(versions) == 1 and any(_ends_marker(rule, version, now_s, day_s) for rule in wanted):
                    found.append(Due(version, whole=False))
            elif any(_ends_current(rule, version, tags_of, now_s, day_s) for rule in wanted):
                found.append(Due(version, whole=True))
        elif place > 0:
            since_s = versions[place - 1].modified_s
            if any(_ends_noncurrent(rule, version, place - 1, since_s, tags_of, now_s, day_s) for rule in wanted):
                found.append(Due(version, whole=False))
    return found


def _ends_current(rule: Rule, version: Version, tags_of: TagsOf, now_s: float, day_s: float) -> bool:
    moment = rule.expires_at(version.modified_s, day_s)
    return moment is not None and moment <= now_s and rule.filter.fits(version.key, version.size, lambda: tags_of(version))


def _ends_marker(rule: Rule, version: Version, now_s: float, day_s: float) -> bool:
    """A marker has neither tags nor a size: rules that ask for them are not about it."""
    if rule.filter.tags or rule.filter.larger_than is not None or rule.filter.smaller_than is not None:
        return False
    moment = rule.expires_at(version.modified_s, day_s)
    is_due = rule.expired_marker or (moment is not None and moment <= now_s)
    return is_due and version.key.startswith(rule.filter.prefix)


def _ends_noncurrent(
    rule: Rule, version: Version, newer: int, since_s: float, tags_of: TagsOf, now_s: float, day_s: float
) -> bool:
    """``newer``: how many noncurrent versions are newer than this one."""
    return (
        rule.noncurrent_days is not None
        and newer >= (rule.newer_noncurrent or 0)
        and days_after(since_s, rule.noncurrent_days, day_s) <= now_s
        and rule.filter.fits(version.key, version.size, lambda: {} if version.is_marker else tags_of(version))
    )


def ends_upload(rules: Iterable[Rule], key: str, begun_s: float, now_s: float, day_s: float = DAY_S) -> bool:
    """Whether an upload in parts is to be aborted. It has neither tags nor a size yet."""
    return any(
        rule.enabled
        and rule.abort_days is not None
        and key.startswith(rule.filter.prefix)
        and not rule.filter.tags
        and days_after(begun_s, rule.abort_days, day_s) <= now_s
        for rule in rules
    )


def common_prefix(rules: Iterable[Rule]) -> str:
    """What all keys that enabled rules are about begin with."""
    prefixes = [rule.filter.prefix for rule in rules if rule.enabled]
    least, most = min(prefixes, default=""), max(prefixes, default="")  # what these two share, all between them have
    length = next((place for place, (one, other) in enumerate(zip(least, most, strict=False)) if one != other), len(least))
    return least[:length]
