"""The backlog of container updates: the newest of each object counts, by container, oldest first, bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common.headers import Headers
from keelstore.obj.backlog import Backlog, Pending, Target, parse_pending, target_of
from keelstore.obj.update_rows import redirected, request_headers, row_of

HASH = "d41d8cd98f00b204e9800998ecf8427e"


def pending(stamp: str, name_hash: str = HASH, device: str = "/srv/sda", policy: int = 0) -> Pending:
    return Pending(device, policy, f"{name_hash}-{stamp}")


def other(number: int) -> str:
    return f"{number:032x}"


C = Target("a/c", "a", "c")
D = Target("a/d", "a", "d")


def test_where_an_update_is() -> None:
    found = parse_pending("/srv/sda", 1, "27e", f"{HASH}-0000000001.00000_0000000000000001")
    assert found is not None
    assert found.path == f"/srv/sda/async_pending-1/27e/{HASH}-0000000001.00000_0000000000000001"
    assert (found.device, found.timestamp.offset) == ("sda", 1)


@pytest.mark.parametrize("name", ["", "x", HASH, f"{HASH}-1", f".{HASH}-0000000001.00000.abcdef", f"{HASH[:-1]}0-0000000001.00000"])
def test_other_names_are_no_updates(name: str) -> None:
    assert parse_pending("/srv/sda", 0, "27e", name) is None


def test_the_newest_update_of_an_object_on_a_device_counts() -> None:
    backlog = Backlog()
    old, new = pending("0000000001.00000"), pending("0000000002.00000")
    assert backlog.add(old, C) is None
    assert backlog.newer_than(old) is None
    assert backlog.add(new, C) == old
    assert backlog.add(old, C) is None
    assert backlog.newer_than(old) == new and backlog.newer_than(new) is None
    assert backlog.of(C) == [new] and len(backlog) == 1
    elsewhere = pending("0000000001.00000", device="/srv/sdb")
    assert backlog.add(elsewhere, C) is None
    assert backlog.of(C) == [elsewhere, new]
    assert backlog.counts() == {"sda": 1, "sdb": 1}


def test_an_update_moves_to_another_target() -> None:
    backlog = Backlog()
    one = pending("0000000001.00000")
    backlog.add(one, C)
    backlog.move(one, D)
    assert (backlog.of(C), backlog.of(D), backlog.targets(), backlog.where(one)) == ([], [one], [D], D)
    backlog.remove(one)
    assert backlog.targets() == [] and len(backlog) == 0 and backlog.where(one) is None


def test_the_containers_that_wait_longest() -> None:
    backlog = Backlog()
    backlog.add(pending("0000000005.00000", other(1)), C)
    backlog.add(pending("0000000003.00000", other(2)), D)
    backlog.add(pending("0000000004.00000", other(3)), Target("a/x", "a", "x"))
    oldest = backlog.oldest(2)
    assert oldest.containers == 3
    assert [(stamp.normal, container) for stamp, _, container in oldest.entries] == [("0000000003.00000", "d"), ("0000000004.00000", "x")]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5), st.sampled_from([C, D]), st.booleans()), max_size=30))
def test_whatever_the_order_the_newest_of_each_is_left(steps: list[tuple[int, int, Target, bool]]) -> None:
    backlog = Backlog()
    newest: dict[str, Pending] = {}
    for number, stamp, target, removes in steps:
        one = pending(f"{stamp:010d}.00000", other(number))
        if removes:
            backlog.remove(one)
            if newest.get(other(number)) == one:
                del newest[other(number)]
        else:
            backlog.add(one, target)
            newest[other(number)] = max(newest.get(other(number), one), one, key=lambda entry: entry.name)
    held = [entry for target in backlog.targets() for entry in backlog.of(target)]
    assert sorted(held) == sorted(newest.values())
    assert len(backlog) == len(held)


def put(**extra: object) -> dict:
    headers = Headers({"X-Timestamp": "1.00000", "X-Size": "3", "X-Content-Type": "text/plain", "X-Etag": "e",
                       "X-Backend-Storage-Policy-Index": "1"})
    return {"op": "PUT", "account": "a", "container": "c", "obj": "o", "headers": headers, **extra}


def test_an_update_as_a_row() -> None:
    assert row_of(put()) == {"name": "o", "created_at": "0000000001.00000", "storage_policy_index": 1, "size": 3,
                             "content_type": "text/plain", "etag": "e", "deleted": 0}
    update = put()
    update["headers"].update({"X-Meta-Timestamp": "3", "X-Content-Type-Timestamp": "2", "X-Content-Type": "t\xc3\xa9xt"})
    row = row_of(update)
    assert row is not None
    assert (row["meta_timestamp"], row["ctype_timestamp"], row["content_type"]) == ("0000000003.00000", "0000000002.00000", "t\xe9xt")
    gone = row_of(put(op="DELETE"))
    assert gone is not None and (gone["deleted"], gone["etag"], gone["content_type"], gone["size"]) == (1, "noetag", "application/deleted", 0)


@pytest.mark.parametrize("change", [{"obj": "\udcff"}, {"headers": Headers()}, {"headers": Headers({"X-Timestamp": "x"})}])
def test_what_json_cannot_tell_goes_by_itself(change: dict) -> None:
    assert row_of(put(**change)) is None


def test_a_request_asks_to_be_redirected() -> None:
    headers = request_headers(put())
    assert headers["X-Backend-Accept-Redirect"] == "true" and headers["X-Backend-Storage-Policy-Index"] == "1"
    assert headers["User-Agent"].startswith("object-updater ")


def test_the_newest_redirect_is_followed_and_a_circle_broken() -> None:
    assert redirected(put(), []) is None
    first = redirected(put(successes=[1, 2]), [("s/one", "1"), ("s/two", "2")])
    assert first is not None
    assert (first["container_path"], first["redirect_history"], first["successes"]) == ("s/two", ["s/two"], [])
    assert target_of(first) == Target("s/two", "a", "c")
    second = redirected(first, [("s/one", "3")])
    assert second is not None and second["redirect_history"] == ["s/two", "s/one"]
    third = redirected(second, [("s/two", "4")])
    assert third is not None and (third["container_path"], third["redirect_history"]) == (None, [])
    assert target_of(third).path == "a/c"
