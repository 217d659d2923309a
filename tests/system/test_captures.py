"""Captures of real tasks, by the real py-spy and by the profiler of PyTorch."""

import gzip
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from system.living import Living, until

PY_SPY = Path(sys.executable).parent / "py-spy"
needs_py_spy = pytest.mark.skipif(not PY_SPY.exists(), reason="py-spy is not installed")

BUSY = """
def spinning_here():
    number = 0
    while True:
        number += 1

spinning_here()
"""

TRAINING = """
import time

import poise
import torch

model = torch.nn.Linear(8, 1)
data = [(torch.randn(8), torch.randn(1)) for _ in range(4096)]
with poise.Session(model, torch.optim.SGD(model.parameters(), 0.01), data, epochs=10_000, batch=64) as run:
    for inputs, targets in run:
        time.sleep(0.01)
        run.step(torch.nn.functional.mse_loss(model(inputs), targets))
"""


@pytest.fixture(scope="module")
def up() -> Iterator[Living]:
    living = Living()
    try:
        living.up()
        living.file("busy.py", BUSY)
        living.file("training.py", TRAINING)
        yield living
    except BaseException:
        living.destroy()
        raise
    living.close()


def begin(living: Living, name: str, *command: str, env: tuple[str, ...] = ()) -> None:
    done = living.poise("submit", "-q", "--name", name, *env, "--", *command)
    assert done.code == 0, done.err
    until(lambda: living.client().job(name).status == "running", f"{name} runs")


@needs_py_spy
def test_a_flame_graph_is_written_kept_listed_and_shown(up: Living) -> None:
    begin(up, "busy", "sh", "-c", f"{sys.executable} busy.py; true")  # the shell is no Python process
    try:
        done = up.poise("capture", "busy", "--for", "1s")
        assert done.code == 0, done.err
        (capture,) = up.client().captures("busy")
        assert b"spinning_here" in (up.work / capture.name).read_bytes()
        assert capture.name.endswith(".capture-1.stacks.svg") and capture.epoch == 1
        assert f"captures: {capture.name}" in up.poise("show", "busy").text
        assert capture.name in up.poise("capture", "busy", "--list").text
        assert up.poise("capture", "busy", "--get", capture.name, "-O", "again.svg").code == 0
        assert (up.work / "again.svg").read_bytes() == (up.work / capture.name).read_bytes()
    finally:
        up.poise("cancel", "busy")
    up.poise("wait", "busy")
    job = capture.task.partition(".")[0]
    assert [one.name for one in up.client().captures(job)] == [capture.name]
    assert up.poise("rm", job).code == 0
    assert not (up.home.logs / job).exists()


@needs_py_spy
def test_a_dump_is_printed(up: Living) -> None:
    begin(up, "dumped", sys.executable, "busy.py")
    try:
        done = up.poise("capture", "dumped", "--dump")
        assert done.code == 0 and "spinning_here" in done.text, done.err
        assert up.poise("capture", "dumped", "--dump", "-o", "json").value[0]["kind"] == "dump"
    finally:
        up.poise("cancel", "dumped")


def test_what_cannot_be_captured_says_why_and_what_to_type(up: Living) -> None:
    begin(up, "silent", "sleep", "600")
    try:
        refused = up.poise("capture", "silent", "--torch", "-o", "json")
        assert refused.code == 1 and refused.error["code"] == "E170", refused.err
        assert "no training session of Poise responded" in refused.error["message"]
        if PY_SPY.exists():
            refused = up.poise("capture", "silent", "-o", "json")
            assert refused.code == 1 and refused.error["message"] == "no Python process runs in the task"
        assert up.poise("capture", "silent", "--get", "../../token", "-o", "json").error["code"] == "E120"
        assert not list((up.home.logs / up.client().job("silent").id).glob("*captur*"))
    finally:
        up.poise("cancel", "silent")
    up.poise("wait", "silent")
    assert "runs now" in up.poise("capture", "silent").err


@pytest.mark.skipif(shutil.which("py-spy") is not None, reason="py-spy is on the path of everybody here")
def test_without_py_spy_the_hint_installs_it(up: Living) -> None:
    if not PY_SPY.exists():
        begin(up, "plain", sys.executable, "busy.py")
        try:
            refused = up.poise("capture", "plain", "-o", "json")
            assert refused.code == 1 and "pip install py-spy" in refused.error["hint"]
        finally:
            up.poise("cancel", "plain")


@pytest.mark.slow
def test_a_trace_of_pytorch_of_a_training_session(up: Living) -> None:
    begin(up, "train", sys.executable, "training.py", env=("--env", f"PYTHONPATH={':'.join(sys.path)}"))
    try:
        until(lambda: bool(up.client().job("train").training), "it trains")
        done = up.poise("capture", "train", "--torch", "--for", "500ms", "-O", "trace.json.gz")
        assert done.code == 0, done.err
        trace = json.loads(gzip.decompress((up.work / "trace.json.gz").read_bytes()))
        assert any("linear" in str(event.get("name")) for event in trace["traceEvents"])
        step = up.client().job("train").training[0].said.step
        until(lambda: up.client().job("train").training[0].said.step > step, "it goes on")
    finally:
        up.poise("cancel", "train")
