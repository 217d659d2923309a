"""Reports of jobs, their tasks and attempts, and of schedules."""

from typing import Any, Literal

import msgspec

from poise.model.captures import Capture
from poise.model.training import Training

STATUSES = {
    "waiting": "for another task or job that it needs",
    "resting": "a worker of functions without calls",
    "pending": "it waits for room, or for its turn",
    "placed": "it is placed, and its process is being started",
    "running": "it runs",
    "recovering": "its node is silent; it continues when that is back, or is placed elsewhere",
    "stopping": "it was asked to end, and its grace period runs",
    "spare": "its gang (`workers: 1..3`) runs with fewer than it could use; it joins once there is room",
    "done": "its command has ended with 0",
    "failed": "it has ended otherwise, and is not retried; its outcome says how",
    "stopped": "Poise has stopped it, because another task of its gang failed",
    "cancelled": "it was cancelled, or its deadline could no longer be met (`if-late: cancel`)",
    "skipped": "something that it needs has failed or was cancelled",
}
"""The statuses of a task, with their meanings. A job has one of these statuses, too."""


class AttemptReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An earlier attempt and how it ended."""

    epoch: int
    node: str
    outcome: str
    run: int = 0
    note: str = ""


class TaskReport(msgspec.Struct, frozen=True, kw_only=True):
    """A task: its command, placement, times and outcome, and the reason for its placement or its wait. `artifact` is
    the artifact that was started, of several; `sweep` has the task's values in a sweep; `pid` is its current process,
    if any. `time_limit` is the maximum duration of an attempt, in nanoseconds (0: no limit). `retries` describes which
    failures are retried, and how often. `input` is the source of its standard input (empty: none). `expected` is the
    expected run time (0: unknown). `image` is the image of its container, with the digest that it was pinned to.
    """

    task: str
    name: str
    status: str
    priority: str
    command: tuple[str, ...]
    needs: tuple[str, ...]
    node: str
    devices: tuple[int, ...]
    cpus: tuple[int, ...]
    pid: int | None
    epoch: int
    wait: int
    run: int
    cpu: int
    started: float
    ended: float
    expected: int
    slack: int
    critical: bool
    outcome: str
    exit_code: int | None
    peak: int
    limit: int
    note: str
    why: str
    reasons: tuple[str, ...]
    attempts: tuple[AttemptReport, ...]
    artifact: str
    sweep: dict[str, str]
    result: Any
    time_limit: int = 0
    retries: str = ""
    input: Literal["", "pipe", "terminal"] = ""
    image: str = ""


class CallsReport(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of a job that serves them: the numbers of open, done and failed calls. `mean` is the mean duration of a
    done call, in nanoseconds. `closed` is the reason why no more calls are accepted; empty while they are.
    """

    open: int
    done: int
    failed: int
    mean: int
    functions: tuple[str, ...] = ()
    closed: str = ""


class TrainingReport(msgspec.Struct, frozen=True, kw_only=True):
    """The last progress report of a unit's training. `heard` is the time of that report, in seconds since 1970."""

    unit: str
    heard: float
    said: Training


class JobReport(msgspec.Struct, frozen=True, kw_only=True):
    """A job. `exit_code` is the exit code of `poise wait`: 0, or that of the first failed task; None while the job is
    unfinished. `note` is the note that the user got at submission, and `user` the display name that the client sent.
    `retries` is described in `PlanReport`. `secrets` has the names of the secrets. `remaining` is the expected run time
    of the rest of the critical path; None if a run time in it is unknown. `hold` means that the job is on hold: tasks
    that have not started do not start. `budget` is the spent budget that holds it, if one does. `unnotified` has the
    notices that could not be delivered, each with the reason.
    `tree` is the hash of the files that the job brings along. `array` is set if the parts of the job exist only while
    they wait or run. `idle_since` is the time of the last use of a session that is idle, in seconds since 1970 (0: it
    is in use, or has no idle limit), and `suspended` is whether it is suspended.
    """

    id: str
    name: str
    tenant: str
    user: str
    status: str
    exit_code: int | None
    submitted: float
    ended: float
    elapsed: int
    counts: dict[str, int]
    command: str
    critical_path: tuple[str, ...] = ()
    remaining: int | None = 0
    calls: "CallsReport | None" = None
    training: tuple[TrainingReport, ...] = ()
    note: str = ""
    tasks: tuple[TaskReport, ...] = ()
    retries: str = ""
    secrets: tuple[str, ...] = ()
    hold: bool = False
    unnotified: dict[str, str] = {}
    captures: tuple[Capture, ...] = ()
    tree: str = ""
    array: "ArrayReport | None" = None
    idle_since: float = 0.0
    suspended: bool = False
    budget: str = ""


class PartReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one task. `sweep` has its parameters. `run` is the run time of its last attempt, in nanoseconds,
    and `ended` its end, in seconds since 1970 (0: not known). `exit_code` is None if it never ran. `result` is what it
    wrote to `POISE_RESULT`.
    """

    task: str
    sweep: dict[str, str]
    status: str
    exit_code: int | None
    run: int
    ended: float
    node: str
    epoch: int
    result: Any


class ArrayReport(msgspec.Struct, frozen=True, kw_only=True):
    """An array: the `name` of its task, and the number of its `parts`, of which `at_most` run at once (0: no limit) and
    `allow_failed` may fail. `failed` lists the first parts that have failed, `3, 17-20`. Of an array, `JobReport.tasks`
    has some failed parts, those that run, and the next one; `poise results` has all.
    """

    name: str
    parts: int
    at_most: int
    allow_failed: int
    failed: str


JobStatus = Literal["waiting", "pending", "placed", "running", "idle", "done", "failed", "cancelled", "skipped"]
"""The statuses of a job: the most significant status of its tasks. `idle` workers wait for calls. A job is `skipped` if
a job that it comes after did not end as required.
"""


class ScheduleReport(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule. `every` is its interval in nanoseconds (0: it follows `cron`, in the time zone `time_zone`), and
    `overlap` its rule for jobs that overlap. `next` is the time of its next run (0: the schedule is paused, `held`) and
    `last_due` the time of its last one, both in seconds since 1970. `jobs` is the number of submitted jobs. `last_job`
    is the latest of them, with its status (empty: it has been removed). `refused` is the reason why the last run
    submitted no job.
    """

    id: str
    name: str
    tenant: str
    user: str
    command: str
    every: int
    cron: str
    time_zone: str
    overlap: str
    held: bool
    next: float
    last_due: float
    last_job: str
    last_status: str
    jobs: int
    refused: str


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    """The result of changing a job, or some of its tasks. `units` is the number of changed units. `running` is the
    number of running units that keep their resources and start options until they restart.
    """

    job: str
    units: int
    running: int
