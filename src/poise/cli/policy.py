"""`poise policy` and `poise shadow`."""

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

    from poise.model.reports import PolicyReport, ShadowReport

T = TypeVar("T")

SHOWN = 5
"""Differences that are shown, and decisions of each."""


@click.group(invoke_without_command=True)
@click.pass_context
def policy(context: click.Context) -> int:
    """Show or change the scheduling policy. Without a command: `poise policy show`."""
    return 0 if context.invoked_subcommand is not None else _show(as_json=False)


@policy.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
def show(as_json: bool) -> int:
    """Show the current policy, and the content of its file if it has one."""
    return _show(as_json)


def _show(as_json: bool) -> int:
    told = connected(current_home()).policy()
    if as_json:
        print_json(told)
        return 0
    click.echo(told.policy)
    click.echo(f"set {ago(told.asked)} ago" if told.asked else "the default")
    if told.recipe:
        click.echo(msgspec.json.format(msgspec.json.encode(told.recipe), indent=2).decode())
    return 0


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


@click.command()
@click.argument("policy", metavar="[NAME|FILE]", required=False)
@click.option("--stop", is_flag=True, help="Stop the shadow policy, and print its figures.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
def shadow(policy: str | None, stop: bool, as_json: bool) -> int:
    """Compare a policy with the current one on live views: start it with NAME or FILE, then print the figures without
    an argument. The shadow policy runs in a separate process, and its plans have no effect. It takes at most a
    twentieth of the control plane's time, so on a busy fleet it does not see every view. It ends with the control
    plane.
    """
    if stop and policy is not None:
        raise click.UsageError("`--stop` takes no policy")
    client = connected(current_home())
    if policy is not None:
        told = _sent(policy, client.start_shadow)
        say(f"poise: {told.policy} decides in shadow from now on; `poise shadow` compares")
    else:
        told = client.stop_shadow() if stop else client.shadow()
    if as_json:
        print_json(told)
    elif not told.policy:
        say("poise: no policy is in shadow; `poise shadow NAME` starts one")
    elif policy is None:
        _draw(told)
    return 0


def _draw(told: "ShadowReport") -> None:
    share = f" ({told.same / told.rounds:.0%})" if told.rounds else ""
    click.echo(f"{told.policy} in shadow for {ago(told.since)}")
    click.echo(f"  rounds         {told.rounds}, {told.passed_over} more passed over, {told.failed} failed")
    click.echo(f"  same decisions {told.same}{share}")
    click.echo(f"  made by one    {told.live_alone} by the policy that decides, {told.shadow_alone} in shadow")
    for one in told.differences[-SHOWN:]:
        click.echo(f"  revision {one.revision}")
        for who, acts in (("live", one.live), ("shadow", one.shadow)):
            more = f", and {len(acts) - SHOWN} more" if len(acts) > SHOWN else ""
            click.echo(f"    {who:<6}  {'; '.join(acts[:SHOWN]) or 'nothing else'}{more}")


def set_policy(policy: str) -> "PolicyReport":
    """Let this policy decide. Raises SpecError with the place in the file."""
    return _sent(policy, connected(current_home()).set_policy)


def _sent(policy: str, send: "Callable[[str | dict[str, Any]], T]") -> "T":
    """Send a name, or the content of the file of this name."""
    from poise.drivers.plugins import choose_document, is_file
    from poise.drivers.yamlfile import load_kind, place_in_file

    if not is_file(policy):
        return send(policy)
    document: dict[str, Any] = load_kind(Path(policy), "policy")
    with located(place_in_file(Path(policy))):
        choose_document(document)
        return send(document)
