import contextlib
import os
import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from keelstore.common.cache import CacheError
from keelstore.common.cache_embedded import EmbeddedCache
from keelstore.common.cache_memcached import MemcachedCache
from keelstore.common.errors import ConfigError
from keelstore.common.middleware.cache import filter_factory
from test.unit.common.middleware.helpers import Inner, call


def test_without_servers_it_is_the_embedded_cache_shared_by_all(tmp_path):
    inner = Inner()
    app = filter_factory({"swift_dir": str(tmp_path)}, embedded_cache_slots="64")(inner)
    call(app)
    cache = inner.asked[0]["swift.cache"]
    assert isinstance(cache, EmbeddedCache)
    pid = os.fork()
    if pid == 0:
        cache.set("token", "x")
        os._exit(0)
    os.waitpid(pid, 0)
    assert cache.get("token") == "x"


def test_a_reload_in_the_same_process_finds_the_same_memory(tmp_path):
    conf = {"swift_dir": str(tmp_path), "__file__": str(tmp_path / "proxy.conf")}
    first = filter_factory(conf, embedded_cache_slots="64")(Inner()).cache
    first.set("token", "x")
    assert filter_factory(conf, embedded_cache_slots="64")(Inner()).cache.get("token") == "x"
    other = {**conf, "__file__": str(tmp_path / "other.conf")}
    assert filter_factory(other, embedded_cache_slots="64")(Inner()).cache.get("token") is None
    assert filter_factory({"swift_dir": str(tmp_path)})(Inner()).cache.get("token") is None


def test_servers_of_the_section(tmp_path):
    cache = filter_factory({"swift_dir": str(tmp_path)}, memcache_servers="10.0.0.1:11211, 10.0.0.2",
                           max_connections="5")(Inner()).cache
    assert isinstance(cache, MemcachedCache)
    assert cache._options.servers == ("10.0.0.1:11211", "10.0.0.2") and cache._options.max_connections == 5


def test_servers_of_memcache_conf_and_the_section_wins(tmp_path):
    (tmp_path / "memcache.conf").write_text("[memcache]\nmemcache_servers = 10.0.0.9:1\ntries = 7\nio_timeout = 9\n")
    cache = filter_factory({"swift_dir": str(tmp_path)}, tries="4")(Inner()).cache
    assert isinstance(cache, MemcachedCache)
    assert cache._options.servers == ("10.0.0.9:1",)
    assert (cache._options.tries, cache._options.io_timeout_s) == (4, 9.0)


@pytest.mark.parametrize("options", [{"memcache_servers": "h:x"}, {"tries": "0"}, {"embedded_cache_slots": "no"},
                                     {"memcache_servers": "h", "tls_enabled": "yes", "tls_cafile": "/nonexistent"}])
def test_bad_options_stop_the_start(tmp_path, options):
    with pytest.raises(ConfigError):
        filter_factory({"swift_dir": str(tmp_path)}, **options)


def test_a_broken_memcache_conf_stops_the_start(tmp_path):
    (tmp_path / "memcache.conf").write_text("nonsense")
    with pytest.raises(ConfigError):
        filter_factory({"swift_dir": str(tmp_path)})


@pytest.fixture
def tls_memcached(tmp_path):
    """A memcached of a few lines behind TLS, whose certificate nobody has signed but itself: (address, certificate file)."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
                   .not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
                   .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
                   .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False).sign(key, hashes.SHA256()))
    own = tmp_path / "own.pem"
    own.write_bytes(certificate.public_bytes(Encoding.PEM) + key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(certificate.public_bytes(Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own)
    listener = socket.create_server(("127.0.0.1", 0))
    heard: list[bytes] = []

    def serve():
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            with contextlib.suppress(OSError), context.wrap_socket(sock, server_side=True) as connection:
                while data := connection.recv(65536):
                    heard.append(data)
                    connection.sendall(b"STORED\r\n" if data.startswith(b"set") else b"VALUE key 2 1\r\n7\r\nEND\r\n".replace(b"key", data.split()[1]))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"localhost:{listener.getsockname()[1]}", str(trusted), heard
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(5)


def test_security_S19_a_memcached_that_nobody_vouches_for_gets_no_word(tls_memcached, tmp_path):
    address, trusted, heard = tls_memcached
    conf = {"swift_dir": str(tmp_path), "memcache_servers": address, "tls_enabled": "true", "log_file": "-", "connect_timeout": "2"}
    stranger = filter_factory({}, **conf)(Inner()).cache
    assert stranger.get("key") is None
    with pytest.raises(CacheError):
        stranger.set("key", "secret", raise_on_error=True)
    assert heard == []
    known = filter_factory({}, **conf, tls_cafile=trusted)(Inner()).cache
    known.set("key", 7, raise_on_error=True)
    assert known.get("key") == 7 and heard
    for cache in (stranger, known):
        cache.close()
    other = filter_factory({}, **{**conf, "memcache_servers": address.replace("localhost", "127.0.0.1")}, tls_cafile=trusted)(Inner()).cache
    assert other.get("key") is None, "a certificate of another name"
    other.close()
