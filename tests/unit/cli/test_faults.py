"""`poise faults` as typed."""

import json
from pathlib import Path

import pytest

from poise.cli.main import main

NEMESIS = """\
kind: nemesis
name: mine
faults:
  - {fault: FAULT, every: EVERY, amount: AMOUNT}
"""


def test_a_seed_is_one_value_and_names_what_it_met(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["faults", "--seed", "3", "--until", "5s", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["seed"], told["promise"], told["seconds"]) == (3, "", 5.0)
    assert 1 <= len(told["nemeses"]) <= 4
    assert main(["faults", "--seed", "3", "--until", "5s"]) == 0
    shown = capsys.readouterr()
    assert all(name in shown.err for name in told["nemeses"])
    assert shown.out.splitlines()[0].split()[1] == "began"


@pytest.mark.parametrize(
    "line",
    [
        "--seed 1 --seeds 2",
        "--seed 1 --first 2",
        "--list --seed 1",
        "--until 5s",
        "--seed 1 --until banana",
        "--seed 99999999999999999999999",
        "--nemesis lossyy",
        "--scenario .",
        "--keep /proc/nope",
    ],
)
def test_what_makes_no_sense_is_refused(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["faults", "--json", *line.split()]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["code"].startswith("E1")


@pytest.mark.parametrize(
    ("fault", "every", "amount", "wrong"),
    [
        ("lose-messages", "20s", "5", "faults[0].amount"),
        ("lose-messages", "20s", "0", "faults[0].amount"),
        ("late-messages", "20s", "-3", "faults[0].amount"),
        ("slow-disk", "20s", ".nan", "faults[0].amount"),
        ("kill-task", "1ns", "0", "faults[0].every"),
        ("kill-task", "soon", "0", "faults[0].every"),
        ("kill-tsk", "1s", "0", "faults[0].fault"),
    ],
)
def test_a_nemesis_is_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: str, every: str, amount: str, wrong: str
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(NEMESIS.replace("FAULT", fault).replace("EVERY", every).replace("AMOUNT", amount))
    assert main(["faults", "--json", "--seeds", "1", "--nemesis", str(file)]) == 1
    assert wrong in json.loads(capsys.readouterr().out)["error"]["field"]
