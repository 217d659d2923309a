"""A worker takes up the wish for a trace, and leaves one beside its report."""

import gzip
import json
import time
from pathlib import Path

import pytest
import torch

from poise.drivers.capture import TAKEN, TRACE, WISH
from poise_train import capturing
from poise_train.capturing import Capturing


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(capturing, "LOOK_SECONDS", 0.0)
    return tmp_path / "j1.main.1.report"


def wish(report: Path, text: str) -> None:
    Path(f"{report}{WISH}").write_text(text)


def trace(report: Path) -> Path:
    return Path(f"{report}{TRACE}")


def test_a_trace_covers_the_steps_of_its_time(report: Path) -> None:
    worker = Capturing(report)
    worker.step()
    wish(report, json.dumps({"seconds": 0.2}))
    begun = time.monotonic()
    while not trace(report).exists():
        worker.step()
        torch.nn.functional.relu(torch.ones(4))
        assert Path(f"{report}{TAKEN}").exists() and not Path(f"{report}{WISH}").exists()
    assert time.monotonic() - begun >= 0.2
    told = json.loads(gzip.decompress(trace(report).read_bytes()))
    assert sum("relu" in str(event.get("name")) for event in told["traceEvents"]) >= 1
    assert [path.name for path in report.parent.iterdir() if path.name.startswith(tuple("0123456789"))] == []


def test_a_wish_that_cannot_be_read_costs_the_trace_and_nothing_else(
    report: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    worker = Capturing(report)
    wish(report, "{")
    worker.step()
    assert "profiler of PyTorch has failed" in capsys.readouterr().err
    assert trace(report).stat().st_size == 0
