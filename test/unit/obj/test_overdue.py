"""What should have expired, and did not, is put into the expiry queue by the auditor."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from keelstore.common.backend import Backend
from keelstore.obj.expiry_queue import Delays, parse_task
from keelstore.obj.overdue import Overdue
from keelstore.obj.updates import ContainerUpdater, decode_pending
from test.support.objects import HASH_PATH, NOW, stamp
from test.unit.obj.test_auditor import AuditBox

DAY_S = 86400
DUE = int(NOW) + 10


class OverdueBox(AuditBox):
    def __init__(self, root: Path, delays: dict[str, float] | None = None, after_s: float = DAY_S, **options: Any):
        super().__init__(root, **options)
        log = logging.getLogger("test.overdue")
        updater = ContainerUpdater(Backend(), HASH_PATH, log, wait_s=1, node_timeout_s=1, expirer_divisor=DAY_S,
                                   expirer_account="expiring_objects")
        self.auditor.overdue = Overdue(updater, after_s, Delays(delays or {}), self.clock, log)

    @property
    def pendings(self) -> list[dict[str, Any]]:
        return [decode_pending(path.read_bytes()) for path in sorted(Path(self.device_path).glob("async_pending*/*/*"))]


def test_what_is_overdue_is_put_into_the_queue(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    box = OverdueBox(tmp_path)
    box.put("o/p", b"hello", 1, {"X-Delete-At": str(DUE)})
    box.put("later", b"hello", 1, {"X-Delete-At": str(DUE + 60)})
    box.put("always", b"hello", 1)
    box.clock.now = DUE + DAY_S - 1
    box.auditor.run_once()
    assert box.pendings == []
    box.clock.now = DUE + DAY_S + 1
    box.auditor.run_once()
    (update,) = box.pendings
    task = parse_task(update["container"], update["obj"])
    assert (update["op"], update["account"], int(task.delete_at)) == ("PUT", ".expiring_objects", DUE)
    assert (task.account, task.container, task.obj) == ("a", "c", "o/p")
    assert 0 <= DUE - int(update["container"]) < DAY_S + 100
    headers = update["headers"]
    assert headers["X-Content-Type"] == "text/plain;swift_expirer_bytes=5"
    assert headers["X-Content-Type-Timestamp"] == stamp(1).internal and float(headers["X-Timestamp"]) == DUE + DAY_S + 1
    assert headers["X-Backend-Storage-Policy-Index"] == "0"
    assert "/a/c/o/p was due" in caplog.text and box.auditor.figures()["overdue"] == 1
    assert len(list(Path(directory_of(box)).glob("*.data"))) == 1  # the expirer removes it, nobody else


def directory_of(box: OverdueBox) -> str:
    return box.place("o/p").directory


@pytest.mark.parametrize("options", [{}, {"zero_byte_files_per_second": 0}])
def test_one_scan_sees_to_it(tmp_path: Path, options: dict[str, Any]) -> None:
    box = OverdueBox(tmp_path, **options)
    box.put("o", b"hello", 1, {"X-Delete-At": str(DUE)})
    box.clock.now = DUE + DAY_S + 1
    box.auditor.run_once()
    assert box.auditor.figures()["overdue"] == 1
    box.auditor.run_once()
    assert box.auditor.figures()["overdue"] == len(box.pendings) == 1
    box.clock.now += DAY_S
    box.auditor.run_once()
    assert box.auditor.figures()["overdue"] == len(box.pendings) == 2  # it is still there


def test_what_may_outlive_its_time_is_not_overdue(tmp_path: Path) -> None:
    box = OverdueBox(tmp_path, delays={"a/c": 1000.0})
    box.put("o", b"hello", 1, {"X-Delete-At": str(DUE)})
    box.clock.now = DUE + DAY_S + 999
    box.auditor.run_once()
    assert box.pendings == []
    box.clock.now = DUE + DAY_S + 1001
    box.auditor.run_once()
    assert len(box.pendings) == 1


def test_never(tmp_path: Path) -> None:
    box = OverdueBox(tmp_path, after_s=0)
    box.put("o", b"hello", 1, {"X-Delete-At": str(DUE)})
    box.clock.now = DUE + 1e8
    box.auditor.run_once()
    assert box.pendings == []
