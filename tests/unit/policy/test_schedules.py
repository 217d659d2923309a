"""A schedule for every policy, worked out by hand from the policy's definition, and what the policy makes of it.

Each test begins with its table: the instant, what happens, and who runs where after the round that follows. Rounds are
decided at these instants only. Every job is of a class of its own, so that no run teaches anything about another.
"""

from collections import Counter
from typing import Any

import msgspec
import pytest

from poise.model.decisions import Place, Preempt
from poise.model.resources import Node
from poise.policy.suites import policy_named
from poise.testing import World, node
from poise.units import MILLISECOND, SECOND, parse_duration

SAVING = {"checkpoint": "10s"}


def arrive(world: World, **jobs: dict[str, Any]) -> World:
    """Jobs by name, with the fields of `World.job`."""
    for name, fields in jobs.items():
        world.job(name, **{"class": name, **fields})
    return world


def until(world: World, instant: str, *ended: str) -> World:
    """So long after the world began, these jobs (`job.unit` of a graph) end, having run since they were started."""
    world.now = SECOND + parse_duration(instant)
    for name in ended:
        unit = world.unit(name)
        for task, state in zip(unit.spec.tasks, unit.tasks, strict=True):
            if state.active:
                world.finish(f"{unit.job}.{task.name}", run=world.now - state.started)
    return world


def decided(world: World) -> dict[str, str]:
    """A round, and what is placed starts: who runs where then."""
    world.round()
    for of_node in world.held.values():
        world.start(*(attempt.task for attempt in of_node if attempt not in world.started))
    return running(world)


def running(world: World) -> dict[str, str]:
    """By job (`job.unit` of a graph) that holds room: its nodes."""
    return {
        job.name if len(job.units) == 1 else f"{job.name}.{unit.spec.name}": " ".join(
            task.node for task in unit.tasks if task.active
        )
        for job in world.ledger.jobs.values()
        for unit in job.units
        if unit.status == "active"
    }


def yielding(world: World) -> list[str]:
    """Who was asked to yield in the latest round."""
    units = [decision.unit for decision in world.plans[-1].decisions if isinstance(decision, Preempt)]
    found = [world.ledger.jobs.unit(unit) for unit in units]
    return [world.ledger.jobs[unit.job].name for unit in found if unit is not None]


def offering(made: Node, **fields: Any) -> Node:
    """The node, with what `node` has no word for."""
    return msgspec.structs.replace(made, **fields)


# --- fifo ------------------------------------------------------------------------------------------------------------


def test_fifo() -> None:
    """First come, first served; nobody overtakes; the first node by name that fits. Two nodes of 2 CPUs.

    ======  ===========================  =======================================================
    0       a 1, b 2, c 2, d 1 arrive    a on n1; b on n2 (1 left on n1); c fits nowhere; d would, but c came first
    1m      a ends                       c on n1; d finds no room
    2m      b ends                       d on n2
    2m30s   e 1, f 1 arrive              e on n2 beside d; f finds no room
    3m      c ends                       f on n1
    ======  ===========================  =======================================================
    """
    world = World("fifo").nodes(2, cpu=2)
    arrive(world, a={"cpu": 1}, b={"cpu": 2}, c={"cpu": 2}, d={"cpu": 1})
    assert decided(world) == {"a": "n1", "b": "n2"}
    assert [(reason.code, reason.subject) for reason in world.reasons("d")] == [("BEHIND", "j3.main")]
    assert decided(until(world, "1m", "a")) == {"b": "n2", "c": "n1"}
    assert world.codes("d") == ["CPU_BUSY", "CPU_BUSY"]
    assert decided(until(world, "2m", "b")) == {"c": "n1", "d": "n2"}
    until(world, "2m30s")
    assert decided(arrive(world, e={"cpu": 1}, f={"cpu": 1})) == {"c": "n1", "d": "n2", "e": "n2"}
    assert decided(until(world, "3m", "c")) == {"d": "n2", "e": "n2", "f": "n1"}


# --- random ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, 7, 2**40])
def test_random(seed: int) -> None:
    """Order of arrival, overtaking allowed, any node that fits. Three nodes of 2 CPUs, n4 has 1.

    ======  ================================  ==================================================
    0       a 2, b 2, c 2, d 2, e 1 arrive    a, b, c on n1, n2, n3, one each, in some order; d fits nowhere; e on n4,
                                              the only one with room for it: it overtakes d
    1m      b ends                            d where b was: nothing else fits
    2m      e, a end, f 1 arrives             f on n4 or where a was
    ======  ================================  ==================================================

    The same seed makes the same choices.
    """
    stories = []
    for _ in range(2):
        world = World("random", seed=seed).nodes(3, cpu=2).join(node("n4", cpu=1))
        arrive(world, a={"cpu": 2}, b={"cpu": 2}, c={"cpu": 2}, d={"cpu": 2}, e={"cpu": 1})
        first = decided(world)
        assert sorted(first) == ["a", "b", "c", "e"]
        assert sorted(first[name] for name in "abc") == ["n1", "n2", "n3"]
        assert first["e"] == "n4"
        second = decided(until(world, "1m", "b"))
        assert second == {"a": first["a"], "c": first["c"], "d": first["b"], "e": "n4"}
        third = decided(arrive(until(world, "2m", "e", "a"), f={"cpu": 1}))
        assert third["f"] in ("n4", first["a"])
        stories.append((first, second, third))
    assert stories[0] == stories[1]


def spots_by_seed(world: World, seeds: int) -> list[tuple[str, ...]]:
    """By seed, the nodes of what the policy `random` would place now, in order of arrival."""
    policy = policy_named("random")
    return [
        tuple(
            decision.spots[0].node
            for decision in policy.decide(world.ledger.snapshot(world.now, seed)).decisions
            if isinstance(decision, Place)
        )
        for seed in range(seeds)
    ]


def test_random_takes_every_fitting_node_as_often_as_any_other() -> None:
    """Of 600 seeds 200 take each of three nodes, give or take: the standard deviation is the root of 600 · 1/3 · 2/3,
    11.5; five of them are 58. The node that does not fit is never taken.
    """
    world = World("random").nodes(3, cpu=2).join(node("n4", cpu=1)).job(cpu=2)
    counts = Counter(spots_by_seed(world, 600))
    assert sorted(counts) == [("n1",), ("n2",), ("n3",)]
    assert all(142 <= count <= 258 for count in counts.values())


def test_random_chooses_anew_for_every_task() -> None:
    """Two units that are alike, three nodes with room for both: in a third of 600 seeds both go to one node."""
    world = World("random").nodes(3, cpu=2).job(**{"class": "x"}).job(**{"class": "x"})
    together = sum(first == second for first, second in spots_by_seed(world, 600))
    assert 142 <= together <= 258


# --- round robin -----------------------------------------------------------------------------------------------------


def test_round_robin() -> None:
    """Order of arrival, overtaking allowed, the next node by name after the last one used. n1 and n3 have 2 CPUs, n2 1.

    ====  =====================================  =============================================
    0     a 1, b 2, c 2, d 1, e 1, f 1 arrive    a on n1; b on n3 (n2 is too small); c fits nowhere; after n3 comes
                                                 n1 again: d; e on n2; f finds no room
    1m    b ends                                 c on n3, the only one with 2 free; f finds no room
    2m    a ends                                 f on n1
    3m    d and e end, g 1 and h 1 arrive        n1 and n2 have 1 free each; the last one used is n1: g on n2, and
                                                 after n2 (n3 is full) h on n1
    ====  =====================================  =============================================
    """
    world = World("round-robin").join(node("n1", cpu=2)).join(node("n2", cpu=1)).join(node("n3", cpu=2))
    arrive(world, a={"cpu": 1}, b={"cpu": 2}, c={"cpu": 2}, d={"cpu": 1}, e={"cpu": 1}, f={"cpu": 1})
    assert decided(world) == {"a": "n1", "b": "n3", "d": "n1", "e": "n2"}
    assert decided(until(world, "1m", "b")) == {"a": "n1", "c": "n3", "d": "n1", "e": "n2"}
    assert decided(until(world, "2m", "a")) == {"c": "n3", "d": "n1", "e": "n2", "f": "n1"}
    until(world, "3m", "d", "e")
    assert decided(arrive(world, g={"cpu": 1}, h={"cpu": 1})) == {"c": "n3", "f": "n1", "g": "n2", "h": "n1"}


def test_weighted_round_robin() -> None:
    """Smooth weighted round robin: each turn every fitting node's credit grows by its weight, the largest is taken and
    pays the sum of these weights. Weight: 100 + 50 (1 - CPU use) + 30 below 50 ms of latency, 15 below 100 ms.

    n1 has 8 CPUs and is near, n2 2 CPUs at 200 ms, n3 4 CPUs at 60 ms. Every job takes 1 CPU.

    ====  ======  ==========================  ==================================  ======  ======================
    at    job     weights n1, n2, n3          credits n1, n2, n3                  taken   and its credit then
    ====  ======  ==========================  ==================================  ======  ======================
    0     a       180, 150, 165               180, 150, 165                       n1      180 - 495 = -315
    0     b       173.75, 150, 165            -141.25, 300, 330                   n3      330 - 488.75 = -158.75
    0     c       173.75, 150, 152.5          32.5, 450, -6.25                    n2      450 - 476.25 = -26.25
    0     d       173.75, 125, 152.5          206.25, 98.75, 146.25               n1      206.25 - 451.25 = -245
    0     e       167.5, 125, 152.5           -77.5, 223.75, 298.75               n3      298.75 - 445 = -146.25
    0     f       167.5, 125, 140             90, 348.75, -6.25                   n2      348.75 - 432.5 = -83.75
    0     g       167.5, full, 140            257.5, -, 133.75                    n1      257.5 - 307.5 = -50
    0     h       161.25, full, 140           111.25, -, 273.75                   n3      273.75 - 301.25 = -27.5
    0     i       161.25, full, 127.5         272.5, -, 100                       n1      272.5 - 288.75 = -16.25
    1m            c and f end: n2 is empty
    1m    j       155, 150, 127.5             138.75, 66.25, 227.5                n3      227.5 - 432.5 = -205
    1m    k       155, 150, full              293.75, 216.25, -                   n1      293.75 - 305 = -11.25
    1m    l       148.75, 150, full           137.5, 366.25, -                    n2
    ====  ======  ==========================  ==================================  ======  ======================
    """
    world = World("weighted-round-robin").join(offering(node("n1", cpu=8), latency=0))
    world.join(offering(node("n2", cpu=2), latency=200 * MILLISECOND))
    world.join(offering(node("n3", cpu=4), latency=60 * MILLISECOND))
    first = {"a": "n1", "b": "n3", "c": "n2", "d": "n1", "e": "n3", "f": "n2", "g": "n1", "h": "n3", "i": "n1"}
    assert decided(arrive(world, **{name: {} for name in "abcdefghi"})) == first
    until(world, "1m", "c", "f")
    del first["c"], first["f"]
    assert decided(arrive(world, j={}, k={}, l={})) == first | {"j": "n3", "k": "n1", "l": "n2"}


# --- least loaded ----------------------------------------------------------------------------------------------------


def test_least_loaded() -> None:
    """Order of arrival, overtaking allowed, the node with the least 0.4 CPU + 0.3 memory + 0.2 devices + 0.1 network.

    n1: 4 CPUs, 8 GiB, no devices; n2: 4 CPUs, 16 GiB, 2 devices; both 10 Gbit/s.

    ====  =========================  ==============  ======  =================================================
    at    job                        load n1, n2     node    its load then
    ====  =========================  ==============  ======  =================================================
    0     a 1 CPU, 4 GiB             0, 0            n1      0.4 · 1/4 + 0.3 · 4/8 = 0.25
    0     b 2 CPUs, 1 device         -, 0            n2      0.4 · 2/4 + 0.2 · 1/2 = 0.3
    0     c 1 CPU, 5 Gbit/s          0.25, 0.3       n1      0.4 · 2/4 + 0.15 + 0.1 · 5/10 = 0.4
    0     d 1 CPU, 4 GiB             0.4, 0.3        n2      0.4 · 3/4 + 0.3 · 4/16 + 0.1 = 0.475
    0     e 1 CPU                    0.4, 0.475      n1      0.4 · 3/4 + 0.15 + 0.05 = 0.5
    0     f 1 CPU                    0.5, 0.475      n2      full
    0     g 2 CPUs                   1 CPU left, full: it waits
    0     h 1 CPU                    0.5, full       n1      full; h has overtaken g
    1m    a and b end                                        n1 0.4 · 3/4 + 0.05 = 0.35; n2 0.4 · 2/4 + 0.075 = 0.275
    1m    g 2 CPUs                   1 CPU left, 0.275  n2   full
    1m    i 1 CPU arrives            0.35, full      n1      full
    ====  =========================  ==============  ======  =================================================
    """
    world = World("least-loaded")
    world.join(offering(node("n1", cpu=4, memory="8GiB"), network=10_000_000_000))
    world.join(offering(node("n2", cpu=4, memory="16GiB", gpus=2), network=10_000_000_000))
    arrive(world, a={"memory": "4GiB"}, b={"cpu": 2, "gpu": 1}, c={"network": "5Gbit"}, d={"memory": "4GiB"})
    arrive(world, e={}, f={}, g={"cpu": 2}, h={})
    first = {"a": "n1", "b": "n2", "c": "n1", "d": "n2", "e": "n1", "f": "n2", "h": "n1"}
    assert decided(world) == first
    until(world, "1m", "a", "b")
    del first["a"], first["b"]
    assert decided(arrive(world, i={})) == first | {"g": "n2", "i": "n1"}


def test_least_loaded_looks_at_the_load_of_the_moment() -> None:
    """Two nodes of 8 CPUs, one round: x1 takes 1 CPU of n1 (a tie); y 4 of n2, which is less loaded; x2, of the same
    class and shape as x1, finds 1/8 taken on n1 and 4/8 on n2.
    """
    world = World("least-loaded").nodes(2, cpu=8)
    world.job("x1", **{"class": "x"}).job("y", cpu=4, **{"class": "y"}).job("x2", **{"class": "x"})
    assert decided(world) == {"x1": "n1", "y": "n2", "x2": "n1"}


# --- sjf and srtf ----------------------------------------------------------------------------------------------------


def test_sjf() -> None:
    """Shortest expected run first, ties by arrival, overtaking allowed, nothing yields. One node of 2 CPUs.

    ====  ==========================================  ========================================
    0     a 10m of 1 CPU, b 2m of 2, c 5m of 1,       b, the first of the two shortest; the rest waits
          d 2m of 1 arrive
    2m    b ends                                      d, then c
    3m    e 1m of 2 arrives                           nothing: e is shortest and waits for 2 CPUs
    4m    d ends                                      e needs 2; a overtakes it
    7m    c ends                                      e still needs 2
    14m   a ends                                      e
    ====  ==========================================  ========================================
    """
    world = World("sjf").nodes(1, cpu=2)
    arrive(world, a={"expect": "10m"}, b={"cpu": 2, "expect": "2m"}, c={"expect": "5m"}, d={"expect": "2m"})
    assert decided(world) == {"b": "n1"}
    assert decided(until(world, "2m", "b")) == {"c": "n1", "d": "n1"}
    assert decided(arrive(until(world, "3m"), e={"cpu": 2, "expect": "1m"})) == {"c": "n1", "d": "n1"}
    assert yielding(world) == []
    assert decided(until(world, "4m", "d")) == {"a": "n1", "c": "n1"}
    assert decided(until(world, "7m", "c")) == {"a": "n1"}
    assert decided(until(world, "14m", "a")) == {"e": "n1"}


def test_srtf() -> None:
    """Shortest expected remaining run first; who has longer to go, and has run for 30 s, yields. One node of 1 CPU.

    What yields begins anew, and is asked to end in one round; the room is taken in the next.

    ======  ==============================  ==================================================
    0       a 10m arrives                   a
    20s     b 3m arrives                    a goes on: 9m40s are longer than 3m, but it has run for 20 s only
    40s                                     a yields; then b
    1m20s   c 2m30s arrives                 b goes on: it has run for 40 s and has 2m20s to go
    1m20s   d 1m arrives                    b yields to d, which is shorter than c
    2m20s   d ends                          c before b, which has its 3m before it again, before a
    4m50s   c ends                          b
    7m50s   b ends                          a
    17m50s  a ends                          nothing
    ======  ==============================  ==================================================
    """
    world = World("srtf").nodes(1, cpu=1)
    assert decided(arrive(world, a={"expect": "10m"})) == {"a": "n1"}
    assert decided(arrive(until(world, "20s"), b={"expect": "3m"})) == {"a": "n1"}
    assert decided(until(world, "40s")) == {}
    assert yielding(world) == ["a"]
    assert world.status("a") == "pending"
    assert world.codes("b")[0] == "PREEMPTING"
    assert decided(world) == {"b": "n1"}
    assert decided(arrive(until(world, "1m20s"), c={"expect": "2m30s"})) == {"b": "n1"}
    assert decided(arrive(world, d={"expect": "1m"})) == {}
    assert yielding(world) == ["b"]
    assert decided(world) == {"d": "n1"}
    assert decided(until(world, "2m20s", "d")) == {"c": "n1"}
    assert decided(until(world, "4m50s", "c")) == {"b": "n1"}
    assert decided(until(world, "7m50s", "b")) == {"a": "n1"}
    assert decided(until(world, "17m50s", "a")) == {}


# --- las and mlfq ----------------------------------------------------------------------------------------------------


def test_las() -> None:
    """Least attained service first; who has had more than a quantum (30 s) more yields. One node of 2 CPUs, jobs of 1.

    ======  ===========  ==========================  ===============================================
    at      event        service a, b, c             then
    ======  ===========  ==========================  ===============================================
    0       a arrives                                a
    10s     b arrives    10, 0                       a, b
    20s     c arrives    20, 10, 0                   c waits: nobody has had more than 30 s
    40s                  40, 30, 0                   a yields (b has had 30 s, not more); then b, c
    1m20s                40, 70, 40                  a waits: b has had 30 s more, not more than that
    1m30s                40, 80, 50                  b yields; then a, c
    2m      e arrives    70, 80, 80, e 0             c has had the most of those that run, and yields; then a, e
    2m10s   e ends       80, 80, 80                  b and c are equal: b arrived first; then a, b
    3m      a ends       130, 130, 80                b, c
    ======  ===========  ==========================  ===============================================
    """
    world = World("las").nodes(1, cpu=2)
    assert decided(arrive(world, a={})) == {"a": "n1"}
    assert decided(arrive(until(world, "10s"), b={})) == {"a": "n1", "b": "n1"}
    assert decided(arrive(until(world, "20s"), c={})) == {"a": "n1", "b": "n1"}
    assert decided(until(world, "40s")) == {"b": "n1"}
    assert decided(world) == {"b": "n1", "c": "n1"}
    assert decided(until(world, "1m20s")) == {"b": "n1", "c": "n1"}
    assert decided(until(world, "1m30s")) == {"c": "n1"}
    assert decided(world) == {"a": "n1", "c": "n1"}
    assert decided(arrive(until(world, "2m"), e={})) == {"a": "n1"}
    assert decided(world) == {"a": "n1", "e": "n1"}
    assert decided(until(world, "2m10s", "e")) == {"a": "n1", "b": "n1"}
    assert decided(until(world, "3m", "a")) == {"b": "n1", "c": "n1"}


def test_las_counts_devices() -> None:
    """Service is time times devices. One node of 3 devices.

    ====  ============================  =====================================================
    0     small 1, big 2 arrive         small, big
    40s   c 1 arrives                   small has had 40 s, more than its quantum of 30; big 80 s, more than its
                                        quantum of 60, and the most: big yields; then small, c
    45s   d 1 arrives                   d (0 s) before big (80 s) on the device that is left
    ====  ============================  =====================================================
    """
    world = World("las").nodes(1, cpu=8, gpus=3)
    assert decided(arrive(world, small={"gpu": 1}, big={"gpu": 2})) == {"small": "n1", "big": "n1"}
    assert decided(arrive(until(world, "40s"), c={"gpu": 1})) == {"small": "n1"}
    assert yielding(world) == ["big"]
    assert decided(world) == {"small": "n1", "c": "n1"}
    assert decided(arrive(until(world, "45s"), d={"gpu": 1})) == {"small": "n1", "c": "n1", "d": "n1"}


def test_mlfq() -> None:
    """Levels of attained service, from 30 s, 5 min and 1 h on; the lower level first, then arrival; who is on a later
    level and has run for 30 s yields; waiting for 5 min raises to level 0. One node of 1 CPU; all save
    themselves every 10 s.

    ======  ===========  ==============================================================================
    at      event        then
    ======  ===========  ==============================================================================
    0       a arrives    a
    10s     b arrives    a goes on: both are on level 0
    40s                  a (40 s, level 1) yields to b (level 0)
    1m      c arrives    b goes on: 20 s, level 0
    1m15s                b (35 s, level 1) yields to c
    1m50s                c goes on: 35 s, level 1, as a and b are
    2m      c ends       a before b, both on level 1: it arrived first
    6m10s                a goes on: 40 s + 4m10s = 290 s, level 1; b has waited for 4m55s, level 1
    6m16s                a (296 s, level 1) yields to b, which has waited for 5m01s: level 0
    6m30s   d arrives    b goes on: 35 s + 14 s, level 1, but it has run for 14 s only
    6m50s                b (69 s, level 1) yields to d (level 0)
    7m      d ends       a before b, both on level 1
    7m15s                a goes on: 311 s, level 2, b is on level 1; but it has run for 15 s only
    7m40s                a (336 s, level 2) yields to b (level 1)
    8m      b ends       a
    ======  ===========  ==============================================================================
    """
    world = World("mlfq").nodes(1, cpu=1)
    assert decided(arrive(world, a=SAVING)) == {"a": "n1"}
    assert decided(arrive(until(world, "10s"), b=SAVING)) == {"a": "n1"}
    assert decided(until(world, "40s")) == {}
    assert decided(world) == {"b": "n1"}
    assert decided(arrive(until(world, "1m"), c=SAVING)) == {"b": "n1"}
    assert decided(until(world, "1m15s")) == {}
    assert decided(world) == {"c": "n1"}
    assert decided(until(world, "1m50s")) == {"c": "n1"}
    assert decided(until(world, "2m", "c")) == {"a": "n1"}
    assert decided(until(world, "6m10s")) == {"a": "n1"}
    assert decided(until(world, "6m16s")) == {}
    assert decided(world) == {"b": "n1"}
    assert decided(arrive(until(world, "6m30s"), d=SAVING)) == {"b": "n1"}
    assert decided(until(world, "6m50s")) == {}
    assert decided(world) == {"d": "n1"}
    assert decided(until(world, "7m", "d")) == {"a": "n1"}
    assert decided(until(world, "7m15s")) == {"a": "n1"}
    assert decided(until(world, "7m40s")) == {}
    assert decided(world) == {"b": "n1"}
    assert decided(until(world, "8m", "b")) == {"a": "n1"}


# --- static ----------------------------------------------------------------------------------------------------------


def test_static() -> None:
    """Unit number k may use node k modulo 3 only: n1 is 0, n2 is 1, n3 is 2. Three nodes of 2 CPUs.

    ====  ========================================  ==================================================
    0     a 2, b 1, c 2, d 1, e 1, f 2, g 1         a (1) on n2; b (2) on n3; c (3) on n1; d (4) waits for n2; e (5)
          arrive, numbers 1 to 7                    on n3; f (6) waits for n1; g (7) for n2
    1m    b ends                                    nothing: 1 CPU of n3 is idle, and nobody's
    2m    a ends                                    d and g on n2
    3m    c ends                                    f on n1
    ====  ========================================  ==================================================
    """
    world = World("static").nodes(3, cpu=2)
    arrive(world, a={"cpu": 2}, b={}, c={"cpu": 2}, d={}, e={}, f={"cpu": 2}, g={})
    assert decided(world) == {"a": "n2", "b": "n3", "c": "n1", "e": "n3"}
    assert decided(until(world, "1m", "b")) == {"a": "n2", "c": "n1", "e": "n3"}
    assert decided(until(world, "2m", "a")) == {"c": "n1", "d": "n2", "e": "n3", "g": "n2"}
    assert decided(until(world, "3m", "c")) == {"d": "n2", "e": "n3", "f": "n1", "g": "n2"}


def test_static_on_one_node() -> None:
    """There the CPUs are the partitions: of 3, unit 1 has number 1, unit 2 number 2, unit 3 number 0, unit 4 number 1.

    ====  ==================  =========================================================
    0     a, b, c, d arrive   a, b, c; d waits for number 1
    1m    b ends              d waits: number 2 is not its own
    2m    a ends              d
    ====  ==================  =========================================================
    """
    world = World("static").nodes(1, cpu=3)
    assert decided(arrive(world, a={}, b={}, c={}, d={})) == {"a": "n1", "b": "n1", "c": "n1"}
    assert decided(until(world, "1m", "b")) == {"a": "n1", "c": "n1"}
    assert decided(until(world, "2m", "a")) == {"c": "n1", "d": "n1"}


# --- poise -----------------------------------------------------------------------------------------------------------


def test_poise_order() -> None:
    """Class, raised by one for each 5 min of waiting; in a class what its deadline presses, then those that have waited
    longest, then the shortest job. One node of 1 CPU; nothing here may be asked to yield.

    At 0 arrive: hold (high, 4m); then low (low, 2m), med (2m), path (first 1m, then second 5m), due (2m, to be done by
    9m), high (high, 1m).

    ====  ===============  ==========================================================================
    at    event            then
    ====  ===============  ==========================================================================
    0                      hold
    4m    hold ends        high: its class
    5m    high ends        due: by 9m at the latest, 2m to run, so 2m left, no more than what its estimate may err by
                           (twice a mean deviation of half of it)
    7m    due ends;        med: of those raised to high, med and path.first have waited equally long, and it came first;
          fresh (30m)      low is medium now, and so is fresh
          arrives
    9m    med ends         path.first (raised to high), before low and fresh (both medium)
    10m   path.first ends  low: it has waited for 10m, and is high
    12m   low ends         fresh: it has waited for 5m, and is high; path.second for 2m, and is medium
    42m   fresh ends       path.second
    47m   path ends        nothing
    ====  ===============  ==========================================================================
    """
    stays = {"preemptible": False}
    world = World().nodes(1, cpu=1)
    assert decided(arrive(world, hold={"expect": "4m", "priority": "high", **stays})) == {"hold": "n1"}
    arrive(world, low={"expect": "2m", "priority": "low", **stays})
    arrive(world, med={"expect": "2m", **stays})
    tasks = {
        "first": {"expect": "1m", "class": "first", **stays},
        "second": {"expect": "5m", "class": "second", "needs": ["first"], **stays},
    }
    world.graph("path", tasks=tasks)
    arrive(world, due={"expect": "2m", "deadline": "9m", **stays})
    arrive(world, high={"expect": "1m", "priority": "high", **stays})
    assert decided(world) == {"hold": "n1"}
    assert decided(until(world, "4m", "hold")) == {"high": "n1"}
    assert decided(until(world, "5m", "high")) == {"due": "n1"}
    until(world, "7m", "due")
    assert decided(arrive(world, fresh={"expect": "30m", **stays})) == {"med": "n1"}
    assert decided(until(world, "9m", "med")) == {"path.first": "n1"}
    assert decided(until(world, "10m", "path.first")) == {"low": "n1"}
    assert decided(until(world, "12m", "low")) == {"fresh": "n1"}
    assert decided(until(world, "42m", "fresh")) == {"path.second": "n1"}
    assert decided(until(world, "47m", "path.second")) == {}


def test_poise_order_among_equals() -> None:
    """One class, no deadlines. One node of 1 CPU; medium work is patient for 10 s.

    ====  ==============================  =====================================================================
    0     hold (1m) arrives               hold
    55s   b 2m, c 3m, d 1m, e 3m arrive
    1m    hold ends                       d: nobody has waited for longer than 10 s, and it is the shortest
    2m    d ends                          b, c, e have waited for 65 s, longer than their patience: b came first
    4m    b ends; f 1m arrives            c: room is kept for those who waited, and f has not
    7m    c ends                          e: it has waited longer than f
    10m   e ends                          f
    ====  ==============================  =====================================================================
    """
    world = World().nodes(1, cpu=1)
    arrive(world, hold={"expect": "1m"})
    assert decided(world) == {"hold": "n1"}
    until(world, "55s")
    arrive(world, b={"expect": "2m"}, c={"expect": "3m"}, d={"expect": "1m"}, e={"expect": "3m"})
    assert decided(world) == {"hold": "n1"}
    assert decided(until(world, "1m", "hold")) == {"d": "n1"}
    assert decided(until(world, "2m", "d")) == {"b": "n1"}
    assert decided(arrive(until(world, "4m", "b"), f={"expect": "1m"})) == {"c": "n1"}
    assert decided(until(world, "7m", "c")) == {"e": "n1"}
    assert decided(until(world, "10m", "e")) == {"f": "n1"}


def test_poise_takes_the_longest_path_of_a_job_first() -> None:
    """One graph on one CPU: a of 1m and a2 of 3m after it, and b of 2m.

    ====  =======  =====================================================
    0              a, with 4m ahead of it, before b with 2m
    5s    a ends   a2, with 3m, before b with 2m: nobody waited for 10 s
    ====  =======  =====================================================
    """
    world = World().nodes(1, cpu=1)
    tasks: dict[str, dict[str, Any]] = {
        "a": {"expect": "1m"},
        "b": {"expect": "2m"},
        "a2": {"expect": "3m", "needs": ["a"]},
    }
    world.graph("g", tasks={name: {"class": name, **fields} for name, fields in tasks.items()})
    assert decided(world) == {"g.a": "n1"}
    assert decided(until(world, "5s", "g.a")) == {"g.a2": "n1"}


def test_poise_fits_tightly() -> None:
    """The node with least left over. n1 8 CPUs, n2 2, n3 4.

    ====  ==============================  ==========================================================
    0     a 2, b 3, c 1, d 4 arrive       a fills n2; b on n3 (1 left); c fills n3; d on n1, the only one with room
    1m    a ends, e 2 arrives             e on n2, and fills it; 4 are left on n1
    1m    f 1 arrives                     f on n1, the only one with room
    ====  ==============================  ==========================================================

    The shortest goes first, so each expects more than the one before.
    """
    world = World().join(node("n1", cpu=8)).join(node("n2", cpu=2)).join(node("n3", cpu=4))
    arrive(world, a={"cpu": 2, "expect": "4m"}, b={"cpu": 3, "expect": "5m"}, c={"expect": "6m"})
    assert decided(arrive(world, d={"cpu": 4, "expect": "7m"})) == {"a": "n2", "b": "n3", "c": "n3", "d": "n1"}
    until(world, "1m", "a")
    arrive(world, e={"cpu": 2, "expect": "5m"}, f={"expect": "6m"})
    assert decided(world) == {"b": "n3", "c": "n3", "d": "n1", "e": "n2", "f": "n1"}


def test_poise_takes_the_faster_device_first() -> None:
    """n1 has two slow devices, n2 two that are twice as fast for `train`, n3 has none; 8 CPUs each.

    ====  ===================================  =================================================================
    0     a, b, c of class train, 1 device     a and b on n2; c on n1, since no fast one is left
    0     d without devices                    d on n3: devices are left to those that ask for them
    1m    a ends, e of class train arrives     e on n2
    ====  ===================================  =================================================================
    """
    world = World(throughputs={"train@slow": 1.0, "train@fast": 2.0})
    for name, model, gpus in (("n1", "slow", 2), ("n2", "fast", 2), ("n3", "", 0)):
        made = node(name, cpu=8, gpus=gpus)
        devices = tuple(msgspec.structs.replace(device, model=model) for device in made.devices)
        world.join(offering(made, devices=devices))
    train = {"gpu": 1, "expect": "10m", "class": "train"}
    arrive(world, a=train, b=train, c=train, d={"expect": "1m"})
    assert decided(world) == {"a": "n2", "b": "n2", "c": "n1", "d": "n3"}
    assert decided(arrive(until(world, "1m", "a"), e=train)) == {"b": "n2", "c": "n1", "d": "n3", "e": "n2"}


def test_poise_keeps_room_and_fills_the_gaps() -> None:
    """Small work fills gaps, but may not delay a gang for which room is kept. Two nodes of 2 CPUs; all are medium.

    Room is kept after 10 s of waiting. Of what was declared to take x, nearly all takes up to 2x (the mean and twice a
    deviation of half of it).

    ======  ================================  =================================================================
    0       long (2 CPUs, 10m) arrives        long on n1
    0       gang (2 tasks of 2 CPUs, 20m)     gang waits for both nodes; s1 on n2: nothing is kept yet
            and s1 (1m) arrive
    5s      s2 (1m) arrives                   s2 on n2, likewise
    15s     s3 (2m) arrives                   both nodes are full. Room is kept for the gang, complete at 10m
    1m      s1 ends                           s3 on n2: gone by 1m + 4m, before 10m
    1m5s    s2 ends; s4 (5m), s5 (4m)         s4 waits: it may last until 1m5s + 10m; s5 on n2: gone by 1m5s + 8m
            arrive
    3m      s3 ends; s6 (4m) arrives          s6 waits: it may last until 3m + 8m; s4 waits
    5m5s    s5 ends                           n2 stands empty: s4 may last until 15m5s, s6 until 13m5s
    10m     long ends                         gang on n1 and n2
    30m     gang ends                         s4 (the longer path) on n1, s6 beside it: that fits tightly
    ======  ================================  =================================================================
    """
    world = World().nodes(2, cpu=2)
    assert decided(arrive(world, long={"cpu": 2, "expect": "10m"})) == {"long": "n1"}
    arrive(world, gang={"cpu": 2, "workers": 2, "expect": "20m"}, s1={"expect": "1m"})
    assert decided(world) == {"long": "n1", "s1": "n2"}
    assert decided(arrive(until(world, "5s"), s2={"expect": "1m"})) == {"long": "n1", "s1": "n2", "s2": "n2"}
    assert decided(arrive(until(world, "15s"), s3={"expect": "2m"})) == {"long": "n1", "s1": "n2", "s2": "n2"}
    assert decided(until(world, "1m", "s1")) == {"long": "n1", "s2": "n2", "s3": "n2"}
    until(world, "1m5s", "s2")
    assert decided(arrive(world, s4={"expect": "5m"}, s5={"expect": "4m"})) == {"long": "n1", "s3": "n2", "s5": "n2"}
    assert "RESERVED" in world.codes("s4") or "CPU_BUSY" in world.codes("s4")
    assert decided(arrive(until(world, "3m", "s3"), s6={"expect": "4m"})) == {"long": "n1", "s5": "n2"}
    assert ("RESERVED", "n2") in [(reason.code, reason.subject) for reason in world.reasons("s6")]
    assert decided(until(world, "5m5s", "s5")) == {"long": "n1"}
    assert decided(until(world, "10m", "long")) == {"gang": "n1 n2"}
    assert decided(until(world, "30m", "gang")) == {"s4": "n1", "s6": "n1"}


@pytest.mark.parametrize(
    ("priority", "patience"), [("urgent", "0s"), ("high", "1s"), ("medium", "10s"), ("low", "30s")]
)
def test_poise_is_patient_by_class(priority: str, patience: str) -> None:
    """Room is kept once a unit has waited: urgent at once, high 1 s, medium 10 s, low 30 s. One node of 2 CPUs.

    half (1 CPU, 10m, stays) runs; wide needs both CPUs. Just before the time is up `early` may have the other CPU; at
    that time `late`, which could last beyond 10m, may not. They are of a class no higher than wide's.
    """
    half = {"expect": "10m", "preemptible": False}
    beside = {"expect": "10m", "priority": "low", "preemptible": False}
    for before in (True, False):
        world = World().nodes(1, cpu=2)
        assert decided(arrive(world, half=half)) == {"half": "n1"}
        wide = {"cpu": 2, "expect": "1h", "priority": priority}
        arrive(world, wide=wide)
        if before and priority == "urgent":
            continue  # there is no time before
        waited = parse_duration(patience) - before * 100 * MILLISECOND
        world.now += waited
        assert decided(arrive(world, beside=beside)) == {"half": "n1"} | ({"beside": "n1"} if before else {})


def test_poise_preempts_where_it_gains() -> None:
    """Who waits may make units of lower classes yield if it gains more than they lose. One node of 4 CPUs, all take 2.

    Gain: time until it could start otherwise, times the weight of its class (8, 4, 2, 1). Cost: work since the last
    checkpoint, times the weight of the class of what yields.

    ======  ==============================  ========================================================================
    0       l1 (low, 20m, checkpoint 1m)    l1, l2
            and l2 (low, 20m) arrive
    20s     u (urgent, 5m) arrives          nothing: both have run for 20 s only
    1m30s                                   u could start at 20m otherwise: it gains 18m30s · 8 = 8880 s. l1 would lose
                                            30 s · 1, l2 90 s · 1: l1 yields; then u, l2
    2m      m (medium, 1m) arrives          it could start at 6m30s otherwise: 4m30s · 2 = 540 s; l2 would lose
                                            120 s · 1, u is of a higher class: l2 yields; then u, m
    3m      m ends                          l1 before l2: it arrived first, and keeps its place
    6m30s   u ends                          l2
    7m20s   v (urgent, 1m) arrives          l1 has run since 3m: 20 s since its last checkpoint; l2 has run for 50 s and
                                            would lose all: l1 yields; then v, l2
    8m20s   v ends                          l1
    ======  ==============================  ========================================================================
    """
    world = World().nodes(1, cpu=4)
    low = {"cpu": 2, "expect": "20m", "priority": "low"}
    assert decided(arrive(world, l1={**low, "checkpoint": "1m"}, l2=low)) == {"l1": "n1", "l2": "n1"}
    until(world, "20s")
    assert decided(arrive(world, u={"cpu": 2, "expect": "5m", "priority": "urgent"})) == {"l1": "n1", "l2": "n1"}
    assert decided(until(world, "1m30s")) == {"l2": "n1"}
    assert (yielding(world), world.status("l1"), world.codes("u")[0]) == (["l1"], "pending", "PREEMPTING")
    assert decided(world) == {"l2": "n1", "u": "n1"}
    assert decided(arrive(until(world, "2m"), m={"cpu": 2, "expect": "1m"})) == {"u": "n1"}
    assert yielding(world) == ["l2"]
    assert decided(world) == {"m": "n1", "u": "n1"}
    assert decided(until(world, "3m", "m")) == {"l1": "n1", "u": "n1"}
    assert decided(until(world, "6m30s", "u")) == {"l1": "n1", "l2": "n1"}
    until(world, "7m20s")
    assert decided(arrive(world, v={"cpu": 2, "expect": "1m", "priority": "urgent"})) == {"l2": "n1"}
    assert yielding(world) == ["l1"]
    assert decided(world) == {"l2": "n1", "v": "n1"}
    assert decided(until(world, "8m20s", "v")) == {"l1": "n1", "l2": "n1"}


def test_poise_makes_what_had_its_turn_yield_to_what_nobody_knows() -> None:
    """Nothing is known of `new`. What has had 16 hours of a device and saves itself makes way for it; what has had less
    does not, nor does what would lose all that it did. Two nodes of one device.

    ======  ====================================  ===================================
    0       saved (100h, checkpoint 10m) and      saved, bare
            bare (200h, saves nothing) arrive
    15h     new arrives                           saved, bare: 15 h are less than 16
    17h                                           saved yields; then new, bare
    ======  ====================================  ===================================
    """
    world = World().nodes(2, cpu=4, gpus=1)
    arrive(world, saved={"gpu": 1, "expect": "100h", "checkpoint": "10m"}, bare={"gpu": 1, "expect": "90h"})
    assert decided(world).keys() == {"saved", "bare"}
    assert decided(arrive(until(world, "15h"), new={"gpu": 1})).keys() == {"saved", "bare"}
    assert yielding(world) == []
    decided(until(world, "17h"))
    assert yielding(world) == ["saved"]
    assert decided(world).keys() == {"new", "bare"}


def test_poise_does_not_preempt_where_it_does_not_gain() -> None:
    """One node of 1 CPU.

    ======  ======================================  ==============================================================
    0       low (low, 2m) arrives                   low
    1m45s   m (medium, 1m) arrives                  low goes on: m could start at 2m otherwise, or at 2m15s if low is
                                                    late, and gains at most 30 s · 2 = 60 s; low would lose 105 s · 1
    2m      low ends                                m
    2m40s   m2 (medium, 1m) arrives                 m goes on: it is of the same class
    3m      m ends                                  m2
    4m      m2 ends; k (low, 1h, not preemptible)   k
            arrives
    5m      u (urgent, 1m) arrives                  k goes on: it opted out
    ======  ======================================  ==============================================================
    """
    world = World().nodes(1, cpu=1)
    assert decided(arrive(world, low={"expect": "2m", "priority": "low"})) == {"low": "n1"}
    assert decided(arrive(until(world, "1m45s"), m={"expect": "1m"})) == {"low": "n1"}
    assert decided(until(world, "2m", "low")) == {"m": "n1"}
    assert decided(arrive(until(world, "2m40s"), m2={"expect": "1m"})) == {"m": "n1"}
    assert decided(until(world, "3m", "m")) == {"m2": "n1"}
    until(world, "4m", "m2")
    assert decided(arrive(world, k={"expect": "1h", "priority": "low", "preemptible": False})) == {"k": "n1"}
    assert decided(arrive(until(world, "5m"), u={"expect": "1m", "priority": "urgent"})) == {"k": "n1"}


def test_poise_makes_nobody_yield_more_than_three_times() -> None:
    """low (low, 1h) runs on the one CPU; each 2 min an urgent job of 30 s arrives, when low has run for 90 s. Three
    times low yields, and comes back when the urgent one has ended; the fourth waits.
    """
    world = World().nodes(1, cpu=1)
    assert decided(arrive(world, low={"expect": "1h", "priority": "low"})) == {"low": "n1"}
    for number in (1, 2, 3):
        urgent = f"u{number}"
        until(world, f"{120 * number - 30}s")
        assert decided(arrive(world, **{urgent: {"expect": "30s", "priority": "urgent"}})) == {}
        assert decided(world) == {urgent: "n1"}
        assert decided(until(world, f"{120 * number}s", urgent)) == {"low": "n1"}
    until(world, "7m30s")
    assert decided(arrive(world, u4={"expect": "30s", "priority": "urgent"})) == {"low": "n1"}
    assert decided(until(world, "20m")) == {"low": "n1"}
    assert decided(until(world, "21m", "low")) == {"u4": "n1"}


def test_poise_starts_gangs_whole_and_elastic_ones_with_what_is_left() -> None:
    """Two nodes of 2 CPUs; every task takes 1 CPU.

    ====  ==============================================  ==========================================================
    0     hold (20m) arrives                              hold on n1 (a tie)
    0     gang (4 tasks, 30m), el (2 to 4 tasks, 10m),    gang waits: 3 CPUs are free; el starts with 2, then x takes
          x (5m) arrive                                   the third; nothing is left for el to grow into
    5s    x ends, y (2 to 4 tasks, 10m) arrives           y waits: 1 CPU is free, and it needs 2
    6s    el ends                                         y with all 3 CPUs that are free (the gang has waited for 6 s,
                                                          and no room is kept for it yet)
    1m    hold ends                                       gang waits for y; 1 CPU is free
    2m    y ends                                          gang on n1 and n2, whole
    ====  ==============================================  ==========================================================
    """
    world = World().nodes(2, cpu=2)
    assert decided(arrive(world, hold={"expect": "20m"})) == {"hold": "n1"}
    arrive(world, gang={"workers": 4, "expect": "30m"}, el={"workers": "2..4", "expect": "10m"}, x={"expect": "5m"})
    first = decided(world)
    assert sorted(first) == ["el", "hold", "x"]
    assert len(first["el"].split()) == 2
    assert decided(arrive(until(world, "5s", "x"), y={"workers": "2..4", "expect": "10m"})).keys() == {"el", "hold"}
    second = decided(until(world, "6s", "el"))
    assert (sorted(second), sorted(second["y"].split())) == (["hold", "y"], ["n1", "n2", "n2"])
    assert decided(until(world, "1m", "hold")).keys() == {"y"}
    assert sorted(decided(until(world, "2m", "y"))["gang"].split()) == ["n1", "n1", "n2", "n2"]
