"""Compare models that share a process with models in processes of their own: memory, and time until all are ready.

    python benchmarks/shared_processes.py [--models 4] [--rounds 3] [--json]

The models are small perceptrons of PyTorch, without a device. Both variants are started in turns, by `poise serve` with
a control plane that already runs. Memory is the proportional set size (PSS) of the replica processes after each model
has answered a request. Time is from the start of `poise serve` until every model is ready.
"""

import argparse
import re
import sys
import time
from pathlib import Path

from harness import Figure, program, ratio, say

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from system.living import Living
from system.serving import Serving

MODEL = """
import torch

class Model:
    def load(self):
        self.net = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)).eval()

    def predict(self, batch: list[list[float]]) -> list[int]:
        with torch.inference_mode():
            return self.net(torch.tensor(batch)).argmax(1).tolist()
"""

KINDS = ("poise_serve.replica", "poise_serve.shared_process")
"""Programs of replicas."""


def measured(living: Living, names: list[str], process: str) -> tuple[float, float]:
    """Serve these models. Returns the memory of their processes in MB, and the seconds until all were ready."""
    for name in names:
        config = f"resources: {{cpu: 100m}}\n{f'process: {process}' if process else ''}\n"
        living.file(f"models/{name}/config.yaml", config)
        living.file(f"models/{name}/model.py", MODEL)
    began = time.perf_counter()
    serving = Serving(living, "models", ready=False)
    for name in names:
        serving.until_said(f"{name}: 1 of 1 ready")
    took = time.perf_counter() - began
    for name in names:
        answer = serving.ask([0.5] * 256, f"/predict/{name}")
        assert answer.status == 200, answer
    replicas = [
        pid
        for pid, command in living.processes().items()
        if any(kind in command for kind in KINDS) and "keeper.py" not in command
    ]
    assert len(replicas) == (1 if process else len(names)), living.processes()
    memory = sum(map(_pss, replicas))
    assert serving.end() == 0
    return memory, took


def _pss(pid: int) -> float:
    """Return the proportional set size of a process in MB."""
    found = re.search(r"^Pss:\s+([0-9]+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    return int(found[1]) / 1000 if found else 0.0


def measure(models: int, rounds: int) -> list[Figure]:
    names = [f"m{number}" for number in range(models)]
    memory: dict[str, list[float]] = {"": [], "one": []}
    took: dict[str, list[float]] = {"": [], "one": []}
    living = Living()
    try:
        living.up()
        for _ in range(rounds):
            for process in ("", "one"):
                megabytes, seconds = measured(living, names, process)
                memory[process].append(megabytes)
                took[process].append(seconds)
                say(f"{process or 'own processes'}: {megabytes:.0f} MB, {seconds:.1f} s")
    finally:
        living.close()
    return [
        Figure(name=f"{models} models in own processes, memory", unit="MB", values=memory[""]),
        Figure(name=f"{models} models in one process, memory", unit="MB", values=memory["one"]),
        ratio("  times that of own processes", memory["one"], memory[""]),
        Figure(name=f"{models} models in own processes, ready after", unit="s", values=took[""]),
        Figure(name=f"{models} models in one process, ready after", unit="s", values=took["one"]),
        ratio("  times that of own processes", took["one"], took[""]),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    return program(lambda: measure(given.models, given.rounds), as_json=given.json)


if __name__ == "__main__":
    sys.exit(main())
