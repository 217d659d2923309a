"""`poise attach JOB`."""

import contextlib
import sys

import click

from poise.cli.numbers import WholeRange
from poise.cli.render import print_json, say
from poise.cli.terminal import PATIENCE, Detached, Feeding, Terminal, copied
from poise.client import Client, current_home
from poise.control.start import connected
from poise.drivers.giving import Giving, Source, comes_in
from poise.model.reports.jobs import JobReport, TaskReport


@click.command()
@click.option("--no-stdin", is_flag=True, help="Send no input; only follow its output.")
@click.option("-n", "--tail", type=WholeRange(min=0), default=0, metavar="N", help="Print the last N lines first.")
@click.option("--json", "as_json", is_flag=True, help="Print the finished job as JSON; its output goes to stderr.")
@click.argument("job")
def attach(job: str, no_stdin: bool, tail: int, as_json: bool) -> int:
    """Follow the new output of the running JOB (id, name, or JOB.TASK), and exit with its exit code. A suspended job is
    resumed. Standard input is sent to a job that was started with -i or -it. Ctrl-P Ctrl-Q, or Ctrl-C for a job without
    a terminal, detaches; the job keeps running. The end of a file or a pipe is the end of the job's input.
    """
    home = current_home()
    client = connected(home)
    report = client.job(job)
    if report.suspended and (waits := client.resume(job)):
        say(f"poise: {report.id} is suspended, and waits for its resources: {'; '.join(waits)}")
    task = None if no_stdin else _takes_input(report)
    source = None if task is None else _source(task)
    try:
        with contextlib.ExitStack() as stack:

            def feed() -> None:
                if task is not None and source is not None:
                    stack.enter_context(_feeding(Client(home, patience=PATIENCE), task.task, source))

            lines = client.logs(job, follow=True, tail=tail, begun=feed)
            code = copied(lines, sys.stderr.buffer if as_json else sys.stdout.buffer, source)
    except Detached:
        say(f"poise: detached from {job}, which runs on: `poise attach {job}`")
        return 0
    if as_json:
        print_json(client.job(job))
    return code


def _takes_input(report: JobReport) -> TaskReport | None:
    """Return the task that takes input, if there is one."""
    tasks = [task for task in report.tasks if task.input and task.exit_code is None]
    if len(tasks) > 1:
        say(f"poise: several tasks accept input; to send input to one: `poise attach {tasks[0].task}`")
    return tasks[0] if len(tasks) == 1 else None


def _source(task: TaskReport) -> Source | None:
    """Return the local source of its input."""
    if sys.stdin is not None and sys.stdin.isatty():
        return Terminal(holds=False) if task.input == "terminal" else Giving(0)
    return Giving(0) if comes_in(0) else None


def _feeding(client: Client, task: str, source: Source) -> Feeding:
    return Feeding(lambda: client.feed(task, source, joins=True), source, lambda why: say(f"poise: {why}"))
