"""Routes of the policy that decides, and of policies in shadow."""

import asyncio
from typing import Any

import msgspec

from poise.control.api.parts import ADMIN, OPERATOR, VIEWER, Parts
from poise.control.kept import forget_policy
from poise.control.routes import Routes
from poise.drivers.plugins import (
    Choice,
    choice_before,
    choose,
    choose_document,
    choose_split,
    is_file,
    policy_settings,
)
from poise.drivers.worlds import Asked, read_asked, read_told, write_asked
from poise.engine.paired import in_words, not_to_promote, world_report
from poise.errors import Conflict, NotFound, SpecError
from poise.kernel import messages
from poise.kernel.explain import policy_report
from poise.model.reports.policies import PolicyReport, PolicyRequest, Promotion, ShadowReport
from poise.model.selection import check_selection, parse_selection
from poise.model.tenants import Bearer
from poise.policy.split import check_divisible, undivided


def add_routes(routes: Routes, parts: Parts) -> None:
    plane, home, deciders = parts.plane, parts.home, parts.deciders

    async def configure(bearer: Bearer, told: dict[str, Any]) -> None:
        await plane.request(lambda request: messages.Configure(request=request, bearer=bearer, **told))
        forget_policy(home)

    async def in_charge() -> PolicyReport:
        return await asyncio.to_thread(policy_report(await plane.settled()))

    @routes.get("/v1/policy", summary="The policy that decides", role=VIEWER)
    async def policy_in_charge() -> PolicyReport:
        return await in_charge()

    @routes.put("/v1/policy", summary="Change the policy", status=202, role=ADMIN)
    async def set_policy(bearer: Bearer, data: PolicyRequest) -> PolicyReport:
        plane.check_leading()
        choice = chosen(data)
        await deciders.try_out(choice)
        await configure(bearer, policy_settings(choice, plane.clock.wall()))
        return await in_charge()

    @routes.post("/v1/policy/rollback", summary="Go back to the policy before", status=202, role=ADMIN)
    async def roll_back(bearer: Bearer) -> PolicyReport:
        plane.check_leading()
        before = (await plane.settled()).leader.before
        if not before:
            raise NotFound("no other policy has decided before", field="policy", hint="`poise policy set NAME`")
        await deciders.try_out(choice_before(before))
        await configure(bearer, {**before, "asked": plane.clock.wall(), "why": "rolled back"})
        return await in_charge()

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
        await configure(bearer, {**policy_settings(deciding, plane.clock.wall()), "why": why})
        if not data.nodes:
            end_shadow(choice.label)
        return await in_charge()


def chosen(asked: PolicyRequest) -> Choice:
    """Return the requested policy. Raises `SpecError`."""
    if asked.document is not None:
        return choose_document(asked.document, "policy")
    if is_file(asked.name):
        raise SpecError("a file is read where it is", field="name", have=asked.name, hint="send its content")
    return choose(asked.name, "policy")
