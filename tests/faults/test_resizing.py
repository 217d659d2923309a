"""Fleets whose gangs resize: the same promises, in worlds made of little else."""

from random import Random

import msgspec

from poise.drivers.nemeses import shipped
from poise.engine.machine import RESIZES
from poise.engine.promises import Violation
from poise.engine.scenario import Act, Scenario, scenario_of
from poise.engine.seeds import nemeses_of
from poise.engine.simulation import Moment, Simulation
from poise.model.events import Resized
from poise.units import SECOND

SEEDS = 40


def a_world_of_gangs(seed: int) -> Scenario:
    """The nodes and faults of a seed, with training of all sizes, and brief work that comes in between."""
    random = Random(f"gangs {seed}")  # noqa: S311
    scenario = scenario_of(seed, nemeses_of(seed, shipped()))
    acts = []
    for number in range(10):
        at, gang = int(random.uniform(0, 25) * SECOND), number < 5
        document = {
            "run": f"{RESIZES if gang else 'work'} {random.uniform(5, 25 if gang else 5):.3f}",
            "resources": {"cpu": random.choice((0.5, 1))},
            "priority": random.choice(("low", "medium")) if gang else random.choice(("urgent", "high", "low")),
            "retry": {"limit": 5, "backoff": "100ms", "when": ["lost", "killed", "signal", "hung", "oom"]},
        }
        if gang:
            document |= {"workers": random.choice(("1..3", "2..4", "1..8", "3..4")), "checkpoint": "1s"}
            document |= {"lease": "exclusive"} if random.random() < 0.3 else {}
            document |= {"hang": "2s"} if random.random() < 0.5 else {}
        acts.append(Act(at=at, act="submit", key=f"g{number}", document=document))
        if random.random() < 0.15:
            acts.append(Act(at=at + int(random.uniform(1, 15) * SECOND), act="cancel", of=f"g{number}"))
    acts += [act for act in scenario.acts if act.act in ("drain", "empty", "undrain", "quota")]
    policy = {0: "goodput", 4: "elasticflow"}.get(seed % 8, "poise")
    return msgspec.structs.replace(scenario, acts=tuple(sorted(acts, key=lambda act: act.at)), policy=policy)


def try_one(seed: int) -> tuple[str, dict[str, int]]:
    """What was broken, and how often gangs grew, shrank, lost one, and were told of it."""
    met = dict.fromkeys(("grown", "shrunk", "told"), 0)

    def watch(moment: Moment) -> None:
        what = moment.what
        if isinstance(what, Resized):
            met["grown"] += bool(what.joins)
            met["shrunk"] += bool(what.leaves)
        elif isinstance(what, str) and " tells " in what:
            met["told"] += 1

    try:
        Simulation(a_world_of_gangs(seed), watch=watch).run()
    except Violation as violation:
        return f"seed {seed}: {violation}", met
    return "", met


def test_gangs_that_resize_break_no_promise() -> None:
    outcomes = [try_one(seed) for seed in range(1, SEEDS + 1)]
    assert [broken for broken, _ in outcomes if broken] == []
    for what in ("grown", "shrunk", "told"):
        assert sum(met[what] for _, met in outcomes) > SEEDS / 4, f"it proves little where so little is {what}"
