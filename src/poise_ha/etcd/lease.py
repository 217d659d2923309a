"""Leader election: one control plane keeps rewriting a key, and another takes over when the key stops changing."""

import time
from typing import Any, NamedTuple

import msgspec

from poise.decoding import json_decoder
from poise.drivers.led.lease import Lease, Led, now
from poise.errors import Fault
from poise.units import SECOND
from poise_ha.etcd.keys import Keys
from poise_ha.etcd.link import EtcdLink, Members
from poise_ha.etcd.words import Compare, Operation, delete, is_absent, is_value, put

LOOK_SECONDS = 0.1

PATIENCE = 5
"""Timeout of a member as a fraction (1/5) of the lease, so that two members are tried before it is too late to renew:
one of three members may be down.
"""


class Who(msgspec.Struct):
    """The holder of the term; `lasts` in nanoseconds."""

    holder: str = ""
    address: str = ""
    token: str = ""
    lasts: int = 0


_encode = msgspec.json.Encoder().encode
_decode = json_decoder(Who).decode


class Seen(NamedTuple):
    """State of the lease. `renewed` changes with each renewal, and is empty when the lease was released."""

    term: int
    who: Who
    renewed: str


async def see(members: Members, keys: Keys) -> Seen:
    found = {one.key: one for one in await members.range(*keys.lead)}
    try:
        term, who = int(found[keys.term].value), _decode(found[keys.who].value)
    except (KeyError, ValueError, msgspec.MsgspecError):
        raise Fault(f"`{members.name}` does not name the leader", code="E213") from None
    renewed = found.get(keys.renewed)
    return Seen(term, who, renewed.mod_revision if renewed is not None else "")


class EtcdLease(Lease):
    def __init__(self, url: str, **given: Any) -> None:
        super().__init__(**given)
        self._link = EtcdLink(url, self._lasts / SECOND / PATIENCE)
        self._keys = Keys(self._link.place.prefix)
        self._seen: str | None = None
        self._since = 0
        self._was_renewed = False

    def look(self) -> Led:
        """Watch an unknown holder until its state is clear: a live leader renews the lease, otherwise the lease
        expires.
        """
        while True:
            seen, held = self._watch()
            if not held or self._was_renewed:
                mine = seen.term == self._term and self.holds()
                return Led(seen.term, seen.who.address, seen.who.token, held or mine)
            time.sleep(LOOK_SECONDS)

    def close(self) -> None:
        super().close()
        self._link.close()

    def _watch(self) -> tuple[Seen, bool]:
        """Return the lease and whether it is held, measured from when this process saw the latest renewal."""
        seen = self._link.ask(lambda members: see(members, self._keys))
        if seen.renewed != self._seen:
            self._was_renewed = self._seen is not None
            self._seen, self._since = seen.renewed, now()
        theirs = seen.renewed != "" and seen.who.holder != self._holder
        return seen, theirs and now() < self._since + seen.who.lasts

    def _take(self) -> int:
        seen, held = self._watch()
        if held:
            return 0
        term, renewed = seen.term + 1, self._keys.renewed
        still = Compare(renewed, "MOD", mod_revision=seen.renewed) if seen.renewed else is_absent(renewed)
        who = Who(self._holder, self._address, self._token, self._lasts)
        compare = [is_value(self._keys.term, b"%d" % seen.term), still]
        writes = [put(self._keys.term, b"%d" % term), put(self._keys.who, _encode(who)), put(renewed, b"")]

        async def take(members: Members) -> bool:
            if await members.commit(compare, writes):
                return True
            found = await see(members, self._keys)  # it may have been our own first try, whose answer was lost
            return (found.term, found.who) == (term, who)

        return term if self._link.ask(take) else 0

    async def _renewed(self, term: int, within: float) -> bool:
        return await self._link.answer(
            lambda members: self._while_mine(members, term, put(self._keys.renewed, b"")), within
        )

    def _release(self, term: int) -> None:
        self._link.ask(lambda members: self._while_mine(members, term, delete(self._keys.renewed)))

    async def _while_mine(self, members: Members, term: int, write: Operation) -> bool:
        return await members.commit([is_value(self._keys.term, b"%d" % term)], [write])
