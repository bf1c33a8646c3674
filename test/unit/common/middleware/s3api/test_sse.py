"""Server-side encryption as headers ask for it."""

from __future__ import annotations

import base64
from hashlib import md5

import pytest

from keelstore.common.middleware.s3api import sse
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.sse import ALGORITHM, CUSTOMER, CustomerKey, Wanted

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


KEY_ID = ALGORITHM + "-Aws-Kms-Key-Id"
OURS, KEYS = Wanted(), ("k", "other")


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({ALGORITHM: "AES256"}, OURS),
        ({ALGORITHM: "aws:kms"}, "InvalidArgument"),
        ({ALGORITHM: "aws:kms", KEY_ID: ""}, "InvalidArgument"),
        ({ALGORITHM: "aws:kms", KEY_ID: "k"}, Wanted("k")),
        ({ALGORITHM: "aws:kms", KEY_ID: "k", ALGORITHM + "-Bucket-Key-Enabled": "true"}, Wanted("k")),
        ({ALGORITHM: "aws:kms", KEY_ID: "K"}, "KMS.NotFoundException"),
        ({ALGORITHM: "aws:kms", KEY_ID: "k", ALGORITHM + "-Context": "e30="}, "NotImplemented"),
        ({ALGORITHM: "aws:kms:dsse", KEY_ID: "k"}, "NotImplemented"),
        ({ALGORITHM: "aes:kms", KEY_ID: "k"}, "InvalidArgument"),
        ({ALGORITHM: "AES256", KEY_ID: "k"}, "InvalidArgument"),
        ({KEY_ID: "k"}, "InvalidArgument"),
        ({ALGORITHM: "AES256", **GOOD}, "InvalidArgument"),
        ({ALGORITHM: "aws:kms", KEY_ID: "k", **GOOD}, "InvalidArgument"),
        (GOOD, None),
    ],
)
def test_what_a_write_may_ask_for(headers: dict[str, str], expected: Wanted | str | None) -> None:
    if not isinstance(expected, str):
        assert sse.wanted(headers.get, KEYS) == expected
        return
    with pytest.raises(S3Error) as caught:
        sse.wanted(headers.get, KEYS)
    assert caught.value.code == expected


@pytest.mark.parametrize("key", ["k", "", None])
def test_without_keys_to_name_a_key_manager_is_refused(key: str | None) -> None:
    with pytest.raises(S3Error) as caught:
        sse.wanted({ALGORITHM: "aws:kms", KEY_ID: key}.get, ())
    assert caught.value.code == "NotImplemented"


def test_a_read_asks_for_none() -> None:
    sse.refuse_on_read(GOOD.get)
    with pytest.raises(S3Error):
        sse.refuse_on_read({ALGORITHM: "AES256"}.get)
