"""Slurm's own commands, as an ordinary user calls them, and what they answer.

Status is asked of slurmctld in one call for all allocations, and two times a minute at most: polling by many users is
what makes a controller slow. `sacct` is never asked, since it lags, and many sites have none. What `squeue` does not
list has ended.
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
"""Status calls in so many seconds, at most."""

TAG = "poise:"
"""An allocation has this and its tag as its comment: by that it is found if nobody knows its id."""

FORMAT = "%i|%T|%L|%S|%P|%r|%k"
PARTITIONS = "%R|%a|%l|%D|%c|%m|%G|%A"
UNLIMITED = 365 * 86400


HOLDS = ("RUNNING", "SUSPENDED", "STOPPED", "SIGNALING")
WAITS = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD")
"""States of jobs that hold machines, and that wait for them. In all others, `COMPLETING` among them, no machine of the
job may be used any more.
"""


class Job(NamedTuple):
    """A job that has not ended: its `left` seconds (0: it does not run), when it is expected to `start` (seconds since
    1970, 0: unknown), and why it waits.
    """

    id: str
    tag: str
    state: str
    left: int
    start: int
    partition: str
    reason: str


class Kind(NamedTuple):
    """Nodes of a partition that are alike: each has so many CPUs, MiB of memory and GPUs; `idle` of them hold nothing.
    `limit` is the longest time of a job there in seconds.
    """

    partition: str
    limit: int
    nodes: int
    idle: int
    cpus: int
    memory: int
    gpus: int


class Turns:
    """Lets at most `MOST` calls through in any `WINDOW`: the first ones when they are wanted, later ones evenly."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._taken: list[float] = []  # the latest ones

    def take(self) -> bool:
        """Whether a call may be made now; it counts then."""
        now = self._now()
        if len(self._taken) == MOST and (now - self._taken[0] < WINDOW or now - self._taken[-1] < WINDOW / MOST):
            return False
        self._taken = [*self._taken, now][-MOST:]
        return True


def submit(script: str, options: Sequence[str]) -> str:
    """Submit a script, and return the id of its job. Raises `Fault` with what sbatch says."""
    return _call("sbatch", "--parsable", *options, given=script).strip().partition(";")[0]


def test(script: str, options: Sequence[str]) -> str:
    """What Slurm expects of a script, without submitting it. Raises `Fault` if it can never run, as sbatch says it."""
    return _call("sbatch", "--test-only", *options, given=script)


def queue() -> list[Job]:
    """The jobs of this user that Poise has asked for and that have not ended. Raises `Fault` if nobody answers."""
    answer = _call("squeue", "--noheader", f"--user={os.getuid()}", f"--format={FORMAT}", "--states=all")
    return [job for line in answer.splitlines() if (job := parse_job(line)) is not None]


def parse_job(line: str) -> Job | None:
    """A line of `squeue`; none if the job is not one of Poise, or has ended."""
    parts = line.split("|", 6)
    if len(parts) != 7 or not parts[6].startswith(TAG) or parts[1] not in HOLDS + WAITS:
        return None
    identity, state, left, start, partition, reason, comment = parts
    started = int(start) if start.isdigit() else 0
    running = state in HOLDS
    return Job(identity, comment[len(TAG) :], state, _time(left) if running else 0, started, partition, reason)


def cancel(*jobs: str) -> None:
    """End jobs of this user. One that has ended already is no error."""
    if jobs:
        _call("scancel", "--quiet", *jobs)


def partitions() -> list[Kind]:
    """The partitions that are open to this user, by kinds of nodes. Raises `Fault` if nobody answers."""
    answer = _call("sinfo", "--noheader", f"--format={PARTITIONS}")
    return [kind for line in answer.splitlines() if (kind := parse_kind(line)) is not None]


def parse_kind(line: str) -> Kind | None:
    """A line of `sinfo`; none if nothing can be run there."""
    parts = line.split("|")
    if len(parts) != 8 or parts[1] != "up":
        return None
    name, _, limit, nodes, cpus, memory, gres, used = parts
    idle = used.partition("/")[2]
    return Kind(name, _time(limit), int(nodes), int(idle or 0), _least(cpus), _least(memory), _gpus(gres))


def _least(text: str) -> int:
    """`8+` means 8 or more."""
    return int(text.rstrip("+") or 0)


def _gpus(text: str) -> int:
    """The GPUs in `gpu:a100:4(S:0-1),nic:2`."""
    found = re.findall(r"(?:^|,)gpu(?::[^:,()]+)?:(\d+)", text)
    return sum(map(int, found))


def _time(text: str) -> int:
    """Seconds of `2-03:04:05`, `04:05` or `infinite`; 0 of what is no time."""
    if text in ("infinite", "UNLIMITED"):
        return UNLIMITED
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text)
    if match is None:
        return 0
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _call(command: str, *arguments: str, given: str = "") -> str:
    """The output of a command. Raises `Fault` with its own words."""
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
