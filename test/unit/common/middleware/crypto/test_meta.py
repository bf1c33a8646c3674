"""How crypto meta is spelt, and the keys and ciphers that it tells of, by the vectors of the specification."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common.middleware.crypto import cipher, keys, meta

ROOT = bytes(range(32))
CONTAINER_KEY = keys.derive(ROOT, b"/a/c")
OBJECT_KEY = keys.derive(ROOT, b"/a/c/o")
HELLO = "5d41402abc4b2a76b9719d911017c592"
ivs = st.binary(min_size=16, max_size=16)
secrets = st.binary(min_size=32, max_size=32)


def test_vectors() -> None:
    assert CONTAINER_KEY.hex() == "81adaa9a88df39d4336e46a1376f8d40d9e8092c20f3e1b79752761802f95166"
    assert OBJECT_KEY.hex() == "378e76c95a19a4a5be1c0ef7cd441d0846dba28c6544bed43cedeb1ca8adda95"
    assert cipher.mac(OBJECT_KEY, HELLO) == "D5ckKoirY8I4rsEMTMZgun6mACpjkSJJjH1ws4T6psI="
    sealed = cipher.apply(OBJECT_KEY, bytes(16), HELLO.encode())
    assert b64encode(sealed) == b"qmp+9md9qZvXuVfI5fHowxqDSDVyOBbIysJ7kjLBjfU="
    assert meta.text_meta(bytes(16)) == (
        "%7B%22cipher%22%3A+%22AES_CTR_256%22%2C+%22iv%22%3A+%22AAAAAAAAAAAAAAAAAAAAAA%3D%3D%22%7D")


@given(secrets, ivs, st.binary(max_size=200), st.integers(0, 250), st.integers(0, 60))
def test_decrypting_from_any_offset_gives_that_part(key: bytes, iv: bytes, data: bytes, start: int, size: int) -> None:
    sealed = cipher.stream(key, iv).update(data)
    assert cipher.apply(key, iv, sealed) == data
    assert cipher.stream(key, iv, start).update(sealed[start:start + size]) == data[start:start + size]


def test_the_counter_wraps() -> None:
    iv = b"\xff" * 16
    sealed = cipher.stream(ROOT, iv).update(bytes(64))
    assert cipher.stream(ROOT, iv, 40).update(bytes(24)) == sealed[40:]


@pytest.mark.parametrize("key", [b"", b"k" * 16, b"k" * 31, b"k" * 33])
def test_only_keys_of_256_bits(key: bytes) -> None:
    with pytest.raises(ValueError):
        cipher.stream(key, bytes(16))
    with pytest.raises(ValueError):
        cipher.apply(key, bytes(16), b"x")


@given(ivs, secrets, ivs, st.text(min_size=1), st.none() | st.text(min_size=1))
def test_headers_put_together_say_what_encoding_says(iv: bytes, key: bytes, key_iv: bytes, path: str, secret: str | None) -> None:
    key_id = {"v": "3", "path": "/" + path, **({} if secret is None else {"secret_id": secret})}
    quoted = meta.quoted_key_id(key_id)
    own = {"cipher": "AES_CTR_256", "iv": b64encode(iv).decode()}
    assert meta.text_meta(iv) == meta.encode(own)
    assert meta.text_meta(iv, quoted) == meta.encode({**own, "key_id": key_id})
    assert meta.user_meta(quoted) == meta.encode({"cipher": "AES_CTR_256", "key_id": key_id})
    body = meta.body_meta(iv, quoted, key, key_iv)
    assert body == meta.encode({**own, "key_id": key_id, "body_key": {"iv": b64encode(key_iv).decode(), "key": b64encode(key).decode()}})
    assert meta.decode(body) == meta._decode_any(body) == meta.CryptoMeta(iv, key_id, key, key_iv)
    assert meta.decode(meta.text_meta(iv)) == meta.CryptoMeta(iv)
    assert meta.decode(meta.user_meta(quoted)) == meta.CryptoMeta(b"", key_id)


@given(secrets, st.text(st.characters(max_codepoint=255)))
def test_texts_come_back(key: bytes, text: str) -> None:
    sealed, crypto_meta = meta.split_text(meta.encrypt_text(key, text, meta.quoted_key_id({"v": "2", "path": "/a/c/o"})))
    found = meta.decode(crypto_meta)
    assert found.key_id == {"v": "2", "path": "/a/c/o"}
    assert meta.decrypt_text(key, sealed, found.iv) == text


def test_equal_texts_do_not_look_equal() -> None:
    assert meta.encrypt_text(ROOT, HELLO) != meta.encrypt_text(ROOT, HELLO)


@pytest.mark.parametrize("text", [
    "", "junk", "[]", "null", "3", "%7B%7D", '{"cipher": "AES_CTR_255", "iv": "AAAAAAAAAAAAAAAAAAAAAA=="}',
    '{"cipher": "AES_CTR_256", "iv": "AAAA"}', '{"cipher": "AES_CTR_256", "iv": 3}', '{"cipher": "AES_CTR_256", "key_id": "x"}',
    '{"cipher": "AES_CTR_256", "body_key": {}}', '{"cipher": "AES_CTR_256", "body_key": {"iv": "AAAAAAAAAAAAAAAAAAAAAA%3D%3D", "key": "AAAA"}}',
    "[" * 100000,
])
def test_what_is_no_crypto_meta(text: str) -> None:
    with pytest.raises(meta.BadCryptoMeta) as caught:
        meta.decode(text)
    assert "AAAA" not in str(caught.value)


def test_short_texts_share_a_key_and_nothing_else() -> None:
    texts = cipher.ShortTexts(ROOT)
    for number in range(5):
        iv, data = bytes([number]) * 16, b"text" * number
        assert texts.apply(iv, data) == cipher.apply(ROOT, iv, data)


@given(st.dictionaries(st.sampled_from(["path", "secret_id", "v", "x"]), st.text() | st.integers()))
def test_key_ids_are_read_as_json_has_them(key_id: dict[str, Any]) -> None:
    assert meta.decode(meta.user_meta(meta.quoted_key_id(key_id))).key_id == key_id


@given(st.text())
def test_any_text_is_crypto_meta_or_is_refused(text: str) -> None:
    meta.split_text(text)
    with pytest.raises(meta.BadCryptoMeta):
        meta.decode(text)


@pytest.mark.parametrize(("value", "expected"), [
    ("abc", ("abc", "")), ("abc; slo_etag=1", ("abc; slo_etag=1", "")), ("abc; swift_meta=x", ("abc", "x")),
    ("abc;swift_meta=x; a=b", ("abc", "x")), ("abc; a=b; swift_meta=x", ("abc", "x")), ("", ("", "")),
])
def test_splitting_texts(value: str, expected: tuple[str, str]) -> None:
    assert meta.split_text(value) == expected


def test_a_text_without_iv_or_that_is_no_base64_is_refused() -> None:
    with pytest.raises(meta.BadCryptoMeta):
        meta.decrypt_text(ROOT, b64encode(b"abc").decode(), b"")
    with pytest.raises(meta.BadCryptoMeta):
        meta.decrypt_text(ROOT, "a", bytes(16))
    with pytest.raises(meta.BadCryptoMeta):
        meta.decrypt_text(b"short", "YWJj", bytes(16))
    assert b64decode("YWJj") == b"abc"
