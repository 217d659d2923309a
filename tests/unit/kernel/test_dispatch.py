"""Calls: handed to workers, returned once, lost by nothing."""

import random
from collections import Counter

import pytest

from poise.errors import SpecError
from poise.kernel.book import CallBook
from poise.kernel.dispatch import ORPHANED, WARM
from poise.kernel.messages import CallerGone, FromCallWorker, FromJobCaller, HangCaller
from poise.model.calls import (
    INLINE,
    Accepted,
    Back,
    Call,
    Calling,
    Closing,
    Function,
    Over,
    Ready,
    Result,
    Resume,
    Retire,
    Returning,
    Uncall,
    Value,
    Work,
)
from poise.model.messages import Attempt
from poise.testing import World
from poise.units import SECOND

ARGUMENTS = Value("m", b"\x90")
ALWAYS = {"limit": 3, "backoff": "0.1s", "when": ["lost", "killed", "failed", "signal", "oom"]}


def serving(parts: int = 2, *, cpu: float = 2) -> World:
    """A job `f` of so many workers, its caller connected."""
    world = World().nodes(1, cpu=cpu).job("f", parts=parts, calls=True, retry=ALWAYS)
    return world.caller("f", Resume("j1"))


def call(world: World, *calls: Call) -> World:
    first = not book(world).functions
    return world.caller("f", Calling((Function("f", "m"),) if first else (), calls))


def calls(first: int, last: int) -> list[Call]:
    return [Call(number, 0, ARGUMENTS) for number in range(first, last + 1)]


def up(world: World, *workers: str) -> World:
    """Workers are placed, started, and say that they are there."""
    world.round()
    for worker in workers:
        world.start(worker)
        attempt = world._attempt(worker)[0]
        world.worker(worker, Ready(attempt))
    return world


def given(world: World, worker: str) -> list[int]:
    """The calls that a worker's latest attempt was ever given."""
    attempt = world._attempt(worker)[0]
    told = [effect.message for effect in world.told_workers if effect.attempt == attempt]
    return [todo.number for message in told if isinstance(message, Work) for todo in message.calls]


def told(world: World, worker: str) -> list[object]:
    attempt = world._attempt(worker)[0]
    return [effect.message for effect in world.told_workers if effect.attempt == attempt]


def done(*numbers: int, run: int = 1000) -> Returning:
    return Returning(tuple(Result(number, "done", Value("m", b"\x01"), run) for number in numbers))


def book(world: World) -> CallBook:
    found = world.state("f").calls
    assert found is not None
    return found


def test_a_call_is_accepted_made_and_returned() -> None:
    world = up(call(serving(), *calls(1, 1)), "f.main[0]")
    assert given(world, "f.main[0]") == [1]
    world.worker("f.main[0]", done(1))
    assert [(result.number, result.outcome) for result in world.results] == [(1, "done")]
    assert book(world).done == 1 and not book(world).open
    assert Accepted(1, 1) in [effect.message for effect in world.told_callers]


def test_what_is_said_by_another_tenant_is_not_heard() -> None:
    """Whatever let it come so far."""
    world = serving()
    world.say(FromJobCaller("j1", Calling((Function("f", "m"),), tuple(calls(1, 1))), "bob"))
    assert not book(world).functions and not book(world).open
    assert [type(hung) for hung in world.hung_callers] == [HangCaller]


def test_workers_are_called_up_as_calls_come_and_no_more() -> None:
    world = serving(parts=4, cpu=4)
    assert world.status("f") == "idle" and world.ledger.queues.pending == 0
    call(world, *calls(1, 1)).round()
    assert [world.unit(f"f.main[{part}]").status for part in range(4)] == ["active", "waiting", "waiting", "waiting"]
    call(world, *calls(2, 9)).round()
    assert all(world.unit(f"f.main[{part}]").status == "active" for part in range(4))


def test_workers_that_are_not_needed_any_more_are_not_placed() -> None:
    world = up(call(serving(cpu=1), *calls(1, 2)), "f.main[0]")
    assert world.unit("f.main[1]").status == "pending"
    world.worker("f.main[0]", done(1))
    assert world.unit("f.main[1]").status == "waiting"


def test_a_worker_is_given_one_call_until_it_is_known_how_long_they_take() -> None:
    world = up(call(serving(), *calls(1, 100)), "f.main[0]")
    assert given(world, "f.main[0]") == [1]
    for number in (1, 2, 3):
        world.worker("f.main[0]", done(number))
    assert len(given(world, "f.main[0]")) > 50


def test_what_a_killed_worker_held_is_made_by_another() -> None:
    world = up(call(serving(), *calls(1, 2)), "f.main[0]", "f.main[1]")
    world.finish("f.main[0]", outcome="killed")
    world.worker("f.main[1]", done(2))
    assert given(world, "f.main[1]") == [2, 1]
    world.worker("f.main[1]", done(1))
    assert sorted(result.number for result in world.results) == [1, 2]


def test_a_call_that_kills_every_worker_is_lost_and_takes_nothing_with_it() -> None:
    world = up(call(serving(parts=1), *calls(1, 3)), "f.main[0]")
    for _ in range(4):
        assert given(world, "f.main[0]")[-1] == 1
        world.finish("f.main[0]", outcome="oom").after("1s")
        up(world, "f.main[0]")
    assert [(result.number, result.outcome) for result in world.results] == [(1, "lost")]
    assert given(world, "f.main[0]") == [2]


def test_a_worker_that_cannot_be_started_fails_the_job_and_what_is_open_is_lost() -> None:
    world = call(serving(), *calls(1, 2))
    for _ in range(5):
        world.after("2s")
        if world.status("f") == "failed":
            break
        for part in range(2):
            if world.unit(f"f.main[{part}]").status == "active":
                world.finish(f"f.main[{part}]", outcome="failed", code=1)
    assert {(result.number, result.outcome) for result in world.results} == {(1, "lost"), (2, "lost")}
    assert isinstance(world.told_callers[-1].message, Over)


def test_a_call_that_raises_is_tried_again_as_often_as_it_may() -> None:
    world = up(call(serving(parts=1), Call(1, 0, ARGUMENTS, retries=2)), "f.main[0]")
    raised = Returning((Result(1, "raised", ARGUMENTS, note="ValueError: no"),))
    world.worker("f.main[0]", raised).worker("f.main[0]", raised)
    assert world.results == [] and given(world, "f.main[0]") == [1, 1, 1]
    world.worker("f.main[0]", raised)
    assert [result.outcome for result in world.results] == ["raised"]


def test_a_worker_that_ends_gets_no_more_calls_and_its_end_costs_no_try() -> None:
    world = up(call(serving(parts=1), Call(1, 0, ARGUMENTS, retries=1), Call(2, 0, ARGUMENTS)), "f.main[0]")
    over = Returning((Result(1, "raised", ARGUMENTS, note="CallLost: its time limit"),), ending=True)
    world.worker("f.main[0]", over)
    assert given(world, "f.main[0]") == [1] and book(world).tries == {"1": 1}
    world.finish("f.main[0]", outcome="done", code=0)
    assert book(world).tries == {"1": 1} and world.unit("f.main[0]").status in ("pending", "active")


def test_a_call_waits_for_those_whose_results_it_takes_and_is_given_them() -> None:
    world = up(call(serving(), *calls(1, 2), Call(3, 0, ARGUMENTS, needs=(1, 2))), "f.main[0]", "f.main[1]")
    world.worker("f.main[0]", done(1))
    assert 3 not in given(world, "f.main[0]") + given(world, "f.main[1]")
    world.worker("f.main[1]", done(2))
    work = [
        message for name in ("f.main[0]", "f.main[1]") for message in told(world, name) if isinstance(message, Work)
    ]
    (third,) = [todo for message in work for todo in message.calls if todo.number == 3]
    assert [given.number for given in third.inputs] == [1, 2]


def test_what_takes_a_result_that_will_never_be_is_skipped_and_all_that_takes_its() -> None:
    world = up(call(serving(), *calls(1, 1), Call(2, 0, ARGUMENTS, (1,)), Call(3, 0, ARGUMENTS, (2,))), "f.main[0]")
    world.worker("f.main[0]", Returning((Result(1, "raised", ARGUMENTS),)))
    assert [(result.number, result.outcome) for result in world.results] == [
        (1, "raised"),
        (2, "skipped"),
        (3, "skipped"),
    ]
    call(world, Call(4, 0, ARGUMENTS, (3,)))
    assert world.results[-1].outcome == "skipped"


def test_a_call_is_accepted_once_however_often_it_is_said() -> None:
    world = call(serving(), *calls(1, 3))
    revision = world.ledger.revision
    call(world, *calls(1, 3))
    assert world.ledger.revision == revision and book(world).last == 3


def test_a_call_that_nobody_has_begun_can_be_cancelled() -> None:
    world = up(call(serving(parts=1), *calls(1, 3)), "f.main[0]")
    world.caller("f", Uncall((1, 3)))
    assert [(result.number, result.outcome) for result in world.results] == [(3, "cancelled")]


def test_nothing_is_handed_out_twice_after_a_restart() -> None:
    world = up(call(serving(), *calls(1, 3)), "f.main[0]", "f.main[1]")
    before = len(world.told_workers)
    attempts = {name: world._attempt(name)[0] for name in ("f.main[0]", "f.main[1]")}
    world.restart().caller("f", Resume("j1", (1, 2, 3)))
    world.worker("f.main[0]", Ready(attempts["f.main[0]"], 1, (1,)))
    fresh = [effect.message for effect in world.told_workers[before:] if isinstance(effect.message, Work)]
    assert fresh == []  # the other may hold anything
    world.worker("f.main[1]", Ready(attempts["f.main[1]"], 1, (), (Result(2, "done", ARGUMENTS),)))
    assert [result.number for result in world.results] == [2]
    assert given(world, "f.main[1]")[-1] == 3


def test_a_worker_that_stays_away_after_a_restart_is_not_waited_for_for_ever() -> None:
    world = up(call(serving(), *calls(1, 2)), "f.main[0]", "f.main[1]")
    attempt = world._attempt("f.main[0]")[0]
    world.restart().caller("f", Resume("j1", (1, 2)))
    world.worker("f.main[0]", Ready(attempt, 1, (1,))).after("11s").worker("f.main[0]", done(1))
    assert given(world, "f.main[0]")[-1] == 2


def test_results_that_the_caller_missed_are_told_when_it_is_back() -> None:
    world = up(call(serving(), *calls(1, 1)), "f.main[0]").worker("f.main[0]", done(1))
    world.results.clear()
    world.restart().caller("f", Resume("j1", (1,)))
    assert [result.number for result in world.results] == [1]


def test_what_waits_behind_a_long_call_is_asked_back_for_a_worker_with_nothing_to_do() -> None:
    world = up(call(serving(), *calls(1, 4)), "f.main[0]")
    for number in (1, 2, 3):
        world.worker("f.main[0]", done(number))
    call(world, *calls(5, 8))
    up(world, "f.main[1]")
    world.worker("f.main[1]", done(*given(world, "f.main[1]")))
    held = [number for number in given(world, "f.main[0]") if str(number) in book(world).open]
    if len(held) > 1:
        world.after("100ms")
        asked = [message for message in told(world, "f.main[0]") if isinstance(message, Back)]
        assert asked and asked[-1].numbers == tuple(held[1:])
        world.worker("f.main[0]", Returning(back=asked[-1].numbers))
        assert set(asked[-1].numbers) <= set(given(world, "f.main[1]"))


def test_workers_with_nothing_to_do_end_after_a_while_and_at_once_when_no_calls_will_come() -> None:
    world = up(call(serving(), *calls(1, 1)), "f.main[0]").worker("f.main[0]", done(1))
    world.after(WARM - SECOND)
    assert Retire() not in told(world, "f.main[0]")
    world.after(2 * SECOND)
    assert Retire() in told(world, "f.main[0]")
    world.finish("f.main[0]")
    assert world.unit("f.main[0]").status == "waiting" and world.status("f") == "idle"
    up(call(world, *calls(2, 2)), "f.main[0]").worker("f.main[0]", done(2)).caller("f", Closing())
    assert told(world, "f.main[0]")[-1] == Retire()
    assert world.finish("f.main[0]").status("f") == "done"


def test_workers_with_nothing_to_do_make_room_for_other_work() -> None:
    world = up(call(serving(cpu=1), *calls(1, 1)), "f.main[0]").worker("f.main[0]", done(1))
    world.job("other", cpu=1).after("1s")
    assert Retire() in told(world, "f.main[0]")
    world.finish("f.main[0]").after("1s")
    assert world.where("other") == ["n1"]


def test_a_job_whose_caller_stays_away_is_closed_and_what_it_accepted_is_made() -> None:
    world = up(call(serving(), *calls(1, 2)), "f.main[0]")
    world.restart().after(ORPHANED + SECOND)
    assert book(world).closed
    attempt = world._attempt("f.main[0]")[0]
    world.worker("f.main[0]", Ready(attempt, 1, (1,))).worker("f.main[0]", done(1))
    world.worker("f.main[0]", done(2))
    assert book(world).done == 2


def test_nothing_wakes_the_control_plane_again_and_again() -> None:
    """Whatever state calls are in, the next time to look at them is not one that has passed."""
    world = up(call(serving(), *calls(1, 4)), "f.main[0]", "f.main[1]")
    world.caller("f", Closing()).say(CallerGone("j1")).restart()
    attempt = world._attempt("f.main[0]")[0]
    world.worker("f.main[0]", Ready(attempt, 1))
    for _ in range(40):
        world.after("1s")
        world.tick()
        wakeup = world.controller.wakeup()
        assert wakeup is None or wakeup > world.now


def test_cancelling_the_job_cancels_what_is_open() -> None:
    world = up(call(serving(), *calls(1, 3)), "f.main[0]").cancel("f")
    assert {result.outcome for result in world.results} == {"cancelled"} and len(world.results) == 3
    assert world.status("f") == "cancelled"


def test_an_old_attempt_is_not_heard() -> None:
    world = up(call(serving(parts=1), *calls(1, 1)), "f.main[0]")
    old = world._attempt("f.main[0]")[0]
    world.finish("f.main[0]", outcome="killed").after("1s")
    up(world, "f.main[0]")
    world.say(FromCallWorker(old, done(1)))
    assert world.results == [] and world.told_workers[-1].message == Retire()


@pytest.mark.parametrize(
    "wrong",
    [
        Call(1, 7, ARGUMENTS),
        Call(1, 0, Value("m", b"x" * (INLINE + 1))),
        Call(1, 0, ARGUMENTS, needs=(2,)),
        Call(1, 0, ARGUMENTS, needs=(0,)),
    ],
)
def test_a_caller_that_says_nonsense_is_hung_up_on(wrong: Call) -> None:
    world = call(serving())
    call(world, wrong)
    assert len(world.hung_callers) == 1 and book(world).last == 0


def test_what_serves_calls_is_one_command_in_parts() -> None:
    for fields in ({"workers": 2}, {"merge": "true", "parts": 2}):
        with pytest.raises(SpecError):
            World().nodes(1).job("f", calls=True, **fields)


@pytest.mark.parametrize("seed", range(12))
def test_whatever_dies_each_call_returns_once(seed: int) -> None:
    """Workers and the control plane die at random, the caller goes away and comes back; every call returns, once."""
    rng = random.Random(seed)  # noqa: S311 — the same deaths each time
    world = serving(parts=3, cpu=3)
    total, said = 60, 0
    holds: dict[Attempt, list[int]] = {}
    unreturned: set[int] = set()
    unknown: dict[Attempt, list[Result]] = {}
    seen: Counter[int] = Counter()

    def deliver() -> None:
        for effect in world.told_workers:
            if isinstance(effect.message, Work) and effect.attempt in holds:
                holds[effect.attempt].extend(todo.number for todo in effect.message.calls)
        world.told_workers.clear()
        for result in world.results:
            if result.number in unreturned:
                seen[result.number] += 1
                unreturned.discard(result.number)
        world.results.clear()

    for _ in range(3000):
        act = rng.random()
        names = [f"f.main[{part}]" for part in range(3) if world.unit(f"f.main[{part}]").status == "active"]
        if act < 0.15 and said < total:
            many = min(total - said, rng.randint(1, 8))
            fresh = [
                Call(number, 0, ARGUMENTS, (rng.randint(1, number - 1),) if number > 1 and rng.random() < 0.3 else ())
                for number in range(said + 1, said + many + 1)
            ]
            unreturned.update(each.number for each in fresh)
            call(world, *fresh)
            said += many
        elif act < 0.75 and names:
            name = rng.choice(names)
            attempt = world._attempt(name)[0]
            if attempt not in holds:
                holds[attempt], unknown[attempt] = [], []
                world.start(name).worker(name, Ready(attempt))
            elif holds[attempt]:
                number = holds[attempt].pop(0)
                result = Result(number, "done", ARGUMENTS, rng.randint(1, 10**6))
                unknown[attempt].append(result)
                world.worker(name, Returning((result,)))
        elif act < 0.80 and names:
            name = rng.choice(names)
            holds.pop(world._attempt(name)[0], None)
            world.finish(name, outcome="killed")
        elif act < 0.83:
            world.restart(from_checkpoint=rng.random() < 0.5)
            world.told_workers.clear()
            world.caller("f", Resume("j1", tuple(sorted(unreturned))))
            for name in names:
                attempt = world._attempt(name)[0]
                if attempt in holds:
                    world.worker(name, Ready(attempt, 1, tuple(holds[attempt]), tuple(unknown[attempt])))
        else:
            world.after(f"{rng.randint(1, 2000)}ms")
        deliver()
        if said == total and not unreturned:
            break
    else:
        raise AssertionError(f"{sorted(unreturned)} never returned")
    assert seen == Counter(range(1, total + 1))
    world.caller("f", Closing())
    assert book(world).done + book(world).failed == total
