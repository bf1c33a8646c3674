"""Times as S3 writes them. Pure."""

from __future__ import annotations

import calendar
import math
import re
import time
from datetime import UTC, datetime


def s3_time(iso: str | None) -> str:
    """A listing's ``last_modified``, rounded up to the whole second that the Last-Modified header shows."""
    if not iso:
        return "1970-01-01T00:00:00.000Z"
    seconds = calendar.timegm(time.strptime(iso[:19], "%Y-%m-%dT%H:%M:%S"))
    fraction = iso[19:].rstrip("Z+0:")
    return s3_time_of(seconds + (1 if fraction.strip(".0") else 0))


def s3_time_of(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(math.ceil(seconds)))


_ISO = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(\.\d{1,9})?(Z|[+-]\d\d:?\d\d)\Z")


def seconds_of(text: str) -> float | None:
    """The time that an ISO 8601 text with a zone names, in seconds since the epoch; None for anything else."""
    found = _ISO.match(text.strip())
    if found is None:
        return None
    try:
        whole = datetime(*(int(part) for part in found.groups()[:6]), tzinfo=UTC)  # type: ignore[arg-type,misc]
    except ValueError:
        return None
    zone, offset = found[8], 0
    if zone != "Z":
        hours, minutes = int(zone[1:3]), int(zone[-2:])
        offset = (hours * 3600 + minutes * 60) * (1 if zone[0] == "+" else -1)
    return whole.timestamp() - offset + float(found[7] or 0)


def exact_time_of(seconds: float) -> str:
    """To the millisecond, not rounded up."""
    thousandths = round(seconds * 1000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(thousandths // 1000)) + f".{thousandths % 1000:03d}Z"
