"""Assigns samples to asynchronous workers, and orders the application of their gradients.

A pass over the data is split into pieces, handed out in order. A gradient is computed on some version of the weights,
and each applied gradient makes the next version. Its *staleness* is the number applied in between, limited to `most`
(bounded staleness: Ho et al., "More effective distributed ML via a stale synchronous parallel parameter server", NIPS
2013). No gradient is discarded, because its samples would be lost. Instead

* at most `most` + 1 pieces are out at once, since the last of them to be applied is at least that stale;
* a gradient waits while applying it would make others, applied after it in version order, too stale. In version order
  all of them can always be applied, so there is no deadlock.

The piece of a lost worker is handed out again first. So each sample is applied once in each pass.
"""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple


class Piece(NamedTuple):
    """A range of positions in the sample order of pass `turn`."""

    turn: int
    start: int
    stop: int


class Out(NamedTuple):
    """A piece at a worker, with the version of its weights."""

    piece: Piece
    version: int


class Pieces:
    """The samples of `turns` passes, in pieces of `batch`. After a resume, `begun` pieces were handed out, of which
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
        """Whether there is no piece to hand out now; a lost worker may still return one."""
        return not self._back and self.begun >= self._all

    @property
    def open(self) -> list[Piece]:
        """Pieces that are not applied yet, at workers or returned."""
        return [*(one.piece for one in self.out.values()), *self._back]

    def take(self, worker: int) -> Out | None:
        """Assign the next piece; None if there is none now."""
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
        """Record that the worker's gradient has arrived, and waits until it is `due`."""
        self._held.append(worker)

    def due(self) -> int | None:
        """Return the worker whose gradient to apply next: the first to arrive of the allowed ones."""
        return next((worker for worker in self._held if self._may(worker)), None)

    def apply(self, worker: int) -> int:
        """Record that the worker's gradient was applied. Returns its staleness."""
        self._held.remove(worker)
        stale = self.version - self.out.pop(worker).version
        self.version += 1
        return stale

    def lose(self, worker: int) -> None:
        """Return a lost worker's piece, to be handed out next."""
        if worker in self._held:
            self._held.remove(worker)
        if worker in self.out:
            self._back.appendleft(self.out.pop(worker).piece)

    def _may(self, worker: int) -> bool:
        later = sorted(out.version for other, out in self.out.items() if other != worker)
        return all(self.version + 1 + place - version <= self.most for place, version in enumerate(later))


__all__ = ["Out", "Piece", "Pieces"]
