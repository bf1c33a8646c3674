"""The audit of fragments: their headers, one for each segment."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from keelstore.common.codec import codec_for
from keelstore.common.daemon_frame import World
from keelstore.obj.audit import FragmentCheck
from keelstore.obj.auditor import ObjectAuditor
from keelstore.obj.options import ObjectAuditorOptions
from test.support.fragments import LOG, Fragmented
from test.unit.obj.test_reconstructor import forge

CODEC = codec_for("isa_l_rs_vand", 4, 2)
SEGMENT = 1000


def archives(size: int) -> list[bytes]:
    body = random.Random(size).randbytes(size)
    parts = [CODEC.encode(body[at : at + SEGMENT]) for at in range(0, size, SEGMENT)]
    return [b"".join(part[index] for part in parts) for index in range(6)]


def checked(archive: bytes, index: int, step: int) -> str:
    check = FragmentCheck(CODEC, index, CODEC.fragment_size(SEGMENT), len(archive))
    for at in range(0, len(archive), step):
        check.take(archive[at : at + step])
    return check.reason


@pytest.mark.parametrize("size", [0, 1, 999, 1000, 1001, 5000, 5500])
@pytest.mark.parametrize("step", [7, 330, 65536])
def test_what_was_written_right_passes(size: int, step: int) -> None:
    for index, archive in enumerate(archives(size) if size else [b""]):
        assert checked(archive, index, step) == ""


def test_what_is_wrong_is_named() -> None:
    first, second = archives(2500)[:2]
    size = CODEC.fragment_size(SEGMENT)
    assert checked(second, 0, 100) == "segment 0 is of fragment 1, not 0"
    assert checked(first[:size] + second[size:], 0, 100) == "segment 1 is of fragment 1, not 0"
    assert checked(first[: 2 * size + 20] + b"x" + first[2 * size + 21 :], 0, 100).startswith("segment 2: ")
    assert checked(first[:-1], 0, 100).startswith("segment 2: ")


def test_the_auditor_puts_aside_what_no_code_can_read(tmp_path: Path) -> None:
    cluster = Fragmented(tmp_path)
    try:
        assert cluster.put("o", random.Random(1).randbytes(70_000)) == 201
        node = cluster.primaries("o")[2]
        path = next(cluster.folder(node.device, "o").glob("*.data"))
        forge(path, at=8)  # in the header
        options = ObjectAuditorOptions(devices=str(cluster.cluster.devices(int(node.device[1]))), mount_check=False, files_per_second=0,
                                       bytes_per_second=0)
        auditor = ObjectAuditor(options, World(LOG), cluster.cluster.proxy.cluster)
        auditor.run_once()
        assert auditor.figures()["quarantined"] == 1 and not path.exists()
    finally:
        cluster.cluster.close()
