"""Convert a parsed document to a record, and report all errors in it at once.

`Findings` collects errors while a document is compiled. An unreadable value is recorded as an error, and a harmless
substitute takes its place, so that the rest is checked too; errors that only follow from it are not reported.

    found = Findings()
    spec = found.convert({"gpus": 1, "cpu": "many"}, ResourcesSpec, "resources")
    cpu = found.get(1000, parse_or_raise, parse_cpu, spec.cpu, "resources.cpu", MAX_CPU)
    found.check()               # raises one SpecError that holds both

msgspec alone converts a valid document. Only an invalid one is walked again here, field by field.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import islice
from typing import Any, ParamSpec, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import inspect

from poise.decoding import convert
from poise.errors import ErrorRecord, SpecError, together

T = TypeVar("T")
P = ParamSpec("P")

MAX_TOLD = 100
"""Maximum number of errors to report for one document."""

MAX_FOUND = 1000
"""Number of errors after which checking stops: a document may have hundreds of thousands."""

MOST_COMPARED = 256
"""Maximum number of names to compare a word with: comparing with the names of 100,000 jobs takes seconds."""

LARGEST = 1e308
"""Close to the largest floating-point number."""

_WRONG: Any = object()
ANOTHER_NAME = {
    "array": "parts",
    "command": "run",
    "script": "run",
    "cmd": "run",
    "depends_on": "needs",
    "dependencies": "needs",
    "gpus": "gpu",
    "cpus": "cpu",
    "mem": "memory",
    "ram": "memory",
    "environment": "env",
    "retries": "retry",
    "replicas": "workers",
    "cwd": "folder",
    "workdir": "folder",
    "upload": "sync",
    "files": "sync",
    "repos": "sync",
    "file_mounts": "sync",
    "pip": "requirements",
    "time": "time-limit",
    "walltime": "time-limit",
    "time_limit": "time-limit",
    "timeout": "time-limit",
    "matrix": "sweep",
    "max_parallel": "at_most",
    "secret": "secrets",
    "container": "image",
    "docker_image": "image",
}
"""Names that other schedulers use for our fields."""


class Findings:
    """Errors found in one document, in the order of discovery."""

    def __init__(self) -> None:
        self._errors: list[ErrorRecord] = []
        self._wrong: set[str] = set()
        self._above: set[str] = set()
        self._typed: dict[str, str] = {}
        self._more = 0

    def __bool__(self) -> bool:
        return bool(self._errors)

    def get(self, otherwise: T, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of `read`; if it raises SpecError, record the error and return `otherwise`."""
        try:
            return read(*args, **kwargs)
        except SpecError as error:
            self.add(error)
            return otherwise

    def add(self, error: SpecError, *beside: str) -> None:
        """Record an error, unless its field, or one of the fields `beside` that cause it, is already known to
        be wrong.
        """
        for record in error.record.all():
            if any(self.doubts(field) for field in (record.field, *beside)):
                continue
            self._wrong.add(record.field)
            self._above.update(above(record.field))
            if len(self._errors) < MAX_TOLD:
                self._errors.append(msgspec.structs.replace(record, field=self._as_typed(record.field), others=()))
            else:
                self._more += 1

    def doubts(self, field: str) -> bool:
        """Whether an error is known in the field, in its content, or in a field that contains it."""
        if not self._errors:
            return False
        return field in self._wrong or field in self._above or not self._wrong.isdisjoint(above(field))

    def convert(self, document: Any, kind: type[T], at: str = "") -> T | None:
        """Return the document as a record, without the invalid fields; None if nothing is left to check."""
        try:
            return convert(document, kind, strict=True, str_keys=True)
        except msgspec.ValidationError as error:
            told = str(error)
        before = len(self._errors) + self._more
        kept = self._right(document, inspect.type_info(kind), at, ())
        if len(self._errors) + self._more == before:  # no error found here: report msgspec's error
            self.add(SpecError(told[:1].lower() + told[1:], field=at))
            return None
        return None if kept is _WRONG else convert(kept, kind, strict=True, str_keys=True)

    def check(self, example: Callable[[str], str] = lambda field: "") -> None:
        """Raise one SpecError with all errors; an error without a hint gets the `example` of its field."""
        if not self._errors:
            return
        told = [
            record if record.hint else msgspec.structs.replace(record, hint=example(record.field))
            for record in self._errors
        ]
        if self._more:
            more = f"{self._more}" if not self._is_enough else f"at least {self._more}"
            told.append(ErrorRecord(code="E102", message=f"and {more} more errors", hint="repair these first"))
        raise together(told)

    def _right(self, value: Any, kind: inspect.Type, at: str, words: tuple[str, ...]) -> Any:
        """Return the value without its invalid parts, or `_WRONG`. `words` are the words that the field accepts, in our
        order.
        """
        if self._is_enough:
            return _WRONG
        fits = [one for one in _alternatives(kind) if _fits(value, one)]
        if not fits:
            need, have = _expected(kind, words), _seen(value)
            hint = "put it in quotes" if need == "a text" and isinstance(value, bool | int | float) else ""
            self.add(SpecError("the value has the wrong type", field=at, need=need, have=have, hint=hint))
            return _WRONG
        chosen = fits[0]
        if isinstance(chosen, inspect.StructType):
            return self._right_struct(value, chosen, at)
        if isinstance(chosen, inspect.DictType):
            made = {
                name: self._right(inner, chosen.value_type, _in(at, name), words)
                for name, inner in value.items()
                if self._is_name(name, at)
            }
            return {name: inner for name, inner in made.items() if inner is not _WRONG}
        if isinstance(chosen, inspect.ListType):
            items = [self._right(inner, chosen.item_type, f"{at}[{n}]", words) for n, inner in enumerate(value)]
            return _WRONG if any(inner is _WRONG for inner in items) else items
        return value if self._is_right_scalar(value, fits, at, words) else _WRONG

    def _right_struct(self, value: dict[Any, Any], kind: inspect.StructType, at: str) -> Any:
        fields = {field.encode_name: field for field in kind.fields}
        made: dict[str, Any] = {}
        known = set(value)
        for name, inner in value.items():
            if not self._is_name(name, at):
                continue
            if name not in fields:
                meant, hint = _other_field(name, fields, inner)
                what = f"there is no field `{name[:80]}` here"
                self.add(SpecError(what, field=_in(at, name), have=name[:80], hint=hint))
                if not meant or meant in known:
                    continue
                known.add(meant)  # do not report it as missing
                if not _is_mapping(inner, fields[meant].type):
                    self._wrong.add(_in(at, meant))
                    continue
                self._typed[_in(at, meant)] = _in(at, name)  # errors in it are reported too
                name = meant
            hints = _hints(kind.cls)
            kept = self._right(inner, fields[name].type, _in(at, name), tuple(words_of(hints[fields[name].name])))
            if kept is not _WRONG:
                made[name] = kept
        missing = [name for name, field in fields.items() if field.required and name not in known]
        for name in missing:
            need = _expected(fields[name].type, ())
            self.add(SpecError(f"the field `{name}` is missing", field=_in(at, name), need=need))
        return {name: _stand_in(field.type) for name, field in fields.items() if field.required} | made

    def _as_typed(self, field: str) -> str:
        """Return the path of a field as written in the document, with misspelt names."""
        for one in (field, *above(field)):
            if one in self._typed:
                return self._typed[one] + field[len(one) :]
        return field

    @property
    def _is_enough(self) -> bool:
        return len(self._errors) + self._more >= MAX_FOUND

    def _is_name(self, name: Any, at: str) -> bool:
        if not isinstance(name, str):
            self.add(SpecError("a key has the wrong type", field=at, need="a text", have=_seen(name)))
        return isinstance(name, str)

    def _is_right_scalar(self, value: Any, fits: list[inspect.Type], at: str, words: tuple[str, ...]) -> bool:
        if isinstance(value, str) and all(isinstance(one, inspect.LiteralType) for one in fits):
            if any(value in one.values for one in fits if isinstance(one, inspect.LiteralType)):
                return True
            message = f"`{value[:80]}` is not known here"
            self.add(SpecError(message, field=at, need=", ".join(words), have=value[:80], hint=near(value, words)))
            return False
        for one in fits:
            if not isinstance(one, inspect.IntType | inspect.FloatType):
                continue
            if not isinstance(one, inspect.FloatType) and one.ge is None and one.le is None:
                continue
            least = -LARGEST if one.ge is None else one.ge
            most = LARGEST if one.le is None else one.le
            if value < least or value > most:
                need, have = f"{least:g} to {most:g}", shown(value)
                self.add(SpecError("the number is out of range", code="E103", field=at, need=need, have=have))
                return False
        return True


def near(word: str, known: Iterable[str]) -> str:
    """Return a hint with the closest name among the first known names, or an empty text."""
    close = _closest(word, list(islice(known, MOST_COMPARED)))
    return f"did you mean `{close}`?" if close else ""


def _closest(word: str, known: Sequence[str]) -> str:
    """Return the closest known name; empty if none is close."""
    import difflib  # only for errors

    return next(iter(difflib.get_close_matches(word, known, n=1)), "")


def some(names: Sequence[str], most: int) -> str:
    """Return at most `most` of the names and the number of the others, for people."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def shown(value: str | int | float) -> str:
    """Format a value for an error; an integer of thousands of digits cannot even be converted to text."""
    return "a number of many digits" if isinstance(value, int) and abs(value) >= 2**63 else str(value)[:80]


def _in(at: str, name: str) -> str:
    return f"{at}.{name[:80]}" if at else name[:80]


def above(field: str) -> Iterator[str]:
    """Yield the fields that contain a field: `tasks.a.ops`, `tasks.a` and `tasks` for `tasks.a.ops[0]`."""
    for end in range(len(field) - 1, 0, -1):
        if field[end] in ".[":
            yield field[:end]


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _alternatives(kind: inspect.Type) -> tuple[inspect.Type, ...]:
    if isinstance(kind, inspect.Metadata):
        return _alternatives(kind.type)
    return kind.types if isinstance(kind, inspect.UnionType) else (kind,)


_OF_PYTHON: tuple[tuple[type[inspect.Type], Any], ...] = (
    (inspect.StructType, dict),
    (inspect.DictType, dict),
    (inspect.ListType, list),
    (inspect.StrType, str),
    (inspect.BoolType, bool),
    (inspect.NoneType, type(None)),
    (inspect.AnyType, object),
)


def _fits(value: Any, kind: inspect.Type) -> bool:
    """Whether the value has the right type, regardless of its content."""
    if isinstance(kind, inspect.IntType):
        return isinstance(value, int) and not isinstance(value, bool)
    if isinstance(kind, inspect.FloatType):
        return isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(kind, inspect.LiteralType):
        return isinstance(value, str)
    return any(isinstance(kind, of) and isinstance(value, python) for of, python in _OF_PYTHON)


def _is_mapping(value: Any, kind: inspect.Type) -> bool:
    """Whether the value is a mapping and the field accepts one."""
    return isinstance(value, dict) and any(_fits(value, one) for one in _alternatives(kind))


_SAID: tuple[tuple[type[inspect.Type], str], ...] = (
    (inspect.StrType, "a text"),
    (inspect.IntType, "a whole number"),
    (inspect.FloatType, "a number"),
    (inspect.BoolType, "`true` or `false`"),
    (inspect.ListType, "a list"),
    (inspect.StructType, "a mapping"),
    (inspect.DictType, "a mapping"),
)


def _expected(kind: inspect.Type, words: tuple[str, ...]) -> str:
    """Describe what a field accepts."""
    kinds = _alternatives(kind)
    said = [text for of, text in _SAID if any(isinstance(one, of) for one in kinds)]
    if "a number" in said and "a whole number" in said:
        said.remove("a whole number")
    said += words if any(isinstance(one, inspect.LiteralType) for one in kinds) else ()
    return " or ".join(dict.fromkeys(said))


def _seen(value: Any) -> str:
    """Describe a value."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    return f"the text `{value[:80]}`" if isinstance(value, str) else shown(value)


def _stand_in(kind: inspect.Type) -> Any:
    """Return a substitute for a required field, so that the rest can be checked."""
    for one in _alternatives(kind):
        if isinstance(one, inspect.IntType | inspect.FloatType):
            return 1
        if isinstance(one, inspect.BoolType):
            return True
        if isinstance(one, inspect.LiteralType):
            return one.values[0]
        if isinstance(one, inspect.ListType):
            return []
    return "true"


def words_of(hint: Any) -> Iterator[str]:
    """Yield the words that a field accepts."""
    if isinstance(hint, str):
        if hint:
            yield hint
        return
    for inner in get_args(hint):
        yield from words_of(inner)


def _other_field(name: str, fields: dict[str, inspect.Field], value: Any) -> tuple[str, str]:
    """Return the field that was probably meant, here or in a nested mapping, and a hint."""
    if name == "retries" and "retry" in fields:
        return "retry", f"retry: {{limit: {value if isinstance(value, int) else 3}}}"
    meant = ANOTHER_NAME.get(name, name)
    if meant in fields:
        return meant, f"did you mean `{meant}`?"
    within: dict[str, str] = {}
    for outer, field in fields.items():
        for one in _alternatives(field.type):
            if isinstance(one, inspect.StructType):
                for inner in one.fields:
                    within.setdefault(inner.encode_name, outer)
    if meant in within:
        return "", f"it belongs in `{within[meant]}`: `{within[meant]}: {{{meant}: …}}`"
    close = _closest(name, [*fields, *within])
    if close and close not in fields:
        return "", f"did you mean `{within[close]}: {{{close}: …}}`?"
    return (close, f"did you mean `{close}`?") if close else ("", f"known fields: {', '.join(fields)}")


def field_parts(field: str) -> list[str]:
    """Return the names and indices along the path of a field."""
    return [part for part in re.split(r"[.\[\]]", field) if part]
