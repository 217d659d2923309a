"""Who takes which samples where each worker goes at its own pace, and in which order gradients may come in.

A pass over the data is cut into pieces, handed out one after another. A gradient is worked out on weights of some
version, and each one that is applied makes the next version. Its *staleness* is how many were applied in between; no
gradient that is applied has more than `most` (bounded staleness: Ho et al., "More effective distributed ML via a stale
synchronous parallel parameter server", NIPS 2013). None is thrown away for it, as its samples would be lost: instead

* no more than `most` + 1 pieces are out at once, since the last of them to come in is that stale at least;
* a gradient waits while those that would come in after it, oldest first, would become too stale. In the order of their
  versions all of them can always come in: nothing waits for ever.

What a lost worker had out is handed out again, first of all. So each sample is applied once in each pass.
"""

from collections import deque
from typing import NamedTuple


class Piece(NamedTuple):
    """Places in the order of pass `turn`."""

    turn: int
    start: int
    stop: int


class Out(NamedTuple):
    """A piece that a worker has, and the version of the weights that it has with it."""

    piece: Piece
    version: int


class Pieces:
    """The samples of `turns` passes, in pieces of `batch`."""

    def __init__(self, samples: int, batch: int, turns: int, most: int) -> None:
        self.most = most
        self.version = 0
        self.out: dict[int, Out] = {}
        self._left = deque(
            Piece(turn, start, min(samples, start + batch))
            for turn in range(turns)
            for start in range(0, samples, batch)
        )
        self._held: list[int] = []

    @property
    def done(self) -> bool:
        return not self._left and not self.out

    @property
    def exhausted(self) -> bool:
        """There is nothing to hand out, though something may come back."""
        return not self._left

    def take(self, worker: int) -> Out | None:
        """The next piece; None if there is none now."""
        if not self._left or len(self.out) > self.most:
            return None
        self.out[worker] = Out(self._left.popleft(), self.version)
        return self.out[worker]

    def hold(self, worker: int) -> None:
        """Its gradient has come, and waits until it is `due`."""
        self._held.append(worker)

    def due(self) -> int | None:
        """The worker whose gradient is to be applied now, the first to come of those that may be."""
        return next((worker for worker in self._held if self._may(worker)), None)

    def apply(self, worker: int) -> int:
        """It has been applied; its staleness."""
        self._held.remove(worker)
        stale = self.version - self.out.pop(worker).version
        self.version += 1
        return stale

    def lose(self, worker: int) -> None:
        """What it had out goes back, to be handed out next."""
        if worker in self._held:
            self._held.remove(worker)
        if worker in self.out:
            self._left.appendleft(self.out.pop(worker).piece)

    def _may(self, worker: int) -> bool:
        later = sorted(out.version for other, out in self.out.items() if other != worker)
        return all(self.version + 1 + place - version <= self.most for place, version in enumerate(later))


__all__ = ["Out", "Piece", "Pieces"]
