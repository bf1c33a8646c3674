"""Heat's own code on a store behind a real Keystone: ``clients.md`` H1 to H19.

Its engine makes, watches and deletes stacks in an environment of its own (``test.support.openstack``), with trusts and a domain
for the users of stacks, as in a cloud. What a server of a stack would send is sent from here: by curl, or without a token.
``test/functional/test_heat.py`` makes the same requests one by one.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests

from test.support.client import Account, unique
from test.support.keystone import REGION, Keystone, KeystoneStore
from test.support.openstack import Refused, Shell, heat_environment, shell
from test.support.signing import temp_url
from test.support.waiting import until

LIMIT_S = 120
HTTP_DATE = "%a, %d %b %Y %H:%M:%S %Z"
CONF = """\
[DEFAULT]
region_name_for_services = {region}
max_json_body_size = 200000
stack_user_domain_id = {domain}
stack_domain_admin = {admin.name}
stack_domain_admin_password = {admin.password}
[clients_keystone]
auth_uri = {auth}
[clients]
endpoint_type = publicURL
[trustee]
auth_type = password
auth_url = {auth}
username = {trustee.name}
password = {trustee.password}
user_domain_id = default
"""


@dataclass
class Stack:
    """A stack of Heat's. ``id`` is also the name of the container that its signals are in."""

    heat: Shell
    id: str

    def state(self) -> Any:
        return self.heat("state", stack_id=self.id)

    def ends_in(self, expected: str) -> Any:
        """Wait until nothing is done any more; gives its state, which must be ``expected``."""
        def found() -> Any:
            state = self.state()
            return None if state["busy"] else state

        state = until(found, f"stack {self.id} is {expected}", LIMIT_S)
        assert state["state"] == expected, state
        return state

    def reached(self, resource: str, expected: str) -> None:
        def found() -> bool:
            state = self.state()
            if not state["busy"]:
                raise RuntimeError(f"it ended before {resource} was {expected}: {state}")
            return bool(state["resources"][resource] == expected)

        until(found, f"{resource} is {expected}", LIMIT_S)

    def attribute(self, resource: str, name: str) -> Any:
        return self.heat("attribute", stack_id=self.id, name=resource, attribute=name)

    def data(self, resource: str) -> Any:
        return self.heat("data", stack_id=self.id, name=resource)

    def reference(self, resource: str) -> str:
        return str(self.heat("reference", stack_id=self.id, name=resource))

    def delete(self, expected: str = "DELETE_COMPLETE") -> Any:
        self.heat("delete", stack_id=self.id)
        return self.ends_in(expected)


@dataclass
class Heat:
    shell: Shell
    account: Account
    project: str
    project_name: str
    user_name: str

    def stack(self, resources: dict[str, Any], **more: Any) -> Stack:
        """Begin to make a stack of these resources."""
        text = json.dumps({"heat_template_version": "2016-10-14", "resources": resources, **more})  # which is YAML, too
        return Stack(self.shell, self.shell("create", text=text))

    def names(self, container: str) -> list[str]:
        return [entry["name"] for entry in self.account.listing(container)]


@pytest.fixture(scope="module")
def heat(keystone: Keystone, keystone_store: KeystoneStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Heat]:
    home = tmp_path_factory.mktemp("heat")
    for kind in ("orchestration", "cloudformation"):  # resources look whether there are such, and do not ask them
        service = keystone.make("service", name=kind, type=kind)["id"]
        keystone.make("endpoint", service_id=service, interface="public", region_id=REGION, url="http://127.0.0.1:9/v1/%(project_id)s")
    domain = keystone.domain(unique("stacks"))
    admin = keystone.user(unique("stack-admin"), domain)
    keystone.ask("PUT", f"domains/{domain}/users/{admin.id}/roles/{keystone.role('admin')}")
    keystone.role("heat_stack_user")
    trustee = keystone.user(unique("heat"), member=keystone.project(unique("services")))
    name = unique("project")
    project = keystone.project(name)
    user = keystone.user(unique("stacker"), swiftoperator=project)
    (home / "heat.conf").write_text(CONF.format(region=REGION, domain=domain, admin=admin, auth=keystone.url, trustee=trustee))
    with shell(heat_environment() / "bin" / "python", "heat_shell.py", home) as asked:
        asked("configure", path=str(home / "heat.conf"), database=str(home / "heat.db"), username=user.name, user_id=user.id, password=user.password, tenant_id=project, tenant=name,
              user_domain_id=user.domain, project_domain_id=user.domain, auth_url=keystone.url, region_name=REGION, roles=["swiftoperator"])
        yield Heat(asked, keystone_store.account(keystone.token(user, project), project), project, name, user.name)


def send(url: str, method: str = "PUT", body: Any = None) -> requests.Response:
    """What a server of a stack sends: no token, a URL."""
    answer = requests.request(method, url, data=None if body is None else json.dumps(body), headers={"Content-Type": "application/json"}, timeout=60)
    answer.raise_for_status()
    return answer


def container(**properties: Any) -> dict[str, Any]:
    return {"type": "OS::Swift::Container", "properties": properties}


def test_heat_H1_H2_H3_a_container_of_a_stack(heat: Heat) -> None:
    name, key = unique("bucket"), uuid.uuid4().hex
    stack = heat.stack({"bucket": container(**{
        "name": name, "X-Container-Read": ".r:*,.rlistings", "X-Container-Write": f"{heat.project}:*", "X-Container-Meta": {"owner": "héat"},
        "X-Account-Meta": {f"stack-{key}": "web"}, "PurgeOnDelete": True})})
    stack.ends_in("CREATE_COMPLETE")
    shown = heat.account.head(name).expect(204).headers
    assert (shown["X-Container-Read"], shown["X-Container-Write"], shown.text("X-Container-Meta-Owner")) == (".r:*,.rlistings", f"{heat.project}:*", "héat")
    assert heat.account.head().headers[f"X-Account-Meta-Stack-{key}"] == "web"
    for number in range(4):
        heat.account.put(name, f"o{number}", body=b"1234").expect(201)
    assert (int(stack.attribute("bucket", "ObjectCount")), int(stack.attribute("bucket", "BytesUsed"))) == (4, 16)
    assert stack.attribute("bucket", "HeadContainer")["x-container-read"] == ".r:*,.rlistings"
    assert stack.attribute("bucket", "WebsiteURL") == f"{heat.account.endpoint.url}{heat.account.path}/{name}"
    live = stack.heat("live", stack_id=stack.id, name="bucket")
    assert (live["X-Container-Read"], live["X-Account-Meta"]) == (".r:*,.rlistings", {f"stack-{key}": "web"})
    stack.heat("check", stack_id=stack.id)
    stack.ends_in("CHECK_COMPLETE")
    stack.delete()
    heat.account.head(name).expect(404)


def test_heat_H3_a_container_with_objects_is_kept_without_leave_to_purge_it(heat: Heat) -> None:
    stack = heat.stack({"bucket": container()})
    stack.ends_in("CREATE_COMPLETE")
    name = stack.reference("bucket")
    heat.account.put(name, "o", body=b"x").expect(201)
    assert "non-empty container" in stack.delete("DELETE_FAILED")["reason"]
    heat.account.delete(name, "o").expect(204)
    stack.delete()
    heat.account.head(name).expect(404)


def test_heat_H4_the_key_of_temporary_urls_is_read_back_at_once(heat: Heat) -> None:
    heat.account.put(name := unique("keys")).expect(201)
    heat.account.put(name, "o", body=b"data").expect(201)
    for _ in range(3):
        heat.account.post(headers={"X-Remove-Account-Meta-Temp-Url-Key": "x"}).expect(204)
        url = heat.shell("temp_url", container=name, name="o", method="GET")
        assert send(url, "GET").content == b"data"
        assert heat.shell("temp_url", container=name, name="o", method="GET") == url


def test_heat_H5_H6_H7_H8_signals_that_a_stack_waits_for(heat: Heat) -> None:
    signal = {"type": "OS::Heat::SwiftSignal", "properties": {"handle": {"get_resource": "handle"}, "timeout": 300, "count": 3}}
    stack = heat.stack({"handle": {"type": "OS::Heat::SwiftSignalHandle"}, "signal": signal})
    stack.reached("signal", "CREATE_IN_PROGRESS")
    assert heat.account.head(stack.id).headers["X-Versions-Location"] == stack.id
    name = urlsplit(stack.attribute("handle", "endpoint")).path.split("/")[4]
    assert heat.account.get(stack.id, name).expect(200).body == b"in progress"
    command = shlex.split(stack.attribute("handle", "curl_cli"))
    for number in range(3):
        body = json.dumps({"status": "SUCCESS", "id": f"s{number}", "data": number})
        done = subprocess.run([*command, "-sS", "--noproxy", "*", "--data-binary", body], capture_output=True, text=True, timeout=60, check=True)
        assert " 201 " in done.stdout.splitlines()[0] or " 201 " in done.stdout, done.stdout
    stack.ends_in("CREATE_COMPLETE")
    names = heat.names(stack.id)
    assert len(names) == 4 and all(entry == name or entry.startswith(f"{len(name):03x}{name}/") for entry in names)
    assert json.loads(stack.attribute("signal", "data")) == {"s0": 0, "s1": 1, "s2": 2}
    stack.delete()
    heat.account.head(stack.id).expect(404)


def test_heat_H7_a_signal_of_failure_and_one_without_a_body(heat: Heat) -> None:
    def stack_of(count: int) -> tuple[Stack, str]:
        signal = {"type": "OS::Heat::SwiftSignal", "properties": {"handle": {"get_resource": "handle"}, "timeout": 300, "count": count}}
        stack = heat.stack({"handle": {"type": "OS::Heat::SwiftSignalHandle"}, "signal": signal})
        stack.reached("signal", "CREATE_IN_PROGRESS")
        return stack, stack.attribute("handle", "endpoint")

    failing, url = stack_of(2)
    send(url, body={"status": "FAILURE", "reason": "it broke"})
    assert "it broke" in failing.ends_in("CREATE_FAILED")["reason"]
    failing.delete()
    empty, url = stack_of(1)
    requests.put(url, data=b"", timeout=60).raise_for_status()
    empty.ends_in("CREATE_COMPLETE")
    empty.delete()
    heat.account.head(empty.id).expect(404)


def test_heat_H9_to_H12_and_H14_to_H16_a_deployment_on_a_server(heat: Heat) -> None:
    """The server asks for its metadata by URL, as os-collect-config does, and signals by URL; then all of it goes."""
    stack = heat.stack({
        "server": {"type": "OS::Heat::DeployedServer", "properties": {"software_config_transport": "POLL_TEMP_URL"}},
        "config": {"type": "OS::Heat::SoftwareConfig", "properties": {"group": "script", "config": "echo größer", "outputs": [{"name": "answer"}]}},
        "deployment": {"type": "OS::Heat::SoftwareDeployment", "properties": {
            "config": {"get_resource": "config"}, "server": {"get_resource": "server"}, "signal_transport": "TEMP_URL_SIGNAL"}}})
    stack.reached("deployment", "CREATE_IN_PROGRESS")
    metadata_url = heat.shell("metadata", stack_id=stack.id, name="server")["os-collect-config"]["request"]["metadata_url"]
    head = send(metadata_url, "HEAD")
    assert time.strptime(head.headers["Last-Modified"], HTTP_DATE).tm_year >= 2024
    shown = until(lambda: send(metadata_url, "GET").json()["deployments"], "the deployment is told to the server", LIMIT_S)
    assert shown[0]["config"] == "echo größer"
    inputs = {entry["name"]: entry["value"] for entry in shown[0]["inputs"]}
    place = urlsplit(inputs["deploy_signal_id"]).path.split("/")
    assert (place[2], place[3]) == (f"AUTH_{heat.project}", stack.id)
    assert heat.account.get(stack.id, place[4]).expect(200).body == b""
    send(inputs["deploy_signal_id"], body={"deploy_status_code": 0, "answer": "42"})
    stack.ends_in("CREATE_COMPLETE")
    assert stack.attribute("deployment", "answer") == "42"
    server = urlsplit(metadata_url).path.split("/")
    heat.account.get(server[3], server[4]).expect(200)
    stack.delete()
    heat.account.head(stack.id).expect(404)
    for name in heat.names(server[3]):  # Heat 27 would, but looks for a store of the type swift (doc/design/openstack.md)
        heat.shell("call", method="delete_object", args=[server[3], name])
    assert heat.shell("call", method="head_container", args=[server[3]])["x-container-object-count"] == "0"
    heat.shell("call", method="delete_container", args=[server[3]])
    heat.account.head(server[3]).expect(404)


def test_heat_H11_every_overwrite_is_seen(heat: Heat) -> None:
    heat.account.put(name := unique("dates")).expect(201)

    def written() -> str:
        heat.account.put(name, "o", body=b"{}").expect(201)
        return str(heat.shell("date", text=heat.shell("call", method="head_object", args=[name, "o"])["last-modified"]))

    first = written()
    assert until(lambda: (later := written()) > first and later, "a later date", every_s=0.2) > first


def test_heat_H13_signals_that_are_taken_one_by_one(heat: Heat) -> None:
    """All versions are read, and what has been read is deleted: in a container that is its own archive nothing is archived again.

    With the URL of Heat's plugin and with its client; its wait conditions end at their first look (``Failed to parse JSON data:
    b'in progress'``: Heat 27 compares the octets of a body with a text), whatever the store is.
    """
    where, name = str(uuid.uuid4()), unique("handle")
    heat.shell("call", method="put_container", args=[where])
    url = heat.shell("signal_url", container=where, name=name)
    for number in range(3):
        send(url, body={"id": number})
    _, listed = heat.shell("call", method="get_container", args=[where])
    bodies = {entry["name"]: heat.shell("call", method="get_object", args=[where, entry["name"]])[1] for entry in listed}
    assert sorted(bodies.values()) == sorted(["in progress", *(json.dumps({"id": number}) for number in range(3))])
    archived = [entry for entry in bodies if entry != name]
    for count, entry in enumerate(archived, 1):
        heat.shell("call", method="delete_object", args=[where, entry])
        assert len(heat.names(where)) == len(bodies) - count
    heat.shell("call", method="delete_object", args=[where, name])
    assert heat.shell("call", method="head_container", args=[where])["x-container-object-count"] == "0"
    heat.shell("call", method="delete_container", args=[where])


def test_heat_H17_files_of_templates(heat: Heat) -> None:
    name = unique("files")
    texts = {"root.yaml": "description: größer 日本\n", "env/ü.yaml": "parameters: {}\n", "skipped": "x"}
    heat.account.put(name).expect(201)
    for entry, text in texts.items():
        heat.account.put(name, entry, body=text).expect(201)
    del texts["skipped"]
    assert heat.shell("files", container=name, skip=["skipped"]) == texts
    heat.account.put(name, "big", body=b"x" * 200_001).expect(201)
    for where, kind in ((name, "DownloadLimitExceeded"), (unique("none"), "NotFound")):
        with pytest.raises(Refused) as refused:
            heat.shell("files", container=where)
        assert refused.value.kind == kind


def test_heat_H18_buckets_of_aws_templates(heat: Heat) -> None:
    def bucket(access: str) -> dict[str, Any]:
        return {"type": "AWS::S3::Bucket", "properties": {
            "AccessControl": access, "Tags": [{"Key": "greeting", "Value": "hello"}],
            "WebsiteConfiguration": {"IndexDocument": "index.html", "ErrorDocument": "error.html"}}}

    member = f"{heat.project_name}:{heat.user_name}"
    stack = heat.stack({"PublicRead": bucket("PublicRead"), "AuthenticatedRead": bucket("AuthenticatedRead"), "Private": bucket("Private")})
    stack.ends_in("CREATE_COMPLETE")
    for access, read in (("PublicRead", ".r:*"), ("AuthenticatedRead", heat.project_name), ("Private", member)):
        shown = heat.account.head(stack.reference(access)).expect(204).headers
        assert (shown["X-Container-Read"], shown["X-Container-Write"]) == (read, member)
        assert (shown["X-Container-Meta-Web-Index"], shown["X-Container-Meta-Web-Error"]) == ("index.html", "error.html")
        assert shown["X-Container-Meta-S3-Tag-Greeting"] == "hello"
    name = stack.reference("Private")
    heat.account.put(name, "o", body=b"x").expect(201)
    assert "not empty" in stack.delete("DELETE_FAILED")["reason"]
    heat.account.delete(name, "o").expect(204)
    stack.delete()
    refused = heat.stack({"bucket": bucket("PublicReadWrite")})  # everybody may write: not even for Heat
    assert "400" in refused.ends_in("CREATE_FAILED")["reason"]
    refused.delete()


def test_heat_H19_a_template_by_a_url_of_its_container(heat: Heat) -> None:
    name, key, text = unique("template"), uuid.uuid4().hex, "heat_template_version: 2013-05-23\n"
    heat.shell("call", method="put_container", args=[name, {"x-container-meta-temp-url-key": key}])
    heat.shell("call", method="put_object", args=[name, "template.yaml", text])
    url = heat.account.endpoint.url + temp_url(f"{heat.account.path}/{name}/template.yaml", key)
    assert heat.shell("fetch", url=url) == text
    heat.shell("call", method="post_container", args=[name, {"x-remove-container-meta-temp-url-key": "x"}])
    with pytest.raises(Refused):
        heat.shell("fetch", url=url)


def test_heat_what_an_answer_is_taken_for(heat: Heat) -> None:
    heat.account.put(name := unique("errors"), headers={"X-Container-Meta-Quota-Bytes": "10"}).expect(201)
    heat.account.put(name, "o", body=b"x").expect(201)
    assert heat.shell("verdict", method="head_container", args=[unique("none")]) == ["not found"]
    assert heat.shell("verdict", method="delete_object", args=[name, "none"]) == ["not found"]
    assert heat.shell("verdict", method="delete_container", args=[name]) == ["conflict"]
    assert heat.shell("verdict", method="put_object", args=[name, "o", "x" * 11]) == ["over limit"]


