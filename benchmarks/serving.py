"""Poise beside other model servers: one model, one open-loop load, all in one run.

    python benchmarks/serving.py PATH/TO/bench-inference --venvs DIR --only poise,mosec,litserve --rates 100,400,1600

`bench-inference` holds the model, the load generator, the peers' servers and the runner; its README says which virtual
environments (`venv-torch`, `venv-mosec`, ...) are to be in DIR. It is copied to a folder of its own beside them, and
Poise is added as one more peer: with a limit of 32 items as the others have, and nothing else set. CPU is that of the
whole process tree, control plane and agent included. Run it on a quiet machine: the runner waits for that.
"""

import argparse
import json
import os
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

HEADS = ("peer", "offered", "answered/s", "P50 ms", "P99 ms", "errors", "CPU ms/request", "RSS MB")


def prepare(source: Path, venvs: Path, home: Path, objective: str) -> Path:
    """The copied folder, with Poise among the peers."""
    folder = venvs / "bench"
    shutil.copytree(source, folder, dirs_exist_ok=True)
    (folder / "peers" / "srv_poise.py").write_text(SERVER)
    poise = str(Path(sys.executable).with_name("poise"))
    command = [poise, "serve", "srv_poise.py:MLP", "--port", "{port}", "--batch", "32"]
    command += ["--python", str(venvs / "venv-torch" / "bin" / "python"), "--env", "OMP_NUM_THREADS", "--env", "MLP_W"]
    promised = [*command, "--objective", objective]
    env = f"env=dict(POISE_HOME={str(home)!r}, PYTHONPATH={str(Path(__file__).parent.parent / 'src')!r}), stop_wait=20"
    runner = folder / "run_peers.py"
    text = (source / "run_peers.py").read_text()
    added = f'    "poise": dict(cmd={command!r}, {env}),\n    "poise-promise": dict(cmd={promised!r}, {env}),\n'
    text = text.replace("PEERS = {\n", "PEERS = {\n" + added, 1)
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
    """Medians over rounds, as Markdown."""
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
    """Run what is asked, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("--venvs", type=Path, required=True)
    parser.add_argument("--only", default="poise,mosec")
    parser.add_argument("--rates", default="100,200,400,800,1600")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--secs", type=float, default=6)
    parser.add_argument("--objective", default="45ms", help="of the peer `poise-promise`")
    parser.add_argument("--quiet-cores", type=float, default=0.5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="poise-serving-") as home:
        folder = prepare(options.source, options.venvs.resolve(), Path(home) / "home", options.objective)
        python = options.venvs / "venv-torch" / "bin" / "python"
        if not (folder / "mlp_3072.pt").exists():
            subprocess.run([python, "train_model.py", "3072"], cwd=folder, check=True)
        out = folder / "poise-results.jsonl"
        out.unlink(missing_ok=True)
        told = [python, "run_peers.py", "--only", options.only, "--rates", options.rates, "--out", str(out)]
        told += ["--rounds", str(options.rounds), "--secs", str(options.secs)]
        told += ["--quiet-cores", str(options.quiet_cores)]
        subprocess.run(told, cwd=folder, check=True, stdout=sys.stderr, env=os.environ)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    sys.stdout.write((json.dumps(rows) if options.json else table(rows)) + "\n")


if __name__ == "__main__":
    main()
