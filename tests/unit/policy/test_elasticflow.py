"""`elasticflow` in schedules worked out by hand.

A deadline has to be met with 5 % of the time until it to spare: one in 30 min is planned for 28.5 min. An elastic unit
says nothing of how it scales here: 2 tasks are 2/1.1 = 1.82 times as fast as 1, and 4 are 4/1.3 = 3.08 times as fast.
"""

from typing import Any

import msgspec

from poise.model.decisions import Place, Preempt
from poise.model.resources import Node
from poise.policy.suites import policy_named
from poise.testing import World, node

from .test_goodput import sizes
from .test_schedules import arrive, decided, until, yielding

NAME = "elasticflow"
SAVES = {"gpu": 1, "checkpoint": "10s"}
ELASTIC = {**SAVES, "workers": "1..4"}


def remembered(world: World, what: str) -> list[str]:
    """Names of the jobs that the latest plan remembers as `admitted` or `refused`."""
    memory = world.ledger.snapshot(world.now, 0).memory[NAME]
    units = [world.ledger.jobs.unit(unit) for unit in memory[what]]
    return [world.ledger.jobs[unit.job].name for unit in units if unit is not None]


def due(expect: str, deadline: str, **fields: Any) -> dict[str, Any]:
    return {**SAVES, "expect": expect, "deadline": deadline, **fields}


def test_each_has_the_least_size_that_meets_its_deadline_and_the_rest_goes_where_it_brings_most() -> None:
    """One node of 4 devices. All are as long on one device: 40 min.

    ====  ======================================================================================  ==============
    0     a (due in 30m) needs 40m with 1 task and 22m with 2, of 28.5m; b (due in 60m) needs     a 2, b 1, c 1
          40m with 1, of 57m; c has no deadline, and gets the last device
    10m   c ends. A step to 2 brings b 0.82 of a task; a needs 2 devices for one. b starts        b yields
          again, as 30m/1.82 + 30s are less than 30m                                              a 2, b 2
    22m   a ends. b takes its 2 devices, since that is all it can use                             b yields, b 4
    ====  ======================================================================================  ==============
    """
    world = World(NAME).nodes(1, cpu=8, gpus=4)
    arrive(world, a=due("40m", "30m", workers="1..4"), b=due("40m", "60m", workers="1..4"), c={**SAVES})
    assert sizes(world) == {"a": 2, "b": 1, "c": 1}
    assert remembered(world, "admitted") == ["a", "b"]
    sizes(until(world, "10m", "c"))
    assert yielding(world) == ["b"]
    assert sizes(world) == {"a": 2, "b": 2}
    sizes(until(world, "22m", "a"))
    assert yielding(world) == ["b"]
    assert sizes(world) == {"b": 4}


def test_rigid_work_starts_in_time_and_what_has_no_deadline_uses_the_rest() -> None:
    """One node of 2 devices.

    ====  ===================================================================================  =======
    0     a (2 devices, no deadline)                                                           a
    10m   b (1 device, 20m, due in 30m) is admitted: a yields. d (2 devices, 10m, due in 45m)  a yields
          is, too: it has 30m to 40m. c (1 device, no deadline) takes the other device, which  b, c
          is of no use to a and d
    30m   b ends: c yields to d                                                                c yields
                                                                                               d
    40m   d ends: a came before c                                                              a
    ====  ===================================================================================  =======
    """
    world = World(NAME).nodes(1, cpu=8, gpus=2)
    assert decided(arrive(world, a={**SAVES, "gpu": 2, "expect": "2h"})) == {"a": "n1"}
    until(world, "10m")
    arrive(world, b=due("20m", "30m"), c={**SAVES, "expect": "1h"}, d=due("10m", "45m", gpu=2))
    decided(world)
    assert yielding(world) == ["a"]
    assert remembered(world, "admitted") == ["b", "d"]
    assert decided(world) == {"b": "n1", "c": "n1"}
    decided(until(world, "30m", "b"))
    assert yielding(world) == ["c"]
    assert decided(world) == {"d": "n1"}
    assert decided(until(world, "40m", "d")) == {"a": "n1"}


def test_what_is_not_admitted_is_best_effort_work() -> None:
    """One device. a (20m, due in 30m) has it until 20m. b (20m, due in 35m) would end at 40m, and is turned down; c
    (5m, due in 40m) ends at 25m. So c goes before b, which came first.
    """
    world = World(NAME).nodes(1, cpu=8, gpus=1)
    arrive(world, a=due("20m", "30m"), b=due("20m", "35m"), c=due("5m", "40m"))
    assert decided(world) == {"a": "n1"}
    assert (remembered(world, "admitted"), remembered(world, "refused")) == (["a", "c"], ["b"])
    assert decided(until(world, "20m", "a")) == {"c": "n1"}
    placed = next(decision for decision in world.plans[-1].decisions if isinstance(decision, Place))
    assert placed.why.rank == "its deadline is kept with 1 task"
    assert decided(until(world, "25m", "c")) == {"b": "n1"}
    placed = next(decision for decision in world.plans[-1].decisions if isinstance(decision, Place))
    assert placed.why.rank == "best effort, as its deadline is not kept"


def test_what_was_turned_down_is_admitted_when_others_end_sooner() -> None:
    """As above, but a ends at 8m: c has the device until 13m, and b until 33m, of 33.25m."""
    world = World(NAME).nodes(1, cpu=8, gpus=1)
    arrive(world, a=due("20m", "30m"), b=due("20m", "35m"), c=due("5m", "40m"))
    decided(world)
    assert decided(until(world, "8m", "a")) == {"c": "n1"}
    assert remembered(world, "admitted") == ["b", "c"]


def test_who_is_due_sooner_goes_first_if_all_others_are_still_on_time() -> None:
    """One device. a (30m, due in 100m) runs; at 10m come b and c (20m, due in 25m each): b has the device until 30m and
    a until 50m. Then there is no time for c.
    """
    world = World(NAME).nodes(1, cpu=8, gpus=1)
    assert decided(arrive(world, a=due("30m", "100m"))) == {"a": "n1"}
    decided(arrive(until(world, "10m"), b=due("20m", "25m"), c=due("20m", "25m")))
    assert yielding(world) == ["a"]
    assert (remembered(world, "admitted"), remembered(world, "refused")) == (["a", "b"], ["c"])
    assert decided(world) == {"b": "n1"}
    assert decided(until(world, "30m", "b")) == {"a": "n1"}


def test_who_would_make_an_admitted_one_late_is_turned_down() -> None:
    """One device. a (30m, due in 40m) runs; b (20m, due in 25m) would delay it until 50m."""
    world = World(NAME).nodes(1, cpu=8, gpus=1)
    assert decided(arrive(world, a=due("30m", "40m"))) == {"a": "n1"}
    assert decided(arrive(until(world, "1m"), b=due("20m", "25m"))) == {"a": "n1"}
    assert remembered(world, "refused") == ["b"]


def test_an_admitted_one_that_takes_too_long_is_best_effort_work_from_then_on() -> None:
    """One device. a (10m, due in 15m) has not ended by 13m; nothing it could do meets its deadline then. It runs on."""
    world = World(NAME).nodes(1, cpu=8, gpus=1)
    assert decided(arrive(world, a=due("10m", "15m"))) == {"a": "n1"}
    assert remembered(world, "admitted") == ["a"]
    assert decided(arrive(until(world, "14m30s"), b={**SAVES})) == {"a": "n1"}
    assert remembered(world, "admitted") == []


def test_what_may_not_be_preempted_keeps_its_devices_until_it_ends() -> None:
    """One device. a (60m) runs until then: b (10m, due in 50m) is turned down, c (10m, due in 80m) is not."""
    world = World(NAME).nodes(1, cpu=8, gpus=1)
    decided(arrive(world, a={"gpu": 1, "expect": "60m", "preemptible": False}))
    assert decided(arrive(until(world, "1m"), b=due("10m", "50m"), c=due("10m", "80m"))) == {"a": "n1"}
    assert (remembered(world, "admitted"), remembered(world, "refused")) == (["c"], ["b"])
    assert yielding(world) == []


def test_a_deadline_is_not_promised_without_a_run_time() -> None:
    world = World(NAME).nodes(1, cpu=8, gpus=1)
    assert decided(arrive(world, a={**SAVES}, b={**SAVES, "deadline": "1h"})) == {"a": "n1"}
    assert remembered(world, "admitted") == remembered(world, "refused") == []


def test_between_two_plans_what_waits_takes_what_is_free() -> None:
    """A plan is made once a minute at most: b comes 10 s after one, has a device at once, and grows with the next."""
    world = World(NAME).nodes(1, cpu=8, gpus=4)
    assert sizes(arrive(world, a={**SAVES, "gpu": 2, "expect": "1h"})) == {"a": 1}
    assert sizes(arrive(until(world, "10s"), b={**ELASTIC, "expect": "1h"})) == {"a": 1, "b": 1}
    assert world.plans[-1].until == world.now + 50 * 10**9
    sizes(until(world, "1m"))
    assert yielding(world) == ["b"]
    assert sizes(world) == {"a": 1, "b": 2}


def test_an_admitted_gang_has_its_room_though_best_effort_work_is_in_pieces() -> None:
    """Two nodes of 2 devices, with one best-effort job each after two others ended. A gang of one task of 2 devices is
    admitted; one of the jobs moves, and nobody else is asked to.
    """
    world = World(NAME).nodes(2, cpu=8, gpus=2)
    decided(arrive(world, **{name: {**SAVES, "expect": "5h"} for name in "abcd"}))
    first = decided(until(world, "10m", "a", "d"))
    assert sorted(first.values()) == ["n1", "n2"]
    decided(arrive(until(world, "12m"), e=due("1h", "2h", gpu=2)))
    assert len(yielding(world)) == 1
    assert sorted(decided(world)) == ["b", "c", "e"]


def models() -> list[Node]:
    """A node of 1 A100 and one of 1 T4."""
    made = []
    for name, model in (("n1", "T4"), ("n2", "A100")):
        of = node(name, cpu=8, gpus=1)
        devices = tuple(msgspec.structs.replace(device, model=model) for device in of.devices)
        made.append(msgspec.structs.replace(of, devices=devices))
    return made


def test_each_model_has_its_own_future() -> None:
    """`x` takes 10m on an A100 and 40m on a T4. The first has the A100 for its 10m, the second (due in 15m) has no time
    after it, nor on the T4; the third (due in 60m) is on time after the first.
    """
    world = World(NAME, throughputs={"x@A100": 4.0, "x@T4": 1.0})
    for one in models():
        world.join(one)
    fields = {"class": "x"}
    world.job("a", **due("10m", "12m"), **fields).job("b", **due("10m", "15m"), **fields)
    world.job("c", **due("10m", "60m"), **fields)
    assert decided(world)["a"] == "n2"
    assert (remembered(world, "admitted"), remembered(world, "refused")) == (["a", "c"], ["b"])


def test_a_gang_that_no_model_has_devices_for_takes_those_of_several() -> None:
    world = World(NAME)
    for one in models():
        world.join(one)
    assert sizes(arrive(world, a={"gpu": 1, "workers": 2})) == {"a": 2}


def test_what_is_over_its_quota_makes_nobody_yield() -> None:
    world = World(NAME).nodes(1, cpu=8, gpus=2).quota("team", gpu=1)
    first = arrive(world, a={**SAVES, "expect": "1h"}, own={**SAVES, "expect": "1h", "tenant": "team"})
    assert decided(first) == {"a": "n1", "own": "n1"}
    assert decided(arrive(until(world, "2m"), b=due("10m", "20m", tenant="team"))) == {"a": "n1", "own": "n1"}
    assert world.codes("b") == ["QUOTA"]
    assert yielding(world) == []


def test_work_without_devices_is_placed_beside() -> None:
    world = World(NAME).nodes(1, cpu=2, gpus=1)
    assert decided(arrive(world, a={"gpu": 1}, b={}, c={}, d={})) == {"a": "n1", "b": "n1"}
    assert world.codes("c") == ["CPU_BUSY"]


def test_it_forgets_what_has_gone() -> None:
    world = World(NAME).nodes(1, cpu=2, gpus=1)
    decided(arrive(world, a=due("10m", "20m")))
    decided(until(world, "5m", "a"))
    assert world.ledger.snapshot(world.now, 0).memory.get(NAME, {}) == {}


def test_what_serves_comes_first_and_never_yields() -> None:
    """One device. a (10m, due in 15m) came first, but b serves: it has the device for good, and a is turned down."""
    world = World(NAME).nodes(1, cpu=8, gpus=1)
    arrive(world, a=due("10m", "15m"), b={**SAVES})
    view = world.controller.snapshot(world.now)
    a, b = view.candidates
    plan = policy_named(NAME).decide(
        msgspec.structs.replace(view, candidates=(a, msgspec.structs.replace(b, serves="chat")))
    )
    assert [decision.unit for decision in plan.decisions if isinstance(decision, Place)] == [b.unit]
    assert plan.memory is not None
    assert (plan.memory[NAME]["admitted"], plan.memory[NAME]["refused"]) == ([], [a.unit])

    served = World(NAME).nodes(1, cpu=8, gpus=1)
    decided(arrive(served, b={**SAVES}))
    view = until(arrive(served, a=due("10m", "15m")), "2m").controller.snapshot(served.now)
    view.fleet.residents[0] = tuple(msgspec.structs.replace(one, serves="chat") for one in view.fleet.residents[0])
    plan = policy_named(NAME).decide(view)
    assert not [decision for decision in plan.decisions if isinstance(decision, Preempt)]
