"""When jobs start and end: futures of a ledger, and forecasts of a log compared with what came."""

import time
from random import Random
from typing import Any

import msgspec
import pytest

from poise.control.forecast import Etas, Target, check, foresee
from poise.engine.futures import Change
from poise.engine.lookahead import Bounds, Futures, Range, followed, range_of
from poise.errors import InputError
from poise.kernel.controller import Settings
from poise.kernel.ledger import Ledger
from poise.model.calendar import CalendarEvent
from poise.model.scaling import Announced
from poise.model.workload import Arrival
from poise.policy.suites import policy_named
from poise.units import HOUR, SECOND
from poise_lab.what_if import what_if
from unit.engine.test_futures import stopped
from unit.engine.test_twin import Run, arrival, node

FIFO = policy_named("fifo")
FEW = Bounds(20, seconds=600.0)
"""Time for all of them, also on a busy machine: futures that are short of time leave out other jobs."""


def etas(run: Run, now: int, *names: str, bounds: Bounds = FEW) -> Etas:
    ledger = run.twin.ledger
    targets = [Target(ledger.jobs[name], tuple(unit.id for unit in ledger.jobs[name].units), name) for name in names]
    return foresee(ledger, FIFO, Settings(), now, targets, bounds=bounds)


def seconds(of: Range | None) -> list[float]:
    assert of is not None
    return [each / SECOND for each in (of.p10, of.p50, of.p90) if each is not None]


def test_what_waits_starts_when_what_runs_has_ended() -> None:
    run, now = stopped("fifo", [10.0] * 12, at=95)
    told = etas(run, now, "j10", "j11")
    running, waiting = told.jobs
    assert running.start is None
    assert seconds(running.finish)[1] == pytest.approx(5, rel=0.5)
    assert seconds(waiting.start) == seconds(running.finish)
    assert seconds(waiting.finish)[1] == pytest.approx(15, rel=0.3)
    assert (told.futures, told.units, told.sources, told.left_out) == (20, 3, {"declared and history": 3}, 0)
    assert etas(run, now, "j10", "j11").jobs == told.jobs  # the same seed
    run.twin.ledger.check()


def test_what_comes_again_is_part_of_what_is_to_come() -> None:
    """An hourly job of half an hour, the fifth of which runs for nineteen minutes more, and two of fifty minutes that
    wait. Shortest first: the next hourly one, in 49 minutes, goes before the second of these.
    """
    hourly = [arrival(3600 * each, 1800.0) for each in range(5)]
    others = [changed(arrival(4 * 3600 + 600, 3000.0), kind="other") for _ in range(2)]
    run = Run("fifo", [node("n1")], [*hourly, *others])
    run.twin.run((4 * 3600 + 660) * SECOND)
    now, ledger = run.twin.began + run.twin.now, run.twin.ledger
    told = foresee(
        ledger,
        policy_named("sjf"),
        Settings(),
        now,
        [Target(ledger.jobs["j7"], ("j7.main",), "j7")],
        bounds=Bounds(100),
    )
    [again] = told.coming
    assert (again.name, again.seen) == ("work", 5)
    assert again.next == (3600 - 660) * SECOND
    assert seconds(told.jobs[0].start)[1] == pytest.approx(1140 + 3000 + 1800, rel=0.15)
    alone = msgspec.structs.replace(ledger.jobs["j4"], name="renamed")
    ledger.jobs["j4"] = alone
    again_not = foresee(
        ledger,
        policy_named("sjf"),
        Settings(),
        now,
        [Target(ledger.jobs["j7"], ("j7.main",), "j7")],
        bounds=Bounds(100),
    )
    assert again_not.coming == ()
    assert seconds(again_not.jobs[0].start)[1] == pytest.approx(1140 + 3000, rel=0.15)


def test_a_job_that_is_announced_takes_its_place_when_it_begins() -> None:
    """It is submitted first, for an hour from now, and then goes before what comes meanwhile."""
    announced = changed(arrival(0, 600.0), begin=HOUR)
    jobs = [announced, *(arrival(1, 1500.0) for _ in range(4))]
    run = Run("sjf", [node("n1")], jobs)
    run.twin.run(60 * SECOND)
    now = run.twin.began + run.twin.now
    told = etas(run, now, "j1")
    assert told.jobs[0].start is not None
    assert min(seconds(told.jobs[0].start)) >= 3600 - 60


def changed(job: Arrival, **fields: Any) -> Arrival:
    return msgspec.structs.replace(job, units=tuple(msgspec.structs.replace(one, **fields) for one in job.units))


def test_nothing_that_was_asked_is_changed() -> None:
    run, now = stopped("fifo", [10.0] * 4, at=15)
    before = run.twin.ledger.encode()
    etas(run, now, "j3")
    assert run.twin.ledger.encode() == before


def test_of_a_long_queue_the_first_are_looked_at() -> None:
    run, now = stopped("fifo", [10.0] * 60, at=95)
    told = etas(run, now, "j12", "j60", bounds=Bounds(5, 20.0, units=10))
    assert (told.units, told.left_out) == (10, 41)
    assert seconds(told.jobs[1].start)[1] < 200  # some of those before it were left out, and that is said


def test_where_there_is_little_time_fewer_units_are_looked_at() -> None:
    run, now = stopped("fifo", [10.0] * 400, at=95)
    sizes: list[int] = []

    def follow(futures: Futures, number: int, deadline: float) -> int | None:
        sizes.append(futures.units)
        return number if futures.units <= 30 else None

    def make(most: int) -> Futures:
        return Futures(run.twin.ledger, Settings(), now, time.monotonic, most=most)

    with pytest.raises(InputError) as refused:
        followed(
            lambda most: Futures(run.twin.ledger, Settings(), now, time.monotonic, most=most),
            follow,
            Bounds(10),
            "future",
            time.monotonic,
        )
    assert sizes == [391, 97, 50]
    assert refused.value.record.need == "50 units"


def test_what_cannot_be_made_fewer_has_all_the_time_there_is() -> None:
    """One job of many parts is looked at as a whole."""
    run, now = stopped("fifo", [10.0] * 80, at=95)
    times: list[float] = []

    def follow(futures: Futures, number: int, deadline: float) -> int | None:
        times.append(deadline - time.monotonic())
        return number if times[-1] > 10 else None

    def make(most: int) -> Futures:
        return Futures(run.twin.ledger, Settings(), now, time.monotonic, keep=run.twin.ledger.jobs)

    futures, seen = followed(make, follow, Bounds(1, 20.0), "future", time.monotonic)
    assert (futures.units, seen) == (71, [0])
    assert times == [pytest.approx(4, abs=1), pytest.approx(20, abs=2)]


def test_what_never_comes_is_told_as_never() -> None:
    run = Run("fifo", [node("n1"), node("n2", gpus=2)], [arrival(0, 10.0), arrival(5, 10.0, gpus=2)])
    run.twin.lose("n2", 5 * SECOND, detected_after=0)
    run.twin.run(5 * SECOND)
    told = etas(run, run.twin.began + run.twin.now, "j2")
    assert told.jobs[0].finish == Range(None, None, None)


def test_too_little_time_is_an_error_that_says_how_much() -> None:
    run, now = stopped("fifo", [10.0] * 4, at=15)
    with pytest.raises(InputError) as error:
        etas(run, now, "j3", bounds=Bounds(5, 0.0))
    assert error.value.record.field == "--budget"


def test_futures_of_a_number_are_the_same_whatever_is_asked() -> None:
    run, now = stopped("fifo", [10.0] * 6, at=15)
    futures = Futures(run.twin.ledger, Settings(), now, time.monotonic)
    deadline = float("inf")
    one, other = (futures.follow(policy_named(name), 3, deadline) for name in ("fifo", "sjf"))
    assert one is not None
    assert other is not None
    assert one.ended["j2.main"] == other.ended["j2.main"]
    assert futures.follow(FIFO, 4, deadline) != one


def test_ranges_are_those_of_one_more() -> None:
    assert range_of(range(9)) == Range(0, 4, 8)
    assert range_of([float("inf")] * 4 + [1.0] * 5) == Range(1, 1, None)


def test_looking_back_at_a_log() -> None:
    """Twenty jobs of one class on one device: from the fourth on it is known how long they take."""
    run = Run("fifo", [node("n1")], [arrival(7 * number, 10.0) for number in range(20)])
    unknown = arrival(1000, 10.0)
    unit = msgspec.structs.replace(unknown.units[0], kind="other", expect=0)
    run.twin.arrive(msgspec.structs.replace(unknown, units=(unit,)))
    assert run.twin.run()
    told = check(run.events, Ledger(), lambda began: FIFO, bounds=Bounds(10, 60.0))
    assert (told.submitted, len(told.forecasts), told.guesses, told.unheard) == (21, 21, 0, 0)
    assert told.start.count == 19  # the first one was to begin at once, and did
    assert told.start.within >= 800
    assert told.finish.within >= 800
    assert told.last == run.twin.ledger.revision


def test_of_what_nothing_is_known_no_forecast_counts() -> None:
    first = arrival(0, 10.0)
    unit = msgspec.structs.replace(first.units[0], expect=0)
    run = Run("fifo", [node("n1")], [msgspec.structs.replace(first, units=(unit,))])
    assert run.twin.run()
    told = check(run.events, Ledger(), lambda began: FIFO, bounds=Bounds(2))
    assert (told.finish.count, told.guesses, told.unheard) == (0, 1, 0)


def test_jobs_arrive_as_they_did_lately() -> None:
    """Shortest first: two of the brief jobs that come every ten minutes overtake the long one."""
    run, now = brief_jobs_before_a_long_one()
    ledger = run.twin.ledger
    target = Target(ledger.jobs["j13"], ("j13.main",), "j13")
    told, again = (foresee(ledger, policy_named("sjf"), Settings(), now, [target], bounds=FEW) for _ in range(2))
    assert told.arriving == 12
    assert seconds(told.jobs[0].start)[2] > 600
    assert told.jobs == again.jobs, "the same seed"


def test_events_of_a_calendar_change_how_jobs_arrive() -> None:
    """Without arrivals, the long one starts when the brief one that runs has ended. With three times as many, a brief
    one of 500 seconds comes every 200 seconds: one always waits, and goes first.
    """
    run, now = brief_jobs_before_a_long_one()
    ledger = run.twin.ledger
    target, wall = Target(ledger.jobs["j13"], ("j13.main",), "j13"), round(ledger.leader.wall(now) * SECOND)

    def told(times: float) -> Etas:
        launch = Announced(wall, 0.0, wall + 5 * HOUR, times, 0, "launch")
        events = [CalendarEvent(by="", of="", announced=(launch,))]
        return foresee(ledger, policy_named("sjf"), Settings(), now, [target], bounds=FEW, events=events)

    none, many = told(0.0), told(3.0)
    assert none.events == many.events == ("launch",)
    assert max(seconds(none.jobs[0].start)) < 600 < 5 * 3600 < seconds(many.jobs[0].start)[1]
    assert told(3.0).jobs == many.jobs, "the same seed"
    assert told(1.0).jobs == foresee(ledger, policy_named("sjf"), Settings(), now, [target], bounds=FEW).jobs


def test_a_scenario_has_the_events_of_a_calendar_on_both_sides() -> None:
    run, now = brief_jobs_before_a_long_one()
    ledger = run.twin.ledger
    target, wall = Target(ledger.jobs["j13"], ("j13.main",), "j13"), round(ledger.leader.wall(now) * SECOND)
    launch = CalendarEvent(by="", of="", announced=(Announced(wall, 0.0, wall + 5 * HOUR, 3.0, 0, "launch"),))
    both = (policy_named("sjf"), policy_named("sjf"))
    told = what_if(ledger, Settings(), now, both, Change(), [], [target], bounds=FEW, events=[launch])
    [starts] = [figure for figure in told.figures if figure.figure == "j13 starts in"]
    assert told.events == ("launch",)
    assert starts.now == starts.then
    assert seconds(starts.now)[1] > 5 * 3600


def test_where_there_is_little_time_no_jobs_arrive() -> None:
    """All units are still followed, and have the same run times."""
    run, now = brief_jobs_before_a_long_one()
    times: list[float] = []
    made = Futures(run.twin.ledger, Settings(), now, time.monotonic)
    with_others = made.draws.draw(Random(7))  # noqa: S311

    def follow(futures: Futures, number: int, deadline: float) -> int | None:
        times.append(deadline - time.monotonic())
        return None if futures.arriving else number

    futures, seen = followed(lambda most: made, follow, Bounds(3, 40.0, fewest=10), "future", time.monotonic)
    assert (futures.arriving, futures.units, seen) == (0, 2, [0, 1, 2])
    assert times == [pytest.approx(2, abs=0.5), *[pytest.approx(40, abs=2)] * 3]
    without = made.draws.draw(Random(7), others=False)  # noqa: S311
    assert (without.truths, without.arrivals) == (with_others.truths, ())
    assert len(with_others.arrivals) > 50


def brief_jobs_before_a_long_one() -> tuple[Run, int]:
    brief = [arrival(600 * each + 250 * (each % 3), 500.0) for each in range(12)]
    long = changed(arrival(11 * 600 + 510, 5000.0), kind="long")
    run = Run("sjf", [node("n1")], [*brief, long])
    run.twin.run((11 * 600 + 530) * SECOND)
    return run, run.twin.began + run.twin.now
