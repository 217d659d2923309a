"""Reports on jobs, nodes and the control plane, as records. The command line and the API only render them.

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
    that have not started do not start. `unnotified` has the notices that could not be delivered, each with the reason.
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


class DeviceReport(msgspec.Struct, frozen=True, kw_only=True):
    """An accelerator: its capabilities, and its current holder. Units as in `Device`; `per_watt` is peak operations per
    joule by precision. `sources` has the source of each known figure (`rates.fp16`): `declared`, `measured`, `driver`
    or `catalogue`. `cordoned` is the reason why it accepts no work; empty if it does.
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


class BudgetReport(msgspec.Struct, frozen=True, kw_only=True):
    """A budget in its period. `amount`, `spent` and `rate` (per hour, at present) are in its `unit`; `share` is the
    spent fraction. `begins`, `ends` and `runs_out` are in seconds since 1970; it `runs_out` at the mean rate since the
    start of counting (0: not within the period). `holding` is the number of jobs on hold because of it.
    """

    name: str
    tenant: str
    project: str
    user: str
    unit: str
    amount: float
    spent: float
    share: float
    rate: float
    every: str
    time_zone: str
    begins: float
    ends: float
    runs_out: float
    alerts: tuple[int, ...]
    reached: int
    at_limit: str
    holding: int


class BudgetsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All budgets, as the content of a file of budgets."""

    document: dict[str, Any]


class QuotaReport(msgspec.Struct, frozen=True, kw_only=True):
    """The quota of a tenant in force now (None: no limit), and its current use. CPU is in milli-CPU, memory in bytes,
    and `gpu` in devices, where a share of a device is a fraction. `hours` are hours with other amounts, `now_in` those
    in force.
    """

    tenant: str
    cpu: int | None
    memory: int | None
    gpu: float | None
    cpu_held: int
    memory_held: int
    gpu_held: float
    hours: tuple[str, ...] = ()
    time_zone: str = ""
    now_in: str = ""


class ShareReport(msgspec.Struct, frozen=True, kw_only=True):
    """A node in the tree of fair shares. `within` is the name of its parent, and `depth` the number of its ancestors.
    Amounts are numbers of devices by model, `gpu` for any model, and `cpu` for the cores of work without devices.
    `share` is its fraction of the weights of its siblings and itself. `used` is its fraction of their total debt (None:
    there is no debt). `borrows` is in dollars per hour, `debt` in dollars. `rank` is its position among its siblings; 1
    is served first.
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
    """The fair shares in force; each follows its parent. `half_life` is in nanoseconds; `prices` are in dollars per
    hour, by device model. `notes` lists inconsistencies.
    """

    shares: tuple[ShareReport, ...] = ()
    half_life: int = 0
    prices: dict[str, float] = {}
    notes: tuple[str, ...] = ()


class SharesRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a shares file."""

    document: dict[str, Any]


class ShareForeseen(msgspec.Struct, frozen=True, kw_only=True):
    """The forecast for a share with waiting work. `units` is the number of units examined. `now` and `then` are their
    median waiting times from now on, in nanoseconds, under the current shares and under the proposed ones; None:
    unknown.
    """

    name: str
    units: int
    now: int | None
    then: int | None


class SharesForeseen(msgspec.Struct, frozen=True, kw_only=True):
    """The forecast effect of other shares, from `futures` simulated by the digital twin."""

    shares: tuple[ShareForeseen, ...]
    futures: int


class ReservationReport(msgspec.Struct, frozen=True, kw_only=True):
    """A reservation, and its current or next window, from `begins` to `ends` (seconds since 1970; 0: no end). `places`
    are its nodes (`n1`) or devices (`n1:0`) then. `windows` is the number of windows to come, and `elsewhere` how many
    of them have other places than usual. `release_after` is in nanoseconds. `chance` is the probability in thousandths
    that the places are free of other work at the start (None: not computed), from `futures` simulated futures.
    `without` are the excluded starts to come. Only its own tenant and operators see more than its id, times and places.
    """

    id: str
    begins: float
    ends: float
    places: tuple[str, ...]
    name: str = ""
    tenant: str = ""
    maintenance: bool = False
    wants: str = ""
    soft: bool = False
    every: str = ""
    time_zone: str = ""
    windows: int = 1
    elsewhere: int = 0
    begun: bool = False
    known: bool = False
    release_after: int = 0
    lacks: tuple[str, ...] = ()
    without: tuple[float, ...] = ()
    chance: int | None = None
    futures: int = 0


class ReservationsRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a reservations file."""

    document: dict[str, Any]


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """Resources used by work: `device_hours`, and `core_hours` of work without devices. `charge` is in dollars. Device
    prices come from the fleet file, otherwise from the shares, otherwise from the catalogue. Fields that were not
    requested are empty. `day` is a date in UTC.
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
    """The identity of the client: the tenant and role of its token, and the token's id and name (empty: the home's own
    token). `expires` and `account` are as in `TokenReport`. `accounts`: a token of this home has named an account.
    """

    tenant: str
    role: str
    token: str
    name: str
    expires: float
    account: str = ""
    accounts: bool = False


class TokenReport(msgspec.Struct, frozen=True, kw_only=True):
    """A created token. Only its holder has the secret. `expires` and `revoked` are in seconds since 1970; 0: never. Its
    commands run as the Unix `account`, or as the user of the node's agent (empty).
    """

    id: str
    tenant: str
    role: str
    name: str
    expires: float
    expired: bool
    revoked: float
    account: str = ""


class SignInCode(msgspec.Struct, frozen=True, kw_only=True):
    """The start of a sign-in: open `url` in any browser, and enter `user_code`; `whole_url`, if known, already contains
    the code. Ask for the result with `device_code` every `interval` seconds, for `expires_in` seconds.
    """

    device_code: str
    user_code: str
    url: str
    whole_url: str = ""
    interval: float
    expires_in: float


class PageReport(msgspec.Struct, frozen=True):
    """The page of the issuer where a browser signs in."""

    url: str


class SignInReport(msgspec.Struct, frozen=True, kw_only=True):
    """A token for a person who has signed in. It lasts `lasts` seconds; `refresh`, if the issuer sent one, renews it.
    Or `pending`: the person has not entered the code yet; if `slower`, ask five seconds less often.
    """

    pending: bool = False
    slower: bool = False
    token: str = ""
    name: str = ""
    tenant: str = ""
    role: str = ""
    account: str = ""
    lasts: float = 0.0
    refresh: str = ""


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """A requested change: its time, what was requested, and the id, name and tenant of the token (empty id: the token
    of the home).
    """

    revision: int
    at: float
    token: str
    name: str
    tenant: str
    what: str


class Refusal(msgspec.Struct, frozen=True):
    """A request that was refused before it was processed: its error code, and the token that it carried, if any."""

    at: float
    code: str
    path: str
    token: str
    tenant: str


class RefusalsReport(msgspec.Struct, frozen=True):
    """The number of requests refused since the control plane started, by error code, and the latest of them."""

    counts: dict[str, int]
    latest: tuple[Refusal, ...]


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """A node: its resources and their use. CPU is in milli-CPU, memory in bytes; the rest is as in `Node`.

    `level` is low, medium or high, and `load` the measurements behind it; empty and None if the node has not reported.
    `failures` is the smoothed share of failed attempts there, in thousandths. `upkeep` is the resource use of the agent
    itself. `unfit` is the reason why the node can start no work. `images` is the number of names and digests of
    container images that it has.
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
    images: int = 0


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    """The result of changing a job, or some of its tasks. `units` is the number of changed units. `running` is the
    number of running units that keep their resources and start options until they restart.
    """

    job: str
    units: int
    running: int


class Drained(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node, or a device of a node (`n1:0`), that was closed or opened. For a node that is being drained, `moves` is
    the number of its tasks that continue elsewhere once there is room. `stays` is the number of tasks that run there to
    their end.
    """

    node: str
    moves: int = 0
    stays: int = 0


def report_of(node: Node, *, held_by: Mapping[int, str] | None = None) -> NodeReport:
    """Return the report of a node on which nothing runs. `held_by` maps the index of a device to its holder."""
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
    """A check of `poise doctor`: the finding, and a hint to type if something is wrong."""

    name: str
    status: Literal["ok", "warn", "fail"]
    text: str
    hint: str = ""


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of `poise doctor`; `well` is true if no check failed."""

    well: bool
    checks: tuple[Check, ...]


class PhaseTimes(msgspec.Struct, frozen=True):
    """Recent durations of a phase, in nanoseconds, over `count` rounds or commits: median, 99th percentile and maximum
    (`most`).
    """

    count: int
    p50: int
    p99: int
    most: int


class StatusReport(msgspec.Struct, frozen=True, kw_only=True):
    """Status of the control plane. `unfinished` counts jobs, `pending` units that could be placed, and `active` units
    that hold resources. `policy` is the current scheduling policy. `fleet` is the declared fleet, empty for this
    machine. Without `up`, no control plane of the home runs, and the status comes from another control plane, or else
    from the log. With `stands_by`, this is a standby that shows the state written by the leader. `leader` is the
    address of the leader, if another control plane leads and the address is known. `held` counts nodes that have
    exceeded the heartbeat timeout but are not given up yet, because most of the fleet is missing or nodes are still
    coming back. `elsewhere` counts nodes that joined with their own token and see the files of another machine; nodes
    of the substrate of `--on` do not count. `phases` has the recent durations of the phases of a round (`view`,
    `decide`, `wait`, `apply`) and of a commit (`append`, `sync`).
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


class TrialReport(msgspec.Struct, frozen=True, kw_only=True):
    """A trial on a part of the nodes: `policy` decides for the selected `nodes`, `rest` for the others. `on` are the
    names of the nodes for which it decides now, and `lent` of those for which `rest` decides until their work has
    ended. While the trial is `paused`, for this reason, `rest` decides for all nodes.
    """

    policy: str
    rest: str
    nodes: str
    on: tuple[str, ...] = ()
    lent: tuple[str, ...] = ()
    paused: str = ""


class PolicyReport(msgspec.Struct, frozen=True, kw_only=True):
    """The current scheduling policy: its name in the log, and the content of its file. The name ends with a digest if
    the policy comes from a file or a package. `asked` is the time of the request for it, in seconds since 1970; 0 for
    the default. `trial` is set while two policies decide, each for a part of the nodes.
    """

    policy: str
    asked: float = 0.0
    recipe: dict[str, Any] = {}
    trial: TrialReport | None = None


class RuleFiring(msgspec.Struct, frozen=True, kw_only=True):
    """The last firing of a rule for a `subject`: a node, a service, or empty for the fleet. `outcome` is `done`,
    `shadow`, `asked`, `denied`, or `adjusted` after it has changed memory limits again. `have` is the observation that
    triggered it. `actions` were carried out; `failed` is the reason why others were not. `over` means that it has ended
    and its actions are undone. `at` is in seconds since 1970. While it asks for approval, `answer` is the command that
    gives it; `deny` in the place of `approve` refuses it.
    """

    subject: str
    at: float
    outcome: str
    have: str
    actions: tuple[str, ...] = ()
    failed: str = ""
    over: bool = False
    answer: str = ""


class RuleReport(msgspec.Struct, frozen=True, kw_only=True):
    """A rule and its state. It is `about` each `node`, each `service` or the `fleet`; `scope` is the same, or the names
    of its nodes or services. `why_not` is the reason why it does not act now. `knob` is the value that its control loop
    has set. `firings` are its latest firings, latest first.
    """

    name: str
    mode: str
    scope: str
    actions: tuple[str, ...]
    why_not: str = ""
    knob: str = ""
    firings: tuple[RuleFiring, ...] = ()
    about: str = "fleet"


class RulesReport(msgspec.Struct, frozen=True, kw_only=True):
    """The rules in force. `evaluated` is the time of the last evaluation in seconds since 1970; 0 before the first.
    `spent` is the number of actions in the last hour; `budget` is its limit.
    """

    rules: tuple[RuleReport, ...] = ()
    evaluated: float = 0.0
    budget: int = 0
    spent: int = 0


class ServiceOrder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A demand of a rule on a service, while the rule has fired: `by` replicas more than the service would have
    (negative: fewer), or a copy of a `share` of its requests to the service `to`.
    """

    service: str
    rule: str
    by: int = 0
    to: str = ""
    share: float = 0.0


class ServiceLeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """A service that a gateway reported and the control plane did not record, and why."""

    service: str
    why: str


class OrdersReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to a report of a gateway: what rules ask of the services of its tenant, and the reported services that
    were `left_out`.
    """

    orders: tuple[ServiceOrder, ...] = ()
    left_out: tuple[ServiceLeftOut, ...] = ()


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The place of a running attempt of a task; of a gang, that of its first member. `part` is its number in an array.
    `address` is that of its node, empty if the node is the machine of the control plane and no other machine joins.
    """

    task: str
    epoch: int
    part: int
    node: str
    address: str


class EndpointsReport(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks of a job that run and are not asked to end. `known` identifies this answer. It is not `complete` while
    nodes of some tasks have not connected yet, after the control plane has started.
    """

    known: str
    complete: bool
    endpoints: tuple[Endpoint, ...]


class RulesRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a rules file."""

    document: dict[str, Any]


class RuleAnswer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answer to a rule that asks for approval, for a `subject`: a node, or empty for the fleet."""

    rule: Annotated[str, msgspec.Meta(max_length=128)]
    allowed: bool
    subject: Annotated[str, msgspec.Meta(max_length=256)] = ""


class RuleDone(msgspec.Struct, frozen=True, kw_only=True):
    """The actions that a rule carried out."""

    rule: str
    subject: str
    actions: tuple[str, ...] = ()


class TestedChange(msgspec.Struct, frozen=True, kw_only=True):
    """A firing in a test on a log, or the end of a firing (`over`). `at` is in seconds since 1970."""

    at: float
    rule: str
    subject: str
    have: str
    over: bool = False


class TestedRule(msgspec.Struct, frozen=True, kw_only=True):
    """The test of a rule on a log: the number of firings, and the actions that it would have taken. `flaps` counts
    firings for the same subject within an hour of the end of the last one. `open` firings had not ended at the end of
    the log.
    """

    name: str
    mode: str
    firings: int
    actions: dict[str, int]
    flaps: int
    open: int


class RulesEffect(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of rules on simulated jobs. The figures compare the same `jobs` without the rules (`live`) and with
    them (`shadow`); `level` is the confidence level of their intervals. `firings` counts firings by rule, with the
    rules in force. There are no figures if there were too few jobs.
    """

    jobs: int
    level: float
    firings: dict[str, int]
    figures: tuple["PairedFigure", ...] = ()


class RulesTest(msgspec.Struct, frozen=True, kw_only=True):
    """The test of rules on a log, from revision `first` to `last`, over `hours`. It has the number of evaluations and
    the first of all `changes`, in order. `conflicts` are subjects for which several rules were active at once.
    `missing` are signals that the log does not contain. `effect` is present if it was requested.
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


class LoopResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The simulated response of a control loop with the gains of this `label`. `error` is the mean error relative to
    the target in the second half of the `steps`, `within` the fraction of these within 10 % of the target, and
    `changes` counts changes of the knob. `at` (seconds), `measured` and `output` (fraction of the range) are the
    course.
    """

    label: str
    proportional: float
    integral: float
    steps: int
    error: float
    within: float
    changes: int
    at: tuple[float, ...] = ()
    measured: tuple[float, ...] = ()
    output: tuple[float, ...] = ()


class TunedLoop(msgspec.Struct, frozen=True, kw_only=True):
    """A control loop of a rule, tuned in the twin. Under a relay, its signal oscillates with this `period` in steps of
    `every` seconds; 0: it did not oscillate, and there are no tuned gains.
    """

    rule: str
    knob: str
    signal: str
    target: float
    every: float
    period: float
    responses: tuple[LoopResponse, ...] = ()


class LoadWindow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The forecast of one window that begins `at` (seconds since 1970): the expected load with its interval, of which
    `announced` comes at known times. Without enough history, `low` and `high` are unknown. `events` are the names of
    those events of a calendar that change it.
    """

    at: float
    expected: float
    low: float | None = None
    high: float | None = None
    announced: float = 0.0
    events: tuple[str, ...] = ()


class LoadAccuracy(msgspec.Struct, frozen=True, kw_only=True):
    """How good past forecasts were, `ahead` seconds before the end of the window: the number of `judged` intervals and
    the part of them that held the load. `error` is the mean absolute error, beside that of the load one season before
    (`naive`) and of the largest of the last six windows.
    """

    ahead: float
    judged: int
    coverage: float
    error: float
    naive: float
    max_of_six: float


class LoadForecast(msgspec.Struct, frozen=True, kw_only=True):
    """The forecast of the load of a `subject` by window; `counted` are units, devices, cores, or requests per second.
    `seen` is the number of past windows, `level` that of the intervals. `seasonal`: the time of the day or of the week
    matters.
    """

    subject: str
    counted: str
    window: float
    seen: int
    level: float
    seasonal: bool
    windows: tuple[LoadWindow, ...]
    accuracy: tuple[LoadAccuracy, ...] = ()


class ShadowDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A view, by its revision, on which two policies decide differently: the decisions that only one of them makes."""

    revision: int
    live: tuple[str, ...]
    shadow: tuple[str, ...]


class PairedFigure(msgspec.Struct, frozen=True, kw_only=True):
    """A figure under the current policy (`live`) and under the other one (`shadow`): nanoseconds, a count or a share.
    Less is better, except for `use`. `low` and `high` are the confidence interval of the `difference`.
    """

    name: str
    of: Literal["time", "count", "share"]
    live: float
    shadow: float
    difference: float
    low: float
    high: float


class WorldReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The simulated fleet of a policy in shadow, compared with that of the current policy: `hours` of both, up to `at`
    (seconds since 1970), which was `late` seconds ago. `level` is the confidence level of the intervals of the
    `figures`. Few `jobs` have no figures; `ended` of them have ended in both fleets. `guessed` counts units whose run
    times were estimated, and `converted` those whose run times were measured on another device model. `left_out` counts
    work that is not simulated, by kind. `failed` is the reason why the policy no longer decides there. `cpu` is the
    fraction of a core that the simulation used.
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
    """A policy in shadow. `since` is a time in seconds since 1970. `rounds` is the number of rounds in which it was
    asked; in `same` of them it decided like the current policy. `live_alone` and `shadow_alone` count decisions that
    only one of the two made. `passed_over` counts the views it skipped while it was busy or resting, and `failed` the
    rounds in which it had no plan. `differences` are the latest ones, and `units` those on which the two differed most
    often. `world` reports on its simulated fleet, once there are results.
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
    """A request to make a policy in shadow the scheduling policy; `force` ignores its figures. With `nodes`, it decides
    only for a share of the nodes (`25%`), for named ones (`n1,n2`), or for those with a label (`zone=a`).
    """

    force: bool = False
    nodes: str = ""


class PolicyRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request for a scheduling policy: its `name`, or the content of a policy file."""

    name: Annotated[str, msgspec.Meta(max_length=128)] = ""
    document: dict[str, Any] | None = None


class NodeUse(msgspec.Struct, frozen=True, kw_only=True):
    """A node and its use, in the units of `NodeReport`. `devices_used` counts devices that are held, also in part."""

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
    """A task that holds resources: its node and devices, how long it has run, and its expected run time, in nanoseconds
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
    """A unit that waits for resources: its waiting time in nanoseconds, and the first reason."""

    unit: str
    user: str
    priority: str
    wait: int
    why: str


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """Waiting tasks with the same request: `cpu` in milli-CPU, `memory` in bytes, `gpus`, and `where` as the user wrote
    it (empty: anywhere). `shape` is the whole request of each of them. `together` is the number of tasks that start
    together.

    `work` is the sum of their expected run times, and `longest` the run time that nearly all of them stay under, in
    nanoseconds. `unknown` counts tasks without history or a declared run time; they add nothing to `work`. `key` is
    equal for the same kind of work in all reports.
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
    key: str = ""


class DemandReport(msgspec.Struct, frozen=True, kw_only=True):
    """The waiting work, by its request, in `waits`. `busy` maps each node with running work to the expected time until
    the first of that work ends, in nanoseconds. The report for one substrate has its share of the work in `waits`, and
    all waiting work in `kinds`.
    """

    waits: tuple[Demand, ...]
    busy: dict[str, int]
    kinds: tuple[Demand, ...] = ()


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """Room for `slots` tasks of one kind. It is expected to be free after `delay`, and nearly certainly after `late`,
    in nanoseconds. If it is `asked`, its machines exist or are requested already.
    """

    slots: Annotated[int, msgspec.Meta(ge=0, le=2**53)]
    delay: Annotated[int, msgspec.Meta(ge=0, le=2**62)]
    late: Annotated[int, msgspec.Meta(ge=0, le=2**62)]
    asked: bool = False


class Quote(msgspec.Struct, frozen=True, kw_only=True):
    """The room that a substrate has for one kind of waiting work, by the `key` of the demand. Without openings, the
    substrate takes no such work; `why` is the reason.
    """

    key: str
    openings: tuple[Opening, ...] = ()
    why: str = ""


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """The quotes of a substrate that gets machines on request, for the waiting work."""

    substrate: Annotated[str, msgspec.Meta(min_length=1)]
    quotes: tuple[Quote, ...]


class Prospect(msgspec.Struct, frozen=True, kw_only=True):
    """The expected course of a kind of work on one `substrate`, or on existing nodes (empty). It would start after
    `start`, nearly certainly after `late`, and end after `end`, in nanoseconds. If it is `chosen`, work of this kind is
    assigned to it. Otherwise `why` may be the reason that it takes none.
    """

    substrate: str
    chosen: bool = False
    start: int = 0
    late: int = 0
    end: int = 0
    why: str = ""

    def sentence(self) -> str:
        """Return it as text: `expected to start in 20.0 s (P90: 45.0 s) and to end in 1m20s`."""
        if self.why:
            return self.why
        start, late, end = (format_duration(of) for of in (self.start, self.late, self.end))
        return f"expected to start in {start} (P90: {late}) and to end in {end}"


class Backlog(msgspec.Struct, frozen=True, kw_only=True):
    """The amount of work that waits or is unfinished, as one number for an autoscaler."""

    value: int


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request for machines that a substrate has made of its system, or cannot make: its text and state. It is
    expected to be met at `starts` (seconds since 1970; 0: unknown). If it is `refused`, it will not be met unless
    something changes.
    """

    text: str
    starts: int = 0
    refused: bool = False

    def sentence(self, now: float) -> str:
        """Return the text, with the time until it is expected to be met."""
        left = round(self.starts - now)
        return f"{self.text}, expected to start in {format_duration(left * SECOND)}" if left > 0 else self.text


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `poise top`. `queue` counts units that wait for resources, by class; `blocked` counts those that
    wait for other units.

    `starts`, `ends` and `returns` are the recent rates of placed tasks, ended tasks and returned calls, per second. The
    lists are limited: they have the fullest nodes, the oldest tasks and the waiting units that are served first. The
    `more_` fields count the others.
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
    """Nodes and jobs, without tasks, that have changed up to `revision`. The `gone_` ones are no longer known. `whole`
    means that too much has changed to list, so the lists are empty; request everything instead.
    """

    revision: int
    whole: bool = False
    nodes: tuple[NodeReport, ...] = ()
    jobs: tuple[JobReport, ...] = ()
    gone_nodes: tuple[str, ...] = ()
    gone_jobs: tuple[str, ...] = ()


class LogPiece(msgspec.Struct, frozen=True, tag="piece", tag_field="kind"):
    """A piece of the output of an attempt of a task. `stream` is `out` or `err`, `offset` the position of the first
    byte (-1: unknown), and `at` the time of writing, in seconds since 1970 (0: unknown). `rank` is the member of a
    gang, if several members are shown (-1: none). A piece without data marks the position where the requested output
    begins. A piece without a task means that these positions are known for all tasks.
    """

    task: str
    epoch: int
    stream: str
    data: bytes
    offset: int = -1
    at: float = 0.0
    rank: int = -1


class LogEnd(msgspec.Struct, frozen=True, tag="end", tag_field="kind"):
    """The end of the output: the job is over, or was not followed. `exit_code` is None while the job is unfinished."""

    exit_code: int | None


LogLine = LogPiece | LogEnd


class InputReport(msgspec.Struct, frozen=True):
    """The state of the input of a task. `taken` is the number of bytes that the attempt `epoch` has accepted, and
    `wanted` whether it accepts more. `epoch` is 0 while the task does not run; `taken` is -1 while its node does not
    report. `over` means that the task will not run any more.
    """

    epoch: int = 0
    taken: int = -1
    wanted: bool = True
    over: bool = False


class ExecStarted(msgspec.Struct, frozen=True, tag="started", tag_field="kind"):
    """A command is being started beside a task. `name` identifies it when input is sent to it."""

    name: str


class ExecOutput(msgspec.Struct, frozen=True, tag="output", tag_field="kind"):
    """Bytes that the command wrote to one of its streams, `out` or `err`."""

    stream: str
    data: bytes


class ExecEnd(msgspec.Struct, frozen=True, tag="end", tag_field="kind"):
    """The command has ended with this exit code. `note` is the reason, if the command did not end by itself."""

    exit_code: int
    note: str = ""


ExecLine = ExecStarted | ExecOutput | ExecEnd


# --- explanations: durations are nanoseconds from now, `revision` is that of the view on which was decided ---------


class Foreseen(msgspec.Struct, frozen=True, kw_only=True):
    """An estimated amount, its mean deviation, and its source, as in `Estimate`. Both are None if the source is
    `default`: the amount is unknown.
    """

    mean: int | None
    deviation: int | None
    source: str

    def text(self, form: Callable[[int], str]) -> str:
        """Return the estimate as text: `5m ± 1m`, or `unknown`."""
        if self.mean is None or self.deviation is None:
            return "unknown"
        return f"{form(self.mean)} ± {form(self.deviation)}"


class Prediction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The predicted resource use of a task: its run time in nanoseconds, by model of each device (or processor) that
    could run it. Memory in bytes, CPU in milli-CPU and device use in thousandths come from `runs` finished runs of its
    class.
    """

    run: dict[str, Foreseen]
    runs: int = 0
    memory: Foreseen | None = None
    cpu: Foreseen | None = None
    device: Foreseen | None = None


class Start(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The predicted start of the first of the units, in nanoseconds from now. In a tenth of the `futures` it is before
    `earliest`, in half before `likely`, and in nine tenths before `latest`. A time is None if the unit does not start
    in that part of the futures; `why` gives the reason. An `earliest` alone is a lower limit. `guesses` names units
    that end before the start and have an unknown run time; then all three times are None. `preempts` names running
    units that are preempted for it in at least half of the futures. `preempts_in` is the median time until then for
    each, in nanoseconds from now. `displaced` has units that are preempted before that, each with the unit that
    preempts it.
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
    """A group of similar nodes that refuse a task for the same reasons. `nodes` names some of the `count`."""

    count: int
    nodes: tuple[str, ...]
    reasons: tuple[Reason, ...]


class Freeing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A running unit that frees resources when it ends: its nodes, and the estimated time left with its source.
    `overrun` means that it has run longer than estimated, and the estimate was updated. `protected` is the reason why
    it is not preempted now although it is of a lower class.
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
    """A group of similar waiting units of a job. `named` names some of the `count`. All other fields describe the first
    unit.

    `ahead` is the number of units that are served before it, and `first` has the first of them. `share` names the fair
    share that is served first, with the reason.
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
    """A unit that holds resources: its nodes, its `artifact` (of several), the elapsed time, the estimated time left,
    and the reason for its placement.
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
    """A past event and its time, in seconds since 1970."""

    at: float
    text: str


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The explanation of a job: why it waits and what would let it start, why it runs where it does, and its past
    events.

    `prospects` compares the clusters on which its waiting work may run, if there are several; for work of several
    kinds, those of the first. `left_out` counts entries that were left out for length; it is 0 if everything was
    requested.
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
    prospects: tuple[Prospect, ...] = ()


class WhyNot(msgspec.Struct, frozen=True, kw_only=True):
    """Why a unit is not on a node: every reason. If it fits there, its score is below that of the `chosen` node, if
    any. For work with several artifacts, `artifact` would be started there, and `chosen_artifact` runs on the chosen
    node.
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
    """A group of units that would be placed alike: their places, and the reason. `queued` means that they would queue
    behind similar units.
    """

    count: int
    named: tuple[str, ...]
    spots: tuple[Spot, ...]
    why: Why
    queued: bool = False
    artifact: str = ""


class PlannedYield(msgspec.Struct, frozen=True, kw_only=True):
    """A unit that would be preempted, the unit that preempts it, and the work that is lost."""

    unit: str
    to: str
    why: Why


class PlannedLater(msgspec.Struct, frozen=True, kw_only=True):
    """A group of units that wait for other units of the job, or for other jobs."""

    count: int
    named: tuple[str, ...]
    reasons: tuple[Reason, ...]


class PlanReport(msgspec.Struct, frozen=True, kw_only=True):
    """The effects of submitting a job now; nothing has been submitted. `retries` describes what would be retried, if
    that is not the default and is the same for all tasks.
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
    """A change that lets a unit start, verified by a decision of the policy.

    `kind` is open, memory, cpu, gpus, gpu_memory, network, wishes, smaller, workers, priority, end or node. `size` is
    the fraction of the request that is given up. For `priority` it is the number of classes, as a fraction of all; for
    `end` it is the hours of lost work. `command` is the command to type, and `yields` has the units that would be
    preempted.
    """

    kind: str
    text: str
    size: float
    command: str = ""
    nodes: tuple[str, ...] = ()
    yields: tuple[str, ...] = ()


class UnblockReport(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest change of each kind that lets a unit start now, smallest first. `text` explains why there is none,
    or why none is needed; for a unit on a lost node, it says what the unit waits for.
    """

    job: str
    unit: str
    revision: int
    suggestions: tuple[Suggestion, ...] = ()
    text: str = ""


class ServiceReport(msgspec.Struct, frozen=True, kw_only=True):
    """A service, or its version on trial, with figures for the last `window` nanoseconds. `rate` is the number of
    responses per second, including those from the cache. `answered` counts responses of the model, `failed` those of
    them with an error, `faulty` those with status 500 and above, and `cached` responses from the cache. `p50`, `p95`
    and `p99` are latencies from the arrival of a request to its response, in nanoseconds; 0 without responses. Deferred
    requests and responses from the cache do not count. `refused` counts requests without a response, by reason.
    `objective` is the limit for `p99`; 0: none. `waiting` and `serving` count current requests. `replicas` is the
    number of ready replicas, `started` that of the requested ones; `jobs` has their ids. `foreseen` is the rate that
    the scaler expects in the next window, and `spread` its mean error; 0 without a scaler, or before its first window.
    `wait_mean` is the mean time that a request waited for its batch, in nanoseconds.
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
    foreseen: float = 0.0
    spread: float = 0.0
    wait_mean: int = 0

    @property
    def met(self) -> bool:
        """Return whether the objective holds in this window; True if there are no responses, or no objective."""
        return not self.objective or self.p99 <= self.objective
