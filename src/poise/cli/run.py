"""`poise run -- COMMAND`."""

import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import click

from poise.cli.asking import asked, asking
from poise.cli.home import current_home, ensure_up
from poise.cli.render import print_json, say
from poise.client import Client
from poise.errors import PoiseError
from poise.model.reports import LogEnd, LogPiece

KEPT = ("PATH", "HOME", "VIRTUAL_ENV", "LANG")
SAY_WHY_AFTER = 1.5


@click.command(context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@asking
@click.option("--json", "as_json", is_flag=True, help="Print the finished job as JSON; what it writes goes to stderr.")
@click.argument("command", nargs=-1, required=True, metavar="[--] COMMAND...")
def run(command: tuple[str, ...], as_json: bool, **flags: Any) -> int:
    """Run COMMAND when there is room, stream what it writes, and end with its exit code.

    Nothing needs to be started first. The command runs in this folder and keeps PATH, HOME, VIRTUAL_ENV, CONDA_* and LANG;
    pass on more with --env NAME. Ctrl-C cancels it. 125 means that Poise itself failed.
    """
    environ = dict(os.environ)
    spec = asked(flags, environ)
    spec["run"] = list(command)
    spec["folder"] = str(Path.cwd())
    kept = {name: value for name, value in environ.items() if name in KEPT or name.startswith("CONDA_")}
    spec["env"] = kept | spec.get("env", {})
    spec.setdefault("retry", {"limit": 3, "when": ["lost"]})
    home = current_home()
    client = ensure_up(home, "--until-idle")
    job = client.submit(spec, user=environ.get("USER", ""))
    with _cancelling(home, job):
        threading.Thread(target=_say_why, args=(home, job), daemon=True).start()
        code = _stream(client, job, sys.stderr.buffer if as_json else sys.stdout.buffer)
    report = client.job(job)
    if as_json:
        print_json(report)
    else:
        for task in report.tasks:
            if task.outcome not in ("", "done", "failed") or task.note:
                say(f"poise: {task.task} {task.outcome}{f': {task.note}' if task.note else ''}")
    return code


def _stream(client: Client, job: str, out: Any) -> int:
    for piece in client.logs(job, follow=True):
        if isinstance(piece, LogPiece):
            target = out if piece.stream == "out" else sys.stderr.buffer
            target.write(piece.data)
            target.flush()
        elif isinstance(piece, LogEnd):
            return 125 if piece.exit_code is None else piece.exit_code
    return 125


@contextlib.contextmanager
def _cancelling(home: Any, job: str) -> Any:
    """Ctrl-C and SIGTERM cancel the job once; the second time this command just ends."""

    def cancel(number: int, _: Any) -> None:
        signal.signal(number, signal.SIG_DFL)
        say(f"poise: cancelling {job}")
        with contextlib.suppress(PoiseError):
            Client(home).cancel(job)

    before = {number: signal.signal(number, cancel) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say_why(home: Any, job: str) -> None:
    """A command that has not started after a moment is told why, once."""
    time.sleep(SAY_WHY_AFTER)
    with contextlib.suppress(PoiseError, OSError):
        report = Client(home, patience=0).job(job)
        reasons = [reason for task in report.tasks for reason in task.reasons]
        if report.status in ("pending", "waiting") and reasons:
            say(f"poise: {job} waits: {'; '.join(dict.fromkeys(reasons))}")
