"""Records with every field set to something other than its default, made from their types alone.

    made = filled(Candidate)     # a copy, codec or fork that forgets a field gives its default instead

`record_types` finds the types by itself, so a new one is tested from the day on which it is written.
"""

import importlib
import itertools
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect

from poise.model.fleet import Fleet, PoolView, Resident
from poise.model.resources import Device, Node

GIVEN: dict[tuple[str, str], Any] = {
    ("ScaleRules", "share"): 0.25,
    ("TokenRequest", "hash"): "f" * 64,
    ("SignInRequest", "hash"): "f" * 64,
    ("PageRequest", "state"): "s" * 43,
    ("PageRequest", "nonce"): "n" * 43,
    ("PageRequest", "challenge"): "c" * 43,
}
"""Fields whose values have to be of a kind that their type does not tell."""


class Unfillable(TypeError):
    """There is no rule here for a type; `held` is the class, where it is one that records know nothing of."""

    def __init__(self, where: str, of: object, held: type | None = None) -> None:
        super().__init__(f"`{where}`: {of}")
        self.held = held


def record_types(*packages: str) -> list[type[msgspec.Struct]]:
    """All record types that these packages define, in order of their names."""
    for package in packages:
        found = importlib.import_module(package)
        for module in pkgutil.walk_packages(getattr(found, "__path__", ()), f"{package}."):
            importlib.import_module(module.name)
    within = tuple(f"{package}." for package in packages)
    kinds = {kind for kind in _below(msgspec.Struct) if f"{kind.__module__}.".startswith(within)}
    return sorted(kinds, key=lambda kind: (kind.__module__, kind.__qualname__))


def _below(kind: type[Any]) -> Iterator[type[Any]]:
    for sub in kind.__subclasses__():
        yield sub
        yield from _below(sub)


_fields: dict[type, tuple[inspect.Field, ...]] = {}


def fields_of(kind: type) -> tuple[inspect.Field, ...]:
    """The fields of a record type, with their types and defaults."""
    if kind not in _fields:
        info = inspect.type_info(kind)
        if not isinstance(info, inspect.StructType):
            raise Unfillable(kind.__qualname__, info)
        _fields[kind] = info.fields
    return _fields[kind]


def default_of(field: inspect.Field) -> Any:
    """What a field is where nothing is said of it; `msgspec.NODEFAULT` where something must be."""
    return field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default


def filled(kind: type[Any]) -> Any:
    """An instance of a record type. Raises `Unfillable` for a field of a type that this module does not know."""
    return _Filling().record(kind)


def filled_fleet() -> Fleet:
    """Two nodes; all that changes of a fleet is something other than what `Fleet(nodes)` has."""
    nodes = [
        Node(name=name, incarnation="i", cpu=4, memory=2, devices=(Device(index=0, memory=7),)) for name in ("a", "b")
    ]
    fleet = Fleet(nodes)
    for name in Fleet.CHANGING:
        getattr(fleet, name)[...] += 1
    fleet.residents = [(filled(Resident),), ()]
    fleet.pools = {"shape": {1: filled(PoolView)}}
    return fleet


class _Filling:
    """Makes values; no two numbers or texts that it makes are alike."""

    def __init__(self) -> None:
        self._numbers = itertools.count(2)
        self._within: list[type[Any]] = []

    def record(self, kind: type[Any]) -> Any:
        self._within.append(kind)
        made = kind(**{field.name: self._other(kind, field) for field in fields_of(kind)})
        self._within.pop()
        return made

    def _other(self, kind: type[Any], field: inspect.Field) -> Any:
        """A value that is not the field's default."""
        if (kind.__name__, field.name) in GIVEN:
            return GIVEN[kind.__name__, field.name]
        default = default_of(field)
        for value in self._values(field.type):
            if value != default or type(value) is not type(default):
                return value
        if self._within.count(kind) > 1 and not field.required:
            return default  # it holds itself, and would without end
        raise Unfillable(f"{kind.__qualname__}.{field.name}", field.type)

    def _values(self, of: inspect.Type) -> Iterator[Any]:
        """Values of a type, the fullest first; none where a record would hold itself without end."""
        match of:
            case inspect.Metadata(type=inner):
                yield from self._values(inner)
            case inspect.BoolType():
                yield from (True, False)
            case inspect.IntType():
                least = max(of.ge if of.ge is not None else 0, of.gt + 1 if of.gt is not None else 0)
                most = min(of.le if of.le is not None else 2**53, of.lt - 1 if of.lt is not None else 2**53)
                number = least + next(self._numbers)
                yield from (number, number + 1) if number < most else (most, least)
            case inspect.FloatType():
                limit = min(one for one in (of.le, of.lt, 2.0**53) if one is not None)
                part = next(self._numbers) + 0.5
                yield from (part, part + 1) if part + 1 < limit else (limit / 2, limit / 4)
            case inspect.StrType():
                text = f"text-{next(self._numbers)}".ljust(of.min_length or 0, "x")[: of.max_length]
                yield from (text,) if re.search(of.pattern or "", text) else ()
            case inspect.BytesType():
                yield b"%d" % next(self._numbers)
            case inspect.RawType():
                yield msgspec.Raw(b"7")  # a number, in JSON as in MessagePack
            case inspect.LiteralType(values=values):
                yield from reversed(values)
            case inspect.EnumType(cls=cls):
                yield from reversed(list(cls))
            case inspect.StructType(cls=cls):
                if self._within.count(cls) < 2:
                    yield self.record(cls)
            case (
                inspect.DictType(key_type=key, value_type=value)
                | inspect.FrozenDictType(key_type=key, value_type=value)
            ):
                yield from ({one: other} for one, other in zip(self._values(key), self._values(value), strict=False))
            case inspect.ListType(item_type=item):
                yield from ([value] * (of.min_length or 1) for value in self._values(item))
            case inspect.VarTupleType(item_type=item):
                yield from ((value,) * (of.min_length or 1) for value in self._values(item))
            case inspect.SetType(item_type=item) | inspect.FrozenSetType(item_type=item):
                yield from (frozenset((value,)) for value in self._values(item))
            case inspect.TupleType(item_types=items):
                yield from zip(*(self._values(item) for item in items), strict=False)
            case inspect.NamedTupleType(cls=cls, fields=fields):
                yield from itertools.starmap(cls, zip(*(self._values(one.type) for one in fields), strict=False))
            case inspect.UnionType(types=types):
                for one in sorted(types, key=lambda one: isinstance(one, inspect.NoneType)):
                    yield from self._values(one)
            case inspect.NoneType():
                yield None
            case inspect.AnyType():
                yield {"deep": [next(self._numbers), 0.5, None]}
            case inspect.CustomType(cls=cls) if cls is Fleet:
                yield filled_fleet()
            case _:
                raise Unfillable(self._within[-1].__qualname__, of, getattr(of, "cls", None))
