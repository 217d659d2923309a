"""Combinations of a sweep: every combination of the values of some names.

    sweep: {lr: [0.1, 0.01], seed: 1..5}                    every lr with every seed: ten
    sweep: {zip: {lr: [0.1, 0.01], steps: [100, 1000]}}     the first with the first, and so on: two
    sweep: [{lr: 0.1, seed: 1}, {lr: 0.01, seed: 7}]        as listed

Each combination becomes a part of the task. The part finds its values in `POISE_SWEEP_LR`, `POISE_SWEEP_SEED`, and
`${lr}` or `{lr}` in the task's command and environment stands for them.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from math import prod

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


def combinations(spec: SweepSpec, field: str, limit: int, found: Findings) -> list[Combination]:
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
        axes = [made]
    else:
        axes = [_axis(name, values, f"{field}.{name}", limit, found) for name, values in spec.items()]
    if not axes or not all(axes):
        found.add(SpecError("the sweep has no values", code="E103", field=field))
    elif (total := prod(map(len, axes))) > limit:
        found.add(_too_many(field, total, limit))
    if found.doubts(field):
        return []
    combined: list[Combination] = [
        {name: value for one in row for name, value in one.items()} for row in product(*axes)
    ]
    found.get(None, _check_names, combined[0], field)
    if len(combined[0]) < sum(len(axis[0]) for axis in axes):
        found.add(SpecError("a name of the sweep is given twice", code="E107", field=field))
    return [] if found.doubts(field) else combined


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


def _axis(name: str, values: object, field: str, limit: int, found: Findings) -> list[Combination]:
    """Return the values of one entry of a sweep: of a name, or of the names of a `zip` side by side."""
    if isinstance(values, dict):
        if name != "zip":
            what = "only the names of a `zip` are a mapping"
            found.add(SpecError(what, field=field, hint=f"sweep: {{zip: {{{name}: [1, 2]}}}}"))
            return []
        columns = {of: found.get([], _values, of, inner, f"{field}.{of}", limit) for of, inner in values.items()}
        lengths = {of: len(column) for of, column in columns.items()}
        if not found.doubts(field) and len(set(lengths.values())) > 1:
            have = ", ".join(f"{of}: {length}" for of, length in lengths.items())
            what = "the lists of a `zip` are equally long"
            found.add(SpecError(what, code="E103", field=field, have=have, need="one length"))
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=False)]
    return [{name: value} for value in found.get([], _values, name, values, field, limit)]


def _values(name: str, values: object, field: str, limit: int) -> list[str]:
    """Return the values of one name, from a list or a range such as `1..5` or `0..99:2`, which includes both ends."""
    _check_names([name], field)
    if isinstance(values, list):
        made = [as_text(value) for value in values]
    else:
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
        made = [str(value) for value in range(first, last + 1, step)]
    if not made:
        raise SpecError("the list has no values", code="E103", field=field, need="a value", hint=f"{name}: [1, 2]")
    return made


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
