"""Hot spots: the spans of a log added up by class of work and step.

A span is counted when it ends. The longest one of each class and step is stored, with its details.
"""

import msgspec

from poise.kernel.ledger import Ledger
from poise.kernel.spans import Spans
from poise.model.events import Event, TrainingTold
from poise.model.hotspots import HotSpot, HotSpots, Order, Step
from poise.model.traces import Span
from poise.units import SECOND

MOST_KINDS = 10_000
"""Maximum number of classes and steps; further ones are left out."""

_STEPS: dict[str, Step] = {"queued": "waiting", "launch": "starting", "run": "running"}


class _Sum(msgspec.Struct):
    count: int = 0
    total: int = 0
    longest: int = -1
    where: str = ""
    why: str = ""


class HotSpotFinder:
    """Follows a log from the state in `ledger`. Counts spans that ended since `since`, in nanoseconds since 1970."""

    def __init__(self, ledger: Ledger, since: int = 0) -> None:
        self.spans = Spans(ledger)
        self._since = since
        self._sums: dict[tuple[str, Step], _Sum] = {}
        self._saved: dict[str, int] = {}

    def add(self, event: Event) -> None:
        """Read the next event of the log."""
        for span in self.spans.add(event):
            self._count(span)
        if isinstance(event, TrainingTold):
            self._training(event)

    def _count(self, span: Span) -> None:
        step = _STEPS.get(span.name.partition(" ")[0])
        if step is None or span.end < self._since or "poise.class" not in span.attributes:
            return
        told = span.attributes
        why = str(told["poise.reasons"]) if "poise.reasons" in told else ""
        if step == "waiting":
            why = next((str(event.attributes["poise.reasons"]) for event in reversed(span.events)), "")
        elif step == "running" and told["poise.outcome"] != "done":
            step, why = "lost", span.error or str(told["poise.outcome"])
        where = f"{told['poise.task']}#{told['poise.epoch']}"
        self._sum(str(told["poise.class"]), step, span.end - span.start, where, why)

    def _training(self, event: TrainingTold) -> None:
        """Count a checkpoint once, when the first report names it."""
        saved, unit = event.training.checkpoint, self.spans.ledger.jobs.unit(event.unit)
        if saved is None or unit is None or self._saved.get(unit.id) == saved.step:
            return
        self._saved[unit.id] = saved.step
        if self.spans.wall(event.at) >= self._since:
            self._sum(
                unit.spec.kind, "saving", max(saved.stall, saved.slowed), unit.id, f"checkpoint at step {saved.step}"
            )

    def _sum(self, kind: str, step: Step, took: int, where: str, why: str) -> None:
        known = self._sums.get((kind, step))
        if known is None:
            if len(self._sums) >= MOST_KINDS:
                return
            known = self._sums[kind, step] = _Sum()
        known.count += 1
        known.total += took
        if took > known.longest:
            known.longest, known.where, known.why = took, where, why

    def report(self, order: Order, most: int) -> HotSpots:
        """Return the `most` hottest spots, by total time, mean time or count."""
        whole = sum(one.total for one in self._sums.values())
        spots = [
            HotSpot(
                kind=kind,
                step=step,
                count=one.count,
                total=one.total,
                mean=one.total // one.count,
                longest=one.longest,
                share=one.total * 1000 // whole if whole else 0,
                where=one.where,
                why=one.why,
            )
            for (kind, step), one in self._sums.items()
        ]
        spots.sort(key=lambda spot: (-getattr(spot, order), spot.kind, spot.step))
        return HotSpots(since=self._since / SECOND, spots=tuple(spots[:most]), left_out=max(0, len(spots) - most))
