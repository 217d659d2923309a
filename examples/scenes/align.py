"""Find out which regions of the picture a question means: what it mentions goes through MiniLM, and from its embedding
it is told, by what `learn_pointing.py` has learned, which side, height and digit are meant.

As a service: `poise serve align.py:Align`; a question is what `parse` and `perceive` have answered.
"""

from records import ANY, LEFT, NAMES, UPPER, Asked, Meant, Region, Seen, kept, read, step

from poise_lab.demo.minilm import MiniLM


class Align:
    """Mentions to regions. What all questions of a batch mention is embedded at once."""

    def load(self) -> None:
        self._model = MiniLM()
        self._model.load()
        self._heads = kept("pointing")

    def predict(self, batch: list[Seen]) -> list[Meant]:
        points = self._points(sorted({text for seen in batch for text in seen.asked.mentions}))
        return [
            Meant(
                seen.asked.operation,
                [
                    [one for one in seen.regions if fits(one, *points[text])][: None if seen.asked.many else 1]
                    for text in seen.asked.mentions
                ],
            )
            for seen in batch
        ]

    def _points(self, texts: list[str]) -> dict[str, tuple[str, ...]]:
        """Which side, height and digit each text means."""
        if not texts:
            return {}
        rows = self._model.embed([self._model.tokens(text) for text in texts])
        told = [
            [names[at] for at in (rows @ weights.T + offsets).argmax(axis=1)] for names, weights, offsets in self._heads
        ]
        return dict(zip(texts, zip(*told, strict=True), strict=True))


def fits(one: Region, side: str, height: str, name: str) -> bool:
    """Whether a region is what is pointed at."""
    return (
        (side == ANY or (side == LEFT) == (one.x < 0.5))
        and (height == ANY or (height == UPPER) == (one.y < 0.5))
        and name in (ANY, NAMES[one.digit])
    )


if __name__ == "__main__":
    model = Align()
    model.load()
    together = zip(read("asked", Asked), read("regions", list[Region]), strict=True)
    step("meant", model.predict, [Seen(asked, regions) for asked, regions in together])
