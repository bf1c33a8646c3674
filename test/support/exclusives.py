"""Whether somebody holds what only one may change at a time."""

from __future__ import annotations

from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.exclusive import Exclusive


def is_held(account: str, bucket: str, key: str) -> bool:
    mine = Exclusive({}, account, bucket, key)
    try:
        mine.acquire(0)
    except S3Error:
        return True
    mine.release()
    return False
