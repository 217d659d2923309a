"""Running units: elastic ones change their size, others move to better, cooler or faster devices."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from poise.model.decisions import Preempt, Resize, Why
from poise.model.fleet import CPU, DEVICES, HOT, MEMORY, NETWORK, Ints, Phased, Resident
from poise.model.jobs import FIRST_PHASE
from poise.model.resources import Shape
from poise.model.views import Candidate
from poise.policy.elastic import speeds_with, worth_having
from poise.policy.emptying import hand_over
from poise.policy.growing import COOL_DOWN, GROWS_BY, changes
from poise.policy.place import close_together
from poise.policy.reclaim import MIN_RUN, cost_of, ends, make_way, next_checkpoint, settled
from poise.policy.resizing import grows_at, more_of
from poise.policy.running import lost_work
from poise.policy.suite.base import on_model, told
from poise.policy.suite.blocked import Blocked

NOBODY: tuple[Resident, ...] = ()

_NEVER = np.iinfo(np.int64).max


class Changing(Blocked):
    """A round that resizes and moves running units."""

    def _grow(self) -> None:
        """Restart larger the elastic unit that gains most, if that exceeds its lost work; called when none waits."""
        now = self.view.now
        best: tuple[float, Resident] | None = None
        for resident in self.view.elastic:
            if resident.size >= resident.most or resident.stopping or resident.unit in self._yielding:
                continue
            if resident.resizes:
                self._grow_in_place(resident)
                continue
            if now < (at := settled(resident, COOL_DOWN)):
                self._ask_again(at)
                continue
            size, slower = self._anew(resident)
            speeds = speeds_with(self.view.speedups.get(resident.unit), resident.most)
            most = worth_having(speeds, resident.least)
            size = min(size, most)
            comes_back = resident.preempted > 0 and size == most
            if size < GROWS_BY * resident.size and not comes_back:
                continue
            left = ends(resident, now, self.draft.speeds) - now
            sooner = 1 - slower * speeds[resident.size] / speeds[size]
            won = (left * sooner - lost_work(resident, now)) * resident.size
            if won > 0 and (best is None or won > best[0]):
                best = (won, resident)
            elif won <= 0 and resident.checkpoint:  # the least work is lost just after a checkpoint
                self._ask_again(next_checkpoint(resident, now))
        if best is not None:
            why = Why(policy=self.recipe.name, base=self.view.revision, rank=f"room for more than {best[1].size} tasks")
            self.decisions.append(Preempt(unit=best[1].unit, cause="grow", why=why))

    def _resize(self) -> None:
        """Resize elastic units to the sizes with the largest total worth, at most once in `COOL_DOWN`. Units that
        resize without a restart grow into free room at once. No unit restarts to grow while work waits for devices,
        since repeated work would delay all of it. Nor does any unit shrink for such growth.
        """
        now = self.view.now
        again = int(self.view.memory.get("shared_anew", 0))
        here = [one for one in self.view.elastic if one.unit in self._sizes and one.unit not in self._yielding]
        short = sum(_width(one) for one in self._waiting if self._sizes.get(one.unit))
        for one in here:
            if one.resizes and one.size < self._sizes[one.unit] and not self._changes_model(one):
                self._grow_in_place(one)
        if now < again:
            self._ask_again(again)
            return
        moving = [one for one in here if self._changes_model(one)]
        changing = [one for one in here if one not in moving and changes(one, self._sizes[one.unit], now)]
        if any(one.shape.gpus for one in self._waiting):
            moving = []
            changing = [one for one in changing if one.resizes or self._sizes[one.unit] <= one.size]
        changing = self._attainable(changing, moving)
        short += sum(one.shape.gpus * max(0, self._sizes[one.unit] - one.size) for one in changing)
        short += sum(one.size for one in changing if one in moving)
        if not changing or not short:
            self._ask_again(now + COOL_DOWN)
            return
        self.memory["shared_anew"] = now + COOL_DOWN
        self.memory["anew"] = {one.unit: self._sizes[one.unit] for one in changing if not one.resizes}
        self._ask_again(now + COOL_DOWN)
        for one in changing:
            to = self._sizes[one.unit]
            rank = f"{to} tasks are worth more"
            if one in moving:
                rank += f" on {self.view.fleet.models[self._target[one.unit].model].called}"
            why = Why(policy=self.recipe.name, base=self.view.revision, rank=rank)
            if one in moving:
                self.decisions.append(Preempt(unit=one.unit, cause="move", why=why))
            elif one.resizes and to >= max(1, one.least):
                if to < one.size:
                    members = sorted(member.task for _, member in self._members.of[one.unit] if not member.stopping)
                    leaves = tuple(members[to - one.size :])
                    self.decisions.append(Resize(unit=one.unit, cause="shrink", why=why, leaves=leaves))
            elif to:
                cause: Literal["grow", "shrink"] = "grow" if to > one.size else "shrink"
                self.decisions.append(Preempt(unit=one.unit, cause=cause, why=why))

    def _changes_model(self, one: Resident) -> bool:
        """Return whether a running elastic unit should move to another device model."""
        part = self._shared_out.get(one.unit)
        return part is not None and part.model != part.here

    def _attainable(self, changing: Sequence[Resident], moving: Sequence[Resident]) -> list[Resident]:
        """Return the units that shrink, and those that would restart to grow or on another model as far as there is
        room: free room, and room that the others give back. Limit their sizes to that room.
        """
        now = self.view.now
        models = {part.model for part in self._shared_out.values()} | {part.here for part in self._shared_out.values()}
        room = {model: self.draft.whole_devices_free(model) for model in models or {-1}}
        on = {unit: part.here for unit, part in self._shared_out.items()}
        shrink = [one for one in changing if self._sizes[one.unit] <= one.size]
        for one in shrink:
            room[on.get(one.unit, -1)] += one.shape.gpus * (one.size - max(one.least, self._sizes[one.unit]))
        grow = list[Resident]()
        for one in moving:
            part = self._shared_out[one.unit]
            if now >= one.since + COOL_DOWN * (1 + one.preempted + one.moved) and part.devices <= room[part.model]:
                room[part.model] -= part.devices
                room[part.here] += part.has
                grow.append(one)
        for one in changing:
            model = on.get(one.unit, -1)
            to = min(self._sizes[one.unit], one.size + room[model] // one.shape.gpus)
            if to > one.size and changes(one, to, now):
                self._sizes[one.unit] = to
                room[model] -= one.shape.gpus * (to - one.size)
                grow.append(one)
        return shrink + grow

    def _begun_anew(self, waiting: Sequence[Candidate]) -> dict[str, int]:
        """Return the sizes of the units that were just stopped to restart with another size."""
        if self.view.now >= int(self.view.memory.get("shared_anew", 0)):
            return {}
        anew: dict[str, int] = self.view.memory.get("anew", {})
        return {one.unit: anew[one.unit] for one in waiting if one.unit in anew}

    def _grow_in_place(self, resident: Resident) -> None:
        """Add as many tasks to a running unit as there is room for where they run no slower than its others."""
        if self.view.now < (at := grows_at(resident)):
            self._ask_again(at)
            return
        leaving = sum(one.stopping for _, one in self._members.of[resident.unit])
        wanted = self._sizes.get(resident.unit, resident.most)
        most = self.allowance.room_for(resident.tenant, resident.shape, wanted - resident.size - leaving)
        if self.shares is not None:
            most = self.shares.room_to_grow(resident, most)
        there, here = self._runs_by_row(resident)
        runs_well = there == here if resident.unit in self._shared_out else there <= here
        spots = more_of(resident, self.draft, self._members, most, runs_well)
        if spots:
            self.allowance.use(resident.tenant, resident.shape, len(spots))
            rank = f"room for {resident.size + len(spots)} of its tasks"
            why = Why(policy=self.recipe.name, base=self.view.revision, rank=rank)
            self.decisions.append(Resize(unit=resident.unit, cause="grow", why=why, joins=tuple(spots)))

    def _anew(self, resident: Resident) -> tuple[int, float]:
        """Return the size with which an elastic unit would be placed now if it did not run, and its task run time
        relative to the current one: on the fastest devices that hold its minimum, and on its own where those are no
        slower.
        """
        shape, (there, here) = resident.shape, self._runs_by_row(resident)
        room = self.draft.capacity(shape)
        for run in np.unique([*there[room > 0].tolist(), here]).tolist():
            size = int(room[there <= run].sum()) + resident.size * (here <= run)
            if size >= resident.least:
                more = self.allowance.room_for(resident.tenant, shape, resident.most)
                return min(resident.most, size, resident.size + more), run / max(1, here)
        return 0, 1.0

    def _runs_by_row(self, resident: Resident) -> tuple[Ints, int]:
        """Return the unit's run time on the fastest suitable device of each node, and where it runs now."""
        draft, fleet, shape = self.draft, self.draft.fleet, resident.shape
        devices = shape.gpus > 0
        estimates = draft.speeds.of(
            resident.kind, shape.wants.precision, resident.declared, resident.work, devices=devices
        )
        able = draft.able(shape).models
        runs = np.array([of.mean if can or not devices else _NEVER for of, can in zip(estimates, able, strict=False)])
        there = (
            np.append(runs, _NEVER)[fleet.device_model].min(axis=1, initial=_NEVER)
            if devices
            else runs[fleet.processor]
        )
        here = next(
            (
                int(run)
                for model, run in zip(fleet.models, runs, strict=True)
                if model.called == resident.model and (model.kind != "cpu") == devices
            ),
            int(runs.min()),
        )
        return there, here

    def _hand_over(self) -> None:
        """Move units off nodes that are being drained, before placing waiting units that were not promised room."""
        self._handed_over = True
        decided = hand_over(self.draft, self.recipe.name)
        self.decisions += decided
        self._yielding.update(decision.unit for decision in decided)

    def _reallocate(self) -> None:
        """Move the cheapest unit off a node that has been hot for long to one with room, then let the node cool."""
        fleet, now = self.view.fleet, self.view.now
        hot = np.flatnonzero((fleet.levels == HOT) & (fleet.closed == 0))
        moved = dict(self.view.memory.get("moved", {}))
        for row in hot.tolist():
            name = fleet.names[row]
            if now - moved.get(name, -COOL_DOWN) < COOL_DOWN:
                self._ask_again(moved[name] + COOL_DOWN)
                continue
            residents = fleet.residents[row]
            if len(residents) < 2:
                continue  # moving it would only move the heat
            movable = [
                resident
                for resident in residents
                if resident.preemptible and resident.running and not resident.stopping and resident.size == 1
                and resident.unit not in self._yielding
            ]  # fmt: skip
            for resident in movable:
                self._ask_again(settled(resident, MIN_RUN))
            movable = [resident for resident in movable if now >= settled(resident, MIN_RUN)]
            for resident in sorted(movable, key=lambda resident: (cost_of(resident, now), resident.ordinal)):
                room = np.where(fleet.levels > 0, 0, self.draft.capacity(resident.shape))
                left = ends(resident, now, self.draft.speeds) - now
                if room.max(initial=0) > 0 and left > lost_work(resident, now):
                    target = fleet.names[int(room.argmax())]
                    rank = f"{name} is hot, {target} has room and is not"
                    why = Why(policy=self.recipe.name, base=self.view.revision, rank=rank)
                    self.decisions.append(Preempt(unit=resident.unit, cause="move", why=why))
                    moved[name] = now
                    break
        if moved != self.view.memory.get("moved", {}):
            self.memory["moved"] = {name: at for name, at in moved.items() if now - at < COOL_DOWN}

    def _move_up(self) -> None:
        """Move units to the device model where they should run, into free room or room of preempted units."""
        rules, fleet = self.recipe.preempt, self.view.fleet
        if rules is None or not self._target:
            return
        units = {resident.unit: resident for residents in fleet.residents for resident in residents}
        in_vain: dict[tuple[Shape, int], float] = {}  # the largest worth that made no room; room only shrinks
        for unit, aim in self._target.items():
            resident, model = units.get(unit), fleet.models[aim.model].called
            if resident is None or resident.model == model or unit in self._yielding or unit in self._shared_out:
                continue
            shape, here = on_model(resident.shape, fleet.models[aim.model].name), self._prices.price(unit)
            if aim.worth <= here:
                continue  # its devices are worth more to others, which may preempt it
            like = shape, resident.size
            rows = close_together(fleet, self.draft.capacity(shape), resident.size)
            if rows:
                room, victims = Counter(rows), NOBODY
            elif aim.worth <= in_vain.get(like, 0.0):
                continue
            else:
                leaving = self._lawful(resident, self._leaving)
                found = make_way(shape, self.draft, resident.size, rules, leaving, aim.worth, self._yielding)
                if found is None:
                    in_vain[like] = aim.worth
                    continue
                room, victims = Counter(found.rows), found.victims
            why = Why(
                policy=self.recipe.name,
                base=self.view.revision,
                rank=f"is done sooner on {model}",
                score={"worth": told(aim.worth), "instead": told(here)},
            )
            self.decisions.append(Preempt(unit=unit, cause="move", why=why))
            self._yielding.add(unit)
            for row, tasks in room.items():
                self.draft.keep(row, unit, shape, self.view.now, tasks)
            for victim in victims:
                why = Why(
                    policy=self.recipe.name,
                    base=self.view.revision,
                    rank=f"{unit} is worth more on {model}",
                    score={"worth": told(aim.worth), "instead": told(leaving.price(victim.unit))},
                )
                self.decisions.append(Preempt(unit=victim.unit, cause="yield", why=why, to=unit))
                self._yielding.add(victim.unit)

    def _move_stragglers(self) -> None:
        """Restart a straggler on another node of the same kind, if its remaining run time exceeds the cost of restart
        and a whole run there. A run that has overrun is expected to take as long again. For a gang that waits for one
        member, compare the waiting part of the remaining time with the work since the last checkpoint.
        """
        fleet, now = self.view.fleet, self.view.now
        for straggler in self.view.stragglers:
            resident = straggler.resident
            if not resident.preemptible or resident.unit in self._yielding:
                continue
            if straggler.computes:
                at = settled(resident, MIN_RUN)
                left = ends(resident, now, self.draft.speeds) - now
                waits = 1 - straggler.expected / straggler.computes
                if now > at and left * waits <= lost_work(resident, now):
                    at = next_checkpoint(resident, now) if resident.checkpoint else now + MIN_RUN
            else:
                at = max(resident.since + straggler.expected + resident.restore, settled(resident, MIN_RUN))
            if now <= at:
                self._ask_again(at + 1)
                continue
            row = fleet.rows[straggler.node]
            room = np.where((fleet.kind == fleet.kind[row]) & (np.arange(len(fleet)) != row), 1, 0)
            room = room * self.draft.capacity(resident.shape)
            if room.max(initial=0) > 0:
                target = int(room.argmax())
                what = "a gang waits for its member" if straggler.computes else "it takes longer than its like"
                rank = f"{what} on {straggler.node}, and {fleet.names[target]} has room"
                why = Why(policy=self.recipe.name, base=self.view.revision, rank=rank)
                self.decisions.append(Preempt(unit=resident.unit, cause="move", why=why))
                self.draft.keep(target, resident.unit, resident.shape, now)

    def _follow_phases(self) -> None:
        """Shrink training that asks for less in its new phase, if it loses little and a waiting unit fits in the
        returned room. Grow training that asks for more, if nothing waits and there is room.
        """
        now, fleet = self.view.now, self.view.fleet
        for one in self.view.phased:
            resident, shape = one.resident, one.shape
            if not resident.preemptible or not resident.running or resident.unit in self._yielding:
                continue
            if now < (at := settled(resident, COOL_DOWN)):
                self._ask_again(at)
                continue
            if not (resident.checkpoint or resident.kept):
                continue
            if ends(resident, now, self.draft.speeds) - now <= lost_work(resident, now):
                self._ask_again(next_checkpoint(resident, now) if resident.checkpoint else now + MIN_RUN)
                continue
            rows = Counter(fleet.rows[name] for name in one.nodes if name in fleet.rows)
            why = Why(policy=self.recipe.name, base=self.view.revision, rank=_in_words(one))
            if shape.cpu <= resident.shape.cpu and shape.gpu_memory <= resident.shape.gpu_memory:
                found = self._fits_with(one, rows)
                if found is None:
                    continue
                self.decisions.append(Preempt(unit=resident.unit, cause="shrink", why=why, to=found.unit))
                self._yielding.add(resident.unit)
            elif not self._waiting and not self._postponed and self._has_more(one, rows):
                self.decisions.append(Preempt(unit=resident.unit, cause="grow", why=why))
                self._yielding.add(resident.unit)

    def _fits_with(self, one: Phased, rows: Mapping[int, int]) -> Candidate | None:
        """Return the first waiting unit of one task that fits where this unit returns resources."""
        fleet, free = self.view.fleet, self.draft.free
        cpu = one.resident.shape.cpu - one.shape.cpu
        memory = one.resident.shape.gpu_memory - one.shape.gpu_memory
        for candidate in self._waiting:
            asks = candidate.shape
            if (candidate.least or candidate.tasks) > 1:
                continue
            for row, tasks in rows.items():
                after = free[:, row] - (asks.cpu - cpu * tasks, asks.memory, asks.network, 0)
                if (after[[CPU, MEMORY, NETWORK]] < 0).any() or fleet.closed[row]:
                    continue
                here = [device for device in one.resident.devices if memory and one.nodes[0] == fleet.names[row]]
                shared = asks.is_part and any(
                    fleet.device_memory[row, device] + memory >= asks.gpu_memory
                    and fleet.device_share[row, device] >= asks.share
                    for device in here
                )
                if asks.gpus <= free[DEVICES, row] or shared:
                    return candidate
        return None

    def _has_more(self, one: Phased, rows: Mapping[int, int]) -> bool:
        """Return whether its nodes have room for the additional resources that it asks for."""
        more = one.shape.cpu - one.resident.shape.cpu
        return all(self.draft.free[CPU, row] >= more * tasks for row, tasks in rows.items())


def _in_words(one: Phased) -> str:
    return f"in its {one.phase or FIRST_PHASE} phase it asks for {one.shape.describe()}"


def _width(candidate: Candidate) -> int:
    """Return the minimum number of devices of a unit."""
    return candidate.shape.gpus * (candidate.least or candidate.tasks)
