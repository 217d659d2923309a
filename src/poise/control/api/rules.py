"""Routes of rules and for gateways: what rules ask of their services, and where the tasks of these listen."""

import asyncio
import contextlib
from typing import Any

import msgspec

from poise.control.api.parts import ADMIN, MAX_WAIT, OPERATOR, SUBMITTER, Parts
from poise.control.routes import Routes
from poise.drivers.plugins import choose_rule_policy, policy_settings
from poise.errors import Forbidden
from poise.kernel import messages
from poise.kernel.endpoints import endpoints
from poise.model.reports.rules import RuleAnswer, RuleDone, RulesReport, RulesRequest
from poise.model.reports.services import EndpointsReport, OrdersReport, ServiceLeftOut
from poise.model.rule_actions import policy_of, sets_policy
from poise.model.rules import compile_rules, targets_of
from poise.model.served import GatewayNews, Served
from poise.model.tenants import Bearer, class_of_tenant, declared_class, tenant_of_class

PLACES_EVERY = 0.02
"""Seconds after an event until the places of a job's tasks are looked at again."""


def add_routes(routes: Routes, parts: Parts) -> None:
    plane, deciders = parts.plane, parts.deciders

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

    @routes.post("/v1/rules/answers", summary="Allow or deny what a rule asks for", status=202, role=OPERATOR)
    async def answer_rule(bearer: Bearer, data: RuleAnswer) -> RuleDone:
        done = await plane.request(
            lambda request: messages.AnswerRule(request, data.rule, data.subject, data.allowed, bearer)
        )
        return RuleDone(rule=data.rule, subject=data.subject, actions=tuple(done))

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
        parts.check_stands(bearer)
        return told
