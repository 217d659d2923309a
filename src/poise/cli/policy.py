"""`poise policy`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from poise.cli.render import ago, print_json, say
from poise.client import current_home
from poise.control.start import connected
from poise.errors import located

if TYPE_CHECKING:
    from collections.abc import Callable

    from poise.model.reports.policies import PolicyReport, TrialReport

NAMED = 8
"""Maximum number of nodes to name."""

T = TypeVar("T")


@click.group(invoke_without_command=True)
@click.pass_context
def policy(context: click.Context) -> int:
    """Show or change the scheduling policy. Without a command: `poise policy show`."""
    return 0 if context.invoked_subcommand is not None else _show(as_json=False)


@policy.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
def show(as_json: bool) -> int:
    """Show the current policy, and the content of its file if it has one. During a trial on a part of the nodes,
    show both policies and their nodes.
    """
    return _show(as_json)


def _show(as_json: bool) -> int:
    told = connected(current_home()).policy()
    if as_json:
        print_json(told)
        return 0
    click.echo(told.policy)
    click.echo(f"set {ago(told.asked)} ago" if told.asked else "the default")
    if told.trial is not None:
        click.echo(decides(told.trial))
        if told.trial.lent:
            click.echo(f"until their work has ended, {told.trial.rest} decides for {', '.join(told.trial.lent)}")
        if told.trial.paused:
            click.echo(f"now {told.trial.rest} decides for all nodes: {told.trial.paused}")
    elif told.recipe:
        click.echo(msgspec.json.format(msgspec.json.encode(told.recipe), indent=2).decode())
    return 0


def decides(trial: "TrialReport") -> str:
    """Describe which policy decides for which nodes."""
    on = ", ".join(trial.on[:NAMED]) + (", …" if len(trial.on) > NAMED else "")
    which = f"{trial.nodes} ({on})" if on and on not in trial.nodes else trial.nodes
    return f"{trial.policy} decides for {which}, and {trial.rest} for the rest"


@policy.command(name="set")
@click.argument("policy", metavar="NAME|FILE")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
def change(policy: str, as_json: bool) -> int:
    """Set the policy while Poise is up; running work continues.

    NAME is a policy that ships with Poise or one of an installed package; FILE is a policy file. The new policy makes
    the next decision. It stays in force until another policy is set, also when Poise or its machine restarts.
    `poise up --reset` goes back to the default.
    """
    told = set_policy(policy)
    if as_json:
        print_json(told)
    else:
        say(f"poise: {told.policy} decides from now on")
    return 0


def set_policy(policy: str) -> "PolicyReport":
    """Set the policy. Raises SpecError with the place in the file."""
    return sent(policy, connected(current_home()).set_policy)


def sent(policy: str, send: "Callable[[str | dict[str, Any]], T]") -> "T":
    """Call `send` with a policy's name, or the content of its file."""
    from poise.drivers.plugins import choose_document, is_file
    from poise.drivers.weights import with_weights
    from poise.drivers.yamlfile import load_kind, place_in_file

    if not is_file(policy):
        return send(policy)
    document: dict[str, Any] = load_kind(Path(policy), "policy")
    with located(place_in_file(Path(policy))):
        document = with_weights(document, Path(policy).parent)
        choose_document(document)
        return send(document)
