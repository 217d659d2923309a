"""Make scenes: pictures of handwritten digits that no model was trained with, questions about them, and the truth.

`python make.py [COUNT [SEED]]` writes `made/scenes.json`; the same scenes each time. A picture has two to four digits,
each somewhere in a quarter of its own, twice as large as scikit-learn has them, with noise and specks. The questions
are phrased in other words than those that `learn_pointing.py` learns from.
"""

import random
import sys
from collections.abc import Callable, Iterable

import numpy as np
from records import NAMES, SIDE, Region, Scene, Truth, write
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

HALF, SIZE = SIDE // 2, 16
SPECKS = 0.004

QUARTERS = [(0, 0), (1, 0), (0, 1), (1, 1)]
"""Column and row."""

PLACES = [
    ["the number at the top left", "the upper left number", "the figure in the top left-hand corner"],
    ["the number at the top right", "the upper right number", "the figure in the top right-hand corner"],
    ["the number at the bottom left", "the lower left number", "the figure in the bottom left-hand corner"],
    ["the number at the bottom right", "the lower right number", "the figure in the bottom right-hand corner"],
]
SIDES: list[tuple[Callable[[Region], bool], list[str]]] = [
    (lambda one: one.x < 0.5, ["the digits on the left", "the numbers in the left column", "the left-hand figures"]),
    (lambda one: one.x > 0.5, ["the digits on the right", "the numbers in the right column", "the right-hand figures"]),
    (
        lambda one: one.y < 0.5,
        ["the numbers at the top", "the numbers in the upper row", "the figures of the top half"],
    ),
    (lambda one: one.y > 0.5, ["the numbers below", "the numbers in the lower row", "the figures of the lower half"]),
    (lambda one: True, ["all the digits", "every number in the picture", "all of them together"]),
]

Pair = Callable[[int, int], int | bool]
Group = Callable[[list[int]], int]
OF_TWO: list[tuple[Pair, list[str]]] = [
    (lambda a, b: a + b, ["What is the sum of {a} and {b}?", "Add {a} to {b}.", "How much is {a} plus {b}?"]),
    (lambda a, b: a - b, ["How much larger is {a} than {b}?", "Subtract {b} from {a}.", "What is {a} minus {b}?"]),
    (lambda a, b: a * b, ["Multiply {a} by {b}.", "What is {a} times {b}?", "What is the product of {a} and {b}?"]),
]
OF_MANY: list[tuple[Group, list[str]]] = [
    (sum, ["What is the sum of {group}?", "Add up {group}.", "What do {group} make together?"]),
    (max, ["What is the largest of {group}?", "Which is the biggest of {group}?"]),
    (min, ["What is the smallest of {group}?", "Which is the least of {group}?"]),
    (len, ["Count {group}.", "How many are {group}?"]),
]
ONE = ["What is {a}?", "Read {a}.", "Which digit is {a}?"]
LEFT = ["Is {a} to the left of {b}?", "Is {a} further left than {b}?"]
ABOVE = ["Is {a} above {b}?", "Is {a} higher up than {b}?"]


def scene(draw: random.Random, images: np.ndarray, names: np.ndarray) -> Scene:
    pieces, digits = [], []
    for x, y in sorted(draw.sample(QUARTERS, draw.randint(2, 4))):
        chosen = draw.randrange(len(names))
        left, top = (HALF * at + draw.randint(2, HALF - SIZE - 2) for at in (x, y))
        pieces.append((images[chosen], left, top))
        digits.append(Region(int(names[chosen]), (left + SIZE / 2) / SIDE, (top + SIZE / 2) / SIDE))
    picture = drawn(pieces, np.random.default_rng(draw.randrange(1 << 32)))
    question, groups, answer = asked(draw, digits)
    return Scene(picture.tolist(), question, Truth(digits, groups, answer))


def drawn(pieces: Iterable[tuple[np.ndarray, int, int]], noise: np.random.Generator) -> np.ndarray:
    """A picture of digits, each with its left and its upper end."""
    picture = np.zeros((SIDE, SIDE))
    for image, left, top in pieces:
        picture[top : top + SIZE, left : left + SIZE] = image.reshape(8, 8).repeat(2, 0).repeat(2, 1)
    picture += noise.normal(0, 0.7, picture.shape)
    picture[noise.random(picture.shape) < SPECKS] = 12
    return picture.clip(0, 16).round(1)


def split() -> list[np.ndarray]:
    """Images and digits to learn from, then those of the scenes."""
    images, digits = load_digits(return_X_y=True)
    known, others, names, truth = train_test_split(images, digits, random_state=0)
    return [known, names, others, truth]


def asked(draw: random.Random, digits: list[Region]) -> tuple[str, list[list[Region]], int | bool]:
    """A question, what it mentions, and its answer."""
    kind = draw.randrange(4)
    if kind == 0:
        one = draw.choice(digits)
        return draw.choice(ONE).format(a=mention(draw, one)), [[one]], one.digit
    if kind == 1:
        fits, phrases = draw.choice([side for side in SIDES if any(map(side[0], digits))])
        group = [one for one in digits if fits(one)]
        work, templates = draw.choice(OF_MANY)
        return draw.choice(templates).format(group=draw.choice(phrases)), [group], work([one.digit for one in group])
    first, second = draw.sample(digits, 2)
    if kind == 2:
        calculate, templates = draw.choice(OF_TWO)
        question = draw.choice(templates).format(a=mention(draw, first), b=mention(draw, second))
        return question, [[first], [second]], calculate(first.digit, second.digit)
    left = abs(first.x - second.x) > abs(first.y - second.y)
    by_name = [digit for one in (first, second) if alone(digit := one, digits)]
    phrase_of = [f"the {NAMES[one.digit]}" if one in by_name else mention(draw, one) for one in (first, second)]
    question = draw.choice(LEFT if left else ABOVE).format(a=phrase_of[0], b=phrase_of[1])
    return question, [[first], [second]], first.x < second.x if left else first.y < second.y


def mention(draw: random.Random, one: Region) -> str:
    return draw.choice(PLACES[QUARTERS.index((int(one.x > 0.5), int(one.y > 0.5)))])


def alone(one: Region, digits: list[Region]) -> bool:
    """Whether its name says which one is meant."""
    return sum(other.digit == one.digit for other in digits) == 1


def main() -> None:
    count, seed = [*map(int, sys.argv[1:]), *(200, 1)[len(sys.argv) - 1 :]]
    _, _, images, names = split()
    draw = random.Random(seed)
    write("scenes", [scene(draw, images, names) for _ in range(count)])
    print(f"make: {count} scenes")


if __name__ == "__main__":
    main()
