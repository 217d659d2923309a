"""`poise service`."""

import time
from functools import partial
from pathlib import Path
from typing import TypeVar

import click
import msgspec
import yaml

from poise.cli import output
from poise.cli.output import Column, Shown
from poise.cli.render import ago, print_json, say
from poise.client import current_home
from poise.config import Home
from poise.control.start import user_name
from poise.decoding import json_decoder
from poise.drivers.gateways import ask_admin, gateway_files
from poise.drivers.yamlfile import is_kind
from poise.errors import Conflict, InputError, NotFound
from poise.model.document import near, some
from poise_serve.cli.documents import (
    CONFIG,
    Reader,
    Source,
    at_its_place,
    of_file,
    raise_together,
    readers,
    some_of,
)
from poise_serve.cli.serve import compiled
from poise_serve.model.changes import UPSTREAMS, Applied, Apply, Document, GatewayReport, Named

LOOK_EVERY = 0.2
"""Seconds between two looks at a change that goes on."""

T = TypeVar("T")

GATEWAY = click.option(
    "--gateway", metavar="MARK|PORT", default="", help="The gateway to change, if several run. [default: the only one]"
)
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")


@click.group()
def service() -> None:
    """Change a running gateway (`poise serve`) without a restart. It answers the requests that it has accepted. It
    keeps the changes when it starts again with the same files.
    """


@service.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE | FOLDER...")
@click.option("--check", is_flag=True, help="Print what would change, and change nothing.")
@click.option("--no-wait", is_flag=True, help="Return before new versions of services are ready.")
@GATEWAY
@AS_JSON
def apply(files: tuple[Path, ...], check: bool, no_wait: bool, gateway: str, as_json: bool) -> int:
    """Change a service, or the upstreams, to what FILE says. A service that the gateway does not have is added; others
    stay. A new version of a model starts beside the old one. FOLDER holds a model, or several. A mistake in one
    does not stop the others from being applied.
    """
    found, errors = some_of([partial(_compiled, read) for file in files for read in _readers(file)])
    if not found or not any(file.is_dir() for file in files):
        raise_together(errors)
    documents = [one.document for sources in found for one in sources]
    models = tuple(sources[0].document["name"] for sources in found if _is_of_folder(sources[0]))
    asked = Gateway(gateway)
    told = asked.ask("apply", Apply(documents, check, models), Applied)
    failed = [] if check or no_wait else asked.wait(told)
    if failed:
        what = "a version could not start; the old one stays"
        errors.append(Conflict(what, have="; ".join(failed), hint="`poise logs JOB`"))
    elif not (errors and as_json):
        _tell(told, as_json, "would change" if check else "changed")
    raise_together(errors)
    return 0


@service.command("list")
@GATEWAY
@output.rows
def list_(gateway: str, form: str, watch: bool) -> int:
    """List the upstreams and the versions of services of a gateway, with their states."""
    asked = Gateway(gateway)
    return output.show(lambda: _listed(asked.report()), form, watch)


@service.command()
@click.argument("name", required=False, default="")
@GATEWAY
@AS_JSON
def show(name: str, gateway: str, as_json: bool) -> int:
    """Show the configuration of a gateway, or of the service NAME, with its past changes."""
    asked = Gateway(gateway)
    told = asked.report()
    documents = _chosen(told.documents, name)
    if as_json:
        print_json(msgspec.structs.replace(told, documents=documents))
        return 0
    for document in documents.values():
        click.echo(yaml.safe_dump(document, sort_keys=False, allow_unicode=True).rstrip())
        click.echo("---")
    for upstream in told.drained:
        click.echo(f"drained: {upstream}")
    for past in told.history:
        for change in past.changes:
            click.echo(f"{ago(past.at)} ago  {past.by}  {change}")
    return 0


@service.command()
@click.argument("name")
@click.option("--undo", is_flag=True, help="Send the upstream requests again.")
@GATEWAY
@AS_JSON
def drain(name: str, undo: bool, gateway: str, as_json: bool) -> int:
    """Send NAME, an upstream, no more requests; those that it has are answered. NAME may also be the job of a replica
    (`poise service list`), which ends after its batch; another one is started.
    """
    asked = Gateway(gateway)
    told = asked.ask("drain", Named(name, undo), Applied)
    _tell(told, as_json, "changed")
    return 0


@service.command()
@click.argument("name")
@GATEWAY
@AS_JSON
def remove(name: str, gateway: str, as_json: bool) -> int:
    """Remove NAME, a service or an upstream, from a gateway. Its accepted requests are answered."""
    asked = Gateway(gateway)
    told = asked.ask("remove", Named(name), Applied)
    _tell(told, as_json, "changed")
    return 0


@service.command()
@GATEWAY
@AS_JSON
def undo(gateway: str, as_json: bool) -> int:
    """Restore the configuration before the latest change of a gateway. Call it again for the change before."""
    asked = Gateway(gateway)
    told = asked.ask("undo", None, Applied)
    asked.wait(told)
    _tell(told, as_json, "undone")
    return 0


@service.command()
@click.argument("name")
@GATEWAY
@AS_JSON
def promote(name: str, gateway: str, as_json: bool) -> int:
    """Promote the canary of the service NAME: it answers all requests from now on."""
    return _end_trial("promote", name, gateway, as_json)


@service.command()
@click.argument("name")
@GATEWAY
@AS_JSON
def rollback(name: str, gateway: str, as_json: bool) -> int:
    """Stop the canary of the service NAME: it gets no more requests."""
    return _end_trial("rollback", name, gateway, as_json)


class Gateway:
    """The admin API of a running gateway of this home, or of all gateways at one address (`poise serve --gateways`)."""

    def __init__(self, named: str) -> None:
        """`named`: its mark or its port; empty for the only one. Raises `InputError`."""
        self._home = current_home()
        self._marks = _marks(self._home, named)
        self._user = user_name()

    def ask(self, name: str, asked: object, of: type[T]) -> T:
        """Send a request to all of them; return the answer of the first."""
        told = [ask_admin(self._home.services, mark, name, asked, self._user) for mark in self._marks]
        return json_decoder(of).decode(told[0])

    def report(self) -> GatewayReport:
        return self.ask("", None, GatewayReport)

    def wait(self, told: Applied) -> list[str]:
        """Wait until no change goes on. Returns the changes that failed."""
        while told.pending:
            states = self.report().changes
            going_on = [name for name in told.pending if states.get(name) == "in progress"]
            if not going_on:
                return [f"{name}: {states[name]}" for name in told.pending if states.get(name, "").startswith("failed")]
            time.sleep(LOOK_EVERY)
        return []


def _marks(home: Home, named: str) -> list[str]:
    """Return the gateway of this mark, or those of this port; without a name, those of the only port."""
    records = gateway_files(home.services)
    ports = {record.stem: _port(record) for record in records}
    found = [mark for mark, port in ports.items() if not named or named in (mark, port)]
    if found and (named or len({ports[mark] for mark in found}) == 1):
        return found
    known = [f"{mark} (port {port})" for mark, port in ports.items()]
    if not known:
        raise NotFound("no gateway runs in this home", field="--gateway", hint="`poise serve app.py:Model` starts one")
    what = f"there is no gateway `{named[:40]}`" if named else "several gateways run"
    hint = f"--gateway {next(iter(ports.values()))}"
    raise (NotFound if named else InputError)(what, field="--gateway", have=some(known, 12), hint=hint)


def _port(record: Path) -> str:
    try:
        return str(msgspec.json.decode(record.read_bytes())["port"])
    except (OSError, msgspec.DecodeError, KeyError, TypeError):
        return ""


def _readers(file: Path) -> list[Reader]:
    if file.is_dir():
        return readers([str(file)], {})
    if is_kind(file, "keys"):
        hint = f"edit the file of `poise serve --keys`: it is read again within a second, `cp {file} FILE`"
        raise InputError("keys are not applied", field=str(file), hint=hint)
    return [partial(of_file, file, {})]


def _compiled(read: Reader) -> list[Source]:
    """Return what is read, after a check of all of it. Raises `SpecError`."""
    found = read()
    for one in found:
        at_its_place(one, compiled)
    return found


def _is_of_folder(source: Source) -> bool:
    return source.file is not None and source.file.name == CONFIG and source.document.get("kind") != UPSTREAMS


def _tell(told: Applied, as_json: bool, done: str) -> None:
    if as_json:
        print_json(told)
        return
    for change in told.changes:
        click.echo(str(change))
    say(f"poise: {len(told.changes)} {done}" if told.changes else "poise: nothing to change")


def _end_trial(what: str, name: str, gateway: str, as_json: bool) -> int:
    asked = Gateway(gateway)
    asked.ask(what, Named(name), dict[str, str])
    if as_json:
        print_json({"service": name, "outcome": "promoted" if what == "promote" else "rolled back"})
    else:
        say(f"poise: the canary of {name} is {'promoted' if what == 'promote' else 'rolled back'}")
    return 0


def _chosen(documents: dict[str, Document], name: str) -> dict[str, Document]:
    """Return the documents to show. Raises `NotFound`."""
    found = {key: one for key, one in documents.items() if not name or name in (key, key.removeprefix("service "))}
    if not found:
        known = [key.removeprefix("service ") for key in documents]
        what = f"the gateway has no `{name[:80]}`"
        raise NotFound(
            what, field="name", have=some(known, 12) or "nothing", hint=near(name, known) or "poise service show"
        )
    return found


def _listed(told: GatewayReport) -> Shown:
    upstreams, services = told.upstreams, told.services
    return Shown(
        told,
        [*(one.name for one in upstreams), *(one.version for one in services)],
        [
            Column("NAME", [*(one.name for one in upstreams), *(one.version for one in services)]),
            Column("KIND", [*("upstream" for _ in upstreams), *("service" for _ in services)]),
            Column("STATE", [*(one.state for one in upstreams), *(_state(one.replicas) for one in services)]),
            Column(
                "RUNNING", [*(f"{one.running}/{one.limit}" for one in upstreams), *("-" for _ in services)], moving=True
            ),
            Column("HELD", [*(str(one.held) for one in upstreams), *(str(one.held) for one in services)], moving=True),
            Column("TIER", [*(str(one.tier) for one in upstreams), *("-" for _ in services)]),
            Column("MODELS", [*(some(one.models, 4) for one in upstreams), *(one.model for one in services)]),
            Column("JOBS", [*("-" for _ in upstreams), *(", ".join(one.jobs) or "-" for one in services)]),
            Column(
                "CHANGE",
                [*("" for _ in upstreams), *(told.changes.get(one.service, "") for one in services)],
                bare=True,
                moving=True,
            ),
        ],
        nothing="poise: this gateway has no upstreams and no services; `poise service apply FILE` adds some",
    )


def _state(replicas: int) -> str:
    return f"{replicas} ready" if replicas else "starting"


__all__ = ["service"]
