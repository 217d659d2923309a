"""`poise policy`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from poise.cli.render import ago, print_json, say
from poise.client import current_home
from poise.control.start import connected

if TYPE_CHECKING:
    from poise.model.reports import PolicyReport


@click.group()
def policy() -> None:
    """Show or change the policy that decides what runs where."""


@policy.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
def show(as_json: bool) -> int:
    """Show the current policy, and the content of its file if it has one."""
    told = connected(current_home()).policy()
    if as_json:
        print_json(told)
        return 0
    click.echo(told.policy)
    click.echo(f"set {ago(told.asked)}" if told.asked else "the default")
    if told.recipe:
        click.echo(msgspec.json.format(msgspec.json.encode(told.recipe), indent=2).decode())
    return 0


@policy.command(name="set")
@click.argument("policy", metavar="NAME|FILE")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
def change(policy: str, as_json: bool) -> int:
    """Set the policy while Poise is up; running work continues.

    NAME is a policy that ships with Poise or one of an installed package; FILE is a policy file. The next decision is
    the new policy's. It stays in force until another policy is set, also when Poise or its machine restarts.
    """
    told = set_policy(policy)
    if as_json:
        print_json(told)
    else:
        say(f"poise: {told.policy} decides from now on")
    return 0


def set_policy(policy: str) -> "PolicyReport":
    """Send a name, or the content of the file of this name. Raises SpecError with the place in the file."""
    from poise.drivers.plugins import choose_document, is_file
    from poise.drivers.yamlfile import load_kind, located, place_in_file

    client = connected(current_home())
    if not is_file(policy):
        return client.set_policy(policy)
    document: dict[str, Any] = load_kind(Path(policy), "policy")
    with located(place_in_file(Path(policy))):
        choose_document(document)
        return client.set_policy(document)
