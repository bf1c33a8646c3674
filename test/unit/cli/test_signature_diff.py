"""What differs between two signed texts is named, whatever form they come in."""

import hashlib
from dataclasses import replace
from urllib.parse import quote
from xml.sax.saxutils import escape

import boto3
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from keelstore.cli.explain import explain
from keelstore.cli.signature_diff import View, differences, of_request, read, signed_by
from keelstore.common.middleware.s3api.signature import Scope, signature

CANONICAL = "\n".join((
    "PUT", "/bucket/a%20key", "partNumber=1&uploadId=x", "host:store:8080", "x-amz-date:20260101T000000Z", "",
    "host;x-amz-date", "UNSIGNED-PAYLOAD"))
SCOPE = "20260101/us-east-1/s3/aws4_request"


def to_sign(canonical, scope=SCOPE):
    return f"AWS4-HMAC-SHA256\n20260101T000000Z\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"


SERVER = View(CANONICAL, to_sign(CANONICAL), "0" * 64)


def client(old, new):
    assert old in CANONICAL
    changed = CANONICAL.replace(old, new, 1)
    return View(changed, to_sign(changed))


def xml(view):
    return (f"<Error><Code>SignatureDoesNotMatch</Code><StringToSign>{escape(view.to_sign)}</StringToSign>"
            f"<SignatureProvided>{view.signature}</SignatureProvided><CanonicalRequest>{escape(view.canonical)}</CanonicalRequest></Error>")


@pytest.mark.parametrize(("old", "new", "what", "hint"), [
    ("PUT", "GET", "method", ""),
    ("a%20key", "a%2520key", "path", "not twice"),
    ("a%20key", "a key", "path", "encoded differently"),
    ("/bucket/a", "/a", "path", ""),
    ("/bucket/a%20key", "/bucket/a%20key/", "path", "slash at its end"),
    ("/bucket/", "/bucket//", "path", "slashes"),
    ("/bucket/a%20key", "/a%20key", "path", "host name"),
    ("partNumber=1&uploadId=x", "uploadId=x&partNumber=1", "order of query parameters", "sorted"),
    ("partNumber=1", "partNumber=2", "query parameter partNumber", ""),
    ("&uploadId=x", "", "query parameter uploadId", "did not sign"),
    ("host:store:8080", "host:store", "header host", "proxy"),
    ("UNSIGNED-PAYLOAD", "0" * 64, "payload hash", "another body"),
])
def test_a_difference_is_named(old, new, what, hint):
    found = differences(SERVER, client(old, new))
    assert [one.what for one in found] == [what]
    assert hint in found[0].hint


def test_the_scope_is_compared_too():
    found = differences(SERVER, View(CANONICAL, to_sign(CANONICAL, SCOPE.replace("us-east-1", "eu-west-1"))))
    assert [one.what for one in found] == ["scope"]


def test_with_strings_to_sign_alone_the_hash_tells_that_requests_differ():
    found = differences(replace(SERVER, canonical=""), client("PUT", "GET"))
    assert [one.what for one in found] == ["hash of the canonical request"]


def test_version_2():
    ours = View(to_sign="PUT\n\ntext/plain\n\nx-amz-date:Thu\n/bucket/key")
    theirs = read("Debug: signing\n" + ours.to_sign.replace("text/plain", ""))
    assert [one.what for one in differences(ours, theirs)] == ["Content-Type"]


def test_what_the_server_answers_is_read():
    assert read(xml(SERVER)) == SERVER
    odd = replace(SERVER, canonical=CANONICAL.replace("uploadId=x", "uploadId=%26&amp;<"))
    assert read(xml(odd)) == odd


def test_the_log_of_botocore_is_read(caplog):
    caplog.set_level("DEBUG", "botocore.auth")
    s3 = boto3.client("s3", endpoint_url="http://store:8080", region_name="us-east-1", aws_access_key_id="k", aws_secret_access_key="s")
    s3.generate_presigned_url("get_object", Params={"Bucket": "b", "Key": "k"})
    _signed_by_botocore("http://store:8080/bucket/a key?x=1")
    found = read("\n".join(record.getMessage() for record in caplog.records if "auth" in record.name))
    assert found.canonical.startswith("GET\n") and found.to_sign.startswith("AWS4-HMAC-SHA256\n")


def _signed_by_botocore(url, secret="s", method="GET", headers=None):
    request = AWSRequest(method, quote(url, safe=":/?=&%"), headers={"x-amz-meta-a": "1  2", **(headers or {})})
    S3SigV4Auth(Credentials("k", secret), "s3", "us-east-1").add_auth(request)
    lines = [f"{method} {request.url.partition('8080')[2]} HTTP/1.1", "Host: store:8080"]
    return "\r\n".join([*lines, *(f"{name}: {value}" for name, value in request.headers.items()), "", ""])


def test_of_a_request_on_the_wire_the_texts_are_made():
    view = read(_signed_by_botocore("http://store:8080/bucket/a key?b=2&a=1"))
    assert view.canonical.split("\n")[:3] == ["GET", "/bucket/a%20key", "a=1&b=2"]
    assert signed_by(view, "s") == view.signature


@given(st.text(max_size=300))
def test_any_text_can_be_read(text):
    view = read(text)
    assert differences(view, view) == []
    of_request(text if " " in text.split("\n", 1)[0] else f"GET / HTTP/1.1\n{text}")


def run(tmp_path, server, theirs=None, *arguments):
    (tmp_path / "answer.xml").write_text(server)
    paths = [str(tmp_path / "answer.xml")]
    if theirs is not None:
        (tmp_path / "client.txt").write_text(theirs)
        paths.append(str(tmp_path / "client.txt"))
    return CliRunner().invoke(explain, ["s3-signature", *paths, *arguments])


def test_the_command_names_line_and_reason(tmp_path):
    done = run(tmp_path, xml(SERVER), client("store:8080", "store").canonical)
    assert done.exit_code == 1
    assert "DIFFERS    header host" in done.output and "store:8080" in done.output and "proxy" in done.output


def test_the_command_tells_a_wrong_secret_from_a_wrong_text(tmp_path):
    key = Scope("20260101", "us-east-1").key("right")
    theirs = client("PUT", "GET")
    right = replace(SERVER, signature=signature(key, SERVER.to_sign.encode()))
    assert "another secret" in run(tmp_path, xml(right), None, "--secret", "right").output
    assert "does not give" in run(tmp_path, xml(right), None, "--secret", "wrong").output
    moved = replace(SERVER, signature=signature(key, theirs.to_sign.encode()))
    assert "only the text" in run(tmp_path, xml(moved), theirs.canonical + "\n\n" + theirs.to_sign, "--secret", "right").output
    same = run(tmp_path, xml(SERVER), CANONICAL)
    assert same.exit_code == 0 and "secret key that differs" in same.output


@pytest.mark.parametrize(("server", "theirs"), [("nothing", CANONICAL), (xml(SERVER), "nothing"), (xml(SERVER), None)])
def test_what_cannot_be_compared_is_said(tmp_path, server, theirs):
    done = run(tmp_path, server, theirs)
    assert done.exit_code != 0 and done.exception is not None and "Traceback" not in done.output
