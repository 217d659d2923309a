"""Nodes that were silent for too long are suspect, and then lost, unless most of the fleet is missing."""

from collections.abc import Callable, Sequence

from poise.errors import NotFound
from poise.kernel.controller.cadence import Cadence
from poise.kernel.controller.contacts import Contacts
from poise.kernel.controller.membership import Membership
from poise.kernel.controller.outbox import Outbox, Requests
from poise.kernel.controller.settings import FOREVER, PER_NODE, TIMES, Settings
from poise.kernel.ledger import Ledger
from poise.kernel.messages import GiveUp
from poise.kernel.watch import Watch
from poise.model.events import Event, NodeSuspected
from poise.model.resources import ALLOCATED
from poise.units import SECOND

LOOK_EVERY = 1 * SECOND
"""Interval at which to check whether held nodes can be given up, because more nodes have been heard."""


class Silence:
    """The part of the controller that gives up nodes. `held` counts those that are silent for too long, and wait."""

    def __init__(
        self,
        ledger: Ledger,
        settings: Settings,
        watch: Watch,
        contacts: Contacts,
        outbox: Outbox,
        cadence: Cadence,
        membership: Membership,
        *,
        commit: Callable[[Event], None],
    ) -> None:
        self.ledger = ledger
        self._settings = settings
        self._watch = watch
        self._contacts = contacts
        self._outbox = outbox
        self._cadence = cadence
        self._membership = membership
        self._commit = commit
        self._look_no_sooner_than = 0
        self.held = 0

    def requests(self) -> Requests:
        return {GiveUp: self._give_up}

    def tick(self, heard_until: int, now: int) -> None:
        """Look for silent nodes, if it is time."""
        if self._settings.dead_after and heard_until >= self._next_look:
            self._look(heard_until, now)

    def wakeup(self) -> int:
        """Return when to look next."""
        return self._next_look if self._settings.dead_after else FOREVER

    @property
    def _next_look(self) -> int:
        return max(self._contacts.look_at, self._look_no_sooner_than)

    def _look(self, heard_until: int, now: int) -> None:
        """Declare nodes lost that were silent for too long, and note the earliest instant of the next check. Of the
        other nodes only the one with the oldest message counts, because there may be thousands.
        """
        late: dict[str, int] = {}
        contacts, said = self._contacts, self._membership.said
        first, latest = FOREVER, heard_until - contacts.quiet()
        for name, node in self.ledger.nodes.items():
            if node.status == "up":
                heard = contacts.of(name).heard
                if heard <= latest or node.suspect or name in said:
                    late[name] = heard
                elif heard < first:
                    first = heard
        self._watch.heard_all_but(late)
        contacts.look_at, self.held = first + contacts.quiet(), 0
        due: list[str] = []
        for name, heard in late.items():
            node, silence = self.ledger.nodes[name], heard_until - heard
            awaited = self._contacts.outage.awaited_until(name, self._settings.suspect_after, now)
            if silence > self._settings.suspect_after and not node.suspect and not awaited:
                self._commit(NodeSuspected(at=now, name=name))
            if silence > self._settings.dead_after or name in said:
                due.append(name)
                continue
            self._cadence.fire(self._watch.silent(name, silence), now)
            after = self._settings.dead_after if node.suspect else self._settings.suspect_after
            silent_at = self._watch.silent_at(name, heard)
            next_look = max(heard + after + 1, awaited)
            contacts.look_no_later_than(next_look if silent_at is None else min(next_look, silent_at))
        if due:
            self._give_up_unless_held(due, heard_until, now)
        self._look_no_sooner_than = now + PER_NODE * len(self.ledger.nodes)

    def _give_up_unless_held(self, due: Sequence[str], heard_until: int, now: int) -> None:
        """Give up these nodes, unless they are missing because of an outage. Nodes count as present only if they have
        spoken since the first of these became silent: an idle node may not have been due.
        """
        missing = present = 0
        said_nothing = [self._contacts.of(name).heard for name in due if name not in self._membership.said]
        since = min(said_nothing, default=heard_until - TIMES.heartbeat_idle) + self._settings.suspect_after
        for name, node in self.ledger.nodes.items():
            if node.status == "up":
                is_missing = node.suspect or name in self._membership.said
                missing += is_missing
                present += not is_missing and self._contacts.of(name).last > since
        self._contacts.outage.judge(missing, present, now)
        for name in due:
            if until := self._contacts.outage.held_until(name, now, connected=name in self._contacts.connected):
                self.held += 1
                self._contacts.look_no_later_than(min(until, now + LOOK_EVERY))
            else:
                self._membership.lost(name, now, said=name in self._membership.said)

    def _give_up(self, message: GiveUp, now: int) -> list[str]:
        """Give up nodes, by full name: the name of a node that never joined may be a prefix of another. Return the
        known names.
        """
        names = message.nodes
        known = [name for name in dict.fromkeys(names) if name in self.ledger.nodes]
        if not known:
            have = ", ".join(f"`{name}`" for name in names)
            raise NotFound(
                f"there is no node {have}", field="nodes", have=have, hint="`poise nodes` lists the full names"
            )
        due = [name for name in known if self.ledger.nodes[name].status == "up"]
        for name in due:
            self._membership.disconnect(name, now)
            self._outbox.hang(name)
        self._membership.said.update(due)
        held = [name for name in due if ALLOCATED not in self.ledger.nodes[name].node.labels]
        if self._settings.dead_after:
            self._give_up_unless_held(held, now, now)
        for name in due:  # the end of an allocation is no outage, however many nodes it had
            if not self._settings.dead_after or name not in held:
                self._membership.lost(name, now, said=True)
        return known
