"""Changes since the last snapshot."""

from poise.kernel.ledger.units import UnitState
from poise.model.fleet import Resident
from poise.model.views import Candidate


class Changes:
    """Changes since the last snapshot. Rooms record them; `Shown` and `Columns` rebuild accordingly."""

    def __init__(self) -> None:
        self.candidates: dict[str, Candidate] = {}
        """Candidates of the last snapshot that are still current, by unit."""
        self.queues: set[str] = set()
        """Queues whose units or candidates have changed."""
        self.residents: dict[str, dict[int, Resident]] = {}
        """Residents of the last snapshot that are still current, by unit and index of the task."""
        self.rows: set[str] = set()
        """Nodes whose row in the columns is out of date."""
        self.moved: set[str] = set()
        """Nodes whose residents in the columns are out of date, while their free resources are current."""
        self.fleet = False
        """Whether to rebuild the columns: a node joined, changed or left, or a device failed or recovered."""

    def mark_pending(self, unit: UnitState) -> None:
        """Mark the candidate of a pending unit as out of date."""
        self.candidates.pop(unit.id, None)
        self.queues.add(unit.queue)

    def mark(self, unit: UnitState) -> None:
        """Mark the residents and rows of the unit's attempts as out of date."""
        self.residents.pop(unit.id, None)
        self.rows.update([task.node for task in unit.tasks if task.active])
