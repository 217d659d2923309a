"""Train a small network on the digits with a varying number of workers: `python elastic.py`.

Every batch is cut into shards. In each step, worker 0 distributes the shards (more of them to faster devices), adds up
the gradients in shard order, and sends the new weights with the next step. Every worker thus has the whole state, and
the result is bit-identical with any number of workers, and regardless of which of them are killed:

* A new worker connects to worker 0 and takes part from the next step on.
* If a worker is lost, worker 0 recomputes its shards of this step.
* If worker 0 is lost, the new worker 0 that Poise appoints repeats the step and continues.
* If all are lost, the next attempt resumes from the last checkpoint.

Worker 0 is determined by `POISE_RANK` at first, and by the file in `POISE_ORDERS` after each change. `poise.Session`
does all of this for PyTorch. Speeds are emulated: `SECONDS` is the time per shard.
"""

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator
from hashlib import sha256
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import cast
from uuid import uuid4

import numpy as np

from poise_lab.demo.network import Floats, Labels, accuracy, gradient, initial

STEPS = int(os.environ.get("DEMO_STEPS", "600"))
SHARDS = 12
BATCH = 96  # images
RATE = 0.2  # falls to zero over the steps
MOMENTUM = 0.9

SECONDS = {"fast": 0.008, "slow": 0.02, "": 0.0}
"""Time per shard, by the kind of device; run by hand, without a device, nothing is emulated."""

CHECKPOINT_EVERY = 20  # steps
LOOK_SECONDS = 0.02
TELL_SECONDS = 0.5
PATIENCE = 20.0  # maximum wait in seconds for a worker 0

DEVICE = "fast" if os.environ.get("CUDA_VISIBLE_DEVICES") else "slow" if os.environ.get("ROCR_VISIBLE_DEVICES") else ""

Step = tuple[int, Floats, Floats]
"""The whole state: the number of completed steps, the weights, and their velocity."""

Share = list[tuple[int, Floats]]
"""Gradients by shard number."""


def main() -> None:
    """Work as worker 0 or for it, until training is over."""
    images, labels = load("train")
    gang = Path(os.environ["POISE_GANG_DIR"]) if "POISE_GANG_DIR" in os.environ else None
    step = restore()
    until = time.monotonic() + PATIENCE
    while rank() != 0 and gang is not None:
        door = _door(gang)
        if door is None:
            if (gang / "over").exists():
                return
            if time.monotonic() > until:
                raise TimeoutError(f"no worker 0 in {PATIENCE:.0f} s")
            time.sleep(LOOK_SECONDS)
            continue
        step = follow(door, step, images, labels)
        if step[0] >= STEPS:
            return
        until = time.monotonic() + PATIENCE
    lead(gang, step, images, labels)


def rank() -> int:
    """Return this worker's rank, according to the latest orders."""
    with contextlib.suppress(KeyError, OSError, ValueError):  # no orders have arrived yet
        return int(json.loads(Path(os.environ["POISE_ORDERS"]).read_text())["rank"])
    return int(os.environ.get("POISE_RANK", "0"))


# --- worker 0 ---


class Crew:
    """The other workers, with the kinds of their devices, in order of arrival."""

    def __init__(self, gang: Path | None) -> None:
        self.kinds: dict[Connection, str] = {}
        self._new: list[tuple[Connection, str]] = []
        if gang is not None:
            name = f"door.{os.getpid()}"
            with contextlib.chdir(gang):  # a socket path is limited to 108 bytes; the folder's path may be longer
                self._listener = Listener(name, "AF_UNIX")
            threading.Thread(target=self._let_in, daemon=True).start()
            put(gang / "leader", name.encode())

    def _let_in(self) -> None:
        while True:
            with contextlib.suppress(OSError, EOFError):
                worker = self._listener.accept()
                self._new.append((worker, worker.recv()))

    def ask(self, step: Step) -> dict[Connection, list[int]]:
        """Send the step and its shards to each worker. This process computes the remaining shards."""
        while self._new:
            worker, kind = self._new.pop(0)
            self.kinds[worker] = kind
        shares = divided([DEVICE, *self.kinds.values()])
        asked: dict[Connection, list[int]] = {}
        for worker, share in zip(list(self.kinds), shares[1:], strict=True):
            with self._lost(worker):
                worker.send((step, share))
                asked[worker] = share
        return asked

    def hear(self, worker: Connection) -> Share:
        """Return the gradients from a worker; nothing if it is lost."""
        with self._lost(worker):
            return cast(Share, worker.recv())
        return []

    def dismiss(self, step: Step) -> None:
        """Send the final state to all workers: training is over."""
        for worker in list(self.kinds):
            with self._lost(worker):
                worker.send((step, []))

    @contextlib.contextmanager
    def _lost(self, worker: Connection) -> Iterator[None]:
        """Remove the worker from the list if its connection fails within the context."""
        try:
            yield
        except (OSError, EOFError):
            self.kinds.pop(worker, None)


def divided(kinds: list[str]) -> list[list[int]]:
    """Divide the shards by speed, so that all workers take about the same time.

    >>> [len(share) for share in divided(["fast", "fast", "slow"])]
    [5, 5, 2]
    """
    speeds = [1 / (SECONDS[kind] or 1.0) for kind in kinds]
    ends = [round(SHARDS * sum(speeds[: number + 1]) / sum(speeds)) for number in range(len(kinds))]
    return [list(range(start, end)) for start, end in zip([0, *ends], ends, strict=False)]


def lead(gang: Path | None, step: Step, images: Floats, labels: Labels) -> None:
    """Run all remaining steps, save the weights, and report them."""
    crew, began, told, restored = Crew(gang), time.monotonic(), 0.0, step[0]
    while step[0] < STEPS:
        done, weights, speed = step
        asked = crew.ask(step)
        given = {shard for share in asked.values() for shard in share}
        found = worked_out(step, [shard for shard in range(SHARDS) if shard not in given], images, labels)
        for worker in asked:
            found += crew.hear(worker)
        lost = set(range(SHARDS)) - {shard for shard, _ in found}
        found += worked_out(step, sorted(lost), images, labels)
        total = sum((part for _, part in sorted(found, key=lambda one: one[0])), np.zeros_like(weights))
        speed = MOMENTUM * speed - RATE * (1 - done / STEPS) / BATCH * total
        step = (done + 1, weights + speed, speed)
        if step[0] % CHECKPOINT_EVERY == 0:
            save(step)
        if (now := time.monotonic()) > told + TELL_SECONDS:
            told = now
            tell(step, 1 + len(crew.kinds), (now - began) / max(1, step[0] - restored))
    finish(step)
    if gang is not None:
        put(gang / "over", b"")
    crew.dismiss(step)


def worked_out(step: Step, shards: list[int], images: Floats, labels: Labels) -> Share:
    """Compute the gradients of these shards of the step's batch, at the emulated speed of the device."""
    began = time.monotonic()
    batch = np.random.default_rng(step[0]).choice(len(labels), BATCH, replace=False)
    parts = np.array_split(batch, SHARDS)
    found = [(shard, gradient(step[1], images[parts[shard]], labels[parts[shard]])) for shard in shards]
    time.sleep(max(0.0, began + len(shards) * SECONDS[DEVICE] - time.monotonic()))
    return found


# --- other workers ---


def _door(gang: Path) -> Connection | None:
    """Connect to worker 0; return None if there is none."""
    with contextlib.suppress(OSError), contextlib.chdir(gang):
        door = Client(Path("leader").read_text(), "AF_UNIX")
        door.send(DEVICE)
        return door
    return None


def follow(door: Connection, step: Step, images: Floats, labels: Labels) -> Step:
    """Work for worker 0 until it is gone or training is over; return the last state it sent."""
    with contextlib.suppress(OSError, EOFError):
        while step[0] < STEPS:
            step, shards = door.recv()
            if step[0] < STEPS:
                door.send(worked_out(step, shards, images, labels))
    return step


# --- files ---


def load(split: str) -> tuple[Floats, Labels]:
    """Read the images and labels of one split."""
    with np.load("digits.npz") as file:
        return file[f"{split}_images"] / 256, file[f"{split}_labels"]


def checkpoint() -> Path | None:
    """Return the path of the checkpoint file; None without a checkpoint folder."""
    folder = os.environ.get("POISE_CHECKPOINTS")
    return Path(folder) / "state.npy" if folder else None


def save(step: Step) -> None:
    """Write the checkpoint."""
    if (path := checkpoint()) is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        put(path, np.concatenate([[float(step[0])], step[1], step[2]]).tobytes())


def restore() -> Step:
    """Return the initial state: from the checkpoint if there is one, else new."""
    weights = initial(np.random.default_rng(0))
    if (path := checkpoint()) is not None and path.exists():
        content = np.frombuffer(path.read_bytes())
        return int(content[0]), content[1 : 1 + len(weights)].copy(), content[1 + len(weights) :].copy()
    return 0, weights, np.zeros_like(weights)


def tell(step: Step, world: int, seconds: float) -> None:
    """Report the training progress; `resizes` declares that this gang can shrink and grow while it runs."""
    if path := os.environ.get("POISE_REPORT"):
        safe = step[0] - step[0] % CHECKPOINT_EVERY
        said = {
            "step": step[0],
            "samples": step[0] * BATCH,
            "progress": 1_000_000 * step[0] // STEPS,
            "safe": 1_000_000 * safe // STEPS,
            "world": world,
            "effective": BATCH,
            "step_time": round(seconds * 1e9),
            "resizes": True,
        }
        put(Path(path), json.dumps(said).encode())


def finish(step: Step) -> None:
    """Save the weights, and report their digest and the accuracy on the test images."""
    put(Path(os.environ.get("DEMO_WEIGHTS", "weights.bin")), step[1].tobytes())
    result = json.dumps(
        {
            "steps": step[0],
            "test_accuracy": round(accuracy(step[1], *load("test")), 4),
            "weights": sha256(step[1].tobytes()).hexdigest(),
        }
    )
    if path := os.environ.get("POISE_RESULT"):
        put(Path(path), result.encode())
    print(result)


def put(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    draft = path.with_name(f".{path.name}.{uuid4().hex}")
    draft.write_bytes(content)
    draft.replace(path)


if __name__ == "__main__":
    main()
