"""`poise rules test`: test rules on a log or a trace."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from poise.cli.render import ago, print_json, say
from poise.cli.rules import read_rules, rules
from poise.client import current_home
from poise.errors import NotFound

if TYPE_CHECKING:  # imported late: the ledger loads numpy
    from poise.model.reports import RulesEffect, RulesTest
    from poise.model.rules import Rules

SHOWN = 20
"""Maximum number of firings to list."""


@rules.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--from",
    "source",
    type=click.Path(path_type=Path),
    metavar="LOG|TRACE",
    help="Log or trace. [default: the log of this home]",
)
@click.option(
    "--fleet", type=click.Path(path_type=Path), metavar="FILE|HOME", help="Fleet file of the simulation, for a trace."
)
@click.option("--policy", metavar="NAME|FILE", help="Policy of the simulation. [default: that of LOG, or poise]")
@click.option("--effect", is_flag=True, help="Simulate the jobs without the rules and with them, and compare.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
def test(file: Path, source: Path | None, fleet: Path | None, policy: str | None, effect: bool, as_json: bool) -> int:
    """Test the rules of FILE on a log: firings, actions, flaps and conflicts. LOG is a home, its log.db, or a file
    of `poise replay --export`. A trace is simulated first. Rules that are off are evaluated too; nothing is changed.
    """
    from poise_lab.traces.poiselog import is_log

    compiled, document = read_rules(file)
    path = _log_here() if source is None else source
    if not is_log(path):
        told = _on_trace(path, fleet, policy or "poise", document, effect=effect)
    else:
        told = _on_log(path, compiled)
        if effect:
            told = _with_effect(told, path, policy, document)
    if as_json:
        print_json(told)
    else:
        _draw(told)
    return 0


def _log_here() -> Path:
    from poise.cli.offline import refuse_guest
    from poise.drivers.logfile import has_log

    home = current_home()
    refuse_guest(home, "a test of rules", "name a log: `--from LOG`")
    if not has_log(home):
        hint = "`poise run -- echo hello`, or `--from LOG`"
        raise NotFound("there is no log", field=str(home.root), hint=hint)
    return home.root


def _on_log(path: Path, compiled: "Rules") -> "RulesTest":
    from poise.drivers.logfile import open_log
    from poise.engine.host import ledger_at
    from poise.kernel.backtest import backtest
    from poise.model.events import decode_event

    with open_log(path, decode_event, 0) as recording:
        return backtest(
            recording.events, compiled, ledger_at(recording.start, lambda: recording.written_by, plans=False)
        )


def _on_trace(path: Path, fleet: Path | None, policy: str, document: dict[str, Any], *, effect: bool) -> "RulesTest":
    from poise.drivers.plugins import choose, tried
    from poise.kernel.controller import Settings
    from poise_lab.compare import Asked, load
    from poise_lab.ruled import backtest_on, effect_of, with_effect

    decides, loaded = tried(choose(policy)), load(Asked(trace=path, fleet=fleet))
    settings = Settings(throughputs=loaded.fleet.throughputs)
    told, without = backtest_on(loaded.workload, loaded.fleet.nodes, decides, settings, document)
    if not effect:
        return told
    return with_effect(told, effect_of(loaded.workload, loaded.fleet.nodes, decides, settings, document, without))


def _with_effect(told: "RulesTest", path: Path, policy: str | None, document: dict[str, Any]) -> "RulesTest":
    """Return the test with the effect of the rules on the jobs of a log, on its nodes."""
    from poise.drivers.plugins import choice_of, choose, tried
    from poise.kernel.controller import Settings
    from poise_lab.compare import Asked, load
    from poise_lab.ruled import effect_of, with_effect
    from poise_lab.trial import simulate
    from poise_lab.what_if import recorded_in

    known, loaded = recorded_in(path), load(Asked(trace=path, fleet=None))
    choice = choose(policy or "poise") if policy or known.began is None else choice_of(known.began)
    decides, settings = tried(choice), Settings(throughputs=loaded.fleet.throughputs)
    without = simulate(loaded.workload, loaded.fleet.nodes, decides, settings)
    return with_effect(told, effect_of(loaded.workload, loaded.fleet.nodes, decides, settings, document, without))


def _draw(told: "RulesTest") -> None:
    click.echo(f"revisions {told.first} to {told.last}: {told.hours:.1f} hours, {told.evaluations} evaluations")
    for rule in told.rules:
        done = ", ".join(f"{count} {name}" for name, count in rule.actions.items())
        click.echo(f"{rule.name} ({rule.mode}): {rule.firings} firings, {rule.flaps} flaps; would do {done}")
    for change in told.changes[:SHOWN]:
        what = "over" if change.over else "fires"
        click.echo(f"  {ago(change.at)} ago  {change.rule} {what} {change.subject}: {change.have}")
    if told.effect is not None:
        _draw_effect(told.effect)
    if len(told.changes) > SHOWN:
        say(f"poise: and {len(told.changes) - SHOWN} more; `--json` has them")
    for conflict in told.conflicts:
        say(f"poise: at once: {conflict}")
    if told.missing:
        say(f"poise: not in this log: {', '.join(told.missing)}; nothing follows from what is missing")


def _draw_effect(effect: "RulesEffect") -> None:
    from poise.engine.paired import in_words

    fired = ", ".join(f"{rule} {count} times" for rule, count in effect.firings.items())
    click.echo(f"with the rules in force, {effect.jobs} jobs simulated: fired {fired}")
    for figure in effect.figures:
        click.echo(f"  {figure.name:<17}{in_words(figure)}")
    if not effect.figures:
        click.echo("  too few jobs for figures")
