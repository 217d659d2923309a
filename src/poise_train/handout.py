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
from collections.abc import Iterable
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
    """The samples of `turns` passes, in pieces of `batch`. One that goes on has handed out `begun` of them, of which
    those in `back` were not applied.
    """

    def __init__(
        self, samples: int, batch: int, turns: int, most: int, *, begun: int = 0, back: Iterable[Piece] = ()
    ) -> None:
        self.most = most
        self.begun = begun
        self.out: dict[int, Out] = {}
        self._samples, self._batch = samples, batch
        self._in_pass = -(-samples // batch)
        self._all = turns * self._in_pass
        self._back = deque(back)
        self._held: list[int] = []
        self.version = begun - len(self._back)

    @property
    def done(self) -> bool:
        return self.exhausted and not self.out

    @property
    def exhausted(self) -> bool:
        """There is nothing to hand out, though something may come back."""
        return not self._back and self.begun >= self._all

    @property
    def open(self) -> list[Piece]:
        """What was handed out and is not applied."""
        return [*(one.piece for one in self.out.values()), *self._back]

    def take(self, worker: int) -> Out | None:
        """The next piece; None if there is none now."""
        if self.exhausted or len(self.out) > self.most:
            return None
        if self._back:
            piece = self._back.popleft()
        else:
            turn, place = divmod(self.begun, self._in_pass)
            start = place * self._batch
            piece, self.begun = Piece(turn, start, min(self._samples, start + self._batch)), self.begun + 1
        self.out[worker] = Out(piece, self.version)
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
            self._back.appendleft(self.out.pop(worker).piece)

    def _may(self, worker: int) -> bool:
        later = sorted(out.version for other, out in self.out.items() if other != worker)
        return all(self.version + 1 + place - version <= self.most for place, version in enumerate(later))


__all__ = ["Out", "Piece", "Pieces"]
