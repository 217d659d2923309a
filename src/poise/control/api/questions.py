"""Routes that answer questions about jobs by a run of the policy: why, when, why not here, what if."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from functools import partial

import msgspec

from poise.control.api.parts import VIEWER, Parts
from poise.control.hot import Submission
from poise.control.routes import Request, Routes
from poise.drivers.system import Effort
from poise.kernel import whatif
from poise.kernel.owners import owned
from poise.kernel.visible import Sight
from poise.model.reports.questions import DeadlineForecast, Explanation, PlanReport, Start, UnblockReport, WhyNot
from poise.model.secrets import named
from poise.model.tenants import Bearer
from poise.policy.suites import ClusterPolicy


def add_routes(routes: Routes, parts: Parts) -> None:
    plane = parts.plane

    @routes.get(
        "/v1/jobs/{name}/explanation",
        summary="Why a job waits and what would start it, or the reason for its placement",
        role=VIEWER,
    )
    async def explanation(bearer: Bearer, name: str, all_: bool = False) -> Explanation:
        async def ask() -> Callable[[ClusterPolicy], Explanation]:
            from poise.engine.lookahead import LookAhead  # not at the start: only forecasts need the twin

            view, asked = await parts.asked_about(bearer, name, all_)
            ahead = LookAhead(plane.ledger, view.now, Effort())

            def starts(policy: ClusterPolicy, groups: Sequence[Collection[str]]) -> list[Start]:
                told = ahead.starts(policy, groups)
                plane.tally.foretold(view.now, groups, told)
                return told

            return lambda policy: whatif.explain(policy, view, asked, partial(starts, policy), everything=all_)

        told = await parts.thought_about(bearer, ask)
        ledger, found = await parts.settled_job(bearer, name)
        if told.waiting:
            told = msgspec.structs.replace(told, prospects=parts.substrates.prospects(ledger, found.job))
        return Sight(ledger, bearer).only(told)

    @routes.get(
        "/v1/jobs/{name}/deadline",
        summary="The chance that a job, or some of its tasks, meet their deadlines; takes some seconds",
        role=VIEWER,
    )
    async def deadline(bearer: Bearer, name: str) -> DeadlineForecast:
        _, found = await parts.settled_job(bearer, name)
        return await parts.chances.of(found)

    @routes.get("/v1/jobs/{name}/why-not/{node}", summary="Every reason against a node for a job", role=VIEWER)
    async def why_not(bearer: Bearer, name: str, node: str) -> WhyNot:
        async def ask() -> Callable[[ClusterPolicy], WhyNot]:
            view, asked = await parts.asked_about(bearer, name)
            return lambda policy: whatif.why_not(policy, view, asked, node)

        return Sight(plane.ledger, bearer).only(await parts.thought_about(bearer, ask))

    @routes.get("/v1/jobs/{name}/unblock", summary="The smallest changes that let a waiting job start now", role=VIEWER)
    async def unblock(bearer: Bearer, name: str) -> UnblockReport:
        sight = Sight(plane.ledger, bearer)

        async def ask() -> Callable[[ClusterPolicy], UnblockReport]:
            view, asked = await parts.asked_about(bearer, name)
            return lambda policy: whatif.unblock(policy, view, asked, may_end=sight.shows)

        return sight.only(await parts.thought_about(bearer, ask))

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

        told, job_id = await parts.thought_about(bearer, ask)
        return await asyncio.to_thread(Sight(plane.ledger, bearer).only, told, job_id)
