"""`poise eta`: forecast when work will start and end. This process computes it from the log, not the scheduler."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from poise.cli import output
from poise.cli.calendars import CALENDAR, events_of
from poise.cli.numbers import WholeRange
from poise.cli.output import Column, Shown
from poise.cli.render import say, status_text
from poise.client import current_home
from poise.config import Home
from poise.control.start import running
from poise.errors import Conflict, InputError, NotFound, SpecError
from poise.model.document import some
from poise.units import SECOND, format_duration, parse_duration

if TYPE_CHECKING:  # the twin imports numpy
    from poise.control.forecast import Checked, Coverage, Eta, Etas, Target
    from poise.engine.lookahead import Range
    from poise.kernel.controller import Settings
    from poise.kernel.ledger import Ledger
    from poise.policy.suites import ClusterPolicy

SHOWN = 4
"""Maximum number of events to name."""


@click.command()
@click.option("--futures", type=WholeRange(2, 10_000), metavar="N", help="Number of simulated futures. [default: 200]")
@click.option("--budget", metavar="TIME", help="Maximum time for the simulation. [default: 10s]")
@click.option("--seed", type=WholeRange(0, 2**53), default=0, metavar="N", help="Random seed of the run times.")
@click.option("--check", is_flag=True, help="Backtest: check past jobs against the forecasts that were possible then.")
@click.option("--from", "log", type=click.Path(path_type=Path), metavar="LOG", help="Backtest on this log instead.")
@CALENDAR
@output.forms(*output.ROWS)
@click.argument("jobs", nargs=-1, metavar="[JOB]...")
def eta(
    jobs: tuple[str, ...],
    futures: int | None,
    budget: str | None,
    seed: int,
    check: bool,
    log: Path | None,
    calendar: Path | None,
    form: str,
) -> int:
    """Forecast when each JOB (id, name, or JOB.TASK) starts and ends; without one, all unfinished jobs.

    Poise simulates many futures from the current state, with run times drawn from past work. It prints three times: 10
    % of the futures come before the first, 50 % before the second, 90 % before the third. Other jobs arrive as they did
    lately. Events of a calendar change their rate.
    """
    home = current_home()
    seconds = seconds_of(budget) if budget is not None else None
    if check:
        if jobs:
            raise click.UsageError("`--check` looks back at all jobs of the log")
        if calendar is not None:
            raise click.UsageError("`--check` looks back, and `--calendar` changes what is to come")
        return _check(home, log, futures, seconds, seed, form)
    if log is not None:
        raise click.UsageError("`--from` goes with `--check`\n\nhint: `poise eta --check --from LOG`")
    from poise.control.forecast import foresee
    from poise.engine.lookahead import BUDGET, FUTURES, Bounds

    ledger, now = known_now(home)
    targets = [target_of(ledger, name) for name in dict.fromkeys(jobs)] or _unfinished(ledger)
    if not targets:
        return output.show(lambda: Shown([], [], [], nothing="poise: nothing is unfinished"), form, False)
    events = events_of(calendar)
    policy, settings = deciding(ledger)
    bounds = Bounds(futures or FUTURES, seconds or BUDGET)
    told = foresee(ledger, policy, settings, now, targets, bounds=bounds, seed=seed, events=events)
    return output.show(lambda: _shown(told), form, False)


def seconds_of(budget: str) -> float:
    try:
        found = parse_duration(budget) / SECOND
    except ValueError as error:
        raise SpecError(
            "this is not a time", field="--budget", have=budget, need=str(error), hint="--budget 30s"
        ) from None
    if found <= 0:
        raise SpecError("the time must be above 0", field="--budget", have=budget, hint="--budget 30s")
    return found


def known_now(home: Home) -> "tuple[Ledger, int]":
    """Return the ledger from the log, and the current time of its clock."""
    from poise.cli.offline import instant, load, refuse_guest
    from poise.drivers.logfile import has_log

    refuse_guest(home, "a forecast", "ask its owner")
    if not has_log(home):
        raise NotFound(
            "there is nothing to forecast: no log",
            field=str(home.root),
            hint="`poise run -- echo hello`, or POISE_HOME",
        )
    ledger = load(home)
    if not running(home):
        say("poise: no control plane is running; this is the forecast of a new one")
        return ledger, ledger.now
    return ledger, instant(ledger)


def deciding(ledger: "Ledger") -> "tuple[ClusterPolicy, Settings]":
    """Return the current policy, and the settings of its views."""
    from poise.drivers.plugins import policy_of
    from poise.engine.lookahead import view_settings
    from poise.kernel.controller import Settings
    from poise.policy.suites import SAFE_POLICY, policy_named

    began = ledger.leader.began
    found = policy_of(began, anyway=True) if began is not None else policy_named(Settings().policy)
    if isinstance(found, str):
        say(f"poise: {found}; this is what `{SAFE_POLICY}` would do")
        found = policy_named(SAFE_POLICY)
    return found, view_settings(ledger)


def target_of(ledger: "Ledger", name: str) -> "Target":
    from poise.control.forecast import Target
    from poise.kernel.find import check_exist, find

    found = find(ledger, name)
    check_exist(ledger, found, "forecast")
    if all(unit.over for unit in found.units):
        raise Conflict(f"{found.name} is over already", field="job", hint=f"`poise show {found.name}`")
    if found.job.calls is not None:
        raise InputError(
            f"{found.name} serves calls, and ends when its caller does",
            field="job",
            hint=f"`poise explain {found.name}`",
        )
    return Target(found.job, tuple(unit.id for unit in found.units), found.name)


def _unfinished(ledger: "Ledger") -> "list[Target]":
    from poise.control.forecast import Target

    unfinished = (job for job in ledger.jobs.values() if not job.ended and job.calls is None)
    return [Target(job, tuple(unit.id for unit in job.units), job.id) for job in unfinished]


# --- output ----------------------------------------------------------------------------------------------------------


def _shown(told: "Etas") -> Shown:
    etas = told.jobs
    starts, known = [eta.start for eta in etas], [not eta.unknown for eta in etas]
    columns = [
        Column("JOB", [eta.job for eta in etas]),
        Column("NAME", [eta.name or "-" for eta in etas]),
        Column("STATUS", [status_text(eta.status) for eta in etas]),
        *_columns("STARTS IN", starts, [eta.unknown != "start" for eta in etas]),
        *_columns("ENDS IN", [eta.finish for eta in etas], known),
        Column(
            "ENDS AT",
            [_moment(told.at, eta) if is_known else "unknown" for eta, is_known in zip(etas, known, strict=True)],
            right=True,
        ),
        Column(
            "ON TIME",
            [f"{eta.on_time / 10:g} %" if eta.on_time >= 0 and not eta.unknown else "" for eta in etas],
            right=True,
            bare=True,
        ),
        Column("FAILS", [f"{eta.fails / 10:g} %" if eta.fails else "" for eta in etas], right=True, bare=True),
    ]
    known_only = msgspec.structs.replace(told, jobs=tuple(map(_known_times, etas)))
    return Shown(known_only, [eta.job for eta in etas], columns, notes=_notes(told))


def _known_times(eta: "Eta") -> "Eta":
    """Remove the times that depend on an unknown run time."""
    if not eta.unknown:
        return eta
    nothing = msgspec.structs.replace(eta.finish, p10=None, p50=None, p90=None)
    start = nothing if eta.unknown == "start" else eta.start
    return msgspec.structs.replace(eta, start=start, finish=nothing, on_time=-1)


def _columns(title: str, ranges: "Sequence[Range | None]", known: Sequence[bool]) -> list[Column]:
    """Return three columns: the 10th, 50th and 90th percentiles, if they are known."""
    both = list(zip(ranges, known, strict=True))
    return [
        Column(
            f"{title} {part}" if part == "10 %" else part,
            ["-" if of is None else time_text(getattr(of, name)) if is_known else "unknown" for of, is_known in both],
            right=True,
        )
        for name, part in (("p10", "10 %"), ("p50", "50 %"), ("p90", "90 %"))
    ]


def time_text(nanoseconds: int | None) -> str:
    return "never" if nanoseconds is None else "now" if nanoseconds <= 0 else format_duration(nanoseconds)


def _moment(at: float, eta: "Eta") -> str:
    if eta.finish.p50 is None:
        return "-"
    moment = time.localtime(at + eta.finish.p50 / SECOND)
    same_day = time.localtime(at)[:3] == moment[:3]
    return time.strftime("%H:%M:%S" if same_day else "%Y-%m-%d %H:%M", moment)


def _notes(told: "Etas") -> list[str]:
    known = ", ".join(f"{source} ({count})" for source, count in sorted(told.sources.items())) or "nothing"
    submitted = f"nothing {'else' if told.coming else 'more'} is submitted"
    if told.arriving:
        submitted = f"jobs arrive as the latest {told.arriving} did"
        if told.events:
            submitted += f", and as the calendar says for {some(told.events, SHOWN)}"
    notes = [
        f"poise: {told.futures} futures of {told.units} units as `{told.policy}` decides, in {told.seconds:.1f} s; "
        f"run times from {known}",
        f"poise: taken for granted: {submitted}, and nodes stay as they are",
    ]
    for one in told.coming:
        if one.schedule:
            notes.append(f"poise: schedule `{one.name}` submits its next job in {format_duration(one.next)}")
            continue
        again = f"poise: `{one.name}` came {one.seen} times, every {format_duration(one.every)}"
        notes.append(f"{again}: taken to come again, next in {format_duration(one.next)}")
    if told.futures < told.asked:
        notes.append(f"poise: there was no time for {told.asked - told.futures} more futures; `--budget` gives more")
    if told.left_out:
        notes.append(f"poise: {told.left_out} more units wait, and were left out: it may be later than this")
    if told.guesses:
        notes.append(
            f"poise: nothing is known of {', '.join(told.guesses[:3])}; `--expect` says how long it should run"
        )
    return notes


# --- backtests -------------------------------------------------------------------------------------------------------


def _check(home: Home, log: Path | None, futures: int | None, seconds: float | None, seed: int, form: str) -> int:
    from poise.cli.offline import refuse_guest
    from poise.control.forecast import FOLLOWED, check
    from poise.drivers.logfile import has_log, open_log
    from poise.drivers.plugins import policy_of
    from poise.engine.host import ledger_at
    from poise.engine.lookahead import BUDGET, Bounds
    from poise.model.events import decode_event

    if log is None:
        refuse_guest(home, "a look back", "name a log: `--from LOG`")
        if not has_log(home):
            hint = "`poise run -- echo hello`, or POISE_HOME"
            raise NotFound("there is nothing to check: no log", field=str(home.root), hint=hint)
        log = home.root
    with open_log(log, decode_event) as recording:
        start = ledger_at(recording.start, lambda: recording.written_by)
        told = check(
            recording.events,
            start,
            lambda began: policy_of(began, anyway=True),
            bounds=Bounds(futures or FOLLOWED, seconds or BUDGET),
            seed=seed,
        )
    return output.show(lambda: _checked(told), form, False)


def _checked(told: "Checked") -> Shown:
    rows: list[tuple[str, Coverage]] = [("start", told.start), ("end", told.finish)]
    columns = [
        Column("OF", [what for what, _ in rows]),
        Column("FORECASTS", [str(of.count) for _, of in rows], right=True),
        *(
            Column(title, [_part(of, name) for _, of in rows], right=True)
            for title, name in (("BEFORE 10 %", "earlier"), ("BETWEEN", "within"), ("AFTER 90 %", "later"))
        ),
    ]
    made = len(told.forecasts)
    notes = [
        f"poise: {made} of {told.submitted} jobs, as it would have been foreseen when each was submitted, in "
        f"{told.seconds:.1f} s; eight of ten should be between"
    ]
    if told.guesses:
        notes.append(
            f"poise: {told.guesses} more would have been guesses: nothing was known of what they had to wait for"
        )
    if told.unheard:
        notes.append(f"poise: {told.unheard} more were not looked at; `--budget` gives more time")
    return Shown(told, [what for what, _ in rows], columns, notes=notes)


def _part(of: "Coverage", name: str) -> str:
    return f"{getattr(of, name) / 10:g} %" if of.count else "-"


__all__ = ["deciding", "eta", "known_now", "seconds_of", "target_of", "time_text"]
