"""Nodes of a Ray cluster on machines that only a network joins: it is cut, and joined again."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from needed import needs

from system.living import until
from system.networks import HERE, Networks
from system.onray import NODES, OnRay, on_two_machines

needs("ray", "ray")
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(not HERE, reason="root makes networks, with `ip`"),
]


@pytest.fixture(scope="module")
def apart() -> Iterator[OnRay]:
    networks = Networks(NODES)
    try:
        with on_two_machines(networks) as on_ray:
            yield on_ray
    finally:
        networks.close()


@pytest.mark.slow
def test_training_goes_over_the_network(apart: OnRay) -> None:
    """Its checkpoints are on a disk that both machines have."""
    pytest.importorskip("torch")
    from train.gangs import HERE as SCRIPTS

    living, out = apart.living, apart.living.work / "out"
    env = {"OUT": str(out), "OMP_NUM_THREADS": "1", "POISE_CHECKPOINTS": str(living.work / "checkpoints")}
    env["OPTIONS"] = json.dumps({"samples": 500, "batch": 64, "epochs": 10})
    run = [sys.executable, str(SCRIPTS / "digits.py")]
    job = living.client().submit({"run": run, "workers": 2, "resources": {"cpu": 2}, "env": env})
    assert living.poise("wait", job).code == 0, living.poise("logs", job).text
    assert sorted(apart.where(job)) == [*NODES]
    found = json.loads(out.with_name("out.0.json").read_text())
    assert (found["steps"], found["world"]) == (80, 2)


@pytest.mark.slow
def test_a_network_that_is_cut_loses_a_machine_and_no_work(apart: OnRay) -> None:
    """What runs on the far side goes on there, but counts no more once its work has begun again elsewhere."""
    living, file = apart.living, apart.living.work / "epochs"
    assert apart.networks is not None
    assert living.poise("drain", "a").code == 0
    job = apart.submit(f"echo $POISE_EPOCH >> {file}; [ $POISE_EPOCH = 2 ] || exec sleep 1000; echo second; sleep 1")
    until(lambda: file.exists() and living.client().job(job).status == "running", "it runs", apart.messages)
    assert apart.where(job) == ["b"]
    orphans = [pid for pid, arguments in living.processes(b"POISE_EPOCH=1").items() if "sleep 1000" in arguments]
    apart.networks.cut("b")
    try:
        assert living.poise("drain", "a", "--undo").code == 0
        until(lambda: apart.node("b").status == "lost", "it is lost", apart.messages)
        assert living.poise("wait", job).code == 0
        assert apart.where(job) == ["a"]
        assert [Path(f"/proc/{pid}").exists() for pid in orphans] == [True], "nobody could tell it to stop"
    finally:
        apart.networks.join("b")
    until(lambda: apart.node("b").status == "up", "it is back", apart.messages)
    until(lambda: not Path(f"/proc/{orphans[0]}").exists(), "what it should not run is ended", apart.messages)
    assert file.read_text().split() == ["1", "2"]
    assert living.poise("logs", job).text == "second\n"
