"""Decide which silent nodes are not given up yet, because the nodes themselves have probably not failed.

*Most of the fleet is missing.* Machines fail one by one. A network, a switch or an engine's head affects most of them
at once, and they come back within seconds of each other. If they were given up, the first one back would get the work
of all others. So no node is given up while more than `share` of the expected nodes are missing, nor for `settle` after
that, but for at most `hold` in total.

*Nodes are rejected, or wait.* If more nodes join at once than can be accepted, the disconnected ones may be among those
that were told to come back, or that wait for their TLS handshake. They are not given up until the last of these is due,
nor for `settle` after that, but for at most `hold` in total.

*Nodes are still coming back.* A new control plane has not heard any node. The nodes that it expects are not given up
while others of them come back, nor for `settle` after the last of these, but for at most `hold` in total. Nor are they
suspect meanwhile: each of thousands of nodes would be suspect for a moment.

A fleet of thousands needs longer than a `hold` to join if its control plane has little CPU, so the last two rules last
`EACH` longer for each expected node.

Pure: the caller passes the time. All times are in nanoseconds.
"""

from collections.abc import Iterable

from poise.units import MILLISECOND

LEAST = 2
"""Minimum number of missing nodes for an outage; a single one is none, however small the fleet."""

EACH = 20 * MILLISECOND
"""Time for one node to join: more than ten times what it takes on a quiet machine (`benchmarks/herd.py`)."""


class Outage:
    """State of outages. `share` in thousandths. With a `hold` of 0 no node is held."""

    def __init__(self, share: int, hold: int, settle: int) -> None:
        self._share = share
        self._hold = hold
        self._settle = settle
        self._began = 0  # when most nodes were first missing, or 0
        self._settled = 0  # no node is given up before this instant, after most were missing
        self._expected: set[str] = set()
        self._expected_from = 0
        self._returned = 0
        self._hold_joining = hold
        self._crowded_from = self._crowded_until = 0

    def crowded(self, until: int, now: int) -> None:
        """Record that more nodes join than can be accepted; the rejected ones come back by `until`."""
        if not self._crowded_from or now > self._crowded_until + self._settle:
            self._crowded_from = now
        self._crowded_until = max(self._crowded_until, until)

    def expect(self, nodes: Iterable[str], now: int) -> None:
        """Expect these nodes to come back, because this control plane has just begun or has disconnected them."""
        self._expected.update(nodes)
        self._expected_from = self._returned = now
        self._hold_joining = self._hold and self._hold + EACH * len(self._expected)

    def heard(self, node: str, now: int) -> None:
        """Record a message of a node."""
        if node in self._expected:
            self._expected.remove(node)
            self._returned = now

    def awaited_until(self, node: str, patience: int, now: int) -> int:
        """Return until when this node is not suspect, because others of those that are expected came back less than
        `patience` ago; 0 if it may be.
        """
        until = min(self._returned + patience, self._expected_from + self._hold_joining)
        return until if node in self._expected and until > now else 0

    def judge(self, missing: int, present: int, now: int) -> None:
        """Record how many nodes are missing now, and how many have been heard since those became silent."""
        if missing >= LEAST and missing * 1000 > self._share * (missing + present):
            if not self._began or now > self._settled:  # the previous outage was over
                self._began = now
            self._settled = now + self._settle
        elif now >= self._settled:
            self._began = 0

    def held_until(self, node: str, now: int, *, connected: bool) -> int:
        """Return until when this node is not given up, as far as known now; 0 if it may be."""
        until = min(self._settled, self._began + self._hold) if self._began else 0
        if node in self._expected:
            until = max(until, min(self._returned + self._settle, self._expected_from + self._hold_joining))
        if not connected and self._crowded_from:
            until = max(until, min(self._crowded_until + self._settle, self._crowded_from + self._hold_joining))
        return until if until > now else 0
