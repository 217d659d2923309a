"""Authenticates requests by their tokens, and records refusals.

A token is looked up by its hash, so the lookup time reveals nothing about other tokens. Refusals are counted, and the
latest are kept in memory, so that repeated requests fill neither the log nor a disk.
"""

from collections import Counter, deque

from poise.control.plane import Plane
from poise.drivers.security import digest
from poise.errors import Denied, Forbidden, PoiseError
from poise.model.reports.access import Refusal, RefusalsReport
from poise.model.tenants import HOME, Bearer, Role

LATEST = 256

LONGEST = 200
"""Maximum number of characters of a path to keep of a refusal."""


class Gatekeeper:
    """Knows the bearers of the home's own token and of the tokens in the ledger."""

    def __init__(self, plane: Plane, token: str) -> None:
        """`token` is the secret of the home."""
        self._plane = plane
        self._home = digest(token)
        self._counts: Counter[str] = Counter()
        self._latest: deque[Refusal] = deque(maxlen=LATEST)

    @property
    def behind(self) -> str | None:
        """The address of the leader if this control plane is a standby; None if it leads."""
        return self._plane.behind

    def check_leading(self) -> None:
        self._plane.check_leading()

    def bearer(self, secret: str) -> Bearer:
        """Return the bearer of a secret. Raises `Denied`."""
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
        person = token.name if token.subject else ""
        return Bearer(token.tenant, token.role, token.id, token.name, token.account, person)

    def stands(self, bearer: Bearer) -> bool:
        """Return whether the bearer's token is still valid: a stream may outlive it."""
        if bearer is HOME:
            return True
        token = self._plane.ledger.tokens.get(bearer.token)
        now = self._plane.clock.now()
        return token is not None and not token.revoked and not 0 < token.expires <= now

    def allow(self, bearer: Bearer, needed: Role | None, path: str) -> None:
        """Raises `Forbidden` unless the bearer's role suffices. A route without a role is closed to all."""
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
