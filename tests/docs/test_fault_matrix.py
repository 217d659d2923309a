"""docs/explanation/fault-matrix.md: every row is there, what checks it exists, and what is measured is done."""

import re
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "explanation" / "fault-matrix.md"
ROWS = 29

sys.path.append(str(ROOT / "benchmarks"))
import live_faults  # noqa: E402
from chaos.turns import BY_TESTS  # noqa: E402


class Row(NamedTuple):
    number: int
    seeds: str
    tests: str


def rows() -> list[Row]:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if re.match(r"\| \d+ \|", line)]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [Row(int(number), seeds, tests) for number, _, _, seeds, tests, _, _ in cells]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def is_there(name: str) -> bool:
    """A file, or a test in one."""
    path, _, test = name.partition("::")
    file = ROOT / path
    return file.exists() and (not test or f"\ndef {test}(" in file.read_text(encoding="utf-8"))


def test_every_fault_is_there_once_and_something_is_said_of_how_it_is_checked() -> None:
    assert [row.number for row in rows()] == list(range(1, ROWS + 1))
    assert [row.number for row in rows() if not (row.seeds or row.tests)] == []


def test_what_is_said_to_check_a_fault_exists() -> None:
    nemeses = {path.stem for path in (ROOT / "src" / "poise" / "engine" / "nemeses").glob("*.yaml")}
    names = [(row.number, name) for row in rows() for name in quoted(row.seeds) + quoted(row.tests)]
    assert [f"{number}: {name}" for number, name in names if name not in nemeses and not is_there(name)] == []
    assert not nemeses - {name for _, name in names}, "a nemesis is in no row"


def test_what_is_said_to_be_measured_is_done_by_the_benchmark() -> None:
    timed = {case.row for case in live_faults.cases(live_faults.Sizes()) if case.by != BY_TESTS}
    assert {row.number for row in rows() if "measured" in row.tests} == timed


def test_tests_that_the_benchmark_runs_are_there() -> None:
    groups = (value for name, value in vars(live_faults).items() if name.isupper() and isinstance(value, tuple))
    names = [name for group in groups for name in group if ".py" in name]
    assert names
    assert [name for name in names if not is_there(f"tests/{name}")] == []
