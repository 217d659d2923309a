"""A node term, a rank term and a whole policy, as a package offers them to Poise.

All three are pure functions: what they need comes in, the answer goes out. They read no clock and keep nothing.
"""

import numpy as np

from poise.model.decisions import Decision, Hold, Place, Plan, Reason, Why
from poise.model.fleet import Floats
from poise.model.views import Candidate, Snapshot
from poise.policy.allowance import Allowance
from poise.policy.place import Draft
from poise.policy.score import TERMS, Scoring


def solitude(scoring: Scoring) -> Floats:
    """1 on a node where nothing long runs, a half beside one other, a third beside two."""
    beside = np.array([len(scoring.fleet.residents[row]) for row in scoring.rows.tolist()])
    return np.asarray(1 / (1 + beside))


def compactness(candidate: Candidate, view: Snapshot) -> float:
    """1 for a single task, less for every further task that has to start with it."""
    return 1 / candidate.tasks


class SmallestFirst:
    """Who asks for the fewest CPUs goes first, wherever there is most room. Gangs start whole, or not at all."""

    name = "smallest-first"

    def decide(self, view: Snapshot, /) -> Plan:
        draft, allowance = Draft(view, {"load": 1.0}, TERMS), Allowance(view.quotas)
        decisions: list[Decision] = []
        waiting: dict[str, tuple[Reason, ...]] = {}
        for candidate in sorted(view.candidates, key=lambda one: (one.shape.cpu * one.tasks, one.ordinal)):
            over = allowance.against(candidate)
            if over or draft.capacity(candidate.shape).sum() < candidate.tasks:
                if not candidate.recovering:  # that one is held by its lost node
                    reasons = over or tuple(draft.reasons(candidate.shape))
                    waiting[candidate.queue] = reasons or (Reason(code="NEXT_ROUND"),)
                continue
            allowance.take(candidate, candidate.shape, candidate.tasks)
            spots = []
            for _ in range(candidate.tasks):
                row, _ = draft.best(candidate, candidate.shape) or (0, 0.0)
                spots.append(draft.take(row, candidate, candidate.shape))
            why = Why(policy=self.name, base=view.revision, rank=f"{candidate.shape.describe()} asked for")
            decisions.append(Place(unit=candidate.unit, spots=tuple(spots), why=why))
        decisions += [Hold(queue=queue, reasons=reasons) for queue, reasons in waiting.items()]
        return Plan(base=view.revision, policy=self.name, decisions=tuple(decisions))


SMALLEST_FIRST = SmallestFirst()
