"""Measure the cost of the training library, and training through faults: real small models, real processes.

    python benchmarks/training.py [--only overhead,kill,resize,preempt] [--rounds 5] [--steps 150] [--json]
                                  [--plot docs/images/killed.svg]

* `overhead`: the median step of a small transformer (on the text of the licence) and of a CNN (on digits), in a plain
  loop with a DataLoader and in a session, which take turns step by step, on one core. The data are rows of tensors,
  which a session reads a batch at a time; and again data that provide single samples to both. Each round is a process
  that returns no memory to the system, so that page faults do not favor one loop at random.
* `kill`: four workers of an elastic gang under a real control plane train a small network on digits; one is killed with
  SIGKILL, alternately worker 0 and another. The figures are the times from the kill to the next step of the gang, and
  to the next with four workers; repeated and skipped steps; accuracy on test digits, and the loss step by step,
  compared with undisturbed runs, one of which has the same seed. `--plot` draws the losses.
* `resize`: the accuracy of runs with 1, then 4, then 2 workers, compared with runs with two all the time, at the same
  samples per step, for several seeds.
* `preempt`: an urgent job preempts a training gang, which then resumes. The figures are the lost steps, and the time
  from the end of the urgent job to the next step.
"""

import argparse
import itertools
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import harness
from drawing import drawn
from harness import Figure, say

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
LICENCE = ROOT / "LICENSE"
KEEPS_MEMORY = {"MALLOC_TRIM_THRESHOLD_": "4000000000", "MALLOC_MMAP_THRESHOLD_": "4000000000"}
"""Settings that keep glibc from returning memory to the system."""

STEPS = 16
"""Steps in a pass over the training digits: 1,000 in batches of 64."""


# --- overhead --------------------------------------------------------------------------------------------------------


def transformer() -> tuple[Any, Any, Any]:
    """Return a model (two layers, width 128, sequences of 64 bytes), its data, and its loss."""
    import torch
    from torch import nn

    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bytes = nn.Embedding(256, 128)
            layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True, dropout=0.0)
            self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.next = nn.Linear(128, 256)

        def forward(self, x: Any) -> Any:
            mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
            return self.next(self.layers(self.bytes(x), mask=mask, is_causal=True))

    text = torch.frombuffer(bytearray(LICENCE.read_bytes()), dtype=torch.uint8).long()
    windows = text.unfold(0, 65, 5)
    data = torch.utils.data.TensorDataset(windows[:, :-1].contiguous(), windows[:, 1:].contiguous())
    return Small(), data, lambda said, y: nn.functional.cross_entropy(said.flatten(0, 1), y.flatten())


def cnn() -> tuple[Any, Any, Any]:
    """Return two convolutions and two linear layers for digits of 8 by 8."""
    import torch
    from sklearn.datasets import load_digits
    from torch import nn

    images, labels = load_digits(return_X_y=True)
    inputs = torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8)
    layers = [nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 64, 128), nn.ReLU(), nn.Linear(128, 10))
    return model, torch.utils.data.TensorDataset(inputs, torch.tensor(labels)), nn.functional.cross_entropy


class OneByOne:
    """Data that can be read only one sample at a time."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, place: int) -> Any:
        return self._data[place]


def overhead(
    make: Callable[[], tuple[Any, Any, Any]], steps: int, batch: int, *, one_by_one: bool = False
) -> tuple[float, float]:
    """Return the median seconds of a step: plain, and in a session. They alternate, so that disturbances slow both."""
    import torch
    from torch.utils.data import DataLoader

    import poise

    torch.set_num_threads(1)

    def made() -> tuple[Any, Any, Any]:
        model, data, loss_of = make()
        whole = torch.utils.data.Subset(data, range(len(data) - len(data) % batch))
        return model, OneByOne(whole) if one_by_one else whole, loss_of

    def plain() -> Iterator[None]:
        torch.manual_seed(0)
        model, data, loss_of = made()
        optimizer = torch.optim.AdamW(model.parameters())
        while True:
            for x, y in DataLoader(data, batch_size=batch, shuffle=True, drop_last=True):
                optimizer.zero_grad()
                loss_of(model(x), y).backward()
                optimizer.step()
                yield

    def session() -> Iterator[None]:
        torch.manual_seed(0)
        model, data, loss_of = made()
        optimizer = torch.optim.AdamW(model.parameters())
        with poise.Session(model, optimizer, data, batch=batch, epochs=10_000) as run:
            for x, y in run:
                run.step(loss_of(model(x), y))
                yield

    loops = {"plain": plain(), "session": session()}
    times: dict[str, list[float]] = {name: [] for name in loops}
    for number in range(steps + 5):
        for name in itertools.islice(itertools.cycle(loops), number % 2, number % 2 + 2):
            began = time.perf_counter()
            next(loops[name])
            if number >= 5:
                times[name].append(time.perf_counter() - began)
    return statistics.median(times["plain"]), statistics.median(times["session"])


def apart(make: Callable[[], tuple[Any, Any, Any]], steps: int, batch: int, one_by_one: bool) -> tuple[float, float]:
    """Run `overhead` in a separate process that keeps freed memory. Otherwise glibc would return memory and request it
    again during steps of one loop or the other, depending on the memory layout.
    """
    with mock.patch.dict(os.environ, KEEPS_MEMORY), ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(overhead, make, steps, batch, one_by_one=one_by_one).result()


def measure_overhead(rounds: int, steps: int) -> list[Figure]:
    figures = []
    for name, make, batch in (("transformer", transformer, 16), ("CNN", cnn, 64)):
        for one_by_one in (False, True):
            say(f"overhead: {name}{', sample by sample' if one_by_one else ''}")
            pairs = [apart(make, steps, batch, one_by_one) for _ in range(rounds)]
            shares = [100 * (session / plain - 1) for plain, session in pairs]
            what = f"a session's share of a step, {name}{', data read sample by sample' if one_by_one else ''}"
            note = f"a step takes {1000 * pairs[-1][0]:.1f} ms"
            figures.append(Figure(name=what, unit="%", values=shares, limit=1.0, note=note))
    return figures


# --- survival --------------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """A worker's record of one step; `loss` is that of its share."""

    step: int
    rank: int
    world: int
    time: float
    loss: float


def written(folder: Path) -> list[Line]:
    """Return the records of all workers, in order of time."""
    lines = (line for path in folder.glob("out.*.steps") for line in path.read_text().splitlines())
    return sorted((Line(*json.loads(line)) for line in lines), key=lambda line: line.time)


def losses(folder: Path) -> list[float]:
    """Return the loss per step: the mean over the workers, and over the steps of a pass, in which every sample occurs
    once.
    """
    seen: dict[int, dict[int, float]] = {}
    for line in written(folder):
        seen.setdefault(line.step, {})[line.rank] = line.loss
    each = [statistics.fmean(seen[step].values()) for step in sorted(seen)]
    return [statistics.fmean(each[max(0, end - STEPS) : end]) for end in range(1, len(each) + 1)]


class Job:
    """A gang that trains on digits under its own control plane."""

    def __init__(self, workers: str, cpus: int, **options: Any) -> None:
        from system.living import Living

        self.living = Living()
        fleet = self.living.file("fleet.yaml", f"kind: fleet\nname: one\nnodes: {{n: {{cpu: {cpus}, memory: 8GiB}}}}\n")
        policy = self.living.file("policy.yaml", "kind: policy\nname: ours\nextends: poise\npreempt: {min_run: 1s}\n")
        self.living.up("--fleet", str(fleet), "--policy", str(policy))
        env = {"OUT": str(self.living.work / "out"), "OMP_NUM_THREADS": "1", "OPTIONS": json.dumps(options)}
        job = {"name": "train", "run": [sys.executable, str(ROOT / "tests" / "train" / "digits.py")], "env": env}
        more = {"workers": workers, "priority": "low", "expect": "1h"}
        self.id = self.living.client().submit(job | more)

    def steps(self) -> list[Line]:
        return written(self.living.work)

    def until(self, holds: Callable[[], Any], seconds: float = 120.0) -> Any:
        end = time.monotonic() + seconds
        while not (found := holds()):
            if time.monotonic() > end:
                raise TimeoutError("waited in vain")
            time.sleep(0.02)
        return found

    def pid(self, rank: int) -> int:
        pid: int | None = self.living.client().job(self.id).tasks[rank].pid
        return pid or 0

    def answer(self) -> dict[str, Any]:
        """Return a worker's result, once all are done."""
        self.until(lambda: self.living.client().job(self.id).ended)
        answers: list[dict[str, Any]] = [json.loads(path.read_text()) for path in self.living.work.glob("out.*.json")]
        return answers[0]

    def end(self) -> None:
        self.living.close()
        self.living.destroy()


def alone(epochs: int, seed: int, plan: tuple[int, ...]) -> tuple[float, list[float]]:
    """Return accuracy and losses of a gang with these numbers of workers in sequence, each for its part of the run."""
    from train.gangs import Workers

    with tempfile.TemporaryDirectory() as folder:
        gang = Workers(Path(folder), batch=64, epochs=epochs, seed=seed, pause=0.005)
        names = "abcd"
        gang.start(*names[: plan[0]])
        every = epochs * STEPS // len(plan)
        for number, workers in enumerate(plan[1:], start=1):
            gang.after("a", number * every)
            gang.become(*names[:workers])
        gang.wait("a")
        accuracy = float(gang.answers()[0]["accuracy"])
        gang.end()
        return accuracy, losses(Path(folder))


def measure_kill(rounds: int, plot: Path | None) -> list[Figure]:
    """Measure `kill` as described in the module."""
    next_step, whole, twice, worse, apart = [], [], [], [], []
    epochs, seeds = 40, 3
    undisturbed = []
    for seed in range(seeds):
        say(f"kill: an undisturbed run, seed {seed}")
        undisturbed.append(alone(epochs, seed, (1,)))
    accuracy, same = undisturbed[0]
    noise = max(max(at) - min(at) for at in zip(*(curve for _, curve in undisturbed), strict=True))
    killed_curves, kills = [], []
    for number in range(rounds):
        say(f"kill: round {number + 1}")
        job = Job("1..4", 4, batch=64, epochs=epochs, pause=0.03, seed=0)
        try:
            job.until(lambda job=job: [line for line in job.steps() if line.world == 4 and line.step > 20])  # type: ignore[misc]
            victim = job.pid(0 if number % 2 else 2)
            killed = time.time()
            os.kill(victim, signal.SIGKILL)
            answer = job.answer()
            lines = job.steps()
            after = [line for line in lines if line.time > killed + 0.001 and line.world != 4]
            again = [line for line in lines if after and line.time > after[0].time and line.world == 4]
            next_step.append(after[0].time - killed)
            whole.append(again[0].time - killed if again else float("nan"))
            made = [line.step for line in lines if line.rank == 0]
            twice.append(float(len(made) - len(set(made)) + answer["steps"] - len(set(made))))
            worse.append(100 * (accuracy - answer["accuracy"]))
            curve = losses(job.living.work)
            killed_curves.append(curve)
            kills.append(after[0].step)
            apart.append(max(abs(one - other) for one, other in zip(curve, same, strict=False)) / noise)
        finally:
            job.end()
    if plot is not None:
        curves = {"undisturbed, three seeds": [curve for _, curve in undisturbed], "killed with SIGKILL": killed_curves}
        plot.write_text(drawn(curves, marks=kills, title="Mean loss of a pass, step by step"), encoding="utf-8")
        say(str(plot))
    return [
        Figure(name="kill -9 of one of four: to the next step", unit="s", values=next_step, limit=30.0),
        Figure(name="kill -9 of one of four: to a step of four again", unit="s", values=whole, limit=30.0),
        Figure(name="steps made twice or left out", unit="", values=twice, limit=0.0),
        Figure(name="points of accuracy below an undisturbed run", unit="", values=worse, limit=0.5),
        Figure(name="loss: largest difference to it, of what seeds differ by", unit="", values=apart, limit=1.0),
    ]


def measure_resize(rounds: int) -> list[Figure]:
    """Measure `resize` as described in the module."""
    elastic: list[float] = []
    fixed: list[float] = []
    for seed in range(rounds):
        say(f"resize: seed {seed}")
        for plan, found in (((1, 4, 2), elastic), ((2,), fixed)):
            found.append(100 * alone(20, seed, plan)[0])
    return [
        Figure(name="accuracy with 1, 4, 2 workers", unit="%", values=elastic),
        Figure(name="accuracy with 2 workers", unit="%", values=fixed),
        Figure(
            name="points that resizing costs, seed by seed",
            unit="",
            values=[two - one for one, two in zip(elastic, fixed, strict=True)],
            limit=0.5,
        ),
    ]


def measure_preempt(rounds: int) -> list[Figure]:
    """Measure `preempt` as described in the module."""
    lost, back = [], []
    for number in range(rounds):
        say(f"preempt: round {number + 1}")
        job = Job("2", 2, batch=64, epochs=30, pause=0.03)
        try:
            job.until(lambda job=job: [line for line in job.steps() if line.step > 30])  # type: ignore[misc]
            urgent = {"name": "urgent", "run": ["sleep", "1"], "priority": "urgent", "expect": "1s"}
            client = job.living.client()
            id = client.submit(urgent | {"resources": {"cpu": 2}})
            job.until(lambda client=client, id=id: client.job(id).ended)  # type: ignore[misc]
            ended = time.time()
            first = job.until(lambda job=job, ended=ended: [line for line in job.steps() if line.time > ended])[0]  # type: ignore[misc]
            before = max(line.step for line in job.steps() if line.time < ended)
            lost.append(float(max(0, before + 1 - first.step)))  # a step with which it ends is made and not written
            back.append(first.time - ended)
        finally:
            job.end()
    return [
        Figure(name="put aside: steps lost", unit="", values=lost, limit=0.0),
        Figure(name="put aside: from the end of the urgent job to the next step", unit="s", values=back, limit=30.0),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="overhead", help="overhead, kill, resize, preempt; several with commas")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=150, help="of each loop and round")
    parser.add_argument("--plot", type=Path, help="draw the losses of killed runs into this file (SVG)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    parts: dict[str, Callable[[], list[Figure]]] = {
        "overhead": lambda: measure_overhead(options.rounds, options.steps),
        "kill": lambda: measure_kill(options.rounds, options.plot),
        "resize": lambda: measure_resize(options.rounds),
        "preempt": lambda: measure_preempt(options.rounds),
    }
    chosen = options.only.split(",")
    return harness.program(lambda: [figure for name in chosen for figure in parts[name]()], as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
