"""Objects on one disk, written by Swift 2.38 and read by us, and the reverse; the same suffix hashes of both."""

from __future__ import annotations

import base64
import json
import os
import random
import subprocess
from typing import Any
from urllib.parse import quote

import pytest

from keelstore.common import plainpickle
from keelstore.common.headers import Headers
from keelstore.common.timestamp import Timestamp
from keelstore.obj import layout
from keelstore.obj.fileset import Preference, resolve
from test.support.objects import Clock, ServerBox, stamp

SERVER = '''
import base64, io, json, logging, os, sys
devices, conf = sys.argv[1:]
from swift.common import storage_policy, utils
from swift.common.storage_policy import ECStoragePolicy, StoragePolicy, StoragePolicyCollection
from swift.common.swob import Request
utils.HASH_PATH_PREFIX, utils.HASH_PATH_SUFFIX = b"p", b"s"
utils.SWIFT_CONF_FILE = conf + "/swift.conf"
ec = ECStoragePolicy(2, "ec42", ec_type="liberasurecode_rs_vand", ec_ndata=4, ec_nparity=2)
gold = StoragePolicy(0, "gold", is_default=True)
storage_policy._POLICIES = StoragePolicyCollection([gold, ec])
from swift.obj import diskfile, server
app = server.app_factory({"devices": devices, "mount_check": "false", "swift_dir": conf, "log_name": "x", "__file__": conf + "/x",
                          "reclaim_age": "1000000000000"})
managers = {True: diskfile.ECDiskFileManager({"devices": devices}, logging.getLogger("x")),
            False: diskfile.DiskFileManager({"devices": devices}, logging.getLogger("x"))}

def call(method, path, headers, body):
    environ = Request.blank(path).environ
    environ.update(REQUEST_METHOD=method)
    for name, value in headers.items():
        key = name.upper().replace("-", "_")
        environ[key if key in ("CONTENT_TYPE", "CONTENT_LENGTH") else "HTTP_" + key] = value
    data = base64.b64decode(body)
    environ["wsgi.input"] = io.BytesIO(data)
    if method == "PUT":
        environ["CONTENT_LENGTH"] = str(len(data))
    got = []
    body = b"".join(app(environ, lambda status, headers, exc_info=None: got.extend([status, headers])))
    return {"status": int(got[0][:3]), "headers": dict(got[1]), "body": base64.b64encode(body).decode()}

def choose(files, is_ec, fragment, wishes):
    options = {}
    if is_ec:
        if fragment is not None:
            options["frag_index"] = fragment
        if wishes is not None:
            options["frag_prefs"] = [{"timestamp": utils.Timestamp(t), "exclude": e} for t, e in wishes]
    try:
        found = managers[is_ec].get_ondisk_files(files, "/x", verify=False, policy=ec if is_ec else gold, **options)
    except KeyError:
        return None
    name = lambda key: os.path.basename(found[key]) if found.get(key) else None
    return {"data": name("data_file"), "meta": name("meta_file"), "ctype": name("ctype_file"), "tombstone": name("ts_file"),
            "obsolete": sorted(info["filename"] for info in found.get("obsolete", ())),
            "reclaimable": sorted(info["filename"] for info in found.get("possible_reclaim", ()))}

def load(path):
    import pickle
    with open(path, "rb") as file:
        update = pickle.load(file)
    return {**update, "headers": dict(update["headers"]), "class": type(update["headers"]).__name__}

for line in sys.stdin:
    name, args = json.loads(line)
    print(json.dumps(globals()[name](*args)), flush=True)
'''  # fmt: skip


class Swift:
    """Swift's object server over the same devices, in a process of its own."""

    def __init__(self, python: str, devices: str, conf: str):
        os.makedirs(conf)
        with open(f"{conf}/swift.conf", "w") as file:
            file.write("[swift-hash]\nswift_hash_path_prefix = p\nswift_hash_path_suffix = s\n")
        self._errors = open(f"{conf}/errors", "w+")  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen([python, "-c", SERVER, devices, conf], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         stderr=self._errors, text=True)

    def ask(self, name: str, *args: Any) -> Any:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps([name, args]) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            self._process.wait(10)
            self._errors.seek(0)
            pytest.fail(f"Swift's process ended: {self._errors.read()[-2000:]}")
        return json.loads(answer)

    def call(self, method: str, path: str, headers: dict[str, str] | None = None, body: bytes = b"",
             at: float | None = None) -> tuple[int, Headers, bytes]:
        sent = dict(headers or {})
        if at is not None:
            sent.setdefault("X-Timestamp", stamp(at).internal)
        if method == "PUT":
            sent.setdefault("Content-Type", "text/plain")
        answer = self.ask("call", method, quote(path), sent, base64.b64encode(body).decode())
        return answer["status"], Headers(answer["headers"]), base64.b64decode(answer["body"])

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(10)
        self._errors.close()


@pytest.fixture
def box(tmp_path):
    return ServerBox(str(tmp_path / "devices"), reclaim_age=1e12)


@pytest.fixture
def swift(swift_python, tmp_path, box):
    server = Swift(swift_python, box.devices, str(tmp_path / "conf"))
    yield server
    server.close()


WIRE = "\u00e9\u65e5".encode().decode("latin-1")
CASES = {
    "plain": ("/sda1/7/a/c/o", {}, b"hello"),
    "empty": ("/sda1/7/a/c/empty", {}, b""),
    "names": ("/sda1/7/a\u00e9/c \u65e5/o %?\U0001f600/\"x", {}, b"x"),
    "metadata": ("/sda1/7/a/c/m", {
        "Content-Type": f"text/plain; charset={WIRE}", "X-Object-Meta-Colour": WIRE, "X-Object-Meta-Octets": "\u00ff\u0080",
        "X-Object-Sysmeta-S": "1", "X-Object-Transient-Sysmeta-T": "2", "Content-Encoding": "gzip", "X-Delete-At": "9999999999",
    }, b"x" * 70000),
}  # fmt: skip
SHOWN = ("Content-Type", "Content-Length", "Etag", "X-Timestamp", "X-Backend-Timestamp", "X-Backend-Data-Timestamp", "Last-Modified",
         "Content-Encoding", "X-Delete-At")  # fmt: skip


def shown(headers: Headers) -> dict[str, str]:
    return {
        name: value.strip('"') for name, value in headers.items() if name in SHOWN or name.startswith("X-Object-")
    }  # fmt: skip


def ours(box: ServerBox, method: str, path: str, *args: Any, **options: Any) -> tuple[int, Headers, bytes]:
    answer = box.call(method, path, *args, **options)
    return answer.status, answer.headers, answer.read()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("writer", ["ours", "swift"])
def test_one_writes_and_both_read(box, swift, case, writer):
    path, headers, body = CASES[case]

    def write(method: str, headers: dict[str, str], body: bytes, at: float) -> int:
        if writer == "ours":
            return box.call(method, path, headers, body, at).status
        return swift.call(method, path, headers, body, at)[0]

    def check() -> None:
        mine, its = ours(box, "GET", path), swift.call("GET", path)
        assert mine[0] == its[0] and shown(mine[1]) == shown(its[1])
        assert mine[2] == its[2] if mine[0] == 200 else mine[1].get("X-Backend-Timestamp") == its[1].get("X-Backend-Timestamp")
        mine_hashes, its_hashes = ours(box, "REPLICATE", "/sda1/7")[2], swift.call("REPLICATE", "/sda1/7")[2]
        assert plainpickle.loads(mine_hashes) == plainpickle.loads(its_hashes) != {}

    assert write("PUT", headers, body, 0) == 201
    check()
    assert write("POST", {"X-Object-Meta-New": WIRE, "Content-Type": "text/new"}, b"", 1) == 202
    check()
    assert write("POST", {"X-Object-Meta-Newer": "1"}, b"", 2) == 202
    check()
    assert write("POST", {"Content-Type": "text/late"}, b"", 1.5) == 202
    check()
    assert write("DELETE", {}, b"", 1.2) == 204
    check()
    assert write("PUT", headers, body, 3) == 201
    check()
    assert write("DELETE", {}, b"", 4) == 204
    check()


def test_both_write_the_same_octets(box, swift):
    """Metadata as it is on the disk, the order of its keys apart."""
    path, headers, body = CASES["metadata"]
    box.call("PUT", path, headers, body, 0)
    other = path.replace("/7/", "/8/")
    swift.call("PUT", other, headers, body, 0)
    records = {}
    for root, _, names in os.walk(f"{box.device_path}/objects"):
        for name in names:
            if name.endswith(".data"):
                file = f"{root}/{name}"
                assert set(os.listxattr(file)) == {"user.swift.metadata", "user.swift.metadata_checksum"}
                records[root.split("/objects/")[1][0]] = os.getxattr(file, "user.swift.metadata")
    assert plainpickle.loads(records["7"], encoding="bytes") == plainpickle.loads(records["8"], encoding="bytes")
    assert records["7"][:32].count(b"_codecs\nencode") == 1 and len(records["7"]) == len(records["8"])


def test_object_whose_metadata_did_not_fit_is_served_by_swift_with_what_did(box, swift):
    items = {f"X-Object-Meta-{i:03}{'n' * 19}": "v" * 23 for i in range(90)}
    assert box.call("PUT", "/sda1/7/a/c/o", items, b"hello", 0).status == 201
    status, headers, body = swift.call("GET", "/sda1/7/a/c/o")
    assert (status, body) == (200, b"hello") and 10 < len(shown(headers)) <= 97
    assert swift.call("REPLICATE", "/sda1/7")[2] and box.call("GET").headers.items() >= items.items()
    assert swift.call("PUT", "/sda1/7/a/c/o", {}, b"newer", 1)[0] == 201
    assert box.call("GET").read() == b"newer"
    box.call("REPLICATE", "/sda1/7")
    assert box.files(box.place()) == ["1.data"], "what Swift left of the old object is cleaned up"


def test_pending_update_of_ours_is_read_by_swift(box, swift):
    headers = {"X-Container-Host": "127.0.0.1:1", "X-Container-Device": "sdb", "X-Container-Partition": "1"}
    box.call("PUT", "/sda1/7/a/c/\u00e9", headers, b"hello", 0)
    (path,) = (f"{root}/{name}" for root, _, names in os.walk(f"{box.device_path}/async_pending") for name in names)
    update = swift.ask("load", path)
    assert (update["op"], update["obj"], update["class"], update["headers"]["X-Size"]) == ("PUT", "\u00e9", "HeaderKeyDict", "5")


def random_names(rnd: random.Random, is_ec: bool) -> list[str]:
    def when() -> Timestamp:
        return Timestamp.from_raw(140000000000000 + rnd.randrange(6), rnd.choice([0, 0, 0, 1]))

    found = set()
    for _ in range(rnd.randrange(1, 7)):
        stamp, kind = when(), rnd.random()
        if kind < 0.5:
            found.add(layout.data_name(stamp, rnd.randrange(6), rnd.random() < 0.4) if is_ec else layout.data_name(stamp))
        elif kind < 0.8:
            ctype = Timestamp.from_raw(min(when().raw, stamp.raw))
            found.add(layout.meta_name(stamp, ctype if rnd.random() < 0.5 else None))
        else:
            found.add(layout.tombstone_name(stamp))
    return sorted(found)


@pytest.mark.parametrize("is_ec", [False, True])
def test_the_same_files_are_the_object(swift, is_ec):
    rnd = random.Random(7)
    for _ in range(400):
        names = random_names(rnd, is_ec)
        fragment = rnd.choice([None, None, 0, 1]) if is_ec else None
        wishes = None
        if is_ec and rnd.random() < 0.4:
            wishes = [(f"14000000{0:02}.0000{rnd.randrange(6)}", [rnd.randrange(6)]) for _ in range(rnd.randrange(3))]
        expected = swift.ask("choose", names, is_ec, fragment, wishes)
        if expected is None:
            continue
        found = resolve([file for name in names if (file := layout.parse_name(name, 6 if is_ec else 0))], stores_fragments=is_ec,
                        fragment=fragment, preferences=None if wishes is None else [
                            Preference(Timestamp(t), frozenset(e)) for t, e in wishes])  # fmt: skip
        got = {key: getattr(found, key).name if getattr(found, key) else None for key in ("data", "meta", "ctype", "tombstone")}
        if len({(file.timestamp, file.fragment) for members in found.fragments.values() for file in members}) != sum(
            map(len, found.fragments.values())
        ):
            continue  # one fragment twice, durable and not: the same content under two names, either will do
        if wishes is None and fragment is None:
            got["obsolete"] = sorted(file.name for file in found.obsolete)
            got["reclaimable"] = sorted(file.name for file in found.reclaimable)
        assert got == {key: expected[key] for key in got}, names


def test_suffix_hashes_of_random_files_agree(box, swift):
    """Also of what nobody would write: both look at the same directories."""
    rnd = random.Random(11)
    box.app.store.clock = Clock(1400000001.0)
    for number in range(60):
        place = box.place(f"o{number}")
        os.makedirs(place.directory)
        for name in random_names(rnd, False):
            with open(f"{place.directory}/{name}", "w"):
                pass
    mine = plainpickle.loads(ours(box, "REPLICATE", "/sda1/7")[2])
    os.unlink(f"{box.place().partition_path}/hashes.pkl")
    assert plainpickle.loads(swift.call("REPLICATE", "/sda1/7")[2]) == mine and len(mine) > 30
