"""The steps of `examples/scenes`: each alone, on what is known to be right."""

import importlib
import random
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "examples" / "scenes"

pytestmark = pytest.mark.skipif(find_spec("sklearn") is None, reason="scikit-learn is not installed")


class Steps:
    """The modules of the folder, by name."""

    def __getattr__(self, name: str) -> ModuleType:
        return importlib.import_module(name)


@pytest.fixture(scope="module")
def steps() -> Iterator[Steps]:
    """They find each other as scripts of one folder do."""
    before = set(sys.modules)
    sys.path.insert(0, str(FOLDER))
    yield Steps()
    sys.path.remove(str(FOLDER))
    for name in {path.stem for path in FOLDER.glob("*.py")} - before:
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("question", "operation", "mentions", "many"),
    [
        ("What is the upper left number?", "read", ["the upper left number"], False),
        ("Subtract the two from the nine.", "difference", ["the nine", "the two"], False),
        ("Add the seven to the two.", "sum", ["the seven", "the two"], False),
        ("Add up all the digits.", "sum", ["all the digits"], True),
        ("What is the sum of the two and the left one?", "sum", ["the two", "the left one"], False),
        ("What do the digits below make together?", "sum", ["the digits below"], True),
        ("Is the four to the left of the six?", "left of", ["the four", "the six"], False),
        ("Is the four higher up than the six?", "above", ["the four", "the six"], False),
        ("How many are the left-hand figures?", "count", ["the left-hand figures"], True),
    ],
)
def test_questions_are_taken_apart(
    steps: Steps, question: str, operation: str, mentions: list[str], many: bool
) -> None:
    assert steps.parse.parsed(question) == steps.records.Asked(operation, mentions, many)


def test_every_question_that_is_made_is_understood_and_has_its_answer(steps: Steps) -> None:
    """With eyes and pointing that are never wrong, what is left are the grammar and the reasoning."""
    images, names = steps.make.split()[2:]
    draw = random.Random(7)  # noqa: S311 — the same questions each time
    for _ in range(300):
        scene = steps.make.scene(draw, images, names)
        asked = steps.parse.parsed(scene.question)
        assert len(asked.mentions) == len(scene.truth.groups), scene.question
        meant = steps.records.Meant(asked.operation, scene.truth.groups)
        assert steps.reason.answered(meant).answer == scene.truth.answer, scene.question


def test_what_is_no_question_is_told(steps: Steps) -> None:
    assert "no question that is known" in str(steps.parse.parsed("Where is the sea?"))
    assert "no operation `bake`" in str(steps.reason.answered(steps.records.Meant("bake", [])))
    assert steps.reason.answered(steps.records.Meant("sum", [[]])).answer is None


def test_digits_are_found_where_they_are(steps: Steps) -> None:
    images, names = steps.make.split()[2:]
    draw, found, there = random.Random(3), 0, 0  # noqa: S311
    for _ in range(50):
        scene = steps.make.scene(draw, images, names)
        regions = steps.perceive.regions_of(steps.perceive.np.array(scene.image))
        there += len(scene.truth.digits)
        for one in scene.truth.digits:
            found += any(abs(x - one.x) < 0.1 and abs(y - one.y) < 0.1 for _, x, y in regions)
        assert len(regions) <= len(scene.truth.digits), "no speck is a digit"
    assert found >= 0.98 * there


def test_a_picture_of_another_size_is_refused(steps: Steps) -> None:
    with pytest.raises(ValueError, match="48 rows of 48 pixels"):
        steps.perceive.regions_of(steps.perceive.np.zeros((8, 8)))


def test_what_is_pointed_at(steps: Steps) -> None:
    one = steps.records.Region(7, 0.2, 0.8)
    assert steps.align.fits(one, "left", "lower", "any") == steps.align.fits(one, "any", "any", "seven") is True
    for other in (("right", "any", "any"), ("any", "upper", "any"), ("any", "any", "six")):
        assert not steps.align.fits(one, *other)


def test_no_place_is_asked_about_in_words_that_were_learned_from(steps: Steps) -> None:
    learned = set(steps.learn_pointing.phrases())
    asked = [phrase for place in steps.make.PLACES for phrase in place]
    asked += [phrase for _, side in steps.make.SIDES for phrase in side]
    assert learned.isdisjoint(asked)
