"""Find the digits in a picture, which are connected regions, and read them with what `learn_reading.py` has learned.

As a service: `poise serve perceive.py:Perceive`; a question is a picture, 48 rows of 48 numbers from 0 to 16.
"""

import numpy as np
from records import SIDE, Image, Region, Scene, kept, read, step
from scipy import ndimage

INK = 3.0
"""Brightness of what is no noise …"""

LEAST = 20
"""… and pixels of what is no speck."""

BOX = 16
"""Pixels of a digit, each way."""


class Perceive:
    """The regions of pictures. The digits of all pictures of a batch are read at once."""

    def load(self) -> None:
        self._reader = kept("reading")

    def predict(self, batch: list[Image]) -> list[list[Region]]:
        found = [regions_of(np.array(image, dtype=float)) for image in batch]
        boxes = [box for regions in found for box, _, _ in regions]
        digits = iter(self._reader.predict(boxes).tolist() if boxes else ())
        return [[Region(next(digits), x, y) for _, x, y in regions] for regions in found]


def regions_of(image: np.ndarray) -> list[tuple[np.ndarray, float, float]]:
    """The pixels of each digit, in a row and from 0 to 1, and where its middle is."""
    if image.shape != (SIDE, SIDE):
        raise ValueError(f"a picture has {SIDE} rows of {SIDE} pixels")
    ink = ndimage.median_filter(image, 2) > INK  # without specks
    marks, _ = ndimage.label(ndimage.binary_dilation(ink), np.ones((3, 3)))  # strokes that nearly touch are one
    around = np.pad(image, BOX // 2)
    made = []
    for rows, columns in ndimage.find_objects(marks):
        inside = np.argwhere(ink[rows, columns])
        if len(inside) < LEAST:
            continue
        middle = (inside.min(axis=0) + inside.max(axis=0) + 1) / 2 + (rows.start, columns.start)
        top, left = middle.round().astype(int)
        box = around[top : top + BOX, left : left + BOX].reshape(-1) / 16
        made.append((box, float(middle[1] / SIDE), float(middle[0] / SIDE)))
    return made


if __name__ == "__main__":
    model = Perceive()
    model.load()
    step("regions", model.predict, [scene.image for scene in read("scenes", Scene)])
