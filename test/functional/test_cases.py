"""Faults that others reported of other systems, each replayed on live clusters (``cases.md``; those that have no better place)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest
from botocore.config import Config

from test.functional.conftest import STORES
from test.support.client import Account, Answer, Endpoint, unique
from test.support.load import run_clients
from test.support.s3 import TESTER, client, signed, signed_head
from test.support.signing import FORM_TYPE, form_body, form_fields, temp_url
from test.support.store import Store, keelstore, running
from test.support.waiting import until

GIB_5 = 5368709122  # the default max_file_size


def test_case_C04_a_post_is_checked_as_a_put_is(account: Account, container: str) -> None:
    account.put(container, "o", body=b"x", headers={"X-Object-Meta-Kept": "1"}).expect(201)
    many = {f"X-Object-Meta-{number}": "v" for number in range(100)}
    for headers in ({"X-Delete-At": "soon"}, {"X-Delete-At": "1"}, {"X-Delete-After": "-1"}, {"X-Delete-After": "soon"}, many,
                    {f"X-Object-Meta-{number}": "v" * 250 for number in range(20)}, {"X-Object-Meta-A": "v" * 257}):
        answer = account.post(container, "o", headers=headers).expect(400)
        assert answer.body and b"Traceback" not in answer.body
    account.post(container, "o", headers={f"X-Object-Meta-{number}": "v" for number in range(200)}).expect(400, 431)
    shown = account.head(container, "o").headers
    assert shown["X-Object-Meta-Kept"] == "1" and "X-Delete-At" not in shown


@pytest.mark.parametrize("size", [0, 1, 65536, 1_000_000])
def test_case_C30_the_etag_is_always_the_md5_of_the_body(account: Account, container: str, size: int) -> None:
    body = os.urandom(size)
    digest = hashlib.md5(body).hexdigest()
    for headers, sent in (({}, body), ({"Transfer-Encoding": "chunked"}, iter([body]) if body else iter([])), ({"ETag": digest}, body)):
        assert account.put(container, "o", headers=headers, body=sent).expect(201).headers["ETag"] == digest
    for answer in (account.head(container, "o"), account.get(container, "o"), account.get(container, "o", headers={"Range": "bytes=0-"})):
        assert answer.headers["ETag"] == digest or answer.status == 416
    assert account.listing(container)[0]["hash"] == digest
    account.put(container, "o", headers={"ETag": "0" * 32}, body=body).expect(422)


@pytest.fixture(scope="module")
def hurried(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store that takes 5 containers, and 10 objects of one container, a second, and lets nobody wait for long; its largest object is 100 kB.

    It logs all that can be logged, and takes no signatures by SHA-1.
    """
    with running(tmp_path_factory.mktemp("hurried") / "data", workers=1, is_patient=True) as store:
        store.edit("proxy-server.conf", ("[filter:ratelimit]\n", "[filter:ratelimit]\naccount_ratelimit = 5\ncontainer_ratelimit_1 = 10\n"
                                         "max_sleep_time_seconds = 0.1\nrate_buffer_seconds = 0\n"))
        store.edit("proxy-server.conf", ("[filter:tempurl]\n", "[filter:tempurl]\nallowed_digests = sha256 sha512\n"))
        store.edit("proxy-server.conf", ("[filter:proxy-logging]\n", "[filter:proxy-logging]\naccess_log_headers = yes\n"))
        for kind in ("proxy", "account", "container", "object"):
            store.edit(f"{kind}-server.conf", ("[DEFAULT]\n", "[DEFAULT]\nlog_level = DEBUG\n"))
        cluster_file = next(path for name in ("keelstore.conf", "swift.conf") if (path := store.etc() / name).exists())
        with open(cluster_file, "a") as file:
            file.write("\n[swift-constraints]\nmax_file_size = 100000\n")
        store.reload()
        yield store


def make_slowly(account: Account, container: str) -> None:
    until(lambda: account.put(container).expect(201, 202), f"{container} is made", every_s=0.2)


def test_case_C31_who_comes_too_fast_gets_429_and_when_to_come_again(hurried: Store) -> None:
    account = hurried.login()
    answers: list[Answer] = []

    def hurry(number: int) -> None:
        with account.endpoint.connect() as connection:
            for _ in range(10):
                answers.append(account.put(unique("fast"), connection=connection))

    assert run_clients(4, hurry) == []
    assert {answer.status for answer in answers} == {201, 429}  # some were let wait, then there were too many
    answers.sort(key=lambda answer: answer.status)
    refused = answers[-1]
    assert (refused.status, refused.reason, refused.body) == (429, "Too Many Requests", b"Slow down")
    assert int(refused.headers["Retry-After"]) >= 1
    for name in account.get().lines:  # a client that repeats as it is told comes through
        until(lambda name=name: account.delete(name).expect(204, 404), "it may be deleted", every_s=0.2)  # type: ignore[misc]


def test_case_C31_s3_says_503_slow_down_to_who_comes_too_fast(hurried: Store) -> None:
    answers: dict[str, Answer] = {}

    def hurry(number: int) -> None:
        for _ in range(100):
            if any(answer.status == 503 for answer in list(answers.values())):
                break
            name = unique("fast")
            answers[name] = signed(hurried.endpoint, TESTER, "PUT", f"/{name}")

    assert run_clients(4, hurry) == []
    assert {answer.status for answer in answers.values()} == {200, 503}
    for answer in answers.values():
        assert answer.status == 200 or b"<Code>SlowDown</Code>" in answer.body, answer
    account = hurried.login()
    for name in account.get().lines:
        until(lambda name=name: account.delete(name).expect(204, 404), "it may be deleted", every_s=0.2)  # type: ignore[misc]


def test_case_C33_a_digest_that_is_not_allowed(hurried: Store) -> None:
    endpoint = hurried.endpoint
    assert endpoint.request("GET", "/info").json()["tempurl"]["allowed_digests"] == ["sha256", "sha512"]
    target = temp_url("/v1/AUTH_test/c/o", "mykey", digest="sha1")
    mark = len(hurried.log())
    answer = endpoint.request("GET", target)
    assert (answer.status, answer.body) == (401, b"401 Unauthorized: Temp URL invalid\n")
    assert "Temp URL refused: digest-not-allowed: " in hurried.log()[mark:]
    until(lambda: "tempurl:digest-not-allowed" in hurried.log()[mark:], "the request is logged")  # when the answer has been sent
    done = keelstore("explain", "tempurl", endpoint.url + target, "--key", "mykey", "--digests", "sha256 sha512")
    assert done.returncode == 1 and "digest-not-allowed" in done.stdout


@pytest.mark.skipif(not shutil.which("rclone"), reason="rclone is not installed")
def test_case_C31_rclone_gets_through(hurried: Store, tmp_path: Path) -> None:
    account, container = hurried.login(), "slow"
    make_slowly(account, container)
    account.put(container, "first", body=b"x").expect(201)
    account.post(container, headers={"X-Container-Meta-A": "1"}).expect(204)  # the proxy learns that it is not empty
    account.head(container).expect(204)
    for number in range(30):
        (tmp_path / f"file {number}").write_bytes(b"%d" % number)
    options = {"RCLONE_CONFIG_S_TYPE": "swift", "RCLONE_CONFIG_S_AUTH": account.endpoint.auth_url, "RCLONE_CONFIG_S_USER": "test:tester",
               "RCLONE_CONFIG_S_KEY": "testing", "RCLONE_CONFIG": str(tmp_path.with_suffix(".conf"))}
    mark = len(hurried.log())
    done = subprocess.run(["rclone", "copy", "--transfers", "30", str(tmp_path), f"s:{container}"], env={**os.environ, **options}, capture_output=True,
                          text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Returning 429 for PUT" in hurried.log()[mark:], "it was told to come again"
    assert len(account.listing(container)) == 31


def test_case_C32_an_object_too_large_says_so(hurried: Store) -> None:
    account, container = hurried.login(), "limits"
    make_slowly(account, container)
    for headers, body in (({}, b"x" * 100_001), ({"Transfer-Encoding": "chunked"}, iter([b"x" * 60_000, b"x" * 60_000]))):
        answer = account.put(container, "o", headers=headers, body=body).expect(413)
        assert b"too large" in answer.body.lower()
    account.get(container, "o").expect(404)


@pytest.fixture
def friend(account: Account, plain: Account, container: str) -> Account:
    """A user of the account who may read and write that container, and nothing else."""
    account.post(container, headers={"X-Container-Read": "test:tester3", "X-Container-Write": "test:tester3"}).expect(204)
    return plain


def test_case_C36_a_user_with_rights_on_one_container_only(account: Account, friend: Account, container: str, running: Store | None) -> None:
    mark = len(running.log()) if running else 0
    friend.head().expect(403)
    friend.get().expect(403)
    friend.put(container).expect(403)  # though it exists: neither 202, nor 404
    friend.put(unique("new")).expect(403)
    friend.post(container, headers={"X-Container-Meta-A": "1"}).expect(403)
    friend.put(container, "o", body=b"data").expect(201)
    assert friend.get(container, "o").expect(200).body == b"data"
    friend.head(container).expect(204)
    assert [entry["name"] for entry in friend.listing(container)] == ["o"]
    friend.delete(container, "o").expect(204)
    account.post(container, headers={"X-Remove-Container-Write": "x"}).expect(204)
    friend.put(container, "o", body=b"data").expect(403)
    account.post(container, headers={"X-Remove-Container-Read": "x"}).expect(204)
    friend.get(container).expect(403)
    friend.get(container, "o").expect(403)
    if running:  # the operator learns which right was missing
        for check in ("needs-owner", "needs-write", "needs-listing", "needs-read"):
            until(lambda check=check: f"tempauth:{check}" in running.log()[mark:], check)  # type: ignore[misc]


def test_case_C36_swiftclient_uploads_with_the_rights_on_one_container(account: Account, friend: Account, container: str, tmp_path: Path) -> None:
    """Its PUT of the container is refused; the object goes up all the same."""
    (tmp_path / "f").write_bytes(b"data")
    done = subprocess.run(["swift", "--os-storage-url", account.endpoint.url + account.path, "--os-auth-token", friend.token, "upload", container, "f"],
                          cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert account.get(container, "f").expect(200).body == b"data", (done.stdout, done.stderr)


@pytest.mark.skipif(not shutil.which("restic"), reason="restic is not installed")
@pytest.mark.parametrize("running", STORES[:1], indirect=True)
def test_case_C36_restic_works_with_the_rights_on_one_container(account: Account, friend: Account, container: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for number in range(5):
        (tmp_path / "data" / f"datei ü{number}").write_bytes(os.urandom(number * 3000))
    env = {**os.environ, "OS_STORAGE_URL": account.endpoint.url + account.path, "OS_AUTH_TOKEN": friend.token, "RESTIC_PASSWORD": "secret",
           "RESTIC_CACHE_DIR": str(tmp_path / "cache")}
    for arguments in (["init"], ["backup", str(tmp_path / "data")], ["snapshots"]):
        done = subprocess.run(["restic", "-r", f"swift:{container}:/", *arguments], env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, (arguments, done.stdout[-1000:], done.stderr[-1000:])
    assert any(entry["name"].startswith("snapshots/") for entry in account.listing(container))


def test_case_X01_an_object_and_a_directory_of_one_name_are_both_listed(account: Account, container: str) -> None:
    account.put(container, "empty-dir", body=b"", headers={"Content-Type": "application/directory"}).expect(201)
    account.put(container, "empty-dir/o", body=b"x").expect(201)
    listed = account.listing(container, query="delimiter=/")
    assert [entry.get("name", entry.get("subdir")) for entry in listed] == ["empty-dir", "empty-dir/"]
    assert "subdir" in listed[1] and listed[0]["content_type"] == "application/directory"


def test_case_X02_clients_learn_the_limits(store: Endpoint, account: Account, container: str) -> None:
    info = store.request("GET", "/info").expect(200).json()["swift"]
    assert (info["container_listing_limit"], info["account_listing_limit"], info["max_file_size"]) == (10000, 10000, GIB_5)
    account.get(container, query="limit=10001").expect(412)
    with store.connect() as connection:  # refused before a byte of it is sent
        connection.send("PUT", account.target(container, "o"), {"X-Auth-Token": account.token, "Content-Length": GIB_5 + 1, "Expect": "100-continue"})
        response = connection.response()
        assert response.status == 413 and b"Your request is too large." in response.read()


def test_case_X03_appending_conditions_and_base64_signatures(account: Account, container: str) -> None:
    account.put(container, "log", headers={"X-Object-Manifest": f"{container}/log.d/"}, body=b"").expect(201)
    parts = []
    for number in range(3):
        parts.append(b"line %d\n" % number)
        account.put(container, f"log.d/{number:08}", body=parts[-1]).expect(201)
        assert account.get(container, "log").expect(200).body == b"".join(parts)
    account.put(container, "o", body=b"data").expect(201)
    etag = hashlib.md5(b"data").hexdigest()
    for verb in ("GET", "HEAD"):
        for headers, status in (({"If-Match": etag}, 200), ({"If-Match": f'"{etag}"'}, 200), ({"If-Match": "x"}, 412), ({"If-None-Match": etag}, 304),
                                ({"If-None-Match": "*"}, 304), ({"If-None-Match": "x"}, 200)):
            account.request(verb, container, "o", headers=headers).expect(status)
    account.put(container, "o", body=b"new", headers={"If-None-Match": "*"}).expect(412)
    account.post(container, headers={"X-Container-Meta-Temp-Url-Key": "k"}).expect(204)
    expires = int(time.time()) + 60
    raw = hmac.new(b"k", f"GET\n{expires}\n{account.path}/{container}/o".encode(), "sha256").digest()
    for encoded in (base64.b64encode(raw).decode(), base64.urlsafe_b64encode(raw).decode(), base64.urlsafe_b64encode(raw).decode().rstrip("=")):
        quoted = encoded.replace("+", "%2B").replace("/", "%2F").replace("=", "%3D")
        target = f"{account.path}/{container}/o?temp_url_sig=sha256:{quoted}&temp_url_expires={expires}"
        assert account.endpoint.request("GET", target).expect(200).body == b"data"
    assert account.endpoint.request("GET", temp_url(f"{account.path}/{container}/o", "k")).expect(200).body == b"data"


def test_case_X06_a_long_copy_shows_that_it_lives(account: Account, container: str) -> None:
    body = os.urandom(300_000)
    account.put(container, "o", body=body).expect(201)
    answer = account.request("COPY", container, "o", query="heartbeat=on", headers={"Destination": f"{container}/copy", "Accept": "application/json"})
    assert answer.status == 202
    told = json.loads(answer.body)
    assert told["Response Status"].startswith("201"), told
    assert account.get(container, "copy").expect(200).body == body
    answer = account.request("COPY", container, "none", query="heartbeat=on", headers={"Destination": f"{container}/copy", "Accept": "application/json"})
    assert answer.status == 404 or json.loads(answer.body)["Response Status"].startswith("404")


def test_case_X08_several_ranges_of_a_dynamic_large_object_give_it_whole(account: Account, container: str) -> None:
    for number in range(3):
        account.put(container, f"s/{number}", body=b"%d" % number * 10).expect(201)
    account.put(container, "dlo", headers={"X-Object-Manifest": f"{container}/s/"}, body=b"").expect(201)
    answer = account.get(container, "dlo", headers={"Range": "bytes=0-1,5-6"}).expect(200)
    assert answer.body == b"0" * 10 + b"1" * 10 + b"2" * 10 and answer.headers["Content-Length"] == "30"
    assert account.get(container, "dlo", headers={"Range": "bytes=8-11"}).expect(206).body == b"0011"


def test_security_S09_no_secret_is_in_any_log(hurried: Store) -> None:
    """Not even in that of a node that logs headers, and everything that is worth a debugger's while."""
    endpoint, container = hurried.endpoint, unique("secrets")
    user, service = endpoint.login(), endpoint.login("test5:tester5", "testing5")
    keys = {name: f"s3cr3t-{name}-{os.urandom(12).hex()}" for name in ("account", "container", "form", "sync", "wrong", "other")}
    make_slowly(user, container)
    user.post(headers={"X-Account-Meta-Temp-Url-Key": keys["account"], "X-Account-Meta-Temp-Url-Key-2": keys["other"]}).expect(204)
    user.post(container, headers={"X-Container-Meta-Temp-Url-Key": keys["container"], "X-Container-Sync-Key": keys["sync"]}).expect(204)
    user.put(container, "o", body=b"data").expect(201)
    path, secrets = f"{user.path}/{container}", [*keys.values(), user.token, service.token]
    endpoint.request("GET", f"{path}/o", {"X-Storage-Token": user.token, "X-Service-Token": service.token}).expect(200)
    endpoint.request("GET", f"{path}/o", {"X-Auth-Token": keys["wrong"], "Authorization": f"Bearer {keys['wrong']}", "Cookie": f"session={keys['wrong']}"}).expect(401)
    endpoint.authenticate("test:tester", keys["wrong"]).expect(401)
    endpoint.request("GET", "/auth/v1/test/auth", {"X-Storage-User": "tester", "X-Storage-Pass": keys["wrong"]}).expect(401)
    for key in ("account", "container", "wrong"):
        target = temp_url(f"{path}/o", keys[key])
        secrets.append(target.partition("sig=")[2].partition("&")[0])
        endpoint.request("GET", target).expect(401 if key == "wrong" else 200)
        endpoint.request("GET", target.replace("temp_url_sig", "temp_url%5Fsig")).expect(401 if key == "wrong" else 200)
    for key in ("container", "wrong"):
        fields = form_fields(f"{path}/", keys[key])
        secrets.append(fields["signature"])
        endpoint.request("POST", f"{path}/", {"Content-Type": FORM_TYPE}, form_body(fields, [("a", b"1", "a/b")])).expect(401 if key == "wrong" else 201)
    endpoint.request("PUT", f"{path}/x", {"X-Container-Sync-Key": keys["sync"], "X-Timestamp": "1.0"}, b"x").expect(401, 201)
    endpoint.request("PUT", f"{path}/x", {"X-Container-Sync-Auth": f"US nonce {keys['wrong']}"}, b"x").expect(401)
    secrets.append(hmac.new(keys["wrong"].encode(), b"GET", "sha1").hexdigest())
    endpoint.request("GET", f"/info?swiftinfo_sig={secrets[-1]}&swiftinfo_expires=9999999999").expect(401, 403)
    text = hurried.log()
    assert f"{path}/o" in text and "DEBUG" in text
    for secret in secrets:
        assert secret not in text, text[text.index(secret) - 600:][:1200]


def test_security_S09_R11_no_secret_of_s3_is_in_any_log(hurried: Store) -> None:
    """Signatures in headers, queries and forms, session tokens, and keys of customers, in requests that work and in such as are refused."""
    endpoint, bucket = hurried.endpoint, unique("secrets")
    make_slowly(hurried.login(), bucket)
    key, token = os.urandom(32), f"s3ss10n-{os.urandom(12).hex()}"
    customer = {f"x-amz-{prefix}server-side-encryption-customer-{name}": value for prefix in ("", "copy-source-") for name, value in (
        ("algorithm", "AES256"), ("key", base64.b64encode(key).decode()), ("key-md5", base64.b64encode(hashlib.md5(key).digest()).decode()))}
    secrets = [base64.b64encode(key).decode(), token]
    for user in (TESTER, ("test:tester", "wrong")):
        for method, more in (("PUT", customer), ("PUT", {}), ("GET", {}), ("GET", customer), ("GET", {"x-amz-security-token": token})):
            sent = {"x-amz-content-sha256": "UNSIGNED-PAYLOAD", **more}
            target, headers = signed_head(endpoint, user, method, f"/{bucket}/o", None, sent)
            secrets.append(headers["authorization"].rpartition("Signature=")[2])
            endpoint.request(method, target, headers, b"data" if method == "PUT" else None)
        s3 = client(endpoint, user, config=Config(signature_version="s3v4"))
        url = s3.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "o"}).partition(str(endpoint.port))[2]
        secrets.append(url.partition("X-Amz-Signature=")[2].partition("&")[0])
        endpoint.request("GET", url).expect(200 if user is TESTER else 403)
        endpoint.request("GET", f"{url}&X-Amz-Security-Token={token}").expect(400, 403)
        old = client(endpoint, user, config=Config(signature_version="s3")).generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "o"})
        secrets.append(unquote(old.partition("Signature=")[2].partition("&")[0]))
        secrets.append(old.partition("Signature=")[2].partition("&")[0])
        endpoint.request("GET", old.partition(str(endpoint.port))[2]).expect(200 if user is TESTER else 403)
        form = s3.generate_presigned_post(bucket, "form")
        secrets.append(form["fields"]["x-amz-signature"])
        fields = [b'--b\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (name.encode(), value.encode()) for name, value in form["fields"].items()]
        body = b"".join(fields) + b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\ndata\r\n--b--\r\n'
        endpoint.request("POST", f"/{bucket}", {"Content-Type": "multipart/form-data; boundary=b"}, body).expect(204 if user is TESTER else 403)
    text = hurried.log()
    assert f"/{bucket}/o" in text and "DEBUG" in text and len(set(secrets)) == len(set(filter(None, secrets))) >= 12
    for secret in secrets:
        assert secret not in text, text[text.index(secret) - 600:][:1200]
