"""What `poise top` shows, and in which space."""

import click
import pytest

from poise.cli.top import Meter, Use, frame
from poise.kernel.overview import SHOWN, overview, rates
from poise.model.events import Placed
from poise.model.reports.status import Overview
from poise.testing import World
from poise.units import SECOND


def told(world: World) -> Overview:
    return overview(world.ledger, world.now, lambda _: None, rates(reversed(world.log), world.now), accepting=True)


def busy() -> World:
    world = World().nodes(3, cpu=2, gpus=1).job("train", gpu=1, cpu=2, tenant="research").round().start("train")
    return (
        world.job("next", cpu=2, priority="urgent").job("big", workers=3, cpu=2).job("last", after=["big"]).after("2s")
    )


def test_the_first_reason_of_everything_that_waits() -> None:
    world = busy()
    shown = told(world)
    assert [(unit.unit, unit.priority) for unit in shown.waiting] == [("j3.main", "medium")]
    assert shown.waiting[0].why == world.reasons("big")[0].sentence()
    assert (shown.queue, shown.blocked, shown.unfinished) == ({"medium": 1}, 1, 4)
    assert {task.task for task in shown.running} == {"j1.main", "j2.main"}
    assert shown.running[0].user == ""
    assert (shown.nodes[0].name, shown.nodes[0].devices_used, shown.nodes[0].cpu_used) == ("n1", 1, 2000)


def test_rates_are_of_the_latest_seconds() -> None:
    world = busy()
    placed = sum(len(event.spots) for event in world.log if isinstance(event, Placed))
    assert placed == 2
    assert rates(reversed(world.log), world.now).starts == pytest.approx(placed / 2, rel=0.1)
    assert rates(reversed(world.log), world.now + 60 * SECOND) == (0, 0, 0)
    assert rates([], world.now) == (0, 0, 0)


def test_much_is_counted_and_not_told() -> None:
    world = World().nodes(100, cpu=1)
    for _ in range(3):
        world.job(parts=100, cpu=1)
    shown = told(world.round())
    assert (len(shown.nodes), shown.more_nodes) == (SHOWN, 100 - SHOWN)
    assert (len(shown.running), shown.more_running) == (SHOWN, 100 - SHOWN)
    assert (len(shown.waiting), shown.more_waiting) == (SHOWN, 200 - SHOWN)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 12), (200, 60), (80, 3), (10, 24)])
def test_a_frame_keeps_to_its_space(width: int, height: int) -> None:
    world = World().nodes(40, cpu=1).job("a-job-with-a-rather-long-name", parts=100, cpu=1).round()
    lines = frame(told(world), {}, width, height)
    assert len(lines) <= height
    assert max(len(click.unstyle(line)) for line in lines) <= width


def test_every_part_is_shown_in_a_small_terminal() -> None:
    world = World().nodes(40, cpu=1).job(parts=100, cpu=1).round()
    text = [click.unstyle(line) for line in frame(told(world), {}, 80, 24, note="no answer")]
    assert text[0] == "poise, policy poise; nodes: 40 up; unfinished jobs: 1"
    assert text[1].startswith("60 wait (60 medium); ")
    assert text[2] == "no answer"
    heads = [line for line in text if line.split(" ", 1)[0] in ("NODE", "TASK", "WAITS")]
    assert [line.rpartition("   ")[2] for line in heads] == ["(+ 35)", "(+ 35)", "(+ 55)"]


def test_scrolling_moves_what_does_not_fit() -> None:
    world = World().nodes(40, cpu=1).round()
    first, later = (frame(told(world), {}, 80, 24, scroll) for scroll in (0, 5))
    assert first[:3] == later[:3]
    assert "n1 " in first[4]
    assert "n1 " not in later[4]


def test_use_is_shown_where_it_is_known() -> None:
    lines = frame(told(busy()), {"j1.main": Use(cpu=1500, memory=3 << 30)})
    row = next(line for line in lines if line.startswith("j1.main"))
    assert "150 %" in row
    assert "3 GiB" in row


def test_a_process_that_is_not_the_task_is_not_taken_for_it() -> None:
    """A number alone may be another's: of this machine, or of the one where the task runs."""
    assert Meter().look(told(World().nodes(1).job("a").round().start("a")).running) == {}
