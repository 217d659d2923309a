"""docs/numbers.md: each target with its verdict, the page that has the rest, and a command that exists."""

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from poise.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "numbers.md"
VERDICTS = {"yes": "met", "**no**": "missed", "": "pending"}

sys.path.append(str(ROOT / "docs"))
generate = import_module("generate")


class Row(NamedTuple):
    page: str
    figure: str
    target: str
    measured: str
    verdict: str
    command: str


def rows() -> list[Row]:
    found = re.findall(
        r"^\| \[[\w ]+\]\((\S+)\) \| (.*) \| (.*) \| (.*) \| (.*) \| `(.*)` \|$",
        PAGE.read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    return [Row(*cells) for cells in found]


def is_there(command: str) -> bool:
    """A benchmark, a target of the Makefile, or a command of Poise."""
    first, *rest = command.split()
    if first == "make":
        return re.search(rf"^{rest[0]}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE) is not None
    return rest[0] in COMMANDS if first == "poise" else (ROOT / first).exists()


def test_every_target_has_a_verdict_a_page_and_a_command() -> None:
    assert rows()
    for row in rows():
        assert row.verdict in VERDICTS, row.figure
        assert row.measured, row.figure
        assert row.target or row.verdict == "", row.figure
        assert (PAGE.parent / row.page).exists(), row.page
        assert is_there(row.command), row.command


def test_the_counts_at_the_top_are_right() -> None:
    met, missed = (sum(row.verdict == verdict for row in rows()) for verdict in ("yes", "**no**"))
    assert f"{met} targets are met, {missed} are missed" in PAGE.read_text(encoding="utf-8")


def test_what_is_measured_of_a_target_is_on_the_page_of_its_area() -> None:
    """The first number of each figure, so that the two cannot drift apart."""
    lost = []
    for row in rows():
        number = re.search(r"\d+(?:[.,]\d+)*", row.measured)
        if (
            number
            and "traces" not in row.measured
            and number[0] not in (PAGE.parent / row.page).read_text(encoding="utf-8")
        ):
            lost.append(f"{row.figure}: {row.measured}")
    assert lost == []


def test_every_page_of_figures_names_commands() -> None:
    pages = sorted((ROOT / "docs" / "numbers").glob("*.md"))
    assert len(pages) > 5
    assert [page.name for page in pages if not re.search(r"benchmarks/\w+\.py", page.read_text(encoding="utf-8"))] == []


def test_missed_targets_of_faults_are_shown_by_name() -> None:
    rows = [("a", "1 s", "≤ 2 s", "yes"), ("no target", "1 s", "", ""), ("fault 1", "1 s", "≤ 2 s", "yes")]
    faults = [rows[2], ("fault 2", "3 s", "≤ 2 s", "**no**")]
    shown = generate.with_targets([*rows, faults[1]], faults)
    assert [(row[0], row[1], row[3]) for row in shown] == [
        ("a", "1 s", "yes"),
        ("faults done to a live Poise, and kills of its control plane: figures", "1 of 2", "**no**"),
        ("fault 2", "3 s", "**no**"),
    ]
