"""`poise`: finds the command, runs it, and turns errors into text, JSON and exit codes.

Commands are imported when they are used: `poise --help` costs little more than starting Python.
Data goes to stdout, talk to stderr. Exit codes: 0 done, 1 your input, 2 our fault; `run` and `wait` give the command's own
code, or 125 when Poise itself fails.
"""

import importlib
import sys
from typing import Any

import click

COMMANDS = {
    "run": ("poise.cli.run", "Run a command here, now or when there is room, and stream what it writes"),
    "up": ("poise.cli.up", "Start the control plane and the agent of this machine"),
    "down": ("poise.cli.up", "Stop them"),
    "submit": ("poise.cli.submit", "Submit a job or a graph from a file, or a command, and return"),
    "ls": ("poise.cli.jobs", "List jobs"),
    "show": ("poise.cli.jobs", "Show a job: its tasks, where they ran, why they wait"),
    "logs": ("poise.cli.logs", "Print what a job wrote"),
    "wait": ("poise.cli.jobs", "Wait until jobs are over"),
    "cancel": ("poise.cli.jobs", "Cancel jobs"),
    "nodes": ("poise.cli.nodes", "List nodes and what is taken on them"),
    "drain": ("poise.cli.nodes", "Close a node to new work, or open it again"),
    "events": ("poise.cli.events", "Print the log: what happened, and every decision with its reason"),
    "demo": ("poise.cli.demo", "Run a graph of real work, kill things, and compare the results"),
}

OWN_FAILURE = 125
GIVES_CHILD_CODE = frozenset({"run", "wait"})


class Commands(click.Group):
    """Commands by name, imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(COMMANDS[cmd_name][0]), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f"\n\nhint: `poise {near[0]}`" if near else "\n\nhint: `poise --help`"
            raise click.UsageError(f"there is no command `{args[0]}`{hint}")
        return super().resolve_command(ctx, args)


def _print_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        from poise import __version__

        click.echo(f"poise {__version__}")
        ctx.exit()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, callback=_print_version, expose_value=False, is_eager=True, help="Print the version."
)
def poise() -> None:
    """Poise keeps a mixed fleet of accelerators busy, fair and on time.

    Start with `poise run -- COMMAND`; nothing needs to be started first.
    """


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit code (the console script exits with it)."""
    given = sys.argv[1:] if arguments is None else arguments
    name = given[0] if given else ""
    try:
        code = poise.main(given or ["--help"], prog_name="poise", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.Abort:
        return 130
    except click.ClickException as error:
        return _usage_error(error, name, given)
    except BrokenPipeError:
        return _broken_pipe()
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        from poise.cli.render import show_error
        from poise.errors import PoiseError

        if not isinstance(error, PoiseError):
            error = _unexpected(error)
        show_error(error, as_json="--json" in _own(given))
        return OWN_FAILURE if name in GIVES_CHILD_CODE else error.exit_code


def _own(given: list[str]) -> list[str]:
    """The arguments that are ours: those before `--`."""
    return given[: given.index("--")] if "--" in given else given


def _usage_error(error: click.ClickException, name: str, given: list[str]) -> int:
    from poise.cli.render import show_error
    from poise.errors import InputError

    message, _, hint = error.format_message().partition("\n\nhint: ")
    message = (message[:1].lower() + message[1:]).rstrip(".")
    hint = hint or (f"`poise {name} --help`" if name in COMMANDS else "`poise --help`")
    show_error(InputError(message, hint=hint), as_json="--json" in _own(given))
    return OWN_FAILURE if name in GIVES_CHILD_CODE else 1


def _unexpected(error: Exception) -> Any:
    import os
    import traceback

    from poise.errors import Fault

    if os.environ.get("POISE_DEBUG"):
        traceback.print_exception(error)
    return Fault(f"an internal error: {type(error).__name__}: {error}", hint="POISE_DEBUG=1 shows where")


def _broken_pipe() -> int:
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main())
