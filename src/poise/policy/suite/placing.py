"""Placing units: where each fits, on which device model, and why not elsewhere."""

from typing import Any

import numpy as np

from poise.model.decisions import Place, Reason
from poise.model.fleet import Ints
from poise.model.profiles import expected_run, is_brief
from poise.model.resources import Shape
from poise.model.views import Candidate
from poise.policy.assign import in_time
from poise.policy.feasible import gang_incomplete
from poise.policy.growing import Begun, hand_out
from poise.policy.place import close_together
from poise.policy.suite.base import Base, Reasons, on_model, on_models
from poise.units import format_duration


class Placing(Base):
    """A round that places units."""

    def _place(self, candidate: Candidate) -> bool:
        """Place the unit if it fits, in the artifact with the shortest estimated run time; after an out-of-memory
        failure, in one that asks for less memory, if there is one.
        """
        aim = self._target.get(candidate.unit)
        told_apart = aim is not None and self._by_speed(candidate, candidate.shape)[0][1] is not None
        if aim is not None and told_apart and not candidate.others:
            shapes: tuple[Shape, ...] = (on_model(candidate.shape, self.view.fleet.models[aim.model].name),)
        else:
            shapes = self._shapes(candidate)
        if candidate.tasks > 1 or candidate.least:
            return self._place_gang(candidate, shapes)
        best: tuple[bool, bool, int, int, int, Shape] | None = None
        for variant, shape in enumerate(shapes):
            if candidate.tenant and candidate.others and not self.allowance.room_of(candidate, shape):
                continue
            if shape in self._full:
                row = None
            elif self.recipe.turns != "no":
                row = self.turns.next(self.draft, shape)
            else:
                found = self.draft.best(candidate, shape)
                row = found[0] if found else None
            if row is None:
                self._full.add(shape)
                row = self._meanwhile(candidate, shape)
            if row is not None and len(shapes) == 1:
                best = (False, False, 0, variant, row, shape)
            elif row is not None:  # known run times come before guesses
                run = self.draft.run_on(candidate, shape, row)
                found_here = (_ran_out(candidate, shape), run.source == "default", run.mean, variant, row, shape)
                best = found_here if best is None else min(best, found_here)
        if best is None:
            return False
        *_, variant, row, shape = best
        brief = is_brief(self.view.profiles.get(candidate.kind), shape, 1)
        why = self._why(candidate, shape, row)
        spot = self.draft.take(row, candidate, shape, brief=brief)
        self.allowance.take(candidate, shape, 1)
        self.decisions.append(Place(unit=candidate.unit, spots=(spot,), why=why, variant=variant))
        return True

    def _shapes(self, candidate: Candidate) -> tuple[Shape, ...]:
        """Return the shapes of a unit's artifacts, restricted to device models on which it may start."""
        if late := self._late_on(candidate):
            names = [model.name for model in self.view.fleet.models if model.name not in late]
            return (on_models(candidate.shape, names),)
        return (candidate.shape, *candidate.others)

    def _late_on(self, candidate: Candidate) -> dict[str, int]:
        """Return the device models on which a unit may not start, with its run time there: it would miss a deadline
        that is kept, and could not move to a faster device without losing all of its work.
        """
        moves = candidate.checkpoint and candidate.preemptible
        if moves or candidate.unit not in self.draft.timely.waiting or candidate.others or not self._is_uneven:
            return {}
        runs = self._runs(candidate)
        good = in_time(self.draft, candidate, runs)
        return {self.view.fleet.models[index].name: run for index, run in runs.items() if good and index not in good}

    def _runs(self, candidate: Candidate) -> dict[int, int]:
        """Return the unit's remaining run time on each device model that could hold it."""
        return self.draft.speeds.left(candidate, candidate.shape, self.draft.able(candidate.shape).models)

    def _meanwhile(self, candidate: Candidate, shape: Shape) -> int | None:
        """Return a row with room kept for another unit, if this unit is known to end before that room is needed."""
        now, kept = self.view.now, self.draft.kept
        for row in self.draft.room_meanwhile(shape) if kept else ():
            run = self.draft.run_on(candidate, shape, row)
            if run.source != "default" and all(one.until >= now + run.most for one in kept[row]):
                return row
        return None

    def _place_alike(self, group: list[Candidate]) -> bool:
        """Place single-task units of one queue, node by node; return whether all of them found room."""
        draft, first = self.draft, group[0]
        shape = first.shape
        brief = is_brief(self.view.profiles.get(first.kind), shape, 1)
        placed = 0
        while placed < len(group):
            found = draft.best(first, shape)
            if found is None:
                return False
            row = found[0]
            count = min(draft.room_for(row, shape), len(group) - placed)
            why = self._why(group[placed], shape, row)
            spots = draft.take_many(row, first, shape, count, brief=brief)
            self.allowance.take(first, shape, count)
            self.decisions += [
                Place(unit=candidate.unit, spots=(spot,), why=why)
                for candidate, spot in zip(group[placed:], spots, strict=False)
            ]
            placed += count
        return True

    def _place_gang(self, candidate: Candidate, shapes: tuple[Shape, ...]) -> bool:
        """Place all tasks or none; of an elastic unit its minimum now, and more at the end of the round."""
        needed = candidate.least or candidate.tasks
        best: tuple[bool, bool, int, int, list[int]] | None = None
        wanted = self._sizes.get(candidate.unit, 0)
        for variant, shape in enumerate(shapes):
            within = self.allowance.room_of(candidate, shape) >= needed
            if candidate.least and wanted > needed and self.allowance.room_of(candidate, shape) >= wanted:
                if rows := self._gang_rows(candidate, shape, wanted):
                    best = (False, False, 0, variant, rows)
                    break
                if self._stopping:
                    return False
            rows = self._gang_rows(candidate, shape, needed) if within else []
            if rows and len(shapes) == 1:
                best = (False, False, 0, variant, rows)
            elif rows:  # as fast as its slowest member; known run times come before guesses
                run = max(self.draft.run_on(candidate, shape, row) for row in dict.fromkeys(rows))
                found = (_ran_out(candidate, shape), run.source == "default", run.mean, variant, rows)
                best = found if best is None else min(best, found)
        if best is None:
            return False
        *_, variant, rows = best
        shape = shapes[variant]
        why = self._why(candidate, shape, rows[0], rows)
        spots = [self.draft.take(row, candidate, shape) for row in rows]
        self.allowance.take(candidate, shape, len(rows))
        if len(rows) < candidate.tasks:
            self._begun.append(Begun(candidate, shape, variant, spots, why))
        else:
            self.decisions.append(Place(unit=candidate.unit, spots=tuple(spots), why=why, variant=variant))
        return True

    def _gang_rows(self, candidate: Candidate, shape: Shape, needed: int) -> list[int]:
        """Return a row for every task, close together: on one node, else in one rack, else in one zone, else anywhere.
        Use devices of one model if one could hold the gang, the fastest first: a gang on several is as slow as its
        slowest. Use the node to avoid only if it is necessary.
        """
        if self._gang_room.get(shape, needed) < needed:
            return []
        avoid = self.draft.fleet.rows.get(candidate.avoid, -1)
        rows = self._gang_rows_on(candidate, shape, needed, without=avoid) if avoid >= 0 else []
        return rows or self._gang_rows_on(candidate, shape, needed)

    def _gang_rows_on(self, candidate: Candidate, shape: Shape, needed: int, *, without: int = -1) -> list[int]:
        row = self.draft.best_whole(candidate, shape, needed, candidate.tasks, without=without)
        if row is not None:
            return [row] * needed
        fleet = self.draft.fleet
        self._gang_room[shape] = int(self.draft.capacity(shape).sum())
        room = self.draft.room_each(shape)
        if without >= 0:
            room = np.where(np.arange(len(room)) == without, 0, room)
        if self._gang_room[shape] < needed or int(room.sum()) < needed:
            return []
        masks = [mask for _, mask in self._by_speed(candidate, shape)]
        most = self.draft.able(shape).by_row(fleet)

        def on(mask: Any, room: Ints) -> Ints:
            return self.draft.within(shape, room if mask is None else np.where(mask, room, 0))

        if all(mask is not None and int(on(mask, most).sum()) < needed for mask in masks):
            masks.append(None)  # no single model could ever hold it
        for mask in masks:
            here = on(mask, room)
            if int(here.sum()) >= needed:
                rows = close_together(fleet, here, needed)
                if rows:
                    return rows
        return []

    def _by_speed(self, candidate: Candidate, shape: Shape) -> list[tuple[int | None, Any]]:
        """Return, where models differ, each that could run the unit, fastest first, and a mask of its nodes."""
        if not shape.gpus:
            return [(None, None)]
        estimates, able = self.draft.estimates(candidate, shape), self.draft.able(shape)
        models = [index for index, can in enumerate(able.models) if can]
        if len({estimates[index].mean for index in models}) < 2:
            return [(models[0] if models else None, None)]
        fleet = self.draft.fleet
        ordered = sorted(models, key=lambda index: (estimates[index].mean, index))
        return [(index, (fleet.device_model == index).any(axis=1)) for index in ordered]

    def _place_elastic(self) -> None:
        hand_out(self._begun, self.draft, self.allowance, self._sizes)
        for one in self._begun:
            place = Place(unit=one.candidate.unit, spots=tuple(one.spots), why=one.why, variant=one.variant)
            self.decisions.append(place)

    def _behind(self, candidate: Candidate) -> Place | None:
        profile = self.view.profiles.get(candidate.kind)
        alone = not (candidate.others or candidate.tenant or candidate.least)
        if not alone or not is_brief(profile, candidate.shape, candidate.tasks):
            return None
        spot = self.draft.place_behind(candidate, max(1, expected_run(profile, 0)))
        return None if spot is None else Place(unit=candidate.unit, spots=(spot,), queued=True, why=self._why_behind)

    def _count_share(self, candidate: Candidate) -> None:
        """Count the last placement against its share."""
        begun = self._begun[-1] if self._begun and self._begun[-1].candidate is candidate else None
        last = begun or self.decisions[-1]
        if self.shares is not None and (begun or (isinstance(last, Place) and last.unit == candidate.unit)):
            shape = (candidate.shape, *candidate.others)[last.variant]  # type: ignore[union-attr]
            self.shares.place(candidate, shape, last.spots)  # type: ignore[union-attr]

    def _reasons(self, candidate: Candidate) -> Reasons:
        """Return every reason against every artifact of the unit."""
        if not len(self.view.fleet):
            return (Reason(code="NO_NODES"),)
        reasons: list[Reason] = []
        needed = candidate.least or candidate.tasks
        if needed > 1:
            room = self._room_at_end(candidate.shape) + self.draft.kept_now(candidate.unit)
            have = min(needed - 1, room)
            reasons.append(gang_incomplete(self.view.fleet, candidate.shape.where, needed, have))
        for model, run in self._late_on(candidate).items():
            left = format_duration(candidate.due - self.view.now)
            reasons.append(Reason(code="LATE_ON", subject=model, need=left, have=format_duration(run)))
        for shape in (candidate.shape, *candidate.others):
            known = self._told.get(shape)
            if known is None:
                found = tuple(self.draft.reasons(shape))
                known = self._told[shape] = found, any(reason.code == "RESERVED" for reason in found)
            if not known[1]:
                reasons += known[0]
                continue
            reasons += [
                Reason(code="KEPT", subject=reason.subject)
                if reason.code == "RESERVED" and reason.need == candidate.unit
                else reason
                for reason in known[0]
            ]
        return tuple(reasons) or (Reason(code="NEXT_ROUND"),)

    def _room_at_end(self, shape: Shape) -> int:
        """Return for how many tasks there is room after all placements."""
        if shape not in self._left:
            self._left[shape] = int(self.draft.capacity(shape).sum())
        return self._left[shape]


def _ran_out(candidate: Candidate, shape: Shape) -> bool:
    """Return whether the unit ran out of memory and this shape asks for no less memory."""
    return candidate.ran_out > 0 and not 0 < shape.memory < candidate.ran_out
