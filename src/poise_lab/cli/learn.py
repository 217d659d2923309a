"""`poise learn`: train a network that picks what starts next."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from poise.cli import output
from poise.cli.numbers import WholeRange
from poise.cli.output import Column, Shown
from poise.errors import InputError
from poise_lab.cli.simulate import TRACE_FLAGS, asked_of
from poise_lab.cli.tune import check_policy_file, put_in_shadow, refuse_no_better

if TYPE_CHECKING:  # imported late: it loads PyTorch
    from poise_lab.learn.training import Learnt

LEAST_STEPS = 100


@click.command()
@click.option(
    "--trace",
    required=True,
    type=click.Path(path_type=Path),
    metavar="TRACE",
    help="Trace to learn from: a file, or a home.",
)
@click.option(
    "--method", type=click.Choice(["dqn", "ppo"]), default="dqn", help="Algorithm: dqn or ppo. [default: dqn]"
)
@click.option(
    "--steps",
    type=WholeRange(LEAST_STEPS, 100_000_000),
    default=20_000,
    metavar="N",
    help="Choices to train on. [default: 20000]",
)
@click.option(
    "--draws",
    type=WholeRange(2, 10_000),
    default=16,
    metavar="N",
    help="Workloads to draw for training; half as many to compare. [default: 16]",
)
@click.option(
    "--apply",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the policy to FILE and its weights beside it, and put it in shadow.",
)
@output.forms(*output.TEXT)
def learn(trace: Path, method: Any, steps: int, draws: int, file: Path | None, form: str, **flags: Any) -> int:
    """Train a network that picks the next job to start, and compare it with `poise` on other jobs.

    Training uses workloads drawn from the first half of the trace, and the comparison uses others from the second half.
    --apply is refused unless the interval of the mean completion time shows an improvement.
    """
    if file is not None:
        check_policy_file(file)
        output.check_page(file.with_suffix(".npz"), "--apply")
    told = _learnt(trace, method, steps, draws, flags)
    output.show(lambda: _shown(told), form, False)
    if file is not None:
        apply(told, file)
    return 0


for _flag in reversed(TRACE_FLAGS):
    learn = _flag(learn)


def _learnt(trace: Path, method: Any, steps: int, draws: int, flags: dict[str, Any]) -> "Learnt":
    try:
        import poise_lab.learn.training as training
    except ImportError as error:
        raise InputError(
            "learning needs packages that are not installed", need="gymnasium, stable-baselines3 and torch",
            have=f"no {error.name}", hint="`pip install 'poise-scheduler[learn]'`",
        ) from None  # fmt: skip
    from poise.kernel.controller import Settings
    from poise_lab.compare import load

    asked = asked_of(field="--policy", trace=trace, **flags)
    loaded = load(asked)
    settings = Settings(seed=asked.seed, every=asked.every, throughputs=loaded.fleet.throughputs)
    ground = training.ground_of(loaded.workload, loaded.fleet.nodes, settings)
    jobs = min(training.Study().jobs, len(ground.first.arrivals))
    study = training.Study(method=method, steps=steps, episodes=draws, told=draws // 2, jobs=jobs, seed=asked.seed)
    seen = sys.stderr.isatty()

    def watch(done: int) -> None:
        if seen and (done % 100 == 0 or done >= steps):
            click.echo(f"\r{done} of {steps} choices", nl=done >= steps, err=True)

    return training.learn(ground, study, watch)


def _shown(told: "Learnt") -> Shown:
    from poise.engine.paired import in_words

    study = told.study
    rows = [(one.name, in_words(one)) for one in told.told.figures]
    columns = [Column("FIGURE", [name for name, _ in rows]), Column("CHANGE", [value for _, value in rows])]
    head = [
        f"{study.method} on {told.trace}: cloned `poise` from {told.choices} choices ({told.cloned:.0%} the same), "
        f"then {study.steps} choices of training; compared on {told.told.jobs} other jobs"
    ]
    notes = [f"poise: do not apply it: {told.no_better}"] if told.no_better else []
    return Shown(told, [name for name, _ in rows], columns, head=head, notes=notes)


def apply(told: "Learnt", path: Path) -> None:
    """Write the policy file and its weights, and start the policy in shadow if a control plane is running. Raises
    `Conflict` if the figures do not show an improvement.
    """
    from poise.drivers.weights import with_weights, write_weights
    from poise.engine.paired import in_words

    refuse_no_better(told.no_better, "more `--steps`, a longer trace, or keep the policy as it is")
    weights = path.with_suffix(".npz")
    write_weights(weights, told.network)
    document = {"kind": "policy", "name": path.stem, "extends": "poise", "weights": weights.name}
    head = [
        f"`poise learn` on {told.trace}: {told.study.method}, {told.study.steps} steps, seed {told.study.seed}",
        f"weights {told.digest}",
        *(f"{name} {version}" for name, version in told.versions.items()),
        *(f"told on {told.told.jobs} jobs: {one.name} {in_words(one)}" for one in told.told.figures),
    ]
    put_in_shadow(path, head, document, with_weights(document, path.parent))


__all__ = ["learn"]
