"""Times as S3 writes them. Pure."""

from __future__ import annotations

import calendar
import math
import time


def s3_time(iso: str | None) -> str:
    """A listing's ``last_modified``, rounded up to the whole second that the Last-Modified header shows."""
    if not iso:
        return "1970-01-01T00:00:00.000Z"
    seconds = calendar.timegm(time.strptime(iso[:19], "%Y-%m-%dT%H:%M:%S"))
    fraction = iso[19:].rstrip("Z+0:")
    return s3_time_of(seconds + (1 if fraction.strip(".0") else 0))


def s3_time_of(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(math.ceil(seconds)))
