"""One end of a channel between a node and its control plane: what is lost, doubled or overtaken is noticed.

What is sent is numbered from 1. What comes under the next number is heard, what comes again is not, and a gap breaks
the channel: whoever meets one hangs up, the node connects anew, and the two say to each other all that there is. So no
message needs to be sent again by itself.
"""


class Broken(Exception):
    """Something that was sent has not come."""


class Frames:
    """Numbers what is sent, and checks the numbers of what comes, on one connection.

    >>> here, there = Frames(), Frames()
    >>> there.hears(here.number()), there.hears(1)
    (True, False)
    """

    def __init__(self) -> None:
        self._sent = 0
        self._heard = 0

    def number(self) -> int:
        """Of the next frame to be sent."""
        self._sent += 1
        return self._sent

    def hears(self, serial: int) -> bool:
        """Whether the frame of this number is new, and so to be heard; raises `Broken` if one before it is missing."""
        if serial <= self._heard:
            return False
        if serial > self._heard + 1:
            raise Broken(f"frame {self._heard + 1} has not come, {serial} has")
        self._heard = serial
        return True
