"""Budgets: how much a tenant, a project or a user may use in each period, in money or in device hours.

`BudgetsSpec` is a file:

    kind: budgets
    time_zone: Europe/Zurich
    budgets:
      - {name: research, tenant: research, amount: $5000, every: month, at_limit: hold}
      - {name: ann, user: ann, amount: 200h, every: week, alerts: [50, 90]}

Use is measured in billionths of a dollar or of a device hour, in integers, so a replay gives the same sums.
"""

import re
from decimal import Decimal
from typing import Any, Literal

import msgspec

from poise.errors import SpecError
from poise.model.document import Findings
from poise.model.fields import Quantity, parse_or_raise
from poise.model.reservations import Zones
from poise.model.resources import WHOLE, Node, Shape
from poise.model.share_tree import CPU, ShareTree
from poise.model.spec import check_name
from poise.units import HOUR

Every = Literal["day", "week", "month", "year"]
AtLimit = Literal["alert", "hold"]
Unit = Literal["dollars", "device-hours"]

BEGINS: dict[Every, str] = {"day": "0 0 * * *", "week": "0 0 * * 1", "month": "0 0 1 * *", "year": "0 0 1 1 *"}
"""The cron expression for the start of each period."""

ONE = 10**9
"""A dollar or a device hour."""

MAX_BUDGETS, MAX_ALERTS = 1000, 8
MAX_AMOUNT = 10**9 * ONE
ALERTS = (50, 80, 100)

AMOUNT = r"\$\s*[0-9]{1,9}(?:\.[0-9]{1,9})?|[0-9]{1,9}(?:\.[0-9]{1,9})?\s*h"
_AMOUNT = re.compile(AMOUNT)


class BudgetSpec(msgspec.Struct, forbid_unknown_fields=True):
    """One budget, as written."""

    name: str
    amount: Quantity
    tenant: str = ""
    project: str = ""
    user: str = ""
    every: Every = "month"
    alerts: list[int] = msgspec.field(default_factory=lambda: list(ALERTS))
    at_limit: AtLimit = "alert"


class BudgetsSpec(msgspec.Struct, forbid_unknown_fields=True):
    """A whole file."""

    kind: str
    budgets: list[BudgetSpec]
    time_zone: str = "UTC"


class Budget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A budget for the work of a `tenant`, a `project` and a `user` (empty: any), in billionths of its `unit`. Periods
    begin in the time `zone`. `alerts` are percentages of the amount, in ascending order. If it `holds`, new work is on
    hold while the budget is spent.
    """

    name: str
    amount: int
    unit: Unit = "dollars"
    every: Every = "month"
    zone: str = "UTC"
    tenant: str = ""
    project: str = ""
    user: str = ""
    alerts: tuple[int, ...] = ALERTS
    holds: bool = False

    def covers(self, tenant: str, project: str, user: str) -> bool:
        """Return whether the budget covers the work of a job."""
        return all(of in ("", has) for of, has in ((self.tenant, tenant), (self.project, project), (self.user, user)))

    def counts_like(self, other: "Budget") -> bool:
        """Return whether the use so far also counts for the other budget."""
        same = ("unit", "every", "zone", "tenant", "project", "user")
        return all(getattr(self, field) == getattr(other, field) for field in same)

    def told(self, value: int) -> str:
        """Describe an amount for people.

        >>> Budget(name="a", amount=5 * ONE).told(2_345_678_901)
        '$2.35'
        """
        return f"${value / ONE:.2f}" if self.unit == "dollars" else f"{round(value / ONE, 2):g} device hours"


class Rates(msgspec.Struct, frozen=True):
    """The cost of an attempt in an hour, in billionths of a dollar, and of a device hour."""

    dollars: int = 0
    device_hours: int = 0

    def of(self, unit: Unit) -> int:
        return self.dollars if unit == "dollars" else self.device_hours


def rates_of(shape: Shape, node: Node, devices: tuple[int, ...], tree: ShareTree | None) -> Rates:
    """Return the cost of a task on these devices of a node, from the declared prices of the devices, otherwise from
    those of the shares, otherwise from the catalogue. Work without devices is charged by its cores.
    """
    tree = tree or ShareTree()
    if not devices:
        return Rates(0 if shape.gpus else shape.cpu * tree.price(CPU))
    held = [device for device in node.devices if device.index in devices]
    share = len(devices) * shape.share
    declared = sum(device.price for device in held) * shape.share // WHOLE
    model = held[0].model or held[0].kind if held else ""
    return Rates(declared * 1000 if declared else share * tree.price(model), share * (ONE // WHOLE))


def used(rate: int, since: int, until: int) -> int:
    """Return the use at this rate between two instants.

    >>> used(3 * ONE, 0, HOUR // 2) == ONE + ONE // 2
    True
    """
    return rate * max(0, until - since) // HOUR


def compile_budgets(document: Any, zones: Zones) -> tuple[Budget, ...]:
    """Compile a parsed file. Raises `SpecError` with every error."""
    found = Findings()
    spec = found.convert(document, BudgetsSpec) or BudgetsSpec(kind="budgets", budgets=[])
    if spec.kind != "budgets":
        found.add(SpecError("this file has no budgets", field="kind", need="budgets", have=spec.kind))
    found.get(None, zones.shifts, spec.time_zone, zones.now, "time_zone")
    if len(spec.budgets) > MAX_BUDGETS:
        what, need = "there are too many budgets", f"at most {MAX_BUDGETS}"
        found.add(SpecError(what, field="budgets", need=need, have=str(len(spec.budgets))))
    made = tuple(_budget(one, spec.time_zone, f"budgets[{place}]", found) for place, one in enumerate(spec.budgets))
    names: set[str] = set()
    for place, one in enumerate(made):
        if one.name in names:
            what, field = f"the name `{one.name}` is used twice", f"budgets[{place}].name"
            found.add(SpecError(what, code="E107", field=field, hint=f"name: {one.name}-2"))
        names.add(one.name)
    found.check(lambda field: "budgets: [{name: research, tenant: research, amount: $5000}]")
    return made


def _budget(spec: BudgetSpec, zone: str, at: str, found: Findings) -> Budget:
    found.get(None, check_name, spec.name, f"{at}.name")
    for field in ("tenant", "project"):
        if getattr(spec, field):
            found.get(None, check_name, getattr(spec, field), f"{at}.{field}")
    if not (spec.tenant or spec.project or spec.user):
        what = "the budget covers nobody"
        found.add(SpecError(what, field=at, need="tenant, project or user", hint=f"tenant: {spec.name[:63]}"))
    if len(spec.user) > 63 or not spec.user.isprintable():
        found.add(SpecError("this is not a user", field=f"{at}.user", have=ascii(spec.user[:80])))
    amount = found.get(ONE, parse_or_raise, _parse_amount, spec.amount, f"{at}.amount", MAX_AMOUNT)
    if not amount:
        found.add(SpecError("the budget is empty", code="E103", field=f"{at}.amount", need="more than 0"))
    if len(spec.alerts) > MAX_ALERTS or not all(0 < alert <= 1000 for alert in spec.alerts):
        what, need = "these are not alerts", f"at most {MAX_ALERTS} percentages from 1 to 1000"
        found.add(SpecError(what, code="E103", field=f"{at}.alerts", need=need, have=str(spec.alerts)[:80]))
    return Budget(
        name=spec.name,
        amount=amount,
        unit="device-hours" if str(spec.amount).endswith("h") else "dollars",
        every=spec.every,
        zone=zone,
        tenant=spec.tenant,
        project=spec.project,
        user=spec.user,
        alerts=tuple(sorted(set(spec.alerts))),
        holds=spec.at_limit == "hold",
    )


def _parse_amount(value: Quantity) -> int:
    text = str(value).strip()
    if not _AMOUNT.fullmatch(text):
        raise ValueError("dollars, such as `$5000`, or device hours, such as `200h`")
    return int(Decimal(text.strip("$h ")) * ONE)


__all__ = ["BEGINS", "ONE", "Budget", "BudgetsSpec", "Rates", "compile_budgets", "rates_of", "used"]
