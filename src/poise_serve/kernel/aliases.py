"""Chooses the model of a request that names an alias, by the shares of the alias.

Requests with a key (a session) stay with one model. When a share grows, only keys that the growing model takes over
move, if the order of the models stays. Requests without a key take turns, so that the shares are exact at any time.
"""

from collections.abc import Iterator, Mapping
from hashlib import blake2b

from poise.model.serving_upstreams import Shares


class Aliases:
    """The aliases of a front."""

    def __init__(self, shares: Mapping[str, Shares]) -> None:
        self._shares = shares
        self._due: dict[str, dict[str, float]] = {name: {} for name in shares}

    def __contains__(self, name: str) -> bool:
        return name in self._shares

    def __iter__(self) -> Iterator[str]:
        return iter(self._shares)

    def resolve(self, name: str, key: str = "") -> str:
        """Return the model for a request; a name that is no alias is a model's."""
        shares = self._shares.get(name)
        if shares is None:
            return name
        if len(shares) == 1:
            return shares[0][0]
        return _by_key(shares, key) if key else self._by_turn(name, shares)

    def _by_turn(self, name: str, shares: Shares) -> str:
        """Give each model its share of a request, and the request to the model that is due most."""
        due = self._due[name]
        for model, share in shares:
            due[model] = due.get(model, 0.0) + share
        chosen = max((model for model, share in shares if share), key=due.__getitem__)
        due[chosen] -= 1
        return chosen


def _by_key(shares: Shares, key: str) -> str:
    hashed = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    at = int.from_bytes(hashed) / 2**64
    for model, share in shares:
        at -= share
        if at < 0:
            return model
    return next(model for model, share in reversed(shares) if share)


__all__ = ["Aliases"]
