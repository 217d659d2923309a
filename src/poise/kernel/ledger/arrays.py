"""The state of an array: a job with so many parts that only those that may start soon exist as units.

The parts are made in order. Of a part that is over, only what differs from "done in the first attempt" is kept. So the
state of an array is as large as its unfinished parts, its retries and its failures.
"""

import re
from typing import Literal

import msgspec

from poise.kernel.ledger.tasks import TaskState
from poise.kernel.ledger.units import UnitState, UnitStatus
from poise.model.arrays import number_at, part_of, place_of, size_of, units_in
from poise.model.jobs import Array, Ending, Unit

WINDOW = 1024
"""Maximum number of parts of an array that exist and have not been placed: more than a round places of one queue."""


class Over(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The end of a part that was not done in its first attempt: its status, its epoch, and how its last attempt
    ended, if it had one.
    """

    status: UnitStatus
    epoch: int = 0
    ending: Ending | None = None
    node: str = ""


class ArrayState(msgspec.Struct, gc=False):
    """The rule of an array, and what has become of its parts. The merge counts as the last part.

    `made` parts exist or have existed, by place. `fresh` of them exist and have never been placed. `ended` counts parts
    that existed and are over, by status; `odd` has those that were not done in their first attempt, by place. The parts
    ran on `nodes`. `ordinal` is that of the part at place 0. Once no more parts are made, the `rest` has this status
    (`waiting` in a forecast).
    """

    rule: Array
    ordinal: int
    made: int = 0
    fresh: int = 0
    ended: dict[str, int] = {}
    odd: dict[str, Over] = {}
    nodes: dict[str, None] = {}
    rest: UnitStatus | Literal[""] = ""

    def fork(self) -> "ArrayState":
        """Return an independent copy."""
        return msgspec.structs.replace(self, ended=self.ended.copy(), odd=self.odd.copy(), nodes=self.nodes.copy())

    @property
    def open(self) -> int:
        """Number of parts that exist and are not over."""
        return self.made - sum(self.ended.values())

    @property
    def left(self) -> int:
        """Number of parts that have never existed."""
        return units_in(self.rule) - self.made

    @property
    def counts(self) -> dict[str, int]:
        """Number of parts that do not exist, by status: those that are over, and those that are still to come."""
        counts = self.ended.copy()
        if self.left:
            rest = self.rest or "waiting"
            counts[rest] = counts.get(rest, 0) + self.left
        return counts

    def next(self, allowed: int) -> Unit | None:
        """Return the next part if it may exist now. The merge may exist once all other parts are over, and at most
        `allowed` have failed and the others are done.
        """
        rule, place = self.rule, self.made
        if self.rest or not self.left or self.fresh >= WINDOW:
            return None
        if place == size_of(rule):
            may = not self.open and self.ended.get("done", 0) + min(allowed, self.ended.get("failed", 0)) == place
            return rule.merge if may else None
        if rule.like.at_most and self.open >= rule.like.at_most:
            return None
        return msgspec.structs.replace(part_of(rule, number_at(rule, place)), at_most=0)

    def take(self) -> int:
        """Count the next part as made, and return its ordinal."""
        self.made, self.fresh = self.made + 1, self.fresh + 1
        return self.ordinal + self.made - 1

    def place(self, unit: UnitState, node: str) -> None:
        """Record a placement."""
        self.nodes[node] = None
        self.fresh -= unit.epoch == 1

    def end(self, unit: UnitState) -> None:
        """Record the end of a part."""
        self.fresh -= unit.epoch == 0
        self.ended[unit.status] = self.ended.get(unit.status, 0) + 1
        if unit.status != "done" or unit.epoch != 1:
            ending = unit.tasks[0].ending
            ending = None if ending is None else msgspec.structs.replace(ending, result="")
            self.odd[str(unit.ordinal - self.ordinal)] = Over(unit.status, unit.epoch, ending, unit.tasks[0].node)

    def past(self, job: str, place: int) -> UnitState:
        """Return a part that does not exist, as far as it is known."""
        over = self.odd.get(str(place), DONE) if place < self.made else Over(self.rest or "waiting")
        task = TaskState(status="ended" if over.ending is not None else "idle", node=over.node, ending=over.ending)
        return UnitState(self.spec(place), job, self.ordinal + place, "", over.status, over.epoch, tasks=[task])

    def spec(self, place: int) -> Unit:
        """Return the unit at a place."""
        rule = self.rule
        if place == size_of(rule) and rule.merge is not None:
            return rule.merge
        return part_of(rule, number_at(rule, place))

    def place_named(self, name: str) -> int | None:
        """Return the place of a part by its name, such as `main[7]` or `main.merge`; None if there is none."""
        rule = self.rule
        if rule.merge is not None and name == rule.merge.name:
            return size_of(rule)
        match = re.fullmatch(r"\[([0-9]{1,7})\]", name.removeprefix(rule.like.name))
        return place_of(rule, int(match[1])) if match else None

    def is_over(self, name: str) -> bool:
        """Return whether a part that does not exist is over, or will never be made."""
        place = self.place_named(name)
        return place is None or place < self.made or self.rest not in ("", "waiting")

    def failures(self) -> list[int]:
        """Return the places of the failed parts, in order."""
        return sorted(int(place) for place, over in self.odd.items() if over.status == "failed")


DONE = Over("done", 1, Ending(outcome="done"))
