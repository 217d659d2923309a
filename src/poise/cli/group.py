"""The group of all commands; each is imported when it is used."""

import contextlib
import importlib
import re
from typing import Any

import click

from poise.cli.main import COMMANDS, broken_pipe, help_text
from poise.errors import DISTRIBUTION

_ANOTHER_NAME = {
    name: ours
    for ours, names in {
        "cancel": "stop kill scancel delete del terminate abort qdel bkill",
        "ls": "ps queue squeue sacct jobs list qstat bjobs",
        "show": "describe inspect scontrol info job",
        "run": "srun",
        "shell": "salloc sinteractive bash sh jupyter notebook interactive",
        "get": "cp scp download pull rsync sbcast sgather",
        "submit": "sbatch apply create qsub bsub",
        "logs": "log tail output",
        "rm": "remove prune",
        "schedules": "cron crontab scrontab cronjob schedule",
        "nodes": "sinfo node hosts",
        "drain": "cordon",
        "drain NODE --undo": "uncordon undrain",
        "hold": "suspend pause",
        "release": "resume unsuspend unpause",
        "retry": "requeue rerun restart",
        "set": "update modify alter scontrol-update edit patch",
        "top": "stats",
        "up": "start",
        "services": "endpoints deployments svc",
    }.items()
    for name in names.split()
}
"""Verbs of Slurm, Kubernetes, Docker, PBS and LSF, with our equivalents."""

UNINSTALL = f"`poise down`, then `pip uninstall {DISTRIBUTION}`; docs/how-to/install.md has the other steps"

_FUNCTIONS = {"set": "set_"}
"""Commands whose name is a Python builtin, with their functions."""

_DESTRUCTIVE = ("cancel", "drain")
_TYPING_ERROR = 0.8
"""Minimum similarity to suggest a destructive command; `cancle` and `cancel` have 0.83."""

_ALIKE = 0.75
"""Minimum similarity to suggest another command; `shwo` and `show` have 0.75, `shutdown` and `show` 0.67."""

_A_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\[\]-]*")


class Commands(click.Group):
    """The commands by name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[cmd_name][0])
        command: click.Command = getattr(module, _FUNCTIONS.get(cmd_name, cmd_name.replace("-", "_")))
        return command

    def get_help(self, ctx: click.Context) -> str:
        return help_text()

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # click would report it as a failure
            return broken_pipe()

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            hint = UNINSTALL if args[0] == "uninstall" else f"`poise {_meant(*args)}`"
            raise click.UsageError(f"there is no command `{args[0]}`\n\nhint: {hint}")
        return super().resolve_command(ctx, args)


def _meant(word: str, *others: str) -> str:
    """Return the command to suggest for an unknown word."""
    other = _ANOTHER_NAME.get(word)
    if other is None:
        import difflib  # seldom needed

        harmless = [name for name in COMMANDS if name not in ("down", "rm", *_DESTRUCTIVE)]
        near = difflib.get_close_matches(word, _DESTRUCTIVE, n=1, cutoff=_TYPING_ERROR)
        near += difflib.get_close_matches(word, harmless, n=1, cutoff=_ALIKE)
        return near[0] if near else "--help"
    if other == "cancel":
        named = all(_A_NAME.fullmatch(one) for one in others)
        return f"cancel {' '.join(others)}" if others and named else "cancel JOB"
    return other


def _print_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        from poise import __version__

        commit = _commit()
        click.echo(f"poise {__version__}{f' (commit {commit})' if commit else ''}")
        ctx.exit()


def _commit() -> str:
    """Return the commit of a development version or of the clone; empty for a release."""
    import subprocess
    from pathlib import Path

    package = Path(__file__).resolve().parent.parent
    with contextlib.suppress(FileNotFoundError):
        return (package / "commit").read_text().strip()
    clone = package.parent.parent
    if not (clone / ".git").exists():
        return ""
    with contextlib.suppress(OSError):
        command = ["git", "-C", str(clone), "describe", "--always", "--dirty", "--abbrev=8", "--exclude", "*"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603
    return ""


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, callback=_print_version, expose_value=False, is_eager=True)
def poise() -> None:
    """See `help_text`."""
