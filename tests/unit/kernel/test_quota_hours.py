"""Quotas that differ by the hour."""

from typing import Any

import pytest

from poise.errors import SpecError
from poise.model.events import QuotaTurned
from poise.model.quotas import BASE
from poise.model.spec import QuotaSpec, compile_quota
from poise.testing import World, replay


def night(world: World, **fields: Any) -> World:
    """The world begins on Tuesday, 2023-11-14 at 22:13:20 UTC."""
    return world.quota("team-a", cpu=1, hours=("23:00-06:00 mon-fri cpu=4",), **fields)


def test_more_may_run_at_night_and_what_runs_in_the_morning_stays() -> None:
    world = night(World().nodes(1, cpu=8))
    for name in ("a", "b"):
        world.job(name, cpu=1, tenant="team-a")
    world.round()
    assert [world.status("a"), world.status("b")] == ["placed", "pending"]
    world.after("47m").round()
    assert world.status("b") == "placed"
    world.after("7h").job("c", cpu=1, tenant="team-a").round()
    assert (world.status("a"), world.codes("c")) == ("placed", ["QUOTA"])
    turned = [event.turn for event in world.log if isinstance(event, QuotaTurned)]
    assert turned == [0, BASE]
    assert replay(world.log).encode() == world.ledger.encode()


def test_hours_are_on_the_clock_of_their_time_zone() -> None:
    world = night(World().nodes(1, cpu=8), time_zone="Europe/Zurich").after("1s")
    assert world.ledger.quotas["team-a"].turn == 0  # 23:13 in Zurich


def test_the_same_quota_again_changes_nothing() -> None:
    world = night(World().nodes(1, cpu=8)).after("1h")
    before = world.ledger.revision
    night(world)
    assert world.ledger.revision == before


def test_a_wall_clock_that_is_set_changes_the_hours_within_a_minute() -> None:
    world = night(World().nodes(1, cpu=8)).after("1s")
    world.ahead = 3600
    world.after("61s")
    assert world.ledger.quotas["team-a"].turn == 0


def test_work_that_fits_into_the_quota_of_some_hours_is_accepted() -> None:
    world = night(World().nodes(1, cpu=8)).job("large", cpu=3, tenant="team-a").round()
    assert world.codes("large") == ["QUOTA"]


@pytest.mark.parametrize(
    ("hours", "begins", "ends"),
    [
        ("20:00-06:00 mon-fri gpu=8", "0 20 * * 1,2,3,4,5", "0 6 * * 2,3,4,5,6"),
        ("09:00-17:30 gpu=8", "0 9 * * *", "30 17 * * *"),
        ("00:00-24:00 sat,sun gpu=8", "0 0 * * 0,6", "0 0 * * 0,1"),
        ("00:00-24:00 fri-mon gpu=8", "0 0 * * 1,0,6,5", "0 0 * * 1,0,2,6"),
    ],
)
def test_hours_become_cron_times(hours: str, begins: str, ends: str) -> None:
    [found] = compile_quota(QuotaSpec(gpu=1, hours=(hours,))).hours
    assert (sorted(found.begins), sorted(found.ends)) == (sorted(begins), sorted(ends))
    assert (found.gpus, found.told) == (8000, hours)


@pytest.mark.parametrize(
    "hours",
    [
        *("", "20:00", "20:00-06:00", "25:00-06:00 gpu=1", "20:00-06:00 mon-xyz gpu=1", "20:00-06:00 disk=1"),
        "x gpu=1",
        *("20:00-06:00 gpu=1 gpu=8", "20:00-06:00 mon tue gpu=1"),
    ],
)
def test_hours_that_cannot_be_read_are_refused(hours: str) -> None:
    with pytest.raises(SpecError, match="hours cannot be read"):
        compile_quota(QuotaSpec(gpu=1, hours=(hours,)))
