"""Distributes waiting work over the substrates that get machines on request.

The keeper of each substrate sends its quotes for the waiting work about once a second, and gets its share of the work.
Nothing here is durable: each substrate knows its requests, and reports them in its quotes. So the shares are the same
after a restart of the control plane.

A substrate that is silent for `LIVE` gets no work; the others get its share. While a live or expected substrate has not
quoted a kind of work, no substrate gets this kind.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

import msgspec

from poise.control.plane import Plane
from poise.errors import NotFound
from poise.kernel.demand import demand, key_of, quotes_here
from poise.kernel.ledger import JobState, Ledger
from poise.model.reports.demand import Demand, DemandReport, Offer, Prospect, Quote
from poise.policy.substrates import HERE, Share, split
from poise.units import SECOND

LIVE = 30 * SECOND
"""Time after which a silent substrate gets no more work."""


class _Heard(NamedTuple):
    """The latest quotes of a substrate, by key, and their time."""

    at: int
    quotes: Mapping[str, Quote]


class Substrates:
    """The substrates of one control plane. `expected` are the names of those that are in use and get machines on
    request, `known` those of all that are kept; empty: any.
    """

    def __init__(self, plane: Plane, expected: Collection[str], known: Collection[str] = ()) -> None:
        self._plane, self._expected, self._known = plane, expected, known
        self._began = plane.clock.now()
        self._heard: dict[str, _Heard] = {}

    def share(self, ledger: Ledger, offer: Offer) -> DemandReport:
        """Take the quotes of a substrate, and return its share of the waiting work. Raises `NotFound` for one that is
        not kept: work in its share would not get a machine.
        """
        if self._known and offer.substrate not in self._known:
            what = f"this control plane does not use the substrate `{offer.substrate[:80]}`"
            raise NotFound(what, field="substrate", need=", ".join(self._known))
        now = self._plane.clock.now()
        self._heard = {name: heard for name, heard in self._heard.items() if now - heard.at < LIVE}
        self._heard[offer.substrate] = _Heard(now, {quote.key: quote for quote in offer.quotes})
        report = demand(ledger, now)
        shares = self._shares(ledger, report.waits, now)
        first = min(self._live(now))
        mine: list[Demand] = []
        for share in shares:
            if share.left == share.demand.tasks and offer.substrate == first:
                mine.append(share.demand)  # nobody has room: one of them says why
            elif (part := share.of(offer.substrate)) is not None:
                mine.append(part)
        return msgspec.structs.replace(report, waits=tuple(mine), kinds=report.waits)

    def prospects(self, ledger: Ledger, job: JobState) -> tuple[Prospect, ...]:
        """Compare the substrates for the waiting work of a job; empty if there is no choice."""
        now = self._plane.clock.now()
        if not self._live(now):
            return ()
        keys = {key_of(unit) for unit in job.units if not unit.over}
        shares = self._shares(ledger, demand(ledger, now).waits, now)
        found = next((share.prospects for share in shares if share.demand.key in keys), ())
        return found if len(found) > 1 else ()

    def _shares(self, ledger: Ledger, waits: tuple[Demand, ...], now: int) -> list[Share]:
        """Distribute the work for which all live substrates have sent quotes."""
        live = self._live(now)
        quotes = {name: self._heard[name].quotes if name in self._heard else {} for name in live}
        known = [work for work in waits if all(work.key in of for of in quotes.values())]
        return split(known, {HERE: quotes_here(ledger, known, now), **quotes})

    def _live(self, now: int) -> list[str]:
        """Return the substrates that have sent quotes recently, or may still be starting."""
        live = [name for name, heard in self._heard.items() if now - heard.at < LIVE]
        return live + [name for name in self._expected if name not in self._heard and now - self._began < LIVE]
