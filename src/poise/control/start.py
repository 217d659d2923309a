"""Finds the state directory of a program, and starts the control plane if it is not running."""

import getpass
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from poise.client import Client, failure_of, new_key
from poise.config import Home
from poise.control.kept import options_of, read_flags
from poise.drivers.lock import is_ending, is_held
from poise.drivers.reach import reach
from poise.drivers.security import ensure_token
from poise.drivers.sockets import LOOK_SECONDS, made
from poise.errors import Fault, PoiseError, Unreachable, client_only

START_SECONDS = 60.0

END_SECONDS = 75.0
"""Time limit for a supervisor to shut down, including the return of a cluster's machines."""

RESTART_SECONDS = 1.0
"""Time limit for a killed control plane to be restarted."""

ASK_SECONDS = 0.05
"""How often to poll a starting control plane; it is also asked as soon as it creates its socket."""

NODE_SECONDS = 5.0
"""Time limit for this machine's agent to join a new control plane."""

SUBMIT_ATTEMPTS = 3
"""Number of attempts to submit while control planes exit because they are idle."""

UNTIL_IDLE = "--until-idle"

SUPERVISOR = Path(__file__).with_name("supervisor.py")

KEPT = ("PATH", "HOME", "VIRTUAL_ENV", "LANG")
"""Variables passed on to interactive commands, besides those of conda."""


def kept_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name in KEPT or name.startswith("CONDA_")}


def user_name() -> str:
    """Return the user's name for display; empty if the system has none."""
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):  # ImportError on Windows
        return ""


def running(home: Home) -> bool:
    """Return whether a control plane holds this home. A remote one, or one of several, is assumed to run."""
    return home.elsewhere is not None or bool(home.others) or running_here(home)


def running_here(home: Home) -> bool:
    return is_held(home.lock)


def supervised(home: Home) -> bool:
    """Return whether a supervisor keeps this home's control plane alive, even if that is just restarting."""
    return is_held(home.supervisor)


def may_be_asked(home: Home) -> bool:
    """Return whether to ask a control plane instead of the log: this home's, or another one that answers now. If an
    idle one is about to exit, wait until it has exited: it no longer answers.
    """
    _wait_while(lambda: _leaves(home))
    if home.elsewhere is not None or running_here(home) or supervised(home):
        return True
    deadline = time.monotonic() + RESTART_SECONDS
    while home.others:
        if any(_listens(home, turn) for turn in range(len(home.doors))):
            return True
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    return False


def _listens(home: Home, turn: int) -> bool:
    import ssl

    try:
        reach(home, turn=turn).close()
    except (PoiseError, ssl.SSLError):
        return True  # it answers, and the caller gets the real error
    except OSError:
        return False
    return True


def connected(home: Home) -> Client:
    """Return a client of the running control plane; raise `Unreachable` at once if none is kept alive here."""
    if not running(home) and not supervised(home):
        raise Unreachable("no control plane runs here", field=str(home.root), hint="`poise up`")
    return Client(home)


def await_end(home: Home) -> None:
    """Wait until a supervisor that is shutting down, or whose idle control plane leaves, has exited, up to a limit."""
    _wait_while(lambda: _leaves(home) or is_ending(home.supervisor))


def _leaves(home: Home) -> bool:
    """Return whether the control plane exits because it was idle, while its supervisor still runs."""
    return supervised(home) and home.left.exists()


def _wait_while(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + END_SECONDS
    while holds() and time.monotonic() < deadline:
        time.sleep(0.02)


def ensure_up(home: Home, *options: str) -> Client:
    """Return a client of this home's control plane; start one with `options` if none runs.

    A running control plane whose supervisor was killed gets a new supervisor and is not restarted. A control plane that
    was started with `poise up` and killed is restarted with its earlier flags.
    """
    if home.elsewhere is not None:
        return Client(home)
    if not SUPERVISOR.exists():
        raise client_only()
    ensure_token(home)
    for _ in range(3):
        await_end(home)
        if not supervised(home):
            _start(
                home, options_of(home, read_flags(home)) if home.stay.exists() and UNTIL_IDLE in options else options
            )
        try:
            return _when_ready(home)
        except Unreachable:
            continue  # it was idle and exiting, and is gone
    raise Fault("the control plane does not start", field=str(home.messages), hint=f"tail {home.messages}")


def submit(
    home: Home,
    spec: dict[str, Any],
    *,
    user: str,
    say: Callable[[str], None] | None = None,
    if_revision: int | None = None,
) -> tuple[Client, str]:
    """Submit a job exactly once; returns a client of the control plane that accepted it, and the job's id.

    Without a control plane, the job is checked here first, which raises SpecError with all its errors. Then a control
    plane is started, which stays until it is idle. With `if_revision` none is started: starting one changes the
    revision. `say` gets the note that comes with the id, such as that the job may be late.
    """
    if if_revision is not None or home.elsewhere is not None or (home.others and may_be_asked(home)):
        client = connected(home)
        return client, client.submit(spec, user=user, say=say, if_revision=if_revision)
    is_new = False
    if not running_here(home) and not supervised(home):
        from poise.model.secrets import named
        from poise.model.spec import compile_spec  # not needed if a control plane does it

        compile_spec(named(spec), wall=time.time())
        is_new = _asks(spec) and not home.log.exists()
    key = new_key()
    for left in range(SUBMIT_ATTEMPTS, 0, -1):
        client = ensure_up(home, UNTIL_IDLE)
        try:
            if is_new:
                _await_node(client)
            return client, client.submit(spec, key=key, user=user, say=say)
        except Unreachable:
            if left == 1:
                raise
    raise AssertionError("unreachable")


def _asks(spec: Mapping[str, Any]) -> bool:
    """Return whether a checked job file sets resources or workers."""
    return any("resources" in task or "workers" in task for task in (spec, *spec.get("tasks", {}).values()))


def _await_node(client: Client) -> None:
    """Wait until a new control plane knows this machine: it refuses what the machine can never run, and would accept
    anything while it knows no node.
    """
    deadline = time.monotonic() + NODE_SECONDS
    while not client.nodes() and time.monotonic() < deadline:
        time.sleep(0.01)


def lasting(home: Home, *options: str) -> Callable[[], Client]:
    """Return a function that connects a long-lived caller to the control plane. It starts a control plane on the first
    call, or if the last one exited because it was idle; not if the last one was stopped.
    """
    met = False

    def connect() -> Client:
        nonlocal met
        if met and not home.left.exists():
            return connected(home)
        client = ensure_up(home, *options)
        met = True
        return client

    return connect


def _start(home: Home, options: Sequence[str]) -> None:
    import subprocess  # imported here to keep commands fast: most find the control plane running

    home.failure.unlink(missing_ok=True)
    with home.messages.open("ab") as messages:
        supervisor = subprocess.Popen(  # noqa: S603 — our own program
            [sys.executable, "-S", str(SUPERVISOR), str(home.root), *options],
            stdin=subprocess.DEVNULL,
            stdout=messages,
            stderr=messages,
            start_new_session=True,
            cwd="/",
        )
    while not supervised(home) and supervisor.poll() is None:  # it ends at once if another was first
        time.sleep(0.005)


def _when_ready(home: Home) -> Client:
    deadline = time.monotonic() + START_SECONDS
    client = Client(msgspec.structs.replace(home, others=()), patience=0.0)
    socket = home.socket
    while time.monotonic() < deadline:
        failure = failure_of(home)
        if failure is not None:
            raise failure
        listening = made(socket)
        try:
            client.status()
        except (Unreachable, Fault) as error:
            if error.record.code not in ("E201", "E299"):
                raise
            if not running_here(home) and not supervised(home) and time.monotonic() > deadline - START_SECONDS + 2:
                raise Unreachable("the control plane has ended", field=str(home.root), hint="`poise up`") from None
            again = time.monotonic() + ASK_SECONDS
            while made(socket) == listening and time.monotonic() < again:
                time.sleep(LOOK_SECONDS)
        else:
            client.close()
            return Client(home)
    raise Fault("the control plane does not answer", field=str(home.messages), hint=f"tail {home.messages}")
