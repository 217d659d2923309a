"""`goodput` in schedules worked out by hand.

A unit of one device a task has the scaled speedup `u = s(n) / s(fair) x nodes / devices` and costs `1 / (r u + 0.001)`,
with `r = (age - 30 restarts) / (age + 30)` if it has to start again (seconds), else 1. What costs least is chosen.
"""

from poise.model.messages import Attempt, Report, Told
from poise.model.progress import Speedups
from poise.testing import World

from .test_schedules import arrive, decided, until, yielding

ELASTIC = {"gpu": 1, "workers": "1..4", "checkpoint": "10s"}


def sizes(world: World) -> dict[str, int]:
    """A round, and what is placed starts: how many tasks of each job run then."""
    return {name: len(nodes.split()) for name, nodes in decided(world).items()}


def told(world: World, name: str, together: tuple[int, ...], apart: tuple[int, ...] = ()) -> World:
    job, unit = world.state(name).id, world.unit(name)
    said = Told(attempt=Attempt(f"{job}.main[0]", unit.epoch), speedups=Speedups(together, apart or together))
    return world.hear(world.where(name)[0], Report(serial=1000 + world.now // 10**9, told=(said,)))


def test_a_unit_grows_to_twice_what_it_has_had_and_restarts_less_the_more_it_did() -> None:
    """One node of 4 devices: fair is 4 of them, so that u = n / 4 x 1 / 4.

    ====  =====================================================================  ==========
    at    costs                                                                  then
    ====  =====================================================================  ==========
    0     a arrives, has had none: 1 task                                        a 1
    30s   it is not yet a minute                                                 a 1
    1m    stays 1: 1/0.0635 = 15.7; 2 after 60/90: 1/0.0843 = 11.9               a yields
          (and at once)                                                          a 2
    2m    stays 2: 7.94; 4 after (120 - 30)/150: 1/0.151 = 6.62                  a yields
          (and at once)                                                          a 4
    3m    all it can use                                                         a 4
    ====  =====================================================================  ==========
    """
    world = World("goodput").nodes(1, cpu=8, gpus=4)
    assert sizes(arrive(world, a=ELASTIC)) == {"a": 1}
    assert sizes(until(world, "30s")) == {"a": 1}
    assert sizes(until(world, "1m")) == {}
    assert yielding(world) == ["a"]
    assert sizes(world) == {"a": 2}
    assert sizes(until(world, "2m")) == {}
    assert sizes(world) == {"a": 4}
    assert sizes(until(world, "3m")) == {"a": 4}


def test_devices_go_where_they_get_most_done() -> None:
    """One node of 4 devices; a scales well, b says that it hardly does. Fair are 2 each, so that u of a is n / 8, and u
    of b is s / 1.1 / 4. After an hour r is 0.975 or more.

    ============================  ===================================  =======================
    2 and 2, as they are          1/0.251 + 1/0.251                    7.97
    3 and 1                       1/(0.975 x 0.375) + 1/(0.975 x 0.227)  2.73 + 4.49 = 7.22
    ============================  ===================================  =======================
    """
    world = World("goodput").nodes(1, cpu=8, gpus=4)
    sizes(arrive(world, a=ELASTIC, b=ELASTIC))
    sizes(until(world, "1m"))
    assert sizes(world) == {"a": 2, "b": 2}
    told(told(world, "a", (1000, 2000, 3000, 4000)), "b", (1000, 1100, 1150, 1200))
    sizes(until(world, "1h"))
    assert sorted(yielding(world)) == ["a", "b"]
    assert sizes(world) == {"a": 3, "b": 1}


def test_what_gains_little_is_not_restarted() -> None:
    """As above, but b scales nearly as well, so that both would lose by another size: 2.73 + 1/(0.975 x 0.132) is more
    than 7.97.
    """
    world = World("goodput").nodes(1, cpu=8, gpus=4)
    sizes(arrive(world, a=ELASTIC, b=ELASTIC))
    sizes(until(world, "1m"))
    sizes(world)
    told(told(world, "a", (1000, 2000, 3000, 4000)), "b", (1000, 1900, 2700, 3400))
    assert sizes(until(world, "1h")) == {"a": 2, "b": 2}
    assert yielding(world) == []


def test_who_has_nothing_comes_first() -> None:
    """One node of 2 devices: a has both, and b arrives. Nothing costs 1,000 to b; a shrinks."""
    world = World("goodput").nodes(1, cpu=8, gpus=2)
    sizes(arrive(world, a=ELASTIC))
    sizes(until(world, "1m"))
    assert sizes(world) == {"a": 2}
    assert sizes(arrive(until(world, "10m"), b=ELASTIC)) == {}
    assert yielding(world) == ["a"]
    assert sizes(world) == {"a": 1, "b": 1}


def test_nobody_is_restarted_for_its_equal() -> None:
    """One device. a came first, fails and is to be tried again; b has the device by then, and keeps it."""
    world = World("goodput").nodes(1, cpu=8, gpus=1)
    again = {"limit": 3, "backoff": "1s", "when": ["failed"]}
    assert sizes(arrive(world, a={"gpu": 1, "retry": again}, b={"gpu": 1})) == {"a": 1}
    world.finish("a", outcome="failed")
    assert sizes(world) == {"b": 1}
    assert sizes(until(world, "10m")) == {"b": 1}
    assert yielding(world) == []


def test_a_node_has_one_spread_unit_at_most() -> None:
    """Three nodes of 2 devices, gangs of 3: the first has a node and half of another. The other half and the third node
    would hold the second gang, whose traffic would then meet the first one's.
    """
    world = World("goodput").nodes(3, cpu=8, gpus=2)
    arrive(world, a={"gpu": 1, "workers": 3}, b={"gpu": 1, "workers": 3}, c={"gpu": 1})
    assert sizes(world) == {"a": 3, "c": 1}
    assert sizes(until(world, "5m", "a")) == {"b": 3, "c": 1}


def test_a_gang_has_one_size() -> None:
    world = World("goodput").nodes(1, cpu=8, gpus=4)
    arrive(world, a={"gpu": 1, "workers": 3}, b={"gpu": 1, "workers": 3})
    assert sizes(world) == {"a": 3}
    assert world.codes("b") == ["GANG_INCOMPLETE"]
    assert sizes(until(world, "5m", "a")) == {"b": 3}


def test_what_says_that_it_is_slower_apart_is_not_spread() -> None:
    """Two nodes of 2 devices: with 3 tasks over both it would get less done than with 2 on one."""
    world = World("goodput").nodes(2, cpu=8, gpus=2)
    sizes(arrive(world, a=ELASTIC))
    told(world, "a", (1000, 1900, 2700, 3400), (1000, 1000, 1200, 1500))
    sizes(until(world, "1m"))
    assert sizes(world) == {"a": 2}
    assert sizes(until(world, "1h")) == {"a": 2}
    assert world.where("a")[0] == world.where("a")[1]
