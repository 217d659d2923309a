"""docs/capabilities.md: each row of the plan once, and nothing named that does not exist."""

import re
from pathlib import Path
from typing import NamedTuple

from poise.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "capabilities.md"
ROWS = {"A": 6, "B": 8, "C": 17, "D": 9, "E": 10, "F": 8, "G": 6, "H": 6, "I": 2, "J": 7}
STATES = ("works", "partly", "not yet")


class Row(NamedTuple):
    id: str
    capability: str
    state: str
    what: str
    modules: str
    commands: str
    tests: str
    figure: str


def rows() -> list[Row]:
    found = re.findall(r"^\| ([A-J]\d+) (\|.*)\|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return [Row(name, *(cell.strip() for cell in cells[1:].split("|"))) for name, cells in found]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_capability_is_there_once_and_in_order() -> None:
    assert [row.id for row in rows()] == [
        f"{group}{number}" for group, last in ROWS.items() for number in range(1, last + 1)
    ]


def test_what_works_says_where_and_is_tested() -> None:
    for row in rows():
        assert row.state in STATES, row.id
        if row.state == "not yet":
            assert not (row.what or row.modules or row.commands or row.tests or row.figure), row.id
        else:
            assert row.what, row.id
            assert quoted(row.modules), row.id
            assert quoted(row.tests), row.id


def test_what_is_named_exists() -> None:
    missing = []
    for row in rows():
        missing += [
            f"{row.id}: {name}"
            for name in quoted(row.modules)
            if not any((ROOT / "src" / within / name).exists() for within in ("poise", ""))
        ]
        missing += [
            f"{row.id}: {name}" for name in quoted(row.tests) + quoted(row.figure) if not (ROOT / name).exists()
        ]
        missing += [f"{row.id}: {name}" for name in quoted(row.commands) if name.removeprefix("poise ") not in COMMANDS]
    assert missing == []


def test_the_count_at_the_top_is_right() -> None:
    counts = [sum(row.state == state for row in rows()) for state in STATES]
    said = "{} rows work, {} work partly, {} are not there yet".format(*counts)
    assert said in PAGE.read_text(encoding="utf-8")
