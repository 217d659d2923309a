"""Settings of administrators: quotas, shares, budgets, the policy, tokens."""

from collections.abc import Callable

import msgspec

from poise.errors import Conflict, NotFound
from poise.kernel.controller.cadence import Cadence
from poise.kernel.controller.outbox import Requests
from poise.kernel.controller.settings import triggers_of
from poise.kernel.hours import Hours
from poise.kernel.ledger import Ledger
from poise.kernel.messages import (
    AddToken,
    Configure,
    IncidentDone,
    RevokeToken,
    SetBudgets,
    SetQuota,
    SetShares,
    SignedIn,
)
from poise.kernel.signing import signed_in
from poise.kernel.watch import Watch
from poise.model.events import (
    BudgetsSet,
    Configured,
    Event,
    IncidentTold,
    Noticed,
    QuotaSet,
    SharesSet,
    TokenAdded,
    TokenRevoked,
)
from poise.model.quotas import BASE
from poise.model.tenants import Token
from poise.policy.suites import is_fixed

MAX_TOKENS = 10_000


class Administration:
    """The part of the controller that records settings of the cluster."""

    def __init__(
        self, ledger: Ledger, watch: Watch, cadence: Cadence, hours: Hours, *, commit: Callable[[Event], None]
    ) -> None:
        self.ledger = ledger
        self._watch = watch
        self._cadence = cadence
        self._hours = hours
        self._commit = commit

    def requests(self) -> Requests:
        return {
            SetQuota: self.set_quota,
            SetShares: self._set_shares,
            SetBudgets: self._set_budgets,
            Configure: self.configure,
            AddToken: self._add_token,
            SignedIn: self._signed_in,
            RevokeToken: self._revoke_token,
            IncidentDone: self._incident_done,
        }

    def set_quota(self, message: SetQuota, now: int) -> str:
        known = self.ledger.quotas.get(message.tenant)
        if known is not None:
            known = msgspec.structs.replace(known, turn=BASE)
        if known != message.quota:
            self._commit(QuotaSet(at=now, tenant=message.tenant, quota=message.quota, by=message.bearer.token))
            self._hours.look_again()
            self._cadence.want()
        return message.tenant

    def _set_shares(self, message: SetShares, now: int) -> int:
        if self.ledger.shares.tree != message.tree:
            self._commit(SharesSet(at=now, tree=message.tree, by=message.bearer.token))
            self._cadence.want()
        return self.ledger.revision

    def _set_budgets(self, message: SetBudgets, now: int) -> int:
        budgets = self.ledger.budgets
        if tuple(state.budget for state in budgets.values()) != message.budgets:
            alerting = [name for name, state in budgets.items() if state.reached]
            self._commit(BudgetsSet(at=now, budgets=message.budgets, by=message.bearer.token))
            for name in alerting:
                if name not in budgets or not budgets[name].reached:
                    text = f"budget {name} was removed or covers other work"
                    self._commit(Noticed(at=now, kind="budget-reached", subject=name, text=text, over=True))
        return self.ledger.revision

    def configure(self, message: Configure, now: int) -> int:
        """Put another policy in charge. A plan that the previous one is making does not count."""
        configured = Configured(
            at=now,
            policy=message.policy,
            asked=message.asked,
            recipe=message.recipe,
            code=message.code,
            fixed=is_fixed(message.policy),
            by=message.bearer.token,
            why=message.why,
        )
        self._commit(configured)
        self._watch.triggers = triggers_of(message.recipe)
        self._cadence.forget_round(now)
        return self.ledger.revision

    def _signed_in(self, message: SignedIn, now: int) -> Token:
        events, token_id = signed_in(self.ledger.tokens, message, now)
        if any(isinstance(event, TokenAdded) for event in events):
            self._check_tokens()
        for event in events:
            self._commit(event)
        return self.ledger.tokens[token_id]

    def _add_token(self, message: AddToken, now: int) -> Token:
        self._check_tokens()
        known = self.ledger.tokens.of_secret(message.hash)
        if known is not None:
            asked = (message.tenant, message.role, message.name, message.account)
            if (known.tenant, known.role, known.name, known.account) != asked:
                raise Conflict(
                    "this secret belongs to another token", field="hash", have=known.id, hint="make a new secret"
                )
            return known
        token = Token(
            id=self.ledger.tokens.next_id(),
            tenant=message.tenant,
            role=message.role,
            hash=message.hash,
            name=message.name,
            expires=now + message.lasts if message.lasts else 0,
            account=message.account,
        )
        self._commit(TokenAdded(at=now, token=token, by=message.bearer.token))
        return token

    def _check_tokens(self) -> None:
        """Raise `Conflict` if there is no room for one more token."""
        standing = sum(not token.revoked for token in self.ledger.tokens.values())
        if standing >= MAX_TOKENS:
            raise Conflict(
                "there are too many tokens",
                need=f"at most {MAX_TOKENS}",
                have=str(standing),
                hint="`poise token ls`, then `poise token rm ID` for those that are no longer needed",
            )

    def _revoke_token(self, message: RevokeToken, now: int) -> str:
        token = self.ledger.tokens.get(message.id)
        if token is None or token.revoked:
            raise NotFound(f"there is no token `{message.id}`", field="token", have=message.id, hint="`poise token ls`")
        self._commit(TokenRevoked(at=now, id=token.id, by=message.bearer.token))
        return token.id

    def _incident_done(self, message: IncidentDone, now: int) -> None:
        told = IncidentTold(
            at=now, incident=message.incident, moment=message.moment, target=message.target, failed=message.failed
        )
        self._commit(told)
