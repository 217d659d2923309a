"""Runs seeds: selects the nemeses of each, reports the outcome, and reduces a failing scenario to the smallest one."""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import TypeVar

import msgspec

from poise.engine.promises import Violation
from poise.engine.scenario import Nemesis, Scenario, scenario_of, smaller
from poise.engine.simulation import Moment, Simulation
from poise.units import SECOND

T = TypeVar("T")

MOST_NEMESES = 4
MOST_TRIES = 400
"""Maximum number of runs for reducing a scenario."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of one scenario. `promise` is empty where every promise was kept; `digest` is equal for equal runs, `met`
    counts faults by kind, `lines` are the last events where a promise was broken.
    """

    seed: int
    policy: str
    nemeses: tuple[str, ...] = ()
    promise: str = ""
    what: str = ""
    digest: str = ""
    steps: int = 0
    events: int = 0
    starts: int = 0
    seconds: float = 0.0
    met: dict[str, int] = {}
    lines: tuple[str, ...] = ()


def nemeses_of(seed: int, known: Mapping[str, Nemesis]) -> tuple[Nemesis, ...]:
    """Return the nemeses of a seed by default: one to four of the known ones."""
    random = Random(f"nemeses {seed}")
    names = random.sample(sorted(known), random.randint(1, min(MOST_NEMESES, len(known))))
    return tuple(known[name] for name in sorted(names))


def try_seed(seed: int, known: Mapping[str, Nemesis], only: Sequence[str] = ()) -> Outcome:
    """Run the scenario of a seed; `only` names its nemeses, if given."""
    nemeses = tuple(known[name] for name in only) if only else nemeses_of(seed, known)
    outcome = try_scenario(scenario_of(seed, nemeses))
    return msgspec.structs.replace(outcome, nemeses=tuple(nemesis.name for nemesis in nemeses))


def try_scenario(
    scenario: Scenario, *, until: int | None = None, watch: Callable[[Moment], None] | None = None
) -> Outcome:
    """Run a scenario to its end, or to an instant; `watch` receives each event."""
    simulation = Simulation(scenario, watch=watch)
    promise = what = ""
    try:
        simulation.run(until)
    except Violation as error:
        promise, what = error.promise, str(error)
    return Outcome(
        seed=scenario.seed,
        policy=scenario.policy,
        promise=promise,
        what=what,
        digest=f"{simulation.judge.digest:08x}",
        steps=simulation.timeline.steps,
        events=simulation.judge.ledger.revision,
        starts=simulation.judge.starts,
        seconds=simulation.timeline.now / SECOND,
        met=dict(sorted(simulation.met.items())),
        lines=tuple(map(str, simulation.moments)) if promise else (),
    )


def shrink(scenario: Scenario, promise: str) -> Scenario:
    """Remove faults, then acts, as long as the same promise is broken (delta debugging: Zeller and Hildebrandt, 2002).
    The remaining parts draw the same values from the seed.
    """
    tries = MOST_TRIES

    def fails(candidate: Scenario) -> bool:
        nonlocal tries
        tries -= 1
        return tries >= 0 and try_scenario(candidate).promise == promise

    def reduced(parts: tuple[T, ...], make: Callable[[Sequence[T]], Scenario]) -> tuple[T, ...]:
        size = max(1, len(parts) // 2)
        while parts and tries > 0:
            for start in range(0, len(parts), size):
                fewer = parts[:start] + parts[start + size :]
                if fails(make(fewer)):
                    parts = fewer
                    break
            else:
                if size == 1:
                    return parts
                size //= 2
        return parts

    incidents = reduced(scenario.incidents, lambda left: smaller(scenario, scenario.acts, left))
    acts = reduced(scenario.acts, lambda left: smaller(scenario, left, incidents))
    return smaller(scenario, acts, incidents)
