"""What runs on whole devices and what waits for them, seen as one: for policies that share all devices out anew.

Such a policy says who is to run where (`wanted`, a row for each task). `carry_out` makes a plan of that: who runs
otherwise is asked to yield, who has room there already is placed, and the others are held until they have. Work without
devices, or with shares of them, is placed as it comes in the room that is left, and never asked to yield.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from poise.model.decisions import Cause, Decision, Hold, Place, Plan, Preempt, Reason, Why
from poise.model.fleet import Resident
from poise.model.resources import WHOLE, Shape
from poise.model.views import Candidate, Snapshot
from poise.policy.allowance import Allowance
from poise.policy.place import Draft
from poise.policy.reclaim import service
from poise.policy.score import TERMS

Rows = tuple[int, ...]
"""A row of the fleet for each task, in the order of their ranks."""


class Claim(NamedTuple):
    """A unit on whole devices. `rows` are where its tasks are, none while it waits; `least` and `most` how many it may
    have. `attained` is its service in nanoseconds of one device, `since` the instant at which it started, or became
    ready. Of one that runs there is a `resident`, of one that could be placed a `candidate`.
    """

    unit: str
    ordinal: int
    shape: Shape
    least: int
    most: int
    rows: Rows
    attained: int
    since: int
    resident: Resident | None = None
    candidate: Candidate | None = None

    @property
    def stays(self) -> bool:
        """Whether it may not be asked to yield."""
        return self.resident is not None and not self.resident.preemptible

    @property
    def stopping(self) -> bool:
        """Whether it has been asked to already."""
        return self.resident is not None and self.resident.stopping


def claims_of(view: Snapshot) -> list[Claim]:
    """All of them, in order of submission."""
    waiting = {candidate.unit: candidate for candidate in view.candidates}
    rows: dict[str, list[int]] = {}
    residents: dict[str, Resident] = {}
    for row, of in enumerate(view.fleet.residents):
        for resident in of:
            if on_devices(resident.shape) and resident.unit not in waiting:
                rows.setdefault(resident.unit, []).append(row)
                residents[resident.unit] = resident
    found = [_running(resident, tuple(rows[unit]), view.now) for unit, resident in residents.items()]
    found += [_waiting(candidate) for candidate in view.candidates if on_devices(candidate.shape)]
    return sorted(found, key=_ordinal)


def on_devices(shape: Shape) -> bool:
    """Whether it has whole devices."""
    return shape.gpus > 0 and shape.share == WHOLE


def devices_by_model(view: Snapshot, claims: Sequence[Claim]) -> dict[int, int]:
    """How many whole devices there are of each model for claims: those that are free, and those that claims hold."""
    fleet = view.fleet
    left: Counter[int] = Counter()
    held: dict[int, set[int]] = {}
    for row, residents in enumerate(fleet.residents):
        for resident in residents:
            if on_devices(resident.shape):
                held.setdefault(row, set()).update(resident.devices)
    for row, node in enumerate(fleet.nodes):
        if fleet.closed[row]:
            continue
        mine = held.get(row, set())
        for place, device in enumerate(node.devices):
            if device.index in mine or fleet.device_share[row, place] == WHOLE:
                left[int(fleet.device_model[row, place])] += 1
    return dict(left)


def carry_out(
    view: Snapshot,
    name: str,
    claims: Sequence[Claim],
    wanted: Mapping[str, Rows],
    words: Mapping[str, str],
    *,
    until: int | None = None,
    memory: dict[str, Any] | None = None,
) -> Plan:
    """The plan by which the claims of `wanted` come to run there, and no others; those of them that have no rows are to
    run as soon as there is room. `words` say of each why.
    """
    decisions: list[Decision] = []
    holds: dict[str, tuple[Reason, ...]] = {}
    draft, allowance = Draft(view, {"first": 1.0}, TERMS), Allowance(view.quotas)
    yielding: list[str] = []
    for claim in claims:
        rows = wanted.get(claim.unit, ())
        if claim.stopping:
            yielding.append(claim.unit)
        elif claim.rows and not claim.stays and Counter(rows) != Counter(claim.rows):
            yielding.append(claim.unit)
            why = Why(policy=name, base=view.revision, rank=words.get(claim.unit, ""))
            decisions.append(Preempt(unit=claim.unit, cause=_cause(claim, rows), why=why))
    for claim in claims:
        candidate = claim.candidate
        if candidate is None:
            continue
        rows = wanted.get(claim.unit, ())
        over = allowance.against(candidate) if candidate.tenant else ()
        if rows and not yielding and not over and _has_room(draft, claim.shape, rows):
            rows = rows[: max(claim.least, allowance.room_of(candidate, claim.shape))]
            spots = tuple(draft.take(row, candidate, claim.shape) for row in rows)
            allowance.take(candidate, claim.shape, len(spots))
            why = Why(policy=name, base=view.revision, rank=words.get(claim.unit, ""))
            decisions.append(Place(unit=claim.unit, spots=spots, why=why))
        elif not candidate.recovering:
            coming = yielding if claim.unit in wanted else []
            holds[candidate.queue] = over or _reasons(draft, claim, coming)
    _place_others(view, name, draft, allowance, decisions, holds)
    decisions += [Hold(queue=queue, reasons=reasons) for queue, reasons in holds.items()]
    return Plan(base=view.revision, policy=name, decisions=tuple(decisions), until=until, memory=memory)


def _place_others(
    view: Snapshot,
    name: str,
    draft: Draft,
    allowance: Allowance,
    decisions: list[Decision],
    holds: dict[str, tuple[Reason, ...]],
) -> None:
    """First come, first served where there is room."""
    for candidate in view.candidates:
        if on_devices(candidate.shape) or candidate.queue in holds:
            continue
        if candidate.tenant and (over := allowance.against(candidate)):
            holds[candidate.queue] = over
            continue
        shape, needed = candidate.shape, candidate.least or candidate.tasks
        room = draft.capacity(shape)
        rows: list[int] = []
        for row in sorted(range(len(room)), key=lambda row: (-int(room[row]), row)):
            rows += [row] * min(int(room[row]), needed - len(rows))
        if len(rows) < needed:
            if not candidate.recovering:
                holds[candidate.queue] = tuple(draft.reasons(shape))
            continue
        why = Why(policy=name, base=view.revision, rank="first come")
        spots = tuple(draft.take(row, candidate, shape) for row in rows)
        allowance.take(candidate, shape, needed)
        decisions.append(Place(unit=candidate.unit, spots=spots, why=why))


def _has_room(draft: Draft, shape: Shape, rows: Rows) -> bool:
    room = draft.capacity(shape)
    return all(room[row] >= tasks for row, tasks in Counter(rows).items())


def _reasons(draft: Draft, claim: Claim, coming: Sequence[str]) -> tuple[Reason, ...]:
    """Why a claim waits: for those that are asked to yield for it, or for others that come before it."""
    if coming:
        return (Reason(code="PREEMPTING", have=", ".join(coming), need=claim.unit, wakes="finished"),)
    reasons = list(draft.reasons(claim.shape))
    if claim.least > 1:
        have = min(claim.least - 1, int(draft.capacity(claim.shape).sum()))
        reasons.insert(0, Reason(code="GANG_INCOMPLETE", need=str(claim.least), have=str(have), wakes="finished"))
    return tuple(reasons) or (Reason(code="NEXT_ROUND", wakes="decided"),)


def _cause(claim: Claim, rows: Rows) -> Cause:
    if not rows:
        return "yield"
    if len(rows) == len(claim.rows):
        return "move"
    return "grow" if len(rows) > len(claim.rows) else "shrink"


def _running(resident: Resident, rows: Rows, now: int) -> Claim:
    return Claim(
        unit=resident.unit,
        ordinal=resident.ordinal,
        shape=resident.shape,
        least=resident.least or resident.most,
        most=resident.most,
        rows=rows,
        attained=service(resident, now),
        since=resident.since,
        resident=resident,
    )


def _waiting(candidate: Candidate) -> Claim:
    return Claim(
        unit=candidate.unit,
        ordinal=candidate.ordinal,
        shape=candidate.shape,
        least=candidate.least or candidate.tasks,
        most=candidate.tasks,
        rows=(),
        attained=candidate.attained,
        since=candidate.ready,
        candidate=candidate,
    )


def _ordinal(claim: Claim) -> int:
    return claim.ordinal
