"""Rows of the security history that touch a whole proxy (``security.md``); those of one filter or server are tested with it."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from test.support.client import Account, Answer, Endpoint, unique
from test.support.processes import ROOT
from test.support.signing import FORM_TYPE, form_body, form_fields, temp_url
from test.support.store import Store, alive


def raw(endpoint: Endpoint, data: bytes) -> bytes:
    """What a server answers to some octets, until it closes or nothing more comes."""
    with socket.create_connection((endpoint.host, endpoint.port), timeout=60) as sock:
        try:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            parts = []
            while part := sock.recv(65536):
                parts.append(part)
        except (ConnectionError, BrokenPipeError):
            pass
    return b"".join(parts)


def test_security_S20_no_token_is_in_a_path_or_query(account: Account, container: str, running: Store | None) -> None:
    """What the proxy asks of the servers for a login and for a request with its token; and a token in a URL is no token."""
    login = account.endpoint.authenticate("test:tester", "testing").expect(200)
    token = login.headers["X-Auth-Token"]
    assert token not in login.headers["X-Storage-Url"]
    account.put(container, "o", body=b"data").expect(201)
    assert account.get(container, "o").expect(200).body == b"data"
    if running:
        for number in range(1, running.nodes + 1):  # also the lines of the storage servers, which show their paths
            assert token not in running.log(number)
    for name in ("X-Auth-Token", "token", "auth_token", "temp_url_token"):
        account.anonymous().get(container, "o", query=f"{name}={token}").expect(401)


def test_security_S14_names_with_line_breaks_write_no_headers(account: Account) -> None:
    """Whatever an answer's headers tell of names: where a link leads, what was copied, what a file is to be called, where a site moves."""
    container, name = unique("s14") + "\r\nX-Evil: 1", "dir/o\r\nX-Evil: 1\r\n\r\n<script>\"\u2028"
    quoted = quote(f"{container}/{name}")
    try:
        account.put(container, headers={"X-Container-Meta-Temp-Url-Key": "k", "X-Container-Meta-Web-Index": "index.html", "X-Container-Meta-Web-Listings": "1",
                                        "X-Container-Read": ".r:*,.rlistings"}).expect(201)
        account.put(container, name, body=b"data").expect(201)
        account.put(container, "link", body=b"", headers={"X-Symlink-Target": quoted}).expect(201)
        account.put(container, "dlo", body=b"", headers={"X-Object-Manifest": quoted}).expect(201)
        account.put(container, "slo", body=json.dumps([{"path": f"/{container}/{name}"}]), query="multipart-manifest=put").expect(201)
        answers = [
            account.get(container, name), account.get(container, "link"), account.head(container, "link", query="symlink=get"), account.get(container, "dlo"),
            account.get(container, "slo"), account.get(container, "slo", query="multipart-manifest=get"), account.put(container, "copy", body=b"", headers={"X-Copy-From": quoted}),
            account.request("COPY", container, name, headers={"Destination": quote(f"{container}/copy2\r\nX-Evil: 1")}),
            account.endpoint.request("GET", temp_url(f"{account.path}/{container}/{name}", "k")),
            account.endpoint.request("GET", temp_url(f"{account.path}/{container}/{name}", "k") + "&filename=" + quote("a\r\nX-Evil: 1\"")),
            account.anonymous().get(container), account.anonymous().get(container, "dir"), account.anonymous().get(container, name.partition("<")[0]),
            account.anonymous().put(container, name, body=b"x"), account.get(container, query="prefix=" + quote(name)), account.post(container, name, headers={"X-Object-Meta-A": "1"}),
            account.anonymous().get(container, headers={"Accept": "text/html"}),
        ]
        for answer in answers:
            assert answer.status < 500, answer
            assert "X-Evil" not in answer.headers and not any("\r" in value or "\n" in value for value in answer.headers.values()), answer
        assert [answer.body for answer in answers[:2]] == [b"data"] * 2
    finally:
        account.empty(container)


SECRET = "pEaRl-0f-grEat-pr1ce"


def test_security_S34_no_error_repeats_a_credential(account: Account, container: str) -> None:
    endpoint, base = account.endpoint, f"{account.path}/{container}"
    answers: list[Answer] = [
        endpoint.authenticate("test:tester", SECRET), endpoint.authenticate(f"test:{SECRET}", "x"),
        endpoint.request("GET", "/auth/v1/test/auth", {"X-Storage-User": "tester", "X-Storage-Pass": SECRET}),
        endpoint.request("GET", base, {"X-Auth-Token": SECRET}), endpoint.request("GET", base, {"X-Auth-Token": "AUTH_tk" + SECRET}),
        endpoint.request("GET", base + "/o", {"X-Auth-Token": account.token, "X-Service-Token": SECRET, "Range": "bytes=9-1"}),
        endpoint.request("GET", f"{base}/o?temp_url_sig={SECRET}&temp_url_expires=9999999999"),
        endpoint.request("PUT", f"{base}/o?temp_url_sig={SECRET}&temp_url_expires=soon", {}, b"x"),
        endpoint.request("POST", base + "/", {"Content-Type": FORM_TYPE}, form_body({**form_fields(base + "/", "k"), "signature": SECRET}, [("a", b"1", "a/b")])),
        account.put(container, "o", body=b"[", query="multipart-manifest=put", headers={"X-Service-Token": SECRET}),
        account.post(headers={"X-Account-Access-Control": "{", "X-Account-Meta-Temp-Url-Key": SECRET}),
        endpoint.request("PUT", base + "/o", {"X-Container-Sync-Auth": f"US x {SECRET}", "X-Auth-Token": ""}, b"x"),
    ]
    for answer in answers:
        assert answer.status >= 400, answer
        assert SECRET.encode() not in answer.body and SECRET not in str(dict(answer.headers)), answer
    host = f"user:{SECRET}@{endpoint.host}"
    for target, header in ((f"http://{host}{base}", "x"), (f"http://{host}/no/such", "x"), (base, host)):
        answer = raw(endpoint, f"GET {target} HTTP/1.1\r\nHost: {header}\r\nConnection: close\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 4") and SECRET.encode() not in answer


@pytest.fixture(scope="module")
def expired(store: Endpoint) -> Account:
    return Account(store, "/v1/AUTH_test", "AUTH_tk" + "1" * 32)


@pytest.mark.parametrize(("method", "path", "kind"), [
    ("GET", "/info?swiftinfo_sig=" + "0" * 40 + "&swiftinfo_expires=9999999999", ""), ("HEAD", "/info?swiftinfo_sig=0&swiftinfo_expires=9999999999", ""),
    ("GET", "/info?swiftinfo_sig=&swiftinfo_expires=1", ""), ("GET", "/recon/mem", ""), ("GET", "/recon/ringmd5", ""), ("GET", "/__profile__", ""),
    ("GET", "/endpoints/v2/AUTH_test/c/o", ""), ("GET", "/v1/endpoints/AUTH_test/c/o", ""), ("GET", "/admin", ""), ("GET", "/v1/.expiring_objects", ""), ("GET", "/v1/.misplaced_objects", ""),
    ("GET", "/v1/.shards_AUTH_test", ""), ("DELETE", "/v1/AUTH_test", ""), ("PUT", "/v1/AUTH_brand_new", ""), ("PUT", "/v1/AUTH_test2", ""),
    ("POST", "/v1/AUTH_test2", "X-Account-Meta-Quota-Bytes"), ("POST", "/v1/AUTH_test", "X-Account-Quota-Bytes"),
])
def test_security_R05_routes_of_operators_are_closed(account: Account, other: Account, plain: Account, expired: Account, method: str, path: str, kind: str) -> None:
    """Whoever asks that is no operator: nobody, another tenant, a plain user, an owner, a token that is not good (any more)."""
    for client in (account.anonymous(), other, plain, expired, account):
        if client in (account, other) and path == f"/v1/{client.name}" and kind != "X-Account-Quota-Bytes":
            continue  # their own
        headers = {"X-Auth-Token": client.token} if client.token else {}
        if kind:
            headers[kind] = "1"
        answer = account.endpoint.request(method, path, headers)
        assert answer.status in (400, 401, 403, 404, 405, 412), (client.user, answer)
        assert b"ringmd5" not in answer.body and b"objects/" not in answer.body


METHODS = ["GET", "HEAD", "PUT", "POST", "DELETE", "COPY", "OPTIONS", "REPORT"]
NAMES = ["Range", "Content-Type", "Content-Length", "Transfer-Encoding", "Accept", "If-Match", "If-None-Match", "If-Modified-Since", "X-Timestamp", "X-Delete-At",
         "X-Delete-After", "X-Copy-From", "Destination", "X-Object-Manifest", "X-Symlink-Target", "X-Container-Read", "X-Versions-Location", "X-Auth-Token", "Origin",
         "Referer", "Content-Disposition", "X-Object-Meta-\xe9", "X-Newest", "Expect", "Etag", "X-Static-Large-Object", "X-Storage-Policy", "X-If-Delete-At", "Host", "Forwarded",
         "X-Backend-Storage-Policy-Index", "X-Trans-Id-Extra", "Content-Encoding", "Connection", "Upgrade", "X-Container-Sync-Auth", "X-Container-Sync-To", "Date"]
VALUES = [b"", b" ", b"-1", b"0", b"1" * 400, b"nan", b"inf", b"1e999", b"bytes=", b"bytes=-", b"bytes=a-b", b"bytes=0-0,", b"bytes=" + b"0-0," * 60, b"\xff\xfe", b"\xc3\x28", b"a/b; c=\"",
          b"%00", b"%", b"a" * 5000, b"{", b"[" * 500, b"/", b"//", b"/c/o", b"c/%ff", b"Thu, 99 Foo 2999 99:99:99 GMT", b"9" * 30, b"-9999999999.0", b"\t\x0b", b"\"", b"*", b",,,", b";;=", b"chunked", b"=?x?="]
QUERIES = ["", "format=json", "format=%ff", "limit=-1", "limit=" + "9" * 50, "marker=%00", "marker=%ff", "delimiter=%ff", "path=%00", "reverse=x", "multipart-manifest=put", "multipart-manifest=get",
           "multipart-manifest=delete", "version-id=null", "version-id=%00", "symlink=get", "versions", "part-number=0", "part-number=x", "bulk-delete", "extract-archive=tar", "extract-archive=x", "heartbeat=on",
           "temp_url_sig=%ff&temp_url_expires=%ff", "&&&=", "a=%", "swiftinfo_sig=%ff&swiftinfo_expires=%ff", "filename=%ff", "ignore-range-header=x", "end_marker=%fe&prefix=%fe"]
BODIES = [b"", b"x", b"[]", b"[{}]", b'[{"path": 1}]', b'[{"path": "/\xff/\xff"}]', b"\x1f\x8b\x08", b"BZh9", b"\x00" * 512, b"[" * 3000, b"%\n%ff\n/c/o\n", b'{"a": NaN}']


@pytest.fixture
def survivors(running: Store | None) -> Iterator[None]:
    """The workers before are the workers after, and nobody logged a traceback."""
    before = {number: (running.worker_pids(number), len(running.log(number))) for number in range(1, running.nodes + 1)} if running else {}
    yield
    for number, (pids, mark) in before.items():
        assert running
        assert running.worker_pids(number) == pids and all(alive(pid) for pid in pids)
        text = running.log(number)[mark:]
        assert "Traceback" not in text, text[text.index("Traceback") - 2000:][:4000]


def test_security_R07_no_header_body_or_query_breaks_a_worker(account: Account, container: str, survivors: None) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    account.put(container, "o", body=b"data").expect(201)
    seen: set[int] = set()
    for _ in range(400):
        method = chance.choice(METHODS)
        path = chance.choice([account.path, f"{account.path}/{container}", f"{account.path}/{container}/o", f"{account.path}/{container}/f%ff", "/v1", "/v1/", "/info", "/auth/v1.0", "//", "/v1/%00/c/o"])
        if method == "DELETE" and path == account.path:
            continue
        query, body = chance.choice(QUERIES), chance.choice(BODIES)
        lines = [f"{method} {path}{'?' + query if query else ''} HTTP/1.1\r\nHost: x\r\nX-Auth-Token: {account.token}\r\nConnection: close\r\n".encode()]
        for _ in range(chance.randrange(4)):
            lines.append(chance.choice(NAMES).encode("latin-1") + b": " + chance.choice(VALUES) + b"\r\n")
        lines.append(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        answer = raw(account.endpoint, b"".join(lines))
        assert answer.startswith(b"HTTP/1.1 "), (lines, answer)
        status = int(answer[9:12])
        assert status < 500 or status in (501, 503), (seed, lines, answer[:2000])
        assert b"Traceback" not in answer
        seen.add(status)
    assert {200, 400, 404} <= seen, "the requests reach their handlers"
    assert account.endpoint.request("GET", "/healthcheck").status == 200


def test_security_R07_no_path_breaks_a_worker_whatever_is_asked_of_it(account: Account, container: str, survivors: None) -> None:
    """Each method with each query, on each kind of path."""
    account.put(container, "o", body=b"data").expect(201)
    paths = [f"{account.path}/{container}", f"{account.path}/{container}/o", f"{account.path}/{container}/f%ff", f"{account.path}/%ff/o",
             f"{account.path}/{container}/%ed%a0%80", f"{account.path}/{container}/%ef%bf%bf%f4%8f%bf%bf"]
    with account.endpoint.connect() as connection:
        for path in paths:
            for query in (*QUERIES, "multipart-manifest=delete&async=on", "multipart-manifest=get&format=raw"):
                for method in METHODS:
                    status = Account(account.endpoint, path, account.token).request(method, query=query, connection=connection).status
                    assert status < 500 or status in (501, 503), (method, path, query, status)


def test_security_R07_no_form_breaks_a_worker(account: Account, container: str, survivors: None) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    account.post(container, headers={"X-Container-Meta-Temp-Url-Key": "k"}).expect(204)
    target = f"{account.path}/{container}/"
    good = form_body(form_fields(target, "k"), [("a", b"data", "text/plain"), ("b", b"more", "a/b")])
    for _ in range(150):
        body = bytearray(good)
        for _ in range(chance.randrange(1, 5)):
            at, end = sorted(chance.randrange(len(body)) for _ in range(2))
            change = chance.randrange(3)
            if change == 0:
                body[at] = chance.randrange(256)
            elif change == 1:
                del body[at:min(end, at + 60)]
            else:
                body[at:at] = chance.choice([b"\r\n", b"\x00", b"--", b"Content-Disposition: ", b'"; name="', b"\xff" * 30, b"a" * 9000])
        kind = chance.choice([FORM_TYPE, FORM_TYPE, FORM_TYPE, "multipart/form-data", "multipart/form-data; boundary=", 'multipart/form-data; boundary="', FORM_TYPE[:-1]])
        answer = account.endpoint.request("POST", target, {"Content-Type": kind}, bytes(body))
        assert answer.status < 500, (seed, answer, bytes(body))


@pytest.mark.parametrize("value", [b"X-A\r\n X-Evil: 1", b"X-A\rX-Evil: 1", b"X-A\nX-Evil: 1", b"X-A\x00X-Evil: 1", b"X-A%0d%0aX-Evil:%201", "X-A\u2028X-Evil: 1".encode(), b"X-A\x85X-Evil: 1"])
def test_security_R08_cors_settings_write_no_headers(account: Account, container: str, value: bytes) -> None:
    """A line break in a value is refused, or at least ends no header of any later answer."""
    for name in ("Expose-Headers", "Max-Age", "Allow-Origin"):
        request = (f"POST {account.target(container)} HTTP/1.1\r\nHost: x\r\nX-Auth-Token: {account.token}\r\nConnection: close\r\nContent-Length: 0\r\n"
                   f"X-Container-Meta-Access-Control-{name}: ").encode() + value + b"\r\n\r\n"
        status = int(raw(account.endpoint, request)[9:12])
        assert status in (204, 400)
        if any(mark in value for mark in (b"\r", b"\n", b"\x00")) and b"X-A\nX" not in value:
            assert status == 400
        account.post(container, headers={"X-Container-Meta-Access-Control-Allow-Origin": "*"} if name != "Allow-Origin" else {}).expect(204)
        account.put(container, "o", body=b"data").expect(201)
        for answer in (account.get(container, "o", headers={"Origin": "http://a.example"}), account.head(container, headers={"Origin": "http://a.example"}),
                       account.request("OPTIONS", container, headers={"Origin": "http://a.example", "Access-Control-Request-Method": "GET",
                                                                      "Access-Control-Request-Headers": "x-a%0d%0aX-Evil: 1"})):
            assert "X-Evil" not in answer.headers, (name, value, answer.headers)


def test_security_R13_a_token_that_is_altered_is_no_token(account: Account) -> None:
    """A Fernet token is sealed as a whole: encrypted, then signed."""
    token = account.token
    if "ftk" not in token:
        pytest.skip("the tokens of this server lie in its cache")
    place = token.index("ftk") + 3
    with account.endpoint.connect() as connection:
        for at in range(place, len(token), 5):
            changed = token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1:]
            Account(account.endpoint, account.path, changed).request("HEAD", connection=connection).expect(401)
        for changed in (token[:-4], token + "AAAA", token.replace("ftk", "ftkftk"), token[:place] + token[place:][::-1]):
            Account(account.endpoint, account.path, changed).request("HEAD", connection=connection).expect(401)
    account.head().expect(204)


def test_security_R20_an_empty_key_never_signs(account: Account, container: str) -> None:
    account.post(headers={"X-Account-Meta-Temp-Url-Key": "", "X-Account-Meta-Temp-Url-Key-2": ""}).expect(204)
    account.post(container, headers={"X-Container-Meta-Temp-Url-Key": "", "X-Container-Meta-Temp-Url-Key-2": " "}).expect(204)
    account.put(container, "o", body=b"data").expect(201)
    for digest in ("sha1", "sha256", "sha512"):
        account.endpoint.request("GET", temp_url(f"{account.path}/{container}/o", "", digest=digest)).expect(401)
    target = f"{account.path}/{container}/"
    account.endpoint.request("POST", target, {"Content-Type": FORM_TYPE}, form_body(form_fields(target, ""), [("a", b"1", "a/b")])).expect(401)
    for user, key in (("test:tester", ""), ("test:", ""), (":", ""), ("", "")):
        account.endpoint.authenticate(user, key).expect(401)
    for value in (json.dumps({"admin": [""]}), json.dumps({"read-only": [None]})):
        account.post(headers={"X-Account-Access-Control": value}).expect(204, 400)
        account.anonymous().get(container, "o").expect(401)
    account.post(headers={"X-Account-Access-Control": ""}).expect(204)


def test_security_R20_no_key_lies_in_the_package() -> None:
    marks = [b"-----BEGIN " + kind + b"PRIVATE KEY-----" for kind in (b"", b"RSA ", b"EC ", b"OPENSSH ", b"ENCRYPTED ")]
    for folder in ("keelstore", "bin", "etc"):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix != ".pyc":
                data = path.read_bytes()
                assert not any(mark in data for mark in marks), path


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "*", "http://a.example\x85", ""])
def test_security_R17_no_origin_is_given_credentials(account: Account, container: str, origin: str) -> None:
    account.post(container, headers={"X-Container-Meta-Access-Control-Allow-Origin": "http://good.example", "X-Container-Meta-Access-Control-Allow-Credentials": "true"}).expect(204)
    account.put(container, "o", body=b"data").expect(201)
    for names in ((), (container,), (container, "o")):
        for method in ("GET", "OPTIONS"):
            answer = account.request(method, *names, headers={"Origin": origin.encode("latin-1"), "Access-Control-Request-Method": "GET"})
            assert "Access-Control-Allow-Credentials" not in answer.headers and "Access-Control-Allow-Origin" not in answer.headers, (names, method)
    name = unique("fresh")
    account.put(name).expect(201)
    assert "Access-Control-Allow-Origin" not in account.get(name, headers={"Origin": origin.encode("latin-1")}).headers
    account.delete(name).expect(204)
