"""Fault scenarios of erasure coded objects that are written, read and listed while parts of the cluster are away (``spec:
scenarios-fault`` 9, 11, 15; the numbers are its rows). Names and metadata are not ASCII (row 123).
"""

from __future__ import annotations

import hashlib
import random
import shutil
from collections import Counter
from functools import partial

import pytest

from test.support.client import Account, unique
from test.support.fragment_stage import Fragments, FragmentStage
from test.support.stage import INTERNAL_HEADERS, Spot
from test.support.waiting import until

OBJECT = ("object",)
V1, V2 = (random.Random(size).randbytes(size) for size in (70_000, (1 << 20) + 7))


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


# -- handoffs ----------------------------------------------------------------------------------------------------------


def test_scenarios_62_and_63_the_newest_of_two_versions(fragment_stage: FragmentStage, spot: Fragments) -> None:
    spot.put(V1)
    with fragment_stage.lost(spot.primaries[0]):
        spot.put(V2)
    with fragment_stage.lost(*spot.primaries[1:3]):
        answers = [spot.ask(node, "HEAD") for node in spot.nodes]
        assert Counter(answer.headers["X-Object-Sysmeta-Ec-Etag"] for answer in answers if answer.status == 200) == {md5(V2): 4, md5(V1): 1}
        fragment_stage.restart_proxy()
        assert spot.get().expect(200).body == V2


def test_scenarios_64_to_66_duplicates_do_not_count(fragment_stage: FragmentStage, spot: Fragments) -> None:
    one, other = (site for site in range(fragment_stage.sites) if spot.sites.count(site) == 2)
    with fragment_stage.without(one, kinds=OBJECT):
        spot.put(V2)
    handoffs = spot.holders()
    assert len(handoffs) == 2 and spot.indexes() == list(range(6))
    with fragment_stage.without(other, kinds=OBJECT):
        assert spot.get().expect(200).body == V2
    copied = next(spot.folder(handoffs[0]).glob("*.data"))
    home = spot.folder(spot.primaries[int(copied.name.split("#")[1])])
    home.mkdir(parents=True)
    shutil.copy2(copied, home / copied.name)
    with fragment_stage.without(other, kinds=OBJECT):
        there = {node.device: names for node in spot.nodes if fragment_stage.site_of(node) != other and (names := spot.stored().get(node.device))}
        assert len(spot.indexes(there)) == 5 and len(set(spot.indexes(there))) == 4
        assert spot.get().expect(200).body == V2
        for node in handoffs:
            with fragment_stage.without(fragment_stage.site_of(node), kinds=OBJECT):
                spot.get().expect(404, 503)
    fragment_stage.reconstruct()
    assert spot.indexes() == list(range(6)) and spot.is_home
    assert spot.get().expect(200).body == V2


def test_scenarios_67_and_68_three_of_six_are_too_few_to_read_and_enough_to_delete(fragment_stage: FragmentStage, spot: Fragments) -> None:
    spot.put(V2)
    with fragment_stage.lost(*spot.primaries[:3]):
        for headers in ({}, {"Range": "bytes=5-10"}, {"X-Newest": "true"}):
            answer = spot.get(**headers).expect(503)
            assert V2[5:11] not in answer.body
        spot.account.delete(spot.container, spot.name).expect(204, 404)
        spot.get().expect(404)
    fragment_stage.reconstruct(times=2)
    spot.get().expect(404)
    assert not spot.indexes()


def test_scenario_69_what_is_not_durable_is_not_there(spot: Fragments) -> None:
    spot.put(V1)
    spot.undo_durable(*spot.primaries)
    spot.get().expect(404)
    for node in spot.primaries:
        spot.ask(node, "HEAD").expect(404)
        answer = spot.ask(node, "HEAD", {"X-Backend-Fragment-Preferences": "[]"}).expect(200)
        assert "X-Backend-Durable-Timestamp" not in answer.headers


# -- listings ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def listed(fragment_stage: FragmentStage, fragment_account: Account) -> Fragments:
    """An object in a container of its own."""
    return Fragments(fragment_stage, fragment_account, fragment_stage.container(fragment_account))


def check_rows(stage: FragmentStage, spot: Fragments) -> bool:
    """All replicas of the container list what the client has sent."""
    container = Spot(stage, spot.account.name, spot.container)
    for node in container.primaries:
        assert [(row["name"], row["bytes"], row["hash"]) for row in container.rows(node)] == [(spot.name, len(V1), md5(V1))]
    return True


def away(stage: FragmentStage, spot: Fragments) -> int:
    return Spot(stage, spot.account.name, spot.container).sites[0]


def update(stage: FragmentStage) -> None:
    assert stage.run("object-updater", 0)[0]["failures"] == 0


def test_scenario_78_a_container_that_missed_the_put(fragment_stage: FragmentStage, listed: Fragments) -> None:
    with fragment_stage.without(away(fragment_stage, listed), kinds=("container",)):
        listed.put(V1)
    container = Spot(fragment_stage, *listed.names[:2])
    assert container.rows(container.primaries[0]) == []
    update(fragment_stage)
    check_rows(fragment_stage, listed)


def test_scenario_79_a_post_alone_mends_the_listing(fragment_stage: FragmentStage, listed: Fragments) -> None:
    with fragment_stage.without(away(fragment_stage, listed), kinds=("container",)):
        listed.put(V1)
    listed.post(**{"X-Object-Meta-A": "caf\u00e9"})
    until(lambda: check_rows(fragment_stage, listed), "the listing is right")
    update(fragment_stage)
    check_rows(fragment_stage, listed)


def test_scenario_80_a_container_that_missed_put_and_post(fragment_stage: FragmentStage, listed: Fragments) -> None:
    with fragment_stage.without(away(fragment_stage, listed), kinds=("container",)):
        listed.put(V1)
        listed.post(**{"X-Object-Meta-A": "x"})
    update(fragment_stage)
    check_rows(fragment_stage, listed)


# -- versions ----------------------------------------------------------------------------------------------------------


def listed_version(internal: Account, hidden: str, name: str) -> str:
    """'' where the answer comes from a replica that was away."""
    rows = internal.get(hidden, query="format=json", headers=INTERNAL_HEADERS).expect(200).json()
    return next((row["name"] for row in rows if name in row["name"]), "")


def test_scenario_110_a_version_that_a_device_missed(fragment_stage: FragmentStage, fragment_account: Account) -> None:
    stage, account = fragment_stage, fragment_account
    container = stage.container(account, **{"X-Versions-Enabled": "true"})
    lost = stage.ring("object-2").primaries(0)[0]
    while True:
        name = unique("v")
        with stage.lost(lost):
            account.put(container, name, body=V1).expect(201)
            account.post(container, name, headers={"X-Object-Meta-A": "posted"}).expect(202)
        hidden = f"\0versions\0{container}"
        internal = stage.internal(account)
        spot = Fragments(stage, account, hidden, until(partial(listed_version, internal, hidden, name), "it is listed"))
        home = [node for node in spot.primaries if node.device == lost.device]
        if home and len(spot.holders()) == 1:  # more where the proxy still leaves a device alone that an earlier test took away
            break
    (handoff,) = spot.holders()
    place = home[0].index or 0
    stage.reconstruct(stage.site_of(spot.primaries[(place + 1) % 6]))
    stage.reconstruct(stage.site_of(handoff))
    answers = [spot.ask(node, "HEAD").expect(200) for node in spot.primaries]
    assert {(answer.headers["X-Object-Sysmeta-Ec-Etag"], answer.headers["X-Object-Meta-A"]) for answer in answers} == {(md5(V1), "posted")}
    spot.ask(handoff, "HEAD").expect(404)
    assert spot.is_home
