import pytest

from poise.errors import StoreFull
from poise.testing import World, node, replay


def test_the_example_of_the_docstring() -> None:
    world = World().nodes(4, gpus=8).job("other", gpu=8).round().job("train", workers=4, gpu=8).round()
    assert world.codes("train")[0] == "GANG_INCOMPLETE"


def test_a_world_runs_by_itself_until_all_is_done() -> None:
    tasks = {"a": {}, "b": {"needs": ["a"], "workers": 2}}
    world = World().nodes(2).job("first").graph("then", tasks=tasks, after=["first"]).finish_all()
    assert [world.status(name) for name in ("first", "then")] == ["done", "done"]
    assert replay(world.log).encode() == world.ledger.encode()


def test_time_passes_only_when_it_is_told_to() -> None:
    world = World().nodes(1)
    before = world.now
    world.job().round().settle()
    assert world.now == before
    assert world.after("90s").now == before + 90 * 10**9
    assert world.ledger.nodes["n1"].status == "up"  # it sent its heartbeats


def test_a_node_in_one_line() -> None:
    made = node("n7", cpu=0.5, memory="1GiB", gpus=2, gpu_memory=("1GiB", "2GiB"))
    assert (made.cpu, made.memory, [device.memory for device in made.devices]) == (500, 2**30, [2**30, 2**31])


def test_a_disk_that_fills_up_while_it_is_written() -> None:
    world = World().nodes(1)
    world.full_disk = True
    with pytest.raises(StoreFull):
        world.job("a")
    assert world.ledger.jobs == {}
