"""The action `control` of a rule: a controller that adjusts one number so that a signal reaches its target.

    control: {knob: quota.gpu, of: ann, target: {fleet_use: 80%}, least: 4, most: 64}
    control: {knob: replicas, of: chat, target: {service_p99_of_objective: 80%}, effect: lowers, least: 0, most: 8}
    control: {knob: policy.fairness, target: {waiting: 20}, least: 0, most: 1, gains: {proportional: 0.2}}

The number that it sets is the *knob*. A signal of a service is that of the service whose replicas it sets. `gains` are
per step, as fractions: of the range from `least` to `most`, per error relative to the target.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from poise.errors import SpecError
from poise.model.document import Findings, near
from poise.model.expressions import SIGNALS, Compare, Scope, parse_condition
from poise.model.fields import MAX_BYTES, Quantity, parse_or_raise
from poise.model.resources import PLENTY, WHOLE
from poise.model.spec import check_name
from poise.units import DAY, MINUTE, format_bytes, format_cpu, parse_bytes, parse_cpu, parse_duration

Effect = Literal["raises", "lowers"]

MAX_GAIN = 1e6
MAX_EXTRA = 1_000
MAX_UNITS = 1_000_000

MICRO = 1_000_000
"""Parameters of policies are counted in millionths."""

POLICY = "policy."
"""Prefix of a knob that is a parameter of the policy; its path in a policy file follows."""


_TERM = re.compile(r"^(policy\.(?:score|order))\.\w+$")


class Gains(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Gains per step, as in `poise.policy.pid`."""

    proportional: float = 0.0
    integral: float = 0.0


class ControlSpec(msgspec.Struct, forbid_unknown_fields=True):
    """A control loop, as written."""

    knob: str
    target: str | dict[str, Quantity]
    least: Quantity
    most: Quantity
    of: str = ""
    every: Quantity = "1m"
    effect: Effect = "raises"
    gains: Literal["auto"] | Gains = "auto"


class Control(NamedTuple):
    """A compiled control loop. `least` and `most` are in the unit of the knob: replicas, milli-CPU, bytes, thousandths
    of devices, or millionths of a parameter. The knob changes by multiples of `unit`. `lowers`: a larger knob lowers
    the signal. `every` is the interval of steps in nanoseconds; `gains` None: automatic.
    """

    knob: str
    of: str
    target: Compare
    least: int
    most: int
    unit: int
    every: int = MINUTE
    lowers: bool = False
    gains: Gains | None = None


class _Knob(NamedTuple):
    """The parser for the limits of a knob, the largest limit, and the unit of the knob; 0: a hundredth of the range."""

    parse: Callable[[Any], int]
    most: int
    unit: int


def _whole(value: Any) -> int:
    number = float(value)
    if not abs(number) < MAX_GAIN * MICRO or number != int(number):
        raise ValueError(f"a whole number, not `{value}`")
    return int(number)


def _parameter(value: Any) -> int:
    number = float(value)
    if not abs(number) < MICRO:
        raise ValueError(f"a number below {MICRO:g}, not `{value}`")
    return round(number * MICRO)


def _fairness(value: Any) -> int:
    parameter = _parameter(value)
    if not 0 <= parameter <= MICRO:
        raise ValueError(f"from 0 to 1, not `{value}`")
    return parameter


KNOBS: Mapping[str, _Knob] = {
    "replicas": _Knob(_whole, MAX_EXTRA, 1),
    "quota.cpu": _Knob(parse_cpu, 1000 * MAX_UNITS, 1000),
    "quota.memory": _Knob(parse_bytes, MAX_BYTES, 2**20),
    "quota.gpu": _Knob(lambda value: WHOLE * _whole(value), WHOLE * MAX_UNITS, WHOLE),
    "policy.fairness": _Knob(_fairness, MICRO, 0),
    "policy.score.TERM": _Knob(_parameter, MICRO * MICRO, 0),
    "policy.order.TERM": _Knob(_parameter, MICRO * MICRO, 0),
}
"""The numbers that a control loop can set: replicas beyond those of a service's scaler, an amount of a tenant's quota,
and a parameter of the policy that any number up to its limit is valid for.
"""


def format_knob(knob: str, of: str, value: int) -> str:
    """Return the value of a knob for people: `quota.gpu of ann: 12`."""
    match knob:
        case _ if value == PLENTY:
            told = "unlimited"
        case "quota.cpu":
            told = format_cpu(value)
        case "quota.memory":
            told = format_bytes(value)
        case "quota.gpu":
            told = f"{value / WHOLE:g}"
        case "replicas":
            told = f"{value:+d}"
        case _:
            told = f"{value / MICRO:g}"
    return f"{knob} of {of}: {told}" if of else f"{knob}: {told}"


def compile_control(value: Any, field: str, every: int, found: Findings) -> Control | None:
    """Compile a control loop of rules that are evaluated `every` nanoseconds; None after errors."""
    spec = found.convert(value, ControlSpec, field)
    if spec is None:
        return None
    knob = KNOBS.get(_TERM.sub(r"\1.TERM", spec.knob))
    if knob is None:
        need, hint = ", ".join(KNOBS), near(spec.knob, KNOBS) or "quota.gpu"
        what = "a control loop cannot set this"
        found.add(SpecError(what, field=f"{field}.knob", need=need, have=spec.knob[:80], hint=f"knob: {hint}"))
        return None
    _check_owner(spec, field, found)
    scopes: tuple[Scope, ...] = ("fleet", "service") if spec.knob == "replicas" else ("fleet",)
    target = found.get(None, _target, spec.target, f"{field}.target", every, scopes)
    step = found.get(MINUTE, parse_or_raise, parse_duration, spec.every, f"{field}.every", DAY)
    if step < every:
        what, hint = "the steps are more frequent than the evaluations of the rules", "every: 1m"
        found.add(SpecError(what, field=f"{field}.every", need="at least `every` of the file", hint=hint))
    least = found.get(0, parse_or_raise, knob.parse, spec.least, f"{field}.least", knob.most)
    most = found.get(0, parse_or_raise, knob.parse, spec.most, f"{field}.most", knob.most)
    unit = knob.unit or max(1, (most - least) // 100)
    if not found.doubts(field) and (least < 0 or most - least < unit):
        what = "`least` must be less than `most`"
        need, have = "0 or more, and `most` above `least`", f"{spec.least} to {spec.most}"
        found.add(SpecError(what, field=f"{field}.most", need=need, have=have, hint="least: 1, most: 8"))
    gains = None if spec.gains == "auto" else spec.gains
    if gains is not None and not all(0 <= gain <= MAX_GAIN for gain in (gains.proportional, gains.integral)):
        need, hint = f"0 to {MAX_GAIN:g}", "gains: auto"
        found.add(SpecError("a gain is out of range", field=f"{field}.gains", need=need, have=str(gains), hint=hint))
    if target is None or found.doubts(field):
        return None
    return Control(spec.knob, spec.of, target, least, most, unit, step, spec.effect == "lowers", gains)


def _check_owner(spec: ControlSpec, field: str, found: Findings) -> None:
    """Check the service or the tenant whose number is set."""
    if spec.knob.startswith(POLICY):
        if spec.of:
            what, hint = "a parameter belongs to the policy in force", "leave `of` out"
            found.add(SpecError(what, field=f"{field}.of", need="nothing", have=spec.of[:80], hint=hint))
        return
    tenant, colon, name = spec.of.rpartition(":") if spec.knob == "replicas" else ("", "", spec.of)
    found.get(None, check_name, name, f"{field}.of")
    if colon:
        found.get(None, check_name, tenant, f"{field}.of")


def _target(written: str | dict[str, Quantity], field: str, every: int, scopes: tuple[Scope, ...]) -> Compare:
    """Compile a target: a signal of one of these scopes and its value, or text such as `avg_over(fleet_use, 10m) ==
    80%`.
    """
    text = written
    if isinstance(text, dict):
        text = " and ".join(f"{signal} == {value}" for signal, value in text.items())
    condition = parse_condition(text, field, every)
    hint = "target: {fleet_use: 80%}"
    if not isinstance(condition, Compare) or condition.operator != "==":
        raise SpecError("this is no target", field=field, need="one signal and its value", have=text[:200], hint=hint)
    have, scope = condition.read.signal, SIGNALS[condition.read.signal].scope
    if scope not in scopes:
        what = f"the target of this control loop cannot be a signal of {scope}s"
        need = " or ".join(f"a signal of {'the fleet' if one == 'fleet' else 'the service'}" for one in scopes)
        raise SpecError(what, field=field, need=need, have=have, hint=hint)
    return condition


__all__ = ["KNOBS", "POLICY", "Control", "ControlSpec", "Gains", "compile_control", "format_knob"]
