"""Services, as their gateways report them."""

from poise.kernel.ledger.room import Handlers, Room
from poise.kernel.ledger.state import State
from poise.model.events import ServicesMeasured
from poise.model.served import ServiceState, served_of


class Services(Room, dict[str, ServiceState]):
    """Services by name. Owns `services`."""

    def __init__(self, state: State) -> None:
        super().__init__(state.services)
        state.services = self

    def handlers(self) -> Handlers:
        return {ServicesMeasured: self._measured}

    def _measured(self, event: ServicesMeasured) -> None:
        for name, values in event.services.items():
            self[name] = ServiceState(event.at, served_of(values))
        for name in event.gone:
            self.pop(name, None)
