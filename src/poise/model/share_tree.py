"""Fair shares as records: a tree of groups, tenants, projects and users, what each holds, and what it owes.

Held resources are charged by price. A charge within the guarantee is free. A charge above it is *borrowed*: it becomes
a debt, which halves in each half-life. A debt is stored as a value and an instant, in integers, and computed when it is
read. So no timer is needed, and the same log gives the same debts, to the last digit.

>>> decayed(1_000_000, 0, DAY, DAY)
500000
"""

from collections.abc import Callable, Collection, Mapping
from math import isqrt
from typing import Literal

import msgspec

from poise.model.catalogue import models_named
from poise.model.resources import Node, Shape
from poise.units import DAY, HOUR

Kind = Literal["group", "tenant", "project", "user", "others"]
Amounts = dict[str, int]
"""Thousandths of devices by model, and milli-CPU of work without devices under `cpu`."""

OTHERS = "others"
"""All tenants, projects or users that the tree does not name, at each place where it names one."""

GPU, CPU = "gpu", "cpu"
"""Devices of any model, and the CPU of work without devices."""

HALF_LIFE = 7 * DAY
WEIGHT = 1000
"""A weight of 1."""

PRICE = 1_000_000
"""Micro-dollars per hour of a device whose price neither the file nor the catalogue determines."""

PRICE_OF_CPU = 30_000
"""Micro-dollars per hour of one core, for work without devices."""

PER_TERA = 10_000
"""Micro-dollars per hour for 10^12 operations per second in fp16 or bf16: the price of a model of the catalogue. So an
hour of a T4 costs 0.65 dollars and one of an H100 9.89 dollars, unless the file sets other prices.
"""


class ShareNode(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node of the tree. `parent` is the index of its parent, -1 at the top; `of` is the tenant, project or user that
    it stands for. `weight` is in thousandths, `guaranteed` and `limit` are amounts. A node that does not `lend` keeps
    its unused guarantee free.
    """

    name: str
    kind: Kind
    of: str = ""
    parent: int = -1
    weight: int = WEIGHT
    guaranteed: Amounts = {}
    limit: Amounts = {}
    lends: bool = True


class ShareTree(msgspec.Struct, frozen=True, omit_defaults=True):
    """All nodes, each after its parent. `prices` are declared micro-dollars per hour by device model."""

    nodes: tuple[ShareNode, ...] = ()
    half_life: int = HALF_LIFE
    prices: dict[str, int] = {}

    @property
    def named(self) -> bool:
        """Whether any node names a group, tenant, project or user."""
        return any(node.kind != "others" for node in self.nodes)

    def leaf_of(self, tenant: str, project: str, user: str) -> str:
        """Return the name of the node that a job of this tenant, project and user counts for: the deepest match, or the
        node for all others next to it.
        """
        place, at_top = -1, True
        while True:
            below = [number for number, node in enumerate(self.nodes) if node.parent == place]
            found = None
            if at_top:
                tenants = (
                    number for number, node in enumerate(self.nodes) if (node.kind, node.of) == ("tenant", tenant)
                )
                found, at_top = next(tenants, None), False
            else:
                for kind, of in (("project", project), ("user", user)):
                    found = next(
                        (
                            number
                            for number in below
                            if of and (self.nodes[number].kind, self.nodes[number].of) == (kind, of)
                        ),
                        None,
                    )
                    if found is not None:
                        break
            if found is None:
                found = next((number for number in below if self.nodes[number].kind == "others"), None)
                return self.nodes[place].name if found is None else self.nodes[found].name
            place = found

    def price(self, model: str) -> int:
        """Return micro-dollars per hour of a device of this model, or of a core (`cpu`)."""
        declared = self.prices.get(model)
        if declared is not None:
            return declared
        return PRICE_OF_CPU if model == CPU else _price_of(model)


def _price_of(model: str) -> int:
    """Return the price derived from the catalogue's peak rate."""
    known = _CATALOGUED.get(model)
    if known is None:
        entries = models_named(model) if model else ()
        peak = max((entry.rates.get(name, 0) for entry in entries for name in ("fp16", "bf16")), default=0)
        known = _CATALOGUED[model] = PER_TERA * peak // 10**12 or PRICE
    return known


_CATALOGUED: dict[str, int] = {}


# --- debts -----------------------------------------------------------------------------------------------------------


_ONE = 1 << 62
_PART_BITS = 8
_PARTS = 3
_STEPS = 1 << (_PART_BITS * _PARTS)
"""Steps of a half-life in which a debt decays: 36 ms for 7 days. Shorter times add up until they reach a step."""


def _tables() -> tuple[tuple[int, ...], ...]:
    """By part of the exponent, 2^-x in units of 2^-62: integer square roots, the same on every machine."""
    root, roots = _ONE >> 1, []
    for _ in range(_PART_BITS * _PARTS):
        root = isqrt(root * _ONE)
        roots.append(root)
    tables = []
    for part in range(_PARTS):
        table = []
        for number in range(1 << _PART_BITS):
            value = _ONE
            for bit in range(_PART_BITS):
                if number >> (_PART_BITS - 1 - bit) & 1:
                    value = value * roots[part * _PART_BITS + bit] >> 62
            table.append(value)
        tables.append(tuple(table))
    return tuple(tables)


_POWERS = _tables()
_LIFE_OF_DEBT = 6653256548920620560
"""1 / ln 2 in units of 2^-62: at a constant rate, the debt converges to the rate times this many half-lives."""


def _left_after(steps: int) -> int:
    """Return what is left of 2^62 after `steps` steps."""
    whole, part = divmod(steps, _STEPS)
    if whole >= 62:
        return 0
    value = _ONE
    for number, table in enumerate(_POWERS):
        shift = _PART_BITS * (_PARTS - 1 - number)
        value = value * table[part >> shift & ((1 << _PART_BITS) - 1)] >> 62
    return value >> whole


def decayed(value: int, since: int, now: int, half_life: int, rate: int = 0) -> int:
    """Return a debt in nano-dollars as of `now`. It was `value` at the instant `since`, and grows by `rate`
    nano-dollars an hour.

    Decay happens in steps counted from 0, so the result does not depend on how often it is computed in between. Growth
    within a step is added at once and first decays with the next step.
    """
    steps = now * _STEPS // half_life - since * _STEPS // half_life
    if not steps:
        return value + rate * (now - since) // HOUR
    left = _left_after(steps)
    if rate:
        in_steps = steps * half_life // _STEPS
        counted = half_life * (_ONE - left) * _LIFE_OF_DEBT >> 124
        value = value * left // _ONE
        return value + rate * max(0, counted + (now - since) - in_steps) // HOUR
    return value * left // _ONE


# --- amounts ---------------------------------------------------------------------------------------------------------


def borrowed_of(held: Mapping[str, int], guaranteed: Mapping[str, int], price: Callable[[str], int]) -> Amounts:
    """Return what is held beyond a guarantee. A model's own guarantee counts first, then that for any device (`gpu`),
    applied to the most expensive devices first.
    """
    over = {model: amount - own for model, amount in held.items() if amount > (own := _own(guaranteed, model))}
    any_left = guaranteed.get(GPU, 0)
    if any_left and over:
        for model in sorted(over, key=lambda model: (-price(model), model)) if len(over) > 1 else list(over):
            if model != CPU:
                covered = min(over[model], any_left)
                any_left -= covered
                over[model] -= covered
        over = {model: amount for model, amount in over.items() if amount}
    return over


def _own(guaranteed: Mapping[str, int], model: str) -> int:
    """Return the guarantee of exactly this model; a device without a model is called `gpu` too."""
    return guaranteed.get(model, 0) if model != GPU else 0


def unused_of(guaranteed: Mapping[str, int], held: Mapping[str, int]) -> Amounts:
    """Return the unused part of a guarantee; `gpu` for the part that any device can fill."""
    unused = {
        model: left
        for model, amount in guaranteed.items()
        if model != GPU and (left := amount - held.get(model, 0)) > 0
    }
    beyond = sum(max(0, amount - _own(guaranteed, model)) for model, amount in held.items() if model != CPU)
    if (left := guaranteed.get(GPU, 0) - beyond) > 0:
        unused[GPU] = left
    return unused


def amounts_of(shape: Shape, model: str, tasks: int = 1) -> Amounts:
    """Return what tasks of a shape hold, on devices of this model."""
    if shape.gpus:
        return {model: shape.gpus * shape.share * tasks}
    return {CPU: shape.cpu * tasks} if shape.cpu else {}


def amounts_there(shape: Shape, node: Node, devices: Collection[int]) -> Amounts:
    """Return what a task of a shape holds with these devices of a node."""
    if not shape.gpus:
        return {CPU: shape.cpu} if shape.cpu else {}
    amounts: Amounts = {}
    for device in node.devices:
        if device.index in devices:
            model = device.model or device.kind
            amounts[model] = amounts.get(model, 0) + shape.share
    return amounts


def sum_of(amounts: Mapping[str, int], named: str) -> int:
    """Return the amount of the model `named`, or of any device (`gpu`)."""
    if named == GPU:
        return sum(amount for model, amount in amounts.items() if model != CPU)
    return amounts.get(named, 0)


def told(named: str, amount: int) -> str:
    """Describe an amount for people: `2 GPU`, `0.5 H100`, `4 CPU`."""
    return f"{amount / WEIGHT:g} {named.upper() if named in (GPU, CPU) else named}"


# --- view of a policy ------------------------------------------------------------------------------------------------


class ShareView(msgspec.Struct, frozen=True):
    """The tree and, by index of its nodes, what each holds and owes (nano-dollars) at the instant of the view."""

    tree: ShareTree
    held: tuple[Amounts, ...]
    debts: tuple[int, ...]
