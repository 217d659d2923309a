"""The network between nodes and the control plane: connections that delay, lose, duplicate or reorder messages.

A connection joins two processes. When one of them is killed, the other end is notified, unless the link is cut. A link
that is cut in one direction drops the messages in that direction, without notice.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from poise.engine.timeline import Process, Timeline
from poise.kernel.frames import Broken, Frames
from poise.units import MILLISECOND, SECOND

DIAL_GIVES_UP = 3 * SECOND

UP, DOWN = "up", "down"
"""Directions: from a node to the control plane, and back."""


class Network:
    """Links by node. Probabilities are in [0, 1]; `late` is the maximum delay of a message, in nanoseconds."""

    def __init__(self, timeline: Timeline, random: Random) -> None:
        self.timeline = timeline
        self.random = random
        self.latency = MILLISECOND // 2
        self.loss = 0.0
        self.doubled = 0.0
        self.late = 0
        self.overtaking = False
        self.cut: dict[tuple[str, str], int] = {}

    def is_cut(self, node: str, way: str) -> bool:
        return self.cut.get((node, way), 0) > 0

    def cut_off(self, node: str, way: str, on: bool) -> None:
        """Cut or restore a link. Faults may overlap: a link is open once each of them has ended."""
        self.cut[node, way] = self.cut.get((node, way), 0) + (1 if on else -1)

    def dial(
        self,
        node: str,
        caller: Process,
        called: Process,
        opened: Callable[["End", "End"], None],
        failed: Callable[[], None],
    ) -> None:
        """Call `opened` with the caller's end and the other end, or `failed`: after one latency if no process listens,
        after a timeout if the link is cut or the dial is lost.
        """
        if self.is_cut(node, UP) or self.is_cut(node, DOWN) or self.random.random() < self.loss:
            self.timeline.call_at(self.timeline.now + DIAL_GIVES_UP, failed, process=caller)
        elif not called.alive or called.paused_until > self.timeline.now:
            self.timeline.call_at(self.timeline.now + self.latency, failed, process=caller)
        else:
            connection = Connection(self, node, caller, called)
            self.timeline.call_at(
                self.timeline.now + self.latency, opened, connection.near, connection.far, process=caller
            )


class Connection:
    """`near` is the node's end, `far` the control plane's."""

    def __init__(self, network: Network, node: str, near: Process, far: Process) -> None:
        self.network = network
        self.node = node
        self.near = End(self, near, UP)
        self.far = End(self, far, DOWN)
        self.near.other, self.far.other = self.far, self.near


class End:
    """One end of a connection; a `Channel`."""

    other: "End"

    def __init__(self, connection: Connection, process: Process, way: str) -> None:
        self._connection = connection
        self._network = connection.network
        self._process = process
        self._life = process.life
        self._way = way
        self._frames = Frames()
        self._last = 0
        self.closed = False
        self.on_message: Callable[[Any], None] = lambda _: None
        self.on_close: Callable[[], None] = lambda: None

    def send(self, message: Any) -> None:
        """Send a numbered message, so that the other end detects missing ones."""
        if self.closed:
            return
        network = self._network
        frame = (self._frames.number(), message)
        if network.is_cut(self._connection.node, self._way) or network.random.random() < network.loss:
            return
        self._deliver(frame)
        if network.doubled and network.random.random() < network.doubled:
            self._deliver(frame)

    def close(self) -> None:
        """Close this end, and notify the other end if the link is open."""
        if not self.closed:
            self.closed = True
            network = self._network
            if not network.is_cut(self._connection.node, self._way):
                other = self.other
                network.timeline.call_at(self._arrival(), other._told_closed, process=other._process)

    def is_gone(self) -> bool:
        """Return whether the process that opened this end was killed since."""
        return self._process.life != self._life

    def _deliver(self, frame: tuple[int, Any]) -> None:
        other = self.other
        self._network.timeline.call_at(self._arrival(), other._arrived, frame, process=other._process)

    def _arrival(self) -> int:
        network = self._network
        at = network.timeline.now + network.latency
        if network.late:
            at += network.random.randrange(network.late)
        if not network.overtaking:
            at = max(at, self._last)
        self._last = max(self._last, at)
        return at

    def _arrived(self, frame: tuple[int, Any]) -> None:
        if self.closed:
            return
        serial, message = frame
        try:
            if self._frames.hears(serial):
                self.on_message(message)
        except Broken:
            self.close()
            self.on_close()

    def _told_closed(self) -> None:
        if not self.closed:
            self.closed = True
            self.on_close()
