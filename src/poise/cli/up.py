"""`poise up` and `poise down`."""

import os
import signal
import sys
import time
from pathlib import Path

import click

from poise.cli.home import current_home, ensure_up, running, supervised
from poise.cli.render import print_json, say
from poise.client import Client, failure_of
from poise.drivers.lock import holder, is_held
from poise.errors import Conflict, Fault, Unreachable
from poise.model.reports import JobReport

STOP_SECONDS = 15.0


@click.command()
@click.option(
    "--policy", default="poise", show_default=True, metavar="NAME", help="poise, fifo, round-robin or static."
)
@click.option(
    "--port", type=int, default=None, metavar="N", help="Loopback port of the API. [default: 7717, or a free one]"
)
@click.option("--foreground", is_flag=True, help="Stay in this terminal, as a service manager wants it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
def up(policy: str, port: int | None, foreground: bool, as_json: bool) -> int:
    """Start the control plane and the agent of this machine, and keep them alive."""
    from poise.policy.suites import policy_named

    try:
        policy_named(policy)
    except KeyError as error:
        raise click.UsageError(str(error.args[0])) from None
    home = current_home()
    options = ["--policy", policy, *(["--port", str(port)] if port is not None else [])]
    if foreground:
        if supervised(home) or running(home):
            raise Conflict("Poise is up already", code="E204", field=str(home.root), hint="`poise down`")
        program = str(Path(__file__).parent.parent / "control" / "supervisor.py")
        os.execv(sys.executable, [sys.executable, "-S", program, str(home.root), *options])  # noqa: S606 — our own program
    already = running(home)
    client = ensure_up(home, *options)
    client.stay()
    status = client.status()
    if already and status.policy != policy and click.get_current_context().get_parameter_source("policy"):
        say(f"poise: up already, under policy {status.policy}; `poise down` first to change it")
    if as_json:
        print_json(status)
    else:
        say(f"poise is {'up already' if already else 'up'}: {home.root}, policy {status.policy}")
    return 0


@click.command()
@click.option("--cancel", "cancel_jobs", is_flag=True, help="Cancel unfinished jobs first.")
@click.option("--leave", is_flag=True, help="Let running commands go on; the next `poise up` takes them over.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
def down(cancel_jobs: bool, leave: bool, as_json: bool) -> int:
    """Stop the control plane and the agent. Refuses while jobs are unfinished, unless told what to do with them."""
    home = current_home()
    was_up = running(home) or supervised(home) or is_held(home.node / "lock")
    if was_up:
        client = Client(home)
        cannot_start = failure_of(home) is not None  # then nobody can tell, and nothing is to be lost by stopping
        unfinished = [] if leave or cannot_start else _unfinished(client)
        if unfinished and cancel_jobs:
            _cancel_all(client, [job.id for job in unfinished])
        elif unfinished:
            raise Conflict(
                "one job is unfinished" if len(unfinished) == 1 else f"{len(unfinished)} jobs are unfinished",
                have=", ".join(job.id for job in unfinished[:8]),
                hint="`poise down --cancel` ends them, `poise down --leave` lets running commands go on",
            )
        client.close()
        _stop(home.supervisor, home.lock, home.node / "lock")
    if as_json:
        print_json({"stopped": was_up})
    else:
        say("poise is down" if was_up else "poise was not up")
    return 0


def _unfinished(client: Client) -> list[JobReport]:
    try:
        return [job for job in client.jobs() if job.exit_code is None]
    except Unreachable as error:
        raise Unreachable(
            "no control plane answers, so nobody knows what is unfinished",
            have=error.record.have,
            hint="`poise down --leave` stops what is left of it, `poise up` brings it back",
        ) from None


def _cancel_all(client: Client, jobs: list[str]) -> None:
    for job in jobs:
        try:
            client.cancel(job)
        except Conflict:
            continue  # it ended by itself
    for job in jobs:
        client.wait(job)


def _stop(*locks: Path) -> None:
    """End whoever holds these locks, the supervisor first so that nothing is started again."""
    deadline = time.monotonic() + STOP_SECONDS
    for lock in locks:
        asked = False
        while (pid := holder(lock)) != 0:
            if not asked:
                try:
                    os.kill(pid, signal.SIGTERM)
                except ProcessLookupError:
                    continue
                except PermissionError:
                    raise Conflict(f"process {pid} belongs to somebody else", field=str(lock)) from None
                asked = True
            if time.monotonic() > deadline:
                raise Fault(f"process {pid} does not end", field=str(lock), hint=f"kill -9 {pid}")
            time.sleep(0.02)
