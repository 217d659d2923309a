"""Records behind `ls`, `show`, `nodes` and other views: the command line and the API only format them.

Times of day are seconds since 1970 (0: not yet); durations are nanoseconds.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import msgspec

from poise.model.captures import Capture
from poise.model.catalogue import per_watt
from poise.model.decisions import Reason, Spot, Why
from poise.model.figures import sources_of
from poise.model.load import Load, Upkeep
from poise.model.resources import Link, Node, Shape
from poise.model.training import Training
from poise.units import SECOND, format_duration

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
"""Status of a task, and its meaning. A whole job has one of them too."""


class AttemptReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An earlier attempt and how it ended."""

    epoch: int
    node: str
    outcome: str
    run: int = 0
    note: str = ""


class TaskReport(msgspec.Struct, frozen=True, kw_only=True):
    """One task: where and when it ran, and why it was placed there or still waits. `artifact` is the artifact that was
    started, if there are several; `sweep` has its sweep values; `pid` is its current process, if any. `time_limit`
    limits the run time of an attempt, in nanoseconds (0: no limit), `retries` describes the retry rule, and `input` is
    the kind of its input (empty: none). `expected` is 0 if the run time is unknown.
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


class CallsReport(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of a job that serves functions: the numbers of open, done and failed calls, and the mean duration of a done
    call in nanoseconds. `closed` is the reason why the job accepts no more calls; empty while it accepts them.
    """

    open: int
    done: int
    failed: int
    mean: int
    functions: tuple[str, ...] = ()
    closed: str = ""


class TrainingReport(msgspec.Struct, frozen=True, kw_only=True):
    """Training progress that a unit reported, and when (seconds since 1970)."""

    unit: str
    heard: float
    said: Training


class JobReport(msgspec.Struct, frozen=True, kw_only=True):
    """One job. `exit_code` is the exit code of `poise wait`: 0, or the first failed task's; None while unfinished.
    `note` is the message shown at submission, `user` the user name that the client sent. `retries`: see `PlanReport`.
    `secrets` are names. `remaining` is the expected run time of the rest of the critical path; None if it contains an
    unknown run time. `hold`: the job is on hold, and tasks that have not started do not start. `unnotified` are
    undelivered notices, each with the reason. `tree` is the hash of the files that were sent with it.
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


JobStatus = Literal["waiting", "pending", "placed", "running", "idle", "done", "failed", "cancelled", "skipped"]
"""Status of a job: the most significant status of its tasks. `idle` workers wait for calls. A job is `skipped` when a
job in its `after` did not end as required.
"""


class DeviceReport(msgspec.Struct, frozen=True, kw_only=True):
    """One accelerator: its capabilities and its holder. Units as in `Device`; `per_watt` is peak operations per joule
    by precision. `sources` maps each known figure (`rates.fp16`) to its origin: `declared`, `measured`, `driver` or
    `catalogue`. `cordoned` is the reason why nothing is placed on it, if so.
    """

    index: int
    kind: str
    model: str
    memory: int
    held_by: str
    backend: str = ""
    rates: dict[str, int] = {}
    bandwidth: int = 0
    ops: tuple[str, ...] = ()
    socket: int = 0
    price: int = 0
    power: int = 0
    per_watt: dict[str, int] = {}
    uuid: str = ""
    sources: dict[str, str] = {}
    cordoned: str = ""


class ScheduleReport(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule: `every` in nanoseconds (0: by `cron`, in the time zone `time_zone`), and the `overlap` of its jobs.
    `next` is its next due time (0: it is `held`), `last_due` the previous one, in seconds since 1970. `jobs` counts the
    submitted jobs; `last_job` is the latest, with its status (empty: it has been removed). `refused` is the reason why
    the last turn submitted no job.
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


class QuotaReport(msgspec.Struct, frozen=True, kw_only=True):
    """Quota of a tenant (None: unlimited) and its current use. CPU in milli-CPU, memory in bytes, devices as a number;
    shared devices count as fractions.
    """

    tenant: str
    cpu: int | None
    memory: int | None
    gpu: float | None
    cpu_held: int
    memory_held: int
    gpu_held: float


class ShareReport(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the tree of shares. `within` names its parent, `depth` is its distance from the root. Amounts are
    numbers of devices by model, `gpu` for any model, and cores of work without devices (`cpu`). `share` is its fraction
    of the weights of its siblings; `used` its fraction of their debts (None: no debts). `borrows` is in dollars per
    hour, `debt` in dollars. `rank` is 1 for the sibling that is served first.
    """

    name: str
    kind: str
    within: str
    depth: int
    weight: float
    share: float
    guaranteed: dict[str, float]
    limit: dict[str, float]
    lends: bool
    held: dict[str, float]
    borrows: float
    debt: float
    used: float | None
    rank: int
    waiting: int


class SharesReport(msgspec.Struct, frozen=True, kw_only=True):
    """The shares in force, each after its parent. `half_life` is in nanoseconds, `prices` are in dollars per hour by
    device model. `notes` list inconsistencies.
    """

    shares: tuple[ShareReport, ...] = ()
    half_life: int = 0
    prices: dict[str, float] = {}
    notes: tuple[str, ...] = ()


class SharesRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a file of shares."""

    document: dict[str, Any]


class ShareForeseen(msgspec.Struct, frozen=True, kw_only=True):
    """A share with waiting work: the number of simulated units, and their median remaining wait in nanoseconds with the
    current shares (`now`) and the proposed ones (`then`). None: unknown.
    """

    name: str
    units: int
    now: int | None
    then: int | None


class SharesForeseen(msgspec.Struct, frozen=True, kw_only=True):
    """Effect of other shares, from simulated futures of the twin."""

    shares: tuple[ShareForeseen, ...]
    futures: int


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """Resources held by work: `device_hours`, and `core_hours` of work without devices. `charge` in dollars uses the
    device prices of the fleet file, else of the shares, else of the catalogue. Fields that were not requested are
    empty. `day` is a date in UTC.
    """

    day: str = ""
    tenant: str = ""
    project: str = ""
    user: str = ""
    model: str = ""
    attempts: int = 0
    device_hours: float = 0.0
    core_hours: float = 0.0
    charge: float = 0.0


class WhoReport(msgspec.Struct, frozen=True, kw_only=True):
    """Identity of the caller: the tenant and role of its token, and the token's id and name (empty: the home's own
    token). `expires` as in `TokenReport`.
    """

    tenant: str
    role: str
    token: str
    name: str
    expires: float


class TokenReport(msgspec.Struct, frozen=True, kw_only=True):
    """A token. Its secret is not stored. `expires` and `revoked` are 0 for never."""

    id: str
    tenant: str
    role: str
    name: str
    expires: float
    expired: bool
    revoked: float


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """An audited request: the time, the action `what`, and the id, name and tenant of the token (no id: the home's own
    token).
    """

    revision: int
    at: float
    token: str
    name: str
    tenant: str
    what: str


class Refusal(msgspec.Struct, frozen=True):
    """A request that was refused before it was processed: its error code, and the id and tenant of its token,
    if any.
    """

    at: float
    code: str
    path: str
    token: str
    tenant: str


class RefusalsReport(msgspec.Struct, frozen=True):
    """Number of requests refused since the control plane started, by code, and the latest ones."""

    counts: dict[str, int]
    latest: tuple[Refusal, ...]


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """One node: its resources and their use. CPU in milli-CPU, memory in bytes; the rest as in `Node`.

    `level` is low, medium or high, `load` the measurement behind it; empty and None before the node's first report.
    `failures` is the smoothed fraction of attempts that failed there, in thousandths. `upkeep` is the cost of its
    agent, `unfit` the reason why it cannot start tasks.
    """

    name: str
    status: str
    cpu: int
    cpu_used: int
    memory: int
    memory_used: int
    running: int
    queued: int
    devices: tuple[DeviceReport, ...]
    labels: dict[str, str]
    level: str = ""
    load: Load | None = None
    zone: str = ""
    rack: str = ""
    network: int = 0
    latency: int = 0
    links: tuple[Link, ...] = ()
    model: str = ""
    rates: dict[str, int] = {}
    bandwidth: int = 0
    sources: dict[str, str] = {}
    network_used: int = 0
    failures: int = 0
    upkeep: Upkeep | None = None
    unfit: str = ""


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    """A job, or some of its tasks, got new values: the number of changed units, and how many of them are `running` and
    keep their old resources and settings until they are restarted.
    """

    job: str
    units: int
    running: int


class Drained(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node, or one of its devices (`n1:0`), that was closed or opened. For a drain: the number of tasks that move to
    other nodes once there is room (`moves`), and of tasks that run there to their end (`stays`).
    """

    node: str
    moves: int = 0
    stays: int = 0


def report_of(node: Node, *, held_by: Mapping[int, str] | None = None) -> NodeReport:
    """Report a node with all its resources free; `held_by` maps device indices to their holders."""
    holders = held_by or {}
    return NodeReport(
        name=node.name,
        status="up",
        cpu=node.cpu,
        cpu_used=0,
        memory=node.memory,
        memory_used=0,
        running=0,
        queued=0,
        devices=tuple(
            DeviceReport(
                index=device.index,
                kind=device.kind,
                model=device.model,
                memory=device.memory,
                held_by=holders.get(device.index, ""),
                backend=device.backend,
                rates=device.rates,
                bandwidth=device.bandwidth,
                ops=device.ops,
                socket=device.socket,
                price=device.price,
                power=device.power,
                per_watt=per_watt(device),
                uuid=device.uuid,
                sources=sources_of(device),
            )
            for device in node.devices
        ),
        labels=node.labels,
        zone=node.zone,
        rack=node.rack,
        network=node.network,
        latency=node.latency,
        links=node.links,
        model=node.model,
        rates=node.rates,
        bandwidth=node.bandwidth,
        sources=sources_of(node),
    )


class Check(msgspec.Struct, frozen=True):
    """One check of `poise doctor`: the finding and, unless it is ok, the command to type."""

    name: str
    status: Literal["ok", "warn", "fail"]
    text: str
    hint: str = ""


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """Result of `poise doctor`; `well` if nothing failed."""

    well: bool
    checks: tuple[Check, ...]


class PhaseTimes(msgspec.Struct, frozen=True):
    """Recent durations of a phase in nanoseconds, over `count` rounds or commits: the median `p50`, the 99th percentile
    `p99` and the maximum `most`.
    """

    count: int
    p50: int
    p99: int
    most: int


class StatusReport(msgspec.Struct, frozen=True, kw_only=True):
    """Status of the control plane. `unfinished` counts jobs, `pending` units that could be placed, `active` units that
    hold resources. `policy` decides; `fleet` is the declared fleet, empty for this machine. If not `up`, no control
    plane of the home runs, and the data come from another one or from the log. A standby control plane (`stands_by`)
    reports what the leader has written. `leader` is the address of the leader, if known. `held` nodes have been silent
    for too long but are not declared lost yet, because most of the fleet is missing or nodes are still coming back.
    `elsewhere` counts nodes that joined with their own token and see the files of another machine, without the nodes of
    the substrate of `--on`. `phases` has recent durations of the phases of a round (`view`, `decide`, `wait`, `apply`)
    and of a commit (`append`, `sync`).
    """

    version: str
    policy: str
    term: int
    revision: int
    accepting: bool
    unfinished: int
    pending: int
    active: int
    nodes: int
    lost: int = 0
    held: int = 0
    elsewhere: int = 0
    fleet: str = ""
    up: bool = True
    stands_by: bool = False
    leader: str = ""
    phases: dict[str, PhaseTimes] = {}


class PolicyReport(msgspec.Struct, frozen=True, kw_only=True):
    """The deciding policy: its name in the log, which ends with a digest if it comes from a file or a package, and the
    content of the file. `asked` is the time of the request for it, in seconds since 1970; 0 for the default.
    """

    policy: str
    asked: float = 0.0
    recipe: dict[str, Any] = {}


class RuleFiring(msgspec.Struct, frozen=True, kw_only=True):
    """The last firing of a rule for a `subject`: a node, or empty for the fleet. `outcome` is `done`, `shadow`, `asked`
    or `denied`, and `have` the observed value. `actions` were carried out; `failed` is the reason why others were not.
    `over`: the condition has ended, and the actions are undone. `at` in seconds since 1970.
    """

    subject: str
    at: float
    outcome: str
    have: str
    actions: tuple[str, ...] = ()
    failed: str = ""
    over: bool = False


class RuleReport(msgspec.Struct, frozen=True, kw_only=True):
    """A rule and its state. `why_not` is the reason why it does not act now. `firings` are the latest ones, newest
    first.
    """

    name: str
    mode: str
    scope: str
    actions: tuple[str, ...]
    why_not: str = ""
    firings: tuple[RuleFiring, ...] = ()


class RulesReport(msgspec.Struct, frozen=True, kw_only=True):
    """The rules in force. `evaluated` is the time of the last evaluation in seconds since 1970, 0 before the first;
    `spent` counts the actions of the last hour, of at most `budget`.
    """

    rules: tuple[RuleReport, ...] = ()
    evaluated: float = 0.0
    budget: int = 0
    spent: int = 0


class RulesRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a rules file."""

    document: dict[str, Any]


class RuleAnswer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Answer to the approval request of a rule for a `subject`: a node, or empty for the fleet."""

    rule: Annotated[str, msgspec.Meta(max_length=128)]
    allowed: bool
    subject: Annotated[str, msgspec.Meta(max_length=256)] = ""


class RuleDone(msgspec.Struct, frozen=True, kw_only=True):
    """Actions that were carried out."""

    rule: str
    subject: str
    actions: tuple[str, ...] = ()


class TestedChange(msgspec.Struct, frozen=True, kw_only=True):
    """A firing in a test on a log, or its end (`over`). `at` in seconds since 1970."""

    at: float
    rule: str
    subject: str
    have: str
    over: bool = False


class TestedRule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule tested on a log: the number of firings, the actions it would have taken, and the number of flaps: firings
    for the same subject within an hour of the end of the previous one. `open` firings had not ended when the log ended.
    """

    name: str
    mode: str
    firings: int
    actions: dict[str, int]
    flaps: int
    open: int


class RulesEffect(msgspec.Struct, frozen=True, kw_only=True):
    """Effect of rules: `jobs` simulated without the rules (`live` in the figures) and with them (`shadow`), paired by
    job, with confidence intervals of `level`. `firings` counts the firings in the simulation with the rules, by rule.
    There are no figures if there were too few jobs.
    """

    jobs: int
    level: float
    firings: dict[str, int]
    figures: tuple["PairedFigure", ...] = ()


class RulesTest(msgspec.Struct, frozen=True, kw_only=True):
    """Rules tested on a log: revisions `first` to `last` and the `hours` that they span, the number of evaluations, and
    the first of all `changes` in order. `conflicts` are subjects for which several rules were active at once. `missing`
    are signals that the log does not contain. `effect` is set if it was requested.
    """

    first: int
    last: int
    hours: float
    evaluations: int
    rules: tuple[TestedRule, ...]
    changes: tuple[TestedChange, ...] = ()
    conflicts: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    effect: RulesEffect | None = None


class ShadowDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A view, by its revision, on which two policies decide differently: the decisions that only one of them makes."""

    revision: int
    live: tuple[str, ...]
    shadow: tuple[str, ...]


class PairedFigure(msgspec.Struct, frozen=True, kw_only=True):
    """A figure under the deciding policy (`live`) and under the other one (`shadow`): nanoseconds, a count or a
    fraction. Lower is better, except for `use`. The confidence interval of the `difference` is `low` to `high`.
    """

    name: str
    of: Literal["time", "count", "share"]
    live: float
    shadow: float
    difference: float
    low: float
    high: float


class WorldReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The simulated fleet of a policy in shadow, compared with that of the deciding policy: `hours` simulated in both,
    up to `at` (seconds since 1970), which was `late` seconds ago. The confidence level of the `figures` is `level`;
    there are no figures for few `jobs`, of which `ended` have ended in both. The run times of `guessed` units were
    estimated; those of `converted` units were observed on another device model. `left_out` counts what the simulation
    does not model, by kind. `failed` is the reason why the policy no longer decides there. `cpu` is the fraction of a
    core that it used.
    """

    at: float
    late: float
    hours: float
    jobs: int
    ended: int
    level: float
    figures: tuple[PairedFigure, ...] = ()
    guessed: int = 0
    converted: int = 0
    left_out: dict[str, int] = {}
    failed: str = ""
    cpu: float = 0.0


class ShadowReport(msgspec.Struct, frozen=True, kw_only=True):
    """A policy in shadow, `since` a time in seconds since 1970. Of the `rounds` in which it was asked, it decided the
    `same` as the current policy. `live_alone` and `shadow_alone` count decisions that only one of the two made. Views
    were `passed_over` while it was busy or paused, and in `failed` rounds it had no plan. `differences` are the latest,
    and `units` those on which the two differed most often. `world` is set once its simulated fleet has results.
    """

    policy: str
    since: float = 0.0
    rounds: int = 0
    same: int = 0
    passed_over: int = 0
    failed: int = 0
    live_alone: int = 0
    shadow_alone: int = 0
    differences: tuple[ShadowDifference, ...] = ()
    units: dict[str, int] = {}
    world: WorldReport | None = None


class Promotion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request to promote a policy from shadow; with `force`, regardless of its figures."""

    force: bool = False


class PolicyRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request to change the deciding policy: its `name`, or the content of a policy file."""

    name: Annotated[str, msgspec.Meta(max_length=128)] = ""
    document: dict[str, Any] | None = None


class NodeUse(msgspec.Struct, frozen=True, kw_only=True):
    """Use of a node, in the units of `NodeReport`; `devices_used` counts devices that are held, whole or in part."""

    name: str
    status: str
    level: str
    load: Load | None
    cpu: int
    cpu_used: int
    memory: int
    memory_used: int
    devices: int
    devices_used: int
    running: int
    queued: int


class TaskUse(msgspec.Struct, frozen=True, kw_only=True):
    """A task that holds resources: its node, devices, start time, and expected run time in nanoseconds (0: unknown).
    `pid` is its process, once it has one.
    """

    task: str
    user: str
    status: str
    priority: str
    node: str
    devices: tuple[int, ...]
    cpus: tuple[int, ...]
    pid: int | None
    run: int
    expected: int
    command: str


class UnitWait(msgspec.Struct, frozen=True, kw_only=True):
    """A unit that waits for resources: the wait so far in nanoseconds, and the first reason."""

    unit: str
    user: str
    priority: str
    wait: int
    why: str


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """Waiting tasks with the same request: `cpu` in milli-CPU, `memory` in bytes, `gpus`, and `where` as the user wrote
    it (empty: anywhere). `shape` is the full request of each task. `together` tasks must start at once.

    `work` is the sum of their expected run times, and `longest` the run time that nearly all of them stay under, in
    nanoseconds. The run time of `unknown` tasks is neither declared nor learned; they count as none.
    """

    tasks: int
    together: int
    cpu: int
    memory: int
    gpus: int
    where: str
    work: int
    longest: int
    unknown: int
    shape: Shape = Shape()


class DemandReport(msgspec.Struct, frozen=True, kw_only=True):
    """Waiting work, grouped by request. `busy` maps each node with running tasks to the nanoseconds until the first of
    them is expected to end.
    """

    waits: tuple[Demand, ...]
    busy: dict[str, int]


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request for machines that a substrate has made to its system, or cannot make: its text and state. It is
    expected to be met at `starts` (seconds since 1970; 0: unknown). A `refused` request is not met unless something
    changes.
    """

    text: str
    starts: int = 0
    refused: bool = False

    def sentence(self, now: float) -> str:
        """Return the text, and the expected time until the request is met."""
        left = round(self.starts - now)
        return f"{self.text}, expected to start in {format_duration(left * SECOND)}" if left > 0 else self.text


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """Data of `poise top`. `queue` counts units that wait for resources, by class; `blocked` counts units that wait for
    other work.

    `starts`, `ends` and `returns` are the tasks placed, tasks ended and calls returned per second, over the last few
    seconds. The lists of nodes, tasks and waiting units have only the first entries: the fullest nodes, the oldest
    tasks, the units served first; `more_` counts the rest.
    """

    policy: str
    revision: int
    accepting: bool
    unfinished: int
    nodes_up: int
    nodes_lost: int
    queue: dict[str, int]
    blocked: int
    starts: float
    ends: float
    returns: float
    nodes: tuple[NodeUse, ...]
    running: tuple[TaskUse, ...]
    waiting: tuple[UnitWait, ...]
    more_nodes: int = 0
    more_running: int = 0
    more_waiting: int = 0


class ChangesReport(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes and jobs, without tasks, that events have changed up to `revision`; the `gone_` ones no longer exist.
    `whole`: too much has changed, and nothing is listed; request everything instead.
    """

    revision: int
    whole: bool = False
    nodes: tuple[NodeReport, ...] = ()
    jobs: tuple[JobReport, ...] = ()
    gone_nodes: tuple[str, ...] = ()
    gone_jobs: tuple[str, ...] = ()


class LogPiece(msgspec.Struct, frozen=True, tag="piece", tag_field="kind"):
    """Bytes that one attempt of a task wrote to one of its streams, `out` or `err`, from `offset` on (-1: not told), at
    the time `at`, in seconds since 1970 (0: not known). `rank` is that of a member of a gang of which several are shown
    (-1: it is none). One without data says where the output begins that was asked for; one without a task, that this is
    known of all.
    """

    task: str
    epoch: int
    stream: str
    data: bytes
    offset: int = -1
    at: float = 0.0
    rank: int = -1


class LogEnd(msgspec.Struct, frozen=True, tag="end", tag_field="kind"):
    """The job is over (or was not followed): no more output follows. `exit_code` is None while it is unfinished."""

    exit_code: int | None


LogLine = LogPiece | LogEnd


class InputReport(msgspec.Struct, frozen=True):
    """Bytes of input that the attempt `epoch` of a task has `taken`, and whether it accepts more. `epoch` is 0 while
    the task does not run, `taken` is -1 while its node has not reported. `over`: it will not run again.
    """

    epoch: int = 0
    taken: int = -1
    wanted: bool = True
    over: bool = False


class ExecStarted(msgspec.Struct, frozen=True, tag="started", tag_field="kind"):
    """A command is being started beside a task; `name` identifies it for input."""

    name: str


class ExecOutput(msgspec.Struct, frozen=True, tag="output", tag_field="kind"):
    """Bytes that the command wrote to one of its streams, `out` or `err`."""

    stream: str
    data: bytes


class ExecEnd(msgspec.Struct, frozen=True, tag="end", tag_field="kind"):
    """The command has ended with this exit code; `note` is the reason if it did not end by itself."""

    exit_code: int
    note: str = ""


ExecLine = ExecStarted | ExecOutput | ExecEnd


# --- explanations: durations are nanoseconds from now, `revision` is that of the view behind the decision -----------


class Foreseen(msgspec.Struct, frozen=True, kw_only=True):
    """A predicted amount, its mean deviation, and its source, as in `Estimate`. Both are None if the source is
    `default`: there is no data.
    """

    mean: int | None
    deviation: int | None
    source: str

    def text(self, form: Callable[[int], str]) -> str:
        """`5m ± 1m`, or `unknown`."""
        if self.mean is None or self.deviation is None:
            return "unknown"
        return f"{form(self.mean)} ± {form(self.deviation)}"


class Prediction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Predicted needs of a task: its run time in nanoseconds for each device model (or processor) that could run it;
    memory in bytes, CPU in milli-CPU and device use in thousandths, learned from `runs` finished runs of its class.
    """

    run: dict[str, Foreseen]
    runs: int = 0
    memory: Foreseen | None = None
    cpu: Foreseen | None = None
    device: Foreseen | None = None


class Start(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When the first of the units starts, in nanoseconds from now: a tenth of the `futures` start before `earliest`,
    half before `likely`, nine tenths before `latest`. None if too few futures start it, with the reason in `why`; an
    `earliest` alone is a lower bound. `guesses` names units with unknown run times that end before it; then all three
    are None. `preempts` names running units that are preempted for it in at least half of the futures, `preempts_in`
    maps each to the median time until then, in nanoseconds from now. `displaced` maps units preempted before that to
    the unit that displaces them.
    """

    earliest: int | None = None
    likely: int | None = None
    latest: int | None = None
    why: str = ""
    guesses: tuple[str, ...] = ()
    preempts: tuple[str, ...] = ()
    preempts_in: Mapping[str, int] = {}
    displaced: Mapping[str, str] = {}
    futures: int = 0


class Refusing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Identical nodes that refuse one task for the same reasons; `nodes` names some of the `count`."""

    count: int
    nodes: tuple[str, ...]
    reasons: tuple[Reason, ...]


class Freeing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A running unit whose end frees resources: its nodes, and the expected time left with its source. `overrun`: it
    has run longer than predicted and is re-estimated. `protected`: the reason why it is not preempted now although its
    class is lower.
    """

    unit: str
    nodes: tuple[str, ...]
    left: Foreseen
    overrun: bool = False
    protected: Reason | None = None


class Ahead(msgspec.Struct, frozen=True):
    """A unit that is served before another one, and the reason for its position."""

    unit: str
    why: str


class Waiting(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Identical waiting units of a job; `named` names some of the `count`. All other fields describe the first of them.

    `ahead` counts the units that are served before it, `first` names the first of them. `share` is the share that is
    served first, with the reason.
    """

    count: int
    named: tuple[str, ...]
    asks: str
    reasons: tuple[Reason, ...]
    place: str = ""
    ahead: int = 0
    first: tuple[Ahead, ...] = ()
    refusing: tuple[Refusing, ...] = ()
    frees: tuple[Freeing, ...] = ()
    start: Start | None = None
    prediction: Prediction | None = None
    share: str = ""


class Going(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A unit that holds resources: its nodes, its `artifact` if there are several, the time since its start, the time
    left, and why it was placed there.
    """

    unit: str
    status: str
    nodes: tuple[str, ...]
    elapsed: int
    left: Foreseen
    overrun: bool = False
    why: Why | None = None
    reasons: tuple[Reason, ...] = ()
    prediction: Prediction | None = None
    artifact: str = ""


class Told(msgspec.Struct, frozen=True):
    """A past event and its time (seconds since 1970)."""

    at: float
    text: str


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Full explanation of a job: why it waits and what frees resources, why it runs where it does, and its history.

    `left_out` counts entries that were left out for brevity; none if everything was requested.
    """

    job: str
    name: str
    status: str
    revision: int
    policy: str
    waiting: tuple[Waiting, ...] = ()
    running: tuple[Going, ...] = ()
    story: tuple[Told, ...] = ()
    left_out: int = 0


class WhyNot(msgspec.Struct, frozen=True, kw_only=True):
    """Why a unit is not on a node: every reason; or it fits there but scores lower than the `chosen` node, if any. If
    its work has several artifacts, `artifact` would be started there and `chosen_artifact` on the chosen node.
    """

    job: str
    unit: str
    node: str
    revision: int
    fits: bool
    reasons: tuple[Reason, ...] = ()
    score: float | None = None
    chosen: str = ""
    chosen_score: float | None = None
    text: str = ""
    artifact: str = ""
    chosen_artifact: str = ""


class PlannedPlace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Units that would be placed in the same way: where, and why. `queued`: behind others of their shape."""

    count: int
    named: tuple[str, ...]
    spots: tuple[Spot, ...]
    why: Why
    queued: bool = False
    artifact: str = ""


class PlannedYield(msgspec.Struct, frozen=True, kw_only=True):
    """A unit that would be preempted, for which unit, and the cost."""

    unit: str
    to: str
    why: Why


class PlannedLater(msgspec.Struct, frozen=True, kw_only=True):
    """Units that wait for other units of the job, or for other jobs."""

    count: int
    named: tuple[str, ...]
    reasons: tuple[Reason, ...]


class PlanReport(msgspec.Struct, frozen=True, kw_only=True):
    """The effects of submitting a job now. Nothing has been done. `retries` says what would be retried where
    that is not the default, and alike for all its tasks.
    """

    revision: int
    policy: str
    places: tuple[PlannedPlace, ...]
    yields: tuple[PlannedYield, ...]
    waits: tuple[Waiting, ...]
    later: tuple[PlannedLater, ...]
    note: str = ""
    retries: str = ""


class Suggestion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change with which a unit starts, verified by a trial decision.

    `kind`: open, memory, cpu, gpus, gpu_memory, network, wishes, smaller, workers, priority, end or node. `size` is the
    fraction of the request that is given up (`priority`: classes, as a fraction of all; `end`: hours of work lost),
    `command` is the command to type, `yields` names units that are preempted then.
    """

    kind: str
    text: str
    size: float
    command: str = ""
    nodes: tuple[str, ...] = ()
    yields: tuple[str, ...] = ()


class UnblockReport(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest change of each kind that lets a unit start now, smallest first. `text` is set if there is no such
    change or none is needed, and says what a unit on a lost node waits for.
    """

    job: str
    unit: str
    revision: int
    suggestions: tuple[Suggestion, ...] = ()
    text: str = ""


class ServiceReport(msgspec.Struct, frozen=True, kw_only=True):
    """A service, or its version on trial, and its figures for the last `window` nanoseconds. `rate`: answers per
    second, including cached ones. `answered`: answers of the model, `failed`: those with an error, `faulty`: those with
    status 500 and above, `cached`: answers from the cache. `p50`, `p95` and `p99`: latencies from arrival to answer, in
    nanoseconds, 0 without answers; deferred requests and cached answers do not count. `refused`: requests without an
    answer, by reason. `objective`: the upper limit of `p99`, 0 for none. `waiting` and `serving`: current requests.
    `replicas` are ready, `started` were requested; `jobs` are their ids.
    """

    service: str
    url: str
    window: int
    rate: float
    answered: int
    failed: int
    cached: int
    p50: int
    p95: int
    p99: int
    objective: int
    refused: Mapping[str, int]
    replicas: int
    started: int
    waiting: int
    serving: int
    batches: int
    batch_mean: float
    batch_max: int
    jobs: tuple[str, ...] = ()
    faulty: int = 0

    @property
    def met(self) -> bool:
        """Whether the objective is met in this window; True without answers or without an objective."""
        return not self.objective or self.p99 <= self.objective
