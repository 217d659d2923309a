"""Units that have no room: room is made by preemption, or kept until it comes free."""

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Literal, NamedTuple

import msgspec

from poise.model.decisions import Preempt, Reason, Resize, Why
from poise.model.fleet import DEVICES, Resident
from poise.model.jobs import GRACE
from poise.model.resources import WHOLE, Shape
from poise.model.views import Candidate
from poise.policy.assign import PRESSED, in_time
from poise.policy.rank import LENDING, PATIENCE, RESERVATIONS, effective_class
from poise.policy.reclaim import (
    Preemption,
    Prices,
    Reservation,
    Yielding,
    cost_of,
    drain,
    find_yielding,
    gain_of,
    is_coming,
    least_standing,
    make_way,
    may_yield_at,
    reserve,
    stands_still,
    take_from,
    value,
)
from poise.policy.resizing import SETTLES, find_smaller
from poise.policy.shared import Shared
from poise.policy.suite.base import NO_PRICE, TURN, Reasons, on_model, on_models, told
from poise.policy.suite.placing import Placing
from poise.policy.timely import EXCHANGE, RISK
from poise.policy.waiting import AGEING, STARVES, WIDTH, ageing
from poise.units import SECOND

ASKS_AGAIN = 8
"""Retry the victim search of a blocked unit each time its wait has grown by 1/8."""

SKIPS = 6
"""Maximum number of such instants to the next search: the wait at most doubles, since running units may outlive their
estimates."""

YIELD_SEARCHES = 4
"""Maximum number of victim searches in one round."""

TAKE_BACKS = 16
"""Maximum number of blocked units in one round for which borrowed resources of their share are reclaimed."""

IDLES = 0.1
"""Room is kept for a waiting unit only if the device time idle until its start is less than this part of its own."""


class _Way(NamedTuple):
    """A preemption: its gain, the victims, the shape of the unit that gets the room, and the prices."""

    gain: float
    found: Yielding
    shape: Shape
    prices: Prices

    @property
    def net(self) -> float:
        return self.gain - self.found.price


class Blocked(Placing):
    """A round that makes and keeps room for blocked units."""

    def _blocked(self, candidate: Candidate) -> None:
        """Preempt others or keep room for the unit; hold the unit's queue with every reason."""
        more: Reasons = ()
        could = self._could_run(candidate)
        if could and self.recipe.preempt is not None:
            if self.shares is not None and (back := self._take_back(candidate, self.shares, self.recipe.preempt)):
                self._taking_back.setdefault(candidate.queue, (candidate, back))  # others of its queue may do it too
                return
            more = self._make_yield(candidate, self.recipe.preempt)
        if not more and self._target.pop(candidate.unit, None) is not None:  # its best model gets no room
            if self.recipe.preempt is not None and self._has_room_to_be_late(candidate):
                more = self._make_way_in_time(candidate, self.recipe.preempt)
            if not more and self._place(candidate):
                self._count_share(candidate)
                return
        if not self._closed:  # else no unit takes its room, and waiting changes no order
            if not more and could and self.recipe.reserve:
                self._keep_in_turn(candidate)
            if not self._yields_by_worth(candidate):  # else the next victim search counts with its class then
                every = ageing(candidate, self.view)
                self._ask_again(candidate.ready + every * (1 + (self.view.now - candidate.ready) // every))
        if not candidate.recovering:  # a recovering unit is held by its node, which may return
            self.holds[candidate.queue] = more
            self._waiting.append(candidate)

    def _keep_in_turn(self, candidate: Candidate) -> None:
        """Keep room for large units that have waited long, except for one device, which smaller units cannot block."""
        if (candidate.tasks == 1 and candidate.shape.gpus == 1) or self._reservations >= RESERVATIONS:
            return
        patience = PATIENCE[effective_class(candidate, self.view)]
        if self._weighs_worth and candidate.shape.gpus and self._all_save and self._is_guess(candidate):
            patience = TURN  # until then all preemptible units may be preempted for it
        waits_until = candidate.ready + patience
        if self.view.now >= waits_until:
            self._keep(candidate, waits_until + max(LENDING, ageing(candidate, self.view)))
        else:
            self._ask_again(waits_until)

    def _make_yield(self, candidate: Candidate, rules: Preemption) -> Reasons:
        """Preempt the cheapest units if that is worth it, and keep the room that they leave."""
        if not self._occupied and self.decisions:  # units placed in this round may be preempted later
            self._ask_again(self.view.now + rules.min_run)
        if not self._occupied or self._searches >= YIELD_SEARCHES:
            return ()
        self._searches += 1
        needed, now = candidate.least or candidate.tasks, self.view.now
        shapes = self._shapes(candidate)
        if coming := self._keep_coming(candidate, shapes, needed):
            return coming
        if smaller := self._make_smaller(candidate, shapes, needed):
            return smaller
        if candidate.serves:
            rules = msgspec.structs.replace(rules, by="class")
        elif rules.by == "value":
            if self._yields_by_worth(candidate):
                return self._make_way(candidate, rules)
            rules = msgspec.structs.replace(rules, by="class")
        could = [
            (found, shape)
            for shape in shapes
            if (
                found := find_yielding(
                    candidate, shape, self.draft, needed, rules, self._yielding, self._spared(candidate)
                )
            )
            and found.victims
        ]
        if not could:
            if rules.by != "class":
                self._ask_again(now + rules.min_run)  # service grows with time
            for shape in shapes if rules.by == "class" else ():
                if (at := may_yield_at(candidate, shape, self.draft, rules)) is not None:
                    self._ask_again(at)
            return ()
        found, shape = min(could, key=lambda found: found[0].cost)
        if candidate.serves:
            return self._ask_to_yield(candidate, shape, found, {})
        gain = 0.0
        if rules.by == "class":
            soonest = self._soonest(candidate)
            gain = gain_of(candidate, soonest[0].at if soonest else now + AGEING, now, needed)
            if gain <= found.cost + stands_still(found.victims, candidate.expected):
                return ()
        scores = {}
        for victim in found.victims:
            cost = cost_of(victim, now) + stands_still([victim], candidate.expected)
            scores[victim.unit] = {"gain": round(gain / SECOND, 3), "cost": round(cost / SECOND, 3)}
        return self._ask_to_yield(candidate, shape, found, scores)

    def _keep_coming(self, candidate: Candidate, shapes: Sequence[Shape], needed: int) -> Reasons:
        """Keep the room of units that are stopping already, if that is enough."""
        for shape in shapes if self._stopping else ():
            coming = is_coming(candidate, shape, self.draft, needed)
            if coming is not None:
                return self._keep_promised(candidate, shape, coming)
        return ()

    def _keep_promised(self, candidate: Candidate, shape: Shape, rows: Mapping[int, int]) -> Reasons:
        """Keep room that other units leave."""
        self._keep_rows(candidate, shape, rows, self.view.now + GRACE)
        if self.shares is not None:
            self.shares.promise(candidate)
        return (Reason(code="PREEMPTING", have="work there", need=candidate.unit),)

    def _make_smaller(self, candidate: Candidate, shapes: Sequence[Shape], needed: int) -> Reasons:
        """Shrink gangs that resize in place, and keep the room of the members that leave."""
        if not self._members.of:
            return ()
        gangs = {unit: of[0][1] for unit, of in self._members.of.items()}
        for resident in gangs.values():
            self._ask_again(resident.since + SETTLES)
        asked = self._yielding if self.shares is None else self._yielding | self.shares.complete(candidate, gangs)
        for shape in shapes:
            found = find_smaller(candidate, shape, self.draft, needed, self._members, asked, self._sizes)
            if found is None or not self._agree(candidate, shape, found.leaves):
                continue
            rank = candidate.serves or self.order.words(candidate, self.view)
            why = Why(policy=self.recipe.name, base=self.view.revision, rank=rank)
            for unit, leaves in found.leaves.items():
                self._yielding.add(unit)
                self.decisions.append(
                    Resize(unit=unit, cause="shrink", why=why, leaves=tuple(leaves), to=candidate.unit)
                )
            self._keep_rows(candidate, shape, found.rows, self.view.now + GRACE)
            names = ", ".join(found.leaves)
            return (Reason(code="PREEMPTING", have=names, need=candidate.unit),)
        return ()

    def _take_back(self, candidate: Candidate, shares: Shared, rules: Preemption) -> Reasons:
        """Reclaim resources that a share is guaranteed and others have borrowed, from the units that lose least."""
        if not self._occupied or self._taken_back >= TAKE_BACKS or not shares.is_entitled(candidate):
            return ()
        self._taken_back += 1
        shapes, needed = self._shapes(candidate), candidate.least or candidate.tasks
        if coming := self._keep_coming(candidate, shapes, needed):
            return coming
        for shape in shapes:
            own = shares.own_models(candidate, shape)
            if own is not None and not own:
                continue
            wanted = shape if own is None else on_models(shape, own)
            borrowers = shares.borrowers(candidate, shape, rules, self._yielding)
            found = take_from(wanted, self.draft, needed, rules, borrowers, self._yielding)
            if found is None:
                continue
            if not found.victims:  # others were asked for more room than they need
                return self._keep_promised(candidate, shape, found.rows)
            found = found._replace(victims=tuple(sorted(found.victims, key=partial(_rank, now=self.view.now))))
            rank = f"{candidate.leaf} takes back what it is guaranteed"
            return self._ask_to_yield(candidate, shape, found, {}, rank)
        return ()

    def _yields_by_worth(self, candidate: Candidate) -> bool:
        """Return whether units of any class that are worth less may be preempted for this one."""
        whole = candidate.shape.gpus > 0 and candidate.shape.share == WHOLE
        return whole and self._weighs_worth and not candidate.serves

    def _make_way(self, candidate: Candidate, rules: Preemption) -> Reasons:
        """Preempt the units that are worth least, on the device model with the largest gain."""
        pressed = candidate.unit in self.draft.timely.pressed
        guess = self._is_guess(candidate) and not pressed
        shapes: tuple[Shape, ...] = self._shapes(candidate)
        if (aim := self._target.get(candidate.unit)) is not None:
            shapes = (on_model(candidate.shape, self.view.fleet.models[aim.model].name),)
            prices = self._leaving
        else:
            shapes = () if self._target else shapes
            prices = self._had_turns if guess else self._prices_for_deadlines if pressed else self._prices
        best = self._best_way(candidate, rules, shapes, prices)
        if best is not None and guess and NO_PRICE in {self._had_turns.price(one.unit) for one in best.found.victims}:
            best = None
        if best is None:
            self._ask_again(self._next_search(candidate, rules))
            return ()
        return self._take(candidate, best)

    def _next_search(self, candidate: Candidate, rules: Preemption) -> int:
        """Return when another victim search may find more, since the worth of a waiting unit grows with time. Skip
        instants at which the unit is worth less than each unit that could be preempted.
        """
        draft, at = self.draft, self.view.now
        times, waits = PRESSED if candidate.unit in draft.timely.pressed else 1.0, min(1.0, draft.waits)
        run = draft.speeds.shortest(candidate, draft.able(candidate.shape).models)
        for _ in range(SKIPS):
            at += max(rules.min_run, (at - candidate.ready) // ASKS_AGAIN)
            if self._is_uneven or times * value(candidate, run, self.view, at=at, waits=waits) >= self._least_standing:
                break
        return at

    @cached_property
    def _least_standing(self) -> float:
        return least_standing(self.draft, self.recipe.preempt or Preemption())

    def _has_room_to_be_late(self, candidate: Candidate) -> bool:
        """Return whether a unit that must start now has room only on device models on which it would be late, and there
        is room for all waiting work, so that preempted work resumes there.
        """
        if candidate.unit not in self.draft.timely.pressed or candidate.least or candidate.others:
            return False
        return self._all_have_room and int(self.draft.capacity(candidate.shape).sum()) >= candidate.tasks

    @cached_property
    def _all_have_room(self) -> bool:
        """Whether the fleet has as many free devices as all waiting units ask for."""
        free = int(self.view.fleet.free[DEVICES, self._open].sum())
        return int(self.draft.waiting.columns[WIDTH].sum()) <= free

    def _make_way_in_time(self, candidate: Candidate, rules: Preemption) -> Reasons:
        """Preempt the units that are worth least, on any device model on which this unit is on time. The assignment to
        models may count on a unit that cannot be preempted, because its own deadline must be met.
        """
        good = in_time(self.draft, candidate, self._runs(candidate))
        shape = on_models(candidate.shape, [self.view.fleet.models[index].name for index in good])
        best = self._best_way(candidate, rules, (shape,), self._prices_for_deadlines) if good else None
        return () if best is None else self._take(candidate, best)

    def _best_way(
        self, candidate: Candidate, rules: Preemption, shapes: Sequence[Shape], prices: Prices
    ) -> "_Way | None":
        """Return the preemption with the largest gain. Work of unknown run time preempts none that is due before it."""
        draft, now, needed = self.draft, self.view.now, candidate.least or candidate.tasks
        pressed = candidate.unit in draft.timely.pressed
        risk, times = (EXCHANGE, PRESSED) if pressed else (RISK, 1.0)
        due_first = candidate.due if self._is_guess(candidate) else 0  # units that are due by then go first
        prices = self._lawful(candidate, prices)
        best: _Way | None = None
        for shape in shapes:
            run = draft.speeds.shortest(candidate, draft.able(shape).models)
            gain = times * value(candidate, run, self.view, waits=min(1.0, draft.waits))
            found = make_way(shape, draft, needed, rules, prices, gain, self._yielding, run, risk)
            if not found or not found.victims or any(now < one.due <= due_first for one in found.victims):
                continue
            if gain - found.price > (best.net if best is not None else 0.0):
                best = _Way(gain, found, shape, prices)
        return best

    def _take(self, candidate: Candidate, way: "_Way") -> Reasons:
        worth, victims = told(way.gain), [one.unit for one in way.found.victims]
        worths = {unit: {"worth": worth, "instead": told(way.prices.price(unit))} for unit in victims}
        return self._ask_to_yield(candidate, way.shape, way.found, worths)

    def _ask_to_yield(
        self,
        candidate: Candidate,
        shape: Shape,
        found: Yielding,
        scores: Mapping[str, dict[str, float]],
        rank: str = "",
    ) -> Reasons:
        """Preempt the victims and keep the room that they leave."""
        if not self._agree(candidate, shape, dict.fromkeys((victim.unit for victim in found.victims), None)):
            return ()
        for victim in found.victims:
            self._yielding.add(victim.unit)
            shrinks = victim.least and victim.size > victim.least
            why = Why(
                policy=self.recipe.name,
                base=self.view.revision,
                rank=rank or candidate.serves or self.order.words(candidate, self.view),
                score=scores.get(victim.unit, {}),
            )
            cause: Literal["shrink", "yield"] = "shrink" if shrinks else "yield"
            self.decisions.append(Preempt(unit=victim.unit, cause=cause, why=why, to=candidate.unit))
        self._keep_rows(candidate, shape, found.rows, self.view.now + GRACE)
        names = ", ".join(victim.unit for victim in found.victims)
        return (Reason(code="PREEMPTING", have=names, need=candidate.unit),)

    def _soonest(self, candidate: Candidate) -> tuple[Reservation, Shape] | None:
        """Return where, when and in which artifact a blocked unit could start first."""
        needed, shapes = candidate.least or candidate.tasks, self._shapes(candidate)
        if len(shapes) == 1:  # mostly, and this is asked for each blocked unit
            only = self._reserve(shapes[0], needed)
            return None if only is None else (only, shapes[0])
        could = [(found, shape) for shape in shapes if (found := self._reserve(shape, needed)) is not None]
        return min(could, key=lambda found: found[0].at, default=None)

    def _reserve(self, shape: Shape, needed: int) -> Reservation | None:
        """Return the earliest start of such a unit; found anew only after room was taken or kept."""
        known = self._soonest_of.get((needed, shape))
        if known is None or known[0] != self.draft.changes:
            known = self._soonest_of[needed, shape] = self.draft.changes, reserve(shape, self.draft, needed)
        return known[1]

    def _keep(self, candidate: Candidate, lent_until: int) -> None:
        """Keep the room where the unit could start first. Until the instant `lent_until`, lend it to units that end in
        time; after that, to none.
        """
        now, soonest = self.view.now, self._soonest(candidate)
        if soonest is None or not self._pays(candidate, soonest[1], soonest[0]):
            return
        if now < lent_until:
            self._ask_again(lent_until)
            self._reservations += 1
            self._keep_rows(candidate, soonest[1], soonest[0].rows, soonest[0].at)
            return
        for shape in self._shapes(candidate):
            rows = drain(shape, self.draft, candidate.least or candidate.tasks)
            if rows is not None:
                self._reservations += 1
                self._keep_rows(candidate, shape, rows, now)
                return

    def _pays(self, candidate: Candidate, shape: Shape, soonest: Reservation) -> bool:
        """Return whether the device time idle until the unit starts is a small enough part of its own; the allowed part
        grows with its wait.
        """
        if not shape.gpus:
            return True
        now = self.view.now
        room: list[int] = self.draft.capacity(shape)[list(soonest.rows)].tolist()
        free = sum(map(min, room, soonest.rows.values()))
        if not free:
            return True
        run = self.draft.speeds.shortest(candidate, self.draft.able(shape).models)
        waited = now - candidate.ready
        return free * (soonest.at - now) <= IDLES * (candidate.least or candidate.tasks) * (run + waited / STARVES)


def _rank(victim: Resident, now: int) -> tuple[float, int, int]:
    """Return the key that orders victims: the cost, then the latest start."""
    return cost_of(victim, now), -victim.since, victim.ordinal
