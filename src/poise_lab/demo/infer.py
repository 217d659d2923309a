"""Classify the test images with the best model, batch by batch.

The predictions go to `predictions.txt`, one digit per line, and their SHA-256 into the result: equal digests mean equal
predictions for every image.
"""

import json
import os
import pickle
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

import numpy as np

BATCH = 200  # images


def main() -> None:
    """Predict, save, and compare with the true labels, which no model has seen."""
    with np.load("digits.npz") as file:
        images, labels = file["test_images"] / 256, file["test_labels"]
    name = json.loads(Path("best.json").read_text())["best"]
    model = pickle.loads(Path("best.pkl").read_bytes())

    batches = []
    for start in range(0, len(images), BATCH):
        batches.append(model.predict(images[start : start + BATCH]))
        print(f"{name}: {min(start + BATCH, len(images))} of {len(images)} images", flush=True)
    predictions = np.concatenate(batches)

    text = "".join(f"{digit}\n" for digit in predictions).encode()
    put(Path("predictions.txt"), text)
    accuracy = float(np.mean(predictions == labels))
    digest = sha256(text).hexdigest()
    result = json.dumps({"model": name, "images": len(images), "test_accuracy": accuracy, "digest": digest})
    if path := os.environ.get("POISE_RESULT"):
        put(Path(path), result.encode())
    print(result)


def put(path: Path, content: bytes) -> None:
    """Write a file atomically: a kill leaves the old file or none, but never a partial one."""
    draft = path.with_name(f".{path.name}.{uuid4().hex}")
    draft.write_bytes(content)
    draft.replace(path)


if __name__ == "__main__":
    main()
