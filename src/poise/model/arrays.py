"""Parts of a task that is cut by data, made from what they have in common.

A job of at most `MAX_TASKS` tasks has a unit for each part from its submission on. A larger one is an *array*: its rule
is kept, and a unit is made for a part when the part may start soon (`kernel/ledger/arrays.py`).
"""

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from typing import Any

import msgspec

from poise.model.jobs import Array, Task, Unit, Work
from poise.model.sweep import Combinations, in_env, in_output, in_words, names_of

MAX_PARTS = 1_000_000
"""Maximum number of parts of an array."""


def part_of(array: Array, part: int) -> Unit:
    """Return the unit of part number `part`. Each part of a `split` gets its items, and its share of the work and of
    the expected run time; its class includes the number of items, because run times are learned by class. Each part of
    a `sweep` gets its values.
    """
    like = array.like
    [whole] = like.tasks
    argv, env, output = whole.argv, whole.env, like.output
    name = f"{like.name}[{part}]"
    if array.items:
        first, last = part * array.items // array.parts, (part + 1) * array.items // array.parts
        env = env | {"POISE_ITEMS_FROM": str(first), "POISE_ITEMS_TO": str(last)}
    if array.axes:
        values = Combinations(array.axes)[part]
        argv = in_words(argv, values, shell=array.shell)
        env = in_env(env, values) | names_of(values)
        output = in_output(output, values)
    task = Task(name=name, argv=argv, env=env, part=part, parts=array.parts)
    return msgspec.structs.replace(like, name=name, tasks=(task,), output=output)


def shared_out(unit: Unit, items: int, parts: int) -> Unit:
    """Return what the parts of a `split` have in common: their share of the whole unit."""
    work = Work(**{name: amount // parts for name, amount in msgspec.structs.asdict(unit.work).items()})
    kind = f"{unit.kind}*{-(-items // parts)}"
    return msgspec.structs.replace(unit, expect=-(-unit.expect // parts), work=work, kind=kind)


def size_of(array: Array) -> int:
    """Return the number of parts that the job runs."""
    return sum(number for _, number in array.spans)


def units_in(array: Array) -> int:
    """Return the number of units of the job: its parts and their merge."""
    return size_of(array) + (array.merge is not None)


def each(array: Array, **fields: Any) -> Array:
    """Return the array with these values of the fields of its units."""
    like = msgspec.structs.replace(array.like, **fields)
    merge = None if array.merge is None else msgspec.structs.replace(array.merge, **fields)
    return msgspec.structs.replace(array, like=like, merge=merge)


def first_unit(array: Array) -> Unit:
    """Return the first unit of the job."""
    if array.merge is not None and not array.spans:
        return array.merge
    return part_of(array, number_at(array, 0))


def number_at(array: Array, place: int) -> int:
    """Return the number of the part at a place, counted from 0, of those that the job runs."""
    for first, number in array.spans:
        if place < number:
            return first + place
        place -= number
    raise IndexError(place)


def place_of(array: Array, part: int) -> int | None:
    """Return the place of a part among those that the job runs; None if it does not run it."""
    before = [0, *accumulate(number for _, number in array.spans)]
    span = bisect_right(array.spans, part, key=_first) - 1
    if span < 0 or part >= array.spans[span][0] + array.spans[span][1]:
        return None
    return before[span] + part - array.spans[span][0]


def spans_of(parts: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return ascending numbers of parts as spans.

    >>> spans_of([0, 1, 2, 7])
    ((0, 3), (7, 1))
    """
    spans: list[tuple[int, int]] = []
    for part in parts:
        if spans and sum(spans[-1]) == part:
            spans[-1] = spans[-1][0], spans[-1][1] + 1
        else:
            spans.append((part, 1))
    return tuple(spans)


def _first(span: tuple[int, int]) -> int:
    return span[0]
