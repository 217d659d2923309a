"""`poise run -- COMMAND`."""

import contextlib
import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from poise.cli.asking import Asking, asked, asking, is_script, merged, note_units, note_unused, told_as_flags
from poise.cli.deadlines import forecast_of, has_deadline
from poise.cli.gaps import telling_gaps
from poise.cli.main import broken_pipe
from poise.cli.render import NOT_FOUND, over_memory, print_json, progress_text, say, tell
from poise.cli.secrets import with_values
from poise.cli.terminal import (
    PATIENCE,
    Detached,
    Feeding,
    HungUpError,
    Terminal,
    copied,
    terminal_size,
    terminal_variables,
)
from poise.client import Client, current_home
from poise.config import Home
from poise.control.start import kept_environment, submit, user_name
from poise.drivers.giving import Giving, Source, comes_in
from poise.errors import Fault, PoiseError, SpecError, Unreachable, placed

SAY_WHY_AFTER = 1.5
PROGRESS_SECONDS = 1.0

_SHELL = re.compile(r"[\s|&;<>$`*?]")


@click.command(cls=Asking, context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@asking
@click.option("-q", "--quiet", is_flag=True, help="Do not forecast a deadline.")
@click.option("--json", "as_json", is_flag=True, help="Print the finished job as JSON; its output goes to stderr.")
@click.argument("command", nargs=-1, required=True, metavar="[--] COMMAND...")
def run(command: tuple[str, ...], quiet: bool, as_json: bool, **flags: Any) -> int:
    """Run COMMAND when there is room, stream its output, and exit with its exit code.

    Nothing needs to be started first. The command runs in this folder and keeps PATH, HOME, VIRTUAL_ENV, CONDA_* and
    LANG; pass on more with --env NAME. Ctrl-C cancels it, as does a closed output (`| head`). 125 means that Poise
    itself failed, or skipped the job. A script (.sh, .bash, .py) declares its requirements in `#POISE` lines at its
    head. A file or a pipe on standard input is passed on. -it gives the command this terminal; Ctrl-P Ctrl-Q detaches.
    """
    environ = dict(os.environ)
    spec, place = _asked_for(command, asked(flags, environ), environ)
    if spec.get("every") is not None or spec.get("cron"):
        raise click.UsageError("`poise run` runs a command once\n\nhint: `poise submit`, which makes schedules")
    return run_job(spec, flags, place, quiet=quiet, as_json=as_json)


def run_job(
    spec: dict[str, Any],
    flags: dict[str, Any],
    place: Callable[[str], str] = lambda field: "",
    *,
    quiet: bool = False,
    as_json: bool = False,
) -> int:
    """Run a job in this folder, stream its output, and return its exit code. `flags` are those that set its fields, and
    `place` returns the place of a field in a script, for errors.
    """
    environ = dict(os.environ)
    note_units(spec)
    spec["folder"] = str(Path.cwd())
    kept = {name: value for name, value in kept_environment().items() if name not in spec.get("secrets", ())}
    spec["env"] = kept | spec.get("env", {})
    with _as_written(flags, place):
        spec = with_values(spec, environ)
    source = _input(spec, as_json)
    home = current_home()
    with _Interrupts(home, hangs_up=bool(spec.get("tty"))) as interrupts:
        with _as_written(flags, place):
            client, job = submit(home, spec, user=user_name(), say=tell)
        over = threading.Event()
        telling = threading.Thread(target=_say_why, args=(home, job, over), daemon=True)
        telling.start()
        if has_deadline(spec) and not (quiet or as_json):
            threading.Thread(target=_say_chance, args=(home, job, over), daemon=True).start()
        if (spec.get("parts") or spec.get("sweep")) and not (quiet or as_json) and sys.stderr.isatty():
            threading.Thread(target=_draw_progress, args=(home, job, over), daemon=True).start()
        try:
            interrupts.job_is(job)
            with _feeding(home, job, source) if source is not None else contextlib.nullcontext():
                lines = telling_gaps(client.logs(job, follow=True), whole=True)
                code = copied(lines, sys.stderr.buffer if as_json else sys.stdout.buffer, source)
            report = client.job(job)
        except Detached:
            Client(home).give(job)
            say(f"poise: detached from {job}, which runs on: `poise attach {job}`")
            return 0
        except HungUpError:
            with contextlib.suppress(PoiseError):
                if client.job(job).status in ("waiting", "pending", "placed"):
                    client.cancel(job)  # nobody would be present when it runs
                elif not client.give(job, hang_up=True).epoch:
                    client.cancel(job)
            return 128 + signal.SIGHUP
        except BrokenPipeError:  # it would end a local command, too
            say(f"poise: nobody reads the output; cancelling {job}")
            with contextlib.suppress(PoiseError):
                client.cancel(job)
            broken_pipe()
            return 128 + signal.SIGPIPE
        except OSError as error:
            broken_pipe()
            raise Fault(
                f"the output cannot be written here; {job} keeps running",
                have=os.strerror(error.errno or 0),
                hint=f"`poise logs -f {job}`, or `poise cancel {job}`",
            ) from None
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
            if (task.status == "cancelled" or report.status == "skipped") and task.reasons:
                say(f"poise: {task.task} {'; '.join(task.reasons)}")
            elif task.outcome not in ("", "done", "failed") or task.note:
                seen = "; ".join(part for part in (over_memory(task), task.note) if part)
                say(f"poise: {task.task} {task.outcome}{f': {seen}' if seen else ''}")
            elif task.outcome == "failed" and (len(report.tasks) > 1 or report.array is not None):
                tried = ", ".join(f"{name}={value}" for name, value in task.sweep.items())
                say(f"poise: {task.task}{f' ({tried})' if tried else ''} failed with {task.exit_code}")
        if report.array is not None:
            say(f"poise: {progress_text(report)}; `poise results {job}`")
        if code == NOT_FOUND and len(spec["run"]) == 1 and _SHELL.search(spec["run"][0]):
            say(f"poise: to use a shell: `poise run -- sh -c {shlex.quote(spec['run'][0])}`")
    return code


@contextlib.contextmanager
def _as_written(flags: dict[str, Any], place: Callable[[str], str]) -> Iterator[None]:
    """Add the flag, or the line of the script, to errors."""
    try:
        with told_as_flags(flags):
            yield
    except PoiseError as error:
        error.record = placed(error.record, place)
        raise


def _input(spec: dict[str, Any], as_json: bool) -> Source | None:
    """Return the command's input, and adjust the job to it; None: no input. Raises `SpecError`."""
    if spec.get("tty"):
        if as_json:
            raise SpecError("a terminal shows output, not JSON", field="--tty", hint="`--json` without `-t`")
        spec["tty"] = terminal_size()
        spec["env"] = terminal_variables() | spec["env"]
        return Terminal(holds=True)
    if not spec.get("stdin") and not comes_in(0):
        return None
    if not spec.get("stdin") and (spec.get("parts") or spec.get("sweep") or ".." in str(spec.get("workers", ""))):
        say("poise: input is not passed on, because there are several commands")
        return None
    spec["stdin"] = True
    return Giving(0)


def _feeding(home: Home, job: str, source: Source) -> Feeding:
    def failed(error: Exception) -> None:
        say(f"poise: {error}; cancelling {job}")
        with contextlib.suppress(PoiseError):
            Client(home).cancel(job)

    return Feeding(lambda: Client(home, patience=PATIENCE).feed(job, source), source, failed)


def _asked_for(
    command: tuple[str, ...], own: dict[str, Any], environ: dict[str, str]
) -> tuple[dict[str, Any], Callable[[str], str]]:
    """Return the job of a command, or of a script with directives, and the places of its fields."""
    if not is_script(command[0]):
        spec = own | {"run": list(command)}
        note_unused(spec)
        return spec, lambda field: ""
    from poise.cli.directives import read_script

    script = read_script(Path(command[0]), environ, own)
    return merged(script.spec, own) | {"run": [*script.command, *command[1:]]}, script.place


class _Interrupts:
    """Cancels the job, once it exists, on Ctrl-C or SIGTERM; a second signal ends only this command. With a terminal,
    SIGHUP is passed on.
    """

    def __init__(self, home: Home, *, hangs_up: bool) -> None:
        self._home = home
        self._hangs_up = hangs_up
        self._job = ""
        self._wanted = self._hung = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "_Interrupts":
        self._before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        if self._hangs_up:
            self._before[signal.SIGHUP] = signal.signal(signal.SIGHUP, self._on_hangup)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def job_is(self, job: str) -> None:
        self._job = job
        if self._hung:
            raise HungUpError
        if self._wanted:
            self._cancel()

    def _on_hangup(self, *_: Any) -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self._hung = True
        if self._job:
            raise HungUpError

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
    """Print the probability that the deadline is met, unless the job is over by then."""
    told = forecast_of(Client(home, patience=0), job)
    if told is not None and not over.is_set():
        tell(told.sentence())


def _draw_progress(home: Home, job: str, over: threading.Event) -> None:
    """Redraw the progress of an array each second, in the last line of the terminal."""
    client = Client(home, patience=0)
    while not over.wait(PROGRESS_SECONDS):
        with contextlib.suppress(PoiseError, OSError):
            report = client.job(job)
            if report.array is None:
                return
            sys.stderr.write(f"\r\x1b[K{progress_text(report)}")
            sys.stderr.flush()
    sys.stderr.write("\r\x1b[K")
    sys.stderr.flush()


def _say_why(home: Home, job: str, over: threading.Event) -> None:
    """If the command has not started after a moment, print why, once."""
    if over.wait(SAY_WHY_AFTER):
        return
    with contextlib.suppress(PoiseError, OSError):
        report = Client(home, patience=0).job(job)
        reasons = [reason for task in report.tasks for reason in task.reasons]
        if report.status in ("pending", "waiting") and reasons and not over.is_set():
            say(f"poise: {job} waits: {'; '.join(dict.fromkeys(reasons))}")
