"""When each node was last heard, and which nodes are connected."""

from collections.abc import Sequence
from typing import NamedTuple

from poise.kernel.controller.settings import HEARTBEAT, TIMES, Settings
from poise.kernel.outage import Outage
from poise.kernel.watch import Watch
from poise.model.messages import Beat, FromAgent
from poise.units import SECOND

PER_BEAT, LONGEST_PACE = 200_000, 3 * SECOND
"""Nanoseconds per node of the fleet between two heartbeats of a busy node, and the limit of that. Up to 15,000 nodes
send at most 5,000 heartbeats a second, which take about a third of a core (`benchmarks/herd.py`). The limit leaves
exclusive work several heartbeats in the time of its lease.
"""


class Contact(NamedTuple):
    """When a node was last heard. Silence is counted from `heard`: its last message, or later by the time that it
    announced to be silent beyond a `HEARTBEAT`. `asked`: a request was sent to it, and earlier announcements do not
    count. `last` is the time of its last message, 0 if there was none since this control plane started.
    """

    heard: int
    asked: bool = False
    last: int = 0

    def after(self, message: FromAgent, now: int, busy: int) -> "Contact":
        """Return the contact after a message; a busy node sends the next one within `busy`."""
        every = min(max(busy, message.every), TIMES.heartbeat_idle) if isinstance(message, Beat) else busy
        asked = self.asked and every > busy
        return Contact(now if asked else now + every - HEARTBEAT, asked, now)

    def expecting(self, now: int) -> "Contact":
        """Return the contact after a request; the node must answer as fast as a busy one."""
        return Contact(min(self.heard, now), True, self.last)


NEVER = Contact(0)


class Contacts:
    """The contacts of all nodes. `connected` are the nodes with a connection, `addresses` those for members of gangs on
    other machines. No silence can be too long before `look_at`.
    """

    def __init__(self, settings: Settings, watch: Watch) -> None:
        self._suspect_after = settings.suspect_after
        self._watch = watch
        settle = settings.outage_settle or settings.dead_after
        self.outage = Outage(settings.outage_share, settings.outage_hold, settle)
        self._contacts: dict[str, Contact] = {}
        self.connected: set[str] = set()
        self.addresses: dict[str, str] = {}
        self.look_at = 0

    def of(self, node: str) -> Contact:
        return self._contacts.get(node, NEVER)

    def heard(self, node: str, message: FromAgent, now: int, nodes: int) -> int:
        """Note a message of a node in a fleet of `nodes`. Return the interval of a busy node's heartbeats."""
        pace = min(PER_BEAT * nodes, LONGEST_PACE)
        self._contacts[node] = self.of(node).after(message, now, max(HEARTBEAT, pace))
        return pace

    def await_all(self, nodes: Sequence[str], now: int) -> None:
        """Give nodes that an earlier control plane heard the usual time to connect."""
        self._contacts.update((name, Contact(now)) for name in nodes)
        self.outage.expect(nodes, now)

    def disconnect_all(self, now: int) -> list[str]:
        """Disconnect all nodes, which will connect again. Return those that were connected."""
        self.outage.expect(self.connected, now)
        were = sorted(self.connected)
        self.connected.clear()
        return were

    def forget(self, node: str) -> None:
        self._contacts.pop(node, None)
        self.addresses.pop(node, None)

    def expect(self, node: str, now: int) -> None:
        """Count the silence of a node that has a request as that of a busy node."""
        was = self.of(node)
        self._contacts[node] = expected = was.expecting(now)
        if expected.heard < was.heard:
            self.look_no_later_than(expected.heard + self.quiet())

    def look_no_later_than(self, instant: int) -> None:
        """Move the next check for silence forward."""
        self.look_at = min(self.look_at, instant)

    def quiet(self) -> int:
        """Return the shortest silence that has any consequence."""
        return min(self._suspect_after + 1, self._watch.patience)

    def longest_silence(self, now: int) -> int:
        """Return the longest silence of a connected node."""
        contacts = self._contacts
        spoke = [contacts[name].last for name in self.connected & contacts.keys()]
        return max(0, now - min(filter(None, spoke), default=now))
