"""The HTTP API: its routes, its OpenAPI document, its errors. No logic: each route asks the plane or draws a report.

Each route says which role it needs (`opt`), and answers with what the bearer of the token may see, and nothing else.
"""

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Callable, Collection
from functools import partial
from itertools import islice
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from litestar import Litestar, Request, Response, delete, get, post, put
from litestar.config.compression import CompressionConfig
from litestar.connection import ASGIConnection
from litestar.di import Provide
from litestar.exceptions import HTTPException, ValidationException
from litestar.handlers import BaseRouteHandler
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.spec import Components, SecurityScheme
from litestar.params import Parameter
from litestar.response import Stream

from poise import __version__
from poise.config import PAGE, Home
from poise.control.chances import Chances
from poise.control.gatekeeper import Gatekeeper
from poise.control.guard import PUBLIC, App, ErrorBody, Guard
from poise.control.hot import (
    UNREADABLE,
    CallerChannel,
    NodeChannel,
    Submission,
    Submissions,
    WorkerChannel,
    not_json,
)
from poise.control.lifetime import Lifetime
from poise.control.openapi import CompleteDocument, LoggedEvent, schema_router
from poise.control.plane import Plane
from poise.control.shares import Turns
from poise.drivers.joblogs import follow_job
from poise.drivers.security import caller_key, worker_key
from poise.drivers.series import Series
from poise.errors import ErrorRecord, NotFound, NotLeading, PoiseError, SpecError, StoreFull
from poise.kernel import controller as machine
from poise.kernel import whatif
from poise.kernel.audit import audit_report
from poise.kernel.explain import (
    Question,
    job_report,
    node_report,
    question,
    status_report,
    token_report,
    who_report,
)
from poise.kernel.find import Found, find, find_node, found_report, quota_note
from poise.kernel.find import names as find_names
from poise.kernel.ledger import Ledger
from poise.kernel.overview import overview
from poise.kernel.visible import Sight
from poise.model.chances import DeadlineForecast
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
from poise.model.messages import Attempt
from poise.model.reports import (
    AuditReport,
    Drained,
    Explanation,
    JobReport,
    NodeReport,
    Overview,
    PlanReport,
    QuotaReport,
    RefusalsReport,
    StatusReport,
    TokenReport,
    UnblockReport,
    WhoReport,
    WhyNot,
)
from poise.model.spec import MAX_DURATION, Quantity, QuotaSpec, check_name, compile_quota, parse_or_raise
from poise.model.tenants import Bearer, Role, Token
from poise.model.usage import PROFILED, NodeProfile
from poise.model.views import Snapshot
from poise.policy.suites import ClusterPolicy
from poise.units import parse_duration

MAX_WAIT = 60.0
"""Seconds that one request may wait for a job; clients ask again."""

RECENT = 20
"""Finished jobs shown beside the unfinished ones unless all are asked for."""

CANCELLED_AT_ONCE = 128
"""Jobs that are cancelled in one turn of the loop, some 10 ms, where all are to be."""

MAX_REVISION = 2**53 - 1
"""The largest integer that JSON keeps exact wherever it is read."""

Revision = Annotated[int, Parameter(le=MAX_REVISION)]

WHOLE = b": whole\n\n"
"""Ends a stream of events that was not to be followed; without it, it was cut off."""

DECISIONS = Placed | Held | Preempted | Resized | DeadlinesMissed | NodeLevelled | Triggered | PolicyFailed
"""What was decided, and what made it be: events of a stream of decisions."""

VIEWER, SUBMITTER = {"role": Role.VIEWER}, {"role": Role.SUBMITTER}
OPERATOR, ADMIN = {"role": Role.OPERATOR}, {"role": Role.ADMIN}
"""The role that a route needs."""

COMPRESSION = 1
"""The quickest: the thread that compresses is the one that decides."""

STREAMS = ("/v1/events", "/v1/audit", "/v1/jobs/[^/]+/logs")
"""Answers that never end are sent as they come."""

EVENT_PAGE = 1000
KEEP_ALIVE = 15.0
Answered = TypeVar("Answered")


_log = logging.getLogger("poise.control")


class Submitted(msgspec.Struct, frozen=True):
    """A job is accepted: its record is durable. `note` is what is to be known of it. Where it serves calls,
    `caller_key` lets its caller speak for it on `/v1/calls`.
    """

    job: str
    note: str = ""
    caller_key: str = ""


class Cancelled(msgspec.Struct, frozen=True):
    """How many jobs were cancelled. Their records are durable; what runs of them is being stopped."""

    cancelled: int


class DrainRequest(msgspec.Struct, frozen=True):
    """`on` closes it, off opens it again. With `moves`, what runs on the node goes on elsewhere."""

    on: bool = True
    moves: bool = False


class NamedNodes(msgspec.Struct, frozen=True):
    """`nodes` by their whole names."""

    nodes: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=100_000)]


class TokenRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A token for somebody of a tenant. Its secret is made by who asks and told nobody: `hash` is its SHA-256, in
    hexadecimal digits. `expires` is a duration from now; without it the token is good until it is revoked.
    """

    tenant: str
    role: Literal["node", "viewer", "submitter", "operator", "admin"]
    hash: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    name: str = ""
    expires: Quantity | None = None


def make_app(
    plane: Plane,
    home: Home,
    token: str,
    lifetime: Lifetime,
    imagined: Callable[[], ClusterPolicy],
    *,
    known_as: Collection[str] = (),
    authority: bytes = b"",
    chances: Chances | None = None,
) -> App:
    """The whole API behind its guard. `imagined` gives the policy in charge, to be asked what if. `known_as` are the
    names of this machine to others, and `authority` the certificate by which they know it, where it listens to them.
    `chances` answers questions about deadlines.
    """

    gate = Gatekeeper(plane, token)
    series = Series(home.series)
    chances = chances or Chances(plane, home)

    def allowed(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
        if (path := connection.scope["path"]) not in PUBLIC:
            gate.allow(_bearer_of(connection), handler.opt.get("role"), path)

    async def settled_job(bearer: Bearer, name: str, task: str = "") -> tuple[Ledger, Found]:
        ledger = await plane.settled()
        return ledger, find(ledger, name, task, bearer)

    deciding, turns = asyncio.Lock(), Turns()

    async def thought_about(bearer: Bearer, answer: Callable[[ClusterPolicy], Answered]) -> Answered:
        """What has to be decided to be known, one at a time, beside the loop: of each tenant in turn."""
        async with turns.of(bearer.tenant), deciding:
            return await asyncio.to_thread(answer, imagined())

    async def asked_about(bearer: Bearer, name: str, everything: bool = False) -> tuple[Snapshot, Question]:
        ledger, found = await settled_job(bearer, name)
        view = plane.controller.snapshot(plane.clock.now())
        return view, question(ledger, found.job, view, units=found.units, everything=everything)

    @get("/healthz", summary="Whether the control plane is ready", security=[])
    async def health() -> dict[str, bool]:
        return {"ready": True, "accepting": plane.accepting}

    @get("/v1/authority", summary="The certificate by which other machines know this one", security=[])
    async def authority_certificate() -> Response[bytes]:
        if not authority:
            raise NotFound("no other machine is listened to", hint="`poise up --listen HOST:PORT`")
        return Response(authority, media_type="application/x-pem-file")

    @get("/v1/status", summary="The control plane at a glance", opt=VIEWER)
    async def status(bearer: Bearer) -> StatusReport:
        ledger = await plane.settled()
        controller = plane.controller
        told = status_report(
            ledger,
            __version__,
            fleet=controller.settings.fleet,
            accepting=plane.accepting,
            behind=plane.behind,
            held=controller.held,
        )
        return Sight(ledger, bearer).status(told)

    @get(
        "/v1/overview",
        summary="Everything at a glance: the fleet, what runs, what waits and why, and rates",
        opt=VIEWER,
    )
    async def everything_at_a_glance(bearer: Bearer) -> Overview:
        ledger, controller = await plane.settled(), plane.controller
        told = overview(ledger, plane.clock.now(), controller.load_of, plane.rates(), bearer, accepting=plane.accepting)
        return Sight(ledger, bearer).only(told)

    @get("/v1/whoami", summary="Who asks: the tenant and the role of the token", opt=VIEWER)
    async def whoami(bearer: Bearer) -> WhoReport:
        return who_report(await plane.settled(), bearer)

    @post(
        "/v1/jobs",
        summary="Submit a job (or, as application/x-ndjson, a stream of them)",
        status_code=201,
        opt=SUBMITTER,
    )
    async def submit(
        bearer: Bearer, request: Request[Any, Any, Any], data: Submission, if_revision: Revision | None = None
    ) -> Submitted:
        compiled = await plane.prepare(data.spec, bearer.tenant, len(await request.body()))
        await chances.check(compiled, data.key, data.user)
        job = await plane.request(
            lambda number: machine.Submit(number, compiled, data.key, data.user, if_revision, bearer)
        )
        return Submitted(job, compiled.note, caller_key_of(job))

    @get("/v1/jobs", summary="Jobs: the unfinished ones and the latest finished ones, or all", opt=VIEWER)
    async def jobs(bearer: Bearer, all_jobs: Annotated[bool, Parameter(query="all")] = False) -> list[JobReport]:
        ledger = await plane.settled()
        now = plane.clock.now()
        shown = Sight(ledger, bearer).jobs(None if all_jobs else RECENT)
        return [job_report(ledger, job, now, tasks=False) for job in shown]

    @get(
        "/v1/jobs/{name:str}",
        summary="One job with its tasks, or some of them; `wait` seconds for them to be over",
        opt=VIEWER,
    )
    async def job(bearer: Bearer, name: str, wait: float = 0.0) -> JobReport:
        ledger, found = await settled_job(bearer, name)
        if wait > 0 and not found.job.ended:
            units = () if found.whole else tuple(unit.id for unit in found.units)
            await plane.over(found.job.id, units, min(wait, MAX_WAIT))
            ledger = await plane.settled()
        return Sight(ledger, bearer).only(found_report(ledger, found, plane.clock.now(), plane.controller.heard))

    @post(
        "/v1/jobs/{name:str}/cancel",
        summary="Cancel a job, or some of its tasks; what runs gets SIGTERM, then SIGKILL",
        status_code=202,
        opt=SUBMITTER,
    )
    async def cancel(bearer: Bearer, name: str) -> Submitted:
        return Submitted(await plane.request(lambda request: machine.Cancel(request, name, bearer)))

    @post(
        "/v1/cancel",
        summary="Cancel all unfinished jobs that the bearer sees; what runs gets SIGTERM, then SIGKILL",
        status_code=202,
        opt=SUBMITTER,
    )
    async def cancel_all(bearer: Bearer) -> Cancelled:
        known = (await plane.settled()).jobs.values()
        unfinished = [job.id for job in known if not job.ended and bearer.sees(job.tenant)]
        count = 0
        for first in range(0, len(unfinished), CANCELLED_AT_ONCE):
            few = tuple(unfinished[first : first + CANCELLED_AT_ONCE])
            count += await plane.request(partial(machine.CancelJobs, jobs=few, bearer=bearer))
        return Cancelled(count)

    @get(
        "/v1/jobs/{name:str}/explanation",
        summary="Why a job waits and what frees it, or why it is where it is",
        opt=VIEWER,
    )
    async def explanation(
        bearer: Bearer, name: str, everything: Annotated[bool, Parameter(query="all")] = False
    ) -> Explanation:
        view, asked = await asked_about(bearer, name, everything)
        told = await thought_about(bearer, lambda policy: whatif.explain(policy, view, asked, everything=everything))
        return Sight(plane.ledger, bearer).only(told)

    @get(
        "/v1/jobs/{name:str}/deadline",
        summary="How likely a job, or some of its tasks, meet their deadlines; takes some seconds",
        opt=VIEWER,
    )
    async def deadline(bearer: Bearer, name: str) -> DeadlineForecast:
        _, found = await settled_job(bearer, name)
        return await chances.of(found)

    @get("/v1/jobs/{name:str}/why-not/{node:str}", summary="Every reason against a node for a job", opt=VIEWER)
    async def why_not(bearer: Bearer, name: str, node: str) -> WhyNot:
        view, asked = await asked_about(bearer, name)
        told = await thought_about(bearer, lambda policy: whatif.why_not(policy, view, asked, node))
        return Sight(plane.ledger, bearer).only(told)

    @get("/v1/jobs/{name:str}/unblock", summary="The smallest changes that let a waiting job start now", opt=VIEWER)
    async def unblock(bearer: Bearer, name: str) -> UnblockReport:
        view, asked = await asked_about(bearer, name)
        sight = Sight(plane.ledger, bearer)
        told = await thought_about(bearer, lambda policy: whatif.unblock(policy, view, asked, may_end=sight.shows))
        return sight.only(told)

    @post(
        "/v1/plan",
        summary="What would happen if a job were submitted now; nothing changes",
        status_code=200,
        opt=VIEWER,
    )
    async def plan(
        bearer: Bearer,
        request: Request[Any, Any, Any],
        data: Submission,
        everything: Annotated[bool, Parameter(query="all")] = False,
    ) -> PlanReport:
        await plane.settled()
        compiled = await plane.prepare(data.spec, bearer.tenant, len(await request.body()))
        now = plane.clock.now()
        job = plane.controller.would_submit(compiled, data.user)
        propose = whatif.proposing(plane.ledger, job, now)
        view = plane.controller.snapshot(now)
        told = await thought_about(
            bearer, lambda policy: whatif.plan(policy, view, propose(), note=compiled.note, everything=everything)
        )
        return await asyncio.to_thread(Sight(plane.ledger, bearer).only, told, job.id)

    @get(
        "/v1/jobs/{name:str}/logs", summary="What a job wrote, as lines of JSON; `follow` until it is over", opt=VIEWER
    )
    async def logs(bearer: Bearer, name: str, follow: bool = False, task: str = "") -> Stream:
        _, found = await settled_job(bearer, name, task)
        pieces = follow_job(home.logs, lambda: plane.ledger, found.job.id, found.tasks, follow=follow)
        return Stream(_lines(pieces, lambda: gate.stands(bearer)), media_type="application/x-ndjson")

    @get(
        "/v1/nodes",
        summary=f"Nodes by name, what they have and what is taken: the first {PAGE}, or those `after` a name",
        opt=VIEWER,
    )
    async def nodes(
        bearer: Bearer, after: str = "", limit: Annotated[int, Parameter(ge=1, le=PAGE)] = PAGE
    ) -> list[NodeReport]:
        ledger = await plane.settled()
        sight, told = Sight(ledger, bearer), plane.controller
        page = islice((entry for entry in ledger.nodes.items() if entry[0] > after), limit)
        return [
            sight.node(node_report(state, told.load_of(name), told.upkeep_of(name), cordons=ledger.cordons))
            for name, state in page
        ]

    @get(
        "/v1/profiles",
        summary=f"How busy nodes have been, and what that says: one `node`, or the first {PROFILED}",
        opt=VIEWER,
    )
    async def profiles(node: str = "") -> list[NodeProfile]:
        known = (await plane.settled()).nodes
        names = [find_node(known, node)] if node else list(islice(known, PROFILED))
        return await asyncio.to_thread(series.profiles, names, plane.clock.wall())

    @get(
        "/v1/names/{kind:str}",
        summary="Names of kind job, node or tenant that begin as `typed`, to complete them",
        opt=VIEWER,
    )
    async def names(bearer: Bearer, kind: Literal["job", "node", "tenant"], typed: str = "") -> list[str]:
        return find_names(await plane.settled(), kind, typed, bearer)

    @post(
        "/v1/nodes/{name:str}/drain",
        summary="Close a node, or a device of it (`n1:0`), to new work and move what runs there, or open it again",
        status_code=202,
        opt=OPERATOR,
    )
    async def drain(bearer: Bearer, name: str, data: DrainRequest) -> Drained:
        drained: Drained = await plane.request(
            lambda request: machine.Drain(request, name, data.on, bearer, data.moves)
        )
        return drained

    @post(
        "/v1/nodes/lost",
        summary="Give nodes up, where what runs them says that they are gone; most of a fleet only if they stay away",
        status_code=202,
        opt=OPERATOR,
    )
    async def give_up(bearer: Bearer, data: NamedNodes) -> dict[str, list[str]]:
        return {"nodes": await plane.request(lambda request: machine.GiveUp(request, data.nodes, bearer))}

    @post(
        "/v1/nodes/lend",
        summary="Preempt what runs on the one of these nodes that loses least, since others wait for its machine",
        status_code=202,
        opt=OPERATOR,
    )
    async def lend(bearer: Bearer, data: NamedNodes) -> dict[str, str]:
        return {"node": await plane.request(lambda request: machine.Lend(request, data.nodes, bearer))}

    @get("/v1/quotas", summary="What tenants may hold at once, and what they hold", opt=VIEWER)
    async def quotas(bearer: Bearer) -> list[QuotaReport]:
        return Sight(await plane.settled(), bearer).quotas()

    @put(
        "/v1/quotas/{tenant:str}",
        summary="Bound what the work of a tenant may hold at once",
        status_code=202,
        opt=ADMIN,
    )
    async def set_quota(bearer: Bearer, tenant: str, data: QuotaSpec) -> dict[str, str]:
        check_name(tenant, "tenant")
        quota = compile_quota(data)
        note = quota_note(await plane.settled(), tenant, lifted=False)
        await plane.request(lambda request: machine.SetQuota(request, tenant, quota, bearer))
        return {"tenant": tenant, "note": note}

    @delete(
        "/v1/quotas/{tenant:str}",
        summary="Let the work of a tenant hold what there is",
        status_code=202,
        opt=ADMIN,
    )
    async def lift_quota(bearer: Bearer, tenant: str) -> dict[str, str]:
        note = quota_note(await plane.settled(), tenant, lifted=True)
        await plane.request(lambda request: machine.SetQuota(request, tenant, None, bearer))
        return {"tenant": tenant, "note": note}

    @get("/v1/tokens", summary="Tokens that were given, the latest revoked ones included", opt=ADMIN)
    async def tokens() -> list[TokenReport]:
        ledger = await plane.settled()
        now = plane.clock.now()
        return [token_report(ledger, of, now) for of in sorted(ledger.tokens.values(), key=_in_order)]

    @post("/v1/tokens", summary="Let a token in, by the hash of its secret", status_code=201, opt=ADMIN)
    async def add_token(bearer: Bearer, data: TokenRequest) -> TokenReport:
        check_name(data.tenant, "tenant")
        if data.name:
            check_name(data.name, "name")
        lasts = 0 if data.expires is None else parse_or_raise(parse_duration, data.expires, "expires", MAX_DURATION)
        if data.expires is not None and not lasts:
            raise SpecError("the token would expire at once", code="E103", field="expires", hint="expires: 30d")
        made = await plane.request(
            lambda request: machine.AddToken(
                request=request,
                tenant=data.tenant,
                role=Role[data.role.upper()],
                hash=data.hash,
                name=data.name,
                lasts=lasts,
                bearer=bearer,
            )
        )
        return token_report(plane.ledger, made, plane.clock.now())

    @delete("/v1/tokens/{token_id:str}", summary="Revoke a token", status_code=202, opt=ADMIN)
    async def revoke_token(bearer: Bearer, token_id: str) -> dict[str, str]:
        return {"token": await plane.request(lambda request: machine.RevokeToken(request, token_id, bearer))}

    @get("/v1/events", summary="The log as server-sent events, from `after` on; `decisions` only, or all", opt=VIEWER)
    async def events(
        bearer: Bearer,
        request: Request[Any, Any, Any],
        after: Revision = -1,
        decisions: bool = False,
        follow: bool = True,
    ) -> Stream:
        def shown(revision: int, event: Event) -> LoggedEvent | None:
            seen = Sight(plane.ledger, bearer).event(event)
            wanted = seen is not None and (not decisions or isinstance(event, DECISIONS))
            return LoggedEvent(revision, seen) if wanted else None

        stream = _event_stream(plane, _resumed(request, after), shown, lambda: gate.stands(bearer), follow=follow)
        return Stream(stream, media_type="text/event-stream")

    @get("/v1/audit", summary="What was changed by whom, as server-sent events, from `after` on", opt=ADMIN)
    async def audit(
        bearer: Bearer, request: Request[Any, Any, Any], after: Revision = -1, follow: bool = True
    ) -> Stream:
        def shown(revision: int, event: Event) -> AuditReport | None:
            return audit_report(plane.ledger, revision, event) if isinstance(event, AUDITED) else None

        stream = _event_stream(plane, _resumed(request, after), shown, lambda: gate.stands(bearer), follow=follow)
        return Stream(stream, media_type="text/event-stream")

    @get("/v1/refusals", summary="Requests that were refused, counted, and the latest of them", opt=ADMIN)
    async def refusals() -> RefusalsReport:
        return gate.refusals()

    @post("/v1/shutdown", summary="Stop the control plane; running work goes on", status_code=202, opt=ADMIN)
    async def shutdown(bearer: Bearer) -> dict[str, bool]:
        with contextlib.suppress(StoreFull, NotLeading):  # it cannot be recorded then, and is done all the same
            await plane.request(lambda request: machine.AskToStop(request, bearer))
        asyncio.get_running_loop().call_later(0.05, lifetime.end)
        return {"stopping": True}

    @post(
        "/v1/stay",
        summary="Stay up when no job is left, if started only for as long as there is one",
        status_code=202,
        opt=ADMIN,
    )
    async def stay() -> dict[str, bool]:
        lifetime.stay()
        return {"staying": True}

    answers: dict[Any, Any] = {PoiseError: _on_poise_error, HTTPException: _on_http_error, Exception: _on_any_error}
    answers |= dict.fromkeys(UNREADABLE, _on_unreadable)
    rest = Litestar(
        route_handlers=[
            health,
            authority_certificate,
            status,
            everything_at_a_glance,
            whoami,
            submit,
            jobs,
            job,
            explanation,
            deadline,
            why_not,
            unblock,
            plan,
            cancel,
            cancel_all,
            logs,
            nodes,
            profiles,
            names,
            drain,
            give_up,
            lend,
            quotas,
            set_quota,
            lift_quota,
            tokens,
            add_token,
            revoke_token,
            events,
            audit,
            refusals,
            shutdown,
            stay,
        ],
        exception_handlers=answers,
        guards=[allowed],
        dependencies={"bearer": Provide(_bearer_of, sync_to_thread=False)},
        before_request=_tell_methods,
        compression_config=CompressionConfig(backend="gzip", gzip_compress_level=COMPRESSION, exclude=list(STREAMS)),
        openapi_config=OpenAPIConfig(
            title="Poise",
            version=__version__,
            openapi_router=schema_router("/v1/schema", opt=VIEWER),
            render_plugins=[CompleteDocument()],
            components=Components(security_schemes={"token": SecurityScheme(type="http", scheme="bearer")}),
            security=[{"token": []}],
        ),
        logging_config=None,
    )

    def key_of(attempt: Attempt) -> str:
        return worker_key(token, attempt)

    def caller_key_of(job_id: str) -> str:
        job = plane.ledger.jobs.get(job_id)
        return caller_key(token, job.id, job.tenant) if job is not None and job.calls is not None else ""

    hot: dict[str, tuple[Role | None, App]] = {
        "submissions": (Role.SUBMITTER, Submissions(plane, gate, chances, caller_key_of)),
        "channel": (Role.NODE, NodeChannel(plane, gate, series, home, key_of)),
        "calls": (Role.SUBMITTER, CallerChannel(plane, gate, caller_key_of)),
        "workers": (None, WorkerChannel(plane, gate, key_of)),
    }
    return Guard(gate, rest, hot, lifetime.request, known_as)  # type: ignore[arg-type]


def _bearer_of(request: ASGIConnection[Any, Any, Any, Any]) -> Bearer:
    """Whom the guard found to be asking."""
    bearer: Bearer = request.scope["bearer"]  # type: ignore[typeddict-item]
    return bearer


def _in_order(token: Token) -> tuple[int, str]:
    """t2 before t10."""
    return len(token.id), token.id


def _resumed(request: Request[Any, Any, Any], after: int) -> int:
    """The revision after which to go on: where a client was cut off, else where it says."""
    last = request.headers.get("last-event-id", "")
    return min(int(last), MAX_REVISION) if last.isdecimal() and len(last) < 20 else after


async def _lines(pieces: AsyncIterator[Any], stands: Callable[[], bool]) -> AsyncIterator[bytes]:
    """One a line, for as long as the token stands; an empty line now and then says that there is somebody here."""
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
    """`after` below zero means from now on; `shown` makes of a record what is to be shown, or None. It ends when the
    token no longer stands.
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
                await asyncio.sleep(0)  # a long log with little to show is not to hold up everybody else
                continue
            if not follow:
                yield WHOLE
                return
            try:
                await asyncio.wait_for(news.wait(), KEEP_ALIVE)
            except TimeoutError:
                yield b": alive\n\n"
    finally:
        plane.unfollow(news)


def _answer(record: ErrorRecord, status: int) -> Response[ErrorBody]:
    return Response(ErrorBody(record), status_code=status)


def _on_poise_error(_: Request[Any, Any, Any], error: PoiseError) -> Response[ErrorBody]:
    return _answer(error.record, error.status)


def _on_unreadable(_: Request[Any, Any, Any], error: Exception) -> Response[ErrorBody]:
    return _answer(not_json(error).record, 422)


def _on_http_error(request: Request[Any, Any, Any], error: HTTPException) -> Response[ErrorBody]:
    if isinstance(error, ValidationException):
        details = error.extra if isinstance(error.extra, list) else []
        first = details[0] if details and isinstance(details[0], dict) else {}
        record = ErrorRecord(
            code="E102",
            message=str(first.get("message", error.detail)),
            field=str(first.get("key", "")),
            hint="`/v1/schema/openapi.json` describes it",
        )
        return _answer(record, 422)
    code = "E120" if error.status_code == 404 else "E102" if error.status_code < 500 else "E299"
    if error.status_code == 413:
        code = "E140"
    record = ErrorRecord(
        code=code, message=error.detail, field=request.url.path, hint="`/v1/schema/openapi.json` lists the routes"
    )
    answer = _answer(record, error.status_code)
    if error.status_code == 405:
        answer.headers["Allow"] = ", ".join(_allowed(request.app, request.url.path))
    return answer


def _tell_methods(request: Request[Any, Any, Any]) -> Response[None] | None:
    """Answers OPTIONS, which the framework answers for one of the methods of a path alone."""
    if request.method != "OPTIONS":
        return None
    return Response(None, status_code=204, headers={"Allow": ", ".join(_allowed(request.app, request.url.path))})


def _allowed(app: Litestar, path: str) -> list[str]:
    """The methods of the routes that a path fits; the framework does not tell them."""
    fits = (route for route in app.routes if re.fullmatch(re.sub("{[^}]*}", "[^/]*", route.path_format), path))
    return sorted({method for route in fits for method in getattr(route, "methods", ())})


def _on_any_error(request: Request[Any, Any, Any], error: Exception) -> Response[ErrorBody]:
    cause = error.__cause__ if isinstance(error.__cause__, PoiseError) else None
    if cause is not None:
        return _answer(cause.record, cause.status)
    _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return _answer(ErrorRecord(code="E299", message=f"an internal error: {type(error).__name__}"), 500)
