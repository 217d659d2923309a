"""What is answered is what then happens, in random worlds: a change that `unblock` suggests is made, and a node that
`why-not` tells of is tried.
"""

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from poise.kernel.explain import question
from poise.kernel.verify import verify_place
from poise.kernel.whatif import unblock, why_not
from poise.model.decisions import Place, Spot, Why
from poise.model.events import Placed
from poise.model.jobs import GRACE
from poise.model.reports.questions import Suggestion
from poise.testing import World
from unit.asking import policy_of

Asked = list[dict[str, Any]]

jobs: st.SearchStrategy[Asked] = st.lists(
    st.fixed_dictionaries(
        {
            "cpu": st.integers(1, 4),
            "priority": st.sampled_from(["low", "medium", "high"]),
            "expect": st.sampled_from(["1m", "20m", "5h"]),
            "preemptible": st.booleans(),
        }
    ),
    min_size=3,
    max_size=8,
)


def made(policy: str, asked: Asked, drained: bool) -> World:
    """All but the last run as far as there is room, for two minutes; then the last one comes."""
    world = World(policy, check=False).nodes(3, cpu=4)
    if drained:
        world.drain("n3")
    for number, fields in enumerate(asked[:-1]):
        world.job(f"w{number}", **fields)
    world.round()
    for unit in list(world.ledger.active.values()):
        world.start(unit.id.removesuffix(".main"))
    world.after("2m").job("last", **asked[-1]).round()
    return world


def suggestions(world: World) -> tuple[Suggestion, ...]:
    view = world.controller.snapshot(world.now)
    return unblock(policy_of(world), view, question(world.ledger, world.state("last"), view)).suggestions


def anew(world: World, asked: Asked, **fields: Any) -> None:
    """Submitted anew, behind all that waits."""
    world.cancel("last").job("anew", **asked[-1] | fields)


def make(world: World, suggestion: Suggestion, asked: Asked) -> str:
    """Do what is suggested; the name of the job that is to start."""
    words = suggestion.command.split()
    changes: dict[str, Callable[[], Any]] = {
        "open": lambda: world.drain(words[-1], on=False),
        "cpu": lambda: anew(world, asked, cpu=int(words[-1])),
        "priority": lambda: anew(world, asked, priority=words[-1]),
        "end": lambda: world.cancel(words[-1]),
    }
    changes[suggestion.kind]()
    return "anew" if suggestion.kind in ("cpu", "priority") else "last"


@pytest.mark.parametrize("policy", ["poise", "fifo"])
@settings(max_examples=40)
@given(jobs, st.booleans())
def test_what_unblock_suggests_lets_it_start(policy: str, asked: Asked, drained: bool) -> None:
    world = made(policy, asked, drained)
    if world.status("last") != "pending":
        return
    for suggestion in suggestions(world):
        if suggestion.kind not in ("open", "cpu", "priority", "end"):
            continue
        then = made(policy, asked, drained)
        name = make(then, suggestion, asked)
        then.round()
        if suggestion.yields:
            then.after(GRACE)
        assert then.where(name) == list(suggestion.nodes), suggestion


@settings(max_examples=60)
@given(jobs, st.booleans(), st.sampled_from(["n1", "n2", "n3"]))
def test_why_not_refuses_what_the_ledger_refuses(asked: Asked, drained: bool, node: str) -> None:
    world = made("poise", asked, drained)
    if world.status("last") != "pending":
        return
    view = world.controller.snapshot(world.now)
    told = why_not(policy_of(world), view, question(world.ledger, world.state("last"), view), node)
    place = Place(unit=world.unit("last").id, spots=(Spot(node),), why=Why(policy="poise"))
    room = isinstance(verify_place(world.ledger, place, world.now), Placed)
    lacks = [reason.code for reason in told.reasons if reason.code in ("CPU_BUSY", "NODE_DRAINED")]
    assert bool(lacks) != room
    assert not (told.fits and not room)
