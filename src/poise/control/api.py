"""The HTTP API: its routes, its OpenAPI document, its errors. No logic: each route asks the plane or draws a report."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from litestar import Litestar, Request, Response, delete, get, post, put
from litestar.exceptions import HTTPException, ValidationException
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.spec import Components, SecurityScheme
from litestar.params import Parameter
from litestar.response import Stream

from poise import __version__
from poise.config import Home
from poise.control.guard import App, ErrorBody, Guard
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
from poise.drivers.joblogs import follow_job
from poise.drivers.security import worker_key
from poise.errors import ErrorRecord, PoiseError
from poise.kernel import controller as machine
from poise.kernel import whatif
from poise.kernel.explain import Question, job_report, node_report, question, quota_report, status_report
from poise.kernel.find import Found, find, found_report
from poise.kernel.find import names as find_names
from poise.kernel.ledger import Ledger
from poise.kernel.overview import overview
from poise.model.events import Held, NodeLevelled, Placed, PolicyFailed, Preempted, Triggered
from poise.model.reports import (
    Explanation,
    JobReport,
    NodeReport,
    Overview,
    PlanReport,
    QuotaReport,
    StatusReport,
    UnblockReport,
    WhyNot,
)
from poise.model.spec import QuotaSpec, check_name, compile_quota
from poise.model.views import Snapshot
from poise.policy.suites import ClusterPolicy

MAX_WAIT = 60.0
"""Seconds that one request may wait for a job; clients ask again."""

RECENT = 20
"""Finished jobs shown beside the unfinished ones unless all are asked for."""

MAX_REVISION = 2**53 - 1
"""The largest integer that JSON keeps exact wherever it is read."""

Revision = Annotated[int, Parameter(le=MAX_REVISION)]

WHOLE = b": whole\n\n"
"""Ends a stream of events that was not to be followed; without it, it was cut off."""

DECISIONS = Placed | Held | Preempted | NodeLevelled | Triggered | PolicyFailed
"""What was decided, and what made it be: events of a stream of decisions."""

EVENT_PAGE = 1000
KEEP_ALIVE = 15.0
Answered = TypeVar("Answered")


_log = logging.getLogger("poise.control")


class Submitted(msgspec.Struct, frozen=True):
    """A job is accepted: its record is durable. `note` is what is to be known of it."""

    job: str
    note: str = ""


class DrainRequest(msgspec.Struct, frozen=True):
    on: bool = True


def make_app(plane: Plane, home: Home, token: str, lifetime: Lifetime, imagined: Callable[[], ClusterPolicy]) -> App:
    """The whole API behind its guard. `imagined` gives the policy in charge, to be asked what if."""

    async def settled_job(name: str, task: str = "") -> tuple[Ledger, Found]:
        ledger = await plane.settled()
        return ledger, find(ledger, name, task)

    deciding = asyncio.Lock()

    async def thought_about(answer: Callable[[ClusterPolicy], Answered]) -> Answered:
        """What has to be decided to be known, one at a time, beside the loop."""
        async with deciding:
            return await asyncio.to_thread(answer, imagined())

    async def asked_about(name: str, everything: bool = False) -> tuple[Snapshot, Question]:
        ledger, found = await settled_job(name)
        view = plane.controller.snapshot(plane.clock.now())
        return view, question(ledger, found.job, view, units=found.units, everything=everything)

    @get("/healthz", summary="Whether the control plane is ready", security=[])
    async def health() -> dict[str, bool]:
        return {"ready": True, "accepting": plane.controller.accepting}

    @get("/v1/status", summary="The control plane at a glance")
    async def status() -> StatusReport:
        ledger = await plane.settled()
        controller = plane.controller
        return status_report(ledger, __version__, fleet=controller.settings.fleet, accepting=controller.accepting)

    @get("/v1/overview", summary="Everything at a glance: the fleet, what runs, what waits and why, and rates")
    async def everything_at_a_glance() -> Overview:
        ledger, controller = await plane.settled(), plane.controller
        return overview(ledger, plane.clock.now(), controller.load_of, plane.rates(), accepting=controller.accepting)

    @post("/v1/jobs", summary="Submit a job (or, as application/x-ndjson, a stream of them)", status_code=201)
    async def submit(data: Submission, if_revision: Revision | None = None) -> Submitted:
        compiled = plane.controller.prepare(data.spec, plane.clock.wall(), plane.clock.now())
        job = await plane.request(lambda request: machine.Submit(request, compiled, data.key, data.user, if_revision))
        return Submitted(job, compiled.note)

    @get("/v1/jobs", summary="Jobs: the unfinished ones and the latest finished ones, or all")
    async def jobs(all_jobs: Annotated[bool, Parameter(query="all")] = False) -> list[JobReport]:
        ledger = await plane.settled()
        now = plane.clock.now()
        shown = ledger.jobs.values() if all_jobs else ledger.recent_jobs(RECENT)
        return [job_report(ledger, job, now, tasks=False) for job in shown]

    @get("/v1/jobs/{name:str}", summary="One job with its tasks, or some of them; `wait` seconds for them to be over")
    async def job(name: str, wait: float = 0.0) -> JobReport:
        ledger, found = await settled_job(name)
        if wait > 0 and not found.job.ended:
            units = () if found.whole else tuple(unit.id for unit in found.units)
            await plane.over(found.job.id, units, min(wait, MAX_WAIT))
            ledger = await plane.settled()
        return found_report(ledger, found, plane.clock.now())

    @post(
        "/v1/jobs/{name:str}/cancel",
        summary="Cancel a job, or some of its tasks; what runs gets SIGTERM, then SIGKILL",
        status_code=202,
    )
    async def cancel(name: str) -> Submitted:
        return Submitted(await plane.request(lambda request: machine.Cancel(request, name, "user")))

    @get("/v1/jobs/{name:str}/explanation", summary="Why a job waits and what frees it, or why it is where it is")
    async def explanation(name: str, everything: Annotated[bool, Parameter(query="all")] = False) -> Explanation:
        view, asked = await asked_about(name, everything)
        return await thought_about(lambda policy: whatif.explain(policy, view, asked, everything=everything))

    @get("/v1/jobs/{name:str}/why-not/{node:str}", summary="Every reason against a node for a job")
    async def why_not(name: str, node: str) -> WhyNot:
        view, asked = await asked_about(name)
        return await thought_about(lambda policy: whatif.why_not(policy, view, asked, node))

    @get("/v1/jobs/{name:str}/unblock", summary="The smallest changes that let a waiting job start now")
    async def unblock(name: str) -> UnblockReport:
        view, asked = await asked_about(name)
        return await thought_about(lambda policy: whatif.unblock(policy, view, asked))

    @post("/v1/plan", summary="What would happen if a job were submitted now; nothing changes", status_code=200)
    async def plan(data: Submission, everything: Annotated[bool, Parameter(query="all")] = False) -> PlanReport:
        ledger = await plane.settled()
        now = plane.clock.now()
        compiled = plane.controller.prepare(data.spec, plane.clock.wall(), now)
        proposal = whatif.propose(ledger, plane.controller.would_submit(compiled, data.user), now)
        view = plane.controller.snapshot(now)
        return await thought_about(
            lambda policy: whatif.plan(policy, view, proposal, note=compiled.note, everything=everything)
        )

    @get("/v1/jobs/{name:str}/logs", summary="What a job wrote, as lines of JSON; `follow` until it is over")
    async def logs(name: str, follow: bool = False, task: str = "") -> Stream:
        _, found = await settled_job(name, task)
        pieces = follow_job(home.logs, lambda: plane.ledger, found.job.id, found.tasks, follow=follow)
        return Stream(_lines(pieces), media_type="application/x-ndjson")

    @get("/v1/nodes", summary="Nodes, what they have and what is taken")
    async def nodes() -> list[NodeReport]:
        ledger = await plane.settled()
        return [node_report(state, plane.controller.load_of(name)) for name, state in ledger.nodes.items()]

    @get("/v1/names/{kind:str}", summary="Names of kind job, node or user that begin as `typed`, to complete them")
    async def names(kind: Literal["job", "node", "user"], typed: str = "") -> list[str]:
        return find_names(await plane.settled(), kind, typed)

    @post("/v1/nodes/{name:str}/drain", summary="Close a node to new work, or open it again", status_code=202)
    async def drain(name: str, data: DrainRequest) -> dict[str, str]:
        return {"node": await plane.request(lambda request: machine.Drain(request, name, data.on))}

    @get("/v1/quotas", summary="What users may hold at once, and what they hold")
    async def quotas() -> list[QuotaReport]:
        ledger = await plane.settled()
        return [quota_report(user, quota, held) for user, (quota, held) in ledger.quotas().items()]

    @put("/v1/quotas/{user:str}", summary="Bound what the work of a user may hold at once", status_code=202)
    async def set_quota(user: str, data: QuotaSpec) -> dict[str, str]:
        check_name(user, "user")
        quota = compile_quota(data)
        return {"user": await plane.request(lambda request: machine.SetQuota(request, user, quota))}

    @delete("/v1/quotas/{user:str}", summary="Let the work of a user hold what there is", status_code=202)
    async def lift_quota(user: str) -> dict[str, str]:
        return {"user": await plane.request(lambda request: machine.SetQuota(request, user, None))}

    @get("/v1/events", summary="The log as server-sent events, from `after` on; `decisions` only, or all")
    async def events(
        request: Request[Any, Any, Any], after: Revision = -1, decisions: bool = False, follow: bool = True
    ) -> Stream:
        last = request.headers.get("last-event-id", "")
        start = min(int(last), MAX_REVISION) if last.isdecimal() and len(last) < 20 else after
        return Stream(_event_stream(plane, start, decisions, follow), media_type="text/event-stream")

    @post("/v1/shutdown", summary="Stop the control plane; running work goes on", status_code=202)
    async def shutdown() -> dict[str, bool]:
        asyncio.get_running_loop().call_later(0.05, lifetime.end)
        return {"stopping": True}

    @post(
        "/v1/stay", summary="Stay up when no job is left, if started only for as long as there is one", status_code=202
    )
    async def stay() -> dict[str, bool]:
        lifetime.stay()
        return {"staying": True}

    answers: dict[Any, Any] = {PoiseError: _on_poise_error, HTTPException: _on_http_error, Exception: _on_any_error}
    answers |= dict.fromkeys(UNREADABLE, _on_unreadable)
    rest = Litestar(
        route_handlers=[
            health,
            status,
            everything_at_a_glance,
            submit,
            jobs,
            job,
            explanation,
            why_not,
            unblock,
            plan,
            cancel,
            logs,
            nodes,
            names,
            drain,
            quotas,
            set_quota,
            lift_quota,
            events,
            shutdown,
            stay,
        ],
        exception_handlers=answers,
        before_request=_tell_methods,
        openapi_config=OpenAPIConfig(
            title="Poise",
            version=__version__,
            openapi_router=schema_router("/v1/schema"),
            render_plugins=[CompleteDocument()],
            components=Components(security_schemes={"token": SecurityScheme(type="http", scheme="bearer")}),
            security=[{"token": []}],
        ),
        logging_config=None,
    )
    hot: dict[str, App] = {
        "submissions": Submissions(plane),
        "channel": NodeChannel(plane),
        "calls": CallerChannel(plane),
        "workers": WorkerChannel(plane, lambda attempt: worker_key(token, attempt)),
    }
    return Guard(token, rest, hot, lifetime.request)  # type: ignore[arg-type]


async def _lines(pieces: AsyncIterator[Any]) -> AsyncIterator[bytes]:
    """One a line; an empty line now and then says that there is somebody here."""
    source = aiter(pieces)
    upcoming = asyncio.ensure_future(anext(source, None))
    try:
        while True:
            done, _ = await asyncio.wait((upcoming,), timeout=KEEP_ALIVE)
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


async def _event_stream(plane: Plane, after: int, decisions: bool, follow: bool) -> AsyncIterator[bytes]:
    """`after` below zero means from now on."""
    await plane.settled()
    position = plane.ledger.revision if after < 0 else after
    news = plane.follow()
    try:
        yield b": poise\n\n"
        while True:
            news.clear()
            page = plane.events_after(position, EVENT_PAGE)
            chunks = []
            for revision, event in page:
                position = revision
                if not decisions or isinstance(event, DECISIONS):
                    chunks.append(
                        b"id: %d\ndata: %s\n\n" % (revision, msgspec.json.encode(LoggedEvent(revision, event)))
                    )
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
