"""Closed devices, and devices that have failed."""

import msgspec

from poise.kernel.ledger.active import Active
from poise.kernel.ledger.changes import Changes
from poise.kernel.ledger.places import BY_HAND, Cordon
from poise.kernel.ledger.room import Handlers, Room, hold
from poise.kernel.ledger.state import State
from poise.model.events import DeviceCordoned, DeviceDrained
from poise.model.resources import Device, Node, identity_of

MAX_CORDONS = 4096
"""Maximum number of reopened devices to remember, so that the work that they failed avoids them."""


class Cordons(Room, dict[str, Cordon]):
    """Cordons by the identity of a device. Owns `cordons`."""

    def __init__(self, state: State, active: Active, changes: Changes) -> None:
        super().__init__(state.cordons)
        self._active, self._changes, state.cordons = active, changes, self

    def of_device(self, node: str, device: Device) -> Cordon | None:
        """Return why the device is closed; None if it is open."""
        if not self:  # the usual case; called for every device of a changed node
            return None
        found = self.get(identity_of(node, device))
        return None if found is None or found.opened else found

    def closes(self, node: str, device: Device) -> bool:
        """Return whether the device is closed, or its node no longer offers it."""
        return device.withdrawn or self.of_device(node, device) is not None

    def seen(self, node: Node) -> Node:
        """Return the node with its failed devices marked."""
        failed = {identity for identity, cordon in self.items() if cordon.code}
        if not failed:
            return node
        devices = (
            msgspec.structs.replace(device, failed=identity)
            if (identity := identity_of(node.name, device)) in failed
            else device
            for device in node.devices
        )
        return msgspec.structs.replace(node, devices=tuple(devices))

    def handlers(self) -> Handlers:
        return {DeviceCordoned: self._cordoned, DeviceDrained: self._drained}

    def _cordoned(self, event: DeviceCordoned) -> None:
        self[event.id] = Cordon(event.at, event.code, event.text)
        for unit, index in self._active.on(event.node):
            if event.device in unit.tasks[index].devices:
                if not unit.barred:  # it now differs from the rest of its queue
                    unit.queue = f"{unit.queue}{'' if unit.queue.endswith('/') else '/'}{unit.id}"
                unit.barred = unit.barred | {event.id: unit.epoch}
        self._active.mark_node(event.node)
        self._changes.fleet = True  # a failed device counts as a separate model

    def _drained(self, event: DeviceDrained) -> None:
        known = self.get(event.id)
        if event.on:  # a failed device stays barred for the work that it failed
            self[event.id] = Cordon(event.at, known.code, BY_HAND) if known and known.code else Cordon(event.at)
        elif known is not None and known.code:
            self[event.id] = msgspec.structs.replace(known, opened=event.at)
            opened = sorted((cordon.opened, device) for device, cordon in self.items() if cordon.opened)
            for _, device in opened[:-MAX_CORDONS]:
                del self[device]
        else:
            self.pop(event.id, None)
        self._active.mark_node(event.node)
        self._changes.fleet = True  # a forgotten device counts as its own model again

    def check(self, anew: "Cordons") -> None:
        remembered = [device for device, cordon in self.items() if cordon.opened and not cordon.code]
        hold(not remembered, f"remembered without a reason: {remembered}")
