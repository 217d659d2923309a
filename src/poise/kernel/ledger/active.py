"""Units that hold resources, and the nodes of their attempts."""

from collections.abc import Iterator, Mapping

from poise.kernel.ledger.changes import Changes
from poise.kernel.ledger.jobs import Jobs
from poise.kernel.ledger.order import amounts_in, ordinal, ordinal_and_index
from poise.kernel.ledger.room import Room, hold, hold_same
from poise.kernel.ledger.tasks import TaskState
from poise.kernel.ledger.units import UnitState
from poise.model.resources import Shape

Held = tuple[UnitState, int]
"""A unit, and the index of its task that holds resources."""


class Active(Room, dict[str, UnitState]):
    """Active units by id, in the order of their placement. All of it is derived from the units."""

    def __init__(self, jobs: Jobs, changes: Changes) -> None:
        super().__init__()
        self._changes = changes
        self.recovering: dict[str, UnitState] = {}
        """Units on a lost node that their retry policy allows to run elsewhere."""
        self.elastic: dict[str, UnitState] = {}
        """Units whose number of tasks may change."""
        self.compared: dict[str, UnitState] = {}
        """Units whose tasks can be compared with others: gangs, and the parts of a task."""
        self._on: dict[str, dict[tuple[str, int], Held]] = {}
        self._behind: dict[str, UnitState] = {}
        self._shapes: dict[Shape, int] = {}
        self._has_new_shape = False  # since the last sort
        for unit in jobs.units.values():
            if unit.status == "active":
                unit.size = unit.size or len(unit.tasks)  # states from before elastic units have no size
                self.add(unit)
                self.index_recovering(unit)
                for index, task in enumerate(unit.tasks):
                    if task.active:
                        self.seat(unit, index, task.node, unit.shape)

    # --- what there is -----------------------------------------------------------------------------------------------

    def may_be_placed(self, unit: UnitState) -> bool:
        """Return whether the unit is pending, or on a lost node and allowed by its retry policy to run elsewhere."""
        return unit.status == "pending" or unit.id in self.recovering

    def attempts(self) -> int:
        """Return the number of attempts that hold resources or are queued on a node."""
        return sum(len(attempts) for attempts in self._on.values())

    def on(self, node: str) -> list[Held]:
        """Return active attempts on a node, as (unit, index of its task), in order of submission."""
        return sorted(self._on.get(node, {}).values(), key=ordinal_and_index)

    def queued_since(self, instant: int) -> Iterator[tuple[UnitState, TaskState]]:
        """Yield units that were placed `queued` at `instant` or before and have not started."""
        if not self._behind:
            return
        for unit in [unit for unit in self._behind.values() if unit.status != "active" or not unit.queued]:
            del self._behind[unit.id]
        queued = [unit for unit in self._behind.values() if not unit.stopping]
        for unit in sorted(queued, key=ordinal):
            if unit.placed <= instant and unit.tasks[0].status == "queued":
                yield unit, unit.tasks[0]

    def by_shape(self) -> Mapping[Shape, int]:
        """Return the number of attempts of each shape on nodes, ordered by the key of the shape."""
        if self._has_new_shape:
            self._shapes = dict(sorted(self._shapes.items(), key=lambda item: amounts_in(item[0].key())))
            self._has_new_shape = False
        return self._shapes.copy()

    # --- coming and going --------------------------------------------------------------------------------------------

    def add(self, unit: UnitState) -> None:
        """Add a unit that was placed."""
        unit_id = unit.id
        self[unit_id] = unit
        if unit.queued:
            self._behind[unit_id] = unit
        if unit.spec.least:
            self.elastic[unit_id] = unit
        if len(unit.tasks) > 1 or unit.spec.tasks[0].parts:
            self.compared[unit_id] = unit

    def remove(self, unit: UnitState) -> None:
        """Remove a unit whose attempts have all ended."""
        unit_id = unit.id
        del self[unit_id]
        self.elastic.pop(unit_id, None)
        self.compared.pop(unit_id, None)

    def seat(self, unit: UnitState, index: int, node: str, shape: Shape) -> None:
        """Add one attempt to a node."""
        self._on.setdefault(node, {})[unit.id, index] = (unit, index)
        known = self._shapes.get(shape, 0)
        self._has_new_shape |= not known
        self._shapes[shape] = known + 1

    def unseat(self, unit: UnitState, index: int, node: str, shape: Shape) -> None:
        del self._on[node][unit.id, index]
        self._shapes[shape] -= 1
        if not self._shapes[shape]:
            del self._shapes[shape]

    def forget_node(self, name: str) -> None:
        hold(not self._on.pop(name, None), f"node {name} was forgotten with attempts on it")

    def index_recovering(self, unit: UnitState) -> None:
        """Index the unit if it may run elsewhere: its attempts are on lost nodes, and its retry policy allows it."""
        retry = unit.spec.retry
        statuses = [task.status for task in unit.tasks]
        silent = "recovering" in statuses and not ("queued" in statuses or "running" in statuses)
        may = unit.tries < retry.limit if retry.counts("lost") else unit.lost < retry.losses
        if silent and not unit.stopping and "lost" in retry.when and may:
            self.recovering[unit.id] = unit
        else:
            self.recovering.pop(unit.id, None)

    def mark_node(self, node: str) -> None:
        """Mark the node's row, and what is shown of the attempts on it, as out of date."""
        for unit, _ in self._on.get(node, {}).values():
            self._changes.residents.pop(unit.id, None)
        self._changes.rows.add(node)

    # --- self-check --------------------------------------------------------------------------------------------------

    def check(self, anew: "Active") -> None:
        for unit in self.values():
            _check_gang(unit)
        hold_same("active", self.keys(), anew.keys())
        for index in ("recovering", "elastic", "compared"):
            hold_same(index, getattr(self, index).keys(), getattr(anew, index).keys())


def _check_gang(unit: UnitState) -> None:
    hold(any(task.active for task in unit.tasks), f"{unit.id} is active with no attempt")
    members = unit.members
    hold(len(members) == unit.size, f"{unit.id} counts {unit.size} members, has {members}")
    if not unit.generation:
        hold(members == list(range(unit.size)), f"{unit.id} has the members {members}, and was never resized")
    there = [unit.tasks[index] for index in members]
    whole = (
        (all(task.active for task in there) and unit.size >= (unit.spec.least or len(unit.tasks)))
        or bool(unit.stopping)
        or all(task.active or (task.ending is not None and task.ending.outcome == "done") for task in there)
    )
    hold(whole, f"{unit.id} runs in part")
    if unit.generation:
        founded = unit.placed_in
        joined = [unit.epoch_of(index) for index in members]
        hold(unit.spec.least > 0, f"{unit.id} was resized, and cannot be")
        hold(all(founded <= epoch <= unit.epoch for epoch in joined), f"{unit.id} has members of {joined}")
