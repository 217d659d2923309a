"""Least attained service in two queues (Tiresias, Gu et al., NSDI 2019, section 4), without knowledge of run times.

Units with less service than a threshold (devices times time) are in the first queue, all others in the second. Within a
queue the first to come goes first, so that similar units do not preempt each other in turn, as by attained service
alone. Devices are assigned in this order, and units without any are preempted, even for an earlier unit of the same
queue. Units behind a large one may start while it does not fit.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from poise.model.decisions import Plan
from poise.model.views import Snapshot
from poise.policy.allowance import Allowance
from poise.policy.claims import Claim, Rows, carry_out, claims_of, devices_by_model, emptiest, vacated
from poise.policy.feasible import ability
from poise.units import HOUR, format_duration

THRESHOLD = 16 * HOUR
"""Device time after which a unit falls to the second queue; as in the simulator of Pollux's artifact, `tiresias.py`."""


class Tiresias:
    """Serves units with less service than the threshold first, then the others; first come, first served in each queue.

    Elastic units get their least size, and more of the remaining devices when they are placed.
    """

    name = "tiresias"

    def decide(self, view: Snapshot, /) -> Plan:
        claimed = claims_of(view)
        ordered = sorted(claimed, key=_place_in_line)
        wanted = _share_out(view, ordered)
        words = {claim.unit: _words(claim) for claim in claimed}
        return carry_out(view, self.name, claimed, wanted, words, until=_falls_at(view, claimed))


def _share_out(view: Snapshot, ordered: Sequence[Claim]) -> dict[str, Rows]:
    """Return where the units with devices run. Nothing is preempted for a unit that would still find no room, because
    it is fragmented or lacks something else: that unit is left out, and all devices are assigned again.
    """
    allowance = Allowance(view.quotas)
    unfit = {claim.unit for claim in ordered if claim.candidate is not None and allowance.against(claim.candidate)}
    while True:
        admitted = _admitted(view, [claim for claim in ordered if claim.unit not in unfit])
        wanted = {claim.unit: claim.rows for claim in admitted}
        starting = [(claim, claim.candidate) for claim in admitted if claim.candidate is not None]
        draft = vacated(view, {claim.unit for claim in ordered if claim.rows and claim.unit not in wanted})
        for claim, candidate in starting:
            wanted[claim.unit] = rows = emptiest(draft, claim.shape, claim.least)
            for row in rows:
                draft.take(row, candidate, claim.shape)
        without = {claim.unit for claim, _ in starting if not wanted[claim.unit]}
        if without:
            unfit |= without
            continue
        for claim, candidate in starting:
            rows = emptiest(draft, claim.shape, claim.most - claim.least, fewer=True)
            wanted[claim.unit] += rows
            for row in rows:
                draft.take(row, candidate, claim.shape)
        return wanted


def _queue(claim: Claim) -> int:
    return int(claim.attained >= THRESHOLD)


def _place_in_line(claim: Claim) -> tuple[bool, int, int]:
    return (not claim.stays, _queue(claim), claim.ordinal)


def _admitted(view: Snapshot, ordered: Sequence[Claim]) -> list[Claim]:
    """Return the claims that there are devices for, counted by model, wherever they are free. A running unit needs
    exactly the devices that it holds.
    """
    left = devices_by_model(view)
    held = _held(view)
    found = []
    for claim in ordered:
        if claim.stopping:
            continue
        taken = held[claim.unit] if claim.unit in held else _taken(view, claim, left)
        fits = all(left.get(model, 0) >= count for model, count in taken.items())
        if fits and (taken or claim.unit in held):
            for model, count in taken.items():
                left[model] -= count
            found.append(claim)
    return found


def _taken(view: Snapshot, claim: Claim, left: Mapping[int, int]) -> dict[int, int]:
    """Return devices by model for a waiting unit, first of the model with most left; empty if there are not enough."""
    able = ability(view.fleet, claim.shape).models
    needed = claim.shape.gpus * claim.least
    taken: dict[int, int] = {}
    for model in sorted((model for model in left if able[model]), key=lambda of: (-left[of], of)):
        count = min(left[model], needed)
        if count:
            taken[model] = count
            needed -= count
    return {} if needed else taken


def _held(view: Snapshot) -> dict[str, dict[int, int]]:
    """Return how many devices of each model each unit holds on open nodes."""
    fleet, found = view.fleet, dict[str, Counter[int]]()
    for row, residents in enumerate(fleet.residents):
        places = {device.index: place for place, device in enumerate(fleet.nodes[row].devices)}
        for resident in residents:
            held = found.setdefault(resident.unit, Counter())
            if not fleet.closed[row]:
                held.update(int(fleet.device_model[row, places[device]]) for device in resident.devices)
    return {unit: dict(held) for unit, held in found.items()}


def _falls_at(view: Snapshot, claims: Sequence[Claim]) -> int | None:
    """Return the next instant at which a running unit falls into the second queue."""
    return min(
        (
            view.now + -(-(THRESHOLD - claim.attained) // (claim.shape.gpus * len(claim.rows)))
            for claim in claims
            if claim.rows and not claim.stopping and claim.attained < THRESHOLD
        ),
        default=None,
    )


def _words(claim: Claim) -> str:
    return f"{'second' if _queue(claim) else 'first'} queue, {format_duration(claim.attained)} of service so far"
