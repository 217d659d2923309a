"""Combinations of a sweep: every combination of the values of some names.

    sweep: {lr: [0.1, 0.01], seed: 1..5}                    every lr with every seed: ten
    sweep: {zip: {lr: [0.1, 0.01], steps: [100, 1000]}}     the first with the first, and so on: two
    sweep: [{lr: 0.1, seed: 1}, {lr: 0.01, seed: 7}]        as listed

Each combination becomes a part of the task. The part finds its values in `POISE_SWEEP_LR`, `POISE_SWEEP_SEED`, and
`${lr}` or `{lr}` in the task's command, environment and output file stands for them.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import overload

import msgspec

from poise.errors import SpecError
from poise.model.document import Findings, near, shown

Scalar = str | int | float | bool
Values = str | list[Scalar]
SweepSpec = dict[str, Values | dict[str, Values]] | list[dict[str, Scalar]]
Combination = Mapping[str, str]

PREFIX = "POISE_SWEEP_"
MAX_NAMES = 32
"""Maximum number of names of one sweep: each is a variable of each of its tasks."""

_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
_PLACEHOLDER = re.compile(r"\$?\{([A-Za-z][A-Za-z0-9_-]{0,62})\}")
_RANGE = re.compile(r"\s*(-?[0-9]{1,12})\s*\.\.\s*(-?[0-9]{1,12})\s*(?::\s*([0-9]{1,12})\s*)?")


class Axis(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Names whose values change together. Each row of `rows` has one value for each name. A range of one name has no
    rows: it has `count` whole numbers from `first`, in steps of `step`.
    """

    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...] = ()
    first: int = 0
    step: int = 1
    count: int = 0

    def __len__(self) -> int:
        return self.count or len(self.rows)

    def at(self, place: int) -> Iterator[tuple[str, str]]:
        """Yield each name with its value in row number `place`."""
        row = self.rows[place] if self.rows else (str(self.first + place * self.step),)
        return zip(self.names, row, strict=True)


class Combinations(Sequence[Combination]):
    """Every combination of the rows of some axes; the last axis changes fastest. Each combination is made when it is
    asked for, so a million of them need no memory.
    """

    def __init__(self, axes: Sequence[Axis] = ()) -> None:
        self.axes = tuple(axes)
        self._count = prod(map(len, self.axes)) if self.axes else 0

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> Combination: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Combination]: ...
    def __getitem__(self, at: int | slice) -> Combination | Sequence[Combination]:
        if isinstance(at, slice):
            return [self[place] for place in range(*at.indices(self._count))]
        if not 0 <= at < self._count:
            raise IndexError(at)
        places = []
        for axis in reversed(self.axes):
            at, place = divmod(at, len(axis))
            places.append(place)
        return {
            name: value
            for axis, place in zip(self.axes, reversed(places), strict=True)
            for name, value in axis.at(place)
        }


NO_COMBINATIONS = Combinations()


def combinations(spec: SweepSpec, field: str, limit: int, found: Findings) -> Combinations:
    """Return every combination, at most `limit`, in the order written, the last name changing fastest; none if there
    are errors, which are added to `found`.
    """
    if isinstance(spec, list):
        made: list[Combination] = [{name: as_text(value) for name, value in one.items()} for one in spec]
        for place, one in enumerate(made):
            found.get(None, _check_names, one, f"{field}[{place}]")
            if set(one) != set(made[0]):
                need, have = ", ".join(made[0]), ", ".join(one)
                what = "all mappings of a sweep have the same names"
                found.add(SpecError(what, field=f"{field}[{place}]", need=need, have=have))
        if len(made) > limit:
            found.add(_too_many(field, len(made), limit))
        if found.doubts(field):
            return NO_COMBINATIONS
        names = tuple(made[0]) if made else ()
        axes = [Axis(names, tuple(tuple(one[name] for name in names) for one in made))]
    else:
        axes = [_axis(name, values, f"{field}.{name}", limit, found) for name, values in spec.items()]
    combined = Combinations(axes)
    if not axes or not all(axes):
        found.add(SpecError("the sweep has no values", code="E103", field=field))
    elif len(combined) > limit:
        found.add(_too_many(field, len(combined), limit))
    if found.doubts(field):
        return NO_COMBINATIONS
    names = tuple(name for axis in axes for name in axis.names)
    found.get(None, _check_names, names, field)
    if len(set(names)) < len(names):
        found.add(SpecError("a name of the sweep is given twice", code="E107", field=field))
    return NO_COMBINATIONS if found.doubts(field) else combined


def in_words(argv: Sequence[str], values: Combination, *, shell: bool) -> tuple[str, ...]:
    """Return a command with `${lr}` and `{lr}` replaced by the value or, for a `shell`, by a variable that the shell
    expands, so that a value is one word wherever a variable would be.
    """
    written = {name: f"${{{PREFIX}{name.upper()}}}" for name in values} if shell else values
    pattern = _pattern(values)
    return tuple(pattern.sub(lambda match: written[match[1]], word) for word in argv)


def in_env(env: Mapping[str, str], values: Combination) -> dict[str, str]:
    """Return an environment with `${lr}` and `{lr}` replaced by their values."""
    pattern = _pattern(values)
    return {name: pattern.sub(lambda match: values[match[1]], text) for name, text in env.items()}


def in_output(pattern: str, values: Combination) -> str:
    """Return the pattern of an output file with `${lr}` and `{lr}` replaced by their values."""
    return _pattern(values).sub(lambda match: values[match[1]].replace("%", "%%"), pattern)


def check_placeholders(texts: Iterable[str], names: Iterable[str], field: str) -> None:
    """Raise SpecError for the first `${lrr}` or `{lrr}` that is close to a name of the sweep but is none: every task
    would receive it unchanged. Other text is left alone, since it may be meant for the command.
    """
    known = list(names)
    for text in texts:
        for match in _PLACEHOLDER.finditer(text):
            if match[1] not in known and (hint := near(match[1], known)):
                need = ", ".join(known)
                raise SpecError("no sweep has this name", field=field, need=need, have=match[0], hint=hint)


def names_of(values: Combination) -> dict[str, str]:
    """Return the variables with the sweep values of a task.

    >>> names_of({"lr": "0.1"})
    {'POISE_SWEEP_LR': '0.1'}
    """
    return {f"{PREFIX}{name.upper()}": value for name, value in values.items()}


def values_in(env: Mapping[str, str]) -> dict[str, str]:
    """Return the sweep values of a task from its environment; empty if it is not part of a sweep."""
    return {name.removeprefix(PREFIX).lower(): value for name, value in env.items() if name.startswith(PREFIX)}


def as_text(value: Scalar) -> str:
    """Convert a value to text, as a command sees it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _axis(name: str, values: object, field: str, limit: int, found: Findings) -> Axis:
    """Return the values of one entry of a sweep: of a name, or of the names of a `zip` side by side."""
    if not isinstance(values, dict):
        return found.get(Axis((name,)), _values, name, values, field, limit)
    if name != "zip":
        what = "only the names of a `zip` are a mapping"
        found.add(SpecError(what, field=field, hint=f"sweep: {{zip: {{{name}: [1, 2]}}}}"))
        return Axis(())
    columns = [found.get(Axis((of,)), _values, of, inner, f"{field}.{of}", limit) for of, inner in values.items()]
    if not found.doubts(field) and len(set(map(len, columns))) > 1:
        have = ", ".join(f"{column.names[0]}: {len(column)}" for column in columns)
        what = "the lists of a `zip` are equally long"
        found.add(SpecError(what, code="E103", field=field, have=have, need="one length"))
    every = [[value for place in range(len(column)) for _, value in column.at(place)] for column in columns]
    return Axis(tuple(values), tuple(zip(*every, strict=False)))


def _values(name: str, values: object, field: str, limit: int) -> Axis:
    """Return the values of one name, from a list or a range such as `1..5` or `0..99:2`, which includes both ends."""
    _check_names([name], field)
    if isinstance(values, list):
        if not values:
            raise SpecError("the list has no values", code="E103", field=field, need="a value", hint=f"{name}: [1, 2]")
        return Axis((name,), tuple((as_text(value),) for value in values))
    match = _RANGE.fullmatch(str(values))
    if match is None:
        need, have = "a list, or a range such as 1..5 or 0..99:2", str(values)[:80]
        hint = f"{name}: [{str(values)[:80]}]"
        raise SpecError("the range cannot be read", code="E103", field=field, need=need, have=have, hint=hint)
    first, last, step = int(match[1]), int(match[2]), int(match[3] or 1)
    if not step or (count := (last - first) // step + 1) < 1:
        have = str(values)[:80]
        raise SpecError("the range is empty", code="E103", field=field, need="1..5 or 0..99:2", have=have)
    if count > limit:
        raise _too_many(field, count, limit)
    return Axis((name,), first=first, step=step, count=count)


def _check_names(names: Iterable[str], field: str) -> None:
    given = list(names)
    if not 1 <= len(given) <= MAX_NAMES:
        need, have = f"1 to {MAX_NAMES}", str(len(given))
        raise SpecError("the number of names is out of range", code="E103", field=field, need=need, have=have)
    for name in given:
        if not _NAME.fullmatch(name) or name == "zip":
            raise SpecError(
                "a name in a sweep has lowercase letters, digits and `_`, and starts with a letter",
                code="E107",
                field=field,
                have=shown(name),
                hint=f"{re.sub('[^a-z0-9_]', '_', name.lower()[:63]).lstrip('_0123456789') or 'x'}: [1, 2]",
            )


def _too_many(field: str, count: int, limit: int) -> SpecError:
    what = "the sweep has too many combinations"
    return SpecError(what, code="E103", field=field, need=f"at most {limit}", have=shown(count))


def _pattern(values: Iterable[str]) -> re.Pattern[str]:
    return re.compile(rf"\$?\{{({'|'.join(values)})\}}")
