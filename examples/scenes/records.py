"""What the steps hand to each other, and how a step of the graph reads and writes it: JSON in the folder `made`."""

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

MADE = Path(__file__).with_name("made")

ANY, LEFT, RIGHT, UPPER, LOWER = "any", "left", "right", "upper", "lower"
NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]

SIDE = 48
"""Pixels of a picture, each way; each of its quarters has room for one digit."""

Image = list[list[float]]


class Region(msgspec.Struct):
    """A digit that was found, and where its middle is: from 0, left and top, to 1."""

    digit: int
    x: float
    y: float


class Asked(msgspec.Struct):
    """A question, taken apart: what is to be done with what is mentioned, which is one digit or `many`."""

    operation: str
    mentions: list[str]
    many: bool = False


class Seen(msgspec.Struct):
    """A question, and what is in the picture."""

    asked: Asked
    regions: list[Region]


class Meant(msgspec.Struct):
    """What is to be done with which regions; a list of them for each mention."""

    operation: str
    groups: list[list[Region]]


class Answered(msgspec.Struct):
    """The answer: a number, yes or no; nothing where there is nothing of what was asked about."""

    answer: int | bool | None


class Truth(msgspec.Struct):
    """What only whoever made the scene knows."""

    digits: list[Region]
    groups: list[list[Region]]
    answer: int | bool


class Scene(msgspec.Struct):
    """A picture, a question about it, and the truth."""

    image: Image
    question: str
    truth: Truth


def read(name: str, kind: type[T]) -> list[T]:
    return msgspec.json.decode((MADE / f"{name}.json").read_bytes(), type=list[kind])  # type: ignore[valid-type]


def write(name: str, values: Sequence[Any]) -> None:
    put(f"{name}.json", msgspec.json.encode(values))


def kept(name: str) -> Any:
    """What has been learned."""
    return pickle.loads((MADE / f"{name}.pkl").read_bytes())


def keep(name: str, learned: Any) -> None:
    put(f"{name}.pkl", pickle.dumps(learned))


def put(name: str, content: bytes) -> None:
    """Whole or not at all, so that a step may be killed at any moment, and simply run again."""
    MADE.mkdir(exist_ok=True)
    draft = MADE / f".{name}"
    draft.write_bytes(content)
    draft.replace(MADE / name)


def step(name: str, predict: Callable[[list[Any]], Sequence[Any]], inputs: Sequence[Any]) -> None:
    """What a step of the graph does: the model that is a service elsewhere, asked for all scenes at once."""
    write(name, predict(list(inputs)))
    print(f"{name}: {len(inputs)} scenes")
