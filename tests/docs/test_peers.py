"""docs/explanation/beside-the-peers.md: two tables; what is said of Poise is shown by what is there."""

import re
from pathlib import Path
from typing import NamedTuple

import click

from poise.cli.group import poise
from poise.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "explanation" / "beside-the-peers.md"
FEATURES = 41
ROWS = 28
PEERS = ("Slurm", "Ray", "Kueue, Volcano, KAI", "SkyPilot", "HyperQueue")
SOURCES = (
    "slurm.schedmd.com",
    "docs.ray.io",
    "kueue.sigs.k8s.io",
    "kubernetes.io",
    "docs.skypilot.co",
    "github.com",
)
"""Where the peers' own documentation and source lie: the only places to which a page of ours links."""

CELL = re.compile(rf"unknown|\[(?:yes|partly|no)\]\(https://(?:{'|'.join(map(re.escape, SOURCES))})/[^)\s]+\)(?:: .+)?")


class Row(NamedTuple):
    number: str
    what: str
    peers: tuple[str, ...]
    ours: str
    shown_by: tuple[str, ...]


def features() -> list[tuple[str, str, list[str], list[str]]]:
    """Of each row of the first table its number, the verdict on Poise, those on peers, and what shows it."""
    first, _, _ = PAGE.read_text(encoding="utf-8").partition("\n## 28 features")
    found = []
    for line in first.splitlines():
        if re.match(r"\| \d+ \|", line):
            number, _, ours, *peers, shown = (cell.strip() for cell in line.strip("|").split("|"))
            found.append((number, ours.split("**")[1], peers, re.findall(r"`([^`]+)`", shown)))
    return found


def rows() -> list[Row]:
    found = []
    _, _, second = PAGE.read_text(encoding="utf-8").partition("\n## 28 features")
    for line in second.splitlines():
        if re.match(r"\| \d+ \|", line):
            number, what, *peers, ours, shown = (cell.strip() for cell in line.strip("|").split("|"))
            found.append(Row(number, what, tuple(peers), ours, tuple(re.findall(r"`([^`]+)`", shown))))
    return found


def is_there(name: str) -> bool:
    """A command, a command with an option, a file, or a test in a file."""
    if name.startswith("poise "):
        _, command, *options = name.split()
        return command in COMMANDS and set(options) <= options_of(command)
    path, _, test = name.partition("::")
    file = ROOT / path
    return file.exists() and (not test or f"\ndef {test}(" in file.read_text(encoding="utf-8"))


def options_of(command: str) -> set[str]:
    found = poise.get_command(click.Context(poise), command)
    assert found is not None
    each = list(found.commands.values()) if isinstance(found, click.Group) else [found]
    return set.intersection(*({option for parameter in of.params for option in parameter.opts} for of in each))


def test_every_feature_has_a_verdict_that_is_shown() -> None:
    assert [number for number, *_ in features()] == [str(number) for number in range(1, FEATURES + 1)]
    wrong = []
    for number, ours, peers, shown in features():
        assert {ours, *peers} <= {"yes", "partly", "no"}, number
        assert len(peers) == 7, number
        assert shown, number
        wrong += [f"{number}: {name}" for name in shown if is_there(name) == (ours == "no")]
    assert wrong == []


def test_the_counts_of_features_are_right() -> None:
    verdicts = [ours for _, ours, *_ in features()]
    counts = "{} yes, {} partly, {} no".format(*(verdicts.count(word) for word in ("yes", "partly", "no")))
    assert counts in PAGE.read_text(encoding="utf-8")


def test_there_are_so_many_rows_and_every_cell_of_a_peer_has_its_source() -> None:
    assert [row.number for row in rows()] == [str(number) for number in range(1, ROWS + 1)]
    assert f"| {' | '.join(PEERS)} | Poise | shown by |" in PAGE.read_text(encoding="utf-8")
    wrong = [
        f"{row.number} {peer}: {cell}"
        for row in rows()
        for peer, cell in zip(PEERS, row.peers, strict=True)
        if not CELL.fullmatch(cell)
    ]
    assert wrong == []


def test_what_we_say_of_us_is_shown_by_what_is_there() -> None:
    wrong = []
    for row in rows():
        assert row.ours in ("yes", "partly", "not yet"), row.number
        assert row.shown_by, row.number
        missing = [name for name in row.shown_by if not is_there(name)]
        if row.ours != "not yet":
            wrong += [f"{row.number}: there is no {name}" for name in missing]
        elif not missing:
            wrong.append(
                f"{row.number}: {', '.join(row.shown_by)} is there now; say yes, and name the test that shows it"
            )
    assert wrong == []


def test_what_is_not_there_is_seen() -> None:
    assert is_there("poise plan --json")
    assert not is_there("poise plan --no-such-option")
    assert not is_there("poise no-such-command")
    assert not is_there("tests/docs/test_peers.py::test_no_such_test")


def test_every_command_gives_json() -> None:
    assert [command for command in COMMANDS if "--json" not in options_of(command)] == []
