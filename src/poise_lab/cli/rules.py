"""`poise rules test` and `poise rules tune`: test rules on a log or a trace, and tune their control loops."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from poise.cli import output
from poise.cli.render import ago, print_json, say
from poise.cli.rules import read_rules, rules
from poise.client import current_home
from poise.errors import InputError, NotFound
from poise_lab.cli.simulate import COLUMNS

if TYPE_CHECKING:  # imported late: the ledger loads numpy
    from poise.kernel.controller import Settings
    from poise.model.reports.rules import RulesEffect, RulesTest, TunedLoop
    from poise.model.resources import Node
    from poise.model.rules import Rules
    from poise.model.workload import Workload
    from poise.policy.suites import ClusterPolicy
    from poise_lab.compare import Loaded
    from poise_lab.steered import Simulated

SHOWN = 20
"""Maximum number of firings to list."""


def _simulated(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options that say what is simulated."""
    path = click.Path(path_type=Path)
    default = "[default: that of LOG, or poise]"
    for option in (
        COLUMNS,
        click.option("--policy", metavar="NAME|FILE", help=f"Policy of the simulation. {default}"),
        click.option(
            "--fleet", type=path, metavar="FILE|HOME", help="Fleet file of the simulation. [default: the nodes of LOG]"
        ),
        click.option(
            "--from", "source", type=path, metavar="LOG|TRACE", help="Log or trace. [default: the log of this home]"
        ),
    ):
        command = option(command)
    return command


@rules.command()
@click.argument("file", type=click.Path(path_type=Path))
@_simulated
@click.option("--effect", is_flag=True, help="Simulate the jobs without the rules and with them, and compare.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
def test(
    file: Path,
    source: Path | None,
    fleet: Path | None,
    policy: str | None,
    columns: str | None,
    effect: bool,
    as_json: bool,
) -> int:
    """Test the rules of FILE on a log: firings, actions, flaps and conflicts. LOG is a home, its log.db, or a file
    of `poise replay --export`. A trace is simulated first. Rules that are off are evaluated too; nothing is changed.
    """
    from poise_lab.traces.poiselog import is_log

    compiled, document = read_rules(file)
    path = _log_here() if source is None else source
    if not is_log(path):
        told = _on_trace(path, fleet, policy, columns, document, effect=effect)
    else:
        if columns is not None:
            raise InputError("`--map` is for a CSV, and this is a log", field="--map", have=columns, hint="no `--map`")
        for flag, given in (("--fleet", fleet), ("--policy", policy)):
            if given is not None and not effect:
                what, hint = f"`{flag}` is for a simulation, and a log is only read", f"`--effect`, or no `{flag}`"
                raise InputError(what, field=flag, need="nothing", have=str(given), hint=hint)
        told = _on_log(path, compiled)
        if effect:
            told = _with_effect(told, path, fleet, policy, document)
    if as_json:
        print_json(told)
    else:
        _draw(told)
    return 0


@rules.command()
@click.argument("file", type=click.Path(path_type=Path))
@_simulated
@click.option(
    "--service",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Service file: tune its loops. `--from` takes its requests, as `poise rehearse` does.",
)
@click.option(
    "--world",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="World file: speeds of the replicas of the service.",
)
@click.option(
    "--report", type=click.Path(path_type=Path), metavar="FILE", help="Write a page with plots, for any browser."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
def tune(
    file: Path,
    source: Path | None,
    fleet: Path | None,
    policy: str | None,
    columns: str | None,
    service: Path | None,
    world: Path | None,
    report: Path | None,
    as_json: bool,
) -> int:
    """Find gains for the control loops of FILE in simulations of the jobs of a log or a trace, or of the requests of a
    service. A relay makes the signal oscillate; the period and the size of the oscillation give the gains. Then
    simulate the loop with automatic gains and with these gains.
    """
    from poise_lab.loops import on_jobs, on_service, render, tune_loops

    compiled, document = read_rules(file)
    if report is not None:
        output.check_page(report, "--report")
    if service is None:
        if world is not None:
            raise InputError("`--world` is for a service", field="--world", have=str(world), hint="`--service FILE`")
        run = on_jobs(*_jobs_to_simulate(file, compiled, source, fleet, policy, columns))
    else:
        for flag, given in (("--fleet", fleet), ("--policy", policy), ("--map", columns)):
            if given is not None:
                what, hint = f"`{flag}` is for jobs, not for a service", f"leave `{flag}` out"
                raise InputError(what, field=flag, need="nothing", have=str(given), hint=hint)
        found = _service_to_simulate(service, world, source)
        run, document = on_service(found), _loops_of(found.name, file, compiled, document)
    told = tune_loops(document, run, lambda text: say(f"poise: {text}"))
    if as_json:
        print_json(told)
    else:
        for loop in told:
            _draw_loop(loop)
    if report is not None:
        output.write_page(report, render(told), "--report")
    return 0


def _jobs_to_simulate(
    file: Path, compiled: "Rules", source: Path | None, fleet: Path | None, policy: str | None, columns: str | None
) -> "tuple[Workload, Sequence[Node], ClusterPolicy, Settings]":
    """Return the jobs that the loops of a file act on. Raises an error without a loop, and for a loop of a service."""
    from poise.model.expressions import SIGNALS

    loops = [(rule.name, rule.control) for rule in compiled.rules if rule.control is not None]
    if not loops:
        hint = "control: {knob: quota.gpu, of: ann, target: {fleet_use: 80%}, least: 4, most: 64}"
        raise NotFound(f"no rule of {file} has a control loop", field="rules", hint=hint)
    for name, loop in loops:
        if SIGNALS[loop.target.read.signal].scope == "service":
            what, hint = f"the loop of rule `{name}` needs a service", "`--service FILE --world FILE --from REQUESTS`"
            raise InputError(what, field="--service", have=loop.target.read.signal, hint=hint)
    loaded, decides, settings = _to_simulate(_log_here() if source is None else source, fleet, policy, columns)
    return loaded.workload, loaded.fleet.nodes, decides, settings


def _service_to_simulate(service: Path, world: Path | None, source: Path | None) -> "Simulated":
    from poise_lab.steered import simulated

    for flag, given in (("--world", world), ("--from", source)):
        if given is None:
            hint = "`--world FILE --from poisson:rate=50,requests=100000`"
            raise InputError(f"`--service` needs `{flag}`", field=flag, hint=hint)
    return simulated(service, Path(str(world)), str(source))


def _loops_of(service: str, file: Path, compiled: "Rules", document: dict[str, Any]) -> dict[str, Any]:
    """Return the rules whose loops set the replicas of a service. Raises `NotFound` if there are none."""
    from poise.model.tenants import declared_class

    rules = [
        written
        for rule, written in zip(compiled.rules, document["rules"], strict=True)
        if (loop := rule.control) is not None and loop.knob == "replicas" and declared_class(loop.of) == service
    ]
    if not rules:
        target = "target: {service_p99_of_objective: 80%}, effect: lowers"
        hint = f"control: {{knob: replicas, of: {service}, {target}, least: 0, most: 8}}"
        raise NotFound(f"no rule of {file} sets the replicas of {service}", field="rules", hint=hint)
    return {**document, "rules": rules}


def _draw_loop(loop: "TunedLoop") -> None:
    click.echo(f"{loop.rule}: {loop.knob}, so that {loop.signal} is {loop.target:g}")
    if not any(one.steps for one in loop.responses):
        click.echo(
            "  no gains: the rule never fired, or its signal was never known; use a longer trace, or another trigger"
        )
    elif not loop.period:
        click.echo("  no gains: the signal does not oscillate under a relay; use a longer trace, or wider limits")
    else:
        click.echo(f"  under a relay, it oscillates with a period of {loop.period:.1f} steps of {loop.every:g} s")
    for one in loop.responses:
        gains = f"{{proportional: {one.proportional:.4g}, integral: {one.integral:.4g}}}"
        figures = f"mean error {one.error:.1%}, within 10% of the target in {one.within:.0%} of the steps"
        click.echo(f"  {one.label:<6}gains: {gains}  {figures}, {one.changes} changes")


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


def _on_trace(
    path: Path, fleet: Path | None, policy: str | None, columns: str | None, document: dict[str, Any], *, effect: bool
) -> "RulesTest":
    from poise_lab.ruled import backtest_on, effect_of, with_effect

    loaded, decides, settings = _to_simulate(path, fleet, policy, columns)
    told, without = backtest_on(loaded.workload, loaded.fleet.nodes, decides, settings, document)
    if not effect:
        return told
    return with_effect(told, effect_of(loaded.workload, loaded.fleet.nodes, decides, settings, document, without))


def _with_effect(
    told: "RulesTest", path: Path, fleet: Path | None, policy: str | None, document: dict[str, Any]
) -> "RulesTest":
    """Return the test with the effect of the rules on the jobs of a log, on its nodes or on a fleet."""
    from poise_lab.ruled import effect_of, with_effect
    from poise_lab.trial import simulate

    loaded, decides, settings = _to_simulate(path, fleet, policy)
    without = simulate(loaded.workload, loaded.fleet.nodes, decides, settings)
    return with_effect(told, effect_of(loaded.workload, loaded.fleet.nodes, decides, settings, document, without))


def _to_simulate(
    path: Path, fleet: Path | None, policy: str | None, columns: str | None = None
) -> "tuple[Loaded, ClusterPolicy, Settings]":
    """Return a log, by default on its nodes and with its policy, or a trace on a fleet."""
    from poise.drivers.plugins import choice_of, choose, tried
    from poise.kernel.controller import Settings
    from poise_lab.compare import Asked, load
    from poise_lab.traces.options import Options
    from poise_lab.traces.plain import parse_mapping
    from poise_lab.traces.poiselog import is_log
    from poise_lab.what_if import recorded_in

    began = recorded_in(path).began if policy is None and is_log(path) else None
    choice = choose(policy or "poise") if began is None else choice_of(began)
    options = Options(columns=parse_mapping(columns) if columns else {})
    loaded = load(Asked(trace=path, fleet=fleet, options=options))
    return loaded, tried(choice), Settings(throughputs=loaded.fleet.throughputs)


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
