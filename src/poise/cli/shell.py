"""`poise shell`: a terminal, or a notebook server, on a part of a device."""

import contextlib
import json
import os
import secrets
import sys
import threading
import time
from pathlib import Path
from typing import Any

import click

from poise.cli.asking import Asking, asked, asking, note_units, told_as_flags
from poise.cli.forward import MOST_AT_ONCE, listener_on, serve_port
from poise.cli.numbers import WholeRange
from poise.cli.render import print_json, say, tell
from poise.cli.run import run_job
from poise.cli.secrets import with_values
from poise.client import Client, current_home
from poise.config import Home
from poise.control.start import UNTIL_IDLE, ensure_up, kept_environment, submit, user_name
from poise.errors import InputError, PoiseError, SpecError
from poise.model.reports.jobs import JobReport
from poise.model.reports.streams import ExecEnd, ExecOutput
from poise.units import format_duration

SHARE = 0.5
"""Part of a device that a session gets by default: enough for most editing and trying."""

DEFAULTS = {"idle": "30m", "time-limit": "8h", "priority": "high", "class": "shell"}

SHELL = ["/bin/sh", "-c", "command -v bash > /dev/null && exec bash -i; exec sh -i"]

JUPYTER = """
flags="--no-browser --ip=127.0.0.1"
[ "$(id -u)" = 0 ] && flags="$flags --allow-root"
for kind in lab notebook server; do command -v jupyter-$kind > /dev/null && exec jupyter-$kind $flags; done
echo "poise: jupyter is not in the PATH of the node" >&2
exit 127
"""
"""Runs the first of the user's own servers that is installed. Its token comes from JUPYTER_TOKEN."""

TOKEN = "JUPYTER_TOKEN"  # noqa: S105 — the name of a variable
ASK_SECONDS, POLL_SECONDS = 0.3, 2.0
NOT_FOUND = 127


@click.command(cls=Asking, context_settings={"allow_interspersed_args": False})
@asking
@click.option(
    "-g", "--gpu", metavar="N", help="Number of devices: a part of one, such as 0.25, or a whole number. [default: 0.5]"
)
@click.option("--jupyter", is_flag=True, help="Start a Jupyter server instead of a shell, and print its link.")
@click.option("--port", type=WholeRange(min=0), default=0, help="Port of this machine for --jupyter. [default: any]")
@click.option("--json", "as_json", is_flag=True, help="With --jupyter, print the job and the link as one JSON value.")
@click.argument("command", nargs=-1, metavar="[[--] COMMAND...]")
def shell(command: tuple[str, ...], gpu: str | None, jupyter: bool, port: int, as_json: bool, **flags: Any) -> int:
    """Open a terminal on a node, on half of a device if the fleet has any, and end it when you leave.

    It runs your shell, or COMMAND. It is suspended after 30 minutes without use, and ends after 8 hours. Change
    these limits with --idle and --time-limit. Ctrl-P Ctrl-Q detaches; `poise attach` returns to it.

    With --jupyter it starts a Jupyter server instead, and prints a link that works on this machine. Jupyter must be
    installed on the node, or in your virtual environment if the node sees it. Ctrl-C ends the session.
    """
    if command[:1] == ("--",):
        command = command[1:]
    if jupyter and command:
        raise SpecError("a session runs Jupyter or a command", field="--jupyter", have=" ".join(command))
    if as_json and not jupyter:
        raise SpecError("a terminal shows output, not JSON", field="--json", hint="`poise shell --jupyter --json`")
    home = current_home()
    spec = DEFAULTS | asked(flags, dict(os.environ))
    resources = dict(spec.get("resources", {})) | _devices(home, gpu, spec.get("resources", {}))
    spec["resources"] = resources
    if jupyter:
        return _serve(home, spec | {"run": ["/bin/sh", "-c", JUPYTER]}, flags, port, as_json=as_json)
    return run_job(spec | {"run": list(command) or SHELL, "tty": True, "stdin": True}, flags | {"gpu": gpu})


def _devices(home: Home, gpu: str | None, own: dict[str, Any]) -> dict[str, Any]:
    """Return the devices that a session asks for: as given, else a part of one if the fleet has any of that kind."""
    if gpu is None:
        if "gpu_share" in own or "gpu_memory" in own:
            return {"gpu": 1}
        kind = own.get("gpu_kind", "gpu")
        nodes = ensure_up(home, UNTIL_IDLE).nodes()
        there = any(device.kind == kind and not device.cordoned for node in nodes for device in node.devices)
        return {"gpu": 1, "gpu_share": SHARE} if there else {}
    try:
        number = float(gpu)
    except ValueError:
        number = -1.0
    if number < 0 or (number > 1 and number != int(number)):
        need, hint = "a part of a device, or whole ones", "-g 0.25, or -g 2"
        raise SpecError("this is not a number of devices", field="--gpu", need=need, have=gpu, hint=hint)
    return {"gpu": 1, "gpu_share": number} if 0 < number < 1 else {"gpu": int(number)}


def _serve(home: Home, spec: dict[str, Any], flags: dict[str, Any], port: int, *, as_json: bool) -> int:
    """Run a Jupyter server, forward its port, print its link, and wait for its end or for Ctrl-C."""
    token = secrets.token_urlsafe(24)
    environ = dict(os.environ) | {TOKEN: token}
    note_units(spec)
    spec["folder"] = str(Path.cwd())
    given = spec.get("secrets", {})
    spec["secrets"] = {**(given if isinstance(given, dict) else dict.fromkeys(given)), TOKEN: None}
    spec["env"] = kept_environment() | spec.get("env", {})
    listener = listener_on(port)
    with told_as_flags(flags):
        client, job = submit(home, with_values(spec, environ), user=user_name(), say=tell)
    try:
        say(f"poise: {job} starts a Jupyter server; Ctrl-C ends it")
        found, path = _found(client, job, token)
        serve_port(home, job, found, None, listener, threading.BoundedSemaphore(MOST_AT_ONCE))
        link = f"http://localhost:{listener.getsockname()[1]}{path}?token={token}"
        if as_json:
            print_json({"job": job, "url": link})
            sys.stdout.flush()
        else:
            click.echo(link)
        return _until_over(client, job)
    except BaseException as error:
        with contextlib.suppress(PoiseError):
            Client(home).cancel(job)
        if isinstance(error, KeyboardInterrupt):
            say(f"poise: {job} ends")
            return 0
        raise


def _found(client: Client, job: str, token: str) -> tuple[int, str]:
    """Return the port and the path of the server with this token, once it answers. Raises `InputError` if its job ends
    first.
    """
    waits = ""
    while True:
        report = client.job(job)
        task = report.tasks[0]
        if report.exit_code is not None:
            raise _not_there(client, report)
        if report.status == "running":
            try:
                servers = _servers(client, job)
            except InputError:
                if client.job(job).status == "running":
                    raise
                continue  # it has just ended
            for port, path, theirs in servers:
                if theirs == token:
                    return port, path
        elif task.reasons and "; ".join(task.reasons) != waits:
            waits = "; ".join(task.reasons)
            say(f"poise: {job} waits: {waits}")
        time.sleep(ASK_SECONDS)


def _servers(client: Client, job: str) -> list[tuple[int, str, str]]:
    """Return the port, the path and the token of each Jupyter server that runs beside a job."""
    text = b""
    with contextlib.closing(client.exec(job, ["jupyter", "server", "list", "--json"])) as lines:
        for line in lines:
            if isinstance(line, ExecOutput) and line.stream == "out":
                text += line.data
            elif isinstance(line, ExecEnd) and line.exit_code:
                return []
    servers = []
    for row in text.splitlines():
        with contextlib.suppress(ValueError, KeyError, TypeError):
            one = json.loads(row)
            servers.append((int(one["port"]), str(one["base_url"]), str(one["token"])))
    return servers


def _not_there(client: Client, report: JobReport) -> InputError:
    """Return the error for a server that has ended before it could be used."""
    said = b"".join(piece.data for piece in client.logs(report.id, tail=5) if hasattr(piece, "data"))
    lines = said.decode("utf-8", "replace").strip().splitlines()
    if report.exit_code == NOT_FOUND:
        hint = "`pip install jupyterlab` in the environment that the node uses; `poise shell` for a terminal"
        return InputError("the node has no Jupyter", field="--jupyter", have=lines[-1] if lines else "", hint=hint)
    have = "; ".join(lines[-2:]) or report.tasks[0].note
    return InputError("the Jupyter server has ended", field=report.id, have=have, hint=f"`poise logs {report.id}`")


def _until_over(client: Client, job: str) -> int:
    """Wait until a session is over; say once when it is idle, and when it is suspended. Return its exit code."""
    told = ""
    while True:
        report = client.job(job)
        if report.exit_code is not None:
            say(f"poise: {job} is over{f': {note}' if (note := report.tasks[0].note) else ''}")
            return report.exit_code
        now = "suspended" if report.suspended else "idle" if report.idle_since else ""
        if now != told and now:
            since = format_duration(int((time.time() - report.idle_since) * 1e9))
            way = f"; `poise attach {job}` resumes it" if report.suspended else ""
            say(f"poise: {job} is {now}: nobody has used it for {since}{way}")
        told = now
        time.sleep(POLL_SECONDS)
