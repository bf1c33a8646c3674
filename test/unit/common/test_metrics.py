import os

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from keelstore.common import metrics
from keelstore.common.metrics import BOUNDS_S, METHODS, Meter, Page
from keelstore.common.metrics_page import page_of


def parsed(page):
    return {family.name: family for family in text_string_to_metric_families(page.text().decode())}


def values(page, name, **labels):
    return [sample.value for family in parsed(page).values() for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()]


def test_requests_are_counted_by_method_and_status():
    meter = Meter("object")
    for method, status in (("GET", 200), ("GET", 200), ("PUT", 507), ("BREW", 418), ("GET", 222)):
        meter.record(method, status, 0.004)
    assert meter.requests() == {("GET", 200): 2, ("GET", 0): 1, ("PUT", 507): 1, ("other", 0): 1}
    page = page_of(meter, None)
    assert values(page, "keelstore_requests_total", role="object", method="GET", status="200") == [2]
    assert values(page, "keelstore_requests_total", status="other", method="other") == [1]
    assert values(page, "keelstore_request_duration_seconds_bucket", method="GET", le="0.002") == [0]
    assert values(page, "keelstore_request_duration_seconds_bucket", method="GET", le="0.005") == [3]
    assert values(page, "keelstore_request_duration_seconds_bucket", method="GET", le="+Inf") == [3]
    assert values(page, "keelstore_request_duration_seconds_count", method="GET") == [3]
    assert values(page, "keelstore_request_duration_seconds_sum", method="PUT") == [0.004]


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from([*METHODS, "X"]), st.integers(100, 599), st.floats(0, 100)), max_size=30))
def test_histograms_and_counts_agree(requests):
    meter = Meter("proxy")
    for request in requests:
        meter.record(*request)
    assert sum(meter.requests().values()) == len(requests)
    page = page_of(meter, None)
    assert sum(values(page, "keelstore_request_duration_seconds_count")) == len(requests)
    for bound in BOUNDS_S:
        assert sum(values(page, "keelstore_request_duration_seconds_bucket", le=f"{bound:g}")) == sum(t <= bound for _, _, t in requests)


def test_processes_of_a_node_add_up():
    meter = Meter("account")
    children = []
    for number in (0, 1, -1):
        pid = os.fork()
        if pid == 0:
            metrics.take_row(number)
            for _ in range(100):
                meter.record("HEAD", 204, 0.001)
            os._exit(0)
        children.append(pid)
    assert all(os.waitpid(pid, 0)[1] == 0 for pid in children)
    assert meter.requests() == {("HEAD", 204): 300}


def test_the_text_form_escapes_and_leaves_out_what_is_not_known():
    page = Page()
    page.gauge("a", "An a.", [({"name": 'x"\\\ny'}, 1.5), ({"name": "none"}, None), ({}, True)])
    page.gauge("empty", "Nothing.", [])
    families = parsed(page)
    assert set(families) == {"a"}
    assert [(sample.labels, sample.value) for sample in families["a"].samples] == [({"name": 'x"\\\ny'}, 1.5), ({}, 1)]


HEALTH = {
    "role": "object", "version": "0", "time": 1000.0, "up_s": 5.0, "cluster_file_md5": "abc",
    "devices": {"d1": {"usable": True, "problem": None, "size": 100, "used": 40, "avail": 60, "is_full": False,
                       "partitions": {"objects": 7}, "quarantined": {"objects": 2}, "quarantined_at": 1.0},
                "d2": {"usable": False, "problem": "is not mounted", "size": None, "used": None, "avail": None, "is_full": None,
                       "partitions": {}, "quarantined": {}, "quarantined_at": None}},
    "rings": {"object": {"md5": "def", "changed": 900.0}}, "cached": {"drive_audit_errors": 3, "async_pending": None},
    "daemons": {
        "object-x": {"alive": True, "running": False, "begun": 900.0, "last_pass_s": 40.0, "passes": 2, "at": 990.0, "pid": 1, "done": 5,
                     "failed": 0, "total": 9, "eta_s": None, "handoff_partitions": 4, "lag_s": 1.5, "oldest": 940.0,
                     "down": ["a", "b"], "braked": {"d1": "why"}, "counts": {"x-y": 1}, "per_device": {"d1": {"eta_s": 9, "note": "no", "pass_at": 970.0}}},
        "container-y": {"alive": True},
    },
}


def test_devices_are_told_once_for_a_node():
    device = HEALTH["devices"]["d1"]
    health = {**HEALTH, "devices": {
        "shared": {**device, "partitions": {"objects-1": 7, "containers": 3}, "quarantined": {"objects-1": 2, "containers": 1}},
        "fast": {**device, "partitions": {"containers": 1, "accounts": 1}, "quarantined": {}},
        "empty": {**device, "partitions": {}, "quarantined": {}}}}
    told = {role: page_of(None, {**health, "role": role}) for role in ("object", "container", "account")}
    size = "keelstore_device_size_bytes"
    assert {role: [len(values(page, size, device=name)) for name in health["devices"]] for role, page in told.items()} == {
        "object": [1, 1, 1], "container": [0, 1, 1], "account": [0, 0, 1]}
    assert {role: sum(values(page, "keelstore_device_partitions")) for role, page in told.items()} == {
        "object": 7, "container": 4, "account": 1}
    assert {role: sum(values(page, "keelstore_quarantined")) for role, page in told.items()} == {"object": 2, "container": 1, "account": 0}


def test_daemons_describe_themselves():
    page = page_of(None, HEALTH)
    base = "keelstore_daemon_"
    assert values(page, "keelstore_device_usable", device="d2") == [0] and values(page, "keelstore_device_size_bytes") == [100]
    assert values(page, "keelstore_quarantined", device="d1", kind="objects") == [2]
    assert values(page, "keelstore_ring_info", ring="object", md5="def") == [1]
    expected = {"up": 1, "pass_age_seconds": 60, "handoff_partitions": 4, "lag_seconds": 1.5, "oldest_seconds": 60, "down_count": 2,
                "braked_count": 1, "age_seconds": 10, "pass_total": 9}
    assert {name: values(page, base + name, daemon="object-x") for name in expected} == {name: [value] for name, value in expected.items()}
    assert values(page, base + "counts", key="x-y") == [1] and values(page, base + "per_device_eta_seconds", device="d1") == [9]
    assert values(page, base + "per_device_pass_age_seconds", device="d1", daemon="object-x") == [30]
    assert values(page, base + "up", daemon="container-y") == []  # its role tells of it
