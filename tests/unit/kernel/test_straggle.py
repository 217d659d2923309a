"""Stragglers: found beside their like, rarely for nothing, and moved when that wins."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from poise.kernel.explain import question
from poise.kernel.straggle import FEWEST, LEAST_RATIO, deviations, usual
from poise.model.events import Preempted, Straggling
from poise.testing import World
from poise.units import SECOND

PARTS = FEWEST + 1
LAST = f"p.main[{PARTS - 1}]"


def parts_but_one_done(
    run: str = "1m", nodes: int = 1, cut: Mapping[str, Any] = {"parts": PARTS}, **fields: Any
) -> World:
    """Parts that ran for a minute, and one that runs on."""
    world = World().nodes(nodes, cpu=PARTS).job("p", **cut, **fields).round()
    world.start(*(f"p.main[{part}]" for part in range(PARTS))).after(run)
    return world.finish(*(f"p.main[{part}]" for part in range(PARTS - 1)), run=run)


def reports(world: World) -> list[Straggling]:
    return [event for event in world.log if isinstance(event, Straggling)]


def test_what_takes_longer_than_its_like_is_reported_once_with_evidence() -> None:
    world = parts_but_one_done().after("25s")
    assert not reports(world)
    world.after("12s")
    [seen] = reports(world)
    assert (seen.task, seen.epoch, seen.node, seen.expected, seen.siblings) == ("j1.main[12]", 1, "n1", 60 * SECOND, 12)
    assert 90 * SECOND < seen.ran < 97 * SECOND
    assert [reason.sentence() for reason in world.reasons(LAST)] == [
        "n1: takes longer than similar tasks, which took 1m0s"
    ]
    told = question(world.ledger, world.state("p"), world.controller.snapshot(world.now), units=[world.unit(LAST)])
    assert "12 of its like took 1m0s" in told.story[-1].text
    assert len(reports(world.after("5m").restart().after("5m"))) == 1
    world.finish(LAST, outcome="killed").after("2s")
    assert not world.codes(LAST), "another attempt, another judgement"


def test_what_is_not_alike_is_not_compared() -> None:
    swept = parts_but_one_done(cut={"sweep": {"x": f"1..{PARTS}"}})
    assert not reports(swept.after("10m"))


def test_few_short_and_uneven_runs_say_nothing() -> None:
    assert usual([60 * SECOND] * (FEWEST - 1)) is None
    assert not reports(parts_but_one_done(run="1s").after("25s"))
    uneven = usual([10 * SECOND, 60 * SECOND] * FEWEST)
    assert uneven is not None
    assert uneven.most > 3600 * SECOND


def test_a_member_of_a_gang_is_compared_with_the_others() -> None:
    world = World().nodes(1, cpu=PARTS).job("g", workers=PARTS).round()
    world.start(*(f"g.main[{rank}]" for rank in range(PARTS))).after("1m")
    world.finish(*(f"g.main[{rank}]" for rank in range(PARTS - 1)), run="1m").after("40s")
    assert [seen.task for seen in reports(world)] == [f"j1.main[{PARTS - 1}]"]


def test_a_node_that_is_not_heard_may_have_ended_it_already() -> None:
    world = parts_but_one_done()
    world.disconnect("n1").after("2s")
    assert not reports(world.after("10m"))


def test_it_is_moved_where_that_wins() -> None:
    world = parts_but_one_done(nodes=2, checkpoint="10s")
    [slow] = world.where(LAST)
    world.after("50s")
    [order] = [event for event in world.log if isinstance(event, Preempted)]
    assert (order.unit, order.cause) == ("j1.main[12]", "move")
    assert world.where(LAST) != [slow]
    assert world.where(LAST) != []


@pytest.mark.parametrize("fields", [{"preemptible": False}, {"checkpoint": {"every": "10s", "restore": "1h"}}])
def test_it_is_left_where_it_is_if_moving_does_not_win(fields: dict[str, Any]) -> None:
    world = parts_but_one_done(nodes=2, **fields).after("2m")
    assert reports(world)
    assert not [event for event in world.log if isinstance(event, Preempted)]


@pytest.mark.parametrize("sigma", [0.02, 0.1, 0.3, 1.0])
def test_100_days_of_a_node_see_at_most_one_false_alarm(sigma: float) -> None:
    """Jobs of 60 parts of a minute: each part from the 13th on is compared with all before it. 2.9 million attempts, 8
    at once, are 250 days of a node."""
    jobs, parts = 60_000, 60
    logs = np.random.default_rng(5).normal(0.0, sigma, (jobs, parts))
    counts = np.arange(1, parts + 1)
    means = np.cumsum(logs, axis=1) / counts
    spreads = np.sqrt(np.maximum(0, np.cumsum(logs**2, axis=1) - counts * means**2) / np.maximum(1, counts - 1))
    known = slice(FEWEST - 1, parts - 1)
    limits = np.array([deviations(int(count)) for count in counts[known]])
    most = means[:, known] + np.maximum(np.log(LEAST_RATIO), limits * spreads[:, known])
    compared = logs[:, FEWEST:]
    days = compared.size / 8 / (24 * 60)
    assert compared.size > 2_800_000
    assert (compared > most).sum() <= days / 100


def test_one_at_half_the_speed_is_found_before_it_ends() -> None:
    runs = np.exp(np.random.default_rng(1).normal(np.log(600), 0.04, 30)) * SECOND
    known = usual([int(run) for run in runs])
    assert known is not None
    assert 1.45 * 600 * SECOND < known.most < 2 * 600 * SECOND
