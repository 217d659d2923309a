"""What `poise demo` prints of runs that are made up: the real one is in `tests/system/test_demo.py`."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from needed import needs
from rich.console import Console

from poise.cli.main import main
from poise.model.history import RunReport, Spread, Use
from poise_lab.compare import Comparison
from poise_lab.demo import compared, live
from poise_lab.demo.compared import Standing
from poise_lab.demo.drawing import live_parts, shown, strips, twin_parts
from poise_lab.demo.live import Live, Moment, Scene, Served, Trained, Urgent
from poise_lab.demo.promises import promises

needs("sklearn", "demo")

SCENE = Scene(
    at=10.0,
    held=(
        (0.0, {"slow 0": "service"}),
        (5.0, {"slow 0": "service", "fast 0": "training"}),
        (7.5, {"fast 0": "urgent"}),
    ),
    moments=(Moment(at=1.0, text="training: starts"), Moment(at=5.0, text="kill -9: the agent", kind="kill")),
)
REPORT = RunReport(
    version="", asked=(), begins=0.0, length=1, first=0, last=0, policy="poise", statuses={}, tasks=0, attempts=0,
    failed=0, retried=0, yielded=0, makespan=0, completion=Spread(), waiting=Spread(), cpu=Use(offered=0),
    devices=Use(offered=0), lanes=(), levels=(), jobs=(), failures=(), yields=(), classes=(), happenings=(),
    left_out={},
)  # fmt: skip
TOLD = Live(
    seconds=10.0,
    service=Served(objective=0.25, asked=100, answered=100, in_time=100, p50=0.01, p99=0.02, kept=True),
    urgent=Urgent(deadline=12.0, waited=0.05, took=4.0, met=True, same=True),
    training=Trained(workers=(3, 1, 3), fewest=1, took=9.0, accuracy=0.9, weights="00", same=True),
    killed=("a training worker",),
    restarted=(),
    use=0.95,
    scene=SCENE,
    report=REPORT,
    dashboard="<title>kept</title>",
)
STANDINGS = [
    Standing(policy="poise", met=2, deadlines=2, urgent_wait=0, other_wait=9, completion=9, held=0.5, preempted=4),
    Standing(policy="fifo", met=1, deadlines=2, urgent_wait=9, other_wait=9, completion=5, held=0.5, preempted=0),
]


def printed(*parts: Any) -> list[str]:
    console = Console(file=StringIO(), width=120)
    for part in parts:
        console.print(part)
    assert isinstance(console.file, StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_strips_show_who_held_a_device_and_when_something_was_killed() -> None:
    lines = {line[:9].strip(): line[9:] for line in printed(strips(SCENE))}
    assert lines["fast 0"] == "·" * 35 + "▒" * 18 + "█" * 19
    assert lines["slow 0"] == "░" * 53 + "·" * 19
    assert lines["kill -9"] == " " * 36 + "✕"


def test_the_link_of_the_dashboard_is_printed_once_while_it_runs() -> None:
    console = Console(file=StringIO(), width=40)
    with shown(console) as show:
        show(SCENE)
        for _ in range(2):
            show(msgspec.structs.replace(SCENE, link="http://127.0.0.1:7719/#link=abcdefghijklmnopqrstuvwxyz"))
    assert isinstance(console.file, StringIO)
    said = console.file.getvalue().splitlines()
    assert said.count("dashboard: http://127.0.0.1:7719/#link=abcdefghijklmnopqrstuvwxyz") == 1


def test_a_promise_that_was_not_kept_says_so() -> None:
    assert TOLD.kept
    assert {kept for _, _, kept in promises(TOLD)} == {"yes", ""}
    late = msgspec.structs.replace(TOLD, urgent=msgspec.structs.replace(TOLD.urgent, took=13.0, met=False))
    assert not late.kept
    [[_, text, _]] = [row for row in promises(late) if row[2] == "NO"]
    assert "NOT before its deadline" in text
    again = msgspec.structs.replace(TOLD, restarted=("j1.main",))
    assert not again.kept
    assert [name for name, _, kept in promises(again) if kept == "NO"] == ["kill -9"]


def test_the_story_is_printed_where_it_was_not_seen() -> None:
    assert "  1.0 s  training: starts" in printed(*live_parts(TOLD, story=True))
    assert "  1.0 s  training: starts" not in printed(*live_parts(TOLD, story=False))


def test_the_best_of_each_column_is_marked() -> None:
    rows = {line.split()[0]: line.count("*") for line in printed(*twin_parts(STANDINGS)) if line.split()}
    assert (rows["poise"], rows["fifo"]) == (4, 4)


@pytest.mark.parametrize("kept", [True, False])
def test_json_is_one_value_beside_the_page(
    kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = TOLD if kept else msgspec.structs.replace(TOLD, restarted=("j1.main",))
    comparison = Comparison(
        trace="jobs", fleet="unequal", nodes=1, devices={}, world="", faults=(), information="estimated", load=1.0,
        seed=0, skipped={}, notes=(), trials=(),
    )  # fmt: skip
    monkeypatch.setattr(live, "run", lambda folder, show: show(SCENE) or told)
    monkeypatch.setattr(compared, "run", lambda: comparison)
    monkeypatch.setattr(compared, "standings", lambda told: STANDINGS)
    monkeypatch.setattr("poise_lab.demo.page.panels.draw", lambda page, told: None)
    page = tmp_path / "page.html"
    assert main(["demo", "--json", "--report", str(page)]) == (0 if kept else 2)
    captured = capsys.readouterr()
    value = json.loads(captured.out)
    assert value["live"]["kept"] is kept
    assert Path(value["dashboard"]).read_text() == "<title>kept</title>"
    assert [row["policy"] for row in value["twin"]] == ["poise", "fifo"]
    assert "kill -9: the agent" in captured.err
    assert "kill -9: the agent" in page.read_text()


def test_a_page_that_cannot_be_written_is_refused_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--report", str(tmp_path / "none" / "page.html")]) == 1
    assert "--report" in capsys.readouterr().err
