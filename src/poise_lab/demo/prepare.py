"""Turn the 1,797 handwritten digits that ship with scikit-learn into a harder training task.

The originals are split first and distorted afterwards, so that no original is in more than one split. Pixels are stored
as integers, so the file is byte-identical on every machine and after every retry.
"""

import io
import json
import os
from pathlib import Path
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

SEED = 20
SIDE = 8  # pixels; the images are square
SPLITS = {"train": (1000, 8), "validation": (397, 4), "test": (400, 4)}  # originals, and distorted copies of each

Images = NDArray[np.float64]  # one row per image, SIDE * SIDE pixels from 0 to 16


def main() -> None:
    """Split, distort and save."""
    rng = np.random.default_rng(SEED)
    digits = load_digits()
    order = rng.permutation(len(digits.target))

    arrays: dict[str, NDArray[np.uint8]] = {}
    for split, (originals, copies) in SPLITS.items():
        mine, order = np.repeat(order[:originals], copies), order[originals:]
        rng.shuffle(mine)
        arrays[f"{split}_images"] = np.rint(distort(digits.data[mine], rng) * 255 / 16).astype(np.uint8)
        arrays[f"{split}_labels"] = digits.target[mine].astype(np.uint8)
        print(f"{split}: {len(mine)} images from {originals} originals", flush=True)

    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]  # numpy's stub takes the names for its own options
    put(Path("digits.npz"), file.getvalue())

    result = json.dumps({split: len(arrays[f"{split}_labels"]) for split in SPLITS})
    if path := os.environ.get("POISE_RESULT"):
        put(Path(path), result.encode())
    print(result)


def distort(images: Images, rng: np.random.Generator) -> Images:
    """Rotate, stretch and shift every image by a small random amount.

    Works backwards: for each pixel of the result, find its source point and blend the four pixels around it.
    """
    count = len(images)
    angle = rng.uniform(-0.35, 0.35, (count, 1))  # radians: 20 degrees either way
    stretch = rng.uniform(0.85, 1.2, (count, 1))
    shift = rng.uniform(-1.2, 1.2, (2, count, 1))  # pixels

    middle = (SIDE - 1) / 2
    y, x = np.mgrid[:SIDE, :SIDE].reshape(2, 1, -1) - middle
    from_y = (np.cos(angle) * y - np.sin(angle) * x) / stretch + shift[0] + middle
    from_x = (np.sin(angle) * y + np.cos(angle) * x) / stretch + shift[1] + middle

    margin = SIDE  # empty margin around the image, so that every pixel has a source point
    paper = np.pad(images.reshape(count, SIDE, SIDE), ((0, 0), (margin, margin), (margin, margin)))
    top, left = np.floor(from_y).astype(int), np.floor(from_x).astype(int)
    down, right = from_y - top, from_x - left
    which = np.arange(count)[:, None]

    blend = np.zeros_like(images)
    for below, height in (0, 1 - down), (1, down):
        for beside, width in (0, 1 - right), (1, right):
            blend += height * width * paper[which, top + margin + below, left + margin + beside]
    return blend


def put(path: Path, content: bytes) -> None:
    """Write a file atomically: a kill leaves the old file or none, but never a partial one."""
    draft = path.with_name(f".{path.name}.{uuid4().hex}")
    draft.write_bytes(content)
    draft.replace(path)


if __name__ == "__main__":
    main()
