"""Usage and cost by day, tenant, project, user and model of device, from the resources held in the log."""

from collections.abc import Collection, Iterator
from datetime import UTC, datetime

from poise.kernel.follow import Following, Seen
from poise.kernel.ledger import Ledger
from poise.kernel.metering import Electricity, Meter, spent_held
from poise.model.power import RATES, Rates
from poise.model.reports.tenants import UsageRow
from poise.model.resources import WHOLE
from poise.model.share_tree import CPU, ShareTree
from poise.units import HOUR, SECOND

BY = ("day", "tenant", "project", "user", "model")
"""Fields by which usage can be grouped."""

_DAY = 86400


class Accounts(Following):
    """Follows a log from the state in `ledger`, which it changes."""

    def __init__(self, ledger: Ledger) -> None:
        self._ended: list[Seen] = []
        super().__init__(ledger)

    def on_end(self, attempt: Seen) -> None:
        self._ended.append(attempt)

    def usage(
        self, since: int, now: int, by: Collection[str] = BY, tenant: str = "", rates: Rates = RATES
    ) -> list[UsageRow]:
        """Return the usage between two instants, grouped by these fields and sorted; with `tenant`, only of that
        tenant. `rates` are those of electricity.
        """
        electricity = Electricity(rates, self.ledger.leader.anchor)
        meters: dict[tuple[str, ...], Meter] = {}
        tree = self.ledger.shares.tree or ShareTree()
        sums: dict[tuple[str, ...], list[float]] = {}
        for attempt in (*self._ended, *self.open.values()):
            if (tenant and attempt.tenant != tenant) or (attempt.queued and not attempt.started):
                continue
            devices = len(attempt.devices) * attempt.shape.share / WHOLE
            cores = 0.0 if attempt.devices else attempt.shape.cpu / 1000
            price = attempt.price or devices * tree.price(attempt.model) if devices else cores * tree.price(CPU)
            told = {"tenant": attempt.tenant, "project": attempt.project, "user": attempt.user, "model": attempt.model}
            held = (days for begin, end in attempt.holding(now) for days in self._days(max(begin, since), end))
            for number, (day, begin, end) in enumerate(held):
                told["day"] = day
                key = tuple(told[name] if name in by else "" for name in BY)
                total = sums.setdefault(key, [0.0, 0.0, 0.0, 0.0])
                meters.setdefault(key, Meter(electricity)).add(attempt.power, begin, end)
                hours = (end - begin) / HOUR
                for place, amount in enumerate((number == 0, devices * hours, cores * hours, price * hours / 1e6)):
                    total[place] += amount
        spent = {key: spent_held(electricity, meter) for key, meter in meters.items()}
        return [
            UsageRow(
                **dict(zip(BY, key, strict=True)),
                attempts=int(total[0]),
                device_hours=total[1],
                core_hours=total[2],
                charge=total[3],
                energy=spent[key].energy,
                co2=spent[key].co2,
                electricity=spent[key].electricity,
                hourly=spent[key].hourly,
            )
            for key, total in sorted(sums.items())
        ]

    def _days(self, begin: int, end: int) -> Iterator[tuple[str, int, int]]:
        """Yield the days in UTC between two instants, each with the instants between them that are of that day."""
        while begin < end:
            wall = self.ledger.leader.wall(begin)
            left = round((_DAY - wall % _DAY) * SECOND) or 1
            until = min(end, begin + left)
            yield f"{datetime.fromtimestamp(wall, UTC):%Y-%m-%d}", begin, until
            begin = until
