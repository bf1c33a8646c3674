"""What status says of a cluster, from what its servers say: each fault has its name, its cause and what helps."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keelstore.cli import status, status_screen
from keelstore.cli.ask import Reply
from keelstore.cli.diagnosis import diagnose
from keelstore.cli.problems import DANGER, WARNING, is_safe, span
from keelstore.cli.view import Process, RingFacts, Server, View, checked, clock_offset_s, server_of

NOW = 1_700_000_000.0
NODES = ("node 1", "node 2", "node 3")


def device(**other: Any) -> dict[str, Any]:
    return {"usable": True, "problem": None, "size": 1000, "used": 400, "avail": 500, "is_full": False,
            "partitions": {"objects": 30, "containers": 2}, "quarantined": {}, "quarantined_at": None, **other}


def daemon(**other: Any) -> dict[str, Any]:
    return {"pid": 7, "alive": True, "running": False, "begun": NOW - 100, "last_pass_s": 5.0, "interval_s": 30.0, "done": 3, "failed": 0,
            "total": 3, "eta_s": None, "passes": 4, "at": NOW - 95, **other}


def health(role: str, **other: Any) -> dict[str, Any]:
    daemons = {f"{role}-replicator": daemon(partitions_below_full=0, handoff_partitions=0)}
    return checked({
        "format": 1, "version": "1", "role": role, "time": NOW, "up_s": 5000.0, "root": "/srv/node",
        "devices": {"d1": device(), "d2": device()}, "rings": {name: {"md5": "m"} for name in ("object", "container", "account")},
        "cluster_file_md5": "c", "daemons": daemons, "cached": {"replication_last": NOW - 60, "replication_time": 0.5}, **other})


def cluster(**changes: dict[str, Any]) -> View:
    """Three nodes with two devices each; ``changes``: of the object servers' health, by node1, node2, node3."""
    servers, rings = [], {}
    ports = {"object": 6200, "container": 6201, "account": 6202}
    for role, port in ports.items():
        addresses = [(f"10.0.0.{number}", port) for number in (1, 2, 3)]
        rings[role] = RingFacts(role, role, "m", tuple((address, name, 100.0) for address in addresses for name in ("d1", "d2")), 3)
        for name, address in zip(NODES, addresses):
            told = health(role, **(changes.get(name.replace(" ", ""), {}) if role == "object" else {}))
            servers.append(Server(name, role, address, answers=True, health=told, clock_offset_s=0.0))
    return View(NOW, rings, servers, swift_dir="/etc/keelstore")


def without(view: View, name: str, error: str = "Connection refused") -> View:
    return replace(view, servers=[replace(server, answers=False, health={}, error=error, clock_offset_s=None)
                                  if server.node == name else server for server in view.servers])


def only(view: View) -> Any:
    (problem,) = diagnose(view)
    assert problem.what and problem.why and problem.do
    return problem


def test_a_well_cluster_has_no_problem() -> None:
    assert diagnose(cluster()) == []


def test_a_node_that_does_not_answer() -> None:
    problem = only(without(cluster(), "node 2"))
    assert (problem.severity, problem.code, problem.node) == (DANGER, "node-down", "node 2")
    assert "33%" in problem.what and "Connection refused" in problem.why and "keelstore-init main start" in problem.do


@pytest.mark.parametrize("process,code", [
    ({"is_running": False}, "node-down"), ({"answers": False}, "node-hangs"), ({"workers": 1}, "workers"),
    ({"has_background": False}, "daemons-down")])
def test_a_node_of_this_machine_is_known_by_its_processes(process: dict[str, Any], code: str) -> None:
    one = replace(Process("node 1", 1, True, True, 2, 2, True, "/log"), **process)
    view = replace(cluster(), processes=[one], data="/data")
    problem = only(without(view, "node 1") if code == "node-down" else view)
    assert problem.code == code and ("keelstore node" in problem.do or "/log" in problem.do)


def test_one_server_down_and_one_that_is_another_program() -> None:
    view = cluster()
    first = replace(view.servers[0], answers=False, health={}, error="timed out")
    assert only(replace(view, servers=[first, *view.servers[1:]])).code == "server-down"
    first = server_of("object", Reply(("10.0.0.1", 6200), 404, "answers 404"), "node 1")
    problem = only(replace(view, servers=[first, *view.servers[1:]]))
    assert (problem.severity, problem.code) == (WARNING, "health-unknown")


@pytest.mark.parametrize("devices,code,severity", [
    ({"d1": device()}, "device-missing", DANGER),
    ({"d1": device(), "d2": device(usable=False, problem="is not mounted")}, "device-unusable", DANGER),
    ({"d1": device(), "d2": device(is_full=True, avail=0)}, "device-full", DANGER),
    ({"d1": device(), "d2": device(used=950, avail=50)}, "device-nearly-full", WARNING),
    ({"d1": device(), "d2": device(partitions={"objects": 0})}, "device-empty", DANGER),
    ({"d1": device(), "d2": device(quarantined={"objects": 2}, quarantined_at=NOW - 3600)}, "quarantined", WARNING),
    ({"d1": device(), "d2": device(quarantined={"objects": 2}, quarantined_at=NOW - 70)}, "quarantined", DANGER),
])
def test_what_may_be_wrong_with_a_device(devices: dict[str, Any], code: str, severity: str) -> None:
    problem = only(cluster(node2={"devices": devices}))
    assert (problem.code, problem.severity, problem.node, problem.device) == (code, severity, "node 2", "d2")


@pytest.mark.parametrize("kind,cached,severity", [
    ("objects", {"replication_last": NOW - 60, "replication_time": 5.0}, DANGER),  # minutes: it began before
    ("containers", {"replication_last": NOW - 60, "replication_time": 5.0}, WARNING),  # seconds
    ("objects-1", {"replication_last": NOW, "replication_time": 0.0}, DANGER),  # the replicator brings no fragments
    ("objects-1", {"object_reconstruction_last": NOW - 10, "object_reconstruction_time": 0.5}, WARNING),
    ("objects-1", {"object_reconstruction_last": NOW - 10, "object_reconstruction_time": 5.0}, DANGER),
    ("objects-1", {"object_reconstruction_last": "x", "object_reconstruction_time": None}, DANGER),
])
def test_what_was_put_aside_is_judged_by_the_passes_of_who_brings_it_back(kind: str, cached: dict[str, Any], severity: str) -> None:
    view = cluster()
    rings = {**view.rings, "object-1": replace(view.rings["object"], name="object-1", stores_fragments=True)}
    bad = {"d1": device(), "d2": device(quarantined={kind: 1}, quarantined_at=NOW - 200)}
    servers = [replace(server, health={**server.health, "cached": cached, "devices": bad if server.node == "node 2" else server.devices,
                                       "rings": {**server.health["rings"], "object-1": {"md5": "m"}}}) for server in view.servers]
    problem = only(replace(view, rings=rings, servers=servers))
    assert (problem.code, problem.severity) == ("quarantined", severity)


def test_a_small_store_has_empty_devices_by_chance() -> None:
    few = {"d1": device(partitions={"objects": 5}), "d2": device(partitions={})}
    assert diagnose(cluster(node1={"devices": few}, node2={"devices": few}, node3={"devices": few})) == []


def test_a_node_with_another_ring_and_one_without() -> None:
    rings = {"object": {"md5": "other"}, "container": {"md5": "m"}, "account": {"md5": "m"}}
    problem = only(cluster(node3={"rings": rings}))
    assert problem.code == "ring-differs" and problem.node == "node 3" and "node 3" in problem.what and "object.ring.gz" in problem.do
    del rings["object"]
    assert only(cluster(node3={"rings": rings})).code == "ring-missing"
    assert only(cluster(node3={"cluster_file_md5": "x"})).code == "cluster-file-differs"


def test_clocks() -> None:
    view = cluster()
    for offset, severity in ((1.5, WARNING), (-20.0, DANGER)):
        problem = only(replace(view, servers=[replace(view.servers[0], clock_offset_s=offset), *view.servers[1:]]))
        assert (problem.code, problem.severity) == ("clock", severity)
    assert clock_offset_s(10.0, 9.0, 11.0) == 0 and clock_offset_s(8.0, 9.0, 11.0) == -1 and clock_offset_s(12.0, 9.0, 11.0) == 1


def with_figures(**figures: Any) -> dict[str, Any]:
    return {"daemons": {"object-replicator": daemon(**figures)}}


@pytest.mark.parametrize("figures,code,severity,words", [
    ({"partitions_below_full": 12, "eta_s": 240.0}, "below-full", DANGER, "12 partitions"),
    ({"handoff_partitions": 5}, "handoffs", WARNING, "5 partitions"),
    ({"braked": {"d2": "6 of 100 are wrong"}}, "auditor-stopped", DANGER, "1 device"),
    ({"oldest": NOW - 7200}, "updates-late", WARNING, "2 hours"),
    ({"unrecoverable": 3}, "unrecoverable", DANGER, "3 objects"),
    ({"lag_s": 10 * 86400.0}, "expiry-late", WARNING, "10 days"),
    ({"alive": False}, "daemon-down", DANGER, "object-replicator"),
    ({"begun": NOW - 90_000}, "daemon-late", DANGER, "25 hours"),
    ({"peers_down": ["10.0.0.3:6200"]}, "unreachable", WARNING, "10.0.0.3:6200"),
])
def test_what_daemons_tell(figures: dict[str, Any], code: str, severity: str, words: str) -> None:
    problem = only(cluster(node1=with_figures(**figures)))
    assert (problem.code, problem.severity, problem.node) == (code, severity, "node 1") and words in problem.what
    if figures.get("eta_s"):
        assert "4 minutes" in problem.do


def test_a_new_daemon_is_judged_by_its_figures() -> None:
    told = {"daemons": {"object-something-new": daemon(partitions_below_full=3)}}
    assert only(cluster(node1=told)).code == "below-full"


def test_missing_copies_are_put_down_to_the_node_that_is_away() -> None:
    problems = diagnose(without(cluster(node1=with_figures(partitions_below_full=12)), "node 3"))
    assert [problem.code for problem in problems] == ["node-down", "below-full"] and "node 3" in problems[1].why


def test_a_server_that_has_just_started_has_not_heard_of_its_daemons() -> None:
    assert diagnose(cluster(node1={**with_figures(alive=False), "up_s": 5.0})) == []


def test_dangers_come_first() -> None:
    view = cluster(node1=with_figures(handoff_partitions=4), node2={"devices": {"d1": device()}})
    problems = diagnose(view)
    assert [problem.severity for problem in problems] == [DANGER, WARNING] and not is_safe(problems) and is_safe(problems[1:])


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3), max_leaves=8)
KEYS = ("devices", "rings", "daemons", "cached", "time", "up_s", "version", "root", "cluster_file_md5")


@settings(deadline=None, max_examples=60)
@given(st.fixed_dictionaries({"devices": JSON}, optional=dict.fromkeys(KEYS[1:], JSON)),
       st.dictionaries(st.sampled_from(["usable", "used", "size", "partitions", "quarantined", "quarantined_at"]), JSON),
       st.dictionaries(st.sampled_from(["begun", "last_pass_s", "eta_s", "braked", "peers_down", "oldest", "failed", "total", "done", "running"]), JSON))
def test_whatever_a_server_sends_status_stands(value: dict[str, Any], disk: dict[str, Any], entry: dict[str, Any]) -> None:
    value = {**value, "devices": {"d1": disk}, "daemons": {"object-x": entry}} if disk else value
    view = cluster()
    strange = server_of("object", Reply(("10.0.0.1", 6200), 200, "", value), "node 1")
    view = replace(view, servers=[strange, *view.servers[1:]])
    found = {"state": "running", "swift_dir": "/x", "nodes": [], "policies": [], **status.judged(view, "running")}
    status_screen.show(found, io.StringIO())


def test_advice_can_be_pasted() -> None:
    one = Process("node 1", 1, False, False, 2, 2, True, "/log")
    view = replace(cluster(node3=with_figures(handoff_partitions=4)), processes=[one], data="/my data", command="bin/keelstore")
    advice = {problem.code: problem.do for problem in (*diagnose(without(view, "node 1")), *diagnose(replace(view, processes=[])))}
    assert advice["node-down"] == "bin/keelstore node start 1 --data '/my data'"
    assert "bin/keelstore node repair --data '/my data'; watch it: bin/keelstore status --data '/my data' --watch 5" in advice["handoffs"]
    (problem,) = diagnose(replace(view, data="", processes=[], swift_dir="/etc/k"))
    assert "keelstore node repair --conf NODE.CONF; watch it: bin/keelstore status --swift-dir /etc/k --watch 5" in problem.do
    assert status.judged(None, "stopped", "/my data")["problems"][0]["do"] == "keelstore up --detach --data '/my data'"


def test_the_screen_has_verdict_cause_and_command_in_plain_lines() -> None:
    view = cluster(node1=with_figures(handoff_partitions=4), node2={"devices": {"d1": device()}})
    found = {"state": "running", "swift_dir": "/etc/keelstore", "nodes": [], "policies": [], **status.judged(view, "running")}
    out = io.StringIO()
    status_screen.show(found, out)
    lines = out.getvalue().splitlines()
    assert "NOT SAFE" in lines[0] and "1 danger, 1 warning" in lines[1]
    assert any("node 2, device d2" in line for line in lines) and any(line.startswith("  do   ") for line in lines)
    assert all(line == line.rstrip() for line in lines)


def test_a_terminal_without_signs_gets_letters() -> None:
    view = cluster(node2={"devices": {"d1": device()}})
    found = {"state": "running", "swift_dir": "/d\u00e4ta", "nodes": [], "policies": [], **status.judged(view, "running")}
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    status_screen.show(found, out)
    out.flush()
    text = raw.getvalue().decode("ascii")
    assert "!! NOT SAFE" in text and "/d?ta" in text and "ok well" in text


@pytest.mark.parametrize("seconds,words", [(0, "0 seconds"), (1.2, "1 second"), (119, "119 seconds"), (150, "2 minutes"), (8000, "2 hours"),
                                           (200_000, "2 days")])
def test_spans(seconds: float, words: str) -> None:
    assert span(seconds) == words


# -- part power --------------------------------------------------------------------------------------------------------


def raising(power: int = 10, following: int = 11, **told: Any) -> View:
    """The part power of the ring object is being changed; ``told``: by the relinkers of node1, node2, node3."""
    view = cluster(**{name: {"relinker": {"0": {"step": "relink", "part_power": 10, "next_part_power": 11, "parts_done": 5,
                                                "total_parts": 5, "errors": 0, "devices": 2, "at": NOW, "running": False, **entry}}}
                      for name, entry in told.items()})
    ring = replace(view.rings["object"], part_power=power, next_part_power=following)
    return replace(view, rings={**view.rings, "object": ring})


def test_an_increase_that_is_under_way_is_told_with_its_next_step() -> None:
    problem = only(raising(node1={}, node2={"parts_done": 2, "running": True}))
    assert (problem.severity, problem.code, problem.count) == (WARNING, "part-power", 0.7)
    assert "from 10 to 11: 7 partitions of 10 linked, 1 of 3 nodes ready" in problem.what
    assert problem.do == "on node 3: keelstore-object-relinker relink OBJECT-SERVER.CONF"
    problem = only(raising(node1={}, node2={"running": True}, node3={}))
    assert "wait for the relinkers" in problem.do
    problem = only(raising(node1={}, node2={"errors": 1, "parts_done": 4}, node3={}))
    assert "node 2: errors" in problem.why and problem.do.startswith("on node 2: keelstore-object-relinker relink")
    assert "increase_partition_power" in only(raising(node1={}, node2={}, node3={})).do


def test_a_device_that_no_relinker_has_seen_is_waited_for() -> None:
    problem = only(raising(node1={}, node2={"devices": 1}, node3={}))
    assert "2 of 3 nodes ready" in problem.what and "node 2: a device has been left out" in problem.why
    assert problem.do == "on node 2: keelstore-object-relinker relink OBJECT-SERVER.CONF"
    assert "left out" not in only(raising(node1={}, node2={"devices": 1, "running": True}, node3={})).why


def test_a_node_that_does_not_answer_is_not_ready() -> None:
    found = {problem.code: problem for problem in diagnose(without(raising(node1={}, node2={}), "node 3"))}
    assert "2 of 3 nodes ready" in found["part-power"].what and found["part-power"].do.startswith("on node 3: ")


def test_nodes_that_share_an_address_have_each_their_own_devices() -> None:
    view = raising(node1={"devices": 1}, node2={"devices": 1}, node3={"devices": 1})
    ring = view.rings["object"]
    addresses = {f"10.0.0.{number}": ("10.0.0.1", 6000 + number) for number in (1, 2, 3)}
    servers = [replace(server, address=addresses[server.address[0]], health={**server.health, "root": f"/srv/{server.node}"})
               for server in view.servers if server.role == "object"]
    ring = replace(ring, devices=tuple((addresses[address[0]], name, weight) for address, name, weight in ring.devices if name == "d1"))
    found = [problem for problem in diagnose(replace(view, rings={"object": ring}, servers=servers)) if problem.code == "part-power"]
    assert "3 of 3 nodes ready" in found[0].what


def test_what_was_left_of_the_step_before_counts_for_nothing() -> None:
    problem = only(raising(11, 11, node1={}, node2={}, node3={"step": "cleanup", "part_power": 11}))
    assert "5 partitions of 5 cleaned up, 1 of 3 nodes ready" in problem.what
    assert problem.do == "on node 1, node 2: keelstore-object-relinker cleanup OBJECT-SERVER.CONF"
    cleaned = {"step": "cleanup", "part_power": 11}
    assert "finish_increase_partition_power" in only(raising(11, 11, node1=cleaned, node2=cleaned, node3=cleaned)).do


@pytest.mark.parametrize("entry", [{"part_power": "x"}, {"parts_done": None}, {"step": 7}])
def test_nonsense_of_a_relinker_counts_for_nothing(entry: dict[str, Any]) -> None:
    assert "0 of 3 nodes ready" in only(raising(node1=entry)).what
