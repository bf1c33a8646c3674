"""Asking Keystone over a real socket, of a server that answers as told: what goes with a question, and what each answer means."""

import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytest.importorskip("keystoneauth1")

from keelstore.common.errors import ConfigError
from keelstore.common.middleware.s3token import KeystoneUnavailable, S3TokenOptions, UnknownKey, WrongSignature
from keelstore.common.middleware.s3token_client import RENEW_S, KeystoneClient


class Server(ThreadingHTTPServer):
    """Answers: path ending to (status, body); a list of what was asked."""

    daemon_threads = True

    def __init__(self):
        self.answers, self.asked, self.tokens = {}, [], 0
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/v3"

    def count(self, ending):
        return sum(path.endswith(ending) for _method, path, _token, _body in self.asked)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.asked.append((self.command, self.path, self.headers.get("X-Auth-Token"), body))
        headers = {}
        if self.path.endswith("/auth/tokens"):
            self.server.tokens += 1
            headers["X-Subject-Token"] = f"token-{self.server.tokens}"
            answer = 201, {"token": {"methods": ["password"], "user": {"id": "u", "name": "swift"}, "expires_at": "2099-01-01T00:00:00.000000Z"}}
        elif self.path in ("/v3", "/v3/", "/"):
            answer = 200, {"version": {"id": "v3.14", "status": "stable", "links": [{"rel": "self", "href": f"{self.server.url}/"}]}}
        else:
            answer = next((found for ending, found in self.server.answers.items() if self.path.endswith(ending)), (404, {}))
        status, value = answer
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in {**headers, "Content-Length": str(len(data)), "Location": "http://127.0.0.1:9/"}.items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(data)

    do_POST = do_GET

    def log_message(self, *_arguments):
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    thread = threading.Thread(target=found.serve_forever, args=(0.01,))
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def client(server, clock=None, account=True, **options):
    conf = {"auth_url": server.url, "username": "swift", "password": "p", "user_domain_id": "default", "project_name": "service",
            "project_domain_id": "default"} if account else {}
    return KeystoneClient(server.url, S3TokenOptions(auth_uri=server.url, **options), conf, logging.getLogger("test"), clock or Clock())


def test_a_question_goes_with_our_token_and_what_was_signed(server):
    server.answers["/s3tokens"] = 200, {"token": "yes"}
    keystone = client(server)
    for _ in range(2):
        assert keystone.token_for("AK", b"\xfb\xff", "sig") == {"token": "yes"}
    method, path, token, body = server.asked[-1]
    assert (method, path, token) == ("POST", "/v3/s3tokens", "token-1")
    assert json.loads(body) == {"credentials": {"access": "AK", "token": "-_8=", "signature": "sig"}}
    assert server.tokens == 1


@pytest.mark.parametrize(("status", "body", "error"), [
    (400, {}, WrongSignature), (404, {}, UnknownKey), (403, {}, KeystoneUnavailable), (500, {}, KeystoneUnavailable), (503, b"", KeystoneUnavailable),
    (302, {}, KeystoneUnavailable), (200, b"no json", KeystoneUnavailable), (429, {}, KeystoneUnavailable),
])
def test_what_an_answer_means(server, status, body, error):
    server.answers["/s3tokens"] = status, body
    with pytest.raises(error):
        client(server).token_for("AK", b"", "sig")


def test_a_wrong_signature_costs_a_log_in_only_now_and_then(server):
    server.answers["/s3tokens"] = 401, {}
    clock = Clock()
    keystone = client(server, clock)
    for _ in range(5):
        with pytest.raises(WrongSignature):
            keystone.token_for("AK", b"", "sig")
    assert server.tokens == 2 and server.count("/s3tokens") == 6
    clock.now += RENEW_S
    with pytest.raises(WrongSignature):
        keystone.token_for("AK", b"", "sig")
    assert server.tokens == 3


def test_without_an_account_no_token_goes_along(server, caplog):
    server.answers["/s3tokens"] = 200, {}
    keystone = client(server, account=False)
    keystone.token_for("AK", b"", "sig")
    assert server.asked[-1][2] is None and not keystone.can_read_secrets
    assert "no account at Keystone" in caplog.text


def test_secrets(server, caplog):
    server.answers["/users/u%2F1/credentials/OS-EC2/A%2FK"] = 200, {"credential": {"secret": "s"}}
    keystone = client(server)
    assert keystone.secret_of("u/1", "A/K") == "s"
    server.answers["/OS-EC2/other"] = 403, {"error": {"message": "policy of the cloud"}}
    assert keystone.secret_of("u", "other") is None
    assert "role 'admin'" in caplog.text and "policy of the cloud" not in caplog.text
    for answer in ((200, b"x"), (200, []), (200, {"credential": {"secret": 1}})):
        server.answers["/OS-EC2/other"] = answer
        assert keystone.secret_of("u", "other") is None


def test_a_keystone_that_is_not_there(server):
    keystone = client(server)
    server.server_close()
    with pytest.raises(KeystoneUnavailable):
        keystone.token_for("AK", b"", "sig")
    assert keystone.secret_of("u", "AK") is None


def test_an_unknown_way_to_log_in_stops_the_start(server):
    with pytest.raises(ConfigError, match="auth_type"):
        client(server, auth_type="nonesuch")
