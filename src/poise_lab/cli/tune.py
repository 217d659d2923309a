"""`poise tune`: tune the parameters of a policy on a trace."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from poise.cli import output
from poise.cli.numbers import WholeRange
from poise.cli.output import Column, Shown
from poise.cli.render import say
from poise.errors import Conflict, InputError
from poise.model.spec import check_name
from poise_lab.cli.simulate import TRACE_FLAGS, asked_of

if TYPE_CHECKING:  # imported late: it loads the control plane and numpy
    from poise_lab.tune import Tuned


@click.command()
@click.option(
    "--trace",
    required=True,
    type=click.Path(path_type=Path),
    metavar="TRACE",
    help="Trace to tune on: a file, or a home.",
)
@click.option(
    "--objectives",
    default="jct,p99wait",
    metavar="NAME,…",
    help="Objectives to minimize: jct, p99jct, p99wait, rho, deadlines, preemptions, energy, cost.",
)
@click.option("--policy", default="poise", metavar="NAME|FILE", help="Policy to tune. [default: poise]")
@click.option(
    "--evaluations", type=WholeRange(10, 100_000), default=200, metavar="N", help="Policies to try. [default: 200]"
)
@click.option(
    "--processes", type=WholeRange(0, 1024), default=0, metavar="N", help="Processes. [default: one for each processor]"
)
@click.option(
    "--apply",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the policy to FILE, and put it in shadow.",
)
@output.forms(*output.TEXT)
def tune(
    trace: Path,
    objectives: str,
    policy: str,
    evaluations: int,
    processes: int,
    file: Path | None,
    form: str,
    **flags: Any,
) -> int:
    """Find the numbers of a policy that suit a trace: its weights, its fairness and its rules of preemption.

    The trace is split by time: policies are tried on the first third, one is chosen on the second, and the last tells
    what it is worth. --apply is refused unless the interval of its mean completion time shows an improvement.
    """
    from poise_lab.tune import objectives_named
    from poise_lab.tune import tune as tuned

    named = objectives_named(objectives)
    if file is not None:
        check_policy_file(file)
    asked = asked_of(field="--policy", trace=trace, **flags)
    name = file.stem if file is not None else "tuned"
    seen = sys.stderr.isatty()

    def watch(done: int) -> None:
        if seen:
            click.echo(f"\r{done} of {evaluations} policies tried", nl=done >= evaluations, err=True)

    told = tuned(asked, policy, named, name=name, evaluations=evaluations, processes=processes, watch=watch)
    output.show(lambda: _shown(told), form, False)
    if file is not None:
        apply(told, file)
    return 0


for _flag in reversed(TRACE_FLAGS):
    tune = _flag(tune)


def _shown(told: "Tuned") -> Shown:
    names = told.objectives
    rows = [
        ("as it was", told.base, ""),
        *((str(point.number), point.objectives, _changes(point.changes)) for point in told.front),
    ]
    columns = [
        Column("POINT", [f"{row[0]}{' knee' if row[0] == str(told.knee) else ''}" for row in rows]),
        *(Column(name.upper(), [f"{row[1][name]:,.6g}" for row in rows], right=True) for name in names),
        Column("CHANGES", [row[2] for row in rows]),
    ]
    tune, choose, tell = told.jobs
    head = [
        f"{told.policy} on {told.trace}: {told.evaluations} policies tried on {tune} jobs ({told.stopped_early} given "
        f"up early), chosen on {choose}, told on {tell}"
    ]
    return Shown(told, [row[0] for row in rows], columns, head=head, notes=list(_notes(told)))


def _changes(changes: dict[str, Any]) -> str:
    return ", ".join(
        f"{path}: {str(value).lower() if isinstance(value, bool) else value}" for path, value in changes.items()
    )


def _notes(told: "Tuned") -> list[str]:
    from poise.engine.paired import in_words

    figures = "; ".join(f"{figure.name} {in_words(figure)}" for figure in told.told.figures)
    notes = [f"poise: point {told.knee} on the last {told.told.jobs} jobs: {figures or 'too few for figures'}"]
    if told.no_better:
        notes.append(f"poise: do not apply it: {told.no_better}")
    return notes


def apply(told: "Tuned", path: Path) -> None:
    """Write the file, and start the policy in shadow if a control plane is running. Raises `Conflict` if the figures do
    not show an improvement.
    """
    from poise.engine.paired import in_words

    refuse_no_better(told.no_better, "more `--evaluations`, a longer trace, or keep the policy as it is")
    head = [
        f"`poise tune` of {told.policy} on {told.trace}: point {told.knee} of the front.",
        f"objectives {', '.join(told.objectives)}; {told.evaluations} evaluations, seed {told.seed}",
        *(f"{name} {digest}" for name, digest in told.digests.items()),
        *(f"told on {told.told.jobs} jobs: {one.name} {in_words(one)}" for one in told.told.figures),
    ]
    put_in_shadow(path, head, told.document, told.document)


def check_policy_file(file: Path) -> None:
    """Check, before the work begins, that a policy can have the name of a file, and be written there."""
    if file.suffix not in (".yaml", ".yml"):
        hint = f"--apply {file.stem or 'ours'}.yaml"
        raise InputError("the file of a policy ends with .yaml", field="--apply", have=str(file), hint=hint)
    check_name(file.stem, "--apply")
    output.check_page(file, "--apply")


def refuse_no_better(why: str, hint: str) -> None:
    """Raise `Conflict` if there is a reason why a policy is no better."""
    if why:
        need = "an interval that shows an improvement"
        raise Conflict(f"the policy is not applied: {why}", field="--apply", need=need, hint=hint)


def put_in_shadow(path: Path, head: list[str], document: dict[str, Any], content: dict[str, Any]) -> None:
    """Write a policy file with these lines before it, and start its `content` in shadow if a control plane runs."""
    from poise.client import current_home
    from poise.control.start import connected, running

    lines = [*(f"# {line}" for line in head), *_yaml(document)]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    say(f"poise: wrote {path}")
    home = current_home()
    if running(home):
        started = connected(home).start_shadow(content)
        say(f"poise: {started.policy} is in shadow from now on; `poise shadow report` compares")
    else:
        say(f"poise: no control plane runs here; `poise shadow start {path}` puts it in shadow")


def _yaml(document: dict[str, Any], indent: str = "") -> list[str]:
    """Format two levels of plain values as YAML. Values are JSON, because a name such as `7` would be a number."""
    lines: list[str] = []
    for name, value in document.items():
        if isinstance(value, dict):
            lines += [f"{indent}{name}:", *_yaml(value, f"{indent}  ")]
        else:
            lines.append(f"{indent}{name}: {msgspec.json.encode(value).decode()}")
    return lines


__all__ = ["tune"]
