"""Changes since the last snapshot."""

from poise.kernel.ledger.units import UnitState
from poise.model.fleet import Resident
from poise.model.views import Candidate


class Changes:
    """Rooms record here what they change; `Shown` and `Columns` read from here what to rebuild."""

    def __init__(self) -> None:
        self.candidates: dict[str, Candidate] = {}
        """Candidates of the last snapshot that are still true, by unit."""
        self.queues: set[str] = set()
        """Queues whose units, or what is shown of them, have changed."""
        self.residents: dict[str, dict[int, Resident]] = {}
        """Residents of the last snapshot that are still true, by unit and number of the task."""
        self.rows: set[str] = set()
        """Nodes whose row in the columns is out of date."""
        self.moved: set[str] = set()
        """Nodes whose residents in the columns are out of date; of these alone the free room is as it was."""
        self.fleet = False
        """Whether to rebuild the columns: a node joined, changed or left, or a device failed or recovered."""

    def mark_pending(self, unit: UnitState) -> None:
        """Refresh what is shown of a pending unit."""
        self.candidates.pop(unit.id, None)
        self.queues.add(unit.queue)

    def mark(self, unit: UnitState) -> None:
        """Refresh everything that is shown of the unit's attempts."""
        self.residents.pop(unit.id, None)
        self.rows.update([task.node for task in unit.tasks if task.active])
