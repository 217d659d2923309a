"""Least attained service in two queues (Tiresias, Gu et al., NSDI 2019, section 4): nothing need be known of run times.

What has had less service than a threshold (devices times time) is in the first queue, all else in the second. Within a
queue who came first goes first, so that what is alike does not take turns, as it does by attained service alone. The
devices are given out in this order, and whoever then has none yields, also to one of the same queue that came earlier.
What is large lets those behind it pass as long as it does not fit.
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
"""Of one device: as in the simulator of Pollux's artifact, `tiresias.py`."""


class Tiresias:
    """First the queue of those with less service than the threshold, then the other; first come first served in each.

    Units of several sizes get the least, and more of what is left when they are placed.
    """

    name = "tiresias"

    def decide(self, view: Snapshot, /) -> Plan:
        claimed = claims_of(view)
        ordered = sorted(claimed, key=_place_in_line)
        wanted = _share_out(view, ordered)
        words = {claim.unit: _words(claim) for claim in claimed}
        return carry_out(view, self.name, claimed, wanted, words, until=_falls_at(view, claimed))


def _share_out(view: Snapshot, ordered: Sequence[Claim]) -> dict[str, Rows]:
    """Where those run that have devices. Nobody yields to what would still find no room, which is in pieces or lacks
    something else: that is left out, and all is shared out anew.
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
    """Those that there are devices for, counted by model: where those are free is not looked at. What runs needs the
    devices that it holds, and no others.
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
    """Devices by model for what waits, of those first of which most is left; nothing if there are not enough."""
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
    """How many devices of each model each unit holds on open nodes; those of others are for nobody else."""
    fleet, found = view.fleet, dict[str, Counter[int]]()
    for row, residents in enumerate(fleet.residents):
        places = {device.index: place for place, device in enumerate(fleet.nodes[row].devices)}
        for resident in residents:
            held = found.setdefault(resident.unit, Counter())
            if not fleet.closed[row]:
                held.update(int(fleet.device_model[row, places[device]]) for device in resident.devices)
    return {unit: dict(held) for unit, held in found.items()}


def _falls_at(view: Snapshot, claims: Sequence[Claim]) -> int | None:
    """The next instant at which one that runs falls into the second queue."""
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
