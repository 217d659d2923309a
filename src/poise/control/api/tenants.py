"""Routes of the resources and the access of tenants: quotas, budgets, shares, tokens."""

from collections.abc import Callable
from typing import Annotated, Literal

import msgspec

from poise.control.api.parts import ADMIN, VIEWER, Parts
from poise.control.routes import Routes
from poise.drivers.calendar import shifts
from poise.drivers.system import Effort
from poise.errors import SpecError
from poise.kernel import messages
from poise.kernel.explain import token_report
from poise.kernel.find import quota_note
from poise.kernel.visible import Sight
from poise.model.budgets import compile_budgets
from poise.model.fields import MAX_DURATION, Quantity, parse_or_raise
from poise.model.reports.access import TokenReport
from poise.model.reports.tenants import (
    BudgetReport,
    BudgetsRequest,
    QuotaReport,
    SharesForeseen,
    SharesReport,
    SharesRequest,
)
from poise.model.reservations import Zones
from poise.model.sharefile import compile_shares
from poise.model.spec import QuotaSpec, check_name, compile_quota
from poise.model.tenants import Bearer, Role, Token, check_account
from poise.policy.suites import ClusterPolicy
from poise.units import parse_duration


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


def add_routes(routes: Routes, parts: Parts) -> None:
    plane = parts.plane

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

        return await parts.thought_about(bearer, ask)

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


def _in_order(token: Token) -> tuple[int, str]:
    """Sort key that orders t2 before t10."""
    return len(token.id), token.id
