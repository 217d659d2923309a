"""`kernel/courses.py`: how training went, from the log."""

import pytest

from poise.kernel import courses as module
from poise.kernel.courses import Courses
from poise.model.events import Resized, TrainingTold
from poise.model.training import Training
from poise.testing import World
from unit.kernel.test_resizing import a_gang


def courses_of(world: World) -> Courses:
    found = Courses()
    for event in world.log:
        found.note(event)
    return found


def test_what_a_gang_said_and_how_it_was_resized_is_told_in_order() -> None:
    world = a_gang().after("10s").job("now", gpu=1, priority="high", expect="30s").after("1s")
    (course,) = courses_of(world).latest()
    told = [event for event in world.log if isinstance(event, TrainingTold)]
    (resized,) = [event for event in world.log if isinstance(event, Resized)]
    assert course.unit == "j1.main"
    assert [(point.at, point.said) for point in course.points] == [(event.at, event.training) for event in told]
    (resize,) = course.resizes
    assert (resize.at, resize.joined, resize.left) == (resized.at, len(resized.joins), len(resized.leaves))
    assert resize.left == 1 and resize.why


def test_a_long_course_is_whole_at_less_detail_and_the_latest_units_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POINTS", 8)
    monkeypatch.setattr(module, "UNITS", 2)
    found = Courses()
    for step in range(100):
        found.note(TrainingTold(at=step + 1, unit="j1.main", training=Training(step=step)))
    (course,) = found.latest()
    steps = [point.said.step for point in course.points]
    assert steps == sorted(steps) and (steps[0], steps[-1]) == (0, 99)
    assert 4 <= len(steps) <= 8
    for job in ("j2", "j1", "j3"):
        found.note(TrainingTold(at=200, unit=f"{job}.main", training=Training(step=1)))
    assert [one.unit for one in found.latest()] == ["j3.main", "j1.main"]
