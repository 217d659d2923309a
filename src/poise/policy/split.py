"""A division of the nodes between two policies: how it is recorded, and which nodes each of them has now.

One policy is on trial, on a selection of the nodes; the current policy has the rest (`divided` decides with both). Work
is never divided. The current policy decides alone, on all nodes, while

* a gang waits that the fleet can hold, and neither part;
* a node is being emptied: its work may move to any other node.

A node on trial whose work also runs outside the part is lent to the current policy until that work has ended.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec
import numpy as np

from poise.decoding import convert
from poise.errors import Conflict
from poise.model.fleet import EMPTYING, Bools, Fleet
from poise.model.resources import Shape
from poise.model.selection import Selection
from poise.model.views import Candidate, Snapshot
from poise.policy.allowance import Allowance
from poise.policy.emptying import may_go
from poise.policy.feasible import MOST_TASKS, ability, capacity, grouped
from poise.policy.room import change_on
from poise.policy.suites import is_fixed

TRIAL, REST = "trial", "rest"
"""Keys of the two policies in memory."""


# --- as recorded -----------------------------------------------------------------------------------------------------


class PolicySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A policy in the fields of `Configured`."""

    policy: str
    recipe: dict[str, Any] = {}
    code: str = ""


class SplitRecipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The recipe of a split: the policy on trial, its nodes, and the policy for the rest."""

    trial: PolicySettings
    rest: PolicySettings
    nodes: Selection


def split_in(recipe: Mapping[str, Any]) -> SplitRecipe | None:
    """Return the split that a recipe describes; None for another recipe. Raises `msgspec.ValidationError`."""
    return convert(dict(recipe), SplitRecipe) if TRIAL in recipe else None


def undivided(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the policy that decides without a trial: that for the rest, if they are of a split."""
    split = split_in(settings["recipe"])
    return dict(settings) if split is None else dict(msgspec.to_builtins(split.rest))


def split_settings(trial: Mapping[str, Any], rest: Mapping[str, Any], nodes: Selection) -> dict[str, Any]:
    """Return the settings of a split. Its name has the names of both policies, and a digest of the whole."""
    one, other = (PolicySettings(policy=of["policy"], recipe=of["recipe"], code=of["code"]) for of in (trial, rest))
    recipe: dict[str, Any] = msgspec.to_builtins(SplitRecipe(trial=one, rest=other, nodes=nodes))
    digest = _digest(msgspec.json.encode([one.policy, one.recipe, other.policy, other.recipe, nodes], order="sorted"))
    names = "+".join(of.policy.partition("@")[0] for of in (one, other))
    code = one.code if one.code == other.code else _digest(f"{one.code} {other.code}".encode())
    return {"policy": f"{names}@{digest}", "recipe": recipe, "code": code}


def check_divisible(trial: str, rest: str) -> None:
    """Raise `Conflict` if these policies, by their names in the log, cannot each decide for a part of the nodes."""
    if trial == rest:
        what = f"`{trial}` decides for all nodes already"
        raise Conflict(what, field="policy", hint="`poise policy` shows the current policy")
    for name in (trial, rest):
        if is_fixed(name):
            what = f"`{name}` gives each unit one place in the whole fleet, so it cannot decide for a part of the nodes"
            raise Conflict(what, field="policy", have=name, hint="promote it for all nodes: leave `nodes` out")


def _digest(told: bytes) -> str:
    return sha256(told).hexdigest()[:8]


# --- which nodes -----------------------------------------------------------------------------------------------------


class Division(NamedTuple):
    """The rows of the policy on trial; none while it is `paused`, for this reason. It has lent the `lent` rows."""

    rows: tuple[int, ...]
    lent: tuple[int, ...] = ()
    paused: str = ""


def divide(view: Snapshot, nodes: Selection) -> Division:
    """Return which nodes the policy on trial decides for now."""
    fleet = view.fleet
    key = "selected", str(nodes)
    chosen = fleet.runs.get(key)
    if chosen is None:
        chosen = fleet.runs[key] = tuple(nodes.rows(fleet.nodes))
    if not 0 < len(chosen) < len(fleet):
        return Division(chosen)
    for row in np.flatnonzero(fleet.closed == EMPTYING).tolist():
        if any(may_go(one) for one in fleet.residents[row]):
            return Division((), paused=f"{fleet.names[row]} is being emptied")
    rows = _undivided_rows(fleet, chosen)
    own = set(rows)
    lent = tuple(row for row in chosen if row not in own)
    if not rows:
        return Division((), lent, "work on its nodes also runs on others")
    if unit := Reach(view, rows).needs_both():
        return Division((), lent, f"{unit} needs nodes of both parts")
    return Division(rows, lent)


def _undivided_rows(fleet: Fleet, rows: Sequence[int]) -> tuple[int, ...]:
    """Return the rows whose work runs on no other nodes."""
    on: dict[str, set[int]] = {}
    for row, residents in enumerate(fleet.residents):
        for one in residents:
            if one.size > 1:
                on.setdefault(one.unit, set()).add(row)
    left = set(rows)
    while divided := [there for there in on.values() if there & left and not there <= left]:
        left.difference_update(*divided)
    return tuple(row for row in rows if row in left)


class Reach:
    """Where the waiting work of a view could run: on the nodes of the policy on trial, on the rest, or only on both."""

    def __init__(self, view: Snapshot, rows: Sequence[int]) -> None:
        self._view, self._fleet = view, view.fleet
        mine: Bools = np.zeros(len(view.fleet), bool)
        mine[list(rows)] = True
        self._masks = mine, ~mine
        self._fleets: dict[str, Fleet] = {}
        self._known: dict[tuple[str, Shape, str], tuple[int, int, int]] = {}

    def needs_both(self) -> str:
        """Return a waiting gang that can start only on nodes of both parts; empty if there is none. It may have
        to wait until that room is free. A gang beyond its quota does not count.
        """
        allowance, seen = Allowance(self._view.quotas), set[str]()
        for one in self._view.candidates:
            needed = one.least or one.tasks
            if needed < 2 or one.queue in seen:
                continue
            seen.add(one.queue)
            shapes = (one.shape, *one.others)
            for when in self._times:
                rooms = [self._rooms(when, shape, "") for shape in shapes]
                both = any(whole >= needed for _, _, whole in rooms)
                alone = any(max(mine, rest) >= needed for mine, rest, _ in rooms)
                if both and not alone and not allowance.against(one):
                    return one.unit
        return ""

    def parts_of(self, candidate: Candidate) -> tuple[bool, bool]:
        """Return whether each part could hold a unit when empty, elsewhere than on the node that it avoids; both if
        none could.
        """
        needed, avoid = candidate.least or candidate.tasks, candidate.avoid
        rooms = [self._rooms("empty", shape, avoid) for shape in (candidate.shape, *candidate.others)]
        mine, rest = (any(room[part] >= needed for room in rooms) for part in (0, 1))
        return (mine, rest) if mine or rest else (True, True)

    @cached_property
    def _times(self) -> Sequence[str]:
        serves = any(one.serves for residents in self._fleet.residents for one in residents)
        return ("empty", "lasting", "soon") if serves else ("empty", "soon")

    def _rooms(self, when: str, shape: Shape, avoid: str) -> tuple[int, int, int]:
        """Return for how many tasks of a shape each part, and the whole fleet, has room."""
        key = when, shape, avoid
        found = self._known.get(key)
        if found is None:
            fleet = self._at(when)
            able = ability(fleet, shape)
            room = capacity(fleet, shape, able, fleet.free, fleet.device_memory, fleet.device_share)
            room = np.minimum(room, MOST_TASKS)
            if avoid in fleet.rows:
                room[fleet.rows[avoid]] = 0
            parts = [np.where(mask, room, 0) for mask in self._masks]
            mine, rest, whole = (int(grouped(fleet, shape.where, of).sum()) for of in (*parts, room))
            found = self._known[key] = mine, rest, whole
        return found

    def _at(self, when: str) -> Fleet:
        """Return the fleet as if nothing ran (`empty`), as if only services ran (`lasting`), or without the work that
        is being stopped (`soon`).
        """
        fleet = self._fleets.get(when)
        if fleet is None:
            fleet = self._fleets[when] = self._fleet.copy() if when == "soon" else self._fleet.emptied()
            for row, residents in enumerate(self._fleet.residents if when != "empty" else ()):
                for one in residents:
                    if one.stopping if when == "soon" else one.serves:
                        change_on(fleet, row, one, 1 if when == "soon" else -1)
        return fleet
