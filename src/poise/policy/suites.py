"""The named policies: compositions of an order, weighted node scores, and rules for blocked units.

A `Recipe` is data (recipe.py): the shipped policies are recipes, and so is a user's YAML file. `Suite` runs a recipe in
five steps: order the candidates; find where each fits (feasible); choose the best node (score, place); reserve room for
blocked units or preempt others for them (reclaim); hold the units that still wait, with every reason."""

from collections.abc import Mapping
from functools import partial
from operator import attrgetter

import msgspec

from poise.model.decisions import Plan, Why
from poise.model.fleet import CPU, DEVICES
from poise.model.resources import WHOLE
from poise.model.views import LEAST_SHOWN, Candidate, Snapshot
from poise.policy.elasticflow import ElasticFlow
from poise.policy.emptying import being_emptied
from poise.policy.goodput import Goodput
from poise.policy.place import Draft
from poise.policy.protocol import Policy
from poise.policy.queues import Tiresias
from poise.policy.rank import ORDERS, PRESETS, RANK_TERMS, Order, RankTerm, by_terms, by_value, power_of
from poise.policy.recipe import RECIPES, Recipe
from poise.policy.rounds import SHARING
from poise.policy.score import TERMS, Term
from poise.policy.static import Static
from poise.policy.suite.base import Rules
from poise.policy.suite.deciding import Round, promise_to
from poise.policy.turns import Turns, by_share

ClusterPolicy = Policy[Snapshot, Plan]

TOGETHER = 64
"""Minimum number of candidates for which the check whether all of them have room pays off."""

NO_PICKS: Mapping[str, str] = {}

_serves = attrgetter("serves")


class Suite:
    """A policy that runs a recipe. `terms` and `rank_terms` may include other terms than the shipped ones. Raises
    KeyError for an unknown name, ValueError for weights of a score that do not add up to more than 0.
    """

    def __init__(
        self, recipe: Recipe, terms: Mapping[str, Term] = TERMS, rank_terms: Mapping[str, RankTerm] = RANK_TERMS
    ) -> None:
        self.recipe = recipe
        self.name = recipe.name
        self.waits = power_of(recipe.fairness)
        self.order = _order_of(recipe.order, rank_terms, self.waits)
        self.terms = terms
        for name in recipe.score:
            terms[name]
        if not sum(recipe.score.values()) > 0:
            raise ValueError("the weights of a score must add up to more than 0")
        why_behind = Why(policy=recipe.name, rank="short work, queued behind its like")
        self.rules = Rules(recipe, self.order, _only_room(recipe), why_behind)

    def decide(self, view: Snapshot, /) -> Plan:
        """Order the units, place those that fit, make room for those that do not, hold the rest with every reason.

        Where there is room for all shown units, the order does not matter, and similar units are placed together. If
        that fails because the room is fragmented, the units are served one by one.
        """
        return self.serve(*self.ordered(view))

    def ordered(self, view: Snapshot) -> tuple[Draft, list[Candidate] | Turns]:
        """Return a draft of the view, and its candidates in the order in which to serve them."""
        draft = self._draft(view)
        ordered = by_share(view, self.order.sort(view, draft.timely), draft.timely.pressed)
        emptied = being_emptied(view.fleet)
        if view.yielded or emptied:  # room was promised to them, whatever the order is now
            gaining = frozenset(view.yielded.values())
            ordered = sorted(ordered, key=lambda candidate: promise_to(candidate, gaining, emptied))
        return draft, ordered

    def serve(
        self, draft: Draft, ordered: list[Candidate] | Turns, picks: Mapping[str, str] = NO_PICKS, note: str = ""
    ) -> Plan:
        """Place candidates in order, and make room for those that do not fit. The units in `picks` come first, except
        for promised room; each has the reason in words. The `note` is added to the reasons of all placements.
        """
        view = draft.view
        in_turn = self.recipe.spread or self.recipe.turns != "no"
        simple = not (in_turn or being_emptied(view.fleet) or view.shares or picks)
        if simple and isinstance(ordered, list) and len(ordered) >= TOGETHER and _may_have_room(view, ordered):
            plan = Round(self.rules, draft, picks, note).place_all(ordered)
            if plan is not None:
                return plan
            draft = self._draft(view)
        if self.recipe.preempt is not None and any(map(_serves, view.candidates)):
            ordered = _serving_first(list(ordered))
        return Round(self.rules, draft, picks, note).decide(ordered)

    def _draft(self, view: Snapshot) -> Draft:
        return Draft(view, self.recipe.score, self.terms, spread=self.recipe.spread, waits=self.waits)


def _only_room(recipe: Recipe) -> bool:
    """Return whether units wait only for room or behind an earlier unit."""
    moves = recipe.preempt is not None or recipe.reserve or recipe.elastic or recipe.reallocate
    return not moves and recipe.score.keys() <= TERMS.keys() - {"random"}


def _serving_first(ordered: list[Candidate]) -> list[Candidate]:
    """Move services before all units of a lower class, however long those have waited: otherwise room kept for those
    units would be kept from the services.
    """
    serving = [one for one in ordered if one.serves]
    if not serving:
        return ordered
    for one in serving:
        place = ordered.index(one)
        lower = next((at for at, other in enumerate(ordered[:place]) if other.priority > one.priority), place)
        ordered = [*ordered[:lower], one, *ordered[lower:place], *ordered[place + 1 :]]
    return ordered


def _may_have_room(view: Snapshot, ordered: list[Candidate]) -> bool:
    """Return whether the total free resources suffice for the first units in order, as many as are shown of each queue
    at least. With quotas return True, since a quota may hold those units back while others start.
    """
    if view.quotas:
        return True
    fleet = view.fleet
    cpu, devices = (fleet.free[[CPU, DEVICES]] @ (fleet.closed == 0)).tolist()
    for one in ordered[: 1 if view.yielded else LEAST_SHOWN]:
        shape, tasks = one.shape, one.least or one.tasks
        cpu, devices = cpu - shape.cpu * tasks, devices - shape.gpus * shape.share * tasks / WHOLE
    return bool(cpu >= 0 and devices >= 0)


def _order_of(order: str | Mapping[str, float], terms: Mapping[str, RankTerm], waits: float) -> Order:
    if not isinstance(order, str):
        for name in order:
            terms[name]
        return by_terms(order, terms)
    if order == "value":
        return ORDERS[order]._replace(sort=partial(by_value, waits=waits))
    return by_terms(PRESETS[order]) if order in PRESETS else ORDERS[order]


POLICIES: dict[str, ClusterPolicy] = {recipe.name: Suite(recipe) for recipe in RECIPES} | {
    policy.name: policy for policy in (Static(), Tiresias(), Goodput(), ElasticFlow(), *SHARING)
}


def is_fixed(name: str) -> bool:
    """Return whether the shipped policy of this name assigns each unit one fixed place, by its number; custom policies
    never do. Such a policy must be shown all waiting and running units, however brief.
    """
    return getattr(POLICIES.get(name), "fixed", False)


SAFE_POLICY = "fifo"
"""The policy that decides where the configured policy fails."""


def decide_safely(view: Snapshot) -> Plan:
    """Decide with the safe policy in place of another, without that policy's memory."""
    plan = POLICIES[SAFE_POLICY].decide(msgspec.structs.replace(view, memory={}))
    return msgspec.structs.replace(plan, memory=None)


def policy_named(name: str) -> ClusterPolicy:
    """Return the policy of this name. Raises KeyError with the known names."""
    try:
        return POLICIES[name]
    except KeyError:
        raise KeyError(f"there is no policy `{name}`; known: {', '.join(POLICIES)}") from None


__all__ = [
    "POLICIES",
    "RECIPES",
    "SAFE_POLICY",
    "ClusterPolicy",
    "Recipe",
    "Suite",
    "decide_safely",
    "is_fixed",
    "policy_named",
]
