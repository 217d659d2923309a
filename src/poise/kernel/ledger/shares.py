"""Fair shares: the resources that each node of the tree holds, and its debt."""

from collections.abc import Collection, Iterable

from poise.kernel.ledger.active import Active
from poise.kernel.ledger.changes import Changes
from poise.kernel.ledger.jobs import Jobs
from poise.kernel.ledger.nodes import Nodes
from poise.kernel.ledger.queues import Queues
from poise.kernel.ledger.room import Handlers, Room, hold_same
from poise.kernel.ledger.state import Debt, JobState, State, queue_of_unit
from poise.kernel.ledger.units import UnitState
from poise.model.decisions import Reason, Spot
from poise.model.events import SharesSet
from poise.model.resources import Shape
from poise.model.share_tree import (
    Amounts,
    ShareTree,
    ShareView,
    amounts_there,
    borrowed_of,
    decayed,
    sum_of,
    told,
)


class Shares(Room):
    """Owns `share_tree` and `debts`, and the `leaf` of each job. Held and borrowed amounts are derived.

    A stored debt is updated when the amounts of its node change. Reading a debt computes its current value.
    """

    def __init__(
        self, state: State, jobs: Jobs, active: Active, queues: Queues, nodes: Nodes, changes: Changes
    ) -> None:
        self._state, self._jobs, self._active = state, jobs, active
        self._queues, self._nodes, self._changes = queues, nodes, changes
        self._at = state.now
        self._of: dict[str, dict[int, Amounts]] = {}  # by unit and task: the counted amounts
        self._index()

    @property
    def tree(self) -> ShareTree | None:
        """The share tree; None if no shares are declared."""
        return self._state.share_tree

    def at(self, now: int) -> None:
        """Set the instant of the event that is being applied."""
        self._at = now

    def leaf_of(self, job: JobState) -> str:
        tree = self._state.share_tree
        return tree.leaf_of(job.tenant, job.project, job.user) if tree is not None else ""

    def join(self, job: JobState) -> None:
        """Assign a new job to its leaf."""
        if self._state.share_tree is not None:
            job.leaf = self.leaf_of(job)
            for unit in job.units:
                unit.queue = queue_of_unit(job, unit)

    def count(self, unit: UnitState, index: int, *, begins: bool) -> None:
        """Count an attempt that begins or ceases to hold resources."""
        if self._state.share_tree is None:
            return
        if begins:
            amounts = self._of.setdefault(unit.id, {})[index] = self._amounts(unit, index)
        else:
            amounts = self._of[unit.id].pop(index)
            if not self._of[unit.id]:
                del self._of[unit.id]
        self._change(self._jobs[unit.job].leaf, amounts, 1 if begins else -1)

    def recount(self) -> None:
        """Rebuild the amounts: a node that joins may change the models of its devices."""
        if self._state.share_tree is not None:
            self._settle(range(len(self._state.share_tree.nodes)))
            self._index()

    def view(self, now: int) -> ShareView | None:
        """Return the shares as of this instant, for a policy; None if no shares are declared."""
        tree = self._state.share_tree
        if tree is None:
            return None
        debts = self._state.debts
        return ShareView(
            tree=tree,
            held=tuple(self._held),
            debts=tuple(
                decayed(of.value, of.at, now, tree.half_life, rate)
                if (of := debts.get(node.name)) and (of.value or rate)
                else 0
                for node, rate in zip(tree.nodes, self._rates, strict=True)
            ),
        )

    def held_by(self, unit_id: str, tasks: Collection[int] | None = None) -> Amounts:
        """Return the amounts that a unit holds, or these of its tasks."""
        total: Amounts = {}
        for index, amounts in self._of.get(unit_id, {}).items():
            if tasks is None or index in tasks:
                _add(total, amounts, 1)
        return total

    def refusals(self, unit: UnitState, amounts: Amounts) -> list[Reason]:
        """Return a reason for each limit that the unit would exceed with these amounts instead of its current ones."""
        tree, own = self._state.share_tree, self.held_by(unit.id)
        if tree is None:
            return []
        reasons = []
        for place in self._path(self._jobs[unit.job].leaf):
            for named, bound in tree.nodes[place].limit.items():
                held, mine, need = (sum_of(of, named) for of in (self._held[place], own, amounts))
                left = bound - held + mine
                if need > max(0, left):
                    need_told, have = told(named, need), told(named, max(0, left))
                    reasons.append(Reason(code="LIMIT", subject=tree.nodes[place].name, need=need_told, have=have))
        return reasons

    def amounts_on(self, shape: Shape, spots: Iterable[Spot]) -> Amounts:
        """Return the amounts that tasks of a shape would hold on these spots."""
        total: Amounts = {}
        for spot in spots:
            state = self._nodes.get(spot.node)
            if state is not None:
                _add(total, amounts_there(shape, state.node, spot.devices), 1)
        return total

    def rates(self) -> tuple[int, ...]:
        """Return the cost of what each node borrows, in nano-dollars per hour."""
        return tuple(self._rates)

    # --- inside ------------------------------------------------------------------------------------------------------

    def handlers(self) -> Handlers:
        return {SharesSet: self._set}

    def _set(self, event: SharesSet) -> None:
        if self._state.share_tree is not None:
            self._settle(range(len(self._state.share_tree.nodes)))
        before, tree = self._state.debts, event.tree
        self._state.share_tree = tree
        names = [node.name for node in tree.nodes] if tree is not None else []
        self._state.debts = {name: before[name] for name in names if name in before}
        for job in self._jobs.values():
            if job.ended:
                continue
            job.leaf = self.leaf_of(job)
            for unit in job.units:
                pending = unit.status == "pending"
                if pending:
                    self._queues.remove(unit)
                unit.queue = queue_of_unit(job, unit)
                if pending:
                    self._queues.add(unit)
                self._changes.mark(unit)
        self._index()
        self._settle(range(len(names)))

    def _index(self) -> None:
        """Rebuild the held amounts from the active units."""
        tree = self._state.share_tree
        nodes = tree.nodes if tree is not None else ()
        self._places = {node.name: place for place, node in enumerate(nodes)}
        self._held: list[Amounts] = [{} for _ in nodes]
        self._rates = [0] * len(nodes)
        self._of = {}
        if tree is None:
            return
        for unit in self._active.values():
            for index, task in enumerate(unit.tasks):
                if task.active:
                    amounts = self._of.setdefault(unit.id, {})[index] = self._amounts(unit, index)
                    for place in self._path(self._jobs[unit.job].leaf):
                        self._held[place] = _with(self._held[place], amounts, 1)
        self._rates = [self._rate(place) for place in range(len(nodes))]

    def _amounts(self, unit: UnitState, index: int) -> Amounts:
        task = unit.tasks[index]
        return amounts_there(unit.shape, self._nodes[task.node].node, task.devices)

    def _path(self, leaf: str) -> list[int]:
        tree, place, path = self._state.share_tree, self._places.get(leaf, -1), list[int]()
        while tree is not None and place >= 0:
            path.append(place)
            place = tree.nodes[place].parent
        return path

    def _change(self, leaf: str, amounts: Amounts, sign: int) -> None:
        path = self._path(leaf)
        self._settle(path)
        for place in path:
            self._held[place] = _with(self._held[place], amounts, sign)
            self._rates[place] = self._rate(place)

    def _settle(self, places: Iterable[int]) -> None:
        """Update debts to the instant of the event that is being applied."""
        tree, debts = self._state.share_tree, self._state.debts
        if tree is None:
            return
        for place in places:
            name, rate = tree.nodes[place].name, self._rates[place]
            of = debts.get(name) or Debt(0, self._at)
            debts[name] = Debt(decayed(of.value, of.at, self._at, tree.half_life, rate), self._at)

    def _rate(self, place: int) -> int:
        tree = self._state.share_tree
        if tree is None:
            return 0
        over = borrowed_of(self._held[place], tree.nodes[place].guaranteed, tree.price)
        return sum(amount * tree.price(model) for model, amount in over.items())

    def check(self, anew: "Shares") -> None:
        hold_same("held by share", self._held, anew._held)
        hold_same("borrowed by share", self._rates, anew._rates)
        hold_same("counted by unit", self._of, anew._of)


def _with(held: Amounts, amounts: Amounts, sign: int) -> Amounts:
    """Return new amounts, in the order of models: views share them."""
    changed = held.copy()
    _add(changed, amounts, sign)
    return dict(sorted(changed.items())) if len(changed) > 1 else changed


def _add(held: Amounts, amounts: Amounts, sign: int) -> None:
    for model, amount in amounts.items():
        now = held.get(model, 0) + sign * amount
        if now:
            held[model] = now
        else:
            del held[model]
