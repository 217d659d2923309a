"""Schedules submit a job at each turn: once, whoever leads, and in no time zone but theirs."""

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from poise.drivers.calendar import around
from poise.errors import Conflict, NotFound, PoiseError, SpecError
from poise.kernel.ledger import Ledger, ScheduleState
from poise.kernel.messages import AddToken, RevokeToken, Submit
from poise.kernel.visible import Sight
from poise.model.events import JobSubmitted, ScheduleAdded, ScheduleTurn
from poise.model.secrets import Sealed
from poise.model.tenants import DEFAULT, HOME, Bearer, Role
from poise.testing import WALL, World, replay
from poise.units import HOUR, MINUTE, SECOND

ANN = Bearer("ann", Role.SUBMITTER)
ZURICH = ZoneInfo("Europe/Zurich")
IN_ZURICH = {"time-zone": "Europe/Zurich"}


def world(**settings: Any) -> World:
    """With room for many, and no node that falls silent while hours pass."""
    return World(dead_after=0, **settings).nodes(1, cpu=64)


def of(made: World, name: str) -> ScheduleState:
    found = made.ledger.schedules.find(name, Bearer(DEFAULT, Role.ADMIN))
    assert found is not None
    return found


def names(made: World) -> list[str]:
    return [job.name for job in made.ledger.jobs.values()]


def checked(made: World) -> World:
    """Replay and a restart, from the log or from a checkpoint, give the same ledger."""
    made.ledger.check()
    assert replay(made.log).encode() == made.ledger.encode()
    assert Ledger.decode(made.ledger.encode()).encode() == made.ledger.encode()
    return made


# --- every -----------------------------------------------------------------------------------------------------------


def test_a_job_is_submitted_now_and_each_time_that_much_has_passed() -> None:
    made = world().job("beat", every="1h", overlap="allow")
    assert (made.replies[-1].value, names(made)) == ("s1", [])
    made.tick()
    assert names(made) == ["beat-1"]
    assert names(made.after("59m")) == ["beat-1"]
    assert names(checked(made.after("2m"))) == ["beat-1", "beat-2"]
    assert [job.submitted for job in made.ledger.jobs.values()] == [SECOND, SECOND + HOUR]
    assert "job 2 of schedule beat, due " in made.state("beat-2").note


def test_a_schedule_without_a_name_goes_by_its_id() -> None:
    made = world().job(every="1h").tick()
    assert names(made) == ["s1-1"]


def test_the_wall_clock_moves_nothing_that_recurs_by_a_time() -> None:
    made = world().job("beat", every="10m", overlap="allow").tick()
    made.ahead = 5 * 3600.0
    assert names(made.after("1m")) == ["beat-1"]
    made.ahead = -5 * 3600.0
    assert names(made.after("10m")) == ["beat-1", "beat-2"]


@pytest.mark.parametrize("from_checkpoint", [False, True])
def test_what_was_due_while_nobody_was_there_is_one_turn(from_checkpoint: bool) -> None:
    made = world().job("beat", every="1h", overlap="allow").tick()
    made.now += 3 * HOUR + 5 * MINUTE
    checked(made.restart(from_checkpoint=from_checkpoint)).tick()
    assert names(made) == ["beat-1", "beat-2"]
    turn = [event for event in made.log if isinstance(event, ScheduleTurn)][-1]
    assert (turn.due, turn.missed, turn.next) == (SECOND + 3 * HOUR, SECOND + HOUR, SECOND + 4 * HOUR)
    assert "since the control plane was away" in made.state("beat-2").note
    assert names(made.after("55m")) == ["beat-1", "beat-2", "beat-3"]


# --- cron ------------------------------------------------------------------------------------------------------------


def at(made: World, text: str) -> World:
    """Somebody sets the wall clock to a time in Zurich."""
    made.ahead = 0.0
    made.ahead = datetime.fromisoformat(text).replace(tzinfo=ZURICH).timestamp() - made.wall
    return made.tick()


def due(made: World, name: str) -> str:
    return datetime.fromtimestamp(of(made, name).due / SECOND, ZURICH).isoformat()


def test_a_job_is_submitted_at_times_of_day() -> None:
    made = at(world(), "2026-12-01T02:00:00").job("nightly", cron="0 3 * * *", **IN_ZURICH)
    assert due(made, "nightly") == "2026-12-01T03:00:00+01:00"
    assert names(made.after("59m")) == []
    assert names(checked(made.after("1m"))) == ["nightly-1"]
    assert made.state("nightly-1").note == "job 1 of schedule nightly, due 2026-12-01T02:00:00Z"
    assert due(made, "nightly") == "2026-12-02T03:00:00+01:00"


def test_the_time_zone_is_utc_unless_another_is_given() -> None:
    made = world().job("a", cron="0 3 * * *")
    assert of(made, "a").rule.zone == "UTC"
    assert of(made, "a").due == int(WALL // 86_400 + 1) * 86_400 * SECOND + 3 * HOUR


@pytest.mark.parametrize(
    ("cron", "begin", "turns"),
    [
        ("30 2 * * *", "2026-03-28T03:00:00", ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]),
        ("30 2 * * *", "2026-10-24T03:00:00", ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]),
        ("0 */12 * * *", "2026-03-28T13:00:00", ["2026-03-29T00:00:00+01:00", "2026-03-29T12:00:00+02:00"]),
        ("30 * * * *", "2026-10-25T01:45:00", ["2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00"]),
    ],
)
def test_where_clocks_are_changed_nothing_is_lost_and_nothing_doubled(cron: str, begin: str, turns: list[str]) -> None:
    wall = int(datetime.fromisoformat(begin).replace(tzinfo=ZURICH).timestamp()) * SECOND
    for expected in turns:
        wall = around(cron, "Europe/Zurich", wall)[1]
        assert datetime.fromtimestamp(wall / SECOND, ZURICH).isoformat() == expected
        assert around(cron, "Europe/Zurich", wall)[0] == wall


def test_in_the_hour_that_comes_twice_the_next_time_is_to_come() -> None:
    second = int(datetime(2026, 10, 25, 2, 45, tzinfo=ZURICH, fold=1).timestamp()) * SECOND
    latest, following = around("50 2 * * *", "Europe/Zurich", second)
    assert latest <= second < following


def test_a_wall_clock_that_is_set_forward_is_noticed_and_one_set_back_repeats_nothing() -> None:
    made = at(world(), "2026-12-01T02:00:00").job("a", cron="0 3 * * *", **IN_ZURICH, overlap="allow")
    at(made, "2026-12-01T02:30:00").after("30m")
    assert names(made) == ["a-1"]
    at(made, "2026-12-01T02:30:00").after("2h")
    assert names(made) == ["a-1"]
    assert names(at(made, "2026-12-05T12:00:00")) == ["a-1", "a-2"], "several days are one turn"
    assert due(made, "a") == "2026-12-06T03:00:00+01:00"


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("held", [False, True])
def test_after_a_clock_was_years_ahead_a_schedule_follows_it_again(restarted: bool, held: bool) -> None:
    made = at(world(), "2026-12-01T02:00:00").job("a", cron="0 3 * * *", **IN_ZURICH, overlap="allow")
    at(made, "2036-06-01T12:00:00").job("b", cron="0 3 * * *", **IN_ZURICH)
    assert (names(made), due(made, "a")) == (["a-1"], "2036-06-02T03:00:00+02:00")
    if held:
        made.hold_schedule("a")
    at(made.restart() if restarted else made, "2026-12-01T02:10:00")
    if held:
        made.hold_schedule("a", False)
    assert {due(made, name) for name in "ab"} == {"2026-12-01T03:00:00+01:00"}
    assert of(made, "b").refused == "the clock was set back; the next job was due 2036-06-02T01:00:00Z"
    assert names(checked(made.after("50m"))) == ["a-1", "a-2", "b-1"]
    assert due(made, "a") == "2026-12-02T03:00:00+01:00"


def test_while_a_time_of_day_is_waited_for_the_wall_clock_is_looked_at() -> None:
    made = world().tick().job("a", cron="0 3 * * *")
    made.tick()
    assert made.controller.wakeup() == made.now + MINUTE
    made.hold_schedule("a")
    assert (made.controller.wakeup() or 2**62) > made.now + MINUTE


# --- exactly once ----------------------------------------------------------------------------------------------------


def test_a_kill_between_the_job_and_its_turn_submits_no_second_job() -> None:
    made = world().job("beat", every="1h").tick()
    turn = next(index for index, event in enumerate(made.log) if isinstance(event, ScheduleTurn))
    assert isinstance(made.log[turn - 1], JobSubmitted)
    made.durable = turn
    made.restart().tick()
    assert names(checked(made)) == ["beat-1"]
    assert (of(made, "beat").number, of(made, "beat").last) == (1, "j1")


def test_a_kill_before_the_job_submits_it_later() -> None:
    made = world().job("beat", every="1h").tick()
    made.durable = next(index for index, event in enumerate(made.log) if isinstance(event, JobSubmitted))
    made.restart().tick()
    assert names(checked(made)) == ["beat-1"]


def test_a_repeated_submission_is_one_schedule() -> None:
    made = world()
    compiled = made.controller.prepare({"run": "true", "every": "1h"}, WALL, made.now)
    for _ in range(2):
        made.ask(Submit(made.request(), compiled, "key"))
    assert [reply.value for reply in made.replies] == ["s1", "s1"]
    assert len(made.ledger.schedules) == 1


# --- overlap, and what is refused ------------------------------------------------------------------------------------


def test_by_default_no_job_is_submitted_while_the_last_is_unfinished() -> None:
    made = world().job("beat", every="1h").tick().round().start("beat-1").after("1h")
    assert (names(made), of(made, "beat").refused) == (["beat-1"], "j1 has not ended (have: skip)")
    checked(made).finish("beat-1").after("1h")
    assert (names(made), of(made, "beat").refused) == (["beat-1", "beat-2"], "")


def test_the_last_job_is_replaced() -> None:
    made = world().job("beat", every="1h", overlap="replace").tick().round().start("beat-1").after("1h")
    assert [made.status("beat-1"), names(made)] == ["cancelled", ["beat-1", "beat-2"]]
    checked(made)


def test_what_is_refused_is_told_and_the_next_turn_comes() -> None:
    made = world().job("beat", every="1h", overlap="allow").job("beat-1", hold=True).tick()
    assert of(made, "beat").refused == "the name `beat-1` is taken by an unfinished job (have: j1)"
    made.cancel("j1").after("1h")
    assert (names(made), of(made, "beat").refused) == (["beat-1", "beat-1"], "")
    made.quota("ann", cpu=1).job("big", every="1h", tenant="ann", cpu=1).quota("ann", cpu="0.5").tick()
    assert made.ledger.schedules["s2"].refused
    checked(made)


def test_a_schedule_ends_with_its_token() -> None:
    made = world()
    made.ask(AddToken(request=made.request(), tenant="ann", role=Role.SUBMITTER, hash="a" * 64))
    compiled = made.controller.prepare({"run": "true", "every": "1h", "overlap": "allow"}, WALL, made.now, "ann")
    made.ask(Submit(made.request(), compiled, bearer=Bearer("ann", Role.SUBMITTER, "t1"))).tick()
    made.ask(RevokeToken(made.request(), "t1")).after("1h")
    assert (len(made.ledger.jobs), made.ledger.schedules["s1"].refused) == (
        1,
        "its token t1 is no longer good (have: t1)",
    )


def test_a_time_zone_that_has_gone_holds_the_schedule_and_says_why() -> None:
    made = world().job("a", cron="* * * * *", **IN_ZURICH)

    def gone(cron: str, zone: str, wall: int) -> tuple[int, int]:
        raise SpecError("this time zone is not known", have=zone)

    made.controller.turns.calendar = gone
    made.after("2m")
    assert (of(made, "a").held, of(made, "a").refused) == (True, "this time zone is not known (have: Europe/Zurich)")


# --- hold, release, remove -------------------------------------------------------------------------------------------


def test_on_hold_nothing_is_submitted_and_nothing_is_made_up_for() -> None:
    made = world().job("beat", every="1h", overlap="allow").tick().hold_schedule("beat").after("5h")
    assert names(checked(made)) == ["beat-1"]
    checked(made.hold_schedule("beat", False)).tick()
    assert names(made) == ["beat-1", "beat-2"]
    made.hold_schedule("s1").hold_schedule("s1", False)
    assert names(checked(made.after("10m"))) == ["beat-1", "beat-2", "beat-3"]


def test_a_schedule_is_submitted_on_hold() -> None:
    made = world().job("beat", every="1h", hold=True).after("2h")
    assert (names(made), of(made, "beat").held) == ([], True)
    assert names(made.hold_schedule("beat", False).tick()) == ["beat-1"]
    assert not made.state("beat-1").hold


def test_a_removed_schedule_submits_nothing_and_its_jobs_stay() -> None:
    made = world().job("beat", every="1h", overlap="allow").tick().remove_schedule("beat")
    assert names(checked(made.after("2h"))) == ["beat-1"]
    with pytest.raises(NotFound, match="there is no schedule `beat`"):
        made.remove_schedule("beat")
    assert made.job("beat", every="1h").replies[-1].value == "s2", "ids are not given twice"


def test_jobs_of_a_schedule_can_be_removed() -> None:
    made = world().job("beat", every="1h").tick().round().start("beat-1").finish("beat-1").remove("beat-1")
    assert names(checked(made.after("1h"))) == ["beat-2"]


def test_names_of_schedules_are_unique_by_tenant() -> None:
    made = world().job("a", every="1h").job("a", every="1h", tenant="ann").job("a")
    with pytest.raises(Conflict, match="taken by a schedule"):
        made.job("a", every="2h")


def test_a_tenant_sees_its_own() -> None:
    made = world().job("a", every="1h").job("b", every="1h", tenant="ann")
    sight = Sight(made.ledger, ANN)
    assert [report.name for report in sight.schedules()] == ["b"]
    added = [sight.event(event) for event in made.log if isinstance(event, ScheduleAdded)]
    assert [event is not None for event in added] == [False, True]
    for name in ("a", "s1"):
        with pytest.raises(NotFound):
            made.remove_schedule(name, ANN)


def test_many_that_are_due_at_once_take_their_turns_in_parts() -> None:
    made = World(dead_after=0, check=False).nodes(1)
    for _ in range(300):
        made.job(every="1h")
    made.tick()
    assert len(made.ledger.jobs) == 256
    assert (made.controller.wakeup() or 0) <= made.now
    assert len(checked(made.tick()).ledger.jobs) == 300


# --- what can recur --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"every": "1h", "cron": "* * * * *"}, "cron"),
        ({"every": "1h", "time-zone": "UTC"}, "time-zone"),
        ({"every": "10ms"}, "every"),
        ({"every": "soon"}, "every"),
        ({"cron": "0 3 * *"}, "cron"),
        ({"cron": "61 3 * * *"}, "cron"),
        ({"cron": "0 3 * * *", "time-zone": "Mars/Olympus"}, "time-zone"),
        ({"cron": "0 3 * * *", "time-zone": "../../etc/passwd"}, "time-zone"),
        ({"cron": "0 0 31 2 *"}, "cron"),
        ({"time-zone": "UTC"}, "time-zone"),
        ({"overlap": "skip"}, "overlap"),
        ({"every": "1h", "begin": "1h"}, "begin"),
        ({"every": "1h", "after": ["j1"]}, "after"),
        ({"every": "1h", "stdin": True}, "stdin"),
        ({"every": "1h", "deadline": "2030-01-01T00:00:00Z"}, "deadline"),
        ({"every": "1h", "cpu": 1000}, "resources"),
    ],
)
def test_what_cannot_recur_is_refused(fields: dict[str, Any], field: str) -> None:
    made = world()
    with pytest.raises(PoiseError) as refused:
        made.job("a", **fields)
    assert refused.value.record.field == field
    assert not made.ledger.schedules


def test_a_name_is_not_the_id_of_a_schedule() -> None:
    with pytest.raises(SpecError, match="looks like the id of a schedule"):
        world().job("s7", every="1h")


def test_its_jobs_have_its_secrets_and_events_do_not_show_them() -> None:
    made = world()
    document = {"name": "a", "run": "true", "every": "1h", "secrets": {"TOKEN": Sealed("sealed text")}}
    made.submit(document).tick()
    assert made.state("a-1").secrets == {"TOKEN": "sealed text"}
    for bearer in (ANN, HOME):
        shown = [Sight(made.ledger, bearer).event(event) for event in made.log]
        assert "sealed text" not in repr(shown)
