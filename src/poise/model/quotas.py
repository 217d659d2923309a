"""Quotas: how much the work of one tenant may hold at once, on all nodes together."""

from typing import NamedTuple

import msgspec

from poise.model.decisions import Reason
from poise.model.resources import PLENTY, WHOLE, Shape
from poise.units import format_bytes, format_cpu


class Amounts(NamedTuple):
    """milli-CPU, bytes of requested memory, and thousandths of devices."""

    cpu: int = 0
    memory: int = 0
    gpus: int = 0

    def plus(self, other: "Amounts", times: int = 1) -> "Amounts":
        (cpu, memory, gpus), (more_cpu, more_memory, more_gpus) = self, other
        return Amounts(cpu + times * more_cpu, memory + times * more_memory, gpus + times * more_gpus)

    def holds(self, other: "Amounts") -> bool:
        """Whether there is enough of each amount that the other needs."""
        (cpu, memory, gpus), (need_cpu, need_memory, need_gpus) = self, other
        enough = need_cpu <= max(0, cpu) and need_memory <= max(0, memory)
        return enough and need_gpus <= max(0, gpus)

    def room_for(self, each: "Amounts") -> int:
        """Return how many times `each` fits."""
        return max(0, min((have // need for have, need in zip(self, each, strict=True) if need), default=PLENTY))

    def refusal(self, tenant: str, other: "Amounts") -> Reason:
        """Return the reason why another does not fit: the amounts that are short, and what is left of them."""
        short = [place for place, (have, need) in enumerate(zip(self, other, strict=True)) if need > max(0, have)]
        have = ", ".join(_words(place, max(0, self[place])) for place in short)
        need = ", ".join(_words(place, other[place]) for place in short)
        return Reason(code="QUOTA", subject=tenant, need=need, have=have)


def _words(place: int, amount: int) -> str:
    return (f"{format_cpu(amount)} CPU", format_bytes(amount), f"{amount / WHOLE:g} GPU")[place]


BASE = -1
"""Number of the hours in force outside all hours."""


class QuotaHours(msgspec.Struct, frozen=True, omit_defaults=True):
    """Amounts in some hours, from the times of one cron expression to those of another; `told` as the user wrote it."""

    begins: str
    ends: str
    zone: str
    told: str
    cpu: int = PLENTY
    memory: int = PLENTY
    gpus: int = PLENTY


class Quota(msgspec.Struct, frozen=True, omit_defaults=True):
    """Maximum amounts that a tenant's running work may hold: milli-CPU, bytes, thousandths of devices. Some `hours` may
    have other amounts; `turn` is the number of the hours in force.
    """

    cpu: int = PLENTY
    memory: int = PLENTY
    gpus: int = PLENTY
    hours: tuple[QuotaHours, ...] = ()
    turn: int = BASE

    @property
    def amounts(self) -> Amounts:
        """The amounts in force."""
        of = self.hours[self.turn] if self.turn != BASE else self
        return Amounts(of.cpu, of.memory, of.gpus)

    @property
    def most(self) -> Amounts:
        """The largest amounts at any hour."""
        each = [(self.cpu, self.memory, self.gpus), *((of.cpu, of.memory, of.gpus) for of in self.hours)]
        return Amounts(*map(max, zip(*each, strict=True)))


def asked(shape: Shape, tasks: int = 1) -> Amounts:
    """Return what tasks of a shape count for; a share of a device counts as a fraction."""
    return Amounts(shape.cpu * tasks, shape.memory * tasks, shape.gpus * shape.share * tasks)
