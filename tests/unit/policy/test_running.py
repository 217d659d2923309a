"""Columns of what runs agree with what is said of each attempt by itself, also after something has changed."""

from typing import Any

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from poise.model.fleet import Fleet, Resident
from poise.model.profiles import Profile, estimate_each, estimate_run
from poise.model.resources import Shape
from poise.policy.predict import Speeds
from poise.policy.running import Running, lost_work
from poise.testing import node
from poise.units import HOUR, MINUTE

NOW = 100 * HOUR

profiles = st.builds(
    Profile,
    count=st.integers(1, 9),
    mean=st.integers(0, 2**60),
    deviation=st.integers(0, 2**60),
    ratio=st.integers(0, 1_000_000),
    ratio_deviation=st.integers(0, 1_000_000),
)


@given(profiles, st.lists(st.integers(0, 2**60) | st.integers(0, 100 * HOUR)))
def test_estimates_of_many_are_those_of_each(profile: Profile, declared: list[int]) -> None:
    means, deviations = estimate_each(profile, np.array(declared, np.int64))
    each = [estimate_run(profile, one) for one in declared]
    assert means.tolist() == [one.mean for one in each]
    assert deviations.tolist() == [one.deviation for one in each]


def resident(number: int, **fields: Any) -> Resident:
    given: dict[str, Any] = {
        "unit": f"j{number}.main",
        "ordinal": number,
        "priority": 2,
        "shape": Shape(gpus=1),
        "kind": f"class-{number % 3}",
        "model": "A100-80",
        "since": NOW - number * MINUTE,
        "running": True,
        "declared": number * MINUTE,
    }
    return Resident(**given | fields)


def fleet(*rows: tuple[Resident, ...]) -> Fleet:
    made = Fleet([node(f"n{at}", gpus=8) for at in range(len(rows))])
    made.residents = list(rows)
    return made


BEEN: list[dict[str, Any]] = [
    {"saved": MINUTE},
    {"progress": 300_000, "attained": HOUR},
    {"progress": 100},
    {"outlived": HOUR},
    {"foreseen": HOUR},
    {"serves": "a service"},
    {"least": 1, "size": 3, "most": 4},
    {"model": "gone"},
]


def test_what_is_left_follows_what_is_learned_and_who_runs() -> None:
    every = [resident(number) for number in range(10)]
    every += [resident(10 + at, **of) for at, of in enumerate(BEEN)]
    here = fleet(tuple(every[:8]), tuple(every[8:]), ())
    learned: dict[str, Profile] = {}
    for step in range(6):
        learned = dict(learned)
        learned[f"class-{step % 3}@A100-80"] = Profile(
            count=1 + step, mean=(1 + step) * HOUR, deviation=HOUR, ratio=900 - step, ratio_deviation=step * 100
        )
        learned[f"class-{step % 2}"] = Profile(count=1 + step, mean=step * HOUR, deviation=MINUTE)
        here.residents[step % 3] = (*here.residents[step % 3][1:], resident(20 + step))
        now = Running(here, Speeds(here.models, learned, {}), NOW)
        anew = Running(fleet(*here.residents), Speeds(here.models, learned, {}), NOW)
        assert now.left.tolist() == anew.left.tolist()
        assert now.varies.tolist() == anew.varies.tolist()
        assert [now.endings(row) for row in range(3)] == [anew.endings(row) for row in range(3)]
        assert now.lost.tolist() == anew.lost.tolist()
        assert [of.tolist() for of in now.holders] == [of.tolist() for of in anew.holders]
        speeds = Speeds(here.models, learned, {})
        each = [speeds.both_of_attempt(one)[0] for one in now.residents]
        assert now.varies.tolist() == [one.deviation / max(1, one.mean) for one in each]


def test_values_of_each_are_made_again_only_for_who_has_changed() -> None:
    made: list[str] = []

    def make(one: Resident) -> list[int]:
        made.append(one.unit)
        return [one.ordinal, 2 * one.ordinal]

    here = fleet((resident(1), resident(2)), (), (resident(3),))
    speeds = Speeds(here.models, {}, {})
    Running(here, speeds, NOW).each("twice", make)
    steps: tuple[tuple[list[tuple[Resident, ...]], list[str]], ...] = (
        ([(resident(4),), here.residents[0], here.residents[2]], ["j4.main", "j1.main", "j2.main"]),
        ([(), (), ()], []),
        ([(), (resident(5),), (resident(6),)], ["j5.main", "j6.main"]),
    )
    for rows, anew in steps:
        made.clear()
        here.residents = rows
        running = Running(here, speeds, NOW)
        wanted = [[one.ordinal, 2 * one.ordinal] for one in running.residents]
        assert running.each("twice", make).T.tolist() == wanted
        assert made == anew


def test_the_work_that_all_lose_is_what_each_loses() -> None:
    saves = [{}, {"checkpoint": 7 * MINUTE}, {"kept": NOW - MINUTE}, {"checkpoint": MINUTE, "kept": NOW + MINUTE}]
    every = [resident(number, restore=number, **of) for number, of in enumerate(saves * 2)]
    here = fleet(tuple(every))
    running = Running(here, Speeds(here.models, {}, {}), NOW)
    assert running.lost.tolist() == [lost_work(one, NOW) for one in every]


def test_a_unit_holds_all_devices_of_its_attempts_on_a_node() -> None:
    gang = [resident(1, size=4, shape=Shape(gpus=2)) for _ in range(4)]
    alone, part = resident(2), resident(3, shape=Shape(gpus=1, share=500))
    here = fleet((gang[0], alone, gang[1]), (part, gang[2]), (gang[3],))
    running = Running(here, Speeds(here.models, {}, {}), NOW)
    names = list(running.units.number)
    held = {
        (row, names[number]): devices
        for row, number, devices in zip(*(column.tolist() for column in running.holders), strict=True)
    }
    assert held == {(0, "j1.main"): 4, (0, "j2.main"): 1, (1, "j3.main"): 1, (1, "j1.main"): 2, (2, "j1.main"): 2}
    assert dict(zip(names, running.widths.tolist(), strict=True)) == {"j1.main": 8, "j2.main": 1, "j3.main": 0}
