"""Nodes join, report, are drained, leave, and are lost."""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from poise.errors import Conflict, Forbidden, InputError, NotFound
from poise.kernel.controller.attempts import LiveAttempts
from poise.kernel.controller.cadence import Cadence
from poise.kernel.controller.contacts import Contacts
from poise.kernel.controller.deciding import Deciding
from poise.kernel.controller.limits import LiveLimits
from poise.kernel.controller.outbox import Outbox, Requests
from poise.kernel.controller.settings import FOREVER, HEARTBEAT, Settings
from poise.kernel.controller.tellings import Tellings
from poise.kernel.find import find_node
from poise.kernel.ledger import Ledger, NodeState, attempt_of
from poise.kernel.messages import Drain, Leave, Lend
from poise.kernel.watch import Watch
from poise.model.decisions import NO_POLICY, Preempt, Why
from poise.model.events import (
    DeviceCordoned,
    DeviceDrained,
    Event,
    NodeDrained,
    NodeForgotten,
    NodeJoined,
    NodeLost,
    NodeTrusted,
    NodeUnfit,
)
from poise.model.messages import Acked, Beat, Desired, DeviceFault, FromAgent, Heard, Hello, Report
from poise.model.reports.nodes import Drained
from poise.model.resources import Device, Node, identity_of
from poise.model.tenants import RULE, Role
from poise.policy.emptying import may_go
from poise.units import SECOND

OF_THE_HOME = "home"
"""Name of the home's own token, for fields that hold the id of a token."""

SAME_END = 5 * SECOND
"""A node's end that moves by no more than this counts as unchanged, because messages take time."""


class Membership:
    """The part of the controller that knows which nodes there are. `said` are nodes reported as gone, and not given up
    yet; `left` have left, with work still to move.
    """

    def __init__(
        self,
        ledger: Ledger,
        settings: Settings,
        watch: Watch,
        contacts: Contacts,
        outbox: Outbox,
        cadence: Cadence,
        tellings: Tellings,
        attempts: LiveAttempts,
        limits: LiveLimits,
        deciding: Deciding,
        *,
        commit: Callable[[Event], None],
    ) -> None:
        self.ledger = ledger
        self._settings = settings
        self._watch = watch
        self._contacts = contacts
        self._outbox = outbox
        self._cadence = cadence
        self._tellings = tellings
        self._attempts = attempts
        self._limits = limits
        self._deciding = deciding
        self._commit = commit
        self.said: set[str] = set()
        self.left: set[str] = set()

    def requests(self) -> Requests:
        return {
            Drain: self.drain,
            Leave: self._leave,
            Lend: self._lend,
        }

    # --- messages of nodes -------------------------------------------------------------------------------------------

    def from_node(self, name: str, message: FromAgent, by: str, now: int) -> None:
        """Handle a message of a node that joins with this token."""
        pace = self._contacts.heard(name, message, now, len(self.ledger.nodes))
        if isinstance(message, Hello):
            self._contacts.look_no_later_than(now + self._contacts.quiet())
        known = self.ledger.nodes.get(name)
        if known is not None and known.suspect and not self._outbox.full:
            self._commit(NodeTrusted(at=now, name=name))
            self._cadence.joined = True
            self._contacts.look_no_later_than(now + self._contacts.quiet())
        if self._outbox.full:  # nothing can be recorded, so nothing is acknowledged: the agent sends it again
            self._outbox.hang(name)
        elif isinstance(message, Hello):
            self._hello(message, by, now)
        elif name not in self._contacts.connected:  # it was given up, and speaks again: it has to say what it holds
            self._outbox.hang(name)
        elif isinstance(message, Beat):
            if message.load is not None:
                self._watch.load(name, message.load, now)
            if message.upkeep is not None:
                self._watch.upkeep(name, message.upkeep)
            self._outbox.acknowledge(name, Heard(beat=message.number, pace=pace if pace > HEARTBEAT else 0))
        elif isinstance(message, Report):
            self._take_fitness(name, message.unfit, now)  # before the attempts it hands back are placed again
            self._tellings.take_told(name, message.told, now)  # first: the last report of ended attempts
            self._attempts.take_report(name, message.running, message.ended, now)
            self._tellings.take_idle(name, message.idle, now)
            self._limits.take_sized(name, message.sized, now)
            self._take_faults(name, message.faults, now)
            self._outbox.send(name, Acked(serial=message.serial))

    def _hello(self, hello: Hello, by: str, now: int) -> None:
        name = hello.node.name
        self.disconnect(name, now)  # discard the earlier connection
        self._contacts.outage.heard(name, now)
        self.said.discard(name)
        self.left.discard(name)
        known = self.ledger.nodes.get(name)
        node = hello.node if known is None else _with_withdrawn(hello, known.node.devices)
        if hello.left:
            node = msgspec.structs.replace(node, until=_until(now + hello.left, known.node.until if known else 0))
        if known is not None and known.node.incarnation != node.incarnation:
            self._attempts.lose_all(name, now, "the node was started anew", gone=node.has_rebooted(known.node))
        elif known is not None and known.node.devices != node.devices:
            self._lose_devices(known, node, now)
        if known is None or known.status != "up" or known.node != node or known.by != (by or known.by):
            self._commit(NodeJoined(at=now, node=node, by=by))
            self._cadence.joined = True
        self._contacts.connected.add(name)
        self._take_fitness(name, hello.unfit, now)
        self._contacts.addresses[name] = hello.address
        self._attempts.take_report(name, hello.running, hello.ended, now)
        self._take_faults(name, hello.faults, now)
        self._outbox.send(name, self._attempts.desired(name, hello, now))
        self._outbox.send(name, Acked(serial=0))

    def _take_fitness(self, name: str, why: str | None, now: int) -> None:
        """Record that a node cannot start anything, or can again."""
        if why is not None and why != self.ledger.nodes[name].unfit:
            self._commit(NodeUnfit(at=now, name=name, why=why))
            self._cadence.want()

    def _take_faults(self, name: str, faults: Iterable[DeviceFault], now: int) -> None:
        """Close failed devices. Their work is lost, and ordered to end. The controller does not wait for that, because
        a process may never return from a failed device.
        """
        for fault in faults:
            device = self._device(name, fault.index)
            if device is None or self.ledger.cordons.of_device(name, device) is not None:
                continue
            if fault.id and fault.id != identity_of(name, device):
                continue  # another device has replaced it
            hit = [
                (unit, index) for unit, index in self.ledger.active.on(name) if fault.index in unit.tasks[index].devices
            ]
            self._commit(
                DeviceCordoned(
                    at=now,
                    node=name,
                    device=fault.index,
                    id=identity_of(name, device),
                    code=fault.code,
                    text=fault.text,
                )
            )
            what = ", ".join(part for part in (fault.code, fault.text) if part)
            for unit, index in hit:
                self._outbox.send(name, Desired(stops=(attempt_of(unit, index),)))
                self._attempts.lose(unit, index, f"device {fault.index} of {name} failed: {what}", now)

    def _lose_devices(self, known: NodeState, node: Node, now: int) -> None:
        """Lose the attempts on devices that have gone; other work is not affected."""
        left = {(device.index, device.uuid) for device in node.devices}
        gone = {device.index for device in known.node.devices if (device.index, device.uuid) not in left}
        for unit, index in list(self.ledger.active.on(node.name)):
            if gone.intersection(unit.tasks[index].devices):
                self._attempts.lose(unit, index, "its device has gone", now)

    # --- connections -------------------------------------------------------------------------------------------------

    def disconnect(self, name: str, now: int) -> None:
        """Disconnect a node and drop its pending messages: the reply to the next Hello has everything that it should
        hold.
        """
        self._contacts.connected.discard(name)
        self._contacts.expect(name, now)
        self._outbox.drop(name)

    def lost(self, name: str, now: int, *, said: bool = False) -> None:
        """Record that a node is lost, whether or not somebody `said` so. Work that cannot wait for it is lost too."""
        until = self._attempts.lease_end((unit for unit, _ in self.ledger.active.on(name)), now)
        for unit, index in list(self.ledger.active.on(name)):
            if unit.tasks[index] is unit.first:
                self._tellings.keep_last_word(unit, now)
        self._commit(NodeLost(at=now, name=name, until=until, said=said))
        self._watch.forget(name)
        self.said.discard(name)
        self._contacts.connected.discard(name)
        self._cadence.want()
        for unit, index in list(self.ledger.active.on(name)):
            elsewhere = any(task.active and not task.leaving and task.node != name for task in unit.tasks)
            if elsewhere or unit.stopping or unit.tasks[index].leaving:
                self._attempts.lose(unit, index, f"node {name} was lost", now)

    def hears_another(self, node: Node, now: int) -> bool:
        """Return whether another connected machine uses this node's name, and is not overdue."""
        known = self.ledger.nodes.get(node.name)
        if known is None or known.node.incarnation == node.incarnation or node.name not in self._contacts.connected:
            return False
        return known.condition != "suspect" and now - self._contacts.of(node.name).heard <= self._settings.suspect_after

    def check_namesake(self, name: str, by: str, now: int) -> None:
        """Raises `Conflict` if a node with this name joined with another owner's token. Otherwise anybody who may offer
        a machine could get the work of an absent node.

        The name is free once that token is no longer valid. A token with the same name may take it too, and the home's
        own token may take any. The home's own token is always valid, so its names are free once the node is lost and
        holds nothing.
        """
        known = self.ledger.nodes.get(name)
        if known is None or not by or by in (OF_THE_HOME, known.by) or not known.by:
            return
        owner, comes = self.ledger.tokens.get(known.by), self.ledger.tokens.get(by)
        if known.by == OF_THE_HOME:
            if known.status == "lost" and not any(self.ledger.active.on(name)):
                return
        elif owner is None or owner.revoked or 0 < owner.expires <= now:
            return
        if owner is not None and comes is not None and owner.name and owner.known_as == comes.known_as:
            return
        told = f"{known.by} {owner.name}".strip() if owner is not None else "the home's own"
        raise Conflict(
            "this name belongs to a node with another token",
            code="E107",
            field="name",
            need=f"the token {told}",
            have=f"{name}, by {by}",
            hint="give this one another name: `--name`"
            + ("" if owner is None else f"; or `poise token rm {known.by}`, if it takes the place of that one"),
        )

    # --- requests ----------------------------------------------------------------------------------------------------

    def drain(self, message: Drain, now: int) -> Drained:
        """Close a node or a device (`n1:0`) to new work, or open it again."""
        node, colon, place = message.node.rpartition(":")
        if colon and message.node not in self.ledger.nodes:
            return Drained(self._drain_device(find_node(self.ledger.nodes, node), place, message, now))
        name = find_node(self.ledger.nodes, message.node)
        state, moves = self.ledger.nodes[name], message.on and message.moves
        takes_over = message.on and state.drained_by.startswith(RULE)  # the rule must not open it again
        if takes_over or (state.drained, state.moves) != (message.on, moves):
            self._commit(NodeDrained(at=now, name=name, on=message.on, by=message.bearer.token, moves=moves))
            self._cadence.want()
            waiting = [attempt_of(unit, 0) for unit, task in self.ledger.active.queued_since(now) if task.node == name]
            if message.on and waiting:
                self._outbox.send(name, Desired(recalls=tuple(waiting)))
        if not moves:
            return Drained(name)
        fleet = self.ledger.columns.fleet()
        going = sum(may_go(one) for one in fleet.residents[fleet.rows[name]] if not one.stopping)
        there = sum(
            not (unit.queued or unit.stopping or unit.tasks[index].leaving)
            for unit, index in self.ledger.active.on(name)
        )
        return Drained(name, moves=going, stays=there - going)

    def _drain_device(self, node: str, place: str, message: Drain, now: int) -> str:
        if message.on and message.moves:
            raise InputError(
                "work on one device of a node cannot be moved, only the work of the whole node",
                field="moves",
                have=message.node,
                hint=f"`poise drain --move {node}`",
            )
        device = self._device(node, int(place)) if place.isdecimal() and place.isascii() else None
        if device is None:
            known = [str(device.index) for device in self.ledger.nodes[node].node.devices]
            hint = f"`poise drain {node}:{known[0]}`" if known else "`poise nodes`"
            have = ", ".join(known) or "none"
            raise NotFound(f"{node} has no device `{place}`", field="node", have=have, hint=hint)
        if (self.ledger.cordons.of_device(node, device) is not None) != message.on:
            identity, by = identity_of(node, device), message.bearer.token
            self._commit(DeviceDrained(at=now, node=node, device=device.index, id=identity, on=message.on, by=by))
            self._cadence.want()
        return f"{node}:{device.index}"

    def _device(self, node: str, index: int) -> Device | None:
        return next((device for device in self.ledger.nodes[node].node.devices if device.index == index), None)

    def _lend(self, message: Lend, now: int) -> str:
        """Drain one of these nodes for other users. A resizable gang shrinks as the policy decides for a drained node;
        all other work is preempted.
        """
        fleet = self.ledger.columns.fleet()
        free = [name for name in message.nodes if (state := self.ledger.nodes.get(name)) and state.condition == "up"]
        residents = {name: fleet.residents[fleet.rows[name]] for name in free}
        ready = [name for name in free if all(one.stopping or may_go(one) for one in residents[name])]
        if not ready:
            return ""
        lent = min(ready, key=lambda name: (sum(now - max(one.since, one.kept) for one in residents[name]), name))
        self.drain(Drain(message.request, lent, True, message.bearer, moves=True), now)
        for unit in list({unit.id: unit for unit, _ in self.ledger.active.on(lent)}.values()):
            stay = sum(task.active and not task.leaving and task.node != lent for task in unit.tasks)
            if not (unit.resizes and stay >= max(1, unit.spec.least)):
                why = Why(policy=NO_POLICY, base=self.ledger.revision, rank=f"{lent} is lent")
                self._deciding.preempt(Preempt(unit=unit.id, cause="move", why=why), now, stale=False)
        return lent

    def _leave(self, message: Leave, now: int) -> str:
        """Remove a node that leaves: at once, or as soon as its work has been placed elsewhere."""
        name, bearer = message.node, message.bearer
        known = self.ledger.nodes.get(name)
        if known is None:
            raise NotFound(f"there is no node `{name}`", field="node", have=name, hint="`poise nodes`")
        if known.by not in ("", bearer.token or OF_THE_HOME) and bearer.role is not Role.ADMIN:
            raise Forbidden("this node joined with another token", field="node", need=known.by, have=bearer.token)
        self.disconnect(name, now)
        self._outbox.hang(name)
        if known.status == "up" and (name in self._settings.declared or any(self.ledger.active.on(name))):
            self.lost(name, now, said=True)
        if name not in self._settings.declared:
            self._watch.forget(name)
            self.said.discard(name)
            self.left.add(name)
            self._forget(name, now)
        self._cadence.want()
        return name

    def forget_nodes(self, now: int) -> None:
        """Forget undeclared nodes that have left, or have been lost for long, and hold no work."""
        if not self.left and not self._settings.forget_after:
            return
        after = self._settings.forget_after or FOREVER
        for name, node in list(self.ledger.nodes.items()):
            is_gone = node.status == "lost" and not node.drained and now - node.lost > after
            if (is_gone or name in self.left) and name not in self._settings.declared:
                self._forget(name, now)

    def _forget(self, name: str, now: int) -> None:
        """Forget a node, unless it holds anything."""
        if not any(self.ledger.active.on(name)):
            self._commit(NodeForgotten(at=now, name=name))
            self._contacts.forget(name)
            self.left.discard(name)


def _until(ends: int, known: int) -> int:
    """Return when a node ends; keep the known instant if the new one is about the same."""
    return known if abs(ends - known) < SAME_END else ends


def _with_withdrawn(hello: Hello, known: Sequence[Device]) -> Node:
    """Return a node as it offers itself, with withdrawn devices that its work still holds, as last known."""
    offered = hello.node.devices
    gone = {device.index: device for device in known if device.index in hello.withdrawn}
    left = gone.keys() - {device.index for device in offered}
    if not left:
        return hello.node
    withdrawn = (msgspec.structs.replace(gone[index], withdrawn=True) for index in left)
    devices = sorted((*offered, *withdrawn), key=lambda device: device.index)
    return msgspec.structs.replace(hello.node, devices=tuple(devices))
