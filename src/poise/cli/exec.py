"""`poise exec JOB -- COMMAND`."""

import contextlib
import sys

import click

from poise.cli.numbers import WholeRange
from poise.cli.render import print_json, say
from poise.cli.terminal import Detached, Feeding, Terminal, terminal_size, terminal_variables
from poise.client import Client, current_home
from poise.control.start import connected
from poise.drivers.giving import Giving, Source, comes_in
from poise.errors import SpecError
from poise.model.reports.streams import ExecEnd, ExecOutput, ExecStarted


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("-i", "--interactive", is_flag=True, help="Pass standard input on; a file or a pipe is always passed on.")
@click.option("-t", "--tty", is_flag=True, help="Give the command this terminal.")
@click.option("--rank", type=WholeRange(min=0), metavar="N", help="The member of a gang. [default: 0]")
@click.option(
    "--env", "variables", multiple=True, metavar="NAME=VALUE", help="Set an environment variable. Repeatable."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value: the exit code, and the output.")
@click.argument("job")
@click.argument("command", nargs=-1, required=True, metavar="[--] COMMAND...")
def exec(
    job: str,
    command: tuple[str, ...],
    interactive: bool,
    tty: bool,
    rank: int | None,
    variables: tuple[str, ...],
    as_json: bool,
) -> int:
    """Run COMMAND beside the running JOB (id, name, or JOB.TASK), and exit with its exit code.

    It has the folder, the environment, the cores, the devices and the memory limit of the task, and ends with it. 125
    means that Poise itself failed.
    """
    if command[0] == "--":
        command = command[1:]
    if not command or command[0].startswith("-"):
        hint = f"`poise exec -it {job} -- bash`"
        raise SpecError("flags come before the job, and the command after it", have=" ".join(command), hint=hint)
    size = terminal_size() if tty else ""
    if tty and as_json:
        raise SpecError("a terminal shows output, not JSON", field="--tty", hint="`--json` without `-t`")
    env = (terminal_variables() if tty else {}) | dict(map(_pair, variables))
    source: Source | None = Terminal(holds=False) if tty else Giving(0) if interactive or comes_in(0) else None
    home = current_home()
    lines = connected(home).exec(job, command, rank=rank, env=env, stdin=source is not None, tty=size)
    written = {"out": b"", "err": b""}
    end = ExecEnd(128 + 1, "detached; the command is hung up")
    with contextlib.suppress(Detached), contextlib.ExitStack() as stack:
        for line in stack.enter_context(contextlib.closing(lines)):
            if isinstance(line, ExecStarted) and source is not None:
                stack.enter_context(_feeding(Client(home), line.name, source))
            elif isinstance(line, ExecOutput) and as_json:
                written[line.stream] += line.data
            elif isinstance(line, ExecOutput):
                target = sys.stdout.buffer if line.stream == "out" else sys.stderr.buffer
                if source is not None:
                    source.begun()
                target.write(line.data)
                target.flush()
            elif isinstance(line, ExecEnd):
                end = line
    if as_json:
        texts = {stream: data.decode("utf-8", "replace") for stream, data in written.items()}
        print_json({"exit_code": end.exit_code, "note": end.note, **texts})
    elif end.note:
        say(f"poise: {end.note}")
    return end.exit_code


def _feeding(client: Client, name: str, source: Source) -> Feeding:
    return Feeding(lambda: client.feed_exec(name, source), source, lambda why: say(f"poise: {why}"))


def _pair(said: str) -> tuple[str, str]:
    name, equals, value = said.partition("=")
    if not equals:
        raise SpecError("this is not a variable with a value", field="--env", need="NAME=VALUE", have=said)
    return name, value
