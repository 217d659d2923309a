"""What `ls`, `show` and `nodes` tell, as records: the command line and the API only draw them.

Times of day are seconds since 1970 (0: not yet), durations are nanoseconds.
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
"""What a task is, and what that means. All of a job is one of them too."""


class AttemptReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An earlier attempt and how it ended."""

    epoch: int
    node: str
    outcome: str
    run: int = 0
    note: str = ""


class TaskReport(msgspec.Struct, frozen=True, kw_only=True):
    """One task: what ran where and when, and why it was placed there or still waits. `artifact` is the one of several
    that was started, `sweep` what it tries of a sweep, `pid` its process, if it has one now. `time_limit` is how long
    an attempt may run, in nanoseconds (0: without limit), `retries` says what is retried, and how often, `input` what
    it takes input from (empty: it takes none). `expected` is 0 where nothing is known of the run time.
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
    """The calls of a job that serves them: how many are open, done and failed, and the mean time that one that is done
    took, in nanoseconds. `closed` says why no more will come; empty while they may.
    """

    open: int
    done: int
    failed: int
    mean: int
    functions: tuple[str, ...] = ()
    closed: str = ""


class TrainingReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a unit said of its training, and when that was heard (seconds since 1970)."""

    unit: str
    heard: float
    said: Training


class JobReport(msgspec.Struct, frozen=True, kw_only=True):
    """One job. `exit_code` is what `poise wait` ends with: 0, or the first failed task's; none while unfinished. `note`
    is what the user was told when it was submitted, `user` what the client called them. `retries`: see `PlanReport`.
    `secrets` are names.
    `remaining` is the expected run time of the rest of the critical path; None where a run time in it is unknown.
    `hold`: it is on hold, and what of it has not started does not start.
    `unnotified` are notices that could not be delivered, each with the reason. `tree` is the hash of the files that it
    brings along.
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
"""The statuses of a job: the most telling of its tasks'. `idle` workers wait for calls. A job is `skipped` when one
that it comes after has not ended as it had to.
"""


class DeviceReport(msgspec.Struct, frozen=True, kw_only=True):
    """One accelerator: what it can do, and who holds it. Units as in `Device`; `per_watt` is peak operations per joule
    by precision. `sources` tells of each figure that is known (`rates.fp16`) who said it: `declared`, `measured`,
    `driver` or `catalogue`. `cordoned` says why it gives no room, where it does not.
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
    `next` is when it is due (0: it is `held`), `last_due` when it was, in seconds since 1970. `jobs` counts those that
    it has submitted; `last_job` is the latest, with its status (empty: it has been removed). `refused` says why the
    last turn submitted none.
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
    """What the work of a tenant may hold at once (none: without bound), and what it holds. CPU in milli-CPU, memory in
    bytes, devices as a number, of which shares are parts.
    """

    tenant: str
    cpu: int | None
    memory: int | None
    gpu: float | None
    cpu_held: int
    memory_held: int
    gpu_held: float


class ShareReport(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the tree of shares. `within` names the one above it, `depth` counts those. Amounts are numbers of
    devices by model, `gpu` for any model, and cores of work without devices (`cpu`). `share` is its part of the weights
    beside it; `used` its part of what these owe (none: nobody owes anything). `borrows` is in dollars per hour, `debt`
    in dollars. `rank` is 1 for the one that is served first of those beside it.
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
    """The shares in force, each after the one above it. `half_life` is in nanoseconds, `prices` are in dollars per hour
    by model of device. `notes` say what does not add up.
    """

    shares: tuple[ShareReport, ...] = ()
    half_life: int = 0
    prices: dict[str, float] = {}
    notes: tuple[str, ...] = ()


class SharesRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a file of shares."""

    document: dict[str, Any]


class ShareForeseen(msgspec.Struct, frozen=True, kw_only=True):
    """A share with work that waits: how many units were looked at, and for how long these wait from now on (median, in
    nanoseconds), with the shares as they are and as they would be. None: that cannot be said.
    """

    name: str
    units: int
    now: int | None
    then: int | None


class SharesForeseen(msgspec.Struct, frozen=True, kw_only=True):
    """What other shares would change, from futures of the twin."""

    shares: tuple[ShareForeseen, ...]
    futures: int


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """What work held: `device_hours`, and `core_hours` of work without devices. `charge` in dollars is by the prices of
    devices, as declared in the fleet file, else in the shares, else by the catalogue. Fields that were not asked for
    are empty. `day` is a date in UTC.
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
    """Who asks: the tenant and role that a token is bound to, and its id and name (none: the home's own). `expires` as
    of `TokenReport`.
    """

    tenant: str
    role: str
    token: str
    name: str
    expires: float


class TokenReport(msgspec.Struct, frozen=True, kw_only=True):
    """A token that was given to somebody; nobody knows its secret but them. `expires` and `revoked` are 0 for never."""

    id: str
    tenant: str
    role: str
    name: str
    expires: float
    expired: bool
    revoked: float


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """Something that somebody asked for: when, `what`, and who by the id, name and tenant of their token (no id: that
    of the home).
    """

    revision: int
    at: float
    token: str
    name: str
    tenant: str
    what: str


class Refusal(msgspec.Struct, frozen=True):
    """A request that was refused before it was looked at: the code of its error, and whose token it carried, if any."""

    at: float
    code: str
    path: str
    token: str
    tenant: str


class RefusalsReport(msgspec.Struct, frozen=True):
    """How many requests were refused since the control plane started, by code, and the latest of them."""

    counts: dict[str, int]
    latest: tuple[Refusal, ...]


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """One node: what it has, what is taken. CPU in milli-CPU, memory in bytes; the rest as in `Node`.

    `level` is low, medium or high, `load` what it was made from; empty and none where the node has not said. `failures`
    is the smoothed share of attempts that failed there, in thousandths. `upkeep` is what its agent costs itself,
    `unfit` why it can start nothing.
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
    """A job, or some of its tasks, got new values: how many units did, and how many `running` ones keep what they hold
    or were started with, until they are started again.
    """

    job: str
    units: int
    running: int


class Drained(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node, or a device of one (`n1:0`), that was closed or opened. Of one that is being emptied, how many of its
    tasks go on elsewhere once there is room (`moves`), and how many go on there to their end (`stays`).
    """

    node: str
    moves: int = 0
    stays: int = 0


def report_of(node: Node, *, held_by: Mapping[int, str] | None = None) -> NodeReport:
    """What a node offers, with nothing taken of it; `held_by` names who holds a device, by its index."""
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
    """One thing that `poise doctor` looked at: what was found, and what to type where that is not well."""

    name: str
    status: Literal["ok", "warn", "fail"]
    text: str
    hint: str = ""


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `poise doctor` found; `well` if nothing failed."""

    well: bool
    checks: tuple[Check, ...]


class PhaseTimes(msgspec.Struct, frozen=True):
    """How long a phase took lately, in nanoseconds, over `count` rounds or commits: half of them at most `p50`, 99 of
    100 at most `p99`.
    """

    count: int
    p50: int
    p99: int
    most: int


class StatusReport(msgspec.Struct, frozen=True, kw_only=True):
    """Status of the control plane. `unfinished` counts jobs, `pending` units that could be placed, `active` units
    that hold room. `policy` decides; `fleet` is the declared one, empty for this machine. Without `up` no control plane
    of the home runs, and it is what another one says, or else the log. One that `stands_by` tells what the one that
    leads has written. `leader` is the address of the one that leads in its place, where it is known. `held` nodes have
    been silent for too long, and are not given up yet: most of the fleet is missing, or nodes are still coming back.
    `elsewhere` counts nodes that have joined with a token of their own: they see the files of another machine. Those
    of the substrate of `--on` do not count.
    `phases` says how long the phases of its rounds took lately (`view`, `decide`, `wait`, `apply`), and of its commits
    (`append`, `sync`).
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
    """The policy that decides: its name in the log, which ends with a digest where it is from a file or from a package,
    and the content of the file. `asked` is when somebody asked for it, in seconds since 1970; 0 for the default.
    """

    policy: str
    asked: float = 0.0
    recipe: dict[str, Any] = {}


class RuleFiring(msgspec.Struct, frozen=True, kw_only=True):
    """The last time that a rule fired for a `subject`: a node, or empty for the fleet. `outcome` is `done`, `shadow`,
    `asked` or `denied`, and `have` what the rule saw. `actions` were carried out; `failed` says why others were not.
    `over`: it has ended, and the actions are undone. `at` in seconds since 1970.
    """

    subject: str
    at: float
    outcome: str
    have: str
    actions: tuple[str, ...] = ()
    failed: str = ""
    over: bool = False


class RuleReport(msgspec.Struct, frozen=True, kw_only=True):
    """A rule and how it stands. `why_not` says why it does not act now. `firings` are its latest, the last first."""

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
    """The answer to what a rule asks for a `subject`: a node, or empty for the fleet."""

    rule: Annotated[str, msgspec.Meta(max_length=128)]
    allowed: bool
    subject: Annotated[str, msgspec.Meta(max_length=256)] = ""


class RuleDone(msgspec.Struct, frozen=True, kw_only=True):
    """What was carried out."""

    rule: str
    subject: str
    actions: tuple[str, ...] = ()


class TestedChange(msgspec.Struct, frozen=True, kw_only=True):
    """A firing in a test on a log, or the end of one (`over`). `at` in seconds since 1970."""

    at: float
    rule: str
    subject: str
    have: str
    over: bool = False


class TestedRule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule on a log: how often it fired, what it would have done, and how often it flapped, that is, fired again for
    the same subject within an hour of its end. `open` firings had not ended with the log.
    """

    name: str
    mode: str
    firings: int
    actions: dict[str, int]
    flaps: int
    open: int


class RulesEffect(msgspec.Struct, frozen=True, kw_only=True):
    """What rules change: `jobs` simulated without them (`live` of the figures) and with them (`shadow`), each job in
    both, with intervals that hold a part `level`. `firings` counts those with the rules in force, by rule. Without
    figures the jobs were too few.
    """

    jobs: int
    level: float
    firings: dict[str, int]
    figures: tuple["PairedFigure", ...] = ()


class RulesTest(msgspec.Struct, frozen=True, kw_only=True):
    """Rules on a log: revisions `first` to `last` and the `hours` that they span, the number of evaluations, and the
    first of all `changes` in order. `conflicts` are subjects on which several rules stood at once. `missing` are
    signals that the log does not have. `effect` is there if it was asked for.
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
    """A view, by its revision, on which two policies decide differently: what only one of them does."""

    revision: int
    live: tuple[str, ...]
    shadow: tuple[str, ...]


class PairedFigure(msgspec.Struct, frozen=True, kw_only=True):
    """A figure under the policy that decides (`live`) and under the other one (`shadow`): nanoseconds, a count or a
    share. Less is better, except of `use`. The `difference` lies between `low` and `high`.
    """

    name: str
    of: Literal["time", "count", "share"]
    live: float
    shadow: float
    difference: float
    low: float
    high: float


class WorldReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The simulated fleet of a policy in shadow, beside that of the policy that decides: `hours` of both, up to `at`
    (seconds since 1970), which was `late` seconds ago. The intervals of the `figures` hold a part `level`; there are no
    figures of few `jobs`, of which `ended` have ended in both. The run times of `guessed` units were estimated, and
    those of `converted` ones were seen on another model of device. `left_out` counts what it does not follow, by kind.
    `failed` says why the policy decides no more there. `cpu` is the part of a core that it took.
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
    """A policy in shadow, `since` a time in seconds since 1970. Of the `rounds` in which it was
    asked, it decided the `same` as the policy in charge. `live_alone` and `shadow_alone` count decisions that only one
    of the two made. Views were `passed_over` while it was busy or resting, and in `failed` rounds it had no plan.
    `differences` are the latest, and `units` those on which the two differed most often. `world` is there once there is
    something to tell of its simulated fleet.
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
    """A request to let a policy in shadow decide; with `force`, whatever its figures say."""

    force: bool = False


class PolicyRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The policy that is to decide: its `name`, or the content of a policy file."""

    name: Annotated[str, msgspec.Meta(max_length=128)] = ""
    document: dict[str, Any] | None = None


class NodeUse(msgspec.Struct, frozen=True, kw_only=True):
    """A node and how much of it is taken, in the units of `NodeReport`; `devices_used` counts those that somebody
    holds, whole or in part.
    """

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
    """A task that holds room: where, which devices, since when, and the expected run time in nanoseconds
    (0: unknown). `pid` is its process, once it has one.
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
    """A unit that waits for room, since when in nanoseconds, and the first reason why."""

    unit: str
    user: str
    priority: str
    wait: int
    why: str


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks that wait for room and ask for the same: `cpu` in milli-CPU, `memory` in bytes, `gpus`, and `where` as its
    user said (empty: anywhere). `shape` is all that each of them asks for. So many start `together`.

    `work` is the sum of their expected run times, and `longest` the time that nearly all of them stay under, in
    nanoseconds. Of `unknown` tasks neither history nor a declaration tells the run time; they count as none.
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
    """The work that `waits`, by what it asks for. `busy` has each node on which something runs, with the nanoseconds
    until the first of it is expected to end.
    """

    waits: tuple[Demand, ...]
    busy: dict[str, int]


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request for machines, which a substrate has made of its system, or cannot make: which one, and its state. It is
    expected to be met at `starts` (seconds since 1970; 0: unknown). One that is `refused` is not met unless something
    changes.
    """

    text: str
    starts: int = 0
    refused: bool = False

    def sentence(self, now: float) -> str:
        """The text, and in how long it is expected to be met."""
        left = round(self.starts - now)
        return f"{self.text}, expected to start in {format_duration(left * SECOND)}" if left > 0 else self.text


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """What `poise top` shows. `queue` counts units that wait for room, by class; `blocked` those that wait for others.

    `starts`, `ends` and `returns` are tasks placed, tasks ended and calls returned, for each second of the latest few.
    Of nodes, tasks and units that wait the first ones are told: the fullest nodes, the oldest tasks, who is served
    first; `more_` counts the others.
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
    """Nodes and jobs, without tasks, that events have changed up to `revision`; the `gone_` ones are no longer known.
    `whole`: too much has changed to list it, and nothing is listed; ask for everything instead.
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
    """The job is over (or was not followed): no more comes. `exit_code` is none while it is unfinished."""

    exit_code: int | None


LogLine = LogPiece | LogEnd


class InputReport(msgspec.Struct, frozen=True):
    """How much of its input the attempt `epoch` of a task has `taken`, in bytes, and whether it takes more. `epoch` is
    0 while the task does not run, `taken` -1 while its node says nothing. `over`: it will not run any more.
    """

    epoch: int = 0
    taken: int = -1
    wanted: bool = True
    over: bool = False


class ExecStarted(msgspec.Struct, frozen=True, tag="started", tag_field="kind"):
    """A command is being started beside a task; `name` is what it goes by where it is given input."""

    name: str


class ExecOutput(msgspec.Struct, frozen=True, tag="output", tag_field="kind"):
    """Bytes that it wrote to one of its streams, `out` or `err`."""

    stream: str
    data: bytes


class ExecEnd(msgspec.Struct, frozen=True, tag="end", tag_field="kind"):
    """It has ended with this exit code; `note` is why, where that is not its own doing."""

    exit_code: int
    note: str = ""


ExecLine = ExecStarted | ExecOutput | ExecEnd


# --- explanations: durations are nanoseconds from now, `revision` is that of the view on which was decided ---------


class Foreseen(msgspec.Struct, frozen=True, kw_only=True):
    """A foreseen amount, its mean deviation, and where it comes from, as in `Estimate`. Both are None where the source
    is `default`: nothing is known of it.
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
    """What a task is foreseen to take: its run time in nanoseconds by model of device (or of processor) that could run
    it; memory in bytes, CPU in milli-CPU and device use in thousandths where `runs` finished runs of its class told.
    """

    run: dict[str, Foreseen]
    runs: int = 0
    memory: Foreseen | None = None
    cpu: Foreseen | None = None
    device: Foreseen | None = None


class Start(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When the first of the units starts, in nanoseconds from now: a tenth of so many `futures` is before `earliest`,
    half before `likely`, nine tenths before `latest`. None where it does not start in as many, and `why`; an `earliest`
    alone is a bound. `guesses` names units that end before it and of whose run time nothing is known; then all
    three are None. `preempts` names running units that are preempted for it in at least half of the futures,
    `preempts_in` has the median time until then of each, in nanoseconds from now. `displaced` are those that are
    preempted before that, with the unit for which they are.
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
    """Nodes that are alike and refuse one task for the same reasons; `nodes` names some of the `count`."""

    count: int
    nodes: tuple[str, ...]
    reasons: tuple[Reason, ...]


class Freeing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A running unit whose end makes room: on which nodes, expected when, known from where. `overrun`: it has taken
    longer than foreseen, and is estimated anew. `protected`: why it is of a lower class and is still not preempted now.
    """

    unit: str
    nodes: tuple[str, ...]
    left: Foreseen
    overrun: bool = False
    protected: Reason | None = None


class Ahead(msgspec.Struct, frozen=True):
    """A unit that is served before another, and why it stands where it does."""

    unit: str
    why: str


class Waiting(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Units of a job that are alike and wait; `named` names some of the `count`. Everything else is told of the first.

    `ahead` counts the units that are served before it, `first` names the first of them. `share` says which share is
    served first, and why.
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
    """A unit that holds room: where, in which `artifact` of several, and since when, what is left of it, and why it was
    placed there.
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
    """Something that has happened, and when (seconds since 1970)."""

    at: float
    text: str


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """All there is to say of a job: why it waits and what frees it, why it runs where it does, what happened to it.

    `left_out` counts what was not told because it is much; asked for all, nothing is left out.
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
    """Why a unit is not on a node: every reason; or it fits there, and scores less than the `chosen` node, if any. Of
    work that has several artifacts, `artifact` would be started there, `chosen_artifact` is on the chosen one.
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
    """Units that would be placed alike: where, and why. `queued`: behind their like."""

    count: int
    named: tuple[str, ...]
    spots: tuple[Spot, ...]
    why: Why
    queued: bool = False
    artifact: str = ""


class PlannedYield(msgspec.Struct, frozen=True, kw_only=True):
    """A unit that would be asked to yield, for whom, and what is lost by that."""

    unit: str
    to: str
    why: Why


class PlannedLater(msgspec.Struct, frozen=True, kw_only=True):
    """Units that wait for others: for which units of the job, or for which jobs."""

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
    """A change with which a unit starts, found by deciding on it.

    `kind`: open, memory, cpu, gpus, gpu_memory, network, wishes, smaller, workers, priority, end or node. `size` is the
    share of what was asked that is given up (of `priority`: classes, as a share of all; of `end`: hours of work that
    are lost), `command` what can be typed, `yields` who is asked to yield then.
    """

    kind: str
    text: str
    size: float
    command: str = ""
    nodes: tuple[str, ...] = ()
    yields: tuple[str, ...] = ()


class UnblockReport(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest change of each kind that lets a unit start now, the smallest first; `text` where there is none, or
    none is needed, and for a unit on a lost node what it waits for.
    """

    job: str
    unit: str
    revision: int
    suggestions: tuple[Suggestion, ...] = ()
    text: str = ""


class ServiceReport(msgspec.Struct, frozen=True, kw_only=True):
    """A service, or the version of it that is on trial, and its figures for the last `window` nanoseconds. `rate`:
    answers per second, those from the cache included. `answered`: answers of the model, `failed`: those of them with an
    error, `faulty`: those with status 500 and above, `cached`: answers from the cache. `p50`, `p95` and `p99`:
    latencies from when a request came to when its answer was there, in nanoseconds, 0 without answers; deferred
    requests and answers from the cache do not count.
    `refused`: requests without an answer, by reason. `objective`: the latency that `p99` shall not exceed, 0 for none.
    `waiting` and `serving`: requests at this moment. `replicas` are ready, `started` are those that were asked for;
    `jobs` are their ids.
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
        """Whether the objective holds in this window; also where there are no answers, or no objective."""
        return not self.objective or self.p99 <= self.objective
