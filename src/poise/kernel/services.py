"""What gateways report of their services: which reports to record, and when a service is gone.

The reports of the gateways with the same service count together. They are kept in memory, because each gateway repeats
them every two seconds.
"""

from collections.abc import Callable

from poise.errors import Conflict
from poise.kernel.ledger import Ledger
from poise.kernel.messages import HearServices
from poise.model.events import Event, ServicesMeasured
from poise.model.served import GONE_AFTER, MAX_GATEWAYS, MAX_SERVICES, Served, is_news, together
from poise.model.tenants import tenant_of_class
from poise.units import MINUTE, SECOND

LOOK_EVERY = 1 * MINUTE
"""Interval at which silent services are looked for."""

SILENT_AFTER = 10 * SECOND
"""Time after which the last report of a gateway no longer counts."""

ALL_REPORT_IN = 4 * SECOND
"""Time after the first report in which all gateways have reported. Until then, known services are not recorded: a part
of their gateways would look like a fall of their load.
"""


class Hearing:
    """The reports of all gateways of one control plane."""

    def __init__(self, ledger: Ledger, commit: Callable[[Event], None]) -> None:
        self._ledger, self._commit = ledger, commit
        self._told: dict[str, dict[str, tuple[int, Served]]] = {}
        self._looked = self._first = 0

    def restart(self, ledger: Ledger) -> None:
        """Start again from the state in the ledger."""
        self._ledger = ledger
        self._told.clear()
        self._first = 0

    def hear(self, message: HearServices, now: int) -> None:
        """Take the report of a gateway. Raises `Conflict` if its tenant would have too many services, or a service too
        many gateways.
        """
        known = {name for name in self._ledger.services if tenant_of_class(name) == message.tenant}
        if len(known | message.services.keys()) > MAX_SERVICES:
            what, need = f"tenant {message.tenant} has too many services", f"at most {MAX_SERVICES}"
            raise Conflict(what, field="services", need=need, have=str(len(known | message.services.keys())))
        for name in message.services:
            self._check_gateways(name, message.gateway, now)
        self._first = self._first or now
        all_report = now - self._first >= ALL_REPORT_IN
        found: dict[str, tuple[int, ...]] = {}
        for name, state in sorted(message.services.items()):
            at_gateways = self._told.setdefault(name, {})
            at_gateways[message.gateway] = now, state
            whole = together(told for _, told in at_gateways.values())
            before = self._ledger.services.get(name)
            if before is None or (all_report and is_news(before.state, before.at, whole, now)):
                found[name] = whole.values
        if found:
            self._commit(ServicesMeasured(at=now, services=found))

    def _check_gateways(self, name: str, gateway: str, now: int) -> None:
        """Forget the silent gateways of a service. Raises `Conflict` if there is no room for this one."""
        at_gateways = self._told.get(name, {})
        for silent in [one for one, (at, _) in at_gateways.items() if now - at >= SILENT_AFTER]:
            del at_gateways[silent]
        if gateway not in at_gateways and len(at_gateways) >= MAX_GATEWAYS:
            what, need = f"service {name} has too many gateways", f"at most {MAX_GATEWAYS}"
            hint = "a service of another name at the other gateways"
            raise Conflict(what, field="gateway", need=need, have=str(len(at_gateways) + 1), hint=hint)

    def tick(self, now: int) -> None:
        """Forget services that no gateway reports any more."""
        if now - self._looked < LOOK_EVERY:
            return
        self._looked = now
        gone = tuple(sorted(name for name, of in self._ledger.services.items() if now - of.at >= GONE_AFTER))
        for name in gone:
            self._told.pop(name, None)
        if gone:
            self._commit(ServicesMeasured(at=now, gone=gone))


__all__ = ["Hearing"]
