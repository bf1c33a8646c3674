import itertools
import logging
import os
from array import array

import pytest

from keelstore.common.errors import RingError
from keelstore.common.names import HashPath
from keelstore.common.ring import format as ring_format
from keelstore.common.ring.errors import RingFileError
from keelstore.common.ring.format import RingData
from keelstore.common.ring.ring import Ring, RingFile
from test.unit.common.ring.support import cluster, rebalanced, small_ring


@pytest.fixture(scope="module")
def ring():
    return Ring(rebalanced(cluster(2, 3, 2, 2)).ring())


def test_partition_is_the_head_of_the_digest(ring):
    assert ring.partition(b"\xff" * 16) == 255
    assert ring.partition(b"\x01\x80" + b"\x00" * 14) == 1
    secret = HashPath(b"a", b"b")
    assert ring.get_part(secret, "a", "c", "o") == ring.partition(secret.digest("a", "c", "o"))


def test_primaries_are_the_rows_in_order_each_device_once():
    ring = Ring(small_ring())
    assert [[node.id for node in ring.primaries(part)] for part in range(4)] == [[0, 1, 3], [1, 3, 0], [3, 0], [0, 3]]
    assert [node.index for node in ring.primaries(0)] == [0, 1, 2]
    assert not ring.primaries(0)[0].is_handoff


def test_a_device_that_stands_twice_counts_once():
    data = small_ring()
    ring = Ring(RingData(data.devices, (array("H", [0] * 4), array("H", [0] * 4), array("H", [1] * 4)), 30))
    assert [(node.id, node.index) for node in ring.primaries(0)] == [(0, 0), (1, 1)]


def test_a_number_that_is_no_partition_has_no_primaries(ring):
    assert ring.primaries(256) == () and ring.primaries(-1) == ()


def test_nodes_are_shared(ring):
    assert ring.primaries(3) is ring.primaries(3)
    again = next(part for part in range(4, 256) if ring.primaries(part)[0].id == ring.primaries(3)[0].id)
    assert ring.primaries(again)[0] is ring.primaries(3)[0]
    assert next(ring.handoffs(3)) is next(ring.handoffs(3))


def test_node_fields():
    node = Ring(small_ring()).primaries(0)[2]
    assert (node.key, node.address, node.replication_address) == ("10.0.0.2:6200/sd2", ("10.0.0.2", 6200), ("10.1.0.2", 6201))
    assert (node.id, node.zone, node.device, node.weight, node.meta, node.handoff_index) == (3, 3, "sd2", 100.0, "", None)


def test_counts():
    ring = Ring(small_ring())
    assert (ring.replica_count, ring.partition_count, ring.part_power, ring.part_shift) == (2.5, 4, 2, 30)
    assert (ring.device_count, ring.weighted_device_count, ring.assigned_device_count) == (3, 3, 3)
    assert (ring.version, ring.next_part_power, len(ring.nodes)) == (7, None, 3)


def test_whole_replica_count_is_an_int(ring):
    assert isinstance(ring.replica_count, int) and ring.replica_count == 3


def test_handoffs_are_all_other_devices_with_partitions_each_once(ring):
    for part in (0, 100, 255):
        primaries = {node.id for node in ring.primaries(part)}
        handoffs = [node.id for node in ring.handoffs(part)]
        assert len(set(handoffs)) == len(handoffs)
        assert set(handoffs) | primaries == {node.id for node in ring.nodes} and not set(handoffs) & primaries


def test_handoffs_number_themselves(ring):
    assert [node.handoff_index for node in ring.handoffs(5)] == list(range(21))
    assert all(node.is_handoff and node.index is None for node in ring.handoffs(5))


def test_handoffs_go_to_new_zones_then_servers_first(ring):
    for part in range(256):
        zones = {(node.region, node.zone) for node in ring.primaries(part)}
        servers = {node.ip for node in ring.primaries(part)}
        order = list(ring.handoffs(part))
        for node in order[:6 - len(zones)]:
            assert (node.region, node.zone) not in zones
            zones.add((node.region, node.zone))
            servers.add(node.ip)
        for node in order[3:12 - 3]:
            assert node.ip not in servers
            servers.add(node.ip)


def test_a_device_without_partitions_is_never_a_handoff():
    built = rebalanced(cluster())
    from test.unit.common.ring.support import device
    built.add_device(device(1, 9, 9, 9))
    ring = Ring(built.ring())
    assert ring.assigned_device_count == 12 and ring.device_count == 13
    assert all(node.id != 12 for node in ring.handoffs(0))


def test_handoffs_are_found_lazily():
    """The first few of a ring of many partitions must not cost a walk through all of it."""
    data = rebalanced(cluster(1, 4, 5, 5), part_power=16).ring()
    seen = 0

    class Row:
        def __init__(self, row):
            self.row = row

        def __len__(self):
            return len(self.row)

        def __getitem__(self, place):
            nonlocal seen
            seen += 1
            return self.row[place]

    ring = Ring(data)
    ring.rows = tuple(Row(row) for row in data.rows)  # type: ignore[misc]
    assert len(list(itertools.islice(ring.handoffs(77), 3))) == 3
    assert seen < 100


def test_a_ring_does_not_import_numpy():
    import subprocess
    import sys
    code = "import sys, keelstore.common.ring.ring; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# -- the file ----------------------------------------------------------------------------------------------------------


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def path(tmp_path):
    where = str(tmp_path / "object.ring.gz")
    ring_format.save(small_ring(1), where)
    return where


def test_a_new_file_is_seen_after_reload_s(path):
    clock = Clock()
    file = RingFile(path, 15, clock=clock)
    first = file.current()
    ring_format.save(small_ring(2), path)
    clock.now = 14.9
    assert file.current() is first
    clock.now = 15
    assert file.current().version == 2
    assert first.version == 1


def test_an_unchanged_file_is_not_read_again(path):
    clock = Clock()
    file = RingFile(path, 15, clock=clock)
    first = file.current()
    clock.now = 100
    assert file.current() is first


def test_a_broken_new_file_keeps_the_old_ring_and_is_logged_once(path, caplog):
    clock = Clock()
    file = RingFile(path, 15, clock=clock)
    first = file.current()
    with open(path, "wb") as out:
        out.write(b"garbage")
    with caplog.at_level(logging.ERROR):
        for clock.now in (20, 40, 60):
            assert file.current() is first
    assert [path in record.getMessage() for record in caplog.records] == [True]
    ring_format.save(small_ring(5), path)
    clock.now = 80
    assert file.current().version == 5


def test_a_file_that_vanishes_keeps_the_old_ring_and_may_come_back(path, caplog):
    clock = Clock()
    file = RingFile(path, 15, clock=clock)
    first = file.current()
    os.unlink(path)
    with caplog.at_level(logging.ERROR):
        for clock.now in (20, 40, 60):
            assert file.current() is first
    assert len(caplog.records) == 1
    ring_format.save(small_ring(6), path)
    clock.now = 80
    assert file.current().version == 6


def test_a_check_refuses_at_start_and_keeps_the_old_ring_later(path, caplog):
    def check(ring):
        if ring.version == 2:
            raise RingError("EC ring for policy ec42 needs to be configured with exactly 6 replicas. Got 3.")

    clock = Clock()
    file = RingFile(path, 15, check, clock=clock)
    ring_format.save(small_ring(2), path)
    clock.now = 20
    with caplog.at_level(logging.ERROR):
        assert file.current().version == 1
    assert "exactly 6 replicas" in caplog.text
    with pytest.raises(RingError, match="exactly 6 replicas"):
        RingFile(path, 15, check)


def test_no_ring_at_start_is_a_clear_error(tmp_path):
    with pytest.raises(RingFileError, match="No such file"):
        RingFile(str(tmp_path / "object.ring.gz"))
    bad = tmp_path / "bad.ring.gz"
    bad.write_bytes(b"xx")
    with pytest.raises(RingFileError, match="not a gzip file"):
        RingFile(str(bad))
