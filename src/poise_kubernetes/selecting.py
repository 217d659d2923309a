"""Expressions of Kubernetes that select devices: the part of CEL that device classes and claims use.

Supported: `&&`, `||`, `!`, `in`, comparisons, parentheses, lists, strings, numbers, `true` and `false`; the `driver` of
a device, its `attributes["DOMAIN"].NAME` and its `capacity["DOMAIN"].NAME`; `quantity("1Gi")` and `semver("1.2.3")`;
and the methods in `METHODS`. An expression does not select a device that lacks an attribute in it.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from poise_kubernetes.records import quantity

Values = Mapping[str, Mapping[str, Any]]
"""Values by domain and name."""


class Unsupported(Exception):
    """The expression is not valid, or uses parts of CEL that are not supported here."""


class Missing(Exception):
    """The device does not have a value that the expression needs."""


class Described(NamedTuple):
    """The values of a device that an expression can read."""

    driver: str
    attributes: Values
    capacity: Values


Predicate = Callable[[Described], bool]
_Value = Callable[[Described], Any]

_TOKEN = re.compile(
    r"""\s*(?:(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<number>\d+(?:\.\d+)?)|(?P<name>[A-Za-z_]\w*)"""
    r"""|(?P<sign>&&|\|\||[<>=!]=|[<>!()\[\],.]))"""
)

_SIGNS: dict[str, Callable[[Any, Any], bool]] = {
    "==": lambda one, other: bool(one == other),
    "!=": lambda one, other: bool(one != other),
    "<": lambda one, other: bool(one < other),
    "<=": lambda one, other: bool(one <= other),
    ">": lambda one, other: bool(one > other),
    ">=": lambda one, other: bool(one >= other),
}

METHODS: dict[str, Callable[[Any, Any], Any]] = {
    "compareTo": lambda one, other: (one > other) - (one < other),
    "isGreaterThan": lambda one, other: one > other,
    "isLessThan": lambda one, other: one < other,
    "startsWith": lambda one, other: one.startswith(other),
    "endsWith": lambda one, other: one.endswith(other),
    "contains": lambda one, other: other in one,
}

_MAKERS: dict[str, Callable[[Any], Any]] = {"quantity": quantity, "semver": lambda text: version(text)}

NAMES = {"true": True, "false": False}


def version(text: str) -> tuple[int, ...]:
    """Return a version as numbers that compare as versions do, without its pre-release."""
    return tuple(int(part) for part in re.findall(r"\d+", text.partition("-")[0]))


def predicate(expression: str) -> Predicate:
    """Return the compiled form of an expression. Raises `Unsupported`."""
    parser = _Parser(expression)
    try:
        value = parser.either()
    except RecursionError:
        raise Unsupported(f"`{expression[:200]}` is too deep") from None
    except ValueError:
        raise Unsupported(f"`{expression[:200]}` has a number that is too long") from None
    if parser.left:
        raise Unsupported(f"`{expression[:200]}`: `{parser.left[0][1]}` is not supported")

    def holds(device: Described) -> bool:
        try:
            return value(device) is True
        except (Missing, TypeError, AttributeError, ValueError, RecursionError):
            return False

    return holds


class _Parser:
    """Recursive descent; `left` are the tokens that are left."""

    def __init__(self, expression: str) -> None:
        self._expression, self.left = expression, list[tuple[str, str]]()
        place = 0
        while expression[place:].strip():
            found = _TOKEN.match(expression, place)
            if found is None:
                raise self._unsupported(expression[place:].strip()[:20])
            self.left.append((str(found.lastgroup), str(found.group(str(found.lastgroup)))))
            place = found.end()

    def either(self) -> _Value:
        values = [self._all()]
        while self._takes("||"):
            values.append(self._all())
        return values[0] if len(values) == 1 else lambda device: any(value(device) is True for value in values)

    def _all(self) -> _Value:
        values = [self._compared()]
        while self._takes("&&"):
            values.append(self._compared())
        return values[0] if len(values) == 1 else lambda device: all(value(device) is True for value in values)

    def _compared(self) -> _Value:
        value = self._plain()
        for sign, compare in _SIGNS.items():
            if self._takes(sign):
                return _with(compare, value, self._plain())
        if self._takes("in"):
            return _with(lambda one, other: one in other, value, self._plain())
        return value

    def _plain(self) -> _Value:
        if self._takes("!"):
            value = self._plain()
            return lambda device: not value(device)
        kind, word = self._next()
        if word == "(":
            value = self.either()
            self._need(")")
        elif word == "[":
            value = self._list()
        elif kind == "text":
            value = _constant(re.sub(r"\\(.)", r"\1", word[1:-1]))
        elif kind == "number":
            value = _constant(float(word) if "." in word else int(word))
        elif word in NAMES:
            value = _constant(NAMES[word])
        elif word in _MAKERS:
            self._need("(")
            value = _made(_MAKERS[word], self.either())
            self._need(")")
        elif word == "device":
            value = self._of_device()
        else:
            raise self._unsupported(word)
        while self._takes("."):
            _, name = self._next()
            if name not in METHODS:
                raise self._unsupported(name)
            self._need("(")
            value = _with(METHODS[name], value, self.either())
            self._need(")")
        return value

    def _of_device(self) -> _Value:
        self._need(".")
        _, field = self._next()
        if field == "driver":
            return lambda device: device.driver
        if field not in ("attributes", "capacity"):
            raise self._unsupported(field)

        def known(device: Described) -> Values:
            return device.attributes if field == "attributes" else device.capacity

        if not self._takes("["):
            return known
        kind, text = self._next()
        self._need("]")
        domain = text[1:-1] if kind == "text" else ""
        if not domain:
            raise self._unsupported(text)
        if not (self.left[:1] == [("sign", ".")] and self.left[1:2] and self.left[1][0] == "name"):
            return lambda device: known(device).get(domain, {})
        self._next()
        _, name = self._next()

        def value(device: Described) -> Any:
            found = known(device).get(domain, {})
            if name not in found:
                raise Missing(name)
            return found[name]

        return value

    def _list(self) -> _Value:
        values: list[_Value] = []
        while not self._takes("]"):
            values.append(self.either())
            if not self._takes(","):
                self._need("]")
                break
        return lambda device: [value(device) for value in values]

    def _takes(self, word: str) -> bool:
        if self.left and self.left[0][1] == word and self.left[0][0] != "text":
            self.left.pop(0)
            return True
        return False

    def _need(self, word: str) -> None:
        if not self._takes(word):
            raise self._unsupported(self.left[0][1] if self.left else "the end")

    def _next(self) -> tuple[str, str]:
        if not self.left:
            raise self._unsupported("the end")
        return self.left.pop(0)

    def _unsupported(self, word: str) -> Unsupported:
        return Unsupported(f"`{self._expression[:200]}`: `{word}` is not supported")


def _constant(value: Any) -> _Value:
    return lambda device: value


def _made(make: Callable[[Any], Any], value: _Value) -> _Value:
    return lambda device: make(value(device))


def _with(act: Callable[[Any, Any], Any], one: _Value, other: _Value) -> _Value:
    return lambda device: act(one(device), other(device))
