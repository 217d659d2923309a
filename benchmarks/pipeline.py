"""Measure a pipeline over two workers: its predicted and real bubble, and the gain of cutting by cost and speed.

    python benchmarks/pipeline.py [--short] [--json]

A perceptron that reads handwritten digits (2.1 million weights, 7 different layers) trains in two processes on a core
each, over gloo on loopback, in both schedules and with several numbers of micro-batches. In half of the runs the second
worker has half the speed: each of its layers does its work twice and takes the mean, so the learned weights are the
same. Each run is cut by measured cost and speed and, for comparison, into stages with equal numbers of layers.

*Step*: measured over predicted time. *Bubble*: measured minus predicted, in percentage points, and for comparison minus
the closed form (P - 1) / (M + P - 1). *By cost*: a step with equal numbers of layers over one cut by cost.

Two cores allow only two real stages. Figures for 4 and 8 use the same model over the layers measured here, as if there
were so many such devices: *model only*.
"""

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import harness
import msgspec
from harness import Figure

SIZE = 64
"""Samples in a micro-batch."""

WIDTHS = (64, 1024, 1024, 512, 512, 256, 256, 10)
MANY, SHORT_MANY = (2, 4, 8, 16), (4,)
STEPS, SHORT_STEPS = 32, 6
SECONDS = 900.0
LARGER = ((4, 8), (4, 32), (8, 8), (8, 32))
"""Devices and micro-batches that are only predicted."""


class Setting(msgspec.Struct, frozen=True):
    """`slow`: the second worker has half the speed. `count`: stages with equal numbers of layers, regardless
    of cost.
    """

    schedule: str
    many: int
    slow: bool
    count: bool


class Run(msgspec.Struct, frozen=True):
    """A setting, its predicted and measured step (nanoseconds), and its bubbles. `larger`: predicted bubbles for more
    devices.
    """

    setting: Setting
    foreseen: int
    time: int
    foreseen_bubble: float
    bubble: float
    larger: list[float]


# --- one worker -----------------------------------------------------------------------------------------------------


def work(folder: Path, steps: int) -> None:
    import torch
    from sklearn.datasets import load_digits
    from torch import nn
    from torch.nn.functional import cross_entropy

    from poise_train.pipeline import Pipeline
    from poise_train.policy.pipeline import Device, NoRoom, Wire, foresee, partition

    torch.set_num_threads(1)
    rank = int(os.environ["POISE_RANK"])
    os.sched_setaffinity(0, [sorted(os.sched_getaffinity(0))[rank]])
    images, labels = (torch.tensor(one) for one in load_digits(return_X_y=True))
    images = images.float() / 16

    class Slowly(nn.Module):
        """A layer on a device that takes `times` as long."""

        def __init__(self, layer: nn.Module, times: int) -> None:
            super().__init__()
            self.layer, self.times = layer, times

        def forward(self, row: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = self.layer(row)
            for _ in range(self.times - 1):
                made = made + self.layer(row)
            return made / self.times if self.times > 1 else made

    def model(times: int) -> nn.Sequential:
        torch.manual_seed(0)
        ends = len(WIDTHS) - 2
        layers = [
            nn.Sequential(nn.Linear(low, high), *([nn.ReLU()] if at < ends else []))
            for at, (low, high) in enumerate(itertools.pairwise(WIDTHS))
        ]
        return nn.Sequential(*(Slowly(layer, times) for layer in layers))

    for at, setting in enumerate(msgspec.json.decode((folder / "settings").read_bytes(), type=list[Setting])):
        layers = len(WIDTHS) - 1
        pipe = Pipeline(
            model(2 if setting.slow and rank == 1 else 1),
            images[:SIZE],
            loss=cross_entropy,
            target=labels[:SIZE],
            micro_batches=setting.many,
            schedule="1f1b" if setting.schedule == "1f1b" else "gpipe",
            ends=(-(-layers // 2), layers) if setting.count else (),
        )
        optimizer = torch.optim.SGD(pipe.parameters(), 0.01)
        picks = torch.Generator().manual_seed(at)
        for _ in range(steps + 2):  # the first steps are warm-up
            some = torch.randint(len(labels), (SIZE * setting.many,), generator=picks)
            pipe.step(images[some], labels[some])
            optimizer.step()
            optimizer.zero_grad()
        told = pipe.told()
        if rank == 0:
            harness.say(f"{setting}\n{told}")
            larger = []
            for devices, many in LARGER:
                rows = pipe.layers * 4  # a deeper model of the same layers
                stages = partition(rows, [Device("one")] * devices, Wire(), micro_batches=many)
                if not isinstance(stages, NoRoom):
                    larger.append(foresee(stages, many, "1f1b").bubble)
            run = Run(setting, told.foreseen_time, told.time, told.foreseen_bubble, told.bubble, larger)
            (folder / f"run.{at}").write_bytes(msgspec.json.encode(run))


# --- all of them -----------------------------------------------------------------------------------------------------


def measure(*, short: bool) -> list[Figure]:
    settings = [
        Setting(schedule, many, slow, count)
        for slow in (False, True)
        for schedule in ("gpipe", "1f1b")
        for many in (SHORT_MANY if short else MANY)
        for count in (False, True)
    ]
    runs = _run(settings, SHORT_STEPS if short else STEPS)
    return [*_figures(runs), *_larger(runs)]


def _run(settings: Sequence[Setting], steps: int) -> list[Run]:
    with tempfile.TemporaryDirectory(prefix="poise-bench-") as name:
        folder = Path(name)
        (folder / "settings").write_bytes(msgspec.json.encode(settings))
        environ = {**os.environ, "POISE_WORLD_SIZE": "2", "POISE_GANG_DIR": name, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, "--worker", name, "--steps", str(steps)]
        workers = [subprocess.Popen(command, env={**environ, "POISE_RANK": str(rank)}) for rank in range(2)]
        try:
            codes = [worker.wait(SECONDS) for worker in workers]
        finally:
            for worker in workers:
                worker.kill()
        if any(codes):
            raise RuntimeError(f"the workers ended with {codes}")
        return [msgspec.json.decode((folder / f"run.{at}").read_bytes(), type=Run) for at in range(len(settings))]


def _figures(runs: Sequence[Run]) -> list[Figure]:
    figures = []
    for slow, schedule in itertools.product((False, True), ("gpipe", "1f1b")):
        of = [run for run in runs if (run.setting.slow, run.setting.schedule) == (slow, schedule)]
        cut = [run for run in of if not run.setting.count]
        who = f"{schedule}, {'the second worker half as quick' if slow else 'workers alike'}"
        steps = [run.time / run.foreseen for run in cut]
        figures.append(Figure(name=f"step, {who}", unit="x", values=steps, note="measured over foreseen"))
        for name, values in (
            ("foreseen", [100 * (run.bubble - run.foreseen_bubble) for run in cut]),
            ("closed form", [100 * (run.bubble - 1 / (run.setting.many + 1)) for run in cut]),
        ):
            figures.append(Figure(name=f"bubble, {who}", unit="%", values=values, note=f"points, measured less {name}"))
        worth = [
            one.time / run.time
            for run, one in itertools.product(cut, of)
            if one.setting.count and one.setting.many == run.setting.many
        ]
        figures.append(Figure(name=f"by cost, {who}", unit="x", values=worth, note="as many layers each over by cost"))
    bubbles = ", ".join(
        f"M {many}: {statistics.median(100 * run.bubble for run in runs if run.setting.many == many):.0f} %"
        for many in sorted({run.setting.many for run in runs})
    )
    harness.say(f"bubbles as measured, medians over all: {bubbles}")
    return figures


def _larger(runs: Sequence[Run]) -> list[Figure]:
    return [
        Figure(
            name=f"bubble, {devices} devices, {many} micro-batches",
            unit="%",
            values=[100 * run.larger[at] for run in runs if not run.setting.slow],
            note=f"model only; the closed form says {100 * (devices - 1) / (many + devices - 1):.0f} %",
        )
        for at, (devices, many) in enumerate(LARGER)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="only to see that it works")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=STEPS, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.worker:
        work(Path(chosen.worker), chosen.steps)
        return 0
    return harness.program(lambda: measure(short=chosen.short), as_json=chosen.json)


if __name__ == "__main__":
    raise SystemExit(main())
