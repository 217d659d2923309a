"""Chronus's traces: jobs with a deadline, and best-effort ones."""

from pathlib import Path

import pytest

from poise.errors import SpecError
from poise.model.workload import Seats
from poise.units import MINUTE
from poise_lab.traces.formats import format_of, read_trace
from poise_lab.traces.options import Options

TRACE = Path(__file__).parent / "chronus" / "trace_job_Philly_MIX1.csv"
ORACLE = Options(information="oracle")
HEADER = TRACE.read_text().splitlines()[0]


def trace(tmp_path: Path, *rows: str) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text("".join(f"{line}\n" for line in (HEADER, *rows)))
    return path


def test_the_excerpt() -> None:
    assert format_of(TRACE, Options()).name == "chronus"
    read = read_trace(TRACE, ORACLE)
    assert (read.name, len(read.arrivals), read.skipped) == ("chronus", 60, {})
    rows = [line.split(",") for line in TRACE.read_text().splitlines()[1:]]
    rows.sort(key=lambda row: int(row[3]))
    first = int(rows[0][3])
    assert [arrival.at for arrival in read.arrivals] == [(int(row[3]) - first) * MINUTE for row in rows]
    for arrival, row in zip(read.arrivals, rows, strict=True):
        [unit] = arrival.units
        assert unit.expect == int(row[6]) * MINUTE
        assert arrival.truths["main"].pace.left(0.0, Seats(("",) * len(unit.tasks))) == int(row[6]) * 60
        assert len(unit.tasks) * unit.shape.gpus == int(row[2])
        assert unit.kind == f"{row[1]}:{row[5]} x{row[2]}"
        assert arrival.tenant == row[1]


def test_a_strict_job_has_a_deadline_after_its_submission_and_a_best_effort_one_has_none() -> None:
    read = read_trace(TRACE, ORACLE)
    ratios = [arrival.units[0].deadline / arrival.units[0].expect for arrival in read.arrivals]
    strict = [ratio for ratio in ratios if ratio]
    assert (len(strict), len(ratios) - len(strict)) == (39, 21)
    assert 1.1 < min(strict) < max(strict) < 5


def test_a_soft_job_is_due_while_it_is_worth_all(tmp_path: Path) -> None:
    path = trace(tmp_path, "0,vc_ed69ec,1,5601,5530,mobilenet_v2,96,5,159-189-229-289,10-8-5-2,0,soft")
    [arrival] = read_trace(path, ORACLE).arrivals
    assert arrival.units[0].deadline == 159 * MINUTE


def test_work_without_a_device_is_left_out_unless_it_is_wanted(tmp_path: Path) -> None:
    rows = ("0,vc_1,0,5,9,vgg16,96,5,159,10,0,strict", "1,vc_1,16,5,9,vgg16,96,5,159,10,0,strict")
    read = read_trace(trace(tmp_path, *rows), ORACLE)
    assert read.skipped == {"no device is asked for": 1}
    assert (len(read.arrivals[0].units[0].tasks), read.arrivals[0].units[0].shape.gpus) == (2, 8)
    assert len(read_trace(trace(tmp_path, *rows), Options(cpu_work=True)).arrivals) == 2


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("0,vc_1,1,5,9,vgg16,96,5,0,10,0,strict", "the deadline is before the submission"),
        ("0,vc_1,1,5,9,vgg16,96,5,,10,0,strict", "`expect_time_list` is missing"),
        ("0,vc_1,1,5,9,vgg16,96,5,-159,10,0,strict", "`expect_time_list` is missing"),
        ("0,vc_1,1,5,9,vgg16,96,5,1_59,10,0,strict", "`expect_time_list` is not written in plain digits"),
        ("0,vc_1,1,5,9,vgg16,96,5,159,10,maybe,strict", "`best_effort` is neither 0 nor 1"),
        ("0,vc_1,1,-5,9,vgg16,96,5,159,10,0,strict", "`submit_time` is negative"),
        ("0,vc_1,1,5,9,vgg16,96000000,5,159,10,0,strict", "`duration` is absurd"),
    ],
)
def test_bad_rows(tmp_path: Path, row: str, message: str) -> None:
    with pytest.raises(SpecError) as raised:
        read_trace(trace(tmp_path, row), Options(strict=True))
    assert raised.value.record.message == message
