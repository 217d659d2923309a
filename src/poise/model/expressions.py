"""Conditions of rules: a small language that is total and typed, with a cost that is known before evaluation.

    waiting > 10 and avg_over(fleet_use, 10m) < 50%

A condition compares signals with values, and joins comparisons by `and`, `or`, `not`. Functions look back over a window
of bounded length. There is nothing else: no loops, no names but those of signals, no side effects. A missing signal
makes its comparison unknown, and an unknown condition changes nothing.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from poise.errors import SpecError
from poise.model.document import near
from poise.units import HOUR, SECOND, format_duration, parse_duration

Kind = Literal["share", "number", "time", "flag"]
Scope = Literal["node", "service", "fleet"]


class Signal(NamedTuple):
    """A signal: of each node, of each service or of the fleet, its type and its meaning. `measured`: agents or gateways
    report it.
    """

    scope: Scope
    kind: Kind
    about: str
    measured: bool = False


SIGNALS: Mapping[str, Signal] = {
    "cpu_usage": Signal("node", "share", "CPU in use, as the node measures it", True),
    "memory_usage": Signal("node", "share", "memory in use, as the node measures it", True),
    "disk_usage": Signal("node", "share", "time that the busiest disk is busy", True),
    "network_usage": Signal("node", "share", "network capacity in use", True),
    "load": Signal("node", "number", "threads that run or wait, per core", True),
    "cpu_reserved": Signal("node", "share", "CPU that work holds"),
    "memory_reserved": Signal("node", "share", "memory that work holds"),
    "gpu_utilization": Signal("node", "share", "compute of the node's devices that work holds"),
    "failures": Signal("node", "share", "attempts lost or failed on the node, smoothed"),
    "hot": Signal("node", "flag", "CPU use has been high for a sustained window"),
    "service_rate": Signal("service", "number", "requests per second that clients send", True),
    "service_p99": Signal("service", "time", "P99 latency in seconds", True),
    "service_p99_of_objective": Signal("service", "share", "P99 latency in relation to the objective", True),
    "service_refused": Signal("service", "share", "requests that the gateway refuses", True),
    "service_waiting": Signal("service", "number", "requests that wait", True),
    "service_replicas": Signal("service", "number", "replicas that are ready", True),
    "service_replicas_wanted": Signal("service", "number", "replicas that the gateway has requested", True),
    "waiting": Signal("fleet", "number", "units that wait"),
    "out_of_memory": Signal("fleet", "number", "unfinished units that have exceeded their memory limit"),
    "running": Signal("fleet", "number", "attempts that hold room"),
    "fleet_use": Signal("fleet", "share", "CPUs or devices of the open nodes that work holds, whichever is more"),
    "nodes_up": Signal("fleet", "number", "nodes that take new work"),
    "shadow_better": Signal("fleet", "flag", "the figures of a policy in shadow allow its promotion"),
    "nodes_lost": Signal("fleet", "number", "nodes that are lost or silent"),
}

FUNCTIONS = ("rate", "avg_over", "quantile_over", "changed")
MAX_WINDOW = 24 * HOUR
MAX_SAMPLES = 3_000
"""Maximum number of samples in one window."""
MAX_COST = 10_000
"""Maximum cost of one evaluation of a condition for one subject, in steps; each sample of a window is one step."""
MAX_DEPTH = 32
MAX_LENGTH = 2_000


class Read(NamedTuple):
    """The value of a signal now, or a function of its values over a window (nanoseconds)."""

    signal: str
    function: str = ""
    window: int = 0
    quantile: float = 0.0


class Compare(NamedTuple):
    """A comparison of a signal with a value in the signal's unit; shares are from 0 to 1."""

    read: Read
    operator: str
    value: float


class Truth(NamedTuple):
    """A flag, or whether a signal has changed."""

    read: Read


class Not(NamedTuple):
    of: "Condition"


class Both(NamedTuple):
    """`and`, or `or`."""

    any: bool
    left: "Condition"
    right: "Condition"


Condition = Compare | Truth | Not | Both

_TOKEN = re.compile(
    r"\s*(?:(?P<number>[0-9]+(?:\.[0-9]+)?)(?P<unit>%|[a-zA-Z]+)?|(?P<name>[a-zA-Z_][a-zA-Z0-9_]*)"
    r"|(?P<sign><=|>=|==|!=|<|>|\(|\)|,))"
)


class _Token(NamedTuple):
    text: str
    at: int
    kind: str
    unit: str = ""


def reads_of(condition: Condition) -> Iterator[Read]:
    """Yield the reads of a condition, in order."""
    match condition:
        case Compare() | Truth():
            yield condition.read
        case Not():
            yield from reads_of(condition.of)
        case Both():
            yield from reads_of(condition.left)
            yield from reads_of(condition.right)


def cost_of(condition: Condition, every: int) -> int:
    """Return the steps of one evaluation for one subject, with a sampling interval of `every` nanoseconds."""
    reads = list(reads_of(condition))
    return len(reads) + sum(-(-read.window // every) for read in reads)


def parse_condition(text: str, field: str, every: int) -> Condition:
    """Parse and check a condition; `every` is the interval of its evaluation in nanoseconds. Raises `SpecError` with
    the column in the text.
    """
    if len(text) > MAX_LENGTH:
        raise SpecError(
            "the condition is too long",
            field=field,
            need=f"at most {MAX_LENGTH} characters",
            have=str(len(text)),
            hint="split it into several rules",
        )
    condition = _Parser(text, field, every).whole()
    if (cost := cost_of(condition, every)) > MAX_COST:
        raise SpecError(
            "the condition costs too much",
            field=field,
            need=f"at most {MAX_COST} samples",
            have=str(cost),
            hint="use shorter windows, or a longer `every`",
        )
    return condition


class _Parser:
    """Recursive descent parser of bounded depth."""

    def __init__(self, text: str, field: str, every: int) -> None:
        self._text, self._field, self._every = text, field, every
        self._tokens = list(self._lexed())
        self._at = 0
        self._depth = 0

    def whole(self) -> Condition:
        found = self._either()
        if self._at < len(self._tokens):
            raise self._wrong("the condition does not end here", need="`and` or `or`", hint="hot and load > 2")
        return found

    def _lexed(self) -> Iterator[_Token]:
        at, end = 0, len(self._text.rstrip())
        while at < end:
            found = _TOKEN.match(self._text, at)
            if found is None:
                column = at + len(self._text[at:]) - len(self._text[at:].lstrip())
                raise SpecError(
                    f"`{self._text[column]}` at column {column + 1} is not part of a condition",
                    field=self._field,
                    have=self._text,
                    hint="memory_usage > 75%",
                )
            kind = str(found.lastgroup if found.lastgroup != "unit" else "number")
            yield _Token(found[kind], found.start(kind), kind, found["unit"] or "")
            at = found.end()

    def _peek(self) -> _Token:
        return self._tokens[self._at] if self._at < len(self._tokens) else _Token("", len(self._text), "end")

    def _next(self) -> _Token:
        token = self._peek()
        self._at += 1
        return token

    def _takes(self, text: str) -> bool:
        if self._peek().text != text or self._peek().kind == "number":
            return False
        self._at += 1
        return True

    def _expect(self, text: str) -> None:
        if not self._takes(text):
            raise self._wrong(f"`{text}` is missing", need=f"`{text}`", hint="avg_over(memory_usage, 10m) > 75%")

    def _wrong(self, what: str, *, need: str, hint: str, at: _Token | None = None) -> SpecError:
        token = at or self._peek()
        have = f"`{token.text}{token.unit}`" if token.text else "the end"
        message = f"{what}, at column {token.at + 1} of `{self._text}`"
        return SpecError(message, field=self._field, need=need, have=have, hint=hint)

    def _either(self) -> Condition:
        found = self._each()
        while self._takes("or"):
            found = Both(True, found, self._each())
        return found

    def _each(self) -> Condition:
        found = self._one()
        while self._takes("and"):
            found = Both(False, found, self._one())
        return found

    def _one(self) -> Condition:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._wrong("the condition is nested too deep", need=f"at most {MAX_DEPTH} levels", hint="flatten it")
        if self._takes("not"):
            found: Condition = Not(self._one())
        elif self._takes("("):
            found = self._either()
            self._expect(")")
        else:
            found = self._comparison()
        self._depth -= 1
        return found

    def _comparison(self) -> Condition:
        read, kind = self._read()
        token = self._peek()
        if kind == "flag":
            if token.kind == "sign" and token.text not in (")", ","):
                raise self._wrong("this is true or false already", need="`and`, `or`", hint="hot and load > 2")
            return Truth(read)
        if token.text not in ("<", "<=", ">", ">=", "==", "!="):
            raise self._wrong("a comparison is missing", need="`>`, `>=`, `<`, `<=`, `==`, `!=`", hint="load > 2")
        self._at += 1
        return Compare(read, token.text, self._value(kind, read))

    def _value(self, kind: Kind, read: Read) -> float:
        token = self._next()
        if token.kind != "number":
            self._at -= 1
            raise self._wrong("a value is missing", need="a number", hint=f"{read.signal} > 1")
        if kind == "time" and token.unit not in ("", "%"):
            return self._seconds(token, read)
        wanted = "%" if kind == "share" else ""
        if token.unit != wanted:
            unit = "s" if kind == "time" else wanted
            need = {"share": "a percentage", "time": "a time such as 500ms"}.get(kind, "a number without a unit")
            what = f"`{read.signal}` is a {kind}"
            raise self._wrong(what, need=need, hint=f"{read.signal} > {token.text}{unit}", at=token)
        return float(token.text) / 100 if wanted else float(token.text)

    def _seconds(self, token: _Token, read: Read) -> float:
        try:
            return parse_duration(f"{token.text}{token.unit}") / SECOND
        except ValueError:
            what, hint = f"`{read.signal}` is a time", f"{read.signal} > {token.text}s"
            raise self._wrong(what, need="a time such as 500ms", hint=hint, at=token) from None

    def _read(self) -> tuple[Read, Kind]:
        token = self._next()
        if token.kind != "name":
            self._at -= 1
            raise self._wrong("a signal is missing", need="the name of a signal", hint="memory_usage > 75%")
        if token.text in FUNCTIONS:
            return self._function(token)
        return Read(token.text), self._signal(token).kind

    def _signal(self, token: _Token) -> Signal:
        known = SIGNALS.get(token.text)
        if known is None:
            raise self._wrong(
                "there is no such signal", need=", ".join(SIGNALS), hint=near(token.text, SIGNALS), at=token
            )
        return known

    def _function(self, name: _Token) -> tuple[Read, Kind]:
        self._expect("(")
        quantile = 0.0
        if name.text == "quantile_over":
            token = self._next()
            quantile = float(token.text) if token.kind == "number" and not token.unit else -1.0
            if not 0 <= quantile <= 1:
                raise self._wrong(
                    "a quantile is a number from 0 to 1",
                    need="0 to 1",
                    hint="quantile_over(0.9, cpu_usage, 10m) > 80%",
                    at=token,
                )
            self._expect(",")
        token = self._next()
        signal = self._signal(token)
        if signal.kind == "flag" and name.text != "changed":
            raise self._wrong(
                f"`{token.text}` is true or false, not a number",
                need="a number or a share",
                hint=f"changed({token.text}, 10m)",
                at=token,
            )
        self._expect(",")
        window = self._window()
        self._expect(")")
        kind: Kind = {"rate": "number", "changed": "flag"}.get(name.text, signal.kind)  # type: ignore[assignment]
        return Read(token.text, name.text, window, quantile), kind

    def _window(self) -> int:
        token = self._next()
        try:
            window = parse_duration(f"{token.text}{token.unit}") if token.kind == "number" and token.unit else 0
        except ValueError:
            window = 0
        most = min(MAX_WINDOW, MAX_SAMPLES * self._every)
        if not self._every <= window <= most:
            need = f"{format_duration(self._every)} to {format_duration(most)}"
            raise self._wrong("this is no window", need=need, hint="avg_over(cpu_usage, 10m) > 80%", at=token)
        return window
