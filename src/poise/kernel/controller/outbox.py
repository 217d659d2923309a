"""The events that are not in the log yet, and the effects that wait until the log has what they depend on."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from poise.errors import PoiseError, StoreFull
from poise.kernel.controller.contacts import Contacts
from poise.kernel.ledger import Ledger
from poise.kernel.messages import Append, Checkpoint, Effect, Hang, Reply, Send
from poise.model.events import Event
from poise.model.messages import Desired, ToAgent

Act = Callable[[Any, int], Any]
"""Act on a request at an instant, and return the reply. Raises PoiseError, without effect."""

Requests = dict[type, Act]
"""The act for each type of request."""


class Outbox:
    """The way out of a controller. While the log is `full`, nothing new is accepted."""

    def __init__(self, ledger: Ledger, checkpoint_every: int, contacts: Contacts) -> None:
        self.ledger = ledger
        self._checkpoint_every = checkpoint_every
        self._contacts = contacts
        self.durable = ledger.revision
        self._checkpointed = ledger.revision
        self._events: list[Event] = []
        self._waiting: deque[tuple[int, Effect]] = deque()
        self._addressed: set[str] = set()  # nodes to which messages may be waiting
        self.full = False

    def __len__(self) -> int:
        return len(self._waiting)

    def record(self, event: Event) -> None:
        """Append an event that was applied to the log."""
        self._events.append(event)

    def later(self, effect: Effect) -> None:
        """Send an effect once all events applied by now are durable."""
        self._waiting.append((self.ledger.revision, effect))

    def at_once(self, effect: Effect) -> None:
        """Send an effect that needs no durable record."""
        self._waiting.appendleft((0, effect))

    def send(self, node: str, message: ToAgent) -> None:
        """Send a message to a node, if it is connected."""
        if node in self._contacts.connected:
            self._addressed.add(node)
            self.later(Send(node, message))

    def acknowledge(self, node: str, message: ToAgent) -> None:
        """Send a message to a node that needs no durable record."""
        self._addressed.add(node)
        self.at_once(Send(node, message))

    def hang(self, node: str) -> None:
        self.at_once(Hang(node))

    def drop(self, node: str) -> None:
        """Drop the messages that wait for a node."""
        if node in self._addressed:
            self._addressed.remove(node)
            self._waiting = deque(
                entry for entry in self._waiting if not (isinstance(entry[1], Send) and entry[1].node == node)
            )

    def answer(self, message: Any, act: Act, now: int) -> None:
        """Act on a request, and reply once that is durable. An error is returned at once; the request then has no
        effect.
        """
        try:
            if self.full:
                raise StoreFull("the disk of the log is full; nothing new is accepted", hint="free some space: `df -h`")
            self.later(Reply(message.request, act(message, now)))
        except PoiseError as error:
            self.at_once(Reply(message.request, error=error))

    def flush(self, now: int) -> Sequence[Effect]:
        """Return the append of the new events, and the effects for which the log is far enough."""
        effects: list[Effect] = []
        if self._events:
            events = tuple(self._events)
            self._events.clear()
            effects.append(Append(events, expected=self.ledger.revision - len(events)))
            if self.ledger.revision - self._checkpointed >= self._checkpoint_every:
                self._checkpointed = self.ledger.revision
                effects.append(Checkpoint())
        effects.extend(self._release(now))
        return effects

    def on_durable(self, revision: int, now: int) -> Sequence[Effect]:
        self.durable = max(self.durable, revision)
        return tuple(self._release(now))

    def _release(self, now: int) -> Iterator[Effect]:
        while self._waiting and self._waiting[0][0] <= self.durable:
            effect = self._waiting.popleft()[1]
            if isinstance(effect, Send) and isinstance(effect.message, Desired):
                self._contacts.expect(effect.node, now)
            yield effect
        if not self._waiting:
            self._addressed.clear()

    def restart(self, ledger: Ledger, error: PoiseError) -> Sequence[Effect]:
        """Continue from the durable state. Return the refusals of pending requests."""
        self.ledger, self.durable = ledger, ledger.revision
        self._checkpointed = min(self._checkpointed, ledger.revision)
        self.full = True
        self._events.clear()
        refused = [
            effect if effect.error else Reply(effect.request, error=error)
            for _, effect in self._waiting
            if isinstance(effect, Reply)
        ]
        self._waiting.clear()
        return refused
