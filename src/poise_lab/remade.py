"""Sequences whose values are made each time they are read, and not kept."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

Value = TypeVar("Value")


class Remade(Sequence[Value]):
    """A sequence of `count` values, which `make` makes from the first on; the same ones each time.

    >>> squares = Remade(4, lambda: (number * number for number in range(4)))
    >>> len(squares), list(squares), squares[-1], squares[1:]
    (4, [0, 1, 4, 9], 9, (1, 4, 9))
    """

    def __init__(self, count: int, make: Callable[[], Iterator[Value]]) -> None:
        self._count = count
        self._make = make

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Value]:
        return self._make()

    def __getitem__(self, place: Any) -> Any:
        """Return the value at a place, or those of a slice as a tuple. All values before it are made as well."""
        if isinstance(place, slice):
            return tuple(self)[place]
        return next(islice(self, range(self._count)[place], None))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __repr__(self) -> str:
        return repr(tuple(self))
