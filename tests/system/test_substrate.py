"""A substrate in one file, of an installed package: the example, with real pilots, agents and commands."""

import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from drivers.test_plugins import install

from poise.drivers.lock import holder
from system.living import Living, free_port, kill, until

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "substrates"
NODES = ["process-1", "process-2", "process-3"]


@pytest.fixture(scope="module")
def living() -> Iterator[Living]:
    living = Living()
    try:
        packages = living.root / "packages"
        project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
        install(packages, project["entry-points"], package=project["name"], version=project["version"])
        shutil.copy(EXAMPLE / "processes.py", packages)
        living.variables["PYTHONPATH"] = f"{packages}:{living.environment().get('PYTHONPATH', '')}".rstrip(":")
        done = living.poise("up", "--port", "0", "--on", "processes:3", "--listen", f"127.0.0.1:{free_port()}")
        assert done.code == 0, done.err
        assert "on Processes at 3" in done.err
        until(lambda: statuses(living) == dict.fromkeys(NODES, "up"), "all have joined", living.messages)
        yield living
        assert living.poise("down", "--cancel").code == 0
        until(lambda: not living.processes(), "nothing is left", living.processes)
    finally:
        living.destroy()


def statuses(living: Living) -> dict[str, str]:
    return {node.name: node.status for node in living.client().nodes()}


def lock(living: Living, node: str, of: str) -> Path:
    return living.home.root / "processes" / node / of


def running(living: Living, run: str) -> tuple[str, str]:
    """A job that runs, and its node."""
    job = living.client().submit({"run": ["sh", "-c", run], "resources": {"cpu": 1}})
    until(lambda: living.client().job(job).status == "running", "it runs", living.messages)
    return job, living.client().job(job).tasks[0].node


def test_work_runs_on_its_machines(living: Living) -> None:
    found = [running(living, "sleep 2; echo $POISE_NODE") for _ in NODES]
    assert sorted(node for _, node in found) == NODES
    assert [living.poise("wait", job).code for job, _ in found] == [0, 0, 0]
    [check] = [one for one in living.poise("doctor", "--json").value["checks"] if one["name"] == "Processes"]
    assert check["status"] == "ok"


@pytest.mark.parametrize("killed", ["node/lock", "pilot"])
def test_work_goes_on_when_its_agent_or_its_pilot_is_killed(living: Living, killed: str) -> None:
    released = living.work / f"released-{killed[:4]}"
    job, node = running(living, f"until [ -e {released} ]; do sleep 0.1; done; echo epoch $POISE_EPOCH")
    before = holder(lock(living, node, killed))
    kill(before)
    until(lambda: holder(lock(living, node, killed)) not in (0, before), "there is another", living.messages)
    until(lambda: statuses(living)[node] == "up", "its node is heard", living.messages)
    released.touch()
    assert living.poise("wait", job).code == 0
    assert living.poise("logs", job).text == "epoch 1\n"


def test_a_machine_that_leaves_is_emptied_and_comes_back(living: Living) -> None:
    job, node = running(living, "[ $POISE_EPOCH = 2 ] || exec sleep 1000")
    leave = lock(living, node, "leave")
    leave.touch()
    assert living.poise("wait", job).code == 0
    assert living.client().job(job).tasks[0].node != node
    until(lambda: statuses(living)[node] == "lost", "its pilot is released", living.messages)
    leave.unlink()
    until(lambda: statuses(living)[node] == "up", "it is open again", living.messages)


def test_a_name_that_nobody_offers_is_refused_with_those_that_are_there(living: Living) -> None:
    done = living.poise("up", "--on", "proceses:3", "--json")
    assert (done.code, done.error["field"], done.error["need"]) == (1, "--on", "kubernetes, processes, ray, slurm")
    assert "did you mean `processes`?" in done.error["hint"]
    done = living.poise("up", "--on", "processes:many", "--json")
    assert (done.code, done.error["need"]) == (1, "1 to 64")
