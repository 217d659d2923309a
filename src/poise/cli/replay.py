"""`poise replay`."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from poise import __version__
from poise.cli import output
from poise.cli.numbers import WholeRange
from poise.cli.output import Column, Shown
from poise.cli.render import print_json, say, shorten
from poise.client import current_home
from poise.drivers.logfile import Recording, has_log, open_log, write_log
from poise.errors import NotFound, StoreDamaged
from poise.model.decisions import Spot
from poise.model.events import Event, Held, Placed, Preempted, Resized, decode_event, encode_event

if TYPE_CHECKING:  # the ledger imports numpy
    from poise.kernel.replay import Difference, Made, Replayed
    from poise.policy.suites import ClusterPolicy

WIDE = 72
"""Maximum width of a decision in a table; the JSON has all of it."""


@click.command()
@click.option(
    "--policy", metavar="NAME|FILE", help="Use this policy for each round instead; its decisions have no effect."
)
@click.option("--from", "after", type=WholeRange(1), metavar="REVISION", help="First revision to compare.")
@click.option("--until", type=WholeRange(1), metavar="REVISION", help="Last revision to compare.")
@click.option("--anyway", is_flag=True, help="Also compare decisions of other versions of Poise.")
@click.option("--export", "file", type=click.Path(path_type=Path), metavar="FILE", help="Write the log to a file.")
@output.forms(*output.TEXT)
@click.argument("log", required=False, type=click.Path(path_type=Path), metavar="[LOG]")
def replay(
    log: Path | None,
    policy: str | None,
    after: int | None,
    until: int | None,
    anyway: bool,
    file: Path | None,
    form: str,
) -> int:
    """Repeat the decisions of LOG, each round from its recorded state, and show the first difference, if any. LOG is a
    home, its log.db, or an exported file; the default is the log of this home, with or without a running control plane.
    Exits with 1 if the same policy decides differently.
    """
    if file is not None:
        if policy is not None or after is not None or anyway:
            raise click.UsageError("`--export` writes the log, and compares nothing")
        with _opened(log, until) as recording:
            last = write_log(
                file,
                map(encode_event, recording.events),
                start=recording.start,
                written_by=recording.written_by or __version__,
            )
        if form == "json":
            print_json({"file": str(file), "last": last})
        else:
            say(f"poise: wrote {file}, up to revision {last}")
        return 0
    instead = _policy(policy) if policy is not None else None
    with _opened(log, until) as recording:
        try:
            told = _replay(recording, after or 1, instead, anyway=anyway)
        except (AssertionError, LookupError, TypeError, ValueError) as error:  # the records are inconsistent
            what = f"{type(error).__name__}: {error}"
            raise StoreDamaged("the records of this log do not follow from each other", have=what) from None
    output.show(lambda: _shown(told), form, False)
    return 0 if told.same or instead is not None else 1


@contextmanager
def _opened(log: Path | None, until: int | None) -> Iterator[Recording[Event]]:
    if log is None:
        from poise.cli.offline import refuse_guest

        home = current_home()
        refuse_guest(home, "a replay", "name a LOG")
        log = home.root
        if not has_log(home):
            hint = "`poise run -- echo hello`, or POISE_HOME"
            raise NotFound("there is nothing to replay: no log", field=str(home.root), hint=hint)
    with open_log(log, decode_event, until or 0) as recording:
        yield recording


def _policy(name: str) -> "ClusterPolicy":
    from poise.drivers.plugins import build, check_needs, choose

    choice = choose(name)
    check_needs(choice)
    return build(choice)


def _replay(recording: Recording[Event], first: int, instead: "ClusterPolicy | None", *, anyway: bool) -> "Replayed":
    from poise.drivers.plugins import policy_of
    from poise.engine.host import ledger_at
    from poise.kernel.replay import replay

    ledger = ledger_at(recording.start, lambda: recording.written_by)
    return replay(
        recording.events,
        ledger=ledger,
        choose=lambda began: policy_of(began, anyway=anyway),
        instead=instead,
        after=first - 1,
    )


def _shown(told: "Replayed") -> Shown:
    where, rounds = f"revisions {told.first} to {told.last}", _many(told.rounds, "round")
    if not told.rounds:
        how = "no round was compared"
    elif told.policy:
        how = f"`{told.policy}` would have decided {told.different} of {rounds} otherwise"
    elif told.same:
        how = f"{rounds}, {_many(told.decisions, 'decision')}, all the same"
    else:
        how = f"{told.different} of {rounds} decided otherwise"
    notes = [f"poise: {_many(count, 'round')} not compared: {why}" for why, count in told.left_out.items()]
    if told.first > 1:
        notes.append(f"poise: earlier records than revision {told.first} are no longer kept")
    if told.difference is None:
        return Shown(told, [], [], head=[f"{where}: {how}"], notes=notes)
    return _side_by_side(told, told.difference, f"{where}: {how}", notes)


def _side_by_side(told: "Replayed", first: "Difference", head: str, notes: Sequence[str]) -> Shown:
    """Show both plans, with a row for each unit or queue that differs; with all rows if only the order differs."""
    recorded = {_subject(made): made for made in first.recorded}
    now = {_subject(made): made for made in first.now}
    either = dict.fromkeys([*recorded, *now])
    subjects = [subject for subject in either if recorded.get(subject) != now.get(subject)] or list(either)
    pairs = [(recorded.get(subject), now.get(subject)) for subject in subjects]
    if len(subjects) < len(either):
        notes = [*notes, f"poise: {_many(len(either) - len(subjects), 'other decision')} of this round: the same"]
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(first.wall))
    lines = [
        head,
        f"the first: revision {first.revision}, decided on that of {first.base} at {moment}",
        *([f"the policy fails now: {first.failed}"] if first.failed else []),
    ]
    columns = [
        Column("OF", subjects),
        Column("RECORDED", [_cell(then, again) for then, again in pairs]),
        Column("NOW", [_cell(again, then) for then, again in pairs]),
    ]
    return Shown(told, subjects, columns, head=lines, notes=notes)


def _subject(made: "Made") -> str:
    if isinstance(made, Placed | Preempted | Resized):
        return made.unit
    return f"queue {made.queue}" if isinstance(made, Held) else "memory"


def _cell(made: "Made | None", other: "Made | None") -> str:
    """Format a decision; with its reason, if only the reasons differ."""
    if made is None:
        return "-"
    text = _done(made)
    if made != other and other is not None and text == _done(other) and isinstance(made, Placed | Preempted | Resized):
        text = f"{text}: {made.why.sentence()}"
    return shorten(text, WIDE)


def _done(made: "Made") -> str:
    if isinstance(made, Placed):
        also = f"{', queued' if made.queued else ''}{f', artifact {made.variant}' if made.variant else ''}"
        return f"place on {', '.join(map(_spot, made.spots))}{also}"
    if isinstance(made, Preempted):
        return f"{made.cause}{f' to {made.to}' if made.to else ''}"
    if isinstance(made, Resized):
        spots = [f"task {index} joins on {_spot(spot)}" for index, spot in made.joins]
        return ", ".join([*(f"task {index} leaves" for index in made.leaves), *spots])
    if isinstance(made, Held):
        return f"hold: {'; '.join(reason.sentence() for reason in made.reasons)}"
    return json.dumps(made.memory)


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _spot(spot: Spot) -> str:
    return f"{spot.node}{list(spot.devices)}" if spot.devices else spot.node
