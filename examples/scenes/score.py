"""Compare what the steps have made with the truth, which none of them has seen."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from records import Answered, Meant, Region, Scene, read


def main() -> None:
    truth = [scene.truth for scene in read("scenes", Scene)]
    regions, meant, answers = read("regions", list[Region]), read("meant", Meant), read("answers", Answered)
    right = {
        "digits": [read_off(one.digits) == read_off(found) for one, found in zip(truth, regions, strict=True)],
        "mentions": [
            [where(group) for group in one.groups] == [where(group) for group in other.groups]
            for one, other in zip(truth, meant, strict=True)
        ],
        "answers": [one.answer == other.answer for one, other in zip(truth, answers, strict=True)],
    }
    for what, each in right.items():
        print(f"{what}: right in {sum(each)} of {len(each)} scenes")
    if path := os.environ.get("POISE_RESULT"):
        Path(path).write_text(json.dumps({what: sum(each) / len(each) for what, each in right.items()}))


def where(regions: Sequence[Region]) -> list[tuple[bool, bool]]:
    """The quarters that they are in."""
    return sorted((one.x > 0.5, one.y > 0.5) for one in regions)


def read_off(regions: Sequence[Region]) -> list[tuple[bool, bool, int]]:
    """The same, with the digit in each."""
    return sorted((one.x > 0.5, one.y > 0.5, one.digit) for one in regions)


if __name__ == "__main__":
    main()
