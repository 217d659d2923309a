"""`poise submit FILE.yaml`, `poise submit SCRIPT` and `poise submit -- COMMAND`."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec

from poise.cli.asking import Asking, asked, asking, is_script, merged, note_units, note_unused, told_as_flags
from poise.cli.deadlines import forecast_of, has_deadline
from poise.cli.numbers import WholeRange
from poise.cli.render import print_json, say, tell
from poise.cli.secrets import absolute, with_values
from poise.client import current_home
from poise.control import start
from poise.control.start import user_name
from poise.errors import Place, PoiseError, SpecError, located
from poise.model.document import above

FILE_ENDINGS = (".yaml", ".yml", ".json")
"""JSON is a subset of YAML."""


@click.command(cls=Asking, context_settings={"allow_interspersed_args": True})
@asking
@click.option(
    "--if-revision",
    type=WholeRange(min=0),
    metavar="N",
    help="Submit only if nothing has changed since revision N from `poise plan`.",
)
@click.option(
    "--via",
    metavar="NAME",
    help="Hand the command to another scheduler as one job of yours, and print its id there. Poise does not run it. "
    "[e.g. slurm]",
)
@click.option("-q", "--quiet", is_flag=True, help="Print the id and nothing else; do not forecast a deadline.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
@click.argument("source", nargs=-1, required=True, metavar="FILE.yaml | SCRIPT | -- COMMAND...")
def submit(
    source: tuple[str, ...], if_revision: int | None, via: str | None, quiet: bool, as_json: bool, **flags: Any
) -> int:
    """Submit a job or graph from FILE.yaml, a SCRIPT (.sh, .bash, .py), or a command after `--`, print its id, and
    return.

    If no control plane runs, Poise checks the file first and then starts one, which ends when no job is left. With
    --every or --cron, Poise makes a schedule and prints its id: see `poise schedules`. The command gets only declared
    environment variables; a value of `null` copies the variable from this shell. Paths are relative to the file's
    folder. A script declares its requirements in `#POISE` lines at its head. Flags override both.
    """
    spec, place = asked_for(source, flags, for_slurm=via is not None)
    if via is not None:
        with told_as_flags(flags), located(place):
            return _hand_over(via, source, spec, quiet, as_json)
    with told_as_flags(flags), located(place):
        spec = with_values(spec, dict(os.environ))
        client, job = start.submit(
            current_home(), spec, user=user_name(), say=None if quiet else tell, if_revision=if_revision
        )
    if spec.get("every") is not None or spec.get("cron"):
        return _told_of_schedule(job, quiet, as_json)
    looks = has_deadline(spec) and not quiet
    if as_json:
        print_json({"job": job} | ({"deadline": forecast_of(client, job)} if looks else {}))
        return 0
    click.echo(job)
    if not quiet:
        say(f"poise: status: `poise show {job}`, output: `poise logs -f {job}`")
    if looks and (told := forecast_of(client, job)) is not None:
        tell(told.sentence())
    return 0


def _hand_over(via: str, source: Sequence[str], spec: dict[str, Any], quiet: bool, as_json: bool) -> int:
    import time

    from poise.drivers.substrates import handing_of  # here and below: commands need none of it
    from poise.model.spec import compile_spec

    script = Path(source[0]).read_text() if is_script(source[0]) else ""
    try:
        handed = handing_of(via)(spec, compile_spec(spec, wall=time.time()), script)
    except PoiseError as error:
        if error.record.field == "--on":  # the name of the flag in `poise up`
            error.record = msgspec.structs.replace(error.record, field="--via")
        raise
    if as_json:
        print_json(handed._asdict())
        return 0
    click.echo(handed.job)
    if not quiet:
        expected = f"in partition {handed.partition} on {handed.nodes}, at {handed.starts}"
        say(f"poise: expected to start {expected}" if handed.starts else f"poise: `{via}` does not say when it starts")
        say(f"poise: status: `{handed.status}`; Poise keeps nothing of it")
    return 0


def _told_of_schedule(schedule: str, quiet: bool, as_json: bool) -> int:
    if as_json:
        print_json({"schedule": schedule})
        return 0
    click.echo(schedule)
    if not quiet:
        say(f"poise: its jobs: `poise schedules`; to end it: `poise schedules rm {schedule}`")
    return 0


class Asked(NamedTuple):
    """A requested job, and the places of its fields."""

    spec: dict[str, Any]
    place: Place


def asked_for(source: Sequence[str], flags: dict[str, Any], *, for_slurm: bool = False) -> Asked:
    """Return the job that a file, a script or a command, and flags describe. With `for_slurm`, `#SBATCH` lines are left
    to Slurm.
    """
    asked_for = _asked_for(source, flags, for_slurm)
    note_units(asked_for.spec)
    return asked_for


def _asked_for(source: Sequence[str], flags: dict[str, Any], for_slurm: bool) -> Asked:
    environ = dict(os.environ)
    own = asked(flags, environ)
    if len(source) == 1 and source[0].endswith(FILE_ENDINGS):
        from poise.drivers.yamlfile import place_in_file  # here and below: commands need no YAML

        path = Path(source[0])
        return Asked(merged(read_spec(path, environ), own), _but_for(own, place_in_file(path)))
    if is_script(source[0]):
        from poise.cli.directives import read_script

        script = read_script(Path(source[0]), environ, own, for_slurm=for_slurm)
        spec = merged(script.spec, own) | {"run": [*script.command, *source[1:]], "folder": str(Path.cwd())}
        return Asked(spec, _but_for(own, script.place))
    if len(source) == 1 and Path(source[0]).is_file() and not os.access(source[0], os.X_OK):
        what = "a file to submit ends in .yaml, .yml, .json, .sh, .bash or .py"
        raise SpecError(what, field=source[0], hint=f"`mv {source[0]} {source[0]}.yaml`, then submit that")
    spec = own | {"run": list(source), "folder": str(Path.cwd())}
    note_unused(spec)
    return Asked(spec, lambda field: "")


def _but_for(own: dict[str, Any], place: Place) -> Place:
    """Return the places of fields, except of those that a flag sets."""
    inner = [name for name in ("env", "resources", "secrets", "deadline") if isinstance(own.get(name), dict)]
    said = {f"{name}.{one}" for name in inner for one in own[name]} | {name for name in own if name not in inner}
    return lambda field: "" if not said.isdisjoint((field, *above(field))) else place(field)


def read_spec(path: Path, environ: dict[str, str]) -> dict[str, Any]:
    """Return a file's job, with an absolute folder and with the declared variables from the environment."""
    from poise.drivers.yamlfile import load_kind

    spec = load_kind(path, "job")
    if not isinstance(spec, dict):
        raise SpecError("the file holds no job", code="E101", field=str(path), need="a mapping", hint="run: echo hello")
    folder = spec.get("folder")
    if folder is None or (isinstance(folder, str) and "\0" not in folder):
        spec["folder"] = str((path.resolve().parent / (folder or ".")).resolve())
    fill_in(spec.get("env"), environ)
    tasks = spec.get("tasks")
    for task in tasks.values() if isinstance(tasks, dict) else ():
        fill_in(task.get("env") if isinstance(task, dict) else None, environ)
    return absolute(spec, path.resolve().parent)


def fill_in(env: Any, environ: dict[str, str]) -> None:
    """Fill variables without a value from the environment."""
    if isinstance(env, dict):
        env.update({name: environ[name] for name, value in env.items() if value is None and name in environ})
