"""One end of a channel between a node and its control plane. It detects lost, duplicate and reordered frames.

Sent frames are numbered from 1. A frame with the next number is accepted, a repeated one is ignored, and a gap breaks
the channel. The end that finds a gap disconnects, the node reconnects, and both ends exchange their full state. So no
message needs to be sent again by itself.
"""


class Broken(Exception):
    """A sent frame was lost."""


class Frames:
    """Numbers sent frames, and checks the numbers of received frames, on one connection.

    >>> here, there = Frames(), Frames()
    >>> there.hears(here.number()), there.hears(1)
    (True, False)
    """

    def __init__(self) -> None:
        self._sent = 0
        self._heard = 0

    def number(self) -> int:
        """Return the number of the next frame to send."""
        self._sent += 1
        return self._sent

    def hears(self, serial: int) -> bool:
        """Return whether the frame with this number is new; raises `Broken` if an earlier one is missing."""
        if serial <= self._heard:
            return False
        if serial > self._heard + 1:
            raise Broken(f"frame {self._heard + 1} has not come, {serial} has")
        self._heard = serial
        return True
