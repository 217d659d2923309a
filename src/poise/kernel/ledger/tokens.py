"""Tokens of bearers."""

import msgspec

from poise.kernel.ledger.room import Handlers, Room, hold_same
from poise.kernel.ledger.state import State
from poise.model.events import TokenAdded, TokenRenewed, TokenRevoked
from poise.model.tenants import Token

PAST_TOKENS = 256
"""Maximum number of revoked tokens; the log has all of them."""


class Tokens(Room, dict[str, Token]):
    """Tokens by id, with the latest revoked ones for the audit. Owns `tokens`, `tokens_ever` and `accounts`."""

    def __init__(self, state: State) -> None:
        super().__init__(state.tokens)
        self._state, state.tokens = state, self
        state.accounts = state.accounts or any(token.account for token in self.values())  # of an older checkpoint
        self._secrets = {token.hash: token.id for token in self.values() if not token.revoked}

    def next_id(self) -> str:
        return f"t{self._state.tokens_ever + 1}"

    def of_secret(self, secret_hash: str) -> Token | None:
        """Return the token with this hash, even if expired; None if it is unknown or revoked."""
        found = self._secrets.get(secret_hash)
        return self[found] if found else None

    def has_others(self, tenant: str) -> bool:
        """Return whether another tenant has a token that is not revoked."""
        return any(token.tenant != tenant for token in self.values() if not token.revoked)

    def name_accounts(self) -> bool:
        """Return whether a token has ever named a Unix account. It may be revoked, or have expired: its work is still
        there.
        """
        return self._state.accounts

    def handlers(self) -> Handlers:
        return {TokenAdded: self._added, TokenRenewed: self._renewed, TokenRevoked: self._revoked}

    def _added(self, event: TokenAdded) -> None:
        self._state.tokens_ever += 1
        self._state.accounts = self._state.accounts or bool(event.token.account)
        self[event.token.id] = event.token
        self._secrets[event.token.hash] = event.token.id

    def _renewed(self, event: TokenRenewed) -> None:
        self[event.id] = msgspec.structs.replace(self[event.id], expires=event.expires)

    def _revoked(self, event: TokenRevoked) -> None:
        del self._secrets[self[event.id].hash]
        self[event.id] = msgspec.structs.replace(self[event.id], revoked=event.at)
        gone = sorted((token.revoked, token_id) for token_id, token in self.items() if token.revoked)
        for _, token_id in gone[:-PAST_TOKENS]:
            del self[token_id]

    def check(self, anew: "Tokens") -> None:
        hold_same("secrets", self._secrets, anew._secrets)
