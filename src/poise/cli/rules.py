"""`poise rules`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from poise.cli import output
from poise.cli.output import Column, Shown
from poise.cli.render import ago, print_json, say
from poise.client import current_home
from poise.control.start import connected
from poise.errors import located

if TYPE_CHECKING:  # the ledger imports numpy
    from poise.model.reports.rules import RuleReport, RulesReport
    from poise.model.rules import Rules


@click.group(invoke_without_command=True)
@output.rows
@click.pass_context
def rules(context: click.Context, form: str, watch: bool) -> int:
    """Show the rules and how they stand: the last firing of each, or why it does not act. Rules are off until their
    file allows them.
    """
    if context.invoked_subcommand is not None:
        return 0
    client = connected(current_home())
    return output.show(lambda: _shown(client.rules()), form, watch)


@rules.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
def check(file: Path, as_json: bool) -> int:
    """Check a rules FILE, without loading it."""
    compiled, _ = read_rules(file)
    told = [{"name": rule.name, "mode": rule.mode, "scope": rule.scope} for rule in compiled.rules]
    if as_json:
        print_json(told)
        return 0
    for rule in compiled.rules:
        click.echo(f"{rule.name}: {rule.mode}, {', '.join(action.name for action in rule.actions)}")
    say(f"poise: {file} is right; `poise rules test {file}` tries it on the log")
    return 0


@rules.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
def apply(file: Path, as_json: bool) -> int:
    """Set the rules to those of FILE while Poise is up. Actions of rules that are removed or changed are undone. A file
    with `rules: []` removes all.
    """
    from poise.drivers.yamlfile import place_in_file

    _, document = read_rules(file)
    client = connected(current_home())
    with located(place_in_file(file)):
        told = client.set_rules(document)
    if as_json:
        print_json(told)
    else:
        say(f"poise: rules in force: {', '.join(f'{rule.name} ({rule.mode})' for rule in told.rules) or 'none'}")
    return 0


@rules.command()
@click.argument("rule")
@click.argument("subject", required=False, default="", metavar="[NODE|SERVICE]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
def approve(rule: str, subject: str, as_json: bool) -> int:
    """Let RULE do what it asks for, for a NODE, a SERVICE or the fleet."""
    return _answer(rule, subject, as_json, allowed=True)


@rules.command()
@click.argument("rule")
@click.argument("subject", required=False, default="", metavar="[NODE|SERVICE]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
def deny(rule: str, subject: str, as_json: bool) -> int:
    """Close the question that RULE asks, for a NODE, a SERVICE or the fleet, and do nothing. It asks again when its
    trigger holds the next time.
    """
    return _answer(rule, subject, as_json, allowed=False)


def _answer(rule: str, subject: str, as_json: bool, *, allowed: bool) -> int:
    told = connected(current_home()).answer_rule(rule, subject, allowed=allowed)
    if as_json:
        print_json(told)
    else:
        say(f"poise: {'allowed' if allowed else 'denied'}: {', '.join(told.actions) or 'nothing was done'}")
    return 0


def read_rules(file: Path) -> "tuple[Rules, dict[str, Any]]":
    """Return the rules of a file, and its content. Raises SpecError with the place in the file."""
    from poise.drivers.plugins import choose_rule_policy
    from poise.drivers.yamlfile import load_kind, place_in_file
    from poise.model.rule_actions import policy_of
    from poise.model.rules import compile_rules

    document: dict[str, Any] = load_kind(file, "rules")
    with located(place_in_file(file)):
        compiled = compile_rules(document)
        for place, rule in enumerate(compiled.rules):
            for action in rule.actions:
                if (policy := policy_of(action)) is not None:
                    choose_rule_policy(rule.name, policy, place)
    return compiled, document


def _shown(told: "RulesReport") -> Shown:
    head = [f"{told.spent} of {told.budget} actions in the last hour"] if told.rules else []
    return Shown(
        told,
        [rule.name for rule in told.rules],
        [
            Column("RULE", [rule.name for rule in told.rules]),
            Column("MODE", [rule.mode for rule in told.rules]),
            Column("ACTIONS", [_actions(rule) for rule in told.rules], moving=True),
            Column("LAST", [_last(rule) for rule in told.rules], moving=True),
            Column("WHY NOT", [rule.why_not for rule in told.rules], bare=True, moving=True),
        ],
        head=head,
        nothing="no rules; `poise rules apply FILE` loads some",
    )


def _actions(rule: "RuleReport") -> str:
    return f"{', '.join(rule.actions)} ({rule.knob})" if rule.knob else ", ".join(rule.actions)


def _last(rule: "RuleReport") -> str:
    if not rule.firings:
        return "never"
    last = rule.firings[0]
    where = f" {last.subject}" if last.subject else ""
    return f"{last.outcome}{where} {ago(last.at)} ago: {last.have}{' (over)' if last.over else ''}"
