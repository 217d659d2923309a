"""Decides which reports of gateways about their services to record, and when a service is gone.

The reports of the gateways with the same service count together. They are kept in memory, because each gateway repeats
them every two seconds.
"""

from collections.abc import Callable

from poise.kernel.ledger import Ledger
from poise.kernel.messages import HearServices
from poise.model.events import Event, ServicesMeasured
from poise.model.served import GONE_AFTER, KNOWN_FOR, MAX_GATEWAYS, MAX_SERVICES, Served, is_news, together
from poise.model.tenants import tenant_of_class
from poise.units import MINUTE, SECOND

LOOK_EVERY = 1 * MINUTE
"""Interval at which silent services are looked for."""

SILENT_AFTER = 10 * SECOND
"""Time after which the last report of a gateway no longer counts."""

ALL_REPORT_IN = 4 * SECOND
"""Time after the first report in which all gateways have reported. Until then, a service that is new here is not
recorded: a part of its gateways would look like a fall of its load.
"""

STALLED_AFTER = SILENT_AFTER - ALL_REPORT_IN
"""Time without any report after which the next one is the first again: the control plane has stalled, and all gateways
appear silent. Each service waits for the gateways that it had before.
"""


class _Told:
    """The latest report of each gateway about a service, with its instant. `first` is that of the first report."""

    __slots__ = ("at_gateways", "first")

    def __init__(self, first: int) -> None:
        self.first = first
        self.at_gateways: dict[str, tuple[int, Served]] = {}

    def is_old(self, now: int) -> bool:
        """Whether it has not been reported for so long that its signals are unknown."""
        return all(now - at >= KNOWN_FOR for at, _ in self.at_gateways.values())

    def forget_silent(self, now: int) -> None:
        """Forget the gateways that report it no more."""
        for silent in [one for one, (at, _) in self.at_gateways.items() if now - at >= SILENT_AFTER]:
            del self.at_gateways[silent]


class Hearing:
    """The reports of all gateways of one control plane."""

    def __init__(self, ledger: Ledger, commit: Callable[[Event], None]) -> None:
        self._ledger, self._commit = ledger, commit
        self._told: dict[str, _Told] = {}
        self._looked = self._first = self._last = 0

    def restart(self, ledger: Ledger) -> None:
        """Start again from the state in the ledger."""
        self._ledger = ledger
        self._told.clear()
        self._first = self._last = 0

    def hear(self, message: HearServices, now: int) -> dict[str, str]:
        """Take the report of a gateway. Return why services are left out, by name: its tenant would have too many, or
        a service too many gateways.
        """
        known = {name for name in (*self._ledger.services, *self._told) if tenant_of_class(name) == message.tenant}
        new = sorted(message.services.keys() - known)[max(0, MAX_SERVICES - len(known)) :]
        left_out = dict.fromkeys(new, f"tenant {message.tenant} has {MAX_SERVICES} services already")
        if not self._last or now - self._last >= STALLED_AFTER:
            self._first = now
        self._last = now
        all_report = now - self._first >= ALL_REPORT_IN
        for name in sorted(message.services.keys() & self._told.keys()):
            told = self._told[name]
            if all_report:
                told.forget_silent(now)
            if message.gateway not in told.at_gateways and len(told.at_gateways) >= MAX_GATEWAYS:
                left_out[name] = f"it has {MAX_GATEWAYS} gateways already"
        found: dict[str, tuple[int, ...]] = {}
        for name in sorted(message.services.keys() - left_out.keys()):
            if name not in self._told or self._told[name].is_old(now):
                self._told[name] = _Told(now)
            told, state = self._told[name], message.services[name]
            told.at_gateways[message.gateway] = now, state
            late = not all_report and any(at < self._first for at, _ in told.at_gateways.values())
            if late or now - told.first < ALL_REPORT_IN:
                continue
            whole = together(of for _, of in told.at_gateways.values())
            before = self._ledger.services.get(name)
            if before is None or is_news(before.state, before.at, whole, now):
                found[name] = whole.values
        if found:
            self._commit(ServicesMeasured(at=now, services=found))
        return left_out

    def tick(self, now: int) -> None:
        """Forget services that no gateway reports any more."""
        self._first = self._first or now
        if now - self._looked < LOOK_EVERY:
            return
        self._looked = now
        for name in [name for name, told in self._told.items() if told.is_old(now)]:
            del self._told[name]
        if now - self._first >= GONE_AFTER:
            silent = (name for name, of in self._ledger.services.items() if now - of.at >= GONE_AFTER)
            if gone := tuple(sorted(silent)):
                self._commit(ServicesMeasured(at=now, gone=gone))


__all__ = ["Hearing"]
