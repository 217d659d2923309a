"""Take questions apart: a small grammar of what can be asked. What is mentioned stays in the words it was said in.

As a service: `poise serve parse.py:Parse`; a question is a text.
"""

import re

from records import Asked, Scene, read, step

A, B, GROUP = r"(?P<a>.+?)", r"(?P<b>.+?)", r"(?P<group>.+?)"

RULES = [
    ("difference", f"how much (?:larger|bigger|more) is {A} than {B}"),
    ("difference", f"subtract {B} from {A}"),
    ("difference", f"(?:what|how much) is {A} minus {B}"),
    ("sum", f"(?:what|how much) is {A} plus {B}"),
    ("product", f"(?:what|how much) is {A} times {B}"),
    ("product", f"multiply {A} by {B}"),
    ("product", f"what is the product of {A} and {B}"),
    ("sum", f"what is the sum of {A} and {B}"),
    ("sum", f"add (?!up ){A} (?:to|and) {B}"),
    ("left of", f"is {A} (?:to the|further) left (?:of|than) {B}"),
    ("above", f"is {A} (?:above|higher up than) {B}"),
    ("sum", f"what is the sum of {GROUP}"),
    ("sum", f"add up {GROUP}"),
    ("sum", f"what do {GROUP} make together"),
    ("largest", f"(?:what|which) is the (?:largest|biggest) of {GROUP}"),
    ("smallest", f"(?:what|which) is the (?:smallest|least) of {GROUP}"),
    ("count", f"(?:count|how many are) {GROUP}"),
    ("read", f"(?:what is|which digit is|read) {A}"),
]
"""In this order: the first that fits a whole question says what it is."""

_RULES = [(operation, re.compile(rule)) for operation, rule in RULES]


class Parse:
    """Questions to what they ask."""

    def predict(self, batch: list[str]) -> list[Asked | Exception]:
        return [parsed(question) for question in batch]


def parsed(question: str) -> Asked | Exception:
    said = question.lower().strip(" .?!")
    for operation, rule in _RULES:
        if (found := rule.fullmatch(said)) is not None:
            parts = found.groupdict()
            if "group" in parts:
                return Asked(operation, [parts["group"]], many=True)
            return Asked(operation, [parts[name] for name in ("a", "b") if name in parts])
    return ValueError(f"this is no question that is known here: {question[:80]}")


if __name__ == "__main__":
    step("asked", Parse().predict, [scene.question for scene in read("scenes", Scene)])
