"""Tune the parameters of a policy on a trace.

The trace is split by time into three parts with equal numbers of jobs. An Optuna sampler proposes policies. Each is
tried on the first part, with the same submissions, run times and seeds (common random numbers). The Pareto-optimal ones
are tried on the second part, where one of them is chosen. The third part is the test: the chosen policy is compared
with the original one, job by job, with a bootstrap interval over days.

A policy that is worse in every objective after a third of the first part is not tried on the rest of it.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from hashlib import sha256
from math import inf, log
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from poise import __version__
from poise.drivers.plugins import choose, choose_document, tried
from poise.engine.paired import FEWEST, Pairs, compare, no_better
from poise.errors import InputError, SpecError
from poise.kernel.controller import Settings
from poise.model.workload import Workload
from poise.model.worlds import Row
from poise.policy.recipe import RECIPES, Recipe
from poise.units import DAY, HOUR, SECOND
from poise_lab.compare import Asked, load
from poise_lab.trial import Result, row_of, simulate

EVALUATIONS = 200
AT_ONCE = 8
"""Number of policies per batch of proposals. It does not depend on which trial finishes first."""

WORSE = 1.05
"""Stop a trial early if it is worse than the original policy by this factor in every objective."""

EARLY = 3
"""The early check uses the first 1/3 of the first part."""

SHOWN = 12
"""Maximum number of policies of the front to try on the second part."""


class Objective(NamedTuple):
    """An objective to minimize. `of` computes it from a trial."""

    name: str
    text: str
    of: Callable[[Result], float]


def _missed(result: Result) -> float:
    return float(result.measures.deadlines - result.measures.met)


OBJECTIVES = {
    one.name: one
    for one in (
        Objective("jct", "mean completion time", lambda of: of.measures.completion.mean / SECOND),
        Objective("p99jct", "P99 completion time", lambda of: of.measures.completion.p99 / SECOND),
        Objective("p99wait", "P99 wait", lambda of: of.measures.waiting.p99 / SECOND),
        Objective("rho", "worst finish-time fairness", lambda of: of.measures.rho.worst),
        Objective("deadlines", "missed deadlines", _missed),
        Objective("preemptions", "preemptions", lambda of: float(sum(of.measures.preemptions.values()))),
        Objective("energy", "energy in kWh", lambda of: of.measures.energy),
        Objective("cost", "money for what was held", lambda of: of.measures.paid),
    )
}


class Knob(NamedTuple):
    """One parameter of a policy file: its path, and its range or its choices."""

    path: str
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False
    choices: tuple[Any, ...] = ()


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A policy that was tried on the second part: its differences from the original policy, and its objectives."""

    number: int
    changes: dict[str, Any]
    objectives: dict[str, float]


class Tuned(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the tuning. `base` contains the objectives of the original policy on the second part. `front` contains
    the Pareto-optimal policies there, and `knee` is the number of the chosen one. `told` compares the chosen policy
    with the original one on the third part; `no_better` says why the comparison does not favor it. `document` is the
    policy file.
    """

    policy: str
    trace: str
    objectives: tuple[str, ...]
    evaluations: int
    stopped_early: int
    seed: int
    jobs: tuple[int, int, int]
    base: dict[str, float]
    front: tuple[Point, ...]
    knee: int
    told: Pairs
    no_better: str
    document: dict[str, Any]
    digests: dict[str, str]


class _Task(NamedTuple):
    """A policy to try on one part of the trace."""

    document: dict[str, Any]
    part: int
    early: bool = False


def objectives_named(text: str) -> tuple[Objective, ...]:
    """Return the objectives named in `text`. Raises `SpecError` for an unknown, missing or repeated name."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = next((name for name in names if name not in OBJECTIVES), "")
    if unknown or not names or len(set(names)) < len(names):
        raise SpecError(
            "these are no objectives", field="--objectives", need=", ".join(OBJECTIVES), have=text[:80] or "nothing",
            hint="--objectives jct,p99wait",
        )  # fmt: skip
    return tuple(OBJECTIVES[name] for name in names)


def recipe_of(name: str) -> Recipe:
    """Return the recipe of a policy file or of a built-in recipe. Raises `SpecError` if the policy is not a recipe."""
    choice = choose(name)
    recipe = choice.recipe or next((one for one in RECIPES if one.name == name), None)
    if recipe is None:
        raise SpecError(
            f"the policy `{name}` is no recipe, so it has no numbers to tune", field="--policy", have=name,
            need=f"{', '.join(one.name for one in RECIPES)}, or a policy file", hint="--policy poise",
        )  # fmt: skip
    return recipe


def knobs_of(recipe: Recipe) -> list[Knob]:
    """Return the tunable parameters: weights of order and score, fairness, preemption rules, and on/off options."""
    made = [Knob(f"score.{name}", 0.0, 1.0) for name in recipe.score if len(recipe.score) > 1]
    if not isinstance(recipe.order, str) and len(recipe.order) > 1:
        made += [Knob(f"order.{name}", 0.0, 1.0) for name in recipe.order]
    if recipe.order == "value":
        made.append(Knob("fairness", 0.0, 1.0))
    if recipe.preempt is not None:
        made += [
            Knob("preempt.min_run", 5, HOUR / SECOND, log=True),
            Knob("preempt.budget", 0, 100, whole=True),
            Knob("preempt.at_once", 1, 64, log=True, whole=True),
        ]
    made += [Knob(name, choices=(False, True)) for name in ("reserve", "elastic", "reallocate")]
    return made


def document_of(recipe: Recipe, values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the policy file of a recipe with these parameter values."""
    document: dict[str, Any] = {
        "kind": "policy",
        "name": name,
        "order": recipe.order if isinstance(recipe.order, str) else dict(recipe.order),
        "score": dict(recipe.score),
        "spread": recipe.spread,
        "turns": recipe.turns,
        "overtake": recipe.overtake,
        "reserve": recipe.reserve,
        "elastic": recipe.elastic,
        "reallocate": recipe.reallocate,
        "fairness": recipe.fairness,
        "preempt": None,
    }
    if recipe.preempt is not None:
        of = recipe.preempt
        min_run = f"{of.min_run / SECOND:g}s"
        document["preempt"] = {"by": of.by, "min_run": min_run, "budget": of.budget, "at_once": of.at_once}
    for path, value in values.items():
        place, _, field = path.rpartition(".")
        (document[place] if place else document)[field] = f"{value:g}s" if field == "min_run" else value
    return document


def values_of(recipe: Recipe, knobs: Iterable[Knob]) -> dict[str, Any]:
    """Return the parameter values of a recipe, each clamped to its range."""
    found: dict[str, Any] = {}
    for knob in knobs:
        place, _, field = knob.path.rpartition(".")
        value: Any = None
        if not place:
            value = getattr(recipe, field)
        elif place == "preempt":
            value = getattr(recipe.preempt, field)
            value = value / SECOND if field == "min_run" else value
        else:
            weights = recipe.score if place == "score" else recipe.order
            value = weights[field] if isinstance(weights, dict) else 0.0
        found[knob.path] = value if knob.choices else min(max(value, knob.low), knob.high)
    return found


def parts_of(workload: Workload) -> tuple[Workload, Workload, Workload]:
    """Split the workload into three consecutive parts with equal numbers of jobs; each begins at 0. Raises
    `InputError`.
    """
    arrivals = workload.arrivals
    third = len(arrivals) // 3
    if third < FEWEST:
        need, have = f"{3 * FEWEST} jobs or more", f"{len(arrivals)} jobs"
        what, hint = "the trace is too short to tune on", "a longer trace"
        raise InputError(what, field="--trace", need=need, have=have, hint=hint)
    bounds = (0, third, 2 * third, len(arrivals))

    def part(number: int) -> Workload:
        taken = arrivals[bounds[number] : bounds[number + 1]]
        first = taken[0].at
        moved = tuple(msgspec.structs.replace(one, at=one.at - first) for one in taken)
        return msgspec.structs.replace(workload, arrivals=moved)

    return part(0), part(1), part(2)


def tune(
    asked: Asked,
    policy: str,
    objectives: Sequence[Objective],
    *,
    name: str = "tuned",
    evaluations: int = EVALUATIONS,
    processes: int = 0,
    watch: Callable[[int], None] = lambda done: None,
) -> Tuned:
    """Tune a policy on a trace with `processes` processes (0: one per CPU). `watch` receives the number of policies
    tried so far. Raises `PoiseError`.
    """
    optuna = _optuna()
    recipe = recipe_of(policy)
    knobs = knobs_of(recipe)
    loaded = load(asked)
    sizes = tuple(len(part.arrivals) for part in parts_of(loaded.workload))
    sampler = optuna.samplers.TPESampler(seed=asked.seed, n_startup_trials=20, multivariate=True)
    study = optuna.create_study(directions=["minimize"] * len(objectives), sampler=sampler)
    study.enqueue_trial(values_of(recipe, knobs))
    names = [one.name for one in objectives]
    processes = processes or os.cpu_count() or 1
    tried_values: list[tuple[dict[str, Any], tuple[float, ...]]] = []
    early_base: tuple[float, ...] | None = None
    stopped = done = 0
    with ProcessPoolExecutor(processes, get_context("spawn"), _begin, (asked, names)) as pool:

        def results(tasks: Iterable[_Task]) -> list[tuple[float, ...]]:
            return list(pool.map(_objectives, tasks))

        while done < evaluations:
            count = 1 if not done else min(AT_ONCE, evaluations - done)
            trials = [study.ask() for _ in range(count)]
            values = [{knob.path: _suggested(trial, knob) for knob in knobs} for trial in trials]
            documents = [document_of(recipe, one, name) for one in values]
            early = results(_Task(document, 0, early=True) for document in documents)
            early_base = early_base or early[0]
            going = [not _is_worse(of, early_base) for of in early]
            whole = iter(results(_Task(document, 0) for document, goes in zip(documents, going, strict=True) if goes))
            for trial, one, goes in zip(trials, values, going, strict=True):
                found = next(whole) if goes else None
                if found is None or inf in found:
                    study.tell(trial, state=optuna.trial.TrialState.FAIL)
                    stopped += found is None
                else:
                    study.tell(trial, list(found))
                    tried_values.append((one, found))
            done += count
            watch(done)
        front = [tried_values[at] for at in front_of([found for _, found in tried_values])]
        front.sort(key=lambda one: one[1])
        base_values = values_of(recipe, knobs)
        finalists = [one for one, _ in _spread(front, SHOWN)]
        second = results(_Task(document_of(recipe, one, name), 1) for one in [base_values, *finalists])
        base, second = second[0], second[1:]
        kept = front_of(second)
        points = [
            Point(
                number=number,
                changes={path: value for path, value in finalists[at].items() if value != base_values[path]},
                objectives=dict(zip(names, second[at], strict=True)),
            )
            for number, at in enumerate(sorted(kept, key=second.__getitem__), start=1)
        ]
        knee = knee_of([tuple(point.objectives.values()) for point in points], base)
        chosen = {**base_values, **points[knee].changes}
        document = document_of(recipe, chosen, name)
        rows = list(pool.map(_rows, [_Task(document_of(recipe, base_values, name), 2), _Task(document, 2)]))
    told = _told(rows[0], rows[1], asked.seed)
    return Tuned(
        policy=policy,
        trace=loaded.workload.name,
        objectives=tuple(names),
        evaluations=done,
        stopped_early=stopped,
        seed=asked.seed,
        jobs=(sizes[0], sizes[1], sizes[2]),
        base=dict(zip(names, base, strict=True)),
        front=tuple(points),
        knee=points[knee].number,
        told=told,
        no_better=no_better(told.jobs, told.figures),
        document=document,
        digests={
            "trace": _digest(asked.trace),
            "fleet": sha256(msgspec.msgpack.encode(list(loaded.fleet.nodes))).hexdigest()[:16],
            "poise": __version__,
            "optuna": optuna.__version__,
        },
    )


def front_of(found: Sequence[tuple[float, ...]]) -> list[int]:
    """Return the indices of the Pareto-optimal points: no other point is as good in all objectives and better in one.
    Of equal points, the first is kept.
    """
    kept: list[int] = []
    for at, one in enumerate(found):
        if inf in one or any(
            all(other <= mine for other, mine in zip(found[place], one, strict=True))
            and (found[place] != one or place < at)
            for place in range(len(found))
            if place != at
        ):
            continue
        kept.append(at)
    return kept


def knee_of(front: Sequence[tuple[float, ...]], base: tuple[float, ...]) -> int:
    """Return the index of the point with the least product of the objectives relative to the original policy: a gain in
    one objective weighs as much as the same relative loss in another.
    """

    def product(point: tuple[float, ...]) -> float:
        return sum(log(max(value, 1e-9) / max(was, 1e-9)) for value, was in zip(point, base, strict=True))

    return min(range(len(front)), key=lambda at: (product(front[at]), front[at]))


def _spread(front: Sequence[tuple[dict[str, Any], tuple[float, ...]]], most: int) -> list[tuple[dict[str, Any], Any]]:
    """Return at most `most` points of an ordered front, evenly spaced from end to end."""
    if len(front) <= most:
        return list(front)
    return [front[round(place * (len(front) - 1) / (most - 1))] for place in range(most)]


def _is_worse(found: tuple[float, ...], base: tuple[float, ...]) -> bool:
    """Return whether it is worse than `base` by the factor `WORSE` in every objective."""
    return all(value > WORSE * was for value, was in zip(found, base, strict=True))


def _suggested(trial: Any, knob: Knob) -> Any:
    if knob.choices:
        return trial.suggest_categorical(knob.path, knob.choices)
    if knob.whole:
        return trial.suggest_int(knob.path, int(knob.low), int(knob.high), log=knob.log)
    return float(f"{trial.suggest_float(knob.path, knob.low, knob.high, log=knob.log):.3g}")


def _told(was: list[tuple[str, int, Row]], then: list[tuple[str, int, Row]], seed: int) -> Pairs:
    there = {job: row for job, _, row in then}
    paired = [(row, there[job], day) for job, day, row in was if job in there]
    return compare(((old, new) for old, new, _ in paired), seed=seed, days=[day for _, _, day in paired])


def _digest(path: Path) -> str:
    """Return the digest of a file's content, or of the names and sizes of the files in a folder."""
    if path.is_file():
        return sha256(path.read_bytes()).hexdigest()[:16]
    if not path.is_dir():  # a generated trace: its name describes it
        return sha256(str(path).encode()).hexdigest()[:16]
    told = sorted((str(of.relative_to(path)), of.stat().st_size) for of in path.rglob("*") if of.is_file())
    return sha256(repr(told).encode()).hexdigest()[:16]


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise InputError(
            "tuning needs a package that is not installed", need="optuna, which proposes policies", have="no optuna",
            hint="`pip install 'poise-scheduler[tune]'`",
        ) from None  # fmt: skip
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


# --- processes -------------------------------------------------------------------------------------------------------

_known: dict[str, Any] = {}
"""Data of a worker process, loaded once when it starts."""


def _begin(asked: Asked, names: Sequence[str]) -> None:
    loaded = load(asked)
    parts = parts_of(loaded.workload)
    first = parts[0].arrivals
    early = msgspec.structs.replace(parts[0], arrivals=first[: max(1, len(first) // EARLY)])
    settings = Settings(seed=asked.seed, every=asked.every, throughputs=loaded.fleet.throughputs)
    _known.update(
        parts=parts, early=early, nodes=loaded.fleet.nodes, settings=settings, world=loaded.world,
        objectives=[OBJECTIVES[name] for name in names],
    )  # fmt: skip


def _try(task: _Task) -> Result:
    policy = tried(choose_document(task.document))
    workload = _known["early"] if task.early else _known["parts"][task.part]
    return simulate(workload, _known["nodes"], policy, _known["settings"], world=_known["world"])


def _objectives(task: _Task) -> tuple[float, ...]:
    """Return the objectives of a trial; infinite if not all jobs ended."""
    result = _try(task)
    if result.measures.unfinished:
        return (inf,) * len(_known["objectives"])
    return tuple(one.of(result) for one in _known["objectives"])


def _rows(task: _Task) -> list[tuple[str, int, Row]]:
    """Return each job and the day of its submission."""
    result = _try(task)
    return [(job.id, job.submitted // DAY, row_of(job, result.measures.makespan)) for job in result.jobs]
