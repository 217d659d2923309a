"""`poise explain` (also `why-not` and `unblock`) and `plan`: the reasons for a state, and changes that would help."""

import contextlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import click

from poise.cli.asking import Asking, asking, told_as_flags
from poise.cli.jobs import report_of
from poise.cli.moments import at_moment
from poise.cli.output import TEXT, forms
from poise.cli.render import ago, harmless, print_json, say, status_text, tell, unstarted
from poise.cli.submit import asked_for
from poise.client import current_home
from poise.config import Cluster, Home
from poise.control.start import connected, may_be_asked, user_name
from poise.errors import NotFound, PoiseError, located
from poise.model.decisions import SERVES, UNKNOWN, Reason, Spot
from poise.model.reports.demand import Prospect
from poise.model.reports.questions import (
    Explanation,
    Foreseen,
    Going,
    PlanReport,
    Prediction,
    Start,
    UnblockReport,
    Waiting,
    WhyNot,
)
from poise.model.reports.status import Request
from poise.model.secrets import named
from poise.units import format_bytes, format_cpu, format_duration

Told = TypeVar("Told")

ELSEWHERE = "OTHER_NODE"
"""The reason code of a node that the job does not allow."""

GOES_ON = "; it serves until it is ended"


@click.command()
@click.option("--node", metavar="NODE", help="List every reason against NODE; if there is none, its score there.")
@click.option("--unblock", "unblocks", is_flag=True, help="Find the smallest changes that let it start now.")
@click.option("--all", "everything", is_flag=True, help="Name every node, unit and event, as `-o wide` does.")
@at_moment
@forms("table", "wide", "json")
@click.argument("job")
def explain(job: str, node: str | None, unblocks: bool, everything: bool, at: str | None, form: str) -> int:
    """Explain the state of JOB (id, name, or JOB.TASK).

    If it waits: every reason, the nodes that refuse it and why, the work that must end first, the work ahead of it, and
    its expected start. If it runs: the reason for its node, and the remaining time. If it is over: its history.

    With --node: every reason against that node. With --unblock: the smallest change of each kind that lets it start
    now, each tried on the scheduler itself; smaller requests come first, then preemption, then more hardware.
    """
    if sum((node is not None, unblocks, everything or form == "wide")) > 1:
        raise click.UsageError("`--node`, `--unblock` and `--all` exclude each other")
    if at is not None and (node is not None or unblocks):
        raise click.UsageError("`--at` explains what was: it excludes `--node` and `--unblock`")
    if node is not None:
        return _why_not(job, node, form)
    if unblocks:
        return _unblock(job, form)
    home = current_home()
    everything = everything or form == "wide"
    if at is None and _is_up(home):
        told = _ask(home, job, partial(connected(home).explain, everything=everything))
    else:
        from poise.cli import offline

        told = offline.explain(home, job, at, everything=everything)
    if form == "json":
        print_json(told)
        return 0
    _draw_explanation(told)
    if at is None:
        _tell_requests(home, told)
    if told.status == "failed" and at is None:
        for line in unstarted(report_of(home, job).tasks):
            say(line)
    return 0


def _tell_requests(home: Home, told: Explanation) -> None:
    """For a job that waits for room, or for its start there, print the pending requests that concern it."""
    if told.status == "placed" or any(_waits_for_room(waiting) for waiting in told.waiting):
        _tell_requests_of(home, told.job)


def _tell_requests_of(home: Home, job: str) -> None:
    """Print the pending requests of this home's clusters that concern a job, or a cluster as a whole."""
    for cluster, request in _requests(home):
        if request.job in ("", job):
            say(f"poise: {cluster.title}: {request.sentence(time.time())}")


def _requests(home: Home) -> list[tuple[Cluster, Request]]:
    from poise.drivers.clusters import requests_of  # few homes have a cluster

    return [(cluster, request) for cluster in _clusters(home) for request in requests_of(home, cluster)]


def _clusters(home: Home) -> Sequence[Cluster]:
    """Return the clusters of a home of this machine."""
    from poise.drivers.clusters import kept_clusters

    return kept_clusters(home) if home.elsewhere is None else ()


def _waits_for_room(waiting: Waiting) -> bool:
    return bool(waiting.refusing) or any(reason.code == "NO_NODES" for reason in waiting.reasons)


@click.command()
@forms(*TEXT)
@click.argument("job")
@click.argument("node")
def why_not(job: str, node: str, form: str) -> int:
    """List every reason against NODE for JOB: the same as `poise explain JOB --node NODE`."""
    return _why_not(job, node, form)


def _why_not(job: str, node: str, form: str) -> int:
    home = current_home()
    if _is_up(home):
        told = _ask(home, job, lambda name: connected(home).why_not(name, node))
    else:
        from poise.cli import offline

        told = offline.why_not(home, job, node)
    if form == "json":
        print_json(told)
        return 0
    _draw_why_not(told)
    if not told.fits:
        _tell_requests_of(home, told.job)
    return 0


@click.command(cls=Asking, context_settings={"allow_interspersed_args": True})
@asking
@click.option("--all", "everything", is_flag=True, help="Name every node and unit, as `-o wide` does.")
@forms("table", "wide", "json")
@click.argument("source", nargs=-1, required=True, metavar="FILE.yaml | SCRIPT | -- COMMAND...")
def plan(source: tuple[str, ...], everything: bool, form: str, **flags: Any) -> int:
    """Show the effects of submitting FILE.yaml, a SCRIPT, or a command after `--` now. The real scheduler decides, and
    nothing changes: placements with their reasons, preempted work, and waiting work with its reasons. `poise submit
    --if-revision N` then submits it only if nothing has happened meanwhile.
    """
    spec, place = asked_for(source, flags)
    home = current_home()
    everything = everything or form == "wide"
    up = _is_up(home)
    with told_as_flags(flags), located(place):
        spec = named(spec)
        if up:
            told = connected(home).plan(spec, user=user_name(), everything=everything)
        else:
            from poise.cli import offline

            told = offline.plan(home, spec, user=user_name(), everything=everything)
    if form == "json":
        print_json(told)
        return 0
    _draw_plan(told)
    if up:
        say(f"poise: nothing has changed; `--if-revision {told.revision}` submits it only while that is so")
    return 0


@click.command()
@forms(*TEXT)
@click.argument("job")
def unblock(job: str, form: str) -> int:
    """Find the smallest changes that let JOB start now: the same as `poise explain JOB --unblock`."""
    return _unblock(job, form)


def _unblock(job: str, form: str) -> int:
    home = current_home()
    if _is_up(home):
        told = _ask(home, job, connected(home).unblock)
    else:
        from poise.cli import offline

        told = offline.unblock(home, job)
    if form == "json":
        print_json(told)
        return 0
    _draw_unblock(told)
    return 0


def _ask(home: Home, name: str, ask: Callable[[str], Told]) -> Told:
    """Ask about a job. If there is none with exactly this name, ask about the job that contains an object of a cluster
    with this name, such as a Pod of a gang.
    """
    if not _clusters(home) or _is_whole(home, name) or not (job := _containing(home, name)):
        return ask(name)
    if not _is_whole(home, job):  # else a job whose name begins with it would be explained
        have = next((request.text for _, request in _requests(home) if request.job == name), name)
        hint = f"its Events and `poise doctor` say why; `poise explain {job}` works once all of its group is there"
        raise NotFound(f"`{name}` has no job yet", field="job", have=have, hint=hint)
    say(f"poise: {name} belongs to the job {job}")
    return ask(job)


def _is_whole(home: Home, name: str) -> bool:
    """Whether this is the whole name of a job, or of a part of it, and not how a name begins."""
    try:
        job = connected(home).job(name)
    except NotFound:
        return False
    return any(name == one or name.startswith(f"{one}.") for one in (job.id, job.name) if one)


def _containing(home: Home, name: str) -> str:
    """Return the name of the job that contains an object of this home's clusters; empty if there is none."""
    from poise.drivers.substrates import job_of  # few homes have a cluster

    for cluster in _clusters(home):
        with contextlib.suppress(PoiseError):  # no credentials for the cluster here
            if not cluster.is_here and (job := job_of(cluster, name)):
                return job
    return ""


def _is_up(home: Home) -> bool:
    """Return whether to query a control plane; if there is none, print a note."""
    up = may_be_asked(home)
    if not up:
        say("poise: no control plane is running; this is the answer of a new one")
    return up


# --- output ----------------------------------------------------------------------------------------------------------


def _draw_explanation(told: Explanation) -> None:
    title = f"{told.job}{f' {told.name}' if told.name else ''}"
    click.echo(f"{click.style(title, bold=True)}  {status_text(told.status)}")
    for waiting in told.waiting:
        _draw_waiting(waiting)
    _draw_prospects(told.prospects)
    for going in told.running:
        _draw_going(going)
    if told.story:
        click.echo("\nwhat happened:")
        for event in told.story:
            click.echo(f"  {_moment(event.at)}  {harmless(event.text)}")
    starts = [waiting.start for waiting in told.waiting if waiting.start is not None]
    if any(start.latest is None and not start.guesses for start in starts):
        say(f"poise: `poise eta {told.job}` simulates many futures")
    if told.left_out:
        say(f"poise: {told.left_out} more; `poise explain --all {told.job}` shows them too")
    say(f"poise: as of revision {told.revision}, decided by {told.policy}")


def _draw_waiting(waiting: Waiting) -> None:
    click.echo(f"\n{click.style(_names(waiting.named, waiting.count), bold=True)} {_waits(waiting.count)}")
    if waiting.asks:
        click.echo(f"  requests        {waiting.asks}{' each' if waiting.count > 1 else ''}")
    by_node = {reason for refusing in waiting.refusing for reason in refusing.reasons}
    elsewhere = {
        node
        for refusing in waiting.refusing
        if all(reason.code == ELSEWHERE for reason in refusing.reasons)
        for node in refusing.nodes
    }
    because = [reason for reason in waiting.reasons if reason not in by_node and reason.subject not in elsewhere]
    _draw_lines("because", [reason.sentence() for reason in because])
    nodes = []
    for refusing in waiting.refusing:
        if len(refusing.nodes) > 1 and elsewhere.issuperset(refusing.nodes):
            nodes += [reason.sentence() for reason in refusing.reasons]
            continue
        name = f"{refusing.count} nodes like " if refusing.count > len(refusing.nodes) else ""
        what = "; ".join(_without_subject(reason, refusing.nodes, refusing.count) for reason in refusing.reasons)
        nodes.append(f"{name}{', '.join(refusing.nodes)}: {what or 'has room'}")
    _draw_lines("nodes", nodes)
    if waiting.ahead:
        first = [f"{other.unit} ({other.why})" for other in waiting.first]
        more = waiting.ahead - len(first)
        _draw_lines(f"{waiting.ahead} before it", [*first, *([f"and {more} more"] if more > 0 else [])])
    if waiting.place:
        click.echo(f"  its priority    {waiting.place}")
    if waiting.share:
        click.echo(f"  its share       {waiting.share}")
    displaced = waiting.start.displaced if waiting.start is not None else {}
    _draw_lines(
        "waits until",
        [
            f"{freeing.unit} on {', '.join(freeing.nodes)} ends"
            + _ends_in(freeing.left)
            + (", overrun" if freeing.overrun else "")
            + (f"; {displaced[freeing.unit]} preempts it first" if freeing.unit in displaced else "")
            + (f"; not preempted now: {freeing.protected.have}" if freeing.protected is not None else "")
            for freeing in waiting.frees
        ],
    )
    if waiting.start is not None:
        lines = [f"{unit} {_in(waiting.start.preempts_in.get(unit))}" for unit in waiting.start.preempts]
        _draw_lines("or preempts", lines)
        click.echo(f"  expected start  {_start_text(waiting.start)}")
    if waiting.prediction is not None:
        _draw_lines("will take", _prediction_lines(waiting.prediction))


def _draw_prospects(prospects: Sequence[Prospect]) -> None:
    """Draw the clusters on which waiting work may run; `*` marks those to which it is assigned."""
    if prospects:
        click.echo("\nclusters, in the order of the expected end; work goes to those with *:")
    for one in sorted(prospects, key=lambda one: (bool(one.why), one.end)):
        click.echo(f"  {'*' if one.chosen else ' '} {one.substrate or 'existing nodes'}: {one.sentence()}")


def _draw_going(going: Going) -> None:
    where = ", ".join(going.nodes) + (f" as {going.artifact}" if going.artifact else "")
    click.echo(f"\n{click.style(going.unit, bold=True)} {status_text(going.status)} on {where}")
    _draw_lines("because", [reason.sentence() for reason in going.reasons])
    if going.why is not None and (why := going.why.sentence()):
        click.echo(f"  why there       {why} (by {going.why.policy} on revision {going.why.base})")
    overrun = "; it has run longer than expected, and its estimate was updated" if going.overrun else ""
    since = f"for {format_duration(going.elapsed)}" if going.elapsed else ""
    left = GOES_ON if going.left.source == SERVES else f", {_foreseen_time(going.left)} left{overrun}"
    left = f"; {_foreseen_time(going.left)}" if going.left.source == UNKNOWN else left
    click.echo(f"  has run         {f'{since}{left}'.lstrip(',; ')}")
    if going.prediction is not None:
        _draw_lines("was foreseen" if going.overrun else "foreseen", _prediction_lines(going.prediction))


def _draw_why_not(told: WhyNot) -> None:
    click.echo(f"{click.style(f'{told.unit} on {told.node}', bold=True)}")
    for reason in told.reasons:
        click.echo(f"  {_without_subject(reason, (told.node,), 1)}")
    if told.text:
        click.echo(f"  {told.text}")


def _draw_plan(told: PlanReport) -> None:
    for place in told.places:
        behind = ", queued behind similar work" if place.queued else ""
        artifact = f" as {place.artifact}" if place.artifact else ""
        click.echo(f"{_names(place.named, place.count)}{artifact} → {_spots(place.spots)}{behind}")
        if why := place.why.sentence():
            click.echo(f"  {why}")
    for yielding in told.yields:
        gain, cost = (yielding.why.score.get(name) for name in ("gain", "cost"))
        weighed = f" (gain {gain:g}, cost {cost:g})" if gain is not None and cost is not None else ""
        click.echo(f"{yielding.unit} would be preempted for {yielding.to}{weighed}")
    for waiting in told.waits:
        _draw_waiting(waiting)
    for later in told.later:
        reasons = "; ".join(reason.sentence() for reason in later.reasons)
        click.echo(f"{_names(later.named, later.count)}: {reasons}")
    if told.retries:
        click.echo(f"retries: {told.retries}")
    if told.note:
        tell(told.note)


def _draw_unblock(told: UnblockReport) -> None:
    if told.text:
        click.echo(f"{f'{told.unit}: ' if told.unit else ''}{told.text}")
    if not told.suggestions:
        return
    click.echo(f"{click.style(told.unit, bold=True)} would start now with one of these changes, smallest first:")
    for suggestion in told.suggestions:
        yields = f", once {', '.join(suggestion.yields)} is preempted" if suggestion.yields else ""
        command = f"  `{suggestion.command}`" if suggestion.command else ""
        click.echo(f"  {suggestion.text}: on {', '.join(suggestion.nodes)}{yields}{command}")


def _draw_lines(title: str, lines: Sequence[str]) -> None:
    for number, line in enumerate(lines):
        click.echo(f"  {title if number == 0 else '':<15} {line}")


def _names(named: Sequence[str], count: int) -> str:
    return ", ".join(named) + (f" and {count - len(named)} more" if count > len(named) else "")


def _waits(count: int) -> str:
    return status_text("wait") if count > 1 else status_text("waits")


def _without_subject(reason: Reason, nodes: Sequence[str], count: int) -> str:
    """Return the reason's sentence, without the node's name if the line already has it."""
    sentence = reason.sentence()
    said = reason.subject in nodes or count > 1
    return sentence.removeprefix(f"{reason.subject}: ") if said else sentence


def _foreseen_time(left: Foreseen) -> str:
    if left.source == UNKNOWN:
        return "unknown run time"
    return f"{left.text(format_duration)} ({left.source})"


def _ends_in(left: Foreseen) -> str:
    if left.source in (SERVES, UNKNOWN):
        return GOES_ON if left.source == SERVES else f": {_foreseen_time(left)}"
    return f", in {_foreseen_time(left)}"


def _start_text(start: Start) -> str:
    if start.likely == 0 and start.latest == 0:
        return "now"
    if start.guesses:
        units = ", ".join(start.guesses)
        return f"unknown, since work ahead of it has an unknown run time: {units}; `--expect` would say it"
    if start.likely is None:
        bound = f"not before {_in(start.earliest)}; beyond that " if start.earliest else ""
        return f"{bound}not foreseeable: {start.why}"
    if start.earliest == start.latest:
        return _in(start.likely)
    earliest = format_duration(start.earliest) if start.earliest else "now"
    latest = format_duration(start.latest) if start.latest is not None else f"no foreseeable end ({start.why})"
    return f"{_in(start.likely)}, between {earliest} and {latest}"


def _in(left: int | None) -> str:
    return "now" if not left else f"in {format_duration(left)}"


def _prediction_lines(prediction: Prediction) -> list[str]:
    lines = [f"{_foreseen_time(run)} on {model}" for model, run in prediction.run.items() if run.source != SERVES]
    for name, amount, shown in (
        ("memory", prediction.memory, format_bytes),
        ("CPU", prediction.cpu, format_cpu),
        ("of its devices", prediction.device, _per_cent),
    ):
        if amount is not None:
            lines.append(f"{amount.text(shown)} {name} ({prediction.runs} runs)")
    return lines


def _per_cent(thousandths: int) -> str:
    return f"{thousandths / 10:.0f} %"


def _spots(spots: Sequence[Spot]) -> str:
    """Format spots: `n1`, `n1 gpu 0,1`, `n1 (2), n2`."""
    texts: dict[str, int] = {}
    for spot in spots:
        devices = f" gpu {','.join(map(str, spot.devices))}" if spot.devices else ""
        texts[f"{spot.node}{devices}"] = texts.get(f"{spot.node}{devices}", 0) + 1
    return ", ".join(text + (f" ({count})" if count > 1 else "") for text, count in texts.items())


def _moment(at: float) -> str:
    return f"{time.strftime('%H:%M:%S', time.localtime(at))} ({ago(at)} ago)" if at else "-"
