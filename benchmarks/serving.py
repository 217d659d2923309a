"""Compare Poise with other model servers: one model, one open-loop load, all in one run.

    python benchmarks/serving.py PATH/TO/bench-inference --venvs DIR --all    # every peer, in about 12 minutes
    python benchmarks/serving.py PATH/TO/bench-inference --venvs DIR --only poise,mosec,litserve,bentoml,ray-serve
    python benchmarks/serving.py PATH/TO/bench-inference --venvs DIR --model noop --rates 200,800,1600,3200

`bench-inference` contains the model, the load generator, the peers' servers and the runner. It is copied to a folder in
DIR, beside the virtual environments of the peers (`venv-torch`, `venv-mosec`, ...), which are created if missing. Poise
is added as one more peer: with a limit of 32 items like the others, and otherwise with defaults. `poise-promise` has an
objective, and `poise-wait` a `batch_wait`. With `--model noop`, every server answers without computing anything: the
rest is the cost of serving itself. CPU is that of the whole process tree, including control plane and agent. Run it on
a quiet machine: the runner waits for at most a minute before each cell until the machine is quiet.
"""

import argparse
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

SERVER = """
import sys, os
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from common import load, predict

class MLP:
    def load(self):
        self.model = load()

    def predict(self, batch):
        return [{"label": one} for one in predict(self.model, [one["x"] for one in batch])]

    def example(self):
        return {"x": [0.0] * 64}
"""

NOOP = """
import os
MAXB = int(os.environ.get("MAX_BATCH", "32"))
WAIT_MS = float(os.environ.get("WAIT_MS", "5"))

def load():
    return None

def predict(model, rows):
    return [0] * len(rows)
"""

ROOT = Path(__file__).parent.parent

PACKAGES = {
    "torch": ("fastapi==0.165.*", "uvicorn", "--editable", str(ROOT)),  # the load generator and Poise's replicas
    "litserve": ("litserve==0.2.19",),
    "mosec": ("mosec==0.9.8",),
    "ray": ("ray[serve]==2.60.0",),
    "bento": ("bentoml==1.4.39",),
}
"""Packages of each environment besides those of the model."""

RATES, SECS = "100,200,400,800,1600", 6.0
ALL_RATES, ALL_SECS = "400,1200", 3.0
"""Fewer and shorter cells, so that three rounds of all peers take about 12 minutes."""

PEER = r'^    "([a-z-]+)": dict\(cmd='
"""How the runner lists a peer."""

COMPUTES = ("torch==2.13.0", "scikit-learn")
"""Packages of the perceptron."""

VARIANTS = ("poise", "poise-promise", "poise-wait")
"""Poise with defaults, with an objective, and with a `batch_wait`."""

HEADS = ("peer", "offered", "answered/s", "P50 ms", "P99 ms", "errors", "CPU ms/request", "RSS MB")


def environment_of(peer: str) -> str:
    """Return the environment of a peer."""
    return next((name for name in PACKAGES if peer.startswith(name)), "torch")


def install(venvs: Path, name: str, model: str) -> str:
    """Create an environment unless it exists; use a manually created one unchanged. Return the error, or an empty
    string.
    """
    own = venvs / f"venv-{name}"
    stamp, wanted = own / "installed", [*PACKAGES[name], *(COMPUTES if model == "perceptron" else ())]
    if own.exists() and (not stamp.exists() or set(wanted) <= set(stamp.read_text().split())):
        return ""
    sys.stderr.write(f"installing {', '.join(wanted)}\n")
    for command in (
        [sys.executable, "-m", "venv", str(own)],
        [str(own / "bin" / "python"), "-m", "pip", "install", "--quiet", *wanted],
    ):
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            shutil.rmtree(own, ignore_errors=True)
            return (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1][:200]
    stamp.write_text("\n".join(wanted))
    return ""


def prepare(source: Path, venvs: Path, home: Path, objective: str, wait: str, model: str) -> Path:
    """Return the copied folder, with Poise among the peers."""
    folder = venvs / ("bench" if model == "perceptron" else f"bench-{model}")
    shutil.copytree(source, folder, dirs_exist_ok=True)
    if model == "noop":
        (folder / "peers" / "common.py").write_text(NOOP)
        chance = random.Random(1)
        inputs = [{"x": [round(chance.random(), 4) for _ in range(64)], "label": 0} for _ in range(100)]
        (folder / "inputs.json").write_text(json.dumps(inputs))
    (folder / "peers" / "srv_poise.py").write_text(SERVER)
    poise = str(Path(sys.executable).with_name("poise"))
    command = [poise, "serve", "srv_poise.py:MLP", "--port", "{port}", "--batch", "32"]
    command += ["--python", str(venvs / "venv-torch" / "bin" / "python")]
    command += ["--env", "OMP_NUM_THREADS", "--env", "MLP_W", "--env", "PYTHONPATH"]
    flags_of = dict(zip(VARIANTS, ([], ["--objective", objective], ["--batch-wait", wait]), strict=True))
    env = f"env=dict(POISE_HOME={str(home)!r}, PYTHONPATH={str(ROOT / 'src')!r}), stop_wait=20"
    runner = folder / "run_peers.py"
    text = (source / "run_peers.py").read_text()
    added = [f'    "{name}": dict(cmd={[*command, *flags]!r}, {env}),\n' for name, flags in flags_of.items()]
    text = text.replace("PEERS = {\n", "PEERS = {\n" + "".join(added), 1)
    counted = "        if q == root: out[p] = cpu[p]\n"
    if counted not in text:
        raise SystemExit("the runner has changed: it is not known where it counts processes")
    ours = f"open(f'/proc/{{p}}/environ', 'rb').read().find({str(home).encode()!r}) >= 0"
    text = text.replace(counted, "        if q == root or _ours(p): out[p] = cpu[p]\n")
    text = text.replace(
        "def tree(root):\n",
        "def _ours(p):\n    try: return " + ours + "\n    except OSError: return False\ndef tree(root):\n",
    )
    runner.write_text(text)
    return folder


def table(rows: list[dict[str, Any]]) -> str:
    """Return the medians over rounds, as Markdown."""
    cells: dict[tuple[str, float], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        cells[row["peer"], row["rate"]].append(row)
    lines = ["| " + " | ".join(HEADS) + " |", "|" + " --- |" * len(HEADS)]
    for (peer, rate), of in sorted(cells.items(), key=lambda cell: (cell[0][1], cell[0][0])):

        def median(key: str, of: list[dict[str, Any]] = of) -> float:
            return statistics.median(row.get(key) or 0.0 for row in of)

        cpu = statistics.median(1000 * row["srv_cpu_s"] / max(1, row["ok"]) for row in of)
        lines.append(
            f"| {peer} | {rate:.0f} | {median('thr'):.0f} | {median('p50'):.1f} | {median('p99'):.1f} "
            f"| {100 * median('err_rate'):.1f} % | {cpu:.2f} | {median('rss_mb'):.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run the requested benchmarks, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("--venvs", type=Path, required=True)
    parser.add_argument(
        "--all", action="store_true", help=f"every peer, at {ALL_RATES} requests/s for {ALL_SECS} s each"
    )
    parser.add_argument("--only", default="poise,mosec")
    parser.add_argument("--model", choices=("perceptron", "noop"), default="perceptron")
    parser.add_argument("--rates", default="")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--secs", type=float, default=0.0)
    parser.add_argument("--objective", default="150ms", help="of the peer `poise-promise`")
    parser.add_argument("--batch-wait", default="10ms", help="of the peer `poise-wait`")
    parser.add_argument("--quiet-cores", type=float, default=0.5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    venvs = options.venvs.resolve()
    runner = (options.source / "run_peers.py").read_text()
    peers = [*VARIANTS, *re.findall(PEER, runner, re.MULTILINE)] if options.all else options.only.split(",")
    rates = options.rates or (ALL_RATES if options.all else RATES)
    seconds = options.secs or (ALL_SECS if options.all else SECS)
    failed = {name: install(venvs, name, options.model) for name in sorted({"torch", *map(environment_of, peers)})}
    if failed["torch"]:
        raise SystemExit(f"nothing can be measured without venv-torch: {failed['torch']}")
    for peer in [peer for peer in peers if failed[environment_of(peer)]]:
        sys.stderr.write(f"{peer} is absent: {failed[environment_of(peer)]}\n")
        peers.remove(peer)
    with tempfile.TemporaryDirectory(prefix="poise-serving-") as temporary:
        home = Path(temporary) / "home"
        folder = prepare(options.source, venvs, home, options.objective, options.batch_wait, options.model)
        python = venvs / "venv-torch" / "bin" / "python"
        if options.model == "perceptron" and not (folder / "mlp_3072.pt").exists():
            subprocess.run([python, "train_model.py", "3072"], cwd=folder, check=True)
        out = folder / "poise-results.jsonl"
        out.unlink(missing_ok=True)
        told = [python, "run_peers.py", "--only", ",".join(peers), "--rates", rates, "--out", str(out)]
        told += ["--rounds", str(options.rounds), "--secs", str(seconds)]
        told += ["--quiet-cores", str(options.quiet_cores)]
        subprocess.run(told, cwd=folder, check=True, stdout=sys.stderr, env=os.environ)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    sys.stdout.write((json.dumps(rows) if options.json else table(rows)) + "\n")


if __name__ == "__main__":
    main()
