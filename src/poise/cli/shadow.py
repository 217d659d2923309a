"""`poise shadow`, `poise promote` and `poise rollback`."""

from typing import TYPE_CHECKING

import click

from poise.cli import output
from poise.cli.output import Column, Shown
from poise.cli.policy import decides, sent
from poise.cli.render import ago, print_json, say
from poise.client import current_home
from poise.control.start import connected
from poise.errors import NotFound
from poise.model.selection import parse_selection
from poise.units import HOUR, MINUTE, SECOND, format_duration

if TYPE_CHECKING:
    from poise.model.reports.policies import PairedFigure, ShadowReport, WorldReport

SHOWN = 5
"""Maximum number of differences, of decisions in each, and of units to show."""

NONE = "no policy is in shadow; `poise shadow start NAME` starts one"
LATE = 2 * MINUTE


@click.group(invoke_without_command=True)
@click.pass_context
def shadow(context: click.Context) -> int:
    """Compare policies with the current one, without an effect. Without a command: `poise shadow ls`.

    A policy in shadow decides on the live views beside the current policy. In a simulated fleet it also decides on live
    submissions, with the run times that the log shows. Both run in separate processes.
    """
    return 0 if context.invoked_subcommand is not None else _list("table", watch=False)


@shadow.command()
@click.argument("policy", metavar="NAME|FILE")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
def start(policy: str, as_json: bool) -> int:
    """Start a policy in shadow. It stays there until it is stopped or promoted, also when Poise restarts.

    It takes at most a twentieth of the control plane's time, so on a busy fleet it does not see every view. The
    simulated fleets of all policies in shadow take at most a tenth of a core.
    """
    told = sent(policy, connected(current_home()).start_shadow)
    if as_json:
        print_json(told)
    else:
        say(f"poise: {told.policy} is in shadow from now on; `poise shadow report` compares")
    return 0


@shadow.command()
@click.argument("policy", metavar="NAME")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
def stop(policy: str, as_json: bool) -> int:
    """Stop a policy in shadow, and print its last report."""
    told = connected(current_home()).stop_shadow(policy)
    if as_json:
        print_json(told)
    else:
        _draw(told)
    return 0


@shadow.command()
@output.rows
def ls(form: str, watch: bool) -> int:
    """List the policies in shadow."""
    return _list(form, watch)


@shadow.command()
@click.argument("policy", metavar="[NAME]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
def report(policy: str | None, as_json: bool) -> int:
    """Compare a policy in shadow, or the only one, with the current policy: decisions that differ, and what came of
    them in simulated fleets.
    """
    told = connected(current_home()).shadows()
    of = [one for one in told if policy in (None, one.policy, one.policy.partition("@")[0])]
    if not of:
        what = f"the policy `{policy}` is not in shadow" if policy else "no policy is in shadow"
        have = ", ".join(one.policy for one in told) or "none"
        raise NotFound(what, field="policy", have=have, hint=f"`poise shadow start {policy or 'srtf'}`")
    if len(of) > 1:
        names = [one.policy for one in of]
        what, hint = "several policies are in shadow", f"`poise shadow report {names[0]}`"
        raise NotFound(what, field="policy", need="the name of one", have=", ".join(names), hint=hint)
    if as_json:
        print_json(of[0])
    else:
        _draw(of[0])
    return 0


@click.command()
@click.argument("policy", metavar="NAME")
@click.option(
    "--nodes",
    metavar="SHARE|NODE,…|LABEL=VALUE,…",
    help="Let it decide only for these nodes: a share (`25%`), names (`n1,n2`) or labels (`zone=a`).",
)
@click.option("--force", is_flag=True, help="Promote it whatever its figures say.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
def promote(policy: str, nodes: str | None, force: bool, as_json: bool) -> int:
    """Let a policy in shadow decide from now on, and end its shadow.

    It is refused unless the interval of its mean completion time is below zero, and while P99 wait or missed deadlines
    are worse. With `--nodes`, the current policy decides for the other nodes, and the shadow continues: promote it
    again with other nodes, or without `--nodes` for all of them. `poise rollback` goes back.
    """
    if nodes is not None:
        parse_selection(nodes, "--nodes")  # an empty text, of an unset variable, must not mean all nodes
    told = connected(current_home()).promote(policy, force=force, nodes=nodes or "")
    if as_json:
        print_json(told)
    elif told.trial is not None:
        say(f"poise: {decides(told.trial)}; `poise rollback` goes back")
    else:
        say(f"poise: {told.policy} decides from now on; `poise rollback` goes back")
    return 0


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
def rollback(as_json: bool) -> int:
    """Restore the policy that decided before the current one. A second time returns to the current one."""
    told = connected(current_home()).roll_back_policy()
    if as_json:
        print_json(told)
    else:
        say(f"poise: {told.policy} decides again")
    return 0


def _list(form: str, watch: bool) -> int:
    client = connected(current_home())
    return output.show(lambda: _shown(client.shadows()), form, watch)


def _shown(told: "list[ShadowReport]") -> Shown:
    return Shown(
        told,
        [one.policy for one in told],
        [
            Column("POLICY", [one.policy for one in told]),
            Column("SINCE", [ago(one.since) for one in told], moving=True),
            Column("ROUNDS", [str(one.rounds) for one in told], right=True, moving=True),
            Column("SAME", [_share(one) for one in told], right=True, moving=True),
            Column("JOBS", [str(one.world.jobs) if one.world else "-" for one in told], right=True, moving=True),
            Column("COMPLETION", [_completion(one.world) for one in told], moving=True),
        ],
        nothing=NONE,
    )


def _share(told: "ShadowReport") -> str:
    return f"{told.same / told.rounds:.0%}" if told.rounds else "-"


def _completion(world: "WorldReport | None") -> str:
    if world is None or not world.figures:
        return "-"
    return _difference(world.figures[0])


def _draw(told: "ShadowReport") -> None:
    share = f" ({_share(told)})" if told.rounds else ""
    click.echo(f"{told.policy} in shadow for {ago(told.since)}")
    click.echo("Decisions on live views")
    click.echo(f"  rounds         {told.rounds}, {told.passed_over} more passed over, {told.failed} failed")
    click.echo(f"  same decisions {told.same}{share}")
    click.echo(f"  made by one    {told.live_alone} by the policy that decides, {told.shadow_alone} in shadow")
    if told.units:
        units = ", ".join(f"{unit} ({count})" for unit, count in list(told.units.items())[:SHOWN])
        click.echo(f"  most often     {units}")
    for one in told.differences[-SHOWN:]:
        click.echo(f"  revision {one.revision}")
        for who, acts in (("live", one.live), ("shadow", one.shadow)):
            more = f", and {len(acts) - SHOWN} more" if len(acts) > SHOWN else ""
            click.echo(f"    {who:<6}  {'; '.join(acts[:SHOWN]) or 'nothing else'}{more}")
    click.echo("Simulated fleets")
    if told.world is None:
        click.echo("  nothing yet")
        return
    _draw_world(told.world)


def _draw_world(world: "WorldReport") -> None:
    late = f", {format_duration(round(world.late) * SECOND)} late" if world.late * SECOND > LATE else ""
    hours = format_duration(round(world.hours * HOUR))
    click.echo(f"  {world.jobs} jobs in {hours}, {world.ended} of them ended in both{late}")
    if world.figures:
        click.echo(f"  {'':<17}{'current':>12}{'shadow':>12}  difference ({world.level:.0%} interval)")
    else:
        click.echo("  too few jobs for figures")
    for row in world.figures:
        click.echo(f"  {row.name:<17}{_value(row, row.live):>12}{_value(row, row.shadow):>12}  {_difference(row)}")
    if world.guessed or world.converted:
        click.echo(
            f"  run times: {world.guessed} units estimated, {world.converted} converted from another model of device"
        )
    if world.left_out:
        click.echo(f"  left out: {', '.join(f'{count} {what}' for what, count in sorted(world.left_out.items()))}")
    if world.failed:
        click.echo(f"  it decides no more there: {world.failed}")


def _value(row: "PairedFigure", value: float) -> str:
    if row.of == "time":
        return format_duration(round(value))
    return f"{value:.1%}" if row.of == "share" else f"{value:g}"


def _difference(row: "PairedFigure") -> str:
    from poise.engine.paired import in_words

    return in_words(row)
