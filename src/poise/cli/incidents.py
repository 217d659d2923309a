"""`poise incidents`: problems of the fleet, grouped by cause."""

import time

import click

from poise.cli import output
from poise.cli.output import Column, Shown
from poise.cli.render import LOGGED, ago, print_json, say, shorten
from poise.client import current_home
from poise.control.start import connected, may_be_asked
from poise.model.incidents import IncidentReport, Suspect
from poise.units import SECOND, format_duration

LATELY = 7 * 24 * 3600.0
"""Age limit, in seconds, of closed incidents in the list without `--all`."""

TITLE_WIDTH = 48


@click.command()
@click.option("--all", "everything", is_flag=True, help="Include incidents that closed more than a week ago.")
@click.argument("incident", required=False)
@output.rows
def incidents(incident: str | None, everything: bool, form: str, watch: bool) -> int:
    """List incidents: symptoms with one suspected cause. With INCIDENT (id): show its evidence, its timeline, what
    Poise did, and what to do.

    To send incidents to webhooks and commands, list targets under `incidents:` in `notifications.yaml` of the home.
    """
    if incident is not None:
        if watch:
            raise click.UsageError("`--watch` works for the list only")
        report = _one(incident)
        if form == "json":
            print_json(report)
        elif form == "name":
            click.echo(report.id)
        else:
            _show(report)
        return 0
    home = current_home()
    if watch or may_be_asked(home):
        client = connected(home)
        return output.show(lambda: _shown(client.incidents(), everything), form, watch)
    from poise.cli import offline

    say(LOGGED)
    return output.show(lambda: _shown(offline.incidents(home), everything), form, watch)


def _one(name: str) -> IncidentReport:
    home = current_home()
    if may_be_asked(home):
        return connected(home).incident(name)
    from poise.cli import offline

    say(LOGGED)
    return offline.incident(home, name)


def _shown(found: list[IncidentReport], everything: bool) -> Shown:
    since = 0.0 if everything else time.time() - LATELY
    shown = [of for of in found if not of.closed or of.closed > since]
    return Shown(
        shown,
        [of.id for of in shown],
        [
            Column("INCIDENT", [of.id for of in shown]),
            Column("STATUS", ["closed" if of.closed else "open" for of in shown]),
            Column("CAUSE", [_cause(of) for of in shown]),
            Column("SCORE", [f"{of.cause.score:.2f}" for of in shown], right=True),
            Column("SYMPTOMS", [str(sum(of.symptoms.values())) for of in shown], right=True),
            Column("NODES", [str(len(of.nodes) + of.more_nodes) for of in shown], right=True),
            Column("JOBS", [str(len(of.jobs) + of.more_jobs) for of in shown], right=True),
            Column("BEGAN", [f"{ago(of.opened)} ago" for of in shown], moving=True),
            Column("LASTED", [_lasted(of) for of in shown], moving=True),
            Column("TITLE", [shorten(of.title, TITLE_WIDTH) for of in shown], only="table"),
            Column("TITLE", [of.title for of in shown], only="wide"),
        ],
        nothing="poise: no incidents",
    )


def _cause(of: IncidentReport) -> str:
    return " or ".join(str(suspect.element) for suspect in (of.cause, *of.tied))


def _lasted(of: IncidentReport) -> str:
    return format_duration(int(((of.closed or time.time()) - of.opened) * SECOND))


def _show(of: IncidentReport) -> None:
    status = f"closed, lasted {_lasted(of)}" if of.closed else "open"
    click.echo(f"{of.id}  {status}  {of.title}")
    click.echo(f"began {ago(of.opened)} ago")
    _lines("suspected cause", [_suspect(suspect) for suspect in (of.cause, *of.tied)])
    _lines("evidence", of.evidence)
    _lines("outputs", of.outputs)
    _lines("nodes", [_names(of.nodes, of.more_nodes)] if of.nodes else [])
    _lines("jobs", [_names(of.jobs, of.more_jobs)] if of.jobs else [])
    _lines("timeline", [f"{time.strftime('%H:%M:%S', time.localtime(step.at))}  {step.text}" for step in of.timeline])
    _lines("done", of.done)
    _lines("to do", [of.hint])
    _lines("not delivered", [f"{target}: {why}" for target, why in of.undelivered.items()])


def _suspect(suspect: Suspect) -> str:
    return f"{suspect.element}, score {suspect.score:.2f}"


def _names(names: tuple[str, ...], more: int) -> str:
    return ", ".join(names) + (f", and {more} more" if more else "")


def _lines(title: str, lines: tuple[str, ...] | list[str]) -> None:
    for number, line in enumerate(lines):
        click.echo(f"  {title if not number else '':15} {line}")
