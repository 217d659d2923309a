"""Routes about the control plane, and about everything at a glance: status, overview, demand, changes, incidents."""

import asyncio
import contextlib

from poise import __version__
from poise.config import PAGE
from poise.control.api.parts import ADMIN, EVENT_PAGE, MAX_WAIT, OPERATOR, VIEWER, Parts, Revision
from poise.control.guard import DASHBOARD
from poise.control.routes import Content, Redirect, Request, Routes
from poise.drivers import dashboards
from poise.errors import NotFound, NotLeading, StoreFull
from poise.kernel import messages
from poise.kernel.demand import Amount, Extent, backlog, demand
from poise.kernel.explain import job_report, node_report, status_report, who_report
from poise.kernel.incidents import no_such_incident
from poise.kernel.overview import overview
from poise.kernel.since import touched
from poise.kernel.visible import Sight
from poise.model.incidents import IncidentReport
from poise.model.reports.access import WhoReport
from poise.model.reports.demand import Backlog, DemandReport, Offer
from poise.model.reports.status import ChangesReport, Overview, StatusReport
from poise.model.tenants import Bearer


def add_routes(routes: Routes, parts: Parts) -> None:
    plane, incidents, substrates, lifetime = parts.plane, parts.incidents, parts.substrates, parts.lifetime

    @routes.get("/healthz", summary="Whether the control plane is ready")
    async def health() -> dict[str, bool]:
        return {"ready": True, "accepting": plane.accepting}

    @routes.get(DASHBOARD, summary="Redirect a browser to the dashboard of this home", status=307)
    async def to_the_dashboard(request: Request) -> Redirect:
        running = await asyncio.to_thread(dashboards.found, parts.home)
        where = running.url_beside(request.scheme, request.headers["host"]) if running is not None else ""
        if not where:
            raise NotFound("no dashboard is served here", hint="`poise up --dashboard`, or `poise dashboard`")
        return Redirect(where)

    @routes.get("/metrics", summary="Metrics in the text format of Prometheus", role=VIEWER)
    async def metrics(bearer: Bearer) -> Content:
        return await parts.scrape.answer(bearer)

    @routes.get("/v1/authority", summary="The certificate of this home's authority")
    async def authority_certificate() -> Content:
        if not parts.authority:
            raise NotFound("no other machine is listened to", hint="`poise up --listen HOST:PORT`")
        return Content(parts.authority, "application/x-pem-file")

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
            substrates=parts.of_clusters,
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
        parts.check_stands(bearer)
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
