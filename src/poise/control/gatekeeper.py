"""Whose request it is, by the token that it carries, and what was refused.

A token is looked up by its hash, so that how long that takes tells nothing of any other token. Refusals are counted,
and the latest are kept in memory: whoever keeps asking fills neither the log nor a disk.
"""

from collections import Counter, deque

from poise.control.plane import Plane
from poise.drivers.security import digest
from poise.errors import Denied, Forbidden, PoiseError
from poise.model.reports import Refusal, RefusalsReport
from poise.model.tenants import HOME, Bearer, Role

LATEST = 256

LONGEST = 200
"""Letters of a path that are kept of a refusal."""


class Gatekeeper:
    """Knows the bearers of tokens: of the home's own, and of those in the ledger."""

    def __init__(self, plane: Plane, token: str) -> None:
        """`token` is the secret of the home."""
        self._plane = plane
        self._home = digest(token)
        self._counts: Counter[str] = Counter()
        self._latest: deque[Refusal] = deque(maxlen=LATEST)

    @property
    def behind(self) -> str | None:
        """Whom this control plane stands by for, if it does not lead."""
        return self._plane.behind

    def check_leading(self) -> None:
        self._plane.check_leading()

    def bearer(self, secret: str) -> Bearer:
        """Whose secret it is. Raises `Denied`."""
        found = digest(secret)
        if found == self._home:
            return HOME
        token = self._plane.ledger.tokens.of_secret(found)
        if token is None:
            raise Denied(
                "the request carries no token, or a wrong one",
                field="Authorization",
                hint="set POISE_TOKEN, or POISE_TOKEN_FILE to its file; the owner makes one: `poise token add`",
            )
        if token.expires and token.expires <= self._plane.clock.now():
            raise Denied(
                "the token has expired",
                code="E132",
                field="Authorization",
                have=token.id,
                hint=f"ask an admin: `poise token add --tenant {token.tenant} --role {token.role.name.lower()}`",
            )
        return Bearer(token.tenant, token.role, token.id, token.name)

    def stands(self, bearer: Bearer) -> bool:
        """Whether the token with which a bearer came is still good: a stream may outlive it."""
        if bearer is HOME:
            return True
        token = self._plane.ledger.tokens.get(bearer.token)
        now = self._plane.clock.now()
        return token is not None and not token.revoked and not 0 < token.expires <= now

    def allow(self, bearer: Bearer, needed: Role | None, path: str) -> None:
        """Raises `Forbidden` unless the role does. A route that says nothing of roles is for nobody."""
        if needed is not None and bearer.may(needed):
            return
        need = "no role" if needed is None else needed.name.lower()
        error = Forbidden(
            "the token's role does not allow this",
            code="E133",
            field="Authorization",
            need=need,
            have=bearer.role.name.lower(),
            hint="`poise whoami` shows the role of yours",
        )
        self.refused(error, path, bearer)
        raise error

    def refused(self, error: PoiseError, path: str, bearer: Bearer | None = None) -> None:
        code = error.record.code
        self._counts[code] += 1
        expired = self._plane.ledger.tokens.get(error.record.have) if code == "E132" else None
        token, tenant = (bearer.token, bearer.tenant) if bearer is not None else ("", "")
        if expired is not None:
            token, tenant = expired.id, expired.tenant
        self._latest.append(Refusal(self._plane.clock.wall(), code, path[:LONGEST], token, tenant))

    def refusals(self) -> RefusalsReport:
        return RefusalsReport(dict(sorted(self._counts.items())), tuple(self._latest))
