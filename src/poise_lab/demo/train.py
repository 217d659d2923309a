"""Train one of six models on the digits: `python train.py svm`.

Four of them are a single call. The other two show how one task becomes several processes:

* `forest` is split by data. Each part grows its own trees on its own share of the images; `--merge` combines them.
* `mlp` is a gang. Each of two processes computes half of every gradient, and they add the halves over a socket.

Every seed is fixed, and a model is saved atomically. So a run that was killed, repeated, or done by one process instead
of several ends with the same model.
"""

import argparse
import json
import os
import pickle
import time
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from socket import AF_UNIX, socket
from typing import Any
from uuid import uuid4

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.svm import SVC

from poise_lab.demo.network import LAYERS, Floats, Labels, gradient, initial, layers

ESTIMATORS: dict[str, Callable[[], Any]] = {
    "logistic": lambda: LogisticRegression(solver="newton-cg", tol=1e-8),  # so close that rounding no longer shows
    "svm": lambda: SVC(C=10, gamma=0.3),
    "knn": lambda: KNeighborsClassifier(n_neighbors=5, weights="distance"),
    "boosting": lambda: HistGradientBoostingClassifier(max_iter=20, early_stopping=False, random_state=0),
}


def main() -> None:
    """Train the model named on the command line, or merge its parts."""
    parser = argparse.ArgumentParser(description="Train one model on the digits.")
    parser.add_argument("model", choices=[*ESTIMATORS, "forest", "mlp"])
    parser.add_argument("--merge", action="store_true", help="make one forest of its parts")
    arguments = parser.parse_args()

    match arguments.model:
        case "forest" if arguments.merge:
            merge_forest()
        case "forest":
            train_forest()
        case "mlp":
            train_mlp()
        case name:
            images, labels = load("train")
            print(f"{name}: training on {len(labels)} images", flush=True)
            finish(name, ESTIMATORS[name]().fit(images, labels), Path(f"model-{name}.pkl"))


# --- a task split by data ---

PARTS = int(os.environ.get("POISE_PARTS", "4"))
TREES = 40  # in each part


def train_forest() -> None:
    """Train the trees of this part. Without `POISE_PART` in the environment, train all parts and merge them."""
    images, labels = load("train")
    part = os.environ.get("POISE_PART")
    for mine in range(PARTS) if part is None else [int(part)]:
        share = slice(mine, None, PARTS)
        print(f"forest, part {mine} of {PARTS}: {TREES} trees on {len(labels[share])} images", flush=True)
        forest = RandomForestClassifier(TREES, random_state=mine).fit(images[share], labels[share])
        finish("forest", forest, forest_part(mine), part=mine, parts=PARTS)
    if part is None:
        merge_forest()


def merge_forest() -> None:
    """Combine the trees of all parts, in order, into one forest."""
    first, *others = [pickle.loads(forest_part(part).read_bytes()) for part in range(PARTS)]
    for other in others:
        first.estimators_ += other.estimators_
    first.n_estimators = len(first.estimators_)
    finish("forest", first, Path("model-forest.pkl"), trees=first.n_estimators)


def forest_part(part: int) -> Path:
    """Return the file name of a part. It includes the number of parts, so that different splits never mix."""
    return Path(f"forest-{part}-of-{PARTS}.pkl")


# --- a gang ---

PASSES = 60  # over the training images
BATCH = 64  # images, half of them for each rank
RATE = 0.2  # falls to zero over the passes
MOMENTUM = 0.9
PATIENCE = 5.0  # seconds to wait for the other rank; its death is noticed at once


def train_mlp() -> None:
    """Train a small network with two processes, or alone.

    Each batch has two halves. A rank computes the gradient of its own half and gets the other from its peer; alone, it
    computes both. The sum of two numbers does not depend on their order, so all ranks hold bit-identical weights.
    """
    rank, world = int(os.environ.get("POISE_RANK", "0")), int(os.environ.get("POISE_WORLD_SIZE", "1"))
    if world > 2:
        raise SystemExit(f"a batch has two halves; {world} processes cannot share them")
    images, labels = load("train")
    peer = meet(rank, Path(os.environ["POISE_GANG_DIR"])) if world == 2 else None

    rng = np.random.default_rng(0)
    weights = initial(rng)
    speed = np.zeros_like(weights)
    for turn in range(PASSES):
        rate = RATE * (1 - turn / PASSES)
        for batch in np.array_split(rng.permutation(len(labels)), len(labels) // BATCH):
            mine, yours = batch[rank::2], batch[1 - rank :: 2]
            here = gradient(weights, images[mine], labels[mine])
            there = swap(peer, rank, here) if peer else gradient(weights, images[yours], labels[yours])
            speed = MOMENTUM * speed - rate / len(batch) * (here + there)
            weights += speed
        if (turn + 1) % 10 == 0:
            print(f"mlp, rank {rank} of {world}: pass {turn + 1} of {PASSES}", flush=True)

    if peer and not np.array_equal(weights, swap(peer, rank, weights)):
        raise SystemExit("the two ranks should hold the same weights, and do not")
    if rank == 0:
        finish("mlp", as_estimator(weights, images, labels), Path("model-mlp.pkl"), processes=world)


def as_estimator(weights: Floats, images: Floats, labels: Labels) -> MLPClassifier:
    """Return the weights as a scikit-learn model, so that all models can be loaded alike."""
    network = MLPClassifier(LAYERS[1:-1], random_state=0)
    network.partial_fit(images[:BATCH], labels[:BATCH], classes=range(LAYERS[-1]))  # only to initialize its layout
    network.coefs_, network.intercepts_ = map(list, zip(*layers(weights), strict=True))
    return network


def meet(rank: int, folder: Path) -> socket:
    """Connect the two ranks: rank 0 listens on a socket in the gang's folder, rank 1 retries until it is accepted."""
    deadline = time.monotonic() + PATIENCE
    with chdir(folder):  # a socket path is limited to 108 bytes; the folder's path may be longer
        if rank == 0:
            with socket(AF_UNIX) as door:
                door.bind("door")
                door.listen()
                door.settimeout(PATIENCE)
                peer, _ = door.accept()
        else:
            while (peer := socket(AF_UNIX)).connect_ex("door") != 0:
                peer.close()
                if time.monotonic() > deadline:
                    raise TimeoutError(f"nobody opened the door in {PATIENCE:.0f} s")
                time.sleep(0.02)
    peer.settimeout(PATIENCE)
    return peer


def swap(peer: socket, rank: int, mine: Floats) -> Floats:
    """Exchange numbers with the other rank. The ranks take turns: if both sent first, both could block."""
    if rank == 0:
        peer.sendall(mine.tobytes())
    theirs = bytearray(mine.nbytes)
    room = memoryview(theirs)
    while room:
        count = peer.recv_into(room)
        if count == 0:
            raise ConnectionError("the other rank is gone")
        room = room[count:]
    if rank == 1:
        peer.sendall(mine.tobytes())
    return np.frombuffer(theirs)


# --- files ---


def load(split: str) -> tuple[Floats, Labels]:
    """Read the images and labels of one split; dividing by a power of two loses no bit."""
    with np.load("digits.npz") as file:
        return file[f"{split}_images"] / 256, file[f"{split}_labels"]


def finish(name: str, model: Any, path: Path, **facts: int) -> None:
    """Measure a trained model, save it, and only then report it."""
    accuracy = float(model.score(*load("validation")))
    put(path, pickle.dumps(model))
    result = json.dumps({"model": name, "validation_accuracy": accuracy, **facts})
    if wanted := os.environ.get("POISE_RESULT"):
        put(Path(wanted), result.encode())
    print(result)


def put(path: Path, content: bytes) -> None:
    """Write a file atomically: a kill leaves the old file or none, but never a partial one."""
    draft = path.with_name(f".{path.name}.{uuid4().hex}")
    draft.write_bytes(content)
    draft.replace(path)


if __name__ == "__main__":
    main()
