"""Slurm's commands, called as an ordinary user, and their parsed output.

slurmctld is queried in one call for all allocations, at most twice a minute: polling by many users makes a controller
slow. `sacct` is never used, since it lags, and many sites have none. A job that `squeue` does not list has ended.
"""

import os
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from poise.errors import Fault

PATIENCE = 60.0
MOST, WINDOW = 2, 60.0
"""Maximum number of status calls in a window of this many seconds."""

TAG = "poise:"
"""Prefix of an allocation's comment, followed by its tag; it identifies the allocation if its id is unknown."""

FORMAT = "%i|%T|%L|%S|%P|%r|%k"
PARTITIONS = "%R|%a|%l|%D|%c|%m|%G|%A"
UNLIMITED = 365 * 86400


HOLDS = ("RUNNING", "SUSPENDED", "STOPPED", "SIGNALING")
WAITS = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD")
"""States of jobs that hold machines, and of jobs that wait for them. In all other states, including `COMPLETING`, the
job's machines must not be used.
"""


class Job(NamedTuple):
    """A job that has not ended: its `left` seconds (0: it does not run), its expected `start` (seconds since 1970, 0:
    unknown), and the reason why it waits.
    """

    id: str
    tag: str
    state: str
    left: int
    start: int
    partition: str
    reason: str


class Kind(NamedTuple):
    """Identical nodes of a partition: CPUs, MiB of memory and GPUs of each node; `idle` of them hold nothing. `limit`
    is the longest job time there in seconds.
    """

    partition: str
    limit: int
    nodes: int
    idle: int
    cpus: int
    memory: int
    gpus: int


class Turns:
    """Rate limit: at most `MOST` calls in any `WINDOW`, the first ones at once, later ones evenly spaced."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._taken: list[float] = []  # latest calls

    def take(self) -> bool:
        """Whether a call may be made now; if so, it is counted."""
        now = self._now()
        if len(self._taken) == MOST and (now - self._taken[0] < WINDOW or now - self._taken[-1] < WINDOW / MOST):
            return False
        self._taken = [*self._taken, now][-MOST:]
        return True


def submit(script: str, options: Sequence[str]) -> str:
    """Submit a script, and return the id of its job. Raises `Fault` with the message of sbatch."""
    return _call("sbatch", "--parsable", *options, given=script).strip().partition(";")[0]


def test(script: str, options: Sequence[str]) -> str:
    """Return Slurm's forecast for a script, without submitting it. Raises `Fault` with the message of sbatch if it can
    never run.
    """
    return _call("sbatch", "--test-only", *options, given=script)


def queue() -> list[Job]:
    """Return this user's unfinished jobs that Poise has submitted. Raises `Fault` if slurmctld does not answer."""
    answer = _call("squeue", "--noheader", f"--user={os.getuid()}", f"--format={FORMAT}", "--states=all")
    return [job for line in answer.splitlines() if (job := parse_job(line)) is not None]


def parse_job(line: str) -> Job | None:
    """Parse a line of `squeue`; None if the job is not one of Poise, or has ended."""
    parts = line.split("|", 6)
    if len(parts) != 7 or not parts[6].startswith(TAG) or parts[1] not in HOLDS + WAITS:
        return None
    identity, state, left, start, partition, reason, comment = parts
    started = int(start) if start.isdigit() else 0
    running = state in HOLDS
    return Job(identity, comment[len(TAG) :], state, _time(left) if running else 0, started, partition, reason)


def cancel(*jobs: str) -> None:
    """Cancel jobs of this user. A job that has already ended is not an error."""
    if jobs:
        _call("scancel", "--quiet", *jobs)


def partitions() -> list[Kind]:
    """Return the partitions that are open to this user, by kinds of nodes. Raises `Fault` if slurmctld does not
    answer.
    """
    answer = _call("sinfo", "--noheader", f"--format={PARTITIONS}")
    return [kind for line in answer.splitlines() if (kind := parse_kind(line)) is not None]


def parse_kind(line: str) -> Kind | None:
    """Parse a line of `sinfo`; None if nothing can run there."""
    parts = line.split("|")
    if len(parts) != 8 or parts[1] != "up":
        return None
    name, _, limit, nodes, cpus, memory, gres, used = parts
    idle = used.partition("/")[2]
    return Kind(name, _time(limit), int(nodes), int(idle or 0), _least(cpus), _least(memory), _gpus(gres))


def _least(text: str) -> int:
    """Parse a minimum: `8+` means 8 or more."""
    return int(text.rstrip("+") or 0)


def _gpus(text: str) -> int:
    """Return the number of GPUs in `gpu:a100:4(S:0-1),nic:2`."""
    found = re.findall(r"(?:^|,)gpu(?::[^:,()]+)?:(\d+)", text)
    return sum(map(int, found))


def _time(text: str) -> int:
    """Return the seconds of `2-03:04:05`, `04:05` or `infinite`; 0 for other text."""
    if text in ("infinite", "UNLIMITED"):
        return UNLIMITED
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text)
    if match is None:
        return 0
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _call(command: str, *arguments: str, given: str = "") -> str:
    """Return the output of a command. Raises `Fault` with its error message."""
    environment = {**os.environ, "SLURM_TIME_FORMAT": "%s"}
    try:
        done = subprocess.run(  # noqa: S603 — commands of the site
            [command, *arguments],
            input=given,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if "--test-only" in arguments else subprocess.PIPE,
            text=True,
            timeout=PATIENCE,
            env=environment,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _fault(command, str(error)) from None
    if done.returncode:
        raise _fault(command, (done.stderr or done.stdout).strip() or f"exit code {done.returncode}")
    return done.stdout


def _fault(command: str, said: str) -> Fault:
    last = said.splitlines()[-1][:300] if said else ""
    return Fault(f"`{command}` failed", code="E214", field="--on", have=last, hint=f"`{command} --version`, `sinfo`")
