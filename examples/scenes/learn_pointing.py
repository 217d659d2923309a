"""Learn which part of a picture a phrase points at: from the embeddings of phrases that are made of few words.

`python learn_pointing.py` writes `made/pointing.pkl`: three regressions over MiniLM's embeddings that tell the side
(left, right or any), the height (top, bottom or any) and the digit (or any) that is meant. Because the embeddings know
which words are alike, that holds for words which are not in these phrases as well.
"""

from records import ANY, LEFT, LOWER, NAMES, RIGHT, UPPER, keep
from sklearn.linear_model import LogisticRegression

from poise_lab.demo.minilm import MiniLM

NOUNS = ["digit", "numeral"]
SIDES = {"left": LEFT, "right": RIGHT}
HEIGHTS = {"top": UPPER, "upper": UPPER, "bottom": LOWER, "lower": LOWER, "uppermost": UPPER, "lowest": LOWER}
WHOLE = ["all {}s", "every {}", "all of the {}s in the image", "everything", "each {} there is", "the whole image"]

Label = tuple[str, str, str]


def phrases() -> dict[str, Label]:
    """What is said, and what it means."""
    made: dict[str, Label] = {}
    for noun in NOUNS:
        for height, y in HEIGHTS.items():
            for side, x in SIDES.items():
                for form in (
                    "the {n} at the {h} {s}",
                    "the {h} {s} {n}",
                    "the {n} in the {h} {s} corner",
                    "the {h}-{s} {n}",
                ):
                    made[form.format(n=noun, h=height, s=side)] = x, y, ANY
            for form in ("the {h} {n}s", "the {n}s in the {h} half", "the {h} row of {n}s", "the {n}s at the {h}"):
                made[form.format(n=noun, h=height)] = ANY, y, ANY
        for height, y in (("above", UPPER), ("underneath", LOWER), ("beneath", LOWER)):
            made[f"the {noun}s {height}"] = ANY, y, ANY
        for side, x in SIDES.items():
            for form in ("the {s} {n}s", "the {n}s on the {s} side", "the {s} column of {n}s", "the {n}s to the {s}"):
                made[form.format(n=noun, s=side)] = x, ANY, ANY
        made |= {form.format(noun): (ANY, ANY, ANY) for form in WHOLE}
        for name in NAMES:
            made |= {f"the {noun} {name}": (ANY, ANY, name), f"the {name}": (ANY, ANY, name), name: (ANY, ANY, name)}
    return made


def main() -> None:
    known = phrases()
    model = MiniLM()
    model.load()
    rows = model.embed([model.tokens(text) for text in known])
    labels = zip(*known.values(), strict=True)
    learned = [LogisticRegression(C=100, max_iter=1000).fit(rows, part) for part in labels]
    keep("pointing", [(one.classes_.tolist(), one.coef_, one.intercept_) for one in learned])
    print(f"learned to point from {len(known)} phrases")


if __name__ == "__main__":
    main()
