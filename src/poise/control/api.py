"""The HTTP API: its routes, its OpenAPI document, its errors. No logic: each route asks the plane or makes a report.

Each route declares the role that it requires, and returns only what the bearer of the token may see.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from functools import cache, partial
from itertools import islice
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from poise import __version__
from poise.config import PAGE, Home
from poise.control.anomalies import Anomalies
from poise.control.captures import capture
from poise.control.chances import Chances
from poise.control.consoles import Attendance, Consoles, running_tasks, takes_input
from poise.control.deciders import Deciders
from poise.control.gatekeeper import Gatekeeper
from poise.control.guard import DASHBOARD, KEYED, PUBLIC, App, Guard, Scope, secret_of
from poise.control.hot import CallerChannel, NodeChannel, Submission, Submissions, WorkerChannel, attempt_named
from poise.control.incidents import Incidents
from poise.control.kept import forget_policy
from poise.control.lifetime import Lifetime
from poise.control.notices import Targets
from poise.control.openapi import SCHEMA, LoggedEvent, document
from poise.control.plane import Plane
from poise.control.results import results_of_job
from poise.control.routes import Content, Redirect, Request, Routes, Stream
from poise.control.scrape import Scrape
from poise.control.shares import Turns
from poise.control.signing import SigningIn
from poise.control.storehouse import Storehouse
from poise.control.substrates import Substrates
from poise.control.tally import Minutes
from poise.drivers import dashboards
from poise.drivers.calendar import shifts
from poise.drivers.captures import captures_of, read_capture
from poise.drivers.clusters import kept_clusters
from poise.drivers.joblogs import Wanted, follow_job
from poise.drivers.plugins import (
    Choice,
    choice_before,
    choose,
    choose_document,
    choose_rule_policy,
    choose_split,
    is_file,
    policy_settings,
)
from poise.drivers.security import caller_key, same_token, worker_key
from poise.drivers.series import Series
from poise.drivers.session import SSH_KEY
from poise.drivers.system import Effort
from poise.drivers.tidy import remove_folders
from poise.drivers.vault import Vault
from poise.drivers.worlds import Asked, read_asked, read_told, write_asked
from poise.engine.paired import in_words, not_to_promote, world_report
from poise.errors import (
    Conflict,
    Denied,
    Forbidden,
    InputError,
    NotFound,
    NotLeading,
    SpecError,
    StoreFull,
)
from poise.kernel import messages, whatif
from poise.kernel.audit import audit_report
from poise.kernel.bookings import Accepted, find_reservation
from poise.kernel.changing import to_remove
from poise.kernel.demand import Amount, Extent, backlog, demand
from poise.kernel.endpoints import endpoints
from poise.kernel.explain import (
    Question,
    job_report,
    node_report,
    policy_report,
    question,
    status_report,
    token_report,
    who_report,
)
from poise.kernel.find import FEW, Found, find, find_node, found_report, listed, of_rank, quota_note
from poise.kernel.find import names as find_names
from poise.kernel.incidents import no_such_incident
from poise.kernel.ledger import JobState, Ledger, UnitState, attempt_of, job_status
from poise.kernel.overview import overview
from poise.kernel.owners import check_enter, owned
from poise.kernel.reserved import reservation_report
from poise.kernel.since import touched
from poise.kernel.visible import Sight
from poise.model.budgets import compile_budgets
from poise.model.calls import ATTEMPT
from poise.model.captures import LASTS, LONGEST, Capture, CaptureKind
from poise.model.chances import DeadlineForecast
from poise.model.changing import as_job, fields_in
from poise.model.document import some
from poise.model.events import (
    AUDITED,
    DeadlinesMissed,
    Event,
    Held,
    NodeLevelled,
    Placed,
    PolicyFailed,
    Preempted,
    Resized,
    Triggered,
)
from poise.model.fields import MAX_DURATION, Quantity, parse_or_raise
from poise.model.incidents import IncidentReport
from poise.model.job_fields import terminal
from poise.model.messages import Attempt, Piece
from poise.model.reports import (
    AuditReport,
    Backlog,
    BudgetReport,
    BudgetsRequest,
    Changed,
    ChangesReport,
    DemandReport,
    Drained,
    EndpointsReport,
    Explanation,
    InputReport,
    JobReport,
    JobStatus,
    NodeReport,
    Offer,
    OrdersReport,
    Overview,
    PlanReport,
    PolicyReport,
    PolicyRequest,
    Promotion,
    QuotaReport,
    RefusalsReport,
    ReservationReport,
    ReservationsRequest,
    RuleAnswer,
    RuleDone,
    RulesReport,
    RulesRequest,
    ScheduleReport,
    ServiceLeftOut,
    ShadowReport,
    SharesForeseen,
    SharesReport,
    SharesRequest,
    Start,
    StatusReport,
    TokenReport,
    UnblockReport,
    WhoReport,
    WhyNot,
)
from poise.model.reservations import Zones, compile_reservations
from poise.model.rule_actions import policy_of, sets_policy
from poise.model.rules import compile_rules, targets_of
from poise.model.secrets import named
from poise.model.selection import check_selection, parse_selection
from poise.model.served import GatewayNews, Served
from poise.model.sharefile import compile_shares
from poise.model.spec import QuotaSpec, check_name, command_of, compile_quota, compile_spec, variable_of
from poise.model.tenants import Bearer, Role, Token, check_account, class_of_tenant, declared_class, tenant_of_class
from poise.model.trees import HASH, owner_of
from poise.model.usage import PROFILED, NodeProfile
from poise.model.views import Snapshot
from poise.policy.split import check_divisible, undivided
from poise.policy.suites import ClusterPolicy
from poise.units import SECOND, parse_duration

PLACES_EVERY = 0.02
"""Seconds after an event until the places of a job's tasks are looked at again."""

MAX_WAIT = 60.0
"""Maximum seconds that one request waits for a job; then the client asks again."""

RECENT = 20
"""Number of finished jobs in a list of jobs, unless the client requests all."""

MAX_LISTED = 1_000_000
"""Upper limit on the number of latest jobs, or latest log lines, that one request may return."""

NODES_AT_ONCE = 100
"""Nodes with eight devices reported in one turn of the loop (about 2 ms): the dashboard requests all nodes."""

CANCELLED_AT_ONCE = 1024
"""Jobs cancelled in one turn of the loop (about 20 ms) and by one log record, when all jobs are cancelled."""

REMOVED_AT_ONCE = 1024
"""Jobs that one request may remove by name, and that one log record removes when all are removed."""

MAX_REVISION = 2**53 - 1
"""The largest integer that every JSON reader represents exactly."""

Revision = Annotated[int, msgspec.Meta(le=MAX_REVISION)]

TreeHash = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")]

JobIds = Annotated[list[str], msgspec.Meta(max_length=100_000)]

WHOLE = b": whole\n\n"
"""Marks the complete end of an event stream that does not follow. If it is missing, the stream was cut off."""

DECISIONS = Placed | Held | Preempted | Resized | DeadlinesMissed | NodeLevelled | Triggered | PolicyFailed
"""Scheduling decisions and the events that caused them; a stream of decisions shows these."""

_log = logging.getLogger("poise.control")

VIEWER, SUBMITTER, OPERATOR, ADMIN = Role.VIEWER, Role.SUBMITTER, Role.OPERATOR, Role.ADMIN
"""The role that a route requires."""

INPUT_SECONDS, INPUT_POLL = 10.0, 0.03
"""How long input waits for its task to start, and how often the wait checks for that."""

EVENT_PAGE = 1000
KEEP_ALIVE = 15.0
Answered = TypeVar("Answered")


class Submitted(msgspec.Struct, frozen=True):
    """An accepted job or job schedule; its record is durable. `note` is a remark on it. If it serves calls, its caller
    authenticates to `/v1/calls` with `caller_key`.
    """

    job: str
    note: str = ""
    caller_key: str = ""


class Cancelled(msgspec.Struct, frozen=True):
    """The number of cancelled jobs, in total and by tenant, and their ids. Their records are durable; their running
    tasks are being stopped.
    """

    cancelled: int
    tenants: dict[str, int]
    jobs: tuple[str, ...]


class Change(msgspec.Struct, frozen=True):
    """Fields of a job file with their new values, such as `{"priority": "high", "resources": {"memory": "8GiB"}}`."""

    spec: dict[str, Any]


class ScheduleChanged(msgspec.Struct, frozen=True):
    """The id of a schedule that was held, released or removed. The record is durable."""

    schedule: str


class Removed(msgspec.Struct, frozen=True):
    """Ids of the removed jobs. Their output, values and checkpoints are removed too."""

    removed: tuple[str, ...]


class RemoveRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The ended jobs to remove: `jobs` by id or name; or `all`; or those that match all given filters: one of the
    `statuses`, a `name` or id pattern, a `user`, an end at least `older_than` (a duration) ago.
    """

    jobs: Annotated[tuple[str, ...], msgspec.Meta(max_length=REMOVED_AT_ONCE)] = ()
    all: bool = False
    statuses: tuple[JobStatus, ...] = ()
    name: Annotated[str, msgspec.Meta(max_length=128)] = ""
    user: Annotated[str, msgspec.Meta(max_length=128)] = ""
    older_than: Quantity | None = None

    @property
    def filters(self) -> bool:
        return bool(self.all or self.statuses or self.name or self.user or self.older_than is not None)


class ResumeReport(msgspec.Struct, frozen=True):
    """Why suspended tasks wait for their resources; they resume once these are free. Empty if all run."""

    waits: tuple[str, ...]


class DrainRequest(msgspec.Struct, frozen=True):
    """Closes a node to new work, or reopens it without `on`. With `moves`, its running work moves to other nodes."""

    on: bool = True
    moves: bool = False


class NamedNode(msgspec.Struct, frozen=True):
    """A `node` by its full name."""

    node: str


class NamedNodes(msgspec.Struct, frozen=True):
    """Several `nodes` by their full names."""

    nodes: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=100_000)]


NameKind = Literal["job", "node", "tenant", "schedule"]

Place = Annotated[int, msgspec.Meta(ge=0, le=MAX_REVISION)]


class InputRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A piece of standard input: base64 `data` that starts at byte `at` of the input of attempt `epoch`; `end` marks
    the last piece. If another attempt runs, the input is discarded, and the answer names the running one. `task` is
    required if several tasks take input. `size` is the terminal size, `ROWSxCOLUMNS`. After `hold` seconds without
    another piece the terminal hangs up, and a job that still waits is cancelled. With `hang_up` the terminal hangs up
    now.
    """

    task: str = ""
    epoch: Place = 0
    at: Place = 0
    data: Annotated[bytes, msgspec.Meta(max_length=2**20)] = b""
    end: bool = False
    size: str = ""
    hold: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 0.0
    hang_up: bool = False

    def piece(self, epoch: int) -> Piece:
        """Return the part of the request that concerns the attempt of this epoch."""
        size, hold = terminal(self.size, "size") if self.size else 0, round(self.hold * SECOND)
        if self.epoch != epoch:
            return Piece(size=size, hold=hold, hang_up=self.hang_up)
        return Piece(at=self.at, data=self.data, end=self.end, size=size, hold=hold, hang_up=self.hang_up)


class ExecRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A command to run beside a task. `task` is required if several tasks run; for a gang, `rank` selects one (default
    0). `env` extends the task's environment. With `stdin` the command gets input; `tty` is the size of its terminal,
    `ROWSxCOLUMNS`.
    """

    run: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=10_000)]
    task: str = ""
    rank: Annotated[int, msgspec.Meta(ge=0, le=MAX_REVISION)] | None = None
    env: dict[str, str] = {}
    stdin: bool = False
    tty: str = ""


class ConnectRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A connection to a TCP `port` on the node of a running task or, with a public `key`, to an SSH server that accepts
    it. `task` is required if several tasks run; for a gang, `rank` selects one (default 0).
    """

    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0
    key: Annotated[str, msgspec.Meta(max_length=4096, pattern=r"^[^\x00-\x1f]*$(?!\n)")] = ""
    task: str = ""
    rank: Annotated[int, msgspec.Meta(ge=0, le=MAX_REVISION)] | None = None


class CaptureRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A capture of a running task, of the given `kind`. `task` is required if several tasks run; for a gang, `rank`
    selects one (default 0). `lasts` is a duration; the default is 10 s for stacks, 2 s for a trace.
    """

    kind: CaptureKind = "stacks"
    task: str = ""
    rank: Annotated[int, msgspec.Meta(ge=0, le=MAX_REVISION)] | None = None
    lasts: Quantity | None = None


class FilesRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file or folder, by its `path` in the folder of a job. `task` is required if the job has several; for a gang,
    `rank` selects one (default 0).
    """

    path: Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
    task: str = ""
    rank: Annotated[int, msgspec.Meta(ge=0, le=MAX_REVISION)] | None = None


class TokenRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A token for a user of a tenant. The client generates the secret and sends only `hash`, its SHA-256 in
    hexadecimal. `expires` is a duration from now; without it the token is valid until it is revoked. Commands submitted
    with it run as the Unix `account`.
    """

    tenant: str
    role: Literal["node", "viewer", "observer", "submitter", "operator", "admin"]
    hash: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")]
    name: str = ""
    expires: Quantity | None = None
    account: str = ""


def chosen(asked: PolicyRequest) -> Choice:
    """Return the requested policy. Raises `SpecError`."""
    if asked.document is not None:
        return choose_document(asked.document, "policy")
    if is_file(asked.name):
        raise SpecError("a file is read where it is", field="name", have=asked.name, hint="send its content")
    return choose(asked.name, "policy")


def make_app(
    plane: Plane,
    home: Home,
    token: str,
    lifetime: Lifetime,
    deciders: Deciders,
    *,
    known_as: Collection[str] = (),
    authority: bytes = b"",
    chances: Chances | None = None,
    log_limit: int = 0,
    incidents: Incidents | None = None,
    anomalies: Anomalies | None = None,
    files: Storehouse | None = None,
) -> App:
    """Build the API behind its guard. `deciders` holds the active policy and answers what-if questions. `known_as` are
    this machine's names for other machines, and `authority` is its certificate, if it listens to them. `chances`
    answers questions about deadlines, `incidents` about incidents; `anomalies` receives what nodes report. `log_limit`
    is the maximum size of the log in bytes; 0 means the space on its disk.
    """

    gate, consoles, attendance = Gatekeeper(plane, token), Consoles(plane), Attendance(plane)
    series, vault, targets = Series(home.series), Vault.of(home, lambda: plane.ledger.sealed_texts()), Targets(home)
    chances = chances or Chances(plane, home)
    incidents, anomalies = incidents or Incidents(plane, home), anomalies or Anomalies(plane)
    minutes, files = Minutes(), files or Storehouse(home.files)
    clusters = kept_clusters(home)
    of_clusters = [cluster.name for cluster in clusters if not cluster.is_here]
    substrates = Substrates(plane, [cluster.name for cluster in clusters if cluster.grows], of_clusters)
    scrape = Scrape(plane, home, gate, minutes, log_limit)

    def allow(scope: Scope, needed: Role | None) -> None:
        if (path := scope["path"]) not in PUBLIC | KEYED:
            gate.allow(scope["bearer"], needed, path)

    routes = Routes(allow)

    def key_of(attempt: Attempt) -> str:
        return worker_key(token, attempt)

    async def settled_job(bearer: Bearer, name: str, task: str = "") -> tuple[Ledger, Found]:
        ledger = await plane.settled()
        return ledger, find(ledger, name, task, bearer)

    deciding, turns = asyncio.Lock(), Turns()

    async def thought_about(
        bearer: Bearer, ask: Callable[[], Awaitable[Callable[[ClusterPolicy], Answered]]]
    ) -> Answered:
        """Answer a question that needs a run of the policy: one at a time, tenants in turn. `ask` reads the ledger on
        the loop; the function that it returns computes the answer on a thread.
        """
        async with turns.of(bearer.tenant), deciding:
            return await asyncio.to_thread(await ask(), deciders.imagined())

    async def asked_about(bearer: Bearer, name: str, everything: bool = False) -> tuple[Snapshot, Question]:
        ledger, found = await settled_job(bearer, name)
        view = plane.controller.snapshot(plane.clock.now())
        idle = plane.controller.tellings.idle_since
        return view, question(ledger, found.job, view, units=found.units, everything=everything, idle=idle)

    @routes.get("/healthz", summary="Whether the control plane is ready")
    async def health() -> dict[str, bool]:
        return {"ready": True, "accepting": plane.accepting}

    @routes.get(DASHBOARD, summary="Redirect a browser to the dashboard of this home", status=307)
    async def to_the_dashboard(request: Request) -> Redirect:
        running = await asyncio.to_thread(dashboards.found, home)
        where = running.url_beside(request.scheme, request.headers["host"]) if running is not None else ""
        if not where:
            raise NotFound("no dashboard is served here", hint="`poise up --dashboard`, or `poise dashboard`")
        return Redirect(where)

    @routes.get("/metrics", summary="Metrics in the text format of Prometheus", role=VIEWER)
    async def metrics(bearer: Bearer) -> Content:
        return await scrape.answer(bearer)

    @routes.get("/v1/authority", summary="The certificate of this home's authority")
    async def authority_certificate() -> Content:
        if not authority:
            raise NotFound("no other machine is listened to", hint="`poise up --listen HOST:PORT`")
        return Content(authority, "application/x-pem-file")

    @routes.get("/v1/status", summary="Status of the control plane", role=VIEWER)
    async def status(bearer: Bearer) -> StatusReport:
        ledger = await plane.settled()
        controller = plane.controller
        told = status_report(
            ledger,
            __version__,
            fleet=controller.settings.fleet,
            accepting=plane.accepting,
            behind=plane.behind,
            held=controller.silence.held,
            phases=plane.timings.phases(),
            substrates=of_clusters,
        )
        return Sight(ledger, bearer).status(told)

    @routes.get(
        "/v1/overview",
        summary="Overview: the fleet, running work, waiting work with its reasons, and rates",
        role=VIEWER,
    )
    async def everything_at_a_glance(bearer: Bearer) -> Overview:
        ledger, controller = await plane.settled(), plane.controller
        told = overview(
            ledger, plane.clock.now(), controller.watch.load_of, plane.rates(), bearer, accepting=plane.accepting
        )
        return Sight(ledger, bearer).only(told)

    @routes.get("/v1/demand", summary="The work that waits for room, by what it asks for", role=OPERATOR)
    async def what_waits() -> DemandReport:
        return demand(await plane.settled(), plane.clock.now())

    @routes.post(
        "/v1/demand", summary="Send the quotes of a substrate for the waiting work, and get its share", role=OPERATOR
    )
    async def what_a_substrate_gets(data: Offer) -> DemandReport:
        return substrates.share(await plane.settled(), data)

    @routes.get(
        "/v1/backlog",
        summary="How many tasks wait for room or run (`unfinished`), or wait (`waiting`), as one number for an "
        "autoscaler; or their `cpu`, `memory` or `gpus`. Tasks that wait for others do not count",
        role=VIEWER,
    )
    async def how_much_waits(
        bearer: Bearer,
        of: Amount = "tasks",
        state: Extent = "unfinished",
        tenant: str = "",
        project: str = "",
        class_: str = "",
        service: str = "",
    ) -> Backlog:
        ledger = await plane.settled()
        found = backlog(
            ledger, bearer, of=of, state=state, tenant=tenant, project=project, class_=class_, service=service
        )
        return Backlog(value=found)

    @routes.get(
        "/v1/changes",
        summary="Nodes and jobs changed `after` a revision; `wait` at most this many seconds for a change",
        role=VIEWER,
    )
    async def changes(bearer: Bearer, after: Revision = 0, wait: float = 0.0) -> ChangesReport:
        ledger, controller, now = await plane.settled(), plane.controller, plane.clock.now()
        news = plane.follow()
        try:
            if ledger.revision == after and wait > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(wait, MAX_WAIT)):
                        await news.wait()
                ledger, now = await plane.settled(), plane.clock.now()
        finally:
            plane.unfollow(news)
        if not gate.stands(bearer):  # the token may have been revoked during the wait
            raise Denied("the token has been revoked", field="Authorization", hint="ask an admin for another one")
        if not 0 <= ledger.revision - after <= EVENT_PAGE:
            return ChangesReport(revision=ledger.revision, whole=True)
        found = touched(ledger, (event for _, event in plane.events_after(after, EVENT_PAGE)))
        if len(found.nodes) > PAGE or len(found.jobs) > PAGE:
            return ChangesReport(revision=ledger.revision, whole=True)
        sight, known = Sight(ledger, bearer), ledger.nodes
        jobs = {name: ledger.jobs.get(name) for name in sorted(found.jobs)}
        return ChangesReport(
            revision=ledger.revision,
            nodes=tuple(
                sight.node(
                    node_report(
                        known[name],
                        controller.watch.load_of(name),
                        controller.watch.upkeep_of(name),
                        cordons=ledger.cordons,
                    )
                )
                for name in sorted(found.nodes & known.keys())
            ),
            jobs=tuple(
                job_report(ledger, job, now, tasks=False, idle=controller.tellings.idle_since)
                for job in jobs.values()
                if job is not None and bearer.sees(job.tenant)
            ),
            gone_nodes=tuple(sorted(found.nodes - known.keys())),
            gone_jobs=tuple(name for name, job in jobs.items() if job is None and bearer.sees_all),
        )

    @routes.get("/v1/whoami", summary="The tenant and the role of the token", role=VIEWER)
    async def whoami(bearer: Bearer) -> WhoReport:
        return who_report(await plane.settled(), bearer)

    @routes.post(
        "/v1/jobs",
        summary="Submit a job (or, as application/x-ndjson, a stream of them)",
        status=201,
        role=SUBMITTER,
    )
    async def submit(
        bearer: Bearer, request: Request, data: Submission, if_revision: Revision | None = None
    ) -> Submitted:
        spec = vault.sealed(data.spec, bearer.tenant)
        compiled = targets.admit(await plane.prepare(spec, bearer.tenant, len(request.body)), bearer)
        if compiled.tree is not None:
            plane.controller.jobs.check(compiled, data.key, data.user)  # before the client sends files for the job
        await files.admit(compiled, bearer.account)
        await chances.check(compiled, data.key, data.user)
        job = await plane.request(
            lambda number: messages.Submit(number, compiled, data.key, data.user, if_revision, bearer)
        )
        return Submitted(job, compiled.note, caller_key_of(job))

    @routes.post(
        "/v1/files/missing",
        summary="Which of these pieces of files were not sent yet: SHA-256 hashes of 32 bytes each, in a row",
        status=200,
        role=SUBMITTER,
    )
    async def missing_files(bearer: Bearer, data: bytes) -> Content:
        return _raw(await files.ask("missing", owner_of(bearer.tenant, bearer.account), data=whole_hashes(data)))

    @routes.post(
        "/v1/files", summary="Send pieces of files: a MessagePack list of binaries of 1 MiB at most", role=SUBMITTER
    )
    async def send_files(bearer: Bearer, data: bytes) -> dict[str, int]:
        plane.check_leading()
        return {"stored": int(await files.ask("put", owner_of(bearer.tenant, bearer.account), data=data))}

    @routes.post(
        "/v1/trees/{tree}",
        summary="Register a tree by the hash of its manifest, with the hashes of its pieces; answers with the hashes "
        "of missing pieces of its files",
        status=200,
        role=SUBMITTER,
    )
    async def register_tree(bearer: Bearer, tree: TreeHash, data: bytes) -> Content:
        plane.check_leading()
        return _raw(
            await files.ask(
                "register", owner_of(bearer.tenant, bearer.account), bytes.fromhex(tree), whole_hashes(data)
            )
        )

    @routes.get("/v1/trees/{tree}", summary="The hashes of the pieces of a tree's manifest", role=SUBMITTER)
    async def known_tree(bearer: Bearer, tree: TreeHash) -> Content:
        return _raw(await files.ask("pieces", owner_of(bearer.tenant, bearer.account), bytes.fromhex(tree)))

    def job_of_attempt(request: Request) -> JobState:
        """Return the job of the attempt whose key a request carries. Raises `Denied`."""
        attempt = attempt_named(request.headers)
        job = plane.ledger.jobs.get(attempt.task.partition(".")[0]) if attempt is not None else None
        if attempt is None or not same_token(secret_of(request.headers), key_of(attempt)) or job is None:
            error = Denied("this is not the key of the attempt", field=ATTEMPT, have=str(attempt or "none")[:80])
            gate.refused(error, "/v1/attempts/files")
            raise error
        return job

    @routes.post(
        "/v1/attempts/files",
        summary="With the key of an attempt, which its node has: pieces of the files of its job, as many as fit into "
        "an answer, as a MessagePack list; for no hashes, the hashes of the pieces of its manifest",
        status=200,
    )
    async def files_of_attempt(request: Request, data: bytes) -> Content:
        job = job_of_attempt(request)
        if job.tree is None:
            raise NotFound("the job has no files", field="job", have=job.id)
        if data:
            return _raw(await files.ask("get", owner_of(job.tenant, job.account), data=whole_hashes(data)))
        return _raw(await files.ask("pieces", owner_of(job.tenant, job.account), bytes.fromhex(job.tree.hash)))

    @routes.get(
        "/v1/jobs",
        summary="Jobs: the unfinished and the latest finished ones, or all; by `status`, `name` (a pattern), `user`, "
        f"and the `latest` of these; the first {PAGE}, or those `after` an id",
        role=VIEWER,
    )
    async def jobs(
        bearer: Bearer,
        all_: bool = False,
        status: tuple[JobStatus, ...] = (),
        name: Annotated[str, msgspec.Meta(max_length=128)] = "",
        user: Annotated[str, msgspec.Meta(max_length=128)] = "",
        latest: Annotated[int, msgspec.Meta(ge=0, le=MAX_LISTED)] = 0,
        after: Annotated[str, msgspec.Meta(pattern=r"^(j[0-9]{1,18})?$(?!\n)")] = "",
        limit: Annotated[int, msgspec.Meta(ge=1, le=PAGE)] = PAGE,
    ) -> list[JobReport]:
        ledger = await plane.settled()
        now = plane.clock.now()
        seen = Sight(ledger, bearer).jobs(None if all_ else RECENT, "" if latest else after)
        shown = islice(listed(seen, statuses=status, name=name, user=user, latest=latest, after=after), limit)
        idle = plane.controller.tellings.idle_since
        return [job_report(ledger, job, now, tasks=False, idle=idle) for job in shown]

    @routes.post(
        "/v1/jobs/ended",
        summary="Which of these jobs have ended, with their statuses; an empty status: no longer known",
        status=200,
        role=VIEWER,
    )
    async def ended_jobs(bearer: Bearer, data: JobIds) -> dict[str, str]:
        ledger = await plane.settled()
        found = {name: job for name in data if (job := ledger.jobs.get(name)) is not None and bearer.sees(job.tenant)}
        ended = {name: job_status(job) for name, job in found.items() if job.ended}
        return ended | dict.fromkeys((name for name in data if name not in found), "")

    @routes.get(
        "/v1/jobs/{name}",
        summary="One job with its tasks, or some of them; `wait` at most this many seconds until they are over",
        role=VIEWER,
    )
    async def job(bearer: Bearer, name: str, wait: float = 0.0) -> JobReport:
        ledger, found = await settled_job(bearer, name)
        if wait > 0 and not found.job.ended:
            units = () if found.whole else tuple(unit.id for unit in found.units)
            await plane.over(found.job.id, units, min(wait, MAX_WAIT))
            ledger = await plane.settled()
        live = plane.controller.tellings.heard, plane.controller.tellings.idle_since
        told = Sight(ledger, bearer).only(found_report(ledger, found, plane.clock.now(), *live))
        kept = await asyncio.to_thread(captures_of, home.logs, found.job.id)
        return msgspec.structs.replace(told, captures=tuple(kept)) if kept else told

    @routes.post(
        "/v1/jobs/{name}/cancel",
        summary="Cancel a job, or some of its tasks; running tasks get SIGTERM, then SIGKILL",
        status=202,
        role=SUBMITTER,
    )
    async def cancel(bearer: Bearer, name: str) -> Submitted:
        return Submitted(await plane.request(lambda request: messages.Cancel(request, name, bearer)))

    @routes.post(
        "/v1/jobs/{name}/hold",
        summary="Put a job on hold: waiting tasks do not start; running tasks continue",
        status=202,
        role=SUBMITTER,
    )
    async def hold(bearer: Bearer, name: str) -> Submitted:
        return Submitted(await plane.request(lambda request: messages.HoldJob(request, name, True, bearer)))

    @routes.post(
        "/v1/jobs/{name}/release",
        summary="Release a job that is on hold",
        status=202,
        role=SUBMITTER,
    )
    async def release(bearer: Bearer, name: str) -> Submitted:
        return Submitted(await plane.request(lambda request: messages.HoldJob(request, name, False, bearer)))

    @routes.post(
        "/v1/jobs/{name}/resume",
        summary="Resume the suspended tasks of a job; the answer says why some still wait for resources",
        status=200,
        role=SUBMITTER,
    )
    async def resume(bearer: Bearer, name: str) -> ResumeReport:
        return ResumeReport(await plane.request(lambda request: messages.ResumeJob(request, name, bearer)))

    async def woken(bearer: Bearer, unit: UnitState) -> None:
        """Resume a suspended unit before somebody runs a command in it. Raises `Conflict` if its resources are not
        free.
        """
        if unit.suspended is not None and (waits := (await resume(bearer, unit.id)).waits):
            what, hint = f"{unit.id} is suspended, and its resources are not free", "retry once they are"
            raise Conflict(what, field="job", have="; ".join(waits), hint=hint)

    @routes.post(
        "/v1/jobs/{name}/change",
        summary="Change fields of an unfinished job, or of some of its tasks",
        status=202,
        role=SUBMITTER,
    )
    async def change(bearer: Bearer, name: str, data: Change) -> Changed:
        fields = fields_in(data.spec)
        compiled = compile_spec(as_job(data.spec), wall=plane.clock.wall(), tenant=bearer.tenant)
        changed: Changed = await plane.request(
            lambda number: messages.ChangeJob(number, name, compiled, fields, bearer)
        )
        return changed

    @routes.post(
        "/v1/jobs/{name}/retry",
        summary="Submit the unfinished part of an ended job again",
        status=201,
        role=SUBMITTER,
    )
    async def retry(bearer: Bearer, name: str) -> Submitted:
        return Submitted(await plane.request(lambda request: messages.RetryJob(request, name, bearer)))

    @routes.post(
        "/v1/cancel",
        summary="Cancel all unfinished jobs of the bearer's tenant, or of all with `all_tenants`, as an operator; "
        "only those with such a status, name or user, where given; running tasks get SIGTERM, then SIGKILL",
        status=202,
        role=SUBMITTER,
    )
    async def cancel_all(
        bearer: Bearer,
        all_tenants: bool = False,
        status: tuple[JobStatus, ...] = (),
        name: Annotated[str, msgspec.Meta(max_length=128)] = "",
        user: Annotated[str, msgspec.Meta(max_length=128)] = "",
    ) -> Cancelled:
        if all_tenants:
            gate.allow(bearer, OPERATOR, "/v1/cancel")
        ledger = await plane.settled()
        theirs = (job for job in ledger.jobs.values() if all_tenants or job.tenant == bearer.tenant)
        unfinished = [job.id for job in listed(theirs, statuses=status, name=name, user=user) if not job.ended]
        latest_first = unfinished[::-1]
        tenants: Counter[str] = Counter()
        jobs: list[str] = []
        for first in range(0, len(latest_first), CANCELLED_AT_ONCE):  # cancel dependent jobs first
            few = tuple(latest_first[first : first + CANCELLED_AT_ONCE])
            cancelled = await plane.request(partial(messages.CancelJobs, jobs=few, bearer=bearer))
            tenants += Counter(cancelled.values())
            jobs += cancelled
        return Cancelled(len(jobs), dict(tenants), tuple(reversed(jobs)))

    @routes.post(
        "/v1/remove",
        summary="Remove ended jobs, by name or by filter, with their output, values and checkpoints",
        status=202,
        role=SUBMITTER,
    )
    async def remove(bearer: Bearer, data: RemoveRequest) -> Removed:
        if bool(data.jobs) == data.filters:
            raise SpecError("name jobs, or filter them: one of both", code="E101", field="jobs", hint='{"all": true}')
        plane.check_leading()
        ledger = await plane.settled()
        if data.jobs:
            ended = to_remove(ledger, data.jobs, bearer)
        else:
            age = parse_or_raise(parse_duration, data.older_than or 0, "older_than", MAX_DURATION)
            until = plane.clock.now() - age
            seen = listed(Sight(ledger, bearer).jobs(), statuses=data.statuses, name=data.name, user=data.user)
            ended = [job for job in seen if 0 < job.ended <= until]
        removed: list[str] = []
        for first in range(0, len(ended), REMOVED_AT_ONCE):
            few = tuple(job.id for job in ended[first : first + REMOVED_AT_ONCE])
            await asyncio.to_thread(remove_folders, (home.logs, home.values, home.meetings, home.checkpoints), few)
            removed += await plane.request(partial(messages.RemoveJobs, jobs=few, bearer=bearer))
        return Removed(tuple(removed))

    @routes.get(
        "/v1/jobs/{name}/explanation",
        summary="Why a job waits and what would start it, or the reason for its placement",
        role=VIEWER,
    )
    async def explanation(bearer: Bearer, name: str, all_: bool = False) -> Explanation:
        async def ask() -> Callable[[ClusterPolicy], Explanation]:
            from poise.engine.lookahead import LookAhead  # not at the start: only forecasts need the twin

            view, asked = await asked_about(bearer, name, all_)
            ahead = LookAhead(plane.ledger, view.now, Effort())

            def starts(policy: ClusterPolicy, groups: Sequence[Collection[str]]) -> list[Start]:
                told = ahead.starts(policy, groups)
                plane.tally.foretold(view.now, groups, told)
                return told

            return lambda policy: whatif.explain(policy, view, asked, partial(starts, policy), everything=all_)

        told = await thought_about(bearer, ask)
        ledger, found = await settled_job(bearer, name)
        if told.waiting:
            told = msgspec.structs.replace(told, prospects=substrates.prospects(ledger, found.job))
        return Sight(ledger, bearer).only(told)

    @routes.get(
        "/v1/jobs/{name}/deadline",
        summary="The chance that a job, or some of its tasks, meet their deadlines; takes some seconds",
        role=VIEWER,
    )
    async def deadline(bearer: Bearer, name: str) -> DeadlineForecast:
        _, found = await settled_job(bearer, name)
        return await chances.of(found)

    @routes.get("/v1/jobs/{name}/why-not/{node}", summary="Every reason against a node for a job", role=VIEWER)
    async def why_not(bearer: Bearer, name: str, node: str) -> WhyNot:
        async def ask() -> Callable[[ClusterPolicy], WhyNot]:
            view, asked = await asked_about(bearer, name)
            return lambda policy: whatif.why_not(policy, view, asked, node)

        return Sight(plane.ledger, bearer).only(await thought_about(bearer, ask))

    @routes.get("/v1/jobs/{name}/unblock", summary="The smallest changes that let a waiting job start now", role=VIEWER)
    async def unblock(bearer: Bearer, name: str) -> UnblockReport:
        sight = Sight(plane.ledger, bearer)

        async def ask() -> Callable[[ClusterPolicy], UnblockReport]:
            view, asked = await asked_about(bearer, name)
            return lambda policy: whatif.unblock(policy, view, asked, may_end=sight.shows)

        return sight.only(await thought_about(bearer, ask))

    @routes.post(
        "/v1/plan",
        summary="The effects of submitting a job now; nothing changes",
        status=200,
        role=VIEWER,
    )
    async def plan(
        bearer: Bearer,
        request: Request,
        data: Submission,
        all_: bool = False,
    ) -> PlanReport:
        made = await plane.prepare(named(data.spec), bearer.tenant, len(request.body))
        compiled, user = owned(plane.ledger, made, bearer), bearer.person or data.user
        plane.controller.jobs.would_submit(compiled, user)  # raises any refusal before the request waits for its turn

        async def ask() -> Callable[[ClusterPolicy], tuple[PlanReport, str]]:
            from poise.engine.lookahead import LookAhead

            await plane.settled()
            now = plane.clock.now()
            job = plane.controller.jobs.would_submit(compiled, user)
            propose = whatif.proposing(plane.ledger, job, now)
            view = plane.controller.snapshot(now)
            ahead = LookAhead(plane.ledger, now, Effort(), job=job)

            def answer(policy: ClusterPolicy) -> tuple[PlanReport, str]:
                starts = partial(ahead.starts, policy)
                return whatif.plan(policy, view, propose(), starts, note=compiled.note, everything=all_), job.id

            return answer

        told, job_id = await thought_about(bearer, ask)
        return await asyncio.to_thread(Sight(plane.ledger, bearer).only, told, job_id)

    @routes.get(
        "/v1/jobs/{name}/logs",
        summary="The output of a job with its times, as lines of JSON; `follow` until it ends, from the last `tail` "
        "lines on, or from a time on (`since`, in seconds since 1970); of a gang all, or one `rank`",
        role=VIEWER,
    )
    async def logs(
        bearer: Bearer,
        name: str,
        follow: bool = False,
        task: str = "",
        tail: Annotated[int, msgspec.Meta(ge=-1, le=MAX_LISTED)] = -1,
        since: Annotated[float, msgspec.Meta(ge=0, le=MAX_REVISION)] = 0.0,
        rank: Annotated[int, msgspec.Meta(ge=-1, le=MAX_REVISION)] = -1,
    ) -> Stream:
        _, found = await settled_job(bearer, name, task)
        tasks, wanted = of_rank(found, rank), Wanted(tail, since)
        job, rest = found.job.id, partial(plane.ends, found.job.id)
        pieces = follow_job(home.logs, lambda: plane.ledger, job, tasks, follow=follow, wanted=wanted, rest=rest)
        return Stream(_lines(pieces, lambda: gate.stands(bearer)), "application/x-ndjson")

    @routes.get(
        "/v1/jobs/{name}/results",
        summary="Lines of JSON: the parameters, status, node, times, exit code and result of each task that is over",
        role=VIEWER,
    )
    async def results(bearer: Bearer, name: str) -> Stream:
        ledger, found = await settled_job(bearer, name)
        rows = results_of_job(home, ledger, found.job, plane.clock.now())
        return Stream(_lines(rows, lambda: gate.stands(bearer)), "application/x-ndjson")

    @routes.post(
        "/v1/jobs/{name}/input",
        summary="Send a task a piece of its standard input; the answer says how much was accepted",
        status=200,
        role=SUBMITTER,
    )
    async def give_input(bearer: Bearer, name: str, data: InputRequest) -> InputReport:
        plane.check_leading()
        ledger, found = await settled_job(bearer, name, data.task)
        check_enter(ledger, found.job.account, bearer)
        unit, index = the_one_that_takes_input(found)
        if data.hold and unit.spec.tty:
            attendance.heard(found.job.id, data.hold, bearer)
        until = asyncio.get_running_loop().time() + INPUT_SECONDS
        while unit.tasks[index].status != "running":
            if ledger.jobs.is_over(unit.id):
                attendance.done(found.job.id)
                return InputReport(epoch=unit.epoch_of(index), wanted=False, over=True)
            if asyncio.get_running_loop().time() > until:
                return InputReport()
            await asyncio.sleep(INPUT_POLL)
            ledger = await plane.settled()
            unit = ledger.jobs.unit(unit.id) or unit
        attempt = attempt_of(unit, index)
        if data.data and unit.suspended is not None:  # if its resources are not free, the input waits for them
            await resume(bearer, unit.id)
        fed = await consoles.feed(unit.tasks[index].node, attempt, data.piece(attempt.epoch))
        if fed is None:
            return InputReport(epoch=attempt.epoch)
        attendance.done(found.job.id)
        return InputReport(epoch=attempt.epoch, taken=fed.taken, wanted=fed.wanted)

    @routes.post(
        "/v1/jobs/{name}/exec",
        summary="Run a command beside a running task, and stream its output as lines of JSON; it ends with the request",
        status=200,
        role=SUBMITTER,
    )
    async def execute(bearer: Bearer, name: str, data: ExecRequest) -> Stream:
        plane.check_leading()
        ledger, found = await settled_job(bearer, name, data.task)
        check_enter(ledger, found.job.account, bearer)
        unit, index = the_one_that_runs(found, ledger, data.rank)
        tty = terminal(data.tty, "tty") if data.tty else 0
        argv = command_of(list(data.run), "run")
        env = {variable: variable_of(variable, value, f"env.{variable}") for variable, value in data.env.items()}
        await woken(bearer, unit)
        node, attempt = unit.tasks[index].node, attempt_of(unit, index)
        _log.info("%s of %s runs `%s` beside %s", bearer.name or "somebody", bearer.tenant, argv[0], attempt)
        pieces = consoles.run(node, attempt, bearer, argv, env, stdin=data.stdin, tty=tty)
        return Stream(_lines(pieces, lambda: gate.stands(bearer)), "application/x-ndjson")

    @routes.post(
        "/v1/jobs/{name}/connect",
        summary="Connect to a port of a running task, or to an SSH server beside it; what it sends comes as lines of "
        "JSON, as for `exec`",
        status=200,
        role=SUBMITTER,
    )
    async def connect(bearer: Bearer, name: str, data: ConnectRequest) -> Stream:
        plane.check_leading()
        ledger, found = await settled_job(bearer, name, data.task)
        check_enter(ledger, found.job.account, bearer)
        unit, index = the_one_that_runs(found, ledger, data.rank)
        if bool(data.port) == bool(data.key):
            raise SpecError("a connection is to a port, or by SSH", field="port", need="`port` or `key`")
        session = ("port", str(data.port)) if data.port else ("ssh",)
        await woken(bearer, unit)
        node, attempt = unit.tasks[index].node, attempt_of(unit, index)
        _log.info("%s of %s connects to %s: %s", bearer.name or "somebody", bearer.tenant, attempt, " ".join(session))
        env = {SSH_KEY: data.key} if data.key else {}
        pieces = consoles.run(node, attempt, bearer, (), env, stdin=True, session=session)
        return Stream(_lines(pieces, lambda: gate.stands(bearer)), "application/x-ndjson")

    @routes.post(
        "/v1/jobs/{name}/capture",
        summary="Capture what a running task does: stacks by py-spy, or a trace of PyTorch; answers in lines of JSON",
        status=200,
        role=SUBMITTER,
    )
    async def take_capture(bearer: Bearer, name: str, data: CaptureRequest) -> Stream:
        plane.check_leading()
        ledger, found = await settled_job(bearer, name, data.task)
        check_enter(ledger, found.job.account, bearer)
        unit, index = the_one_that_runs(found, ledger, data.rank)
        lasts = LASTS[data.kind]
        if data.lasts is not None:
            lasts = parse_or_raise(parse_duration, data.lasts, "lasts", LONGEST)
        node, attempt = unit.tasks[index].node, attempt_of(unit, index)
        _log.info("%s of %s captures %s of %s", bearer.name or "somebody", bearer.tenant, data.kind, attempt)
        pieces = capture(consoles, home.logs, node, attempt, bearer, data.kind, lasts)
        return Stream(_lines(pieces, lambda: gate.stands(bearer)), "application/x-ndjson")

    @routes.post(
        "/v1/jobs/{name}/files",
        summary="Get a file or a folder that a task has left on its node, as a tar archive in lines of JSON",
        status=200,
        role=SUBMITTER,
    )
    async def get_files(bearer: Bearer, name: str, data: FilesRequest) -> Stream:
        plane.check_leading()
        ledger, found = await settled_job(bearer, name, data.task)
        check_enter(ledger, found.job.account, bearer)
        unit, index = the_one_that_ran(found, data.rank)
        tree = found.job.tree
        node, attempt = unit.tasks[index].node, attempt_of(unit, index)
        folder, within = found.job.folder, tree.folder if tree is not None else ""
        account = found.job.account
        pieces = consoles.get(node, attempt, bearer, data.path, folder=folder, within=within, account=account)
        return Stream(_lines(pieces, lambda: gate.stands(bearer)), "application/x-ndjson")

    @routes.get("/v1/jobs/{name}/captures", summary="Stored captures of a job", role=VIEWER)
    async def captures(bearer: Bearer, name: str) -> list[Capture]:
        _, found = await settled_job(bearer, name)
        return await asyncio.to_thread(captures_of, home.logs, found.job.id)

    @routes.get("/v1/jobs/{name}/captures/{capture}", summary="The file of a capture", role=VIEWER)
    async def one_capture(bearer: Bearer, name: str, capture: str) -> Content:
        _, found = await settled_job(bearer, name)
        data = await asyncio.to_thread(read_capture, home.logs, found.job.id, capture)
        if data is None:
            hint = f"`poise capture {found.job.id} --list`"
            raise NotFound("the job has no such capture", field="capture", have=capture[:100], hint=hint)
        return Content(data, "application/octet-stream")

    @routes.post(
        "/v1/exec/{name}/input",
        summary="Send a command beside a task a piece of its standard input",
        status=200,
        role=SUBMITTER,
    )
    async def give_exec_input(bearer: Bearer, name: str, data: InputRequest) -> InputReport:
        running = consoles.known(name, bearer)
        if running is None:
            raise NotFound(f"no command `{name}` runs beside a task", field="exec", have=name)
        fed = await consoles.feed(running.node, name, data.piece(data.epoch))
        return InputReport(epoch=1) if fed is None else InputReport(epoch=1, taken=fed.taken, wanted=fed.wanted)

    @routes.get(
        "/v1/nodes",
        summary=f"Nodes by name, with their resources and used amounts: the first {PAGE}, or those `after` a name",
        role=VIEWER,
    )
    async def nodes(
        bearer: Bearer, after: str = "", limit: Annotated[int, msgspec.Meta(ge=1, le=PAGE)] = PAGE
    ) -> list[NodeReport]:
        ledger = await plane.settled()
        sight, told = Sight(ledger, bearer), plane.controller.watch
        page = list(islice((entry for entry in ledger.nodes.items() if entry[0] > after), limit))
        reports: list[NodeReport] = []
        for name, state in page:
            report = node_report(state, told.load_of(name), told.upkeep_of(name), cordons=ledger.cordons)
            reports.append(sight.node(report))
            if len(reports) % NODES_AT_ONCE == 0:
                await asyncio.sleep(0)
        return reports

    @routes.get(
        "/v1/profiles",
        summary=f"Load history of nodes, with advice: one `node`, or the first {PROFILED}",
        role=VIEWER,
    )
    async def profiles(node: str = "") -> list[NodeProfile]:
        known = (await plane.settled()).nodes
        names = [find_node(known, node)] if node else list(islice(known, PROFILED))
        return await asyncio.to_thread(series.profiles, names, plane.clock.wall())

    @routes.get(
        "/v1/names/{kind}",
        summary="Names of kind job, node, tenant or schedule that begin with `typed`, for completion",
        role=VIEWER,
    )
    async def names(bearer: Bearer, kind: NameKind, typed: str = "") -> list[str]:
        return find_names(await plane.settled(), kind, typed, bearer)

    @routes.post(
        "/v1/nodes/{name}/drain",
        summary="Close a node, or a device of it (`n1:0`), to new work and move its running work, or open it again",
        status=202,
        role=OPERATOR,
    )
    async def drain(bearer: Bearer, name: str, data: DrainRequest) -> Drained:
        drained: Drained = await plane.request(
            lambda request: messages.Drain(request, name, data.on, bearer, data.moves)
        )
        return drained

    @routes.post(
        "/v1/nodes/lost",
        summary="Declare nodes lost that their engine reports as gone; most of a fleet only if they stay away",
        status=202,
        role=OPERATOR,
    )
    async def give_up(bearer: Bearer, data: NamedNodes) -> dict[str, list[str]]:
        return {"nodes": await plane.request(lambda request: messages.GiveUp(request, data.nodes, bearer))}

    @routes.post(
        "/v1/nodes/jobs",
        summary="For a node that keeps files of jobs: which of these are no longer known",
        status=200,
        role=Role.NODE,
    )
    async def gone_jobs(data: JobIds) -> list[str]:
        plane.check_leading()
        ledger = await plane.settled()
        return [name for name in data if name not in ledger.jobs]

    @routes.post(
        "/v1/nodes/leave",
        summary="For a node, with the token that it joined with: it leaves, and does not come back",
        status=202,
        role=Role.NODE,
    )
    async def leave(bearer: Bearer, data: NamedNode) -> dict[str, str]:
        return {"node": await plane.request(lambda request: messages.Leave(request, data.node, bearer))}

    @routes.post(
        "/v1/nodes/lend",
        summary="Preempt the work on the one of these nodes that loses least, because others wait for its machine",
        status=202,
        role=OPERATOR,
    )
    async def lend(bearer: Bearer, data: NamedNodes) -> dict[str, str]:
        return {"node": await plane.request(lambda request: messages.Lend(request, data.nodes, bearer))}

    @routes.get(
        "/v1/incidents", summary="Incidents, oldest first: the open ones, and the latest closed ones", role=VIEWER
    )
    async def list_incidents(bearer: Bearer) -> list[IncidentReport]:
        sight = Sight(await plane.settled(), bearer)
        reports = await incidents.reports()
        return await asyncio.to_thread(lambda: [seen for seen in map(sight.incident, reports) if seen is not None])

    @routes.get("/v1/incidents/{name}", summary="One incident: cause, evidence, timeline, what to do", role=VIEWER)
    async def one_incident(bearer: Bearer, name: str) -> IncidentReport:
        sight = Sight(await plane.settled(), bearer)
        report = sight.incident(await incidents.report(name))
        if report is None:
            raise no_such_incident(name)
        return report

    @routes.get("/v1/schedules", summary="Schedules: when they submit jobs, and how the last one ended", role=VIEWER)
    async def schedules(bearer: Bearer) -> list[ScheduleReport]:
        return Sight(await plane.settled(), bearer).schedules()

    @routes.post(
        "/v1/schedules/{name}/hold",
        summary="Put a schedule on hold: it submits no jobs; those that it has submitted go on",
        status=202,
        role=SUBMITTER,
    )
    async def hold_schedule(bearer: Bearer, name: str) -> ScheduleChanged:
        return ScheduleChanged(await plane.request(lambda number: messages.HoldSchedule(number, name, True, bearer)))

    @routes.post(
        "/v1/schedules/{name}/release",
        summary="Let a schedule go on that is on hold; what was due meanwhile is passed over",
        status=202,
        role=SUBMITTER,
    )
    async def release_schedule(bearer: Bearer, name: str) -> ScheduleChanged:
        return ScheduleChanged(await plane.request(lambda number: messages.HoldSchedule(number, name, False, bearer)))

    @routes.delete(
        "/v1/schedules/{name}",
        summary="Remove a schedule; its jobs stay",
        status=202,
        role=SUBMITTER,
    )
    async def remove_schedule(bearer: Bearer, name: str) -> ScheduleChanged:
        return ScheduleChanged(await plane.request(lambda number: messages.RemoveSchedule(number, name, bearer)))

    @routes.get("/v1/quotas", summary="Quotas of tenants, and their use", role=VIEWER)
    async def quotas(bearer: Bearer) -> list[QuotaReport]:
        return Sight(await plane.settled(), bearer).quotas()

    @routes.put(
        "/v1/quotas/{tenant}",
        summary="Set the quota of a tenant",
        status=202,
        role=ADMIN,
    )
    async def set_quota(bearer: Bearer, tenant: str, data: QuotaSpec) -> dict[str, str]:
        check_name(tenant, "tenant")
        quota = compile_quota(data)
        shifts(data.time_zone, plane.clock.wall(), "time_zone")  # refuses an unknown time zone
        note = quota_note(await plane.settled(), tenant, lifted=False)
        await plane.request(lambda request: messages.SetQuota(request, tenant, quota, bearer))
        return {"tenant": tenant, "note": note}

    @routes.delete(
        "/v1/quotas/{tenant}",
        summary="Remove the quota of a tenant",
        status=202,
        role=ADMIN,
    )
    async def lift_quota(bearer: Bearer, tenant: str) -> dict[str, str]:
        note = quota_note(await plane.settled(), tenant, lifted=True)
        await plane.request(lambda request: messages.SetQuota(request, tenant, None, bearer))
        return {"tenant": tenant, "note": note}

    @routes.get("/v1/budgets", summary="List budgets, the amount spent of each, and when it runs out", role=VIEWER)
    async def budgets(bearer: Bearer) -> list[BudgetReport]:
        return Sight(await plane.settled(), bearer).budgets(plane.clock.now())

    @routes.put("/v1/budgets", summary="Replace all budgets", status=202, role=ADMIN)
    async def set_budgets(bearer: Bearer, data: BudgetsRequest) -> list[BudgetReport]:
        asked = compile_budgets(data.document, Zones(plane.clock.wall(), shifts))
        await plane.request(lambda request: messages.SetBudgets(request, asked, bearer))
        return Sight(await plane.settled(), bearer).budgets(plane.clock.now())

    @routes.get("/v1/shares", summary="Fair shares, what they hold and owe, and which is served first", role=VIEWER)
    async def shares(bearer: Bearer) -> SharesReport:
        return Sight(await plane.settled(), bearer).shares(plane.clock.now())

    @routes.put("/v1/shares", summary="Set the fair shares", status=202, role=ADMIN)
    async def set_shares(bearer: Bearer, data: SharesRequest) -> SharesReport:
        tree = compile_shares(data.document)
        await plane.request(lambda request: messages.SetShares(request, tree if tree.named else None, bearer))
        return Sight(await plane.settled(), bearer).shares(plane.clock.now())

    @routes.post("/v1/shares/foreseen", summary="What other shares would change; takes some seconds", role=ADMIN)
    async def foreseen_shares(bearer: Bearer, data: SharesRequest) -> SharesForeseen:
        tree = compile_shares(data.document)

        async def ask() -> Callable[[ClusterPolicy], SharesForeseen]:
            from poise.control.foreseen import foresee

            ledger = await plane.settled()
            return foresee(ledger, tree if tree.named else None, plane.clock.now(), Effort())

        return await thought_about(bearer, ask)

    @routes.get("/v1/reservations", summary="Reservations, and their current or next window", role=VIEWER)
    async def reservations(bearer: Bearer) -> list[ReservationReport]:
        return Sight(await plane.settled(), bearer).reservations(plane.clock.now())

    @routes.post("/v1/reservations", summary="Reserve nodes or devices, all or none", status=202, role=OPERATOR)
    async def reserve(bearer: Bearer, data: ReservationsRequest) -> list[ReservationReport]:
        wanted = compile_reservations(data.document, Zones(plane.clock.wall(), shifts))
        for one in wanted:
            if not bearer.sees(one.tenant):
                raise Forbidden("this tenant is not yours", field="tenant", need=bearer.tenant, have=one.tenant)
        accepted: list[Accepted] = await plane.request(lambda number: messages.Reserve(number, wanted, bearer))
        ledger, now = await plane.settled(), plane.clock.now()
        known = {one.reservation.id: one.known for one in accepted}
        found = (reservation_report(ledger, ledger.reservations[name], now, bearer) for name in known)
        return [msgspec.structs.replace(one, known=known[one.id]) for one in found if one is not None]

    @routes.get(
        "/v1/reservations/{name}",
        summary="A reservation, and the chance that its places are free in time; takes some seconds",
        role=VIEWER,
    )
    async def reservation(bearer: Bearer, name: str) -> ReservationReport:
        async def ask() -> Callable[[ClusterPolicy], ReservationReport]:
            from poise.engine.keeping import chance_of

            ledger, now = await plane.settled(), plane.clock.now()
            of = find_reservation(ledger, name, bearer)
            report, fork = reservation_report(ledger, of, now, bearer), ledger.fork()
            if report is None:
                raise Conflict("the reservation is over", field="reservation", have=name, hint="`poise reserve`")
            window = next(fork.reservations.windows(report.id, now))

            def answer(policy: ClusterPolicy) -> ReservationReport:
                try:
                    chance = chance_of(fork, policy, window, now, Effort())
                except InputError:  # a fleet that is too large to simulate in time
                    return report
                return msgspec.structs.replace(report, chance=chance.thousandths, futures=chance.futures)

            return answer

        return await thought_about(bearer, ask)

    @routes.delete("/v1/reservations/{name}", summary="Cancel a reservation", status=202, role=OPERATOR)
    async def cancel_reservation(bearer: Bearer, name: str) -> dict[str, str]:
        cancelled = await plane.request(lambda number: messages.CancelReservation(number, name, bearer))
        return {"reservation": cancelled}

    @routes.get("/v1/policy", summary="The policy that decides", role=VIEWER)
    async def policy_in_charge() -> PolicyReport:
        return policy_report(await plane.settled())

    @routes.put("/v1/policy", summary="Change the policy", status=202, role=ADMIN)
    async def set_policy(bearer: Bearer, data: PolicyRequest) -> PolicyReport:
        plane.check_leading()
        choice = chosen(data)
        await deciders.try_out(choice)
        told = policy_settings(choice, plane.clock.wall())
        await plane.request(lambda request: messages.Configure(request=request, bearer=bearer, **told))
        forget_policy(home)
        return policy_report(await plane.settled())

    @routes.get("/v1/rules", summary="The rules, and how they stand", role=OPERATOR)
    async def rules() -> RulesReport:
        await plane.settled()
        return plane.controller.ruling.report()

    @routes.put("/v1/rules", summary="Set the rules", status=202, role=OPERATOR)
    async def set_rules(bearer: Bearer, data: RulesRequest) -> RulesReport:
        plane.check_leading()
        compiled = compile_rules(data.document)
        wanted = {
            rule.name: choose_rule_policy(rule.name, policy, place)
            for place, rule in enumerate(compiled.rules)
            for action in rule.actions
            if (policy := policy_of(action)) is not None
        }
        actions = [action for rule in compiled.rules for action in rule.actions]
        if any(sets_policy(action) for action in actions) and not bearer.may(ADMIN):
            raise Forbidden("a rule that sets the policy needs the role admin", hint="`poise whoami`")
        if any(targets_of(rule) for rule in compiled.rules) and not bearer.may(ADMIN):
            what = "a rule that notifies a target of its own needs the role admin"
            raise Forbidden(what, hint="`notify: true`: the targets of incidents in `notifications.yaml`")
        policies: dict[str, dict[str, Any]] = {}
        for name, choice in wanted.items():
            await deciders.try_out(choice)
            told = policy_settings(choice, 0)
            policies[name] = {key: told[key] for key in ("policy", "recipe", "code")}
        await plane.request(lambda request: messages.SetRules(request, data.document, policies, bearer))
        return plane.controller.ruling.report()

    @routes.post(
        "/v1/rules/orders",
        summary="Report the state of the services of a gateway, and get what rules ask of the services of this tenant",
        role=SUBMITTER,
    )
    async def service_orders(bearer: Bearer, data: GatewayNews) -> OrdersReport:
        plane.check_leading()
        services: dict[str, Served] = {}
        left_out: dict[str, str] = {}
        for news in data.services:
            job, name = plane.ledger.jobs.get(news.job), class_of_tenant(news.service, bearer.tenant)
            if job is None or job.tenant != bearer.tenant:
                left_out[name] = f"there is no job {news.job} of tenant {bearer.tenant}"
            else:
                services[name] = news.state
        left_out |= await plane.request(
            lambda request: messages.HearServices(request, bearer.tenant, data.gateway, services)
        )
        orders = (
            msgspec.structs.replace(order, service=declared_class(order.service))
            for order in plane.controller.ruling.orders()
            if tenant_of_class(order.service) == bearer.tenant
        )
        told = (ServiceLeftOut(service=declared_class(name), why=why) for name, why in left_out.items())
        return OrdersReport(orders=tuple(orders), left_out=tuple(told))

    @routes.get(
        "/v1/endpoints",
        summary="Return the addresses of the running tasks of `job` (its id, or the name of an unfinished one), for a "
        "gateway; wait at most `wait` seconds for an answer other than `known`",
        role=SUBMITTER,
    )
    async def places_of_tasks(bearer: Bearer, job: str = "", known: str = "", wait: float = 0.0) -> EndpointsReport:
        deadline = asyncio.get_running_loop().time() + min(wait, MAX_WAIT)
        news = plane.follow()
        try:
            while True:
                news.clear()
                jobs = (await plane.settled()).jobs
                found = jobs.get(job) or jobs.named(job, bearer.tenant)
                found = found if found is not None and bearer.sees(found.tenant) else None
                told = endpoints(found, plane.controller.contacts.addresses.get)
                if (told.complete and told.known != known) or asyncio.get_running_loop().time() >= deadline:
                    break
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(deadline):
                        await news.wait()
                        await asyncio.sleep(PLACES_EVERY)
        finally:
            plane.unfollow(news)
        if not gate.stands(bearer):  # the token may have been revoked during the wait
            raise Denied("the token has been revoked", field="Authorization", hint="ask an admin for another one")
        return told

    @routes.post("/v1/rules/answers", summary="Allow or deny what a rule asks for", status=202, role=OPERATOR)
    async def answer_rule(bearer: Bearer, data: RuleAnswer) -> RuleDone:
        done = await plane.request(
            lambda request: messages.AnswerRule(request, data.rule, data.subject, data.allowed, bearer)
        )
        return RuleDone(rule=data.rule, subject=data.subject, actions=tuple(done))

    @routes.post("/v1/policy/rollback", summary="Go back to the policy before", status=202, role=ADMIN)
    async def roll_back(bearer: Bearer) -> PolicyReport:
        plane.check_leading()
        before = (await plane.settled()).leader.before
        if not before:
            raise NotFound("no other policy has decided before", field="policy", hint="`poise policy set NAME`")
        await deciders.try_out(choice_before(before))
        told = {**before, "asked": plane.clock.wall(), "why": "rolled back"}
        await plane.request(lambda request: messages.Configure(request=request, bearer=bearer, **told))
        forget_policy(home)
        return policy_report(await plane.settled())

    def shadow_report(report: ShadowReport) -> ShadowReport:
        """Add the results of the simulated fleet."""
        told = read_told(home)
        world = world_report(told, report.policy, plane.clock.wall()) if told is not None else None
        return msgspec.structs.replace(report, world=world)

    @routes.get("/v1/shadow", summary="The policies in shadow, each with its comparison", role=OPERATOR)
    async def shadows() -> list[ShadowReport]:
        return [await asyncio.to_thread(shadow_report, report) for report in deciders.shadows()]

    @routes.put("/v1/shadow", summary="Put a policy in shadow", status=202, role=ADMIN)
    async def start_shadow(data: PolicyRequest) -> ShadowReport:
        plane.check_leading()
        choice = chosen(data)
        asked = Asked(choice=choice, since=plane.clock.wall())
        await deciders.start_shadow(choice, asked.since)
        write_asked(home, [*(one for one in read_asked(home) if one.choice.label != choice.label), asked])
        return next(report for report in deciders.shadows() if report.policy == choice.label)

    @routes.delete("/v1/shadow/{policy}", summary="End the shadow of a policy", status=202, role=ADMIN)
    async def stop_shadow(policy: str) -> ShadowReport:
        label = deciders.shadow(policy).label
        found = next(report for report in deciders.shadows() if report.policy == label)
        told = await asyncio.to_thread(shadow_report, found)
        end_shadow(label)
        return told

    def end_shadow(label: str) -> None:
        deciders.stop_shadow(label)
        write_asked(home, [one for one in read_asked(home) if one.choice.label != label])

    async def on_trial(choice: Choice, nodes: str) -> Choice:
        """Return this policy for some nodes, and the current one for the rest."""
        ledger, selected = await plane.settled(), parse_selection(nodes, "--nodes")
        check_selection(selected, ledger.columns.fleet().nodes, "--nodes")
        rest = choice_before(undivided(ledger.leader.now))
        check_divisible(choice.label, rest.label)
        return choose_split(choice, rest, selected)

    @routes.post("/v1/shadow/{policy}/promotion", summary="Let a policy in shadow decide", status=202, role=ADMIN)
    async def promote(bearer: Bearer, policy: str, data: Promotion) -> PolicyReport:
        plane.check_leading()
        choice = deciders.shadow(policy)
        found = next(report for report in deciders.shadows() if report.policy == choice.label)
        world = (await asyncio.to_thread(shadow_report, found)).world
        reason = not_to_promote(world)
        if reason and not data.force:
            what, hint = f"`{choice.label}` is not promoted: {reason}", f"`poise promote {policy} --force`"
            raise Conflict(what, field="policy", need="an interval that shows an improvement", hint=hint)
        why = f"by force: {reason}"
        if world is not None and not reason:
            why = f"mean completion {in_words(world.figures[0])} of {world.jobs} jobs in shadow"
        deciding = await on_trial(choice, data.nodes) if data.nodes else choice
        await deciders.try_out(deciding)
        told = policy_settings(deciding, plane.clock.wall())
        await plane.request(lambda request: messages.Configure(request=request, bearer=bearer, why=why, **told))
        forget_policy(home)
        if not data.nodes:
            end_shadow(choice.label)
        return policy_report(await plane.settled())

    @routes.get("/v1/tokens", summary="Created tokens, including the latest revoked ones", role=ADMIN)
    async def tokens() -> list[TokenReport]:
        ledger = await plane.settled()
        now = plane.clock.now()
        return [token_report(ledger, of, now) for of in sorted(ledger.tokens.values(), key=_in_order)]

    @routes.post("/v1/tokens", summary="Create a token, by the hash of its secret", status=201, role=ADMIN)
    async def add_token(bearer: Bearer, data: TokenRequest) -> TokenReport:
        check_name(data.tenant, "tenant")
        if data.name:
            check_name(data.name, "name")
        lasts = 0 if data.expires is None else parse_or_raise(parse_duration, data.expires, "expires", MAX_DURATION)
        if data.expires is not None and not lasts:
            raise SpecError("the token would expire at once", code="E103", field="expires", hint="expires: 30d")
        if data.account:
            check_account(data.account, "account")
        made = await plane.request(
            lambda request: messages.AddToken(
                request=request,
                tenant=data.tenant,
                role=Role[data.role.upper()],
                hash=data.hash,
                name=data.name,
                lasts=lasts,
                account=data.account,
                bearer=bearer,
            )
        )
        return token_report(plane.ledger, made, plane.clock.now())

    @routes.delete("/v1/tokens/{token_id}", summary="Revoke a token", status=202, role=ADMIN)
    async def revoke_token(bearer: Bearer, token_id: str) -> dict[str, str]:
        return {"token": await plane.request(lambda request: messages.RevokeToken(request, token_id, bearer))}

    SigningIn(plane, home, gate).add_routes(routes)

    @routes.get(
        "/v1/events", summary="The log as server-sent events, from `after` on; `decisions` only, or all", role=VIEWER
    )
    async def events(
        bearer: Bearer,
        request: Request,
        after: Revision = -1,
        decisions: bool = False,
        follow: bool = True,
    ) -> Stream:
        def shown(revision: int, event: Event) -> LoggedEvent | None:
            seen = Sight(plane.ledger, bearer).event(event)
            wanted = seen is not None and (not decisions or isinstance(event, DECISIONS))
            return LoggedEvent(revision, seen) if wanted else None

        stream = _event_stream(plane, _resumed(request, after), shown, lambda: gate.stands(bearer), follow=follow)
        return Stream(stream, "text/event-stream")

    @routes.get("/v1/audit", summary="Changes with their authors, as server-sent events, from `after` on", role=ADMIN)
    async def audit(bearer: Bearer, request: Request, after: Revision = -1, follow: bool = True) -> Stream:
        def shown(revision: int, event: Event) -> AuditReport | None:
            return audit_report(plane.ledger, revision, event) if isinstance(event, AUDITED) else None

        stream = _event_stream(plane, _resumed(request, after), shown, lambda: gate.stands(bearer), follow=follow)
        return Stream(stream, "text/event-stream")

    @routes.get("/v1/refusals", summary="Number of refused requests, and the latest of them", role=ADMIN)
    async def refusals() -> RefusalsReport:
        return gate.refusals()

    @routes.post("/v1/shutdown", summary="Stop the control plane; running work continues", status=202, role=ADMIN)
    async def shutdown(bearer: Bearer) -> dict[str, bool]:
        with contextlib.suppress(StoreFull, NotLeading):  # a full log or a standby cannot record the stop
            await plane.request(lambda request: messages.AskToStop(request, bearer))
        asyncio.get_running_loop().call_later(0.05, lifetime.shut_down)
        return {"stopping": True}

    @routes.post(
        "/v1/stay",
        summary="Stay up when no job is left, also if started only for a job",
        status=202,
        role=ADMIN,
    )
    async def stay() -> dict[str, bool]:
        lifetime.stay()
        return {"staying": True}

    @cache
    def described() -> Content:
        return Content(msgspec.json.encode(document(routes)), "application/json")

    @routes.get(SCHEMA, summary="The OpenAPI document of the other routes", role=VIEWER)
    async def schema() -> Content:
        return described()

    def caller_key_of(job_id: str) -> str:
        job = plane.ledger.jobs.get(job_id)
        return caller_key(token, job.id, job.tenant) if job is not None and job.calls is not None else ""

    channel = NodeChannel(plane, gate, series, home, vault, key_of, consoles, minutes, anomalies, of_clusters)
    hot: dict[str, tuple[Role | None, App]] = {
        "submissions": (Role.SUBMITTER, Submissions(plane, targets, gate, chances, vault, caller_key_of, files)),
        "channel": (Role.NODE, channel),
        "calls": (Role.SUBMITTER, CallerChannel(plane, gate, caller_key_of)),
        "workers": (None, WorkerChannel(plane, gate, key_of)),
    }
    return Guard(gate, routes, hot, lifetime.request, known_as)


def whole_hashes(data: bytes) -> bytes:
    """Return the hashes in a request. Raises SpecError if the length is not a multiple of the hash size."""
    if len(data) % HASH:
        raise SpecError("these are no hashes", field="data", need=f"{HASH} bytes each", have=f"{len(data)} bytes")
    return data


def _raw(data: bytes) -> Content:
    return Content(data, "application/octet-stream")


def the_one_that_takes_input(found: Found) -> tuple[UnitState, int]:
    """Return the unit of the only selected task that takes input, and the task's index in it. Raises `SpecError`."""
    tasks = takes_input(found)
    if not tasks:
        hint = "`poise run -i`, `poise submit -i`, or `stdin: true` in the file"
        raise SpecError(f"{found.name} takes no input", field="job", have=found.name, hint=hint)
    return _only_one(found, tasks, "take input")


def the_one_that_runs(found: Found, ledger: Ledger, rank: int | None) -> tuple[UnitState, int]:
    """Return the unit of the only selected task that runs, with this rank if given, and the task's index in it. If all
    of them belong to one gang, choose its first. Raises `SpecError`.
    """
    tasks = running_tasks(found, ledger)
    if rank is not None:
        tasks = [(unit, index) for unit, index in tasks if unit.spec.tasks[index].rank == rank]
    if not tasks:
        which = "nothing" if rank is None else f"no rank {rank}"
        hint = f"`poise show {found.job.id}` tells what it does"
        raise SpecError(f"{which} of {found.name} runs now", field="job", have=found.name, hint=hint)
    if len({unit.id for unit, _ in tasks}) == 1:
        return tasks[0]
    return _only_one(found, tasks, "run")


def the_one_that_ran(found: Found, rank: int | None) -> tuple[UnitState, int]:
    """Return the unit of the only selected task that has been on a node, with this rank if given, and the task's index
    in it. If all of them belong to one gang, choose its first. Raises `SpecError`.
    """
    tasks = [
        (unit, index)
        for unit in found.units
        for index, (spec, state) in enumerate(zip(unit.spec.tasks, unit.tasks, strict=True))
        if spec.name in found.tasks and state.node and (rank is None or spec.rank == rank)
    ]
    if not tasks:
        which = "nothing" if rank is None else f"no rank {rank}"
        hint = f"`poise show {found.job.id}` tells what it does"
        raise SpecError(f"{which} of {found.name} has run yet", field="job", have=found.name, hint=hint)
    if len({unit.id for unit, _ in tasks}) == 1:
        return tasks[0]
    return _only_one(found, tasks, "have run")


def _only_one(found: Found, tasks: list[tuple[UnitState, int]], what: str) -> tuple[UnitState, int]:
    if len(tasks) > 1:
        names = [f"{found.job.id}.{unit.spec.tasks[index].name}" for unit, index in tasks]
        raise SpecError(
            f"{len(tasks)} tasks of {found.name} {what}",
            field="job",
            need="one of them",
            have=some(names, FEW),
            hint=f"name one: `{names[0]}`",
        )
    return tasks[0]


def _in_order(token: Token) -> tuple[int, str]:
    """Sort key that orders t2 before t10."""
    return len(token.id), token.id


def _resumed(request: Request, after: int) -> int:
    """Return the revision to resume after: from `Last-Event-ID` if the client was cut off, else `after`."""
    last = request.headers.get("last-event-id", "")
    return min(int(last), MAX_REVISION) if last.isdecimal() and len(last) < 20 else after


async def _lines(pieces: AsyncIterator[Any], stands: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Encode one piece per line while the token is valid. Send an empty line as a keep-alive."""
    source = aiter(pieces)
    upcoming = asyncio.ensure_future(anext(source, None))
    try:
        while True:
            done, _ = await asyncio.wait((upcoming,), timeout=KEEP_ALIVE)
            if not stands():
                return
            if not done:
                yield b"\n"
                continue
            piece = upcoming.result()
            if piece is None:
                return
            yield msgspec.json.encode(piece) + b"\n"
            upcoming = asyncio.ensure_future(anext(source, None))
    finally:
        upcoming.cancel()


async def _event_stream(
    plane: Plane,
    after: int,
    shown: Callable[[int, Event], msgspec.Struct | None],
    stands: Callable[[], bool],
    *,
    follow: bool,
) -> AsyncIterator[bytes]:
    """Stream events after the revision `after`; below zero means from now on. `shown` converts a record for display, or
    returns None to skip it. The stream ends when the token becomes invalid.
    """
    await plane.settled()
    position = plane.ledger.revision if after < 0 else after
    news = plane.follow()
    try:
        yield b": poise\n\n"
        while stands():
            news.clear()
            page = plane.events_after(position, EVENT_PAGE)
            chunks = []
            for revision, event in page:
                position = revision
                if (told := shown(revision, event)) is not None:
                    chunks.append(b"id: %d\ndata: %s\n\n" % (revision, msgspec.json.encode(told)))
            if chunks:
                yield b"".join(chunks)
            if page:
                await asyncio.sleep(0)  # yield the loop: a long log with few matches must not delay other requests
                continue
            if not follow:
                yield WHOLE
                return
            try:
                async with asyncio.timeout(KEEP_ALIVE):  # `wait_for` loses a cancellation that coincides with an event
                    await news.wait()
            except TimeoutError:
                yield b": alive\n\n"
    finally:
        plane.unfollow(news)
