"""Glance as a client: each request of ``clients.md`` G1 to G16 that needs no Keystone, with a token of tempauth in its place.

Glance speaks through python-swiftclient with a storage URL and a token (``preauthurl``, ``preauthtoken``); so does ``glance``.
Images are ``CHUNK`` octets to a segment where Glance has 200 MiB. ``impatient`` is a store that waits for a client for a second only.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import uuid
from collections.abc import Iterator

import pytest
from swiftclient import client as swift

from test.support.client import Account, unique
from test.support.store import Store, running

CHUNK = 200_000
READ = 64 << 10  # Glance reads, and asks swiftclient to read, so much at once


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


class ChunkReader:
    """What Glance gives to swiftclient as the body of a segment: it reads on in the image, and cannot go back."""

    def __init__(self, image: io.BytesIO, total: int):
        self.image, self.left, self.bytes_read = image, total, 0

    def read(self, size: int = READ) -> bytes:
        data = self.image.read(min(size, self.left))
        self.left -= len(data)
        self.bytes_read += len(data)
        return data


def connect(account: Account, **options: object) -> swift.Connection:
    return swift.Connection(preauthurl=account.endpoint.url + account.path, preauthtoken=account.token, retries=0, **options)


@pytest.fixture
def glance(account: Account) -> Iterator[swift.Connection]:
    connection = connect(account)
    yield connection
    connection.close()


def upload(glance: swift.Connection, container: str, image: bytes, is_size_known: bool) -> str:
    """G3 and G4, then G5: segments and the manifest; gives the name."""
    name, source, number = str(uuid.uuid4()), io.BytesIO(image), 0
    while True:
        number += 1
        reader = ChunkReader(source, CHUNK)
        segment = f"{name}-{number:05}"
        etag = glance.put_object(container, segment, reader, content_length=CHUNK if is_size_known else None)
        if reader.bytes_read == 0:  # what ends an image of unknown size; Glance takes it away again
            glance.delete_object(container, segment)
            break
        assert etag == md5(image[(number - 1) * CHUNK:number * CHUNK])
        if is_size_known and number * CHUNK == len(image):
            break
    glance.put_object(container, name, io.BytesIO(b""), content_length=0, headers={"X-Object-Manifest": f"{container}/{name}-"})
    return name


def status_of(call: object, *arguments: object, **options: object) -> int:
    with pytest.raises(swift.ClientException) as refused:
        call(*arguments, **options)  # type: ignore[operator]
    return int(refused.value.http_status)


def test_glance_G1_a_container_that_is_not_there_is_made(glance: swift.Connection, account: Account) -> None:
    name = f"glance_{uuid.uuid4().hex}"
    assert status_of(glance.head_container, name) == 404
    glance.put_container(name)
    assert glance.head_container(name)["x-container-object-count"] == "0"  # at once, though its absence was known
    glance.put_container(name)
    account.delete(name).expect(204)


@pytest.mark.parametrize("size", [1, READ, 3 * READ + 5])
def test_glance_G2_a_small_image(glance: swift.Connection, container: str, size: int) -> None:
    image, name = os.urandom(size), str(uuid.uuid4())
    etag = glance.put_object(container, name, ChunkReader(io.BytesIO(image), size), content_length=size)
    assert etag == md5(image)
    headers, body = glance.get_object(container, name)
    assert (body, headers["etag"], headers["content-length"]) == (image, md5(image), str(size))


@pytest.mark.parametrize("count", [1, 3])
def test_glance_G3_a_large_image_of_known_size(glance: swift.Connection, container: str, count: int) -> None:
    image = os.urandom(count * CHUNK)
    name = upload(glance, container, image, is_size_known=True)
    assert glance.get_object(container, name)[1] == image


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with running(tmp_path_factory.mktemp("impatient") / "data", workers=1) as store:
        store.edit("proxy-server.conf", ("[DEFAULT]\n", "[DEFAULT]\nclient_timeout = 3\n"))
        store.reload()
        yield store


@pytest.mark.parametrize("policy", ["gold", "ec42"])
def test_case_C29_glance_G3_a_segment_shorter_than_it_says_ends_in_408(impatient: Store, policy: str) -> None:
    """The last segment of an image is sent with the length of a whole one: an early, clean error, and nothing of it is stored."""
    account, container, name = impatient.login(), unique("glance"), str(uuid.uuid4())
    account.put(container, headers={"X-Storage-Policy": policy}).expect(201)
    glance, image = connect(account), os.urandom(CHUNK + 1)
    source = io.BytesIO(image)
    glance.put_object(container, f"{name}-00001", ChunkReader(source, CHUNK), content_length=CHUNK)
    with account.endpoint.connect() as connection:
        connection.send("PUT", account.target(container, f"{name}-00002"), {"X-Auth-Token": account.token, "Content-Length": CHUNK}, source.read())
        response = connection.response()
        assert (response.status, response.headers["Connection"].lower()) == (408, "close")
        assert response.read() is not None
    assert [entry["name"] for entry in account.listing(container)] == [f"{name}-00001"]
    account.get(container, f"{name}-00002").expect(404)
    for entry in account.listing(container, query=f"prefix={name}-"):  # Glance takes back what it has written
        glance.delete_object(container, entry["name"])
    glance.delete_container(container)
    assert "Traceback" not in impatient.log()


def test_case_C29_glance_G3_more_than_it_says_is_no_part_of_the_object(account: Account, container: str) -> None:
    with account.endpoint.connect() as connection:
        connection.send("PUT", account.target(container, "o"), {"X-Auth-Token": account.token, "Content-Length": 3}, b"abcdef")
        response = connection.response()
        assert response.status == 201 and response.headers["Etag"] == md5(b"abc") and response.read() == b""
    assert account.get(container, "o").expect(200).body == b"abc"


@pytest.mark.parametrize("size", [CHUNK, 2 * CHUNK, 2 * CHUNK + 1, 5])
def test_glance_G4_an_image_of_unknown_size(glance: swift.Connection, account: Account, container: str, size: int) -> None:
    image = os.urandom(size)
    name = upload(glance, container, image, is_size_known=False)
    segments = account.listing(container, query=f"prefix={name}-")
    assert sum(entry["bytes"] for entry in segments) == size and all(entry["bytes"] for entry in segments)
    assert glance.get_object(container, name)[1] == image


def test_glance_G5_a_manifest_finds_its_own_segments_only(glance: swift.Connection, account: Account, container: str) -> None:
    image = os.urandom(CHUNK + 1)
    name = upload(glance, container, image, is_size_known=False)
    for other in (f"{name}x-00001", f"{name[:-1]}-00001", f"{name}.00001", f"a{name}-00001"):
        account.put(container, other, body=b"another image").expect(201)
    assert glance.get_object(container, name)[1] == image
    headers = {"X-Object-Manifest": f"{container}/{name}-", "Content-Length": "0"}
    account.put(container, name, headers={**headers, "ETag": md5(image)}).expect(422)  # as Swift: the ETag is that of the empty body
    account.put(container, name, headers={**headers, "ETag": md5(b"")}).expect(201)
    account.put(container, name, headers=headers).expect(201)


def test_glance_G6_a_segment_sent_again_is_there_once(account: Account, container: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """``swift_buffer_on_upload``: swiftclient winds the file back and repeats, though the first attempt may have been stored."""
    glance, data, name = connect(account), os.urandom(CHUNK), f"{uuid.uuid4()}-00001"
    path = tmp_path_factory.mktemp("buffer") / "segment"
    path.write_bytes(data)
    with open(path, "rb") as file:
        for _ in range(2):
            start = file.tell()
            assert glance.put_object(container, name, file, content_length=CHUNK) == md5(data)
            file.seek(start)
    with account.endpoint.connect() as connection:  # the attempt before it broke off half-way
        connection.send("PUT", account.target(container, name), {"X-Auth-Token": account.token, "Content-Length": CHUNK}, data[:CHUNK // 2])
    glance.put_object(container, name, io.BytesIO(data), content_length=CHUNK)
    assert [(entry["name"], entry["bytes"], entry["hash"]) for entry in account.listing(container)] == [(name, CHUNK, md5(data))]
    assert account.get(container, name).expect(200).body == data
    glance.close()


def test_glance_G7_segments_of_a_failed_upload_go(glance: swift.Connection, account: Account, container: str) -> None:
    name = str(uuid.uuid4())
    for number in range(1, 4):
        glance.put_object(container, f"{name}-{number:05}", io.BytesIO(b"x" * 100), content_length=100)
    for number in range(1, 4):
        glance.delete_object(container, f"{name}-{number:05}")
    assert account.listing(container) == []
    assert status_of(glance.delete_object, container, f"{name}-00001") == 404


def test_glance_G8_an_image_is_streamed(glance: swift.Connection, container: str) -> None:
    image = os.urandom(2 * CHUNK + 77)
    name = upload(glance, container, image, is_size_known=False)
    headers, pieces = glance.get_object(container, name, resp_chunk_size=READ)
    assert headers["content-length"] == str(len(image))
    assert b"".join(pieces) == image


def test_glance_G9_a_broken_read_is_resumed(glance: swift.Connection, account: Account, container: str) -> None:
    image = os.urandom(2 * CHUNK + 77)
    dlo = upload(glance, container, image, is_size_known=False)
    account.put(container, "plain", body=image).expect(201)
    segments = [{"path": f"/{container}/{entry['name']}"} for entry in account.listing(container, query=f"prefix={dlo}-")]
    account.put(container, "slo", query="multipart-manifest=put", body=json.dumps(segments)).expect(201)
    for name in ("plain", dlo, "slo"):
        broken = connect(account)
        _, pieces = broken.get_object(container, name, resp_chunk_size=READ)
        got = b""
        while len(got) < CHUNK:
            got += next(pieces)
        broken.close()
        for again in (len(got), len(image) - 1):  # on a new connection, and once more near the end
            resumed = connect(account)
            headers, rest = resumed.get_object(container, name, headers={"Range": f"bytes={again}-"}, resp_chunk_size=READ)
            assert headers["content-range"] == f"bytes {again}-{len(image) - 1}/{len(image)}"
            assert b"".join(rest) == image[again:], name
            resumed.close()
        account.get(container, name, headers={"Range": f"bytes={len(image)}-"}).expect(416)


def test_glance_G10_the_size_is_that_of_all_segments(glance: swift.Connection, container: str) -> None:
    name = upload(glance, container, os.urandom(2 * CHUNK + 1), is_size_known=False)
    shown = glance.head_object(container, name)
    assert shown["content-length"] == str(2 * CHUNK + 1) and shown["x-object-manifest"] == f"{container}/{name}-"


def delete(glance: swift.Connection, container: str, name: str) -> None:
    """G11."""
    headers = glance.head_object(container, name)
    if "x-object-manifest" in headers:
        where, prefix = headers["x-object-manifest"].split("/", 1)
        for entry in glance.get_container(where, prefix=prefix)[1]:
            glance.delete_object(where, entry["name"])
        glance.delete_object(container, name)
    elif headers.get("x-static-large-object") in ("true", "True"):
        glance.delete_object(container, name, query_string="multipart-manifest=delete")
    else:
        glance.delete_object(container, name)


def test_glance_G11_an_image_goes_with_its_segments(glance: swift.Connection, account: Account, container: str) -> None:
    dlo = upload(glance, container, os.urandom(2 * CHUNK), is_size_known=True)
    delete(glance, container, dlo)
    assert account.listing(container) == []
    for number in range(3):
        account.put(container, f"segment {number}", body=b"12345").expect(201)
    manifest = json.dumps([{"path": f"/{container}/segment {number}"} for number in range(3)])
    account.put(container, "slo", query="multipart-manifest=put", body=manifest).expect(201)
    assert account.head(container, "slo").headers["X-Static-Large-Object"] == "True"
    answer = account.delete(container, "slo", query="multipart-manifest=delete", headers={"Accept": "application/json"}).expect(200)
    assert (answer.json()["Response Status"], answer.json()["Number Deleted"], answer.json()["Errors"]) == ("200 OK", 4, [])
    account.put(container, "small", body=b"x").expect(201)
    delete(glance, container, "small")
    assert account.listing(container) == []


@pytest.mark.parametrize("is_static", [False, True], ids=["dlo", "slo"])
def test_glance_G12_the_container_of_an_image_goes_right_after_it(glance: swift.Connection, account: Account, is_static: bool) -> None:
    """A 409 would surface to the user."""
    for _ in range(3):
        container = f"glance_{uuid.uuid4()}"
        glance.put_container(container)
        if is_static:
            glance.put_object(container, "s-1", b"x")
            account.put(container, name := "slo", query="multipart-manifest=put", body=json.dumps([{"path": f"/{container}/s-1"}])).expect(201)
        else:
            name = upload(glance, container, os.urandom(3 * CHUNK), is_size_known=True)
        delete(glance, container, name)
        glance.delete_container(container)
        assert status_of(glance.head_container, container) == 404


def test_glance_G13_who_may_read_an_image(glance: swift.Connection, account: Account, other: Account, container: str) -> None:
    """Tempauth has no projects: ``*:*`` grants nothing there, as with Swift (with keystoneauth: test_keystoneauth.py). It is kept as set."""
    account.put(container, "image", body=b"data").expect(201)
    visitor = other.of(account)
    for read, write in (("*:*", ""), ("t1:*,t2:*", "t:*,admin:*"), ("test2:tester2,t2:*", ""), ("", "test2:tester2"), ("", "")):
        glance.post_container(container, {"X-Container-Read": read, "X-Container-Write": write})
        shown = glance.head_container(container)
        assert (shown.get("x-container-read", ""), shown.get("x-container-write", "")) == (read, write)
        may_read, may_write = "test2" in read, "test2" in write
        assert visitor.get(container, "image").status == (200 if may_read else 403)
        assert visitor.put(container, "new", body=b"x").status == (201 if may_write else 403)
        account.anonymous().get(container, "image").expect(401)


def test_glance_G14_the_token_changes_in_the_middle_of_an_upload(account: Account, container: str) -> None:
    """Without trusts, which are Keystone's: a new connection with a new token writes the next segments of the same image."""
    image, name = os.urandom(3 * CHUNK), str(uuid.uuid4())
    source = io.BytesIO(image)
    for number in range(1, 4):
        glance = connect(account.endpoint.login())
        glance.put_object(container, f"{name}-{number:05}", ChunkReader(source, CHUNK), content_length=CHUNK)
        glance.close()
    glance = connect(account.endpoint.login())
    glance.put_object(container, name, b"", headers={"X-Object-Manifest": f"{container}/{name}-"})
    assert glance.get_object(container, name)[1] == image
    glance.close()


def test_glance_G15_errors(glance: swift.Connection, account: Account, container: str) -> None:
    assert status_of(glance.get_object, container, "none") == 404
    assert status_of(glance.put_object, unique("none"), "o", b"x") == 404
    account.put(container, "o", body=b"x").expect(201)
    assert status_of(glance.delete_container, container) == 409
    account.post(container, headers={"X-Container-Meta-Quota-Bytes": str(2 * CHUNK)}).expect(204)
    name, source = str(uuid.uuid4()), io.BytesIO(os.urandom(3 * CHUNK))
    glance.put_object(container, f"{name}-00001", ChunkReader(source, CHUNK), content_length=CHUNK)
    account.post(container, headers={"X-Container-Meta-A": "1"}).expect(204)  # so that the count is known anew: quotas follow it within a minute
    # The quota answers on the segment, before the next one is begun.
    assert status_of(glance.put_object, container, f"{name}-00002", ChunkReader(source, CHUNK), content_length=CHUNK) == 413
    glance.delete_object(container, f"{name}-00001")
    assert [entry["name"] for entry in account.listing(container)] == ["o"]


def test_glance_G16_the_endpoint_is_the_operators_choice(account: Account, container: str) -> None:
    """``swift_store_endpoint``: the same account under another name of the host than the one its token came with."""
    glance = swift.Connection(authurl=account.endpoint.auth_url, user="test:tester", key="testing", retries=0,
                              os_options={"object_storage_url": f"http://localhost:{account.endpoint.port}{account.path}"})
    glance.put_object(container, "o", b"data")
    assert glance.get_object(container, "o")[1] == b"data" and "localhost" in glance.url
    glance.close()
