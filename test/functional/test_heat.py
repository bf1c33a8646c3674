"""Heat as a client: each request of ``clients.md`` H1 to H19, with a token of tempauth in place of Keystone's.

``project`` is Heat's project, asked by a user who owns it. Where Heat hands a URL to a server that
it has started (``curl``, ``os-collect-config``), the request here carries no token either.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator

import pytest

from test.support.client import Account, Answer, unique
from test.support.signing import temp_url
from test.support.waiting import until

YEAR_2038 = 2147483647 - 60
KEY = "x-account-meta-temp-url-key"
HTTP_DATE = "%a, %d %b %Y %H:%M:%S %Z"


@pytest.fixture(scope="module")
def project(account: Account) -> Iterator[Account]:
    before = {entry["name"] for entry in account.listing()}
    yield account
    for entry in account.listing():
        if entry["name"] not in before:
            account.empty(entry["name"])


def key_of(project: Account) -> str:
    """H4: the key as Heat gets it, made first where there is none."""
    found = project.head().expect(204).headers
    if KEY not in found:
        project.post(headers={KEY: uuid.uuid4().hex}).expect(204)
        found = project.head().expect(204).headers
    return found[KEY]


def url(project: Account, method: str, container: str, name: str) -> str:
    return temp_url(f"{project.path}/{container}/{name}", key_of(project), method, expires=YEAR_2038)


def ask(project: Account, method: str, target: str, body: bytes | None = None, kind: str = "application/x-www-form-urlencoded") -> Answer:
    """A request of a server that Heat has started: curl's type, no token."""
    return project.endpoint.request(method, target, {"Content-Type": kind} if body is not None else {}, body)


def handle(project: Account) -> tuple[str, str, str]:
    """H5: a signal handle: container, object, and the URL to signal with."""
    container, name = str(uuid.uuid4()), unique("stack-handle")
    project.put(container).expect(201)
    project.put(container, headers={"X-Versions-Location": container}).expect(202)
    project.put(container, name, body=b"in progress").expect(201)
    return container, name, url(project, "PUT", container, name)


def test_heat_H1_a_container_and_metadata_of_the_account(project: Account) -> None:
    name = unique("bucket")
    headers = {"X-Container-Read": ".r:*,.rlistings", "X-Container-Write": "test2:tester2", "X-Container-Meta-Owner": "heat é".encode()}
    project.put(name, headers=headers).expect(201)
    project.put(name, headers=headers).expect(202)
    project.post(headers={"X-Account-Meta-Stack": "web"}).expect(204)
    shown = project.head(name).expect(204).headers
    assert (shown["X-Container-Read"], shown["X-Container-Write"], shown.text("X-Container-Meta-Owner")) == (".r:*,.rlistings", "test2:tester2", "heat é")
    assert project.head().headers["X-Account-Meta-Stack"] == "web"


def test_heat_H2_attributes_and_live_state(project: Account) -> None:
    name = unique("bucket")
    project.put(name).expect(201)
    for number in range(3):
        project.put(name, f"o{number}", body=b"1234").expect(201)
    shown = project.head(name).expect(204).headers
    assert (int(shown["x-container-object-count"]), int(shown["x-container-bytes-used"])) == (3, 12)
    listed = project.get(name, query="format=json").expect(200)
    assert [entry["name"] for entry in listed.json()] == ["o0", "o1", "o2"] and listed.headers["x-container-object-count"] == "3"
    account = project.head().expect(204).headers
    assert all(int(account[f"x-account-{what}"]) >= 0 for what in ("container-count", "object-count", "bytes-used"))


@pytest.mark.parametrize("policy", ["gold", "silver", "ec42"])
def test_heat_H3_the_container_goes_right_after_its_last_object(project: Account, policy: str) -> None:
    """A 409 here fails the stack: nothing repeats it."""
    for _ in range(3):
        name = unique("bucket")
        project.put(name, headers={"X-Storage-Policy": policy}).expect(201)
        for number in range(3):
            project.put(name, f"o{number}", body=b"x").expect(201)
        while objects := project.listing(name):
            project.delete(name, objects[-1]["name"]).expect(204)
        project.delete(name).expect(204)
        project.get(name, query="format=json").expect(404)
        project.delete(name).expect(404)


def test_heat_H4_the_key_is_read_back_at_once(project: Account) -> None:
    project.put(c := unique("keys")).expect(201)
    project.put(c, "o", body=b"data").expect(201)
    for _ in range(5):
        project.post(headers={"X-Remove-Account-Meta-Temp-Url-Key": "x"}).expect(204)
        assert KEY not in project.head().expect(204).headers
        key = uuid.uuid4().hex
        project.post(headers={KEY: key}).expect(204)
        assert project.head().expect(204).headers[KEY] == key
        assert ask(project, "GET", url(project, "GET", c, "o")).expect(200).body == b"data"


def test_heat_H5_a_container_becomes_its_own_archive(project: Account) -> None:
    container, name, target = handle(project)
    assert project.head(container).headers["X-Versions-Location"] == container
    found = project.get(container, name).expect(200)
    assert (found.body, found.headers["Content-Length"]) == (b"in progress", "11")
    assert target.startswith(f"/v1/{project.name}/{container}/{name}?temp_url_sig=") and len(target.partition("sig=")[2].partition("&")[0]) == 64


def test_heat_H6_every_signal_archives_the_one_before(project: Account) -> None:
    container, name, target = handle(project)
    for number in range(4):
        ask(project, "PUT", target, b'{"status":"SUCCESS","n":%d}' % number).expect(201)
    names = [entry["name"] for entry in project.listing(container)]
    archived = [entry for entry in names if entry.startswith(f"{len(name):03x}{name}/")]
    assert len(archived) == 4 and sorted(names) == sorted([*archived, name])
    bodies = [project.get(container, entry).expect(200).body for entry in archived]
    assert bodies == [b"in progress", *(b'{"status":"SUCCESS","n":%d}' % number for number in range(3))]
    assert all(float(entry.rpartition("/")[2]) > 0 for entry in archived)
    assert project.get(container, name).headers["Content-Type"] == "application/x-www-form-urlencoded"


def test_heat_H7_all_signals_are_polled(project: Account) -> None:
    container, name, target = handle(project)
    ask(project, "PUT", target, b"").expect(201)  # an empty body counts as success
    ask(project, "PUT", target, b'{"id": "2"}').expect(201)
    bodies = [project.get(container, entry["name"]).expect(200).body for entry in project.listing(container) if name in entry["name"]]
    assert sorted(bodies) == sorted([b"", b"in progress", b'{"id": "2"}'])
    project.get(container, "gone-meanwhile").expect(404)


def test_heat_H8_a_handle_is_deleted_until_404(project: Account) -> None:
    container, name, target = handle(project)
    for number in range(5):
        ask(project, "PUT", target, b"%d" % number).expect(201)
    statuses = []
    while not statuses or statuses[-1] != 404:
        statuses.append(project.delete(container, name).status)
        assert len(statuses) <= 7, statuses
    assert statuses == [204] * 6 + [404]
    project.delete(container).expect(204)
    project.delete(container).expect(404)


def deployment(project: Account) -> tuple[str, str, str]:
    """H9: an empty object in a plain container, and the URL to signal with."""
    container, name = unique("deploy"), str(uuid.uuid4())
    project.put(container).expect(201, 202)
    target = url(project, "PUT", container, name)
    project.put(container, name, headers={"Content-Length": "0"}, body=b"").expect(201)
    return container, name, target


def test_heat_H9_a_deployment_starts_empty(project: Account) -> None:
    container, name, _ = deployment(project)
    found = project.get(container, name).expect(200)
    assert (found.body, found.headers["Content-Length"]) == (b"", "0")
    assert project.head(container).headers["X-Container-Object-Count"] == "1"


def test_heat_H10_a_server_signals(project: Account) -> None:
    container, name, target = deployment(project)
    ask(project, "PUT", target, json.dumps({"deploy_status_code": 0}).encode(), "application/json").expect(201)
    assert project.get(container, name).json() == {"deploy_status_code": 0}


def test_heat_H11_the_poll_sees_every_overwrite(project: Account) -> None:
    container, name, target = deployment(project)
    project.head(container, "not-there-yet").expect(404)
    first = project.head(container, name).expect(200).headers["Last-Modified"]

    def is_newer() -> bool:
        ask(project, "PUT", target, b'{"a": 1}').expect(201)
        shown = project.head(container, name).expect(200).headers["Last-Modified"]
        assert time.strptime(shown, HTTP_DATE) >= time.strptime(first, HTTP_DATE), "time never goes back"
        return shown != first

    until(is_newer, "an overwrite of a later second has a later date", every_s=0.2)
    assert project.get(container, name).json() == {"a": 1}


def test_heat_H12_a_deployment_and_its_container_go(project: Account) -> None:
    container, name, target = deployment(project)
    ask(project, "PUT", target, b"{}").expect(201)
    for entry in project.listing(container):
        if name in entry["name"]:
            project.delete(container, entry["name"]).expect(204)
    assert project.head(container).expect(204).headers["X-Container-Object-Count"] == "0"
    project.delete(container).expect(204)


def test_heat_H13_what_is_archived_can_be_deleted_one_by_one(project: Account) -> None:
    container, name, target = handle(project)
    for number in range(3):
        ask(project, "PUT", target, b"%d" % number).expect(201)
    archived = [entry["name"] for entry in project.listing(container) if entry["name"] != name]
    for number, entry in enumerate(archived, 1):
        assert project.get(container, entry).expect(200).body
        project.delete(container, entry).expect(204)
        left = [found["name"] for found in project.listing(container)]
        assert sorted(left) == sorted([*archived[number:], name]), "a deleted archive is not archived again"
    project.delete(container, name).expect(204)
    assert project.listing(container) == []
    project.delete(container, name).expect(404)
    project.delete(container).expect(204)


def test_heat_H14_metadata_is_pushed_by_url(project: Account) -> None:
    container, name = unique("server"), unique("metadata")
    project.put(container).expect(201)
    put, get = url(project, "PUT", container, name), url(project, "GET", container, name)
    project.put(container, name, body=json.dumps({"rev": 1})).expect(201)
    assert ask(project, "GET", get).json() == {"rev": 1}
    for rev in (2, 3):
        ask(project, "PUT", put, json.dumps({"rev": rev}).encode(), "application/json").expect(201)
        assert ask(project, "GET", get).json() == {"rev": rev}
    ask(project, "PUT", get, b"x").expect(401)
    assert ask(project, "GET", get).json() == {"rev": 3}


def test_heat_H15_the_agent_asks_for_the_date_first(project: Account) -> None:
    container, name = unique("server"), unique("metadata")
    project.put(container).expect(201)
    project.put(container, name, body=b'{"a": "b"}').expect(201)
    target = url(project, "GET", container, name)
    head = ask(project, "HEAD", target).expect(200)
    assert head.body == b"" and time.strptime(head.headers["Last-Modified"], HTTP_DATE).tm_year >= 2024
    assert head.headers["Content-Length"] == "10"
    found = ask(project, "GET", target).expect(200)
    assert (found.json(), found.headers["Last-Modified"]) == ({"a": "b"}, head.headers["Last-Modified"])


def test_heat_H16_metadata_and_its_container_go(project: Account) -> None:
    container = unique("server")
    project.put(container).expect(201)
    for name in ("one", "two"):
        project.put(container, name, body=b"{}").expect(201)
    for name, left in (("one", "1"), ("two", "0")):
        project.delete(container, name).expect(204)
        assert project.head(container).expect(204).headers["X-Container-Object-Count"] == left
    project.delete(container).expect(204)


def test_heat_H17_templates_of_a_container(project: Account) -> None:
    container = unique("files")
    texts = {"root.yaml": "description: größer 日本\n", "env/ü.yaml": "parameters: {}\n"}
    project.put(container).expect(201)
    for name, text in texts.items():
        project.put(container, name, body=text).expect(201)
    listed = project.get(container, query="format=json").expect(200)
    assert int(listed.headers["x-container-bytes-used"]) == sum(len(text.encode()) for text in texts.values())
    assert {entry["name"]: project.get(container, entry["name"]).expect(200).body.decode() for entry in listed.json()} == texts


def test_heat_H18_buckets_of_aws_templates(project: Account) -> None:
    for acl in (".r:*", project.name, f"{project.name}:user", None):
        name = unique("bucket")
        headers = {"X-Container-Meta-Web-Index": "index.html", "X-Container-Meta-Web-Error": "error.html", "X-Container-Meta-S3-Tag-Greeting": "hello"}
        if acl:
            headers["X-Container-Read"] = acl
        project.put(name, headers=headers).expect(201)
        shown = project.head(name).headers
        assert {header: shown.get(header) for header in headers} == headers
        project.put(name, "o", body=b"x").expect(201)
        project.delete(name).expect(409)
        assert [entry["name"] for entry in project.listing(name)] == ["o"]
        project.delete(name, "o").expect(204)
        project.delete(name).expect(204)
    refused = unique("bucket")  # everybody may write: not even for Heat
    project.put(refused, headers={"X-Container-Read": ".r:*", "X-Container-Write": ".r:*"}).expect(400)
    project.head(refused).expect(404)


def test_heat_H19_a_template_by_a_url_of_its_container(project: Account) -> None:
    container, key = unique("template"), uuid.uuid4().hex
    project.put(container, headers={"x-container-meta-temp-url-key": key}).expect(201)
    project.put(container, "template.yaml", body=b"heat_template_version: 2013-05-23\n").expect(201)
    target = temp_url(f"{project.path}/{container}/template.yaml", key)
    assert ask(project, "GET", target).expect(200).body.startswith(b"heat_template_version")
    project.post(container, headers={"X-Remove-Container-Meta-Temp-Url-Key": "x"}).expect(204)
    ask(project, "GET", target).expect(401)
