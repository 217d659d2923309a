"""Answer `explain`, `why not`, `plan` and `unblock` by running the policy.

Each answer comes from the policy in charge. It decides on the current view and on changed copies of it
(`policy/hypothetical.py`), so an answer cannot differ from the real decision. Start times come from simulations of a
fork of the ledger (`engine/lookahead.py`). Nothing here changes a ledger: the inputs are a `Question` or a `Proposal`
and a copy of the view. So it may run beside the loop that owns the ledger. Code that reads all nodes uses columns.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import msgspec
import numpy as np

from poise.errors import Conflict
from poise.kernel.budgeting import why_held
from poise.kernel.explain import Active, After, Alike, Question, artifacts_of, known_as, turn_of
from poise.kernel.find import find_node
from poise.kernel.fitting import strangers
from poise.kernel.ledger import JobState, Ledger, State, job_status, may_follow
from poise.model.arrays import size_of
from poise.model.decisions import UNKNOWN, Hold, Place, Plan, Preempt, Reason, Resize
from poise.model.events import JobSubmitted
from poise.model.fleet import CONDITIONS, CPU, DEVICES, DRAINED, EMPTYING, MEMORY, NETWORK, Fleet, Ints, Resident
from poise.model.jobs import GRACE, Job, Priority, retries_of
from poise.model.profiles import CERTAIN, ENDLESS, NO_END, Estimate, Profile, estimate_run, remaining
from poise.model.reports.questions import (
    Ahead,
    Explanation,
    Foreseen,
    Freeing,
    Going,
    PlannedLater,
    PlannedPlace,
    PlannedYield,
    PlanReport,
    Prediction,
    Refusing,
    Start,
    Suggestion,
    UnblockReport,
    Waiting,
    WhyNot,
)
from poise.model.resources import ANYWHERE, Shape, Wants
from poise.model.views import Candidate, Snapshot
from poise.policy import hypothetical
from poise.policy.entitled import served_first
from poise.policy.feasible import NAMED, Ability, ability, capacity, closed_reason, never, refusals, usable_devices
from poise.policy.hypothetical import LOOKED_AT, ClusterPolicy
from poise.policy.predict import Speeds, in_size
from poise.policy.rank import Order
from poise.policy.reclaim import Reservation, cost_of, ends, reserve
from poise.policy.timely import timely_in
from poise.policy.turns import by_share
from poise.units import (
    HOUR,
    format_bytes,
    format_cpu,
    format_duration,
    format_rate,
    parse_bytes,
    parse_rate,
    type_bytes,
    type_rate,
)

FEW = 8
"""Maximum number of names, units ahead and ends in a report, unless everything is asked for."""

TRIED = 32
"""Maximum number of nodes, jobs or kinds of node to try per kind of change, the likeliest first; fewer in large fleets.
"""

NEW = "the new one"
"""Name of a hypothetical additional node."""

OF_GANGS = ("GANG_INCOMPLETE", "SPREAD", "TOGETHER")
"""Reasons why a gang cannot start whole."""

CERTAINLY_HELD = ("QUOTA", "KEPT", "RESERVED", "BEHIND", "PREEMPTING", "PARTITION_BUSY")
"""Reasons of a policy against nodes that have room."""


# --- explain ---------------------------------------------------------------------------------------------------------


Foresee = Callable[[Sequence[Collection[str]]], Sequence[Start]]
"""Return the start time of the first unit of each group of waiting units."""


def explain(
    policy: ClusterPolicy, view: Snapshot, asked: Question, foresee: Foresee, *, everything: bool = False
) -> Explanation:
    """Return the full explanation of a job on this view. `foresee` looks ahead from the same instant with the same
    policy.
    """
    plan = policy.decide(view)
    later = hypothetical.after(view, plan)
    order = hypothetical.order_of(policy)
    ordered = _ordered(order, view) if asked.pending and order is not None else []
    starts = _starts(foresee, plan, asked.pending)
    waiting = [
        _waiting(policy, view, later, plan, ordered, alike, start, everything)
        for alike, start in zip(asked.pending, starts, strict=True)
    ]
    waiting += [
        Waiting(count=len(of.units), named=_some(of.units, everything), asks="", reasons=of.reasons)
        for of in asked.waiting
    ]
    return Explanation(
        job=asked.job,
        name=asked.name,
        status=asked.status,
        revision=view.revision,
        policy=_decided_by(policy, plan),
        waiting=tuple(waiting),
        running=tuple(_going(view, running) for running in asked.active),
        story=asked.story,
        left_out=asked.left_out,
    )


def _ordered(order: Order, view: Snapshot) -> list[Candidate]:
    """Return all waiting units in the order in which they are served."""
    timely = timely_in(view)
    return list(by_share(view, order.sort(view, timely), timely.pressed))


def _waiting(
    policy: ClusterPolicy,
    view: Snapshot,
    later: Snapshot,
    plan: Plan,
    ordered: Sequence[Candidate],
    alike: Alike,
    start: Start,
    everything: bool,
) -> Waiting:
    """Explain a group of waiting units. `later` is the view after `plan`; `ordered` is the order in which it served."""
    candidate = alike.candidate
    why = _why_held(plan, candidate, alike.unseen)
    held = (*alike.back, *(reason for reason in why if not alike.back or reason.code != "NEXT_ROUND"), *alike.late)
    held = (*(alike.never or strangers(view.fleet, _shapes_of(candidate))), *held)
    order = hypothetical.order_of(policy)
    ahead, first = _before(order, view, ordered, alike, everything) if order is not None else (0, ())
    going = hypothetical.placed(plan, candidate.unit)
    soonest = None if going else _soonest(policy, later, candidate)
    return Waiting(
        count=len(alike.units),
        named=_some(alike.units, everything),
        asks=_asks(candidate),
        reasons=held,
        place=order.words(candidate, view) if order is not None else "",
        ahead=ahead,
        first=first,
        refusing=() if going else tuple(_refusing(later, candidate, held, everything)),
        frees=() if going else _frees(policy, later, candidate, soonest, everything),
        start=_bounded(start, view, alike.not_before, soonest),
        prediction=_prediction(view, candidate),
        share=served_first(view, candidate),
    )


def _why_held(plan: Plan, candidate: Candidate, unseen: int) -> tuple[Reason, ...]:
    """Return every reason that the policy gave. A unit that the policy did not see gets the reasons of its queue."""
    if hypothetical.placed(plan, candidate.unit) is not None:
        return (Reason(code="NEXT_ROUND"),)
    held = next((of.reasons for of in plan.decisions if isinstance(of, Hold) and of.queue == candidate.queue), ())
    if unseen:
        before = f"{unseen} more of its kind" if unseen > 1 else "one more of its kind"
        return (*held, Reason(code="BEHIND", subject=before))
    return held or (Reason(code="NEXT_ROUND"),)


def _before(
    order: Order, view: Snapshot, ordered: Sequence[Candidate], alike: Alike, everything: bool
) -> tuple[int, tuple[Ahead, ...]]:
    """Return the number of units served before this one, and the first of them with the reasons for their order."""
    candidate = alike.candidate
    place = next((place for place, other in enumerate(ordered) if other.unit == candidate.unit), None)
    if place is None:  # not in the snapshot: it comes after the last unit of its queue there
        same = [place for place, other in enumerate(ordered) if other.queue == candidate.queue]
        place = same[-1] + 1 if same else 0
    first = ordered[:place] if everything else ordered[: min(place, FEW)]
    return place + alike.unseen, tuple(Ahead(other.unit, order.words(other, view)) for other in first)


NOW = Start(earliest=0, likely=0, latest=0)


def _starts(foresee: Foresee, plan: Plan, pending: Sequence[Alike]) -> list[Start]:
    """Return the start of the first unit of each group: now if the plan places it without queueing, else foreseen."""
    places = [hypothetical.placed(plan, alike.candidate.unit) for alike in pending]
    waits = [place is None or place.queued for place in places]
    asked = [alike.units for alike, waits_on in zip(pending, waits, strict=True) if waits_on]
    found = iter(foresee(asked) if asked else ())
    return [next(found) if waits_on else NOW for waits_on in waits]


def _bounded(start: Start, view: Snapshot, not_before: int, soonest: Reservation | None) -> Start:
    """Fill in the earliest start where nothing is foreseen: the first instant with room if no other unit takes it."""
    if start.guesses:
        return msgspec.structs.replace(start, earliest=None, likely=None, latest=None)
    if start.earliest is not None or soonest is None or soonest.at >= ENDLESS:  # the room is behind a service
        return start
    return msgspec.structs.replace(start, earliest=max(soonest.at, not_before) - view.now)


def _soonest(policy: ClusterPolicy, view: Snapshot, candidate: Candidate) -> Reservation | None:
    """Return where and when there is room first if no other unit takes it; None if there never is."""
    draft = hypothetical.draft_of(policy, view)
    needed = candidate.least or candidate.tasks
    found = [
        reservation
        for shape in (candidate.shape, *candidate.others)
        if (reservation := reserve(shape, draft, needed)) is not None
    ]
    return min(found, key=_at, default=None)


def _frees(
    policy: ClusterPolicy, view: Snapshot, candidate: Candidate, soonest: Reservation | None, everything: bool
) -> tuple[Freeing, ...]:
    """Return the units that must end to make that room, in order of their expected ends."""
    if soonest is None:
        return ()
    speeds = Speeds(view.fleet.models, view.profiles, view.throughputs)
    nodes: dict[str, list[str]] = {}
    first: dict[str, Resident] = {}
    for row in soonest.rows:
        for resident in view.fleet.residents[row]:
            if ends(resident, view.now, speeds) <= soonest.at:
                nodes.setdefault(resident.unit, []).append(view.fleet.names[row])
                first.setdefault(resident.unit, resident)
    freeing: list[tuple[int, Freeing]] = []
    for unit, resident in first.items():
        estimate = speeds.of_attempt(resident)
        elapsed = max(0, view.now - resident.since) if resident.running else 0
        left = _STOPPING if resident.stopping else _left(estimate, elapsed)
        overrun = _has_overrun(estimate, elapsed) and not resident.stopping
        one = Freeing(
            unit=unit,
            nodes=tuple(dict.fromkeys(nodes[unit])),
            left=left,
            overrun=overrun,
            protected=hypothetical.protected(policy, candidate, resident, view.now),
        )
        freeing.append((ends(resident, view.now, speeds), one))
    freeing.sort(key=lambda of: (of[0], of[1].unit))
    return tuple(one for _, one in (freeing if everything else freeing[:FEW]))


def _going(view: Snapshot, running: Active) -> Going:
    """Report a unit that holds resources, with its remaining time by the current estimate."""
    candidate = running.candidate
    rows = [view.fleet.rows[node] for node in running.nodes if node in view.fleet.rows]
    attempts = [of for row in rows for of in view.fleet.residents[row] if of.unit == candidate.unit]
    if attempts:
        estimate = Speeds(view.fleet.models, view.profiles, view.throughputs).of_attempt(attempts[0])
    else:  # not in the fleet's residents: too short, or queued behind similar units
        estimate = estimate_run(view.profiles.get(candidate.kind), candidate.declared)
    return Going(
        unit=candidate.unit,
        status=running.status,
        nodes=running.nodes,
        elapsed=running.elapsed,
        left=_STOPPING if running.status == "stopping" else _left(estimate, running.elapsed),
        overrun=_has_overrun(estimate, running.elapsed) and running.status != "stopping",
        why=running.why,
        reasons=(*strangers(view.fleet, _shapes_of(candidate)), *running.reasons),
        prediction=_prediction(view, candidate, len(attempts)),
        artifact=running.artifacts[running.variant],
    )


_STOPPING = Foreseen(mean=GRACE, deviation=0, source="is being stopped")


def _left(estimate: Estimate, elapsed: int) -> Foreseen:
    if estimate.source == UNKNOWN:
        return _foreseen(estimate)
    overrun = _has_overrun(estimate, elapsed)
    mean = remaining(elapsed, estimate.mean, estimate.deviation)
    return Foreseen(mean=mean, deviation=mean if overrun else estimate.deviation, source=estimate.source)


def _has_overrun(estimate: Estimate, elapsed: int) -> bool:
    return estimate.source != UNKNOWN and elapsed > estimate.mean + CERTAIN * estimate.deviation


def _prediction(view: Snapshot, candidate: Candidate, size: int = 0) -> Prediction:
    """Predict the run of one task of the unit on each device model that could run it.

    It uses the artifact that would finish first there. An elastic unit counts in its current size, or in its least size
    if it has none.
    """
    fleet = view.fleet
    speeds = Speeds(fleet.models, view.profiles, view.throughputs)
    best: dict[str, Estimate] = {}
    if candidate.serves:
        best["any"] = NO_END
    for shape in (candidate.shape, *candidate.others) if not candidate.serves else ():
        on_devices = shape.gpus > 0
        could = ability(fleet, shape)
        of = speeds.of(candidate.kind, shape.wants.precision, candidate.declared, candidate.work, devices=on_devices)
        for model, able, estimate in zip(fleet.models, could.models, of, strict=False):
            if not ((able and on_devices) or (not on_devices and model.kind == "cpu")):
                continue
            found = in_size(estimate, candidate.least, size or candidate.least)
            if model.called not in best or found.mean < best[model.called].mean:
                best[model.called] = found
    known = view.profiles.get(candidate.kind, Profile())
    if not best:
        best["any"] = estimate_run(known, candidate.declared)

    def learned(mean: int, deviation: int) -> Foreseen | None:
        return Foreseen(mean=mean, deviation=deviation, source="history") if mean else None

    return Prediction(
        run={called: _foreseen(found) for called, found in best.items()},
        runs=known.count,
        memory=learned(known.memory, known.memory_deviation),
        cpu=learned(known.cpu, known.cpu_deviation),
        device=learned(known.device, known.device_deviation),
    )


def _foreseen(estimate: Estimate) -> Foreseen:
    known = estimate.source != UNKNOWN
    return Foreseen(
        mean=estimate.mean if known else None,
        deviation=estimate.deviation if known else None,
        source=estimate.source,
    )


# --- which nodes refuse ----------------------------------------------------------------------------------------------


def _refusing(view: Snapshot, candidate: Candidate, held: Sequence[Reason], everything: bool) -> Iterator[Refusing]:
    """Yield every node with the reasons why no artifact of one task can start there.

    Nodes that refuse alike are grouped, unless there are few nodes. A node with room gets the policy's reasons.
    """
    fleet, shapes = view.fleet, _shapes_of(candidate)
    if len(fleet) > NAMED:
        yield from _refusing_alike(fleet, shapes, held, everything)
        return
    elsewhere: list[int] = []
    for row, name in enumerate(fleet.names):
        if not (everything or any(shape.where.allows(fleet.nodes[row]) for shape in shapes)):
            elsewhere.append(row)
            continue
        against = [refusals(fleet, row, shape) for shape in shapes]
        fitting = next((shape for shape, reasons in zip(shapes, against, strict=True) if not reasons), None)
        if fitting is None:
            reasons = _each_once(against)
        else:
            reasons = (*_held_there(held, name), *_in_part(fleet, row, candidate, fitting))
        yield Refusing(count=1, nodes=(name,), reasons=reasons)
    if elsewhere:
        names = tuple(fleet.names[row] for row in elsewhere)
        subject = names[0] if len(names) == 1 else f"{len(names)} other nodes"
        need = " or ".join(dict.fromkeys(shape.where.describe() for shape in shapes))
        reason = Reason(code="OTHER_NODE", subject=subject, need=need, fixable="never")
        yield Refusing(count=len(names), nodes=names, reasons=(reason,))


def _held_there(held: Sequence[Reason], node: str) -> tuple[Reason, ...]:
    """Return the policy's reasons against a node that has room: those for that node, else the general ones."""
    said = [reason for reason in held if reason.code in CERTAINLY_HELD]
    here = tuple(reason for reason in said if reason.subject == node)
    return here or tuple(reason for reason in said if reason.code in ("QUOTA", "BEHIND", "PREEMPTING"))


def _refusing_alike(
    fleet: Fleet, shapes: Sequence[Shape], held: Sequence[Reason], everything: bool
) -> Iterator[Refusing]:
    ables = [ability(fleet, shape) for shape in shapes]
    lacking = [_lacking(fleet, shape, able) for shape, able in zip(shapes, ables, strict=True)]
    number: Ints = fleet.kind * len(CONDITIONS) + fleet.closed
    for lacks, able in zip(lacking, ables, strict=True):
        _, first, number = np.unique((number * 2 + able.where) * 16 + lacks, return_index=True, return_inverse=True)
    order = np.argsort(number, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(number[order])) + 1)
    for like, rows in sorted(zip(first.tolist(), groups, strict=True), key=lambda group: -len(group[1])):
        names = tuple(fleet.names[row] for row in (rows if everything else rows[:FEW]).tolist())
        subject = ", ".join(names) if len(rows) <= len(names) else f"{len(rows)} nodes like {names[0]}"
        if fleet.closed[like]:
            reasons: tuple[Reason, ...] = (closed_reason(int(fleet.closed[like]), subject),)
        else:
            against = [
                [msgspec.structs.replace(reason, subject=subject) for reason in never(fleet.nodes[like], shape)]
                if not able.where[like]
                else _busy(fleet, shape, able, rows, int(lacks[like]), subject)
                for shape, able, lacks in zip(shapes, ables, lacking, strict=True)
            ]
            reasons = _each_once(against) if all(against) else _held_there(held, "")
            reasons = reasons or tuple(reason for reason in held if reason.code in OF_GANGS)
        yield Refusing(count=len(rows), nodes=names, reasons=reasons)


def _each_once(against: Iterable[list[Reason]]) -> tuple[Reason, ...]:
    return tuple(dict.fromkeys(reason for reasons in against for reason in reasons))


def _lacking(fleet: Fleet, shape: Shape, able: Ability) -> Ints:
    """(N,): bits 1, 2, 4 and 8 say that CPU, memory, network or devices lack room for one task; 0 on nodes that can
    never run it.
    """
    lacks = (fleet.free[CPU] < shape.cpu).astype(np.int64)
    lacks += 2 * (fleet.free[MEMORY] < shape.memory) + 4 * (fleet.free[NETWORK] < shape.network)
    if shape.gpus:
        rows = np.arange(len(fleet))
        usable = usable_devices(fleet, shape, able, fleet.device_memory, fleet.device_share, rows)
        lacks += 8 * (usable.sum(axis=1) < shape.gpus)
    return np.where(able.where, lacks, 0)


def _busy(fleet: Fleet, shape: Shape, able: Ability, rows: Ints, lacks: int, subject: str) -> list[Reason]:
    """Return the busy resources of similar nodes, with the most that any of these nodes has free."""
    usable = fleet.free[DEVICES, rows]
    if shape.gpus:
        memory, share = fleet.device_memory[rows], fleet.device_share[rows]
        usable = usable_devices(fleet, shape, able, memory, share, rows).sum(axis=1)
    most = "at most " if len(rows) > 1 else ""
    told: list[tuple[str, int, Ints, Callable[[int], str]]] = [
        ("CPU_BUSY", shape.cpu, fleet.free[CPU, rows], format_cpu),
        ("MEMORY_BUSY", shape.memory, fleet.free[MEMORY, rows], format_bytes),
        ("NETWORK_BUSY", shape.network, fleet.free[NETWORK, rows], format_rate),
        ("GPU_BUSY", shape.gpus, usable, str),
    ]
    return [
        Reason(code=code, subject=subject, need=shown(need), have=most + shown(max(0, int(free.max()))))
        for bit, (code, need, free, shown) in enumerate(told)
        if lacks >> bit & 1
    ]


# --- why not ---------------------------------------------------------------------------------------------------------


def why_not(policy: ClusterPolicy, view: Snapshot, asked: Question, node: str) -> WhyNot:
    """Explain why the job's first waiting unit (or else its first running one) is not on this node: every reason, or
    the node's score. Raises NotFound for an unknown node, Conflict for a job without a waiting or running unit.
    """
    node = find_node(view.fleet.names, node)
    if asked.pending:
        return _why_not_pending(policy, view, asked.job, asked.pending[0], node)
    if asked.active:
        return _why_not_active(policy, view, asked.job, asked.active[0], node)
    raise Conflict(
        f"nothing of job {asked.job} waits for a node or has one",
        field="job",
        have=asked.status,
        hint=f"`poise explain {asked.job}` shows its history",
    )


def _why_not_pending(policy: ClusterPolicy, view: Snapshot, job: str, alike: Alike, node: str) -> WhyNot:
    candidate, row = alike.candidate, view.fleet.rows[node]
    plan = policy.decide(view)
    going = hypothetical.placed(plan, candidate.unit)
    chosen = _Chosen(_nodes_of(going)[0], going.variant) if going is not None else None
    if going is not None and node in _nodes_of(going):
        return WhyNot(
            job=job, unit=candidate.unit, node=node, revision=view.revision, fits=True, chosen=node,
            text="it is placed there in the next round", artifact=alike.artifacts[going.variant],
            chosen_artifact=alike.artifacts[going.variant],
        )  # fmt: skip
    then = view
    reasons, variant = _against(policy, then, row, candidate)
    if not reasons:
        others = [
            of for of in plan.decisions if isinstance(of, Place) and of.unit != candidate.unit and node in _nodes_of(of)
        ]
        then = hypothetical.with_places(view, others)
        reasons, variant = _against(policy, then, row, candidate)
        if reasons:
            behind = [Reason(code="BEHIND", subject=of.unit) for of in others[:FEW]]
            reasons = [*behind, *reasons]
    if not reasons:
        held = () if going else _why_held(plan, candidate, alike.unseen)
        in_part = _in_part(then.fleet, row, candidate, _shapes_of(candidate)[variant])
        reasons = [*_held_there(held, node), *in_part]
    return _compared(policy, view, job, candidate, alike.artifacts, _Chosen(node, variant), chosen, reasons)


def _why_not_active(policy: ClusterPolicy, view: Snapshot, job: str, running: Active, node: str) -> WhyNot:
    """Compare as if the unit were placed now: on the view without it."""
    candidate, artifact = running.candidate, running.artifacts[running.variant]
    if node in running.nodes:
        return WhyNot(
            job=job, unit=candidate.unit, node=node, revision=view.revision, fits=True, chosen=node, text="it is there",
            artifact=artifact, chosen_artifact=artifact,
        )  # fmt: skip
    base = hypothetical.with_candidates(hypothetical.without(view, [candidate.unit]), [candidate])
    row = base.fleet.rows[node]
    reasons, variant = _against(policy, base, row, candidate)
    if not reasons:
        reasons = _in_part(base.fleet, row, candidate, _shapes_of(candidate)[variant])
    chosen = _Chosen(running.nodes[0], running.variant) if running.nodes else None
    told = _compared(policy, base, job, candidate, running.artifacts, _Chosen(node, variant), chosen, reasons)
    then = _then(running, node)
    return msgspec.structs.replace(told, text="; ".join(part for part in (told.text, then) if part))


def _then(running: Active, node: str) -> str:
    """Return the node's score from the time when the unit was placed."""
    why = running.why
    if why is None or node not in why.instead_of:
        return ""
    place = why.instead_of.index(node)
    behind = f" with {why.behind[place]:g}" if place < len(why.behind) else ""
    mine = ", ".join(f"{name} {value:g}" for name, value in why.score.items())
    return f"when it was placed (revision {why.base}), {node} came behind{behind}; {mine}"


class _Chosen(NamedTuple):
    """A node, and the number of the artifact that would start there."""

    node: str
    variant: int


def _shapes_of(candidate: Candidate) -> tuple[Shape, ...]:
    """Return the shape of each of its artifacts, by number."""
    return (candidate.shape, *candidate.others)


def _against(policy: ClusterPolicy, view: Snapshot, row: int, candidate: Candidate) -> tuple[list[Reason], int]:
    """Return every reason of this node against every artifact of the unit, and 0. If an artifact fits, return no
    reasons and its number: the one that would finish first, or for a gang the first that fits, as placement does.
    """
    against = [refusals(view.fleet, row, shape) for shape in _shapes_of(candidate)]
    fitting = [variant for variant, reasons in enumerate(against) if not reasons]
    if not fitting:
        return list(_each_once(against)), 0
    if len(fitting) == 1 or candidate.tasks > 1:
        return [], fitting[0]
    draft = hypothetical.draft_of(policy, view)
    return [], min(fitting, key=lambda variant: draft.run_on(candidate, _shapes_of(candidate)[variant], row).mean)


def _in_part(fleet: Fleet, row: int, candidate: Candidate, shape: Shape) -> list[Reason]:
    """Return a reason if the node has room for some tasks of a gang but not for all."""
    needed = candidate.least or candidate.tasks
    if needed == 1:
        return []
    able = ability(fleet, shape)
    here = int(capacity(fleet, shape, able, fleet.free, fleet.device_memory, fleet.device_share)[row])
    if here >= needed:
        return []
    if shape.where.spread:
        return []  # one task per node is enough
    subject = fleet.names[row]
    return [Reason(code="GANG_INCOMPLETE", subject=subject, need=str(needed), have=str(here))]


def _compared(
    policy: ClusterPolicy,
    view: Snapshot,
    job: str,
    candidate: Candidate,
    artifacts: Sequence[str],
    there: _Chosen,
    chosen: _Chosen | None,
    reasons: Sequence[Reason],
) -> WhyNot:
    """Report the reasons with the score of the node, if it fits, and of the chosen node, if there is one. Of two
    artifacts, the one expected to finish first is started.
    """
    if candidate.avoid == there.node:
        reasons = [*reasons, Reason(code="FAILED_THERE", subject=there.node)]
    fits = not any(reason.code not in ("FAILED_THERE", "GANG_INCOMPLETE") for reason in reasons)
    score = chosen_score = None
    text = ""
    if fits:
        score = _score(policy, view, candidate, there)
        chosen_score = _score(policy, view, candidate, chosen) if chosen is not None else None
        name = artifacts[there.variant]
        text = f"it fits as {name}" if name else "it fits"
        if chosen is not None and chosen.variant != there.variant:
            other = f"{artifacts[chosen.variant]} on {chosen.node}"
            text += (
                f", in {_takes(policy, view, candidate, there)}; {other} in {_takes(policy, view, candidate, chosen)}"
            )
        elif chosen is not None and score is not None and chosen_score is not None:
            better = "is better" if score < chosen_score else "is as good" if score == chosen_score else "was chosen"
            text += f"; {chosen.node} {better} ({chosen_score:g} against {score:g})"
    return WhyNot(
        job=job,
        unit=candidate.unit,
        node=there.node,
        revision=view.revision,
        fits=fits,
        reasons=tuple(reasons),
        score=score,
        chosen=chosen.node if chosen is not None else "",
        chosen_score=chosen_score,
        text=text,
        artifact=artifacts[there.variant] if fits else "",
        chosen_artifact=artifacts[chosen.variant] if chosen is not None else "",
    )


def _score(policy: ClusterPolicy, view: Snapshot, candidate: Candidate, of: _Chosen) -> float | None:
    found = hypothetical.scores(policy, view, candidate, _shapes_of(candidate)[of.variant], [of.node])
    return found[0] if found else None


def _takes(policy: ClusterPolicy, view: Snapshot, candidate: Candidate, of: _Chosen) -> str:
    """Return the expected run time of an artifact on a node, for people."""
    draft = hypothetical.draft_of(policy, view)
    run = draft.run_on(candidate, _shapes_of(candidate)[of.variant], view.fleet.rows[of.node])
    if run.source == UNKNOWN:
        return "unknown run time"
    return f"{format_duration(run.mean)} by {run.source}"


def _nodes_of(place: Place) -> tuple[str, ...]:
    return tuple(dict.fromkeys(spot.node for spot in place.spots))


# --- plan ------------------------------------------------------------------------------------------------------------


class Proposal(NamedTuple):
    """A job that is not submitted: units that could be placed at once, and units that wait, with the reasons."""

    job: Job
    candidates: tuple[Candidate, ...]
    later: tuple[After, ...]


def propose(ledger: Ledger, job: Job, now: int) -> Proposal:
    """Return the job as this ledger would take it in. The ledger does not change."""
    return proposing(ledger, job, now)()


def proposing(ledger: Ledger, job: Job, now: int) -> Callable[[], Proposal]:
    """Return a function that builds the proposal on any thread.

    It reads the ledger now and not later. A new ledger with the learned run times takes the job in.
    """
    latest = next(reversed(ledger.jobs.values()), None)
    ordinal = latest.units[-1].ordinal if latest is not None else 0
    tree = ledger.shares.tree
    own = Ledger(State(now=now, units_ever=ordinal, profiles=ledger.profiles, quotas=ledger.quotas, share_tree=tree))
    others = [ledger.jobs[name] for name in job.after]
    reasons = [Reason(code="AFTER", need=other.id) for other in others if not other.ended]
    if not job.calls and (budget := ledger.budgets.holding(job, now)):
        reasons.append(Reason(code="BUDGET", subject=budget, have=why_held(ledger, budget, now)))
    reasons += [
        Reason(code="SKIPPED_AFTER", need=known_as(other), have=job_status(other), fixable="never")
        for other in others
        if other.ended and not may_follow(job, other.id, job_status(other))
    ]
    return lambda: _proposal(own, job, reasons, max(1, now))


def _proposal(own: Ledger, job: Job, reasons: list[Reason], now: int) -> Proposal:
    own.apply(JobSubmitted(at=now, job=job))
    state = own.jobs[job.id]
    units, left = state.units, state.array.left if state.array is not None else 0
    if job.hold:
        reasons.append(Reason(code="ON_HOLD", subject=job.id))
    if begin := units[0].spec.begin:
        reasons.append(Reason(code="BEGINS", need=format_duration(begin)))
    if reasons:
        return Proposal(job, (), (After(tuple(unit.id for unit in units), tuple(reasons), left),))
    later: dict[tuple[Reason, ...], list[str]] = {}
    for unit in units:
        if unit.status == "waiting":
            why = [Reason(code="NEEDS", need=need) for need in unit.spec.needs]
            later.setdefault((*why, *turn_of(state, unit)), []).append(unit.id)
    return Proposal(
        job,
        tuple(own.shown.candidate(unit) for unit in units if unit.status == "pending"),
        (*(After(tuple(names), why) for why, names in later.items()), *_made_later(state)),
    )


def _made_later(job: JobState) -> Iterator[After]:
    """Yield the parts of an array that do not exist at its submission, and its merge."""
    array = job.array
    if array is None:
        return
    parts = [array.past(job.id, place) for place in range(array.made, min(array.made + FEW, size_of(array.rule)))]
    if parts:
        names = tuple(unit.id for unit in parts)
        yield After(names, tuple(turn_of(job, parts[0])), size_of(array.rule) - array.made - len(parts))
    if array.rule.merge is not None:
        merge = array.past(job.id, size_of(array.rule))
        yield After((merge.id,), (Reason(code="NEEDS", need=array.rule.like.name),))


def plan(
    policy: ClusterPolicy,
    view: Snapshot,
    proposal: Proposal,
    foresee: Foresee,
    *,
    note: str = "",
    everything: bool = False,
) -> PlanReport:
    """Report the decision if the job were submitted now: places and their reasons, preempted units, and waiting units
    with their reasons and start times. `foresee` looks ahead from the same instant, with the job submitted.
    """
    with_it = hypothetical.with_candidates(view, proposal.candidates)
    decided = policy.decide(with_it)
    later = hypothetical.after(with_it, decided)
    own = {candidate.unit: candidate for candidate in proposal.candidates}
    places: dict[tuple[str, tuple[str, ...], int, bool], list[Place]] = {}
    for decision in decided.decisions:
        if isinstance(decision, Place) and decision.unit in own:
            alike = (own[decision.unit].queue, _nodes_of(decision), decision.variant, decision.queued)
            places.setdefault(alike, []).append(decision)
    waiting: dict[str, list[str]] = {}
    done = {place.unit for alike in places.values() for place in alike}
    for unit, candidate in own.items():
        if unit not in done:
            waiting.setdefault(candidate.queue, []).append(unit)
    order = hypothetical.order_of(policy)
    ordered = _ordered(order, with_it) if waiting and order is not None else []
    artifacts = {f"{proposal.job.id}.{unit.name}": artifacts_of(unit) for unit in proposal.job.units}
    if proposal.job.array is not None:
        artifacts = dict.fromkeys(own, artifacts_of(proposal.job.array.like))
    waits = [Alike(tuple(units), own[units[0]], 0, (), 0, artifacts[units[0]]) for units in waiting.values()]
    return PlanReport(
        revision=view.revision,
        policy=_decided_by(policy, decided),
        places=tuple(_planned(of, artifacts, everything) for of in places.values()),
        yields=tuple(
            PlannedYield(unit=of.unit, to=of.to, why=of.why)
            for of in decided.decisions
            if isinstance(of, Preempt | Resize) and of.to in own
        ),
        waits=tuple(
            _waiting(policy, with_it, later, decided, ordered, alike, start, everything)
            for alike, start in zip(waits, _starts(foresee, decided, waits), strict=True)
        ),
        later=tuple(
            PlannedLater(count=len(of.units) + of.more, named=_some(of.units, everything), reasons=of.reasons[:TRIED])
            for of in (proposal.later if everything else proposal.later[:FEW])
        ),
        note=note,
        retries=retries_of(unit.retry for unit in proposal.job.units),
    )


def _planned(places: list[Place], artifacts: dict[str, tuple[str, ...]], everything: bool) -> PlannedPlace:
    first = places[0]
    return PlannedPlace(
        count=len(places),
        named=_some([place.unit for place in places], everything),
        spots=first.spots,
        why=first.why,
        queued=first.queued,
        artifact=artifacts[first.unit][first.variant],
    )


# --- unblock ---------------------------------------------------------------------------------------------------------


def unblock(
    policy: ClusterPolicy, view: Snapshot, asked: Question, *, may_end: Callable[[str], bool] = lambda job: True
) -> UnblockReport:
    """Return the smallest change of each kind with which the job's first waiting unit starts now. The policy decided on
    each.

    Changes of the job and opened nodes come first, by size. The size is the share of the request that is given up, or
    the number of priority classes raised as a share of all; it is 0 for an opened node. Next come changes that cost
    other jobs, then more hardware. `may_end` takes the id of another job and returns whether to propose its end.
    """
    if not asked.pending:
        return _unblock_active(policy, view, asked, may_end)
    alike = asked.pending[0]
    candidate = alike.candidate
    said = UnblockReport(job=asked.job, unit=candidate.unit, revision=view.revision)
    if alike.not_before:
        why = "; ".join(reason.sentence() for reason in alike.back)
        return msgspec.structs.replace(said, text=f"it {why}; nothing brings that forward")
    if hypothetical.placed(policy.decide(view), candidate.unit) is not None:
        return msgspec.structs.replace(said, text="nothing blocks it: it is placed in the next round")
    if candidate.unit not in {shown.unit for shown in view.candidates}:
        view = hypothetical.with_candidates(view, [candidate])
    found = _smallest(_Search(policy, view, asked.job, candidate, may_end))
    text = asked.beyond or ("" if found else "no single change was found that lets it start now")
    return msgspec.structs.replace(said, suggestions=tuple(found), text=text)


def _unblock_active(
    policy: ClusterPolicy, view: Snapshot, asked: Question, may_end: Callable[[str], bool]
) -> UnblockReport:
    """Report on a job without pending units: why a unit on a lost node waits, and what lets it start elsewhere."""
    lost = next((of for of in asked.active if any(reason.code == "NODE_LOST" for reason in of.reasons)), None)
    if lost is None:
        unit = next((of.candidate.unit for of in asked.active), "")
        text = f"nothing of it is blocked: {_goes_on(asked)}"
        return UnblockReport(job=asked.job, unit=unit, revision=view.revision, text=text)
    said = UnblockReport(job=asked.job, unit=lost.candidate.unit, revision=view.revision)
    waits = "; ".join(reason.sentence() for reason in lost.reasons)
    candidate = next((shown for shown in view.candidates if shown.unit == said.unit), None)
    if candidate is None:
        return msgspec.structs.replace(said, text=f"{waits}; it goes on if the node comes back")
    if hypothetical.placed(policy.decide(view), candidate.unit) is not None:
        return msgspec.structs.replace(said, text=f"{waits}; it is placed elsewhere in the next round")
    found = _smallest(_Search(policy, view, asked.job, candidate, may_end))
    text = f"{waits}; it goes on if the node comes back, and starts elsewhere as soon as there is room"
    return msgspec.structs.replace(said, suggestions=tuple(found), text=text)


def _goes_on(asked: Question) -> str:
    if asked.active:
        return "it is being stopped" if asked.active[0].status == "stopping" else "it runs"
    if asked.waiting:
        return "it " + "; ".join(reason.sentence() for reason in asked.waiting[0].reasons[:FEW])
    return f"it is {asked.status}"


def _smallest(search: "_Search") -> list[Suggestion]:
    found = [*search.open_nodes(), *search.amounts(), *search.wishes(), *search.workers()]
    if not any(of.kind in ("cpu", "memory", "gpus", "gpu_memory", "network") for of in found):
        found += search.smaller()
    return [*sorted([*found, *search.priority()], key=_size), *search.ends(), *search.more_nodes()]


class _Search:
    """Tries changes, each on its own view."""

    def __init__(
        self,
        policy: ClusterPolicy,
        view: Snapshot,
        job: str,
        candidate: Candidate,
        may_end: Callable[[str], bool],
    ) -> None:
        self._policy, self._view, self._job, self._candidate = policy, view, job, candidate
        self._may_end = may_end
        self._shape = candidate.shape
        self._needed = candidate.least or candidate.tasks
        self._tries = max(FEW, min(TRIED, LOOKED_AT // max(1, len(view.fleet) + len(view.candidates))))

    def open_nodes(self) -> Iterator[Suggestion]:
        """Try to open a drained node."""
        fleet, able = self._view.fleet, ability(self._view.fleet, self._shape)
        could = [row for row in np.flatnonzero(np.isin(fleet.closed, (DRAINED, EMPTYING))).tolist() if able.where[row]]
        for row in could[: self._tries]:
            name = fleet.names[row]
            command = f"poise drain --undo {name}"
            found = self._try(hypothetical.with_drain(self._view, name, on=False), "open", f"open {name}", 0.0, command)
            if found is not None:
                yield found
                return

    def amounts(self) -> Iterator[Suggestion]:
        """Try less of one resource, by bisection over the amounts that are free on some node; the smallest cut that
        helps.
        """
        fleet, shape = self._view.fleet, self._shape
        opened = fleet.closed == 0
        for kind, resource, need, shown, flag in (
            ("cpu", CPU, shape.cpu, format_cpu, "--cpu"),
            ("memory", MEMORY, shape.memory, format_bytes, "--memory"),
            ("network", NETWORK, shape.network, format_rate, "--network"),
        ):
            if need:
                free = fleet.free[resource, opened]
                yield from self._less(kind, need, _parts(free, need, self._needed), shown, flag)
        if shape.gpus > 1:
            yield from self._less("gpus", shape.gpus, list(range(1, shape.gpus)), str, "--gpu")
        if shape.gpu_memory:
            sizes = np.unique(fleet.device_memory[opened & (fleet.total[DEVICES] > 0)])
            less = [int(size) for size in sizes if 0 < size < shape.gpu_memory]
            yield from self._less("gpu_memory", shape.gpu_memory, less, format_bytes, "--gpu-memory")

    def wishes(self) -> Iterator[Suggestion]:
        """Try without one of its requirements on the node or the device."""
        shape, wants, where = self._shape, self._shape.wants, self._shape.where
        drops: list[tuple[str, bool, Shape]] = [
            ("node", bool(where.nodes or where.without), _on(shape, nodes=(), without=())),
            ("label", bool(where.labels or where.without_labels), _on(shape, labels=(), without_labels=())),
            ("model", bool(wants.models), _wanting(shape, models=())),
            ("precision", bool(wants.precision), _wanting(shape, precision="")),
            ("backend", bool(wants.backend), _wanting(shape, backend="")),
            ("operators", bool(wants.ops), _wanting(shape, ops=())),
            ("device memory", shape.gpu_memory > 0, msgspec.structs.replace(shape, gpu_memory=0)),
        ]
        wished = [(name, f"any {name} will do", without) for name, asked, without in drops if asked]
        if where.spread:
            wished.append(("spread", f"several tasks may run on one {where.spread}", _on(shape, spread="")))
        if where.together:
            text = f"the tasks may run on more than one {where.together}"
            wished.append(("together", text, _on(shape, together="")))
        for name, text, without in wished:
            found = self._try(self._with(shape=without), "wishes", text, 1.0, self._unasked(name))
            if found is not None:
                yield found
        if len(wished) > 1:
            without = msgspec.structs.replace(shape, gpu_memory=0, wants=Wants(kind=wants.kind), where=ANYWHERE)
            any_will = f"any {wants.kind} will do" if shape.gpus else "any node will do"
            found = self._try(self._with(shape=without), "wishes", any_will, float(len(wished)))
            if found is not None:
                yield found

    def _unasked(self, wish: str) -> str:
        """Return the command that lifts a node requirement of a submitted job; empty for other requirements."""
        where = self._shape.where
        fields = {
            "node": ("node=" if where.nodes else "", "exclude-node=" if where.without else ""),
            "label": ("label=",),
        }.get(wish, ())
        return f"poise set {self._candidate.unit} {' '.join(filter(None, fields))}" if fields else ""

    def workers(self) -> Iterator[Suggestion]:
        """Try fewer tasks: the largest number that can start together now."""
        most = self._candidate.tasks

        def fewer(workers: int) -> Snapshot:
            if self._candidate.least:
                return self._with(least=workers)
            return self._with(tasks=workers, least=0)

        best = _largest(range(1, self._needed), lambda workers: self._starts(fewer(workers)))
        if best is not None:
            range_of = f"{best}..{most}" if self._candidate.least else str(best)
            size = 1 - best / self._needed
            command = f"--workers {range_of}"
            found = self._try(fewer(best), "workers", f"{best} workers instead of {self._needed}", size, command)
            if found is not None:
                yield found

    def smaller(self) -> Iterator[Suggestion]:
        """Try less of every resource that one node lacks: on the node that needs the smallest cut."""
        fleet, shape = self._view.fleet, self._shape
        amounts = ((CPU, shape.cpu), (MEMORY, shape.memory), (NETWORK, shape.network), (DEVICES, shape.gpus))
        rows = np.flatnonzero((fleet.closed == 0) & (fleet.free[CPU] > 0))
        gives_up = np.zeros(len(rows))
        for resource, need in amounts:
            if need:
                free = fleet.free[resource, rows]
                gives_up += np.where(free > 0, np.maximum(0.0, 1 - free / need), np.inf)
        for place in np.argsort(gives_up, kind="stable")[: self._tries].tolist():
            size, row = float(gives_up[place]), int(rows[place])
            if not np.isfinite(size):
                return
            cpu, memory, network, gpus = (
                _round_down(kind, min(need, int(fleet.free[of, row])))
                for kind, (of, need) in zip(("cpu", "memory", "network", "gpus"), amounts, strict=True)
            )
            cut = msgspec.structs.replace(shape, cpu=cpu, memory=memory, network=network, gpus=gpus)
            flags = " ".join(
                f"{flag} {_typed(kind, value)}"
                for kind, flag, value, need in (
                    ("cpu", "--cpu", cpu, shape.cpu),
                    ("memory", "--memory", memory, shape.memory),
                    ("network", "--network", network, shape.network),
                    ("gpus", "--gpu", gpus, shape.gpus),
                )
                if value < need
            )
            found = self._try(self._with(shape=cut), "smaller", f"ask for {cut.describe()}", size, flags)
            if found is not None:
                yield found
                return

    def priority(self) -> Iterator[Suggestion]:
        """Try a higher priority class: the next one that helps."""
        now = self._candidate.priority
        for higher in range(now - 1, -1, -1):
            name = Priority(higher).name.lower()
            size = (now - higher) / len(Priority)
            found = self._try(self._with(priority=higher), "priority", f"priority {name}", size, f"--priority {name}")
            if found is not None:
                yield found
                return

    def ends(self) -> Iterator[Suggestion]:
        """Try to end a job: the one that loses the fewest hours of work."""
        jobs: dict[str, dict[str, Resident]] = {}
        for row in self._nearest():
            for resident in self._view.fleet.residents[row]:
                jobs.setdefault(resident.unit.partition(".")[0], {})[resident.unit] = resident
        now = self._view.now
        costs = sorted(
            (sum(cost_of(resident, now) for resident in units.values()) / HOUR, job)
            for job, units in jobs.items()
            if job != self._job and self._may_end(job)
        )
        for cost, job in costs[: self._tries]:
            waiting = [candidate.unit for candidate in self._view.candidates if candidate.job == job]
            changed = hypothetical.without(self._view, [*jobs[job], *waiting])
            found = self._try(changed, "end", f"{job} ends", cost, f"poise cancel {job}")
            if found is not None:
                yield found
                return

    def more_nodes(self) -> Iterator[Suggestion]:
        """Try one more node like an existing one: the smallest kind that helps."""
        fleet = self._view.fleet
        kinds = sorted((tuple(int(of) for of in fleet.total[:, row]), row) for row in fleet.likes)
        for _, row in kinds[: self._tries]:
            is_open = np.flatnonzero((fleet.kind == fleet.kind[row]) & (fleet.closed == 0))
            like = fleet.nodes[is_open[0] if len(is_open) else row]
            away = "" if len(is_open) else ", which takes no work now"
            changed = hypothetical.with_node(self._view, msgspec.structs.replace(like, name=NEW, incarnation=""))
            found = self._try(changed, "node", f"one more node like {like.name}{away}", 1.0)
            if found is not None:
                yield found
                return

    # --- trying ------------------------------------------------------------------------------------------------------

    def _with(self, **fields: Any) -> Snapshot:
        """Return the view with a changed request. The unit counts as submitted again now, behind all waiting units."""
        last = max(other.ordinal for other in self._view.candidates) + 1
        now = self._view.now
        return hypothetical.with_changed(
            self._view, self._candidate, **{"ordinal": last, "submitted": now, "ready": now, **fields}
        )

    def _starts(self, changed: Snapshot) -> bool:
        return hypothetical.starts(self._policy, changed, self._candidate.unit) is not None

    def _try(self, changed: Snapshot, kind: str, text: str, size: float, command: str = "") -> Suggestion | None:
        found = hypothetical.starts(self._policy, changed, self._candidate.unit)
        if found is None:
            return None
        place, yields = found
        return Suggestion(
            kind=kind, text=text, size=round(size, 4), command=command, nodes=_nodes_of(place), yields=yields
        )

    def _less(
        self, kind: str, need: int, amounts: Sequence[int], shown: Callable[[int], str], flag: str
    ) -> Iterator[Suggestion]:
        """Try less of one resource; `kind` is a field of `Shape`."""

        def less(amount: int) -> Snapshot:
            return self._with(shape=msgspec.structs.replace(self._shape, **{kind: amount}))

        best = _largest(amounts, lambda amount: self._starts(less(amount)))
        if best is not None:
            best = _round_down(kind, best)
            what = {"gpus": "devices", "gpu_memory": "device memory"}.get(kind, kind)
            text = f"{shown(best)} {what} instead of {shown(need)}"
            found = self._try(less(best), kind, text, 1 - best / need, f"{flag} {_typed(kind, best)}")
            if found is not None:
                yield found

    def _nearest(self) -> list[int]:
        """Return open rows that could hold a task when empty, sorted by how little they lack."""
        fleet, shape = self._view.fleet, self._shape
        able = ability(fleet, shape)
        rows = np.flatnonzero((fleet.closed == 0) & able.where)
        lacks = np.zeros(len(rows))
        amounts = ((CPU, shape.cpu), (MEMORY, shape.memory), (NETWORK, shape.network), (DEVICES, shape.gpus))
        for resource, need in amounts:
            if need:
                lacks += np.maximum(0.0, 1 - fleet.free[resource, rows] / need)
        return [int(row) for row in rows[np.argsort(lacks, kind="stable")[:TRIED]]]


def _largest(amounts: Sequence[int], helps: Callable[[int], bool]) -> int | None:
    """Return the largest of ascending amounts that helps, by bisection: if an amount helps, smaller ones do too."""
    low, high = 0, len(amounts)
    best: int | None = None
    while low < high:
        middle = (low + high) // 2
        if helps(amounts[middle]):
            best, low = amounts[middle], middle + 1
        else:
            high = middle
    return best


def _parts(free: Ints, need: int, tasks: int) -> list[int]:
    """Return the amounts below the need that 1, 2, … tasks on one node could each get, ascending."""
    found: set[int] = set()
    for count in range(1, min(tasks, TRIED) + 1):
        found.update(np.unique(free // count).tolist())
    return sorted(amount for amount in found if 0 < amount < need)


def _round_down(kind: str, amount: int) -> int:
    """Round down to an amount that the command line can express."""
    if kind in ("memory", "gpu_memory"):
        return parse_bytes(type_bytes(amount))
    return parse_rate(type_rate(amount)) if kind == "network" else amount


def _typed(kind: str, amount: int) -> str:
    if kind == "cpu":
        return format_cpu(amount)
    if kind in ("memory", "gpu_memory"):
        return type_bytes(amount)
    return type_rate(amount) if kind == "network" else str(amount)


def _wanting(shape: Shape, **fields: Any) -> Shape:
    return msgspec.structs.replace(shape, wants=msgspec.structs.replace(shape.wants, **fields))


def _on(shape: Shape, **fields: Any) -> Shape:
    return msgspec.structs.replace(shape, where=msgspec.structs.replace(shape.where, **fields))


# --- words -----------------------------------------------------------------------------------------------------------


def _decided_by(policy: ClusterPolicy, plan: Plan) -> str:
    """Return the name of the policy in charge, or of the fallback policy if it failed."""
    return plan.policy if plan.failed else policy.name


def _asks(candidate: Candidate) -> str:
    """Return the request in words: `4 tasks of 1 CPU, 1 GPU`."""
    shapes = " or ".join(shape.describe() for shape in (candidate.shape, *candidate.others))
    if candidate.tasks == 1:
        return shapes
    tasks = f"{candidate.least} to {candidate.tasks}" if candidate.least else str(candidate.tasks)
    return f"{tasks} tasks of {shapes}"


def _some(names: Iterable[str], everything: bool) -> tuple[str, ...]:
    return tuple(names if everything else islice(names, FEW))


def _at(reservation: Reservation) -> int:
    return reservation.at


def _size(suggestion: Suggestion) -> float:
    return suggestion.size


__all__ = ["Proposal", "explain", "plan", "propose", "unblock", "why_not"]
