"""What has changed since a policy was shown it."""

from poise.kernel.ledger.units import UnitState
from poise.model.fleet import Resident
from poise.model.views import Candidate


class Changes:
    """Whoever changes something says so here; the view and the columns look here for what they make anew."""

    def __init__(self) -> None:
        self.candidates: dict[str, Candidate] = {}
        """Pending units as they were shown, by id, until they change."""
        self.residents: dict[str, dict[int, Resident]] = {}
        """Attempts as they were shown, by unit and the number of the task, until they change."""
        self.rows: set[str] = set()
        """Nodes whose row in the columns is out of date."""
        self.fleet = False
        """Whether the columns are to be made anew: a node has come, gone or changed, or a device is of another kind."""

    def mark(self, unit: UnitState) -> None:
        """Something of its attempts shows in the columns."""
        self.residents.pop(unit.id, None)
        self.rows.update([task.node for task in unit.tasks if task.active])
