"""The same story makes the same bytes and the same decisions, whatever seeds the hashes of texts."""

import hashlib
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from poise.policy.suites import POLICIES
from poise.testing import World, node

SEED = "4242"
"""Of another process; this one has a seed of its own."""


def story(policy: str) -> str:
    """A world in which much happens, as one number: its log, its last state, and every plan."""
    world = World(policy, history=5)
    for name in ("delta", "alpha", "charlie"):
        world.join(node(name, cpu=3, gpus=2))
    tasks: dict[str, Any] = {
        "prepare": {},
        "train": {"needs": ["prepare"], "parts": 3, "merge": "true", "gpu": 1},
        "gang": {"needs": ["prepare"], "workers": 2, "priority": "high"},
        "pick": {"needs": ["train", "gang"]},
    }
    for number in range(4):
        world.graph(f"g{number}", tasks=tasks, deadline="1h").job(f"x{number}", after=[f"g{number}"])
        world.job(cpu="0.5", **{"class": f"k{number}"}).after("1s")
    world.drain("alpha").cancel("g2").lose("charlie").after("2s").drain("alpha", False)
    world.join(node("charlie", cpu=3, gpus=1, incarnation="2")).finish_all(run="20ms")
    whole = repr((world.log, world.plans, world.sent)).encode() + world.ledger.encode()
    return hashlib.sha256(whole).hexdigest()


@pytest.fixture(scope="module")
def elsewhere() -> dict[str, str]:
    """The stories of all policies as a process with another seed tells them."""
    ask = (
        "import json; from poise.policy.suites import POLICIES; from unit.kernel.test_determinism import story;"
        "print(json.dumps({policy: story(policy) for policy in POLICIES}))"
    )
    env = {**os.environ, "PYTHONHASHSEED": SEED, "PYTHONPATH": os.pathsep.join(sys.path)}
    told = subprocess.run([sys.executable, "-c", ask], env=env, stdout=subprocess.PIPE, check=True).stdout
    found: dict[str, str] = json.loads(told)
    return found


@pytest.mark.parametrize("policy", POLICIES)
def test_hash_seeds_change_nothing(policy: str, elsewhere: dict[str, str]) -> None:
    assert elsewhere[policy] == story(policy)
