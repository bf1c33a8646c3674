import base64
from urllib.parse import quote

import pytest
from click.testing import CliRunner

from keelstore.cli.explain import diagnose, explain, read_url
from keelstore.cli.layout import CommandError
from keelstore.common.middleware.signatures import sign, url_text

PATH, EXPIRES, KEY = "/v1/AUTH_a/c/o x", "2000", "mykey"


def url(signed_method="GET", signed_path=PATH, key=KEY, expires=EXPIRES, signed_expires=2000, digest="sha256", path=PATH, ip=None, signed_ip=None, prefix=None, **params):
    text = url_text(signed_method, 0, signed_path, signed_ip).replace("\n0\n", f"\n{signed_expires}\n")
    query = {"temp_url_sig": sign(key, digest, text), "temp_url_expires": expires, **params}
    if ip:
        query["temp_url_ip_range"] = ip
    if prefix is not None:
        query["temp_url_prefix"] = prefix
    return f"https://host:8080{quote(path, encoding='latin-1')}?" + "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items())


def told(text, method="GET", now=1000.0, keys=(KEY,), **kwargs):
    found = diagnose(read_url(text, method), list(keys), now, **kwargs)
    return found.is_good, "\n".join(found.lines)


@pytest.mark.parametrize(("made", "kwargs"), [
    ({}, {}), ({"digest": "sha1"}, {}), ({"digest": "sha512"}, {}), ({"expires": "1970-01-01T00:33:20Z"}, {}), ({}, {"method": "HEAD"}), ({}, {"keys": ("other", KEY)}),
    ({"ip": "10.0.0.0/8", "signed_ip": "10.0.0.0/8"}, {"address": "10.1.2.3"}), ({"ip": "10.0.0.0/8", "signed_ip": "10.0.0.0/8"}, {}),
    ({"prefix": "o", "signed_path": "prefix:/v1/AUTH_a/c/o"}, {}),
])
def test_a_good_url(made, kwargs):
    is_good, text = told(url(**made), **kwargs)
    assert is_good and "signature  good" in text and KEY not in text


@pytest.mark.parametrize(("made", "kwargs", "check"), [
    ({}, {"now": 3000.0}, "expired: it expired 1000 seconds ago"), ({"digest": "sha1"}, {"digests": ["sha256"]}, "digest-not-allowed"),
    ({}, {"method": "PATCH"}, "method-not-allowed"), ({"path": "/v1/AUTH_a/c"}, {}, "path: "), ({"expires": "soon"}, {}, "expires-form"), ({"temp_url_sig": "zz"}, {}, "signature-form"),
    ({"ip": "10.0.0.0/8", "signed_ip": "10.0.0.0/8"}, {"address": "192.0.2.1"}, "ip-range: "), ({"prefix": "q"}, {}, "prefix: "), ({}, {"keys": ()}, "no-key"),
])
def test_case_C33_the_check_that_fails(made, kwargs, check):
    is_good, text = told(url(**made), **kwargs)
    assert not is_good and f"FAILS      {check}" in text


@pytest.mark.parametrize(("made", "kwargs", "says"), [
    ({}, {"method": "PUT"}, "the method GET"), ({"signed_path": "/v1/AUTH_a/c/o%20x"}, {}, "signed percent-encoded, as it is in the URL"),
    ({"key": KEY + "\n"}, {}, "the key with a newline at its end"), ({"signed_path": "https://host:8080/v1/AUTH_a/c/o%20x"}, {}, "the whole URL"),
    ({"signed_path": "/c/o x"}, {}, "a path without version and account"), ({"signed_path": "/AUTH_a/c/o x"}, {}, "a path without its version"),
    ({"signed_path": "/swift/v1/AUTH_a/c/o x"}, {}, "/swift"), ({"signed_path": "/v1/a/c/o x"}, {}, "an account without AUTH_"), ({"signed_path": PATH[1:]}, {}, "first slash"),
    ({"expires": "1970-01-01T00:33:20Z", "signed_expires": "1970-01-01T00:33:20Z"}, {}, "sign the number"), ({"ip": "10.0.0.0/8"}, {}, "without the line ip=RANGE"),
    ({"prefix": "o", "signed_path": "/v1/AUTH_a/c/o"}, {}, "without 'prefix:'"), ({"prefix": "o"}, {}, "the whole path of this object"),
    ({"key": "secret"}, {"keys": (base64.b64encode(b"secret").decode(),)}, "decoded from base64"), ({"key": "ab"}, {"keys": (b"ab".hex(),)}, "decoded from hex"),
    ({"key": KEY}, {"keys": (f" {KEY} ",)}, "the blanks around it"), ({"key": ""}, {}, "an empty key"),
    ({"signed_method": "PUT", "signed_path": "/c/o x", "key": KEY + "\n"}, {}, "the method PUT, and a path without version and account, and the key with a newline"),
    ({"key": "quite another"}, {}, "none of the usual mistakes"),
])
def test_usual_mistakes(made, kwargs, says):
    is_good, text = told(url(**made), **kwargs)
    assert not is_good and "FAILS      signature: " in text and says in text


def test_an_expired_url_whose_signature_is_good():
    assert "the signature itself is good" in told(url(), now=3000.0)[1]
    assert "the signature itself is good" not in told(url(key="other"), now=3000.0)[1]


def test_names_beyond_ascii():
    wire = "/v1/AUTH_a/c/\xc3\xa9"
    assert told(url(signed_path=wire, path=wire))[0]
    signature = sign(KEY, "sha256", url_text("GET", 2000, wire))
    assert told(f"http://h/v1/AUTH_a/c/é?temp_url_sig={signature}&temp_url_expires=2000")[0]


def test_what_is_no_temporary_url():
    assert "this is no temporary URL" in told("http://h/v1/a/c/o?x=1")[1]
    for text in ("nonsense", "http://[", ""):
        with pytest.raises(CommandError):
            read_url(text, "GET")


def test_the_command():
    run = CliRunner().invoke
    good = url(expires="4000000000", signed_expires=4000000000)
    assert run(explain, ["tempurl", good, "--key", KEY]).exit_code == 0
    found = run(explain, ["tempurl", good, "--key", "-", "--method", "put"], input=KEY + "\n")
    assert found.exit_code == 1 and "the method GET" in found.output and KEY not in found.output
    assert run(explain, ["tempurl", good], env={"KEELSTORE_TEMPURL_KEY": KEY}).exit_code == 0
    assert run(explain, ["tempurl", url(), "--key", KEY]).exit_code == 1
