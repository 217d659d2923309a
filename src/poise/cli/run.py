"""`poise run -- COMMAND`."""

import contextlib
import os
import re
import secrets
import shlex
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from poise.cli.asking import asked, asking, is_script, merged, note_units, note_unused, told_as_flags
from poise.cli.deadlines import forecast_of, has_deadline
from poise.cli.render import NOT_FOUND, over_memory, print_json, say, tell
from poise.client import Client, current_home
from poise.config import Home
from poise.control.start import ensure_up, kept_environment, user_name
from poise.errors import PoiseError, Unreachable, placed
from poise.model.reports import LogEnd, LogPiece

SAY_WHY_AFTER = 1.5
SUBMIT_ATTEMPTS = 3

_SHELL = re.compile(r"[\s|&;<>$`*?]")


@click.command(context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@asking
@click.option("-q", "--quiet", is_flag=True, help="Do not forecast a deadline.")
@click.option("--json", "as_json", is_flag=True, help="Print the finished job as JSON; what it writes goes to stderr.")
@click.argument("command", nargs=-1, required=True, metavar="[--] COMMAND...")
def run(command: tuple[str, ...], quiet: bool, as_json: bool, **flags: Any) -> int:
    """Run COMMAND when there is room, stream what it writes, and end with its exit code.

    Nothing needs to be started first. The command runs in this folder and keeps PATH, HOME, VIRTUAL_ENV, CONDA_* and
    LANG; pass on more with --env NAME. Ctrl-C cancels it. 125 means that Poise itself failed. A script (.sh, .bash,
    .py) says what it needs in `#POISE` lines at its head.
    """
    environ = dict(os.environ)
    spec, place = _asked_for(command, asked(flags, environ), environ)
    note_units(spec)
    spec["folder"] = str(Path.cwd())
    spec["env"] = kept_environment() | spec.get("env", {})
    home = current_home()
    with _Interrupts(home) as interrupts:
        try:
            with told_as_flags(flags):
                client, job = _submit(home, spec, user_name())
        except PoiseError as error:
            error.record = placed(error.record, place)
            raise
        interrupts.job_is(job)
        over = threading.Event()
        telling = threading.Thread(target=_say_why, args=(home, job, over), daemon=True)
        telling.start()
        if has_deadline(spec) and not (quiet or as_json):
            threading.Thread(target=_say_chance, args=(home, job, over), daemon=True).start()
        try:
            code = _stream(client, job, sys.stderr.buffer if as_json else sys.stdout.buffer)
            report = client.job(job)
        except Unreachable as error:
            raise Unreachable(
                f"the control plane has ended; {job} keeps running",
                have=error.record.have,
                hint=f"`poise up`, then `poise logs -f {job}`",
            ) from None
        finally:
            over.set()
            telling.join(1)
    if as_json:
        print_json(report)
    else:
        for task in report.tasks:
            if task.status == "cancelled" and task.reasons:
                say(f"poise: {task.task} {'; '.join(task.reasons)}")
            elif task.outcome not in ("", "done", "failed") or task.note:
                seen = "; ".join(part for part in (over_memory(task), task.note) if part)
                say(f"poise: {task.task} {task.outcome}{f': {seen}' if seen else ''}")
            elif task.outcome == "failed" and len(report.tasks) > 1:
                tried = ", ".join(f"{name}={value}" for name, value in task.sweep.items())
                say(f"poise: {task.task}{f' ({tried})' if tried else ''} failed with {task.exit_code}")
        if code == NOT_FOUND and len(command) == 1 and _SHELL.search(command[0]):
            say(f"poise: a shell would read it: `poise run -- sh -c {shlex.quote(command[0])}`")
    return code


def _asked_for(
    command: tuple[str, ...], own: dict[str, Any], environ: dict[str, str]
) -> tuple[dict[str, Any], Callable[[str], str]]:
    """The job of a command, or of a script with directives, and where its fields were written."""
    if not is_script(command[0]):
        spec = own | {"run": list(command)}
        note_unused(spec)
        return spec, lambda field: ""
    from poise.cli.directives import read_script

    script = read_script(Path(command[0]), environ, own)
    return merged(script.spec, own) | {"run": [*script.command, *command[1:]]}, script.place


def _submit(home: Home, spec: dict[str, Any], user: str) -> tuple[Client, str]:
    """Submitted once, however often it takes: a control plane that was about to leave is started again."""
    key = secrets.token_hex(8)
    for left in range(SUBMIT_ATTEMPTS, 0, -1):
        client = ensure_up(home, "--until-idle")
        try:
            return client, client.submit(spec, key=key, user=user, say=tell)
        except Unreachable:
            if left == 1:
                raise
    raise AssertionError("unreachable")


def _stream(client: Client, job: str, out: Any) -> int:
    """Copies what the job writes, and says where another attempt begins. Returns the exit code."""
    attempts: dict[str, int] = {}
    for piece in client.logs(job, follow=True):
        if isinstance(piece, LogPiece):
            if piece.epoch > attempts.get(piece.task, piece.epoch):
                say(f"poise: {piece.task} starts again, attempt {piece.epoch}")
            attempts[piece.task] = max(piece.epoch, attempts.get(piece.task, 0))
            target = out if piece.stream == "out" else sys.stderr.buffer
            target.write(piece.data)
            target.flush()
        elif isinstance(piece, LogEnd):
            return 125 if piece.exit_code is None else piece.exit_code
    return 125


class _Interrupts:
    """Ctrl-C and SIGTERM cancel the job, once there is one; the second time this command just ends."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._job = ""
        self._wanted = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "_Interrupts":
        self._before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def job_is(self, job: str) -> None:
        self._job = job
        if self._wanted:
            self._cancel()

    def _on_signal(self, number: int, _: Any) -> None:
        signal.signal(number, signal.SIG_DFL)
        self._wanted = True
        if self._job:
            self._cancel()

    def _cancel(self) -> None:
        say(f"poise: cancelling {self._job}")
        with contextlib.suppress(PoiseError):  # it may be over by now
            Client(self._home).cancel(self._job)


def _say_chance(home: Home, job: str, over: threading.Event) -> None:
    """How likely the deadline is met, unless the job is over by then."""
    told = forecast_of(Client(home, patience=0), job)
    if told is not None and not over.is_set():
        tell(told.sentence())


def _say_why(home: Home, job: str, over: threading.Event) -> None:
    """A command that has not started after a moment is told why, once."""
    if over.wait(SAY_WHY_AFTER):
        return
    with contextlib.suppress(PoiseError, OSError):
        report = Client(home, patience=0).job(job)
        reasons = [reason for task in report.tasks for reason in task.reasons]
        if report.status in ("pending", "waiting") and reasons and not over.is_set():
            say(f"poise: {job} waits: {'; '.join(dict.fromkeys(reasons))}")
