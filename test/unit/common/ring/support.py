"""Builders and rings for the tests of rings."""

from __future__ import annotations

from array import array

from hypothesis import strategies as st

from keelstore.common.ring.builder import RingBuilder
from keelstore.common.ring.devices import RingDevice
from keelstore.common.ring.format import RingData

HOUR = 3600.0


def device(region=1, zone=1, server=1, disk=0, weight=100.0, **other):
    ip = f"10.{region}.{zone}.{server}"
    return RingDevice(region, zone, ip, 6200, f"d{disk}", weight, other.pop("replication_ip", ip), 6200, **other)


def cluster(regions=1, zones=3, servers=2, disks=2, weight=100.0):
    return [device(r, z, s, d, weight) for r in range(1, regions + 1) for z in range(1, zones + 1)
            for s in range(1, servers + 1) for d in range(disks)]


def builder(devices, part_power=8, replicas=3.0, hours=1, overload=0.0):
    made = RingBuilder(part_power, replicas, hours)
    made.set_overload(overload)
    for one in devices:
        made.add_device(one)
    return made


def rebalanced(devices, part_power=8, replicas=3.0, seed=1, **more):
    made = builder(devices, part_power, replicas, **more)
    made.rebalance(1000 * HOUR, seed)
    return made


def small_ring(version=7):
    devs = [{"id": i, "region": 1, "zone": i + 1, "ip": f"10.0.0.{i}", "port": 6200, "replication_ip": f"10.1.0.{i}",
             "replication_port": 6201, "device": f"sd{i}", "weight": 100.0, "meta": ""} for i in range(3)]
    return RingData((devs[0], devs[1], None, {**devs[2], "id": 3}),
                    (array("H", [0, 1, 3, 0]), array("H", [1, 3, 0, 3]), array("H", [3, 0])), 30, version)


@st.composite
def clusters(draw, most=24):
    """Devices in a few regions, zones and servers, of mixed weights, at least four of them with weight."""
    devices = []
    for region in range(1, draw(st.integers(1, 2)) + 1):
        for zone in range(1, draw(st.integers(1, 3)) + 1):
            for server in range(1, draw(st.integers(1, 3)) + 1):
                for disk in range(draw(st.integers(1, 3))):
                    weight = draw(st.sampled_from([100.0, 100.0, 100.0, 50.0, 200.0, 0.0, 33.3]))
                    devices.append(device(region, zone, server, disk, weight))
    devices = devices[:most]
    while sum(dev.weight > 0 for dev in devices) < 4:
        devices.append(device(1, 1, 9, len(devices), 100.0))
    return devices


replica_counts = st.sampled_from([1.0, 2.0, 3.0, 3.0, 2.5, 3.25, 4.0])
