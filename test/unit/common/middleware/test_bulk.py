import bz2
import gzip
import io
import json
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common import registry
from keelstore.common.errors import ClientDisconnect, ConfigError
from keelstore.common.http import Response
from keelstore.common.limits import Limits
from keelstore.common.middleware.bulk import Bulk, BulkOptions, filter_factory
from keelstore.common.middleware.bulk_tar import MAX_EXTENDED, BadArchive, entries, mode_of
from test.unit.common.middleware.helpers import call


def archive(*files, mode="w", **kwargs):
    """A tar of (name, content or TarInfo attributes, pax headers)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode, format=kwargs.get("format", tarfile.PAX_FORMAT)) as tar:
        for name, content, *rest in files:
            info = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                info.size = len(content)
            else:
                vars_ = content
                content = b""
                for key, value in vars_.items():
                    setattr(info, key, value)
            if rest:
                info.pax_headers = rest[0]
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


class Store:
    """What lies behind bulk: containers and objects, and statuses for what is to fail."""

    def __init__(self, containers=(), objects=(), statuses=None, limits=None, **options):
        self.containers, self.objects, self.statuses = set(containers), dict.fromkeys(objects, b""), statuses or {}
        self.asked = []
        self.slept: list[float] = []
        self.app = Bulk(self.inner, BulkOptions(**options), limits or Limits(), sleep=self.slept.append)

    def inner(self, environ, start_response):
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        self.asked.append((method, path, environ))
        return Response(self.status(method, path, environ), body=b"")(environ, start_response)

    def status(self, method, path, environ):
        name = path.removeprefix("/v1/a/")
        if name == path:
            return 200
        if (method, name) in self.statuses:
            found = self.statuses[method, name]
            return found.pop(0) if isinstance(found, list) else found
        if "/" not in name:
            if method == "PUT":
                self.containers.add(name)
                return 201
            if name not in self.containers:
                return 404
            if method == "DELETE":
                if any(other.startswith(name + "/") for other in self.objects):
                    return 409
                self.containers.remove(name)
            return 204
        if method == "PUT":
            data = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
            if name.split("/")[0] not in self.containers:
                return 404
            self.objects[name] = data
            return 201
        return 204 if self.objects.pop(name, None) is not None else 404

    def extract(self, body, form="tar", path="/v1/a", **extra):
        headers = {"Accept": "application/json", "X-Auth-Token": "t", **extra.pop("headers", {})}
        got = call(self.app, "PUT", path, query=f"extract-archive={form}", body=body, headers=headers, **extra)
        assert got.status == 200
        return got.json() if headers["Accept"] == "application/json" else got.body

    def delete(self, body, method="POST", path="/v1/a", query="bulk-delete", **extra):
        headers = {"Accept": "application/json", **extra.pop("headers", {})}
        got = call(self.app, method, path, query=query, body=body, headers=headers, **extra)
        assert got.status == 200
        return got.json() if headers["Accept"] == "application/json" else got.body


TWO = archive(("c1/a.txt", b"1"), ("./c1/d/b", b"22"), ("/c2/c", b"333"), ("top", b"x"), ("c2/dir", {"type": tarfile.DIRTYPE}),
              ("c2/link", {"type": tarfile.SYMTYPE, "linkname": "c"}))


@pytest.mark.parametrize(("form", "pack"), [("tar", lambda data: data), ("tar.gz", gzip.compress), ("tar.bz2", bz2.compress),
                                            (".TAR.gz.", gzip.compress)])
def test_an_archive_is_extracted(form, pack):
    store = Store(["c2"])
    assert store.extract(pack(TWO), form) == {"Response Status": "201 Created", "Response Body": "", "Number Files Created": 3, "Errors": []}
    assert store.objects == {"c1/a.txt": b"1", "c1/d/b": b"22", "c2/c": b"333"} and store.containers == {"c1", "c2"}
    assert [method for method, path, _ in store.asked if path == "/v1/a/c1"] == ["HEAD", "PUT"]
    environ = store.asked[-1][2]
    assert environ["HTTP_X_AUTH_TOKEN"] == "t" and environ["swift.source"] == "EA" and environ["HTTP_USER_AGENT"].endswith("BulkExpand")


@pytest.mark.parametrize(("path", "names"), [("/v1/a/c", ["c/g/x"]), ("/v1/a/c/pre", ["c/pre/g/x"]), ("/v1/a/c/", ["c/g/x"])])
def test_where_files_go(path, names):
    store = Store(["c"])
    store.extract(archive(("g/x", b"1")), path=path)
    assert sorted(store.objects) == names


def test_security_R18_names_lead_nowhere_else():
    store = Store()
    found = store.extract(archive(("../c/up", b"1"), ("c/a/../../b", b"2"), ("c//y", b"3"), ("c/%2e%2e/z", b"4")))
    assert found["Number Files Created"] == 4
    assert sorted(store.objects) == ["../c/up", "c/%2e%2e/z", "c//y", "c/a/../../b"]


def test_types_and_metadata_come_from_the_archive_and_the_request():
    store = Store()
    pax = {"SCHILY.xattr.user.mime_type": "foo/bar", "SCHILY.xattr.user.meta.one": "1", "LIBARCHIVE.xattr.user.meta.two": "Mg==",
           "SCHILY.xattr.user.other": "o", "SCHILY.xattr.user.meta.bad name": "x", "SCHILY.xattr.user.meta.line": "a\nb", "SCHILY.xattr.user.meta.u": "é"}
    store.extract(archive(("c/m", b"1", pax), ("c/n", b"2")), headers={
        "X-Object-Meta-Req": "r", "X-Delete-After": "5", "Content-Type": "q/q", "X-Detect-Content-Type": "true", "X-Object-Manifest": "c/x", "X-Copy-From": "c/x"})
    first, second = (environ for method, path, environ in store.asked if method == "PUT" and path.count("/") > 3)
    assert first["HTTP_X_OBJECT_META_ONE"] == "1" and first["HTTP_X_OBJECT_META_TWO"] == "Mg==" and first["CONTENT_TYPE"] == "foo/bar"
    assert first["HTTP_X_OBJECT_META_U"] == "\xc3\xa9"
    for environ in (first, second):
        assert environ["HTTP_X_OBJECT_META_REQ"] == "r" and environ["HTTP_X_DELETE_AFTER"] == "5"
        assert not {"HTTP_X_OBJECT_MANIFEST", "HTTP_X_COPY_FROM", "HTTP_X_DETECT_CONTENT_TYPE", "HTTP_X_OBJECT_META_LINE"} & set(environ)
    assert "CONTENT_TYPE" not in second and not any("BAD" in key for key in first)


@pytest.mark.parametrize(("body", "form", "says"), [
    (b"not a tar" * 100, "tar", "Invalid Tar File: invalid header"), (TWO, "tar.gz", "Invalid Tar File: not a gzip file"),
    (TWO, "tar.bz2", "Invalid Tar File: "), (archive(), "tar", "Invalid Tar File: No Valid Files"), (b"", "tar", "Invalid Tar File: empty file"),
    (gzip.compress(TWO)[:60], "tar.gz", "Invalid Tar File: "), (archive(("top", b"x")), "tar", "Invalid Tar File: No Valid Files"),
])
def test_what_is_no_archive(body, form, says):
    found = Store().extract(body, form)
    assert found["Response Status"] == "400 Bad Request" and found["Response Body"].startswith(says)


def test_an_archive_that_breaks_off_within_a_file():
    store = Store()
    found = store.extract(archive(("c/a", b"1"), ("c/b", b"x" * 20000))[:4096])
    assert found["Response Status"] == "400 Bad Request" and "unexpected end of data" in found["Response Body"] and "c/b" not in store.objects


def test_a_client_that_leaves_is_no_bad_archive():
    class Gone(io.BytesIO):
        def read(self, size=-1):
            raise ClientDisconnect("gone")

    store = Store()
    got = call(store.app, "PUT", "/v1/a", query="extract-archive=tar", body=b"x", headers={"Accept": "application/json"}, **{"wsgi.input": Gone()})
    assert got.json()["Response Status"].startswith("499")


def test_a_header_of_any_size_is_not_taken_into_memory():
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, MAX_EXTENDED + 1
    with pytest.raises(BadArchive, match="too long"):
        list(entries(io.BytesIO(info.tobuf() + b"\0" * 20480), "r|"))


def test_failures_are_told_one_by_one():
    store = Store(["c"], statuses={("PUT", "c/2"): 403, ("PUT", "c/ü".encode().decode("latin-1")): 422}, limits=Limits(max_file_size=3))
    files = archive(("c/1", b"1"), ("c/2", b"2"), ("c/3", b"long"), ("c/ü", b"4"), ("c/\udcff", b"5"))
    found = store.extract(files)
    assert found == {"Response Status": "400 Bad Request", "Response Body": "", "Number Files Created": 1, "Errors": [
        ["c/2", "403 Forbidden"], ["c/3", "413 Request Entity Too Large"], ["c/%C3%BC", "422 Unprocessable Entity"], ["c/%FF", "412 Precondition Failed"]]}
    store.statuses["PUT", "c/2"] = 503
    assert store.extract(files)["Response Status"] == "502 Bad Gateway"


def test_a_container_that_cannot_be_made_is_told_with_its_first_object():
    store = Store(statuses={("HEAD", "c"): 403, ("HEAD", "d"): 503})
    found = store.extract(archive(("c/1", b"1"), ("c/2", b"2")))
    assert found["Errors"] == [["/v1/a/c", "403 Forbidden"], ["c/1", "404 Not Found"], ["c/2", "404 Not Found"]]


@pytest.mark.parametrize("statuses", [{("HEAD", "c"): 401}, {("PUT", "c"): 401}, {("PUT", "c/1"): 401}])
def test_unauthorized_ends_it(statuses):
    store = Store(statuses=statuses)
    found = store.extract(archive(("c/1", b"1"), ("c/2", b"2")))
    assert (found["Response Status"], found["Errors"], store.objects) == ("401 Unauthorized", [], {})


def test_bounds_of_an_extraction():
    many = archive(*[(f"c{i}/x", b"1") for i in range(4)])
    store = Store(max_containers_per_extraction=3)
    assert store.extract(many)["Response Status"] == "400 Bad Request" and len(store.containers) == 3
    store = Store(max_failed_extractions=2, statuses={("PUT", f"c{i}/x"): 403 for i in range(4)})
    assert len(store.extract(many)["Errors"]) == 2


def test_a_request_without_length_or_acceptable_form():
    store = Store()
    assert store.extract(None)["Response Status"] == "411 Length Required"
    assert call(store.app, "PUT", "/v1/a", query="extract-archive=tar", body=TWO, headers={"Accept": "image/png"}).body.startswith(
        b"Number Files Created: 0\nResponse Body: \nResponse Status: 406")
    assert store.extract(TWO, path="/")["Response Status"] == "404 Not Found"
    got = call(store.app, "PUT", "/v1/a", query="extract-archive=zip", body=TWO)
    assert (got.status, got.body) == (400, b"Unsupported archive format")


@pytest.mark.parametrize(("accept", "body"), [
    ("text/plain", b"Number Files Created: 0\nResponse Body: \nResponse Status: 400 Bad Request\nErrors:\nc/1, 403 Forbidden\n"),
    ("text/xml", b"<extract>\n<number_files_created>0</number_files_created>\n<response_body></response_body>\n<response_status>400 Bad Request"
                 b"</response_status>\n<errors>\n<object><name>c/1</name><status>403 Forbidden</status></object>\n</errors>\n</extract>\n"),
])
def test_forms_of_the_outcome(accept, body):
    assert Store(["c"], statuses={("PUT", "c/1"): 403}).extract(archive(("c/1", b"1")), headers={"Accept": accept}) == body


# -- deletes


@pytest.mark.parametrize("concurrency", [1, 2, 10])
def test_names_are_deleted_objects_first(concurrency):
    store = Store(["c", "d"], ["c/a", "c/d/b", "d/ü".encode().decode("latin-1"), "e"], delete_concurrency=concurrency)
    found = store.delete(b"/c\n/c/a\n/c/nope\n\n  /c/d%2Fb  \r\nd/%C3%BC\n/nope\n")
    assert found == {"Response Status": "200 OK", "Response Body": "", "Number Deleted": 4, "Number Not Found": 2, "Errors": []}
    assert store.containers == {"d"} and all(environ["QUERY_STRING"] == "" and environ["swift.source"] == "BD" for _, _, environ in store.asked)


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_both_methods_delete(method):
    assert Store(["c"], ["c/a"]).delete(b"/c/a", method)["Number Deleted"] == 1


@pytest.mark.parametrize(("method", "query"), [("PUT", "bulk-delete"), ("GET", "bulk-delete"), ("GET", "extract-archive=tar"), ("POST", "extract-archive=tar"),
                                               ("POST", "x=bulk-delete"), ("POST", "")])
def test_other_requests_pass(method, query):
    store = Store()
    call(store.app, method, "/v1/a", query=query)
    assert [path for _, path, _ in store.asked] == ["/v1/a"]


@pytest.mark.parametrize(("body", "extra", "status"), [
    (b"", {}, "400 Bad Request"), (b"\n \n", {}, "400 Bad Request"), (b"/c/" + b"x" * 5000, {}, "400 Bad Request"),
    (b"/c/x", {"headers": {"Content-Type": "application/json"}}, "406 Not Acceptable"), (b"/c/x", {"headers": {"Content-Type": "text/plain; charset=utf-8"}}, "200 OK"),
    (None, {}, "411 Length Required"), (b"/c/x\n" * 4, {}, "413 Request Entity Too Large"), (b"/c/x", {"path": "/"}, "404 Not Found"),
])
def test_what_is_no_list(body, extra, status):
    assert Store(max_deletes_per_request=3).delete(body, **extra)["Response Status"] == status


def test_failed_deletes():
    store = Store(["c", "d"], ["c/a", "d/b"], statuses={("DELETE", "c/a"): 403, ("DELETE", "c/q"): 401})
    found = store.delete(b"/c/a\n/d\n/c/%ff\n/c/%00\n/\n/c/q\n")
    assert found["Response Status"] == "400 Bad Request" and found["Errors"] == [
        ["/c/a", "403 Forbidden"], ["/c/%FF", "412 Precondition Failed"], ["/c/%00", "412 Precondition Failed"], ["/c/q", "401 Unauthorized"],
        ["/d", "409 Conflict"], ["/", "400 Bad Request"]]
    assert ("DELETE", "/v1/a") not in [(method, path.rstrip("/")) for method, path, _ in store.asked]
    store.statuses["DELETE", "c/a"] = 503
    assert store.delete(b"/c/a")["Response Status"] == "502 Bad Gateway"


def test_a_container_that_is_not_empty_yet_is_tried_again():
    store = Store(["c"], statuses={("DELETE", "c"): [409, 409, 204]}, delete_container_retry_count=3)
    assert store.delete(b"/c")["Number Deleted"] == 1 and store.slept == [1.0, 1.5]


def test_too_many_failures_stop_it():
    store = Store(statuses={("DELETE", f"c/{i}"): 403 for i in range(50)}, max_failed_deletes=5)
    found = store.delete(b"".join(b"/c/%d\n" % i for i in range(50)))
    assert found["Response Status"] == "400 Bad Request" and 5 <= len(found["Errors"]) <= 12


def test_security_R18_deletes_stay_in_the_account():
    store = Store()
    store.delete(b"/../b/c/o\n//c/o\n/c/../../b/c/o\n")
    assert sorted(path for _, path, _ in store.asked) == ["/v1/a/../b/c/o", "/v1/a//c/o", "/v1/a/c/../../b/c/o"]


def test_an_app_that_breaks_is_a_server_error():
    def broken(environ, start_response):
        raise RuntimeError

    got = call(Bulk(broken, BulkOptions()), "POST", "/v1/a", query="bulk-delete", body=b"/c/x\n/c/y", headers={"Accept": "application/json"})
    assert got.json()["Response Status"] == "502 Bad Gateway" and len(got.json()["Errors"]) == 2
    got = call(Bulk(broken, BulkOptions()), "PUT", "/v1/a", query="extract-archive=tar", body=TWO, headers={"Accept": "application/json"})
    assert got.json()["Response Status"] == "502 Bad Gateway"


@given(st.binary(max_size=300), st.sampled_from(["r|", "r|gz", "r|bz2"]))
def test_any_octets_are_an_archive_or_refused(data, mode):
    for body in (data, TWO[:600] + data + TWO[600:]):
        try:
            for entry in entries(io.BytesIO(body), mode):
                entry.input.read()
        except (BadArchive, ClientDisconnect):
            pass


@pytest.mark.parametrize(("value", "mode"), [("tar", "r|"), ("TAR.GZ", "r|gz"), (".tar.bz2.", "r|bz2"), ("", None), ("tgz", None), ("tar.xz", None)])
def test_formats(value, mode):
    assert mode_of(value) == mode


def test_options():
    registry.forget_all()
    filter_factory({}, max_deletes_per_request="5", swift_dir="/nonexistent")
    assert registry.published() == {"bulk_upload": {"max_containers_per_extraction": 10000, "max_failed_extractions": 1000},
                                    "bulk_delete": {"max_deletes_per_request": 5, "max_failed_deletes": 1000}}
    for name, value in (("delete_concurrency", "0"), ("delete_concurrency", "1001"), ("yield_frequency", "0")):
        with pytest.raises(ConfigError, match=name):
            filter_factory({}, **{name: value})
    assert json.dumps(registry.published())
