"""Fleets whose gangs resize: the same promises, in worlds made of little else."""

from random import Random

import msgspec

from poise.drivers.nemeses import shipped
from poise.engine.machine import RESIZES
from poise.engine.promises import Violation
from poise.engine.scenario import Act, Incident, Scenario, scenario_of
from poise.engine.seeds import nemeses_of
from poise.engine.simulation import Moment, Simulation
from poise.model.events import Finished, Resized
from poise.units import SECOND

SEEDS = 24


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


def outcome_of(scenario: Scenario) -> tuple[str, dict[str, int]]:
    """What was broken, and how often gangs grew, shrank, lost one, and were told of it; and how often one was stopped
    because its node saw by its steps that it hangs.
    """
    met = dict.fromkeys(("grown", "shrunk", "told", "hung"), 0)

    def watch(moment: Moment) -> None:
        what = moment.what
        if isinstance(what, Resized):
            met["grown"] += bool(what.joins)
            met["shrunk"] += bool(what.leaves)
        elif isinstance(what, Finished):
            met["hung"] += what.ending.outcome == "hung" and what.ending.note.startswith("no step for")
        elif isinstance(what, str) and " tells " in what:
            met["told"] += 1

    try:
        Simulation(scenario, watch=watch).run()
    except Violation as violation:
        return f"seed {scenario.seed}: {violation}", met
    return "", met


def test_gangs_that_resize_break_no_promise() -> None:
    outcomes = [outcome_of(a_world_of_gangs(seed)) for seed in range(1, SEEDS + 1)]
    assert [broken for broken, _ in outcomes if broken] == []
    for what in ("grown", "shrunk", "told"):
        assert sum(met[what] for _, met in outcomes) > SEEDS / 4, f"it proves little where so little is {what}"


def test_training_that_hangs_is_stopped_by_its_node_and_tried_again() -> None:
    """It has told of its steps, and its job sets no `hang`: so no keeper and no user ends it."""
    hung = 0
    for seed in range(1, 9):
        quiet = scenario_of(seed, [])
        retry = {"limit": 3, "backoff": "100ms", "when": ["hung"]}
        document = {"run": f"{RESIZES} 20", "resources": {"cpu": 0.5}, "workers": "1..3", "retry": retry}
        scenario = msgspec.structs.replace(
            quiet,
            acts=(Act(at=SECOND, act="submit", key="g", document=document),),
            incidents=tuple(
                Incident(at=8 * SECOND, lasts=SECOND, fault="hang", node=node.name) for node in quiet.nodes
            ),
            policy="poise",
        )
        outcome, met = outcome_of(scenario)
        assert outcome == ""
        hung += met["hung"]
    assert hung > 4
