"""Check the decisions of a plan against the current ledger, which may be newer than the plan's base.

A valid decision becomes an event. An invalid one is refused with reasons, and the next round decides again. So the same
plan on the same ledger always gives the same events.
"""

from collections.abc import Iterator, Sequence

import msgspec

from poise.kernel.ledger import Ledger, NodeState, UnitState, device_key, leased
from poise.model.decisions import Decision, Fixable, Hold, Place, Preempt, Reason, Rejection, Resize, Spot
from poise.model.events import Held, Placed, Preempted, Resized, Resumed
from poise.model.fleet import model_of
from poise.model.resources import PLENTY, WHOLE, Shape, Where, identity_of
from poise.model.share_tree import CPU as CORES
from poise.model.share_tree import Amounts, amounts_of
from poise.policy.entitled import PROTECTED, Claim, Standing
from poise.policy.feasible import NAMED, can_do
from poise.units import format_bytes, format_cpu, format_rate


def verify(ledger: Ledger, decision: Decision, now: int) -> Placed | Preempted | Resized | Held | Rejection | None:
    """Return the event for a decision, or the reasons against it; None for a hold that changes nothing."""
    match decision:
        case Place():
            return verify_place(ledger, decision, now)
        case Preempt():
            return verify_preempt(ledger, decision, now)
        case Resize():
            return verify_resize(ledger, decision, now)
        case Hold():
            return verify_hold(ledger, decision, now)


def verify_place(ledger: Ledger, place: Place, now: int) -> Placed | Rejection:
    """Return the event for a placement, or every reason against it."""
    unit = ledger.jobs.unit(place.unit)
    if unit is None:
        return _refuse(place, [Reason(code="UNKNOWN_UNIT", subject=place.unit, fixable="never")])
    reasons = []
    if not ledger.active.may_be_placed(unit):
        reasons.append(Reason(code="NOT_PENDING", subject=place.unit, have=unit.status, fixable="never"))
    if unit.stopping or unit.not_before > now:
        reasons.append(Reason(code="NOT_YET", subject=place.unit))
    reasons += leased(unit, now)
    if not (unit.spec.least or len(unit.tasks)) <= len(place.spots) <= unit.most_tasks:
        need, have = str(unit.most_tasks), str(len(place.spots))
        reasons.append(Reason(code="NOT_WHOLE", subject=place.unit, need=need, have=have))
    if not 0 <= place.variant <= len(unit.spec.variants):
        reasons.append(Reason(code="UNKNOWN_VARIANT", subject=place.unit, have=str(place.variant), fixable="never"))
        return _refuse(place, reasons)
    shape = unit.shape_of(place.variant)
    brief = ledger.profiles.is_brief(unit) and not unit.spec.variants
    reasons += ledger.quotas.refusals(unit, shape, len(place.spots))
    reasons += _against_reservations(ledger, unit, place.spots, now)
    if ledger.shares.tree is not None:
        reasons += ledger.shares.refusals(unit, ledger.shares.amounts_on(shape, place.spots))
    if place.queued:
        reasons += _against_waiting(ledger, shape, place.spots, brief)
    else:
        reasons += _against_room(ledger, shape, place.spots)
        reasons += _against_groups(ledger, shape.where, place.spots)
    if reasons:
        return _refuse(place, reasons)
    return Placed(
        at=now,
        unit=place.unit,
        epoch=unit.epoch + 1,
        spots=place.spots,
        why=place.why,
        queued=place.queued,
        brief=brief,
        variant=place.variant,
    )


def verify_preempt(ledger: Ledger, preempt: Preempt, now: int) -> Preempted | Rejection:
    """Return the event for a preemption, or every reason against it."""
    unit = ledger.jobs.unit(preempt.unit)
    if unit is None:
        reason = Reason(code="UNKNOWN_UNIT", subject=preempt.unit, fixable="never")
        return Rejection(unit=preempt.unit, reasons=(reason,))
    reasons = []
    if unit.status != "active" or unit.queued:
        reasons.append(Reason(code="NOT_RUNNING", subject=preempt.unit, have="queued" if unit.queued else unit.status))
    if unit.stopping:
        reasons.append(Reason(code="PROTECTED", subject=preempt.unit, have="it is being stopped already"))
    if not unit.spec.preemptible:
        reasons.append(Reason(code="PROTECTED", subject=preempt.unit, have="`preemptible: false`", fixable="never"))
    reasons += _against_beneficiary(ledger, preempt.to)
    if reasons:
        return Rejection(unit=preempt.unit, reasons=tuple(reasons))
    return Preempted(at=now, unit=preempt.unit, epoch=unit.epoch, cause=preempt.cause, why=preempt.why, to=preempt.to)


def _against_beneficiary(ledger: Ledger, to: str) -> list[Reason]:
    """Return a reason unless the unit for which resources are freed still waits for them."""
    unit = ledger.jobs.unit(to) if to else None
    moves = unit is not None and unit.stopping == "move"  # they exchange places
    if not to or (unit is not None and (moves or ledger.active.may_be_placed(unit))):
        return []
    return [Reason(code="NOT_PENDING", subject=to, have=unit.status if unit else "gone")]


def verify_resize(ledger: Ledger, resize: Resize, now: int) -> Resized | Rejection:
    """Return the event for a change of a running gang, or every reason against it. New members get the lowest free
    numbers.
    """
    unit = ledger.jobs.unit(resize.unit)
    if unit is None:
        reason = Reason(code="UNKNOWN_UNIT", subject=resize.unit, fixable="never")
        return Rejection(unit=resize.unit, reasons=(reason,))
    shape, joins, leaves = unit.shape, resize.joins, set(resize.leaves)
    idle = [index for index, task in enumerate(unit.tasks) if task.status == "idle"]
    reasons = [
        Reason(code="NOT_RESIZABLE", subject=resize.unit, have=have, fixable=fixable)
        for holds, have, fixable in _against_resizing(ledger, unit, leaves, len(joins), len(idle))
        if not holds
    ]
    reasons += _against_beneficiary(ledger, resize.to)
    if joins:
        reasons += leased(unit, now)
        reasons += ledger.quotas.refusals(unit, shape, sum(task.active for task in unit.tasks) + len(joins))
        if ledger.shares.tree is not None:
            amounts = ledger.shares.held_by(unit.id)
            for model, amount in ledger.shares.amounts_on(shape, joins).items():
                amounts[model] = amounts.get(model, 0) + amount
            reasons += ledger.shares.refusals(unit, amounts)
        reasons += _against_reservations(ledger, unit, joins, now)
        reasons += _against_room(ledger, shape, joins)
        reasons += [
            Reason(
                code="DEVICE_TAKEN", subject=spot.node, need="a device that has not failed it", have=str(device.index)
            )
            for spot in joins
            if unit.barred and spot.node in ledger.nodes
            for device in ledger.nodes[spot.node].node.devices
            if device.index in spot.devices and identity_of(spot.node, device) in unit.barred
        ]
    if reasons:
        return Rejection(unit=resize.unit, reasons=tuple(reasons))
    return Resized(
        at=now,
        unit=resize.unit,
        epoch=unit.epoch + bool(joins),
        generation=unit.generation + 1,
        cause=resize.cause,
        why=resize.why,
        leaves=tuple(sorted(leaves)),
        joins=tuple(zip(idle, joins, strict=False)),
        to=resize.to,
    )


def _against_resizing(
    ledger: Ledger, unit: UnitState, leaves: set[int], joining: int, idle: int
) -> Iterator[tuple[bool, str, Fixable]]:
    """Yield the conditions on the gang, each with the text and the class of the reason if it does not hold."""
    size = unit.size - len(leaves) + joining
    yield unit.resizes, "it does not follow orders", "later"
    yield unit.is_whole, "it is not running as a whole", "later"
    yield bool(leaves or joining), "nothing is to change", "never"
    yield unit.spec.preemptible or not leaves, "`preemptible: false`", "never"
    yield leaves <= set(unit.members), "one that is to leave is no member", "never"
    yield joining <= idle, f"{idle} of its tasks are idle", "later"
    yield max(1, unit.spec.least) <= size <= unit.most_tasks, f"{size} tasks are too few or too many", "never"
    yield size > joining, "nobody would stay", "never"


def above_share(ledger: Ledger, decisions: Sequence[Decision], now: int) -> dict[int, Rejection]:
    """Return, by index, the rejected decisions: they stop a unit for another share, which would end above the unit's
    or take a part of its guarantee; or they preempt it for another share before it has run for a minute.

    This checks the whole plan at once, with all its placements and stops, so that no plan does what the next one
    undoes.
    """
    view = ledger.shares.view(now)
    if view is None:
        return {}
    stops: list[tuple[int, Preempt | Resize]] = []
    found: dict[int, Rejection] = {}
    for number, decision in enumerate(decisions):
        if not isinstance(decision, Preempt | Resize) or not decision.to or ledger.jobs.unit(decision.unit) is None:
            continue
        if isinstance(decision, Preempt) and _is_young(ledger, decision, now):
            reason = Reason(code="PROTECTED", subject=decision.unit, have="it has run for less than a minute")
            found[number] = Rejection(unit=decision.unit, reasons=(reason,))
        else:
            stops.append((number, decision))
    if not stops:
        return found
    standing = Standing(view)
    placed = set()
    for decision in decisions:
        unit = ledger.jobs.unit(decision.unit) if isinstance(decision, Place) else None
        if isinstance(decision, Place) and unit is not None and 0 <= decision.variant <= len(unit.spec.variants):
            placed.add(unit.id)
            amounts = ledger.shares.amounts_on(unit.shape_of(decision.variant), decision.spots)
            standing.count(ledger.jobs[unit.job].leaf, amounts)
    leaving, coming = list[Claim](), dict[str, Claim]()
    for stopped, gaining in ledger.queues.yielded.items():
        loser, gainer = ledger.jobs.unit(stopped), ledger.jobs.unit(gaining)
        amounts = ledger.shares.held_by(stopped)
        if loser is not None and loser.stopping:
            leaving.append(Claim(ledger.jobs[loser.job].leaf, amounts))
        if gainer is not None and gainer.status == "pending" and gaining not in placed:
            coming.setdefault(gaining, _claim_of(ledger, gainer, amounts))
    standing.promise(leaving, coming.values())
    gains: dict[str, Claim] = {}
    numbered: list[tuple[int, Claim]] = []
    counted = set()
    for _, decision in stops:
        stopped_unit, to = ledger.jobs.units[decision.unit], ledger.jobs.unit(decision.to)
        leaves = None if isinstance(decision, Preempt) else frozenset(decision.leaves)
        held = ledger.shares.held_by(decision.unit, leaves)
        loses = Claim(ledger.jobs[stopped_unit.job].leaf, held)
        if decision.to not in gains:
            there = to is None or to.status == "active" or decision.to in placed or decision.to in coming
            if there:
                counted.add(len(gains))
            gains[decision.to] = _claim_of(ledger, to, held) if to is not None else loses
        numbered.append((list(gains).index(decision.to), loses))
    refused = standing.unlawful(list(gains.values()), numbered, counted)
    for place in sorted(refused):
        number, decision = stops[place]
        reason = Reason(code="ABOVE_SHARE", subject=numbered[place][1].leaf)
        found[number] = Rejection(unit=decision.unit, reasons=(reason,))
    return found


def _is_young(ledger: Ledger, preempt: Preempt, now: int) -> bool:
    """Return whether a unit of another share was placed less than a minute ago."""
    unit, to = ledger.jobs.units[preempt.unit], ledger.jobs.unit(preempt.to)
    is_other = to is not None and ledger.jobs[to.job].leaf != ledger.jobs[unit.job].leaf
    return is_other and now < unit.placed + PROTECTED


def _claim_of(ledger: Ledger, unit: UnitState, like: Amounts) -> Claim:
    """Return the amounts that a unit holds, or would hold in its least size on such devices if it waits."""
    leaf, shape = ledger.jobs[unit.job].leaf, unit.shape_of(0)
    if unit.status == "active":
        return Claim(leaf, ledger.shares.held_by(unit.id))
    model = next((model for model in like if model != CORES), "") if shape.gpus else CORES
    return Claim(leaf, amounts_of(shape, model, unit.spec.least or len(unit.tasks)))


def verify_resume(ledger: Ledger, unit: UnitState, now: int, by: str = "") -> Resumed | tuple[Reason, ...]:
    """Return the event with which a suspended unit resumes, or every reason why its resources are not free. Its
    processes are still there and know their devices, so it resumes in its own place.
    """
    shape, devices = unit.shape_of(unit.variant), unit.suspended.devices if unit.suspended is not None else ()
    spots = (Spot(unit.tasks[0].node, devices),)
    reasons = ledger.quotas.refusals(unit, shape, 1) + _against_reservations(ledger, unit, spots, now)
    reasons += _against_room(ledger, msgspec.structs.replace(shape, memory=0), spots)  # it has kept its memory
    if ledger.shares.tree is not None:
        reasons += ledger.shares.refusals(unit, ledger.shares.amounts_on(shape, spots))
    return tuple(reasons) or Resumed(at=now, unit=unit.id, epoch=unit.epoch, by=by)


def verify_hold(ledger: Ledger, hold: Hold, now: int) -> Held | None:
    """Return the event for a hold, if units wait in the queue and the reasons are new. The unit in front, and the free
    amounts in a large fleet, change constantly: reports look them up.
    """
    known, reasons = ledger.queues.held(hold.queue), hold.reasons
    both_behind = len(known) == len(reasons) == 1 and known[0].code == reasons[0].code == "BEHIND"
    if hold.queue not in ledger.queues or both_behind or known == reasons:
        return None
    reasons = tuple([_BEHIND if reason.code == "BEHIND" else reason for reason in reasons])
    if known == reasons:
        return None
    if len(ledger.nodes) > NAMED and [_gist(reason) for reason in known] == [_gist(reason) for reason in reasons]:
        return None
    return Held(at=now, queue=hold.queue, reasons=reasons)


_BEHIND = Reason(code="BEHIND")
"""As recorded: without the unit in front, which changes with each start."""


def _gist(reason: Reason) -> tuple[str, str, str]:
    return (reason.code, reason.subject, reason.need)


def _against_room(ledger: Ledger, shape: Shape, spots: tuple[Spot, ...]) -> list[Reason]:
    """Return the reasons if there is no room for all spots together, node by node and device by device."""
    reasons: list[Reason] = []
    for name in dict.fromkeys(spot.node for spot in spots):
        state = ledger.nodes.get(name)
        if state is None or state.condition != "up":
            reasons += _closed(state, name)
            continue
        here = [spot for spot in spots if spot.node == name]
        node, count = state.node, len(here)
        if not shape.where.admits(node):
            reasons.append(Reason(code="OTHER_NODE", subject=name, need=shape.where.describe(), fixable="never"))
        for code, need, free, shown in (
            ("CPU_BUSY", count * shape.cpu, node.cpu - state.used_cpu, format_cpu),
            ("MEMORY_BUSY", count * shape.memory, node.memory - state.used_memory, format_bytes),
            ("NETWORK_BUSY", count * shape.network, (node.network or PLENTY) - state.used_network, format_rate),
        ):
            if need > max(0, free):
                reasons.append(Reason(code=code, subject=name, need=shown(need), have=shown(max(0, free))))
        reasons += _against_devices(ledger, state, shape, here)
    return reasons


def _against_reservations(ledger: Ledger, unit: UnitState, spots: Sequence[Spot], now: int) -> list[Reason]:
    """Return a reason for each spot that another tenant has reserved before the work is expected to end."""
    if not ledger.reservations:
        return []
    kept = ledger.ends(now).kept_from(ledger.shown.candidate(unit))
    nodes, reservations = dict(kept.nodes), dict(kept.reservations)
    reasons: dict[Reason, None] = {}
    for spot in spots:
        if told := nodes.get(spot.node):
            reasons[Reason(code="NODE_RESERVED", subject=spot.node, need="an earlier end", have=told)] = None
        state = ledger.nodes.get(spot.node)
        for device in ledger.reservations.marked(state.node).devices if state is not None and reservations else ():
            if device.index in spot.devices and (told := next(filter(None, map(reservations.get, device.kept)), "")):
                reasons[Reason(code="DEVICES_RESERVED", subject=spot.node, need="an earlier end", have=told)] = None
    return list(reasons)


def _against_groups(ledger: Ledger, where: Where, spots: tuple[Spot, ...]) -> list[Reason]:
    """Return the reasons if the tasks of a gang are not spread, or not together, as required."""
    reasons: list[Reason] = []
    nodes = [ledger.nodes[spot.node].node for spot in spots if spot.node in ledger.nodes] if where.groups else []
    values = [node.label(where.spread) for node in nodes] if where.spread else []
    reasons += [
        Reason(code="NOT_SPREAD", subject=where.spread, have=value, need=str(values.count(value)))
        for value in dict.fromkeys(values)
        if values.count(value) > 1
    ]
    values = list(dict.fromkeys(node.label(where.together) for node in nodes)) if where.together else []
    if len(values) > 1:
        reasons.append(Reason(code="NOT_TOGETHER", subject=where.together, have=", ".join(values)))
    return reasons


def _against_devices(ledger: Ledger, state: NodeState, shape: Shape, spots: list[Spot]) -> list[Reason]:
    """Return the reasons unless each device exists, suits the request, and has the needed part free."""
    reasons: list[Reason] = []
    name = state.node.name
    left: dict[int, tuple[int, int]] = {}
    for device in ledger.reservations.marked(ledger.cordons.seen(state.node)).devices:
        key = device_key(device.index)
        if ledger.cordons.closes(name, device):
            continue
        if key not in state.devices and can_do(model_of(device), shape.wants):
            shares = state.shares.get(key, ())
            taken, memory = sum(of.share for of in shares), sum(of.memory for of in shares)
            most = WHOLE if shape.share == WHOLE else device.share_cap
            left[device.index] = (most - taken, device.memory - memory)
    for spot in spots:
        if len(spot.devices) != shape.gpus:
            have = str(len(spot.devices))
            reasons.append(Reason(code="GPU_BUSY", subject=name, need=str(shape.gpus), have=have))
        for index in spot.devices:
            share, memory = left.get(index, (0, 0))
            if share < shape.share or memory < shape.gpu_memory:
                need = shape.describe_devices()
                reasons.append(Reason(code="DEVICE_TAKEN", subject=name, need=need, have=str(index)))
            left[index] = (share - shape.share, memory - shape.gpu_memory)
    return reasons


def _against_waiting(ledger: Ledger, shape: Shape, spots: tuple[Spot, ...], brief: bool) -> list[Reason]:
    """Return the reasons why a unit cannot queue in a pool: only brief work may, and only behind running brief work."""
    reasons = []
    if not brief or len(spots) != 1 or spots[0].devices:
        reasons.append(Reason(code="NOT_BRIEF", fixable="never"))
    for spot in spots[:1]:
        node = ledger.nodes.get(spot.node)
        if node is None or node.condition != "up":
            reasons += _closed(node, spot.node)
            continue
        pool = node.pools.get(shape.key())
        if pool is None or pool.slots <= pool.long:
            reasons.append(Reason(code="POOL_GONE", subject=spot.node))
        if max(node.excess) > 0:  # such a node starts no queued attempt when another one ends
            reasons.append(Reason(code="NODE_SHRUNK", subject=spot.node))
    return reasons


def _closed(node: NodeState | None, name: str) -> list[Reason]:
    if node is None:
        return [Reason(code="UNKNOWN_NODE", subject=name, fixable="never")]
    codes = (
        ("NODE_LOST", node.status == "lost"),
        ("NODE_SUSPECT", node.suspect),
        ("NODE_DRAINED", node.drained),
        ("NODE_UNFIT", bool(node.unfit)),
    )
    return [Reason(code=code, subject=name) for code, holds in codes if holds]


def _refuse(place: Place, reasons: list[Reason]) -> Rejection:
    return Rejection(unit=place.unit, reasons=tuple(reasons))
