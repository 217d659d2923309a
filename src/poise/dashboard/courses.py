"""The progress of training, as pages show it: times are seconds since 1970."""

import msgspec

from poise.kernel import courses
from poise.kernel.ledger import Ledger
from poise.model.reports.jobs import TrainingReport
from poise.model.training import Training


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """The training of one unit: `said` is its latest report, `heard` the time of that. `points` are in order of time:
    when, step, loss, workers, batch, accumulation, goodput in milli-samples per second, and phase. `resizes` are
    changes of its gang while it ran: when, workers that joined, workers that left, why.
    """

    unit: str
    name: str
    tenant: str
    runs: bool
    heard: float
    said: Training
    points: list[tuple[float, int, float, int, int, int, int, str]]
    resizes: list[tuple[float, int, int, str]]


def course_of(of: courses.Course, ledger: Ledger, until: float, most: int) -> Course | None:
    """Return a course up to a moment, with about `most` points; None if there were no points yet, or the job was
    forgotten.
    """
    unit, wall = ledger.jobs.unit(of.unit), ledger.leader.wall
    points = [one for one in of.points if wall(one.at) <= until]
    if unit is None or not points:
        return None
    job, last = ledger.jobs[unit.job], points[-1]
    shown = [*points[: -1 : len(points) // most + 1], last]
    return Course(
        unit=of.unit,
        name=job.name,
        tenant=job.tenant,
        runs=unit.status == "active",
        heard=wall(last.at),
        said=last.said,
        points=[(wall(one.at), *_figures(one.said)) for one in shown],
        resizes=[(wall(one.at), one.joined, one.left, one.why) for one in of.resizes if wall(one.at) <= until],
    )


def heard_now(course: Course, report: TrainingReport) -> Course:
    """Add the job's current report, which the log gets only once it has changed noticeably."""
    now = (report.heard, *_figures(report.said))
    return msgspec.structs.replace(course, said=report.said, heard=report.heard, points=[*course.points, now])


def _figures(said: Training) -> tuple[int, float, int, int, int, int, str]:
    return said.step, said.loss, said.world, said.batch, said.accumulation, said.goodput, said.phase
