"""Ways by which workers add tensors up: which groups there are, that all ways come to one sum, and who is told."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from poise_train import topology
from poise_train.topology import Plan, Routes, plans
from train.gangs import run
from train.groups import together

NEW_NETWORK = 0x40000000
"""Of `unshare`, see its manual."""


def test_nodes_are_added_up_inside_first_and_then_in_a_ring_or_in_pairs() -> None:
    assert plans("aabb") == {"levels": Plan((((0, 1), (2, 3)),), (0, 2))}
    assert plans("abab") == {"levels": Plan((((0, 2), (1, 3)),), (0, 1))}
    assert plans("aab")["levels"] == Plan((((0, 1),),), (0, 2))
    assert plans("abcd") == {"tree": Plan((((0, 1), (2, 3)),), (0, 2))}
    assert plans("abcdeaf")["tree"] == Plan((((0, 5),), ((0, 1), (2, 3), (4, 6)), ((0, 2),)), (0, 4))


@pytest.mark.parametrize("nodes", ["a", "aaaa", "ab", "abc"])
def test_where_a_ring_is_as_good_as_any_there_is_no_other_way(nodes: str) -> None:
    assert plans(nodes) == {}


def add_up_each_way(rank: int, world: int) -> dict[str, Any]:
    """A tensor in every way, several under way at once; what came of it, and what each is said to have cost."""
    routes = Routes(rank, world, plans("abcdd"), 60.0, 60.0)
    told: dict[str, Any] = {"chosen": [routes.best(size) for size in (64, 1 << 14, 1 << 25)], "sent": {}}
    for route in routes.seconds:
        mine = [torch.arange(1000, dtype=torch.float32) * (rank + 1 + turn) for turn in range(4)]
        for wait in [routes.begin(route, one) for one in mine]:
            wait()
        told[route] = torch.stack(mine)
        told["sent"][route] = routes.sent(route, 4000)
    routes.close()
    return told


def test_all_ways_come_to_one_sum_at_all_workers(tmp_path: Path) -> None:
    told = together(add_up_each_way, 5, tmp_path)
    exact = torch.stack([torch.arange(1000) * float(15 + 5 * turn) for turn in range(4)])
    for one in told:
        assert {"ring", "levels", "tree"} < one.keys()
        assert all(torch.equal(one[route], exact) for route in ("ring", "levels", "tree"))
        assert one["chosen"] == told[0]["chosen"]
    # nodes a, b, c, d and d: worker 4 gives its own to 3 and takes the sum; four go around in a ring
    assert [one["sent"]["ring"] for one in told] == 5 * [6400]
    assert [one["sent"]["levels"] for one in told] == [6000, 6000, 6000, 6000 + 2000 + 4000, 4000]


def lose_one(rank: int, world: int) -> dict[str, Any]:
    routes = Routes(rank, world, plans("aabb"), 60.0, 60.0)
    if rank == 3:  # what it owes its node never comes
        os.kill(os.getpid(), signal.SIGKILL)
    wait = routes.begin("levels", torch.ones(1000))
    try:
        wait()
    except RuntimeError as error:
        routes.close()
        return {"lost": str(error)}
    routes.close()
    return {"lost": ""}


def test_who_waits_for_a_worker_that_has_gone_is_told(tmp_path: Path) -> None:
    told = together(lose_one, 4, tmp_path, killed=(3,))
    assert told[2]["lost"]  # it leads the node of who has gone; the others hear of it when it leaves


def on_one_machine(rank: int, world: int) -> dict[str, Any]:
    topology.learn(rank, world, form=60.0, talk=60.0)
    mine = torch.full((10,), float(rank))
    wait, sent = topology.add_up(mine)
    wait()
    return {"routes": topology.known(), "sum": mine, "sent": sent, "groups": dist.get_world_size()}


def test_workers_of_one_machine_have_a_ring(tmp_path: Path) -> None:
    for one in together(on_one_machine, 3, tmp_path):
        assert one == {"routes": None, "sum": one["sum"], "sent": topology.ring_bytes(40, 3), "groups": 3}
        assert torch.equal(one["sum"], torch.full((10,), 3.0))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_another_network_is_another_node(tmp_path: Path) -> None:
    file = tmp_path / "say.py"
    file.write_text(
        "import ctypes, sys\nfrom poise_train import topology\n"
        f"assert not int(sys.argv[1]) or ctypes.CDLL(None).unshare({NEW_NETWORK}) == 0\nprint(topology._node())\n"
    )
    first, second, there = (run(tmp_path, file, apart).stdout for apart in ("0", "0", "1"))
    assert first == second != there
    assert first and there
