"""Real training under a real control plane: killed, shrunk, grown and put aside, it comes to what nobody disturbs."""

import json
import sys
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from train.gangs import HERE, Workers
from train.test_folds import come_to_the_same, folds

from poise.model.reports.jobs import TaskReport
from poise.model.training import Training
from system.living import Diary, Living, kill, until
from system.serving import Serving
from system.test_mixed import EXAMPLES, load

POLICY = "kind: policy\nname: ours\nextends: poise\npreempt: {min_run: 1s}\n"
FLEET = "kind: fleet\nname: one\nnodes: {n: {cpu: 4, memory: 8GiB}}\n"
TWO = "kind: fleet\nname: two\nnodes: {a: {cpu: 2, memory: 8GiB}, b: {cpu: 2, memory: 8GiB}}\n"
DEVICES = "kind: fleet\nname: one\nnodes: {n: {cpu: 8, memory: 8GiB, devices: [{model: A100-80, count: 3}]}}\n"
EPOCHS = 40
STEPS = EPOCHS * 8
"""Of 500 samples, 64 in each."""

JOB = """
kind: job
name: train
run: {python} {script}
workers: {workers}
resources: {resources}
priority: low
expect: 1h
env: {{OUT: {out}, OMP_NUM_THREADS: "1", OPTIONS: '{options}'}}
"""


class Trained:
    """A job that trains, as its user sees it."""

    def __init__(
        self, living: Living, workers: str, *, fleet: str = FLEET, resources: str = "{cpu: 1}", **options: Any
    ) -> None:
        self.living, self.out = living, living.work / "out"
        options = {"samples": 500, "batch": 64, "epochs": EPOCHS, "lasting": 40, **options}
        text = JOB.format(
            python=sys.executable,
            script=HERE / "digits.py",
            workers=workers,
            resources=resources,
            out=self.out,
            options=json.dumps(options),
        )
        policy = living.file("policy.yaml", POLICY)
        living.up("--fleet", str(living.file("fleet.yaml", fleet)), "--policy", str(policy))
        self.id = living.poise("submit", str(living.file("train.yaml", text))).text.split()[0]
        self.client = living.client()

    def said(self) -> Training:
        told = self.client.job(self.id).training
        return told[0].said if told else Training(step=0)

    def running(self) -> dict[str, TaskReport]:
        return {task.name: task for task in self.client.job(self.id).tasks if task.status == "running"}

    def until_step(self, step: int, world: int = 0) -> None:
        def there() -> bool:
            said = self.said()
            return said.step >= step and world in (0, said.world)

        until(there, f"step {step} with {world} workers", self.living.messages, 120.0)

    def wait(self) -> list[dict[str, Any]]:
        """What the workers came to, in a hurry from now on."""
        self.out.with_name("hurry").touch()
        done = self.living.poise("wait", self.id)
        assert done.code == 0, self.living.poise("logs", self.id).text
        return [json.loads(path.read_text()) for path in sorted(self.out.parent.glob("out.*.json"))]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What one worker comes to, alone."""
    gang = Workers(tmp_path_factory.mktemp("alone"), samples=500, batch=64, epochs=EPOCHS)
    gang.start("a", env={"POISE_GANG_DIR": ""})
    assert gang.wait("a") == [0], gang.said("a")
    return gang.answers()[0]


def comes_to(undisturbed: Any, answers: list[dict[str, Any]]) -> bool:
    assert answers
    return all(
        answer["steps"] == STEPS and np.allclose(answer["weights"], undisturbed["weights"], atol=2e-3)
        for answer in answers
    )


@pytest.mark.slow
def test_a_gang_that_is_killed_and_resized_while_it_runs_comes_to_the_same(living: Living, undisturbed: Any) -> None:
    training = Trained(living, "1..3", pause=0.05)
    training.until_step(5, world=3)
    first = training.running()
    kill(first["main[0]"].pid)

    def replaced() -> bool:
        main = training.running().get("main[0]")
        return main is not None and main.epoch > first["main[0]"].epoch

    until(replaced, "it is replaced", living.messages)
    training.until_step(training.said().step + 10, world=3)
    now = training.running()
    assert {name: (task.pid, task.epoch) for name, task in now.items() if name != "main[0]"} == {
        name: (task.pid, task.epoch) for name, task in first.items() if name != "main[0]"
    }, "the others go on in their processes"
    urgent = Diary(living.work / "diary")
    living.poise("submit", "--priority", "urgent", "--cpu", "3", "--", "sh", "-c", urgent.held())

    def stays() -> bool:
        left = [task.pid for task in training.running().values()]
        return training.said().world == len(left) == 1 and left[0] in {task.pid for task in now.values()}

    until(stays, "it makes room, and one of them stays", living.messages)
    urgent.release()  # before that they cannot grow again
    assert comes_to(undisturbed, training.wait())


def test_put_aside_it_goes_on_from_its_checkpoint_without_losing_a_step(living: Living, undisturbed: Any) -> None:
    training = Trained(living, "2", pause=0.02)
    training.until_step(20)
    living.poise("submit", "--priority", "urgent", "--cpu", "3", "--expect", "1s", "--", "sleep", "1")
    until(lambda: any(task.epoch == 2 for task in training.running().values()), "it goes on", living.messages)
    until(lambda: training.said().restored.startswith("the checkpoint of step"), "it says so", living.messages)
    answers = training.wait()
    steps = [json.loads(line)[0] for path in training.out.parent.glob("out.*.steps") for line in path.open()]
    assert comes_to(undisturbed, answers)
    assert not [step for step in set(steps) if steps.count(step) > 2], "no step was made twice"


@pytest.mark.slow
def test_off_a_node_that_is_emptied_it_goes_on_at_the_other_without_losing_a_step(
    living: Living, undisturbed: Any
) -> None:
    training = Trained(living, "1", fleet=TWO, pause=0.02)
    training.until_step(20)
    (task,) = training.running().values()
    other = "b" if task.node == "a" else "a"
    told = living.poise("drain", "--move", task.node)
    assert "takes no new work; 1 task goes on elsewhere once there is room; " in told.err
    until(lambda: [one.node for one in training.running().values()] == [other], "it goes on there", living.messages)
    until(lambda: training.said().restored.startswith("the checkpoint of step"), "it says so", living.messages)
    story = living.poise("explain", training.id).text
    assert f"main asked to move: {task.node} is being emptied, there is room on {other}" in story, story
    assert {one.name: one.status for one in training.client.nodes()} == {task.node: "emptying", other: "up"}
    answers = training.wait()
    steps = [json.loads(line)[0] for path in training.out.parent.glob("out.*.steps") for line in path.open()]
    assert comes_to(undisturbed, answers)
    assert sorted(steps) == sorted(set(steps)), "no step was made twice"
    assert STEPS - len(steps) < 2, "the step with which it ends is made, and not written"


@pytest.mark.slow
def test_it_makes_room_for_a_service_in_its_processes_and_grows_back(living: Living, undisturbed: Any) -> None:
    """The service has one of three devices, and its training the others; eighty who ask at once are more than a replica
    answers within the objective.
    """
    training = Trained(living, "1..2", fleet=DEVICES, resources="{gpu: 1, cpu: 100m}", pause=0.1)
    served = Serving(living, str(EXAMPLES / "shared.yaml"))
    served.until_said("1 of 1..2 ready")
    training.until_step(5, world=2)
    first = {task.pid for task in training.running().values()}
    with load(served.url, 80):
        served.until_said("2 of 1..2 ready")
        assert training.said().world == 1, living.poise("explain", "train").text
        assert {task.pid for task in training.running().values()} < first, "one of them goes on"
    until(lambda: training.said().world == 2, "it grows back", lambda: served.text)
    assert {task.epoch for name, task in training.running().items() if task.pid in first} == {1}
    assert served.end() == 0
    assert comes_to(undisturbed, training.wait())
    told = living.poise("explain", "train").text
    assert "digits-2 serves digits: P99 is " in told


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["2", "1..2"])
def test_a_script_of_two_sessions_that_is_killed_in_its_second_goes_on_with_that(living: Living, workers: str) -> None:
    """A gang of a fixed size is started again; of one that may change the other goes on, and a new one joins it."""
    text = (
        JOB.format(
            python=sys.executable,
            script=HERE / "folds.py",
            workers=workers,
            resources="{cpu: 1}",
            out=living.work / "out",
            options=json.dumps({"every": 1, "pause": 0.05 if workers == "2" else 0.6}),  # till a new one has come
        )
        .replace("env: {", 'env: {DIE: "2 3", ')
        .replace("run: ", "run: exec ")
    )  # who is killed is the task then
    living.up("--fleet", str(living.file("fleet.yaml", FLEET)))
    living.poise("submit", str(living.file("train.yaml", text)))
    done = living.poise("wait", "train")
    assert done.code == 0, living.poise("logs", "train").text
    assert (living.work / "died").exists()
    *_, first, second = folds(living.work)
    assert come_to_the_same([first, second])
    assert second["world"] == 2, living.messages()
    if workers == "2":
        assert (second["epoch"], first["began"]) == ("2", 16)
        assert second["restored"].startswith(f"the checkpoint of step {second['began']}, of ")
        assert 1 <= second["began"] <= 3
    else:
        assert second["epoch"] == "1"
