"""What bin/bench makes of its lines: factors, the table, the picture, and the page it writes into."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from test.bench import plot, report
from test.bench.compare import BEGIN, END, between_marks
from test.bench.loads import COPIES, EC, SMALL, Row, rows
from test.bench.report import Factor, Line, NodeRow

ROW = Row(COPIES, "put", SMALL, 32)


def line(round_: int, cpu: float, rate: float, p50: float = 1.0, ops: int = 500) -> Line:
    return {"round": round_, "server_cpu_ms_op": cpu, "ops_s": rate, "mib_s": 1.0, "p50_ms": p50, "p99_ms": p50 * 3, "ops": ops, "errors": 0}


OURS = [line(1, 2.0, 500), line(2, 2.5, 400), line(3, 2.0, 450)]
THEIRS = [line(1, 20.0, 50), line(2, 20.0, 50), line(3, 14.0, 60)]


def test_a_factor_is_the_median_of_those_of_the_rounds() -> None:
    found = report.compare(ROW, "swift", OURS, THEIRS)
    assert found.cpu == Factor(8.0, 7.0, 10.0)
    assert found.rate == Factor(8.0, 7.5, 10.0)


def test_a_round_that_one_side_lacks_is_not_compared() -> None:
    assert report.compare(ROW, "swift", OURS, THEIRS[:1]).cpu == Factor(10.0, 10.0, 10.0)
    assert report.compare(ROW, "swift", OURS, []).cpu is None


def test_no_p99_is_made_of_a_few_operations() -> None:
    assert report.compare(ROW, "swift", OURS, THEIRS).p99 is not None
    assert report.compare(ROW, "swift", OURS, [line(1, 20.0, 50, ops=30), *THEIRS[1:]]).p99 is None


def test_a_missed_aim_is_said() -> None:
    text = report.beside("Swift", [report.compare(ROW, "swift", [line(1, 5.0, 500)], [line(1, 20.0, 50)])])
    assert "| three copies: PUT 4 KiB | 32 | 4.00 | 8 **not met** | 10.0 | 8 met |" in text


@pytest.mark.parametrize("other", ["swift", "rgw"])
def test_each_row_knows_its_aims(other: str) -> None:
    assert ROW.aims(other)[0] is not None
    for row in (*rows(True), *rows(False)):
        cpu, rate = row.aims(other)
        assert (cpu is None) == (other == "rgw" and row.kind == EC and not row.is_large)
        assert rate is None or cpu is not None


def test_failed_requests_are_said() -> None:
    assert report.failures([{**line(1, 1, 1), "errors": 2, "statuses": {"503": 2}}], lambda _: "swift") == ["swift: 2 of 502 failed: {'503': 2}"]


@pytest.mark.parametrize("is_quick", [True, False])
def test_rows_have_names_of_their_own(is_quick: bool) -> None:
    names = [row.key for row in rows(is_quick)]
    assert len(set(names)) == len(names)


def test_the_picture_is_well_formed_and_has_a_bar_for_each_figure() -> None:
    behind = report.compare(Row(COPIES, "get", SMALL, 1), "rgw", [line(1, 4.0, 1)], [line(1, 2.0, 4)])
    drawn = plot.picture("a <b> & c", "when", [report.compare(ROW, "swift", OURS, THEIRS), behind], [NodeRow("memory", "MiB", 100, 400)])
    root = ElementTree.fromstring(drawn)
    fills = [element.get("fill") for element in root.iter("{http://www.w3.org/2000/svg}rect") if element.get("height") == str(plot.BAR)]
    assert fills.count(plot.AHEAD) == 7  # three of the four of each row are ahead or even, and the memory
    assert fills.count(plot.BEHIND) == 3  # CPU and rate of the second, and the legend


@pytest.mark.parametrize("value,place", [(0.1, 0), (0.25, 0), (64, plot.PANEL), (1000, plot.PANEL)])
def test_what_is_beyond_the_scale_is_drawn_at_its_end(value: float, place: float) -> None:
    assert plot.at(value) == pytest.approx(place)


def test_the_page_replaces_what_stood_between_the_marks() -> None:
    text = f"before\n{BEGIN}; edit nothing -->\nold\n{END}\nafter\n"
    once = between_marks(text, "new\n")
    assert once == f"before\n{BEGIN}; edit nothing -->\n\nnew\n\n{END}\nafter\n"
    assert between_marks(once, "new\n") == once
    with pytest.raises(SystemExit):
        between_marks("nothing here", "new\n")
