"""The course of training, from the log: the reports of each unit, and the resizes of its gang.

The latest `UNITS` units with reports are stored, each with a limited number of points. Above the limit every second
point is dropped, so that a course is complete at half the detail.
"""

from collections import OrderedDict

import msgspec

from poise.model.events import Event, Resized, TrainingTold
from poise.model.training import Training

UNITS, POINTS, RESIZES = 128, 512, 128
"""Maximum number of units; of points per course; of resizes per course."""


class Point(msgspec.Struct, frozen=True):
    """A report at an instant."""

    at: int
    said: Training


class Resize(msgspec.Struct, frozen=True):
    """Workers joined or left a running gang."""

    at: int
    joined: int
    left: int
    why: str


class Course(msgspec.Struct):
    """The training of one unit, in order of time."""

    unit: str
    points: list[Point] = []
    resizes: list[Resize] = []


class Courses:
    """Reads the events of a log, in order."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Course] = OrderedDict()

    def note(self, event: Event) -> None:
        """Read the next event of the log."""
        if isinstance(event, TrainingTold):
            self._told(event)
        elif isinstance(event, Resized) and (course := self._known.get(event.unit)) is not None:
            told = Resize(event.at, len(event.joins), len(event.leaves), event.why.sentence() or event.cause)
            course.resizes.append(told)
            del course.resizes[:-RESIZES]

    def latest(self) -> list[Course]:
        """Return the courses, the one with the latest report first."""
        return list(reversed(self._known.values()))

    def _told(self, event: TrainingTold) -> None:
        course = self._known.setdefault(event.unit, Course(event.unit))
        self._known.move_to_end(event.unit)
        if len(self._known) > UNITS:
            self._known.popitem(last=False)
        course.points.append(Point(event.at, event.training))
        if len(course.points) > POINTS:
            del course.points[1:-1:2]
