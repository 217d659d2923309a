"""`poise token`, `whoami` and `audit`: permissions, and the record of changes."""

import time
from collections.abc import Iterable

import click
import msgspec

from poise.cli import output
from poise.cli.numbers import Whole
from poise.cli.output import Column, Shown
from poise.cli.render import ago, in_turn, print_json, say
from poise.cli.words import filled
from poise.client import current_home
from poise.control.start import connected
from poise.decoding import json_decoder
from poise.model.reports.access import AuditReport, RefusalsReport, TokenReport
from poise.units import SECOND, format_duration

ROLES = ("viewer", "observer", "submitter", "operator", "admin", "node")


@click.group()
def token() -> None:
    """Create, list and revoke tokens. Each is bound to a tenant and a role.

    A viewer sees the work of its tenant, a submitter submits and cancels it. An observer sees the work of all tenants
    and changes nothing, for monitoring and wall screens. An operator sees and cancels the work of
    all tenants and drains nodes; an admin creates tokens and sets quotas. A node is a machine that offers itself, and
    may do nothing else. Commands run as the Unix account of their token, or else as the user who started the node.
    """


@token.command()
@click.option("--tenant", required=True, metavar="NAME", help="Tenant of the token.")
@click.option("--role", required=True, type=click.Choice(ROLES), help="Role of the token.")
@click.option("--name", default="", callback=filled, metavar="NAME", help="Name of its holder, for the audit.")
@click.option("--expires", metavar="TIME", help="Lifetime, e.g. 30d. [default: until it is revoked]")
@click.option(
    "--account",
    default="",
    callback=filled,
    metavar="NAME",
    help="Unix account that runs its commands, on nodes whose agent is root. [default: the user of the agent]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
def add(tenant: str, role: str, name: str, expires: str | None, account: str, as_json: bool) -> int:
    """Create a token. It is shown once; Poise stores only its hash."""
    made, secret = connected(current_home()).add_token(tenant, role, name=name, expires=expires, account=account)
    if as_json:
        print_json({**msgspec.to_builtins(made), "secret": secret})
        return 0
    click.echo(secret)
    say(f"poise: this is {made.id}, {role} of {tenant}; it is shown only once")
    return 0


@token.command()
@click.option("--all", "everything", is_flag=True, help="Also list the latest revoked tokens.")
@output.rows
def ls(everything: bool, form: str, watch: bool) -> int:
    """List the created tokens, without the token of this home."""
    client = connected(current_home())
    return output.show(lambda: _tokens_shown(client.tokens(), everything), form, watch)


def _tokens_shown(tokens: list[TokenReport], everything: bool) -> Shown:
    found = [of for of in tokens if everything or not of.revoked]
    return Shown(
        found,
        [of.id for of in found],
        [
            Column("TOKEN", [of.id for of in found]),
            Column("NAME", [of.name or "-" for of in found]),
            Column("TENANT", [of.tenant for of in found]),
            Column("ROLE", [of.role for of in found]),
            *([Column("ACCOUNT", [of.account or "-" for of in found])] if any(of.account for of in found) else []),
            Column("EXPIRES", [_lasts(of) for of in found], moving=True),
        ],
        nothing="poise: no tokens yet; `poise token add --tenant NAME --role submitter`",
    )


@token.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
@click.argument("tokens", nargs=-1, required=True, metavar="TOKEN...")
def rm(tokens: tuple[str, ...], as_json: bool) -> int:
    """Revoke every TOKEN, by its id. Its submitted jobs keep running."""
    in_turn("revoked", tokens, connected(current_home()).revoke_token)
    if as_json:
        print_json({"revoked": tokens})
    else:
        say(f"revoked {', '.join(tokens)}")
    return 0


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
def whoami(as_json: bool) -> int:
    """Show the tenant and the role of the token that commands use here.

    It is POISE_TOKEN, else the content of the file POISE_TOKEN_FILE, else the token of the home, which is admin.
    """
    told = connected(current_home()).whoami()
    if as_json:
        print_json(told)
        return 0
    which = f"{told.token}{f' {told.name}' if told.name else ''}" if told.token else "the token of the home"
    account = f", commands run as {told.account}" if told.account else ""
    click.echo(f"{told.role} of {told.tenant}, by {which}{account}")
    return 0


@click.command()
@click.option("--after", type=Whole(), default=0, metavar="REVISION", help="Only events after this revision.")
@click.option("--refused", is_flag=True, help="List refused requests since the start of the control plane instead.")
@output.rows
def audit(after: int, refused: bool, form: str, watch: bool) -> int:
    """List changes and who made them, from the log: submissions, cancellations, drained nodes, quotas, tokens,
    shutdowns.
    """
    client = connected(current_home())
    if refused:
        return output.show(lambda: _refused_shown(client.refusals()), form, watch)
    return output.show(lambda: _audit_shown(client.audit(after=after)), form, watch)


def _audit_shown(records: Iterable[bytes]) -> Shown:
    found = [json_decoder(AuditReport).decode(record) for record in records]
    return Shown(
        found,
        [str(of.revision) for of in found],
        [
            Column("REVISION", [str(of.revision) for of in found], right=True),
            Column("WHEN", [f"{ago(of.at)} ago" for of in found], moving=True),
            Column("WHO", [_who(of) for of in found]),
            Column("TENANT", [of.tenant or "-" for of in found]),
            Column("WHAT", [of.what for of in found]),
        ],
        nothing="poise: nobody has changed anything yet",
    )


def _refused_shown(told: RefusalsReport) -> Shown:
    latest = told.latest
    return Shown(
        told,
        [of.code for of in latest],
        [
            Column("WHEN", [f"{ago(of.at)} ago" for of in latest], moving=True),
            Column("CODE", [of.code for of in latest]),
            Column("TOKEN", [of.token or "-" for of in latest]),
            Column("TENANT", [of.tenant or "-" for of in latest]),
            Column("PATH", [of.path for of in latest]),
        ],
        notes=[", ".join(f"{code}: {count}" for code, count in told.counts.items())] if told.counts else [],
        nothing="poise: nothing was refused since the control plane started",
    )


def _who(of: AuditReport) -> str:
    return f"{of.token}{f' {of.name}' if of.name else ''}" if of.token else "home"


def _lasts(of: TokenReport) -> str:
    if of.revoked:
        return "revoked"
    if of.expired:
        return "expired"
    return f"in {format_duration(int((of.expires - time.time()) * SECOND))}" if of.expires else "never"
