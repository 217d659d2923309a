"""Tokens of people who sign in: the events of a sign-in, and of its renewal.

A renewal by the same person with the same rights extends the token, so its streams continue. With other rights, the
secret gets another token. A revoked token is not renewed, so `poise token rm` ends a sign-in for good.
"""

from poise.errors import Denied
from poise.kernel.ledger.tokens import Tokens
from poise.kernel.messages import SignedIn
from poise.model.events import TokenAdded, TokenRenewed, TokenRevoked
from poise.model.tenants import Token
from poise.units import DAY

RENEWABLE = 7 * DAY
"""Nanoseconds after its expiry for which a token can be renewed."""

MOST = 16
"""Maximum number of tokens of one person; the one that expires first is revoked."""


Signing = TokenAdded | TokenRenewed | TokenRevoked


def signed_in(tokens: Tokens, message: SignedIn, now: int) -> tuple[list[Signing], str]:
    """Return the events of a sign-in, and the id of its token. Raises `Denied` if it may not be renewed."""
    known = tokens.of_secret(message.hash)
    over = known is None or known.expires + RENEWABLE < now
    if (message.renews and over) or (known is not None and known.subject != message.subject):
        raise Denied("this sign-in is over", field="hash", hint="`poise login`")
    expires, rights = now + message.lasts, (message.tenant, message.role, message.name, message.account)
    if known is not None and (known.tenant, known.role, known.name, known.account) == rights:
        return [TokenRenewed(at=now, id=known.id, expires=expires, by=known.id)], known.id
    made = Token(
        id=tokens.next_id(),
        tenant=message.tenant,
        role=message.role,
        hash=message.hash,
        name=message.name,
        expires=expires,
        account=message.account,
        subject=message.subject,
    )
    own = sorted((one.expires, one.id) for one in tokens.values() if one.subject == message.subject and not one.revoked)
    gone = {token_id for _, token_id in own[: max(0, len(own) + 1 - MOST)]}
    gone |= {one.id for one in tokens.values() if one.subject and not one.revoked and one.expires + RENEWABLE < now}
    if known is not None:
        gone.add(known.id)
    revoked: list[Signing] = [TokenRevoked(at=now, id=token_id, by=token_id) for token_id in sorted(gone)]
    return [*revoked, TokenAdded(at=now, token=made, by=made.id)], made.id
