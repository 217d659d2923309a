"""Measure training that migrates to a neighbour with its checkpoint, because its node is hot, drained, or lost.

    python benchmarks/migration.py [--only hot,drained,killed] [--rounds 3] [--json]

Two declared nodes on this machine have their own control plane. On one of them a small network learns digits, as a job
of `poise submit`, with a checkpoint in the job's folder every 20 steps. Then one of these happens:

* *hot*: another command on the node requests a fifth of a CPU and uses a whole one, of the half that the node has. The
  measured use of the commands is then above 80 %, which counts as hot after 5 s instead of 30 s; a policy file sets
  this, and everything else has its defaults. The other command is not preemptible, so that the training migrates.
* *drained*: an operator runs `poise drain NODE --move`.
* *killed*: the node's agent, its keepers and its commands are killed with SIGKILL at once, and not restarted.

The training records each step with its time. *Away* is from the last step on the one node to the first on the other.
Most of it is process startup with the import of PyTorch: *restore* is from the node's start report until the first
step. The result is compared with the same training without interruption.
"""

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import harness
from chaos.turns import Observer, running, stopped
from harness import Figure, say
from training import Line, written

from poise.drivers.lock import holder

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from system.living import Living, kill, until  # noqa: E402

EVERY = 20
"""Steps between two checkpoints; a step takes about 55 ms, most of which is a pause."""

OPTIONS: dict[str, Any] = {"batch": 64, "epochs": 100, "every": EVERY, "pause": 0.05}
FLEET = 'kind: fleet\nname: pair\nnodes: {a: {cpu: "0.5", memory: 8GiB}, b: {cpu: "0.5", memory: 8GiB}}\n'
POLICY = "kind: policy\nname: ours\nextends: poise\ntriggers: {hot_for: 5s}\n"
SETTLED = 30.0
"""Minimum seconds of running before a task is moved off a hot node."""

DETECTED = 3.0
"""Seconds until a node of this machine is declared lost, by default."""

PLACED = 2.0
"""Target: seconds from the known cause until the training runs elsewhere, without its own startup."""

HOG = [sys.executable, "-c", "while True: pass"]


class Moved(NamedTuple):
    """One migration, in seconds of the wall clock: the cause, its detection, the end of the training on its node and
    its start at the neighbour. Also the steps recorded on either side, and the difference of its weights from an
    undisturbed run's.
    """

    cause: float
    known: float
    ended: float
    started: float
    before: list[Line]
    after: list[Line]
    apart: float

    @property
    def away(self) -> float:
        return self.after[0].time - self.before[-1].time

    @property
    def again(self) -> float:
        """Return the number of steps that were run twice."""
        return float(max(0, self.before[-1].step + 1 - self.after[0].step))

    @property
    def left_out(self) -> float:
        """Return the number of steps that were not recorded, except for one that the first attempt may have run without
        recording it.
        """
        return float(max(0, self.after[0].step - self.before[-1].step - 2))


class Pair:
    """Two nodes, with the training on one of them."""

    def __init__(self) -> None:
        self.living = living = Living()
        fleet, policy = living.file("fleet.yaml", FLEET), living.file("policy.yaml", POLICY)
        living.up("--fleet", str(fleet), "--policy", str(policy))
        self.client = living.client()
        until(lambda: len(self.client.nodes()) == 2, "both nodes have joined", living.messages)
        self.observer = Observer(living)
        env = {"OUT": str(living.work / "out"), "OMP_NUM_THREADS": "1", "OPTIONS": json.dumps(OPTIONS)}
        script = {"name": "train", "run": [sys.executable, str(ROOT / "tests" / "train" / "digits.py")], "env": env}
        self.id, _ = running(living, script | {"resources": {"cpu": 0.2}, "expect": "1h", "priority": "low"})
        self.node = self.client.job(self.id).tasks[0].node
        self.neighbour = "b" if self.node == "a" else "a"
        until(lambda: len(self.steps()) > 2.5 * EVERY, "it has made checkpoints", living.messages)

    def steps(self) -> list[Line]:
        return written(self.living.work)

    def moved(self, cause: float, known: Callable[[], float], *, asked: bool = True) -> Moved:
        """Wait until the training continues elsewhere, and for its result. If not `asked`, it ended with its node."""
        task, told = f"{self.id}.main", known()
        started = self.event("started", task=task, epoch=2)
        ended = self.event("finished", task=task, epoch=1) if asked else told
        assert self.client.job(self.id).tasks[0].node == self.neighbour
        until(lambda: self.steps()[-1].time > started, "it goes on", self.living.messages)
        (self.living.work / "hurry").touch()
        assert self.client.wait(self.id, 120).status == "done"
        (answer,) = (json.loads(path.read_text()) for path in self.living.work.glob("out.*.json"))
        lines = self.steps()
        before = [line for line in lines if line.time < started]
        return Moved(cause, told, ended, started, before, lines[len(before) :], apart(answer["weights"]))

    def event(self, kind: str, **fields: Any) -> float:
        """Return when this event was first reported, or first `since` an instant."""
        return wall(self.observer.until(kind, **fields)[0])


@contextlib.contextmanager
def pair() -> Iterator[Pair]:
    made = Pair()
    try:
        yield made
        made.living.close()
    finally:
        made.living.destroy()


def wall(monotonic: float) -> float:
    return time.time() - time.monotonic() + monotonic


def hot() -> Moved:
    """Migrate because another command exceeds its request on the training's node."""
    with pair() as of:
        first = of.steps()[0].time
        time.sleep(max(0.0, first + SETTLED - time.time()))  # exclude this wait from the measurement
        until(lambda: not any("hot" in node.level for node in of.client.nodes()), "the heat of its own start is over")
        of.client.drain(of.neighbour)
        running(of.living, {"name": "hog", "run": HOG, "preemptible": False, "resources": {"cpu": 0.2}})
        began = time.monotonic()
        of.client.drain(of.neighbour, on=False)
        return of.moved(wall(began), lambda: of.event("levelled", since=began, name=of.node, hot=True))


def drained() -> Moved:
    """Migrate because the node is drained."""
    with pair() as of:
        asked = time.time()
        done = of.living.poise("drain", of.node, "--move")
        assert done.code == 0, done.err
        return of.moved(asked, lambda: of.event("drained", name=of.node))


def killed() -> Moved:
    """Migrate because all processes of the node are killed."""
    with pair() as of:
        folder = of.living.home.nodes / of.node
        with stopped(of.living.pid("supervisor")):
            named = [pid for pid, arguments in of.living.processes().items() if f"{folder}/" in arguments]
            gone = time.time()
            for pid in [holder(folder / "lock"), *of.living.tasks(), *named]:
                kill(pid)
            return of.moved(gone, lambda: of.event("lost", name=of.node), asked=False)


# --- what it comes to undisturbed ------------------------------------------------------------------------------------

_undisturbed: list[float] = []


def apart(weights: list[float]) -> float:
    """Return the largest difference of a weight from the same training without interruption."""
    if not _undisturbed:
        from train.gangs import Workers

        with tempfile.TemporaryDirectory() as folder:
            alone = Workers(Path(folder), **(OPTIONS | {"pause": 0.0}))
            alone.start("a", env={"POISE_GANG_DIR": ""})
            assert alone.wait("a") == [0], alone.said("a")
            _undisturbed.extend(alone.answers()[0]["weights"])
            alone.end()
    return max(abs(one - other) for one, other in zip(weights, _undisturbed, strict=True))


# --- figures ---------------------------------------------------------------------------------------------------------

CASES: dict[str, Callable[[], Moved]] = {"hot": hot, "drained": drained, "killed": killed}


def figures_of(name: str, turns: list[Moved]) -> list[Figure]:
    """Return the figures described in the module. After a kill, the steps since the latest checkpoint are repeated."""
    asked = name != "killed"
    knows = {"hot": "from the other command's start to a hot node", "drained": "from the command to the order"}
    told = knows.get(name, "from the kill to the loss of the node")

    def figure(what: str, of: Callable[[Moved], float], limit: float | None = None, unit: Any = "s") -> Figure:
        return Figure(name=f"{name}: {what}", unit=unit, values=[of(turn) for turn in turns], limit=limit)

    ends = [figure("from that until it has saved itself and ended", lambda turn: turn.ended - turn.known)]
    return [
        figure(told, lambda turn: turn.known - turn.cause, None if asked else DETECTED),
        *(ends if asked else []),
        figure("from that to its start on the neighbour", lambda turn: turn.started - turn.ended, PLACED),
        figure("restore, to the first step", lambda turn: turn.after[0].time - turn.started),
        figure("from the cause to the first step", lambda turn: turn.after[0].time - turn.cause),
        figure("away", lambda turn: turn.away),
        figure("steps made again", lambda turn: turn.again, 0.0 if asked else float(EVERY), ""),
        figure("steps left out", lambda turn: turn.left_out, 0.0, ""),
        figure("weights, the largest difference", lambda turn: turn.apart, 1e-6, ""),
    ]


def measure(cases: list[str], rounds: int) -> list[Figure]:
    """Run each case `rounds` times, in turn."""
    turns: dict[str, list[Moved]] = {name: [] for name in cases}
    for number in range(rounds):
        for name in cases:
            say(f"{name}: round {number + 1}")
            turns[name].append(CASES[name]())
    return [figure for name in cases for figure in figures_of(name, turns[name])]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="hot,drained,killed", help="several with commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    return harness.program(lambda: measure(options.only.split(","), options.rounds), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
