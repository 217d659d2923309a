"""The ledger: the one mutable object of the control plane, a pure function of the log."""

from poise.kernel.ledger.arrays import WINDOW, ArrayState
from poise.kernel.ledger.ledger import Ledger
from poise.kernel.ledger.places import Cordon, NodeState, device_key
from poise.kernel.ledger.room import InvariantBroken
from poise.kernel.ledger.state import (
    Firing,
    JobState,
    ReservationState,
    ScheduleState,
    State,
    job_status,
    may_follow,
    units_status,
)
from poise.kernel.ledger.tasks import PastAttempt, TaskState, is_loss
from poise.kernel.ledger.units import CAUSES, UnitState, attempt_of, deciding_ending, leased, orders_of

__all__ = [
    "CAUSES",
    "WINDOW",
    "ArrayState",
    "Cordon",
    "Firing",
    "InvariantBroken",
    "JobState",
    "Ledger",
    "NodeState",
    "PastAttempt",
    "ReservationState",
    "ScheduleState",
    "State",
    "TaskState",
    "UnitState",
    "attempt_of",
    "deciding_ending",
    "device_key",
    "is_loss",
    "job_status",
    "leased",
    "may_follow",
    "orders_of",
    "units_status",
]
