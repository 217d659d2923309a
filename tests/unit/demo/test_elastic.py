"""Elastic training ends with the same weights with any number of workers, and whichever of them are killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poise_lab.demo import elastic

SCRIPT = Path(elastic.__file__)
STEPS = 40


class Workers:
    """Workers of one gang, started and told by hand as an agent would."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.gang = folder, folder / "gang"
        self.gang.mkdir()
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, kind: str, rank: int) -> subprocess.Popen[bytes]:
        number = len(self.processes)
        environ = environment() | {
            "POISE_GANG_DIR": str(self.gang),
            "POISE_RANK": str(rank),
            "POISE_ORDERS": str(self.orders(number)),
            "POISE_REPORT": str(self.folder / "report"),
            "CUDA_VISIBLE_DEVICES" if kind == "fast" else "ROCR_VISIBLE_DEVICES": "0",
        }
        self.processes.append(run(self.folder, environ))
        return self.processes[-1]

    def orders(self, number: int) -> Path:
        return self.folder / f"orders.{number}"

    def tell(self, number: int, rank: int) -> None:
        draft = self.folder / "draft"
        draft.write_text(json.dumps({"generation": 1, "world": 2, "rank": rank}))
        draft.replace(self.orders(number))

    def steps(self) -> int:
        try:
            return int(json.loads((self.folder / "report").read_text())["step"])
        except FileNotFoundError:
            return 0

    def until(self, steps: int) -> None:
        deadline = time.monotonic() + 30
        while self.steps() < steps:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def outcome(self) -> dict[str, Any]:
        """What the last of them that leads reports; all others end as well."""
        said = [process.communicate(timeout=60)[0] for process in self.processes if process.returncode is None]
        assert all(process.returncode in (0, -signal.SIGKILL) for process in self.processes)
        [result] = [json.loads(text) for text in said if text]
        return dict(result)


def environment() -> dict[str, str]:
    hidden = ("POISE_", "CUDA_VISIBLE", "ROCR_VISIBLE")
    own = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    return own | {"DEMO_STEPS": str(STEPS), "OMP_NUM_THREADS": "1"}


def run(folder: Path, environ: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(SCRIPT)], cwd=folder, env=environ, stdout=subprocess.PIPE)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with random images."""
    folder, rng = tmp_path_factory.mktemp("digits"), np.random.default_rng(0)
    images = {f"{split}_images": rng.integers(0, 256, (400, 64), dtype=np.uint8) for split in ("train", "test")}
    labels = {f"{split}_labels": rng.integers(0, 10, 400, dtype=np.uint8) for split in ("train", "test")}
    np.savez(folder / "digits.npz", **images, **labels)  # type: ignore[arg-type]  # as in `prepare.py`
    return folder


@pytest.fixture(scope="module")
def alone(digits: Path) -> dict[str, Any]:
    """What one process by itself ends with."""
    said, _ = run(digits, environment()).communicate(timeout=60)
    return dict(json.loads(said))


@pytest.fixture
def workers(digits: Path, tmp_path: Path) -> Iterator[Workers]:
    (tmp_path / "digits.npz").symlink_to(digits / "digits.npz")
    made = Workers(tmp_path)
    yield made
    for process in made.processes:
        process.kill()
        process.wait()


def test_who_comes_and_goes_changes_nothing(workers: Workers, alone: dict[str, Any]) -> None:
    workers.start("slow", rank=0)
    workers.until(2)
    joins = workers.start("fast", rank=1)
    workers.start("slow", rank=2)
    workers.until(10)
    joins.kill()
    joins.wait()
    assert workers.outcome() == alone


def test_another_leads_on_where_worker_0_was_killed(workers: Workers, alone: dict[str, Any]) -> None:
    first = workers.start("slow", rank=0)
    workers.until(2)
    workers.start("fast", rank=1)
    workers.start("slow", rank=2)
    time.sleep(0.5)
    workers.until(8)
    first.kill()
    first.wait()
    workers.tell(1, rank=0)
    assert workers.outcome() == alone


def test_faster_devices_have_more_of_the_shards() -> None:
    shares = elastic.divided(["fast", "fast", "slow"])
    assert [len(share) for share in shares] == [5, 5, 2]
    assert sorted(shard for share in shares for shard in share) == list(range(elastic.SHARDS))
    assert elastic.divided([""]) == [list(range(elastic.SHARDS))]
