"""`poise schedules`: recurring work."""

import time

import click

from poise.cli import output
from poise.cli.output import Column, Shown
from poise.cli.render import LOGGED, ago, in_turn, print_json, say, shorten, status_text
from poise.client import current_home
from poise.control.start import connected, may_be_asked
from poise.model.recurring import Rule
from poise.model.reports.jobs import ScheduleReport
from poise.model.tenants import DEFAULT
from poise.units import SECOND, format_duration

COMMAND_WIDTH = 40


@click.group(invoke_without_command=True)
@output.rows
@click.pass_context
def schedules(context: click.Context, form: str, watch: bool) -> int:
    """List schedules: when each submits its next job, and how its last one ended.

    `poise submit --every TIME` and `poise submit --cron EXPRESSION` make one.
    """
    if context.invoked_subcommand is not None:
        return 0
    home = current_home()
    if watch or may_be_asked(home):
        client = connected(home)
        return output.show(lambda: _shown(client.schedules()), form, watch)
    from poise.cli import offline

    say(LOGGED)
    return output.show(lambda: _shown(offline.schedules(home)), form, watch)


def _shown(found: list[ScheduleReport]) -> Shown:
    several = any(of.tenant != DEFAULT for of in found)
    return Shown(
        found,
        [of.id for of in found],
        [
            Column("SCHEDULE", [of.id for of in found]),
            Column("NAME", [of.name or "-" for of in found]),
            *([Column("TENANT", [of.tenant for of in found])] if several else []),
            Column("USER", [of.user or "-" for of in found], only="wide"),
            Column("WHEN", [_rule(of).sentence() for of in found]),
            Column("OVERLAP", [of.overlap for of in found], only="wide"),
            Column("NEXT", [_next(of) for of in found], moving=True),
            Column("LAST", [of.last_job or "-" for of in found]),
            Column("STATUS", [status_text(of.last_status) if of.last_status else "-" for of in found]),
            Column("JOBS", [str(of.jobs) for of in found], right=True, only="wide"),
            Column("COMMAND", [shorten(of.command, COMMAND_WIDTH) for of in found], only="table"),
            Column("COMMAND", [" ".join(of.command.split()) for of in found], only="wide"),
            Column("NOTE", [_note(of) for of in found], bare=True),
        ],
        nothing="poise: no schedules yet; `poise submit --every 1h -- echo hello`",
    )


def _rule(of: ScheduleReport) -> Rule:
    return Rule(every=of.every, cron=of.cron, zone=of.time_zone)


def _next(of: ScheduleReport) -> str:
    if of.held:
        return "on hold"
    left = of.next - time.time()
    return f"in {format_duration(int(left * SECOND))}" if left > 0 else "now"


def _note(of: ScheduleReport) -> str:
    """Return why the last turn submitted no job."""
    if not of.refused:
        return ""
    return of.refused if of.held else f"{ago(of.last_due)} ago no job: {of.refused}"


@schedules.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
@click.argument("schedules", nargs=-1, required=True, metavar="SCHEDULE...")
def hold(schedules: tuple[str, ...], as_json: bool) -> int:
    """Hold every SCHEDULE (id or name): it submits no jobs until it is released. Its jobs continue."""
    return _told("held", "on hold", in_turn("on hold", schedules, connected(current_home()).hold_schedule), as_json)


@schedules.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
@click.argument("schedules", nargs=-1, required=True, metavar="SCHEDULE...")
def release(schedules: tuple[str, ...], as_json: bool) -> int:
    """Release every SCHEDULE (id or name) that is on hold. Missed turns are not made up for: --every begins now, --cron
    continues with the next time.
    """
    released = in_turn("released", schedules, connected(current_home()).release_schedule)
    return _told("released", "released", released, as_json)


@schedules.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
@click.argument("schedules", nargs=-1, required=True, metavar="SCHEDULE...")
def rm(schedules: tuple[str, ...], as_json: bool) -> int:
    """Remove every SCHEDULE (id or name). Its jobs stay: `poise cancel` ends them."""
    removed = in_turn("removed", schedules, connected(current_home()).remove_schedule)
    return _told("removed", "removed", removed, as_json)


def _told(key: str, text: str, ids: list[str], as_json: bool) -> int:
    if as_json:
        print_json({key: ids})
    else:
        say(f"{text}: {', '.join(ids)}")
    return 0
