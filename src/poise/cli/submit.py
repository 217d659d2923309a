"""`poise submit FILE.yaml` and `poise submit -- COMMAND`."""

import os
from pathlib import Path
from typing import Any

import click

from poise.cli.asking import asked, asking
from poise.cli.render import print_json, say, tell
from poise.client import current_home
from poise.control.start import connected, user_name
from poise.drivers.yamlfile import load_kind
from poise.errors import SpecError


@click.command(context_settings={"allow_interspersed_args": True})
@asking
@click.option(
    "--if-revision",
    type=click.IntRange(min=0),
    metavar="N",
    help="Only if nothing has happened since revision N, which `poise plan` told.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
@click.argument("source", nargs=-1, required=True, metavar="FILE.yaml | -- COMMAND...")
def submit(source: tuple[str, ...], if_revision: int | None, as_json: bool, **flags: Any) -> int:
    """Submit a job or graph from FILE.yaml, or a command after `--`, print its id, and return.

    Only what is declared reaches the command: an environment variable with the value `null` is taken from here. Paths
    are relative to the file's folder. Flags override the file.
    """
    spec = asked_for(source, flags)
    job = connected(current_home()).submit(spec, user=user_name(), say=tell, if_revision=if_revision)
    if as_json:
        print_json({"job": job})
    else:
        click.echo(job)
        say(f"poise: `poise show {job}` tells how it goes, `poise logs -f {job}` what it writes")
    return 0


def asked_for(source: tuple[str, ...], flags: dict[str, Any]) -> dict[str, Any]:
    """The job that a file or a command, and flags, ask for."""
    environ = dict(os.environ)
    own = asked(flags, environ)
    if len(source) == 1 and source[0].endswith((".yaml", ".yml")):
        spec = read_spec(Path(source[0]), environ)
        return spec | own | {"env": spec.get("env", {}) | own.get("env", {})}
    if len(source) == 1 and Path(source[0]).is_file() and not os.access(source[0], os.X_OK):
        raise SpecError("a file to submit ends in .yaml", field=source[0], hint=f"`poise submit {source[0]}.yaml`")
    return own | {"run": list(source), "folder": str(Path.cwd())}


def read_spec(path: Path, environ: dict[str, str]) -> dict[str, Any]:
    """A file's job, with its folder made absolute and declared variables taken from the environment."""
    spec = load_kind(path, "job")
    if not isinstance(spec, dict):
        raise SpecError("the file holds no job", code="E101", field=str(path), need="a mapping", hint="run: echo hello")
    folder = spec.get("folder")
    if folder is None or (isinstance(folder, str) and "\0" not in folder):
        spec["folder"] = str((path.resolve().parent / (folder or ".")).resolve())
    _fill(spec.get("env"), environ)
    tasks = spec.get("tasks")
    for task in tasks.values() if isinstance(tasks, dict) else ():
        _fill(task.get("env") if isinstance(task, dict) else None, environ)
    return spec


def _fill(env: Any, environ: dict[str, str]) -> None:
    if isinstance(env, dict):
        env.update({name: environ[name] for name, value in env.items() if value is None and name in environ})
