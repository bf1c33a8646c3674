"""Server-side encryption as headers ask for it."""

from __future__ import annotations

import base64
from hashlib import md5

import pytest

from keelstore.common.middleware.s3api import sse
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.sse import ALGORITHM, CUSTOMER, CustomerKey

KEY = bytes(range(32))
TEXT, DIGEST = base64.b64encode(KEY).decode(), base64.b64encode(md5(KEY, usedforsecurity=False).digest()).decode()
GOOD = {f"{CUSTOMER}-Algorithm": "AES256", f"{CUSTOMER}-Key": TEXT, f"{CUSTOMER}-Key-Md5": DIGEST}


def test_a_key_is_read() -> None:
    found = sse.customer_key(GOOD.get)
    assert found is not None and found.key == KEY and found.digest == DIGEST
    assert "key" not in repr(found).replace("CustomerKey", "")
    assert sse.customer_key(lambda name: None) is None


@pytest.mark.parametrize(
    "change",
    [
        {"Algorithm": None},
        {"Algorithm": "AES128"},
        {"Algorithm": ""},
        {"Key": None},
        {"Key": "short"},
        {"Key": base64.b64encode(KEY[:16]).decode()},
        {"Key-Md5": None},
        {"Key-Md5": base64.b64encode(bytes(16)).decode()},
    ],
)
def test_a_key_that_is_not_whole_is_refused(change: dict[str, str | None]) -> None:
    headers = GOOD | {f"{CUSTOMER}-{name}": value for name, value in change.items()}
    with pytest.raises(S3Error) as caught:
        sse.customer_key(headers.get)
    assert caught.value.status == 400


def test_a_mark_tells_keys_apart_and_differs_each_time() -> None:
    key, other = CustomerKey(KEY, DIGEST), CustomerKey(bytes(32), "")
    first, second = key.mark(), key.mark()
    assert first != second
    assert key.fits(first) and key.fits(second) and not other.fits(first)
    assert not key.fits("") and not key.fits("x:y") and not key.fits(":")


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, False),
        ({ALGORITHM: "AES256"}, True),
        ({ALGORITHM: "aws:kms"}, "NotImplemented"),
        ({ALGORITHM: "aws:kms", ALGORITHM + "-Aws-Kms-Key-Id": "k"}, "NotImplemented"),
        ({ALGORITHM: "aes:kms", ALGORITHM + "-Aws-Kms-Key-Id": "k"}, "InvalidArgument"),
        ({ALGORITHM: "AES256", ALGORITHM + "-Aws-Kms-Key-Id": "k"}, "InvalidArgument"),
        ({ALGORITHM + "-Aws-Kms-Key-Id": "k"}, "InvalidArgument"),
        ({ALGORITHM: "AES256", **GOOD}, "InvalidArgument"),
        ({ALGORITHM: "aws:kms", **GOOD}, "InvalidArgument"),
        (GOOD, False),
    ],
)
def test_what_a_write_may_ask_for(headers: dict[str, str], expected: bool | str) -> None:
    if isinstance(expected, bool):
        assert sse.wants_encryption(headers.get) is expected
        return
    with pytest.raises(S3Error) as caught:
        sse.wants_encryption(headers.get)
    assert caught.value.code == expected


def test_a_read_asks_for_none() -> None:
    sse.refuse_on_read(GOOD.get)
    with pytest.raises(S3Error):
        sse.refuse_on_read({ALGORITHM: "AES256"}.get)
