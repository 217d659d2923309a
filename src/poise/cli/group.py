"""The group of all commands: each is imported when it is used."""

import difflib
import importlib
from typing import Any

import click

from poise.cli.main import COMMANDS, broken_pipe, help_text

_ANOTHER_NAME = {
    "stop": "down",
    "start": "up",
    "ps": "ls",
    "queue": "ls",
    "jobs": "ls",
    "list": "ls",
    "kill": "cancel",
    "describe": "show",
}
"""What other tools call a command of ours."""


class Commands(click.Group):
    """Commands by name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[cmd_name][0])
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def get_help(self, ctx: click.Context) -> str:
        return help_text()

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # click would take it for a failure
            return broken_pipe()

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            other = _ANOTHER_NAME.get(args[0])
            near = [other] if other else difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f"\n\nhint: `poise {near[0]}`" if near else "\n\nhint: `poise --help`"
            raise click.UsageError(f"there is no command `{args[0]}`{hint}")
        return super().resolve_command(ctx, args)


def _print_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        from poise import __version__

        click.echo(f"poise {__version__}")
        ctx.exit()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, callback=_print_version, expose_value=False, is_eager=True)
def poise() -> None:
    """See `help_text`."""
