"""Which nodes that have been silent for too long are not given up yet, because it is not they that have failed.

*Most of the fleet is missing.* Machines fail one by one; a network, a switch or an engine's head takes most of them at
once, and they come back within seconds of each other. Were they given up, the first one back would get the work of all
that come a second later. So nothing is given up while more than `share` of those that should have been heard are
missing, nor for `settle` after that, and in all not for longer than `hold`.

*Nodes are turned away.* Where more come at once than can be let in, those that are not connected may be among those
that were told to come back. They are not given up until the last of these should have come, nor for `settle` after
that, and in all not for longer than `hold`.

*Nodes are still coming back.* A control plane that has just begun has not heard anybody. Those that it expects are not
given up while others of them come back, nor for `settle` after the last of these, and in all not for longer than
`hold`.

Pure: times come with the calls. All times are in nanoseconds.
"""

from collections.abc import Iterable

LEAST = 2
"""One node that is missing is no outage, however few there are."""


class Outage:
    """`share` in thousandths. With a `hold` of 0 everything is believed at once."""

    def __init__(self, share: int, hold: int, settle: int) -> None:
        self._share = share
        self._hold = hold
        self._settle = settle
        self._began = 0  # when most were found missing, or 0
        self._settled = 0  # until when nothing is given up after most were missing
        self._expected: set[str] = set()
        self._expected_from = 0
        self._returned = 0
        self._crowded_from = self._crowded_until = 0

    def crowded(self, until: int, now: int) -> None:
        """More nodes come than can be let in; those that were turned away come back by `until`."""
        if not self._crowded_from or now > self._crowded_until + self._settle:
            self._crowded_from = now
        self._crowded_until = max(self._crowded_until, until)

    def expect(self, nodes: Iterable[str], now: int) -> None:
        """These have to come back, since this control plane has just begun or has hung up on them."""
        self._expected.update(nodes)
        self._expected_from = self._returned = now

    def heard(self, node: str, now: int) -> None:
        """A node has said a word."""
        if node in self._expected:
            self._expected.remove(node)
            self._returned = now

    def judge(self, missing: int, present: int, now: int) -> None:
        """Take in how many are missing now, and how many have been heard since those fell silent."""
        if missing >= LEAST and missing * 1000 > self._share * (missing + present):
            if not self._began or now > self._settled:  # that one was over, though nobody has asked since
                self._began = now
            self._settled = now + self._settle
        elif now >= self._settled:
            self._began = 0

    def held_until(self, node: str, now: int, *, connected: bool) -> int:
        """Until when this node is not given up, as far as is known now; 0 if it may be."""
        until = min(self._settled, self._began + self._hold) if self._began else 0
        if node in self._expected:
            until = max(until, min(self._returned + self._settle, self._expected_from + self._hold))
        if not connected and self._crowded_from:
            until = max(until, min(self._crowded_until + self._settle, self._crowded_from + self._hold))
        return until if until > now else 0
