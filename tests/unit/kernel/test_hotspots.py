"""Hot spots: where the time of jobs goes."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from poise.cli.main import main
from poise.config import Home
from poise.drivers.sqlite import SqliteStore
from poise.kernel.hotspots import HotSpotFinder
from poise.kernel.ledger import Ledger
from poise.model.events import decode_event, encode_event
from poise.model.hotspots import HotSpot
from poise.model.messages import Report, Told
from poise.model.training import Saved, Training
from poise.testing import WALL, World
from poise.units import SECOND


def spots(world: World, order: str = "total", since: int = 0) -> dict[str, HotSpot]:
    finder = HotSpotFinder(Ledger(), since)
    for event in world.log:
        finder.add(event)
    return {spot.step: spot for spot in finder.report(order, 20).spots}  # type: ignore[arg-type]


def two_after_each_other() -> World:
    """One waits 4 s for the other; it fails after 3 s, and is done after 5 s more."""
    world = World().nodes(1, cpu=1).job("a").round().start("a").job("b", retry={"limit": 1, "when": ["failed"]})
    world = world.round().after("4s").finish("a", run="4s").round().start("b").after("3s")
    world = world.finish("b", outcome="failed", code=1, run="3s").after("2s").round().start("b").after("5s")
    return world.finish("b", run="5s")


def test_time_is_added_up_by_step() -> None:
    found = spots(two_after_each_other())
    assert {step: (spot.count, round(spot.total / SECOND)) for step, spot in found.items()} == {
        "waiting": (3, 4), "starting": (3, 1), "running": (2, 9), "lost": (1, 3)
    }  # fmt: skip
    assert found["waiting"].where == "j2.main#1" and "CPU free" in found["waiting"].why
    assert found["running"].mean == found["running"].total // 2 and found["running"].where == "j2.main#2"
    assert found["lost"].why == "failed"
    assert sum(spot.share for spot in found.values()) in range(990, 1001)


def test_by_frequency_and_by_mean() -> None:
    world = two_after_each_other()
    assert list(spots(world, "count"))[-1] == "lost"
    assert next(iter(spots(world, "mean"))) == "running"


def test_only_what_has_ended_since() -> None:
    world = two_after_each_other()
    assert not spots(world, since=round((world.wall + 1) * SECOND))
    late = spots(world, since=round((WALL + (world.now / SECOND) - 2) * SECOND))
    assert list(late) == ["running"]


def three_reports_of_two_checkpoints() -> World:
    world = World().nodes(1).job("train").round().start("train")
    attempt, node = world._attempt("train")
    for step in (10, 10, 20):
        saved = Saved(step=step, took=3 * SECOND, stall=1 * SECOND, slowed=2 * SECOND)
        told = Told(attempt=attempt, training=Training(step=step + len(world.log), checkpoint=saved))
        world.after("6s").hear(node, Report(serial=world._serial(), told=(told,)))
    return world


def test_a_checkpoint_counts_once() -> None:
    saving = spots(three_reports_of_two_checkpoints())["saving"]
    assert (saving.count, saving.total) == (2, 4 * SECOND)


@pytest.mark.parametrize("make", [two_after_each_other, three_reports_of_two_checkpoints])
def test_any_state_of_the_ledger_is_a_start(make: Callable[[], World]) -> None:
    log = make().log
    for revision in range(1, len(log)):
        ledger = Ledger()
        for event in log[:revision]:
            ledger.apply(event)
        since = round(ledger.leader.wall(ledger.now) * SECOND) + 1
        found = []
        for finder, events in ((HotSpotFinder(ledger, since), log[revision:]), (HotSpotFinder(Ledger(), since), log)):
            for event in events:
                finder.add(event)
            found.append(finder.report("total", 20))
        assert found[0] == found[1], revision


def test_as_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("POISE_HOME", str(tmp_path))
    assert main(["hotspots"]) == 0
    assert "no task has been placed" in capsys.readouterr().err
    store = SqliteStore(Home(tmp_path).log, encode_event, decode_event, call_soon=lambda call, *of: call(*of))
    world = two_after_each_other()
    store.append(world.log, expected=0)
    store.close()
    assert main(["hotspots"]) == 0
    assert "CPU free" in capsys.readouterr().out
    assert main(["hotspots", "--by", "mean", "--limit", "1", "-o", "json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert [spot["step"] for spot in value["spots"]] == ["running"] and value["left_out"] == 3
    assert main(["hotspots", "--since", "soon"]) == 1
